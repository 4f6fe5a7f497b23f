//! Memory that each NPU needs, by tensor class. A node allocates its memory when it is issued, and frees memory when it
//! completes.
//!
//! At each instant, nodes that complete free their memory before nodes that are issued allocate theirs, whatever the
//! order in the event loop. A node that is issued and completes at the same instant frees its memory before the next
//! such node allocates. So in a chain of nodes that take no time, only one node at a time has temporary memory.
//!
//! If no node changes memory, the observer stores nothing and examines no node. Otherwise, it stores one bit per node.

use super::keyed::by_class;
use super::{CollectiveRecord, Observer};
use chakram_base::ids::{NodeIndex, Npu, Rank};
use chakram_base::units::{Bytes, Time, format_percent_of};
use chakram_engine::{CompiledReplay, FoldedReplay, InstanceId};
use chakram_trace::format::TensorClass;
use chakram_trace::graph::NodeKind;
use pool_memory::RankMemoryCapacityCalculator;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

mod labels;
mod ledger;
pub(super) mod pool_memory;
pub(super) mod port_memory;
mod table;
mod tracker;

pub(super) use table::{CSV, build_memory_sections, group_equal_memory_rows};
pub(super) use tracker::{BytesAtInstantEnd, MemoryTracker};

/// Totals of one NPU over the whole replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NpuPeakAndFinalMemory {
    peak: MemoryPeak,
    /// Bytes allocated at the end of the replay.
    settled: BytesByTensorClass,
    /// Number of nodes that freed more than was allocated, the first of them, and how many bytes were freed without
    /// having been allocated.
    missing: Option<(u64, NodeIndex, BytesByTensorClass)>,
}

/// The largest number of bytes allocated at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemoryPeak {
    /// Total bytes.
    bytes: u64,
    /// Bytes at the peak, by class.
    classes: BytesByTensorClass,
    /// Time when the peak was first reached.
    at: Time,
    /// Node whose allocation first reached the peak.
    node: Option<NodeIndex>,
}

/// Bytes for each [`TensorClass`].
pub type BytesByTensorClass = [u64; TensorClass::COUNT];

/// Memory use of one NPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct NpuMemoryUseRow {
    /// Rank that runs on the NPU.
    pub rank: Rank,
    /// Index of the NPU.
    pub npu: Npu,
    /// Capacity of the NPU's memory. Null if unknown. If the rank keeps the excess in remote memory, its share of that
    /// memory counts too.
    #[serde(rename = "capacity_bytes")]
    pub capacity: Option<Bytes>,
    /// Largest number of bytes allocated at one time.
    #[serde(rename = "peak_bytes")]
    pub peak: Bytes,
    /// Bytes of the peak that do not fit in the NPU's own memory and are placed in memory at the nearest port. Present
    /// only on machines with memory at ports.
    #[serde(
        rename = "peak_bytes_beyond_sram",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub beyond_sram: Option<Bytes>,
    /// Bytes of the peak that do not fit in the NPU's own memory and are placed in remote memory. Present only for a
    /// rank that loads from or stores to remote memory.
    #[serde(
        rename = "peak_bytes_in_remote_memory",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub beyond_own: Option<Bytes>,
    /// Bytes that the rank's trace allocates in remote memory for the rest of the run, such as offloaded optimizer
    /// state. The peak does not include them. Present only if the trace allocates such bytes.
    #[serde(
        rename = "offloaded_bytes",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub offloaded: Option<Bytes>,
    /// Bytes at the peak, by class.
    #[serde(rename = "peak_bytes_by_class", with = "by_class")]
    #[cfg_attr(
        any(test, feature = "schema"),
        schemars(with = "by_class::Classes<u64>")
    )]
    pub classes: BytesByTensorClass,
    /// Time when the peak was first reached.
    #[serde(rename = "peak_ps")]
    pub at: Time,
    /// Node whose allocation first reached the peak; `None` if nothing was allocated.
    #[serde(rename = "peak_node")]
    pub node: Option<NamedNode>,
    /// True if the peak fits into the memory available to the rank. Null if the capacity is unknown.
    pub fits: Option<bool>,
    /// Bytes still allocated at the end of the replay.
    #[serde(rename = "unfreed_bytes_by_class", with = "by_class")]
    #[cfg_attr(
        any(test, feature = "schema"),
        schemars(with = "by_class::Classes<u64>")
    )]
    pub left: BytesByTensorClass,
    /// Bytes that were freed but never allocated. Null if there are none.
    #[serde(rename = "overfreed")]
    pub missing: Option<FreedUnallocatedBytes>,
}

