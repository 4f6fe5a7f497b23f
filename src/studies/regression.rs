//! Checks an archive's predictions against stored baselines, and finds the causes of changes.
//!
//! A check gives two separate verdicts on each prediction. *Did the prediction change?* compares the prediction with
//! the baseline, and fails if the change exceeds a threshold. *How far is the prediction from measured steps?* compares
//! the prediction with the measured distribution, if the archive has one. The second verdict never makes a check fail.
//! A prediction may become less accurate for a good reason. Conversely, an accurate prediction does not excuse an
//! unintended change.

mod budget;
mod cause;
mod machine_text;
mod measured;
pub mod page;
pub mod verdict;

pub use budget::{WorkloadWithExpectedCheckTime, select_workloads_within_budget};
pub use cause::PredictionChangeCause;
pub use machine_text::constant_changes;
pub use measured::{PredictionDistanceFromMeasuredSteps, parse_step_times};
pub use verdict::{ArchiveCheckResults, FailedPredictionWithErrorMessage};

use chakram_analysis::diff::reports;
use chakram_archive::{Archive, ArchiveError, RecordedMakespanPrediction, WorkloadEntry};
use chakram_base::units::Span;
use chakram_engine::UnusableOptionReason;
use chakram_hardware::machine::{MachineError, find_machine_text};
use chakram_jobs::{self as job, ReplaySettings, ReplaySettingsError};
use chakram_report::NpuTimeCategory;
use chakram_report::Report;
use chakram_report::summary::Provenance;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Reason why a prediction cannot be computed or compared.
#[derive(Debug, thiserror::Error)]
pub enum RegressionError {
    /// The archive cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The machine is invalid.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A requested value cannot be set in the machine's text.
    #[error(transparent)]
    MachineText(#[from] job::MachineValuesError),
    /// The traces do not form a job.
    #[error(transparent)]
    Job(#[from] job::JobLoadOrWriteError),
    /// A trace cannot be read.
    #[error(transparent)]
    Trace(#[from] chakram_trace::format::TraceError),
    /// The machine lacks a property that an option needs.
    #[error(transparent)]
    Option(#[from] UnusableOptionReason),
    /// Options contradict each other, or name files that cannot be read.
    #[error(transparent)]
    Settings(#[from] ReplaySettingsError),
    /// The replay failed, for example because of a deadlock.
    #[error(transparent)]
    Replay(#[from] chakram_engine::ReplayError),
    /// A recorded report cannot be read.
    #[error("{0}")]
    Report(String),
}

/// Returns the text of the workload's file `name`. If there is none, returns the text of the preset or path `name`.
pub fn workload_or_preset_machine_text(
    archive: &Archive,
    entry: &WorkloadEntry,
    name: &str,
) -> Result<String, RegressionError> {
    match entry.find_non_trace_file(name) {
        Some(row) => {
            let bytes = archive.read_object(&row.blake3)?;
            String::from_utf8(bytes)
                .map_err(|_| RegressionError::Report(format!("{name} is not UTF-8")))
        }
        None => Ok(find_machine_text(name)?.text.into_owned()),
    }
}

/// A prediction, with the first option that has no effect on it.
#[derive(Debug)]
pub struct ReplayReportWithIneffectiveOption {
    /// Report of the replay that gave the prediction.
    pub report: Report,
    /// The first option that has no effect on this workload. This need not be an error: in a corpus, it may affect only
    /// some of the workloads.
    pub ineffective: Option<UnusableOptionReason>,
}

/// Predicts the time of a workload on the machine in the text `machine`.
pub fn predict_archived_workload_time(
    archive: &Arc<Archive>,
    entry: &WorkloadEntry,
    machine: &str,
    text: &str,
    settings: &ReplaySettings,
) -> Result<ReplayReportWithIneffectiveOption, RegressionError> {
    let mut machine = settings.parse_machine_text_with_changed_values(text, machine)?;
    let mut ineffective = None;
    match settings.fill_all_racks_if_requested(machine.clone()) {
        Ok(filled) => machine = filled,
        Err(refusal) => ineffective = Some(refusal),
    }
    let options = settings.replay_options(None)?;
    options.check_options_do_not_conflict()?;
    options.check_machine_supports_options(&machine)?;
    let loading = settings.job_load_options(machine.max_ranks_without_placement_map());
    let found = chakram_archive::find_workload_traces(archive, &entry.name)?;
    let job = job::load_found_traces(&found, entry.name.clone(), &loading, &mut |_, _| {})?;
    let ineffective = ineffective.or(options.check_options_affect_workload(job.workload()).err());
    let mut report = job.replay_on(&machine, &options)?;
    report.merge_micro_batch_operators();
    report.provenance = Some(Provenance::new(serde_json::Map::new(), &[]));
    Ok(ReplayReportWithIneffectiveOption {
        report,
        ineffective,
    })
}

/// Returns the features that a prediction covers. These are the operators, the collectives (group and kind), the size
/// and format of the traces, and the machine.
pub fn list_features_covered_by_prediction(
    entry: &WorkloadEntry,
    machine: &str,
    report: &Report,
) -> Vec<String> {
    let operators = report
        .operators
        .iter()
        .map(|row| format!("operator {}", row.name));
    let groups = report
        .collectives
        .iter()
        .map(|row| format!("group {} {}", row.group, row.kind));
    let schemas = entry
        .traces
        .iter()
        .map(|row| format!("schema {}", row.ending));
    let size = entry.trace_bytes().max(1).ilog2();
    let others = [format!("size 2^{size} bytes"), format!("machine {machine}")];
    let all: BTreeSet<String> = operators
        .chain(groups)
        .chain(schemas)
        .chain(others)
        .collect();
    all.into_iter().collect()
}

/// Serializes a report for storage in an archive.
pub fn report_json_bytes(report: &Report) -> Vec<u8> {
    let mut out = Vec::new();
    chakram_report::json::write_indented_json(&mut out, report).expect("a vector grows as needed");
    out
}

/// A prediction, compared with its baseline.
#[derive(Clone, Debug)]
pub struct PredictionComparedWithBaseline {
    /// Name of the workload in the archive.
    pub workload: String,
    /// Name of the machine for which the time was predicted.
    pub machine: String,
    /// Makespan of the baseline, in picoseconds.
    pub before_ps: u64,
    /// Predicted makespan, in picoseconds.
    pub after_ps: u64,
    /// True if the change of the makespan exceeds the threshold.
    pub moved: bool,
    /// Causes of the change, most important first. Empty if the prediction did not move.
    pub causes: Vec<PredictionChangeCause>,
    /// Average time of an NPU in each category, first in the baseline and then in the prediction; `None` if the
    /// prediction did not move.
    pub means: Option<[NpuTimesByCategory; 2]>,
    /// Baselines on this machine, from oldest to newest. The prediction is compared with the newest one.
    pub baselines: Vec<RecordedMakespanPrediction>,
    /// How far the prediction is from the measured steps; `None` if the archive has none.
    pub measured: Option<PredictionDistanceFromMeasuredSteps>,
}

/// Time in each category, in the order of [`NpuTimeCategory`].
pub type NpuTimesByCategory = [Span; NpuTimeCategory::COUNT];

impl PredictionComparedWithBaseline {
    /// Returns how much the makespan changed, as a percentage of the baseline.
    pub fn change_percent(&self) -> f64 {
        match (self.before_ps, self.after_ps) {
            (0, 0) => 0.0,
            (0, _) => f64::INFINITY,
            (before, after) => (after as f64 - before as f64) / before as f64 * 100.0,
        }
    }
}

/// Compares a prediction with `baseline`, and finds the causes of a change. The prediction has
/// moved if the difference exceeds `threshold` percent.
pub fn compare_prediction_with_baseline(
    archive: &Arc<Archive>,
    entry: &WorkloadEntry,
    baseline: &RecordedMakespanPrediction,
    machine: &str,
    settings: &ReplaySettings,
    threshold: f64,
) -> Result<PredictionComparedWithBaseline, RegressionError> {
    let text = workload_or_preset_machine_text(archive, entry, machine)?;
    let report = predict_archived_workload_time(archive, entry, machine, &text, settings)?.report;
    let after = report.outcome.makespan.0;
    let mut checked = PredictionComparedWithBaseline {
        workload: entry.name.clone(),
        machine: baseline.machine.clone(),
        before_ps: baseline.makespan_ps,
        after_ps: after,
        moved: false,
        causes: Vec::new(),
        means: None,
        baselines: (entry.baselines.iter())
            .filter(|record| record.machine == baseline.machine)
            .cloned()
            .collect(),
        measured: entry
            .measured
            .as_ref()
            .map(|measured| PredictionDistanceFromMeasuredSteps::new(measured, after)),
    };
    checked.moved = checked.change_percent().abs() > threshold;
    if checked.moved {
        let wrong = |error: reports::InvalidOrCorruptReportError| {
            RegressionError::Report(format!("{}: {error}", entry.name))
        };
        let before = String::from_utf8_lossy(&archive.read_object(&baseline.report)?).into_owned();
        let after = String::from_utf8_lossy(&report_json_bytes(&report)).into_owned();
        let before_machine =
            String::from_utf8_lossy(&archive.read_object(&baseline.machine_blake3)?).into_owned();
        let found = reports::ReportDiffByMachine::new(
            &reports::parse_report_document(&before).map_err(wrong)?,
            &reports::parse_report_document(&after).map_err(wrong)?,
        );
        checked.causes = cause::find_prediction_change_causes(
            &constant_changes(&before_machine, &text),
            baseline,
            entry,
            &found,
        );
        checked.means = found.replays.first().map(|replay| {
            let mut means = [[Span(0); NpuTimeCategory::COUNT]; 2];
            for ((category, _), key) in NpuTimeCategory::ALL.iter().zip(NpuTimeCategory::KEYS) {
                let part = replay.parts.iter().find(|part| part.name == key);
                let mean = part.expect("a comparison has all parts").mean;
                // The conversion to `u64` is exact, because a mean never exceeds the makespan,
                // which is a `u64`.
                means[0][*category as usize] = Span(mean.before as u64);
                means[1][*category as usize] = Span(mean.after as u64);
            }
            means
        });
    }
    Ok(checked)
}
