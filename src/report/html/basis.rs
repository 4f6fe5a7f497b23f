//! The basis of a prediction, and unknown facts: the numbers from which the sentences of the head follow.

use super::page::{number, section, table, text};
use super::span;
use crate::Report;
use crate::summary::thousands;
use crate::text::share;
use chakram_base::units::percent;

/// Returns tables of the basis of times, of facts that the traces do not state, of options, and of inputs.
pub fn render(report: &Report) -> String {
    let known = interval(report) + &kernels(report);
    let mut body = section("What the prediction rests on", "basis", &known);
    body += &section("Not known", "unknown", &unknown(report));
    body + &provenance(report)
}

fn interval(report: &Report) -> String {
    let Some(interval) = &report.interval else {
        return String::new();
    };
    let makespan = report.outcome.makespan;
    let parts = interval.parts().into_iter();
    let rows = parts.filter(|part| part.time.0 > 0).map(|part| {
        let path = format!("/interval/{}", part.key);
        vec![
            text(part.name),
            span(&path, part.time),
            share(part.time, makespan),
        ]
    });
    table(
        &["part of the critical path", "time", "share"],
        &rows.collect::<Vec<_>>(),
    )
}

fn kernels(report: &Report) -> String {
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
        let count = number(&format!("/kernels/{key}"), count, &thousands(*count));
        vec![text(name), count]
    });
    let rows: Vec<_> = rows.collect();
    match rows.is_empty() {
        true => String::new(),
        false => table(&["basis of kernels", "kernels"], &rows),
    }
}

fn unknown(report: &Report) -> String {
    if report.unknown.is_empty() {
        return String::new();
    }
    let rows = report.unknown.iter().enumerate().map(|(i, row)| {
        let at = |field: &str| format!("/unknown/{i}/{field}");
        let count = |field: &str, count: u64| number(&at(field), count, &thousands(count));
        let by_bytes = match row.by_bytes {
            0 => "0".to_owned(),
            some => count("by_bytes", some),
        };
        vec![
            text(&row.subject()),
            count("nodes", row.nodes),
            span(&at("recorded_ps"), row.recorded),
            row.share.map_or("-".to_owned(), |share| {
                number(&at("share"), share, &percent(share))
            }),
            by_bytes,
            count("without_time", row.without_time),
        ]
    });
    table(
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

fn provenance(report: &Report) -> String {
    let network = report.network.as_deref().unwrap_or("none");
    let Some(of) = &report.provenance else {
        return format!("<footer>network model: {}</footer>", text(network));
    };
    let options = of.options.iter().map(|(key, value)| {
        let value = match value.as_str() {
            Some(words) => words.to_owned(),
            None => value.to_string(),
        };
        vec![text(key), text(&value)]
    });
    let inputs = of.inputs.iter().map(|input| {
        let name = format!("{} {}", input.role, input.name);
        vec![text(&name), text(&input.blake3)]
    });
    let rows: Vec<_> = options.chain(inputs).collect();
    format!(
        "<footer><details><summary>Options and inputs</summary>{}</details>\
         chakram {}, network model: {}</footer>",
        table(&["option or input", "value"], &rows),
        text(&of.tool_version),
        text(network)
    )
}
