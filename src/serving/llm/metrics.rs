//! Records statistics of requests and engines during a run. Memory use does not grow with the number of completed
//! requests.

use super::super::statistics::{CountOverTimeRecorder, DurationHistogram, DurationSamples};
use super::attainment::MetCountsByArrival;
use super::limits::LlmTimeLimits;
use super::observe::CompletedLlmRequest;
use super::scenario::LlmScenario;
use super::scheduler::RequestRefusalReason;
use super::step_cost::{StepTimePart, StepTimesByPart};
use super::step_load::StepTimeInputs;
use chakram_base::units::{Span, Time};

/// Statistics of the requests in a class, or of all requests.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestClassRecorder {
    pub arrived: u64,
    pub refused: u64,
    pub ttft: DurationSamples,
    pub tpot: DurationSamples,
    pub e2e: DurationSamples,
    pub queue: DurationSamples,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub hit_tokens: u64,
    /// Number of requests that met all limits.
    pub met: u64,
    pub met_each: [u64; 3],
    /// Number of preemptions.
    pub put_back: u64,
}

/// Gaps between tokens, pooled over requests; identical gaps are stored together.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenGapSamples {
    runs: Vec<(Span, u32)>,
    sketch: DurationHistogram,
    pub count: u64,
    pub sum_ps: u128,
    pub most: Span,
}

/// Maximum number of runs of identical gaps that are stored exactly.
pub(super) const EXACT_RUNS: usize = 1 << 16;

impl TokenGapSamples {
    fn add_gaps(&mut self, span: Span, times: u32) {
        self.sketch.add_repeated_sample(span, times);
        if self.runs.len() < EXACT_RUNS {
            self.runs.push((span, times));
        } else if self.runs.len() == EXACT_RUNS {
            // There are too many distinct runs of gaps; from now on, only the sketch records them.
            self.runs.push((Span::MAX, 0));
        }
        self.count += u64::from(times);
        self.sum_ps += u128::from(span.0) * u128::from(times);
        self.most = self.most.max(span);
    }

    /// Returns true if percentiles are exact.
    pub fn is_exact(&self) -> bool {
        self.runs.len() <= EXACT_RUNS
    }

    /// Returns the mean, or `None` if there are no gaps.
    pub fn mean_token_gap(&self) -> Option<Span> {
        let count = u128::from(self.count);
        let value = (self.sum_ps + count / 2).checked_div(count)?;
        Some(Span(value as u64))
    }

    /// Returns percentiles in the order of `percents`. Each is interpolated linearly between two samples (position (n -
    /// 1) q). With more than [`EXACT_RUNS`] runs, percentiles are accurate to one part in 256.
    pub fn percentiles(&self, percents: &[f64]) -> Vec<Span> {
        if !self.is_exact() {
            return percents
                .iter()
                .filter_map(|percent| self.sketch.approximate_percentile(*percent))
                .collect();
        }
        let mut sorted = self.runs.clone();
        sorted.sort_unstable();
        let at = |place: u64| {
            let mut below = 0;
            let found = sorted.iter().find(|(_, times)| {
                below += u64::from(*times);
                below > place
            });
            found.or(sorted.last()).map(|(span, _)| span.0)
        };
        let value = |percent: &f64| {
            let position = self.count.checked_sub(1)? as f64 * percent / 100.0;
            let (low, high) = (at(position.floor() as u64)?, at(position.ceil() as u64)?);
            let part = position - position.floor();
            Some(Span(low + ((high - low) as f64 * part).round() as u64))
        };
        percents.iter().filter_map(value).collect()
    }
}

/// Counts over time, in intervals of equal length. The intervals become longer as the run continues.
#[derive(Clone, Debug)]
pub(super) struct TokenCountsOverTime {
    width: Span,
    pub counts: Vec<u64>,
    /// Interval of the last count: its index, its beginning and its end.
    current: (usize, u64, u64),
}

const MOST_INTERVALS: usize = 512;

impl Default for TokenCountsOverTime {
    fn default() -> Self {
        Self {
            width: Span::from_us(1),
            counts: Vec::new(),
            current: (0, 0, 0),
        }
    }
}

impl TokenCountsOverTime {
    fn add_count(&mut self, now: Time, count: u64) {
        let (at, begin, end) = self.current;
        // Most counts fall into the same interval as the previous one, so checking it first avoids the division.
        if begin <= now.0 && now.0 < end {
            self.counts[at] += count;
            return;
        }
        while now.0 / self.width.0 >= MOST_INTERVALS as u64 {
            self.width = self.width.times(2);
            self.counts = self
                .counts
                .chunks(2)
                .map(|pair| pair.iter().sum())
                .collect();
        }
        let interval = (now.0 / self.width.0) as usize;
        if self.counts.len() <= interval {
            self.counts.resize(interval + 1, 0);
        }
        self.counts[interval] += count;
        let begin = interval as u64 * self.width.0;
        self.current = (interval, begin, begin + self.width.0);
    }

