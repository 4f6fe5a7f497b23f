//! The report: everything that the observers found, one value that is rendered, written, read back and compared.
//!
//! JSON is this value as `serde` has it, times in whole picoseconds; `docs/report.schema.json` is made from these
//! types. A field may be added under the same schema, never changed.

use super::TimeCategory;
use super::aggregation::RankAggregation;
use super::breakdown::{ChargedTime, NpuTime};
use super::collectives::CollectiveTally;
use super::critical_path::CriticalPathSummary;
use super::extrapolation::StepExtrapolation;
use super::interval::PredictionInterval;
use super::keyed::{by_part, fitting};
use super::links::LinkReport;
use super::machine_response::MachineResponse;
use super::memory::MemoryRow;
use super::memory_accesses::MemoryAccessRow;
use super::npus::NpuRow;
use super::operators::{OperatorTime, over_micro_batches};
use super::pictures::ReplayPictures;
use super::port_memory::PortMemory;
use super::profiler::ProfilerBasis;
use super::throughput::Throughput;
use super::tiles::TileUse;
use chakram_base::ids::Rank;
use chakram_base::units::Span;
use chakram_engine::{CommTiming, ReplayOutcome, StepTimes};
use chakram_hardware::machine::Machine;
use chakram_hardware::network::{ContentionFreeNetwork, NetworkBackend};
use chakram_trace::format::CollectiveKind;
use chakram_trace::graph::NodeKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;

pub use chakram_base::units::{counted, thousands};

/// Version of the form of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub enum ReportSchema {
    /// The first.
    #[default]
    #[serde(rename = "chakram.report.1")]
    V1,
}

/// The program, its options and the files it read, which led to a report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct Provenance {
    /// Version of the program.
    pub tool_version: String,
    /// Options by name.
    pub options: Map<String, Value>,
    /// Files, and presets.
    pub inputs: Vec<HashedInput>,
}

impl Provenance {
    /// Makes that of a document that this program writes.
    pub fn new(options: Map<String, Value>, inputs: &[HashedInput]) -> Self {
        Self {
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            options,
            inputs: inputs.to_vec(),
        }
    }
}

/// An input of the replay: what it was for, its name, and the hash of its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct HashedInput {
    /// `trace`, `machine`, `groups`, `custom`.
    pub role: Cow<'static, str>,
    /// The file, or the name of a preset.
    pub name: String,
    /// BLAKE3 of its bytes, in hexadecimal.
    pub blake3: String,
}

/// A machine as reports name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct MachineName {
    /// Its name.
    pub name: String,
    /// Number of its NPUs.
    pub npus: u32,
}

impl MachineName {
    /// Names `machine`.
    pub fn of(machine: &Machine) -> Self {
        Self {
            name: machine.name().to_owned(),
            npus: machine.topology().npus(),
        }
    }
}

/// Number of kernels whose durations rest on one thing or another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct KernelBasis {
    /// Priced as asked for: as recorded, or by roofline.
    pub priced: u64,
    /// Priced by curves of measured kernels.
    #[serde(default)]
    pub by_curves: u64,
    /// Priced by roofline although durations as recorded were asked for, because none was recorded.
    #[serde(default)]
    pub estimated: u64,
    /// Kept their recorded duration, because the roofline lacks FLOPs, bytes or a peak.
    pub kept_recorded: u64,
    /// Take no time, because nothing is known of them.
    pub unknown: u64,
}

/// Basis of the durations of collectives and messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct CommunicationBasis {
    /// Whether the network carried them, or they last as in the traces.
    #[serde(rename = "timing", default)]
    pub lasts_as: CommTiming,
    /// Number of nodes that last as recorded or captured.
    #[serde(rename = "recorded")]
    pub as_recorded: u64,
    /// Number of nodes that would, but for which the trace has no duration; they take no time.
    pub unknown: u64,
}

/// The collectives of one kind in one group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct CollectiveRow {
    /// The group, as people call it.
    pub group: String,
    /// Index of the group in the replay, which tells groups of one name apart.
    pub group_index: u32,
    /// Number of its members.
    pub members: u32,
    /// Number of members with a trace.
    pub present: u32,
    /// The kind of collective.
    pub kind: CollectiveKind,
    /// Algorithms by dimension, innermost first: `ring 8 (nvlink), ring 4 (nodes)`; or `as recorded`, `as
    /// captured`.
    pub algorithm: String,
    /// Whether they last as measured on such a machine, where nothing disturbs them.
    #[serde(default)]
    pub measured: bool,
    /// Calls, bytes and times.
    #[serde(flatten)]
    pub tally: CollectiveTally,
    /// The rank that the others waited for longest, over all calls and members.
    #[serde(rename = "straggler")]
    pub latest: Option<LatestRank>,
    /// Bus bandwidth in bytes per second, if anything was transferred.
    #[serde(rename = "bus_bytes_per_s")]
    pub bus: Option<f64>,
    /// The time of NPUs that they were charged with.
    #[serde(default)]
    pub charged: ChargedTime,
    /// The purpose of the group, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// A rank that others waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct LatestRank {
    /// The rank.
    pub rank: Rank,
    /// Their waiting time, all together.
    #[serde(rename = "waited_ps_sum_over_members")]
    pub waited: Span,
}

