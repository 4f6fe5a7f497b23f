//! Differences between two replay reports: the change of the makespan, and the parts of the time that explain it.
//!
//! The parts of an NPU's time sum to the makespan, so the changes of their means sum to the whole change. Each part of
//! an NPU's time lists the operators or groups that changed it. Because work overlaps, these contributions do not sum
//! to the whole change; the remainder is listed as the rest.

mod html;
mod json;
mod read;
mod replay;
mod text;

pub use html::render_html as html;
pub use json::render_json as json;
pub use read::{ComparedReports, ReportError, read_report};
pub use text::render_text as text;

use super::render::{DiffThresholds, ThresholdVerdict};
use super::{AmountChange, DiffAspect};
use chakram_report::MachineResult;
use serde::Serialize;
use std::collections::BTreeMap;

/// A named quantity that changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ContributionChange {
    /// Name of the quantity.
    pub what: String,
    /// Values in both reports.
    #[serde(rename = "mean_ps")]
    pub shift: AmountChange,
}

/// A part of an NPU's time as the mean over NPUs, with the operators or groups that contribute to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimePartChange {
    /// Name of the part: compute, communication, memory, host or idle.
    #[serde(rename = "part")]
    pub name: &'static str,
    /// Time of the part as a mean over NPUs, rounded so that the parts sum to the makespan.
    #[serde(rename = "mean_ps")]
    pub mean: AmountChange,
    /// Time of the part, summed over NPUs.
    #[serde(rename = "sum_over_npus_ps")]
    pub sum: AmountChange,
    /// Operators or groups that contribute to the part, with their time as a mean over NPUs; largest change first.
    pub behind: Vec<ContributionChange>,
    /// The change of the mean that `behind` does not explain.
    #[serde(rename = "rest_ps", serialize_with = "json::serialize_saturated")]
    pub rest: i128,
}

/// Collectives of one kind in one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CollectiveChange {
    /// The group and the kind.
    pub what: String,
    /// Number of calls.
    pub calls: AmountChange,
    /// Sum of buffer sizes.
    #[serde(rename = "buffer_bytes_sum")]
    pub bytes: AmountChange,
    /// Transfer time of all calls.
    #[serde(rename = "transfer_ps")]
    pub transfer: AmountChange,
    /// Waiting time summed over all members.
    #[serde(rename = "waited_ps_sum_over_members")]
    pub waited: AmountChange,
}

/// Differences between two reports of one replay.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayDiff {
    /// The machine's name in the first report.
    pub before_machine: String,
    /// The machine's name in the second report.
    pub after_machine: String,
    /// Notes on differences between the inputs of the two reports, which make their numbers less comparable.
    pub notes: Vec<String>,
    /// The makespans, in picoseconds.
    #[serde(rename = "makespan_ps")]
    pub makespan: AmountChange,
    /// Parts of the time, largest change first.
    pub parts: Vec<TimePartChange>,
    /// Collectives that changed, largest change of transfer time first.
    pub collectives: Vec<CollectiveChange>,
    /// Finish times of ranks, largest change first.
    pub ranks: Vec<RankShift>,
    /// True if counts of ranks, nodes, calls or messages differ.
    #[serde(skip)]
    pub structure: bool,
}

/// Finish times of a rank in both reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RankShift {
    /// The rank, which is in both reports.
    pub rank: u32,
    /// Finish time, in picoseconds.
    #[serde(rename = "finish_ps")]
    pub finish: AmountChange,
}

/// Comparison of two report documents.
#[derive(Clone, Debug)]
pub struct ReportDiff {
    /// Notes on differences between the documents that make their numbers less comparable.
    pub notes: Vec<String>,
    /// For each of the two documents, the machines that only this document reports on.
    pub only: [Vec<String>; 2],
    /// Comparisons of the replays that are in both documents, in the order of the first document.
    pub replays: Vec<ReplayDiff>,
}

