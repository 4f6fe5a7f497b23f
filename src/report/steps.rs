//! Profiled steps of a captured job: when each step ran, and its time by category.
//!
//! A step begins when the first rank issues a node of the step. The step ends when all ranks have completed all of its
//! nodes. A kernel belongs to the step in which it was launched. On each rank, each instant of a step counts towards
//! the first category in which a node *of the step* is in progress. The categories come in this order: compute,
//! communication, memory, host. Instants without such a node count as idle. The parts of a step therefore sum to its
//! time, even if steps overlap.

use super::csv::CsvColumn;
use super::section::{
    ReportTableSubject, ReportTableWithNotes, ReportTextDetailsOrPage, SectionCellWithValue,
};
use super::summary::rounded_mean_span;
use super::table::{left_aligned_column, right_aligned_column};
use super::{CollectiveRecord, NpuTimeCategory, Observer, Report};
use chakram_base::ids::NodeIndex;
use chakram_base::units::{Span, Time};
use chakram_engine::{CompiledReplay, InstanceId};
use chakram_trace::graph::{Graph, NodeKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A profiled step. Times by category are means over the ranks with nodes of the step, rounded to the nearest
/// picosecond.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct StepRow {
    /// Number of the step, as the profiler counts steps.
    pub step: u64,
    /// Number of ranks with nodes of the step.
    pub ranks: u32,
    /// Time from the start of the replay until the step's first node is issued.
    #[serde(rename = "start_ps")]
    pub start: Span,
    /// Time from `start` until the step's last node completes.
    #[serde(rename = "time_ps")]
    pub time: Span,
    /// Time with at least one of the step's kernels in progress.
    #[serde(rename = "compute_ps")]
    pub compute: Span,
    /// The part of `communication` with none of the step's kernels in progress.
    #[serde(rename = "exposed_communication_ps")]
    pub exposed: Span,
    /// Time in which the step's communication waits or transfers.
    #[serde(rename = "communication_ps")]
    pub communication: Span,
    /// Time with the step's loads or stores in progress, but with none of its kernels or communication.
    #[serde(rename = "memory_ps")]
    pub memory: Span,
    /// Time with the step's host work or delays in progress, but with no node of another category.
    #[serde(rename = "host_ps")]
    pub host: Span,
    /// The rest of `time`, with no node of the step in progress.
    #[serde(rename = "idle_ps")]
    pub idle: Span,
}

/// Columns of the CSV table of steps.
pub const CSV: &[CsvColumn<Report, StepRow>] = &[
    ("step", |_, row| row.step.into()),
    ("ranks", |_, row| row.ranks.into()),
    ("start_ps", |_, row| row.start.into()),
    ("time_ps", |_, row| row.time.into()),
    ("compute_ps", |_, row| row.compute.into()),
    ("exposed_communication_ps", |_, row| row.exposed.into()),
    ("communication_ps", |_, row| row.communication.into()),
    ("memory_ps", |_, row| row.memory.into()),
    ("host_ps", |_, row| row.host.into()),
    ("idle_ps", |_, row| row.idle.into()),
];

/// Maximum number of rows in a text report; JSON and CSV contain all rows.
const ROWS: usize = 12;

/// Returns the table of steps. Empty unless there are several steps.
pub(super) fn build_step_sections(
    report: &Report,
    medium: ReportTextDetailsOrPage,
) -> Vec<ReportTableWithNotes> {
    if report.steps.len() < 2 {
        return Vec::new();
    }
    let mut section = ReportTableWithNotes::create_table_with_aligned_columns(
        ReportTableSubject::Steps,
        [
            left_aligned_column("STEPS", 10),
            right_aligned_column("start", 13),
            right_aligned_column("time", 13),
            right_aligned_column("compute", 13),
            right_aligned_column("exposed comm.", 14),
            right_aligned_column("all comm.", 13),
            right_aligned_column("host", 13),
            right_aligned_column("idle", 13),
        ],
    );
    let shown = medium.rows_shown_or_all_in_details(ROWS);
    for (i, row) in report.steps.iter().take(shown).enumerate() {
        let at = |field: &str| format!("/steps/{i}/{field}");
        let span =
            |field, span: Span| SectionCellWithValue::from(span).with_json_pointer(at(field));
        section.push_row(vec![
            SectionCellWithValue::number_cell(row.step, format!("step {}", row.step))
                .with_json_pointer(at("step")),
            span("start_ps", row.start),
            span("time_ps", row.time),
            span("compute_ps", row.compute),
            span("exposed_communication_ps", row.exposed),
            span("communication_ps", row.communication),
            span("host_ps", row.host),
            span("idle_ps", row.idle),
        ]);
    }
    section.leave_out(report.steps.len(), shown, "steps");
    vec![section]
}

