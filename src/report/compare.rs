//! Compares replays of one job on several machines: the makespan on each machine, and which parts of the time changed.
//!
//! The parts of an NPU's time sum to the makespan, and so do their means over NPUs. The changes in the parts between
//! two machines therefore sum to the change in the makespan. [`MakespanExplanation`] sorts the changes by size. A
//! communication on one machine is compared with the communication on the other machine that has the same kind and
//! group name.

use super::NpuTimeCategory;
use super::Report;
use super::breakdown::WaitingAndTransferTime;
use super::collectives::{CollectiveRow, LongestAwaitedRank};
use super::operators::{OperatorTime, table::combine_operator_families};
use super::settings::{
    CompiledReplayWithReport, explain_why_differences_changed_nothing, machine_differences,
};
use super::summary::{
    MESSAGES, UNKNOWN_COMMUNICATION, format_group_count_and_size, mean_span_from_sum, percent_more,
};
use chakram_base::ids::Rank;
use chakram_base::units::Span;
use chakram_engine::{CompiledReplay, ReplayError, ReplayOptions};
use chakram_hardware::machine::Machine;
use chakram_trace::format::{CollectiveKind, Dtype};
use chakram_trace::graph::NodeKind;
use chakram_trace::workload::Workload;
use std::cmp::Reverse;
use std::collections::BTreeMap;

mod csv;
mod explanation;
mod html;
mod json;
mod text;

pub use self::csv::render_csv as csv;
pub use html::render_html as html;
pub use json::{ComparisonDocument, MachineResult, build_comparison_document as json};
pub use text::render_text as text;

/// A machine, and the result of the replay on it.
#[derive(Debug)]
pub struct ComparedMachineResult<'a> {
    /// Name of the machine in the comparison.
    pub name: String,
    /// The machine that the job was replayed on.
    pub machine: &'a Machine,
    /// Report of the replay on this machine, or the error that ended the replay.
    pub result: Result<Report, ReplayError>,
}

/// Results of one job on several machines.
#[derive(Debug)]
pub struct MachineComparison<'a> {
    /// The compared job.
    pub workload: &'a Workload,
    /// Title of the job, as shown to users.
    pub title: &'a str,
    /// Options of the job's replays.
    pub options: &'a ReplayOptions,
    /// Machines with their results, in the user's order.
    pub columns: Vec<ComparedMachineResult<'a>>,
}

/// A duration on one machine and on another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationOnTwoMachines {
    /// Duration on the reference machine.
    pub before: Span,
    /// Duration on the other machine.
    pub after: Span,
}

/// A communication on one machine: collectives of one kind in similar groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommunicationOnOneMachine {
    /// Time charged to the communication (mean over NPUs).
    pub mean: WaitingAndTransferTime,
    /// Transfer time summed over calls, then averaged over groups. Zero for messages.
    pub transfer: Span,
    /// Bus bandwidth in bytes per second, over all groups.
    pub bus: Option<f64>,
    /// Name of the algorithm; empty for messages.
    pub algorithm: String,
    /// Waiting time, hidden and exposed (mean over members).
    pub waited: Span,
    /// The rank that others waited for longest. The second field is the rank's share (0 to 1) of all waiting.
    pub latest: Option<(Rank, f64)>,
}

/// A communication on two machines.
#[derive(Clone, Debug, PartialEq)]
pub struct CommunicationOnTwoMachines {
    /// Displayed description, such as `all-reduce, all 8 ranks`.
    pub what: String,
    /// Kind of collective; `None` for messages between ranks.
    pub kind: Option<CollectiveKind>,
    /// Number of groups that perform this communication.
    pub groups: u32,
    /// The communication on the reference machine; `None` if it did not occur there.
    pub before: Option<CommunicationOnOneMachine>,
    /// The communication on the other machine; `None` if it did not occur there.
    pub after: Option<CommunicationOnOneMachine>,
}

/// Explains why a job takes longer or shorter on another machine. In each list, the largest change comes first.
#[derive(Clone, Debug, PartialEq)]
pub struct MakespanExplanation {
    /// Makespans on the two machines.
    pub makespan: DurationOnTwoMachines,
    /// Each part of the time (mean over NPUs).
    pub parts: Vec<(NpuTimeCategory, DurationOnTwoMachines)>,
    /// Exposed communication, by group and kind.
    pub communication: Vec<CommunicationOnTwoMachines>,
    /// Time of kernels and memory accesses by name (mean over NPUs). Overlapping nodes each count with their full
    /// duration.
    pub operators: Vec<(NpuTimeCategory, String, DurationOnTwoMachines)>,
    /// Duration of host nodes (mean over NPUs). Overlapping nodes each count with their full duration.
    pub host: DurationOnTwoMachines,
    /// Time from a rank's last node to the end of the replay (mean over ranks).
    pub after_last: DurationOnTwoMachines,
}

