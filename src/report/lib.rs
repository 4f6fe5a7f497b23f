//! Results of a replay. Observers collect them, and the report contains them.
//!
//! The caller chooses the observers. The compiler builds them into the event loop. Nothing is stored per node unless an
//! observer stores it.
//!
//! A [`Report`] contains the results of all observers as one value. A report can be rendered, written, read back and
//! compared. Its JSON form is its serde form, with times in integer picoseconds; `docs/report.schema.json` is generated
//! from these types. Within a schema version, fields may be added but do not change.

mod aggregation;
pub mod breakdown;
pub mod busy;
mod captured_on;
pub mod collectives;
pub mod compare;
pub mod cost;
pub mod critical_path;
pub mod csv;
pub mod document;
pub mod draw;
pub mod edits;
pub mod extrapolation;
mod head;
pub mod html;
mod interval;
mod issue_times;
pub mod json;
mod kernel_energy;
mod keyed;
mod lane_names;
mod launched;
mod links;
mod machine_response;
pub mod memory;
mod memory_accesses;
pub mod modules;
pub mod node_table;
pub mod npus;
mod open_comms;
pub mod operators;
pub mod pictures;
mod profiler;
mod relay;
mod replay;
pub mod report_csv;
pub mod report_text;
mod section;
pub mod sensitivity;
pub mod settings;
pub mod spans;
pub mod stack;
mod stages;
pub mod steps;
mod straddling;
pub mod summary;
pub mod table;
mod tables;
pub mod text;
mod throughput;
pub mod tile_map;
pub mod tiles;
pub mod timeline;
mod two_threads;
pub mod unknown;
mod warnings;

pub use breakdown::{BreakdownObserver, WaitingAndTransferTime};
pub use busy::{RankBusyTime, RankBusyTimeObserver};
pub use chakram_engine::{CollectiveRecord, CriticalPathSegment, NpuTimeCategory, Observer};
pub use collectives::CollectiveObserver;
pub use compare::{ComparedMachineResult, MachineComparison, MachineResult};
pub use critical_path::CriticalPathSummary;
pub use launched::{attach_neighbour_reports, replay_launched_programs};
pub use memory::{MemoryPeakObserver, NpuMemoryUseRow};
pub use node_table::{NodeTable, NodeTableRowLimit};
pub use operators::OperatorTimeObserver;
pub use pictures::{PictureRecorder, ReplayPictures};
pub use replay::{
    replay_folded, replay_to_report, replay_to_report_with_nodes,
    replay_with_network_and_collective_models,
};
pub use spans::{NodeSpan, NodeSpanRecorder};
pub use summary::HashedInput;
pub use throughput::Throughput;
pub use timeline::{TimelineFormat, TimelineSelection, TimelineWriter};

