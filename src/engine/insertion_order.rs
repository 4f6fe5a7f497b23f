//! Insertion order: the loop handles events one by one, in the order in which they were scheduled, and nodes in the
//! order of their ids.
//!
//! The loop processes an event's consequences before all other events. Components therefore append them to a work list
//! ([`LoopFollowUpWork`]). The loop processes the list's entries in order, and finishes all consequences of an entry
//! before it starts the next (depth first). After each node ends, the loop issues the nodes that became ready.

use super::Engine;
use super::dataflow::unpack_instance_and_node;
use super::discipline::{EventOrderDiscipline, RequiredCollectiveBackendTraits};
use super::effects::LoopFollowUpWork;
use super::event::EventClass;
use super::ids::{InstanceIndex, InstanceNode};
use super::lanes::FREE;
use crate::Observer;
use chakram_base::ids::{NodeIndex, Npu};
use chakram_base::units::{Span, Time};
use chakram_hardware::collective::SortEventsByInsertionMarker;
use chakram_hardware::network::NetworkBackend;
use chakram_trace::graph::NodeKind;
use std::ops::ControlFlow;

impl EventOrderDiscipline for SortEventsByInsertionMarker {
    const AT_ONCE: bool = true;
    const SENDS_END_ON_ARRIVAL: bool = true;
    const MATCHES_AS_ISSUED: bool = true;
    const OPENS_PORTS: bool = false;

    #[inline]
    fn handle_events_of_next_instant<
        O: Observer + ?Sized,
        N: NetworkBackend,
        M: RequiredCollectiveBackendTraits<Order = Self>,
    >(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
    ) {
        let mut round = std::mem::take(&mut engine.round);
        engine.effects.agenda.take_due_events(&mut round);
        for &event in &round {
            if event.event_class() != EventClass::Alarm {
                engine.handle_event(now, event, 0);
                engine.dispatch_ready_nodes_by_id(now);
                continue;
            }
            let (npu, gathering) = (Npu(event.rank_bits()), event.payload_bits());
            while let Some((event, detail)) =
                engine.effects.agenda.take_batched_delay(npu, gathering)
            {
                engine.handle_event(now, event, detail);
                engine.dispatch_ready_nodes_by_id(now);
            }
        }
        engine.round = round;
    }

    /// Does nothing: in insertion order, nodes are issued while events are handled, so no arrivals of collectives
    /// remain to be settled.
    #[inline]
    fn finish_round_after_events<
        O: Observer + ?Sized,
        N: NetworkBackend,
        M: RequiredCollectiveBackendTraits<Order = Self>,
    >(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
    ) -> ControlFlow<()> {
        if engine.collectives.first_mismatch().is_some() {
            return ControlFlow::Break(());
        }
        engine.redistribute_memory_bandwidth(now);
        if !engine.effects.ended.is_empty() {
            engine.notify_feeds_of_ends_and_wakes(now);
        }
        ControlFlow::Continue(())
    }

    /// Schedules the ends that are now known, and does this instant's work.
    #[inline]
    fn do_follow_up_work<
        O: Observer + ?Sized,
        N: NetworkBackend,
        M: RequiredCollectiveBackendTraits<Order = Self>,
    >(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
    ) {
        let mut ends = std::mem::take(&mut engine.effects.ends);
        for (end, InstanceNode { instance, node }) in ends.drain(..) {
            engine.schedule_node_completion(end, instance, node);
        }
        engine.effects.ends = ends;
        if !engine.effects.work.is_empty() {
            engine.carry_out_follow_ups(now);
        }
    }

    /// Always returns true: in insertion order, waiting nodes are in a heap by id, so the lane's queue is empty.
    #[inline]
    fn offers_freed_lane_to_others(_: bool) -> bool {
        true
    }
}