impl DurationOnTwoMachines {
    /// Returns the increase in picoseconds; a decrease is negative.
    pub fn increase_ps(&self) -> i128 {
        i128::from(self.after.0) - i128::from(self.before.0)
    }

    /// Returns the speedup of the other machine over the reference machine.
    pub fn speedup(&self) -> Option<f64> {
        (self.after > Span::ZERO).then(|| self.before.0 as f64 / self.after.0 as f64)
    }

    /// Returns the increase as a percentage of `before`; `None` if `before` is zero.
    pub fn percent_increase(&self) -> Option<f64> {
        percent_more(self.after, self.before)
    }

    fn absolute_change_ps(&self) -> u128 {
        self.increase_ps().unsigned_abs()
    }
}

impl CommunicationOnTwoMachines {
    /// Returns the exposed communication (mean over NPUs).
    pub fn exposed_communication_on_both_machines(&self) -> DurationOnTwoMachines {
        self.communication_time_on_both_machines(|side| side.mean.exposed_time_without_bubble())
    }

    /// Returns `time` for the communication on both machines. The value is zero on a machine where the communication
    /// did not occur.
    pub fn communication_time_on_both_machines(
        &self,
        time: impl Fn(&CommunicationOnOneMachine) -> Span,
    ) -> DurationOnTwoMachines {
        let time =
            |side: &Option<CommunicationOnOneMachine>| side.as_ref().map_or(Span::ZERO, &time);
        DurationOnTwoMachines {
            before: time(&self.before),
            after: time(&self.after),
        }
    }
}

impl CommunicationOnOneMachine {
    /// Returns the fraction of the transfer time that is hidden by compute.
    pub fn hidden_transfer_fraction(&self) -> Option<f64> {
        let all = self.mean.transferring;
        let exposed = self.mean.exposed_transferring;
        (all > Span::ZERO).then(|| (all - exposed).0 as f64 / all.0 as f64)
    }
}

impl<'a> MachineComparison<'a> {
    /// Returns the reference column: the first column that has a report.
    pub fn reference_machine(&self) -> Option<(&ComparedMachineResult<'a>, &Report)> {
        self.replayed_columns().next()
    }

    /// Returns the columns that have a report.
    pub fn replayed_columns(&self) -> impl Iterator<Item = (&ComparedMachineResult<'a>, &Report)> {
        let columns = self.columns.iter();
        columns.filter_map(|column| Some((column, column.result.as_ref().ok()?)))
    }

    /// Explains why all parts of the time are equal on machine `other` and on the machine of `column`, which produced
    /// `report`.
    fn explain_why_no_time_changed(
        &self,
        column: &ComparedMachineResult<'_>,
        report: &Report,
        other: &Machine,
    ) -> String {
        let differs = machine_differences(other, column.machine);
        match CompiledReplay::new(self.workload, column.machine, self.options) {
            Ok(prepared) => {
                let run = CompiledReplayWithReport {
                    prepared: &prepared,
                    report,
                };
                explain_why_differences_changed_nothing(&differs, &run)
            }
            // The same replay compiled earlier, so compiling cannot fail here.
            Err(_) => "nothing changed".to_owned(),
        }
    }

    /// Compares the makespan of the reference machine (before) with the makespan of `report` (after).
    pub fn compare_makespan_with(&self, report: &Report) -> DurationOnTwoMachines {
        let (_, first) = self.reference_machine().expect("there is a report");
        pair_makespans_before_and_after(first, report)
    }

    /// Returns true if any node accesses memory outside its NPU.
    fn uses_remote_memory(&self) -> bool {
        self.workload.distinct_graphs().iter().any(|graph| {
            let mut kinds = graph.nodes().map(|node| graph.kind(node));
            kinds.any(|kind| kind == NodeKind::RemoteMemory)
        })
    }

    fn has_memory_rows(&self) -> bool {
        self.replayed_columns()
            .any(|(_, report)| !report.memory.is_empty())
    }

    /// Returns the number formats used by kernels with FLOPs.
    fn kernel_formats(&self) -> Vec<Dtype> {
        let graphs = self.workload.distinct_graphs().iter();
        let found = graphs.flat_map(|graph| {
            let kernels = graph
                .nodes()
                .filter(|&n| graph.kind(n) == NodeKind::Compute)
                .filter(|&node| graph.flops(node) > 0);
            kernels.filter_map(|node| graph.dtype(node))
        });
        let mut used = [false; Dtype::COUNT];
        found.for_each(|dtype| used[dtype as usize] = true);
        let all = Dtype::ALL.iter().map(|(dtype, _)| *dtype);
        all.filter(|&dtype| used[dtype as usize]).collect()
    }
}

