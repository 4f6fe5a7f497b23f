//! Passes events, and the network's notices about messages, to the components that handle them.

use super::dataflow::pack_instance_and_node;
use super::discipline::{EventOrderDiscipline, RequiredCollectiveBackendTraits};
use super::event::{EventClass, PackedEvent};
use super::fabric::InFlightMessageContext;
use super::ids::{ChunkAtMember, CollectiveStageStep, InstanceNode};
use super::{CommunicationDurationSource, Engine};
use crate::Observer;
use chakram_base::ids::{Npu, OpIndex};
use chakram_base::units::Time;
use chakram_hardware::network::{MessageProgressNotice, NetworkBackend, NetworkEvent};

impl<O: Observer + ?Sized, N: NetworkBackend, M: RequiredCollectiveBackendTraits>
    Engine<'_, O, N, M>
{
    /// Sorts the events of a round into content order.
    #[inline]
    pub(super) fn sort_by_content(&self, round: &mut [PackedEvent]) {
        if round.len() < 2 {
            return;
        }
        self.fabric.sort_round_events_by_content(round);
        if self.launches.may_have_several_launches() {
            self.flow.sort_class_events_by_npu_launch_node(round);
        }
    }

    /// Handles a network event and the resulting notices about messages.
    #[inline]
    fn handle_network_event(&mut self, now: Time, event: NetworkEvent) {
        self.fabric.handle_event(now, event, &mut self.effects);
        while let Some(notice) = self.fabric.pop_delivery_notice() {
            match notice {
                MessageProgressNotice::Delivered(op) => self.on_message_arrived(now, op),
                MessageProgressNotice::Injected(op) => self.on_message_left(now, op),
            }
        }
        if !M::Order::AT_ONCE {
            let (fabric, effects) = (&mut self.fabric, &mut self.effects);
            self.collectives
                .message_simulator_mut()
                .advance_begun_chunks(fabric, effects, now);
            self.run_follow_ups(now);
        }
    }

    /// Handles the arrival of a message.
    #[inline]
    fn on_message_arrived(&mut self, now: Time, op: OpIndex) {
        let (fabric, effects) = (&mut self.fabric, &mut self.effects);
        // Fast path for most messages. Reads the fields in place: copying them would stall the processor.
        if let InFlightMessageContext::Step {
            run,
            from,
            to,
            stage,
            recv_posted,
        } = fabric.context_of_op(op)
        {
            fabric.forget_op(op);
            let number = recv_posted;
            let (to, step) = (
                ChunkAtMember { run, cell: to },
                CollectiveStageStep { stage, number },
            );
            self.collectives
                .message_simulator_mut()
                .on_step_message_arrived(fabric, effects, now, to, from, step);
            // Members react to a step only after their endpoint has processed the message, so the arrival has no
            // further effect yet.
            return;
        }
        self.on_non_collective_message_arrived(now, op);
        if M::Order::AT_ONCE {
            self.run_follow_ups(now);
        }
    }

    /// Handles the arrival of a message that is not a step of a collective.
    fn on_non_collective_message_arrived(&mut self, now: Time, op: OpIndex) {
        let (fabric, effects) = (&mut self.fabric, &mut self.effects);
        let of = fabric.forget_op(op);
        match of {
            InFlightMessageContext::Send {
                pair,
                ports,
                sender,
                node,
            } => {
                fabric.close_ports(ports);
                let send = InstanceNode {
                    instance: sender,
                    node,
                };
                self.messages
                    .on_message_arrived::<M::Order>(effects, now, pair, send);
            }
            InFlightMessageContext::Mirrored {
                receiver,
                node,
                ports,
            } => {
                fabric.close_ports(ports);
                effects.end_node::<M::Order>(now, receiver, node);
            }
            InFlightMessageContext::Access { instance, node } => {
                effects.schedule_announced_end(now, instance, node);
            }
            InFlightMessageContext::RankRequest {
                pair,
                receiver,
                node,
            } => {
                let receive = InstanceNode {
                    instance: receiver,
                    node,
                };
                self.messages
                    .on_request_arrived(fabric, effects, now, pair, receive);
            }
            InFlightMessageContext::Scripted {
                run, from, part, ..
            } if self.settings.sends_end_on_arrival => {
                // End the sender's part before the receiver's part.
                self.collectives
                    .message_simulator_mut()
                    .on_script_send_ended(
                        fabric,
                        effects,
                        now,
                        ChunkAtMember { run, cell: from },
                        part,
                    );
                self.run_follow_ups(now);
                let (fabric, effects) = (&mut self.fabric, &mut self.effects);
                self.collectives
                    .message_simulator_mut()
                    .on_message_arrived(fabric, effects, now, of);
            }
            _ => self
                .collectives
                .message_simulator_mut()
                .on_message_arrived(fabric, effects, now, of),
        }
    }

    /// Handles the departure of a message's last byte.
    #[inline]
    fn on_message_left(&mut self, now: Time, op: OpIndex) {
        let (fabric, effects) = (&mut self.fabric, &mut self.effects);
        match fabric.context_of_op(op) {
            InFlightMessageContext::Step { run, from, .. } => {
                let at = ChunkAtMember { run, cell: from };
                self.collectives
                    .message_simulator_mut()
                    .on_step_message_left(fabric, effects, now, at);
            }
            InFlightMessageContext::Send { sender, node, .. } => {
                effects.end_node::<M::Order>(now, sender, node);
            }
            InFlightMessageContext::Scripted {
                run, from, part, ..
            } => {
                let player = ChunkAtMember { run, cell: from };
                self.collectives
                    .message_simulator_mut()
                    .on_script_send_ended(fabric, effects, now, player, part);
            }
            _ => {}
        }
        if M::Order::AT_ONCE {
            self.run_follow_ups(now);
        }
    }

    #[inline]
    pub(super) fn handle_event(&mut self, now: Time, event: PackedEvent, detail: u32) {
        let (fabric, effects) = (&mut self.fabric, &mut self.effects);
        match event.event_class() {
            EventClass::Node => {
                let InstanceNode { instance, node } = event.instance_node();
                self.complete_node_with_its_tile_group(now, instance, node);
                return;
            }
            EventClass::Ready => {
                let InstanceNode { instance, node } = event.instance_node();
                effects.ready.push(pack_instance_and_node(instance, node));
                self.notify_for_each_member(instance, |observer, id| {
                    observer.on_ready(now, id, node);
                });
                return;
            }
            EventClass::Release => {
                self.flow
                    .release_roots(effects, event.instance_node().instance);
                self.start_delays_before_ready_nodes(now);
                return;
            }
            EventClass::Failure => {
                self.fail_machine_part(now, event.payload_bits());
                return;
            }
            EventClass::Wake => {
                self.feeds
                    .record_due_wake_unless_replaced(now, event.rank_bits());
                return;
            }
            EventClass::Injected
            | EventClass::FirstByte
            | EventClass::Delivered
            | EventClass::Hop
            | EventClass::LinkFree => {
                if let Some(event) = event.as_network_event() {
                    self.handle_network_event(now, event);
                }
                return;
            }
            EventClass::Alarm => unreachable!("it is taken apart before"),
            EventClass::Bus => {
                self.handle_bus_event(now, Npu(event.rank_bits()), event.payload_bits());
                return;
            }
            EventClass::Memory => fabric.end_completed_memory_accesses(
                now,
                event.rank_bits(),
                event.payload_bits(),
                effects,
            ),
            EventClass::Requested => fabric.submit_withheld_message(now, event.op_index(), effects),
            EventClass::Run if self.settings.comm != CommunicationDurationSource::Model => {
                let run = event.collective_run_index();
                self.collectives
                    .end_recorded_collective(&self.flow, effects, now, run);
            }
            _ => self
                .collectives
                .handle_event(fabric, effects, now, event, detail),
        }
        self.run_follow_ups(now);
    }
}
