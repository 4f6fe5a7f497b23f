//! Numbers of the answers by closed form that can be taken back, and how collectives were answered.

use crate::ReplayOutcome;

/// Modulus of the numbers of answers: the end event of a run carries one in the bits of a rank.
const ANSWERS: u32 = 1 << 27;

/// Answers so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AnswerCounts {
    /// By closed form, message by message, first one and then the other, and as recorded.
    pub closed: u64,
    pub stepwise: u64,
    pub unfolded: u64,
    pub recorded: u64,
    /// By closed form that can still be taken back, and how many there have been.
    revocable: u32,
    numbered: u32,
}

impl AnswerCounts {
    /// Counts an answer that can be taken back, and returns its number.
    pub fn number(&mut self) -> u32 {
        self.revocable += 1;
        // Numbers wrap round from 1: 0 stands for no reservation.
        self.numbered = self.numbered % (ANSWERS - 1) + 1;
        self.numbered
    }

    /// Counts an answer that stands, or was taken back.
    pub fn settle(&mut self) {
        self.revocable -= 1;
    }

    /// Returns whether there are answers that can be taken back.
    pub fn are_revocable(&self) -> bool {
        self.revocable > 0
    }

    /// Adds them to an outcome.
    pub fn count(&self, outcome: &mut ReplayOutcome) {
        outcome.closed = self.closed;
        outcome.stepwise = self.stepwise;
        outcome.unfolded = self.unfolded;
        outcome.recorded = self.recorded;
    }
}
