//! Selects the requests that take part in a step, and how many tokens of each request it computes.
//!
//! There is one rule, *catch up*: within the limits, a step computes all of a request's tokens that have no keys and
//! values yet. At first, the missing tokens are the prompt. While the request answers, one token per step is missing;
//! after a preemption, all tokens are missing again. A step first takes the running requests, in order of admission,
//! and then waiting requests:
//!
//! 1. *Running.* If there are too few free blocks for a request, the last admitted request is preempted. With
//!    priorities, the request with the greatest priority number is preempted; in a tie, the youngest. If a request
//!    preempts itself, the phase ends. A preempted request loses its blocks, keeps its answer, and is the next to be
//!    admitted.
//! 2. *Waiting*, only if no request was preempted. Requests from the head of the queue are admitted until a request
//!    does not fit. Cached blocks at the beginning of a request are shared, but its last token is always computed.
//! 3. The step runs. If all tokens of a request are computed, the request gets one more token. A
//!    request ends with its last token, and frees its blocks.
//!
//! With *prompts first*, a step with prompt tokens has no other tokens. Running requests get their prompt tokens
//! before waiting requests. If there are no prompt tokens, the step computes one token of each running request.
//!
//! With *asynchronous scheduling*, the next step is composed when a step begins. The scheduler then knows how many
//! tokens the running step computes, but not their content. The blocks that they fill are therefore not shared yet. If
//! the running step produces a request's last token, the request takes no part in the next step, but keeps its slot and
//! blocks until the running step ends.

use super::block_pool::KvBlockPool;
use super::decode_run::KvBlockChangeStepQueue;
use super::rules::{BatchJoinRule, EngineRules, KvBlockAllocationTimeRule, WaitingRequestOrder};
use super::token_content::{KvBlockPrefixHash, RequestTokenContent};
use std::collections::{BTreeSet, VecDeque};

/// Maximum number of tokens in a request, even if an engine's memory could store more.
const MOST_TOKENS: u32 = 1 << 30;

/// A request as it is submitted to an engine.
#[derive(Clone, Debug)]
pub struct SubmittedEngineRequest {
    /// Index among all requests, in order of arrival.
    pub number: u64,
    /// Number of prompt tokens, at least one.
    pub prompt: u32,
    /// Number of answer tokens, at least one.
    pub output: u32,
    /// Priority; lower numbers are more urgent.
    pub priority: i32,
    /// The tokens that the request shares with others.
    pub content: RequestTokenContent,
}

/// A request in an engine.
#[derive(Clone, Debug)]
struct EngineRequestState {
    request: SubmittedEngineRequest,
    /// Number of answer tokens produced so far.
    outputs: u32,
    /// Number of tokens whose keys and values exist, including the tokens that the running step
    /// computes.
    computed: u32,
    /// Number of the request's tokens in the step that is being composed.
    taking: u32,
    /// While the next step is composed, the number of answer tokens that the running step will
    /// produce.
    coming: u32,
    /// Number of computed tokens that the request lost in its last preemption; 0 while the request
    /// runs.
    lost: u32,
    is_waiting: bool,
    blocks: Vec<u32>,
    /// Number of blocks whose content is registered.
    named: u32,
    /// Number of tokens, counted from the first, whose full blocks may be registered. A block with tokens that belong
    /// only to this request is registered only when the request is preempted, because no other request can find it.
    findable: u32,
    /// Hashes computed so far: one for each full block, beginning with the first.
    hashes: Vec<KvBlockPrefixHash>,
}

impl EngineRequestState {
    fn token_count(&self) -> u32 {
        self.request.prompt + self.outputs + self.coming
    }

    /// Returns the number of tokens whose content is known.
    fn token_count_with_known_content(&self) -> u32 {
        self.request.prompt + self.outputs
    }

    /// Computes the hashes of the first `blocks` blocks.
    fn compute_block_hashes(&mut self, blocks: u32, size: u32) {
        for block in self.hashes.len() as u32..blocks {
            let before = self
                .hashes
                .last()
                .copied()
                .unwrap_or(KvBlockPrefixHash::START);
            let hash = self.request.content.hash_block(before, block * size, size);
            self.hashes.push(hash);
        }
    }
}

