//! Writes scores as text, JSON and CSV, and draws a chart of runs.

use super::statistics::{summarize_errors, summarize_intervals};
use super::{
    ConstantsFittedOutsideFold, CorrectedRunPrediction, CorrectlyOrderedRunPairCounts, MeasuredRun,
    PredictionErrorSummary, PredictionIntervalSummary, RefusedRun, RunTable,
};
use chakram_base::units::{format_percent, format_signed_percent, format_thousands};
use chakram_report::csv::neutralize_formulas;
use chakram_report::document::VersionedDocument;
use chakram_report::draw;
use chakram_report::draw::scatter::{ScatterChart, ScatterPoint, ScatterPolyline};
use chakram_report::settings::SettingWithoutEffect;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_report::text::{TextStyleWidthAndDetail, write_paragraph};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

/// Number of distinct colours in charts.
const COLOURS: usize = 6;

/// Predictions for a table of runs. Lists have one entry per run, unless a field's documentation says otherwise.
#[derive(Clone, Debug)]
pub struct ScoredRunTable<'t> {
    /// The table of runs.
    pub table: &'t RunTable,
    /// Predicted times of a step, in seconds.
    pub predicted: Vec<f64>,
    /// 90 % intervals of the predicted times in seconds; `None` for runs without error estimates.
    pub intervals: Vec<Option<[f64; 2]>>,
    /// Fitted constants of each fold.
    pub fits: Vec<ConstantsFittedOutsideFold>,
    /// Fold of each run. Empty if nothing was fitted.
    pub fold_of: Vec<usize>,
    /// Times that the null model predicts with a single rate, in seconds.
    pub null: Vec<f64>,
    /// Corrections derived from measured steps, if the user requested them.
    pub correction: Option<PredictionsCorrectedByOtherJobs>,
    /// Number of pairs of runs that differ in one option, and how many of them are ordered correctly. Empty unless the
    /// user asked for these counts.
    pub signs: Vec<CorrectlyOrderedRunPairCounts>,
    /// Settings that apply to all runs but do not change any prediction.
    pub without_effect: Vec<SettingWithoutEffect>,
}

/// Predictions corrected by measured steps of other jobs.
#[derive(Clone, Debug)]
pub struct PredictionsCorrectedByOtherJobs {
    /// Phrase that describes the measured steps, such as `runs of other models`.
    pub steps: String,
    /// Corrected predictions, one per run.
    pub runs: Vec<CorrectedRunPrediction>,
}

/// Scores of two predictors that use the same measured steps: corrected predictions, and a null
/// model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CorrectedAndNullScores {
    /// Scores of the corrected predictions.
    pub chakram: PredictionErrorSummary,
    /// Scores of the null model, which runs the model's FLOPs at the mean rate of the measured steps.
    pub one_rate: PredictionErrorSummary,
    /// Fraction of the corrected intervals that contain the measured time; `None` if a run has no interval.
    pub intervals: Option<PredictionIntervalSummary>,
    /// Mean absolute error of the corrected predictions, minus that of the null model. Both are over the same runs.
    pub difference: f64,
    /// Half the width of the 95 % interval of `difference`.
    pub uncertainty: f64,
}

impl PredictionsCorrectedByOtherJobs {
    /// Summarizes the runs for which the null model also has predictions. `None` if there are no such runs.
    fn score_runs_known_to_null_model(
        &self,
        runs: &[MeasuredRun],
    ) -> Option<CorrectedAndNullScores> {
        let known = runs.iter().zip(&self.runs);
        let known =
            known.filter_map(|(run, corrected)| Some((run, corrected, corrected.one_rate?)));
        let known: Vec<_> = known.collect();
        if known.is_empty() {
            return None;
        }
        let runs: Vec<&MeasuredRun> = known.iter().map(|(run, ..)| *run).collect();
        let seconds: Vec<f64> = known.iter().map(|(_, one, _)| one.seconds).collect();
        let rates: Vec<f64> = known.iter().map(|(.., seconds)| *seconds).collect();
        let intervals = known.iter().map(|(_, one, _)| one.interval);
        let intervals: Option<Vec<_>> = intervals.collect();
        let size = |seconds: f64, run: &MeasuredRun| (seconds / run.measured - 1.0).abs();
        let differences = known
            .iter()
            .map(|(run, one, rate)| size(one.seconds, run) - size(*rate, run));
        let differences: Vec<f64> = differences.collect();
        let count = differences.len() as f64;
        let difference = differences.iter().sum::<f64>() / count;
        let squares: f64 = differences
            .iter()
            .map(|own| (own - difference).powi(2))
            .sum();
        Some(CorrectedAndNullScores {
            chakram: summarize_errors(&runs, &seconds),
            one_rate: summarize_errors(&runs, &rates),
            intervals: intervals.map(|ends| summarize_intervals(&runs, &seconds, &ends)),
            difference,
            uncertainty: 1.96 * (squares / (count - 1.0).max(1.0) / count).sqrt(),
        })
    }
}

