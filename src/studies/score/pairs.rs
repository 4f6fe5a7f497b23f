//! Compares how changes to captured jobs affect step times, as predicted and as measured.
//!
//! A pair is a captured job and the same job after a change. The changed job is predicted from the capture. The
//! captured job is replayed twice: unchanged and [edited](edit_job). The prediction is the captured job's measured step
//! time, multiplied by the ratio of the two replays. If no step was measured, the prediction is the time of the edited
//! replay. Two null models are scored for comparison: one leaves the step's time unchanged, and the other scales it in
//! proportion to the samples.
//!
//! ```toml
//! machine = "dgx-a100"
//! comm = "recorded"
//! without = "profiler"
//!
//! [[pair]]
//! name = "twice the batch"
//! job = "run7/job"
//! edits = ["batch=2x"]
//! baseline = "149.0 ms"
//! measured = "275.4 ms"
//! noise = 2.3
//! ```

use chakram_analysis::edit::JobEdit;
use chakram_base::config::{ConfigDocument, ConfigError, ConfigField};
use chakram_base::setting::SettingKey;
use chakram_base::units::Span;
use chakram_engine::{CompiledReplay, ReplayOptions};
use chakram_hardware::machine::Machine;
use chakram_jobs::{self as jobs, JobLoadOptions, ReplayOptionDefinition, ReplaySettings};
use chakram_report::edits::EditWithEffectCounts;
use chakram_report::{self as report, Report};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Maximum noise that a file may state, as a percentage.
const MAX_NOISE: f64 = 100.0;

/// A captured job, a change to it, and measured steps before and after the change.
#[derive(Debug)]
pub struct JobEditsWithMeasuredTimes {
    /// Name of the pair in reports.
    pub name: String,
    /// Path of the captured job's traces.
    pub job: PathBuf,
    /// Edits that turn the captured job into the changed job.
    pub edits: Vec<JobEdit>,
    /// Measured step time of the captured job; `None` if it was not measured.
    pub baseline: Option<Span>,
    /// Measured step time of the changed job.
    pub measured: Span,
    /// Noise of measured steps, as a percentage. A measured change within the noise has no meaningful sign.
    pub noise: f64,
}

/// Pairs, with the machine and the options for their replays.
#[derive(Debug)]
pub struct WhatIfPairsAndReplaySettings {
    /// The pairs, in the order of the file.
    pub pairs: Vec<JobEditsWithMeasuredTimes>,
    machine: Machine,
    settings: ReplaySettings,
    options: ReplayOptions,
}

/// Prediction for a pair, with its error and the errors of the null models.
#[derive(Clone, Debug, Serialize)]
pub struct WhatIfPairPredictionAndErrors {
    /// Name of the pair in reports.
    pub name: String,
    /// Step time in the unedited replay.
    #[serde(rename = "unedited_ps")]
    pub unedited: Span,
    /// Step time in the edited replay.
    #[serde(rename = "edited_ps")]
    pub edited: Span,
    /// Measured step time of the captured job; `None` if it was not measured.
    #[serde(rename = "baseline_ps", skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Span>,
    /// Predicted step time of the changed job.
    #[serde(rename = "predicted_ps")]
    pub predicted: Span,
    /// Measured step time of the changed job.
    #[serde(rename = "measured_ps")]
    pub measured: Span,
    /// Error of the prediction, as a percentage of the measured step.
    pub error_percent: f64,
    /// Error of the null model that predicts no change, in percent.
    pub no_change_percent: f64,
    /// Error of the null model that scales step times in proportion to the samples, in percent.
    pub sample_ratio_percent: f64,
    /// Predicted change of the step time, as a percentage of the captured job's step time.
    pub change_percent: f64,
    /// Measured change of the step time, as a percentage; `None` if the captured job has no measured step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_change_percent: Option<f64>,
    /// True if the predicted and the measured change have the same sign; `None` if the measured change is within the
    /// noise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_sign_right: Option<bool>,
    /// How many items each edit matched, and how many it changed.
    pub edits: Vec<EditWithEffectCounts>,
}

/// Median and mean of absolute errors, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MedianAndMeanWhatIfErrors {
    /// Median of the absolute errors, in percent.
    pub median_percent: f64,
    /// Mean of the absolute errors, in percent.
    pub mean_percent: f64,
}

/// Scores of the predictions for all pairs.
#[derive(Clone, Debug, Serialize)]
pub struct WhatIfScoresByPredictor {
    /// Errors of chakram's predictions.
    pub chakram: MedianAndMeanWhatIfErrors,
    /// Errors of the null model that predicts no change.
    pub no_change: MedianAndMeanWhatIfErrors,
    /// Errors of the null model that scales step times in proportion to the samples.
    pub sample_ratio: MedianAndMeanWhatIfErrors,
    /// `[0]` counts the pairs whose measured change is above the noise. `[1]` counts those of them whose sign is
    /// predicted correctly.
    pub signs: [usize; 2],
    /// The predictions of all pairs.
    pub pairs: Vec<WhatIfPairPredictionAndErrors>,
}