/// One request's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTokensInStep {
    /// Index of the request in the engine.
    pub slot: u32,
    /// Number of the request.
    pub number: u64,
    /// Number of tokens that were computed in earlier steps.
    pub past: u32,
    /// Number of tokens that the step computes.
    pub tokens: u32,
    /// True if the step produces a token of the request's answer.
    pub samples: bool,
    /// Number of cached tokens at the time when this step admitted the request; 0 if it was admitted earlier.
    pub hit: u32,
    /// True if this step admitted the request.
    pub admitted: bool,
}

/// A composed step.
#[derive(Clone, Debug, Default)]
pub struct ComposedEngineStep {
    /// The requests of the step with their tokens, in the order in which the scheduler considered them.
    pub shares: Vec<RequestTokensInStep>,
    /// Preempted requests, in order of preemption.
    pub put_back: Vec<PreemptedRequestLoss>,
    /// Total number of tokens.
    pub tokens: u32,
    /// Number of free blocks after the step was composed.
    pub free_blocks: u32,
}

/// A preempted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreemptedRequestLoss {
    /// Index of the request in the engine.
    pub slot: u32,
    /// Number of the request.
    pub number: u64,
    /// Number of computed tokens that the request lost with its blocks.
    pub lost: u32,
}

/// A token that a step produced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducedToken {
    /// Index of the request in the engine.
    pub slot: u32,
    /// Number of the request.
    pub number: u64,
    /// Number of answer tokens so far, including this token.
    pub outputs: u32,
    /// True if the token is the last of the answer.
    pub is_last: bool,
    /// If the request ends while it waits after a preemption, the number of computed tokens that the preemption lost.
    /// They are not computed again.
    pub ended_waiting: Option<u32>,
}

/// The queue of waiting requests.
#[derive(Clone, Debug)]
enum WaitingRequests {
    InOrder(VecDeque<u32>),
    /// Entries (priority number, request number, slot), in ascending order.
    ByPriority(BTreeSet<(i32, u64, u32)>),
}

impl WaitingRequests {
    fn slot_of_first_waiting_request(&self) -> Option<u32> {
        match self {
            Self::InOrder(all) => all.front().copied(),
            Self::ByPriority(all) => all.first().map(|(_, _, slot)| *slot),
        }
    }

    fn remove(&mut self, priority: i32, number: u64, slot: u32) {
        match self {
            Self::InOrder(all) => all.retain(|other| *other != slot),
            Self::ByPriority(all) => drop(all.remove(&(priority, number, slot))),
        }
    }

    fn remove_first(&mut self) {
        match self {
            Self::InOrder(all) => drop(all.pop_front()),
            Self::ByPriority(all) => drop(all.pop_first()),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::InOrder(all) => all.len(),
            Self::ByPriority(all) => all.len(),
        }
    }
}

/// Which running requests may take part in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EligibleRunningRequests {
    All,
    /// Requests for which several tokens must be computed.
    Prompts,
    /// Requests for which one token must be computed.
    Answers,
}

/// The scheduler of an engine: its requests, its blocks, and its rules.
#[derive(Clone, Debug)]
pub struct StepScheduler {
    rules: EngineRules,
    pool: KvBlockPool,
    watermark_blocks: u32,
    slots: Vec<EngineRequestState>,
    free_slots: Vec<u32>,
    running: Vec<u32>,
    waiting: WaitingRequests,
    /// Requests that arrived since the scheduler last received requests.
    inbox: Vec<u32>,
    /// Number of steps that were composed since the scheduler last received requests.
    since_received: u32,
    /// True if the last composed step was empty or had prompt tokens.
    last_had_prompts: bool,
    step: ComposedEngineStep,
    /// With asynchronous scheduling, the running step; `step` is then the next step.
    launched: ComposedEngineStep,
    visits: KvBlockChangeStepQueue,
}

impl StepScheduler {
    /// Creates the scheduler of an engine with `blocks` blocks.
    pub fn new(rules: EngineRules, blocks: u32) -> Self {
        Self {
            watermark_blocks: (rules.watermark * f64::from(blocks)) as u32,
            pool: KvBlockPool::new(blocks),
            slots: Vec::new(),
            free_slots: Vec::new(),
            running: Vec::new(),
            inbox: Vec::new(),
            since_received: 0,
            last_had_prompts: true,
            waiting: match rules.policy {
                WaitingRequestOrder::FirstCome => WaitingRequests::InOrder(VecDeque::new()),
                WaitingRequestOrder::Priority => WaitingRequests::ByPriority(BTreeSet::new()),
            },
            step: ComposedEngineStep::default(),
            launched: ComposedEngineStep::default(),
            visits: KvBlockChangeStepQueue::default(),
            rules,
        }
    }