/// Explains the columns of the text output.
const LEGEND: &str = "MAPE: mean of the errors' sizes; p90: nine of ten runs are off by less; bias: mean of the errors with their \
                      signs; tau: Kendall's, 1 where all pairs of comparable runs are in the right order, -1 where none is; \
                      regret: extra time of the runs that are predicted to be the shortest";

impl ScoredRunTable<'_> {
    /// Returns the scores of chakram and of the null model for the runs that `wanted` selects; `None` if there are
    /// none.
    fn score_selected_runs_beside_null_model(
        &self,
        wanted: impl Fn(&MeasuredRun) -> bool,
    ) -> Option<[PredictionErrorSummary; 2]> {
        let picked = |i: &usize| wanted(&self.table.runs[*i]);
        let indices: Vec<usize> = (0..self.table.runs.len()).filter(picked).collect();
        let runs: Vec<&MeasuredRun> = indices.iter().map(|&i| &self.table.runs[i]).collect();
        let of = |all: &[f64]| {
            let seconds: Vec<f64> = indices.iter().map(|&i| all[i]).collect();
            summarize_errors(&runs, &seconds)
        };
        (!runs.is_empty()).then(|| [of(&self.predicted), of(&self.null)])
    }

    /// Returns the fraction of intervals that contain the measured time, over the runs whose indices `wanted` selects.
    /// `None` if there are no such runs, or if one of them has no interval.
    fn interval_coverage(
        &self,
        wanted: impl Fn(usize) -> bool,
    ) -> Option<PredictionIntervalSummary> {
        let indices: Vec<usize> = (0..self.table.runs.len()).filter(|&i| wanted(i)).collect();
        let intervals = indices.iter().map(|&i| self.intervals[i]);
        let intervals: Vec<[f64; 2]> = intervals.collect::<Option<_>>()?;
        let runs: Vec<&MeasuredRun> = indices.iter().map(|&i| &self.table.runs[i]).collect();
        let predicted: Vec<f64> = indices.iter().map(|&i| self.predicted[i]).collect();
        (!runs.is_empty()).then(|| summarize_intervals(&runs, &predicted, &intervals))
    }

    /// Returns the fraction of intervals that contain the measured time, over the runs of a fold.
    fn interval_coverage_in_fold(&self, fold: usize) -> Option<PredictionIntervalSummary> {
        self.interval_coverage(|i| self.fold_of.get(i) == Some(&fold))
    }

    /// Returns the distinct values of option `key`; numbers are sorted numerically.
    fn option_values(&self, key: &str) -> Vec<String> {
        let mut values = BTreeMap::new();
        for run in &self.table.runs {
            let value = run.options.get(key).cloned().unwrap_or_default();
            let number = value.parse::<f64>().unwrap_or(f64::INFINITY);
            values.insert((number.to_bits(), value.clone()), value);
        }
        values.into_values().collect()
    }

    /// Renders the scores of all runs. Also scores separately the runs that share each value of the option `by`.
    /// `about` is a sentence that describes the kernel times.
    pub fn render_text(
        &self,
        by: Option<&str>,
        about: &str,
        style: TextStyleWidthAndDetail,
    ) -> String {
        let columns = [
            left_aligned_column("PREDICTED AGAINST MEASURED", 28),
            right_aligned_column("runs", 6),
            right_aligned_column("MAPE", 9),
            right_aligned_column("median", 9),
            right_aligned_column("p90", 9),
            right_aligned_column("max", 9),
            right_aligned_column("bias", 9),
            right_aligned_column("tau", 7),
            right_aligned_column("regret", 9),
        ];
        let table = TextTable::new(columns);
        let machine = self.table.runs[0].machine.name();
        let several = self
            .table
            .runs
            .iter()
            .any(|run| run.machine.name() != machine);
        let more = if several { " and others" } else { "" };
        let mut text = format!(
            "{}: {} runs on {machine}{more}, {about}\n",
            self.table.file,
            format_thousands(self.table.runs.len() as u64)
        );
        text += &self.describe_caveats(style);
        text += &table.render_empty_line_and_headings(style);
        let mut put = |name: &str, summary: &PredictionErrorSummary| {
            let cells = prediction_error_cells(name, summary);
            let row = cells.each_ref().map(|cell| cell as &dyn std::fmt::Display);
            text += &table.render_line(&row, anstyle::Style::new());
        };
        if let Some([ours, null]) = self.score_selected_runs_beside_null_model(|_| true) {
            put("chakram", &ours);
            put("null: one FLOP rate", &null);
        }
        let corrected = self.correction.as_ref();
        let corrected = corrected.and_then(|own| {
            Some((
                &own.steps,
                own.score_runs_known_to_null_model(&self.table.runs)?,
            ))
        });
        if let Some((_, summary)) = &corrected {
            put("chakram, corrected", &summary.chakram);
            put("null: rate of these steps", &summary.one_rate);
        }
        if let Some(key) = by {
            for value in self.option_values(key) {
                let one =
                    |run: &MeasuredRun| run.options.get(key).map_or("", String::as_str) == value;
                if let Some([ours, _]) = self.score_selected_runs_beside_null_model(one) {
                    put(&format!("{key} {value}"), &ours);
                }
            }
        }
        write_paragraph(&mut text, LEGEND, "  ", 2, anstyle::Style::new())
            .expect("a string grows as needed");
        if let Some(intervals) = self.interval_coverage(|_| true) {
            text += &format!(
                "90 % intervals hold {} of what was measured; their mean width is {:.2} times that of the interval that holds \
                 90 %\n",
                format_percent(intervals.coverage),
                intervals.width
            );
        }
        for signs in &self.signs {
            text += &format!(
                "  {}: {} of {} pairs in order, {} of the {} that differ by more than 3 %\n",
                signs.option.replace('_', "-"),
                format_thousands(signs.right as u64),
                format_thousands(signs.pairs as u64),
                format_thousands(signs.clear_right as u64),
                format_thousands(signs.clear_pairs as u64)
            );
        }
        if let Some((steps, summary)) = corrected {
            text += &describe_correction_against_null_model(steps, &summary);
        }
        for (i, fit) in self.fits.iter().enumerate() {
            let machine = &self.table.runs[0].machine;
            let constants = fit.constants.iter().map(|&(constant, factor)| {
                let value = constant.value_in_machine(machine).unwrap_or_default() * factor;
                let unit = if constant.is_bandwidth_fraction() {
                    ""
                } else {
                    " us"
                };
                format!(
                    "{} {}{unit}",
                    constant.constant_name(),
                    format_significant(value)
                )
            });
            let constants: Vec<_> = constants.collect();
            let runs = format_thousands(fit.runs as u64);
            let held = self
                .interval_coverage_in_fold(i)
                .map_or(String::new(), |intervals| {
                    let (coverage, width) = (format_percent(intervals.coverage), intervals.width);
                    format!("; intervals hold {coverage}, {width:.2} times as wide")
                });
            let constants = constants.join(", ");
            text += &format!("fold {}, {runs} runs: {constants}{held}\n", i + 1);
        }
        text
    }

    /// Returns paragraphs about skipped rows, settings that have no effect, and individual runs.
    pub fn describe_caveats(&self, style: TextStyleWidthAndDetail) -> String {
        let mut text = String::new();
        let mut put = |words: &str| {
            write_paragraph(&mut text, words, "  ! ", 4, style.warning)
                .expect("a string grows as needed");
        };
        let refused = &self.table.refused;
        if !refused.is_empty() {
            let all = (refused.len() + self.table.runs.len()) as u64;
            put(&format!(
                "{} of {} rows cannot be predicted, and are not scored",
                format_thousands(refused.len() as u64),
                format_thousands(all)
            ));
            for (file, lines, why) in group_refused_runs_by_reason(refused) {
                match lines[..] {
                    [line] => put(&format!("{file}:{line}: {why}")),
                    _ => put(&format!("{file}, {}: {why}", format_line_numbers(&lines))),
                }
            }
        }
        for setting in &self.without_effect {
            put(&setting.to_sentence());
        }
        let mut notes: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for run in &self.table.runs {
            for note in &run.notes {
                notes.entry(note).or_default().push(run.line);
            }
        }
        for (note, lines) in notes {
            put(&format!("{note} ({})", format_line_numbers(&lines)));
        }
        text
    }

    /// Returns the scores of all runs as one JSON document. The document also scores separately the runs that share
    /// each value of the option `by`. `options` are the options of the replays.
    pub fn to_document<'a>(
        &'a self,
        by: Option<&'a str>,
        options: Map<String, Value>,
    ) -> VersionedDocument<ScoreDocument<'a>> {
        let both = |wanted: &dyn Fn(&MeasuredRun) -> bool| {
            let pair = self.score_selected_runs_beside_null_model(wanted);
            pair.map(|[chakram, one_rate]| ScoreBesideSingleRateModel { chakram, one_rate })
        };
        let parts = by.into_iter().flat_map(|option| {
            let values = self.option_values(option).into_iter();
            values.map(move |value| {
                let is_of = |run: &MeasuredRun| match run.options.get(option) {
                    Some(own) => *own == value,
                    None => value.is_empty(),
                };
                ScoreOfOptionValue {
                    option,
                    scores: both(&is_of),
                    value,
                }
            })
        });
        let runs = self.table.runs.iter().enumerate().map(|(i, run)| {
            let interval = self.intervals[i];
            let correction = self.correction.as_ref();
            ScoredRunRow {
                line: run.line,
                group: run.group,
                options: &run.options,
                notes: &run.notes,
                measured_s: run.measured,
                predicted_s: self.predicted[i],
                one_rate_s: self.null[i],
                low_s: interval.map(|[low, _]| low),
                high_s: interval.map(|[_, high]| high),
                corrected: correction
                    .map(|correction| CorrectedTimeWithIntervalRow::new(&correction.runs[i])),
            }
        });
        let folds = self
            .fits
            .iter()
            .enumerate()
            .map(|(fold, fit)| CrossValidationFoldRow {
                runs: fit.runs,
                factors: fit
                    .constants
                    .iter()
                    .map(|(constant, factor)| (constant.constant_name(), *factor))
                    .collect(),
                intervals: self.interval_coverage_in_fold(fold),
            });
        let body = ScoreDocument {
            options,
            table: &self.table.file,
            scores: both(&|_| true),
            by: parts.collect(),
            folds: folds.collect(),
            intervals: self.interval_coverage(|_| true),
            correction: self
                .correction
                .as_ref()
                .map(|correction| CorrectionScoresRow {
                    steps: &correction.steps,
                    scores: correction.score_runs_known_to_null_model(&self.table.runs),
                }),
            signs: &self.signs,
            runs: runs.collect(),
            refused: &self.table.refused,
            without_effect: &self.without_effect,
        };
        VersionedDocument::new("chakram.score.1", body)
    }

    /// Writes one CSV row per run.
    pub fn write_csv(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let mut rows = RunScoreCsvWriter::new(self.table);
        rows.is_corrected = self.correction.is_some();
        let all = (self.table.runs.iter()).zip(&self.predicted);
        for (i, ((run, predicted), interval)) in all.zip(&self.intervals).enumerate() {
            rows.corrected = self.correction.as_ref().map(|own| own.runs[i].seconds);
            rows.write_row(run, *predicted, *interval, out)?;
        }
        out.flush()
    }

    /// Renders a scatter chart of measured and predicted run times, with one colour per table and a
    /// line of equal times.
    pub fn draw_scatter(&self) -> String {
        let mut files: Vec<&str> = Vec::new();
        let mut points = Vec::new();
        for (run, &predicted) in self.table.runs.iter().zip(&self.predicted) {
            let series = files.iter().position(|file| **file == run.file);
            let series = series.unwrap_or_else(|| {
                files.push(&run.file);
                files.len() - 1
            });
            points.push(ScatterPoint {
                x: run.measured,
                y: predicted,
                series: series % COLOURS,
                title: format!(
                    "{}:{}: {} s measured, {} s predicted, {}",
                    run.file,
                    run.line,
                    format_significant(run.measured),
                    format_significant(predicted),
                    format_signed_percent(predicted / run.measured - 1.0)
                ),
            });
        }
        let ends = |value: fn(&ScatterPoint) -> f64| {
            let values = points.iter().map(value);
            let least = values.clone().fold(f64::INFINITY, f64::min);
            (least, values.fold(0.0, f64::max))
        };
        let (across, up) = (ends(|point| point.x), ends(|point| point.y));
        // Clip the line of equal times to the ranges of both axes.
        let (least, most) = (across.0.max(up.0), across.1.min(up.1));
        let same = ScatterPolyline {
            name: "predicted as measured".to_owned(),
            series: 6,
            way: vec![(least, least), (most, most)],
        };
        let seconds = |value: f64| format!("{} s", format_significant(value));
        let chart = ScatterChart {
            name: "Predicted and measured steps",
            axes: ("measured", "predicted"),
            points: &points,
            lines: if least < most { &[same] } else { &[] },
            ..ScatterChart::default()
        };
        draw::standalone_svg(&chart.draw_chart((&seconds, &seconds)))
    }
}

