//! Computes the sizes of chunks, and the order in which each chunk visits the dimensions.
//!
//! *Ascending*: every chunk goes outward from the innermost dimension. If dimensions have unequal loads, the dimension
//! with the highest load limits the rate.
//!
//! *Round robin*: chunk k begins with dimension k mod D and continues outward from there, cyclically.
//!
//! *Themis* and *Themis, flex*: each chunk visits the least loaded dimension first ([`themis`]). Under all policies, an
//! all-gather takes the reverse order. An all-to-all's data does not shrink on the way, so its chunks are always equal
//! and visit the dimensions in ascending order.

mod themis;

use crate::group::GroupPhasesAndMemberPositions;
use crate::topology::Topology;
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::units::UnroundedBufferShare;
use std::collections::BTreeMap;
use themis::ThemisBalancer;

/// Order in which chunks visit the dimensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DimensionVisitOrder {
    /// All chunks go from the innermost dimension outward.
    #[default]
    Ascending,
    /// Successive chunks begin with successive dimensions, cyclically.
    RoundRobin,
    /// Each chunk visits the least loaded dimension first.
    Themis,
    /// Each chunk visits the least loaded dimension first, and chunk sizes equalize the loads.
    ThemisFlex,
}

impl DimensionVisitOrder {
    /// Every policy with its name in machine files.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Ascending, "ascending"),
        (Self::RoundRobin, "round_robin"),
        (Self::Themis, "themis"),
        (Self::ThemisFlex, "themis_flex"),
    ];
}

/// Number of grains in an equal chunk. A grain is the unit of chunk sizes: every chunk is a whole number of grains.
const EQUAL: u32 = 256;

/// Visiting order and size of a chunk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChunkOrderAndSize {
    /// The phases in the order in which the chunk visits them, each once.
    pub order: Vec<usize>,
    /// Size of the chunk in grains.
    grains: u32,
}

impl ChunkOrderAndSize {
    /// `whole` is the size of the collective's buffer. `chunks` is the number of chunks if all chunks have equal sizes.
    /// The chunks' shares add up exactly to `whole` if it is smaller than 2^56 bytes.
    pub fn share_of_buffer(
        &self,
        whole: UnroundedBufferShare,
        chunks: u32,
    ) -> UnroundedBufferShare {
        whole
            .k_of_n_equal_parts(self.grains, EQUAL)
            .one_of_n_equal_parts(chunks)
    }
}

/// Splits a collective with the buffer `whole` into chunks. Returns the chunks' distinct routes through the phases of
/// `extent`, and the index of each chunk's route. If all chunks are equal, there are `chunks` of them; otherwise, there
/// are at most sixteen times as many.
pub(super) fn choose_chunk_routes(
    inter: DimensionVisitOrder,
    (kind, whole): (CollectiveKind, UnroundedBufferShare),
    (extent, topology): (&GroupPhasesAndMemberPositions, &Topology),
    chunks: u32,
) -> (Vec<ChunkOrderAndSize>, Vec<u32>) {
    let phases = extent.phases.len();
    let ascending: Vec<usize> = (0..phases).collect();
    let equal = |order| ChunkOrderAndSize {
        order,
        grains: EQUAL,
    };
    // The visiting order balances loads only if the data shrinks from dimension to dimension.
    let shrinks = match kind {
        CollectiveKind::AllReduce | CollectiveKind::ReduceScatter | CollectiveKind::AllGather => {
            true
        }
        CollectiveKind::AllToAll => false,
        _ => return (vec![equal(ascending)], vec![0; chunks as usize]),
    };
    // If the buffer is too large to be divided exactly into grains, all its chunks are equal.
    let exact = whole.bytes.checked_mul(u64::from(EQUAL)).is_some();
    let mut balance = match inter {
        DimensionVisitOrder::Themis | DimensionVisitOrder::ThemisFlex if !shrinks => None,
        DimensionVisitOrder::Themis => Some(ThemisBalancer::new(extent, topology)),
        DimensionVisitOrder::ThemisFlex if exact => {
            Some(ThemisBalancer::new_for_flexible_chunks(extent, topology))
        }
        DimensionVisitOrder::ThemisFlex => Some(ThemisBalancer::new(extent, topology)),
        DimensionVisitOrder::Ascending | DimensionVisitOrder::RoundRobin => None,
    };
    let mut ways = Vec::new();
    let mut known = BTreeMap::new();
    let mut way_of = Vec::with_capacity(chunks as usize);
    let mut left = u64::from(chunks) * u64::from(EQUAL);
    while left > 0 {
        let mut way = equal(ascending.clone());
        match &mut balance {
            Some(balance) => {
                way.grains = balance.order_phases_and_size_next_chunk(&mut way.order, left)
            }
            None if inter == DimensionVisitOrder::RoundRobin => {
                way.order.rotate_left(way_of.len() % phases.max(1))
            }
            None => {}
        }
        left -= u64::from(way.grains);
        // Chunks of the same size that visit the phases in the same order share one route.
        let number = *known.entry(way).or_insert_with_key(|way| {
            ways.push(way.clone());
            ways.len() as u32 - 1
        });
        way_of.push(number);
    }
    (ways, way_of)
}

#[cfg(test)]
mod tests;
