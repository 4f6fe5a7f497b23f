//! Validation of traces before a replay.
//!
//! The validator first checks each trace separately ([`ValidatedTrace::check_trace`]): records, ids, dependencies,
//! cycles, durations. The check collects the parts that must agree with other ranks, in program order: collectives,
//! messages, loads that switches gather, and the declared groups. [`validate_job`] compares these parts across
//! ranks. [`job`] checks the traces of all ranks together: each rank has a trace, each group has its members, all
//! members of a group run the same collectives, and each send has a receive. It also checks that ranks do not
//! deadlock (wait in a cycle).
//!
//! A defect has a [`DefectKind`], which gives its severity, its meaning and a remedy. A defect is an error if a
//! replay would reject it, a warning if a replay repairs it, and a note otherwise. The validator counts all defects
//! and keeps the first few of each kind.
//!
//! If a trace is truncated or has a duplicate id or a cycle, the rank is left out of comparisons between ranks.
//! Otherwise, the missing parts would look like faults of the other ranks.

use chakram_trace::format::groups::DeclaredGroups;
use chakram_trace::graph::DependencyPolicy;

mod allocations;
mod collectives;
mod communication;
mod deadlock;
mod defects;
mod dependencies;
mod groups;
mod job;
mod json;
mod kind;
mod memory;
mod messages;
mod node;
mod ranks;
mod text;
mod trace;
mod wait;

pub use defects::{Defect, DefectCounts, DefectLocation, DefectLog};
pub use job::validate_job;
pub use json::render_json as to_json;
pub use kind::{DefectKind, Severity};
pub use text::{ValidationStyle, render_text as to_text};
pub use trace::ValidatedTrace;

/// Sentinel for an absent index or rank.
const NONE: u32 = u32::MAX;

/// Options of a validation.
#[derive(Clone, Debug, Default)]
pub struct ValidateOptions {
    /// Policy that selects the dependencies to enforce.
    pub dependencies: DependencyPolicy,
    /// Whether a rank without a trace is accepted as a copy of a rank with a trace.
    pub mirror: bool,
    /// Number of ranks of the job, if it is larger than the number of ranks that the traces name.
    pub ranks: Option<u32>,
    /// Declared groups, which take precedence over declarations in traces.
    pub declared: DeclaredGroups,
    /// Sizes of the machine's dimensions, innermost first; `None` if the machine is unknown. The sizes determine which
    /// ranks take part in a collective over some of the dimensions.
    pub dimensions: Option<Vec<u32>>,
    /// Maximum number of defects of each kind that are kept; all defects are counted.
    pub show: usize,
}

impl ValidateOptions {
    /// Returns the default options, modified by `change`.
    pub fn apply_changes(change: impl FnOnce(&mut Self)) -> Self {
        let mut options = Self::default();
        change(&mut options);
        options
    }
}

/// Trace of a rank with its name in reports.
#[derive(Clone, Debug)]
pub struct ReportedTrace<'a> {
    /// Rank of the trace.
    pub rank: u32,
    /// Name of the file.
    pub file: String,
    /// Result of checking the trace.
    pub trace: &'a ValidatedTrace,
}

/// Defects of a job and its traces.
#[derive(Clone, Debug)]
pub struct ValidationReport<'a> {
    /// Traces in ascending order of their ranks.
    pub sources: Vec<ReportedTrace<'a>>,
    /// All defects of traces and of the job.
    pub findings: DefectLog,
    /// Whether warnings count as errors.
    pub strict: bool,
}

impl<'a> ValidationReport<'a> {
    /// Validates the job formed by `sources`.
    pub fn new(
        mut sources: Vec<ReportedTrace<'a>>,
        options: &ValidateOptions,
        strict: bool,
    ) -> Self {
        sources.sort_by_key(|source| source.rank);
        let members: Vec<(u32, &ValidatedTrace)> =
            sources.iter().map(|s| (s.rank, s.trace)).collect();
        Self {
            findings: validate_job(&members, options),
            sources,
            strict,
        }
    }

    /// Returns whether the traces allow a replay of the job.
    pub fn is_sound(&self) -> bool {
        let tally = self.findings.count_by_severity();
        tally.errors == 0 && (tally.warnings == 0 || !self.strict)
    }

    /// Returns the number of nodes of all ranks.
    pub fn node_count(&self) -> u64 {
        self.sources
            .iter()
            .map(|source| source.trace.node_count())
            .sum()
    }
}