/// Writes one CSV row per run.
#[derive(Clone, Debug)]
pub struct RunScoreCsvWriter {
    /// Options that at least one run sets. Each gets a CSV column.
    keys: Vec<String>,
    begun: bool,
    is_corrected: bool,
    /// Corrected prediction for the next row, if there is one.
    corrected: Option<f64>,
}

impl RunScoreCsvWriter {
    /// Creates the writer for the runs of `table`.
    pub fn new(table: &RunTable) -> Self {
        let keys = table.runs.iter().flat_map(|run| run.options.keys());
        let keys: BTreeSet<&String> = keys.collect();
        Self {
            keys: keys.into_iter().cloned().collect(),
            begun: false,
            is_corrected: false,
            corrected: None,
        }
    }

    /// Writes the row of `run`. Before the first row, writes the header.
    pub fn write_row(
        &mut self,
        run: &MeasuredRun,
        predicted: f64,
        interval: Option<[f64; 2]>,
        out: &mut dyn Write,
    ) -> std::io::Result<()> {
        let mut csv = csv::Writer::from_writer(Vec::new());
        if !std::mem::replace(&mut self.begun, true) {
            let heads = [
                "line",
                "group",
                "measured_s",
                "predicted_s",
                "low_s",
                "high_s",
                "error",
            ];
            let keys = self.keys.iter().map(String::as_str);
            let corrected = self.is_corrected.then_some("corrected_s");
            let heads = heads
                .into_iter()
                .chain(corrected)
                .chain(keys)
                .map(neutralize_formulas);
            csv.write_record(heads.map(|head| head.into_owned()))?;
        }
        let [low, high] = interval.map_or([String::new(), String::new()], |ends| {
            ends.map(|seconds| seconds.to_string())
        });
        let cells = [
            run.line.to_string(),
            run.group.to_string(),
            run.measured.to_string(),
            predicted.to_string(),
            low,
            high,
            format!("{:.6}", predicted / run.measured - 1.0),
        ];
        let options = self.keys.iter();
        let options = options.map(|key| run.options.get(key).cloned().unwrap_or_default());
        let corrected = self.is_corrected.then(|| {
            let corrected = self.corrected.map(|seconds| seconds.to_string());
            corrected.unwrap_or_default()
        });
        let cells = cells.into_iter().chain(corrected).chain(options);
        csv.write_record(cells.map(|cell| neutralize_formulas(&cell).into_owned()))?;
        let row = csv.into_inner().map_err(csv::IntoInnerError::into_error)?;
        out.write_all(&row)
    }
}

