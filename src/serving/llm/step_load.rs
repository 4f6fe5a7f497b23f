//! Describes the work of a step, and computes step times as a linear function of this work.

use super::scheduler::RequestTokensInStep;
use chakram_base::units::Span;

/// Quantities from which the time of a step is computed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepTimeInputs {
    /// Total number of tokens that the step computes.
    pub tokens: u64,
    /// Number of requests in the step.
    pub requests: u64,
    /// Number of requests that produce a token in the step.
    pub sampled: u64,
    /// Number of requests that compute exactly one token, after earlier tokens (decode).
    pub decodes: u64,
    /// Number of tokens whose keys and values the decoding requests read, including their own new ones.
    pub decode_context: u64,
    /// The largest number of tokens whose keys and values a single decoding request reads.
    pub longest_context: u64,
    /// For each request that computes several tokens: (number of tokens in the step, number of
    /// tokens computed earlier).
    pub chunks: Vec<(u32, u32)>,
    /// Number of tokens whose keys and values all requests read.
    pub context: u64,
    /// If ranks run in lockstep, the largest number of tokens on any rank; every rank is padded to it.
    pub wave_tokens: u64,
    /// If ranks run in lockstep, the number of tokens on all ranks together.
    pub all_tokens: u64,
}

impl StepTimeInputs {
    /// Sets the load to the work of a step that runs the requests in `shares`.
    pub fn set_work_from_shares(&mut self, shares: &[RequestTokensInStep]) {
        let mut chunks = std::mem::take(&mut self.chunks);
        chunks.clear();
        *self = Self {
            chunks,
            ..Self::default()
        };
        self.requests = shares.len() as u64;
        for share in shares {
            let context = u64::from(share.past) + u64::from(share.tokens);
            self.tokens += u64::from(share.tokens);
            self.context += context;
            self.sampled += u64::from(share.samples);
            if share.tokens == 1 && share.past > 0 {
                self.decodes += 1;
                self.decode_context += context;
                self.longest_context = self.longest_context.max(context);
            } else {
                self.chunks.push((share.tokens, share.past));
            }
        }
        (self.wave_tokens, self.all_tokens) = (self.tokens, self.tokens);
    }
}

impl StepTimeInputs {
    /// Advances the load to the next step, in which the same requests decode one token each.
    pub fn advance_decodes(&mut self) {
        debug_assert!(self.chunks.is_empty(), "all requests answer");
        self.decode_context += self.decodes;
        self.context += self.requests;
        self.longest_context += 1;
    }
}

/// Step time as a linear function of the step's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinearStepTimeCoefficients {
    /// Constant time of each step.
    pub base: Span,
    /// Time per token that the step computes.
    pub token: Span,
    /// Time per request in the step.
    pub request: Span,
    /// Time per token whose keys and values a request reads.
    pub context: Span,
}

impl LinearStepTimeCoefficients {
    /// Returns the time of a step.
    pub fn step_time(&self, load: &StepTimeInputs) -> Span {
        self.base
            + self.token.times(load.tokens)
            + self.request.times(load.requests)
            + self.context.times(load.context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_contexts_and_given_times_of_shares_add_up() {
        let share = |past, tokens| RequestTokensInStep {
            slot: 0,
            number: 0,
            past,
            tokens,
            samples: true,
            hit: 0,
            admitted: false,
        };
        let mut load = StepTimeInputs::default();
        load.set_work_from_shares(&[share(9, 1), share(100, 30), share(0, 1)]);
        // The step has 32 tokens and 3 requests, whose contexts are 10 + 130 + 1 tokens.
        assert_eq!((load.tokens, load.requests, load.context), (32, 3, 141));
        assert_eq!((load.decodes, load.decode_context), (1, 10));
        assert_eq!(load.chunks, [(30, 100), (1, 0)]);
        let linear = LinearStepTimeCoefficients {
            base: Span(1000),
            token: Span(10),
            request: Span(7),
            context: Span(2),
        };
        assert_eq!(linear.step_time(&load), Span(1000 + 320 + 21 + 282));
    }
}