use aggregation::IdenticalRankMergeCounts;
use breakdown::NpuTime;
use captured_on::CaptureDevicesHostsAndSoftware;
use chakram_base::ids::Rank;
use chakram_base::units::Span;
use chakram_engine::{CompletedReplayTotals, TrainingStepStartAndEnd};
use chakram_hardware::network::{ContentionFreePortBusyTimes, NetworkBackend};
use collectives::CollectiveRow;
use cost::{JobNpuCost, TimeAndCostForTokens};
use edits::JobAndMachineEditReport;
use extrapolation::WholeStepExtrapolation;
use interval::PredictionIntervalAndTimeByMethod;
use kernel_energy::TotalEnergyOfLoopNestTimedKernels;
use keyed::by_part;
use links::LinkReport;
use machine_response::NpuTimeByMachineDependence;
use memory::fitting;
use memory::pool_memory::OneRemoteMemoryPeakAndCapacity;
use memory::port_memory::OnePortMemoryPeakAndCapacity;
use memory_accesses::OneMemoryAccessesRow;
use modules::ModuleTimesRow;
use npus::NpuRow;
use operators::{OperatorTime, merge_operators_of_micro_batches};
use profiler::ProfilerAndItsCost;
use sensitivity::MakespanSensitivityReport;
use serde::{Deserialize, Serialize};
use settings::GivenSettingTestResults;
use stack::SoftwareStackDecisionReport;
use steps::StepRow;
use summary::{
    CommunicationTimingMethods, GroupExposedCommunicationRow, KernelCountsByDurationMethod,
    MachineNameAndSize, Provenance, ReportSchema, mean_span_from_sum, percent_more,
    rounded_mean_span,
};
use tiles::TileLinkAndPortUse;
use unknown::MissingTraceFactRow;

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct Report {
    /// Version of the report's schema.
    pub schema: ReportSchema,
    /// Program and inputs that produced the report. Absent from reports that are inside a document with several
    /// reports.
    #[serde(flatten)]
    pub provenance: Option<Provenance>,
    /// Machine that the job was replayed on.
    pub machine: MachineNameAndSize,
    /// Number of ranks in the job, with or without a trace.
    pub ranks: u32,
    /// Ranks of the job without a trace.
    #[serde(rename = "absent_ranks")]
    pub absent: Vec<Rank>,
    /// The makespan, and counts of the replayed nodes, messages and collectives.
    #[serde(flatten)]
    pub outcome: CompletedReplayTotals,
    /// End time of the captured run, if every trace records when its rank ended.
    #[serde(rename = "captured_ps")]
    pub captured: Option<Span>,
    /// Devices, hosts and software on which the job was captured, if the traces record them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub captured_on: Option<CaptureDevicesHostsAndSoftware>,
    /// Facts missing from the traces, and how the affected nodes were timed instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<MissingTraceFactRow>,
    /// True if the makespan is only a lower bound, because some nodes have neither an estimated nor a recorded
    /// duration.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lower_bound: bool,
    /// The profiler that captured the job, and its cost. Present if this cost was subtracted, or if the capture also
    /// timed steps without the profiler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiler: Option<ProfilerAndItsCost>,
    /// Methods that determined the kernels' durations.
    pub kernels: KernelCountsByDurationMethod,
    /// Energy of kernels, if any kernel is timed by loop nests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_energy: Option<TotalEnergyOfLoopNestTimedKernels>,
    /// The fraction of the time that changes with the machine.
    #[serde(default)]
    pub response: NpuTimeByMachineDependence,
    /// Prediction interval, and how much time each estimation method accounts for. Absent if the errors of the methods
    /// are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<PredictionIntervalAndTimeByMethod>,
    /// Network model that timed the communication; `None` if communication kept its recorded times.
    pub network: Option<String>,
    /// Methods that determined the communication's durations.
    pub communication: CommunicationTimingMethods,
    /// Each part of the time: the mean over NPUs, rounded to the nearest picosecond.
    #[serde(rename = "mean_ps", with = "by_part")]
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "by_part::Parts<Span>"))]
    pub mean_parts: [Span; NpuTimeCategory::COUNT],
    /// Time with communication in progress (mean over NPUs).
    #[serde(rename = "mean_communicating_ps")]
    pub mean_communicating: Span,
    /// The part of the mean memory time in which an NPU accesses remote memory but not its own memory. Zero in reports
    /// of older versions.
    #[serde(rename = "mean_remote_memory_ps", default)]
    pub mean_remote_memory: Span,
    /// One row per rank with a trace, sorted by rank.
    #[serde(rename = "npus")]
    pub rows: Vec<NpuRow>,
    /// Collectives by group and kind.
    pub collectives: Vec<CollectiveRow>,
    /// NPU time charged to messages between ranks.
    #[serde(default)]
    pub messages_charged: WaitingAndTransferTime,
    /// NPU time of communication with an unknown operation or unknown partners.
    #[serde(default)]
    pub unknown_charged: WaitingAndTransferTime,
    /// Exposed communication by group, longest time first; groups without exposed communication are omitted.
    pub exposed: Vec<GroupExposedCommunicationRow>,
    /// Operators, longest total time first.
    pub operators: Vec<OperatorTime>,
    /// Profiled steps of a captured job, sorted by step number. Empty if the job was launched more than once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepRow>,
    /// Modules of a captured program, sorted by path, so that a module precedes its submodules; nodes outside all
    /// modules come last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<ModuleTimesRow>,
    /// Loads and stores by memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_accesses: Vec<OneMemoryAccessesRow>,
    /// Sentences that warn why numbers may be misleading.
    pub warnings: Vec<String>,
    /// User settings whose effect is unknown or that have none.
    #[serde(
        default,
        skip_serializing_if = "GivenSettingTestResults::is_every_setting_tested_and_effective"
    )]
    pub settings: GivenSettingTestResults,
    /// Memory of NPUs. One row per rank with allocations or frees in its trace, sorted by rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "fitting")]
    #[cfg_attr(
        any(test, feature = "schema"),
        schemars(with = "fitting::MemoryFitAndNpuRows<'_>")
    )]
    pub memory: Vec<NpuMemoryUseRow>,
    /// How long links and memory ports are busy, on a machine of tiles whose network model simulates contention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiles: Option<TileLinkAndPortUse>,
    /// Memory at ports, which stores data that does not fit in SRAM, if any trace records memory use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_ports: Vec<OnePortMemoryPeakAndCapacity>,
    /// Remote memories, which store data that does not fit in the NPUs' memory, if ranks load from or store to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_pools: Vec<OneRemoteMemoryPeakAndCapacity>,
    /// Results of rank aggregation, which simulates one rank for each group of identical ranks; `None` if not
    /// requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregation: Option<IdenticalRankMergeCounts>,
    /// The speedups that would shorten the makespan most, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sensitivities: Option<MakespanSensitivityReport>,
    /// The job's software stack, if kernels are timed by curves or the user chose a stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<SoftwareStackDecisionReport>,
    /// Edits that were applied to the job and its machine before the replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edits: Option<JobAndMachineEditReport>,
    /// Extrapolation to the whole step, if only some of its micro-batches were replayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extrapolation: Option<WholeStepExtrapolation>,
    /// Samples and tokens per second, and utilization of the peak rate, if known. With an extrapolation, they
    /// describe the whole step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<Throughput>,
    /// Cost of the job's NPUs, if the price of an NPU is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<JobNpuCost>,
    /// Time and cost of processing a given number of tokens, if the job's token count is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<TimeAndCostForTokens>,
    /// The critical path of the replay. Absent if the replay has too many nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critical_path: Option<CriticalPathSummary>,
    /// Start and end of each launch, in order, if the job was launched several times or shared the machine with other
    /// jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<TrainingStepStartAndEnd>,
    /// Reports of the other jobs on the same machine.
    #[serde(default, rename = "with", skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<CoRunningJobReport>,
    /// Bytes per dimension and per link, if they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<LinkReport>,
    /// The data that a page's pictures show. Absent in other formats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pictures: Option<ReplayPictures>,
}

