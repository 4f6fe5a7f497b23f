//! List of the collectives in flight, which reuses entries.

use super::run::CollectiveRun;
use crate::ids::{LaunchGroupAndMemberIndex, RunIndex};
use chakram_base::ids::NodeIndex;
use std::ops::{Index, IndexMut};

/// The runs of all collectives in flight; a new collective reuses the entry of an ended one.
#[derive(Debug, Default)]
pub struct CollectiveRuns {
    all: Vec<CollectiveRun>,
    free: Vec<RunIndex>,
}

impl Index<RunIndex> for CollectiveRuns {
    type Output = CollectiveRun;

    #[inline]
    fn index(&self, run: RunIndex) -> &CollectiveRun {
        &self.all[run.index()]
    }
}

impl IndexMut<RunIndex> for CollectiveRuns {
    #[inline]
    fn index_mut(&mut self, run: RunIndex) -> &mut CollectiveRun {
        &mut self.all[run.index()]
    }
}

impl CollectiveRuns {
    /// Returns the index of a free entry, which may still contain the state of an earlier collective.
    pub fn take_free_run(&mut self) -> RunIndex {
        self.free.pop().unwrap_or_else(|| {
            self.all.push(CollectiveRun::default());
            RunIndex(self.all.len() as u32 - 1)
        })
    }

    /// Frees the entry of a collective that has ended.
    pub fn free_ended_run(&mut self, run: RunIndex) {
        self.free.push(run);
    }

    /// Returns the simulated collective to which the member's `node` belongs, or `None` if there is none.
    pub fn find_simulated_run_of_node(
        &self,
        slot: LaunchGroupAndMemberIndex,
        node: NodeIndex,
    ) -> Option<&CollectiveRun> {
        self.all.iter().find(|run| {
            run.group == slot.group
                && run.progress.is_some()
                && run.arrivals.nodes.get(slot.member.index()) == Some(&node.0)
        })
    }
}
