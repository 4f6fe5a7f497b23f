//! Profiler that captured a job, in reports: whether its cost is in the replay, and how a step of it compares with those
//! that the job measured without a profiler.

use super::Report;
use super::summary::percent_more;
use chakram_base::setting::SettingKey;
use chakram_base::units::{Span, percent_change};
use chakram_trace::workload::Workload;
use serde::{Deserialize, Serialize};

/// Profiler that captured a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ProfilerBasis {
    /// Whether its estimated cost is left out.
    pub removed: bool,
    /// Makespan with its cost, of a replay beside this one.
    #[serde(
        rename = "makespan_with_ps",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub with: Option<Span>,
    /// Number of steps that were captured, of jobs that measured steps without a profiler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Median time of a step without a profiler.
    #[serde(
        rename = "measured_step_ps",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub measured_step: Option<Span>,
}

impl ProfilerBasis {
    /// Returns that of the job, if its traces tell of steps without a profiler or its cost was left out.
    pub(super) fn of(workload: &Workload) -> Option<Self> {
        let graphs = workload.graphs().iter().map(|graph| graph.profiler());
        let removed = graphs.clone().any(|profiler| profiler.removed);
        let unprofiled = graphs.filter_map(|profiler| profiler.unprofiled).next();
        (removed || unprofiled.is_some()).then_some(Self {
            removed,
            with: None,
            steps: unprofiled.map(|steps| steps.captured),
            measured_step: unprofiled.map(|steps| steps.step),
        })
    }
}

impl Report {
    /// Returns lines about the profiler.
    pub(super) fn profiler_lines(&self) -> Vec<String> {
        let Some(profiler) = &self.profiler else {
            return Vec::new();
        };
        let mut lines = vec![match (profiler.removed, profiler.with) {
            (true, Some(with)) => {
                format!("profiler  its estimated cost is left out; with it {with}")
            }
            (true, None) => "profiler  its estimated cost is left out".to_owned(),
            (false, _) => format!(
                "profiler  its cost is in; {} profiler leaves it out",
                SettingKey::Without
            ),
        }];
        if let (Some(steps @ 1..), Some(measured)) = (profiler.steps, profiler.measured_step) {
            let step = Span(self.outcome.makespan.0 / steps);
            let more = percent_more(step, measured);
            let more = more.map_or_else(String::new, |percent| {
                format!("; {}", percent_change(percent))
            });
            lines.push(format!(
                "measured  {measured} a step without a profiler; replay {step} a step{more}"
            ));
        }
        lines
    }
}
