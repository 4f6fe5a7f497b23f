//! Detects the format of a trace. It relies on the file's content and ignores its name.
//!
//! - `.et` of the current schema, which is used directly;
//! - `.et` of 2023, which is upgraded when it is opened ([`old_schemas`]);
//! - text ([`text`](super::text)): chakram's JSON Lines, protobuf's JSON, `workload_graph` and `nodes`.
//!
//! Text begins with `{` or `[`, possibly after white space, followed by a key of the format. A binary file also begins
//! with the byte `{` if its first record has 123 bytes, but then no key of a text format follows.

use super::text::{
    JsonTraceFormat, TraceOrCaptureTextKind, capture_instead_of_trace_error, classify_text,
};
use super::wire::FrameCursor;
use super::{SchemaGeneration, TraceError, TraceErrorLocation, old_schemas};
use std::fmt;

/// A trace format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// Binary records of this schema generation.
    Et(SchemaGeneration),
    /// Text in this format.
    Text(JsonTraceFormat),
}

impl fmt::Display for TraceFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Et(SchemaGeneration::V004) => f.write_str("et"),
            Self::Et(generation) => write!(f, "et of {generation}"),
            Self::Text(JsonTraceFormat::JsonLines) => f.write_str("JSON Lines"),
            Self::Text(JsonTraceFormat::ProtoJson) => f.write_str("protobuf's JSON"),
            Self::Text(JsonTraceFormat::WorkloadGraph) => f.write_str("JSON with `workload_graph`"),
            Self::Text(JsonTraceFormat::Nodes) => f.write_str("JSON with `nodes`"),
        }
    }
}

/// Detects the text format of `contents`, which may be only the beginning of a file. Returns `None` if `contents` are
/// not text.
///
/// Fails if `contents` are text but not a trace.
pub fn detect_text_format(contents: &[u8]) -> Option<Result<JsonTraceFormat, TraceError>> {
    // Any other byte at the start is part of the first record's length, so the file is binary.
    if !matches!(
        contents.first()?,
        b'{' | b'[' | b' ' | b'\t' | b'\n' | b'\r' | 0xef
    ) {
        return None;
    }
    Some(Err(match classify_text(contents) {
        TraceOrCaptureTextKind::NoJson => return None,
        TraceOrCaptureTextKind::Trace(form) => return Some(Ok(form)),
        TraceOrCaptureTextKind::Capture(name) => capture_instead_of_trace_error(name),
        TraceOrCaptureTextKind::Other => {
            if let Ok(Some(first)) = FrameCursor::new(contents).next_record()
                && old_schemas::is_current_metadata(first.bytes) == Some(true)
            {
                return None;
            }
            TraceError::invalid_at(
                TraceErrorLocation::default(),
                "the JSON is not an execution trace",
                "JSON Lines of `chakram convert trace`, the output of chakra_jsonizer, or an object \
                 with `workload_graph` or `nodes`",
            )
        }
    }))
}
