//! Tile groups: when several ranks do the same work at the same time, the engine simulates only one on behalf of all.
//!
//! The ranks of a stage execute one graph, and their states stay equal as long as all of them end each node at the same
//! instant. The engine therefore simulates dependencies, lanes and kernels only for one instance, the *leader*, on
//! behalf of all *members*. Messages, collectives, loads and stores are carried out for each member separately, over
//! its own links. The leader's node for such work ends once every member has finished. A leader with its members is the
//! virtual tile of Fang et al., "PALM: A Efficient Performance Simulator for Tiled Accelerators with Large-scale Model
//! Training".
//!
//! The result is the same, to the picosecond, as if every rank were simulated. The proof is by induction over rounds:
//! as long as all members end their nodes in the same rounds, a separately simulated member would take the same steps
//! as the leader. The loop submits messages in the order of their keys, no matter which instance posts them, and loads
//! and stores in the order of instances. If only some members end a node in a round, the engine *splits* the group
//! before this difference has any effect. The parts are ranges of adjacent instances in equal states; each becomes a
//! separate group or a single rank, with a copy of the leader's state and pending kernels (`split`). When adjacent
//! parts end a collective together in equal states, the engine joins them again (`rejoin`).
//!
//! A group is a range of instances with the same graph and NPU class that exchange no messages with each other.
//! Pipeline stages therefore form separate groups. The instances are consecutive, because a launch order may depend on
//! which rank is ready first at an instant. Observers are notified for every member, so reports do not change.

mod rank_differences;
mod rejoin;
mod shared_lanes;
mod split;

use super::dataflow::Dataflow;
use super::effects::Effects;
use super::ids::{InstanceIndex, InstanceNode};
use super::plan::NONE;
use chakram_base::ids::{NodeIndex, Rank};
use chakram_base::units::Time;
use chakram_trace::graph::NodeKind;

pub(crate) use rank_differences::check_any_tile_group_forms;
pub(super) use split::{SharedTileGroupPartStep, UnpostedReadyNodes};

/// Flag of an instance: the instance is a member of a tile group.
pub(super) const GROUPED: u8 = 32;

/// The first time that a tile group was split in a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstTileGroupDivergence {
    /// Time of the split.
    pub at: Time,
    /// The node that some members ended later than others.
    pub node: String,
    /// The lowest rank that had ended the node by then, or could begin it.
    pub ahead: Rank,
    /// The lowest rank that had not ended the node by then, and could not begin it.
    pub behind: Rank,
}

/// Statistics of a replay: how many events and tile groups it had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventAndTileGroupCounts {
    /// Number of events that the loop handled.
    pub events: u64,
    /// Number of tile groups at the start.
    pub groups: u32,
    /// Number of ranks in tile groups at the start.
    pub ranks: u32,
    /// Number of groups that were never split.
    pub together: u32,
    /// How often the engine joined parts of a split group again.
    pub rejoined: u64,
    /// The first split, or `None` if no group was split.
    pub split: Option<FirstTileGroupDivergence>,
}

/// Steps that all members of a group must take with a node in the same round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TileGroupSameRoundNodeStep {
    /// The node may queue for its lane, because the launch order of its collective's group now allows it.
    Queued,
    /// The time at which the node will end is known, but the end is not scheduled yet.
    Announced,
    /// The node has ended.
    Ended,
}

/// A step of a node that only some members have taken so far.
#[derive(Debug)]
struct IncompleteGroupStep {
    node: NodeIndex,
    step: TileGroupSameRoundNodeStep,
    /// Members that have taken the step. For `Announced`, each entry also gives the time at which the member will end.
    present: Vec<(InstanceIndex, Time)>,
}

/// A group of instances. The engine simulates the group's first instance on behalf of all.
#[derive(Debug, Default)]
struct InstanceGroupSimulatedAsOne {
    /// Index of the original group from which this group was split.
    origin: u32,
    /// Number of ready collectives that wait for all members before they queue for their lanes.
    parked: u32,
    /// Members in ascending order; empty after the group has been split.
    members: Vec<InstanceIndex>,
    open: Vec<IncompleteGroupStep>,
    /// Nodes that one event at the leader ends on all members.
    whole: Vec<NodeIndex>,
}

/// State that all parts of an original group share.
#[derive(Debug)]
struct SplitGroupSharedState {
    /// Number of groups and single instances into which the original group is now split.
    parts: u32,
    /// For each NPU lane, true if collectives that wait for all members share the lane with other nodes. Empty if no
    /// lane is shared.
    shared_lanes: Vec<bool>,
}

