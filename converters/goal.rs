//! GOAL schedules, the text format of LogGOPSim and its tracers. Each rank has calculations, sends and receives;
//! each operation lists the operations that it requires.

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
    /// Operations in the order of the text. Messages with equal tags match in the order of these operations.
    pub operations: Vec<GoalOperation>,
}

/// Operation of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoalOperation {
    /// Label of the operation; empty if it has none.
    pub label: String,
    /// Calculation, send or receive.
    pub kind: GoalOperationKind,
    /// Processor that the operation occupies.
    pub cpu: u32,
    /// Indices of operations that must end before this one begins, in ascending order.
    pub after_end: Vec<u32>,
    /// Indices of operations that must begin before this one begins, in ascending order.
    pub after_begin: Vec<u32>,
    /// Line in the text, from 1; 0 if the operation does not come from a text.
    pub line: usize,
}

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoalOperationKind {
    /// Occupies the processor for `ns` nanoseconds.
    Calculation {
        /// Duration, ns.
        ns: u64,
    },
    /// Sends or receives a message.
    Message {
        /// Whether the operation's rank receives (rather than sends) the message.
        receive: bool,
        /// Rank at the message's other end.
        peer: u32,
        /// Size of the message, bytes.
        bytes: u64,
        /// Tag of the message.
        tag: i32,
    },
}

impl GoalSchedule {
    /// Returns whether a file that begins with `head` is a schedule.
    pub fn begins_as_goal(head: &[u8]) -> bool {
        let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
        let text = String::from_utf8_lossy(&head[..head.len().min(1 << 16)]);
        // Skip comments, which may come first. For comments, the parser returns only the line ends as words.
        let mut words = parse::GoalWords::new(&text).filter(|(_, word)| *word != "\n");
        matches!(words.next(), Some((_, "num_ranks")))
    }

    /// Reads a file, which may be compressed with gzip or zstd.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, and where [`Self::parse`] fails.
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
    let place = TraceLocation {
        line: (line > 0).then_some((line, 1)),
        ..TraceLocation::default()
    };
    TraceError::invalid_at(place, found, hint)
}
