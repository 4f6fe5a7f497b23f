//! Compares predicted and measured serving of language models, metric by metric.
//!
//! A TOML file defines how to turn each row of a table into a scenario:
//!
//! ```toml
//! machine = "{machine}"                # the machine of a row
//! groups = ["model", "gpu"]            # rows are ranked among those that agree in these
//! folds = ["model"]                    # 90 % intervals come from the errors of rows that differ in these
//! client = "other-folds"               # times with the client are scored too; its time comes from such rows
//! client_groups = ["backend"]          # if at least 3 of these agree in these columns, from those only
//! scenario = '''
//! name = "{model}"
//! [engine]
//! model = "{model}"
//! …
//! '''
//! [measured]                           # columns of the measured values; their units are in their names
//! tpot_mean = "tpot_ms"
//! [only]                               # rows that count: those with one of these values in a column
//! mode = ["agg"]
//! [names.model]                        # replacements for values of a column
//! "meta-llama/Llama-3.1-8B" = "llama3-8b"
//! [when.gpu]                           # names for a scenario's text, by the value of a column
//! h100 = { machine = "dgx-h100" }
//! ```
//!
//! A key that names several columns, separated by spaces, stands for their joined values. In the scenario, `{name}` is
//! replaced by the value of a column or a name, and `{folder}` by the folder of the table. `{name * 0.8 + 1}` is a sum
//! of products and quotients, and `{… | whole}` rounds to the nearest integer.

mod null_model;
mod report;
mod row_scenario;

pub use report::{format_csv_per_row_and_metric, render_scores};

use super::super::error::ServeError;
use super::super::statistics::{NORMAL_90, student_quantile};
use super::{LlmReport, LlmScenario, NoLlmObserver, RequestTimeMeanAndPercentiles, serve_llm};
use chakram_base::parallel::map_in_order;
use chakram_base::prediction_scores::{
    PredictionErrorSummary, PredictionIntervalSummary, interpolate_percentile,
};
use chakram_hardware::machine::Machine;
use row_scenario::RowScenarioTemplate;
use serde::Serialize;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::path::Path;

/// A kind of time that was measured, such as the time to first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServingTimeKind {
    /// Time to the first token.
    Ttft,
    /// Time per token after the first.
    Tpot,
    /// Gap between tokens.
    Itl,
    /// Time to the last token.
    E2e,
    /// (mean E2E - mean TTFT) / (mean tokens - 1), for tables that contain only these means.
    TpotOfMeans,
    /// (mean E2E) / (mean tokens), which some tools report as the time per token.
    E2ePerToken,
}

/// A statistic of one kind of time: its mean or a percentile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ServingTimeStatistic {
    name: &'static str,
    time: ServingTimeKind,
    /// Index into the percentiles of a report; `None` for the mean.
    percentile: Option<usize>,
}

const fn create_serving_time_statistic(
    name: &'static str,
    time: ServingTimeKind,
    percentile: Option<usize>,
) -> ServingTimeStatistic {
    ServingTimeStatistic {
        name,
        time,
        percentile,
    }
}

/// All metrics; percentiles are in the order of [`LlmReport`].
const METRICS: &[ServingTimeStatistic] = &[
    create_serving_time_statistic("ttft_mean", ServingTimeKind::Ttft, None),
    create_serving_time_statistic("ttft_p50", ServingTimeKind::Ttft, Some(0)),
    create_serving_time_statistic("ttft_p90", ServingTimeKind::Ttft, Some(1)),
    create_serving_time_statistic("ttft_p95", ServingTimeKind::Ttft, Some(2)),
    create_serving_time_statistic("ttft_p99", ServingTimeKind::Ttft, Some(3)),
    create_serving_time_statistic("tpot_mean", ServingTimeKind::Tpot, None),
    create_serving_time_statistic("tpot_p50", ServingTimeKind::Tpot, Some(0)),
    create_serving_time_statistic("tpot_p90", ServingTimeKind::Tpot, Some(1)),
    create_serving_time_statistic("tpot_p95", ServingTimeKind::Tpot, Some(2)),
    create_serving_time_statistic("tpot_p99", ServingTimeKind::Tpot, Some(3)),
    create_serving_time_statistic("tpot_of_means", ServingTimeKind::TpotOfMeans, None),
    create_serving_time_statistic("e2e_per_token", ServingTimeKind::E2ePerToken, None),
    create_serving_time_statistic("itl_mean", ServingTimeKind::Itl, None),
    create_serving_time_statistic("itl_p50", ServingTimeKind::Itl, Some(0)),
    create_serving_time_statistic("itl_p90", ServingTimeKind::Itl, Some(1)),
    create_serving_time_statistic("itl_p95", ServingTimeKind::Itl, Some(2)),
    create_serving_time_statistic("itl_p99", ServingTimeKind::Itl, Some(3)),
    create_serving_time_statistic("e2e_mean", ServingTimeKind::E2e, None),
    create_serving_time_statistic("e2e_p50", ServingTimeKind::E2e, Some(0)),
    create_serving_time_statistic("e2e_p90", ServingTimeKind::E2e, Some(1)),
    create_serving_time_statistic("e2e_p95", ServingTimeKind::E2e, Some(2)),
    create_serving_time_statistic("e2e_p99", ServingTimeKind::E2e, Some(3)),
];

