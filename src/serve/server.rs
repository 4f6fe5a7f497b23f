//! The serving system: requests that arrive, wait, are served together or alone, and end.
//!
//! Of an instant, jobs that end come first, each followed by what takes its place; then requests whose datapath latency
//! is over and requests that arrive come into the queue; then processors with free slots take requests from it, the
//! lowest first. A request's time is parted without rest: its datapath latency; *compute*, while a job of it runs on
//! some core; *preempted*, from being put back until a job runs again; and *queue*, all other time.

use super::arrivals::{ArrivalSource, ModelMix, RequestArrival};
use super::cores::{CoreArray, DealtJob};
use super::error::ServeError;
use super::observe::{CompletedRequest, RequestObserver, ServedJob};
use super::policy::{self, QueuedRequest, ServicePolicy};
use super::prepared::{PreparedModel, PreparedScenario};
use super::random::{RandomPurpose, RandomStream};
use super::recorder::ServeRecorder;
use super::scenario::ArrivalStream;
use crate::units::{Span, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

mod flight;

use flight::{RequestInFlight, Slab};

/// A request in the system.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestState {
    pub number: u64,
    pub model: u32,
    pub arrival: Time,
    /// End of the datapath latency.
    pub ready: Time,
    pub tokens: [u32; 2],
}

/// A processor.
#[derive(Debug)]
struct ProcessorState {
    cores: CoreArray,
    /// Batches that it can take besides those that it serves.
    free_slots: u32,
}

/// Something that happens to a request by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ServeTimer {
    /// The datapath latency of the request with this number, in this slot, is over.
    Ready(u64, u32),
    /// A user has thought.
    Ask(u64),
}

/// Times of a job that was answered, and what names it to the loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnsweredJob {
    pub token: u64,
    pub times: DealtJob,
}

/// State of a run.
pub(super) struct Server<'s> {
    prepared: &'s PreparedScenario<'s>,
    policy: Box<dyn ServicePolicy>,
    arrivals: ArrivalSource<'s>,
    next_arrival: Option<RequestArrival>,
    /// Models of requests of users.
    mix: ModelMix,
    think: RandomStream,
    /// Questions of users that were scheduled.
    asked: u64,
    timers: BinaryHeap<Reverse<(Time, ServeTimer)>>,
    requests: Slab<RequestState>,
    flights: Slab<RequestInFlight>,
    processors: Vec<ProcessorState>,
    /// The processor that gets the next request of a policy without slots.
    turn: usize,
    batch: Vec<QueuedRequest>,
    /// Batches that begin with their models, until the loop launches them.
    launches: Vec<(u32, u32)>,
    recorder: ServeRecorder<'s>,
    observer: &'s mut dyn RequestObserver,
    now: Time,
    /// Requests that arrived.
    arrived: u64,
    /// Requests of [`super::scenario::StopRule::first`] that are not complete.
    first_left: Option<u64>,
    failure: Option<ServeError>,
}

impl<'s> Server<'s> {
    pub fn new(
        prepared: &'s PreparedScenario<'s>,
        observer: &'s mut dyn RequestObserver,
    ) -> Result<Self, ServeError> {
        let scenario = prepared.scenario;
        let mut arrivals = ArrivalSource::new(scenario)?;
        let next_arrival = arrivals.next()?;
        let processor = || ProcessorState {
            cores: CoreArray::new(prepared.cores),
            free_slots: scenario.policy.slots.unwrap_or(u32::MAX),
        };
        let mut server = Self {
            policy: policy::queue(scenario.policy.kind, scenario.models.len()),
            next_arrival,
            arrivals,
            mix: ModelMix::new(scenario),
            think: RandomStream::new(scenario.seed, RandomPurpose::Think),
            asked: 0,
            timers: BinaryHeap::new(),
            requests: Slab::default(),
            flights: Slab::default(),
            processors: (0..scenario.processors).map(|_| processor()).collect(),
            turn: 0,
            batch: Vec::new(),
            launches: Vec::new(),
            recorder: ServeRecorder::new(prepared),
            observer,
            now: Time::ZERO,
            arrived: 0,
            first_left: scenario.stop.first,
            failure: None,
            prepared,
        };
        if let ArrivalStream::Closed { users, .. } = scenario.stream {
            (0..users).for_each(|_| server.ask_at(Time::ZERO));
        }
        Ok(server)
    }