/// Reads a measured step time, which is longer than zero.
fn read_step_time(field: &ConfigField<'_>, example: &str) -> Result<Span, ConfigError> {
    match field.read_quantity(example)? {
        Span::ZERO => Err(field.invalid_value_error("0", "a time longer than zero")),
        time => Ok(time),
    }
}

impl WhatIfPairsAndReplaySettings {
    /// Parses pairs from `text`, the contents of `file`. Paths of jobs are relative to the folder
    /// of `file`.
    ///
    /// # Errors
    ///
    /// Fails at the first problem, and states its line.
    pub fn parse(text: &str, file: &Path) -> Result<Self, String> {
        let name = file.display().to_string();
        let document = ConfigDocument::parse(text, &name).map_err(|error| error.to_string())?;
        let read = Self::read_pairs(&document, file.parent().unwrap_or(Path::new("")));
        read.map_err(|error| error.to_string())
    }

    fn read_pairs(document: &ConfigDocument<'_>, folder: &Path) -> Result<Self, ConfigError> {
        let root = document.unchecked_root();
        let (mut pairs, mut given, mut machine) = (Vec::new(), Vec::new(), None);
        for (key, field) in root.fields() {
            match (key, ReplayOptionDefinition::find_by_study_key(key)) {
                ("pair", _) => {
                    let allowed = ["name", "job", "edits", "baseline", "measured", "noise"];
                    for table in field.read_tables(&allowed)? {
                        let job = table.require_field("job", "the traces of the first job")?;
                        let job = folder.join(job.read_text("a path")?);
                        let items = table.require_field("edits", "a list of edits")?;
                        let edits = items.read_array_items("a list of edits")?;
                        let edits = edits.iter().map(|item| {
                            let text = item.read_text("an edit such as \"batch=2x\"")?;
                            text.parse()
                                .map_err(|why: String| item.invalid_value_error(text, why))
                        });
                        let baseline = table.get("baseline");
                        let baseline = baseline.map(|field| read_step_time(&field, "149 ms"));
                        let noise = table.get("noise");
                        let noise = noise
                            .map(|field| field.read_positive(MAX_NOISE))
                            .transpose()?;
                        let title = table.get("name");
                        let title = title.map(|field| field.read_text("a name")).transpose()?;
                        pairs.push(JobEditsWithMeasuredTimes {
                            name: title.map_or_else(|| job.display().to_string(), str::to_owned),
                            job,
                            edits: edits.collect::<Result<_, ConfigError>>()?,
                            baseline: baseline.transpose()?,
                            measured: read_step_time(
                                &table.require_field("measured", "the measured step")?,
                                "275.4 ms",
                            )?,
                            noise: noise.unwrap_or(0.0),
                        });
                    }
                }
                ("machine", _) => machine = Some(field),
                (_, Some(option)) => {
                    let words = match field.read_flag() {
                        Ok(flag) => flag.to_string(),
                        Err(_) => field.read_text(option.value)?.to_owned(),
                    };
                    given.push((option.key, field, vec![words]));
                }
                _ => {
                    return Err(
                        field.invalid_value_error(key, "pair, machine, or an option of a replay")
                    );
                }
            }
        }
        let Some(field) = machine else {
            return Err(
                root.missing_entry_error("machine", "the machine that the jobs are replayed on")
            );
        };
        let machine = Machine::load_by_name(field.read_text("a machine")?);
        let machine =
            machine.map_err(|error| field.invalid_value_error(field.raw_text(), error))?;
        if pairs.is_empty() {
            return Err(root.missing_entry_error("pair", "at least one pair"));
        }
        let words = given.iter().map(|(key, _, words)| (*key, &words[..]));
        let place = |key: SettingKey| given.iter().find(|(own, ..)| *own == key);
        let settings = ReplaySettings::parse_settings(words).map_err(|error| {
            match place(error.key_of_rejected_option()) {
                Some((_, field, _)) => {
                    field.invalid_value_error(field.raw_text(), format!("{error:#}"))
                }
                None => root.missing_entry_error("machine", error),
            }
        })?;
        let options = settings.replay_options(None);
        let options = options
            .map_err(|error| field.invalid_value_error(field.raw_text(), format!("{error:#}")))?;
        Ok(Self {
            pairs,
            machine,
            settings,
            options,
        })
    }