impl ServingTimeStatistic {
    /// Returns the metric's value in seconds; `None` if no request has a value.
    fn value_in_report(self, report: &LlmReport) -> Option<f64> {
        let all = report.row_of_all_classes()?;
        let of = |times: &RequestTimeMeanAndPercentiles| {
            let value = match self.percentile {
                None => times.mean.as_ref(),
                Some(index) => times.percentiles.get(index),
            };
            value.map(|estimate| estimate.value.as_seconds())
        };
        match self.time {
            ServingTimeKind::Ttft => of(&all.ttft),
            ServingTimeKind::Tpot => of(&all.tpot),
            ServingTimeKind::E2e => of(&all.e2e),
            ServingTimeKind::Itl => match self.percentile {
                None => report.itl.mean.map(|mean| mean.as_seconds()),
                Some(index) => report
                    .itl
                    .percentiles
                    .get(index)
                    .map(|span| span.as_seconds()),
            },
            ServingTimeKind::E2ePerToken => {
                let tokens = all.output_tokens as f64 / all.completed as f64;
                Some(all.e2e.mean.as_ref()?.value.as_seconds() / tokens)
            }
            ServingTimeKind::TpotOfMeans => {
                let mean = |times: &RequestTimeMeanAndPercentiles| {
                    Some(times.mean.as_ref()?.value.as_seconds())
                };
                let gaps = all.output_tokens as f64 / all.completed as f64 - 1.0;
                (gaps > 0.0).then_some((mean(&all.e2e)? - mean(&all.ttft)?) / gaps)
            }
        }
    }

    /// Returns true if the null model predicts the metric.
    fn is_predicted_by_null_model(self) -> bool {
        let of_tokens = [
            ServingTimeKind::Tpot,
            ServingTimeKind::TpotOfMeans,
            ServingTimeKind::E2ePerToken,
            ServingTimeKind::Itl,
        ];
        self.percentile.is_none() && of_tokens.contains(&self.time)
    }

    /// Returns true if the metric includes the time of the client and the server's front end.
    fn includes_client_time(self) -> bool {
        [ServingTimeKind::Ttft, ServingTimeKind::E2e].contains(&self.time)
    }
}

/// A row of a table, and the scenario that it describes.
#[derive(Clone, Debug)]
struct MeasuredServingRow {
    line: u64,
    /// Text of the scenario, without its machine.
    scenario: String,
    machine: Option<String>,
    /// Measured values in seconds, in the order of the table's metrics; `None` if the row has no
    /// value.
    measured: Vec<Option<f64>>,
    group: usize,
    fold: usize,
    /// The row's group, whose rows have similar client times.
    client_group: usize,
    /// Value in the column that `--by` names.
    part: String,
}

/// Runs whose serving times were measured.
#[derive(Clone, Debug)]
pub struct MeasuredServingTable {
    file: String,
    folder: std::path::PathBuf,
    metrics: Vec<ServingTimeStatistic>,
    rows: Vec<MeasuredServingRow>,
    refused: Vec<UnpredictableServingRow>,
    by: Option<String>,
    fits_client: bool,
}

