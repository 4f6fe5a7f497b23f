//! Results about the profiler that captured a job: the makespan with and without the profiler's cost, and a comparison
//! with steps that ran without the profiler.
//!
//! # The interval of the makespan without a profiler
//!
//! If the job also timed steps without a profiler, the makespan without the cost is multiplied by two ratios of step
//! times. The lower end of the interval uses shortest / median, and the upper end longest / median. For other jobs, the
//! interval follows from the interval of a profiler record's cost (`converters/pytorch/profiler_cost.rs`). The removed
//! time is scaled to each end of that interval, and subtracted from the makespan with the profiler. If the traces do
//! not state this cost, there is no interval. The lower end is at least the longest time in which an NPU runs kernels,
//! because the profiler's cost is host time. [`REPEATS`], the variation between repetitions of a step, widens both
//! kinds of intervals (docs/validation.md).

use super::Report;
use super::summary::percent_more;
use chakram_base::setting::SettingKey;
use chakram_base::units::{Span, format_given_percent_change};
use chakram_trace::format::profiler_cost::{ProfilerCostBasis, StepTimesWithoutProfiler};
use chakram_trace::graph::Graph;
use chakram_trace::workload::Workload;
use serde::{Deserialize, Serialize};

/// Relative difference between repetitions of a step.
const REPEATS: f64 = 0.03;

/// The profiler that captured a job, and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ProfilerAndItsCost {
    /// True if this replay subtracts the estimated cost of the profiler.
    pub removed: bool,
    /// Makespan including the profiler's cost.
    #[serde(
        rename = "makespan_with_ps",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub with: Option<Span>,
    /// Makespan without the profiler's cost, and its interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without: Option<MakespanWithoutProfilerCost>,
    /// Cost of one profiler record, in nanoseconds. Ranks have different costs; this is the largest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_ns: Option<u64>,
    /// Ends of the 90 % interval of `record_ns`, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_interval_ns: Option<[u64; 2]>,
    /// Method that determined `record_ns`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_basis: Option<ProfilerCostBasis>,
    /// Number of captured steps. Present only if the job also timed steps without a profiler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Median time of the steps that ran without a profiler.
    #[serde(
        rename = "measured_step_ps",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub measured_step: Option<Span>,
}

/// Makespan without the profiler's cost, and its interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct MakespanWithoutProfilerCost {
    /// Makespan without the profiler's cost.
    #[serde(rename = "makespan_ps")]
    pub makespan: Span,
    /// Lower end of the makespan's 90 % interval. Absent if the traces do not state the cost of a record.
    #[serde(rename = "low_ps", default, skip_serializing_if = "Option::is_none")]
    pub low: Option<Span>,
    /// Upper end of the makespan's 90 % interval.
    #[serde(rename = "high_ps", default, skip_serializing_if = "Option::is_none")]
    pub high: Option<Span>,
}

impl ProfilerAndItsCost {
    /// Returns the job's profiler; `None` unless the traces state the profiler's cost or the times of steps without a
    /// profiler.
    pub(super) fn profiler_of_workload(workload: &Workload) -> Option<Self> {
        let graphs = workload
            .distinct_graphs()
            .iter()
            .map(|graph| graph.facts_about_profiler());
        let removed = graphs.clone().any(|profiler| profiler.removed);
        let charged = graphs.clone().any(|profiler| profiler.charged);
        let unprofiled = find_step_times_without_profiler(workload);
        let costs = graphs.filter_map(|profiler| profiler.said.cost.filter(|_| profiler.charged));
        let cost = costs.max_by_key(|cost| (cost.record_ns, cost.basis));
        (charged || unprofiled.is_some()).then_some(Self {
            removed,
            with: None,
            without: None,
            record_ns: cost.map(|cost| cost.record_ns),
            record_interval_ns: cost.map(|cost| cost.interval_ns),
            cost_basis: cost.map(|cost| cost.basis),
            steps: unprofiled.map(|steps| steps.captured),
            measured_step: unprofiled.map(|steps| steps.step),
        })
    }

    /// Sets both makespans of the job `workload`. `own` is the makespan of this replay. `other` is the makespan with
    /// the profiler's cost if this replay subtracts it, otherwise the makespan without it.
    /// `busiest` is the longest time in which an NPU runs kernels. No removed host time can shorten kernels, except on a
    /// CPU, where the profiler runs between them.
    pub fn set_both_makespans(
        &mut self,
        own: Span,
        other: Span,
        busiest: Span,
        workload: &Workload,
    ) {
        let (with, without) = if self.removed {
            (other, own)
        } else {
            (own, other)
        };
        let busiest = match workload
            .distinct_graphs()
            .iter()
            .any(Graph::were_kernels_captured_on_cpu)
        {
            true => Span::ZERO,
            false => busiest,
        };
        let interval = self.interval_of_time_without_profiler(
            with,
            without,
            busiest,
            find_step_times_without_profiler(workload),
        );
        self.with = Some(with);
        self.without = Some(MakespanWithoutProfilerCost {
            makespan: without,
            low: interval.map(|[low, _]| low),
            high: interval.map(|[_, high]| high),
        });
    }