    /// Length of an interval.
    pub fn interval_width(&self) -> Span {
        self.width
    }

    /// Returns the mean count per second between two instants, measured over whole intervals. Returns `None` if there
    /// are fewer than ten intervals.
    pub fn count_rate_between(&self, from: Time, to: Time) -> Option<f64> {
        let first = from.0.div_ceil(self.width.0);
        let last = to.0 / self.width.0;
        let intervals = last.checked_sub(first).filter(|count| *count >= 10)?;
        let counts = (first..last).map(|i| self.counts.get(i as usize).copied().unwrap_or(0));
        Some(counts.sum::<u64>() as f64 / self.width.times(intervals).as_seconds())
    }
}

/// All statistics that a run collects about requests and engines.
pub(super) struct LlmRunRecorder {
    /// Limits of each class.
    limits: Vec<LlmTimeLimits>,
    warmup: u64,
    /// One row per class, in class order, then a row for all requests.
    pub rows: Vec<RequestClassRecorder>,
    pub gaps: TokenGapSamples,
    /// The latest gap, and how many times in a row it has occurred.
    pending: (Span, u32),
    pub waiting: CountOverTimeRecorder,
    pub running: CountOverTimeRecorder,
    pub active: CountOverTimeRecorder,
    pub blocks: CountOverTimeRecorder,
    /// Number of answer tokens produced over time.
    pub made: TokenCountsOverTime,
    /// Number of tokens that steps computed over time.
    pub computed: TokenCountsOverTime,
    made_now: (Time, u64),
    pub steps: u64,
    pub step_tokens: u64,
    pub step_requests: u64,
    pub step_ps: u128,
    /// Total time of each part of the steps, in picoseconds, if steps have parts.
    pub parts_ps: [u128; StepTimePart::COUNT],
    pub longest_step: Span,
    /// The requests with the longest time to first token and with the longest time to the last
    /// token.
    pub slowest: [Option<CompletedLlmRequest>; 2],
    pub put_back: u64,
    pub lost_tokens: u64,
    /// Number of prompt tokens found in the cache when requests were first admitted, and when they were admitted again.
    pub hits: [u64; 2],
    pub steps_of_engines: Vec<u64>,
    pub busy_ps: Vec<u128>,
    pub refused: [u64; 3],
    /// The lowest and the highest priority number among the requests that reached an engine.
    pub priorities: Option<[i32; 2]>,
    pub first_arrival: Option<Time>,
    pub last_arrival: Time,
    pub arrived_in_all: u64,
    /// Number of requests whose answers have no tokens in their file.
    pub empty_answers: u64,
    pub completed_in_all: u64,
    pub output_in_all: u64,
    /// Number of tokens that had keys and values when their request completed, summed over all completed requests.
    computed_in_all: u64,
    time_in_system: u128,
    pub end: Time,
    /// Requests after the warm-up that met their limits.
    pub met_by_arrival: MetCountsByArrival,
    /// For each third of the requests, the sum of their times to first token, and the number of requests. This shows
    /// whether times grow during the run.
    pub thirds: [(u128, u64); 3],
    expected: Option<u64>,
    /// When a quarter and three quarters of the expected requests were complete.
    pub quarters: [Option<Time>; 2],
}

impl LlmRunRecorder {
    pub fn new(scenario: &LlmScenario) -> Self {
        Self {
            limits: scenario
                .workload
                .classes
                .iter()
                .map(|class| scenario.limits_of_class(class))
                .collect(),
            warmup: scenario.warmup,
            rows: vec![RequestClassRecorder::default(); scenario.workload.classes.len() + 1],
            gaps: TokenGapSamples::default(),
            pending: (Span::ZERO, 0),
            waiting: CountOverTimeRecorder::default(),
            running: CountOverTimeRecorder::default(),
            active: CountOverTimeRecorder::default(),
            blocks: CountOverTimeRecorder::default(),
            made: TokenCountsOverTime::default(),
            computed: TokenCountsOverTime::default(),
            made_now: (Time::ZERO, 0),
            steps: 0,
            step_tokens: 0,
            step_requests: 0,
            step_ps: 0,
            parts_ps: [0; StepTimePart::COUNT],
            longest_step: Span::ZERO,
            slowest: [None; 2],
            put_back: 0,
            lost_tokens: 0,
            hits: [0; 2],
            steps_of_engines: Vec::new(),
            busy_ps: Vec::new(),
            refused: [0; 3],
            priorities: None,
            first_arrival: None,
            last_arrival: Time::ZERO,
            arrived_in_all: 0,
            empty_answers: 0,
            completed_in_all: 0,
            output_in_all: 0,
            computed_in_all: 0,
            time_in_system: 0,
            end: Time::ZERO,
            met_by_arrival: MetCountsByArrival::default(),
            thirds: [(0, 0); 3],
            expected: scenario.workload.count,
            quarters: [None; 2],
        }
    }