/// Bytes that were freed but never allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct FreedUnallocatedBytes {
    /// Number of nodes that freed more than was allocated.
    pub nodes: u64,
    /// First node that freed more than was allocated.
    #[serde(rename = "first_node")]
    pub first: NamedNode,
    /// Bytes freed but never allocated, by class.
    #[serde(rename = "bytes_by_class", with = "by_class")]
    #[cfg_attr(
        any(test, feature = "schema"),
        schemars(with = "by_class::Classes<u64>")
    )]
    pub classes: BytesByTensorClass,
}

/// A node of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct NamedNode {
    /// Id of the node in the trace file.
    pub id: u64,
    /// Name of the node.
    pub name: String,
}

impl NpuMemoryUseRow {
    /// Returns the peak as a percentage of the capacity; `None` if the capacity is unknown.
    pub fn peak_percent(&self) -> Option<f64> {
        Some(100.0 * self.peak.0 as f64 / self.capacity?.0 as f64)
    }

    /// Formats the peak as a percentage of the capacity, or a dash if the capacity is unknown.
    pub fn format_peak_percent(&self) -> String {
        self.capacity.map_or("-".to_owned(), |capacity| {
            format_percent_of(self.peak.0 as f64, capacity.0 as f64)
        })
    }

    /// Compares rows by how full their memory is, or by peak if a capacity is unknown.
    pub fn compare_filled_share(&self, other: &Self) -> Ordering {
        let Some((own, others)) = self.capacity.zip(other.capacity) else {
            return self.peak.cmp(&other.peak);
        };
        let cross = |peak: Bytes, capacity: Bytes| u128::from(peak.0) * u128::from(capacity.0);
        cross(self.peak, others).cmp(&cross(other.peak, own))
    }
}

/// Returns the row whose memory is fullest. In a tie, returns the row of the lowest rank.
pub(super) fn find_rank_with_highest_filled_share(
    rows: &[NpuMemoryUseRow],
) -> Option<&NpuMemoryUseRow> {
    rows.iter().rev().max_by(|a, b| a.compare_filled_share(b))
}

/// Computes the memory peak of each NPU.
#[derive(Debug)]
pub struct MemoryPeakObserver<'a> {
    prepared: &'a CompiledReplay<'a>,
    followed: MemoryTracker<'a>,
}

impl<'a> MemoryPeakObserver<'a> {
    /// Creates an observer of all instances of `prepared`; each instance must be launched only once.
    pub fn new(prepared: &'a CompiledReplay<'a>) -> Self {
        Self {
            prepared,
            followed: MemoryTracker::for_single_launch(prepared),
        }
    }

    /// Creates an observer that counts only the first launch of each instance of `prepared`.
    pub fn for_first_launch(prepared: &'a CompiledReplay<'a>) -> Self {
        Self {
            prepared,
            followed: MemoryTracker::for_first_launch(prepared),
        }
    }

    /// Returns one row for each rank with allocations or frees in its trace, sorted by rank.
    pub fn into_rows(self) -> Vec<NpuMemoryUseRow> {
        let instances = 0..self
            .prepared
            .workload_with_added_launches()
            .instances()
            .len();
        let prepared = self.prepared;
        self.into_rows_of_replay(prepared, instances)
    }

    /// Returns the rows of [`Self::into_rows`], but for the whole job that the simulated part represents.
    pub(super) fn into_rows_of_whole_job(
        self,
        whole: &CompiledReplay<'_>,
        folded: &FoldedReplay<'_>,
    ) -> Vec<NpuMemoryUseRow> {
        self.into_rows_of_replay(whole, folded.instances.iter().map(|by| by.index()))
    }

