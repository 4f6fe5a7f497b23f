//! Splitting of tile groups: members that differ run for themselves from then on, each with a copy of the leader's state.

use super::{GROUPED, GroupSplit, MemberStep, OpenNode, TileGroup, is_shared};
use crate::engine::Engine;
use crate::engine::discipline::CollectiveModel;
use crate::engine::event::{Event, EventClass};
use crate::engine::frames::{key, node_of};
use crate::engine::plan::NONE;
use crate::ids::NodeIndex;
use crate::network::NetworkBackend;
use crate::report::Observer;
use crate::trace::escape;
use crate::units::Time;

impl<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> Engine<'_, O, N, M> {
    /// Settles what members did not do together: ends that are announced come by themselves, and groups are split where
    /// members differ. Ready nodes that have yet to be posted, in order, are those of `ready` from `next` on.
    #[inline(never)]
    pub(in crate::engine) fn settle_uneven(
        &mut self,
        now: Time,
        mut ready: Option<(&mut Vec<u64>, usize)>,
    ) {
        while let Some(number) = self.tile_groups.uneven.pop() {
            let group = &mut self.tile_groups.groups[number as usize];
            let announced = |open: &OpenNode| open.step == MemberStep::Announced;
            if let Some(place) = group.open.iter().position(announced) {
                let open = group.open.swap_remove(place);
                for (member, at) in open.present {
                    let event = Event::new(EventClass::Node, member, open.node.0);
                    self.agenda.push(at, event);
                }
                self.tile_groups.uneven.push(number);
            } else if !group.open.is_empty() {
                self.split(now, number as usize, ready.as_mut());
            }
        }
    }

    /// Splits a group by the members of its first open node.
    fn split(&mut self, now: Time, number: usize, ready: Option<&mut (&mut Vec<u64>, usize)>) {
        let group = std::mem::take(&mut self.tile_groups.groups[number]);
        let first = &group.open[0];
        let ahead = |member: u32| first.present.iter().any(|&(one, _)| one == member);
        self.note_split(now, &group.members, first.node, ahead);
        let runs = group.members.chunk_by(|&a, &b| ahead(a) == ahead(b));
        let runs: Vec<Vec<u32>> = runs.map(<[u32]>::to_vec).collect();
        self.part(now, &group, &runs, ready);
    }

    /// Has every member of a group run for itself, before `node` of the leader is posted. Ready nodes that have yet to be
    /// posted are those of `ready` from `next` on.
    pub(in crate::engine) fn disband(
        &mut self,
        now: Time,
        leader: u32,
        node: NodeIndex,
        mut ready: (&mut Vec<u64>, usize),
    ) {
        let number = self.tile_groups.group_of(leader);
        let group = std::mem::take(&mut self.tile_groups.groups[number]);
        self.note_split(now, &group.members, node, |member| member == leader);
        let alone: Vec<Vec<u32>> = group.members.iter().map(|&member| vec![member]).collect();
        self.part(now, &group, &alone, Some(&mut ready));
    }

    /// Makes groups of the `runs` of a group's members.
    fn part(
        &mut self,
        now: Time,
        group: &TileGroup,
        runs: &[Vec<u32>],
        ready: Option<&mut (&mut Vec<u64>, usize)>,
    ) {
        let leader = group.members[0];
        let others: Vec<u32> = runs[1..].iter().map(|run| run[0]).collect();
        self.tile_groups.origins[group.origin as usize].parts += others.len() as u32;
        for &other in &others {
            self.copy_leader(leader, other);
        }
        if let Some((ready, next)) = ready {
            let left = ready[*next..].iter().copied();
            let own: Vec<u64> = left.filter(|&word| node_of(word).0 == leader).collect();
            for &other in &others {
                ready.extend(own.iter().map(|&word| key(other, node_of(word).1)));
            }
            ready[*next..].sort_unstable();
        }
        let graph = self.flow.instances[leader as usize].graph;
        self.agenda.copy(leader, &others, |event| {
            let node = NodeIndex(event.payload());
            match event.class() {
                EventClass::Ready => true,
                EventClass::Node => !is_shared(graph.kind(node)) || group.whole.contains(&node),
                _ => false,
            }
        });
        let mut after = Vec::new();
        for run in runs {
            let number = self.tile_groups.groups.len() as u32;
            let alone = run.len() == 1;
            for &member in run {
                self.tile_groups.of[member as usize] = if alone { NONE } else { number };
                if alone {
                    self.flow.instances[member as usize].flags &= !GROUPED;
                }
            }
            let mut own = TileGroup {
                origin: group.origin,
                parked: group.parked,
                members: run.clone(),
                open: Vec::new(),
                whole: group.whole.clone(),
            };
            for open in &group.open {
                let present = open.present.iter().copied();
                let present: Vec<(u32, Time)> =
                    present.filter(|(one, _)| run.contains(one)).collect();
                let (node, step) = (open.node, open.step);
                if present.len() == run.len() {
                    if step == MemberStep::Queued && self.gathers(run[0], node) {
                        own.parked -= 1;
                    }
                    after.push((run[0], node, step, present));
                } else if !present.is_empty() {
                    own.open.push(OpenNode {
                        node,
                        step,
                        present,
                    });
                    self.tile_groups.uneven.push(number);
                }
            }
            if !alone {
                self.tile_groups.groups.push(own);
            }
        }
        for (leader, node, step, present) in after {
            let alone = present.len() == 1;
            match step {
                MemberStep::Queued => self.enqueue(now, leader, node),
                MemberStep::Announced if alone => self.announce(present[0].1, leader, node),
                MemberStep::Announced => {
                    let group = self.tile_groups.group_of(leader);
                    self.announce_all(group, node, &present);
                }
                MemberStep::Ended if alone => self.complete_alone(now, leader, node),
                MemberStep::Ended => self.complete_all(now, leader, node),
            }
        }
    }

    /// Notes the first split, and that a group did not stay together.
    fn note_split(
        &mut self,
        now: Time,
        members: &[u32],
        node: NodeIndex,
        ahead: impl Fn(u32) -> bool,
    ) {
        let leader = &self.flow.instances[members[0] as usize];
        let rank = |is_ahead: bool| {
            let mut one = members.iter().filter(|&&member| ahead(member) == is_ahead);
            let one = one.next().copied().unwrap_or(members[0]);
            self.flow.instances[one as usize].of.rank
        };
        let split = GroupSplit {
            at: now,
            node: escape(leader.graph.name(node)).to_string(),
            ahead: rank(true),
            behind: rank(false),
        };
        let original = self.tile_groups.of[members[0] as usize] < self.tile_groups.counts.groups;
        let counts = &mut self.tile_groups.counts;
        counts.together -= u32::from(original);
        counts.split.get_or_insert(split);
    }

    /// Gives `other` the state of `leader`, which ran for it.
    fn copy_leader(&mut self, leader: u32, other: u32) {
        let from = &self.flow.instances[leader as usize];
        let (nodes, first_lane, left, collectives) = (
            from.first_node..from.first_node + from.graph.len(),
            from.first_lane,
            from.left,
            from.collectives,
        );
        let lanes = from.shared.lane_count;
        let to = &mut self.flow.instances[other as usize];
        (to.left, to.collectives) = (left, collectives);
        let (first_node, own_lane) = (to.first_node, to.first_lane);
        self.flow.dependencies_left.copy_within(nodes, first_node);
        for lane in 0..lanes {
            let word = |word: u64| key(other, node_of(word).1);
            self.processors
                .lanes
                .copy(first_lane + lane, own_lane + lane, word);
        }
        let freed = self.effects.freed.iter();
        let freed: Vec<(u32, u32)> = freed
            .filter(|(instance, _)| *instance == leader)
            .map(|(_, lane)| (other, lane - first_lane + own_lane))
            .collect();
        self.effects.freed.extend(freed);
        let ready = self.effects.ready.iter().copied();
        let ready: Vec<u64> = ready
            .filter(|&word| node_of(word).0 == leader)
            .map(|word| key(other, node_of(word).1))
            .collect();
        self.effects.ready.extend(ready);
    }

    /// Gives every member a state of its own, for a description of it.
    pub(in crate::engine) fn dissolve_tile_groups(&mut self) {
        for group in std::mem::take(&mut self.tile_groups.groups) {
            for &member in group.members.iter().skip(1) {
                self.copy_leader(group.members[0], member);
            }
            for member in group.members {
                self.flow.instances[member as usize].flags &= !GROUPED;
            }
        }
    }
}
