//! Splits tile groups: members that differ are then simulated separately, each with a copy of the leader's state.

use super::{
    FirstTileGroupDivergence, GROUPED, IncompleteGroupStep, InstanceGroupSimulatedAsOne,
    InstanceGroupsSimulatedAsOne, TileGroupSameRoundNodeStep, is_carried_out_per_member,
};
use crate::dataflow::{Dataflow, pack_instance_and_node, unpack_instance_and_node};
use crate::effects::Effects;
use crate::event::EventClass;
use crate::ids::{InstanceIndex, InstanceNode};
use crate::lanes::LanesOfAllNpus;
use crate::plan::NONE;
use chakram_base::ids::NodeIndex;
use chakram_base::units::Time;
use chakram_trace::format::escape_and_shorten_name;

/// Ready nodes that are not posted yet: a list, and the index of its first unposted entry.
pub type UnpostedReadyNodes<'x> = (&'x mut Vec<u64>, usize);

/// A step that all members of a part have taken. The part's leader carries it out for all of them.
#[derive(Clone, Debug)]
pub enum SharedTileGroupPartStep {
    /// The node may queue for its lane.
    Queue(InstanceIndex, NodeIndex),
    /// The time at which each member finishes the node is known.
    Announce(InstanceIndex, NodeIndex, Vec<(InstanceIndex, Time)>),
    /// The node has ended.
    End(InstanceIndex, NodeIndex),
}

impl InstanceGroupsSimulatedAsOne {
    /// Settles one step that only some members of a group have taken. If the step is an announced end, gives each
    /// member its own end event. If the members differ in any other step, splits the group. Returns the resulting
    /// steps; the list is empty when everything is settled.
    #[inline(never)]
    pub fn settle_step_of_some_members(
        &mut self,
        flow: &mut Dataflow<'_>,
        lanes: &mut LanesOfAllNpus,
        effects: &mut Effects,
        now: Time,
        ready: Option<UnpostedReadyNodes<'_>>,
    ) -> Option<Vec<SharedTileGroupPartStep>> {
        let number = self.uneven.pop()?;
        let group = &mut self.groups[number as usize];
        let announced =
            |open: &IncompleteGroupStep| open.step == TileGroupSameRoundNodeStep::Announced;
        // Different end times alone do not split a group, because each member gets its own end event. The group is
        // split only if these events end the node in different rounds.
        if let Some(place) = group.open.iter().position(announced) {
            let open = group.open.swap_remove(place);
            for (member, at) in open.present {
                effects.end_node_at(at, member, open.node);
            }
            self.uneven.push(number);
            return Some(Vec::new());
        }
        if group.open.is_empty() {
            return Some(Vec::new());
        }
        let group = std::mem::take(&mut self.groups[number as usize]);
        let first = &group.open[0];
        let ahead = |member: InstanceIndex| first.present.iter().any(|&(one, _)| one == member);
        self.note_split(flow, now, &group.members, first.node, ahead);
        let runs = group.members.chunk_by(|&a, &b| ahead(a) == ahead(b));
        let runs: Vec<Vec<InstanceIndex>> = runs.map(<[InstanceIndex]>::to_vec).collect();
        Some(self.split_off_parts(flow, lanes, effects, &group, &runs, ready))
    }

    /// Splits a group into single instances, before the leader's `node` is posted.
    pub fn disband_group(
        &mut self,
        flow: &mut Dataflow<'_>,
        lanes: &mut LanesOfAllNpus,
        effects: &mut Effects,
        now: Time,
        leader: InstanceNode,
        ready: UnpostedReadyNodes<'_>,
    ) -> Vec<SharedTileGroupPartStep> {
        let number = self.group_index_of_instance(leader.instance);
        let group = std::mem::take(&mut self.groups[number]);
        let is_leader = |member: InstanceIndex| member == leader.instance;
        self.note_split(flow, now, &group.members, leader.node, is_leader);
        let alone: Vec<Vec<InstanceIndex>> =
            group.members.iter().map(|&member| vec![member]).collect();
        self.split_off_parts(flow, lanes, effects, &group, &alone, Some(ready))
    }

