//! Orders each chunk's phases by their load, least loaded first.
//!
//! *Themis* (Rashidi et al., "Themis: a network bandwidth-aware collective scheduling policy", ISCA 2022; ASTRA-sim's
//! `OfflineGreedy`): each chunk of a reduce-scatter visits the dimensions in ascending order of the load from earlier
//! chunks. It thus passes through the least loaded dimension at its full size. After its order is chosen, its own load
//! is added. Let a chunk have s bytes on entry to dimension d, which has n members and bandwidth B. The chunk adds a
//! load of s (n−1)/n / B seconds, and has s/n bytes afterwards. The chunk visits the dimensions in ascending order if
//! the loads are almost equal: if they differ by less than a sixteenth of the load that the chunk would add to the
//! least loaded dimension. Loads that differ by less than [`UnroundedTimeEstimate::MARGIN`] are equal, and equally
//! loaded dimensions are visited in ascending order.
//!
//! *Themis, flex* (ASTRA-sim's `OfflineGreedyFlex`) uses the same order. For each chunk that is ordered by loads, it
//! also computes the size. In the Themis paper, all chunks are equal. A chunk ordered by loads visits the least loaded
//! dimension first, and is just large enough to raise that dimension's load to the load of the most loaded dimension:
//!
//! ```text
//! x (n−1)/n / B = L_most − L_least        so        x = (L_most − L_least) B n/(n−1) bytes
//! ```
//!
//! where n and B belong to the least loaded dimension. A chunk that visits the dimensions in ascending order, such as
//! the first chunk, has the equal size E: the collective's bytes divided by the machine file's `chunks`. The last chunk
//! takes the remainder. ASTRA-sim truncates x to whole bytes, sets no upper bound, and uses ascending order if x is
//! less than E (newer versions) or less than 0.128 MiB (the first version).
//!
//! chakram's implementation differs from ASTRA-sim's in three respects:
//!
//! - The lower bound is as in Themis: if x is less than E/16, the chunk has the equal size and ascending order. The
//!   number of chunks is therefore from `chunks` to 16 · `chunks`.
//! - The upper bound of x is E. A larger chunk would close more of the gap, but other chunks would wait for it, and a
//!   pipeline with fewer chunks takes longer to fill and drain.
//! - Chunks consist of grains: x is rounded to a multiple of E/256, so that all sizes add up to the collective's size,
//!   and only a few distinct sizes occur. The rounding error of E/512 is far below the gap of E/16 that remains open
//!   anyway.

use super::EQUAL;
use crate::group::GroupPhasesAndMemberPositions;
use crate::topology::Topology;
use chakram_base::units::UnroundedTimeEstimate;

/// A chunk uses the ascending order if the loads differ by less than this fraction of the load that it adds itself.
const LEAST_GAP: f64 = 1.0 / 16.0;

/// Chooses the order and the size of each chunk by the load that earlier chunks have put on the phases.
pub(super) struct ThemisBalancer<'a> {
    extent: &'a GroupPhasesAndMemberPositions,
    /// Accumulated sending time of each phase, for equal chunks of one byte. Only the ratios of the loads matter.
    loads: Vec<f64>,
    /// Rate at which a member sends in each phase, in bytes per second, or relative to the first phase.
    rates: Vec<f64>,
    /// True if chunk sizes are chosen to equalize the loads.
    flexible: bool,
}

impl<'a> ThemisBalancer<'a> {
    /// Creates a balancer for equal chunks; all loads are zero at first.
    pub fn new(extent: &'a GroupPhasesAndMemberPositions, topology: &Topology) -> Self {
        let rate = |phase: &crate::group::PhaseDimensionSizeAndStride| {
            let dimension = &topology.dimensions()[phase.dimension];
            dimension.bandwidth.bytes_per_second()
        };
        Self {
            extent,
            loads: vec![0.0; extent.phases.len()],
            rates: extent.phases.iter().map(rate).collect(),
            flexible: false,
        }
    }

    /// Creates a balancer for chunks that equalize the loads; all loads are zero at first. Rates are relative to the
    /// first phase. If rates and sizes are powers of two, the loads are then exact, so the balancer detects equal
    /// loads.
    pub fn new_for_flexible_chunks(
        extent: &'a GroupPhasesAndMemberPositions,
        topology: &Topology,
    ) -> Self {
        let mut balance = Self::new(extent, topology);
        if let Some(&first) = balance.rates.first() {
            for rate in &mut balance.rates {
                *rate /= first;
            }
        }
        balance.flexible = true;
        balance
    }

    /// Returns the load that a chunk with a remaining `share` puts on a phase.
    fn chunk_load_on_phase(&self, phase: usize, share: f64) -> f64 {
        let n = f64::from(self.extent.phases[phase].size);
        share * (n - 1.0) / n / self.rates[phase]
    }

    /// Sorts the phases in `order` into the next chunk's visiting order, and adds the chunk's load. `order` must
    /// contain the phases in ascending order. Returns the chunk's size in grains, which is at most `left`.
    pub fn order_phases_and_size_next_chunk(&mut self, order: &mut [usize], left: u64) -> u32 {
        let loads = &self.loads;
        // The sort is stable, so that equally loaded dimensions stay in ascending order.
        order.sort_by(|&a, &b| loads[a].total_cmp(&loads[b]));
        // Loads that differ only by rounding errors also count as equal.
        for alike in order
            .chunk_by_mut(|&a, &b| loads[b] <= loads[a] * (1.0 + UnroundedTimeEstimate::MARGIN))
        {
            alike.sort_unstable();
        }
        let mut grains = EQUAL;
        if let (Some(&least), Some(&most)) = (order.first(), order.last()) {
            let gap = loads[most] - loads[least];
            if gap
                < self.chunk_load_on_phase(least, LEAST_GAP) * (1.0 - UnroundedTimeEstimate::MARGIN)
            {
                order.sort_unstable();
            } else if self.flexible {
                let equal = f64::from(EQUAL);
                let closing = (gap / self.chunk_load_on_phase(least, 1.0) * equal).round();
                // `max` must come first, because it replaces NaN, which extreme rates produce, with the smallest size.
                grains = closing.max(equal * LEAST_GAP).min(equal) as u32;
            }
        }
        let grains = grains.min(u32::try_from(left).unwrap_or(u32::MAX));
        let mut share = f64::from(grains) / f64::from(EQUAL);
        for &phase in &*order {
            self.loads[phase] += self.chunk_load_on_phase(phase, share);
            share /= f64::from(self.extent.phases[phase].size);
        }
        grains
    }
}
