//! Computes how long jobs take on cores, and ends batches.

use super::flight::BatchInFlight;
use super::{JobTimeRangeWithEventToken, ServeRunState};
use crate::cores::JobTimeRange;
use crate::observe::{CompletedRequest, ServedJob};
use crate::scenario::{ArrivalPattern, ServicePolicyWithParameters};
use chakram_base::units::Span;

impl ServeRunState<'_> {
    /// Returns true if the policy orders requests by their work (shortest job first).
    pub(super) fn orders_queue_by_work(&self) -> bool {
        self.prepared.scenario.policy.kind == ServicePolicyWithParameters::ShortestJob
    }

    /// Subtracts a completed job from its batch's remaining work.
    pub(super) fn subtract_job_from_remaining_work(&mut self, flight: u32, job: u32) {
        let state = &self.flights[flight];
        let model = self.model_by_index(state.first.model);
        if model.has_sequential_jobs() {
            let (tasks, each) = self.task_count_and_task_duration(state, job);
            let work = each.times(tasks.div_ceil(self.prepared.cores));
            let state = &mut self.flights[flight];
            state.work_left = Span(state.work_left.0.saturating_sub(work.0));
        } else {
            let ended = &mut self.flights[flight].ended;
            ended.resize(model.jobs_per_request() as usize, false);
            ended[job as usize] = true;
        }
    }

    /// Returns how long the rest of a batch would take on an unloaded processor. No job of the batch may be running.
    pub(super) fn unloaded_time_left_of_batch(&mut self, flight: u32) -> Span {
        let state = &self.flights[flight];
        if state.ended.is_empty() {
            return state.work_left;
        }
        self.states.clear();
        let requests = state.requests.iter().map(|&slot| self.requests[slot]);
        self.states.extend(requests);
        let model = self.model_by_index(state.first.model);
        model.unloaded_batch_time(self.prepared, &self.states, &state.ended)
    }

    /// Returns how many tasks a job has, and how long each task takes.
    fn task_count_and_task_duration(&self, flight: &BatchInFlight, job: u32) -> (u64, Span) {
        let numbers = flight
            .requests
            .iter()
            .map(|&slot| self.requests[slot].number);
        let model = self.model_by_index(flight.first.model);
        model.job_task_count_and_task_duration(self.prepared, job, numbers, &flight.lengths)
    }

    /// Assigns a job to the cores of its batch's processor.
    pub(super) fn assign_job_to_cores(
        &mut self,
        flight: u32,
        job: u32,
        token: u64,
        answered: &mut Vec<JobTimeRangeWithEventToken>,
    ) {
        let (tasks, each) = self.task_count_and_task_duration(&self.flights[flight], job);
        let now = self.now;
        let state = &mut self.flights[flight];
        let cores = &mut self.processors[state.processor as usize].cores;
        let times = cores.assign_tasks(now, tasks, each);
        state.running += 1;
        state.dealt += 1;
        state.core_ps += u128::from(tasks) * u128::from(each.0);
        state.run.add_job(now, times);
        answered.push(JobTimeRangeWithEventToken { token, times });
        self.notify_job_observer(flight, job, times);
    }

    /// Notifies the observer of a job's times, if it asks for jobs.
    fn notify_job_observer(&mut self, flight: u32, job: u32, times: JobTimeRange) {
        if self.observer.wants_jobs() {
            let state = &self.flights[flight];
            let (first, processor) = (state.first, state.processor);
            self.observer.on_job_served(&ServedJob {
                request: first.number,
                model: first.model,
                job,
                processor,
                times: (times.start, times.end),
            });
        }
    }

    /// Records that the launch of a batch's trace has ended, and returns the batch's processor.
    pub(super) fn record_launch_end_and_return_processor(&mut self, flight: u32) -> u32 {
        let now = self.now;
        let state = &mut self.flights[flight];
        let times = JobTimeRange {
            start: state.began,
            end: now,
        };
        state.run.add_job(times.start, times);
        let processor = state.processor;
        let serving = &mut self.processors[processor as usize];
        serving.traces -= 1;
        if serving.traces == 0 {
            serving.traced_ps += u128::from(now.since(serving.traced_since).0);
        }
        self.notify_job_observer(flight, 0, times);
        processor
    }

    /// Ends a batch whose jobs are all complete.
    pub(super) fn complete_batch(&mut self, flight: u32) {
        let now = self.now;
        let mut state = self.flights.remove(flight);
        let compute = state.run.time_while_any_job_ran();
        let together = state.requests.len() as u32;
        self.recorder.record_ended_batch(state.core_ps);
        let serving = &mut self.processors[state.processor as usize];
        serving.free_slots = serving.free_slots.saturating_add(1);
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
            self.recorder.on_completed(&completed);
            if let Err(error) = self.observer.on_completed(&completed) {
                self.failure = Some(error.into());
            }
            if let ArrivalPattern::Closed {
                think, exponential, ..
            } = self.prepared.scenario.stream
            {
                let think = if exponential {
                    Span::from_seconds_saturating(self.think.next_exponential(think.as_seconds()))
                } else {
                    think
                };
                self.schedule_next_user_request(now + think);
            }
            let first = self.prepared.scenario.stop.first;
            if first.is_some_and(|first| request.number < first) {
                self.first_left = self.first_left.map(|left| left - 1);
            }
        }
        self.ended_flights.push(state);
    }
}
