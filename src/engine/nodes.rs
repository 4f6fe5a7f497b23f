//! Moves nodes through their states in the loop: delayed, ready, posted, queued for a lane, issued, complete.

use super::collectives::LaneHoldingMemberCollectiveNode;
use super::dataflow::{RunningRankInstance, pack_instance_and_node, unpack_instance_and_node};
use super::discipline::{EventOrderDiscipline, RequiredCollectiveBackendTraits};
use super::effects::Effects;
use super::event::{EventClass, PackedEvent};
use super::failures::WATCHED;
use super::ids::{GroupIndex, InstanceIndex, InstanceNode, LaunchGroupAndMemberIndex};
use super::plan::NONE;
use super::tile_groups::GROUPED;
use super::{CommunicationDurationSource, Engine};
use crate::Observer;
use chakram_base::ids::NodeIndex;
use chakram_base::units::Time;
use chakram_hardware::memory::RemoteMemoryAccess;
use chakram_hardware::network::NetworkBackend;
use chakram_trace::graph::NodeKind;

impl<O: Observer + ?Sized, N: NetworkBackend, M: RequiredCollectiveBackendTraits>
    Engine<'_, O, N, M>
{
    /// Starts the delays of nodes whose dependencies are complete.
    #[inline(never)]
    pub(super) fn start_delays_before_ready_nodes(&mut self, now: Time) {
        let mut delayed = std::mem::take(&mut self.effects.delayed);
        for word in delayed.drain(..) {
            let InstanceNode { instance, node } = unpack_instance_and_node(word);
            let running = self.flow.instance(instance);
            let end = now
                + self
                    .settings
                    .host
                    .scale_duration(running.graph.launch_delay_after_dependencies(node));
            self.notify_for_each_member(instance, |observer, id| {
                observer.on_delay_began(now, id, node);
            });
            let event = PackedEvent::of_node(EventClass::Ready, instance, node);
            self.effects.agenda.push(end, event);
        }
        self.effects.delayed = delayed;
    }

    /// Completes a node. A member of a tile group waits for the others, so that all complete the node together.
    #[inline]
    pub(super) fn complete_node_with_its_tile_group(
        &mut self,
        now: Time,
        instance: InstanceIndex,
        node: NodeIndex,
    ) {
        let running = self.flow.instance(instance);
        if !running.has_flag(GROUPED | WATCHED) {
            self.complete_instance_node(now, instance, node);
        } else if running.has_flag(WATCHED) {
            // A run in which NPUs fail has no tile groups, so check the node's own instance.
            let node = InstanceNode { instance, node };
            let groups = &self.collectives.message_simulator().groups;
            if self
                .failures
                .find_blocking_failed_rank(&self.flow, groups, node)
                .is_none()
            {
                self.complete_instance_node(now, instance, node.node);
            }
        } else if let Some(leader) = self.tile_groups.record_ended_and_return_leader_if_last(
            &self.flow,
            now,
            InstanceNode { instance, node },
        ) {
            self.complete_node_for_leader_and_followers(now, leader, node);
        }
    }

    /// Completes a node of an instance that is in no tile group, or that leads one (is simulated for all its members).
    #[inline]
    pub(super) fn complete_instance_node(
        &mut self,
        now: Time,
        instance: InstanceIndex,
        node: NodeIndex,
    ) {
        let (groups, processors) = (&mut self.tile_groups, &mut self.processors);
        let (observer, mut served) = (&mut *self.observer, false);
        let ended = |effects: &mut Effects, running: &RunningRankInstance<'_>, kind| {
            if kind == NodeKind::Collective && groups.has_groups() {
                groups.note_end_of_collective(instance, node);
            }
            observer.on_completed(now, running.id, node, kind);
            served = running.is_kernel_served_by_processor_model(kind);
            if !served {
                let node = InstanceNode { instance, node };
                processors.free_lane::<M::Order>(effects, now, running, node);
            }
        };
        let effects = &mut self.effects;
        self.flow
            .complete_node(effects, now, InstanceNode { instance, node }, ended);
        if M::Order::AT_ONCE {
            self.flow.wake_dormant_nodes_of_instance(effects, instance);
        }
        if served {
            self.notify_processor_model_of_job_end(now, instance, node);
        }
        if !self.effects.delayed.is_empty() {
            self.start_delays_before_ready_nodes(now);
        }
    }

    /// Gives freed lanes to the nodes that queue for them, and then posts newly ready nodes.
    #[inline]
    pub(super) fn grant_lanes_and_post_ready_nodes(&mut self, now: Time) {
        if !self.effects.freed.is_empty() {
            self.grant_freed_lanes(now);
            self.start_deferred_accesses(now);
        }
        if self.effects.ready.is_empty() {
            return;
        }
        let mut ready = std::mem::take(&mut self.effects.ready);
        if ready.len() > 1 {
            if self.launches.may_have_several_launches() {
                ready.sort_unstable_by_key(|&word| self.flow.ordering_key_of_node(word));
            } else {
                ready.sort_unstable();
            }
        }
        // The list grows if a tile group is split during the loop.
        let mut next = 0;
        while let Some(&word) = ready.get(next) {
            let InstanceNode { instance, node } = unpack_instance_and_node(word);
            if self.tile_groups.has_groups() {
                let left = &ready[next..];
                if self
                    .tile_groups
                    .would_change_shared_lane_order(&self.flow, left)
                {
                    self.split_group_into_instances(
                        now,
                        InstanceNode { instance, node },
                        (&mut ready, next),
                    );
                    continue;
                }
            }
            next += 1;
            self.post_node(now, instance, node);
            if self.tile_groups.needs_split_check() {
                self.settle_steps_of_some_members(now, Some((&mut ready, next)));
            }
        }
        ready.clear();
        self.effects.ready = ready;
        self.start_deferred_accesses(now);
    }

    /// Schedules the completion of a node that occupies its lane until `end`.
    #[inline]
    pub(super) fn schedule_node_completion(
        &mut self,
        end: Time,
        instance: InstanceIndex,
        node: NodeIndex,
    ) {
        let npu = self.flow.instance(instance).npu;
        self.effects.schedule_lane_holder_end::<M::Order>(
            npu,
            end,
            InstanceNode { instance, node },
        );
    }

    /// Gives freed lanes to the nodes that queue for them, in the order of rank and lane.
    fn grant_freed_lanes(&mut self, now: Time) {
        let mut freed = std::mem::take(&mut self.effects.freed);
        if self.launches.may_have_several_launches() {
            freed.sort_unstable_by_key(|&(instance, lane)| {
                let running = self.flow.instance(instance);
                let feed = self.launches.launch_record_of_run_state(running.frame).feed;
                (running.npu, feed, lane)
            });
        } else {
            freed.sort_unstable();
        }
        for &(_, lane) in &freed {
            if let Some(word) = self
                .processors
                .kernel_lanes_mut()
                .grant_lane_to_next_node(lane)
            {
                let InstanceNode { instance, node } = unpack_instance_and_node(word);
                self.start_node(now, instance, node);
            }
        }
        freed.clear();
        self.effects.freed = freed;
    }

    /// Posts a ready node. The node completes immediately, waits for its place in the launch order, or queues for its
    /// lane.
    #[inline]
    pub(super) fn post_node(&mut self, now: Time, instance: InstanceIndex, node: NodeIndex) {
        let running = self.flow.instance(instance);
        match running.graph.kind(node) {
            // Fast path for the most frequent case: a node of known duration whose lane serves only one launch.
            kind @ (NodeKind::Compute | NodeKind::Host | NodeKind::LocalMemory)
                if running.flags == 0 =>
            {
                let lane =
                    running.first_lane + running.shared.lanes[running.graph.lane(node) as usize];
                let word = pack_instance_and_node(instance, node);
                if self
                    .processors
                    .kernel_lanes_mut()
                    .take_lane_or_queue(lane, word)
                {
                    self.observer.on_issued(now, running.id, node, kind);
                    let end = now + running.duration_of_node(node);
                    self.effects.end_node_at(end, instance, node);
                } else {
                    self.observer.on_lane_wait(now, running.id, node);
                }
            }
            NodeKind::Nothing => {
                self.notify_for_each_member(instance, |observer, id| {
                    observer.on_issued(now, id, node, NodeKind::Nothing);
                });
                self.effects.end_node_at(now, instance, node);
            }
            NodeKind::Receive if running.has_flag(GROUPED) => {
                for index in 0..self.tile_groups.member_count(instance) {
                    let member = self.tile_groups.nth_member(instance, index);
                    self.post_receive(now, member, node);
                }
            }
            NodeKind::Receive => self.post_receive(now, instance, node),
            NodeKind::Collective if running.has_flag(GROUPED) => {
                self.post_collective_for_all_members(now, instance, node);
            }
            NodeKind::Collective => {
                self.queue_collective_when_launch_order_allows(now, instance, node)
            }
            kind if running.is_kernel_served_by_processor_model(kind) => {
                self.observer.on_issued(now, running.id, node, kind);
                self.submit_kernel_to_processor_model(now, instance, node);
            }
            _ => self.start_or_queue_on_lane(now, instance, node),
        }
    }

    /// Posts a collective, which queues for its lane as soon as the group's launch order allows it.
    #[inline]
    fn queue_collective_when_launch_order_allows(
        &mut self,
        now: Time,
        instance: InstanceIndex,
        node: NodeIndex,
    ) {
        let graph = self.flow.instance(instance).graph;
        let alone = self.settings.comm != CommunicationDurationSource::Model
            && self.settings.comm.collective_node_never_waits(graph, node);
        if alone {
            self.start_or_queue_on_lane(now, instance, node);
            if self.settings.comm == CommunicationDurationSource::Captured {
                return;
            }
        }
        let (slot, sequence) = self
            .flow
            .communicator_and_sequence_of_collective(instance, node);
        // If a node does not wait for other members, it counts as ready in the launch order but starts without waiting
        // for its turn.
        let parked = if alone { NONE } else { node.0 };
        let groups = &mut self.collectives.message_simulator_mut().groups;
        let starts = groups.mark_ready_or_park_node(now, slot, sequence, parked);
        if !alone && starts {
            self.start_or_queue_on_lane(now, instance, node);
        } else if !alone {
            self.notify_of_wait_for_members(now, instance, node, slot);
        }
        self.queue_parked_collectives_of_group(now, slot.group);
    }

    /// Notifies the observer that a ready collective waits for other members. If the group does not gather, the
    /// collective may instead wait for earlier collectives of its own member, so the observer is not notified.
    pub(super) fn notify_of_wait_for_members(
        &mut self,
        now: Time,
        instance: InstanceIndex,
        node: NodeIndex,
        slot: LaunchGroupAndMemberIndex,
    ) {
        let group = &self.collectives.message_simulator().groups[slot.group];
        if group.plan.launches_together {
            let id = self.flow.instance(instance).id;
            self.observer.on_member_wait(now, id, node);
        }
    }

    /// Queues a group's parked collectives for their lanes if the launch order now allows them to start.
    #[inline]
    pub(super) fn queue_parked_collectives_of_group(&mut self, now: Time, group: GroupIndex) {
        while let Some(InstanceNode { instance, node }) = self
            .collectives
            .message_simulator_mut()
            .groups
            .take_startable_parked_node(now, group)
        {
            self.queue_when_launch_order_allows(now, instance, node);
        }
    }

    /// Posts a receive.
    pub(super) fn post_receive(&mut self, now: Time, instance: InstanceIndex, node: NodeIndex) {
        let id = self.flow.instance(instance).id;
        self.observer.on_issued(now, id, node, NodeKind::Receive);
        let (fabric, effects) = (&mut self.fabric, &mut self.effects);
        let receive = InstanceNode { instance, node };
        self.messages
            .post_receive::<M::Order, N>(&self.flow, fabric, effects, now, receive);
        self.run_follow_ups(now);
    }

    /// Issues the node if its lane is free, otherwise queues it.
    #[inline]
    pub(super) fn start_or_queue_on_lane(
        &mut self,
        now: Time,
        instance: InstanceIndex,
        node: NodeIndex,
    ) {
        if self
            .processors
            .take_lane_or_queue_node(&self.flow, instance, node)
        {
            self.start_node(now, instance, node);
        } else {
            self.notify_for_each_member(instance, |observer, id| {
                observer.on_lane_wait(now, id, node);
            });
        }
    }

    /// Starts a node that has taken its lane.
    #[inline]
    pub(super) fn start_node(&mut self, now: Time, instance: InstanceIndex, node: NodeIndex) {
        let running = self.flow.instance_mut(instance);
        if running.has_flag(GROUPED) {
            self.issue_for_all_members(now, instance, node);
            return;
        }
        let kind = running.graph.kind(node);
        running.collectives += u32::from(kind == NodeKind::Collective);
        self.observer.on_issued(now, running.id, node, kind);
        match kind {
            NodeKind::Compute
            | NodeKind::Host
            | NodeKind::LocalMemory
            | NodeKind::Communication => {
                let end = now + self.launches.duration_of_node_in_launch(running, node);
                let npu = running.npu;
                self.effects.schedule_lane_holder_end::<M::Order>(
                    npu,
                    end,
                    InstanceNode { instance, node },
                );
            }
            NodeKind::RemoteMemory if self.tile_groups.has_groups() => {
                self.tile_groups.defer_access(instance, node);
            }
            NodeKind::RemoteMemory => self.start_remote_memory_access(now, instance, node),
            NodeKind::Send => self.send_message(now, instance, node),
            NodeKind::Collective => {
                self.start_member_part_of_collective(now, instance, node, instance)
            }
            NodeKind::Nothing | NodeKind::Receive => unreachable!("they hold no lane"),
        }
    }

    /// Starts a send that has taken its lane.
    #[inline]
    pub(super) fn send_message(&mut self, now: Time, instance: InstanceIndex, node: NodeIndex) {
        let (fabric, effects) = (&mut self.fabric, &mut self.effects);
        let send = InstanceNode { instance, node };
        self.messages
            .post_send::<M::Order, N>(&self.flow, fabric, effects, now, send);
        // This loop only notifies observers. All other effects follow in the fixed order, after other nodes of the
        // instant.
        for (instance, node) in self.effects.began.drain(..) {
            self.observer.on_transfer_began(now, instance, node);
        }
    }

    /// Starts a member's part of a collective after the member's node has taken the lane of `holder`: the member
    /// itself, or the leader of its tile group.
    #[inline]
    pub(super) fn start_member_part_of_collective(
        &mut self,
        now: Time,
        instance: InstanceIndex,
        node: NodeIndex,
        holder: InstanceIndex,
    ) {
        let (slot, sequence) = self
            .flow
            .communicator_and_sequence_of_collective(instance, node);
        let lane = self.flow.instance(holder).lane_of_node(node);
        let lanes = self.processors.kernel_lanes();
        let lane_freed = lane.map_or(Time::ZERO, |lane| lanes.latest_completion_on_lane(lane));
        let groups = &mut self.collectives.message_simulator_mut().groups;
        let group = &mut groups[slot.group];
        let waits_since = group.take_start_of_wait(now, slot.member, sequence, lane_freed);
        let call = LaneHoldingMemberCollectiveNode {
            running: self.flow.instance(instance),
            instance,
            node,
            slot,
            sequence,
            waits_since,
            named: M::Order::MATCHES_AS_ISSUED
                && self.flow.is_group_of_collective_named(instance, node),
        };
        let (fabric, effects) = (&mut self.fabric, &mut self.effects);
        self.collectives
            .arrive_at_collective(fabric, effects, now, call);
    }

    /// Starts a load or store of remote memory.
    pub(super) fn start_remote_memory_access(
        &mut self,
        now: Time,
        instance: InstanceIndex,
        node: NodeIndex,
    ) {
        let running = self.flow.instance(instance);
        let graph = running.graph;
        let access = RemoteMemoryAccess {
            npu: running.npu,
            bytes: graph.stated_bytes_of_node(node),
            store: graph.is_store_node(node),
            in_switch: graph.in_switch(node).is_some(),
            token: pack_instance_and_node(instance, node),
        };
        let memory = match graph.remote_memory(node) {
            None => 0,
            Some(slot) => running.shared.memories[slot as usize] + 1,
        };
        let effects = &mut self.effects;
        self.fabric.begin_access(now, memory, access, effects);
        self.run_follow_ups(now);
    }
}
