//! Runs engines over time. Requests arrive and are assigned to engines, and engines run steps.
//!
//! Events at the same instant are handled in this order. First, steps end. Then requests arrive, in the order of their
//! numbers, and are assigned to engines. Finally, idle engines begin their next steps, in the order of their indices. A
//! request that arrives when a step ends can therefore take part in the next step.

use super::super::error::ServeError;
use super::deployment::IdenticalLlmEngines;
use super::incoming::{IncomingRequest, TurnWithCrossConversationPrefix};
use super::metrics::LlmRunRecorder;
use super::observe::{BegunEngineStep, CompletedLlmRequest, LlmObserver};
use super::scenario::{EngineRoutingRule, LlmScenario};
use super::scheduler::{
    ProducedToken, RequestRefusalReason, StepScheduler, SubmittedEngineRequest,
};
use super::source::RequestSource;
use super::step_cost::StepPartTimeCache;
use super::step_load::StepTimeInputs;
use super::workload::LlmArrivals;
use chakram_base::units::{Span, Time};
use std::collections::BTreeMap;

/// A request that is sent but not complete.
#[derive(Clone, Debug)]
struct LiveRequest {
    number: u64,
    class: u32,
    arrival: Time,
    queued: Time,
    scheduled: Option<Time>,
    first: Option<Time>,
    last: Time,
    prompt: u32,
    hit: u32,
    put_back: u32,
    recomputed: u64,
    conversation: Option<TurnWithCrossConversationPrefix>,
}

/// One engine, with its scheduler and its current step.
#[derive(Debug)]
struct RunningEngine {
    scheduler: StepScheduler,
    /// Requests of the engine, by slot.
    live: Vec<Option<LiveRequest>>,
    /// Beginning and end of the current step.
    step: Option<(Time, Time)>,
    /// Number of steps that have begun so far.
    steps: u64,
    busy_ps: u128,
    used_blocks: u32,
}

/// An event other than the end of a step.
#[derive(Debug)]
enum RequestSendOrEnterEvent {
    /// A client sends a request.
    Send(Box<IncomingRequest>),
    /// A request reaches the queue of an engine.
    Enter(u64, Box<IncomingRequest>),
}

/// State of a run: its engines, its pending events and its records.
pub(super) struct LlmRunState<'s> {
    scenario: &'s LlmScenario,
    deployment: &'s IdenticalLlmEngines,
    engines: Vec<RunningEngine>,
    source: RequestSource<'s>,
    next: Option<IncomingRequest>,
    /// Pending events, ordered by instant, then by when they were created.
    timers: BTreeMap<(Time, u64), RequestSendOrEnterEvent>,
    timer_number: u64,
    /// True if an idle engine may have requests for a step.
    is_due: bool,
    now: Time,
    /// When the front end can tokenize the next prompt.
    front_end_free: Time,
    arrived: u64,
    turn: usize,
    load: StepTimeInputs,
    memo: StepPartTimeCache,
    made: Vec<ProducedToken>,
    /// How runs of identical steps will change the number of used blocks. The changes are kept here so that those of
    /// several engines are applied in time order.
    block_changes: BTreeMap<Time, i64>,
    recorder: LlmRunRecorder,
    observer: &'s mut dyn LlmObserver,
    failure: Option<ServeError>,
}

impl<'s> LlmRunState<'s> {
    pub fn new(
        scenario: &'s LlmScenario,
        deployment: &'s IdenticalLlmEngines,
        observer: &'s mut dyn LlmObserver,
    ) -> Result<Self, ServeError> {
        let mut source = RequestSource::new(&scenario.workload, scenario.seed)?;
        let next = source.next_independent_request()?;
        let engine = || RunningEngine {
            scheduler: StepScheduler::new(deployment.rules.clone(), deployment.blocks),
            live: Vec::new(),
            step: None,
            steps: 0,
            busy_ps: 0,
            used_blocks: 0,
        };
        let mut server = Self {
            engines: (0..deployment.replicas * deployment.ranks)
                .map(|_| engine())
                .collect(),
            recorder: LlmRunRecorder::new(scenario),
            scenario,
            deployment,
            source,
            next,
            timers: BTreeMap::new(),
            timer_number: 0,
            is_due: false,
            now: Time::ZERO,
            front_end_free: Time::ZERO,
            arrived: 0,
            turn: 0,
            load: StepTimeInputs::default(),
            memo: StepPartTimeCache::default(),
            made: Vec::new(),
            block_changes: BTreeMap::new(),
            observer,
            failure: None,
        };
        if let LlmArrivals::Users { users, .. } = scenario.workload.arrivals {
            for _ in 0..users {
                server.schedule_user_request(Time::ZERO);
            }
        }
        Ok(server)
    }