/// A score as a JSON document.
#[derive(Debug, Serialize)]
pub struct ScoreDocument<'a> {
    options: Map<String, Value>,
    table: &'a str,
    scores: Option<ScoreBesideSingleRateModel>,
    by: Vec<ScoreOfOptionValue<'a>>,
    folds: Vec<CrossValidationFoldRow>,
    intervals: Option<PredictionIntervalSummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correction: Option<CorrectionScoresRow<'a>>,
    #[serde(skip_serializing_if = "<[CorrectlyOrderedRunPairCounts]>::is_empty")]
    signs: &'a [CorrectlyOrderedRunPairCounts],
    runs: Vec<ScoredRunRow<'a>>,
    refused: &'a [RefusedRun],
    #[serde(skip_serializing_if = "<[SettingWithoutEffect]>::is_empty")]
    without_effect: &'a [SettingWithoutEffect],
}

/// Scores of the predictions, and of the null model with a single rate.
#[derive(Debug, Serialize)]
struct ScoreBesideSingleRateModel {
    chakram: PredictionErrorSummary,
    one_rate: PredictionErrorSummary,
}

/// Scores of the runs that share an option's value.
#[derive(Debug, Serialize)]
struct ScoreOfOptionValue<'a> {
    option: &'a str,
    value: String,
    scores: Option<ScoreBesideSingleRateModel>,
}

