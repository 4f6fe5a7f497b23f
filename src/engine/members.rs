//! Tile groups in the event loop: the leader is the instance that the loop simulates on behalf of all members of its
//! group.

use super::Engine;
use super::discipline::RequiredCollectiveBackendTraits;
use super::ids::{InstanceId, InstanceIndex, InstanceNode};
use super::tile_groups::{
    GROUPED, SharedTileGroupPartStep, UnpostedReadyNodes, is_carried_out_per_member,
};
use crate::Observer;
use chakram_base::ids::NodeIndex;
use chakram_base::units::Time;
use chakram_hardware::network::NetworkBackend;
use chakram_trace::graph::NodeKind;

impl<O: Observer + ?Sized, N: NetworkBackend, M: RequiredCollectiveBackendTraits>
    Engine<'_, O, N, M>
{
    /// Calls `tell` for an instance and for all instances that it simulates.
    #[inline]
    pub(super) fn notify_for_each_member(
        &mut self,
        instance: InstanceIndex,
        mut tell: impl FnMut(&mut O, InstanceId),
    ) {
        let running = self.flow.instance(instance);
        tell(self.observer, running.id);
        if running.has_flag(GROUPED) {
            self.call_for_each_member_except_leader(instance, tell);
        }
    }

    /// Calls `tell` for each member except the leader.
    #[inline(never)]
    fn call_for_each_member_except_leader(
        &mut self,
        leader: InstanceIndex,
        mut tell: impl FnMut(&mut O, InstanceId),
    ) {
        for index in 1..self.tile_groups.member_count(leader) {
            let follower = self.tile_groups.nth_member(leader, index);
            tell(self.observer, self.flow.instance(follower).id);
        }
    }

    /// Starts a node that has taken the leader's lane, for all members of the group.
    #[inline(never)]
    pub(super) fn issue_for_all_members(
        &mut self,
        now: Time,
        leader: InstanceIndex,
        node: NodeIndex,
    ) {
        let running = self.flow.instance_mut(leader);
        let kind = running.graph.kind(node);
        running.collectives += u32::from(kind == NodeKind::Collective);
        self.notify_for_each_member(leader, |observer, id| {
            observer.on_issued(now, id, node, kind);
        });
        // Kernels and host work take the same time on all members, so one event ends such a node on all members.
        if !is_carried_out_per_member(kind) {
            let end = now
                + self
                    .launches
                    .duration_of_node_in_launch(self.flow.instance(leader), node);
            self.schedule_node_completion(end, leader, node);
            return;
        }
        for index in 0..self.tile_groups.member_count(leader) {
            let member = self.tile_groups.nth_member(leader, index);
            match kind {
                NodeKind::RemoteMemory => self.tile_groups.defer_access(member, node),
                NodeKind::Send => self.send_message(now, member, node),
                _ => self.start_member_part_of_collective(now, member, node, leader),
            }
        }
    }

    /// Starts the deferred loads and stores; all accesses of the current dispatch are now known.
    #[inline]
    pub(super) fn start_deferred_accesses(&mut self, now: Time) {
        if self.tile_groups.has_groups() {
            for InstanceNode { instance, node } in self.tile_groups.take_deferred_accesses() {
                self.start_remote_memory_access(now, instance, node);
            }
        }
    }

    /// Posts a tile group's collective: marks each member ready in the launch order of its communicator.
    #[inline(never)]
    pub(super) fn post_collective_for_all_members(
        &mut self,
        now: Time,
        leader: InstanceIndex,
        node: NodeIndex,
    ) {
        self.tile_groups
            .note_leader_collective_ready(&self.flow, leader, node);
        for index in 0..self.tile_groups.member_count(leader) {
            let member = self.tile_groups.nth_member(leader, index);
            let (slot, sequence) = self
                .flow
                .communicator_and_sequence_of_collective(member, node);
            let groups = &mut self.collectives.message_simulator_mut().groups;
            if groups.mark_ready_or_park_node(now, slot, sequence, node.0) {
                self.queue_when_launch_order_allows(now, member, node);
            } else {
                self.notify_of_wait_for_members(now, member, node, slot);
            }
            self.queue_parked_collectives_of_group(now, slot.group);
        }
    }

    /// Queues a node for its lane once the launch order allows the node on all members of its tile group.
    pub(super) fn queue_when_launch_order_allows(
        &mut self,
        now: Time,
        instance: InstanceIndex,
        node: NodeIndex,
    ) {
        if !self.flow.instance(instance).has_flag(GROUPED) {
            self.start_or_queue_on_lane(now, instance, node);
        } else if let Some(leader) = self.tile_groups.record_queued_and_return_leader_if_last(
            &self.flow,
            now,
            InstanceNode { instance, node },
        ) {
            self.start_or_queue_on_lane(now, leader, node);
        }
    }

    /// Completes a node once all members of the leader's group have ended it.
    pub(super) fn complete_node_for_leader_and_followers(
        &mut self,
        now: Time,
        leader: InstanceIndex,
        node: NodeIndex,
    ) {
        let kind = self.flow.instance(leader).graph.kind(node);
        self.complete_instance_node(now, leader, node);
        self.call_for_each_member_except_leader(leader, |observer, id| {
            observer.on_completed(now, id, node, kind);
        });
        let members = self.tile_groups.member_count(leader);
        self.flow.add_completed_nodes(members as u64 - 1);
        if self.flow.instance(leader).left == 0 {
            for index in 1..members {
                let follower = self.tile_groups.nth_member(leader, index);
                self.effects.ended.push(follower);
            }
        }
    }

    /// Handles steps that only some members of a group have taken in this round, and splits the group if necessary.
    #[inline(never)]
    pub(super) fn settle_steps_of_some_members(
        &mut self,
        now: Time,
        mut ready: Option<UnpostedReadyNodes<'_>>,
    ) {
        loop {
            let (flow, lanes) = (&mut self.flow, self.processors.kernel_lanes_mut());
            let left = ready.as_mut().map(|(ready, next)| (&mut **ready, *next));
            let effects = &mut self.effects;
            let groups = &mut self.tile_groups;
            let Some(steps) = groups.settle_step_of_some_members(flow, lanes, effects, now, left)
            else {
                return;
            };
            self.carry_out_steps_of_split_parts(now, steps);
        }
    }

    /// Splits a group into single instances, before one of the leader's nodes is posted.
    pub(super) fn split_group_into_instances(
        &mut self,
        now: Time,
        leader: InstanceNode,
        ready: UnpostedReadyNodes<'_>,
    ) {
        let (flow, lanes) = (&mut self.flow, self.processors.kernel_lanes_mut());
        let effects = &mut self.effects;
        let groups = &mut self.tile_groups;
        let steps = groups.disband_group(flow, lanes, effects, now, leader, ready);
        self.carry_out_steps_of_split_parts(now, steps);
    }

    /// Carries out the steps of the parts into which a group was split.
    fn carry_out_steps_of_split_parts(&mut self, now: Time, steps: Vec<SharedTileGroupPartStep>) {
        for step in steps {
            match step {
                SharedTileGroupPartStep::Queue(instance, node) => {
                    self.start_or_queue_on_lane(now, instance, node)
                }
                SharedTileGroupPartStep::Announce(instance, node, ends) => {
                    let effects = &mut self.effects;
                    self.tile_groups
                        .schedule_ends_of_split_part(effects, instance, node, &ends);
                }
                SharedTileGroupPartStep::End(instance, node)
                    if self.flow.instance(instance).has_flag(GROUPED) =>
                {
                    self.complete_node_for_leader_and_followers(now, instance, node);
                }
                SharedTileGroupPartStep::End(instance, node) => {
                    self.complete_instance_node(now, instance, node)
                }
            }
        }
    }
}