fn pair_makespans_before_and_after(first: &Report, other: &Report) -> DurationOnTwoMachines {
    DurationOnTwoMachines {
        before: first.outcome.makespan,
        after: other.outcome.makespan,
    }
}

impl MakespanExplanation {
    /// Compares a job's replays on two machines: `first` is the reference machine, and `other` is the changed one.
    pub fn new(first: &Report, other: &Report) -> Self {
        let part = |report: &Report, part: NpuTimeCategory| report.mean_parts[part as usize];
        let mut parts: Vec<_> = NpuTimeCategory::ALL
            .map(|(p, _)| {
                let change = DurationOnTwoMachines {
                    before: part(first, p),
                    after: part(other, p),
                };
                (p, change)
            })
            .to_vec();
        parts.sort_by_key(|(_, change)| Reverse(change.absolute_change_ps()));
        let after_last = |report: &Report| {
            let makespan = report.outcome.makespan;
            report.mean_over_npus(|time| makespan - time.finish)
        };
        let host = |report: &Report| {
            let host = report.operators.iter().filter(|o| o.kind == NodeKind::Host);
            mean_span_from_sum(host.map(|o| o.total).sum(), report.rows.len())
        };
        Self {
            makespan: pair_makespans_before_and_after(first, other),
            parts,
            communication: compare_communication(first, other),
            operators: operators_with_changed_times(first, other),
            host: DurationOnTwoMachines {
                before: host(first),
                after: host(other),
            },
            after_last: DurationOnTwoMachines {
                before: after_last(first),
                after: after_last(other),
            },
        }
    }

    /// Returns a part of the time on both machines.
    pub fn category_time_on_both_machines(&self, part: NpuTimeCategory) -> DurationOnTwoMachines {
        let found = self.parts.iter().find(|(p, _)| *p == part);
        found.map(|(_, change)| *change).unwrap_or_default()
    }
}

/// Returns the kernels and memory accesses whose times differ, with the largest change first.
fn operators_with_changed_times(
    first: &Report,
    other: &Report,
) -> Vec<(NpuTimeCategory, String, DurationOnTwoMachines)> {
    let mut changes: BTreeMap<(u8, String), (NpuTimeCategory, DurationOnTwoMachines)> =
        BTreeMap::new();
    let mut take = |report: &Report, set: fn(&mut DurationOnTwoMachines, Span)| {
        for OperatorTime {
            name, kind, total, ..
        } in combine_operator_families(&report.operators)
        {
            let part = match kind {
                NodeKind::Compute => NpuTimeCategory::Compute,
                NodeKind::LocalMemory | NodeKind::RemoteMemory => NpuTimeCategory::Memory,
                _ => continue,
            };
            let change = changes.entry((kind as u8, name));
            let (_, change) = change.or_insert((part, DurationOnTwoMachines::default()));
            set(change, mean_span_from_sum(total, report.rows.len()));
        }
    };
    take(first, |change, time| change.before = time);
    take(other, |change, time| change.after = time);
    let mut changes: Vec<_> = changes
        .into_iter()
        .map(|((_, name), (part, change))| (part, name, change))
        .filter(|(.., change)| change.increase_ps() != 0)
        .collect();
    changes.sort_by_key(|(.., change)| Reverse(change.absolute_change_ps()));
    changes
}

/// Key that identifies a row of collectives on both machines: the group's name, the kind, and a counter for rows that
/// share both.
type GroupNameAndKindKey = (String, CollectiveKind, u32);

fn collective_rows_by_group_and_kind(
    report: &Report,
) -> BTreeMap<GroupNameAndKindKey, &CollectiveRow> {
    let mut rows = BTreeMap::new();
    for row in &report.collectives {
        let mut key = (row.group.clone(), row.kind, 0);
        while rows.contains_key(&key) {
            key.2 += 1;
        }
        rows.insert(key, row);
    }
    rows
}

/// Key of similar groups. They have the same size, and make the same number of calls of one kind with the same
/// algorithm.
type SimilarGroupsKey<'r> = (
    CollectiveKind,
    Option<&'r str>,
    u32,
    u64,
    [Option<&'r str>; 2],
);
type CollectiveRowPair<'r> = [Option<&'r CollectiveRow>; 2];