    fn interval_of_time_without_profiler(
        &self,
        with: Span,
        without: Span,
        busiest: Span,
        measured: Option<StepTimesWithoutProfiler>,
    ) -> Option<[Span; 2]> {
        let measured =
            measured.filter(|_| self.cost_basis == Some(ProfilerCostBasis::MeasuredSteps));
        let range = measured.and_then(|steps| Some((steps.range?, steps.step)));
        let [low, high] = match (range, self.record_ns.zip(self.record_interval_ns)) {
            (Some((range, step)), _) => {
                range.map(|end| without.scale_by(end.0 as f64 / step.0.max(1) as f64))
            }
            (None, Some((record, [least, most]))) if record > 0 => {
                let cost = Span(with.0.saturating_sub(without.0));
                let less = |by: u64| {
                    let taken = cost.scale_by(by as f64 / record as f64);
                    Span(with.0.saturating_sub(taken.0))
                };
                [less(most), less(least)]
            }
            (None, _) => return None,
        };
        let low = low.scale_by(1.0 - REPEATS).max(busiest.min(without));
        Some([low, high.scale_by(1.0 + REPEATS)])
    }
}

/// Returns the steps that the job timed without a profiler, if any.
fn find_step_times_without_profiler(workload: &Workload) -> Option<StepTimesWithoutProfiler> {
    let mut graphs = workload.distinct_graphs().iter();
    graphs.find_map(|graph| graph.facts_about_profiler().said.unprofiled)
}

impl Report {
    /// Returns lines about the profiler, each with a label.
    pub(super) fn list_captured_profiler_overhead_lines(&self) -> Vec<(&'static str, String)> {
        let Some(profiler) = &self.profiler else {
            return Vec::new();
        };
        let without = SettingKey::Without;
        let here = match profiler.removed {
            true => format!("the replay leaves the overhead out; {without} nothing keeps it"),
            false => format!("{without} profiler leaves this overhead out"),
        };
        let mut lines = match (profiler.with, profiler.without) {
            (Some(with), Some(without)) => {
                let interval = without.low.zip(without.high);
                let interval = interval.map_or_else(String::new, |(low, high)| {
                    format!(" ({low} to {high} in nine of ten cases)")
                });
                let makespan = without.makespan;
                vec![
                    (
                        "profiler",
                        format!("with it {with}, without it {makespan}{interval}"),
                    ),
                    (
                        "",
                        format!("{}{here}", profiler.cost_per_record_and_basis_text()),
                    ),
                ]
            }
            _ => vec![("profiler", here)],
        };
        if let (Some(steps @ 1..), Some(measured)) = (profiler.steps, profiler.measured_step) {
            let step = Span(self.outcome.makespan.0 / steps);
            let more = percent_more(step, measured);
            let more = more.map_or_else(String::new, |percent| {
                format!("; {}", format_given_percent_change(percent))
            });
            let text = format!("{measured} a step without a profiler; replay {step} a step{more}");
            lines.push(("measured", text));
        }
        lines
    }
}

impl ProfilerAndItsCost {
    fn cost_per_record_and_basis_text(&self) -> String {
        let Some((ns, basis)) = self.record_ns.zip(self.cost_basis) else {
            return String::new();
        };
        let by = match basis {
            ProfilerCostBasis::MeasuredSteps => "by steps that were measured without it",
            ProfilerCostBasis::Views => "by operators that compute nothing",
            ProfilerCostBasis::OtherJobs => "as on another machine",
        };
        format!("{} a record, {by}; ", Span::from_ns(ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A replay takes 10 ms with and 6 ms without the profiler, so 4 ms are its cost. At the upper end, the cost is 3.5
    /// times as high and exceeds the makespan, but kernels alone take 2 ms.
    #[test]
    fn removed_cost_never_shortens_kernels() {
        let profiler = ProfilerAndItsCost {
            removed: false,
            with: None,
            without: None,
            record_ns: Some(1000),
            record_interval_ns: Some([400, 3500]),
            cost_basis: Some(ProfilerCostBasis::Views),
            steps: None,
            measured_step: None,
        };
        let ms = |ms: u64| Span::from_ns(1_000_000 * ms);
        for (busiest, low) in [(ms(2), ms(2)), (ms(0), ms(0)), (ms(7), ms(6))] {
            let found = profiler.interval_of_time_without_profiler(ms(10), ms(6), busiest, None);
            assert_eq!(found.map(|[low, _]| low), Some(low));
        }
    }
}
