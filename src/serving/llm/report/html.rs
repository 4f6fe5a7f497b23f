//! Renders a report as an HTML page: one file that works offline.

use super::text::{format_gigabytes, format_rate};
use super::{LlmReport, RequestTimeMeanAndPercentiles};
use crate::statistics::CountOverTimeSummary;
use chakram_base::units::{Span, format_percent, format_thousands};
use chakram_report::draw::bars::{self, BarPart, BarRow};
use chakram_report::draw::lines::{self, StepChartLine};
use chakram_report::html::page::{
    escape_html, render_figure, render_number_with_json_pointer, render_page,
    render_section_unless_empty, render_table_of_escaped_cells,
};

/// Renders `report`.
pub fn render_html(report: &LlmReport) -> String {
    let title = match &report.place {
        Some(place) => format!("{} on {}", place.model, place.machine),
        None => report.scenario.clone(),
    };
    let mut body = format!("<h1>{}</h1>", escape_html(&title));
    body += &format!(
        "<p class=\"sub\">{}; {}</p>",
        escape_html(&report.arrivals),
        escape_html(&report.classes.join("; "))
    );
    for warning in &report.warnings {
        body += &format!("<p><strong>{}</strong></p>", escape_html(warning));
    }
    body += &render_section_unless_empty("Answer", "answer", &render_throughput_and_limits(report));
    body +=
        &render_section_unless_empty("Times of requests", "times", &render_request_times(report));
    body += &render_section_unless_empty("Requests", "requests", &draw_slowest_requests(report));
    body +=
        &render_section_unless_empty("Over time", "over-time", &render_counts_over_time(report));
    body += &render_section_unless_empty("Steps", "steps", &render_step_statistics(report));
    body += &render_section_unless_empty("Engines", "engines", &render_engine_memory(report));
    body += &format!("<footer>chakram {}</footer>", env!("CARGO_PKG_VERSION"));
    render_page(&title, &body)
}

fn render_throughput_and_limits(report: &LlmReport) -> String {
    let speed = &report.throughput;
    let mut rows = vec![
        vec![
            escape_html("output tokens/s"),
            render_number_with_json_pointer(
                "/throughput/output_tokens_per_s",
                speed.output_tokens_per_s,
                &format_rate(speed.output_tokens_per_s),
            ),
        ],
        vec![
            escape_html("requests/s"),
            render_number_with_json_pointer(
                "/throughput/requests_per_s",
                speed.requests_per_s,
                &format_rate(speed.requests_per_s),
            ),
        ],
    ];
    if let Some(each) = speed.output_tokens_per_s_per_npu {
        let path = "/throughput/output_tokens_per_s_per_npu";
        rows.push(vec![
            escape_html("output tokens/s and NPU"),
            render_number_with_json_pointer(path, each, &format_rate(each)),
        ]);
    }
    if let Some(rho) = report.rho {
        rows.push(vec![
            escape_html("rho"),
            render_number_with_json_pointer("/rho", rho, &format!("{rho:.3}")),
        ]);
    }
    let last = report.rows.len().saturating_sub(1);
    if let Some((attained, goodput)) = report
        .row_of_all_classes()
        .and_then(|all| all.attained.zip(all.goodput_per_s))
    {
        let path = format!("/rows/{last}/attained");
        let name = format!("within {}", report.describe_limits_on_all_requests());
        rows.push(vec![
            escape_html(&name),
            render_number_with_json_pointer(&path, attained, &format_percent(attained)),
        ]);
        let path = format!("/rows/{last}/goodput_per_s");
        rows.push(vec![
            escape_html("goodput, requests/s"),
            render_number_with_json_pointer(&path, goodput, &format_rate(goodput)),
        ]);
    }
    if let Some(hits) = report.cache.hit_rate {
        rows.push(vec![
            escape_html("prompt tokens that were known"),
            render_number_with_json_pointer("/cache/hit_rate", hits, &format_percent(hits)),
        ]);
    }
    rows.push(vec![
        escape_html("requests put back"),
        render_number_with_json_pointer(
            "/preemptions",
            report.preemptions,
            &format_thousands(report.preemptions),
        ),
    ]);
    render_table_of_escaped_cells(&["", ""], &rows)
}

