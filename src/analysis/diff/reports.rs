//! Compares two replay reports: their makespans, and the parts into which their times divide.
//!
//! The parts of an NPU's time sum to the makespan, so the changes of the mean parts sum to the change of the makespan.
//! Each part lists the operators or groups that changed it. Their changes do not sum exactly to the part's change,
//! because work overlaps. The remainder is listed as the rest.

mod html;
mod json;
mod read;
mod replay;
mod text;

pub use html::render_html as html;
pub use json::build_report_diff_document as json;
pub use read::{ComparedReportDocument, InvalidOrCorruptReportError, parse_report_document};
pub use text::render_report_diff_as_text as text;

use super::render::{DiffPercentLimitAndForbiddenAspects, ExceededThresholds};
use super::{AmountChange, StructureTimeOrBytesAspect};
use chakram_report::MachineResult;
use serde::Serialize;
use std::collections::BTreeMap;

/// An operator or group that contributes to a part of the time, and its change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimeContributorChange {
    /// Name of the operator or group.
    pub what: String,
    /// Time of the operator or group in both reports, in picoseconds.
    #[serde(rename = "mean_ps")]
    pub shift: AmountChange,
}

/// Change of one part of an NPU's time, and the operators or groups that caused it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimePartChange {
    /// Name of the part: compute, communication, bubble, memory, host or idle.
    #[serde(rename = "part")]
    pub name: &'static str,
    /// The part's time, averaged over NPUs. Means are rounded so that the parts sum to the makespan.
    #[serde(rename = "mean_ps")]
    pub mean: AmountChange,
    /// Time of the part, summed over NPUs.
    #[serde(rename = "sum_over_npus_ps")]
    pub sum: AmountChange,
    /// Operators or groups that contribute to the part, largest change first. Times are means over NPUs.
    pub behind: Vec<TimeContributorChange>,
    /// Part of the change in `mean` that `behind` does not explain, in picoseconds.
    #[serde(
        rename = "rest_ps",
        serialize_with = "json::serialize_change_as_saturated_i64"
    )]
    pub rest: i128,
}

/// Changes in the collectives of one kind and group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupCollectivesChange {
    /// Names of the collectives' group and kind.
    pub what: String,
    /// Number of calls.
    pub calls: AmountChange,
    /// Buffer sizes, summed over calls.
    #[serde(rename = "buffer_bytes_sum")]
    pub bytes: AmountChange,
    /// Transfer time, summed over calls.
    #[serde(rename = "transfer_ps")]
    pub transfer: AmountChange,
    /// Waiting time, summed over calls and members.
    #[serde(rename = "waited_ps_sum_over_members")]
    pub waited: AmountChange,
}

/// Differences between two replay reports.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayDiff {
    /// Name of the machine in the first report.
    pub before_machine: String,
    /// Name of the machine in the second report.
    pub after_machine: String,
    /// Notes about inputs that differ, which make the two reports less comparable.
    pub notes: Vec<String>,
    /// The makespans, in picoseconds.
    #[serde(rename = "makespan_ps")]
    pub makespan: AmountChange,
    /// Parts of the time, largest change first.
    pub parts: Vec<TimePartChange>,
    /// Collectives that changed. The collective whose transfer time changed most comes first.
    pub collectives: Vec<GroupCollectivesChange>,
    /// Finish times of ranks, largest change first.
    pub ranks: Vec<RankFinishTimeChange>,
    /// True if the numbers of ranks, nodes, calls or messages differ.
    #[serde(skip)]
    pub structure: bool,
}

/// Change in a rank's finish time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RankFinishTimeChange {
    /// The rank; it is in both reports.
    pub rank: u32,
    /// Finish time, in picoseconds.
    #[serde(rename = "finish_ps")]
    pub finish: AmountChange,
}

/// Comparison of two report documents.
#[derive(Clone, Debug)]
pub struct ReportDiffByMachine {
    /// Notes about inputs that differ, which make the two documents less comparable.
    pub notes: Vec<String>,
    /// For each document, the machines that only it contains.
    pub only: [Vec<String>; 2],
    /// Comparisons of the machines that are in both documents, in the order of the first document.
    pub replays: Vec<ReplayDiff>,
}

impl ReportDiffByMachine {
    /// Compares two documents, machine by machine.
    pub fn new(first: &ComparedReportDocument, second: &ComparedReportDocument) -> Self {
        let mut notes = Vec::new();
        let origins = [&first.provenance, &second.provenance];
        let [a, b] = origins.map(|origin| &origin.tool_version);
        if a != b {
            notes.push(format!("written by version {a} and by version {b}"));
        }
        notes.extend(notes_on_differing_inputs(first, second));
        let mut told: Vec<&String> = Vec::new();
        for name in origins.iter().flat_map(|origin| origin.options.keys()) {
            let value = |d: &ComparedReportDocument| d.format_replay_option(name);
            if !told.contains(&name) && value(first) != value(second) {
                notes.push(format!(
                    "option {name}: {} → {}",
                    value(first),
                    value(second)
                ));
                told.push(name);
            }
        }
        // If each document has only one machine, compare the reports even if the machine names differ.
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

    /// Returns true if any replay differs in this aspect.
    pub fn any_replay_differs_in_aspect(&self, aspect: StructureTimeOrBytesAspect) -> bool {
        let alone = self.only.iter().any(|list| !list.is_empty());
        let mut replays = self.replays.iter();
        match aspect {
            StructureTimeOrBytesAspect::Structure => {
                alone || replays.any(|replay| replay.structure)
            }
            StructureTimeOrBytesAspect::Time => replays.any(|replay| {
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
            StructureTimeOrBytesAspect::Bytes => replays.any(|replay| {
                replay
                    .collectives
                    .iter()
                    .any(|c| c.bytes.signed_increase() != 0)
            }),
        }
    }

    /// Checks the differences against `limits`.
    pub fn find_exceeded_thresholds(
        &self,
        limits: &DiffPercentLimitAndForbiddenAspects,
    ) -> ExceededThresholds {
        let name = |replay: &ReplayDiff| match self.replays.len() {
            1 => "the makespan".to_owned(),
            _ => format!("the makespan on {}", replay.before_machine),
        };
        let names: Vec<_> = self.replays.iter().map(name).collect();
        let names = names.iter().map(String::as_str);
        let totals: Vec<_> = names.zip(self.replays.iter().map(|r| r.makespan)).collect();
        limits.find_exceeded_total_thresholds(&totals, |aspect| {
            self.any_replay_differs_in_aspect(aspect)
        })
    }
}

/// Returns notes about inputs that differ between the two documents.
fn notes_on_differing_inputs(
    first: &ComparedReportDocument,
    second: &ComparedReportDocument,
) -> Vec<String> {
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
