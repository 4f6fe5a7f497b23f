//! Joining of what was split: neighbours that end a collective together and are in one state run as a group again.
//!
//! Members of a stage are told apart by what reaches them over different links, such as activations of the stage before. A
//! collective that all of them wait for ends their differences where it ends for all at one instant, as around a ring. From
//! then on each would do what the others do, as at the start.
//!
//! The state of an instance is: its open dependencies, who holds its lanes and who waits for them, and what pends of it. Nodes that
//! members have of their own may pend at different times, which a group gathers. Kernels may not: where one is running parts
//! stay apart, until they end a collective while none is.

use super::{GROUPED, TileGroup, TileGroups, is_shared};
use crate::engine::Engine;
use crate::engine::discipline::CollectiveModel;
use crate::engine::frames::{RunningInstance, node_of};
use crate::engine::lanes::FREE;
use crate::engine::plan::NONE;
use crate::ids::NodeIndex;
use crate::network::NetworkBackend;
use crate::report::Observer;

impl TileGroups {
    /// Notes that an instance, for itself or for a group, has ended a collective.
    #[inline]
    pub(in crate::engine) fn note_end_of_collective(&mut self, instance: u32, node: NodeIndex) {
        let origin = self.origin_of.get(instance as usize);
        if let Some(&origin) = origin.filter(|&&origin| origin != NONE)
            && self.origins[origin as usize].parts > 1
        {
            self.ended.push((origin, node, instance));
        }
    }

    /// Whether parts of groups may have come together.
    pub(in crate::engine) fn may_join(&self) -> bool {
        !self.ended.is_empty()
    }
}

impl<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> Engine<'_, O, N, M> {
    /// Joins neighbouring parts of groups that ended a collective in this round and are in one state.
    #[inline(never)]
    pub(in crate::engine) fn rejoin(&mut self) {
        let mut ended = std::mem::take(&mut self.tile_groups.ended);
        ended.sort_unstable();
        for parts in ended.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let leaders: Vec<u32> = parts.iter().map(|&(_, _, leader)| leader).collect();
            let runs = leaders.chunk_by(|&a, &b| self.are_alike(a, b));
            let runs: Vec<&[u32]> = runs.filter(|run| run.len() > 1).collect();
            for run in runs {
                self.join(run);
            }
        }
        ended.clear();
        self.tile_groups.ended = ended;
    }

    /// The last instance for which this one runs.
    fn last_of(&self, leader: u32) -> u32 {
        match self.tile_groups.of[leader as usize] {
            NONE => leader,
            number => *self.tile_groups.groups[number as usize]
                .members
                .last()
                .unwrap_or(&leader),
        }
    }

    /// Whether two parts of a group are neighbours and in one state, in which no kernel is running.
    fn are_alike(&self, a: u32, b: u32) -> bool {
        let [one, other] = [a, b].map(|of| &self.flow.instances[of as usize]);
        let open = |of: &RunningInstance<'_>| {
            &self.flow.dependencies_left[of.first_node..of.first_node + of.graph.len()]
        };
        let alone = |of: u32| {
            let number = self.tile_groups.of[of as usize];
            number == NONE || self.tile_groups.groups[number as usize].whole.is_empty()
        };
        !self.follows(a)
            && !self.follows(b)
            && self.last_of(a) + 1 == b
            && one.left > 0
            && (one.flags | other.flags) & !GROUPED == 0
            && !one.graph.has_delays()
            && (one.left, one.collectives) == (other.left, other.collectives)
            && alone(a)
            && alone(b)
            && (0..one.shared.lane_count).all(|lane| {
                let lanes = &self.processors.lanes;
                let [first, second] = [one.first_lane + lane, other.first_lane + lane];
                let holder = lanes.holder(first);
                let is_own = holder == FREE || is_shared(one.graph.kind(node_of(holder).1));
                is_own && lanes.are_alike(first, second)
            })
            && self.effects_of(a) == self.effects_of(b)
            && open(one) == open(other)
    }

    /// Nodes of an instance that became ready, and its lanes that were freed, in this round.
    fn effects_of(&self, instance: u32) -> (Vec<NodeIndex>, Vec<u32>) {
        let ready = self.effects.ready.iter().map(|&word| node_of(word));
        let ready = ready.filter(|&(one, _)| one == instance);
        let mut ready: Vec<NodeIndex> = ready.map(|(_, node)| node).collect();
        ready.sort_unstable();
        let first_lane = self.flow.instances[instance as usize].first_lane;
        let freed = self.effects.freed.iter();
        let freed = freed.filter(|&&(one, _)| one == instance);
        let mut freed: Vec<u32> = freed.map(|&(_, lane)| lane - first_lane).collect();
        freed.sort_unstable();
        (ready, freed)
    }

    /// Has the first of several parts of a group run for all of them.
    fn join(&mut self, leaders: &[u32]) {
        let leader = leaders[0];
        let origin = self.tile_groups.origin_of[leader as usize];
        let gathers = !self.tile_groups.origins[origin as usize]
            .shared_lanes
            .is_empty();
        let parked = if gathers { self.parked_of(leader) } else { 0 };
        let mut members = Vec::new();
        for &part in leaders {
            match self.tile_groups.of[part as usize] {
                NONE => members.push(part),
                number => {
                    let old = std::mem::take(&mut self.tile_groups.groups[number as usize]);
                    members.extend(old.members);
                }
            }
        }
        let number = self.tile_groups.groups.len() as u32;
        for &member in &members {
            self.tile_groups.of[member as usize] = number;
            self.flow.instances[member as usize].flags |= GROUPED;
        }
        self.tile_groups.groups.push(TileGroup {
            origin,
            parked,
            members,
            ..TileGroup::default()
        });
        self.tile_groups.origins[origin as usize].parts -= leaders.len() as u32 - 1;
        self.tile_groups.counts.rejoined += 1;
        let follows = |instance: u32| leaders[1..].contains(&instance);
        self.effects.ready.retain(|&word| !follows(node_of(word).0));
        self.effects
            .freed
            .retain(|&(instance, _)| !follows(instance));
    }
}