fn render_duration_as_report_number(path: &str, value: Span) -> String {
    render_number_with_json_pointer(path, value.0, &value.to_string())
}

fn render_request_times(report: &LlmReport) -> String {
    let mut rows = Vec::new();
    for (at, row) in report.rows.iter().enumerate() {
        let kinds: [(&str, &str, &RequestTimeMeanAndPercentiles); 4] = [
            ("TTFT", "ttft", &row.ttft),
            ("TPOT", "tpot", &row.tpot),
            ("E2E", "e2e", &row.e2e),
            ("queue", "queue", &row.queue),
        ];
        for (name, key, times) in kinds {
            let path = |rest: &str| format!("/rows/{at}/{key}/{rest}");
            let mut cells = vec![escape_html(&format!("{} {name}", row.name))];
            let mean = times
                .mean
                .map(|mean| render_duration_as_report_number(&path("mean/value_ps"), mean.value));
            cells.push(mean.unwrap_or_default());
            for k in 0..super::PERCENTS.len() {
                let value = times.percentiles.get(k);
                let value = value.map(|one| {
                    render_duration_as_report_number(
                        &path(&format!("percentiles/{k}/value_ps")),
                        one.value,
                    )
                });
                cells.push(value.unwrap_or_default());
            }
            rows.push(cells);
        }
    }
    let gaps = &report.itl;
    let mut cells = vec![escape_html("ITL, all gaps")];
    cells.push(
        gaps.mean
            .map(|mean| render_duration_as_report_number("/itl/mean_ps", mean))
            .unwrap_or_default(),
    );
    for k in 0..super::PERCENTS.len() {
        let value = gaps.percentiles.get(k).map(|value| {
            render_duration_as_report_number(&format!("/itl/percentiles_ps/{k}"), *value)
        });
        cells.push(value.unwrap_or_default());
    }
    rows.push(cells);
    let mut body = render_table_of_escaped_cells(&["", "mean", "p50", "p90", "p95", "p99"], &rows);
    if let Some(all) = report.row_of_all_classes() {
        body += &draw_percentile_bars("Distribution of times to first token", &all.ttft);
        body += &draw_percentile_bars("Distribution of the time of each further token", &all.tpot);
    }
    body
}