/// A row that cannot be predicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnpredictableServingRow {
    /// Line in the table.
    pub line: u64,
    /// Why the row cannot be predicted.
    pub why: String,
}

impl MeasuredServingTable {
    /// Reads the table at `runs`, and turns each row into a scenario as the rules in `file` say; `text` is that file's
    /// content. If `by` names a column, the rows with each of its values also get their own scores.
    ///
    /// # Errors
    ///
    /// Fails if `file` is invalid, or names columns that the table lacks.
    pub fn read_table(
        runs: &Path,
        (file, text): (&Path, &str),
        by: Option<&str>,
    ) -> Result<Self, ServeError> {
        let scenarios = RowScenarioTemplate::parse(text, &file.display().to_string())?;
        let (rows, refused) = scenarios.read_rows(runs, by)?;
        Ok(Self {
            file: runs.display().to_string(),
            folder: file.parent().unwrap_or(Path::new("")).to_owned(),
            metrics: scenarios.list_metrics(),
            fits_client: scenarios.estimates_client_time(),
            rows,
            refused,
            by: by.map(str::to_owned),
        })
    }

    /// Serves the scenario of each row on `threads` threads. Their number does not affect the result.
    ///
    /// # Errors
    ///
    /// Fails if no row can be predicted.
    pub fn score_rows(&self, threads: NonZeroUsize) -> Result<ServingTablePredictions, ServeError> {
        let answers = map_in_order(threads.get(), &self.rows, |row| {
            Ok::<_, Infallible>(self.predict_row(row))
        });
        let Ok(answers) = answers;
        let mut scores = ServingTablePredictions {
            table: self.file.clone(),
            by: self.by.clone(),
            rows: Vec::new(),
            refused: self.refused.clone(),
            metrics: self.metrics.iter().map(|metric| metric.name).collect(),
        };
        for (row, answer) in self.rows.iter().zip(answers) {
            match answer {
                Ok(predicted) => scores.rows.push(ScoredServingRow {
                    line: row.line,
                    part: row.part.clone(),
                    group: row.group,
                    fold: row.fold,
                    client_group: row.client_group,
                    times: self.pair_predicted_and_measured_times(row, &predicted),
                    client_s: None,
                    rho: predicted.rho,
                    warnings: predicted.warnings,
                }),
                Err(why) => scores.refused.push(UnpredictableServingRow {
                    line: row.line,
                    why,
                }),
            }
        }
        if scores.rows.is_empty() {
            return Err(ServeError::Table {
                file: self.file.clone(),
                why: match scores.refused.first() {
                    Some(first) => format!(
                        "none of the {} rows can be predicted; the first: {}",
                        scores.refused.len(),
                        first.why
                    ),
                    None => "found no rows, expected at least one".to_owned(),
                },
            });
        }
        if self.fits_client {
            scores.add_client_time_to_predictions(&self.metrics);
        }
        scores.set_prediction_intervals_from_other_folds();
        Ok(scores)
    }

    fn pair_predicted_and_measured_times(
        &self,
        row: &MeasuredServingRow,
        predicted: &ServingRowPrediction,
    ) -> Vec<PredictedAndMeasuredTime> {
        let times = self
            .metrics
            .iter()
            .enumerate()
            .map(|(i, metric)| PredictedAndMeasuredTime {
                metric: metric.name,
                measured_s: row.measured[i],
                predicted_s: predicted.times[i],
                null_s: predicted
                    .null_tpot
                    .filter(|_| metric.is_predicted_by_null_model()),
                with_client_s: None,
                interval_s: None,
            });
        times.collect()
    }

    fn predict_row(&self, row: &MeasuredServingRow) -> Result<ServingRowPrediction, String> {
        let scenario = LlmScenario::parse(&row.scenario, "the row's scenario", &self.folder)
            .map_err(|error| error.to_string())?;
        let machine = row
            .machine
            .as_deref()
            .map(Machine::load_by_name)
            .transpose();
        let machine = machine.map_err(|error| error.to_string())?;
        let report = serve_llm(&scenario, machine.as_ref(), &mut NoLlmObserver)
            .map_err(|error| error.to_string())?;
        let times = self
            .metrics
            .iter()
            .map(|metric| metric.value_in_report(&report));
        Ok(ServingRowPrediction {
            times: times.collect(),
            null_tpot: machine.as_ref().zip(scenario.model.as_ref()).and_then(
                |(machine, model)| {
                    null_model::predict_tpot_from_fitted_constants(&model.name, &report, machine)
                },
            ),
            rho: report.rho,
            warnings: report.warnings,
        })
    }
}

