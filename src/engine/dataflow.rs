//! Tracks the nodes of launches in flight: how many dependencies are open, and whether the nodes are ready.

use super::effects::Effects;
use super::event::{EventClass, PackedEvent};
use super::ids::{
    GroupIndex, InstanceId, InstanceIndex, InstanceNode, LaunchGroupAndMemberIndex, ReplayGroupId,
};
use super::plan::{BoundGroupSlot, NONE, PlanPartsOfOneInstance, ReplayPlan, SharedGraphPlan};
use chakram_base::ids::{NodeIndex, Npu, Rank};
use chakram_base::units::{Span, Time};
use chakram_trace::graph::{Graph, NodeKind};
use chakram_trace::workload::GraphBoundToRank;
use open_dependencies::{NodeReadinessAfterDependency, OpenDependencyCounts};
use std::ops::Range;

mod open_dependencies;

/// Packs an instance index and a node index into one word. Words sort by instance first and then by node.
#[inline]
pub(super) fn pack_instance_and_node(instance: InstanceIndex, node: NodeIndex) -> u64 {
    u64::from(instance.0) << 32 | u64::from(node.0)
}

/// Unpacks a word into its instance and node.
#[inline]
pub(super) fn unpack_instance_and_node(word: u64) -> InstanceNode {
    InstanceNode {
        instance: InstanceIndex((word >> 32) as u32),
        node: NodeIndex(word as u32),
    }
}

/// Flag of an instance: a processor model serves its kernels.
pub(super) const SERVED: u8 = 1;
/// Flag of an instance: the launch overrides the compiled durations.
pub(super) const REPRICED: u8 = 2;
/// Flag of an instance: its kernels take longer while collectives run.
pub(super) const SLOWED: u8 = 16;
/// Flag of an instance that waits for its feed (the source of launches) to release it.
pub(super) const HELD: u8 = 4;
/// Flag of an instance: several launches take turns on its lanes.
pub(super) const TURNS: u8 = 8;

/// An instance (one rank's trace) of a launch in flight. Stores references, so that the loop needs no look-ups. An
/// instance fits in one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct RunningRankInstance<'a> {
    pub graph: &'a Graph,
    pub shared: &'a SharedGraphPlan,
    pub planned: &'a PlanPartsOfOneInstance,
    /// Index of the instance's first node in the table of open dependencies.
    first_node: usize,
    /// Index of the instance's first lane among the lanes of all instances.
    pub first_lane: u32,
    /// Number of nodes that have not completed yet.
    pub left: u32,
    /// Number of the instance's collectives that currently occupy a lane.
    pub collectives: u32,
    /// Id by which observers know the instance.
    pub id: InstanceId,
    pub npu: Npu,
    /// Index of the run state that the instance's launch uses.
    pub frame: u32,
    /// Combination of the flags above: [`SERVED`], [`REPRICED`], [`SLOWED`], [`HELD`], [`TURNS`].
    pub flags: u8,
}

impl RunningRankInstance<'_> {
    /// Returns the compiled duration of a node.
    #[inline]
    pub fn duration_of_node(&self, node: NodeIndex) -> Span {
        self.shared.prices[node.index()]
    }

    /// Returns the lane that a node occupies, or `None`.
    #[inline]
    pub fn lane_of_node(&self, node: NodeIndex) -> Option<u32> {
        match self.shared.lanes[self.graph.lane(node) as usize] {
            NONE => None,
            lane => Some(self.first_lane + lane),
        }
    }

    /// Returns the lanes that the instance uses.
    pub fn lane_range(&self) -> Range<u32> {
        self.first_lane..self.first_lane + self.shared.lane_count
    }

    #[inline]
    pub fn has_flag(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Indices of a program's first instance, first group and first byte table (the bytes between pairs of members). They
/// count over all programs.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramFirstInstanceAndGroup {
    pub first_instance: InstanceId,
    pub first_group: ReplayGroupId,
    pub first_splits: u32,
}

/// Plan of a launch in flight, and the indices of its first instance, group and match.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchPlanAndFirstIndices<'a> {
    pub plan: &'a ReplayPlan,
    pub ranks: &'a [GraphBoundToRank],
    /// Index of the launch within the run.
    pub serial: u64,
    pub first_instance: InstanceIndex,
    pub first_group: GroupIndex,
    pub first_pair: u32,
}

