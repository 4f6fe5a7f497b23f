//! What callers may be told of steps and requests.

use super::scheduler::EngineStep;
use chakram_base::units::{Span, Time};
use std::io;

/// A step that begins.
#[derive(Clone, Copy, Debug)]
pub struct StepRecord<'s> {
    /// The engine.
    pub engine: u32,
    /// Number among the engine's steps.
    pub number: u64,
    /// Beginning.
    pub begin: Time,
    /// End.
    pub end: Time,
    /// What it does.
    pub step: &'s EngineStep,
    /// Requests that run.
    pub running: u64,
    /// Requests that wait.
    pub waiting: u64,
    /// Blocks that no request holds.
    pub free_blocks: u32,
}

/// A request that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedLlmRequest {
    /// Number among all, in the order of arrival.
    pub number: u64,
    /// Index of its class.
    pub class: u32,
    /// The engine that served it.
    pub engine: u32,
    /// When its client sent it.
    pub arrival: Time,
    /// When it came into the queue of its engine.
    pub queued: Time,
    /// When it first took part in a step.
    pub scheduled: Time,
    /// When the engine had its first token.
    pub first: Time,
    /// When the engine had its last token.
    pub last: Time,
    /// From the engine to its client.
    pub after: Span,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the answer.
    pub output: u32,
    /// Tokens of the prompt that were known when it was first admitted.
    pub hit: u32,
    /// Number of times that it was put back.
    pub put_back: u32,
    /// Tokens that were computed again for that.
    pub recomputed: u64,
}

impl CompletedLlmRequest {
    /// Time to first token, as the client sees it.
    pub fn ttft(&self) -> Span {
        self.first.since(self.arrival) + self.after
    }

    /// Time of each token after the first; `None` if there is none.
    pub fn tpot(&self) -> Option<Span> {
        let gaps = u64::from(self.output)
            .checked_sub(1)
            .filter(|gaps| *gaps > 0)?;
        let span = self.last.since(self.first).0;
        Some(Span((span + gaps / 2) / gaps))
    }

    /// From the client's sending to its last token.
    pub fn e2e(&self) -> Span {
        self.last.since(self.arrival) + self.after
    }

    /// From the engine's queue to its first step.
    pub fn queue(&self) -> Span {
        self.scheduled.since(self.queued)
    }
}

/// Is told of steps and requests.
pub trait LlmObserver {
    /// Whether it is told of steps.
    fn wants_steps(&self) -> bool {
        false
    }

    /// A step begins.
    fn step(&mut self, _step: &StepRecord<'_>) {}

    /// A request is complete.
    ///
    /// # Errors
    ///
    /// If it cannot be written; the run ends then.
    fn completed(&mut self, _request: &CompletedLlmRequest) -> io::Result<()> {
        Ok(())
    }
}

/// Is told nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLlmObserver;

impl LlmObserver for NoLlmObserver {}
