//! Messages in the loop: sends, receives, and notices of the network about them and about steps of collectives.

use super::collective_run::InFlightOp;
use super::direction_matching::UnsortedMessage;
use super::discipline::{CollectiveModel, Discipline};
use super::event::{Event, EventClass};
use super::frames::key;
use super::plan::NONE;
use super::{CommTiming, Engine};
use crate::collective::ScriptEvent;
use crate::graph::NodeKind;
use crate::ids::{NodeIndex, Npu};
use crate::network::{DeliveryNotice, NetworkBackend, NetworkEvent, NetworkMessage, PortRange};
use crate::report::Observer;
use crate::units::{BufferShare, Time};
use std::collections::VecDeque;

/// Messages between two ranks with one tag and size, matched in the order in which their halves are issued.
#[derive(Debug, Default)]
pub(super) struct MessageChannel {
    /// Messages that have arrived and that no receive has taken.
    pub arrived: u32,
    /// Posted receives, as instance and node.
    pub listening: VecDeque<(u32, u32)>,
    /// Rendezvous requests that arrived before their send; for all sizes at the first of their channels.
    pub asked: u32,
    /// Ops of sends that wait for their request; likewise.
    pub expected: VecDeque<u32>,
}

/// Returns the message of an op between two ranks.
fn between_ranks(
    op: u32,
    ends: (Npu, Npu),
    ports: PortRange,
    bytes: u64,
    tell_injected: bool,
) -> NetworkMessage {
    NetworkMessage {
        op,
        ends,
        from: ports.port(0),
        to: ports.port(1),
        path: None,
        amount: BufferShare::whole(bytes),
        tell_injected,
        sole_sender: true,
        order: 0,
    }
}

/// A message submitted at this instant.
#[derive(Debug)]
pub(super) struct PendingSend {
    /// Content key: NPU of the sender, then its launch and node, or, for a step of a collective, group and sequence,
    /// chunk, stage and step. Messages are submitted in this order, which no other message and no op number changes.
    pub key: SendOrderKey,
    /// The message.
    pub message: NetworkMessage,
}

/// Content key of a message.
pub type SendOrderKey = (u32, u32, u32, u32, u64);

