//! Tile groups: ranks that do the same at the same time, of which one runs for all.
//!
//! The ranks of a stage carry out one graph, and as long as they end everything at the same instants their states are
//! equal. So one instance of them, the *leader*, is enough: it has dependencies, lanes and kernels for all *members*. What
//! members have of their own, messages, collectives, loads and stores, is carried out for each of them, over its own
//! links, and a node of the leader has ended when it has for all members. This is the virtual tile of Fang et al.,
//! "PALM: A Efficient Performance Simulator for Tiled Accelerators with Large-scale Model Training".
//!
//! The answer is that of running every rank, to the picosecond. By induction over rounds: while all members end their nodes
//! in the same rounds, each would do what the leader does; messages are submitted in content order whoever posts them, and
//! loads and stores in the order of instances. When some members have ended a node in a round and others have not, the group
//! is *split* before anything follows from it: into runs of neighbouring instances that agree, each with a copy of the
//! leader's state, and pending kernels (`split`). From then on they are groups, or ranks, by themselves, until a collective
//! that they end together finds them in the same state, which joins neighbours again (`rejoin`).
//!
//! Groups are runs of instances with one graph on one class of NPUs that exchange no messages among themselves, which keeps
//! stages apart. They are neighbours in number, since launch orders may depend on who is ready first at an instant. Observers
//! are told of all members, so reports do not differ.

mod rejoin;
mod shared_lanes;
mod split;

use super::Engine;
use super::discipline::CollectiveModel;
use super::event::{Event, EventClass};
use super::plan::NONE;
use crate::graph::NodeKind;
use crate::ids::{NodeIndex, Rank};
use crate::network::NetworkBackend;
use crate::report::Observer;
use crate::units::Time;

/// Flag of an instance: it is a member of a tile group.
pub(super) const GROUPED: u8 = 32;

/// First split of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSplit {
    /// When.
    pub at: Time,
    /// The node that members did not end together.
    pub node: String,
    /// The lowest member that had ended it, or could begin it.
    pub ahead: Rank,
    /// The lowest that had not.
    pub behind: Rank,
}

/// Tile groups of a replay, and the work of its loop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoopCounts {
    /// Events that the loop handled.
    pub events: u64,
    /// Groups at the start, with their ranks.
    pub groups: u32,
    /// Ranks in them.
    pub ranks: u32,
    /// Groups that were never split.
    pub together: u32,
    /// Times that parts of a group that had been split were joined again.
    pub rejoined: u64,
    /// The first split.
    pub split: Option<GroupSplit>,
}

/// Steps of a node that members take together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberStep {
    /// It may queue for its lane: the launch order of a collective's group allows it.
    Queued,
    /// The instant of its end is known, and no event says so yet.
    Announced,
    /// It has ended.
    Ended,
}

/// A node whose step some members have taken.
#[derive(Debug)]
struct OpenNode {
    node: NodeIndex,
    step: MemberStep,
    /// Members, with the instant of the end where it is announced.
    present: Vec<(u32, Time)>,
}

/// Instances of which the first runs for all.
#[derive(Debug, Default)]
struct TileGroup {
    /// The group that it was at the start.
    origin: u32,
    /// Collectives that gather, are ready and do not queue for their lanes yet.
    parked: u32,
    /// In ascending order; empty once the group was split.
    members: Vec<u32>,
    open: Vec<OpenNode>,
    /// Nodes whose end is announced by one event of the leader for all members.
    whole: Vec<NodeIndex>,
}

/// A group as it was at the start.
#[derive(Debug)]
struct GroupOrigin {
    /// Groups and single instances that it is now.
    parts: u32,
    /// By lane of the NPU, whether a collective that gathers shares it with other nodes; empty where none does.
    shared_lanes: Vec<bool>,
}

/// All groups.
#[derive(Debug, Default)]
pub(super) struct TileGroups {
    groups: Vec<TileGroup>,
    origins: Vec<GroupOrigin>,
    /// By instance, its group.
    of: Vec<u32>,
    /// By instance, its group at the start.
    origin_of: Vec<u32>,
    /// Collectives that parts of groups ended in this round: origin, node, and the instance that ran.
    ended: Vec<(u32, NodeIndex, u32)>,
    /// Groups with open nodes that have to be looked at.
    uneven: Vec<u32>,
    /// Loads and stores that were issued since the last were started.
    accesses: Vec<(u32, NodeIndex)>,
    pub counts: LoopCounts,
}