/// Prediction for one row.
#[derive(Clone, Debug)]
struct ServingRowPrediction {
    times: Vec<Option<f64>>,
    null_tpot: Option<f64>,
    rho: Option<f64>,
    warnings: Vec<String>,
}

/// One kind of time of a row, predicted and measured, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictedAndMeasuredTime {
    /// Name of the metric.
    pub metric: &'static str,
    /// Measured time; `None` if the row has no such value.
    pub measured_s: Option<f64>,
    /// Predicted time; `None` if no request has such a time.
    pub predicted_s: Option<f64>,
    /// Prediction of the null model.
    pub null_s: Option<f64>,
    /// Predicted time plus the client's time, if the table's file asks for this sum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub with_client_s: Option<f64>,
    /// 90 % interval around the prediction: around the sum with the client's time if there is one, otherwise around
    /// `predicted_s`. The interval follows from the errors of rows in other folds.
    pub interval_s: Option<[f64; 2]>,
}

impl PredictedAndMeasuredTime {
    /// Returns the predicted time, including the client's time if it was added.
    fn prediction_seconds_with_client_if_added(&self) -> Option<f64> {
        self.with_client_s.or(self.predicted_s)
    }
}

/// A row with its predictions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScoredServingRow {
    /// Line in the table.
    pub line: u64,
    /// Value in the column that `by` names.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub part: String,
    /// Index of the group of rows among which this row is ranked.
    pub group: usize,
    /// Index of the fold. The row's interval is computed from other folds.
    pub fold: usize,
    /// Index of the row's group, whose rows have similar client times.
    #[serde(skip)]
    pub client_group: usize,
    /// Times in the order of the file's metrics.
    pub times: Vec<PredictedAndMeasuredTime>,
    /// Time that the client and the server's front end take, estimated from rows in other folds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_s: Option<f64>,
    /// Arrival rate of the row's run divided by the rate at saturation.
    pub rho: Option<f64>,
    /// Warnings of the row's run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Minimum number of rows of other folds from which a group's client time is estimated.
const FEWEST_SIMILAR: usize = 3;

/// Predictions for the rows of a table.
#[derive(Clone, Debug, Serialize)]
pub struct ServingTablePredictions {
    /// Name of the table.
    pub table: String,
    /// Column by whose values the rows are divided into parts that are scored separately.
    pub by: Option<String>,
    /// Metrics in the order of the file.
    pub metrics: Vec<&'static str>,
    /// Rows that were predicted.
    pub rows: Vec<ScoredServingRow>,
    /// Rows that were not predicted.
    pub refused: Vec<UnpredictableServingRow>,
}

/// Scores of the predictions for one metric.
#[derive(Clone, Debug, Serialize)]
pub struct MetricScoresByPredictor {
    /// Scores of chakram's predictions.
    pub chakram: PredictionErrorSummary,
    /// Scores of the null model, if it predicts the metric.
    pub null: Option<PredictionErrorSummary>,
    /// Scores of the predictions that include the client's time, if it was added.
    pub with_client: Option<PredictionErrorSummary>,
    /// Coverage of the intervals; `None` if all rows are in one fold.
    pub intervals: Option<PredictionIntervalSummary>,
}