impl<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> Engine<'_, O, N, M> {
    /// Hands a message to the network.
    #[inline]
    pub(super) fn put_on_network(&mut self, now: Time, message: &NetworkMessage) {
        if let Some(traffic) = &mut self.messages.traffic {
            let (from, to) = message.ends;
            traffic.count((from.into(), to.into()), message.amount);
        }
        self.fabric.network.submit(now, message, &mut self.agenda);
    }

    /// Submits the collected messages of this instant in content order.
    pub(super) fn submit_pending(&mut self, now: Time) {
        let mut leaving = std::mem::take(&mut self.effects.sends);
        leaving.sort_unstable_by_key(|leaving| leaving.key);
        for PendingSend { message, .. } in leaving.drain(..) {
            if N::SHARED {
                self.messages.ops.mark_submitted(message.op);
            }
            self.put_on_network(now, &message);
        }
        self.effects.sends = leaving;
    }

    /// Sorts the events of a round into content order; messages of one NPU at ports or links go in the order in which
    /// they were submitted, not in that of their op slots, which are reused.
    #[inline]
    pub(super) fn sort_round(&self, round: &mut [Event]) {
        if round.len() < 2 {
            return;
        }
        // Equal words are equal events, so an unstable sort keeps the result deterministic.
        round.sort_unstable();
        if self.launches.many {
            self.order_by_launch(round);
        }
        if !N::SHARED {
            return;
        }
        let of_one = |a: &Event, b: &Event| {
            (a.class(), b.class()) == (EventClass::Hop, EventClass::Hop) && a.rank() == b.rank()
        };
        for alike in round.chunk_by_mut(of_one).filter(|alike| alike.len() > 1) {
            alike
                .sort_unstable_by_key(|event| self.messages.ops.submission_number(event.payload()));
        }
    }

    /// Orders the events of each class that instances have, in a round that is sorted, by NPU, launch and node.
    fn order_by_launch(&self, round: &mut [Event]) {
        for alike in round.chunk_by_mut(|a, b| a.class() == b.class()) {
            let class = alike[0].class();
            let of_nodes = matches!(
                class,
                EventClass::Node | EventClass::Ready | EventClass::Release
            );
            if alike.len() > 1 && of_nodes {
                let order =
                    |event: &Event| self.content_of(key(event.rank(), NodeIndex(event.payload())));
                alike.sort_unstable_by_key(order);
            }
        }
    }

    /// Returns the match of a message of an instance, [`NONE`] when the other end is absent.
    #[inline]
    pub(super) fn pair(&self, instance: u32, message: usize) -> u32 {
        let running = &self.flow.instances[instance as usize];
        match running.planned.pairs[message] {
            NONE => NONE,
            pair => self.launches.frames[running.frame as usize].first_pair + pair,
        }
    }

    /// Submits the message of a send that holds its lane.
    pub(super) fn send_message(&mut self, now: Time, instance: u32, node: NodeIndex, index: usize) {
        let running = &self.flow.instances[instance as usize];
        let peer = running.graph.messages()[index].peer;
        let peer = running.of.peers[peer as usize];
        let frame = &self.launches.frames[running.frame as usize];
        let ends = (running.npu, frame.plan.npu_of[peer.index()]);
        let bytes = running.graph.bytes(node);
        let key = (ends.0.0, 0, running.serial as u32, node.0, 0);
        let pair = self.pair(instance, index);
        let ports = self.fabric.network.open(2);
        let op = self.messages.ops.insert(InFlightOp::Send {
            pair,
            sender: instance,
            node: node.0,
            ports,
        });
        // Where a send completes when its message has arrived, nobody asks when it has left.
        let tell = !M::Order::SENDS_END_ON_ARRIVAL;
        let message = between_ranks(op, ends, ports, bytes, tell);
        match self.messages.rts_bytes {
            Some(_) => self.withhold_send(now, pair, message),
            None => self.submit_message(now, key, message),
        }
    }

    /// Submits the message of a sender without a trace, which sends when its receiver is ready.
    fn send_mirrored(&mut self, now: Time, instance: u32, node: NodeIndex, index: usize) {
        let running = &self.flow.instances[instance as usize];
        let peer = running.graph.messages()[index].peer;
        let peer = running.of.peers[peer as usize];
        let frame = &self.launches.frames[running.frame as usize];
        let ends = (frame.plan.npu_of[peer.index()], running.npu);
        let bytes = running.graph.bytes(node);
        // By receiver: nothing else leaves the NPU in this launch but collectives.
        let key = (
            ends.0.0,
            0,
            running.serial as u32,
            running.number,
            node.0.into(),
        );
        let ports = self.fabric.network.open(2);
        let op = self.messages.ops.insert(InFlightOp::Mirrored {
            receiver: instance,
            node: node.0,
            ports,
        });
        self.submit_message(now, key, between_ranks(op, ends, ports, bytes, false));
    }

    fn submit_message(&mut self, now: Time, key: SendOrderKey, message: NetworkMessage) {
        if N::SHARED {
            M::Order::submit(self, now, key, message);
        } else {
            self.put_on_network(now, &message);
        }
    }

    pub(super) fn post_receive(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let running = &self.flow.instances[instance as usize];
        self.observer
            .issued(now, running.number, node, NodeKind::Receive);
        let index = running.graph.message_index(node);
        let pair = self.pair(instance, index);
        M::Order::post_receive(self, now, (instance, node), pair);
    }

    /// Posts a receive whose match was made before the run.
    pub(super) fn post_matched(&mut self, now: Time, instance: u32, node: NodeIndex, pair: u32) {
        if self.settings.comm != CommTiming::Model {
            self.start_receive(now, instance, node, pair);
            return;
        }
        if pair == NONE {
            let graph = self.flow.instances[instance as usize].graph;
            self.send_mirrored(now, instance, node, graph.message_index(node));
            return;
        }
        let state = &mut self.messages.pairs[pair as usize];
        state.posted = node.0 + 1;
        state.waiter = instance;
        if state.delivered {
            self.announce(now, instance, node);
        }
    }

    /// Posts a receive, after a rendezvous request where messages have to be requested.
    pub(super) fn post_rank_receive(
        &mut self,
        now: Time,
        pair: u32,
        instance: u32,
        node: NodeIndex,
    ) {
        match self.messages.rts_bytes {
            Some(_) => self.request_rank_message(now, pair, instance, node),
            None => self.match_or_post(now, pair, instance, node.0),
        }
    }

    /// Completes a receive with the oldest message of its channel, or posts it.
    pub(super) fn match_or_post(&mut self, now: Time, pair: u32, instance: u32, node: u32) {
        let channel = &mut self.messages.channels[pair as usize];
        if channel.arrived > 0 {
            channel.arrived -= 1;
            let event = Event::new(EventClass::Node, instance, node);
            self.agenda.push(now, event);
        } else {
            channel.listening.push_back((instance, node));
        }
    }

    /// Handles the arrival of a message between two ranks.
    fn message_arrived(&mut self, now: Time, pair: u32, sender: u32, node: u32) {
        if pair == NONE {
            return;
        }
        M::Order::message_arrived(self, now, pair, (sender, NodeIndex(node)));
    }

    #[inline]
    pub(super) fn network_event(&mut self, now: Time, event: NetworkEvent) {
        let (agenda, notices) = (&mut self.agenda, &mut self.messages.notices);
        self.fabric.network.handle(now, event, agenda, notices);
        self.take_notices(now);
        self.advance_begun(now);
    }

    #[inline]
    fn take_notices(&mut self, now: Time) {
        while let Some(notice) = self.messages.notices.pop() {
            match notice {
                DeliveryNotice::Injected(op) => match self.messages.ops.get(op) {
                    InFlightOp::Send { sender, node, .. } => {
                        self.announce(now, sender, NodeIndex(node));
                    }
                    InFlightOp::Step { run, from, .. } => {
                        if let Some(progress) = &mut self.collectives.runs[run as usize].progress {
                            progress.cells[from as usize].leaving = false;
                        }
                        self.advance(now, run, from);
                    }
                    InFlightOp::Scripted {
                        run, from, part, ..
                    } => self.play(now, run, from, ScriptEvent::OpCompleted { part }),
                    InFlightOp::ChunkRequest { .. }
                    | InFlightOp::RankRequest { .. }
                    | InFlightOp::Access { .. }
                    | InFlightOp::Mirrored { .. } => {}
                },
                DeliveryNotice::Delivered(op) => match self.messages.ops.remove(op) {
                    InFlightOp::Send {
                        pair,
                        ports,
                        sender,
                        node,
                    } => {
                        self.fabric.network.close(ports);
                        self.message_arrived(now, pair, sender, node);
                    }
                    InFlightOp::Mirrored {
                        receiver,
                        node,
                        ports,
                    } => {
                        self.fabric.network.close(ports);
                        self.announce(now, receiver, NodeIndex(node));
                    }
                    InFlightOp::Step {
                        run,
                        from,
                        to,
                        stage,
                        recv_posted,
                    } => {
                        if self.collectives.mixed_directions {
                            let message = UnsortedMessage {
                                from,
                                stage,
                                number: recv_posted,
                                is_request: false,
                            };
                            if let Some(recv_posted) = self.number_for_receiver(run, to, message) {
                                self.on_arrival(now, run, to, stage, recv_posted);
                            }
                        } else {
                            self.on_arrival(now, run, to, stage, recv_posted)
                        }
                    }
                    InFlightOp::Scripted {
                        run,
                        from,
                        to,
                        part,
                        label,
                    } => self.scripted(now, run, (from, to), (part, label)),
                    InFlightOp::ChunkRequest {
                        run,
                        from,
                        to,
                        stage,
                        step,
                    } => {
                        if self.collectives.mixed_directions {
                            let request = UnsortedMessage {
                                from,
                                stage,
                                number: step,
                                is_request: true,
                            };
                            if let Some(step) = self.number_for_receiver(run, to, request) {
                                self.on_request(now, run, to, stage, step);
                            }
                        } else {
                            self.on_request(now, run, to, stage, step)
                        }
                    }
                    InFlightOp::Access { instance, node } => {
                        self.end_access(now, key(instance, NodeIndex(node)));
                    }
                    InFlightOp::RankRequest {
                        pair,
                        receiver,
                        node,
                    } => self.on_rank_request(now, pair, receiver, node),
                },
            }
        }
    }
}