    /// Returns the number of blocks for a request's state and all of its tokens. The answer's last token needs no
    /// block, because no step computes its keys and values.
    fn blocks_for_entire_request(&self, prompt: u32, output: u32) -> u64 {
        let tokens =
            (u64::from(prompt) + u64::from(output) - 1).div_ceil(self.rules.block_size.into());
        tokens + u64::from(self.rules.state_blocks)
    }

    /// Returns why a request can never be served; `None` if it can.
    pub fn find_refusal_reason(&self, prompt: u32, output: u32) -> Option<RequestRefusalReason> {
        if self.rules.max_model_len.is_some_and(|most| prompt >= most) {
            return Some(RequestRefusalReason::Length);
        }
        let output = self.truncated_output_length(prompt, output);
        if !self.rules.chunked_prefill && prompt > self.rules.max_num_batched_tokens {
            return Some(RequestRefusalReason::Budget);
        }
        let needed = self.blocks_for_entire_request(prompt, output);
        let is_longest = u64::from(prompt) + u64::from(output) > u64::from(MOST_TOKENS);
        (is_longest || needed > self.pool.block_count().into())
            .then_some(RequestRefusalReason::Blocks)
    }

    /// Returns the number of answer tokens after the request is truncated to the maximum request
    /// length.
    fn truncated_output_length(&self, prompt: u32, output: u32) -> u32 {
        let left = self
            .rules
            .max_model_len
            .map_or(u32::MAX, |most| most - prompt);
        output.min(left)
    }

    /// Appends a request to the queue, and returns its slot. The engine must be able to serve the request
    /// (`find_refusal_reason` returns `None`).
    pub fn enqueue_request(&mut self, mut request: SubmittedEngineRequest) -> u32 {
        request.output = self.truncated_output_length(request.prompt, request.output);
        let slot = match self.free_slots.pop() {
            Some(slot) => {
                let room = &mut self.slots[slot as usize];
                let mut hashes = std::mem::take(&mut room.hashes);
                hashes.clear();
                *room = EngineRequestState {
                    request,
                    hashes,
                    blocks: std::mem::take(&mut room.blocks),
                    outputs: 0,
                    computed: 0,
                    taking: 0,
                    coming: 0,
                    lost: 0,
                    is_waiting: true,
                    named: 0,
                    findable: 0,
                };
                slot
            }
            None => {
                self.slots.push(EngineRequestState {
                    request,
                    outputs: 0,
                    computed: 0,
                    taking: 0,
                    coming: 0,
                    lost: 0,
                    is_waiting: true,
                    blocks: Vec::new(),
                    named: 0,
                    findable: 0,
                    hashes: Vec::new(),
                });
                self.slots.len() as u32 - 1
            }
        };
        self.inbox.push(slot);
        if self.rules.receive_interval == 1 {
            self.receive_requests();
        }
        slot
    }

    /// Moves all requests of the inbox to the queue.
    fn receive_requests(&mut self) {
        for slot in self.inbox.drain(..) {
            let request = &self.slots[slot as usize].request;
            match &mut self.waiting {
                WaitingRequests::InOrder(all) => all.push_back(slot),
                WaitingRequests::ByPriority(all) => {
                    all.insert((request.priority, request.number, slot));
                }
            }
        }
    }

    /// Returns the number of running requests.
    pub fn running_request_count(&self) -> usize {
        self.running.len()
    }

    /// Returns the number of waiting requests.
    pub fn waiting_request_count(&self) -> usize {
        self.waiting.len() + self.inbox.len()
    }

    /// Returns the pool of blocks.
    pub fn block_pool(&self) -> &KvBlockPool {
        &self.pool
    }

