//! Notifies callers of steps and completed requests.

use super::scheduler::ComposedEngineStep;
use chakram_base::units::{Span, Time};
use std::io;

/// Description of one step, created when the step begins.
#[derive(Clone, Copy, Debug)]
pub struct BegunEngineStep<'s> {
    /// Index of the engine.
    pub engine: u32,
    /// Index of the step within its engine.
    pub number: u64,
    /// Beginning of the step.
    pub begin: Time,
    /// End of the step.
    pub end: Time,
    /// Requests in the step, with their tokens.
    pub step: &'s ComposedEngineStep,
    /// Number of running requests.
    pub running: u64,
    /// Number of waiting requests.
    pub waiting: u64,
    /// Number of blocks that no request uses.
    pub free_blocks: u32,
}

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedLlmRequest {
    /// Index among all requests, in order of arrival.
    pub number: u64,
    /// Index of the request's class.
    pub class: u32,
    /// Index of the engine that served the request.
    pub engine: u32,
    /// Time at which the client sent the request.
    pub arrival: Time,
    /// Time at which the request entered the queue of its engine.
    pub queued: Time,
    /// Time at which the request's first step began.
    pub scheduled: Time,
    /// Time at which the engine produced the request's first token.
    pub first: Time,
    /// Time at which the engine produced the request's last token.
    pub last: Time,
    /// Time that a token takes from the engine to the client.
    pub after: Span,
    /// Number of prompt tokens.
    pub prompt: u32,
    /// Number of answer tokens.
    pub output: u32,
    /// Number of prompt tokens that were in the cache on the request's first admission.
    pub hit: u32,
    /// Number of preemptions of the request.
    pub put_back: u32,
    /// Number of tokens that were computed again after preemptions.
    pub recomputed: u64,
}

impl CompletedLlmRequest {
    /// Returns the time to first token, as the client observes it.
    pub fn time_to_first_token(&self) -> Span {
        self.first.since(self.arrival) + self.after
    }

    /// Returns the time per token after the first, or `None` for an answer of one token.
    pub fn time_per_token(&self) -> Option<Span> {
        let gaps = u64::from(self.output)
            .checked_sub(1)
            .filter(|gaps| *gaps > 0)?;
        let span = self.last.since(self.first).0;
        Some(Span((span + gaps / 2) / gaps))
    }

    /// Returns the time from when the client sends the request until it receives the last token.
    pub fn end_to_end_time(&self) -> Span {
        self.last.since(self.arrival) + self.after
    }

    /// Returns the time from the request's arrival at the engine until its first step.
    pub fn queue_time(&self) -> Span {
        self.scheduled.since(self.queued)
    }
}

/// Receives notifications of steps and requests.
pub trait LlmObserver {
    /// Returns true if [`Self::on_step`] should be called.
    fn wants_steps(&self) -> bool {
        false
    }

    /// Called when a step begins.
    fn on_step(&mut self, _step: &BegunEngineStep<'_>) {}

    /// Called when a request is complete.
    ///
    /// # Errors
    ///
    /// Fails if the request cannot be written; the run then ends.
    fn on_completed(&mut self, _request: &CompletedLlmRequest) -> io::Result<()> {
        Ok(())
    }
}

/// Ignores all notifications.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLlmObserver;

impl LlmObserver for NoLlmObserver {}
