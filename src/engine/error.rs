//! Errors of a replay: why a job was rejected before it ran, and deadlocks.

use super::launch::LaunchSerial;
use chakram_base::ids::{NodeIndex, Rank};
use chakram_base::interrupt::StopOrMemoryInterruption;
use std::fmt;

/// Reference to a node in error messages.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeRef {
    /// Index of the node's launch, if the run has several launches.
    pub launch: Option<LaunchSerial>,
    /// Rank of the trace that contains the node.
    pub rank: Rank,
    /// Id of the node in the trace file.
    pub id: u64,
    /// Node name, possibly shortened.
    pub name: String,
    /// Index of the node in its graph.
    pub index: NodeIndex,
}

impl fmt::Display for NodeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(launch) = self.launch {
            write!(f, "launch {launch} ")?;
        }
        write!(f, "rank {} node {}", self.rank, self.id)?;
        if !self.name.is_empty() {
            write!(f, " `{}`", self.name)?;
        }
        Ok(())
    }
}

/// Why a job cannot be replayed, found before the run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found}\n  try: {hint}")]
pub struct ReplayRefusal {
    /// Sentence that states the problem and the expected value.
    pub found: String,
    /// Suggestion of what to try.
    pub hint: String,
}

impl ReplayRefusal {
    /// Creates an error from `found`, a sentence that states the problem and the expected value, and a `hint`.
    pub fn new(found: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            found: found.into(),
            hint: hint.into(),
        }
    }
}

/// A node that never completed although its dependencies did, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeverCompletedNode {
    /// The node that waits.
    pub node: NodeRef,
    /// Why the node waits.
    pub why: String,
}

/// Diagnosis of a replay that deadlocked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Number of completed nodes.
    pub completed: u64,
    /// Number of nodes in the workload.
    pub total: u64,
    /// Machine failures that kept nodes from ending, each with the affected work.
    pub failures: Vec<String>,
    /// Waiting nodes by rank and id, at most a few of each rank.
    pub waiting: Vec<NeverCompletedNode>,
    /// Number of waiting nodes that `waiting` does not list.
    pub unnamed: u64,
    /// Dependency cycle, in which each node waits for the next; empty if no cycle was found.
    pub cycle: Vec<NodeRef>,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the replay {}: {} of {} nodes completed",
            if self.failures.is_empty() {
                "deadlocked"
            } else {
                "is stuck"
            },
            self.completed,
            self.total
        )?;
        for failure in &self.failures {
            write!(f, "\n  {failure}")?;
        }
        for waiting in &self.waiting {
            write!(f, "\n  {} waits for {}", waiting.node, waiting.why)?;
        }
        if self.unnamed > 0 {
            write!(f, "\n  … and {} more nodes wait", self.unnamed)?;
        }
        if let Some(first) = self.cycle.first() {
            write!(f, "\n  deadlock cycle: ")?;
            for node in &self.cycle {
                write!(f, "{node} → ")?;
            }
            write!(f, "{first}")?;
        }
        Ok(())
    }
}

/// Why a replay has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// Rejected before the run.
    #[error(transparent)]
    Refused(#[from] ReplayRefusal),
    /// Deadlocked during the run.
    #[error("{0}")]
    Stuck(Box<Stuck>),
    /// Simulated time overflowed.
    #[error(
        "the replay exceeds 213 days of simulated time, the maximum of 64-bit picoseconds\n  try: \
         look for a node with an absurd duration or size, or a bandwidth with a wrong unit"
    )]
    TooLong,
    /// The run was interrupted, or memory ran out.
    #[error(transparent)]
    Interrupted(#[from] StopOrMemoryInterruption),
}
