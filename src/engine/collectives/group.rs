//! Groups of launches in flight, and the order in which their collectives take lanes.

use super::launch_order::LaunchOrder;
use super::{CollectiveModel, Collectives};
use crate::dataflow::LaunchNumbers;
use crate::plan::{BoundSlot, GroupPlan, NONE, ReplayPlan};
use chakram_base::ids::{NodeIndex, Rank};

/// A group of a launch in flight.
#[derive(Debug)]
pub struct RunningGroup<'a> {
    pub plan: &'a GroupPlan,
    pub(super) order: LaunchOrder,
    /// Instance of each rank of its program, [`NONE`] for those without a trace.
    instance_of: &'a [u32],
    /// First instance of its launch.
    first_instance: u32,
    /// Index of its program's first instance among those of all programs, by which observers know them.
    first_number: u32,
    /// Index among the groups of all programs, by which observers and schedules know it.
    pub(super) identity: u32,
    /// First of its program's tables of what pairs exchange, among those of all programs.
    pub(super) first_splits: u32,
    /// Number among the groups of all launches, by which its messages are ordered.
    pub(super) number: u32,
}

impl RunningGroup<'_> {
    /// Returns the instance of a rank, [`NONE`] if it has no trace.
    #[inline]
    pub fn instance(&self, rank: Rank) -> u32 {
        match self.instance_of[rank.index()] {
            NONE => NONE,
            index => self.first_instance + index,
        }
    }

    /// Returns the number by which observers know the instance of a rank, if it has a trace.
    #[inline]
    pub fn number_of(&self, rank: Rank) -> Option<u32> {
        let index = self.instance_of[rank.index()];
        (index != NONE).then_some(self.first_number + index)
    }

    /// Returns the collective that a member, which is ready for `sequence`, has to start before it, if there is one.
    pub fn blocked_by(&self, member: u32, sequence: u32) -> Option<u32> {
        self.order.blocked_by(member, sequence)
    }
}

impl<'a, M: CollectiveModel> Collectives<'a, M> {
    /// Adds the groups of a program's launch, whose instances begin at `first_instance`; `only` says that there will be
    /// no other. Returns the index of the first.
    pub fn add_groups(
        &mut self,
        plan: &'a ReplayPlan,
        first_instance: u32,
        numbers: LaunchNumbers,
        only: bool,
    ) -> u32 {
        let first = self.groups.len() as u32;
        if only {
            self.groups.reserve_exact(plan.groups.len());
        }
        let groups = (numbers.first_group..).zip(&plan.groups);
        self.groups
            .extend(groups.map(|(identity, group)| RunningGroup {
                plan: group,
                order: LaunchOrder::new(group),
                instance_of: &plan.instance_of,
                first_instance,
                first_number: numbers.first_instance,
                identity,
                first_splits: numbers.first_splits,
                number: 0,
            }));
        first
    }

    /// Numbers groups for a launch. Those that were used are as new.
    pub fn launch_groups(&mut self, first: u32, count: usize, used: bool) {
        for group in &mut self.groups[first as usize..][..count] {
            group.number = self.counts.groups;
            self.counts.groups = self.counts.groups.wrapping_add(1);
            if used {
                group.order.reset(group.plan);
            }
        }
    }

    pub fn group(&self, group: u32) -> &RunningGroup<'a> {
        &self.groups[group as usize]
    }

    /// Marks a member ready for a collective with `node`. Returns whether it may start; if not, the node is parked until
    /// [`Self::next_parked`] returns it.
    #[inline]
    pub fn ready(&mut self, slot: BoundSlot, sequence: u32, node: u32) -> bool {
        let order = &mut self.groups[slot.group as usize].order;
        order.ready(slot.member, sequence, node)
    }

    /// Returns a parked node of a group whose place has come.
    #[inline]
    pub fn next_parked(&mut self, group: u32) -> Option<(u32, NodeIndex)> {
        let group = &mut self.groups[group as usize];
        loop {
            let (member, node) = group.order.next_parked()?;
            // Members that wait for nobody have left before their place comes.
            if node != NONE {
                let rank = group.plan.members[member as usize];
                return Some((group.instance(rank), NodeIndex(node)));
            }
        }
    }
}