    /// Returns how many tokens of the prompt's beginning this engine has in its cache.
    pub fn cached_prefix_length(&self, content: &RequestTokenContent, prompt: u32) -> u32 {
        if !self.rules.prefix_caching {
            return 0;
        }
        let size = self.rules.block_size;
        let (mut hash, mut known) = (KvBlockPrefixHash::START, 0);
        for block in 0..(prompt - 1).min(content.first_unshared_position()) / size {
            hash = content.hash_block(hash, block * size, size);
            if self.pool.find_block(hash).is_none() {
                break;
            }
            known += size;
        }
        known
    }

    /// Composes the next step, which may be empty.
    pub fn compose_step(&mut self) -> &ComposedEngineStep {
        self.step.shares.clear();
        self.step.put_back.clear();
        let mut budget = self.rules.max_num_batched_tokens;
        let was_idle = self.running.is_empty();
        self.since_received += 1;
        if was_idle || self.last_had_prompts || self.since_received >= self.rules.receive_interval {
            self.receive_requests();
            self.since_received = 0;
        }
        if self.rules.batching == BatchJoinRule::PromptsFirst {
            self.schedule_running_requests(&mut budget, EligibleRunningRequests::Prompts);
            if self.step.put_back.is_empty() {
                self.schedule_waiting_requests(&mut budget);
            }
            if self.step.shares.is_empty() && self.step.put_back.is_empty() {
                self.schedule_running_requests(&mut budget, EligibleRunningRequests::Answers);
            }
        } else {
            self.schedule_running_requests(&mut budget, EligibleRunningRequests::All);
            let may_join = self.rules.batching == BatchJoinRule::Continuous || was_idle;
            if self.step.put_back.is_empty() && may_join {
                self.schedule_waiting_requests(&mut budget);
            }
        }
        self.step.tokens = self.rules.max_num_batched_tokens - budget;
        for share in &self.step.shares {
            let slot = &mut self.slots[share.slot as usize];
            slot.computed += share.tokens;
            slot.taking = 0;
            if self.rules.async_scheduling && share.samples {
                slot.coming += 1;
            }
        }
        self.step.free_blocks = self.pool.free_block_count();
        let answers = |share: &RequestTokensInStep| share.tokens == 1 && share.past > 0;
        self.last_had_prompts =
            self.step.shares.is_empty() || !self.step.shares.iter().all(answers);
        &self.step
    }

    /// Begins the step composed last, so that the next one can be composed while it runs. Used only with asynchronous
    /// scheduling.
    pub fn begin_step_composed_ahead(&mut self) {
        std::mem::swap(&mut self.launched, &mut self.step);
    }

    /// Returns the running step.
    pub fn running_step(&self) -> &ComposedEngineStep {
        match self.rules.async_scheduling {
            true => &self.launched,
            false => &self.step,
        }
    }

    /// Returns true if the next step is composed while a step runs.
    pub fn composes_next_step_while_running(&self) -> bool {
        self.rules.async_scheduling
    }

    /// Returns the step that was composed last.
    pub fn last_composed_step(&self) -> &ComposedEngineStep {
        &self.step
    }

    /// Ends the running step, and appends the tokens that it produced to `made`, in the order in which the step lists
    /// its requests.
    pub fn end_step_and_append_produced_tokens(&mut self, made: &mut Vec<ProducedToken>) {
        let mut any_ended = false;
        let is_async = self.rules.async_scheduling;
        let step = match is_async {
            true => std::mem::take(&mut self.launched),
            false => std::mem::take(&mut self.step),
        };
        for share in &step.shares {
            if !share.samples {
                continue;
            }
            let slot = &mut self.slots[share.slot as usize];
            slot.outputs += 1;
            let is_last = slot.outputs == slot.request.output;
            let mut ended_waiting = None;
            if is_async {
                slot.coming -= 1;
                if slot.is_waiting {
                    // The running step produced a token for the request although it was preempted during the step.
                    if is_last {
                        ended_waiting = Some(slot.lost);
                        let (priority, number) = (slot.request.priority, slot.request.number);
                        self.waiting.remove(priority, number, share.slot);
                    }
                } else {
                    let known = slot.computed - slot.coming;
                    self.publish_full_blocks(share.slot, known);
                }
            }
            let slot = &mut self.slots[share.slot as usize];
            made.push(ProducedToken {
                slot: share.slot,
                number: share.number,
                outputs: slot.outputs,
                is_last,
                ended_waiting,
            });
            if is_last {
                self.pool.release_blocks(&mut slot.blocks);
                self.free_slots.push(share.slot);
                any_ended = true;
            }
        }
        if any_ended {
            let slots = &self.slots;
            self.running.retain(|&slot| {
                let slot = &slots[slot as usize];
                slot.outputs < slot.request.output
            });
        }
        // Keep the buffers for later steps.
        match is_async {
            true => self.launched = step,
            false => self.step = step,
        }
    }