fn compare_communication(first: &Report, other: &Report) -> Vec<CommunicationOnTwoMachines> {
    let (before, after) = (
        collective_rows_by_group_and_kind(first),
        collective_rows_by_group_and_kind(other),
    );
    let mut keys: Vec<&GroupNameAndKindKey> = before.keys().chain(after.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut alike: BTreeMap<SimilarGroupsKey<'_>, Vec<CollectiveRowPair<'_>>> = BTreeMap::new();
    for key in keys {
        let pair = [before.get(key).copied(), after.get(key).copied()];
        let row = pair[0].or(pair[1]).expect("a key comes from one of them");
        let carried = pair.map(|row| row.map(|row| row.algorithm.as_str()));
        let role = row.role.as_deref();
        let key = (row.kind, role, row.members, row.tally.calls, carried);
        alike.entry(key).or_default().push(pair);
    }
    let reports = [first, other];
    let folded = alike.into_iter().map(|((kind, role, members, ..), pairs)| {
        let [before, after] = [0, 1].map(|i| {
            let rows: Vec<_> = pairs.iter().filter_map(|pair| pair[i]).collect();
            sum_collectives_of_similar_groups(&rows, reports[i])
        });
        let row = pairs[0][0].or(pairs[0][1]).expect("one of them is there");
        let what = match (pairs.len(), role) {
            (n, Some(role)) => format!(
                "{kind}, {role}, {}",
                format_group_count_and_size(n, members)
            ),
            (1, None) => format!("{kind}, {}", row.group),
            (n, None) => format!("{kind}, {n} groups of {members} such as {}", row.group),
        };
        CommunicationOnTwoMachines {
            what,
            kind: Some(kind),
            groups: pairs.len() as u32,
            before,
            after,
        }
    });
    type Charged = fn(&Report) -> WaitingAndTransferTime;
    let of_no_group: [(&str, Charged); 2] = [
        (MESSAGES, |report| report.messages_charged),
        (UNKNOWN_COMMUNICATION, |report| report.unknown_charged),
    ];
    let of_no_group = of_no_group.into_iter().filter_map(|(what, charged)| {
        let [before, after] = reports.map(|report| {
            let mean = mean_charged_time_per_npu(charged(report), report.rows.len());
            (mean != WaitingAndTransferTime::default()).then(|| CommunicationOnOneMachine {
                mean,
                ..CommunicationOnOneMachine::default()
            })
        });
        (before.is_some() || after.is_some()).then(|| CommunicationOnTwoMachines {
            what: what.to_owned(),
            kind: None,
            groups: 0,
            before,
            after,
        })
    });
    let mut moved: Vec<_> = folded.chain(of_no_group).collect();
    moved.sort_by_key(|moved| {
        Reverse(
            moved
                .exposed_communication_on_both_machines()
                .absolute_change_ps(),
        )
    });
    moved
}

fn mean_charged_time_per_npu(sum: WaitingAndTransferTime, npus: usize) -> WaitingAndTransferTime {
    WaitingAndTransferTime {
        waiting: mean_span_from_sum(sum.waiting, npus),
        exposed_waiting: mean_span_from_sum(sum.exposed_waiting, npus),
        transferring: mean_span_from_sum(sum.transferring, npus),
        exposed_transferring: mean_span_from_sum(sum.exposed_transferring, npus),
        bubble: mean_span_from_sum(sum.bubble, npus),
    }
}

/// Summarizes the collectives of similar groups on one machine.
fn sum_collectives_of_similar_groups(
    rows: &[&CollectiveRow],
    report: &Report,
) -> Option<CommunicationOnOneMachine> {
    let first = rows.first()?;
    let mut charged = WaitingAndTransferTime::default();
    let (mut transfer, mut waited, mut bytes, mut present) = (Span::ZERO, Span::ZERO, 0u64, 0);
    let mut late: BTreeMap<Rank, Span> = BTreeMap::new();
    for row in rows {
        charged.waiting += row.charged.waiting;
        charged.exposed_waiting += row.charged.exposed_waiting;
        charged.transferring += row.charged.transferring;
        charged.exposed_transferring += row.charged.exposed_transferring;
        charged.bubble += row.charged.bubble;
        transfer += row.tally.transfer;
        waited += row.tally.waited;
        bytes = bytes.saturating_add(row.tally.buffers.sum);
        present += row.present as usize;
        if let Some(LongestAwaitedRank { rank, waited }) = row.latest {
            *late.entry(rank).or_default() += waited;
        }
    }
    let mut together = first.tally;
    (together.buffers.sum, together.transfer) = (bytes, transfer);
    let latest = late
        .into_iter()
        .max_by_key(|(rank, time)| (*time, Reverse(*rank)));
    Some(CommunicationOnOneMachine {
        mean: mean_charged_time_per_npu(charged, report.rows.len()),
        transfer: mean_span_from_sum(transfer, rows.len()),
        bus: together.bus_bandwidth(first.kind, first.members),
        algorithm: first.algorithm.clone(),
        waited: mean_span_from_sum(waited, present),
        latest: latest
            .filter(|_| waited > Span::ZERO)
            .map(|(rank, time)| (rank, time.0 as f64 / waited.0 as f64)),
    })
}