    /// Splits a group into `runs`, which are ranges of its members.
    fn split_off_parts(
        &mut self,
        flow: &mut Dataflow<'_>,
        lanes: &mut LanesOfAllNpus,
        effects: &mut Effects,
        group: &InstanceGroupSimulatedAsOne,
        runs: &[Vec<InstanceIndex>],
        ready: Option<UnpostedReadyNodes<'_>>,
    ) -> Vec<SharedTileGroupPartStep> {
        let leader = group.members[0];
        let others: Vec<InstanceIndex> = runs[1..].iter().map(|run| run[0]).collect();
        self.origins[group.origin as usize].parts += others.len() as u32;
        for &other in &others {
            copy_leader_state(flow, lanes, effects, leader, other);
        }
        // The dispatch loop has processed only part of this list, so copy the remaining nodes for the new leaders. Each
        // leader posts the nodes in the same order.
        if let Some((ready, next)) = ready {
            let left = ready[next..].iter().copied();
            let own: Vec<u64> = left
                .filter(|&word| unpack_instance_and_node(word).instance == leader)
                .collect();
            for &other in &others {
                ready.extend(own.iter().map(|&word| {
                    pack_instance_and_node(other, unpack_instance_and_node(word).node)
                }));
            }
            ready[next..].sort_unstable();
        }
        let graph = flow.instance(leader).graph;
        // Separately executed nodes already have a scheduled end for each member, unless one event ends all members
        // (`whole`).
        effects
            .agenda
            .copy_node_events_to_instances(leader, &others, |event| {
                let node = event.instance_node().node;
                match event.event_class() {
                    EventClass::Ready => true,
                    EventClass::Node => {
                        !is_carried_out_per_member(graph.kind(node)) || group.whole.contains(&node)
                    }
                    _ => false,
                }
            });
        let mut after = Vec::new();
        for run in runs {
            let number = self.groups.len() as u32;
            let alone = run.len() == 1;
            for &member in run {
                self.of[member.index()] = if alone { NONE } else { number };
                if alone {
                    flow.instance_mut(member).flags &= !GROUPED;
                }
            }
            let mut own = InstanceGroupSimulatedAsOne {
                origin: group.origin,
                parked: group.parked,
                members: run.clone(),
                open: Vec::new(),
                whole: group.whole.clone(),
            };
            for open in &group.open {
                let present = open.present.iter().copied();
                let present: Vec<(InstanceIndex, Time)> =
                    present.filter(|(one, _)| run.contains(one)).collect();
                let (node, step) = (open.node, open.step);
                // All members of this part have taken the step, so their leader carries it out for the whole part.
                if present.len() == run.len() {
                    if step == TileGroupSameRoundNodeStep::Queued
                        && flow
                            .instance(run[0])
                            .is_gathering_collective_on_shared_lane(node)
                    {
                        own.parked -= 1;
                    }
                    after.push((run[0], node, step, present));
                } else if !present.is_empty() {
                    own.open.push(IncompleteGroupStep {
                        node,
                        step,
                        present,
                    });
                    self.uneven.push(number);
                }
            }
            if !alone {
                self.groups.push(own);
            }
        }
        let mut steps = Vec::new();
        for (leader, node, step, present) in after {
            match step {
                TileGroupSameRoundNodeStep::Queued => {
                    steps.push(SharedTileGroupPartStep::Queue(leader, node))
                }
                TileGroupSameRoundNodeStep::Announced => {
                    steps.push(SharedTileGroupPartStep::Announce(leader, node, present))
                }
                TileGroupSameRoundNodeStep::Ended => {
                    steps.push(SharedTileGroupPartStep::End(leader, node))
                }
            }
        }
        steps
    }

    /// Counts the split of a group, and stores its details if it is the replay's first split.
    fn note_split(
        &mut self,
        flow: &Dataflow<'_>,
        now: Time,
        members: &[InstanceIndex],
        node: NodeIndex,
        ahead: impl Fn(InstanceIndex) -> bool,
    ) {
        let leader = flow.instance(members[0]);
        let rank = |is_ahead: bool| {
            let mut one = members.iter().filter(|&&member| ahead(member) == is_ahead);
            let one = one.next().copied().unwrap_or(members[0]);
            flow.rank_binding_of_instance(one).rank
        };
        let split = FirstTileGroupDivergence {
            at: now,
            node: escape_and_shorten_name(leader.graph.name(node)).to_string(),
            ahead: rank(true),
            behind: rank(false),
        };
        let original = self.of[members[0].index()] < self.counts.groups;
        let counts = &mut self.counts;
        counts.together -= u32::from(original);
        counts.split.get_or_insert(split);
    }

    /// Splits all groups into single instances, so that a deadlock diagnosis can see the state of every member.
    pub fn dissolve_all(
        &mut self,
        flow: &mut Dataflow<'_>,
        lanes: &mut LanesOfAllNpus,
        effects: &mut Effects,
    ) {
        for group in std::mem::take(&mut self.groups) {
            for &member in group.members.iter().skip(1) {
                copy_leader_state(flow, lanes, effects, group.members[0], member);
            }
            for member in group.members {
                flow.instance_mut(member).flags &= !GROUPED;
            }
        }
    }
}

/// Copies the state of `leader` to `other`, an instance that the leader has simulated so far.
fn copy_leader_state(
    flow: &mut Dataflow<'_>,
    lanes: &mut LanesOfAllNpus,
    effects: &mut Effects,
    leader: InstanceIndex,
    other: InstanceIndex,
) {
    flow.copy_instance_progress(leader, other);
    let [from, own] = [leader, other].map(|of| flow.instance(of).lane_range());
    let (first_lane, next_free_lane_for_single_node) = (from.start, own.start);
    for (from, own) in from.zip(own) {
        lanes.copy_state_between_lanes(from, own, |word| {
            pack_instance_and_node(other, unpack_instance_and_node(word).node)
        });
    }
    let freed = effects.freed.iter();
    let freed: Vec<(InstanceIndex, u32)> = freed
        .filter(|(instance, _)| *instance == leader)
        .map(|(_, lane)| (other, lane - first_lane + next_free_lane_for_single_node))
        .collect();
    effects.freed.extend(freed);
    let ready = effects.ready.iter().copied();
    let ready: Vec<u64> = ready
        .filter(|&word| unpack_instance_and_node(word).instance == leader)
        .map(|word| pack_instance_and_node(other, unpack_instance_and_node(word).node))
        .collect();
    effects.ready.extend(ready);
}
