//! Listing of nodes, one a line.

use super::InspectFormatArg;
use super::json::document;
use crate::progress::Progress;
use chakram_analysis::inspect::{InspectedTrace, NodeFilter, NodeRow, in_order};
use chakram_base::units::{Bytes, Span, Time};
use chakram_report::csv::CsvRows;
use chakram_report::table::{TextTable, left, right};
use chakram_report::text::TextStyle;
use chakram_trace::format::file::{RankFile, TraceContents};
use chakram_trace::format::{TraceError, escape, json_escaped};
use serde::Serialize;
use std::error::Error;
use std::io::Write;

/// Options of a listing.
pub struct NodeListing {
    /// Filter of the nodes.
    pub filter: NodeFilter,
    /// Format.
    pub format: InspectFormatArg,
    /// Maximum number of nodes.
    pub limit: usize,
    /// Number of ranks that are read at once.
    pub threads: usize,
}

/// Listing of a rank.
struct RankListing {
    /// Lines, one after another.
    text: String,
    /// End offset of each line.
    ends: Vec<usize>,
    /// Nodes that fit the filter.
    fit: u64,
    faults: u64,
}

impl NodeListing {
    /// Writes the nodes of `files` into `out`, by rank and start. Returns how many faults the files have.
    ///
    /// # Errors
    ///
    /// A file of which nothing can be read, if there is none of which anything can, and errors of `out`.
    pub fn write(&self, files: &[RankFile], out: &mut dyn Write) -> Result<u64, Box<dyn Error>> {
        self.begin(out)?;
        let (mut written, mut fit, mut faults, mut read) = (0, 0, 0, 0);
        let mut first = None;
        let progress = Progress::start("reading", "ranks", files.len() as u64);
        in_order(
            files,
            self.threads,
            |file| {
                let rank = self.rank(file);
                progress.inc();
                rank
            },
            |_, listed| {
                let listed: RankListing = match listed {
                    Ok(listed) => listed,
                    // A broken rank does not hide the others; its error counts if none can be read.
                    Err(error) => {
                        faults += 1;
                        first.get_or_insert(error);
                        return Ok(());
                    }
                };
                read += 1;
                fit += listed.fit;
                faults += listed.faults;
                // Ranks come in order, so the limit cuts the same lines whatever the number of threads.
                let lines = listed.ends.len().min(self.limit - written);
                if lines > 0 {
                    if self.format == InspectFormatArg::Json {
                        out.write_all(if written > 0 { b",\n" } else { b"\n" })?;
                    }
                    let end = listed.ends[lines - 1];
                    let text = &listed.text[..end];
                    // In JSON a comma stands between nodes, and none after the last.
                    let text = text.strip_suffix(",\n").unwrap_or(text);
                    out.write_all(text.as_bytes())?;
                    written += lines;
                }
                Ok::<_, std::io::Error>(())
            },
        )?;
        if let (Some(error), 0) = (first, read) {
            return Err(error.into());
        }
        match self.format {
            InspectFormatArg::Json => writeln!(out, "\n],\"selected\":{fit}}}")?,
            InspectFormatArg::Text if fit > written as u64 => {
                let more = fit - written as u64;
                writeln!(out, "… {more} more: --limit {fit}")?;
            }
            _ => {}
        }
        Ok(faults)
    }

    fn begin(&self, out: &mut dyn Write) -> std::io::Result<()> {
        match self.format {
            InspectFormatArg::Json => {
                let head = serde_json::to_string(&document("nodes", NoNodes {}))?;
                // The document is written in pieces, so the head is left open.
                write!(out, "{},\"nodes\":[", head.trim_end_matches('}'))
            }
            InspectFormatArg::Csv => out.write_all(CsvRows::new(COLUMNS).text().as_bytes()),
            _ => {
                let headings = table().first_line(TextStyle::default());
                out.write_all(headings.as_bytes())
            }
        }
    }

