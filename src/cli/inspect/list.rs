//! Listing of nodes, one a line.

use super::InspectFormatArg;
use super::json::head;
use crate::cli::progress::Progress;
use crate::cli::terminal;
use crate::inspect::{InspectedTrace, NodeFilter, NodeRow, in_order};
use crate::report::csv::CsvRows;
use crate::trace::file::{RankFile, TraceContents};
use crate::trace::{TraceError, escape};
use crate::units::Bytes;
use serde_json::{Value, json};
use std::error::Error;
use std::fmt::Write as _;
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
                let head = Value::Object(head("nodes")).to_string();
                // The document is written in pieces, so the head is left open.
                write!(out, "{},\"nodes\":[", head.trim_end_matches('}'))
            }
            InspectFormatArg::Csv => writeln!(
                out,
                "rank,id,start_ps,end_ps,duration_ps,wait_ps,delay_ps,type,lane,name,group,peer,tag,flops,bytes"
            ),
            _ => writeln!(
                out,
                "{:>5}{:>9}{:>13}{:>12}  {:<14} {:<12}{:>9}  name",
                "rank", "id", "start", "duration", "type", "lane", "bytes"
            ),
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
        for &node in nodes.iter().take(self.limit) {
            let row = trace.row(node);
            let written = match self.format {
                InspectFormatArg::Json => writeln!(
                    listed.text,
                    "{},",
                    terminal::json_escaped(json(&row).to_string())
                ),
                _ => text(&mut listed.text, &row),
            };
            written.expect("a string grows as needed");
            listed.ends.push(listed.text.len());
        }
        Ok(listed)
    }
}

/// Renders a node as JSON.
pub fn json(row: &NodeRow<'_>) -> Value {
    json!({
        "rank": row.rank,
        "id": row.id,
        "start_ps": row.ran.map(|(start, _)| start.0),
        "end_ps": row.ran.map(|(_, end)| end.0),
        "duration_ps": row.length.0,
        "wait_ps": row.wait.0,
        "delay_ps": row.delay.0,
        "type": row.class.to_string(),
        "lane": row.lane.to_string(),
        "name": row.name,
        "group": row.group,
        "peer": row.peer.map(|(peer, _)| peer),
        "tag": row.peer.map(|(_, tag)| tag),
        "flops": row.flops,
        "bytes": row.bytes,
    })
}

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

fn text(out: &mut String, row: &NodeRow<'_>) -> std::fmt::Result {
    let start = row
        .ran
        .map_or_else(|| "-".to_owned(), |(start, _)| start.to_string());
    let bytes = match row.bytes {
        0 => "-".to_owned(),
        bytes => Bytes(bytes).to_string(),
    };
    writeln!(
        out,
        "{:>5}{:>9}{start:>13}{:>12}  {:<14} {:<12}{bytes:>9}  {}{}",
        row.rank,
        row.id,
        row.length,
        row.class.to_string(),
        row.lane.to_string(),
        escape(row.name),
        with(row)
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