    /// Returns the rows for `prepared`. For each instance of `prepared`, `observed` names the observed instance that
    /// represents it.
    fn into_rows_of_replay(
        mut self,
        prepared: &CompiledReplay<'_>,
        observed: impl Iterator<Item = usize>,
    ) -> Vec<NpuMemoryUseRow> {
        self.followed.end_last_instant_of_all_instances();
        let (workload, machine) = (prepared.workload_with_added_launches(), prepared.machine());
        let totals: Vec<_> = self.followed.totals_by_instance().collect();
        let observed = observed.filter_map(|instance| totals.get(instance).copied());
        let followed = workload.instances().iter().zip(observed);
        let followed =
            followed.filter(|(_, (graph, _))| !graph.distinct_memory_changes().is_empty());
        let capacities = RankMemoryCapacityCalculator::new(workload, machine);
        let rows = followed.map(|(instance, (graph, totals))| {
            let npu = prepared.npu_of_rank(instance.rank);
            let peak = totals.peak;
            let named = |node: NodeIndex| NamedNode {
                id: graph.id(node),
                name: graph.name(node).to_owned(),
            };
            let capacity = capacities.capacity_with_remote_memory_share(instance, npu);
            let offloaded = capacities.offloaded_bytes(instance);
            // On machines with memory at ports, the capacity includes the NPU's share of this memory.
            let beyond_sram = port_memory::bytes_beyond_sram(machine, npu, peak.bytes);
            let offloaded_to_ports = beyond_sram.and(offloaded).unwrap_or_default();
            let used = peak.bytes.saturating_add(offloaded_to_ports.0);
            NpuMemoryUseRow {
                rank: instance.rank,
                npu,
                capacity,
                peak: Bytes(peak.bytes),
                beyond_own: capacities.bytes_beyond_npu_memory(instance, npu, peak.bytes),
                beyond_sram: beyond_sram
                    .map(|beyond| Bytes(beyond.0.saturating_add(offloaded_to_ports.0))),
                offloaded,
                fits: capacity.map(|capacity| used <= capacity.0),
                classes: peak.classes,
                at: peak.at,
                node: peak.node.map(named),
                left: totals.settled,
                missing: totals
                    .missing
                    .map(|(nodes, first, classes)| FreedUnallocatedBytes {
                        nodes,
                        first: named(first),
                        classes,
                    }),
            }
        });
        let mut rows: Vec<NpuMemoryUseRow> = rows.collect();
        pool_memory::set_fit_of_ranks_in_remote_memory(machine, &mut rows);
        rows
    }
}

impl Observer for MemoryPeakObserver<'_> {
    #[inline]
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, _: NodeKind) {
        self.followed.on_issued(now, instance, node);
    }

    #[inline]
    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, _: NodeKind) {
        self.followed.on_completed(now, instance, node);
    }

    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
}

/// Serializes memory rows as an object. Its first field says whether all rows fit.
pub mod fitting {
    use super::NpuMemoryUseRow;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::borrow::Cow;

    /// Memory use of all NPUs.
    #[derive(Debug, Serialize, Deserialize)]
    #[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
    pub struct MemoryFitAndNpuRows<'r> {
        /// True if every rank's peak fits into its memory. Null if some capacity is unknown.
        pub fits: Option<bool>,
        /// One row per rank with allocations or frees in its trace, sorted by rank.
        pub npus: Cow<'r, [NpuMemoryUseRow]>,
    }

    /// Writes rows as an object.
    pub fn serialize<S: Serializer>(rows: &[NpuMemoryUseRow], to: S) -> Result<S::Ok, S::Error> {
        let fits = match rows.iter().any(|row| row.fits == Some(false)) {
            true => Some(false),
            false => rows.iter().all(|row| row.fits.is_some()).then_some(true),
        };
        let npus = Cow::Borrowed(rows);
        MemoryFitAndNpuRows { fits, npus }.serialize(to)
    }

    /// Reads the rows of an object.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<NpuMemoryUseRow>, D::Error> {
        MemoryFitAndNpuRows::deserialize(from).map(|memories| memories.npus.into_owned())
    }
}
