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

pub(crate) use rank_differences::check_groups;
pub(super) use split::{LeftToPost, PartStep};

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
pub(super) enum MemberStep {
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
    present: Vec<(InstanceIndex, Time)>,
}

/// Instances of which the first runs for all.
#[derive(Debug, Default)]
struct TileGroup {
    /// The group that it was at the start.
    origin: u32,
    /// Collectives that gather, are ready and do not queue for their lanes yet.
    parked: u32,
    /// In ascending order; empty once the group was split.
    members: Vec<InstanceIndex>,
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
    ended: Vec<(u32, NodeIndex, InstanceIndex)>,
    /// Groups with open nodes that have to be looked at.
    uneven: Vec<u32>,
    /// Loads and stores that were issued since the last were started.
    accesses: Vec<InstanceNode>,
    counts: LoopCounts,
}

impl TileGroups {
    /// The groups, and the number of events that the loop handled.
    pub fn counts(&self, events: u64) -> LoopCounts {
        let counts = self.counts.clone();
        LoopCounts { events, ..counts }
    }

    /// Returns whether there are any.
    pub fn exist(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Returns whether members have to be looked at.
    pub fn are_uneven(&self) -> bool {
        !self.uneven.is_empty()
    }

    fn group_of(&self, instance: InstanceIndex) -> usize {
        self.of[instance.index()] as usize
    }

    /// The instance that runs for `instance`.
    pub fn leader_of(&self, instance: InstanceIndex) -> InstanceIndex {
        self.groups[self.group_of(instance)].members[0]
    }

    /// Notes that `instance` has taken a step of a node. Returns the members with their instants once all have.
    fn gather(
        &mut self,
        InstanceNode { instance, node }: InstanceNode,
        at: Time,
        step: MemberStep,
    ) -> Option<Vec<(InstanceIndex, Time)>> {
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

/// Returns whether a node involves what members have of their own.
pub(super) fn is_shared(kind: NodeKind) -> bool {
    matches!(
        kind,
        NodeKind::RemoteMemory | NodeKind::Send | NodeKind::Receive | NodeKind::Collective
    )
}

impl TileGroups {
    /// Forms the groups of a launch whose instances begin at `first`.
    pub fn form(&mut self, flow: &mut Dataflow<'_>, first: InstanceIndex, count: u32) {
        let last = first.0 + count;
        self.of.resize(last as usize, NONE);
        self.origin_of.resize(last as usize, NONE);
        let mut start = first;
        while start.0 < last {
            let mut end = start.after(1);
            while end.0 < last && joins(flow, start, end) {
                end = end.after(1);
            }
            let members = start.0..end.0;
            if members.len() > 1 {
                let number = self.groups.len() as u32;
                for instance in members.clone().map(InstanceIndex) {
                    flow.instance_mut(instance).flags |= GROUPED;
                    self.of[instance.index()] = number;
                    self.origin_of[instance.index()] = number;
                }
                self.origins.push(GroupOrigin {
                    parts: 1,
                    shared_lanes: flow.instance(start).shared_lanes(),
                });
                self.groups.push(TileGroup {
                    origin: number,
                    members: members.clone().map(InstanceIndex).collect(),
                    ..TileGroup::default()
                });
                self.counts.groups += 1;
                self.counts.ranks += members.len() as u32;
                self.counts.together += 1;
            }
            start = end;
        }
    }

    /// Number of instances for which the leader runs, itself included.
    pub fn members(&self, leader: InstanceIndex) -> usize {
        self.groups[self.group_of(leader)].members.len()
    }

    /// One of these instances.
    pub fn member(&self, leader: InstanceIndex, index: usize) -> InstanceIndex {
        self.groups[self.group_of(leader)].members[index]
    }

    /// Returns whether another instance runs for this one.
    pub fn follows(&self, flow: &Dataflow<'_>, instance: InstanceIndex) -> bool {
        flow.instance(instance).has(GROUPED) && self.leader_of(instance) != instance
    }

    /// Keeps a load or store until all of this dispatch are known.
    pub fn defer_access(&mut self, instance: InstanceIndex, node: NodeIndex) {
        self.accesses.push(InstanceNode { instance, node });
    }

    /// Returns the loads and stores that were kept, by instance and then as they were issued: the order in which ranks that run
    /// by themselves issue them.
    pub fn take_accesses(&mut self) -> Vec<InstanceNode> {
        let mut accesses = std::mem::take(&mut self.accesses);
        accesses.sort_by_key(|access| access.instance);
        accesses
    }

    /// Schedules the end of a node that involves what the instance has of its own; of a group one event for all members,
    /// if they end together.
    #[inline]
    pub fn announce(
        &mut self,
        flow: &Dataflow<'_>,
        effects: &mut Effects,
        at: Time,
        member @ InstanceNode { instance, node }: InstanceNode,
    ) {
        if !flow.instance(instance).has(GROUPED) {
            effects.end_at(at, instance, node);
            return;
        }
        let step = MemberStep::Announced;
        if let Some(ends) = self.gather(member, at, step) {
            let number = self.group_of(instance);
            self.announce_all(effects, number, node, &ends);
        }
    }

    /// Schedules the ends of all members of a part of a group that was split.
    pub fn announce_part(
        &mut self,
        effects: &mut Effects,
        leader: InstanceIndex,
        node: NodeIndex,
        ends: &[(InstanceIndex, Time)],
    ) {
        match *ends {
            [(alone, at)] => effects.end_at(at, alone, node),
            _ => self.announce_all(effects, self.group_of(leader), node, ends),
        }
    }

    /// Schedules the ends of all members of a group.
    fn announce_all(
        &mut self,
        effects: &mut Effects,
        group: usize,
        node: NodeIndex,
        ends: &[(InstanceIndex, Time)],
    ) {
        let (_, first) = ends[0];
        if ends.iter().all(|&(_, at)| at == first) {
            let group = &mut self.groups[group];
            group.whole.push(node);
            effects.end_at(first, group.members[0], node);
            return;
        }
        for &(member, at) in ends {
            effects.end_at(at, member, node);
        }
    }

    /// Notes that a collective of a leader is ready.
    pub fn note_ready(&mut self, flow: &Dataflow<'_>, leader: InstanceIndex, node: NodeIndex) {
        if flow.instance(leader).gathers(node) {
            let number = self.group_of(leader);
            self.groups[number].parked += 1;
        }
    }

    /// Notes that a member may queue for the lane of a node. Returns the leader once all may.
    pub fn queued(
        &mut self,
        flow: &Dataflow<'_>,
        now: Time,
        member @ InstanceNode { instance, node }: InstanceNode,
    ) -> Option<InstanceIndex> {
        let leader = self.leader_of(instance);
        self.gather(member, now, MemberStep::Queued)?;
        if flow.instance(leader).gathers(node) {
            let number = self.group_of(leader);
            self.groups[number].parked -= 1;
        }
        Some(leader)
    }

    /// Notes that a member has ended a node. Returns the leader once all have.
    pub fn ended(
        &mut self,
        flow: &Dataflow<'_>,
        now: Time,
        member @ InstanceNode { instance, node }: InstanceNode,
    ) -> Option<InstanceIndex> {
        let leader = self.leader_of(instance);
        if is_shared(flow.instance(instance).graph.kind(node)) {
            let group = self.group_of(instance);
            let whole = &mut self.groups[group].whole;
            if let Some(place) = whole.iter().position(|&one| one == node) {
                whole.swap_remove(place);
            } else {
                self.gather(member, now, MemberStep::Ended)?;
            }
        }
        Some(leader)
    }
}

/// Returns whether `next` does the same as the instances from `start` up to it, as far as can be told before.
fn joins(flow: &Dataflow<'_>, start: InstanceIndex, next: InstanceIndex) -> bool {
    let (a, b) = (flow.instance(start), flow.instance(next));
    let (first, second) = (flow.rank_of(start), flow.rank_of(next));
    a.flags == b.flags
        && rank_differences::find_difference((first, a.planned), (second, b.planned)).is_none()
}
