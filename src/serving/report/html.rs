//! Renders a report as an HTML page, which is one file that works offline.

use super::compare::{ArrivalRateSweepResults, is_model_row};
use super::text::{format_or_dash, format_rate, row_name};
use super::{CountOverTimeSummary, RequestGroupResultsRow, ServeReport};
use chakram_base::units::{Span, format_percent};
use chakram_report::draw::bars::{self, BarPart, BarRow};
use chakram_report::draw::lines::{self, StepChartLine};
use chakram_report::draw::scatter::{
    LogarithmicOrAutomaticScale, ScatterChart, ScatterPoint, ScatterPolyline,
};
use chakram_report::html::page::{
    escape_html, render_figure, render_number_with_json_pointer, render_page,
    render_section_unless_empty, render_table_of_escaped_cells,
};

/// Parts of a serve time: the index of the colour, and the name that pages show.
const PARTS: [(usize, &str); 4] = [
    (4, "datapath"),
    (1, "queue"),
    (0, "compute"),
    (6, "preempted"),
];

/// Renders all `reports` side by side, then each report by itself, and then the runs at several
/// rates.
pub fn render_html(
    title: &str,
    reports: &[ServeReport],
    sweeps: &[ArrivalRateSweepResults],
) -> String {
    let mut body = format!("<h1>{}</h1>", escape_html(title));
    body += &render_section_unless_empty(
        "Latency against load",
        "rates",
        &draw_times_against_rates(sweeps),
    );
    if reports.len() > 1 {
        body += &render_section_unless_empty(
            "Platforms",
            "platforms",
            &render_platform_comparison(reports),
        );
    }
    for (i, report) in reports.iter().enumerate() {
        body += &render_report(report, i);
    }
    body += &format!("<footer>chakram {}</footer>", env!("CARGO_PKG_VERSION"));
    render_page(title, &body)
}

fn render_duration(path: &str, value: Span) -> String {
    render_number_with_json_pointer(path, value.0, &value.to_string())
}

fn render_report(report: &ServeReport, i: usize) -> String {
    let path = |rest: &str| format!("/reports/{i}/{rest}");
    let platform = report.platform.as_ref();
    let heading = platform.map_or("Serving", |platform| platform.name.as_str());
    let mut body = format!(
        "<p class=\"sub\">{}; {}; {}; {} requests complete, window {}, cores busy {}{}</p>",
        escape_html(&report.arrivals),
        escape_html(&report.policy),
        escape_html(&report.stop),
        render_number_with_json_pointer(
            &path("completed"),
            report.completed,
            &report.completed.to_string()
        ),
        render_duration(&path("window_ps"), report.window),
        format_percent(report.mean_utilisation()),
        report.offered_load.map_or(String::new(), |load| {
            let load =
                render_number_with_json_pointer(&path("offered_load"), load, &format!("{load:.3}"));
            format!(", rho {load}")
        })
    );
    for warning in &report.warnings {
        body += &format!("<p><strong>{}</strong></p>", escape_html(warning));
    }
    let rows = report.rows.iter().enumerate().map(|(at, row)| {
        let path = |rest: &str| path(&format!("rows/{at}/{rest}"));
        let mean = row
            .mean
            .map(|mean| render_duration(&path("mean/value_ps"), mean.value));
        let half = row.mean.and_then(|mean| mean.plus_minus);
        let half = half.map(|half| render_duration(&path("mean/plus_minus_ps"), half));
        let mut cells = vec![
            escape_html(&row_name(row)),
            render_number_with_json_pointer(
                &path("completed"),
                row.completed,
                &row.completed.to_string(),
            ),
            render_number_with_json_pointer(
                &path("throughput_per_s"),
                row.throughput_per_s,
                &format_rate(row.throughput_per_s),
            ),
            mean.unwrap_or_default(),
            half.unwrap_or_default(),
        ];
        for k in 0..4 {
            let estimate = row.percentiles.get(k);
            let value = estimate
                .map(|one| render_duration(&path(&format!("percentiles/{k}/value_ps")), one.value));
            cells.push(value.unwrap_or_default());
        }
        cells.push(format_or_dash(row.attained.map(format_percent)));
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
    body += &render_table_of_escaped_cells(&headings, &rows.collect::<Vec<_>>());
    body += &draw_serve_time_parts(report);
    body += &draw_request_counts(report);
    render_section_unless_empty(&escape_html(heading), &format!("run{i}"), &body)
}

/// Renders three comparisons of the platforms: each model's mean serve time, the fractions within limits, and the queue
/// over time.
fn render_platform_comparison(reports: &[ServeReport]) -> String {
    let models = |report: &'_ ServeReport| -> Vec<RequestGroupResultsRow> {
        let rows = report.rows.iter();
        rows.filter(|row| is_model_row(row.kind) && row.completed > 0)
            .cloned()
            .collect()
    };
    let names: Vec<&str> = reports.iter().map(platform_name).collect();
    let first = reports.iter().map(models).max_by_key(Vec::len);
    let mut bars = Vec::new();
    for model in first.unwrap_or_default() {
        for (report, name) in reports.iter().zip(&names) {
            let row = models(report)
                .into_iter()
                .find(|row| row.name == model.name);
            bars.extend(row.map(|row| BarRow {
                label: format!("{}, {name}", row.name),
                parts: mean_serve_time_bar_parts(&row),
            }));
        }
    }
    let mut body = draw_time_part_bars("Mean serve time by model and platform", &bars);
    let rows = reports.iter().zip(&names).map(|(report, name)| {
        let all = report.row_of_all_models();
        let last = all.and_then(|all| all.percentiles.last());
        vec![
            escape_html(name),
            format_or_dash(all.and_then(|all| all.mean).map(|mean| mean.value)),
            format_or_dash(last.map(|one| one.value)),
            format_or_dash(all.and_then(|all| all.attained).map(format_percent)),
            format_or_dash(all.and_then(|all| all.goodput_per_s).map(format_rate)),
            format_percent(report.mean_utilisation()),
            format_or_dash(report.offered_load.map(|load| format!("{load:.3}"))),
        ]
    });
    let heads = [
        "platform",
        "mean",
        "p99",
        "within limit",
        "goodput /s",
        "cores busy",
        "rho",
    ];
    body += &render_table_of_escaped_cells(&heads, &rows.collect::<Vec<_>>());
    let queues = reports.iter().zip(&names).map(|(report, name)| {
        let label = format!("{name}, {}", report.policy);
        mean_level_chart_line(&label, &report.queue)
    });
    let queues: Vec<_> = queues.collect();
    let end = reports.iter().map(|report| report.window.0).max();
    let chart = lines::draw_lines(
        "Queued requests over time",
        &queues,
        (end.unwrap_or(0), None),
        (&|ps| Span(ps as u64).to_string(), &format_thousandths),
    );
    let legend: Vec<_> = queues.iter().map(|one| &*one.label).enumerate().collect();
    body + &render_figure(
        &chart,
        &assign_legend_colours(&legend),
        "Mean number of requests in the queue.",
    )
}

/// Assigns colours to the entries of a legend; colours repeat if there are more entries than
/// colours.
fn assign_legend_colours<'a>(legend: &[(usize, &'a str)]) -> Vec<(usize, &'a str)> {
    legend
        .iter()
        .map(|(series, name)| (series % 8, *name))
        .collect()
}

