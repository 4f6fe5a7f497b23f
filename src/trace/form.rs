//! The forms that traces come in, told by what they hold and not by their names.
//!
//! - `.et` of the current schema, as it is;
//! - `.et` of 2023, which is upgraded (`trace::older`);
//! - JSON Lines, our own text (`trace::text`), protobuf's JSON, `workload_graph` and `nodes`.
//!
//! Text begins with `{` or `[`, after white space perhaps, and a key that its form has. A binary file whose
//! first record has the length that looks like `{` (123 bytes) has no key behind it.

use super::text::{Seen, TextForm, sniff};
use super::wire::Frames;
use super::{Generation, Place, TraceError, older};
use std::fmt;

/// The form of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Records of this generation.
    Et(Generation),
    /// Text of this form.
    Text(TextForm),
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Et(Generation::V004) => f.write_str("et"),
            Self::Et(generation) => write!(f, "et of {generation}"),
            Self::Text(TextForm::JsonLines) => f.write_str("JSON Lines"),
            Self::Text(TextForm::ProtoJson) => f.write_str("protobuf's JSON"),
            Self::Text(TextForm::WorkloadGraph) => f.write_str("JSON with `workload_graph`"),
            Self::Text(TextForm::Nodes) => f.write_str("JSON with `nodes`"),
        }
    }
}

/// The form of `contents`, or of a file that begins with them, if that is text.
///
/// Fails on text that holds no trace.
pub fn text_form(contents: &[u8]) -> Option<Result<TextForm, TraceError>> {
    // All other bytes are the length of a first record.
    if !matches!(
        contents.first()?,
        b'{' | b'[' | b' ' | b'\t' | b'\n' | b'\r' | 0xef
    ) {
        return None;
    }
    let (found, hint) = match sniff(contents) {
        Seen::NoJson => return None,
        Seen::Trace(form) => return Some(Ok(form)),
        Seen::Capture(name) => (
            format!("this is {name}, no execution trace"),
            "`chakram convert pytorch` makes traces of the host and Kineto traces of a run",
        ),
        Seen::Other => {
            if let Ok(Some(first)) = Frames::new(contents).next_record()
                && older::is_current(first.bytes) == Some(true)
            {
                return None;
            }
            (
                "JSON that holds no execution trace".to_owned(),
                "JSON Lines of `chakram convert trace`, the output of chakra_jsonizer, or an object \
                 with `workload_graph` or `nodes`",
            )
        }
    };
    Some(Err(TraceError::refused_at(Place::default(), found, hint)))
}