/// Draws the slowest requests. Each line covers the time from when the client sends the request
/// until the last token.
fn draw_slowest_requests(report: &LlmReport) -> String {
    let phases = [
        "to the engine",
        "in the queue",
        "prompt",
        "answer",
        "to the client",
    ];
    let bars: Vec<BarRow> = report
        .lives
        .iter()
        .map(|life| {
            let mut before = Span::ZERO;
            let mut spans = life.until.map(|until| {
                let span = Span(until.0 - before.0);
                before = until;
                span
            });
            // A preempted request waits again. Steps then recompute its prompt and the answer tokens produced so far.
            let parts = phases
                .iter()
                .zip(spans.iter_mut().map(|span| *span).chain([life.after]));
            BarRow {
                label: format!("request {}, {}", life.number, life.why),
                parts: parts
                    .enumerate()
                    .map(|(series, (phase, span))| BarPart {
                        series,
                        key: phase,
                        value: span.0,
                        title: format!("{phase}: {span}"),
                    })
                    .collect(),
            }
        })
        .collect();
    let ends = report
        .lives
        .iter()
        .map(|life| life.until[3].0 + life.after.0);
    let Some(most) = ends.max() else {
        return String::new();
    };
    let legend: Vec<(usize, &str)> = phases.into_iter().enumerate().collect();
    let name = "The slowest requests";
    let chart = bars::draw_bars(name, &bars, most, &|ps| Span(ps as u64).to_string());
    let rows: Vec<Vec<String>> = report
        .lives
        .iter()
        .enumerate()
        .map(|(i, life)| {
            let path = |key: &str| format!("/lives/{i}/{key}");
            vec![
                escape_html(&format!("request {}, {}", life.number, life.why)),
                render_number_with_json_pointer(
                    &path("engine"),
                    life.engine,
                    &life.engine.to_string(),
                ),
                render_number_with_json_pointer(
                    &path("prompt"),
                    life.prompt,
                    &format_thousands(life.prompt.into()),
                ),
                render_number_with_json_pointer(
                    &path("hit"),
                    life.hit,
                    &format_thousands(life.hit.into()),
                ),
                render_number_with_json_pointer(
                    &path("output"),
                    life.output,
                    &format_thousands(life.output.into()),
                ),
                render_number_with_json_pointer(
                    &path("preemptions"),
                    life.preemptions,
                    &life.preemptions.to_string(),
                ),
            ]
        })
        .collect();
    let headings = ["", "engine", "prompt", "of it cached", "answer", "put back"];
    render_figure(&chart, &legend, "From sending to the last token.")
        + &render_table_of_escaped_cells(&headings, &rows)
}

/// Draws percentiles as bars.
fn draw_percentile_bars(name: &str, times: &RequestTimeMeanAndPercentiles) -> String {
    let all = super::PERCENTS.iter().zip(&times.percentiles);
    let bars: Vec<BarRow> = all
        .map(|(percent, one)| BarRow {
            label: format!("p{percent}"),
            parts: vec![BarPart {
                series: 0,
                key: "time",
                value: one.value.0,
                title: format!("p{percent}: {}", one.value),
            }],
        })
        .collect();
    let Some(most) = times.percentiles.iter().map(|one| one.value.0).max() else {
        return String::new();
    };
    let chart = bars::draw_bars(name, &bars, most, &|ps| Span(ps as u64).to_string());
    render_figure(&chart, &[], name)
}

fn level_series(label: &str, of: &CountOverTimeSummary) -> StepChartLine {
    let means = (0_u64..).zip(&of.means);
    StepChartLine {
        label: label.to_owned(),
        points: means
            .map(|(i, mean)| (i * of.interval_ps.0, (mean * 1000.0).round() as u64))
            .collect(),
    }
}

fn render_counts_over_time(report: &LlmReport) -> String {
    let end = report.window.0;
    let time = |ps: f64| Span(ps as u64).to_string();
    let thousandths = |value: f64| format!("{}", value / 1000.0);
    let all = [
        level_series("running", &report.running),
        level_series("waiting", &report.waiting),
    ];
    let chart = lines::draw_lines(
        "Requests over time",
        &all,
        (end, None),
        (&time, &thousandths),
    );
    let caption = format!(
        "Mean number of requests in intervals of {}.",
        report.running.interval_ps
    );
    let mut body = render_figure(&chart, &[(0, "running"), (1, "waiting")], &caption);
    let blocks = [level_series("held", &report.held_blocks)];
    // `utilisation` has one value per rank, so its length is the number of ranks in all engines.
    let all = u64::from(report.blocks) * report.utilisation.len() as u64;
    let chart = lines::draw_lines(
        "Blocks of keys and values over time",
        &blocks,
        (end, None),
        (&time, &thousandths),
    );
    body += &render_figure(
        &chart,
        &[(0, "held")],
        &format!("Blocks that requests hold, of {}.", format_thousands(all)),
    );
    let counts = &report.tokens_over_time;
    let seconds = counts.interval_ps.as_seconds();
    let points = (0_u64..).zip(&counts.counts);
    let points = points.map(|(i, count)| {
        let per_second = if seconds > 0.0 {
            *count as f64 / seconds
        } else {
            0.0
        };
        (i * counts.interval_ps.0, per_second.round() as u64)
    });
    let series = [StepChartLine {
        label: "tokens/s".to_owned(),
        points: points.collect(),
    }];
    let whole = |value: f64| format_thousands(value.round() as u64);
    let chart = lines::draw_lines(
        "Tokens that steps compute per second",
        &series,
        (end, None),
        (&time, &whole),
    );
    body + &render_figure(&chart, &[(0, "tokens/s")], "Prompts and answers together.")
}

