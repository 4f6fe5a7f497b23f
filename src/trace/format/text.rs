//! Text formats of traces: chakram's JSON Lines, and JSON from other tools or people.

use super::{OriginalRecordLocations, TraceError, TraceErrorLocation, old_schemas};

mod base64;
mod graph_json;
mod json;
pub(in crate::format) mod json_lines;
mod message;
mod proto_json;
mod sniff;
mod values;

pub use json_lines::{JsonLineReader, JsonLineWriter};
pub(super) use sniff::{TraceOrCaptureTextKind, classify_text};

/// Name of the JSON Lines format, as the first line states it.
const SCHEMA: &str = "chakram.trace.1";

/// Text format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonTraceFormat {
    /// chakram's own format: one record per line.
    JsonLines,
    /// Protobuf's JSON mapping: objects in sequence or in an array, as `chakra_jsonizer` writes them.
    ProtoJson,
    /// An object with `workload_graph`, the JSON that Chakra's feeder reads.
    WorkloadGraph,
    /// An object with `nodes`, the JSON that the symbolic tensor graph generator writes.
    Nodes,
}

/// A trace that was read from text.
#[derive(Debug)]
pub struct TraceConvertedFromText {
    /// The trace as the contents of a file in the current schema.
    pub bytes: Vec<u8>,
    /// Original lines of the trace's records.
    pub(super) origins: OriginalRecordLocations,
}

impl TraceConvertedFromText {
    /// Adds the record's original line to an error.
    #[must_use]
    pub fn add_source_line_to_error(&self, error: TraceError) -> TraceError {
        error.relocate_to_origin(&self.origins)
    }
}

/// Parses a complete text in the format `form`.
///
/// Fails on malformed text; the error states the line, the column and, if known, the node.
pub fn parse_text_trace(
    text: &[u8],
    form: JsonTraceFormat,
) -> Result<TraceConvertedFromText, TraceError> {
    let text = text.strip_prefix(MARK).unwrap_or(text);
    let mut records = EncodedRecordsWithSourceLines::default();
    match form {
        JsonTraceFormat::JsonLines => {
            let mut lines = JsonLineReader::new(text);
            let mut record = Vec::new();
            while let Some(line) = lines.next_record(&mut record)? {
                records.push(&record, (line, 1));
            }
        }
        JsonTraceFormat::ProtoJson => proto_json::parse_objects(text, &mut records)?,
        JsonTraceFormat::WorkloadGraph | JsonTraceFormat::Nodes => {
            graph_json::parse_graph(text, &mut records)?
        }
    }
    Ok(records.into_trace())
}

/// Builds the error for an input that is a capture instead of a trace.
pub(super) fn capture_instead_of_trace_error(name: &str) -> TraceError {
    TraceError::invalid_at(
        TraceErrorLocation::default(),
        format!("this is {name}, not an execution trace"),
        "`chakram convert pytorch` converts the host traces and Kineto traces of a run",
    )
}

/// UTF-8 byte order mark, which some editors write at the start of a text.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// The records, each preceded by its length, with their positions in the text.
#[derive(Default)]
struct EncodedRecordsWithSourceLines {
    bytes: Vec<u8>,
    lines: Vec<(u32, u32)>,
}

impl EncodedRecordsWithSourceLines {
    fn push(&mut self, record: &[u8], (line, column): (usize, usize)) {
        old_schemas::push_framed(&mut self.bytes, record);
        self.lines.push((line as u32, column as u32));
    }

    fn into_trace(self) -> TraceConvertedFromText {
        TraceConvertedFromText {
            bytes: self.bytes,
            origins: OriginalRecordLocations::from_lines(self.lines),
        }
    }
}