/// Another job on the same machine, and its report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct CoRunningJobReport {
    /// Name of the job.
    pub job: String,
    /// Report of the job; its makespan is the job's own end.
    pub report: Report,
}

impl Report {
    /// Returns the network model that timed the communication; `None` if this model has no contention.
    pub fn contention_network_model(&self) -> Option<&str> {
        let name = self.network.as_deref();
        name.filter(|&name| name != ContentionFreePortBusyTimes::NAME)
    }

    /// Returns the mean of a time over all NPUs, rounded to the nearest picosecond.
    pub fn mean_over_npus(&self, time: impl Fn(&NpuTime) -> Span) -> Span {
        let sum: u128 = self
            .rows
            .iter()
            .map(|row| u128::from(time(&row.time).0))
            .sum();
        rounded_mean_span(sum, self.rows.len())
    }

    /// Returns the rows that spend the shortest and the longest time in category `part`.
    pub fn rows_with_extreme_time(&self, part: NpuTimeCategory) -> Option<(&NpuRow, &NpuRow)> {
        let time = |row: &NpuRow| row.time.parts[part as usize];
        let least = self.rows.iter().min_by_key(|row| (time(row), row.rank))?;
        let most = self
            .rows
            .iter()
            .max_by_key(|row| (time(row), std::cmp::Reverse(row.rank)))?;
        Some((least, most))
    }

    /// Merges the operators of different micro-batches: one row replaces `mb0/…`, `mb1/…` and so on.
    pub fn merge_micro_batch_operators(&mut self) {
        self.operators = merge_operators_of_micro_batches(&self.operators);
        let beside = self.beside.iter_mut();
        beside.for_each(|other| other.report.merge_micro_batch_operators());
    }

    /// Returns when the captured run ended and which rank ended last (the lowest, if several did); `None` unless every
    /// trace records when its rank ended.
    pub fn last_captured_end_and_rank(&self) -> Option<(Span, Rank)> {
        let ends = self.rows.iter().map(|row| Some((row.captured?, row.rank)));
        let ends: Vec<_> = ends.collect::<Option<_>>()?;
        let slowest = |(end, rank): &(Span, Rank)| (*end, std::cmp::Reverse(*rank));
        ends.into_iter().max_by_key(slowest)
    }

    /// Returns the makespan minus the captured time, as a percentage of the captured time.
    pub fn captured_difference_percent(&self) -> Option<f64> {
        percent_more(self.outcome.makespan, self.captured?)
    }

    /// Returns the exposed time spent waiting for partners that have not begun, as a mean over NPUs. It includes the
    /// pipeline bubble.
    pub fn mean_exposed_waiting_with_bubble(&self) -> Span {
        let rows = self.collectives.iter().map(|row| &row.charged);
        let charged = rows.chain([&self.messages_charged, &self.unknown_charged]);
        mean_span_from_sum(
            charged.map(|charged| charged.exposed_waiting).sum(),
            self.rows.len(),
        )
    }

    /// Returns the exposed transfer time (after all partners have begun), as a mean over NPUs.
    pub fn exposed_transferring(&self) -> Span {
        let part = |part: NpuTimeCategory| self.mean_parts[part as usize].0;
        let all = part(NpuTimeCategory::Communication) + part(NpuTimeCategory::Bubble);
        Span(all.saturating_sub(self.mean_exposed_waiting_with_bubble().0))
    }

    /// Returns the communication time that compute hides, waiting included, as a mean over NPUs.
    pub fn mean_hidden_communication_time(&self) -> Span {
        let part = |part: NpuTimeCategory| self.mean_parts[part as usize].0;
        let exposed = part(NpuTimeCategory::Communication) + part(NpuTimeCategory::Bubble);
        // The two means are rounded separately, so their difference may be negative.
        Span(self.mean_communicating.0.saturating_sub(exposed))
    }

    /// Returns the exposed waiting without the bubble, as a mean over NPUs.
    pub(crate) fn mean_exposed_waiting_without_bubble(&self) -> Span {
        let all = self.mean_parts[NpuTimeCategory::Communication as usize].0;
        Span(all.saturating_sub(self.exposed_transferring().0))
    }
}