/// All tile groups of a run.
#[derive(Debug, Default)]
pub(super) struct InstanceGroupsSimulatedAsOne {
    groups: Vec<InstanceGroupSimulatedAsOne>,
    origins: Vec<SplitGroupSharedState>,
    /// For each instance, the index of its group.
    of: Vec<u32>,
    /// For each instance, the index of its original group, at the start of the run.
    origin_of: Vec<u32>,
    /// Collectives that parts of split groups ended in this round: original group, node and leader.
    ended: Vec<(u32, NodeIndex, InstanceIndex)>,
    /// Groups in which only some members have taken a step with a node, so the loop must check whether to split them.
    uneven: Vec<u32>,
    /// Loads and stores that were issued but not submitted yet.
    accesses: Vec<InstanceNode>,
    counts: EventAndTileGroupCounts,
}

impl InstanceGroupsSimulatedAsOne {
    /// Returns the statistics; `events` is the number of events that the loop handled.
    pub fn event_and_tile_group_counts(&self, events: u64) -> EventAndTileGroupCounts {
        let counts = self.counts.clone();
        EventAndTileGroupCounts { events, ..counts }
    }

    /// Returns true if the run has any groups.
    pub fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Returns true if the loop must check whether to split any group.
    pub fn needs_split_check(&self) -> bool {
        !self.uneven.is_empty()
    }

    fn group_index_of_instance(&self, instance: InstanceIndex) -> usize {
        self.of[instance.index()] as usize
    }

    /// Returns the instance that simulates `instance`, possibly `instance` itself.
    pub fn leader_of(&self, instance: InstanceIndex) -> InstanceIndex {
        self.groups[self.group_index_of_instance(instance)].members[0]
    }

    /// Records that `instance` has taken a step of a node. Once all members have taken it, returns the members and the
    /// times at which they end.
    fn record_step_and_return_all_when_complete(
        &mut self,
        InstanceNode { instance, node }: InstanceNode,
        at: Time,
        step: TileGroupSameRoundNodeStep,
    ) -> Option<Vec<(InstanceIndex, Time)>> {
        let number = self.group_index_of_instance(instance);
        let group = &mut self.groups[number];
        let mut open = group.open.iter();
        let place = open.position(|open| (open.node, open.step) == (node, step));
        let place = place.unwrap_or_else(|| {
            group.open.push(IncompleteGroupStep {
                node,
                step,
                present: Vec::with_capacity(group.members.len()),
            });
            group.open.len() - 1
        });
        let open = &mut group.open[place];
        open.present.push((instance, at));
        if open.present.len() == group.members.len() {
            return Some(group.open.swap_remove(place).present);
        }
        self.uneven.push(number as u32);
        None
    }
}

/// Returns true if nodes of `kind` must be carried out separately for each member.
pub(super) fn is_carried_out_per_member(kind: NodeKind) -> bool {
    matches!(
        kind,
        NodeKind::RemoteMemory | NodeKind::Send | NodeKind::Receive | NodeKind::Collective
    )
}

impl InstanceGroupsSimulatedAsOne {
    /// Forms the groups of a launch, which has `count` instances starting at `first`.
    pub fn form_groups(&mut self, flow: &mut Dataflow<'_>, first: InstanceIndex, count: u32) {
        let last = first.0 + count;
        self.of.resize(last as usize, NONE);
        self.origin_of.resize(last as usize, NONE);
        let mut start = first;
        while start.0 < last {
            let mut end = start.nth_after(1);
            while end.0 < last && can_join_group(flow, start, end) {
                end = end.nth_after(1);
            }
            let members = start.0..end.0;
            if members.len() > 1 {
                let number = self.groups.len() as u32;
                for instance in members.clone().map(InstanceIndex) {
                    flow.instance_mut(instance).flags |= GROUPED;
                    self.of[instance.index()] = number;
                    self.origin_of[instance.index()] = number;
                }
                self.origins.push(SplitGroupSharedState {
                    parts: 1,
                    shared_lanes: flow.instance(start).shared_lane_flags(),
                });
                self.groups.push(InstanceGroupSimulatedAsOne {
                    origin: number,
                    members: members.clone().map(InstanceIndex).collect(),
                    ..InstanceGroupSimulatedAsOne::default()
                });
                self.counts.groups += 1;
                self.counts.ranks += members.len() as u32;
                self.counts.together += 1;
            }
            start = end;
        }
    }

    /// Returns the number of instances that the leader simulates, including the leader.
    pub fn member_count(&self, leader: InstanceIndex) -> usize {
        self.groups[self.group_index_of_instance(leader)]
            .members
            .len()
    }

    /// Returns the `index`-th instance that the leader simulates; index 0 is the leader itself.
    pub fn nth_member(&self, leader: InstanceIndex, index: usize) -> InstanceIndex {
        self.groups[self.group_index_of_instance(leader)].members[index]
    }

    /// Returns true if another instance simulates this instance.
    pub fn is_follower(&self, flow: &Dataflow<'_>, instance: InstanceIndex) -> bool {
        flow.instance(instance).has_flag(GROUPED) && self.leader_of(instance) != instance
    }

    /// Defers a load or store until all accesses of the current dispatch are known.
    pub fn defer_access(&mut self, instance: InstanceIndex, node: NodeIndex) {
        self.accesses.push(InstanceNode { instance, node });
    }