#[derive(Debug, Serialize)]
struct CrossValidationFoldRow {
    runs: usize,
    factors: BTreeMap<&'static str, f64>,
    intervals: Option<PredictionIntervalSummary>,
}

#[derive(Debug, Serialize)]
struct ScoredRunRow<'a> {
    line: u64,
    group: usize,
    options: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    notes: &'a [String],
    measured_s: f64,
    predicted_s: f64,
    one_rate_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    low_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    high_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    corrected: Option<CorrectedTimeWithIntervalRow>,
}

#[derive(Debug, Serialize)]
struct CorrectionScoresRow<'a> {
    steps: &'a str,
    scores: Option<CorrectedAndNullScores>,
}

#[derive(Debug, Serialize)]
struct CorrectedTimeWithIntervalRow {
    predicted_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    low_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    high_s: Option<f64>,
    steps: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    one_rate_s: Option<f64>,
}

impl CorrectedTimeWithIntervalRow {
    fn new(run: &CorrectedRunPrediction) -> Self {
        Self {
            predicted_s: run.seconds,
            low_s: run.interval.map(|[low, _]| low),
            high_s: run.interval.map(|[_, high]| high),
            steps: run.steps,
            one_rate_s: run.one_rate,
        }
    }
}

/// Returns two sentences that describe a correction.
/// Groups refused rows with the same reason. Returns each group's file, lines and reason, in the order of first lines.
fn group_refused_runs_by_reason(refused: &[RefusedRun]) -> Vec<(&str, Vec<u64>, &str)> {
    let mut lines: BTreeMap<(&str, &str), Vec<u64>> = BTreeMap::new();
    for row in refused {
        let group = lines.entry((&row.file, &row.why)).or_default();
        group.push(row.line);
    }
    let groups = lines.into_iter();
    let mut groups: Vec<_> = groups
        .map(|((file, why), lines)| (file, lines, why))
        .collect();
    groups.sort_by_key(|(_, lines, _)| lines[0]);
    groups
}

