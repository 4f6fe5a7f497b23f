//! Counts collectives that a formula answers instead of a simulation, and numbers the answers that can still be
//! withdrawn.

use crate::CompletedReplayTotals;

/// Answer numbers wrap around at this value, because an end event stores its answer's number in the rank field.
const ANSWERS: u32 = 1 << 27;

/// Counts of analytical answers, and the last answer number assigned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AnalyticalAnswerCounts {
    /// Number of collectives that were answered analytically, without simulated messages.
    pub closed: u64,
    pub stepwise: u64,
    pub unfolded: u64,
    pub recorded: u64,
    /// Number of analytical answers that can still be withdrawn; `numbered` is the answer number assigned last.
    revocable: u32,
    numbered: u32,
}

impl AnalyticalAnswerCounts {
    /// Counts an answer that can be withdrawn, and returns its number.
    pub fn count_revocable_answer(&mut self) -> u32 {
        self.revocable += 1;
        // Numbers wrap around to 1, because 0 means no reservation.
        self.numbered = self.numbered % (ANSWERS - 1) + 1;
        self.numbered
    }

    /// Records that a revocable answer became final or was withdrawn.
    pub fn decrement_revocable_answer_count(&mut self) {
        self.revocable -= 1;
    }

    /// Returns true if any answer can still be withdrawn.
    pub fn has_revocable_answers(&self) -> bool {
        self.revocable > 0
    }

    /// Writes the counts of answers to `outcome`.
    pub fn write_answer_counts_to_outcome(&self, outcome: &mut CompletedReplayTotals) {
        outcome.closed = self.closed;
        outcome.stepwise = self.stepwise;
        outcome.unfolded = self.unfolded;
        outcome.recorded = self.recorded;
    }
}