fn platform_name(report: &ServeReport) -> &str {
    let platform = report.platform.as_ref();
    platform.map_or("processors", |platform| &platform.name)
}

/// Returns the parts of a row's mean serve time.
fn mean_serve_time_bar_parts(row: &RequestGroupResultsRow) -> Vec<BarPart> {
    let parts = PARTS
        .iter()
        .zip(row.parts.parts_without_sum())
        .map(|((series, key), sum)| {
            let mean = row.mean_part_time(sum);
            BarPart {
                series: *series,
                key,
                value: mean.0,
                title: format!("{}: {key} {mean}", row.name),
            }
        });
    parts.collect()
}

/// Draws mean serve times as stacked bars; empty if there are no bars.
fn draw_time_part_bars(name: &str, bars: &[BarRow]) -> String {
    let length = |bar: &BarRow| bar.parts.iter().map(|part| part.value).sum::<u64>();
    let Some(most) = bars.iter().map(length).max() else {
        return String::new();
    };
    let chart = bars::draw_bars(name, bars, most, &|ps| Span(ps as u64).to_string());
    render_figure(&chart, &PARTS, &format!("{name}; parts sum to it."))
}

/// Draws each model's mean serve time, divided into its parts.
fn draw_serve_time_parts(report: &ServeReport) -> String {
    let rows = report.rows.iter();
    let models = rows.filter(|row| is_model_row(row.kind) && row.completed > 0);
    let bars = models.map(|row| BarRow {
        label: row.name.clone(),
        parts: mean_serve_time_bar_parts(row),
    });
    draw_time_part_bars("Mean serve time of each model", &bars.collect::<Vec<_>>())
}

/// Returns a line through each interval's mean level. Charts need integers, so values are in thousandths of a request.
fn mean_level_chart_line(label: &str, level: &CountOverTimeSummary) -> StepChartLine {
    let means = (0_u64..).zip(&level.means);
    let points = means.map(|(i, mean)| (i * level.interval_ps.0, (mean * 1000.0).round() as u64));
    StepChartLine {
        label: label.to_owned(),
        points: points.collect(),
    }
}

fn format_thousandths(value: f64) -> String {
    format!("{}", value / 1000.0)
}

/// Draws the numbers of queued and of active requests over time.
fn draw_request_counts(report: &ServeReport) -> String {
    let all = [
        mean_level_chart_line("in the system", &report.active),
        mean_level_chart_line("queued", &report.queue),
    ];
    let chart = lines::draw_lines(
        "Requests over time",
        &all,
        (report.window.0, None),
        (&|ps| Span(ps as u64).to_string(), &format_thousandths),
    );
    let caption = format!(
        "Mean number of requests in intervals of {}.",
        report.active.interval_ps
    );
    render_figure(&chart, &[(0, "in the system"), (1, "queued")], &caption)
}

