//! Why a replay does not happen, or does not end.

use crate::ids::{NodeIndex, Rank};
use std::fmt;

/// A node as people refer to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeRef {
    /// Whose trace.
    pub rank: Rank,
    /// The id in the file.
    pub id: u64,
    /// The name, shortened.
    pub name: String,
    /// Where it stands in the graph.
    pub index: NodeIndex,
}

impl fmt::Display for NodeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} node {}", self.rank, self.id)?;
        if !self.name.is_empty() {
            write!(f, " `{}`", self.name)?;
        }
        Ok(())
    }
}

/// What can be known before the run, and makes it pointless.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found}\n  try: {hint}")]
#[non_exhaustive]
pub struct Refusal {
    /// What was found, and what was expected.
    pub found: String,
    /// What to try.
    pub hint: String,
}

impl Refusal {
    pub(super) fn new(found: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            found: found.into(),
            hint: hint.into(),
        }
    }
}

/// A node that never completed although all it depends on did, and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The node.
    pub node: NodeRef,
    /// What it waits for, in words.
    pub why: String,
}

/// A replay that could not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Nodes that completed, and all nodes.
    pub completed: u64,
    /// Nodes of the workload.
    pub total: u64,
    /// The nodes that wait, in order of rank and id, at most a few of each rank.
    pub waiting: Vec<Waiting>,
    /// How many more nodes wait than `waiting` names.
    pub unnamed: u64,
    /// Nodes that wait for one another in a circle, each for the next; empty if there is no circle.
    pub cycle: Vec<NodeRef>,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the replay is stuck: {} of {} nodes completed",
            self.completed, self.total
        )?;
        for waiting in &self.waiting {
            write!(f, "\n  {} waits for {}", waiting.node, waiting.why)?;
        }
        if self.unnamed > 0 {
            write!(f, "\n  … and {} more nodes wait", self.unnamed)?;
        }
        if let Some(first) = self.cycle.first() {
            write!(f, "\n  they wait in a circle: ")?;
            for node in &self.cycle {
                write!(f, "{node} → ")?;
            }
            write!(f, "{first}")?;
        }
        Ok(())
    }
}

/// Why a replay gave no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// Known before the run.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Found by the run.
    #[error("{0}")]
    Stuck(Box<Stuck>),
    /// Simulated time ran out of 64 bits.
    #[error(
        "the replay passes 213 days of simulated time, which is all that picoseconds in 64 bits \
         hold\n  try: look for a node with an absurd duration or size, or a bandwidth with a wrong \
         unit"
    )]
    TooLong,
}