    fn rows_of_class_and_of_all(&mut self, class: u32) -> [&mut RequestClassRecorder; 2] {
        let (last, classes) = self.rows.split_last_mut().expect("there is the row of all");
        [&mut classes[class as usize], last]
    }

    pub fn on_arrived(&mut self, number: u64, class: u32, now: Time) {
        self.first_arrival.get_or_insert(now);
        self.last_arrival = self.last_arrival.max(now);
        self.active.change_level(now, 1);
        if self.is_counted(number) {
            self.rows_of_class_and_of_all(class)
                .into_iter()
                .for_each(|row| row.arrived += 1);
        }
    }

    pub fn widen_priority_range(&mut self, priority: i32) {
        let [least, most] = self.priorities.unwrap_or([priority; 2]);
        self.priorities = Some([least.min(priority), most.max(priority)]);
    }

    pub fn record_refused_request(
        &mut self,
        number: u64,
        class: u32,
        why: RequestRefusalReason,
        now: Time,
    ) {
        self.active.change_level(now, -1);
        self.refused[why as usize] += 1;
        if self.is_counted(number) {
            self.rows_of_class_and_of_all(class)
                .into_iter()
                .for_each(|row| row.refused += 1);
            self.met_by_arrival
                .count_request(number - self.warmup, false);
        }
    }

    pub fn record_preempted_request(&mut self, lost: u32, now: Time) {
        self.put_back += 1;
        self.lost_tokens += u64::from(lost);
        self.running.change_level(now, -1);
        self.waiting.change_level(now, 1);
    }

    pub fn record_cached_prompt_tokens(&mut self, hit: u32, is_first: bool) {
        self.hits[usize::from(!is_first)] += u64::from(hit);
    }

    pub fn on_step(&mut self, load: &StepTimeInputs, time: Span, parts: Option<&StepTimesByPart>) {
        for (sum, part) in self.parts_ps.iter_mut().zip(parts.into_iter().flatten()) {
            *sum += u128::from(part.0);
        }
        self.steps += 1;
        self.step_tokens += load.tokens;
        self.step_requests += load.requests;
        self.step_ps += u128::from(time.0);
        self.longest_step = self.longest_step.max(time);
    }

    /// Records the tokens of a step that begins now.
    pub fn record_begun_step_tokens(&mut self, now: Time, tokens: u64) {
        self.computed.add_count(now, tokens);
    }

    /// Records the gap before a token of request `number`, unless it is part of the warm-up.
    pub fn record_token_gap(&mut self, span: Span, number: u64) {
        if !self.is_counted(number) {
            return;
        }
        if self.pending.0 == span {
            self.pending.1 += 1;
            return;
        }
        self.flush_pending_gaps();
        self.pending = (span, 1);
    }

    /// Records `count` equal gaps of requests after the warm-up.
    pub fn add_gaps(&mut self, span: Span, count: u32) {
        if count > 0 {
            self.gaps.add_gaps(span, count);
        }
    }

    /// Returns true if request `number` comes after the warm-up.
    pub fn is_counted(&self, number: u64) -> bool {
        number >= self.warmup
    }

    pub fn flush_pending_gaps(&mut self) {
        let (span, times) = std::mem::take(&mut self.pending);
        self.add_gaps(span, times);
    }

    /// Records tokens that a step has produced.
    pub fn record_produced_tokens(&mut self, now: Time, count: u64) {
        if self.made_now.0 != now {
            let (at, count) = self.made_now;
            self.made.add_count(at, count);
            self.made_now = (now, 0);
        }
        self.made_now.1 += count;
    }

