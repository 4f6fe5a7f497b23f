//! Renders a list of nodes, row by row, while reading traces.

use super::json::build_view_document;
use crate::inspect::NodeRow;
use chakram_base::units::{Bytes, Span, Time};
use chakram_report::csv::CsvRows;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_report::text::TextStyleWidthAndDetail;
use chakram_trace::format::{escape_and_shorten_name, escape_harmful_characters_in_json};
use serde::Serialize;

/// Output form of a list of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeListFormat {
    /// Text in lines of limited width.
    Text {
        /// Maximum line width, in columns.
        width: usize,
    },
    /// One JSON document.
    Json,
    /// CSV with a header line.
    Csv,
}

impl NodeListFormat {
    /// Returns the beginning of the list, before the first row.
    pub fn render_list_start(self) -> String {
        match self {
            Self::Text { width } => {
                create_text_table(width).render_heading_line(TextStyleWidthAndDetail::default())
            }
            Self::Json => {
                let head =
                    serde_json::to_string(&build_view_document("nodes", NodeListDocumentStart {}));
                let head = head.expect("names are texts");
                // The document is written in parts, so omit its closing brace here.
                format!("{},\"nodes\":[", head.trim_end_matches('}'))
            }
            Self::Csv => CsvRows::new(COLUMNS).into_text(),
        }
    }

    /// Renders `rows`, one line per row. Returns the text, and the offset at which each line ends. In JSON, every line
    /// ends with a comma.
    pub fn render_lines_and_their_end_offsets<'r>(
        self,
        rows: impl Iterator<Item = NodeRow<'r>>,
    ) -> (String, Vec<usize>) {
        let (mut lines, mut ends) = (String::new(), Vec::new());
        if self == Self::Csv {
            let mut cells = CsvRows::without_header();
            for row in rows {
                append_csv_row(&mut cells, &row);
                ends.push(cells.byte_count());
            }
            return (cells.into_text(), ends);
        }
        let table = match self {
            Self::Text { width } => Some((create_text_table(width), text_style_for_width(width))),
            _ => None,
        };
        for row in rows {
            if let Some((table, style)) = &table {
                lines += &render_text_row(table, *style, &row);
            } else {
                let line = serde_json::to_string(&NodeDocument::from(&row));
                lines += &escape_harmful_characters_in_json(&line.expect("rows are JSON"));
                lines += ",\n";
            }
            ends.push(lines.len());
        }
        (lines, ends)
    }

    /// Returns the end of the JSON document, which contains the number of `selected` nodes.
    pub fn render_json_end_with_selected_count(selected: u64) -> String {
        format!("\n],\"selected\":{selected}}}\n")
    }
}

/// Body of a JSON document; nodes are appended later.
#[derive(Serialize)]
struct NodeListDocumentStart {}

/// A node in the JSON form of a list.
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

/// Column names of the CSV form.
const COLUMNS: &str = "rank,id,start_ps,end_ps,duration_ps,wait_ps,delay_ps,type,lane,name,group,peer,tag,flops,bytes";

fn append_csv_row(rows: &mut CsvRows, row: &NodeRow<'_>) {
    let known = |value: Option<String>| value.unwrap_or_default();
    rows.add_row(&[
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

/// Creates the table for the text form; its column widths are fixed, because each row is written as soon as it is read.
fn create_text_table(width: usize) -> TextTable<'static> {
    let columns = [
        right_aligned_column("rank", 5),
        right_aligned_column("id", 9),
        right_aligned_column("start", 13),
        right_aligned_column("duration", 12),
        left_aligned_column("type", 15).with_gap_before(2),
        left_aligned_column("lane", 12),
        right_aligned_column("bytes", 9),
        left_aligned_column("name", 0).with_gap_before(2),
    ];
    TextTable::new(columns)
        .with_indent(0)
        .with_shortened_names(text_style_for_width(width))
}

/// Returns the text style for lines of this width. For `usize::MAX`, names are never shortened.
fn text_style_for_width(width: usize) -> TextStyleWidthAndDetail {
    TextStyleWidthAndDetail {
        width,
        details: width == usize::MAX,
        ..TextStyleWidthAndDetail::default()
    }
}

fn render_text_row(
    table: &TextTable<'_>,
    style: TextStyleWidthAndDetail,
    row: &NodeRow<'_>,
) -> String {
    let start = row.ran.map(|(start, _)| start.to_string());
    let bytes = match row.bytes {
        0 => "-".to_owned(),
        bytes => Bytes(bytes).to_string(),
    };
    table.render_line(
        &[
            &row.rank,
            &row.id,
            &start.as_deref().unwrap_or("-"),
            &row.length,
            &row.class.to_string(),
            &row.lane.to_string(),
            &bytes,
            &format_args!("{}{}", style.clip_name(row.name), format_group_or_peer(row)),
        ],
        anstyle::Style::new(),
    )
}

/// Formats a node's group or peer, as in `, all ranks` or `, rank 3 tag 1`.
pub(super) fn format_group_or_peer(row: &NodeRow<'_>) -> String {
    match (&row.group, row.peer) {
        (Some(group), _) => format!(", {}", escape_and_shorten_name(group)),
        (None, Some((peer, 0))) => format!(", rank {peer}"),
        (None, Some((peer, tag))) => format!(", rank {peer} tag {tag}"),
        (None, None) => String::new(),
    }
}
