//! Remote memory that ranks share. It stores the bytes that do not fit in the memory of the ranks' own NPUs.
//!
//! Consider a rank that loads from or stores to remote memory. If its NPU has S bytes of its own memory and the rank's
//! peak is p bytes, then p - S bytes are in remote memory. Ranks reach their peaks at different times, so the sum over
//! ranks is only an upper bound on the remote memory in use at once. The bound is exact if all ranks peak at the same
//! time. A rank that never accesses remote memory can use only its NPU's own memory.
//!
//! If a rank's trace states which bytes it allocates in remote memory (`allocates.remote`, for offloaded state), remote
//! memory stores only these, and the peak must fit in the NPU's own memory.

use super::NpuMemoryUseRow;
use crate::Report;
use crate::section::SectionNote;
use crate::summary::format_thousands;
use chakram_base::ids::{NodeIndex, Npu};
use chakram_base::shared_memory::RemoteMemoryCapacityAndSharers;
use chakram_base::units::Bytes;
use chakram_engine::CompiledReplay;
use chakram_hardware::machine::Machine;
use chakram_trace::graph::{Graph, NodeKind};
use chakram_trace::workload::{GraphBoundToRank, Workload};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Use of one remote memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct OneRemoteMemoryPeakAndCapacity {
    /// The first NPU that the memory serves.
    pub first_npu: Npu,
    /// Number of ranks with bytes in this memory.
    pub ranks: u32,
    /// Capacity of the memory.
    #[serde(rename = "capacity_bytes")]
    pub capacity: Bytes,
    /// The largest number of bytes that each of these ranks has in this memory, summed over the ranks.
    #[serde(rename = "peak_bytes")]
    pub peak: Bytes,
}

/// Computes the memory capacity of ranks: own memory, plus a share of remote memory.
#[derive(Debug)]
pub(crate) struct RankMemoryCapacityCalculator<'a> {
    machine: &'a Machine,
    shared: Option<RemoteMemoryCapacityAndSharers>,
    ranks: u64,
    /// For each graph, true if the graph loads from or stores to remote memory.
    streams: Vec<bool>,
    /// For each graph, the bytes that it allocates in remote memory.
    offloaded: Vec<u64>,
}

impl<'a> RankMemoryCapacityCalculator<'a> {
    pub fn new(workload: &Workload, machine: &'a Machine) -> Self {
        let shared = machine.remote_memory_beyond_npu_capacity();
        let graphs = workload
            .distinct_graphs()
            .iter()
            .map(has_unnamed_remote_memory_access);
        Self {
            machine,
            streams: shared.map_or_else(Vec::new, |_| graphs.collect()),
            offloaded: workload
                .distinct_graphs()
                .iter()
                .map(sum_remote_allocated_bytes_of_graph)
                .collect(),
            shared,
            ranks: workload.rank_count_including_untraced().into(),
        }
    }

    /// Returns the bytes that the rank's trace allocates in remote memory; `None` if there are none.
    pub fn offloaded_bytes(&self, instance: &GraphBoundToRank) -> Option<Bytes> {
        let bytes = self.offloaded.get(instance.graph.index()).copied();
        bytes.filter(|bytes| *bytes > 0).map(Bytes)
    }

    /// Returns the remote memory that takes the bytes beyond the NPU's own memory; `None` if all bytes must fit.
    fn remote_memory_for_excess_bytes(
        &self,
        instance: &GraphBoundToRank,
    ) -> Option<RemoteMemoryCapacityAndSharers> {
        let streams = self.streams.get(instance.graph.index());
        let states_bytes = self.offloaded_bytes(instance).is_some();
        self.shared
            .filter(|_| streams.is_some_and(|streams| *streams) && !states_bytes)
    }

    /// Returns the memory capacity of an instance on `npu`, including a share of remote memory; `None` if the capacity
    /// of the NPU's own memory is unknown.
    pub fn capacity_with_remote_memory_share(
        &self,
        instance: &GraphBoundToRank,
        npu: Npu,
    ) -> Option<Bytes> {
        let own = self
            .machine
            .npu_memory_capacity_with_port_share(self.machine.class_of_npu(npu))?;
        let share = self.remote_memory_for_excess_bytes(instance);
        let share = share.map_or(0, |shared| shared.bytes_per_rank(self.ranks));
        Some(Bytes(own.0.saturating_add(share)))
    }

    /// Returns by how many bytes `peak` exceeds the NPU's own memory; `None` if the rank does not use remote memory.
    pub fn bytes_beyond_npu_memory(
        &self,
        instance: &GraphBoundToRank,
        npu: Npu,
        peak: u64,
    ) -> Option<Bytes> {
        self.remote_memory_for_excess_bytes(instance)?;
        let own = self
            .machine
            .npu_memory_capacity_with_port_share(self.machine.class_of_npu(npu))?;
        Some(Bytes(peak.saturating_sub(own.0)))
    }
}