/// The nodes of all launches in flight, with their open dependencies.
#[derive(Debug)]
pub(super) struct Dataflow<'a> {
    instances: Vec<RunningRankInstance<'a>>,
    /// For each run state, the plan and the first indices of its launch.
    places: Vec<LaunchPlanAndFirstIndices<'a>>,
    open: OpenDependencyCounts,
    /// Ready nodes that wait for another node of their instance to complete. They became ready during another node's
    /// immediate completion. Filled only if events are handled in insertion order.
    dormant: Vec<u64>,
    /// Number of completed nodes of all launches.
    completed: u64,
    /// Time at which the latest node completed.
    last: Time,
}

impl<'a> Dataflow<'a> {
    /// Creates a dataflow without instances, with capacity for `nodes` nodes.
    pub fn new(nodes: usize) -> Self {
        Self {
            instances: Vec::new(),
            places: Vec::new(),
            open: OpenDependencyCounts::with_node_capacity(nodes),
            dormant: Vec::new(),
            completed: 0,
            last: Time::ZERO,
        }
    }

    #[inline]
    pub fn instance(&self, instance: InstanceIndex) -> &RunningRankInstance<'a> {
        &self.instances[instance.index()]
    }

    #[inline]
    pub fn instance_mut(&mut self, instance: InstanceIndex) -> &mut RunningRankInstance<'a> {
        &mut self.instances[instance.index()]
    }

    pub fn running_rank_instances(&self) -> &[RunningRankInstance<'a>] {
        &self.instances
    }

    /// Sets a flag of every instance.
    pub fn set_flag_of_all_instances(&mut self, flag: u8) {
        for running in &mut self.instances {
            running.flags |= flag;
        }
    }

    /// Reserves memory for exactly `count` more instances.
    pub fn reserve_instances(&mut self, count: usize) {
        self.instances.reserve_exact(count);
    }

    /// Adds the instances of a run state, one for each of `graphs`.
    pub fn add_instances(
        &mut self,
        place: LaunchPlanAndFirstIndices<'a>,
        first_id: InstanceId,
        graphs: impl Iterator<Item = &'a Graph>,
    ) {
        let frame = self.places.len() as u32;
        let planned = place.plan.instances.iter();
        for (id, (graph, planned)) in (first_id.0..).zip(graphs.zip(planned)) {
            let first_node = self.open.add_nodes(graph.in_degrees());
            self.instances.push(RunningRankInstance {
                graph,
                shared: &place.plan.shared[planned.shared as usize],
                planned,
                first_node,
                first_lane: 0,
                left: 0,
                collectives: 0,
                id: InstanceId(id),
                npu: planned.npu,
                frame,
                flags: 0,
            });
        }
        self.places.push(place);
    }

    /// Initialises the open dependencies of an instance that begins. `used` is true if an earlier launch used the
    /// instance's state.
    pub fn initialise_open_dependencies(&mut self, instance: InstanceIndex, used: bool) {
        let running = &self.instances[instance.index()];
        let (graph, first) = (running.graph, running.first_node);
        if used {
            self.open.reset_nodes(first, graph.in_degrees());
        }
        if graph.has_delays() {
            for node in graph
                .nodes()
                .filter(|&n| graph.launch_delay_after_dependencies(n) > Span::ZERO)
            {
                self.open.mark_delayed(first + node.index());
            }
        }
    }

    pub fn launch_plan_of_run_state(&self, frame: u32) -> &LaunchPlanAndFirstIndices<'a> {
        &self.places[frame as usize]
    }

    /// Sets the launch index of a run state.
    pub fn set_launch_index_of_run_state(&mut self, frame: u32, serial: u64) {
        self.places[frame as usize].serial = serial;
    }

    /// Returns the index of the instance's launch within the run.
    #[inline]
    pub fn launch_index_of_instance(&self, instance: InstanceIndex) -> u64 {
        self.launch_plan_of_instance(instance).serial
    }

    /// Returns the workload's instance that this running instance executes.
    #[inline]
    pub fn rank_binding_of_instance(&self, instance: InstanceIndex) -> &'a GraphBoundToRank {
        let place = self.launch_plan_of_instance(instance);
        &place.ranks[(instance.0 - place.first_instance.0) as usize]
    }

    #[inline]
    fn launch_plan_of_instance(&self, instance: InstanceIndex) -> &LaunchPlanAndFirstIndices<'a> {
        &self.places[self.instances[instance.index()].frame as usize]
    }

    /// Returns the communicator (group slot) of a collective node, and the node's index among the communicator's
    /// collectives.
    #[inline]
    pub fn communicator_and_sequence_of_collective(
        &self,
        instance: InstanceIndex,
        node: NodeIndex,
    ) -> (LaunchGroupAndMemberIndex, u32) {
        let RunningRankInstance { graph, planned, .. } = self.instance(instance);
        let call = graph.collective_of(node);
        let sequence = match &planned.sequences {
            None => call.sequence,
            Some(sequences) => sequences[graph.index_of_collective_call(node)],
        };
        let BoundGroupSlot { group, member } = planned.slots[call.group as usize];
        let group = GroupIndex(self.launch_plan_of_instance(instance).first_group.0 + group.0);
        (LaunchGroupAndMemberIndex { group, member }, sequence)
    }

    /// Returns true if the trace of an instance names the collective's group.
    pub fn is_group_of_collective_named(&self, instance: InstanceIndex, node: NodeIndex) -> bool {
        let name = self.instance(instance).graph.collective_of(node).group;
        self.rank_binding_of_instance(instance).group_names[name as usize].is_some()
    }

    /// Returns the match index that a send shares with its receive, or [`NONE`] if the rank at the other end has no
    /// trace.
    #[inline]
    pub fn match_index_of_message(&self, instance: InstanceIndex, message: usize) -> u32 {
        match self.instance(instance).planned.pairs[message] {
            NONE => NONE,
            pair => self.launch_plan_of_instance(instance).first_pair + pair,
        }
    }

    /// For a message node, returns the rank at the other end and that rank's NPU.
    #[inline]
    pub fn peer_rank_and_npu_of_message(
        &self,
        instance: InstanceIndex,
        message: usize,
    ) -> (Rank, Npu) {
        let running = self.instance(instance);
        let peer = running.graph.messages()[message].peer;
        let peer = self.rank_binding_of_instance(instance).peers[peer as usize];
        (
            peer,
            self.launch_plan_of_instance(instance).plan.npu_of[peer.index()],
        )
    }

    /// Returns another rank's instance in the same launch as `instance`, or `None` if the rank has no trace.
    pub fn instance_of_rank_in_same_launch(
        &self,
        instance: InstanceIndex,
        rank: Rank,
    ) -> Option<InstanceIndex> {
        let place = self.launch_plan_of_instance(instance);
        let own = place.plan.instance_of_rank(rank)?;
        Some(place.first_instance.nth_after(own.0))
    }

    /// Returns the key that orders nodes within an instant: NPU, launch and id.
    pub fn ordering_key_of_node(&self, word: u64) -> (Npu, u64, NodeIndex) {
        let InstanceNode { instance, node } = unpack_instance_and_node(word);
        let running = self.instance(instance);
        (running.npu, self.launch_index_of_instance(instance), node)
    }

    /// Sorts events of the same class by NPU, launch and node. The caller must already have sorted the round by class.
    pub fn sort_class_events_by_npu_launch_node(&self, round: &mut [PackedEvent]) {
        for alike in round.chunk_by_mut(|a, b| a.event_class() == b.event_class()) {
            let class = alike[0].event_class();
            let of_nodes = matches!(
                class,
                EventClass::Node | EventClass::Ready | EventClass::Release
            );
            if alike.len() > 1 && of_nodes {
                // Content order must not depend on instance indices, because these depend on how run states are reused.
                alike.sort_unstable_by_key(|event| {
                    let InstanceNode { instance, node } = event.instance_node();
                    self.ordering_key_of_node(pack_instance_and_node(instance, node))
                });
            }
        }
    }

    /// Completes a node. Calls `ended` with the node's instance and type. Then completes one dependency of each
    /// successor, which may become ready or begin its delay.
    #[inline(always)]
    pub fn complete_node(
        &mut self,
        effects: &mut Effects,
        now: Time,
        InstanceNode { instance, node }: InstanceNode,
        ended: impl FnOnce(&mut Effects, &RunningRankInstance<'_>, NodeKind),
    ) {
        let running = &mut self.instances[instance.index()];
        let (graph, first) = (running.graph, running.first_node);
        let kind = graph.kind(node);
        running.left -= 1;
        running.collectives -= u32::from(kind == NodeKind::Collective);
        if running.left == 0 {
            effects.ended.push(instance);
        }
        self.open.set_complete_marker_of_node(first + node.index());
        self.completed += 1;
        self.last = now;
        ended(effects, running, kind);
        for next in graph.successors(node) {
            match self.open.resolve_dependency(first + next.index()) {
                NodeReadinessAfterDependency::Waiting => {}
                NodeReadinessAfterDependency::Ready => {
                    effects.ready.push(pack_instance_and_node(instance, next))
                }
                NodeReadinessAfterDependency::Delayed => {
                    effects.delayed.push(pack_instance_and_node(instance, next))
                }
            }
        }
    }

    /// Counts completed nodes of represented instances.
    pub fn add_completed_nodes(&mut self, nodes: u64) {
        self.completed += nodes;
    }

    /// Makes an instance's nodes that have no dependencies ready, or begins their delays.
    pub fn release_roots(&self, effects: &mut Effects, instance: InstanceIndex) {
        let graph = self.instance(instance).graph;
        for node in graph.nodes() {
            if graph.in_degrees()[node.index()] == 0 {
                match graph.launch_delay_after_dependencies(node) {
                    Span::ZERO => effects.ready.push(pack_instance_and_node(instance, node)),
                    _ => effects.delayed.push(pack_instance_and_node(instance, node)),
                }
            }
        }
    }

    /// Returns how many nodes have completed, and when the last one did.
    pub fn completed_node_count_and_last_end(&self) -> (u64, Time) {
        (self.completed, self.last)
    }

    /// Returns how many of a node's dependencies are open, or [`None`] if the node is complete.
    pub fn open_dependency_count_of_node(
        &self,
        instance: InstanceIndex,
        node: NodeIndex,
    ) -> Option<u32> {
        let first = self.instance(instance).first_node;
        self.open.open_dependency_count(first + node.index())
    }

    /// Returns true if a node is ready or issued. Its dependencies are then complete and its delay is over, but it has
    /// not completed.
    pub fn is_ready_or_issued(&self, instance: InstanceIndex, node: NodeIndex) -> bool {
        let first = self.instance(instance).first_node;
        self.open
            .is_incomplete_with_met_dependencies(first + node.index())
    }

    /// Returns true if the same dependencies are open in two instances of one graph.
    pub fn have_equal_open_dependencies(&self, one: InstanceIndex, other: InstanceIndex) -> bool {
        let [one, other] = [one, other].map(|of| self.node_range(of));
        self.open.have_equal_state(one, other)
    }

    fn node_range(&self, instance: InstanceIndex) -> Range<usize> {
        let running = self.instance(instance);
        running.first_node..running.first_node + running.graph.len()
    }

    /// Returns the number of nodes in all run states, including the states of ended launches that are kept for reuse.
    #[cfg(test)]
    pub fn nodes_held(&self) -> usize {
        self.open.len()
    }

    /// Copies the progress of one instance to another instance of the same graph.
    pub fn copy_instance_progress(&mut self, from: InstanceIndex, to: InstanceIndex) {
        let of = &self.instances[from.index()];
        let (left, collectives) = (of.left, of.collectives);
        let own = &mut self.instances[to.index()];
        (own.left, own.collectives) = (left, collectives);
        let [from, to] = [from, to].map(|of| self.node_range(of));
        self.open.copy_counts_between_node_ranges(from, to);
    }

    /// Makes an instance's dormant nodes ready, after one of its nodes completed.
    #[inline]
    pub fn wake_dormant_nodes_of_instance(
        &mut self,
        effects: &mut Effects,
        instance: InstanceIndex,
    ) {
        if !self.dormant.is_empty() {
            let own = |word: &mut u64| unpack_instance_and_node(*word).instance == instance;
            effects.ready.extend(self.dormant.extract_if(.., own));
        }
    }

    /// Returns the ready nodes that wait until another node of their instance completes. Only insertion order adds
    /// nodes to this list.
    pub fn ready_nodes_awaiting_completion_mut(&mut self) -> &mut Vec<u64> {
        &mut self.dormant
    }

    /// Returns true if the node is ready but waits until another node of its instance completes.
    pub fn is_node_ready_but_waiting(&self, instance: InstanceIndex, node: NodeIndex) -> bool {
        self.dormant
            .contains(&pack_instance_and_node(instance, node))
    }
}