    /// Removes and returns the deferred loads and stores, sorted by instance and then by order of issue. Ranks that
    /// were simulated separately would issue accesses in this order.
    pub fn take_deferred_accesses(&mut self) -> Vec<InstanceNode> {
        let mut accesses = std::mem::take(&mut self.accesses);
        accesses.sort_by_key(|access| access.instance);
        accesses
    }

    /// Schedules the end of a node that each member carries out separately. If all members of a group end together,
    /// schedules one event that ends the node for all of them.
    #[inline]
    pub fn schedule_member_or_group_end(
        &mut self,
        flow: &Dataflow<'_>,
        effects: &mut Effects,
        at: Time,
        member @ InstanceNode { instance, node }: InstanceNode,
    ) {
        if !flow.instance(instance).has_flag(GROUPED) {
            effects.end_node_at(at, instance, node);
            return;
        }
        let step = TileGroupSameRoundNodeStep::Announced;
        if let Some(ends) = self.record_step_and_return_all_when_complete(member, at, step) {
            let number = self.group_index_of_instance(instance);
            self.schedule_ends_of_whole_group(effects, number, node, &ends);
        }
    }

    /// Schedules the end of every member in one part of a split group.
    pub fn schedule_ends_of_split_part(
        &mut self,
        effects: &mut Effects,
        leader: InstanceIndex,
        node: NodeIndex,
        ends: &[(InstanceIndex, Time)],
    ) {
        match *ends {
            [(alone, at)] => effects.end_node_at(at, alone, node),
            _ => self.schedule_ends_of_whole_group(
                effects,
                self.group_index_of_instance(leader),
                node,
                ends,
            ),
        }
    }

    /// Schedules the ends of all members of a group.
    fn schedule_ends_of_whole_group(
        &mut self,
        effects: &mut Effects,
        group: usize,
        node: NodeIndex,
        ends: &[(InstanceIndex, Time)],
    ) {
        let (_, first) = ends[0];
        // If all members of a tile group end at the same instant, one event suffices. `whole` records that it ends the
        // node for all members.
        if ends.iter().all(|&(_, at)| at == first) {
            let group = &mut self.groups[group];
            group.whole.push(node);
            effects.end_node_at(first, group.members[0], node);
            return;
        }
        for &(member, at) in ends {
            effects.end_node_at(at, member, node);
        }
    }

    /// Records that a leader's collective is ready.
    pub fn note_leader_collective_ready(
        &mut self,
        flow: &Dataflow<'_>,
        leader: InstanceIndex,
        node: NodeIndex,
    ) {
        if flow
            .instance(leader)
            .is_gathering_collective_on_shared_lane(node)
        {
            let number = self.group_index_of_instance(leader);
            self.groups[number].parked += 1;
        }
    }

    /// Records that a member may queue for the lane of a node. Returns `None` until the last member is ready, and then
    /// the leader (the instance simulated for all members).
    pub fn record_queued_and_return_leader_if_last(
        &mut self,
        flow: &Dataflow<'_>,
        now: Time,
        member @ InstanceNode { instance, node }: InstanceNode,
    ) -> Option<InstanceIndex> {
        let leader = self.leader_of(instance);
        self.record_step_and_return_all_when_complete(
            member,
            now,
            TileGroupSameRoundNodeStep::Queued,
        )?;
        if flow
            .instance(leader)
            .is_gathering_collective_on_shared_lane(node)
        {
            let number = self.group_index_of_instance(leader);
            self.groups[number].parked -= 1;
        }
        Some(leader)
    }

    /// Records that a member has ended a node. Returns `None` until the last member has ended the node, and then the
    /// leader (the instance simulated for all members).
    pub fn record_ended_and_return_leader_if_last(
        &mut self,
        flow: &Dataflow<'_>,
        now: Time,
        member @ InstanceNode { instance, node }: InstanceNode,
    ) -> Option<InstanceIndex> {
        let leader = self.leader_of(instance);
        if is_carried_out_per_member(flow.instance(instance).graph.kind(node)) {
            let group = self.group_index_of_instance(instance);
            let whole = &mut self.groups[group].whole;
            if let Some(place) = whole.iter().position(|&one| one == node) {
                // One event ended the node on all members, so there is no need to wait for the other members.
                whole.swap_remove(place);
            } else {
                self.record_step_and_return_all_when_complete(
                    member,
                    now,
                    TileGroupSameRoundNodeStep::Ended,
                )?;
            }
        }
        Some(leader)
    }
}

/// Returns true if the plan makes `next` do the same work as every instance from `start` up to `next`.
fn can_join_group(flow: &Dataflow<'_>, start: InstanceIndex, next: InstanceIndex) -> bool {
    let (a, b) = (flow.instance(start), flow.instance(next));
    let (first, second) = (
        flow.rank_binding_of_instance(start),
        flow.rank_binding_of_instance(next),
    );
    a.flags == b.flags
        && rank_differences::find_grouping_obstacle((first, a.planned), (second, b.planned))
            .is_none()
}