/// A curve against the request rate: the name of the plotted quantity, and a function that returns its value if known.
type RateCurveNameAndValueFunction = (&'static str, fn(&RequestGroupResultsRow) -> Option<Span>);

const CURVES: [RateCurveNameAndValueFunction; 3] = [
    ("mean", |all| all.mean.map(|mean| mean.value)),
    ("p50", |all| all.percentiles.first().map(|one| one.value)),
    ("p99", |all| all.percentiles.get(3).map(|one| one.value)),
];

/// Colour indices of the curves if there is only one platform.
const CURVE_SERIES: [usize; 3] = [0, 1, 6];

/// Plots serve times against the request rate. A single platform has three curves in one chart.
/// Several platforms share two charts, one for the mean and one for the last percentile, with one
/// curve per platform.
fn draw_times_against_rates(sweeps: &[ArrivalRateSweepResults]) -> String {
    let mut body = String::new();
    let several = sweeps.len() > 1;
    let charts: &[&[RateCurveNameAndValueFunction]] = match several {
        true => &[&CURVES[..1], &CURVES[2..]],
        false => &[&CURVES],
    };
    for curves in charts {
        let (mut points, mut drawn, mut legend) = (Vec::new(), Vec::new(), Vec::new());
        for (i, sweep) in sweeps.iter().enumerate() {
            for ((curve, of), own) in curves.iter().zip(CURVE_SERIES) {
                let (series, name) = match several {
                    true => (i % 8, sweep.platform_name().to_owned()),
                    false => (own, (*curve).to_owned()),
                };
                let line = build_curve_over_rates(sweep, *of, series, &name);
                points.extend(line.way.iter().map(|(x, y)| ScatterPoint {
                    x: *x,
                    y: *y,
                    series,
                    title: format!(
                        "{name}: {curve} {} at {} requests/s",
                        Span(*y as u64),
                        format_rate(*x)
                    ),
                }));
                drawn.push(line);
                legend.push((series, name));
            }
        }
        if points.is_empty() {
            continue;
        }
        let slo = sweeps
            .iter()
            .flat_map(|sweep| &sweep.points)
            .find_map(|point| point.report.slo);
        let what = match curves {
            [(one, _)] => format!("serve time, {one}"),
            _ => "serve time".to_owned(),
        };
        let chart = ScatterChart {
            name: &format!("{what} against arrivals per second"),
            axes: ("requests per second", &what),
            scales: (
                LogarithmicOrAutomaticScale::Fitting,
                LogarithmicOrAutomaticScale::Logarithmic,
            ),
            points: &points,
            lines: &drawn,
            limit: slo.map(|slo| (slo.0 as f64, format!("limit {slo}"))),
            ..ScatterChart::default()
        };
        let chart = chart.draw_chart((&|x| format_rate(x), &|ps| Span(ps as u64).to_string()));
        let legend: Vec<_> = legend
            .iter()
            .map(|(series, name)| (*series, &**name))
            .collect();
        body += &render_figure(&chart, &legend, "");
    }
    for sweep in sweeps {
        let Some(capacity) = sweep.capacity else {
            continue;
        };
        let line = format!(
            "{}: {} requests/s are served with {} within their limit.",
            sweep.platform_name(),
            format_rate(capacity.rate_per_s),
            format_percent(capacity.attain)
        );
        body += &format!("<p>{}</p>", escape_html(&line));
    }
    body + &render_rate_table(sweeps)
}

/// Returns a quantity's curve through the rates at which it is known.
fn build_curve_over_rates(
    sweep: &ArrivalRateSweepResults,
    of: fn(&RequestGroupResultsRow) -> Option<Span>,
    series: usize,
    name: &str,
) -> ScatterPolyline {
    let way = sweep.points.iter().filter_map(|point| {
        let time = of(point.report.row_of_all_models()?)?;
        (time > Span::ZERO).then_some((point.rate_per_s, time.0 as f64))
    });
    ScatterPolyline {
        name: name.to_owned(),
        series,
        way: way.collect(),
    }
}

/// Renders the values of the rate charts as a table.
fn render_rate_table(sweeps: &[ArrivalRateSweepResults]) -> String {
    let mut rows = Vec::new();
    for sweep in sweeps {
        for point in &sweep.points {
            let Some(all) = point.report.row_of_all_models() else {
                continue;
            };
            let mut cells = vec![
                escape_html(sweep.platform_name()),
                format_rate(point.rate_per_s),
                format_or_dash(point.report.offered_load.map(|load| format!("{load:.3}"))),
                format_rate(all.throughput_per_s),
            ];
            cells.extend(CURVES.iter().map(|(_, of)| format_or_dash(of(all))));
            cells.push(format_or_dash(all.attained.map(format_percent)));
            rows.push(cells);
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let heads = [
        "platform",
        "arrivals /s",
        "rho",
        "done /s",
        "mean",
        "p50",
        "p99",
        "within limit",
    ];
    render_table_of_escaped_cells(&heads, &rows)
}