    fn rank(&self, file: &RankFile) -> Result<RankListing, TraceError> {
        let contents = TraceContents::open_verified(file)?;
        let trace =
            InspectedTrace::read(file.rank, contents.as_slice(), |e| contents.with_source(e))?;
        let chosen = self.filter.select(&trace);
        let nodes = trace.by_start(chosen.as_deref());
        let mut listed = RankListing {
            text: String::new(),
            ends: Vec::new(),
            fit: nodes.len() as u64,
            faults: trace.faults.count(),
        };
        if self.format == InspectFormatArg::Csv {
            let mut rows = CsvRows::empty();
            for &node in nodes.iter().take(self.limit) {
                csv(&mut rows, &trace.row(node));
                listed.ends.push(rows.bytes());
            }
            listed.text = rows.text();
            return Ok(listed);
        }
        let table = table();
        for &node in nodes.iter().take(self.limit) {
            let row = trace.row(node);
            listed.text += &match self.format {
                InspectFormatArg::Json => {
                    let text = serde_json::to_string(&NodeDocument::from(&row));
                    json_escaped(&text.expect("rows are JSON")).into_owned() + ",\n"
                }
                _ => text(&table, &row),
            };
            listed.ends.push(listed.text.len());
        }
        Ok(listed)
    }
}

/// Body of a document whose nodes are written after it.
#[derive(Serialize)]
struct NoNodes {}

/// A node of a list.
#[derive(Debug, Serialize)]
pub struct NodeDocument<'r> {
    rank: u32,
    id: u64,
    start_ps: Option<Time>,
    end_ps: Option<Time>,
    duration_ps: Span,
    wait_ps: Span,
    delay_ps: Span,
    r#type: String,
    lane: String,
    name: &'r str,
    group: Option<&'r str>,
    peer: Option<u32>,
    tag: Option<i32>,
    flops: u64,
    bytes: u64,
}

impl<'r> From<&'r NodeRow<'_>> for NodeDocument<'r> {
    fn from(row: &'r NodeRow<'_>) -> Self {
        Self {
            rank: row.rank,
            id: row.id,
            start_ps: row.ran.map(|(start, _)| start),
            end_ps: row.ran.map(|(_, end)| end),
            duration_ps: row.length,
            wait_ps: row.wait,
            delay_ps: row.delay,
            r#type: row.class.to_string(),
            lane: row.lane.to_string(),
            name: row.name,
            group: row.group.as_deref(),
            peer: row.peer.map(|(peer, _)| peer),
            tag: row.peer.map(|(_, tag)| tag),
            flops: row.flops,
            bytes: row.bytes,
        }
    }
}

/// Columns of the list as comma-separated values.
const COLUMNS: &str = "rank,id,start_ps,end_ps,duration_ps,wait_ps,delay_ps,type,lane,name,group,peer,tag,flops,bytes";

fn csv(rows: &mut CsvRows, row: &NodeRow<'_>) {
    let known = |value: Option<String>| value.unwrap_or_default();
    rows.row(&[
        &row.rank,
        &row.id,
        &known(row.ran.map(|(start, _)| start.0.to_string())),
        &known(row.ran.map(|(_, end)| end.0.to_string())),
        &row.length.0,
        &row.wait.0,
        &row.delay.0,
        &row.class,
        &row.lane,
        &row.name,
        &row.group.as_deref().unwrap_or_default(),
        &known(row.peer.map(|(peer, _)| peer.to_string())),
        &known(row.peer.map(|(_, tag)| tag.to_string())),
        &row.flops,
        &row.bytes,
    ]);
}

/// The list as text; a row is written as it is read, so columns do not follow their cells.
fn table() -> TextTable<'static> {
    let columns = [
        right("rank", 5),
        right("id", 9),
        right("start", 13),
        right("duration", 12),
        left("type", 15).after(2),
        left("lane", 12),
        right("bytes", 9),
        left("name", 0).after(2),
    ];
    TextTable::new(columns).indented(0)
}

fn text(table: &TextTable<'_>, row: &NodeRow<'_>) -> String {
    let start = row.ran.map(|(start, _)| start.to_string());
    let bytes = match row.bytes {
        0 => "-".to_owned(),
        bytes => Bytes(bytes).to_string(),
    };
    table.line(
        &[
            &row.rank,
            &row.id,
            &start.as_deref().unwrap_or("-"),
            &row.length,
            &row.class.to_string(),
            &row.lane.to_string(),
            &bytes,
            &format_args!("{}{}", escape(row.name), with(row)),
        ],
        anstyle::Style::new(),
    )
}

/// Formats the group or peer of a node: `, all ranks`, `, rank 3 tag 1`.
pub fn with(row: &NodeRow<'_>) -> String {
    match (&row.group, row.peer) {
        (Some(group), _) => format!(", {}", escape(group)),
        (None, Some((peer, 0))) => format!(", rank {peer}"),
        (None, Some((peer, tag))) => format!(", rank {peer} tag {tag}"),
        (None, None) => String::new(),
    }
}
