//! The report as a page: one file that needs no network and no script.
//!
//! Numbers that the report has carry its JSON pointer and the value, `data-path` and `data-value`, so that programs
//! can hold a page against the JSON.

pub mod page;
mod resources;
mod sections;

pub use sections::time_bars;

use super::Report;
use super::summary::percent_more;
use super::throughput;
use chakram_base::units::{Span, percent, percent_change};
use page::{number, text};

/// Renders `report` of a replay described by `title` and `basis`.
pub fn render(report: &Report, title: &str, basis: &str) -> String {
    let mut body = head(report, title, basis);
    body += &sections::warnings(report);
    body += &sections::breakdown(report);
    body += &sections::timeline(report);
    body += &sections::critical_path(report);
    body += &resources::memory(report);
    body += &resources::collectives(report);
    body += &resources::traffic(report);
    body += &resources::steps(report);
    body += &resources::modules(report);
    body += &resources::operators(report);
    let version = report.provenance.as_ref();
    let version = version.map_or(String::new(), |of| format!("chakram {}, ", of.tool_version));
    body += &format!(
        "<footer>{}network model: {}</footer>",
        text(&version),
        text(report.network.as_deref().unwrap_or("none"))
    );
    page::page(title, &body)
}

/// The makespan and what follows from it.
fn head(report: &Report, title: &str, basis: &str) -> String {
    let outcome = &report.outcome;
    let mut tiles = vec![tile(
        "Makespan",
        &span("/makespan_ps", outcome.makespan),
        &text(&format!("{basis}{}", report.bound_text())),
    )];
    if let Some(captured) = report.captured {
        let more = percent_more(outcome.makespan, captured);
        let more = more.map_or(String::new(), |more| {
            format!("replay {}", percent_change(more))
        });
        tiles.push(tile("Captured", &span("/captured_ps", captured), &more));
    }
    if let Some((profiler, without)) = report
        .profiler
        .as_ref()
        .and_then(|of| Some((of, of.without?)))
    {
        let at = |key: &str, value: Span| span(&format!("/profiler/{key}"), value);
        let ends = without.low.zip(without.high);
        let ends = ends.map_or_else(String::new, |(low, high)| {
            let (low, high) = (at("without/low_ps", low), at("without/high_ps", high));
            format!("{low} to {high} in nine of ten cases; ")
        });
        let with = profiler.with.unwrap_or(outcome.makespan);
        let beside = format!("{ends}with it {}", at("makespan_with_ps", with));
        tiles.push(tile(
            "Without profiler",
            &at("without/makespan_ps", without.makespan),
            &beside,
        ));
    }
    if let Some(line) = report.unknown_line() {
        tiles.push(tile("Not known", &text(&line), ""));
    }
    if let Some(on) = &report.captured_on {
        tiles.push(tile("Captured on", &text(&on.line()), ""));
    }
    if let Some(rates) = &report.throughput {
        let rate = |path: &str, value: f64| number(path, value, &throughput::rate(value));
        if let (Some(all), Some(one)) = (rates.tokens_per_s, rates.tokens_per_s_per_npu) {
            let beside = format!("{} per NPU", rate("/throughput/tokens_per_s_per_npu", one));
            tiles.push(tile(
                "Tokens/s",
                &rate("/throughput/tokens_per_s", all),
                &beside,
            ));
        }
        let samples = rate("/throughput/samples_per_s", rates.samples_per_s);
        tiles.push(tile("Samples/s", &samples, ""));
        let share = |path: &str, part: f64| number(path, part, &percent(part));
        let counted = rates.attention.map_or(String::new(), |counted| {
            format!(", {} attention", counted.word())
        });
        if let Some(mfu) = rates.mfu {
            let beside = format!("{}{counted}", throughput::MFU);
            tiles.push(tile("MFU", &share("/throughput/mfu", mfu), &beside));
        }
        if let Some(hfu) = rates.hfu {
            let beside = format!("{}{counted}", throughput::HFU);
            tiles.push(tile("HFU", &share("/throughput/hfu", hfu), &beside));
        }
    }
    let present = report.rows.len();
    format!(
        "<h1>{}</h1><p class=\"sub\">{present} of {} ranks, {} nodes, all completed, on {} ({} NPUs)</p>\
         <div class=\"tiles\">{}</div>",
        text(title),
        number("/ranks", report.ranks, &report.ranks.to_string()),
        number(
            "/nodes",
            outcome.nodes,
            &super::summary::thousands(outcome.nodes)
        ),
        text(&report.machine.name),
        report.machine.npus,
        tiles.concat()
    )
}

fn tile(name: &str, value: &str, beside: &str) -> String {
    format!("<div class=\"tile\"><span>{name}</span><b>{value}</b><small>{beside}</small></div>")
}

/// A time of the report.
fn span(path: &str, value: Span) -> String {
    number(path, value.0, &value.to_string())
}

/// A time of an axis, in picoseconds.
fn axis_time(ps: f64) -> String {
    Span(ps as u64).to_string()
}
