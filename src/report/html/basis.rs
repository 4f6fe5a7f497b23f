//! Tables with the details behind the page's first sentences: where the times come from, and which facts are unknown.

use super::page::{
    escape_html, render_number_with_json_pointer, render_section_unless_empty,
    render_table_of_escaped_cells,
};
use super::render_report_time_with_pointer;
use crate::Report;
use crate::summary::format_thousands;
use crate::text::format_share;
use chakram_base::units::format_percent;

/// Returns four tables: where the times come from, the facts that the traces lack, the options, and the inputs.
pub fn render_prediction_basis(report: &Report) -> String {
    let known = render_path_times_by_method(report) + &render_kernel_basis_table(report);
    let mut body = render_section_unless_empty("What the prediction rests on", "basis", &known);
    body += &render_section_unless_empty("Not known", "unknown", &render_unknown_facts(report));
    body + &render_provenance(report)
}

fn render_path_times_by_method(report: &Report) -> String {
    let Some(interval) = &report.interval else {
        return String::new();
    };
    let makespan = report.outcome.makespan;
    let parts = interval.list_path_times_by_estimation_method().into_iter();
    let rows = parts.filter(|part| part.time.0 > 0).map(|part| {
        let path = format!("/interval/{}", part.key);
        vec![
            escape_html(part.name),
            render_report_time_with_pointer(&path, part.time),
            format_share(part.time, makespan),
        ]
    });
    render_table_of_escaped_cells(
        &["part of the critical path", "time", "share"],
        &rows.collect::<Vec<_>>(),
    )
}

fn render_kernel_basis_table(report: &Report) -> String {
    let of = &report.kernels;
    let rows = [
        ("priced", "priced", of.priced),
        ("by curves of measured kernels", "by_curves", of.by_curves),
        (
            "by roofline, as none was recorded",
            "estimated",
            of.estimated,
        ),
        ("as recorded", "kept_recorded", of.kept_recorded),
        ("without time", "unknown", of.unknown),
    ];
    let rows = rows.iter().filter(|(.., count)| *count > 0);
    let rows = rows.map(|(name, key, count)| {
        let count = render_number_with_json_pointer(
            &format!("/kernels/{key}"),
            count,
            &format_thousands(*count),
        );
        vec![escape_html(name), count]
    });
    let rows: Vec<_> = rows.collect();
    match rows.is_empty() {
        true => String::new(),
        false => render_table_of_escaped_cells(&["basis of kernels", "kernels"], &rows),
    }
}

fn render_unknown_facts(report: &Report) -> String {
    if report.unknown.is_empty() {
        return String::new();
    }
    let rows = report.unknown.iter().enumerate().map(|(i, row)| {
        let at = |field: &str| format!("/unknown/{i}/{field}");
        let count = |field: &str, count: u64| {
            render_number_with_json_pointer(&at(field), count, &format_thousands(count))
        };
        let by_bytes = match row.by_bytes {
            0 => "0".to_owned(),
            some => count("by_bytes", some),
        };
        vec![
            escape_html(&row.describe_subject()),
            count("nodes", row.nodes),
            render_report_time_with_pointer(&at("recorded_ps"), row.recorded),
            row.share.map_or("-".to_owned(), |share| {
                render_number_with_json_pointer(&at("share"), share, &format_percent(share))
            }),
            by_bytes,
            count("without_time", row.without_time),
        ]
    });
    render_table_of_escaped_cells(
        &[
            "fact",
            "nodes",
            "recorded time",
            "of captured time",
            "by bytes alone",
            "without time",
        ],
        &rows.collect::<Vec<_>>(),
    )
}

fn render_provenance(report: &Report) -> String {
    let network = report.network.as_deref().unwrap_or("none");
    let Some(of) = &report.provenance else {
        return format!("<footer>network model: {}</footer>", escape_html(network));
    };
    let options = of.options.iter().map(|(key, value)| {
        let value = match value.as_str() {
            Some(words) => words.to_owned(),
            None => value.to_string(),
        };
        vec![escape_html(key), escape_html(&value)]
    });
    let inputs = of.inputs.iter().map(|input| {
        let name = format!("{} {}", input.role, input.name);
        vec![escape_html(&name), escape_html(&input.blake3)]
    });
    let rows: Vec<_> = options.chain(inputs).collect();
    format!(
        "<footer><details><summary>Options and inputs</summary>{}</details>\
         chakram {}, network model: {}</footer>",
        render_table_of_escaped_cells(&["option or input", "value"], &rows),
        escape_html(&of.tool_version),
        escape_html(network)
    )
}
