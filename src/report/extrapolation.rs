//! Extrapolates the makespan of a step with many micro-batches from the simulation of fewer micro-batches.
//!
//! Once the pipeline is full, every turn (the repeated part of the schedule) adds the same time d. If N of M
//! micro-batches are simulated, the makespan of the step is
//!
//! T(M) = T(N) + (M - N) / u d, d = T(N) - T(N - u),
//!
//! where u is the number of micro-batches in a turn. A turn is one micro-batch or, with interleaved chunks, one
//! micro-batch per stage. If the last two turns differ in time, the stated error is (M - N) / u |d - e|, where e is the
//! time of the turn before the last one. The extrapolation is wrong by this amount if each remaining turn takes e
//! instead of d. For comparison, PALM's public code simulates six micro-batches. PALM extrapolates with the mean time
//! that the slowest stage takes per micro-batch, and states no error.
//!
//! In each time d, a full pipeline outputs the samples of u micro-batches. The rate u / d leaves out filling and
//! draining, so it is also the inference rate with continuous input.

use super::Report;
use super::summary::format_count_with_noun;
use super::text::format_few_digits;
use chakram_base::units::Span;
use serde::{Deserialize, Serialize};

/// Makespans of two replays of the same step with fewer micro-batches.
#[derive(Clone, Copy, Debug)]
pub struct FewerMicroBatchMakespans {
    /// Makespans of two shorter replays: first with two turns fewer than the main replay, then with
    /// one turn fewer.
    pub makespans: [Span; 2],
    /// Number of micro-batches in a turn, the repeating period of the schedule.
    pub turn: u32,
    /// Number of micro-batches simulated in the main replay.
    pub simulated: u32,
    /// Number of micro-batches in the step.
    pub micro_batches: u32,
    /// Number of samples in the step.
    pub samples: u64,
    /// True if stages keep the activations of all micro-batches, so that the peak memory grows with their number.
    pub keeps_all_activations: bool,
}

/// The whole step, extrapolated from a replay of some micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct WholeStepExtrapolation {
    /// Number of micro-batches in the step.
    pub micro_batches: u32,
    /// Number of micro-batches that were simulated.
    pub simulated: u32,
    /// Extrapolated makespan of the whole step.
    #[serde(rename = "makespan_ps")]
    pub makespan: Span,
    /// Change in the makespan if each remaining turn takes as long as the second-to-last simulated turn.
    #[serde(rename = "error_ps")]
    pub error: Span,
    /// Samples per second of the whole step.
    pub samples_per_s: f64,
    /// Samples per second of a full pipeline, without filling and draining. It is the number of samples in a turn
    /// divided by the time of the last turn. `None` if the last turn added no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_samples_per_s: Option<f64>,
}

impl FewerMicroBatchMakespans {
    /// Extrapolates the whole step from the main replay's `makespan`.
    pub fn extrapolate_whole_step(&self, makespan: Span) -> WholeStepExtrapolation {
        let [first, second, third] =
            [self.makespans[0], self.makespans[1], makespan].map(|makespan| i128::from(makespan.0));
        let turns = i128::from((self.micro_batches - self.simulated) / self.turn.max(1));
        let (last, before) = (third - second, second - first);
        let span = |ps: i128| Span(u64::try_from(ps.max(0)).unwrap_or(u64::MAX));
        let makespan = span(third + turns * last);
        WholeStepExtrapolation {
            micro_batches: self.micro_batches,
            simulated: self.simulated,
            makespan,
            error: span(turns * (last - before).abs()),
            samples_per_s: self.samples as f64 / makespan.as_seconds().max(f64::MIN_POSITIVE),
            full_samples_per_s: (last > 0).then(|| {
                let turns = f64::from(self.micro_batches) / f64::from(self.turn.max(1));
                self.samples as f64 / turns / span(last).as_seconds()
            }),
        }
    }
}

impl Report {
    /// Adds the extrapolation to the whole step. The rates then describe the whole step too.
    pub fn add_whole_step_extrapolation(&mut self, shorter: &FewerMicroBatchMakespans) {
        let step = shorter.extrapolate_whole_step(self.outcome.makespan);
        self.throughput = self
            .throughput
            .map(|rates| rates.scale_micro_batches_to_step(&step));
        self.extrapolation = Some(step);
    }
}

impl WholeStepExtrapolation {
    /// Returns a line about the extrapolated step.
    pub fn describe_extrapolation(&self) -> String {
        let full = self.full_samples_per_s.map(|full| {
            let full = format_few_digits(full);
            format!(" ({full} while the pipeline is full)")
        });
        format!(
            "{} of the step take {} ± {}, {} samples/s{}, by the last of {} simulated",
            format_count_with_noun(self.micro_batches.into(), "micro-batch"),
            self.makespan,
            self.error,
            format_few_digits(self.samples_per_s),
            full.unwrap_or_default(),
            self.simulated
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The makespans are 100, 130 and 158, so the last turn (two micro-batches) adds 28, and the turn before it adds
    /// 30. Three more turns give 158 + 3 x 28, with an error of 3 x 2.
    #[test]
    fn the_last_turn_is_repeated() {
        let shorter = FewerMicroBatchMakespans {
            makespans: [Span(100), Span(130)],
            turn: 2,
            simulated: 8,
            micro_batches: 14,
            samples: 14,
            keeps_all_activations: false,
        };
        let found = shorter.extrapolate_whole_step(Span(158));
        assert_eq!((found.makespan, found.error), (Span(242), Span(6)));
        assert!((found.samples_per_s / (14.0 / 242e-12) - 1.0).abs() < 1e-12);
        // A full pipeline outputs two samples every 28 time units.
        let full = found.full_samples_per_s.unwrap();
        assert!((full / (2.0 / 28e-12) - 1.0).abs() < 1e-12);
        let without = shorter.extrapolate_whole_step(Span(130)).full_samples_per_s;
        assert_eq!(without, None);
    }
}