    /// Prepares [`try_allocate_blocks_for_run_step`](Self::try_allocate_blocks_for_run_step). Returns how many further
    /// steps, all identical to the last composed one, can run before a request ends. Returns 0 unless every running
    /// request generates one token per step and no waiting request can be admitted.
    pub fn begin_repeated_steps_and_return_limit(&mut self) -> u32 {
        debug_assert!(
            !self.rules.async_scheduling,
            "the next step is composed already"
        );
        let shares = &self.step.shares;
        let may_join = self.waiting.len() > 0
            && self.rules.batching != BatchJoinRule::Static
            && self.running.len() < self.rules.max_num_seqs as usize
            && self.step.tokens < self.rules.max_num_batched_tokens;
        let decodes = |share: &RequestTokensInStep| {
            let request = &self.slots[share.slot as usize].request;
            share.tokens == 1 && share.samples && !share.admitted && share.past >= request.prompt
        };
        let all_run = shares.len() == self.running.len() && self.step.put_back.is_empty();
        let may_join = may_join || !self.inbox.is_empty();
        if may_join || !all_run || !shares.iter().all(decodes) {
            return 0;
        }
        let left = shares.iter().map(|share| {
            let slot = &self.slots[share.slot as usize];
            slot.request.output - slot.outputs - 1
        });
        let left = left.min().unwrap_or(0);
        if left > 0 {
            let visits = shares.iter().map(|share| {
                let content = &self.slots[share.slot as usize].request.content;
                (
                    share.past + 1,
                    content.first_unshared_position() > share.past,
                )
            });
            self.visits
                .start_decode_run_of_step_requests(self.rules.block_size, visits);
        }
        left
    }

    /// Allocates the blocks for step `step` of a run (1 is the step after the composed step). If too few blocks may be
    /// free, returns `false` and changes nothing; [`compose_step`](Self::compose_step) then decides which request to
    /// preempt.
    pub fn try_allocate_blocks_for_run_step(&mut self, step: u32) -> bool {
        let due = self.visits.find_due_requests(step).len();
        if due as u32 > self.pool.free_block_count() {
            return false;
        }
        for at in 0..due {
            let place = self.visits.last_due_requests()[at];
            let share = self.step.shares[place as usize];
            let computed = share.past + 1 + step;
            let grown = self.allocate_blocks_up_to(share.slot, computed);
            debug_assert!(grown, "a block was free for each");
            let is_shared = self.slots[share.slot as usize]
                .request
                .content
                .first_unshared_position()
                > share.past;
            self.visits
                .schedule_block_change(step, place, (computed, is_shared));
        }
        true
    }

    /// Advances all requests of the composed step as if `steps` further steps had run. The last of these steps is still
    /// running, so [`end_step_and_append_produced_tokens`](Self::end_step_and_append_produced_tokens) ends it.
    pub fn advance_requests_by_repeated_steps(&mut self, steps: u32) {
        self.since_received = (self.since_received + steps) % self.rules.receive_interval;
        for share in &mut self.step.shares {
            share.past += steps;
            let slot = &mut self.slots[share.slot as usize];
            slot.outputs += steps;
            slot.computed += steps;
            slot.findable = slot.computed;
        }
    }

    /// Returns how many of a request's tokens a step may compute, within the limits.
    fn tokens_for_next_step(&self, tokens: u32, computed: u32, budget: u32) -> u32 {
        let mut wanted = tokens - computed;
        let threshold = self.rules.long_prefill_token_threshold;
        if threshold > 0 {
            wanted = wanted.min(threshold);
        }
        wanted.min(budget)
    }

