//! Reads and writes GOAL schedules, the text format of LogGOPSim and its tracers. Each rank has calculations, sends and
//! receives. Each of these lists the operations that it depends on.

use chakram_trace::format::file::parse_text;
use chakram_trace::format::{TraceError, TraceErrorLocation};
use std::path::Path;

mod emit;
mod parse;
mod text;

/// Schedule of a job: one program per rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GoalSchedule {
    /// Program of each rank.
    pub programs: Vec<GoalRankProgram>,
}

/// Program of a rank: its operations and their dependencies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GoalRankProgram {
    /// Operations, in the order in which the text lists them. Messages with equal tags match in the order of these
    /// operations.
    pub operations: Vec<GoalOperation>,
}

/// A calculation, send or receive of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoalOperation {
    /// Label of the operation; empty if it has none.
    pub label: String,
    /// Calculation, send or receive.
    pub kind: GoalOperationKind,
    /// Processor that the operation occupies.
    pub cpu: u32,
    /// Indices of the operations that must have ended before this one begins, in ascending order.
    pub after_end: Vec<u32>,
    /// Indices of the operations that must have begun before this one begins, in ascending order.
    pub after_begin: Vec<u32>,
    /// Line in the text, from 1; 0 if the operation does not come from a text.
    pub line: usize,
}

/// Calculation or message, with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoalOperationKind {
    /// Occupies the processor for `ns` nanoseconds.
    Calculation {
        /// Duration in ns.
        ns: u64,
    },
    /// Sends or receives a message.
    Message {
        /// True if the operation receives the message, false if it sends it.
        receive: bool,
        /// Rank at the message's other end.
        peer: u32,
        /// Size of the message, in bytes.
        bytes: u64,
        /// Tag of the message.
        tag: i32,
    },
}

impl GoalSchedule {
    /// Returns true if a file that begins with `head` is a schedule.
    pub fn begins_as_goal(head: &[u8]) -> bool {
        let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
        let text = String::from_utf8_lossy(&head[..head.len().min(1 << 16)]);
        // Skip comments before the first statement. The tokenizer omits them, but still returns their line ends as
        // words.
        let mut words = parse::GoalTokenizer::new(&text).filter(|(_, word)| *word != "\n");
        matches!(words.next(), Some((_, "num_ranks")))
    }

    /// Reads a file, which may be compressed with gzip or zstd.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or if [`Self::parse`] fails.
    pub fn open_file(path: &Path) -> Result<Self, TraceError> {
        parse_text(path, Self::parse)
    }

    /// Returns the number of operations, summed over all ranks.
    pub fn operation_count(&self) -> u64 {
        let programs = self.programs.iter();
        programs
            .map(|program| program.operations.len() as u64)
            .sum()
    }
}

/// Builds the error for an invalid file; `line` counts from 1.
fn error_at_line(line: usize, found: impl Into<String>, hint: impl Into<String>) -> TraceError {
    let place = TraceErrorLocation {
        line: (line > 0).then_some((line, 1)),
        ..TraceErrorLocation::default()
    };
    TraceError::invalid_at(place, found, hint)
}