/// Lists line numbers in text: all of them, or the first eight and the number of further ones.
fn format_line_numbers(lines: &[u64]) -> String {
    let shown: Vec<String> = lines.iter().take(8).map(u64::to_string).collect();
    let more = match lines.len() {
        count @ 9.. => format!(" and {} more", format_thousands(count as u64 - 8)),
        _ => String::new(),
    };
    format!("lines {}{more}", shown.join(", "))
}

fn describe_correction_against_null_model(steps: &str, summary: &CorrectedAndNullScores) -> String {
    let [difference, uncertainty] =
        [summary.difference, summary.uncertainty].map(|part| 100.0 * part);
    let verdict = match difference.abs() <= uncertainty {
        true => "not apart",
        false if difference < 0.0 => "better",
        false => "worse",
    };
    let held = summary.intervals.map_or(String::new(), |intervals| {
        let (coverage, width) = (format_percent(intervals.coverage), intervals.width);
        format!("; its 90 % intervals hold {coverage}, {width:.2} times as wide")
    });
    format!(
        "corrected by {steps}{held}\n  error of each run less that of the null model: {difference:+.1} +/- \
         {uncertainty:.1} points (95 %), {verdict}\n"
    )
}

/// Formats a number with three significant digits.
fn format_significant(value: f64) -> String {
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else if value >= 1.0 {
        2
    } else {
        3
    };
    format!("{value:.digits$}")
}

fn prediction_error_cells(name: &str, summary: &PredictionErrorSummary) -> [String; 9] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
    [
        name.to_owned(),
        format_thousands(summary.runs as u64),
        format_percent(summary.mean),
        format_percent(summary.median),
        format_percent(summary.p90),
        format_percent(summary.max),
        format_signed_percent(summary.bias),
        or_dash(summary.tau.map(|tau| format!("{tau:.2}"))),
        or_dash(summary.regret.map(format_percent)),
    ]
}
