//! Indices of what is in flight, and of what observers are told about: each kind its own, so that none stands for another.

use chakram_base::ids::{MemberIndex, NodeIndex, Position};
use chakram_base::index;

index!(
    /// An instance as observers know it: its index in its program's workload, instances of one program after those of
    /// another.
    InstanceId
);
index!(
    /// A group as observers know it: its index among [`CompiledReplay::groups`](crate::CompiledReplay::groups), groups of
    /// one program after those of another.
    ReplayGroupId
);
index!(
    /// An instance of a launch in flight.
    InstanceIndex
);
index!(
    /// A group of a launch in flight.
    GroupIndex
);
index!(
    /// A collective in flight.
    RunIndex
);
index!(
    /// A chunk, or a strand of one, at a position of a collective in flight.
    CellIndex
);
index!(
    /// A stage as the members of a collective know it: that of the first member's schedule along the same line.
    SharedStage: u16
);

impl InstanceIndex {
    /// The instance after this one, by as many as `index` says.
    #[inline]
    pub fn after(self, index: u32) -> Self {
        Self(self.0 + index)
    }
}

/// A node of an instance in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InstanceNode {
    pub instance: InstanceIndex,
    pub node: NodeIndex,
}

/// A cell of a collective in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunCell {
    pub run: RunIndex,
    pub cell: CellIndex,
}

/// A step of a stage of a collective in flight, or how many there have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedStep {
    pub stage: SharedStage,
    pub number: u32,
}

impl CellIndex {
    /// The same chunk at another position of the group.
    #[inline]
    pub fn moved(self, from: Position, to: Position) -> Self {
        Self(self.0 - from.0 + to.0)
    }
}

/// The place of an instance in a group of its launch.
#[derive(Clone, Copy, Debug)]
pub struct GroupSlot {
    pub group: GroupIndex,
    pub member: MemberIndex,
}
