//! The groups of launches in flight, with the launch order of each group's collectives.

use super::launch_order::GroupCollectiveLaunchOrder;
use crate::dataflow::ProgramFirstInstanceAndGroup;
use crate::ids::{
    GroupIndex, InstanceId, InstanceIndex, InstanceNode, LaunchGroupAndMemberIndex, ReplayGroupId,
    RunIndex,
};
use crate::plan::{NONE, PlacedCommunicationGroup, ReplayPlan};
use chakram_base::ids::{MemberIndex, NodeIndex, Rank};
use chakram_base::units::Time;
use std::ops::{Index, IndexMut};

/// One group of a launch in flight.
#[derive(Debug)]
pub struct RankGroupOfLaunchedProgram<'a> {
    pub plan: &'a PlacedCommunicationGroup,
    pub(super) order: GroupCollectiveLaunchOrder,
    /// Plan of the program that the launch executes.
    program: &'a ReplayPlan,
    /// First instance of the launch.
    first_instance: InstanceIndex,
    /// Observers' id for the program's first instance.
    first_id: InstanceId,
    /// Id of the group for observers and schedules.
    pub(super) id: ReplayGroupId,
    /// Index of the program's first byte table. A byte table gives the bytes that each pair of members exchanges.
    pub(super) first_splits: u32,
    /// Index of the group among the groups of all launches. The index orders messages at the same instant.
    pub(super) number: u32,
}

impl RankGroupOfLaunchedProgram<'_> {
    /// Returns the instance of a rank, or `None` if the rank has no trace.
    #[inline]
    pub fn program_instance_index_of_rank(&self, rank: Rank) -> Option<InstanceIndex> {
        let own = self.program.instance_of_rank(rank)?;
        Some(self.first_instance.nth_after(own.0))
    }

    /// Returns the id that observers use for a rank's instance, or `None` if the rank has no trace.
    #[inline]
    pub fn observer_instance_id_of_rank(&self, rank: Rank) -> Option<InstanceId> {
        let own = self.program.instance_of_rank(rank)?;
        Some(InstanceId(self.first_id.0 + own.0))
    }

    /// Returns the index of the state (run) of the collective `sequence`, or `None` if the collective is not in flight.
    pub fn run_index_of_collective(&self, sequence: u32) -> Option<RunIndex> {
        self.order.run_of[sequence as usize]
    }

    /// Returns since when a member that takes its lane at `now` has waited for the last member; see
    /// [`GroupCollectiveLaunchOrder::take_start_of_wait`].
    #[inline]
    pub fn take_start_of_wait(
        &mut self,
        now: Time,
        member: MemberIndex,
        sequence: u32,
        lane_freed: Time,
    ) -> Time {
        self.order
            .take_start_of_wait(now, member, sequence, lane_freed)
    }

    /// Returns the collective that `member` must start before the collective `sequence`. Returns `None` if the member
    /// may start `sequence` now.
    pub fn collective_that_member_must_start_before(
        &self,
        member: MemberIndex,
        sequence: u32,
    ) -> Option<u32> {
        self.order
            .collective_that_member_must_start_before(member, sequence)
    }
}

/// The groups of all launches in flight.
#[derive(Debug, Default)]
pub struct GroupsOfAllLaunchesInFlight<'a> {
    all: Vec<RankGroupOfLaunchedProgram<'a>>,
    /// Number of groups in all launches so far.
    launched: u32,
}

impl<'a> Index<GroupIndex> for GroupsOfAllLaunchesInFlight<'a> {
    type Output = RankGroupOfLaunchedProgram<'a>;

    #[inline]
    fn index(&self, group: GroupIndex) -> &Self::Output {
        &self.all[group.index()]
    }
}

impl IndexMut<GroupIndex> for GroupsOfAllLaunchesInFlight<'_> {
    #[inline]
    fn index_mut(&mut self, group: GroupIndex) -> &mut Self::Output {
        &mut self.all[group.index()]
    }
}

impl<'a> GroupsOfAllLaunchesInFlight<'a> {
    /// Adds the groups of a launch. The launch's instances begin at `first_instance`. Returns the index of the first
    /// group. `only` is true if the run has no other launch.
    pub fn add_groups_of_program_launch(
        &mut self,
        plan: &'a ReplayPlan,
        first_instance: InstanceIndex,
        numbers: ProgramFirstInstanceAndGroup,
        only: bool,
    ) -> GroupIndex {
        let first = GroupIndex(self.all.len() as u32);
        if only {
            self.all.reserve_exact(plan.groups.len());
        }
        let groups = (numbers.first_group.0..).zip(&plan.groups);
        self.all
            .extend(groups.map(|(id, group)| RankGroupOfLaunchedProgram {
                plan: group,
                order: GroupCollectiveLaunchOrder::new(group),
                program: plan,
                first_instance,
                first_id: numbers.first_instance,
                id: ReplayGroupId(id),
                first_splits: numbers.first_splits,
                number: 0,
            }));
        first
    }

    /// Assigns indices to the groups of a launch. Resets groups that an earlier launch used.
    pub fn number_and_reset_groups_of_launch(
        &mut self,
        first: GroupIndex,
        count: usize,
        used: bool,
    ) {
        for group in &mut self.all[first.index()..][..count] {
            group.number = self.launched;
            self.launched = self.launched.wrapping_add(1);
            if used {
                group.order.reset_for_group(group.plan);
            }
        }
    }

    /// Marks a member's `node` as ready for a collective. Returns true if the member may start the collective.
    /// Otherwise parks the node until [`Self::take_startable_parked_node`] returns it.
    #[inline]
    pub fn mark_ready_or_park_node(
        &mut self,
        now: Time,
        slot: LaunchGroupAndMemberIndex,
        sequence: u32,
        node: u32,
    ) -> bool {
        self[slot.group]
            .order
            .mark_ready_or_park_node(now, slot.member, sequence, node)
    }

    /// Removes and returns a parked node of a group that may start now, or `None`.
    #[inline]
    pub fn take_startable_parked_node(
        &mut self,
        now: Time,
        group: GroupIndex,
    ) -> Option<InstanceNode> {
        let group = &mut self[group];
        loop {
            let (member, node) = group.order.take_startable_parked_node(now)?;
            // Skip members that waited for no other member: they started before their turn came.
            if node != NONE {
                let rank = group.plan.members[member.index()];
                let instance = group
                    .program_instance_index_of_rank(rank)
                    .expect("who was ready has a trace");
                let node = NodeIndex(node);
                return Some(InstanceNode { instance, node });
            }
        }
    }
}
