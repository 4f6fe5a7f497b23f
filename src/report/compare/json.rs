//! Renders the comparison as a JSON document, with times in integer picoseconds.
//!
//! For each machine, `machines` contains its report or its failure; facts that all machines share are left out of the
//! reports. `comparison` compares each machine with the first machine that has a report.

use super::csv::status_word;
use super::explanation::explain_makespan_change;
use super::{
    CommunicationOnOneMachine, CommunicationOnTwoMachines, ComparedMachineResult,
    DurationOnTwoMachines, MachineComparison, MakespanExplanation, WaitingAndTransferTime,
};
use crate::NpuTimeCategory;
use crate::Report;
use crate::keyed::by_part;
use crate::summary::{MachineNameAndSize, Provenance, ReportSchema};
use chakram_base::units::Span;
use chakram_trace::format::CollectiveKind;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Schema version of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub enum ComparisonSchema {
    /// Version 1.
    #[default]
    #[serde(rename = "chakram.comparison.1")]
    V1,
}

/// The reports of several machines, and the changes between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ComparisonDocument<'c> {
    /// Schema version of this document.
    pub schema: ComparisonSchema,
    /// Program and inputs that produced the comparison.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// Results of the machines, in the user's order.
    pub machines: Vec<MachineResult<'c>>,
    /// Comparisons with the first machine that has a report, one for each machine that has a report.
    pub comparison: Vec<MachineVersusBaselineRow>,
}

/// The result of a replay on one of several machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(untagged)]
#[allow(clippy::large_enum_variant, reason = "there are as many as machines")]
pub enum MachineResult<'c> {
    /// The replay failed.
    Failed {
        /// Version of the report's schema.
        schema: ReportSchema,
        /// The machine of the failed replay.
        machine: MachineNameAndSize,
        /// Reason why the replay failed.
        failed: MachineReplayFailure,
    },
    /// Every node completed.
    Completed(Cow<'c, Report>),
}

impl MachineResult<'_> {
    /// Returns the name of the machine.
    pub fn machine_name(&self) -> &str {
        match self {
            Self::Failed { machine, .. } => &machine.name,
            Self::Completed(report) => &report.machine.name,
        }
    }

    /// Returns the report of a completed replay.
    pub fn completed_report(&self) -> Option<&Report> {
        match self {
            Self::Failed { .. } => None,
            Self::Completed(report) => Some(report),
        }
    }
}

/// Reason why a machine has no report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct MachineReplayFailure {
    /// Kind of failure: `refused`, `deadlocked` or `too long`.
    pub status: String,
    /// Error message of the failed replay.
    pub message: String,
}

/// A machine's replay, compared with the replay on the first machine that has a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct MachineVersusBaselineRow {
    machine: String,
    baseline: String,
    makespan: TwoMachineDurationChange,
    speedup: Option<f64>,
    change_percent: Option<f64>,
    difference_from_capture_percent: Option<f64>,
    #[serde(with = "by_part")]
    #[cfg_attr(
        any(test, feature = "schema"),
        schemars(with = "by_part::Parts<TwoMachineDurationChange>")
    )]
    mean: [TwoMachineDurationChange; NpuTimeCategory::COUNT],
    after_last_node: TwoMachineDurationChange,
    communication: Vec<TwoMachineCommunicationRow>,
    explanation: Vec<String>,
}

/// A duration on both machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
struct TwoMachineDurationChange {
    before_ps: Span,
    after_ps: Span,
    change_ps: i64,
}

/// A communication on both machines. A machine's value is left out if the communication did not occur there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
struct TwoMachineCommunicationRow {
    name: String,
    kind: Option<CollectiveKind>,
    groups: u32,
    exposed: TwoMachineDurationChange,
    before: Option<CommunicationTimesOnOneMachine>,
    after: Option<CommunicationTimesOnOneMachine>,
}

/// A communication on one machine. Fields named `mean` are means over NPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
struct CommunicationTimesOnOneMachine {
    mean_waiting_ps: Span,
    mean_exposed_waiting_ps: Span,
    mean_transferring_ps: Span,
    mean_exposed_transferring_ps: Span,
    #[serde(default)]
    mean_bubble_ps: Span,
    overlapped_share_of_transfer: Option<f64>,
    transfer_ps: Span,
    waited_ps_mean_of_members: Span,
    bus_bytes_per_s: Option<f64>,
    algorithm: String,
}

