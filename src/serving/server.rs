//! Simulates the serving system. Requests arrive, wait, are served alone or in a batch, and end.
//!
//! Events at the same time are handled in three groups. First, jobs end, and newly runnable jobs begin. Then requests
//! enter the queue: first requests whose datapath latency has ended, then new requests. Then processors with free slots
//! take requests from the queue, in the order of their indices.
//!
//! A request's time has four parts. The first is the datapath latency. *Compute* is the time in which at least one of
//! the request's jobs runs on some core, or the time that its trace's launch takes. *Preempted* is the time from a
//! preemption until a job of the request runs again. *Queue* is the remaining time.
//!
//! Submodules: `admission` handles requests from their arrival until they enter the queue; `dispatch` assigns queued
//! requests to processors, and preempts requests; `service` computes job times and ends batches; `closing` closes a
//! run's records and checks them.

use super::arrivals::{OpenLoopArrivalSource, RequestArrival, RequestModelSampler};
use super::cores::{CoreFreeTimes, JobTimeRange};
use super::error::ServeError;
use super::observe::RequestObserver;
use super::policy::{self, QueuedRequest, ServiceQueue};
use super::prepared::{ModelWithJobTimes, ScenarioWithModelTimes};
use super::random::{RandomPurpose, RandomStream};
use super::recorder::ServeRunRecorder;
use super::request::RequestInServingSystem;
use super::scenario::ArrivalPattern;
use chakram_base::ids::Npu;
use chakram_base::units::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

mod admission;
mod closing;
mod dispatch;
mod flight;
mod service;

use admission::DatapathOrThinkTimeEnd;
use flight::{BatchInFlight, Slab};

/// State of a processor.
#[derive(Debug)]
struct ProcessorCoresAndSlots {
    cores: CoreFreeTimes,
    /// How many more batches the processor can take.
    free_slots: u32,
    /// Number of traces that the processor is serving.
    traces: u32,
    traced_since: Time,
    traced_ps: u128,
}

/// The times of a job, and its token in the event loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobTimeRangeWithEventToken {
    pub token: u64,
    pub times: JobTimeRange,
}

/// A batch that begins, as passed to the event loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchLaunchForEventLoop {
    /// Index of the batch in the server.
    pub flight: u32,
    /// Index of the batch's model.
    pub model: u32,
    /// NPU that runs the trace, if the trace has one rank and the processors are NPUs.
    pub npu: Option<Npu>,
}

/// State of a run: its processors, its queue, its batches and its records.
pub(super) struct ServeRunState<'s> {
    prepared: &'s ScenarioWithModelTimes<'s>,
    policy: Box<dyn ServiceQueue>,
    arrivals: OpenLoopArrivalSource<'s>,
    next_arrival: Option<RequestArrival>,
    /// Draws a model for each request that a user sends.
    mix: RequestModelSampler,
    think: RandomStream,
    /// Number of user requests that have been scheduled so far.
    asked: u64,
    timers: BinaryHeap<Reverse<(Time, DatapathOrThinkTimeEnd)>>,
    requests: Slab<RequestInServingSystem>,
    flights: Slab<BatchInFlight>,
    /// Batches that have ended; their allocations are reused.
    ended_flights: Vec<BatchInFlight>,
    processors: Vec<ProcessorCoresAndSlots>,
    /// Index of the processor that gets the next request, if the policy has no slots.
    turn: usize,
    /// The requests that the policy chose last; kept to reuse the allocation.
    batch: Vec<QueuedRequest>,
    states: Vec<RequestInServingSystem>,
    /// Batches that have begun but are not yet launched in the event loop.
    launches: Vec<BatchLaunchForEventLoop>,
    recorder: ServeRunRecorder<'s>,
    observer: &'s mut dyn RequestObserver,
    now: Time,
    /// Number of requests that have arrived so far.
    arrived: u64,
    /// Number of requests that must still complete before the run ends, if the first requests end it
    /// ([`super::scenario::RunStopRule::first`]).
    first_left: Option<u64>,
    failure: Option<ServeError>,
}