    fn schedule_running_requests(&mut self, budget: &mut u32, part: EligibleRunningRequests) {
        let mut at = 0;
        while at < self.running.len() && *budget > 0 {
            let slot = self.running[at];
            let of = &self.slots[slot as usize];
            if of.outputs + of.coming == of.request.output {
                // The running step produces the request's last token.
                at += 1;
                continue;
            }
            let past = of.computed;
            let has_prompt = of.token_count() - past > 1;
            if part == EligibleRunningRequests::Prompts && !has_prompt
                || part == EligibleRunningRequests::Answers && has_prompt
            {
                at += 1;
                continue;
            }
            let wanted = self.tokens_for_next_step(of.token_count(), past, *budget);
            let mut fits = true;
            while !self.allocate_blocks_up_to(slot, past + wanted) {
                let place = self.index_of_preemption_victim();
                let victim = self.running.remove(place);
                if place < at {
                    at -= 1;
                }
                *budget += self.preempt_request(victim);
                if victim == slot {
                    fits = false;
                    break;
                }
            }
            if !fits {
                break;
            }
            *budget -= wanted;
            self.add_request_to_step(slot, past, wanted, None);
            at += 1;
        }
    }

    /// Returns the index of the first request to preempt, among the running requests.
    fn index_of_preemption_victim(&self) -> usize {
        match self.rules.policy {
            WaitingRequestOrder::FirstCome => self.running.len() - 1,
            WaitingRequestOrder::Priority => {
                let key = |at: &usize| {
                    let request = &self.slots[self.running[*at] as usize].request;
                    (request.priority, request.number)
                };
                (0..self.running.len()).max_by_key(key).unwrap_or(0)
            }
        }
    }

    fn schedule_waiting_requests(&mut self, budget: &mut u32) {
        while *budget > 0 && self.running.len() < self.rules.max_num_seqs as usize {
            let Some(slot) = self.waiting.slot_of_first_waiting_request() else {
                break;
            };
            let hit = self.find_known(slot);
            let tokens = self.slots[slot as usize].token_count();
            let wanted = self.tokens_for_next_step(tokens, hit, u32::MAX);
            if !self.rules.chunked_prefill && wanted > *budget {
                break;
            }
            let wanted = wanted.min(*budget);
            if !self.admit_waiting(slot, hit, wanted) {
                break;
            }
            self.waiting.remove_first();
            self.running.push(slot);
            let of = &mut self.slots[slot as usize];
            (of.is_waiting, of.lost) = (false, 0);
            *budget -= wanted;
            self.add_request_to_step(slot, hit, wanted, Some(hit));
        }
    }

    fn add_request_to_step(&mut self, slot: u32, past: u32, tokens: u32, admitted: Option<u32>) {
        let of = &mut self.slots[slot as usize];
        of.taking = tokens;
        let samples = past + tokens == of.token_count();
        self.step.shares.push(RequestTokensInStep {
            slot,
            number: of.request.number,
            past,
            tokens,
            samples,
            hit: admitted.unwrap_or(0),
            admitted: admitted.is_some(),
        });
    }

    /// Preempts a request that was removed from the running requests. Returns how many of its tokens were in the step
    /// that is being composed.
    fn preempt_request(&mut self, slot: u32) -> u32 {
        let of = &mut self.slots[slot as usize];
        let taken = std::mem::take(&mut of.taking);
        let lost = std::mem::take(&mut of.computed);
        let number = of.request.number;
        (of.is_waiting, of.lost) = (true, lost);
        self.step
            .put_back
            .push(PreemptedRequestLoss { slot, number, lost });
        self.register_full_blocks(slot, u32::MAX);
        let of = &mut self.slots[slot as usize];
        self.pool.release_blocks(&mut of.blocks);
        (of.named, of.findable) = (0, 0);
        let key = (of.request.priority, number, slot);
        match &mut self.waiting {
            WaitingRequests::InOrder(all) => all.push_front(slot),
            WaitingRequests::ByPriority(all) => drop(all.insert(key)),
        }
        if taken > 0 {
            self.step.shares.retain(|share| share.slot != slot);
        }
        taken
    }

    /// Allocates blocks for the first `tokens` tokens of a running request. Returns false, and changes nothing, if too
    /// few blocks are free.
    fn allocate_blocks_up_to(&mut self, slot: u32, tokens: u32) -> bool {
        let of = &mut self.slots[slot as usize];
        let needed = tokens.div_ceil(self.rules.block_size) + self.rules.state_blocks;
        let more = needed.saturating_sub(of.blocks.len() as u32);
        if more > self.pool.free_block_count() {
            return false;
        }
        for _ in 0..more {
            of.blocks.extend(self.pool.allocate_block());
        }
        self.publish_full_blocks(slot, tokens);
        true
    }

