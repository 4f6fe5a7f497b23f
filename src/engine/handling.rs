//! Dispatch of events, and of the network's notices about messages, to their components.

use super::dataflow::key;
use super::discipline::{CollectiveModel, Discipline};
use super::event::{Event, EventClass};
use super::fabric::InFlightOp;
use super::ids::{InstanceNode, RunCell, SharedStep};
use super::{CommTiming, Engine};
use crate::Observer;
use chakram_base::ids::{Npu, OpIndex};
use chakram_base::units::Time;
use chakram_hardware::network::{DeliveryNotice, NetworkBackend, NetworkEvent};

impl<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> Engine<'_, O, N, M> {
    /// Sorts the events of a round into content order.
    #[inline]
    pub(super) fn sort(&self, round: &mut [Event]) {
        if round.len() < 2 {
            return;
        }
        self.fabric.sort(round);
        if self.launches.are_many() {
            self.flow.sort_by_launch(round);
        }
    }

    /// Handles a network event and the resulting notices about messages.
    #[inline]
    fn network_event(&mut self, now: Time, event: NetworkEvent) {
        self.fabric.handle(now, event, &mut self.effects);
        while let Some(notice) = self.fabric.notice() {
            match notice {
                DeliveryNotice::Delivered(op) => self.arrived(now, op),
                DeliveryNotice::Injected(op) => self.left(now, op),
            }
        }
        if !M::Order::AT_ONCE {
            let (fabric, effects) = (&mut self.fabric, &mut self.effects);
            self.collectives
                .chunks_mut()
                .advance_begun(fabric, effects, now);
            self.follow_up(now);
        }
    }

    /// Handles the arrival of a message.
    #[inline]
    fn arrived(&mut self, now: Time, op: OpIndex) {
        let (fabric, effects) = (&mut self.fabric, &mut self.effects);
        // Fast path for most messages. The fields are read in place, because copying them would stall the processor.
        if let InFlightOp::Step {
            run,
            from,
            to,
            stage,
            recv_posted,
        } = fabric.of_op(op)
        {
            fabric.forget_op(op);
            let number = recv_posted;
            let (to, step) = (RunCell { run, cell: to }, SharedStep { stage, number });
            self.collectives
                .chunks_mut()
                .step_arrived(fabric, effects, now, to, from, step);
            // Members react to a step only after their endpoint's work, so the arrival has no further consequence.
            return;
        }
        self.other_arrived(now, op);
        if M::Order::AT_ONCE {
            self.follow_up(now);
        }
    }

    /// Handles the arrival of a message that is not a step of a collective.
    fn other_arrived(&mut self, now: Time, op: OpIndex) {
        let (fabric, effects) = (&mut self.fabric, &mut self.effects);
        let of = fabric.forget_op(op);
        match of {
            InFlightOp::Send {
                pair,
                ports,
                sender,
                node,
            } => {
                fabric.close(ports);
                let send = InstanceNode {
                    instance: sender,
                    node,
                };
                self.messages.arrived::<M::Order>(effects, now, pair, send);
            }
            InFlightOp::Mirrored {
                receiver,
                node,
                ports,
            } => {
                fabric.close(ports);
                effects.end::<M::Order>(now, receiver, node);
            }
            InFlightOp::Access { instance, node } => {
                effects.end_said(now, instance, node);
            }
            InFlightOp::RankRequest {
                pair,
                receiver,
                node,
            } => {
                let receive = InstanceNode {
                    instance: receiver,
                    node,
                };
                self.messages.requested(fabric, effects, now, pair, receive);
            }
            InFlightOp::Scripted {
                run, from, part, ..
            } if self.settings.sends_end_on_arrival => {
                // The sender's part ends before the receiver's part.
                self.collectives.chunks_mut().part_ended(
                    fabric,
                    effects,
                    now,
                    RunCell { run, cell: from },
                    part,
                );
                self.follow_up(now);
                let (fabric, effects) = (&mut self.fabric, &mut self.effects);
                self.collectives
                    .chunks_mut()
                    .arrived(fabric, effects, now, of);
            }
            _ => self
                .collectives
                .chunks_mut()
                .arrived(fabric, effects, now, of),
        }
    }

    /// Handles the departure of a message's last byte.
    #[inline]
    fn left(&mut self, now: Time, op: OpIndex) {
        let (fabric, effects) = (&mut self.fabric, &mut self.effects);
        match fabric.of_op(op) {
            InFlightOp::Step { run, from, .. } => {
                let at = RunCell { run, cell: from };
                self.collectives
                    .chunks_mut()
                    .step_left(fabric, effects, now, at);
            }
            InFlightOp::Send { sender, node, .. } => {
                effects.end::<M::Order>(now, sender, node);
            }
            InFlightOp::Scripted {
                run, from, part, ..
            } => {
                let player = RunCell { run, cell: from };
                self.collectives
                    .chunks_mut()
                    .part_ended(fabric, effects, now, player, part);
            }
            _ => {}
        }
        if M::Order::AT_ONCE {
            self.follow_up(now);
        }
    }

    #[inline]
    pub(super) fn handle(&mut self, now: Time, event: Event, detail: u32) {
        let (fabric, effects) = (&mut self.fabric, &mut self.effects);
        match event.class() {
            EventClass::Node => {
                let InstanceNode { instance, node } = event.node();
                self.complete(now, instance, node);
                return;
            }
            EventClass::Ready => {
                let InstanceNode { instance, node } = event.node();
                effects.ready.push(key(instance, node));
                self.tell(instance, |observer, id| {
                    observer.ready(now, id, node);
                });
                return;
            }
            EventClass::Release => {
                self.flow.release_roots(effects, event.node().instance);
                self.delay(now);
                return;
            }
            EventClass::Failure => {
                self.fail(now, event.payload());
                return;
            }
            EventClass::Wake => {
                self.feeds.wake(now, event.rank());
                return;
            }
            EventClass::Injected
            | EventClass::FirstByte
            | EventClass::Delivered
            | EventClass::Hop
            | EventClass::LinkFree => {
                if let Some(event) = event.of_network() {
                    self.network_event(now, event);
                }
                return;
            }
            EventClass::Alarm => unreachable!("it is taken apart before"),
            EventClass::Bus => {
                self.bus_event(now, Npu(event.rank()), event.payload());
                return;
            }
            EventClass::Memory => fabric.handle_memory(now, event.rank(), event.payload(), effects),
            EventClass::Requested => fabric.release(now, event.op(), effects),
            EventClass::Run if self.settings.comm != CommTiming::Model => {
                let run = event.run();
                self.collectives.end_recorded(&self.flow, effects, now, run);
            }
            _ => self.collectives.handle(fabric, effects, now, event, detail),
        }
        self.follow_up(now);
    }
}
