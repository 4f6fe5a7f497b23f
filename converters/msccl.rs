//! Algorithms of MSCCL: XML with the steps of every thread block of every GPU, to traces that members of a collective
//! play (`--custom`), one for each GPU.
//!
//! Steps of a thread block follow one another; a step may also wait for a step of another thread block of its GPU. A
//! step with an `r` receives first, one that ends with `s` sends last; what lies between, copies and reductions, takes
//! no time of its own, as in the built-in algorithms. A connection is a sender, a receiver and a channel: one thread
//! block sends into it, one receives from it, in order.

use chakram_trace::format::file::parse_text;
use chakram_trace::format::{CollectiveKind, TraceError, TraceLocation};
use std::path::Path;

mod connections;
mod emit;
mod parse;

pub use emit::MscclScripts;

/// Algorithm of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MscclAlgorithm {
    /// Its name.
    pub name: String,
    /// The collective.
    pub kind: CollectiveKind,
    /// Chunks of the whole buffer.
    pub chunks: u64,
    /// Sizes for which it is meant, in bytes of the whole buffer; none if the file does not say.
    pub range: Option<(u64, u64)>,
    /// GPUs by their numbers.
    pub gpus: Vec<MscclGpu>,
}

/// GPU: its thread blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MscclGpu {
    /// Thread blocks by their numbers.
    pub blocks: Vec<ThreadBlock>,
}

/// Thread block: what it is connected to, and its steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadBlock {
    /// GPU that it sends to.
    pub send: Option<u32>,
    /// GPU that it receives from.
    pub receive: Option<u32>,
    /// Channel of both connections.
    pub channel: u32,
    /// Steps in their order.
    pub steps: Vec<MscclStep>,
    line: (usize, usize),
}

/// Step of a thread block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MscclStep {
    /// Parts of the step.
    pub kind: StepKind,
    /// First chunk that it reads or sends on.
    pub source: u64,
    /// Number of chunks.
    pub count: u64,
    /// Thread block and step of the same GPU that it waits for.
    pub after: Option<(u32, u32)>,
    line: (usize, usize),
}

/// Kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// `s`: sends.
    Send,
    /// `r`: receives.
    Receive,
    /// `rcs`: receives, copies and sends on.
    ReceiveCopySend,
    /// `rrs`: receives, reduces and sends on.
    ReceiveReduceSend,
    /// `rrc`: receives, reduces and keeps.
    ReceiveReduceCopy,
    /// `rrcs`: receives, reduces, keeps and sends on.
    ReceiveReduceCopySend,
    /// `cpy`: copies within the GPU.
    Copy,
    /// `re`: reduces within the GPU.
    Reduce,
    /// `nop`: only waits.
    Nothing,
}

impl StepKind {
    /// Every kind with its word.
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

    fn word(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    fn receives(self) -> bool {
        self.word().starts_with('r') && self != Self::Reduce
    }

    fn sends(self) -> bool {
        self.word().ends_with('s')
    }
}

/// Returns what stands behind the first `end` in `text`.
fn behind<'t>(text: &'t [u8], end: &[u8]) -> Option<&'t [u8]> {
    let at = text.windows(end.len()).position(|part| part == end)?;
    Some(&text[at + end.len()..])
}

/// Returns what stands behind the first `end` in `text` that is in no quotes.
fn unquoted<'t>(text: &'t [u8], end: &[u8]) -> Option<&'t [u8]> {
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
    /// Returns whether a file that begins with `head` is XML whose root is an algorithm.
    pub fn begins(head: &[u8]) -> bool {
        let mut rest = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
        loop {
            rest = rest.trim_ascii_start();
            // Declarations and comments come before the root.
            let end = match rest {
                // What the parser takes for a declaration; all else is an instruction, which quotes nothing.
                [b'<', b'?', b'x', b'm', b'l', b' ', inside @ ..] => unquoted(inside, b"?>"),
                [b'<', b'?', inside @ ..] => behind(inside, b"?>"),
                [b'<', b'!', b'-', b'-', inside @ ..] => behind(inside, b"-->"),
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

    /// Reads a file: plain, gzip or zstd.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be read, or as [`Self::parse`].
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        parse_text(path, Self::parse)
    }
}

/// Returns the error of a line and column, counted from 1.
fn refused(line: (usize, usize), found: impl Into<String>, hint: impl Into<String>) -> TraceError {
    let place = TraceLocation {
        line: Some(line),
        ..TraceLocation::default()
    };
    TraceError::refused_at(place, found, hint)
}
