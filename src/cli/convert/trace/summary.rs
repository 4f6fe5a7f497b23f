//! Converted traces, and losses on the way.

use crate::report::summary::thousands;
use crate::trace::format::TraceFormat;
use crate::trace::salvage::{LostRange, SalvageReport};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;

/// Number of losses of each kind that the text shows.
const SHOWN: usize = 8;

/// A converted trace.
pub(super) struct ConvertedTrace {
    pub input: PathBuf,
    /// `None` for standard output.
    pub output: Option<PathBuf>,
    pub form: TraceFormat,
    pub nodes: usize,
    /// Number of nodes of no bytes.
    pub empty: usize,
    /// Report of the salvage, and the error of the compression.
    pub salvaged: Option<(SalvageReport, Option<String>)>,
}

/// Renders the summary as text.
pub(super) fn text(all: &[ConvertedTrace]) -> String {
    let mut out = String::new();
    for one in all {
        let to = match &one.output {
            Some(path) => path.display().to_string(),
            None => "standard output".to_owned(),
        };
        let nodes = thousands(one.nodes as u64);
        let from = one.input.display();
        say(
            &mut out,
            format!("{from} ({}): {nodes} nodes to {to}", one.form),
        );
        if one.empty > 0 {
            let what = "records of no bytes are nodes of defaults, with the id 0; Chakra's Python reader \
                        ends at the first";
            say(&mut out, format!("  {} {what}", one.empty));
        }
        if let Some((report, wrong)) = &one.salvaged {
            losses(&mut out, report, wrong.as_deref());
        }
    }
    out
}

fn say(out: &mut String, line: String) {
    writeln!(out, "{line}").expect("a string grows as needed");
}

/// Prints the first of `items`, and the number of the others.
fn each<T>(out: &mut String, items: &[T], words: impl Fn(&T) -> String) {
    for item in items.iter().take(SHOWN) {
        say(out, format!("    {}", words(item)));
    }
    if let Some(more) = items.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        say(
            out,
            format!("    … {} more: --format json", thousands(more as u64)),
        );
    }
}

fn losses(out: &mut String, report: &SalvageReport, wrong: Option<&str>) {
    if let Some(wrong) = wrong {
        say(
            out,
            format!("  the compressed data are damaged or cut short: {wrong}"),
        );
    }
    if report.is_whole() {
        say(out, "  nothing of what was read is lost".to_owned());
        return;
    }
    if report.metadata_lost {
        say(
            out,
            "  the metadata record is lost; one without content is in its place".to_owned(),
        );
    }
    if !report.lost.is_empty() {
        let bytes = thousands(report.bytes_lost() as u64);
        say(
            out,
            format!("  lost: {bytes} bytes in {} places", report.lost.len()),
        );
        each(out, &report.lost, place);
    }
    if !report.repaired.is_empty() {
        say(
            out,
            format!(
                "  kept in spite of damaged lengths: {} records",
                report.repaired.len()
            ),
        );
        each(out, &report.repaired, |(record, at)| {
            format!("record {record}, byte {at}")
        });
    }
    if !report.duplicate_ids.is_empty() {
        let count = report.duplicate_ids.len();
        say(
            out,
            format!("  left out because an earlier node has the id: {count} records"),
        );
        each(out, &report.duplicate_ids, |(record, id)| {
            format!("record {record}, node {id}")
        });
    }
    if !report.dangling.is_empty() {
        let what = if report.dangling_kept {
            "kept"
        } else {
            "left out"
        };
        let count = thousands(report.dangling.len() as u64);
        say(
            out,
            format!("  {count} dependencies on nodes that are not there, {what}"),
        );
        each(out, &report.dangling, |(node, on, data)| {
            let kind = if *data { "data" } else { "control" };
            format!("node {node} on {on} ({kind})")
        });
    }
}

fn place(lost: &LostRange) -> String {
    let LostRange {
        bytes,
        record,
        line,
        why,
    } = lost;
    let line = line
        .map(|line| format!("line {line}, "))
        .unwrap_or_default();
    format!(
        "{line}bytes {} to {}, at record {record}: {why}",
        bytes.start, bytes.end
    )
}

/// Renders the summary as JSON.
pub(super) fn json(all: &[ConvertedTrace]) -> String {
    let one = |one: &ConvertedTrace| {
        json!({
            "input": one.input.display().to_string(),
            "output": one.output.as_ref().map(|path| path.display().to_string()),
            "form": one.form.to_string(),
            "nodes": one.nodes,
            "empty_records": one.empty,
            "salvage": one.salvaged.as_ref().map(|(report, wrong)| salvage(report, wrong.as_deref())),
        })
    };
    let traces: Vec<Value> = all.iter().map(one).collect();
    let summary = json!({
        "schema": "chakram.converted_traces.1",
        "tool_version": env!("CARGO_PKG_VERSION"),
        "traces": traces,
    });
    format!("{summary:#}\n")
}

fn salvage(report: &SalvageReport, wrong: Option<&str>) -> Value {
    let lost = report.lost.iter().map(|lost| {
        json!({
            "from_byte": lost.bytes.start,
            "to_byte": lost.bytes.end,
            "record": lost.record,
            "line": lost.line,
            "why": lost.why,
        })
    });
    let repaired = report.repaired.iter();
    let repaired = repaired.map(|(record, at)| json!({"record": record, "byte": at}));
    let doubled = report.duplicate_ids.iter();
    let doubled = doubled.map(|(record, id)| json!({"record": record, "node": id}));
    let dangling = report.dangling.iter();
    let dangling = dangling.map(|(node, on, data)| json!({"node": node, "on": on, "data": data}));
    json!({
        "compression": wrong,
        "bytes_lost": report.bytes_lost(),
        "lost": lost.collect::<Vec<_>>(),
        "metadata_lost": report.metadata_lost,
        "lengths_repaired": repaired.collect::<Vec<_>>(),
        "doubled_ids": doubled.collect::<Vec<_>>(),
        "dangling": dangling.collect::<Vec<_>>(),
        "dangling_kept": report.dangling_kept,
    })
}
