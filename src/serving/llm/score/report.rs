//! Formats the scores of serving predictions as text and CSV.

use super::{MetricScoresByPredictor, ServingTablePredictions};
use chakram_base::prediction_scores::PredictionErrorSummary;
use chakram_base::units::{Span, format_percent, format_signed_percent, format_thousands};
use chakram_report::csv::neutralize_formulas;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_report::text::{TextStyleWidthAndDetail, write_paragraph};
use std::collections::BTreeMap;
use std::fmt::Display;

/// Explains the columns of the text output.
const LEGEND: &str = "MAPE: mean of the errors' sizes; p90: nine of ten rows are off by less; bias: mean of the errors with their \
                      signs; tau: Kendall's, 1 where all pairs of comparable rows are in the right order; 90 %: share of rows \
                      inside their 90 % intervals, which come from the errors of rows of other folds";
/// Explains the rows of the text output that include the client's time.
const CLIENT_LEGEND: &str = "with client: plus the time of the client and of the server's front end, which is the median, over \
                             rows of other folds, of what the engine leaves of the time to first token";

fn format_score_cells(
    name: &str,
    scores: &PredictionErrorSummary,
    covered: Option<f64>,
) -> [String; 8] {
    [
        name.to_owned(),
        format_thousands(scores.runs as u64),
        format_percent(scores.mean),
        format_percent(scores.median),
        format_percent(scores.p90),
        format_signed_percent(scores.bias),
        scores.tau.map_or("-".to_owned(), |tau| format!("{tau:.2}")),
        covered.map_or("-".to_owned(), format_percent),
    ]
}

/// Renders the scores.
pub fn render_scores(scores: &ServingTablePredictions, style: TextStyleWidthAndDetail) -> String {
    let table = TextTable::new([
        left_aligned_column("PREDICTED AGAINST MEASURED", 32),
        right_aligned_column("rows", 6),
        right_aligned_column("MAPE", 9),
        right_aligned_column("median", 9),
        right_aligned_column("p90", 9),
        right_aligned_column("bias", 9),
        right_aligned_column("tau", 7),
        right_aligned_column("90 %", 9),
    ]);
    let mut text = format!(
        "{}: {} rows served, {} refused\n",
        scores.table,
        format_thousands(scores.rows.len() as u64),
        format_thousands(scores.refused.len() as u64)
    );
    let mut reasons: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for row in &scores.refused {
        reasons.entry(&row.why).or_default().push(row.line);
    }
    for (why, lines) in reasons {
        let first = lines.iter().take(4).map(u64::to_string);
        let first = first.collect::<Vec<_>>().join(", ");
        let more = if lines.len() > 4 { ", …" } else { "" };
        let why = why.replace("\n  ", "; ");
        let words = format!("{} rows (lines {first}{more}): {why}", lines.len());
        write_paragraph(&mut text, &words, "  ! ", 4, style.warning)
            .expect("a string grows as needed");
    }
    text += &table.render_empty_line_and_headings(style);
    let mut put = |cells: &[String; 8]| {
        let row = cells.each_ref().map(|cell| cell as &dyn Display);
        text += &table.render_line(&row, anstyle::Style::new());
    };
    for (index, metric) in scores.metrics.iter().enumerate() {
        let covered =
            |scores: &MetricScoresByPredictor| scores.intervals.map(|intervals| intervals.coverage);
        let Some(all) = scores.summarize_metric_of_selected_rows(index, |_| true) else {
            continue;
        };
        let of_engine = covered(&all).filter(|_| all.with_client.is_none());
        put(&format_score_cells(metric, &all.chakram, of_engine));
        if let Some(with_client) = &all.with_client {
            put(&format_score_cells(
                "  with client",
                with_client,
                covered(&all),
            ));
        }
        if let Some(null) = &all.null {
            put(&format_score_cells("  null model", null, None));
        }
        for part in scores.list_partition_values() {
            if let Some(one) =
                scores.summarize_metric_of_selected_rows(index, |row| row.part == part)
            {
                let name = if part.is_empty() { "none" } else { part };
                put(&format_score_cells(
                    &format!("  {name}"),
                    &one.chakram,
                    covered(&one),
                ));
            }
        }
    }
    let clients = scores.rows.iter().filter_map(|row| row.client_s);
    let legend = match (
        clients.clone().min_by(f64::total_cmp),
        clients.max_by(f64::total_cmp),
    ) {
        (Some(least), Some(most)) => format!(
            "{LEGEND}; {CLIENT_LEGEND}: {} to {}",
            Span::from_seconds_saturating(least),
            Span::from_seconds_saturating(most)
        ),
        _ => LEGEND.to_owned(),
    };
    write_paragraph(&mut text, &legend, "  ", 2, anstyle::Style::new())
        .expect("a string grows as needed");
    text
}

/// Formats one CSV row for each pair of a table row and a metric.
pub fn format_csv_per_row_and_metric(scores: &ServingTablePredictions) -> String {
    let mut text =
        "line,part,metric,measured_s,predicted_s,error_percent,null_s,with_client_s,low_s,high_s,rho\n"
            .to_owned();
    let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.9}"));
    for row in &scores.rows {
        for time in &row.times {
            let error = time.predicted_s.zip(time.measured_s);
            let error = error.map(|(predicted, measured)| 100.0 * (predicted / measured - 1.0));
            text += &format!(
                "{},{},{},{},{},{},{},{},{},{},{}\n",
                row.line,
                neutralize_formulas(&row.part),
                time.metric,
                number(time.measured_s),
                number(time.predicted_s),
                error.map_or(String::new(), |error| format!("{error:.3}")),
                number(time.null_s),
                number(time.with_client_s),
                number(time.interval_s.map(|[low, _]| low)),
                number(time.interval_s.map(|[_, high]| high)),
                row.rho.map_or(String::new(), |rho| format!("{rho:.4}")),
            );
        }
    }
    text
}
