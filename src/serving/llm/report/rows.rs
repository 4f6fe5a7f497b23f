//! Formats the tables of a report as CSV.

use super::{LlmReport, RequestTimeMeanAndPercentiles};
use crate::llm::observe::CompletedLlmRequest;
use chakram_base::units::Span;
use chakram_report::csv::CsvRows;
use serde_json::{Map, Value};

/// Header line of [`render_request_csv_line`].
pub const REQUESTS: &str = "request,class,engine,arrival_ps,queued_ps,scheduled_ps,first_token_ps,last_token_ps,prompt_tokens,output_tokens,hit_tokens,preemptions,recomputed_tokens,ttft_ps,tpot_ps,e2e_ps,queue_ps";

/// Returns the CSV cells of a request, in the order of [`REQUESTS`]; `class` is the name of the
/// request's class.
fn request_row_values(of: &CompletedLlmRequest, class: &str) -> [Value; 17] {
    [
        of.number.into(),
        class.into(),
        of.engine.into(),
        of.arrival.0.into(),
        of.queued.0.into(),
        of.scheduled.0.into(),
        of.first.0.into(),
        of.last.0.into(),
        of.prompt.into(),
        of.output.into(),
        of.hit.into(),
        of.put_back.into(),
        of.recomputed.into(),
        of.time_to_first_token().0.into(),
        of.time_per_token()
            .map_or(Value::Null, |tpot| tpot.0.into()),
        of.end_to_end_time().0.into(),
        of.queue_time().0.into(),
    ]
}

/// Returns the CSV line of a request, including the line end; `class` is the name of the request's
/// class.
pub fn render_request_csv_line(of: &CompletedLlmRequest, class: &str) -> String {
    let mut rows = CsvRows::without_header();
    rows.add_row_of_cells(request_row_values(of, class).map(|cell| match cell {
        Value::Null => String::new(),
        Value::String(text) => text,
        number => number.to_string(),
    }));
    rows.into_text()
}

/// Returns a request as one line of JSON: an object with the names of [`REQUESTS`] as keys.
pub fn format_request_json(of: &CompletedLlmRequest, class: &str) -> String {
    let names = REQUESTS.split(',').map(str::to_owned);
    let object: Map<String, Value> = names.zip(request_row_values(of, class)).collect();
    format!("{}\n", Value::Object(object))
}

/// Formats one row per class, if there are several classes, and one row for all requests.
pub fn render_classes_csv(report: &LlmReport) -> String {
    let mut rows = CsvRows::new(
        "class,arrived,completed,refused,prompt_tokens,output_tokens,hit_tokens,preemptions,attained,goodput_per_s,ttft_mean_ps,ttft_p50_ps,ttft_p90_ps,ttft_p95_ps,ttft_p99_ps,tpot_mean_ps,tpot_p50_ps,tpot_p90_ps,tpot_p95_ps,tpot_p99_ps,e2e_mean_ps,e2e_p50_ps,e2e_p90_ps,e2e_p95_ps,e2e_p99_ps,queue_mean_ps,queue_p50_ps,queue_p90_ps,queue_p95_ps,queue_p99_ps",
    );
    for row in &report.rows {
        let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        let mut cells = vec![
            row.name.clone(),
            row.arrived.to_string(),
            row.completed.to_string(),
            row.refused.to_string(),
            row.prompt_tokens.to_string(),
            row.output_tokens.to_string(),
            row.hit_tokens.to_string(),
            row.preemptions.to_string(),
            number(row.attained),
            number(row.goodput_per_s),
        ];
        for times in [&row.ttft, &row.tpot, &row.e2e, &row.queue] {
            let values = mean_and_percentiles(times).into_iter();
            cells
                .extend(values.map(|value| value.map_or(String::new(), |span| span.0.to_string())));
        }
        rows.add_row_of_cells(cells);
    }
    rows.into_text()
}

fn mean_and_percentiles(times: &RequestTimeMeanAndPercentiles) -> [Option<Span>; 5] {
    let at = |at: usize| times.percentiles.get(at).map(|one| one.value);
    [
        times.mean.map(|mean| mean.value),
        at(0),
        at(1),
        at(2),
        at(3),
    ]
}
