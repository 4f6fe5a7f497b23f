//! Generates requests one by one: draws them at random, or reads them from a file.

use super::super::error::ServeError;
use super::super::random::{RandomPurpose, RandomStream};
use super::incoming::{
    IncomingRequest, PromptTokensSharedWithOthers, TurnWithCrossConversationPrefix,
};
use super::request_file::FileRequestSource;
use super::token_content::{RequestContentTokenStream, TokenSequencePiece};
use super::workload::{LlmArrivals, LlmWorkload};
use chakram_base::units::{Span, Time};

/// Draws requests, or reads them from a file.
pub struct RequestSource<'w> {
    workload: &'w LlmWorkload,
    seed: u64,
    gaps: RandomStream,
    mix: RandomStream,
    sums: Vec<f64>,
    /// Number of generated requests, including later turns of conversations.
    drawn: u64,
    /// Number of generated requests, excluding later turns of conversations.
    came: u64,
    last: Time,
    file: Option<FileRequestSource>,
    /// Number of requests so far whose answers have no tokens in the file.
    empty_answers: u64,
}

impl<'w> RequestSource<'w> {
    /// Creates a source that generates the requests of `workload`; `seed` determines the random
    /// numbers.
    pub fn new(workload: &'w LlmWorkload, seed: u64) -> Result<Self, ServeError> {
        let mut sum = 0.0;
        let sums = workload.classes.iter().map(|class| {
            sum += class.weight;
            sum
        });
        let file = match &workload.arrivals {
            LlmArrivals::File { path, speed } => Some(FileRequestSource::open_file(path, *speed)?),
            _ => None,
        };
        Ok(Self {
            sums: sums.collect(),
            workload,
            seed,
            gaps: RandomStream::new(seed, RandomPurpose::Gaps),
            mix: RandomStream::new(seed, RandomPurpose::Mix),
            drawn: 0,
            came: 0,
            last: Time::ZERO,
            file,
            empty_answers: 0,
        })
    }

    /// Returns the next request whose arrival does not depend on an answer. Returns `None` if there are no more, or if
    /// users send all requests (each after an answer).
    pub fn next_independent_request(&mut self) -> Result<Option<IncomingRequest>, ServeError> {
        if self.workload.count.is_some_and(|most| self.came >= most) {
            return Ok(None);
        }
        let at = match self.workload.arrivals {
            LlmArrivals::Poisson(rate) => {
                self.last + Span::from_seconds_saturating(self.gaps.next_exponential(1.0 / rate))
            }
            LlmArrivals::Constant(rate) => {
                // Compute the time from the number of requests, so that rounding errors do not
                // accumulate.
                Time::ZERO + Span::from_seconds_saturating(self.came as f64 / rate)
            }
            LlmArrivals::Bursts { burst, every } => {
                Time::ZERO + every.times(self.came / u64::from(burst))
            }
            LlmArrivals::AtOnce => Time::ZERO,
            LlmArrivals::Users { .. } => return Ok(None),
            LlmArrivals::File { .. } => return self.read_next_file_request(),
        };
        if self.is_after_workload_end(at) {
            return Ok(None);
        }
        self.last = at;
        Ok(Some(self.draw_request(at)))
    }

    fn is_after_workload_end(&self, at: Time) -> bool {
        let end = self.workload.duration;
        end.is_some_and(|duration| at >= Time::ZERO + duration)
    }

    fn read_next_file_request(&mut self) -> Result<Option<IncomingRequest>, ServeError> {
        let Some(file) = &mut self.file else {
            return Ok(None);
        };
        let Some(request) = file.next()? else {
            return Ok(None);
        };
        let empty_answers = file.empty_answer_count();
        if self.is_after_workload_end(request.at) {
            return Ok(None);
        }
        self.empty_answers = empty_answers;
        self.drawn += 1;
        self.came += 1;
        Ok(Some(request))
    }

    /// Returns the number of requests so far whose answers have no tokens in the file.
    pub fn empty_answer_count(&self) -> u64 {
        self.empty_answers
    }

    /// Returns the request that a user sends at `at`. Returns `None` once the scenario's maximum number of requests or
    /// its duration is reached.
    pub fn make_user_request(&mut self, at: Time) -> Option<IncomingRequest> {
        let over = self.workload.count.is_some_and(|most| self.came >= most)
            || self.is_after_workload_end(at);
        (!over).then(|| self.draw_request(at))
    }

    fn draw_request(&mut self, at: Time) -> IncomingRequest {
        self.came += 1;
        let class = match self.sums.len() {
            1 => 0,
            _ => self.mix.pick_weighted_index(&self.sums) as u32,
        };
        let of = &self.workload.classes[class as usize];
        let mut random = self.next_request_random_stream();
        let (own, output) = (
            of.input.draw_length(&mut random),
            of.output.draw_length(&mut random),
        );
        let conversation = self.came - 1;
        let shared = (of.shared_prefix > 0).then(|| {
            let chosen =
                ((random.next_unit() * f64::from(of.prefixes)) as u32).min(of.prefixes - 1);
            let prefix = u64::from(class) << 32 | u64::from(chosen);
            (
                RequestContentTokenStream::from_prefix_number(prefix),
                of.shared_prefix,
            )
        });
        let turn = (of.turns > 1).then_some(TurnWithCrossConversationPrefix {
            conversation,
            turn: 0,
            shared,
        });
        let prompt = own + of.shared_prefix;
        IncomingRequest {
            at,
            class,
            prompt,
            output,
            content: match turn {
                None => PromptTokensSharedWithOthers::Behind(shared),
                Some(turn) => conversation_prompt_content(turn, prompt),
            },
            conversation: turn,
            priority: None,
        }
    }

    fn next_request_random_stream(&mut self) -> RandomStream {
        self.drawn += 1;
        RandomStream::of_item(self.seed, RandomPurpose::Lengths, self.drawn - 1)
    }

    /// Returns the turn that follows a turn with `prompt` and `output` tokens, if the conversation
    /// continues.
    pub fn next_conversation_turn(
        &mut self,
        at: Time,
        class: u32,
        last: TurnWithCrossConversationPrefix,
        (prompt, output): (u32, u32),
    ) -> Option<IncomingRequest> {
        let of = &self.workload.classes[class as usize];
        let turn = TurnWithCrossConversationPrefix {
            turn: last.turn + 1,
            ..last
        };
        if turn.turn >= of.turns {
            return None;
        }
        let mut random = self.next_request_random_stream();
        let (own, next) = (
            of.input.draw_length(&mut random),
            of.output.draw_length(&mut random),
        );
        let prompt = prompt.saturating_add(output).saturating_add(own);
        Some(IncomingRequest {
            at: at + of.think,
            class,
            prompt,
            output: next,
            content: conversation_prompt_content(turn, prompt),
            conversation: Some(turn),
            priority: None,
        })
    }
}

/// Returns the content of the first `prompt` tokens of a conversation.
fn conversation_prompt_content(
    turn: TurnWithCrossConversationPrefix,
    prompt: u32,
) -> PromptTokensSharedWithOthers {
    let mut pieces = Vec::new();
    let common = turn.shared.map_or(0, |(_, common)| common);
    if let Some((stream, tokens)) = turn.shared {
        pieces.push(TokenSequencePiece {
            stream,
            from: 0,
            tokens,
        });
    }
    pieces.push(TokenSequencePiece {
        stream: RequestContentTokenStream::from_conversation_number(turn.conversation),
        from: common,
        tokens: prompt - common,
    });
    PromptTokensSharedWithOthers::Pieces(pieces)
}