    /// Returns the next instant at which an event is due that is not the end of a step; `None` if there is none.
    pub fn next_due_time_besides_step_ends(&self) -> Option<Time> {
        if self.failure.is_some() {
            return None;
        }
        if self.is_due {
            return Some(self.now);
        }
        let timer = self.timers.first_key_value().map(|((at, _), _)| *at);
        let arrival = self.next.as_ref().map(|next| next.at);
        [timer, arrival].into_iter().flatten().min()
    }

    /// Handles all events due at `now`, and begins steps; calls `begin` with the index of each engine whose step
    /// begins.
    pub fn handle_due_events_and_begin_steps(&mut self, now: Time, mut begin: impl FnMut(u32)) {
        if self.failure.is_some() {
            return;
        }
        self.now = now;
        self.is_due = false;
        if let Err(error) = self.send_and_deliver_due_requests() {
            self.failure = Some(error);
            return;
        }
        self.record_pending_block_changes(Time(now.0.saturating_add(1)));
        let ranks = self.deployment.ranks as usize;
        for first in (0..self.engines.len()).step_by(ranks) {
            let begins = self.engines[first].step.is_none()
                && match ranks {
                    1 => self.begin_step(first),
                    _ => self.begin_step_on_all_ranks(first),
                };
            if begins {
                begin(first as u32);
            }
        }
    }

    /// Returns the end of an engine's current step.
    pub fn step_end_time(&self, engine: u32) -> Time {
        let step = self.engines[engine as usize].step;
        step.map_or(self.now, |(_, end)| end)
    }

