//! Converts MSCCL algorithms, which are XML files, to traces. A file lists the steps of each GPU's thread blocks. The
//! converter writes one trace per GPU. With `--custom`, a collective's members execute the steps of these traces.
//!
//! A thread block's steps run in order; a step may also wait for another thread block's step on the same GPU. If the
//! step's kind begins with `r` (except `re`), the step receives first. If the kind ends with `s`, the step ends with a
//! send. Copies and reductions between a receive and a send take no additional time, as in the built-in algorithms. A
//! connection is a sender, a receiver and a channel. On each connection, exactly one thread block sends and exactly one
//! receives, in order.

use chakram_trace::format::file::parse_text;
use chakram_trace::format::{CollectiveKind, TraceError, TraceErrorLocation};
use std::path::Path;

mod checks;
mod connections;
mod element;
mod emit;
mod parse;

pub use emit::MscclTraceWriter;

/// Algorithm of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MscclAlgorithm {
    /// Name of the algorithm.
    pub name: String,
    /// Collective that the algorithm implements.
    pub kind: CollectiveKind,
    /// Number of chunks in the whole buffer.
    pub chunks: u64,
    /// Buffer sizes, in bytes, for which the algorithm is designed, or `None` if the file states no range.
    pub range: Option<(u64, u64)>,
    /// GPUs, indexed by number.
    pub gpus: Vec<MscclGpu>,
    /// Attributes in the file that are unknown and have no effect, each as a sentence.
    pub unknown_attributes: Vec<String>,
}

/// The thread blocks of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MscclGpu {
    /// Thread blocks, indexed by their id in the file.
    pub blocks: Vec<ThreadBlock>,
}

/// A thread block: its connections and its steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadBlock {
    /// GPU to which the thread block sends, if any.
    pub send: Option<u32>,
    /// GPU from which the thread block receives, if any.
    pub receive: Option<u32>,
    /// Channel of both the send and the receive connection.
    pub channel: u32,
    /// Steps in execution order.
    pub steps: Vec<MscclStep>,
    line: (usize, usize),
}

/// A step of a thread block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MscclStep {
    /// Operation of the step.
    pub kind: StepKind,
    /// Buffer index of the first chunk that the step reads or forwards.
    pub source: u64,
    /// Number of consecutive chunks that the step processes.
    pub count: u64,
    /// Step that must end before this one starts, given as the index of a thread block on the same GPU and the index of
    /// a step in that block.
    pub after: Option<(u32, u32)>,
    line: (usize, usize),
}

/// Operation of a step: a combination of receive, reduce, copy and send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// `s`: sends.
    Send,
    /// `r`: receives.
    Receive,
    /// `rcs`: receives, copies and forwards.
    ReceiveCopySend,
    /// `rrs`: receives, reduces and forwards.
    ReceiveReduceSend,
    /// `rrc`: receives, reduces and stores.
    ReceiveReduceCopy,
    /// `rrcs`: receives, reduces, stores and forwards.
    ReceiveReduceCopySend,
    /// `cpy`: copies within the GPU.
    Copy,
    /// `re`: reduces within the GPU.
    Reduce,
    /// `nop`: only waits for another step.
    Nothing,
}

impl StepKind {
    /// Every kind with its XML name.
    const ALL: [(Self, &'static str); 9] = [
        (Self::Send, "s"),
        (Self::Receive, "r"),
        (Self::ReceiveCopySend, "rcs"),
        (Self::ReceiveReduceSend, "rrs"),
        (Self::ReceiveReduceCopy, "rrc"),
        (Self::ReceiveReduceCopySend, "rrcs"),
        (Self::Copy, "cpy"),
        (Self::Reduce, "re"),
        (Self::Nothing, "nop"),
    ];

    fn xml_word(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    fn has_receive(self) -> bool {
        self.xml_word().starts_with('r') && self != Self::Reduce
    }

    fn has_send(self) -> bool {
        self.xml_word().ends_with('s')
    }
}

/// Returns the text after the first occurrence of `end`.
fn text_after<'t>(text: &'t [u8], end: &[u8]) -> Option<&'t [u8]> {
    let at = text.windows(end.len()).position(|part| part == end)?;
    Some(&text[at + end.len()..])
}

/// Returns the text after the first occurrence of `end` outside quotes.
fn text_after_unquoted<'t>(text: &'t [u8], end: &[u8]) -> Option<&'t [u8]> {
    let mut quote = None;
    for (at, byte) in text.iter().enumerate() {
        match (quote, byte) {
            (Some(open), byte) if open == *byte => quote = None,
            (None, b'"' | b'\'') => quote = Some(*byte),
            (None, _) if text[at..].starts_with(end) => return Some(&text[at + end.len()..]),
            _ => {}
        }
    }
    None
}

impl MscclAlgorithm {
    /// Returns true if a file that begins with `head` is XML whose root element is an algorithm.
    pub fn begins_as_msccl(head: &[u8]) -> bool {
        let mut rest = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
        loop {
            rest = rest.trim_ascii_start();
            // Skip declarations and comments before the root element.
            let end = match rest {
                // The XML parser accepts only `<?xml` and a blank as the start of a declaration. Any other `<?` begins
                // a processing instruction, in which quotes have no meaning.
                [b'<', b'?', b'x', b'm', b'l', b' ', inside @ ..] => {
                    text_after_unquoted(inside, b"?>")
                }
                [b'<', b'?', inside @ ..] => text_after(inside, b"?>"),
                [b'<', b'!', b'-', b'-', inside @ ..] => text_after(inside, b"-->"),
                _ => break,
            };
            let Some(end) = end else {
                return false;
            };
            rest = end;
        }
        let root = rest.strip_prefix(b"<algo").unwrap_or_default();
        root.first().is_some_and(u8::is_ascii_whitespace)
    }

    /// Reads a file, which may be compressed with gzip or zstd.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or if [`Self::parse`] fails.
    pub fn open_file(path: &Path) -> Result<Self, TraceError> {
        parse_text(path, Self::parse)
    }
}

/// Builds the error for an invalid file at a line and column, both counted from 1.
fn error_at(line: (usize, usize), found: impl Into<String>, hint: impl Into<String>) -> TraceError {
    let place = TraceErrorLocation {
        line: Some(line),
        ..TraceErrorLocation::default()
    };
    TraceError::invalid_at(place, found, hint)
}