impl<O: Observer + ?Sized, N: NetworkBackend, M: RequiredCollectiveBackendTraits>
    Engine<'_, O, N, M>
{
    /// Does the appended work in order, and finishes all consequences of an entry before the next.
    #[inline(never)]
    pub(super) fn carry_out_follow_ups(&mut self, now: Time) {
        let mut left = std::mem::take(&mut self.effects.work);
        for work in left.drain(..) {
            let (fabric, effects) = (&mut self.fabric, &mut self.effects);
            match work {
                LoopFollowUpWork::End(instance, node) => {
                    self.complete_node_with_its_tile_group(now, instance, node);
                    self.dispatch_ready_nodes_by_id(now);
                }
                LoopFollowUpWork::Leave(npu, queue) => {
                    self.collectives
                        .message_simulator_mut()
                        .leave_stage_queue_and_admit_others(fabric, effects, now, npu, queue);
                }
                LoopFollowUpWork::Admit(npu, queue) => {
                    self.collectives
                        .message_simulator_mut()
                        .admit_waiting_chunks(fabric, effects, now, npu, queue);
                }
                LoopFollowUpWork::Deliver(pair) => {
                    self.messages
                        .deliver_message::<M::Order>(effects, now, pair);
                }
                LoopFollowUpWork::Record(run) => {
                    self.collectives
                        .message_simulator_mut()
                        .report_ended_collective_and_free_state(effects, now, run, false);
                }
            }
            self.run_follow_ups(now);
        }
        self.effects.work = left;
    }

    /// Handles an event on an NPU's bus. If a transfer completed, the loop carries out the consequences before the bus
    /// continues.
    pub(super) fn handle_bus_event(&mut self, now: Time, npu: Npu, event: u32) {
        let effects = &mut self.effects;
        let Some((completion, detail)) = self
            .collectives
            .message_simulator_mut()
            .handle_npu_bus_event(effects, now, npu, event)
        else {
            return;
        };
        self.handle_event(now, completion, detail);
        self.dispatch_ready_nodes_by_id(now);
        let effects = &mut self.effects;
        self.collectives
            .message_simulator_mut()
            .resume_bus_after_event_consequences(effects, now, npu, event);
    }

    /// Issues the nodes that became ready or can take a freed lane, by rank and id. If a node became ready because
    /// another completed immediately, it waits until one more node completes, unless none is in flight.
    #[inline]
    pub(super) fn dispatch_ready_nodes_by_id(&mut self, now: Time) {
        while !self.effects.ready.is_empty() || !self.effects.freed.is_empty() {
            self.issue_ready_nodes_by_id(now);
            if !self.flow.ready_nodes_awaiting_completion_mut().is_empty() {
                self.wake_idle_instances();
            }
        }
    }

    fn issue_ready_nodes_by_id(&mut self, now: Time) {
        let mut issuable = std::mem::take(&mut self.effects.ready);
        let mut freed = std::mem::take(&mut self.effects.freed);
        issuable.retain(|&word| {
            let InstanceNode { instance, node } = unpack_instance_and_node(word);
            let Some(lane) = self.flow.instance(instance).lane_of_node(node) else {
                return true;
            };
            self.processors
                .kernel_lanes_mut()
                .queue_for_lane_by_id(lane, word);
            freed.push((instance, lane));
            false
        });
        for (_, lane) in freed.drain(..) {
            issuable.extend(
                self.processors
                    .kernel_lanes_mut()
                    .grant_lane_to_lowest_id(lane),
            );
        }
        self.effects.freed = freed;
        if issuable.len() > 1 {
            issuable.sort_unstable();
        }
        let mut i = 0;
        while let Some(&word) = issuable.get(i) {
            i += 1;
            let InstanceNode { instance, node } = unpack_instance_and_node(word);
            let running = self.flow.instance(instance);
            match running.graph.kind(node) {
                NodeKind::Receive => self.post_receive(now, instance, node),
                NodeKind::Compute
                    if running.duration_of_node(node) == Span::ZERO
                        && running.graph.stated_bytes_of_node(node) == 0 =>
                {
                    if let Some(next) =
                        self.complete_node_without_work_and_grant_lane(now, instance, node)
                    {
                        let place = i + issuable[i..].partition_point(|&word| word < next);
                        issuable.insert(place, next);
                    }
                }
                _ => self.start_node(now, instance, node),
            }
            self.run_follow_ups(now);
        }
        // No node is issued between two calls of this function, so the same list can be reused.
        issuable.clear();
        if self.effects.ready.is_empty() {
            self.effects.ready = issuable;
        }
    }

    /// Completes a node without work immediately. Returns the node that takes the freed lane.
    fn complete_node_without_work_and_grant_lane(
        &mut self,
        now: Time,
        instance: InstanceIndex,
        node: NodeIndex,
    ) -> Option<u64> {
        let id = self.flow.instance(instance).id;
        self.observer.on_issued(now, id, node, NodeKind::Compute);
        let dormant = std::mem::take(self.flow.ready_nodes_awaiting_completion_mut());
        self.complete_node_with_its_tile_group(now, instance, node);
        *self.flow.ready_nodes_awaiting_completion_mut() = dormant;
        self.flow
            .ready_nodes_awaiting_completion_mut()
            .append(&mut self.effects.ready);
        let (_, lane) = self.effects.freed.pop()?;
        self.processors
            .kernel_lanes_mut()
            .grant_lane_to_lowest_id(lane)
    }

    /// Wakes instances that have no node in flight. Otherwise their dormant nodes (ready nodes that wait for another)
    /// would never run. ASTRA-sim does the same.
    fn wake_idle_instances(&mut self) {
        let dormant = self.flow.ready_nodes_awaiting_completion_mut().iter();
        let mut sleeping: Vec<InstanceIndex> = dormant
            .map(|&word| unpack_instance_and_node(word).instance)
            .collect();
        sleeping.dedup();
        for instance in sleeping {
            let running = self.flow.instance(instance);
            // A node of the instance is under way, so it will complete: it occupies a lane or is a posted receive.
            let is_under_way = running
                .lane_range()
                .any(|lane| self.processors.kernel_lanes().holder_of_lane(lane) != FREE)
                || self
                    .messages
                    .has_instance_posted_receive(&running.planned.pairs, instance);
            if !is_under_way {
                self.collectives
                    .message_simulator_mut()
                    .notify_backend_that_npu_is_idle(running.npu);
                self.flow
                    .wake_dormant_nodes_of_instance(&mut self.effects, instance);
            }
        }
    }
}