impl TileGroups {
    /// Whether there are any.
    pub fn exist(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Whether members have to be looked at.
    pub fn are_uneven(&self) -> bool {
        !self.uneven.is_empty()
    }

    fn group_of(&self, instance: u32) -> usize {
        self.of[instance as usize] as usize
    }

    /// The instance that runs for `instance`.
    pub fn leader_of(&self, instance: u32) -> u32 {
        self.groups[self.group_of(instance)].members[0]
    }

    /// Notes that `instance` has taken a step of a node. Returns the members with their instants once all have.
    fn gather(
        &mut self,
        (instance, at): (u32, Time),
        node: NodeIndex,
        step: MemberStep,
    ) -> Option<Vec<(u32, Time)>> {
        let number = self.group_of(instance);
        let group = &mut self.groups[number];
        let mut open = group.open.iter();
        let place = open.position(|open| (open.node, open.step) == (node, step));
        let place = place.unwrap_or_else(|| {
            group.open.push(OpenNode {
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

/// Whether a node involves what members have of their own.
fn is_shared(kind: NodeKind) -> bool {
    matches!(
        kind,
        NodeKind::RemoteMemory | NodeKind::Send | NodeKind::Receive | NodeKind::Collective
    )
}

impl<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> Engine<'_, O, N, M> {
    /// Forms the groups of a launch whose instances begin at `first`.
    pub(super) fn form_tile_groups(&mut self, first: u32, count: u32) {
        let instances = (first + count) as usize;
        self.tile_groups.of.resize(instances, NONE);
        self.tile_groups.origin_of.resize(instances, NONE);
        let mut start = first;
        while start < first + count {
            let mut end = start + 1;
            while end < first + count && self.joins(start, end) {
                end += 1;
            }
            if end - start > 1 {
                let number = self.tile_groups.groups.len() as u32;
                for instance in start..end {
                    self.flow.instances[instance as usize].flags |= GROUPED;
                    self.tile_groups.of[instance as usize] = number;
                    self.tile_groups.origin_of[instance as usize] = number;
                }
                let shared_lanes = self.shared_lanes_of(start);
                self.tile_groups.origins.push(GroupOrigin {
                    parts: 1,
                    shared_lanes,
                });
                self.tile_groups.groups.push(TileGroup {
                    origin: number,
                    members: (start..end).collect(),
                    ..TileGroup::default()
                });
                let counts = &mut self.tile_groups.counts;
                counts.groups += 1;
                counts.ranks += end - start;
                counts.together += 1;
            }
            start = end;
        }
    }

    /// Whether `next` does the same as the instances from `start` up to it, as far as can be told before.
    fn joins(&self, start: u32, next: u32) -> bool {
        let (a, b) = (
            &self.flow.instances[start as usize],
            &self.flow.instances[next as usize],
        );
        let (from, to) = (a.of.rank, b.of.rank);
        std::ptr::eq(a.graph, b.graph)
            && std::ptr::eq(a.shared, b.shared)
            && (a.flags, a.of.release) == (b.flags, b.of.release)
            && !b.of.peers.iter().any(|peer| (from..to).contains(peer))
    }

    fn members(&self, instance: u32) -> usize {
        self.tile_groups.groups[self.tile_groups.group_of(instance)]
            .members
            .len()
    }

    fn member(&self, instance: u32, index: usize) -> u32 {
        self.tile_groups.groups[self.tile_groups.group_of(instance)].members[index]
    }

    /// Whether another instance runs for this one.
    pub(super) fn follows(&self, instance: u32) -> bool {
        self.flow.instances[instance as usize].flags & GROUPED != 0
            && self.tile_groups.leader_of(instance) != instance
    }

    /// Calls `tell` with the number of each member but the leader.
    pub(super) fn tell_of_followers(&mut self, leader: u32, mut tell: impl FnMut(&mut O, u32)) {
        for index in 1..self.members(leader) {
            let follower = self.member(leader, index);
            let number = self.flow.instances[follower as usize].number;
            tell(self.observer, number);
        }
    }

    /// Starts a node that holds the leader's lane.
    #[inline(never)]
    pub(super) fn issue_together(&mut self, now: Time, leader: u32, node: NodeIndex) {
        let kind = self.flow.instances[leader as usize].graph.kind(node);
        let running = &mut self.flow.instances[leader as usize];
        running.collectives += u32::from(kind == NodeKind::Collective);
        let number = running.number;
        self.observer.issued(now, number, node, kind);
        self.tell_of_followers(leader, |observer, number| {
            observer.issued(now, number, node, kind);
        });
        if !is_shared(kind) {
            let end = now + self.price(leader, node);
            self.complete_at(end, leader, node);
            return;
        }
        for index in 0..self.members(leader) {
            let member = self.member(leader, index);
            match kind {
                NodeKind::RemoteMemory => self.defer_access(member, node),
                NodeKind::Send => {
                    let graph = self.flow.instances[member as usize].graph;
                    self.send_message(now, member, node, graph.message_index(node));
                }
                _ => self.arrive(now, member, node),
            }
        }
    }

    /// Keeps a load or store until all of this dispatch are known.
    pub(super) fn defer_access(&mut self, instance: u32, node: NodeIndex) {
        self.tile_groups.accesses.push((instance, node));
    }

    /// Starts loads and stores, by instance and then as they were issued: the order in which ranks that run by themselves
    /// issue them.
    pub(super) fn start_deferred_accesses(&mut self, now: Time) {
        if self.tile_groups.accesses.is_empty() {
            return;
        }
        let mut accesses = std::mem::take(&mut self.tile_groups.accesses);
        accesses.sort_by_key(|&(instance, _)| instance);
        for (instance, node) in accesses.drain(..) {
            self.start_remote_access(now, instance, node);
        }
        self.tile_groups.accesses = accesses;
    }

    /// Posts a receive of each member.
    #[inline(never)]
    pub(super) fn post_receives_together(&mut self, now: Time, leader: u32, node: NodeIndex) {
        for index in 0..self.members(leader) {
            let member = self.member(leader, index);
            self.post_receive(now, member, node);
        }
    }

    /// Posts a collective of a group: each member is ready in the launch order of its own.
    #[inline(never)]
    pub(super) fn post_together(&mut self, now: Time, leader: u32, node: NodeIndex) {
        if self.gathers(leader, node) {
            let number = self.tile_groups.group_of(leader);
            self.tile_groups.groups[number].parked += 1;
        }
        for index in 0..self.members(leader) {
            let member = self.member(leader, index);
            let (slot, sequence) = self.call_of(member, node);
            let order = &mut self.collectives.groups[slot.group as usize].order;
            if order.ready(slot.member, sequence, node.0) {
                self.may_queue(now, member, node);
            }
            self.queue_parked(now, slot.group);
        }
    }

    /// Has a node queue for its lane, once it may for all members of its group.
    pub(super) fn may_queue(&mut self, now: Time, instance: u32, node: NodeIndex) {
        if self.flow.instances[instance as usize].flags & GROUPED == 0 {
            self.enqueue(now, instance, node);
            return;
        }
        let leader = self.tile_groups.leader_of(instance);
        let step = MemberStep::Queued;
        if self
            .tile_groups
            .gather((instance, now), node, step)
            .is_some()
        {
            if self.gathers(leader, node) {
                let number = self.tile_groups.group_of(leader);
                self.tile_groups.groups[number].parked -= 1;
            }
            self.enqueue(now, leader, node);
        }
    }

    /// Schedules the end of a node that involves what the instance has of its own; of a group one event for all members,
    /// if they end together.
    pub(super) fn announce(&mut self, at: Time, instance: u32, node: NodeIndex) {
        if self.flow.instances[instance as usize].flags & GROUPED == 0 {
            let event = Event::new(EventClass::Node, instance, node.0);
            self.agenda.push(at, event);
            return;
        }
        let step = MemberStep::Announced;
        if let Some(ends) = self.tile_groups.gather((instance, at), node, step) {
            let number = self.tile_groups.group_of(instance);
            self.announce_all(number, node, &ends);
        }
    }

    /// Schedules the ends of all members of a group.
    fn announce_all(&mut self, group: usize, node: NodeIndex, ends: &[(u32, Time)]) {
        let (_, first) = ends[0];
        if ends.iter().all(|&(_, at)| at == first) {
            let group = &mut self.tile_groups.groups[group];
            group.whole.push(node);
            let event = Event::new(EventClass::Node, group.members[0], node.0);
            self.agenda.push(first, event);
            return;
        }
        for &(member, at) in ends {
            let event = Event::new(EventClass::Node, member, node.0);
            self.agenda.push(at, event);
        }
    }

    /// Completes a node of a group, once all members have ended it.
    #[inline(never)]
    pub(super) fn complete_together(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let kind = self.flow.instances[instance as usize].graph.kind(node);
        let leader = self.tile_groups.leader_of(instance);
        if is_shared(kind) {
            let group = self.tile_groups.group_of(instance);
            let whole = &mut self.tile_groups.groups[group].whole;
            if let Some(place) = whole.iter().position(|&one| one == node) {
                whole.swap_remove(place);
            } else {
                let step = MemberStep::Ended;
                if self
                    .tile_groups
                    .gather((instance, now), node, step)
                    .is_none()
                {
                    return;
                }
            }
        }
        self.complete_all(now, leader, node);
    }

    /// Completes a node that all members of the leader's group have ended.
    fn complete_all(&mut self, now: Time, leader: u32, node: NodeIndex) {
        let kind = self.flow.instances[leader as usize].graph.kind(node);
        self.complete_alone(now, leader, node);
        self.tell_of_followers(leader, |observer, number| {
            observer.completed(now, number, node, kind);
        });
        let members = self.members(leader);
        self.flow.completed += members as u64 - 1;
        if self.flow.instances[leader as usize].left == 0 {
            for index in 1..members {
                let follower = self.member(leader, index);
                self.effects.ended.push(follower);
            }
        }
    }
}
