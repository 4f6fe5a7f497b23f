//! Facts missing from a job's traces, and how the affected nodes were timed instead.

use super::Report;
use super::csv::{CsvColumn, decimal_cell};
use super::summary::{format_count_with_noun, format_thousands};
use chakram_base::units::{Span, format_percent};
use chakram_engine::DurationSourceCounts;
use serde::{Deserialize, Serialize};

/// Nodes whose traces lack a fact that is needed to estimate their time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct MissingTraceFactRow {
    /// Fact that the traces lack.
    pub what: FactMissingFromTrace,
    /// Number of nodes without the fact.
    pub nodes: u64,
    /// Number of these nodes that take no time, because they have no recorded duration either. The others keep their
    /// recorded duration.
    pub without_time: u64,
    /// Number of these nodes that are kernels with known bytes but no recorded duration. They take only the time to
    /// move their bytes, which is a lower bound.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub by_bytes: u64,
    /// Sum of the recorded durations of these nodes.
    #[serde(rename = "recorded_ps")]
    pub recorded: Span,
    /// `recorded` divided by the captured time of all ranks, if the traces record that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A fact that a trace may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FactMissingFromTrace {
    /// Operation or partners of a communication.
    Communication,
    /// Size of collectives and messages.
    CommunicationSize,
    /// Recorded duration of collectives and messages that should keep it.
    CommunicationTime,
    /// FLOPs of kernels whose time depends on more than the bytes that they move.
    KernelFlops,
    /// FLOPs and bytes of kernels.
    KernelWork,
    /// Kernels that ran but have no nodes, because the profiler dropped their records.
    DroppedKernels,
}

impl FactMissingFromTrace {
    /// Returns the fact's name in JSON.
    fn json_name(self) -> &'static str {
        match self {
            Self::Communication => "communication",
            Self::CommunicationSize => "communication_size",
            Self::CommunicationTime => "communication_time",
            Self::KernelFlops => "kernel_flops",
            Self::KernelWork => "kernel_work",
            Self::DroppedKernels => "dropped_kernels",
        }
    }

    fn describe_fact_of_nodes(self, nodes: u64) -> String {
        match self {
            Self::Communication => format!(
                "operation or partners of {}",
                format_count_with_noun(nodes, "communication node")
            ),
            Self::CommunicationSize => {
                format!(
                    "size of {}",
                    format_count_with_noun(nodes, "communication node")
                )
            }
            Self::CommunicationTime => {
                format!(
                    "duration of {}",
                    format_count_with_noun(nodes, "communication node")
                )
            }
            Self::KernelFlops => format!("FLOPs of {}", format_count_with_noun(nodes, "kernel")),
            Self::DroppedKernels => format!(
                "work of {}",
                format_count_with_noun(nodes, "dropped kernel")
            ),
            Self::KernelWork => format!(
                "FLOPs and bytes of {}",
                format_count_with_noun(nodes, "kernel")
            ),
        }
    }
}

/// Returns one row for each fact that the traces lack. `captured` is the captured time summed over ranks; `dropped` is
/// the number of kernels whose records the profiler dropped.
pub(super) fn list_unknown_facts(
    basis: &DurationSourceCounts,
    dropped: u64,
    captured: Option<u128>,
) -> Vec<MissingTraceFactRow> {
    let row = |what, nodes, without_time, time: u128| MissingTraceFactRow {
        what,
        nodes,
        without_time,
        by_bytes: 0,
        recorded: Span(u64::try_from(time).unwrap_or(u64::MAX)),
        share: captured
            .filter(|&all| all > 0)
            .map(|all| time as f64 / all as f64),
    };
    let rows = [
        row(
            FactMissingFromTrace::Communication,
            basis.comm_unknown,
            basis.comm_unknown_free,
            basis.comm_unknown_time,
        ),
        row(
            FactMissingFromTrace::CommunicationSize,
            basis.size_unknown,
            basis.size_unknown_free,
            basis.size_unknown_time,
        ),
        row(
            FactMissingFromTrace::CommunicationTime,
            basis.unrecorded,
            basis.unrecorded,
            0,
        ),
        MissingTraceFactRow {
            by_bytes: basis.by_bytes,
            ..row(
                FactMissingFromTrace::KernelFlops,
                basis.flops_unknown + basis.by_bytes,
                0,
                basis.flops_unknown_time,
            )
        },
        row(
            FactMissingFromTrace::KernelWork,
            basis.fell_back - basis.flops_unknown + basis.unknown,
            basis.unknown,
            basis.fell_back_time - basis.flops_unknown_time,
        ),
        row(FactMissingFromTrace::DroppedKernels, dropped, dropped, 0),
    ];
    rows.into_iter().filter(|row| row.nodes > 0).collect()
}