    /// The instant at which something happens without a job's end; `None` for never.
    pub fn due(&self) -> Option<Time> {
        if self.has_stopped() {
            return None;
        }
        if !self.launches.is_empty() {
            return Some(self.now);
        }
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let arrival = self.next_arrival.map(|arrival| arrival.at);
        // A queue that waits for more requests asks again; while no slot is free, a job's end does.
        let has_slot = || self.processors.iter().any(|one| one.free_slots > 0);
        let queue = self.policy.wake_at().filter(|_| has_slot());
        [timer, arrival, queue].into_iter().flatten().min()
    }

    /// Returns whether the run is over before everything is complete.
    pub fn has_stopped(&self) -> bool {
        self.first_left == Some(0) || self.failure.is_some()
    }

    /// Batches that begin now with their models; they are given once.
    pub fn begin(&mut self) -> Vec<(u32, u32)> {
        std::mem::take(&mut self.launches)
    }

    /// Lets everything happen that is due at `now`.
    pub fn wake(&mut self, now: Time) {
        if self.has_stopped() {
            return;
        }
        self.now = now;
        while let Some(&Reverse((at, timer))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            match timer {
                ServeTimer::Ready(_, slot) => self.enqueue(slot),
                ServeTimer::Ask(_) => {
                    let model = self.mix.next();
                    self.admit(RequestArrival {
                        at: now,
                        model,
                        tokens: [0, 0],
                    });
                }
            }
        }
        while let Some(arrival) = self.next_arrival.filter(|arrival| arrival.at <= now) {
            self.admit(arrival);
            match self.arrivals.next() {
                Ok(next) => self.next_arrival = next,
                Err(error) => {
                    self.failure = Some(error);
                    return;
                }
            }
        }
        self.take_requests();
    }

    /// Answers a job of a batch whose dependencies are complete, or keeps it back.
    pub fn submit(
        &mut self,
        now: Time,
        flight: u32,
        job: u32,
        token: u64,
        answered: &mut Vec<AnsweredJob>,
    ) {
        self.now = now;
        if self.has_stopped() {
            // The rest of a run that is over takes no time.
            let times = DealtJob {
                start: now,
                end: now,
            };
            answered.push(AnsweredJob { token, times });
            return;
        }
        let cost = self.prepared.scenario.policy.preemption;
        if let Some(cost) = cost.filter(|_| self.is_at_border(flight)) {
            if self.flights[flight].put_back.is_some() {
                self.flights[flight].kept.push((job, token));
                return;
            }
            let running = self.queued_flight(flight);
            if self.policy.overtakes(&running) {
                self.put_back(flight, running, (job, token), cost);
                self.take_for(self.flights[flight].processor, Some(answered));
                return;
            }
        }
        self.deal(flight, job, token, answered);
    }

    /// Ends a job of a batch. Jobs that were kept back may begin in its place.
    pub fn end(&mut self, now: Time, flight: u32, job: u32, answered: &mut Vec<AnsweredJob>) {
        if self.has_stopped() {
            return;
        }
        self.now = now;
        // Who goes on is only asked where requests are put back.
        let work = match self.prepared.scenario.policy.preemption {
            Some(_) => self.estimate(flight, job),
            None => Span::ZERO,
        };
        let state = &mut self.flights[flight];
        state.running -= 1;
        state.left -= 1;
        state.work_left = Span(state.work_left.0.saturating_sub(work.0));
        if state.left == 0 {
            let processor = state.processor;
            self.complete(flight);
            if !self.has_stopped() {
                self.take_for(processor, Some(answered));
            }
        }
    }

    /// Schedules the next request of a user, unless enough were asked.
    fn ask_at(&mut self, at: Time) {
        let stop = &self.prepared.scenario.stop;
        let over = stop.requests.is_some_and(|most| self.asked >= most)
            || stop.duration.is_some_and(|end| at >= Time::ZERO + end);
        if !over {
            let timer = ServeTimer::Ask(self.asked);
            self.asked += 1;
            self.timers.push(Reverse((at, timer)));
        }
    }

    fn model(&self, model: u32) -> &'s PreparedModel<'s> {
        &self.prepared.models[model as usize]
    }

    fn admit(&mut self, arrival: RequestArrival) {
        let model = self.model(arrival.model);
        let stated = arrival.tokens != [0, 0];
        let tokens = match model.served.tokens {
            Some(tokens) if !stated => tokens,
            _ => arrival.tokens,
        };
        let slot = self.requests.add(RequestState {
            number: self.arrived,
            model: arrival.model,
            arrival: arrival.at,
            ready: arrival.at + model.datapath,
            tokens,
        });
        self.recorder.arrived(self.arrived, arrival.model, self.now);
        if model.datapath == Span::ZERO {
            self.enqueue(slot);
        } else {
            let ready = arrival.at + model.datapath;
            let timer = ServeTimer::Ready(self.arrived, slot);
            self.timers.push(Reverse((ready, timer)));
        }
        self.arrived += 1;
    }

