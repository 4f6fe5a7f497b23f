//! Records statistics of a run for models and classes, levels over time, and sums that check the
//! results.

use super::observe::CompletedRequest;
use super::prepared::ScenarioWithModelTimes;
use super::statistics::{CountOverTimeRecorder, DurationSamples};
use chakram_base::units::{Span, Time};

/// Statistics of the requests of a model, of a class, or of the whole run.
#[derive(Clone, Debug, Default)]
pub struct RequestGroupStatistics {
    /// Number of counted requests that arrived.
    pub arrived: u64,
    /// Serve times of the counted requests that are complete.
    pub serve: DurationSamples,
    /// Sum of each part of the serve times (datapath, queue, compute, preempted), in picoseconds.
    pub parts_ps: [u128; 4],
    /// Number of counted requests that were completed within their limit.
    pub met: u64,
    /// Maximum number of requests that were served together.
    pub together: u32,
}

/// All statistics that a run collects.
pub struct ServeRunRecorder<'s> {
    pub prepared: &'s ScenarioWithModelTimes<'s>,
    /// Limit on the serve times of all models; `None` if each model's deadline applies.
    pub slo: Option<Span>,
    /// One row per model, then one row per class, then a row for all requests.
    pub rows: Vec<RequestGroupStatistics>,
    /// Names of classes, in order of first occurrence among the models.
    pub classes: Vec<&'s str>,
    class_of: Vec<Option<usize>>,
    /// Number of requests in the queue.
    pub queue: CountOverTimeRecorder,
    /// Number of requests in the system.
    pub active: CountOverTimeRecorder,
    pub preemptions: u64,
    pub completed: u64,
    pub completed_core_ps: u128,
    /// Core time that each processor used within the window, in picoseconds.
    pub busy_ps: Vec<u128>,
    /// Arrival time of the first counted request.
    pub counted_from: Option<Time>,
    pub arrivals: Option<(Time, Time)>,
    pub arrived_in_all: u64,
    /// End of the window, which is the last completion. The window begins at 0.
    pub end: Time,
    /// Time in the system, summed over all completed requests, in picoseconds.
    served_ps: u128,
    /// Time in the system, summed over all requests, in picoseconds. It equals the integral of the number of requests
    /// in the system over time.
    pub little_ps: u128,
}

impl<'s> ServeRunRecorder<'s> {
    pub fn new(prepared: &'s ScenarioWithModelTimes<'s>) -> Self {
        let mut classes: Vec<&str> = Vec::new();
        let mut class_of = Vec::new();
        for model in &prepared.scenario.models {
            let class = model.class.as_deref().map(|class| {
                let known = classes.iter().position(|other| *other == class);
                known.unwrap_or_else(|| {
                    classes.push(class);
                    classes.len() - 1
                })
            });
            class_of.push(class);
        }
        let rows = prepared.models.len() + classes.len() + 1;
        Self {
            prepared,
            slo: prepared.slo,
            rows: vec![RequestGroupStatistics::default(); rows],
            classes,
            class_of,
            queue: CountOverTimeRecorder::default(),
            active: CountOverTimeRecorder::default(),
            preemptions: 0,
            completed: 0,
            completed_core_ps: 0,
            busy_ps: Vec::new(),
            counted_from: None,
            arrivals: None,
            arrived_in_all: 0,
            end: Time::ZERO,
            served_ps: 0,
            little_ps: 0,
        }
    }

    /// Returns three row indices: the model's, its class's, and that of all requests.
    fn model_class_and_total_row_indices(&self, model: u32) -> [Option<usize>; 3] {
        let models = self.prepared.models.len();
        let class = self.class_of[model as usize].map(|class| models + class);
        [Some(model as usize), class, Some(self.rows.len() - 1)]
    }

    /// Records the arrival of a request.
    pub fn on_arrived(&mut self, number: u64, model: u32, now: Time) {
        self.active.change_level(now, 1);
        let first = self.arrivals.map_or(now, |(first, _)| first);
        self.arrivals = Some((first, now));
        if number >= self.prepared.scenario.warmup {
            self.counted_from.get_or_insert(now);
            for row in self
                .model_class_and_total_row_indices(model)
                .into_iter()
                .flatten()
            {
                self.rows[row].arrived += 1;
            }
        }
    }

    /// Records that a batch ended after it occupied `core_ps` of core time.
    pub fn record_ended_batch(&mut self, core_ps: u128) {
        self.completed_core_ps += core_ps;
    }

    /// Records a completed request.
    pub fn on_completed(&mut self, request: &CompletedRequest) {
        self.end = request.finished;
        self.active.change_level(request.finished, -1);
        self.completed += 1;
        let serve = request.finished.since(request.arrival);
        self.served_ps += u128::from(serve.0);
        if request.number < self.prepared.scenario.warmup {
            return;
        }
        let model = &self.prepared.scenario.models[request.model as usize];
        let limit = self.slo.or(model.deadline);
        let met = limit.is_none_or(|limit| serve <= limit);
        let parts = [
            request.datapath,
            request.queue,
            request.compute,
            request.preempted,
        ];
        for row in self
            .model_class_and_total_row_indices(request.model)
            .into_iter()
            .flatten()
        {
            let row = &mut self.rows[row];
            row.serve.add_sample(serve);
            row.met += u64::from(met);
            row.together = row.together.max(request.together);
            for (sum, part) in row.parts_ps.iter_mut().zip(parts) {
                *sum += u128::from(part.0);
            }
        }
    }

    /// Checks Little's law: the time in the system, summed over requests, equals the number of requests in the system,
    /// summed over time. `waiting_ps` is the time that unfinished requests have spent in the system.
    pub fn check_littles_law(&mut self, waiting_ps: u128) {
        let over_requests = self.served_ps + waiting_ps;
        let over_time = self
            .active
            .level_integral_until(self.end.max(self.active.last_change_time()));
        let late = u128::from(self.active.current_level())
            * u128::from(self.active.last_change_time().0.saturating_sub(self.end.0));
        assert_eq!(
            over_requests,
            over_time - late,
            "requests in the system are arrivals less completions"
        );
        self.little_ps = over_requests;
        let all = self
            .rows
            .last()
            .map(|row| (row.serve.sum_ps(), row.parts_ps));
        if let Some((sum, parts)) = all {
            assert_eq!(sum, parts.iter().sum::<u128>(), "parts are all of the time");
        }
    }
}
