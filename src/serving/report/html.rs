//! A report as a page: one file that needs no network and no script.

use super::compare::{RateSweep, is_model};
use super::text::{name, or_dash, rate};
use super::{ServeReport, TimeSum};
use chakram_base::units::{Span, percent};
use chakram_report::draw::bars::{self, BarPart, BarRow};
use chakram_report::draw::lines::{self, LineSeries};
use chakram_report::draw::scatter::{self, ScatterPoint};
use chakram_report::html::page::{figure, number, page, section, table, text};

/// Parts of a serve time, as pages name them.
const PARTS: [(usize, &str); 4] = [
    (4, "datapath"),
    (1, "queue"),
    (0, "compute"),
    (6, "preempted"),
];

/// Renders `reports`, one after another, and a sweep over rates if there is one.
pub fn render(title: &str, reports: &[ServeReport], sweep: Option<&RateSweep>) -> String {
    let mut body = format!("<h1>{}</h1>", text(title));
    if let Some(sweep) = sweep {
        body += &section("Latency against load", "rates", &rates(sweep));
    }
    for (i, report) in reports.iter().enumerate() {
        body += &one(report, i);
    }
    body += &format!("<footer>chakram {}</footer>", env!("CARGO_PKG_VERSION"));
    page(title, &body)
}

fn span(path: &str, value: Span) -> String {
    number(path, value.0, &value.to_string())
}

fn one(report: &ServeReport, i: usize) -> String {
    let path = |rest: &str| format!("/reports/{i}/{rest}");
    let platform = report.platform.as_ref();
    let heading = platform.map_or("Serving", |platform| platform.name.as_str());
    let mut body = format!(
        "<p class=\"sub\">{}; {}; {}; {} requests complete, window {}, cores busy {}{}</p>",
        text(&report.arrivals),
        text(&report.policy),
        text(&report.stop),
        number(
            &path("completed"),
            report.completed,
            &report.completed.to_string()
        ),
        span(&path("window_ps"), report.window),
        percent(report.mean_utilisation()),
        report.offered_load.map_or(String::new(), |load| {
            let load = number(&path("offered_load"), load, &format!("{load:.3}"));
            format!(", rho {load}")
        })
    );
    for warning in &report.warnings {
        body += &format!("<p><strong>{}</strong></p>", text(warning));
    }
    let rows = report.rows.iter().enumerate().map(|(at, row)| {
        let path = |rest: &str| path(&format!("rows/{at}/{rest}"));
        let mean = row
            .mean
            .map(|mean| span(&path("mean/value_ps"), mean.value));
        let half = row.mean.and_then(|mean| mean.plus_minus);
        let half = half.map(|half| span(&path("mean/plus_minus_ps"), half));
        let mut cells = vec![
            text(&name(row)),
            number(
                &path("completed"),
                row.completed,
                &row.completed.to_string(),
            ),
            number(
                &path("throughput_per_s"),
                row.throughput_per_s,
                &rate(row.throughput_per_s),
            ),
            mean.unwrap_or_default(),
            half.unwrap_or_default(),
        ];
        for k in 0..4 {
            let estimate = row.percentiles.get(k);
            let value =
                estimate.map(|one| span(&path(&format!("percentiles/{k}/value_ps")), one.value));
            cells.push(value.unwrap_or_default());
        }
        cells.push(or_dash(row.attained.map(percent)));
        cells
    });
    let headings = [
        "",
        "requests",
        "/s",
        "mean",
        "± 95 %",
        "p50",
        "p90",
        "p95",
        "p99",
        "within limit",
    ];
    body += &table(&headings, &rows.collect::<Vec<_>>());
    body += &parts(report);
    body += &levels(report);
    section(&text(heading), &format!("run{i}"), &body)
}

/// Draws the parts of mean serve times, by model.
fn parts(report: &ServeReport) -> String {
    let models = report
        .rows
        .iter()
        .filter(|row| is_model(row.kind) && row.completed > 0);
    let bars: Vec<BarRow> = models
        .map(|row| {
            let mean = |part: TimeSum| row.mean_part(part);
            let parts = &row.parts;
            let spans = [
                parts.datapath_ps,
                parts.queue_ps,
                parts.compute_ps,
                parts.preempted_ps,
            ];
            let parts = PARTS.iter().zip(spans).map(|((series, key), sum)| BarPart {
                series: *series,
                key,
                value: mean(sum).0,
                title: format!("{}: {key} {}", row.name, mean(sum)),
            });
            BarRow {
                label: row.name.clone(),
                parts: parts.collect(),
            }
        })
        .collect();
    let length = |bar: &BarRow| bar.parts.iter().map(|part| part.value).sum::<u64>();
    let Some(most) = bars.iter().map(length).max() else {
        return String::new();
    };
    let chart = bars::chart("Mean serve time by part", &bars, most, &|ps| {
        Span(ps as u64).to_string()
    });
    figure(&chart, &PARTS, "Mean serve time of each model, by part.")
}

/// Requests over time.
fn levels(report: &ServeReport) -> String {
    // Charts are of whole numbers: thousandths of requests.
    let series = |label: &str, level: &super::LevelSummary| LineSeries {
        label: label.to_owned(),
        points: (0_u64..)
            .zip(&level.means)
            .map(|(i, mean)| (i * level.interval_ps.0, (mean * 1000.0).round() as u64))
            .collect(),
    };
    let all = [
        series("in the system", &report.active),
        series("queued", &report.queue),
    ];
    let count = |value: f64| format!("{}", value / 1000.0);
    let chart = lines::chart(
        "Requests over time",
        &all,
        (report.window.0, None),
        (&|ps| Span(ps as u64).to_string(), &count),
    );
    let caption = format!(
        "Mean number of requests in intervals of {}.",
        report.active.interval_ps
    );
    figure(&chart, &[(0, "in the system"), (1, "queued")], &caption)
}

fn rates(sweep: &RateSweep) -> String {
    let mut points = Vec::new();
    for point in &sweep.points {
        let Some(all) = point.report.all() else {
            continue;
        };
        let values = [
            (0, "mean", all.mean.map(|mean| mean.value)),
            (1, "p50", all.percentiles.first().map(|one| one.value)),
            (6, "p99", all.percentiles.get(3).map(|one| one.value)),
        ];
        for (series, key, value) in values {
            if let Some(value) = value.filter(|value| value.0 > 0) {
                points.push(ScatterPoint {
                    x: point.rate_per_s,
                    y: value.0 as f64,
                    series,
                    title: format!("{key} {value} at {} requests/s", rate(point.rate_per_s)),
                });
            }
        }
    }
    if points.is_empty() {
        return String::new();
    }
    let chart = scatter::chart(
        "Serve time against arrivals per second",
        &points,
        ("requests per second", "serve time"),
        (&|x| rate(x), &|ps| Span(ps as u64).to_string()),
    );
    let caption = sweep.capacity.map_or(String::new(), |capacity| {
        format!(
            "{} requests/s are served with {} within their limit.",
            rate(capacity.rate_per_s),
            percent(capacity.attain)
        )
    });
    figure(&chart, &[(0, "mean"), (1, "p50"), (6, "p99")], &caption)
}
