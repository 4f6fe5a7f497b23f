//! Joins parts of split tile groups: adjacent parts that end a collective together in equal states become one group
//! again.
//!
//! The members of a stage diverge because their traffic uses different links, for example to receive activations from
//! the previous stage. But some algorithms, such as a ring, end a collective for all members at the same instant. If
//! all members wait for that collective, their states become equal again, and from then on they do the same work at the
//! same time.
//!
//! An instance's state consists of its open dependencies, the holders and queues of its lanes, and its pending events.
//! Separately executed nodes may be pending with different end times, because a group waits for its members' ends
//! anyway. However, no kernel may be pending: parts with a running kernel stay separate until they end a collective
//! while none runs.

use super::shared_lanes::count_parked_collectives;
use super::{
    GROUPED, InstanceGroupSimulatedAsOne, InstanceGroupsSimulatedAsOne, is_carried_out_per_member,
};
use crate::dataflow::{Dataflow, unpack_instance_and_node};
use crate::effects::Effects;
use crate::ids::InstanceIndex;
use crate::lanes::{FREE, LanesOfAllNpus};
use crate::plan::NONE;
use chakram_base::ids::NodeIndex;

impl InstanceGroupsSimulatedAsOne {
    /// Records that an instance, alone or as a leader, has ended a collective.
    #[inline]
    pub fn note_end_of_collective(&mut self, instance: InstanceIndex, node: NodeIndex) {
        let origin = self.origin_of.get(instance.index());
        if let Some(&origin) = origin.filter(|&&origin| origin != NONE)
            && self.origins[origin as usize].parts > 1
        {
            self.ended.push((origin, node, instance));
        }
    }

    /// Returns true if any parts may be able to join.
    pub fn may_have_parts_to_join(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Joins adjacent parts of a group if both ended the same collective in this round and have equal states.
    #[inline(never)]
    pub fn rejoin_parts(
        &mut self,
        flow: &mut Dataflow<'_>,
        lanes: &LanesOfAllNpus,
        effects: &mut Effects,
    ) {
        let mut ended = std::mem::take(&mut self.ended);
        // Sort by original group, node and leader, so that candidates for joining are adjacent.
        ended.sort_unstable();
        for parts in ended.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let leaders: Vec<InstanceIndex> = parts.iter().map(|&(_, _, leader)| leader).collect();
            let runs = leaders
                .chunk_by(|&a, &b| self.parts_are_adjacent_and_equal(flow, lanes, effects, a, b));
            let runs: Vec<&[InstanceIndex]> = runs.filter(|run| run.len() > 1).collect();
            for run in runs {
                self.join_parts_into_one_group(flow, lanes, effects, run);
            }
        }
        ended.clear();
        self.ended = ended;
    }

    /// Returns the last instance that a leader simulates.
    fn last_instance_of(&self, leader: InstanceIndex) -> InstanceIndex {
        match self.of[leader.index()] {
            NONE => leader,
            number => *self.groups[number as usize]
                .members
                .last()
                .unwrap_or(&leader),
        }
    }

    /// Returns true if two parts of a group are adjacent, have equal states, and have no running kernel.
    fn parts_are_adjacent_and_equal(
        &self,
        flow: &Dataflow<'_>,
        lanes: &LanesOfAllNpus,
        effects: &Effects,
        a: InstanceIndex,
        b: InstanceIndex,
    ) -> bool {
        let [one, other] = [a, b].map(|of| flow.instance(of));
        let alone = |of: InstanceIndex| {
            let number = self.of[of.index()];
            number == NONE || self.groups[number as usize].whole.is_empty()
        };
        // The comparison excludes pending events, so parts with running delays do not join, nor do parts with nodes
        // that one common event will end.
        !self.is_follower(flow, a)
            && !self.is_follower(flow, b)
            && self.last_instance_of(a).nth_after(1) == b
            && one.left > 0
            && (one.flags | other.flags) & !GROUPED == 0
            && !one.graph.has_delays()
            && (one.left, one.collectives) == (other.left, other.collectives)
            && alone(a)
            && alone(b)
            && one
                .lane_range()
                .zip(other.lane_range())
                .all(|(first, second)| {
                    let holder = lanes.holder_of_lane(first);
                    let is_own = holder == FREE
                        || is_carried_out_per_member(
                            one.graph.kind(unpack_instance_and_node(holder).node),
                        );
                    is_own && lanes.lanes_have_equal_state(first, second)
                })
            && ready_nodes_and_freed_lanes(flow, effects, a)
                == ready_nodes_and_freed_lanes(flow, effects, b)
            && flow.have_equal_open_dependencies(a, b)
    }

    /// Joins several parts into one group. The leader of the first part becomes the common leader.
    fn join_parts_into_one_group(
        &mut self,
        flow: &mut Dataflow<'_>,
        lanes: &LanesOfAllNpus,
        effects: &mut Effects,
        leaders: &[InstanceIndex],
    ) {
        let leader = leaders[0];
        let origin = self.origin_of[leader.index()];
        let gathers = !self.origins[origin as usize].shared_lanes.is_empty();
        let parked = if gathers {
            count_parked_collectives(flow, lanes, effects, leader)
        } else {
            0
        };
        let mut members = Vec::new();
        for &part in leaders {
            match self.of[part.index()] {
                NONE => members.push(part),
                number => {
                    let old = std::mem::take(&mut self.groups[number as usize]);
                    members.extend(old.members);
                }
            }
        }
        let number = self.groups.len() as u32;
        for &member in &members {
            self.of[member.index()] = number;
            flow.instance_mut(member).flags |= GROUPED;
        }
        self.groups.push(InstanceGroupSimulatedAsOne {
            origin,
            parked,
            members,
            ..InstanceGroupSimulatedAsOne::default()
        });
        self.origins[origin as usize].parts -= leaders.len() as u32 - 1;
        self.counts.rejoined += 1;
        // The leader now posts nodes for all members, so the loop must not dispatch followers' nodes and lanes
        // separately.
        let follows = |instance: InstanceIndex| leaders[1..].contains(&instance);
        effects
            .ready
            .retain(|&word| !follows(unpack_instance_and_node(word).instance));
        effects.freed.retain(|&(instance, _)| !follows(instance));
    }
}

/// Returns an instance's nodes that became ready in this round, and its lanes that were freed.
fn ready_nodes_and_freed_lanes(
    flow: &Dataflow<'_>,
    effects: &Effects,
    instance: InstanceIndex,
) -> (Vec<NodeIndex>, Vec<u32>) {
    let ready = effects
        .ready
        .iter()
        .map(|&word| unpack_instance_and_node(word));
    let ready = ready.filter(|ready| ready.instance == instance);
    let mut ready: Vec<NodeIndex> = ready.map(|ready| ready.node).collect();
    ready.sort_unstable();
    let first_lane = flow.instance(instance).first_lane;
    let freed = effects.freed.iter();
    let freed = freed.filter(|&&(one, _)| one == instance);
    let mut freed: Vec<u32> = freed.map(|&(_, lane)| lane - first_lane).collect();
    freed.sort_unstable();
    (ready, freed)
}
