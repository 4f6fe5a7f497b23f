//! What is wrong with traces, found before anything is replayed.
//!
//! Each trace is checked by itself ([`Trace::check`]): records, ids, dependencies, cycles, durations. What is kept
//! of it is what other ranks have to agree with: collectives, messages and loads that switches gather, in
//! program order, and the groups that it declares. [`job`] holds these against one another: who takes part, groups
//! and their members, the same collectives on all members of a group, a receive for each send, and no circle of
//! waits across ranks.
//!
//! A defect has a [`Kind`], which says how bad it is, what it means and what to try. Whatever a replay would refuse
//! about traces is an error here; what a replay repairs is a warning; what is only worth knowing is a note.
//! All defects are counted, and the first few of each kind are kept.
//!
//! A rank whose trace cannot be read to the end, has an id twice or a cycle is left out where ranks are held
//! against one another: what it lacks would look like a fault of the others.
//!
//! ```
//! use chakram::trace::Contents;
//! use chakram::validate::Trace;
//!
//! let contents = Contents::open("traces/data-parallel-8/job.0.et".as_ref())?;
//! let trace = Trace::check(contents.as_slice(), Default::default(), 10);
//! assert_eq!(trace.findings().tally().errors, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::graph::Dependencies;
use crate::trace::groups::Declared;

mod allocations;
mod circle;
mod collectives;
mod edges;
mod facts;
mod findings;
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

pub use findings::{Defect, Findings, Site, Tally};
pub use job::job;
pub use json::render as to_json;
pub use kind::{Kind, Severity};
pub use text::{Style, render as to_text};
pub use trace::Trace;

/// What a job is held against.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Which dependencies hold.
    pub dependencies: Dependencies,
    /// Whether a rank without a trace is no defect.
    pub mirror: bool,
    /// Ranks of the job, if more than the traces show.
    pub ranks: Option<u32>,
    /// Groups of ranks; they go before those that traces declare themselves.
    pub declared: Declared,
    /// The sizes of the machine's dimensions, the innermost first, if the machine is known: it decides who takes
    /// part in collectives over some of the dimensions.
    pub dimensions: Option<Vec<u32>>,
    /// How many defects of each kind are kept.
    pub show: usize,
}

impl Options {
    /// Returns the defaults as `change` leaves them.
    pub fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut options = Self::default();
        change(&mut options);
        options
    }
}

/// A rank's trace as a report names it.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    /// The rank.
    pub rank: u32,
    /// The file.
    pub file: String,
    /// What was found in it.
    pub trace: &'a Trace,
}

/// Everything that is wrong with a job.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// The traces, in ascending order of their ranks.
    pub sources: Vec<Source<'a>>,
    /// All defects, of traces and of the job.
    pub findings: Findings,
    /// Whether warnings count as errors.
    pub strict: bool,
}

impl<'a> Report<'a> {
    /// Checks the job that `sources` are.
    pub fn new(mut sources: Vec<Source<'a>>, options: &Options, strict: bool) -> Self {
        sources.sort_by_key(|source| source.rank);
        let members: Vec<(u32, &Trace)> = sources.iter().map(|s| (s.rank, s.trace)).collect();
        Self {
            findings: job(&members, options),
            sources,
            strict,
        }
    }

    /// Whether the job can be replayed, as far as its traces go.
    pub fn is_sound(&self) -> bool {
        let tally = self.findings.tally();
        tally.errors == 0 && (tally.warnings == 0 || !self.strict)
    }

    /// Nodes of all ranks.
    pub fn nodes(&self) -> u64 {
        self.sources.iter().map(|source| source.trace.nodes()).sum()
    }
}
