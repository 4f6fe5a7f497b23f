//! Summary of a conversion: the converted traces, and the records that were lost.

use chakram_report::document::VersionedDocument;
use chakram_report::summary::format_thousands;
use chakram_trace::format::salvage::{LostRange, SalvageReport};
use chakram_trace::format::trace_format::TraceFormat;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

/// Maximum number of losses of each kind in the text.
const SHOWN: usize = 8;

/// Result of converting one trace.
pub(super) struct TraceConversionResult {
    pub input: PathBuf,
    /// Output file; `None` for standard output.
    pub output: Option<PathBuf>,
    pub form: TraceFormat,
    pub nodes: usize,
    /// Number of nodes whose records have zero bytes.
    pub empty: usize,
    /// Report of the losses and any compression error, if the input was salvaged.
    pub salvaged: Option<(SalvageReport, Option<String>)>,
}

pub(super) fn render_text(all: &[TraceConversionResult]) -> String {
    let mut out = String::new();
    for one in all {
        let to = match &one.output {
            Some(path) => path.display().to_string(),
            None => "standard output".to_owned(),
        };
        let nodes = format_thousands(one.nodes as u64);
        let from = one.input.display();
        append_line(
            &mut out,
            format!("{from} ({}): {nodes} nodes to {to}", one.form),
        );
        if one.empty > 0 {
            let what = "records of no bytes are nodes of defaults, with the id 0; Chakra's Python reader \
                        ends at the first";
            append_line(&mut out, format!("  {} {what}", one.empty));
        }
        if let Some((report, wrong)) = &one.salvaged {
            append_salvage_losses(&mut out, report, wrong.as_deref());
        }
    }
    out
}

fn append_line(out: &mut String, line: String) {
    writeln!(out, "{line}").expect("a string grows as needed");
}

/// Prints the first few of `items`, and how many items are not printed.
fn append_first_items<T>(out: &mut String, items: &[T], words: impl Fn(&T) -> String) {
    for item in items.iter().take(SHOWN) {
        append_line(out, format!("    {}", words(item)));
    }
    if let Some(more) = items.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        append_line(
            out,
            format!(
                "    … {} more: --format json",
                format_thousands(more as u64)
            ),
        );
    }
}

fn append_salvage_losses(out: &mut String, report: &SalvageReport, wrong: Option<&str>) {
    if let Some(wrong) = wrong {
        append_line(
            out,
            format!("  the compressed data are damaged or cut short: {wrong}"),
        );
    }
    if report.is_whole() {
        append_line(out, "  all read data was kept".to_owned());
        return;
    }
    if report.metadata_lost {
        append_line(
            out,
            "  the metadata record is lost; one without content is in its place".to_owned(),
        );
    }
    if !report.lost.is_empty() {
        let bytes = format_thousands(report.bytes_lost() as u64);
        append_line(
            out,
            format!("  lost: {bytes} bytes in {} places", report.lost.len()),
        );
        append_first_items(out, &report.lost, describe_lost_range);
    }
    if !report.repaired.is_empty() {
        append_line(
            out,
            format!(
                "  kept despite damaged lengths: {} records",
                report.repaired.len()
            ),
        );
        append_first_items(out, &report.repaired, |(record, at)| {
            format!("record {record}, byte {at}")
        });
    }
    if !report.duplicate_ids.is_empty() {
        let count = report.duplicate_ids.len();
        append_line(
            out,
            format!("  left out because an earlier node has the same id: {count} records"),
        );
        append_first_items(out, &report.duplicate_ids, |(record, id)| {
            format!("record {record}, node {id}")
        });
    }
    if !report.dangling.is_empty() {
        let what = if report.dangling_kept {
            "kept"
        } else {
            "left out"
        };
        let count = format_thousands(report.dangling.len() as u64);
        append_line(
            out,
            format!("  {count} dependencies on missing nodes, {what}"),
        );
        append_first_items(out, &report.dangling, |(node, on, data)| {
            let kind = if *data { "data" } else { "control" };
            format!("node {node} on {on} ({kind})")
        });
    }
}

fn describe_lost_range(lost: &LostRange) -> String {
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

/// JSON summary of a conversion.
#[derive(Serialize)]
struct ConversionDocument {
    traces: Vec<ConvertedTraceRow>,
}

#[derive(Serialize)]
struct ConvertedTraceRow {
    input: String,
    output: Option<String>,
    form: String,
    nodes: usize,
    empty_records: usize,
    salvage: Option<SalvageLossesAndRepairs>,
}

#[derive(Serialize)]
struct SalvageLossesAndRepairs {
    compression: Option<String>,
    bytes_lost: usize,
    lost: Vec<LostByteRangeRow>,
    metadata_lost: bool,
    lengths_repaired: Vec<RepairedRecordPositionRow>,
    doubled_ids: Vec<DuplicateNodeRow>,
    dangling: Vec<DanglingDependencyRow>,
    dangling_kept: bool,
}

#[derive(Serialize)]
struct LostByteRangeRow {
    from_byte: usize,
    to_byte: usize,
    record: usize,
    line: Option<usize>,
    why: String,
}

#[derive(Serialize)]
struct RepairedRecordPositionRow {
    record: usize,
    byte: usize,
}

#[derive(Serialize)]
struct DuplicateNodeRow {
    record: usize,
    node: u64,
}

#[derive(Serialize)]
struct DanglingDependencyRow {
    node: u64,
    on: u64,
    data: bool,
}

pub(super) fn render_json(all: &[TraceConversionResult]) -> String {
    let path = |path: &PathBuf| path.display().to_string();
    let traces = all.iter().map(|one| ConvertedTraceRow {
        input: path(&one.input),
        output: one.output.as_ref().map(path),
        form: one.form.to_string(),
        nodes: one.nodes,
        empty_records: one.empty,
        salvage: one.salvaged.as_ref().map(salvage_row),
    });
    let traces = traces.collect();
    VersionedDocument::new("chakram.converted_traces.1", ConversionDocument { traces })
        .to_json_text()
}

fn salvage_row((report, wrong): &(SalvageReport, Option<String>)) -> SalvageLossesAndRepairs {
    let lost = report.lost.iter().map(|lost| LostByteRangeRow {
        from_byte: lost.bytes.start,
        to_byte: lost.bytes.end,
        record: lost.record,
        line: lost.line,
        why: lost.why.clone(),
    });
    let repaired = report.repaired.iter();
    let doubled = report.duplicate_ids.iter();
    let dangling = report.dangling.iter();
    SalvageLossesAndRepairs {
        compression: wrong.clone(),
        bytes_lost: report.bytes_lost(),
        lost: lost.collect(),
        metadata_lost: report.metadata_lost,
        lengths_repaired: repaired
            .map(|&(record, byte)| RepairedRecordPositionRow { record, byte })
            .collect(),
        doubled_ids: doubled
            .map(|&(record, node)| DuplicateNodeRow { record, node })
            .collect(),
        dangling: dangling
            .map(|&(node, on, data)| DanglingDependencyRow { node, on, data })
            .collect(),
        dangling_kept: report.dangling_kept,
    }
}
