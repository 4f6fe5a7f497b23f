//! Information about the profiler in the metadata record of a captured job.

use super::attr::AttrView;
use super::write::{AttributeValue, NamedAttribute};
use chakram_base::units::Span;
use serde::{Deserialize, Serialize};

/// Basis of the estimated cost of a profiler's records, from the most to the least certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CostBasis {
    /// The cost was computed from steps that the same job ran without a profiler.
    MeasuredSteps,
    /// The cost was computed from operators of the capture that only create a view of a tensor. The profiler causes
    /// nearly all of these operators' time.
    Views,
    /// The cost was measured in other jobs, on another machine.
    OtherJobs,
}

impl CostBasis {
    /// All bases of the profiler's cost with their names in traces.
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
pub struct ProfilerCost {
    /// Host time of a record, ns.
    pub record_ns: u64,
    /// Ends of the 90 % interval of the cost, ns. Both ends are equal if the cost comes from measured steps of the
    /// job; in this case, the spread of the steps' times gives the error.
    pub interval_ns: [u64; 2],
    /// Source of the estimate, such as measured steps.
    pub basis: CostBasis,
}

/// Steps of a captured job that were measured without a profiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnprofiledSteps {
    /// Number of steps in the capture.
    pub captured: u64,
    /// Median time of a step without a profiler.
    pub step: Span,
    /// Times of the shortest and the longest step without a profiler, or `None` if unknown.
    pub range: Option<[Span; 2]>,
}

/// Facts about the profiler of a capture; a field is `None` if the metadata record does not state the fact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureProfiler {
    /// Estimated cost of a record of the profiler.
    pub cost: Option<ProfilerCost>,
    /// Steps measured without the profiler.
    pub unprofiled: Option<UnprofiledSteps>,
}

/// Collects the attributes about the profiler, one by one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProfilerAttributes {
    numbers: [Option<u64>; 7],
    basis: Option<CostBasis>,
}

/// Names of the attributes with numbers: captured steps; median, shortest and longest step without a profiler; cost
/// of a record and both ends of its interval, ns.
const NUMBERS: [&str; 7] = [
    "captured_steps",
    "unprofiled_step_ns",
    "unprofiled_step_min_ns",
    "unprofiled_step_max_ns",
    "profiler_record_ns",
    "profiler_record_low_ns",
    "profiler_record_high_ns",
];
/// Name of the attribute with the basis of the cost.
const BASIS: &str = "profiler_cost_basis";

impl ProfilerAttributes {
    /// If `attr` is about the profiler, stores it and returns true.
    pub fn read_attribute(&mut self, attr: &AttrView<'_>) -> bool {
        if attr.name == BASIS.as_bytes() {
            self.basis = attr.as_str().ok().flatten().and_then(CostBasis::from_name);
            return true;
        }
        let place = NUMBERS.iter().position(|name| name.as_bytes() == attr.name);
        if let Some(place) = place {
            self.numbers[place] = attr.as_u64().ok();
        }
        place.is_some()
    }
}

impl From<ProfilerAttributes> for CaptureProfiler {
    fn from(attributes: ProfilerAttributes) -> Self {
        let [captured, step, min, max, record, low, high] = attributes.numbers;
        let span = Span::from_ns;
        Self {
            cost: record
                .zip(attributes.basis)
                .map(|(record_ns, basis)| ProfilerCost {
                    record_ns,
                    interval_ns: [low.unwrap_or(record_ns), high.unwrap_or(record_ns)],
                    basis,
                }),
            unprofiled: captured.zip(step).map(|(captured, step)| UnprofiledSteps {
                captured,
                step: span(step),
                range: min.zip(max).map(|(min, max)| [span(min), span(max)]),
            }),
        }
    }
}

impl CaptureProfiler {
    /// Returns the attributes that encode this profiler's data in the metadata record.
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