    fn enqueue(&mut self, slot: u32) {
        let state = self.requests[slot];
        let model = self.model(state.model);
        let due = model.served.deadline.unwrap_or(Span::MAX);
        self.recorder.queue.change(self.now, 1);
        self.policy.enqueue(QueuedRequest {
            number: state.number,
            slot,
            resumes: false,
            model: state.model,
            since: state.ready,
            due: state.arrival + due,
            level: model.served.level,
            work: model.alone(self.prepared, &[state]),
        });
    }

    /// Lets processors with free slots take requests from the queue.
    fn take_requests(&mut self) {
        if self.prepared.scenario.policy.slots.is_none() {
            loop {
                self.policy.choose(self.now, &mut self.batch);
                if self.batch.is_empty() {
                    return;
                }
                let processor = self.turn as u32;
                self.turn = (self.turn + 1) % self.processors.len();
                self.start(processor);
            }
        }
        for processor in 0..self.processors.len() as u32 {
            if !self.take_for(processor, None) {
                return;
            }
        }
    }

    /// Lets a processor fill its free slots. Batches that were put back go on with `answered`; without it there are
    /// none, as a processor with a free slot would have taken them. Returns false if the queue had too little.
    fn take_for(&mut self, processor: u32, mut answered: Option<&mut Vec<AnsweredJob>>) -> bool {
        if self.prepared.scenario.policy.slots.is_none() {
            return true;
        }
        while self.processors[processor as usize].free_slots > 0 {
            self.policy.choose(self.now, &mut self.batch);
            match (self.batch.first(), answered.as_deref_mut()) {
                (None, _) => return false,
                (Some(first), Some(answered)) if first.resumes => {
                    let flight = first.slot;
                    self.batch.clear();
                    self.resume(flight, processor, answered);
                }
                (Some(first), _) => {
                    assert!(
                        !first.resumes,
                        "an idle processor leaves nothing in the queue"
                    );
                    self.start(processor);
                }
            }
        }
        true
    }

    /// Begins the chosen batch on a processor.
    fn start(&mut self, processor: u32) {
        let slots = self.batch.iter().map(|request| request.slot);
        let first = self.batch[0];
        let model = self.model(first.model);
        let mut state = RequestInFlight::new(first, processor, model.job_count());
        state.requests.extend(slots);
        self.recorder
            .queue
            .change(self.now, -(self.batch.len() as i64));
        self.batch.clear();
        let states = state.requests.iter().map(|&slot| self.requests[slot]);
        let states: Vec<RequestState> = states.collect();
        state.work_left = first.work;
        state.lengths = model.lengths(self.prepared, &states);
        let flight = self.flights.add(state);
        let slots = &mut self.processors[processor as usize].free_slots;
        *slots = slots.saturating_sub(1);
        self.launches.push((flight, first.model));
    }

    /// Lets a batch that was put back go on.
    fn resume(&mut self, flight: u32, processor: u32, answered: &mut Vec<AnsweredJob>) {
        self.recorder.queue.change(self.now, -1);
        self.processors[processor as usize].free_slots -= 1;
        let state = &mut self.flights[flight];
        state.processor = processor;
        let since = state.put_back.take().unwrap_or(self.now);
        let kept = std::mem::take(&mut state.kept);
        let before = answered.len();
        for (job, token) in kept {
            self.deal(flight, job, token, answered);
        }
        let starts = answered[before..].iter().map(|job| job.times.start);
        let start = starts.min().unwrap_or(self.now);
        self.flights[flight].preempted += start.since(since);
    }

    /// Returns whether a batch has begun and none of its jobs runs.
    fn is_at_border(&self, flight: u32) -> bool {
        let state = &self.flights[flight];
        state.running == 0 && state.dealt > 0
    }

    /// A batch as the queue would have it.
    fn queued_flight(&self, flight: u32) -> QueuedRequest {
        let state = &self.flights[flight];
        QueuedRequest {
            slot: flight,
            resumes: true,
            work: state.work_left,
            ..state.first
        }
    }

