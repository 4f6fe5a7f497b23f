//! Finds out why a prediction differs from its baseline.

use super::machine_text::MachineConstantChange;
use chakram_analysis::diff::reports::{ReplayDiff, ReportDiffByMachine};
use chakram_archive::{RecordedMakespanPrediction, WorkloadEntry};
use chakram_base::units::Span;

/// Cause of a change: a changed input, or a part of the time that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PredictionChangeCause {
    /// A constant in the machine file changed.
    Constant(MachineConstantChange),
    /// The workload's traces or files were replaced.
    Workload,
    /// The program's version changed; the fields are the versions before and after.
    Version(String, String),
    /// The time of an operator or group changed in one part of the breakdown. The fields are the part, the operator's
    /// or group's name, and the change in picoseconds, averaged over NPUs.
    Time(&'static str, String, i128),
    /// The counts or bytes of a group's collectives changed.
    Collective(String),
    /// A difference that makes the reports incomparable.
    Note(String),
}

impl std::fmt::Display for PredictionChangeCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Constant(change) => {
                let value =
                    |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
                write!(
                    f,
                    "machine: {}: {} → {}",
                    change.key,
                    value(&change.before),
                    value(&change.after)
                )
            }
            Self::Workload => f.write_str("workload: the files differ from the baseline's"),
            Self::Version(before, after) => write!(f, "chakram: version {before} → {after}"),
            Self::Time(part, what, by) => {
                let sign = if *by < 0 { "-" } else { "+" };
                let span = Span(u64::try_from(by.unsigned_abs()).unwrap_or(u64::MAX));
                let of = if what.is_empty() {
                    String::new()
                } else {
                    format!(": {what}")
                };
                write!(f, "{part}{of} {sign}{span}")
            }
            Self::Collective(what) => write!(f, "collectives: {what}"),
            Self::Note(note) => write!(f, "note: {note}"),
        }
    }
}

/// Maximum number of listed operators or groups per part of the time.
const TIMES: usize = 2;
/// Maximum number of listed constants, and of listed collectives.
const LISTED: usize = 8;

/// Returns all causes of a change: constants, other inputs, and the operators and groups whose
/// times changed most.
pub fn find_prediction_change_causes(
    constants: &[MachineConstantChange],
    baseline: &RecordedMakespanPrediction,
    entry: &WorkloadEntry,
    found: &ReportDiffByMachine,
) -> Vec<PredictionChangeCause> {
    let mut causes: Vec<PredictionChangeCause> = constants
        .iter()
        .take(LISTED)
        .cloned()
        .map(PredictionChangeCause::Constant)
        .collect();
    if entry.contents_hash() != baseline.contents {
        causes.push(PredictionChangeCause::Workload);
    }
    let version = env!("CARGO_PKG_VERSION");
    if baseline.tool_version != version {
        causes.push(PredictionChangeCause::Version(
            baseline.tool_version.clone(),
            version.to_owned(),
        ));
    }
    for replay in &found.replays {
        causes.extend(most_changed_operators_and_groups(replay));
        let changed = replay
            .collectives
            .iter()
            .filter(|c| c.calls.signed_increase() != 0 || c.bytes.signed_increase() != 0);
        causes.extend(changed.take(LISTED).map(|c| {
            let calls = format!("{}: {} → {} calls", c.what, c.calls.before, c.calls.after);
            PredictionChangeCause::Collective(format!(
                "{calls}, {} → {} bytes",
                c.bytes.before, c.bytes.after
            ))
        }));
        causes.extend(
            replay
                .notes
                .iter()
                .cloned()
                .map(PredictionChangeCause::Note),
        );
    }
    causes
}

/// For each part of the breakdown, returns the operators and groups whose times changed most.
fn most_changed_operators_and_groups(replay: &ReplayDiff) -> Vec<PredictionChangeCause> {
    let mut all = Vec::new();
    for part in &replay.parts {
        let behind = part
            .behind
            .iter()
            .filter(|behind| behind.shift.signed_increase() != 0);
        let before = all.len();
        all.extend(behind.take(TIMES).map(|behind| {
            (
                part.name,
                behind.what.clone(),
                behind.shift.signed_increase(),
            )
        }));
        if all.len() == before && part.mean.signed_increase() != 0 {
            all.push((part.name, String::new(), part.mean.signed_increase()));
        }
    }
    all.sort_by_key(|(_, _, by)| std::cmp::Reverse(by.unsigned_abs()));
    let causes = all
        .into_iter()
        .map(|(part, what, by)| PredictionChangeCause::Time(part, what, by));
    causes.collect()
}