/// Exposed communication of a group, summed over its NPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ExposedRow {
    /// The group, or messages between ranks.
    #[serde(rename = "name")]
    pub what: String,
    /// Number of its members; none of messages.
    #[serde(default)]
    pub members: u32,
    /// The sum over NPUs.
    #[serde(rename = "sum_over_npus_ps")]
    pub exposed: Span,
    /// The purpose of the group, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// Sends and receives together, as people call them.
pub(super) const MESSAGES: &str = "messages between ranks";

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct Report {
    /// Version of its form.
    pub schema: ReportSchema,
    /// The program and the inputs that led to it, in a document of one report.
    #[serde(flatten)]
    pub provenance: Option<Provenance>,
    /// The machine.
    pub machine: MachineName,
    /// Ranks of the job.
    pub ranks: u32,
    /// Ranks without a trace.
    #[serde(rename = "absent_ranks")]
    pub absent: Vec<Rank>,
    /// The end, and counts of what was replayed.
    #[serde(flatten)]
    pub outcome: ReplayOutcome,
    /// End of the capture, if every trace says when its own ended.
    #[serde(rename = "captured_ps")]
    pub captured: Option<Span>,
    /// Profiler that captured the job, where its cost is left out or the job measured steps without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiler: Option<ProfilerBasis>,
    /// Basis of the durations of kernels.
    pub kernels: KernelBasis,
    /// Share of the time that depends on the machine.
    #[serde(default)]
    pub response: MachineResponse,
    /// Origins of the time and its interval, where kernels are priced by curves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<PredictionInterval>,
    /// The model of the network that carried communication, if one did.
    pub network: Option<String>,
    /// Basis of the durations of communication.
    pub communication: CommunicationBasis,
    /// Means over NPUs of time by part, each to the nearest picosecond.
    #[serde(rename = "mean_ps", with = "by_part")]
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "by_part::Parts<Span>"))]
    pub mean_parts: [Span; 5],
    /// The mean over NPUs of the time with a communication under way.
    #[serde(rename = "mean_communicating_ps")]
    pub mean_communicating: Span,
    /// One row for each rank with a trace, in order.
    #[serde(rename = "npus")]
    pub rows: Vec<NpuRow>,
    /// Collectives by group and kind.
    pub collectives: Vec<CollectiveRow>,
    /// The time of NPUs that messages between ranks were charged with.
    #[serde(default)]
    pub messages_charged: ChargedTime,
    /// Exposed communication by group, largest first, without those that have none.
    pub exposed: Vec<ExposedRow>,
    /// Operators, longest first.
    pub operators: Vec<OperatorTime>,
    /// Loads and stores by memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_accesses: Vec<MemoryAccessRow>,
    /// Reasons why the numbers may be other than they seem.
    pub warnings: Vec<String>,
    /// The memory of NPUs, one row for each rank whose trace says what it allocates or frees, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "fitting")]
    #[cfg_attr(
        any(test, feature = "schema"),
        schemars(with = "fitting::MemoryRows<'_>")
    )]
    pub memory: Vec<MemoryRow>,
    /// Busy time of links and memory ports of a machine of tiles, on networks with contention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiles: Option<TileUse>,
    /// Memory at ports that holds what SRAM does not, where something is known of memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_ports: Vec<PortMemory>,
    /// Ranks of which one ran for all, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregation: Option<RankAggregation>,
    /// The whole step, if the replay is of fewer micro-batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extrapolation: Option<StepExtrapolation>,
    /// Samples and tokens per second, and utilization of the peak, where they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<Throughput>,
    /// The critical path of the replay, unless it has too many nodes to be followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critical_path: Option<CriticalPathSummary>,
    /// Beginning and end of each launch, if the job was launched several times or beside others; in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<StepTimes>,
    /// Jobs that shared the machine with it.
    #[serde(default, rename = "with", skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<NeighbourReport>,
    /// Bytes over dimensions and links, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<LinkReport>,
    /// Data of the pictures of a page, if one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pictures: Option<ReplayPictures>,
}

