//! Tables as comma-separated values.

use super::{LlmReport, TimeSummary};
use crate::llm::observe::CompletedLlmRequest;
use chakram_base::units::Span;
use chakram_report::csv::CsvRows;

/// Headings of [`request`].
pub const REQUESTS: &str = "request,class,engine,arrival_ps,queued_ps,scheduled_ps,first_token_ps,last_token_ps,prompt_tokens,output_tokens,hit_tokens,preemptions,recomputed_tokens,ttft_ps,tpot_ps,e2e_ps,queue_ps";

/// A line of a request of the class called `class`, with its end.
pub fn request(of: &CompletedLlmRequest, class: &str) -> String {
    let mut rows = CsvRows::empty();
    let tpot = of.tpot().map_or(String::new(), |tpot| tpot.0.to_string());
    rows.row(&[
        &of.number,
        &class,
        &of.engine,
        &of.arrival.0,
        &of.queued.0,
        &of.scheduled.0,
        &of.first.0,
        &of.last.0,
        &of.prompt,
        &of.output,
        &of.hit,
        &of.put_back,
        &of.recomputed,
        &of.ttft().0,
        &tpot,
        &of.e2e().0,
        &of.queue().0,
    ]);
    rows.text()
}

/// A row for each class, if there are several, and all.
pub fn classes(report: &LlmReport) -> String {
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
            let values = values(times).into_iter();
            cells
                .extend(values.map(|value| value.map_or(String::new(), |span| span.0.to_string())));
        }
        rows.add(cells);
    }
    rows.text()
}

fn values(times: &TimeSummary) -> [Option<Span>; 5] {
    let at = |at: usize| times.percentiles.get(at).map(|one| one.value);
    [
        times.mean.map(|mean| mean.value),
        at(0),
        at(1),
        at(2),
        at(3),
    ]
}
