//! Assigns queued requests to processors, and preempts requests between two of their jobs.

use super::{BatchLaunchForEventLoop, JobTimeRangeWithEventToken, ServeRunState};
use crate::policy::QueuedRequest;
use chakram_base::ids::Npu;
use chakram_base::units::Span;

impl ServeRunState<'_> {
    /// Makes processors with free slots take requests from the queue.
    pub(super) fn fill_all_processor_slots(&mut self) {
        if self.prepared.scenario.policy.slots.is_none() {
            loop {
                self.policy.choose_requests(self.now, &mut self.batch);
                if self.batch.is_empty() {
                    return;
                }
                let processor = self.turn as u32;
                self.turn = (self.turn + 1) % self.processors.len();
                self.start_batch(processor);
            }
        }
        for processor in 0..self.processors.len() as u32 {
            if !self.fill_processor_slots(processor, None) {
                return;
            }
        }
    }

    /// Fills the free slots of a processor from the queue. If preempted batches continue, appends to `answered` those
    /// of their jobs whose times are known. `answered` may be `None` only if the queue has no preempted batch. It has
    /// none if the processor already had a free slot, because the processor would have continued the batch. Returns
    /// false if the queue had too few requests for the slots.
    pub(super) fn fill_processor_slots(
        &mut self,
        processor: u32,
        mut answered: Option<&mut Vec<JobTimeRangeWithEventToken>>,
    ) -> bool {
        if self.prepared.scenario.policy.slots.is_none() {
            return true;
        }
        while self.processors[processor as usize].free_slots > 0 {
            self.policy.choose_requests(self.now, &mut self.batch);
            match (self.batch.first(), answered.as_deref_mut()) {
                (None, _) => return false,
                (Some(first), Some(answered)) if first.resumes => {
                    let flight = first.slot;
                    self.batch.clear();
                    self.resume_batch(flight, processor, answered);
                }
                (Some(first), _) => {
                    assert!(
                        !first.resumes,
                        "an idle processor leaves nothing in the queue"
                    );
                    self.start_batch(processor);
                }
            }
        }
        true
    }

    /// Begins, on a processor, the batch that the policy chose.
    fn start_batch(&mut self, processor: u32) {
        let first = self.batch[0];
        let model = self.model_by_index(first.model);
        let mut state = self.ended_flights.pop().unwrap_or_default();
        state.reuse_for_new_batch(self.now, first, processor, model.jobs_per_request());
        state
            .requests
            .extend(self.batch.iter().map(|request| request.slot));
        self.recorder
            .queue
            .change_level(self.now, -(self.batch.len() as i64));
        self.batch.clear();
        self.states.clear();
        let states = state.requests.iter().map(|&slot| self.requests[slot]);
        self.states.extend(states);
        state.work_left = first.work;
        state.lengths = model.draw_job_durations(self.prepared, &self.states);
        let flight = self.flights.add_item(state);
        let serving = &mut self.processors[processor as usize];
        serving.free_slots = serving.free_slots.saturating_sub(1);
        let mut npu = None;
        if let Some(trace) = model.traced_job() {
            if serving.traces == 0 {
                serving.traced_since = self.now;
            }
            serving.traces += 1;
            npu = trace.launches_on_processors_npu().then_some(Npu(processor));
        }
        self.launches.push(BatchLaunchForEventLoop {
            flight,
            model: first.model,
            npu,
        });
    }

    /// Continues a preempted batch.
    fn resume_batch(
        &mut self,
        flight: u32,
        processor: u32,
        answered: &mut Vec<JobTimeRangeWithEventToken>,
    ) {
        self.recorder.queue.change_level(self.now, -1);
        self.processors[processor as usize].free_slots -= 1;
        let state = &mut self.flights[flight];
        state.processor = processor;
        let since = state.put_back.take().unwrap_or(self.now);
        let kept = std::mem::take(&mut state.kept);
        let before = answered.len();
        for (job, token) in kept {
            self.assign_job_to_cores(flight, job, token, answered);
        }
        let starts = answered[before..].iter().map(|job| job.times.start);
        let start = starts.min().unwrap_or(self.now);
        self.flights[flight].preempted += start.since(since);
    }

    /// Returns true if a job must be held back because its batch has been preempted, earlier or by this call. Another
    /// batch may begin in place of the preempted one.
    pub(super) fn hold_back_job_if_batch_is_preempted(
        &mut self,
        flight: u32,
        job: u32,
        token: u64,
        answered: &mut Vec<JobTimeRangeWithEventToken>,
    ) -> bool {
        let Some(cost) = self.prepared.scenario.policy.preemption else {
            return false;
        };
        let state = &mut self.flights[flight];
        // A batch can be preempted only between two jobs: it has begun, and none of its jobs is
        // running.
        if state.running > 0 || state.dealt == 0 {
            return false;
        }
        if state.put_back.is_some() {
            state.kept.push((job, token));
            return true;
        }
        // The remaining work is slow to compute, so first compare queued requests with the batch's whole work. It is
        // always less than the whole work. So if no queued request is more urgent than the whole work, none is more
        // urgent than the remaining work.
        if !state.ended.is_empty() && !self.policy.should_preempt_running(&state.first) {
            return false;
        }
        let running = QueuedRequest {
            slot: flight,
            resumes: true,
            work: self.unloaded_time_left_of_batch(flight),
            ..self.flights[flight].first
        };
        if !self.policy.should_preempt_running(&running) {
            return false;
        }
        let processor = self.flights[flight].processor;
        self.put_preempted_batch_back_in_queue(flight, running, (job, token), cost);
        self.fill_processor_slots(processor, Some(answered));
        true
    }

    fn put_preempted_batch_back_in_queue(
        &mut self,
        flight: u32,
        queued: QueuedRequest,
        job: (u32, u64),
        cost: Span,
    ) {
        let now = self.now;
        let state = &mut self.flights[flight];
        state.put_back = Some(now);
        state.kept.push(job);
        let processor = &mut self.processors[state.processor as usize];
        processor.cores.block_all_cores_until(now + cost);
        processor.free_slots += 1;
        self.recorder.preemptions += 1;
        self.recorder.queue.change_level(now, 1);
        self.policy.enqueue_request(queued);
    }
}