/// Returns the bytes that the graph's nodes allocate in remote memory.
fn sum_remote_allocated_bytes_of_graph(graph: &Graph) -> u64 {
    if graph
        .distinct_memory_changes()
        .iter()
        .all(|change| change.remote == 0)
    {
        return 0;
    }
    let changes = graph
        .nodes()
        .filter_map(|node| graph.memory_changes_of(node));
    changes.fold(0, |sum: u64, change| sum.saturating_add(change.remote))
}

fn has_unnamed_remote_memory_access(graph: &Graph) -> bool {
    let mut nodes = graph.nodes();
    let remote = |node: NodeIndex| {
        graph.kind(node) == NodeKind::RemoteMemory && graph.remote_memory(node).is_none()
    };
    nodes.any(remote)
}

/// Returns the remote memories that contain bytes of the ranks in `rows`, in the machine's order.
pub(crate) fn list_pool_memories(
    prepared: &CompiledReplay<'_>,
    rows: &[NpuMemoryUseRow],
) -> Vec<OneRemoteMemoryPeakAndCapacity> {
    sum_used_remote_memories_by_index(prepared.machine(), rows)
        .into_values()
        .collect()
}

/// Returns the remote memories that contain bytes of the ranks in `rows`, by memory index.
fn sum_used_remote_memories_by_index(
    machine: &Machine,
    rows: &[NpuMemoryUseRow],
) -> BTreeMap<u32, OneRemoteMemoryPeakAndCapacity> {
    let mut held: BTreeMap<u32, OneRemoteMemoryPeakAndCapacity> = BTreeMap::new();
    let Some(shared) = machine.remote_memory_beyond_npu_capacity() else {
        return held;
    };
    for row in rows {
        let beyond = row.bytes_in_remote_memory();
        if beyond.0 == 0 {
            continue;
        }
        let index = row.npu.0 / shared.npus;
        let memory = held.entry(index).or_insert(OneRemoteMemoryPeakAndCapacity {
            first_npu: Npu(index * shared.npus),
            ranks: 0,
            capacity: shared.capacity,
            peak: Bytes(0),
        });
        memory.ranks += 1;
        memory.peak = Bytes(memory.peak.0.saturating_add(beyond.0));
    }
    held
}

/// Sets `fits` for each rank that uses remote memory: true if that memory has space for all its ranks at once and the
/// rest fits in the NPU.
pub(super) fn set_fit_of_ranks_in_remote_memory(machine: &Machine, rows: &mut [NpuMemoryUseRow]) {
    let held = sum_used_remote_memories_by_index(machine, rows);
    let Some(shared) = machine.remote_memory_beyond_npu_capacity() else {
        return;
    };
    for row in rows {
        let memory = held.get(&(row.npu.0 / shared.npus));
        let beyond = row.bytes_in_remote_memory();
        let fits = beyond.0 == 0 || memory.is_none_or(|memory| memory.peak <= memory.capacity);
        if row.beyond_own.is_some() {
            row.fits = Some(fits);
        } else if row.offloaded.is_some() {
            row.fits = row.fits.map(|fits_npu| fits_npu && fits);
        }
    }
}

impl NpuMemoryUseRow {
    /// Returns the bytes that the rank stores in remote memory.
    pub(super) fn bytes_in_remote_memory(&self) -> Bytes {
        let [beyond, offloaded] =
            [self.beyond_own, self.offloaded].map(Option::<Bytes>::unwrap_or_default);
        Bytes(beyond.0.saturating_add(offloaded.0))
    }
}

impl Report {
    /// Returns the remote memory that is fullest relative to its capacity.
    pub(super) fn fullest_pool(&self) -> Option<&OneRemoteMemoryPeakAndCapacity> {
        self.memory_pools.iter().rev().max_by_key(|pool| pool.peak)
    }
}

/// Formats how much of a remote memory is used, as in `25.7 TB of 256.0 TB in remote memory`.
pub(super) fn format_pool_use(pool: &OneRemoteMemoryPeakAndCapacity) -> String {
    format!("{} of {} in remote memory", pool.peak, pool.capacity)
}

/// Returns a note on remote memory: the most that one rank uses, and how full the fullest memory is.
pub(crate) fn describe_pool_memory(report: &Report) -> Option<SectionNote> {
    let ranks = report
        .memory
        .iter()
        .map(NpuMemoryUseRow::bytes_in_remote_memory);
    let most = ranks.max().unwrap_or_default();
    let Some(pool) = report.fullest_pool() else {
        let text = format!("beyond NPUs: at most {most} of a rank, in remote memory");
        return (most.0 > 0).then(|| SectionNote::from_one_line_sentence(text));
    };
    let text = format!(
        "beyond NPUs: at most {most} of a rank; {}, of {}",
        format_pool_use(pool),
        match pool.ranks {
            1 => "1 rank".to_owned(),
            ranks => format!("{} ranks", format_thousands(ranks.into())),
        }
    );
    Some(SectionNote::from_one_line_sentence(text).mark_warning_if(pool.peak > pool.capacity))
}