/// Computes an interval from the errors in other folds. In a new fold, it contains the logarithmic errors of 90 % of
/// the rows. Errors in one fold are similar, so each fold is assumed to have its own mean, around which its errors vary
/// (a random-effects model). The means are assumed to be normally distributed. Errors around a mean have longer tails
/// than a normal distribution, so the interval uses the 90th percentile of their sizes. Returns `None` if there are
/// fewer than three folds or fewer than eight rows.
fn predict_new_fold_interval(folds: &[&[f64]]) -> Option<[f64; 2]> {
    let count = folds.len();
    let rows: usize = folds.iter().map(|errors| errors.len()).sum();
    if count < 3 || rows < 8 {
        return None;
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let means: Vec<f64> = folds.iter().map(|errors| mean(errors)).collect();
    let center = mean(&means);
    let square = |value: f64| value * value;
    let between: f64 = means.iter().map(|mean| square(mean - center)).sum();
    let between = between / (count - 1) as f64;
    let off = folds.iter().zip(&means);
    let off = off.flat_map(|(errors, mean)| errors.iter().map(move |error| (error - mean).abs()));
    let mut off: Vec<f64> = off.collect();
    off.sort_by(f64::total_cmp);
    // Errors are closer to the computed mean of their fold than to its true mean.
    let degrees = (rows - count).max(1) as f64;
    let within = off.iter().map(|off| square(*off)).sum::<f64>() / degrees;
    let reach = square(interpolate_percentile(&off, 0.9)) * rows as f64 / degrees;
    // The variance between folds' means includes the variation within folds, so subtract that part.
    let of_rows = folds.iter().map(|errors| within / errors.len() as f64);
    let of_folds = (between - of_rows.sum::<f64>() / count as f64).max(0.0);
    let of_means = square(student_quantile(NORMAL_90, count - 1));
    let half = (of_means * (of_folds + between / count as f64) + reach).sqrt();
    Some([center - half, center + half])
}

impl ServingTablePredictions {
    /// Adds the time of the client and of the server's front end to each metric that includes it. This time is the
    /// measured time to first token minus the engine's part. The client's time is the median over rows of other folds.
    fn add_client_time_to_predictions(&mut self, metrics: &[ServingTimeStatistic]) {
        let of_ttft = |percentile| {
            let is = |metric: &ServingTimeStatistic| {
                metric.time == ServingTimeKind::Ttft && metric.percentile == percentile
            };
            metrics.iter().position(is)
        };
        // Percentiles are preferred to the mean, because only the mean is affected by the first requests, which are
        // slow while servers compile kernels for them.
        let found = [Some(0), Some(1), None].into_iter().find_map(of_ttft);
        let Some(index) = found else {
            return;
        };
        let left: Vec<([usize; 2], f64)> = self
            .rows
            .iter()
            .filter_map(|row| {
                let time = &row.times[index];
                let left = time.measured_s? - time.predicted_s?;
                Some(([row.fold, row.client_group], left))
            })
            .collect();
        let median = |among: &dyn Fn([usize; 2]) -> bool| {
            let others = left.iter().filter(|(of, _)| among(*of));
            let mut others: Vec<f64> = others.map(|(_, left)| *left).collect();
            others.sort_by(f64::total_cmp);
            let middle =
                (!others.is_empty()).then(|| interpolate_percentile(&others, 0.5).max(0.0));
            (others.len(), middle)
        };
        let mut known: BTreeMap<[usize; 2], Option<f64>> = BTreeMap::new();
        for row in &mut self.rows {
            let own = [row.fold, row.client_group];
            row.client_s = *known.entry(own).or_insert_with(|| {
                let similar = median(&|[fold, group]| fold != own[0] && group == own[1]);
                match similar {
                    (FEWEST_SIMILAR.., middle) => middle,
                    _ => median(&|[fold, _]| fold != own[0]).1,
                }
            });
            for (time, metric) in row.times.iter_mut().zip(metrics) {
                if metric.includes_client_time() {
                    let both = row.client_s.zip(time.predicted_s);
                    time.with_client_s = both.map(|(client, predicted)| predicted + client);
                }
            }
        }
    }

    /// Sets the interval around each predicted time from the errors of rows in other folds. In a new fold, it contains
    /// 90 % of the rows.
    fn set_prediction_intervals_from_other_folds(&mut self) {
        for index in 0..self.metrics.len() {
            let mut errors: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
            for row in &self.rows {
                let time = &row.times[index];
                if let (Some(measured), Some(predicted)) = (
                    time.measured_s,
                    time.prediction_seconds_with_client_if_added(),
                ) {
                    let error = (measured / predicted).ln();
                    errors.entry(row.fold).or_default().push(error);
                }
            }
            let mut by_fold: BTreeMap<usize, Option<[f64; 2]>> = BTreeMap::new();
            for row in &mut self.rows {
                let factors = by_fold.entry(row.fold).or_insert_with(|| {
                    let others = errors.iter().filter(|(fold, _)| **fold != row.fold);
                    let others: Vec<&[f64]> = others.map(|(_, errors)| errors.as_slice()).collect();
                    predict_new_fold_interval(&others)
                });
                let time = &mut row.times[index];
                time.interval_s = factors
                    .zip(time.prediction_seconds_with_client_if_added())
                    .map(|(factors, predicted)| {
                        factors.map(|logarithm| predicted * logarithm.exp())
                    });
            }
        }
    }

    /// Returns the scores of metric `index` over the rows that `wanted` selects; `None` if there are none.
    pub fn summarize_metric_of_selected_rows(
        &self,
        index: usize,
        wanted: impl Fn(&ScoredServingRow) -> bool,
    ) -> Option<MetricScoresByPredictor> {
        let rows = self.rows.iter().filter(|row| wanted(row));
        let known = rows.filter_map(|row| {
            let time = &row.times[index];
            Some((row.group, time.measured_s?, time.predicted_s?, time))
        });
        let known: Vec<(usize, f64, f64, &PredictedAndMeasuredTime)> = known.collect();
        if known.is_empty() {
            return None;
        }
        let measured = || {
            known
                .iter()
                .map(|(group, measured, ..)| (*group, *measured))
        };
        let predicted: Vec<f64> = known
            .iter()
            .map(|(_, _, predicted, _)| *predicted)
            .collect();
        let null: Option<Vec<f64>> = known.iter().map(|(.., time)| time.null_s).collect();
        let with_client = known.iter().map(|(.., time)| time.with_client_s);
        let with_client: Option<Vec<f64>> = with_client.collect();
        let best = with_client.clone().unwrap_or_else(|| predicted.clone());
        let intervals: Option<Vec<[f64; 2]>> =
            known.iter().map(|(.., time)| time.interval_s).collect();
        let all: Vec<f64> = measured().map(|(_, seconds)| seconds).collect();
        Some(MetricScoresByPredictor {
            chakram: PredictionErrorSummary::of_grouped_times(measured(), &predicted),
            null: null.map(|null| PredictionErrorSummary::of_grouped_times(measured(), &null)),
            with_client: with_client
                .map(|times| PredictionErrorSummary::of_grouped_times(measured(), &times)),
            intervals: intervals
                .map(|intervals| PredictionIntervalSummary::of_times(&all, &best, &intervals)),
        })
    }

    /// Returns the values in the column that `by` names, in ascending order.
    pub fn list_partition_values(&self) -> Vec<&str> {
        let parts = self.rows.iter().map(|row| row.part.as_str());
        let parts: std::collections::BTreeSet<&str> = parts.collect();
        parts.into_iter().filter(|_| self.by.is_some()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_of_new_folds_are_those_of_a_random_effects_model() {
        // The folds' means 0, 1 and 2 have a variance of 1. Within each fold of four rows, each
        // error differs from the mean by 0.1. The sum of squares is 12 x 0.01, and with 12 - 3
        // degrees of freedom the variance is 0.0133.
        let fold = |mean: f64| [mean - 0.1, mean + 0.1, mean - 0.1, mean + 0.1];
        let folds = [fold(0.0), fold(1.0), fold(2.0)];
        let folds: Vec<&[f64]> = folds.iter().map(|errors| errors.as_slice()).collect();
        let [low, high] = predict_new_fold_interval(&folds).unwrap();
        let within = 0.12 / 9.0;
        let variance: f64 = (1.0 - within / 4.0) + 1.0 / 3.0;
        let reach = 0.01 * 12.0 / 9.0;
        let half = (student_quantile(NORMAL_90, 2).powi(2) * variance + reach).sqrt();
        assert!((low - (1.0 - half)).abs() < 1e-12 && (high - (1.0 + half)).abs() < 1e-12);
        // Two folds, or seven rows, are too few for an interval.
        assert_eq!(predict_new_fold_interval(&folds[..2]), None);
        assert_eq!(
            predict_new_fold_interval(&[&[0.0; 3], &[0.0; 2], &[0.0; 2]]),
            None
        );
    }
}
