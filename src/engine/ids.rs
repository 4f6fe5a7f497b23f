//! Typed indices for items in flight and for items in reports. With these types, the compiler rejects indices of the
//! wrong kind.

use chakram_base::ids::{MemberIndex, NodeIndex, Position};
use chakram_base::index;

index!(
    /// Id of an instance for observers: its index among the instances of all programs, program by program.
    InstanceId
);
index!(
    /// Id of a group for observers: its index among the
    /// [`CompiledReplay::group_views`](crate::CompiledReplay::group_views) of all programs, program by program.
    ReplayGroupId
);
index!(
    /// Index of an instance of a launch in flight.
    InstanceIndex
);
index!(
    /// Index of a group of a launch in flight.
    GroupIndex
);
index!(
    /// Index of a collective in flight.
    RunIndex
);
index!(
    /// Index of a chunk (or one of its strands) at one position, in a collective in flight.
    CellIndex
);
index!(
    /// Stage index that all members of a collective use: the index of the corresponding stage in the first member's
    /// schedule.
    SharedStage: u16
);

impl InstanceIndex {
    /// Returns the instance that is `index` places after this instance.
    #[inline]
    pub fn nth_after(self, index: u32) -> Self {
        Self(self.0 + index)
    }
}

/// A node of an instance in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InstanceNode {
    pub instance: InstanceIndex,
    pub node: NodeIndex,
}

/// State of one chunk at one member (a cell) of a collective in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkAtMember {
    pub run: RunIndex,
    pub cell: CellIndex,
}

/// Index of a step in a stage of a collective in flight, or the number of steps already taken in this stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CollectiveStageStep {
    pub stage: SharedStage,
    pub number: u32,
}

impl CellIndex {
    /// Returns the index of the same chunk's state at another position of the group.
    #[inline]
    pub fn same_chunk_at_other_position(self, from: Position, to: Position) -> Self {
        Self(self.0 - from.0 + to.0)
    }
}

/// A group of a launch, and an instance's index among the group's members.
#[derive(Clone, Copy, Debug)]
pub struct LaunchGroupAndMemberIndex {
    pub group: GroupIndex,
    pub member: MemberIndex,
}