/// A job that shared the machine with another, and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct NeighbourReport {
    /// Name of the job.
    pub job: String,
    /// Its report, up to its own last end.
    pub report: Report,
}

impl KernelBasis {
    /// Returns the number of kernels.
    pub fn all(&self) -> u64 {
        self.priced + self.by_curves + self.estimated + self.kept_recorded + self.unknown
    }
}

impl Report {
    /// The model of the network that carried communication, where it is one under which operations meet.
    pub fn shared_network(&self) -> Option<&str> {
        let name = self.network.as_deref();
        name.filter(|&name| name != ContentionFreeNetwork::NAME)
    }

    /// The mean of a time over NPUs, to the nearest picosecond.
    pub fn mean(&self, time: impl Fn(&NpuTime) -> Span) -> Span {
        let sum: u128 = self
            .rows
            .iter()
            .map(|row| u128::from(time(&row.time).0))
            .sum();
        rounded(sum, self.rows.len())
    }

    /// The rows with the least and the most time in `part`.
    pub fn extremes(&self, part: TimeCategory) -> Option<(&NpuRow, &NpuRow)> {
        let time = |row: &NpuRow| row.time.parts[part as usize];
        let least = self.rows.iter().min_by_key(|row| (time(row), row.rank))?;
        let most = self
            .rows
            .iter()
            .max_by_key(|row| (time(row), std::cmp::Reverse(row.rank)))?;
        Some((least, most))
    }

    /// Sums operators over micro-batches: one row stands for `mb0/…`, `mb1/…`, ….
    pub fn sum_micro_batches(&mut self) {
        self.operators = over_micro_batches(&self.operators);
        let beside = self.beside.iter_mut();
        beside.for_each(|other| other.report.sum_micro_batches());
    }

    /// Returns the end of the capture, and the rank that ended last, of several the lowest; `None` unless every
    /// trace says when its own did.
    pub fn last_captured(&self) -> Option<(Span, Rank)> {
        let ends = self.rows.iter().map(|row| Some((row.captured?, row.rank)));
        let ends: Vec<_> = ends.collect::<Option<_>>()?;
        let slowest = |(end, rank): &(Span, Rank)| (*end, std::cmp::Reverse(*rank));
        ends.into_iter().max_by_key(slowest)
    }

    /// By how much the replay took longer than the capture, in percent of that.
    pub fn difference(&self) -> Option<f64> {
        percent_more(self.outcome.makespan, self.captured?)
    }

    /// The mean of exposed communication while another member of a collective had not arrived.
    pub fn exposed_waiting(&self) -> Span {
        let rows = self.collectives.iter();
        let sum = rows.map(|row| row.charged.exposed_waiting).sum();
        mean(sum, self.rows.len())
    }

    /// The mean of the rest of exposed communication: transfers, and all of messages.
    pub fn exposed_transferring(&self) -> Span {
        let all = self.mean_parts[TimeCategory::Communication as usize];
        Span(all.0.saturating_sub(self.exposed_waiting().0))
    }
}

/// `128 groups of 8`.
pub(super) fn groups_of(groups: usize, members: u32) -> String {
    format!("{} of {members}", counted(groups as u64, "group"))
}

/// By how much `found` is more than `expected`, in percent of that; `None` when that is nothing.
pub fn percent_more(found: Span, expected: Span) -> Option<f64> {
    let (found, expected) = (found.0 as f64, expected.0 as f64);
    (expected > 0.0).then(|| 100.0 * (found - expected) / expected)
}

/// `sum` over `count`, to the nearest picosecond.
pub(super) fn mean(sum: Span, count: usize) -> Span {
    rounded(sum.0.into(), count)
}

fn rounded(sum: u128, count: usize) -> Span {
    let count = count.max(1) as u128;
    Span(((sum + count / 2) / count) as u64)
}

/// Returns the kind of node of an operator, for people.
pub fn kind_label(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::Nothing => "nothing",
        NodeKind::Host => "host",
        NodeKind::Compute => "compute",
        NodeKind::LocalMemory => "local memory",
        NodeKind::RemoteMemory => "remote memory",
        NodeKind::Send => "send",
        NodeKind::Receive => "receive",
        NodeKind::Collective => "collective",
    }
}

#[cfg(test)]
mod tests {
    use super::percent_more;
    use chakram_base::units::Span;

    #[test]
    fn differences_are_in_percent_of_what_was_captured() {
        // 103 - 100 = 3 of 100; 50 - 200 = -150 of 200.
        assert_eq!(percent_more(Span(103), Span(100)), Some(3.0));
        assert_eq!(percent_more(Span(50), Span(200)), Some(-75.0));
        assert_eq!(percent_more(Span(50), Span::ZERO), None);
    }
}