impl<'s> ServeRunState<'s> {
    pub fn new(
        prepared: &'s ScenarioWithModelTimes<'s>,
        observer: &'s mut dyn RequestObserver,
    ) -> Result<Self, ServeError> {
        let scenario = prepared.scenario;
        let mut arrivals = OpenLoopArrivalSource::new(scenario)?;
        let next_arrival = arrivals.next()?;
        let processor = || ProcessorCoresAndSlots {
            cores: CoreFreeTimes::new(prepared.cores),
            free_slots: scenario.policy.slots.unwrap_or(u32::MAX),
            traces: 0,
            traced_since: Time::ZERO,
            traced_ps: 0,
        };
        let mut server = Self {
            policy: policy::create_policy_queue(scenario.policy.kind, scenario.models.len()),
            next_arrival,
            arrivals,
            mix: RequestModelSampler::new(scenario),
            think: RandomStream::new(scenario.seed, RandomPurpose::Think),
            asked: 0,
            timers: BinaryHeap::new(),
            requests: Slab::default(),
            flights: Slab::default(),
            ended_flights: Vec::new(),
            processors: (0..scenario.processors).map(|_| processor()).collect(),
            turn: 0,
            batch: Vec::new(),
            states: Vec::new(),
            launches: Vec::new(),
            recorder: ServeRunRecorder::new(prepared),
            observer,
            now: Time::ZERO,
            arrived: 0,
            first_left: scenario.stop.first,
            failure: None,
            prepared,
        };
        if let ArrivalPattern::Closed { users, .. } = scenario.stream {
            (0..users).for_each(|_| server.schedule_next_user_request(Time::ZERO));
        }
        Ok(server)
    }

    /// Returns the time of the next event that is not the end of a job; `None` if there is none.
    pub fn next_non_job_event_time(&self) -> Option<Time> {
        if self.has_stopped_before_completion() {
            return None;
        }
        if !self.launches.is_empty() {
            return Some(self.now);
        }
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let arrival = self.next_arrival.map(|arrival| arrival.at);
        // If the policy waits for more requests, ask the queue again when this wait ends. While no slot is free, this
        // event is unnecessary, because the queue is asked anyway when a job ends.
        let has_slot = || self.processors.iter().any(|one| one.free_slots > 0);
        let queue = self.policy.wake_at().filter(|_| has_slot());
        [timer, arrival, queue].into_iter().flatten().min()
    }

    /// Returns true if the run ended before all requests were complete.
    pub fn has_stopped_before_completion(&self) -> bool {
        self.first_left == Some(0) || self.failure.is_some()
    }

    /// Takes the batches that have begun. Each is returned only once, so it is launched only once.
    pub fn take_launches(&mut self) -> impl Iterator<Item = BatchLaunchForEventLoop> {
        self.launches.drain(..)
    }

    /// Handles all events that are due at `now`.
    pub fn run_due_events(&mut self, now: Time) {
        if self.has_stopped_before_completion() {
            return;
        }
        self.now = now;
        if let Err(error) = self.admit_arrivals() {
            self.failure = Some(error);
            return;
        }
        self.fill_all_processor_slots();
    }

    /// Handles a batch's job that has become ready: computes the job's times, or holds the job
    /// back.
    pub fn time_or_hold_back_ready_job(
        &mut self,
        now: Time,
        flight: u32,
        job: u32,
        token: u64,
        answered: &mut Vec<JobTimeRangeWithEventToken>,
    ) {
        self.now = now;
        if self.has_stopped_before_completion() {
            // After the run, jobs take no time, so that the event loop ends soon.
            let times = JobTimeRange {
                start: now,
                end: now,
            };
            answered.push(JobTimeRangeWithEventToken { token, times });
            return;
        }
        if !self.hold_back_job_if_batch_is_preempted(flight, job, token, answered) {
            self.assign_job_to_cores(flight, job, token, answered);
        }
    }

    /// Ends one of a batch's jobs. Jobs that were held back may then begin.
    pub fn end_job(
        &mut self,
        now: Time,
        flight: u32,
        job: u32,
        answered: &mut Vec<JobTimeRangeWithEventToken>,
    ) {
        if self.has_stopped_before_completion() {
            return;
        }
        self.now = now;
        // Only shortest-job-first with preemption needs the remaining work.
        if self.orders_queue_by_work() && self.prepared.scenario.policy.preemption.is_some() {
            self.subtract_job_from_remaining_work(flight, job);
        }
        let state = &mut self.flights[flight];
        state.running -= 1;
        state.left -= 1;
        if state.left == 0 {
            let processor = state.processor;
            self.complete_batch(flight);
            if !self.has_stopped_before_completion() {
                self.fill_processor_slots(processor, Some(answered));
            }
        }
    }

    /// Ends a batch whose job is a trace, after the event loop has run the trace itself.
    pub fn on_trace_launch_ended(&mut self, now: Time, flight: u32) {
        if self.has_stopped_before_completion() {
            return;
        }
        self.now = now;
        let processor = self.record_launch_end_and_return_processor(flight);
        self.complete_batch(flight);
        if !self.has_stopped_before_completion() {
            self.fill_processor_slots(processor, None);
        }
    }

    fn model_by_index(&self, model: u32) -> &'s ModelWithJobTimes<'s> {
        &self.prepared.models[model as usize]
    }
}