/// Columns of the CSV table of unknown facts.
pub(super) const CSV: &[CsvColumn<Report, MissingTraceFactRow>] = &[
    ("what", |_, row| row.what.json_name().into()),
    ("nodes", |_, row| row.nodes.into()),
    ("without_time", |_, row| row.without_time.into()),
    ("by_bytes", |_, row| row.by_bytes.into()),
    ("recorded_ps", |_, row| row.recorded.into()),
    ("share", |_, row| decimal_cell(row.share, 6)),
];

impl MissingTraceFactRow {
    /// Names the missing fact and the affected nodes.
    pub(super) fn describe_subject(&self) -> String {
        self.what.describe_fact_of_nodes(self.nodes)
    }

    /// Returns a sentence about the missing fact and the affected nodes.
    pub fn to_sentence(&self) -> String {
        let kept = self.nodes - self.without_time - self.by_bytes;
        let share = self.share.map_or(String::new(), |share| {
            format!(", {} of the captured time", format_percent(share))
        });
        let kept = (kept > 0).then(|| {
            format!(
                "{} as recorded, {}{share}",
                format_thousands(kept),
                self.recorded
            )
        });
        let free = (self.without_time > 0)
            .then(|| format!("{} without time", format_thousands(self.without_time)));
        let by_bytes = (self.by_bytes > 0)
            .then(|| format!("{} by their bytes alone", format_thousands(self.by_bytes)));
        let how = [kept, by_bytes, free]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join("; ");
        format!("{}: {how}", self.describe_subject())
    }
}

impl Report {
    /// Lists all missing facts on one line; `None` if no fact is missing.
    pub fn unknown_facts_line(&self) -> Option<String> {
        let rows: Vec<String> = self
            .unknown
            .iter()
            .map(MissingTraceFactRow::to_sentence)
            .collect();
        (!rows.is_empty()).then(|| rows.join("; "))
    }

    /// If the makespan is a lower bound, returns the remark that follows it in the headline; otherwise, returns an
    /// empty string.
    pub(super) fn lower_bound_remark(&self) -> &'static str {
        match self.is_lower_bound() {
            true => ", a lower bound: some nodes have neither a price nor a duration",
            false => "",
        }
    }

    /// Returns true if the makespan is a lower bound. In that case, some nodes take no time because their work and
    /// duration are unknown, or take only the time to move their bytes.
    pub fn is_lower_bound(&self) -> bool {
        let bounded = |row: &MissingTraceFactRow| row.without_time + row.by_bytes > 0;
        self.unknown.iter().any(bounded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_say_how_many_nodes_are_timed_how() {
        let basis = DurationSourceCounts {
            comm_unknown: 2,
            comm_unknown_time: 96_000_000_000,
            size_unknown: 8,
            size_unknown_time: 48_000_000_000,
            fell_back: 5,
            fell_back_time: 5_000_000,
            flops_unknown: 2,
            flops_unknown_time: 3_000_000,
            by_bytes: 7,
            unknown: 1,
            ..DurationSourceCounts::default()
        };
        // The recorded times are 96 ms and 48 ms, of 960 ms captured.
        let found = list_unknown_facts(&basis, 5, Some(960_000_000_000));
        let texts: Vec<String> = found.iter().map(MissingTraceFactRow::to_sentence).collect();
        assert_eq!(
            texts,
            [
                "operation or partners of 2 communication nodes: 2 as recorded, 96.000 ms, 10.0 % of the captured time",
                "size of 8 communication nodes: 8 as recorded, 48.000 ms, 5.0 % of the captured time",
                "FLOPs of 9 kernels: 2 as recorded, 3.000 us, 0.0 % of the captured time; 7 by their bytes alone",
                "FLOPs and bytes of 4 kernels: 3 as recorded, 2.000 us, 0.0 % of the captured time; 1 without time",
                "work of 5 dropped kernels: 5 without time",
            ]
        );
        assert!(list_unknown_facts(&DurationSourceCounts::default(), 0, None).is_empty());
    }
}
