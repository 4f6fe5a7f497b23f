//! Memory that each NPU needs: what nodes allocate when they are issued and have not freed, by class.
//!
//! At one instant, what completing nodes free goes before what is allocated by nodes that are issued then,
//! whichever of the two the loop comes to first. A node that is issued and completes at the same instant
//! frees after it has allocated, where the loop has it among the others of that instant; so of a chain of
//! nodes that take no time no two hold their memory at once.
//!
//! Nothing is kept, and nothing asked of a node, where no node of the job changes memory. Otherwise a node
//! costs one bit.

use super::keyed::by_class;
use super::{CollectiveRecord, Observer};
use chakram_base::ids::{NodeIndex, Npu, Rank};
use chakram_base::units::{Bytes, Time, percent_of};
use chakram_engine::CompiledReplay;
use chakram_engine::InstanceId;
use chakram_trace::format::TensorClass;
use chakram_trace::graph::NodeKind;
use pool_memory::RankCapacities;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

mod labels;
mod ledger;
pub(super) mod pool_memory;
pub(super) mod port_memory;
mod table;
mod tracker;

pub(super) use table::{CSV, runs, sections};
pub(super) use tracker::{EndedInstant, MemoryTracker};

/// Sums of one NPU over all instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LedgerTotals {
    peak: MemoryPeak,
    /// Bytes held at the end.
    settled: BytesByClass,
    /// Number of nodes that freed more than was there, the first of them, and what was not there.
    missing: Option<(u64, NodeIndex, BytesByClass)>,
}

/// The most that was allocated at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemoryPeak {
    /// In all.
    bytes: u64,
    /// By class.
    classes: BytesByClass,
    /// Instant when it was first reached.
    at: Time,
    /// The node that brought it about.
    node: Option<NodeIndex>,
}

/// Bytes by [`TensorClass`].
pub type BytesByClass = [u64; TensorClass::COUNT];

/// Memory use of one NPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct MemoryRow {
    /// The rank on it.
    pub rank: Rank,
    /// The NPU.
    pub npu: Npu,
    /// Capacity of its memory, with its share of remote memory that its rank uses; null where the machine does not describe its
    /// NPUs.
    #[serde(rename = "capacity_bytes")]
    pub capacity: Option<Bytes>,
    /// The most bytes that were allocated at once.
    #[serde(rename = "peak_bytes")]
    pub peak: Bytes,
    /// Bytes of them that the NPU's own memory does not hold, where there is memory at ports: those lie at the nearest one.
    #[serde(
        rename = "peak_bytes_beyond_sram",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub beyond_sram: Option<Bytes>,
    /// Bytes of them that the NPU's own memory does not hold, of a rank that loads from remote memory or stores to it: those are there.
    #[serde(
        rename = "peak_bytes_in_remote_memory",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub beyond_own: Option<Bytes>,
    /// Their composition.
    #[serde(rename = "peak_bytes_by_class", with = "by_class")]
    #[cfg_attr(
        any(test, feature = "schema"),
        schemars(with = "by_class::Classes<u64>")
    )]
    pub classes: BytesByClass,
    /// Instant when they were first reached.
    #[serde(rename = "peak_ps")]
    pub at: Time,
    /// The node whose issue brought them about; `None` where nothing was allocated.
    #[serde(rename = "peak_node")]
    pub node: Option<NamedNode>,
    /// Whether the NPU has the memory that its rank needs; null where its capacity is unknown.
    pub fits: Option<bool>,
    /// Bytes still allocated when the replay ended.
    #[serde(rename = "unfreed_bytes_by_class", with = "by_class")]
    #[cfg_attr(
        any(test, feature = "schema"),
        schemars(with = "by_class::Classes<u64>")
    )]
    pub left: BytesByClass,
    /// Bytes freed that were not there, if any.
    #[serde(rename = "overfreed")]
    pub missing: Option<MissingBytes>,
}

/// Bytes that were freed and that nothing had allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct MissingBytes {
    /// Number of nodes that freed more than was there.
    pub nodes: u64,
    /// The first of them.
    #[serde(rename = "first_node")]
    pub first: NamedNode,
    /// Bytes that were not there, by class.
    #[serde(rename = "bytes_by_class", with = "by_class")]
    #[cfg_attr(
        any(test, feature = "schema"),
        schemars(with = "by_class::Classes<u64>")
    )]
    pub classes: BytesByClass,
}

/// A node of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct NamedNode {
    /// Its id in the file.
    pub id: u64,
    /// Its name.
    pub name: String,
}

impl MemoryRow {
    /// Returns the peak in percent of what the memory holds, if that is known.
    pub fn percent(&self) -> Option<f64> {
        Some(100.0 * self.peak.0 as f64 / self.capacity?.0 as f64)
    }