    pub fn on_completed(&mut self, request: &CompletedLlmRequest) {
        self.active.change_level(request.last, -1);
        self.completed_in_all += 1;
        self.output_in_all += u64::from(request.output);
        // The last token of an answer is never an input, so subtract 1.
        self.computed_in_all += u64::from(request.prompt) + u64::from(request.output) - 1;
        self.time_in_system += u128::from(request.last.since(request.arrival).0);
        self.end = self.end.max(request.last);
        for (at, part) in self.quarters.iter_mut().zip([1, 3]) {
            if self
                .expected
                .is_some_and(|count| self.completed_in_all == count * part / 4)
            {
                at.get_or_insert(request.last);
            }
        }
        if !self.is_counted(request.number) {
            return;
        }
        let ttft = request.time_to_first_token();
        if let Some(count) = self.expected.filter(|count| *count > 0) {
            let third = (request.number * 3 / count).min(2) as usize;
            self.thirds[third].0 += u128::from(ttft.0);
            self.thirds[third].1 += 1;
        }
        let (tpot, e2e) = (request.time_per_token(), request.end_to_end_time());
        for (slowest, time) in self.slowest.iter_mut().zip([
            CompletedLlmRequest::time_to_first_token,
            CompletedLlmRequest::end_to_end_time,
        ]) {
            if slowest.is_none_or(|known| time(request) > time(&known)) {
                *slowest = Some(*request);
            }
        }
        let within = |limit: Option<Span>, span: Span| limit.is_none_or(|limit| span <= limit);
        let limits = self.limits[request.class as usize];
        let met = [
            within(limits.ttft, ttft),
            tpot.is_none_or(|tpot| within(limits.tpot, tpot)),
            within(limits.e2e, e2e),
        ];
        let is_met = met.iter().all(|met| *met);
        self.met_by_arrival
            .count_request(request.number - self.warmup, is_met);
        for row in self.rows_of_class_and_of_all(request.class) {
            row.ttft.add_sample(ttft);
            if let Some(tpot) = tpot {
                row.tpot.add_sample(tpot);
            }
            row.e2e.add_sample(e2e);
            row.queue.add_sample(request.queue_time());
            row.prompt_tokens += u64::from(request.prompt);
            row.output_tokens += u64::from(request.output);
            row.hit_tokens += u64::from(request.hit);
            row.put_back += u64::from(request.put_back);
            row.met += u64::from(is_met);
            for (count, met) in row.met_each.iter_mut().zip(met) {
                *count += u64::from(met);
            }
        }
    }

    /// Returns the completion rate, in requests per second, from when a quarter of the expected requests are complete
    /// until three quarters are.
    pub fn middle_half_completion_rate(&self) -> Option<f64> {
        let [Some(from), Some(to)] = self.quarters else {
            return None;
        };
        let expected = self.expected?;
        let (count, seconds) = (expected * 3 / 4 - expected / 4, to.since(from).as_seconds());
        (seconds > 0.0).then(|| count as f64 / seconds)
    }

    /// Closes the records and checks them for consistency.
    pub fn close_and_check_records(&mut self) {
        self.flush_pending_gaps();
        let (at, count) = self.made_now;
        self.made.add_count(at, count);
        // Steps compute each token of a request once, except for the answer's last token. Tokens lost to a preemption
        // are computed again unless they are in the cache.
        let found: u64 = self.hits.iter().sum();
        assert_eq!(
            self.step_tokens + found,
            self.computed_in_all + self.lost_tokens,
            "steps computed the tokens of all requests and no others"
        );
        // Little's law: the time in the system, summed over requests, equals the number of
        // requests in the system, summed over time.
        assert_eq!(
            self.active
                .level_integral_until(self.end.max(self.active.last_change_time())),
            self.time_in_system,
            "time in the system summed over requests is that summed over time"
        );
        assert_eq!(
            self.completed_in_all + self.refused.iter().sum::<u64>(),
            self.arrived_in_all,
            "each request was answered once"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_have_the_percentiles_of_single_samples() {
        let mut gaps = TokenGapSamples::default();
        gaps.add_gaps(Span(30), 1);
        gaps.add_gaps(Span(10), 3);
        gaps.add_gaps(Span(20), 1);
        // There are five gaps (10, 10, 10, 20, 30), so a percentile is at position 4 q.
        assert_eq!(
            gaps.percentiles(&[0.0, 50.0, 75.0, 90.0, 100.0]),
            [10, 10, 20, 26, 30].map(Span)
        );
        assert_eq!(gaps.mean_token_gap(), Some(Span(16)));
        assert_eq!(TokenGapSamples::default().percentiles(&[50.0]), []);
    }

    #[test]
    fn counts_keep_their_sum_as_intervals_grow() {
        let mut curve = TokenCountsOverTime::default();
        (0..1000).for_each(|i| curve.add_count(Time(i * 10_000_000), 2));
        assert_eq!(curve.counts.iter().sum::<u64>(), 2000);
        assert!(curve.counts.len() <= MOST_INTERVALS);
        // The engine produces two tokens every 10 us.
        let rate = curve
            .count_rate_between(Time(1_000_000_000), Time(9_000_000_000))
            .unwrap();
        assert!((rate / 200_000.0 - 1.0).abs() < 0.02, "{rate}");
    }
}
