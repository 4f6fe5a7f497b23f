//! Information about the profiler, in the metadata record of a captured job.

use super::attr::AttrView;
use super::write::{AttributeValue, NamedAttribute};
use chakram_base::units::Span;
use serde::{Deserialize, Serialize};

/// What the estimated cost per profiler record is based on; the variants are ordered from most to least certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProfilerCostBasis {
    /// Steps that the same job ran without a profiler.
    MeasuredSteps,
    /// Operators of the capture that only create a view of a tensor. Nearly all of their time is due to the profiler.
    Views,
    /// Measurements in other jobs, on another machine.
    OtherJobs,
}

impl ProfilerCostBasis {
    /// All bases of the cost, with their names in traces.
    const NAMES: [(Self, &str); 3] = [
        (Self::MeasuredSteps, "measured_steps"),
        (Self::Views, "views"),
        (Self::OtherJobs, "other_jobs"),
    ];

    fn name(self) -> &'static str {
        let named = Self::NAMES.iter().find(|(basis, _)| *basis == self);
        named.map_or("", |(_, name)| name)
    }

    fn from_name(text: &str) -> Option<Self> {
        let named = Self::NAMES.iter().find(|(_, name)| *name == text);
        named.map(|(basis, _)| *basis)
    }
}

/// Estimated host time that a profiler needs for one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTimePerProfilerRecord {
    /// Host time for one record, in ns.
    pub record_ns: u64,
    /// Ends of the 90 % interval of the cost, in ns. If the cost comes from the job's measured steps, both ends are
    /// equal, and the spread of the step times gives the error.
    pub interval_ns: [u64; 2],
    /// Basis of the estimate.
    pub basis: ProfilerCostBasis,
}

/// Steps that a captured job ran without a profiler, with their measured times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTimesWithoutProfiler {
    /// Number of steps in the capture.
    pub captured: u64,
    /// Median time of a step without a profiler.
    pub step: Span,
    /// Times of the shortest and the longest step without a profiler, or `None` if they are unknown.
    pub range: Option<[Span; 2]>,
}

/// Facts about the profiler in a metadata record. A field is `None` if the record does not state it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfilerOverheadFacts {
    /// Estimated host time for one record of the profiler.
    pub cost: Option<HostTimePerProfilerRecord>,
    /// Steps measured without the profiler.
    pub unprofiled: Option<StepTimesWithoutProfiler>,
}

/// Collects the profiler's attributes one by one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProfilerOverheadAttributeCollector {
    numbers: [Option<u64>; 7],
    basis: Option<ProfilerCostBasis>,
}

/// Names of the numeric attributes: captured steps; median, shortest and longest step without a profiler; cost of a
/// record and both ends of its interval, in ns.
const NUMBERS: [&str; 7] = [
    "captured_steps",
    "unprofiled_step_ns",
    "unprofiled_step_min_ns",
    "unprofiled_step_max_ns",
    "profiler_record_ns",
    "profiler_record_low_ns",
    "profiler_record_high_ns",
];
/// Name of the attribute that states the cost's basis.
const BASIS: &str = "profiler_cost_basis";

impl ProfilerOverheadAttributeCollector {
    /// Stores `attr` if it is about the profiler, and then returns true.
    pub fn store_known_attribute(&mut self, attr: &AttrView<'_>) -> bool {
        if attr.name == BASIS.as_bytes() {
            self.basis = attr
                .as_str()
                .ok()
                .flatten()
                .and_then(ProfilerCostBasis::from_name);
            return true;
        }
        let place = NUMBERS.iter().position(|name| name.as_bytes() == attr.name);
        if let Some(place) = place {
            self.numbers[place] = attr.as_count().ok();
        }
        place.is_some()
    }
}

impl From<ProfilerOverheadAttributeCollector> for ProfilerOverheadFacts {
    fn from(attributes: ProfilerOverheadAttributeCollector) -> Self {
        let [captured, step, min, max, record, low, high] = attributes.numbers;
        let span = Span::from_ns;
        Self {
            cost: record.zip(attributes.basis).map(|(record_ns, basis)| {
                HostTimePerProfilerRecord {
                    record_ns,
                    interval_ns: [low.unwrap_or(record_ns), high.unwrap_or(record_ns)],
                    basis,
                }
            }),
            unprofiled: captured
                .zip(step)
                .map(|(captured, step)| StepTimesWithoutProfiler {
                    captured,
                    step: span(step),
                    range: min.zip(max).map(|(min, max)| [span(min), span(max)]),
                }),
        }
    }
}

impl ProfilerOverheadFacts {
    /// Returns the attributes that encode this data in the metadata record.
    pub fn attributes<'a>(&self) -> impl Iterator<Item = NamedAttribute<'a>> + use<'a> {
        let ns = |span: Span| span.0 / 1000;
        let range = self.unprofiled.and_then(|steps| steps.range);
        let numbers = [
            self.unprofiled.map(|steps| steps.captured),
            self.unprofiled.map(|steps| ns(steps.step)),
            range.map(|[min, _]| ns(min)),
            range.map(|[_, max]| ns(max)),
            self.cost.map(|cost| cost.record_ns),
            self.cost.map(|cost| cost.interval_ns[0]),
            self.cost.map(|cost| cost.interval_ns[1]),
        ];
        let numbers = NUMBERS.into_iter().zip(numbers);
        let numbers =
            numbers.filter_map(|(name, value)| Some((name, AttributeValue::Uint(value?))));
        let basis = self
            .cost
            .map(|cost| (BASIS, AttributeValue::Text(cost.basis.name())));
        numbers.chain(basis)
    }
}