/// Times of one step on one rank.
#[derive(Clone, Copy, Debug, Default)]
struct SingleStepRankTimeTracker {
    /// Issue time of the first node of the step.
    begun: Option<Time>,
    /// Time up to which the time has already been attributed to categories.
    until: Time,
    /// Completion time of the last node of the step.
    end: Time,
    /// Number of the step's nodes in progress, by category.
    active: [u32; NpuTimeCategory::COUNT - 1],
    /// Time by category, without idle time. Idle time is the rest of the step's time.
    parts: [Span; NpuTimeCategory::COUNT - 1],
    communicating: Span,
}

impl SingleStepRankTimeTracker {
    fn charge_until(&mut self, now: Time) {
        if self.begun.is_none() {
            return;
        }
        let elapsed = now.since(self.until);
        self.until = now;
        if let Some(part) = self.active.iter().position(|&count| count > 0) {
            self.parts[part] += elapsed;
        }
        if self.active[NpuTimeCategory::Communication as usize] > 0 {
            self.communicating += elapsed;
        }
    }
}

/// Measures the profiled steps of a job; does nothing if the job has none.
#[derive(Debug)]
pub struct ProfiledStepObserver<'a> {
    /// Each instance's graph, and the index of the instance's first tracker.
    instances: Vec<(&'a Graph, usize)>,
    /// One tracker per step, instance by instance. Empty if no graph has steps.
    trackers: Vec<SingleStepRankTimeTracker>,
}

impl<'a> ProfiledStepObserver<'a> {
    /// Creates an observer of all instances of `prepared`.
    pub fn new(prepared: &'a CompiledReplay<'a>) -> Self {
        let workload = prepared.workload_with_added_launches();
        let mut trackers = 0;
        let instances = workload.instances().iter().map(|instance| {
            let graph = workload.graph_of(instance);
            let first = trackers;
            trackers += graph.step_numbers().len();
            (graph, first)
        });
        Self {
            instances: instances.collect(),
            trackers: vec![SingleStepRankTimeTracker::default(); trackers],
        }
    }

    #[inline]
    fn tracker_of_step_containing_node(
        &mut self,
        instance: InstanceId,
        node: NodeIndex,
    ) -> Option<&mut SingleStepRankTimeTracker> {
        if self.trackers.is_empty() {
            return None;
        }
        let (graph, first) = self.instances[instance.index()];
        let step = graph.step_of(node)?;
        Some(&mut self.trackers[first + step as usize])
    }

    /// Returns one row per step, sorted by step number.
    pub fn into_rows(self) -> Vec<StepRow> {
        let mut of_step: BTreeMap<u64, Vec<SingleStepRankTimeTracker>> = BTreeMap::new();
        for (graph, first) in self.instances {
            let numbers = graph.step_numbers().iter().zip(&self.trackers[first..]);
            for (&number, tracker) in numbers.filter(|(_, tracker)| tracker.begun.is_some()) {
                of_step.entry(number).or_default().push(*tracker);
            }
        }
        let rows = of_step.into_iter().map(|(step, ranks)| {
            let begun = ranks.iter().filter_map(|rank| rank.begun).min();
            let begun = begun.unwrap_or(Time::ZERO);
            let end = ranks.iter().map(|rank| rank.end).max().unwrap_or(begun);
            let time = end.since(begun);
            let mean = |of: &dyn Fn(&SingleStepRankTimeTracker) -> Span| {
                let sum = ranks.iter().map(|rank| u128::from(of(rank).0)).sum();
                rounded_mean_span(sum, ranks.len())
            };
            let part = |part: NpuTimeCategory| mean(&|rank| rank.parts[part as usize]);
            StepRow {
                step,
                ranks: ranks.len() as u32,
                start: begun.since(Time::ZERO),
                time,
                compute: part(NpuTimeCategory::Compute),
                exposed: part(NpuTimeCategory::Communication),
                communication: mean(&|rank| rank.communicating),
                memory: part(NpuTimeCategory::Memory),
                host: part(NpuTimeCategory::Host),
                idle: mean(&|rank| time - rank.parts.iter().copied().sum()),
            }
        });
        rows.collect()
    }
}

impl Observer for ProfiledStepObserver<'_> {
    #[inline]
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        if let Some(step) = self.tracker_of_step_containing_node(instance, node)
            && let Some(part) = NpuTimeCategory::from_node_kind(kind)
        {
            if step.begun.is_none() {
                (step.begun, step.until) = (Some(now), now);
            }
            step.charge_until(now);
            step.active[part as usize] += 1;
        }
    }

    #[inline]
    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        if let Some(step) = self.tracker_of_step_containing_node(instance, node)
            && let Some(part) = NpuTimeCategory::from_node_kind(kind)
        {
            step.charge_until(now);
            step.active[part as usize] -= 1;
            step.end = now;
        }
    }

    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}

    #[inline]
    fn on_delay_began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        if let Some(step) = self.tracker_of_step_containing_node(instance, node) {
            step.charge_until(now);
            step.active[NpuTimeCategory::Host as usize] += 1;
        }
    }

    #[inline]
    fn on_ready(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        if let Some(step) = self.tracker_of_step_containing_node(instance, node) {
            step.charge_until(now);
            step.active[NpuTimeCategory::Host as usize] -= 1;
        }
    }
}