/// Returns the JSON document of `comparison`, including its provenance.
pub fn build_comparison_document<'c>(
    comparison: &'c MachineComparison<'_>,
    provenance: Provenance,
) -> ComparisonDocument<'c> {
    let against = comparison.reference_machine().map(|(column, first)| {
        let reports = comparison.replayed_columns();
        let rows = reports.map(|(other, report)| {
            build_comparison_row(comparison, (column, first), (other, report))
        });
        rows.collect()
    });
    ComparisonDocument {
        schema: ComparisonSchema::default(),
        provenance,
        machines: comparison
            .columns
            .iter()
            .map(build_machine_result)
            .collect(),
        comparison: against.unwrap_or_default(),
    }
}

fn build_machine_result<'c>(column: &'c ComparedMachineResult<'_>) -> MachineResult<'c> {
    match &column.result {
        Ok(report) => MachineResult::Completed(Cow::Borrowed(report)),
        Err(error) => MachineResult::Failed {
            schema: ReportSchema::default(),
            machine: MachineNameAndSize::from_machine(column.machine),
            failed: MachineReplayFailure {
                status: status_word(column).to_owned(),
                message: error.to_string(),
            },
        },
    }
}

fn build_comparison_row(
    comparison: &MachineComparison<'_>,
    (column, first): (&ComparedMachineResult<'_>, &Report),
    (other, report): (&ComparedMachineResult<'_>, &Report),
) -> MachineVersusBaselineRow {
    let why = MakespanExplanation::new(first, report);
    let lines = if std::ptr::eq(first, report) {
        Vec::new()
    } else {
        explain_makespan_change(&why, (&column.name, &other.name), || {
            comparison.explain_why_no_time_changed(other, report, column.machine)
        })
    };
    let words = lines.into_iter();
    let words = words.map(|(indent, text)| format!("{}{text}", "  ".repeat(indent)));
    MachineVersusBaselineRow {
        machine: other.name.clone(),
        baseline: column.name.clone(),
        makespan: build_duration_change_row(why.makespan),
        speedup: why.makespan.speedup(),
        change_percent: why.makespan.percent_increase(),
        difference_from_capture_percent: report.captured_difference_percent(),
        mean: NpuTimeCategory::ALL
            .map(|(part, _)| build_duration_change_row(why.category_time_on_both_machines(part))),
        after_last_node: build_duration_change_row(why.after_last),
        communication: why
            .communication
            .iter()
            .map(build_two_machine_communication_row)
            .collect(),
        explanation: words.collect(),
    }
}

fn build_duration_change_row(change: DurationOnTwoMachines) -> TwoMachineDurationChange {
    TwoMachineDurationChange {
        before_ps: change.before,
        after_ps: change.after,
        change_ps: change.increase_ps() as i64,
    }
}

fn build_two_machine_communication_row(
    moved: &CommunicationOnTwoMachines,
) -> TwoMachineCommunicationRow {
    TwoMachineCommunicationRow {
        name: moved.what.clone(),
        kind: moved.kind,
        groups: moved.groups,
        exposed: build_duration_change_row(moved.exposed_communication_on_both_machines()),
        before: moved.before.as_ref().map(build_machine_communication_row),
        after: moved.after.as_ref().map(build_machine_communication_row),
    }
}

fn build_machine_communication_row(
    side: &CommunicationOnOneMachine,
) -> CommunicationTimesOnOneMachine {
    let WaitingAndTransferTime {
        waiting,
        exposed_waiting,
        transferring,
        exposed_transferring,
        bubble,
    } = side.mean;
    CommunicationTimesOnOneMachine {
        mean_waiting_ps: waiting,
        mean_exposed_waiting_ps: exposed_waiting,
        mean_transferring_ps: transferring,
        mean_exposed_transferring_ps: exposed_transferring,
        mean_bubble_ps: bubble,
        overlapped_share_of_transfer: side.hidden_transfer_fraction(),
        transfer_ps: side.transfer,
        waited_ps_mean_of_members: side.waited,
        bus_bytes_per_s: side.bus,
        algorithm: side.algorithm.clone(),
    }
}