    fn send_and_deliver_due_requests(&mut self) -> Result<(), ServeError> {
        while let Some(entry) = self.timers.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            match entry.remove() {
                RequestSendOrEnterEvent::Send(request) => self.send_request(*request),
                RequestSendOrEnterEvent::Enter(number, request) => {
                    self.deliver_request_to_engine(number, *request)
                }
            }
        }
        while let Some(next) = self.next.take_if(|next| next.at <= self.now) {
            self.send_request(next);
            self.next = self.source.next_independent_request()?;
        }
        Ok(())
    }

    fn add_timer(&mut self, at: Time, timer: RequestSendOrEnterEvent) {
        self.timers.insert((at, self.timer_number), timer);
        self.timer_number += 1;
    }

    /// Makes a user send a request at time `at`, unless all of the scenario's requests have been sent.
    fn schedule_user_request(&mut self, at: Time) {
        if let Some(request) = self.source.make_user_request(at) {
            self.add_timer(at, RequestSendOrEnterEvent::Send(Box::new(request)));
        }
    }

    fn send_request(&mut self, request: IncomingRequest) {
        let number = self.arrived;
        self.arrived += 1;
        self.recorder.on_arrived(number, request.class, self.now);
        let client = self.scenario.client;
        if client.tokenize > Span::ZERO {
            let begin = self.front_end_free.max(self.now);
            self.front_end_free = begin + client.tokenize.times(request.prompt.into());
        }
        match self.front_end_free.max(self.now) + client.before {
            at if at == self.now => self.deliver_request_to_engine(number, request),
            at => self.add_timer(
                at,
                RequestSendOrEnterEvent::Enter(number, Box::new(request)),
            ),
        }
    }

    fn deliver_request_to_engine(&mut self, number: u64, request: IncomingRequest) {
        let IncomingRequest {
            at,
            class,
            prompt,
            output,
            conversation,
            ..
        } = request;
        let content = request.content.token_content_of_request(number, prompt);
        if let Some(why) = self.engines[0]
            .scheduler
            .find_refusal_reason(prompt, output)
        {
            self.answer_refused_request(number, class, why);
            return;
        }
        let engine = self.pick_engine_for_request(&content, prompt);
        let of_class = self.scenario.workload.classes[class as usize].priority;
        let priority = request.priority.unwrap_or(of_class);
        self.recorder.widen_priority_range(priority);
        let of = &mut self.engines[engine];
        let slot = of.scheduler.enqueue_request(SubmittedEngineRequest {
            number,
            prompt,
            output,
            priority,
            content,
        });
        let live = LiveRequest {
            number,
            class,
            arrival: at,
            queued: self.now,
            scheduled: None,
            first: None,
            last: self.now,
            prompt,
            hit: 0,
            put_back: 0,
            recomputed: 0,
            conversation,
        };
        let places = &mut of.live;
        if places.len() <= slot as usize {
            places.resize_with(slot as usize + 1, || None);
        }
        places[slot as usize] = Some(live);
        self.recorder.waiting.change_level(self.now, 1);
    }

    /// Rejects a request that no engine can serve: the client immediately receives an error.
    fn answer_refused_request(&mut self, number: u64, class: u32, why: RequestRefusalReason) {
        self.recorder
            .record_refused_request(number, class, why, self.now);
        if let LlmArrivals::Users { think, .. } = self.scenario.workload.arrivals {
            self.schedule_user_request(self.now + think.max(Span(1)));
        }
    }

    /// Returns the engine to which the router assigns a request.
    fn pick_engine_for_request(
        &mut self,
        content: &super::token_content::RequestTokenContent,
        prompt: u32,
    ) -> usize {
        let count = self.engines.len();
        if count == 1 {
            return 0;
        }
        let outstanding = |engine: &RunningEngine| {
            engine.scheduler.running_request_count() + engine.scheduler.waiting_request_count()
        };
        match self.scenario.router {
            EngineRoutingRule::RoundRobin => {
                let engine = self.turn;
                self.turn = (self.turn + 1) % count;
                engine
            }
            EngineRoutingRule::LeastOutstanding => {
                let least = (0..count).min_by_key(|&engine| outstanding(&self.engines[engine]));
                least.unwrap_or(0)
            }
            EngineRoutingRule::LongestPrefix => {
                let key = |&engine: &usize| {
                    let of = &self.engines[engine];
                    let known = of.scheduler.cached_prefix_length(content, prompt);
                    (std::cmp::Reverse(known), outstanding(of))
                };
                (0..count).min_by_key(key).unwrap_or(0)
            }
        }
    }

    /// Notifies the observer of the step that an engine begins now, if the observer wants steps.
    fn notify_observer_of_begun_step(&mut self, engine: usize, end: Time) {
        if !self.observer.wants_steps() {
            return;
        }
        let of = &self.engines[engine];
        let step = of.scheduler.running_step();
        self.observer.on_step(&BegunEngineStep {
            engine: engine as u32,
            number: of.steps - 1,
            begin: self.now,
            end,
            step,
            running: of.scheduler.running_request_count() as u64,
            waiting: of.scheduler.waiting_request_count() as u64,
            free_blocks: step.free_blocks,
        });
    }

    /// Composes the next step of an engine that has requests. If a step's first request preempts itself, the step is
    /// empty and takes no time. The engine then composes another one.
    fn compose_until_step_is_nonempty(&mut self, engine: usize) {
        loop {
            self.compose_step(engine);
            let step = self.engines[engine].scheduler.last_composed_step();
            if !step.shares.is_empty() || step.put_back.is_empty() {
                return;
            }
        }
    }

    /// Begins the next step of an engine; returns false if the engine has no requests.
    fn begin_step(&mut self, engine: usize) -> bool {
        let now = self.now;
        let of = &mut self.engines[engine];
        if of.scheduler.running_request_count() + of.scheduler.waiting_request_count() == 0 {
            return false;
        }
        let is_composed = of.scheduler.composes_next_step_while_running()
            && !of.scheduler.last_composed_step().shares.is_empty();
        if !is_composed {
            self.compose_until_step_is_nonempty(engine);
        }
        let of = &mut self.engines[engine];
        if of.scheduler.composes_next_step_while_running() {
            of.scheduler.begin_step_composed_ahead();
        }
        let step = of.scheduler.running_step();
        if step.shares.is_empty() {
            self.failure = Some(ServeError::Unfit(format!(
                "internal error: engine {engine} has {} requests but can serve none of them",
                of.scheduler.running_request_count() + of.scheduler.waiting_request_count()
            )));
            return false;
        }
        self.load.set_work_from_shares(&step.shares);
        let (time, parts) = self.deployment.price.step_time(&self.load, &mut self.memo);
        let end = now + time;
        of.steps += 1;
        self.recorder.on_step(&self.load, time, parts.as_ref());
        self.recorder
            .record_begun_step_tokens(now, self.load.tokens);
        self.notify_observer_of_begun_step(engine, end);
        let is_async = self.engines[engine]
            .scheduler
            .composes_next_step_while_running();
        if is_async {
            self.compose_step(engine);
        }
        self.record_used_blocks(engine, now);
        let end = match is_async || self.observer.wants_steps() {
            true => end,
            false => self.simulate_repeated_steps(engine, end),
        };
        let of = &mut self.engines[engine];
        of.busy_ps += u128::from(end.since(now).0);
        of.step = Some((now, end));
        true
    }

    /// Begins the next step of all ranks of an engine; `first` is the engine's first rank. The step lasts as long as
    /// that of the slowest rank. Returns false if no rank has requests.
    fn begin_step_on_all_ranks(&mut self, first: usize) -> bool {
        let now = self.now;
        let wave = first..first + self.deployment.ranks as usize;
        let has_requests = |of: &RunningEngine| {
            of.scheduler.running_request_count() + of.scheduler.waiting_request_count() > 0
        };
        if !self.engines[wave.clone()].iter().any(has_requests) {
            return false;
        }
        let mut loads = Vec::new();
        for rank in wave.clone() {
            self.compose_until_step_is_nonempty(rank);
            let mut load = StepTimeInputs::default();
            load.set_work_from_shares(&self.engines[rank].scheduler.last_composed_step().shares);
            loads.push(load);
        }
        let widest = loads.iter().map(|load| load.tokens).max().unwrap_or(0);
        let all: u64 = loads.iter().map(|load| load.tokens).sum();
        if all == 0 {
            self.failure = Some(ServeError::Unfit(format!(
                "the ranks from {first} on have requests and can serve none of them: a fault of this program"
            )));
            return false;
        }
        // Ranks without requests compute a dummy step, which is never longer than the other ranks'
        // steps.
        let mut slowest = None;
        for load in &mut loads {
            (load.wave_tokens, load.all_tokens) = (widest, all);
            if load.requests > 0 {
                let (time, parts) = self.deployment.price.step_time(load, &mut self.memo);
                if slowest.as_ref().is_none_or(|(longest, _)| time > *longest) {
                    slowest = Some((time, parts));
                }
            }
        }
        let (time, parts) = slowest.unwrap_or_default();
        let end = now + time;
        for (rank, load) in wave.zip(&loads) {
            let of = &mut self.engines[rank];
            of.steps += 1;
            of.busy_ps += u128::from(time.0);
            of.step = Some((now, end));
            if load.requests > 0 {
                self.recorder.on_step(load, time, parts.as_ref());
                self.recorder.record_begun_step_tokens(now, load.tokens);
                self.notify_observer_of_begun_step(rank, end);
            }
            self.record_used_blocks(rank, now);
        }
        true
    }

    /// Composes the next step of an engine, and records the requests that it preempts and admits.
    fn compose_step(&mut self, engine: usize) {
        let now = self.now;
        let of = &mut self.engines[engine];
        let step = of.scheduler.compose_step();
        for put_back in &step.put_back {
            if let Some(live) = &mut of.live[put_back.slot as usize] {
                live.put_back += 1;
                live.recomputed += u64::from(put_back.lost);
            }
            self.recorder.record_preempted_request(put_back.lost, now);
        }
        let mut admitted = 0_i64;
        for share in step.shares.iter().filter(|share| share.admitted) {
            admitted += 1;
            let Some(live) = &mut of.live[share.slot as usize] else {
                continue;
            };
            // Lost tokens that are still in the cache are not recomputed.
            self.recorder
                .record_cached_prompt_tokens(share.hit, live.scheduled.is_none());
            if live.scheduled.is_none() {
                live.scheduled = Some(now);
                live.hit = share.hit;
            } else {
                live.recomputed = live.recomputed.saturating_sub(share.hit.into());
            }
        }
        if admitted > 0 {
            self.recorder.waiting.change_level(now, -admitted);
            self.recorder.running.change_level(now, admitted);
        }
    }

    /// Simulates further steps after the one that ends at `end`, as long as the same requests generate one token each
    /// and no other event affects the engine. Returns the end of the last step.
    fn simulate_repeated_steps(&mut self, engine: usize, mut end: Time) -> Time {
        let until = self.next_outside_event_time_of_engine(engine);
        if end >= until {
            return end;
        }
        let most = self.engines[engine]
            .scheduler
            .begin_repeated_steps_and_return_limit();
        let (mut last, mut gap, mut counted) = (end, None, 0);
        let mut steps = 0;
        while steps < most
            && end < until
            && self.engines[engine]
                .scheduler
                .try_allocate_blocks_for_run_step(steps + 1)
        {
            steps += 1;
            match gap {
                None => counted = self.record_step_token_gaps(engine, end),
                Some(gap) => self.recorder.add_gaps(gap, counted),
            }
            self.recorder
                .record_produced_tokens(end, self.load.requests);
            self.load.advance_decodes();
            let (time, parts) = self.deployment.price.step_time(&self.load, &mut self.memo);
            self.recorder.on_step(&self.load, time, parts.as_ref());
            self.recorder
                .record_begun_step_tokens(end, self.load.tokens);
            self.record_used_blocks(engine, end);
            (last, end, gap) = (end, end + time, Some(time));
        }
        if steps > 0 {
            let of = &mut self.engines[engine];
            of.steps += u64::from(steps);
            of.scheduler.advance_requests_by_repeated_steps(steps);
            for share in &of.scheduler.last_composed_step().shares {
                if let Some(live) = &mut of.live[share.slot as usize] {
                    live.last = last;
                }
            }
        }
        end
    }

    /// Records, for each request of the step, the gap between its previous token and its token at `now`. Returns how
    /// many requests of the step come after the warm-up.
    fn record_step_token_gaps(&mut self, engine: usize, now: Time) -> u32 {
        let of = &self.engines[engine];
        let mut counted = 0;
        for share in &of.scheduler.last_composed_step().shares {
            if let Some(live) = &of.live[share.slot as usize] {
                self.recorder
                    .record_token_gap(now.since(live.last), live.number);
                counted += u32::from(self.recorder.is_counted(live.number));
            }
        }
        self.recorder.flush_pending_gaps();
        counted
    }

    /// Returns the earliest instant at which the engine can be affected by an event other than the end of its step.
    fn next_outside_event_time_of_engine(&self, engine: usize) -> Time {
        let timer = self.timers.first_key_value().map(|((at, _), _)| *at);
        let arrival = self.next.as_ref().map(|next| next.at);
        let event = timer.into_iter().chain(arrival).min();
        let event = event.unwrap_or(Time(u64::MAX));
        if self.engines.len() == 1 || !self.scenario.workload.has_follow_up_requests() {
            return event;
        }
        // When another engine completes a user's request, the router may send the user's next one to this engine.
        let others = self.engines.iter().enumerate();
        let others = others.filter(|(other, _)| *other != engine);
        let ends = others.filter_map(|(_, of)| match of.step {
            Some((_, end)) => Some(end),
            None if of.scheduler.running_request_count() + of.scheduler.waiting_request_count()
                > 0 =>
            {
                Some(self.now)
            }
            None => None,
        });
        ends.fold(event, Time::min)
    }

    /// Records how many blocks an engine uses from time `at`.
    fn record_used_blocks(&mut self, engine: usize, at: Time) {
        let of = &mut self.engines[engine];
        let used =
            of.scheduler.block_pool().block_count() - of.scheduler.block_pool().free_block_count();
        let change = i64::from(used) - i64::from(of.used_blocks);
        of.used_blocks = used;
        if change == 0 {
            return;
        }
        if at > self.now && self.engines.len() > 1 {
            *self.block_changes.entry(at).or_default() += change;
        } else {
            self.recorder.blocks.change_level(at, change);
        }
    }

    /// Applies all changes to the number of used blocks that are pending before `end`.
    fn record_pending_block_changes(&mut self, end: Time) {
        while let Some(entry) = self.block_changes.first_entry() {
            if *entry.key() >= end {
                return;
            }
            let (at, change) = entry.remove_entry();
            self.recorder.blocks.change_level(at, change);
        }
    }

    /// Ends the step of all ranks of an engine; `first` is the engine's first rank.
    pub fn end_step_on_all_ranks(&mut self, now: Time, first: u32) {
        for rank in first..first + self.deployment.ranks {
            self.end_rank_step(now, rank);
        }
    }

    fn end_rank_step(&mut self, now: Time, engine: u32) {
        if self.failure.is_some() {
            return;
        }
        self.now = now;
        self.is_due = true;
        self.record_pending_block_changes(now);
        let of = &mut self.engines[engine as usize];
        of.step = None;
        let mut made = std::mem::take(&mut self.made);
        made.clear();
        of.scheduler.end_step_and_append_produced_tokens(&mut made);
        self.recorder.record_produced_tokens(now, made.len() as u64);
        let mut ended = 0;
        for token in &made {
            let of = &mut self.engines[engine as usize];
            let place = &mut of.live[token.slot as usize];
            let Some(live) = place.as_mut() else { continue };
            match live.first {
                None => live.first = Some(now),
                Some(_) => self
                    .recorder
                    .record_token_gap(now.since(live.last), live.number),
            }
            live.last = now;
            if !token.is_last {
                continue;
            }
            let Some(mut live) = place.take() else {
                continue;
            };
            match token.ended_waiting {
                None => ended += 1,
                Some(lost) => {
                    // The running step produced the request's last token despite the preemption, so the lost tokens are
                    // not recomputed.
                    live.recomputed = live.recomputed.saturating_sub(lost.into());
                    self.recorder.lost_tokens -= u64::from(lost);
                    self.recorder.waiting.change_level(now, -1);
                }
            }
            self.complete_request(&live, token.outputs, engine);
        }
        self.recorder.flush_pending_gaps();
        if ended > 0 {
            self.recorder.running.change_level(now, -ended);
            self.record_used_blocks(engine as usize, now);
        }
        self.made = made;
    }

    fn complete_request(&mut self, live: &LiveRequest, outputs: u32, engine: u32) {
        let now = self.now;
        let completed = CompletedLlmRequest {
            number: live.number,
            class: live.class,
            engine,
            arrival: live.arrival,
            queued: live.queued,
            scheduled: live.scheduled.unwrap_or(now),
            first: live.first.unwrap_or(now),
            last: now,
            after: self.scenario.client.after,
            prompt: live.prompt,
            output: outputs,
            hit: live.hit,
            put_back: live.put_back,
            recomputed: live.recomputed,
        };
        self.recorder.on_completed(&completed);
        if let Err(error) = self.observer.on_completed(&completed) {
            self.failure = Some(error.into());
        }
        let told = now + self.scenario.client.after;
        if let Some(last) = live.conversation {
            let tokens = (live.prompt, outputs);
            if let Some(turn) = self
                .source
                .next_conversation_turn(told, live.class, last, tokens)
            {
                self.add_timer(turn.at, RequestSendOrEnterEvent::Send(Box::new(turn)));
                return;
            }
        }
        if let LlmArrivals::Users { think, .. } = self.scenario.workload.arrivals {
            self.schedule_user_request(told + think);
        }
    }

    /// Closes the records of a run.
    pub fn finish_run_into_recorder(mut self) -> Result<LlmRunRecorder, ServeError> {
        if let Some(error) = self.failure {
            return Err(error);
        }
        for engine in &self.engines {
            let held = engine.scheduler.block_pool().block_count()
                - engine.scheduler.block_pool().free_block_count();
            assert_eq!(held, 0, "requests that ended gave their blocks back");
            assert!(
                engine.live.iter().all(Option::is_none),
                "each request ended"
            );
            self.recorder.steps_of_engines.push(engine.steps);
            self.recorder.busy_ps.push(engine.busy_ps);
        }
        self.recorder.arrived_in_all = self.arrived;
        self.recorder.empty_answers = self.source.empty_answer_count();
        self.recorder.close_and_check_records();
        Ok(self.recorder)
    }
}