fn render_step_statistics(report: &LlmReport) -> String {
    let steps = &report.steps;
    let mut rows = vec![
        vec![
            escape_html("steps"),
            render_number_with_json_pointer(
                "/steps/count",
                steps.count,
                &format_thousands(steps.count),
            ),
        ],
        vec![
            escape_html("mean time"),
            render_duration_as_report_number("/steps/mean_ps", steps.mean),
        ],
        vec![
            escape_html("longest"),
            render_duration_as_report_number("/steps/most_ps", steps.most),
        ],
        vec![
            escape_html("tokens, mean"),
            render_number_with_json_pointer(
                "/steps/mean_tokens",
                steps.mean_tokens,
                &format!("{:.1}", steps.mean_tokens),
            ),
        ],
    ];
    for (i, part) in steps
        .parts
        .iter()
        .enumerate()
        .filter(|(_, part)| part.share > 0.0)
    {
        let path = format!("/steps/parts/{i}/share");
        rows.push(vec![
            escape_html(&format!("of the time, {}", part.part)),
            render_number_with_json_pointer(&path, part.share, &format_percent(part.share)),
        ]);
    }
    render_table_of_escaped_cells(&["", ""], &rows)
}

fn render_engine_memory(report: &LlmReport) -> String {
    let mut body = String::new();
    if let Some(place) = &report.place {
        let memory = &place.memory;
        let rows: Vec<Vec<String>> = [
            ("memory of an NPU", "memory", memory.memory),
            ("of which an engine may take", "usable", memory.usable),
            ("weights", "weights", memory.weights),
            ("activations and logits", "activations", memory.activations),
            ("context and graphs", "context", memory.context),
            ("left for keys and values", "left", memory.left),
        ]
        .iter()
        .map(|(name, key, bytes)| {
            vec![
                escape_html(name),
                render_number_with_json_pointer(
                    &format!("/place/memory/{key}"),
                    bytes,
                    &format_gigabytes(*bytes),
                ),
            ]
        })
        .collect();
        body += &render_table_of_escaped_cells(&["memory", ""], &rows);
        let rows: Vec<Vec<String>> = place
            .choices
            .iter()
            .enumerate()
            .map(|(i, choice)| {
                let path = format!("/place/choices/{i}/kv_tokens");
                let chosen = if choice.npus == place.tensor {
                    " (chosen)"
                } else {
                    ""
                };
                vec![
                    escape_html(&format!("{}{chosen}", choice.npus)),
                    render_number_with_json_pointer(
                        &path,
                        choice.kv_tokens,
                        &format_thousands(choice.kv_tokens),
                    ),
                    escape_html(if choice.fits { "fits" } else { "does not fit" }),
                ]
            })
            .collect();
        body += &render_table_of_escaped_cells(
            &["NPUs an engine", "tokens of keys and values", ""],
            &rows,
        );
    }
    let rows: Vec<Vec<String>> = report
        .rule_values
        .iter()
        .map(|rule| vec![escape_html(&rule.key), escape_html(&rule.value)])
        .collect();
    body += &render_table_of_escaped_cells(&["rule", "value"], &rows);
    let basis: Vec<String> = report
        .basis
        .iter()
        .map(|line| format!("<li>{}</li>", escape_html(line)))
        .collect();
    body + &format!("<ul>{}</ul>", basis.join(""))
}
