//! Boxes with the key figures at the top of a page.

use super::page::{escape_html, render_number_with_json_pointer};
use super::render_report_time_with_pointer;
use crate::Report;
use crate::cost::collect_cost_figures;
use crate::memory::find_rank_with_highest_filled_share;
use crate::summary::{format_thousands, percent_more};
use crate::text::format_few_digits;
use crate::throughput;
use chakram_base::units::{Span, format_given_percent_change, format_percent};

/// Renders the boxes.
pub fn render_key_figure_boxes(report: &Report) -> String {
    let outcome = &report.outcome;
    let mut tiles = String::new();
    let mut tile = |name: &str, value: &str, beside: &str| {
        tiles += &format!(
            "<div class=\"tile\"><span>{name}</span><b>{value}</b><small>{beside}</small></div>"
        );
    };
    if let Some(whole) = &report.extrapolation {
        let at = |key: &str, value: Span| {
            render_report_time_with_pointer(&format!("/extrapolation/{key}"), value)
        };
        let beside = format!("± {}, extrapolated", at("error_ps", whole.error));
        tile("Step", &at("makespan_ps", whole.makespan), &beside);
    }
    let beside = match (&report.interval, report.is_lower_bound()) {
        (Some(interval), false) => format!(
            "90 %: {} to {}",
            render_report_time_with_pointer("/interval/low_ps", interval.low),
            render_report_time_with_pointer("/interval/high_ps", interval.high)
        ),
        (_, true) => "a lower bound".to_owned(),
        _ => String::new(),
    };
    let makespan = render_report_time_with_pointer("/makespan_ps", outcome.makespan);
    tile("Makespan", &makespan, &beside);
    if let Some(captured) = report.captured {
        let more = percent_more(outcome.makespan, captured);
        let more = more.map_or_else(String::new, |more| {
            format!("replay {}", format_given_percent_change(more))
        });
        tile(
            "Captured",
            &render_report_time_with_pointer("/captured_ps", captured),
            &more,
        );
    }
    let profiler = report.profiler.as_ref();
    if let Some((profiler, without)) = profiler.and_then(|of| Some((of, of.without?))) {
        let at = |key: &str, value: Span| {
            render_report_time_with_pointer(&format!("/profiler/{key}"), value)
        };
        let ends = without.low.zip(without.high);
        let ends = ends.map_or_else(String::new, |(low, high)| {
            let (low, high) = (at("without/low_ps", low), at("without/high_ps", high));
            format!("90 %: {low} to {high}; ")
        });
        let with = profiler.with.unwrap_or(outcome.makespan);
        let beside = format!("{ends}with it {}", at("makespan_with_ps", with));
        let makespan = at("without/makespan_ps", without.makespan);
        tile("Without profiler", &makespan, &beside);
    }
    if let Some(rates) = &report.throughput {
        let rate = |path: &str, value: f64| {
            render_number_with_json_pointer(path, value, &format_few_digits(value))
        };
        if let (Some(all), Some(one)) = (rates.tokens_per_s, rates.tokens_per_s_per_npu) {
            let beside = format!("{} per NPU", rate("/throughput/tokens_per_s_per_npu", one));
            tile("Tokens/s", &rate("/throughput/tokens_per_s", all), &beside);
        }
        let samples = rate("/throughput/samples_per_s", rates.samples_per_s);
        tile("Samples/s", &samples, "");
        let share = |path: &str, part: f64| {
            render_number_with_json_pointer(path, part, &format_percent(part))
        };
        let counted = rates.attention.map_or(String::new(), |counted| {
            format!(", {} attention", counted.stable_name())
        });
        if let Some(mfu) = rates.mfu {
            let beside = format!("{}{counted}", throughput::MFU);
            tile("MFU", &share("/throughput/mfu", mfu), &beside);
        }
        if let Some(hfu) = rates.hfu {
            let beside = format!("{}{counted}", throughput::HFU);
            tile("HFU", &share("/throughput/hfu", hfu), &beside);
        }
    }
    for (name, path, value, shown, beside) in collect_cost_figures(report) {
        tile(
            &name,
            &render_number_with_json_pointer(path, value, &shown),
            &beside,
        );
    }
    if let Some(row) = find_rank_with_highest_filled_share(&report.memory) {
        let at = report
            .memory
            .iter()
            .position(|other| other.rank == row.rank);
        let at = |field: &str| format!("/memory/npus/{}/{field}", at.unwrap_or(0));
        let peak =
            render_number_with_json_pointer(&at("peak_bytes"), row.peak.0, &row.peak.to_string());
        let of = row.capacity.map_or_else(String::new, |capacity| {
            let shown = capacity.to_string();
            format!(
                "of {}, ",
                render_number_with_json_pointer(&at("capacity_bytes"), capacity.0, &shown)
            )
        });
        let alarm = match row.fits {
            Some(false) => ", does not fit",
            _ => "",
        };
        tile(
            "Peak memory",
            &peak,
            &format!("{of}rank {}{alarm}", row.rank),
        );
    }
    let ranks = render_number_with_json_pointer(
        "/ranks",
        report.ranks,
        &format_thousands(report.ranks.into()),
    );
    let nodes =
        render_number_with_json_pointer("/nodes", outcome.nodes, &format_thousands(outcome.nodes));
    let npus = escape_html(&report.machine.name);
    tile("Ranks", &ranks, &format!("{nodes} nodes on {npus}"));
    format!("<div class=\"tiles\">{tiles}</div>")
}
