//! GOAL schedules, the text format of LogGOPSim and its tracers: per rank, calculations, sends and receives, and the
//! operations that each one requires.

use chakram_trace::format::file::parse_text;
use chakram_trace::format::{TraceError, TraceLocation};
use std::path::Path;

mod emit;
mod parse;
mod text;

/// Schedule of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GoalSchedule {
    /// Program of each rank.
    pub programs: Vec<GoalProgram>,
}

/// Program of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GoalProgram {
    /// Operations in text order, which is also the order of messages with equal tags.
    pub operations: Vec<GoalOperation>,
}

/// Operation of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoalOperation {
    /// Its label; empty if it has none.
    pub label: String,
    /// The operation.
    pub kind: GoalOperationKind,
    /// Processor that it occupies.
    pub cpu: u32,
    /// Indices of operations that must end before it begins; ascending.
    pub after_end: Vec<u32>,
    /// Indices of operations that must begin before it begins; ascending.
    pub after_begin: Vec<u32>,
    /// Line of the text, from 1; 0 if it does not come from a text.
    pub line: usize,
}

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoalOperationKind {
    /// Occupies the processor.
    Calculation {
        /// Time, ns.
        ns: u64,
    },
    /// Sends or receives a message.
    Message {
        /// Whether it receives.
        receive: bool,
        /// Rank at the other end.
        peer: u32,
        /// Bytes.
        bytes: u64,
        /// Tag.
        tag: i32,
    },
}

impl GoalSchedule {
    /// Returns whether a file that begins with `head` is a schedule.
    pub fn begins(head: &[u8]) -> bool {
        let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
        let text = String::from_utf8_lossy(&head[..head.len().min(1 << 16)]);
        // Comments may come first; their line ends are words.
        let mut words = parse::GoalWords::new(&text).filter(|(_, word)| *word != "\n");
        matches!(words.next(), Some((_, "num_ranks")))
    }

    /// Reads a file: plain, gzip or zstd.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be read, or as [`Self::parse`].
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        parse_text(path, Self::parse)
    }

    /// Returns the number of operations of all ranks.
    pub fn operations(&self) -> u64 {
        let programs = self.programs.iter();
        programs
            .map(|program| program.operations.len() as u64)
            .sum()
    }
}

/// Builds an error at a line, counted from 1.
fn refused(line: usize, found: impl Into<String>, hint: impl Into<String>) -> TraceError {
    let place = TraceLocation {
        line: (line > 0).then_some((line, 1)),
        ..TraceLocation::default()
    };
    TraceError::refused_at(place, found, hint)
}