    fn put_back(&mut self, flight: u32, queued: QueuedRequest, job: (u32, u64), cost: Span) {
        let now = self.now;
        let state = &mut self.flights[flight];
        state.put_back = Some(now);
        state.kept.push(job);
        let processor = &mut self.processors[state.processor as usize];
        processor.cores.block(now + cost);
        processor.free_slots += 1;
        self.recorder.preemptions += 1;
        self.recorder.queue.change(now, 1);
        self.policy.enqueue(queued);
    }

    /// Time of a job without load.
    fn estimate(&self, flight: u32, job: u32) -> Span {
        let state = &self.flights[flight];
        let (tasks, each) = self.size(state, job);
        each.times(tasks.div_ceil(self.prepared.cores))
    }

    /// Tasks of a job and the length of each.
    fn size(&self, flight: &RequestInFlight, job: u32) -> (u64, Span) {
        let numbers = flight
            .requests
            .iter()
            .map(|&slot| self.requests[slot].number);
        let model = self.model(flight.first.model);
        model.size(self.prepared, job, numbers, &flight.lengths)
    }

    fn deal(&mut self, flight: u32, job: u32, token: u64, answered: &mut Vec<AnsweredJob>) {
        let (tasks, each) = self.size(&self.flights[flight], job);
        let now = self.now;
        let state = &mut self.flights[flight];
        let cores = &mut self.processors[state.processor as usize].cores;
        let times = cores.deal(now, tasks, each);
        state.running += 1;
        state.dealt += 1;
        state.core_ps += u128::from(tasks) * u128::from(each.0);
        state.run.add(now, times);
        answered.push(AnsweredJob { token, times });
        if self.observer.wants_jobs() {
            let (first, processor) = (state.first, state.processor);
            self.observer.served(&ServedJob {
                request: first.number,
                model: first.model,
                job,
                processor,
                times: (times.start, times.end),
            });
        }
    }

    fn complete(&mut self, flight: u32) {
        let now = self.now;
        let mut state = self.flights.remove(flight);
        let compute = state.run.finish();
        let together = state.requests.len() as u32;
        self.recorder.flight_ended(state.core_ps);
        self.processors[state.processor as usize].free_slots = self.processors
            [state.processor as usize]
            .free_slots
            .saturating_add(1);
        let started = state.run.first.unwrap_or(now);
        for &slot in &state.requests {
            let request = self.requests.remove(slot);
            let serve = now.since(request.arrival);
            let datapath = request.ready.since(request.arrival);
            let known = datapath + compute + state.preempted;
            let queue = serve.0.checked_sub(known.0);
            let completed = CompletedRequest {
                number: request.number,
                model: request.model,
                arrival: request.arrival,
                started,
                finished: now,
                datapath,
                compute,
                preempted: state.preempted,
                queue: Span(queue.expect("parts of a request's time do not overlap")),
                together,
                processor: state.processor,
                tokens: request.tokens,
            };
            self.recorder.completed(&completed);
            if let Err(error) = self.observer.completed(&completed) {
                self.failure = Some(error.into());
            }
            if let ArrivalStream::Closed {
                think, exponential, ..
            } = self.prepared.scenario.stream
            {
                let think = if exponential {
                    Span::from_seconds(self.think.exponential(think.seconds()))
                } else {
                    think
                };
                self.ask_at(now + think);
            }
            let first = self.prepared.scenario.stop.first;
            if first.is_some_and(|first| request.number < first) {
                self.first_left = self.first_left.map(|left| left - 1);
            }
        }
    }

    /// Closes the records of a run, when the loop has ended, and checks them.
    pub fn finish(self) -> Result<ServeRecorder<'s>, ServeError> {
        if let Some(error) = self.failure {
            return Err(error);
        }
        let mut recorder = self.recorder;
        let end = recorder.end;
        let processors = self.processors.iter();
        recorder.busy_ps = processors
            .map(|one| {
                one.cores
                    .busy_ps()
                    .saturating_sub(one.cores.busy_after(end))
            })
            .collect();
        let dealt: u128 = self.processors.iter().map(|one| one.cores.busy_ps()).sum();
        let in_flight: u128 = self.flights.iter().map(|flight| flight.core_ps).sum();
        assert_eq!(
            dealt,
            recorder.completed_core_ps + in_flight,
            "cores did the work of all batches and no other"
        );
        let waiting = self.requests.iter().filter(|one| one.arrival <= end);
        let waiting: u128 = waiting
            .map(|one| u128::from(end.since(one.arrival).0))
            .sum();
        recorder.check_little(waiting);
        recorder.arrived_in_all = self.arrived;
        Ok(recorder)
    }
}
