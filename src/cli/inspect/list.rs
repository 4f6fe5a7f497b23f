//! Listing of nodes, with one node per line.

use crate::progress::ProgressDisplay;
use chakram_analysis::inspect::render::NodeListFormat;
use chakram_analysis::inspect::{InspectedRankTrace, NodeFilter, for_each_in_order};
use chakram_trace::format::TraceError;
use chakram_trace::format::file::{DecompressedTraceFile, RankFile};
use std::error::Error;
use std::io::Write;

/// A listing of nodes: the filter, the format and the limits.
pub struct NodeListingSettings {
    /// Filter that selects the nodes to list.
    pub filter: NodeFilter,
    /// Format of the listing.
    pub list: NodeListFormat,
    /// Maximum number of listed nodes, summed over all ranks.
    pub limit: usize,
    /// Number of ranks read in parallel.
    pub threads: usize,
}

struct RankListingLines {
    /// All lines of the rank's listing, one after another.
    text: String,
    /// End offset of each line in `text`.
    ends: Vec<usize>,
    /// Number of nodes that satisfy the filter.
    fit: u64,
    faults: u64,
}

impl NodeListingSettings {
    /// Writes the nodes of `files` to `out`, sorted by rank and start. Returns the number of faults
    /// in these files.
    ///
    /// # Errors
    ///
    /// Returns the error of the first file if no file can be read; also fails if writing to `out` fails.
    pub fn write_filtered_nodes_and_count_faults(
        &self,
        files: &[RankFile],
        out: &mut dyn Write,
    ) -> Result<u64, Box<dyn Error>> {
        out.write_all(self.list.render_list_start().as_bytes())?;
        let (mut written, mut fit, mut faults, mut read) = (0, 0, 0, 0);
        let mut first = None;
        let progress = ProgressDisplay::start_counting("reading", "ranks", files.len() as u64);
        for_each_in_order(
            files,
            self.threads,
            |file| {
                let rank = self.list_nodes_of_rank(file);
                progress.count_one();
                rank
            },
            |_, listed| {
                let listed: RankListingLines = match listed {
                    Ok(listed) => listed,
                    // List the other ranks even if one cannot be read. Return a rank's error only if no rank can be
                    // read.
                    Err(error) => {
                        faults += 1;
                        first.get_or_insert(error);
                        return Ok(());
                    }
                };
                read += 1;
                fit += listed.fit;
                faults += listed.faults;
                // Ranks arrive in order, so the limit selects the same lines for any number of
                // threads.
                let lines = listed.ends.len().min(self.limit - written);
                if lines > 0 {
                    if self.list == NodeListFormat::Json {
                        out.write_all(if written > 0 { b",\n" } else { b"\n" })?;
                    }
                    let end = listed.ends[lines - 1];
                    let text = &listed.text[..end];
                    // JSON nodes are separated by commas, so remove the comma after the last node.
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
        match self.list {
            NodeListFormat::Json => {
                out.write_all(NodeListFormat::render_json_end_with_selected_count(fit).as_bytes())?
            }
            NodeListFormat::Text { .. } if fit > written as u64 => {
                let more = fit - written as u64;
                writeln!(out, "… {more} more: --limit {fit}")?;
            }
            _ => {}
        }
        Ok(faults)
    }

    fn list_nodes_of_rank(&self, file: &RankFile) -> Result<RankListingLines, TraceError> {
        let contents = DecompressedTraceFile::open_verified(file)?;
        let trace = InspectedRankTrace::read_trace(file.rank, contents.as_slice(), |e| {
            contents.locate_error_in_original_file(e)
        })?;
        let chosen = self.filter.flag_selected_nodes(&trace);
        let nodes = trace.order_by_start(chosen.as_deref());
        let rows = nodes
            .iter()
            .take(self.limit)
            .map(|&node| trace.row_of_node(node));
        let (text, ends) = self.list.render_lines_and_their_end_offsets(rows);
        Ok(RankListingLines {
            text,
            ends,
            fit: nodes.len() as u64,
            faults: trace.faults.count_replay_rejecting_faults(),
        })
    }
}