    /// Predicts the changed jobs of all pairs, and scores the predictions.
    ///
    /// # Errors
    ///
    /// Fails at the first job that cannot be read, edited or replayed.
    pub fn score_all_pairs(&self) -> Result<WhatIfScoresByPredictor, String> {
        let pairs = self.pairs.iter().map(|pair| {
            let predicted = self.predict_pair(pair);
            predicted.map_err(|why| format!("pair {}: {why}", pair.name))
        });
        let pairs: Vec<WhatIfPairPredictionAndErrors> = pairs.collect::<Result<_, _>>()?;
        let errors = |of: fn(&WhatIfPairPredictionAndErrors) -> f64| {
            let mut all: Vec<f64> = pairs.iter().map(|pair| of(pair).abs()).collect();
            all.sort_by(f64::total_cmp);
            let middle = all.len() / 2;
            // If the number of pairs is even, the median is the mean of the two middle errors.
            let lower = all[(all.len() - 1) / 2];
            MedianAndMeanWhatIfErrors {
                median_percent: lower.midpoint(all[middle]),
                mean_percent: all.iter().sum::<f64>() / all.len() as f64,
            }
        };
        let signs = pairs.iter().filter_map(|pair| pair.is_sign_right);
        let signs: Vec<bool> = signs.collect();
        Ok(WhatIfScoresByPredictor {
            chakram: errors(|pair| pair.error_percent),
            no_change: errors(|pair| pair.no_change_percent),
            sample_ratio: errors(|pair| pair.sample_ratio_percent),
            signs: [signs.len(), signs.iter().filter(|&&right| right).count()],
            pairs,
        })
    }

    fn predict_pair(
        &self,
        pair: &JobEditsWithMeasuredTimes,
    ) -> Result<WhatIfPairPredictionAndErrors, String> {
        let (unedited, _) = self.replay_edited_mean_step(pair, Vec::new())?;
        let (edited, edits) = self.replay_edited_mean_step(pair, pair.edits.clone())?;
        let percent = |value: Span, of: Span| (value.as_seconds() / of.as_seconds() - 1.0) * 100.0;
        let ratio = edited.as_seconds() / unedited.as_seconds();
        // Without a measured step, use the unedited replay's time, so that the prediction equals the edited replay's
        // time.
        let before = pair.baseline.unwrap_or(unedited);
        let predicted = before.scale_by(ratio);
        let change_percent = (ratio - 1.0) * 100.0;
        let measured_change_percent = pair.baseline.map(|before| percent(pair.measured, before));
        // The sign of a change within the noise has no meaning.
        let counts = measured_change_percent.filter(|change| change.abs() > pair.noise);
        Ok(WhatIfPairPredictionAndErrors {
            name: pair.name.clone(),
            unedited,
            edited,
            baseline: pair.baseline,
            predicted,
            measured: pair.measured,
            error_percent: percent(predicted, pair.measured),
            no_change_percent: percent(before, pair.measured),
            sample_ratio_percent: percent(
                before.scale_by(factor_of_samples_per_step(&pair.edits)),
                pair.measured,
            ),
            change_percent,
            measured_change_percent,
            is_sign_right: counts.map(|change| (change > 0.0) == (change_percent > 0.0)),
            edits,
        })
    }

    /// Applies `edits` to a pair's job. Returns the mean step time, and how many items each edit changed.
    fn replay_edited_mean_step(
        &self,
        pair: &JobEditsWithMeasuredTimes,
        edits: Vec<JobEdit>,
    ) -> Result<(Span, Vec<EditWithEffectCounts>), String> {
        let loading = JobLoadOptions {
            edits,
            ..self
                .settings
                .job_load_options(self.machine.max_ranks_without_placement_map())
        };
        let found =
            jobs::find_traces([&pair.job], loading.verify).map_err(|error| error.to_string())?;
        let job = jobs::load_found_traces(&found, pair.name.clone(), &loading, &mut |_, _| {});
        let job = job.map_err(|error| error.to_string())?;
        let prepared = CompiledReplay::new(job.workload(), &self.machine, &self.options);
        let prepared = prepared.map_err(|error| error.to_string())?;
        let replayed =
            report::replay_to_report(&prepared, ()).map_err(|error| error.to_string())?;
        let report: Report = replayed.0;
        let steps = report.steps.len().max(1) as u64;
        Ok((
            Span(report.outcome.makespan.0 / steps),
            job.edit_effect_counts().to_vec(),
        ))
    }
}

/// Returns the factor by which `edits` change the number of samples per rank and step.
fn factor_of_samples_per_step(edits: &[JobEdit]) -> f64 {
    let ratios = edits.iter().map(|edit| match edit {
        JobEdit::Batch(factor) | JobEdit::Sequence(factor) => factor.to_f64(),
        JobEdit::Accumulate(times) => f64::from(*times),
        _ => 1.0,
    });
    ratios.product()
}