impl ReportDiff {
    /// Compares two documents.
    pub fn new(first: &ComparedReports, second: &ComparedReports) -> Self {
        let mut notes = Vec::new();
        let origins = [&first.provenance, &second.provenance];
        let [a, b] = origins.map(|origin| &origin.tool_version);
        if a != b {
            notes.push(format!("written by version {a} and by version {b}"));
        }
        notes.extend(compare_inputs(first, second));
        let mut told: Vec<&String> = Vec::new();
        for name in origins.iter().flat_map(|origin| origin.options.keys()) {
            let value = |d: &ComparedReports| d.format_option(name);
            if !told.contains(&name) && value(first) != value(second) {
                notes.push(format!(
                    "option {name}: {} → {}",
                    value(first),
                    value(second)
                ));
                told.push(name);
            }
        }
        // Two reports of one machine each are compared even if the machines have different names.
        let single = first.machines.len() == 1 && second.machines.len() == 1;
        let mut only = [Vec::new(), Vec::new()];
        let mut replays = Vec::new();
        let find = |list: &[MachineResult<'_>], name: &str| {
            list.iter().position(|m| m.machine_name() == name)
        };
        for machine in &first.machines {
            let other = if single {
                Some(0)
            } else {
                find(&second.machines, machine.machine_name())
            };
            match other.map(|i| &second.machines[i]) {
                None => only[0].push(machine.machine_name().to_owned()),
                Some(other) => match (machine.completed_report(), other.completed_report()) {
                    (Some(a), Some(b)) => replays.push(replay::compare_replays(a, b)),
                    (a, b) => {
                        for (report, document) in [(a, "first"), (b, "second")] {
                            if report.is_none() {
                                let name = machine.machine_name();
                                notes.push(format!("{name}: the {document} did not complete"));
                            }
                        }
                        if a.is_some() != b.is_some() {
                            only[usize::from(a.is_none())].push(machine.machine_name().to_owned());
                        }
                    }
                },
            }
        }
        for machine in second.machines.iter().filter(|_| !single) {
            if find(&first.machines, machine.machine_name()).is_none() {
                only[1].push(machine.machine_name().to_owned());
            }
        }
        Self {
            notes,
            only,
            replays,
        }
    }

    /// Returns whether anything differs in this aspect.
    pub fn differs_in(&self, aspect: DiffAspect) -> bool {
        let alone = self.only.iter().any(|list| !list.is_empty());
        let mut replays = self.replays.iter();
        match aspect {
            DiffAspect::Structure => alone || replays.any(|replay| replay.structure),
            DiffAspect::Time => replays.any(|replay| {
                let parts = replay
                    .parts
                    .iter()
                    .any(|part| part.sum.signed_increase() != 0);
                let transfers = replay
                    .collectives
                    .iter()
                    .any(|c| c.transfer.signed_increase() != 0);
                let ranks = replay
                    .ranks
                    .iter()
                    .any(|rank| rank.finish.signed_increase() != 0);
                replay.makespan.signed_increase() != 0 || parts || transfers || ranks
            }),
            DiffAspect::Bytes => replays.any(|replay| {
                replay
                    .collectives
                    .iter()
                    .any(|c| c.bytes.signed_increase() != 0)
            }),
        }
    }

    /// Checks the differences against `limits`.
    pub fn evaluate_thresholds(&self, limits: &DiffThresholds) -> ThresholdVerdict {
        let name = |replay: &ReplayDiff| match self.replays.len() {
            1 => "the makespan".to_owned(),
            _ => format!("the makespan on {}", replay.before_machine),
        };
        let names: Vec<_> = self.replays.iter().map(name).collect();
        let names = names.iter().map(String::as_str);
        let totals: Vec<_> = names.zip(self.replays.iter().map(|r| r.makespan)).collect();
        limits.evaluate_totals(&totals, |aspect| self.differs_in(aspect))
    }
}

/// Compares the inputs of two documents.
fn compare_inputs(first: &ComparedReports, second: &ComparedReports) -> Vec<String> {
    let mut roles: BTreeMap<&str, [Vec<&str>; 2]> = BTreeMap::new();
    for (side, document) in [first, second].into_iter().enumerate() {
        for input in &document.provenance.inputs {
            let hashes = roles.entry(&input.role).or_default();
            hashes[side].push(&input.blake3);
        }
    }
    let notes = roles.into_iter().filter_map(|(name, [a, b])| {
        let same = a.iter().zip(&b).filter(|(x, y)| x == y).count();
        (a != b).then(|| match (a.len(), b.len()) {
            (1, 1) => format!("the input {name} differs"),
            (x, y) if x == y => format!("of {x} inputs {name}, {} differ", x - same),
            (x, y) => format!("inputs {name}: {x} → {y}"),
        })
    });
    notes.collect()
}