    /// Returns the number of cached tokens at the beginning of a waiting request.
    fn find_known(&mut self, slot: u32) -> u32 {
        if !self.rules.prefix_caching {
            return 0;
        }
        let size = self.rules.block_size;
        let of = &mut self.slots[slot as usize];
        let mut most = of.token_count() - 1;
        if of.lost == 0 {
            // The request never ran, so no block holds tokens that belong only to it.
            most = most.min(of.request.content.first_unshared_position());
        }
        let most = most / size;
        let mut known = 0;
        while known < most {
            of.compute_block_hashes(known + 1, size);
            if self.pool.find_block(of.hashes[known as usize]).is_none() {
                break;
            }
            known += 1;
        }
        known * size
    }

    /// Allocates blocks for the waiting request `slot`, which has `hit` cached tokens and computes `wanted` tokens.
    /// Returns false, and changes nothing, if too few blocks are free.
    fn admit_waiting(&mut self, slot: u32, hit: u32, wanted: u32) -> bool {
        let size = self.rules.block_size;
        let shared = hit / size;
        let of = &self.slots[slot as usize];
        // A cached block that no request uses is in the free list, so sharing it reduces the number of free blocks.
        let known = of.hashes.iter().take(shared as usize);
        let known = known.filter_map(|hash| self.pool.find_block(*hash));
        let mut shared_blocks = Vec::with_capacity(shared as usize);
        shared_blocks.extend(known);
        let revived = shared_blocks
            .iter()
            .filter(|&&block| self.pool.is_free_block(block));
        let revived = revived.count() as u32;
        let margin = match self.running.is_empty() {
            true => 0,
            false => self.watermark_blocks,
        };
        let fits = |tokens: u32| {
            let more = tokens.div_ceil(size).saturating_sub(shared) + self.rules.state_blocks;
            u64::from(more) + u64::from(revived) + u64::from(margin)
                <= u64::from(self.pool.free_block_count())
        };
        let whole = of.request.prompt + of.request.output - 1;
        let reserved = match self.rules.reserve {
            KvBlockAllocationTimeRule::AsComputed => hit + wanted,
            KvBlockAllocationTimeRule::WholeRequest => whole,
        };
        if !fits(reserved) || self.rules.full_sequence_must_fit && !fits(of.token_count()) {
            return false;
        }
        shared_blocks
            .iter()
            .for_each(|block| self.pool.share_block(*block));
        let of = &mut self.slots[slot as usize];
        of.blocks.append(&mut shared_blocks);
        for _ in shared..reserved.div_ceil(size) + self.rules.state_blocks {
            of.blocks.extend(self.pool.allocate_block());
        }
        of.named = shared;
        of.computed = hit;
        self.publish_full_blocks(slot, hit + wanted);
        true
    }

    /// Registers the full blocks within a request's first `tokens` tokens, so that other requests can find them.
    fn publish_full_blocks(&mut self, slot: u32, tokens: u32) {
        let of = &mut self.slots[slot as usize];
        let tokens = match self.rules.async_scheduling {
            true => tokens.min(of.token_count_with_known_content()),
            false => tokens,
        };
        of.findable = of.findable.max(tokens);
        let own_from = of.request.content.first_unshared_position();
        self.register_full_blocks(slot, own_from);
    }

    /// Registers the full blocks within a request's first `most` tokens, if other requests may find them.
    fn register_full_blocks(&mut self, slot: u32, most: u32) {
        if !self.rules.prefix_caching {
            return;
        }
        let size = self.rules.block_size;
        let of = &mut self.slots[slot as usize];
        let full = of.findable.min(most) / size;
        if full <= of.named {
            return;
        }
        of.compute_block_hashes(full, size);
        for block in of.named..full {
            let hash = of.hashes[block as usize];
            self.pool.register_content(of.blocks[block as usize], hash);
        }
        of.named = full;
    }
}

/// Why a request can never be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestRefusalReason {
    /// The prompt leaves no room for an answer within the maximum request length.
    Length,
    /// The prompt exceeds the maximum size of a step and may not be split.
    Budget,
    /// The request needs more blocks than the engine has.
    Blocks,
}
