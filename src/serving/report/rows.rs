//! Formats the tables of a report as CSV.

use super::{RequestGroupResultsRow, ServeReport};
use crate::observe::CompletedRequest;
use crate::statistics::IntervalEstimate;
use chakram_report::csv::CsvRows;

/// Header line of the table of requests.
pub const REQUESTS: &str = "number,model,arrival_ps,start_ps,end_ps,serve_ps,datapath_ps,queue_ps,compute_ps,preempted_ps,together,processor,input_toks,output_toks";

/// Formats a request as one line of the table of requests, including the line end.
pub fn render_one_request_csv_line(request: &CompletedRequest, model: &str) -> String {
    let mut rows = CsvRows::without_header();
    let [input, output] = request.tokens;
    rows.add_row(&[
        &request.number,
        &model,
        &request.arrival.0,
        &request.started.0,
        &request.finished.0,
        &request.finished.since(request.arrival).0,
        &request.datapath.0,
        &request.queue.0,
        &request.compute.0,
        &request.preempted.0,
        &request.together,
        &request.processor,
        &input,
        &output,
    ]);
    rows.into_text()
}

/// Formats the rows of models, classes and all requests as CSV, platform by platform.
pub fn render_models_csv(reports: &[ServeReport]) -> String {
    let mut rows = CsvRows::new(
        "platform,name,kind,arrived,completed,throughput_per_s,offered_load,mean_ps,mean_plus_minus_ps,p50_ps,p50_plus_minus_ps,p90_ps,p90_plus_minus_ps,p95_ps,p95_plus_minus_ps,p99_ps,p99_plus_minus_ps,alone_ps,datapath_sum_ps,queue_sum_ps,compute_sum_ps,preempted_sum_ps,serve_sum_ps,attained,goodput_per_s",
    );
    for report in reports {
        let platform = report.platform.as_ref();
        let platform = platform.map_or("", |platform| platform.name.as_str());
        for row in &report.rows {
            rows.add_row_of_cells(row_cells(platform, report, row));
        }
    }
    rows.into_text()
}

/// Formats, as CSV, the number of requests in the queue and in the system over time. There is one row per interval,
/// platform by platform.
pub fn render_request_counts_over_time_csv(reports: &[ServeReport]) -> String {
    let mut rows = CsvRows::new("platform,start_ps,end_ps,queued_mean,in_system_mean");
    for report in reports {
        let platform = report.platform.as_ref();
        let platform = platform.map_or("", |platform| platform.name.as_str());
        // Both curves (queued requests and active requests) have the same window and intervals of
        // equal length.
        let width = report.active.interval_ps.0;
        let means = report.queue.means.iter().zip(&report.active.means);
        for (i, (queued, active)) in (0..).zip(means) {
            let (start, end) = (i * width, (i + 1) * width);
            let end = end.min(report.window.0);
            rows.add_row(&[&platform, &start, &end, queued, active]);
        }
    }
    rows.into_text()
}

fn row_cells(platform: &str, report: &ServeReport, row: &RequestGroupResultsRow) -> Vec<String> {
    let optional = |value: Option<String>| value.unwrap_or_default();
    let kind = format!("{:?}", row.kind).to_lowercase();
    let load = report.offered_load.map(|load| load.to_string());
    let mut cells = vec![
        platform.to_owned(),
        row.name.clone(),
        kind,
        row.arrived.to_string(),
        row.completed.to_string(),
        row.throughput_per_s.to_string(),
        optional(load),
    ];
    let mut estimate = |estimate: Option<&IntervalEstimate>| {
        cells.push(optional(estimate.map(|one| one.value.0.to_string())));
        let half = estimate.and_then(|one| one.plus_minus);
        cells.push(optional(half.map(|half| half.0.to_string())));
    };
    estimate(row.mean.as_ref());
    (0..4).for_each(|i| estimate(row.percentiles.get(i)));
    cells.push(optional(row.alone.map(|alone| alone.0.to_string())));
    let sums = row
        .parts
        .parts_without_sum()
        .into_iter()
        .chain([row.parts.serve_ps]);
    cells.extend(sums.map(|sum| sum.0.to_string()));
    cells.push(optional(row.attained.map(|share| share.to_string())));
    cells.push(optional(row.goodput_per_s.map(|rate| rate.to_string())));
    cells
}