    /// Returns the same as text; a dash where it is unknown.
    pub fn percent_text(&self) -> String {
        self.capacity.map_or("-".to_owned(), |capacity| {
            percent_of(self.peak.0 as f64, capacity.0 as f64)
        })
    }

    /// Whose memory was filled to the larger part; where a capacity is unknown, whose peak is larger.
    pub fn by_share(&self, other: &Self) -> Ordering {
        let Some((own, others)) = self.capacity.zip(other.capacity) else {
            return self.peak.cmp(&other.peak);
        };
        let cross = |peak: Bytes, capacity: Bytes| u128::from(peak.0) * u128::from(capacity.0);
        cross(self.peak, others).cmp(&cross(other.peak, own))
    }
}

/// The row whose memory was filled to the largest part, of several the one of the lowest rank.
pub(super) fn fullest(rows: &[MemoryRow]) -> Option<&MemoryRow> {
    rows.iter().rev().max_by(|a, b| a.by_share(b))
}

/// Finds the peak of each NPU.
#[derive(Debug)]
pub struct MemoryObserver<'a> {
    prepared: &'a CompiledReplay<'a>,
    followed: MemoryTracker<'a>,
}

impl<'a> MemoryObserver<'a> {
    /// Watches all instances of `prepared`, which is launched once.
    pub fn new(prepared: &'a CompiledReplay<'a>) -> Self {
        Self {
            prepared,
            followed: MemoryTracker::of_one_launch(prepared),
        }
    }

    /// Watches the first launch of each instance of `prepared`.
    pub fn of_first_launch(prepared: &'a CompiledReplay<'a>) -> Self {
        Self {
            prepared,
            followed: MemoryTracker::of_first_launch(prepared),
        }
    }

    /// A row for each rank whose trace says what it allocates or frees, in order.
    pub fn finish(mut self) -> Vec<MemoryRow> {
        self.followed.end();
        let (workload, machine) = (self.prepared.workload(), self.prepared.machine());
        let followed = workload.instances().iter().zip(self.followed.totals());
        let followed = followed.filter(|(_, (graph, _))| !graph.memory_changes().is_empty());
        let capacities = RankCapacities::new(workload, machine);
        let rows = followed.map(|(instance, (graph, totals))| {
            let npu = self.prepared.npu(instance.rank);
            let peak = totals.peak;
            let named = |node: NodeIndex| NamedNode {
                id: graph.id(node),
                name: graph.name(node).to_owned(),
            };
            let capacity = capacities.of(instance, npu);
            MemoryRow {
                rank: instance.rank,
                npu,
                capacity,
                peak: Bytes(peak.bytes),
                beyond_own: capacities.beyond_own(instance, npu, peak.bytes),
                beyond_sram: port_memory::beyond_sram(machine, npu, peak.bytes),
                fits: capacity.map(|capacity| peak.bytes <= capacity.0),
                classes: peak.classes,
                at: peak.at,
                node: peak.node.map(named),
                left: totals.settled,
                missing: totals.missing.map(|(nodes, first, classes)| MissingBytes {
                    nodes,
                    first: named(first),
                    classes,
                }),
            }
        });
        let mut rows: Vec<MemoryRow> = rows.collect();
        pool_memory::check_fit(machine, &mut rows);
        rows
    }
}

impl Observer for MemoryObserver<'_> {
    #[inline]
    fn issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, _: NodeKind) {
        self.followed.issued(now, instance, node);
    }

    #[inline]
    fn completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, _: NodeKind) {
        self.followed.completed(now, instance, node);
    }

    fn collective(&mut self, _: &CollectiveRecord) {}
}

/// Rows of memory as an object that says first whether all fit.
pub mod fitting {
    use super::MemoryRow;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::borrow::Cow;

    /// The memory of all NPUs.
    #[derive(Debug, Serialize, Deserialize)]
    #[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
    pub struct MemoryRows<'r> {
        /// Whether the memory of every NPU holds what its rank allocates; null where that is unknown.
        pub fits: Option<bool>,
        /// One row for each rank whose trace says what it allocates or frees, in order.
        pub npus: Cow<'r, [MemoryRow]>,
    }

    /// Writes rows as an object.
    pub fn serialize<S: Serializer>(rows: &[MemoryRow], to: S) -> Result<S::Ok, S::Error> {
        let fits = match rows.iter().any(|row| row.fits == Some(false)) {
            true => Some(false),
            false => rows.iter().all(|row| row.fits.is_some()).then_some(true),
        };
        let npus = Cow::Borrowed(rows);
        MemoryRows { fits, npus }.serialize(to)
    }

    /// Reads the rows of an object.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<MemoryRow>, D::Error> {
        MemoryRows::deserialize(from).map(|memories| memories.npus.into_owned())
    }
}
