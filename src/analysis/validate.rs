//! Checks traces before they are replayed.
//!
//! First, each trace is checked separately ([`TraceDefectsAndDigest::check_trace`]): records, ids, dependencies, cycles
//! and durations. In program order, this check also collects facts that must agree with other ranks: collectives,
//! messages, in-switch memory accesses, and declared groups. Then [`validate_job`] compares the collected data of all
//! ranks. It checks that each rank has a trace, that each group has its members, that all members of a group run the
//! same collectives, and that each send has a receive ([`job`]). It also checks that ranks do not deadlock, which they
//! do if they wait for each other in a cycle.
//!
//! A defect's [`DefectKind`] gives its severity, meaning and remedy. A defect is an error if a replay would reject
//! it, and a warning if a replay repairs it. All other defects are notes. All defects are counted, but only the
//! first few of each kind are stored.
//!
//! If a trace is truncated, has duplicate ids or contains a cycle, its rank is not compared with other ranks.
//! Otherwise, the missing parts would look like defects of the other ranks.

use chakram_trace::format::groups::DeclaredGroups;
use chakram_trace::graph::EnforcedDependencyKinds;

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

pub use defects::{Defect, DefectCountsBySeverity, DefectLocationInFile, DefectLog};
pub use job::validate_job;
pub use json::render_json as to_json;
pub use kind::{DefectKind, Severity};
pub use text::{ValidationTextStyles, render_text as to_text};
pub use trace::TraceDefectsAndDigest;

/// Marks an absent index or rank.
const NONE: u32 = u32::MAX;

/// Options of a validation.
#[derive(Clone, Debug, Default)]
pub struct ValidateOptions {
    /// Selects which dependencies are enforced.
    pub dependencies: EnforcedDependencyKinds,
    /// True to accept ranks without a trace, as copies of ranks with one.
    pub mirror: bool,
    /// Number of ranks in the job. Only needed if the traces show fewer ranks.
    pub ranks: Option<u32>,
    /// Groups declared outside the traces, which take precedence over declarations in traces.
    pub declared: DeclaredGroups,
    /// Size of each dimension of the machine, innermost first; `None` if the machine is unknown. These sizes determine
    /// which ranks join a collective over some dimensions.
    pub dimensions: Option<Vec<u32>>,
    /// Maximum number of stored defects of each kind. Further defects are only counted.
    pub show: usize,
}

impl ValidateOptions {
    /// Returns the default options, changed by `change`.
    pub fn default_options_changed_by(change: impl FnOnce(&mut Self)) -> Self {
        let mut options = Self::default();
        change(&mut options);
        options
    }
}

/// A rank's checked trace and the name of its file.
#[derive(Clone, Debug)]
pub struct ValidatedTraceFile<'a> {
    /// Rank of the trace.
    pub rank: u32,
    /// Name of the file.
    pub file: String,
    /// Result of checking the trace alone.
    pub trace: &'a TraceDefectsAndDigest,
}

/// The defects of a job and of its traces.
#[derive(Clone, Debug)]
pub struct ValidationReport<'a> {
    /// The traces, in ascending order of ranks.
    pub sources: Vec<ValidatedTraceFile<'a>>,
    /// All defects, both of single traces and of the job.
    pub findings: DefectLog,
    /// True if warnings count as errors.
    pub strict: bool,
}

impl<'a> ValidationReport<'a> {
    /// Validates the job whose traces are `sources`.
    pub fn new(
        mut sources: Vec<ValidatedTraceFile<'a>>,
        options: &ValidateOptions,
        strict: bool,
    ) -> Self {
        sources.sort_by_key(|source| source.rank);
        let members: Vec<(u32, &TraceDefectsAndDigest)> =
            sources.iter().map(|s| (s.rank, s.trace)).collect();
        Self {
            findings: validate_job(&members, options),
            sources,
            strict,
        }
    }

    /// Returns true if the job can be replayed: it has no errors and, if `strict` is true, no warnings either.
    pub fn has_no_errors_or_strict_warnings(&self) -> bool {
        let tally = self.findings.count_by_severity();
        tally.errors == 0 && (tally.warnings == 0 || !self.strict)
    }

    /// Returns the number of nodes, summed over ranks.
    pub fn node_count(&self) -> u64 {
        self.sources
            .iter()
            .map(|source| source.trace.node_count())
            .sum()
    }
}
