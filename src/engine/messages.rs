//! Messages between ranks: sends, receives, and the matches between them.
//!
//! If events are handled in content order, the engine pairs sends and receives before the run. If events are handled in
//! insertion order, it matches the halves in a channel in the order in which they are issued. With recorded durations,
//! the engine does not simulate the network.

use super::CommunicationDurationSource;
use super::dataflow::Dataflow;
use super::discipline::EventOrderDiscipline;
use super::effects::{Effects, LoopFollowUpWork, MessageContentOrderKey};
use super::fabric::{Fabric, InFlightMessageContext};
use super::ids::{InstanceId, InstanceIndex, InstanceNode};
use super::plan::{NONE, ReplayPlan};
use super::run_settings::RunSettings;
use chakram_base::ids::{NodeIndex, Npu, OpIndex};
use chakram_base::units::{Time, UnroundedBufferShare};
use chakram_hardware::network::{
    ConsecutivePortsOpenedByOperation, MessagePlaceInReceiverProgram, NetworkBackend,
    NetworkMessage,
};
use chakram_trace::graph::Graph;
use std::collections::VecDeque;

mod recorded;
mod requests;

/// Progress of a message between two ranks, and the half (send or receive) that waits for the other half, if any.
#[derive(Clone, Copy, Debug)]
struct MessageState {
    /// True once the last byte has arrived or, with recorded durations, once the send has started.
    delivered: bool,
    /// True once the send has been issued. Set only for messages over the network.
    sent: bool,
    /// Index of the waiting half's node plus one, or zero if no half waits. The waiting half is the receive or, only
    /// with recorded durations, the send.
    posted: u32,
    /// Instance whose send or receive waits for the other half.
    waiter: InstanceIndex,
}

impl Default for MessageState {
    fn default() -> Self {
        Self {
            delivered: false,
            sent: false,
            posted: 0,
            waiter: InstanceIndex(0),
        }
    }
}

/// Messages between two ranks with the same tag and size, matched in the order in which their halves are issued.
#[derive(Debug, Default)]
struct OneChannelMessageQueues {
    /// Number of messages that have arrived but that no receive has taken.
    arrived: u32,
    /// Receives that were posted and wait for a message.
    listening: VecDeque<InstanceNode>,
    /// Issued halves whose other half is not issued yet. Either all entries are sends, or all entries are receives.
    unmet: VecDeque<InstanceNode>,
    unmet_receive: bool,
    /// Number of rendezvous requests that arrived before the requested send was issued. Requests do not state a size,
    /// so the first channel with the same ends and tag counts the requests for all message sizes.
    asked: u32,
    /// Ops of sends that wait for their rendezvous request. Among channels with the same ends and tag, only the first
    /// uses this queue.
    expected: VecDeque<OpIndex>,
}

/// Messages between ranks.
#[derive(Debug)]
pub(super) struct Messages<'a> {
    comm: CommunicationDurationSource,
    /// True if sends complete when their messages have arrived; false if they complete when their messages have left.
    ends_on_arrival: bool,
    /// One entry for each matched pair of a send and a receive. Used only if events are handled in content order.
    pairs: Vec<MessageState>,
    /// Message channels, by channel index. Used only if events are handled in insertion order.
    channels: Vec<OneChannelMessageQueues>,
    /// For each channel, the index of the channel that counts its requests. A reference suffices, because a run in
    /// insertion order has only one launch.
    request_channels: &'a [u32],
}

/// Creates the message that belongs to an op; the op must be between two ranks.
fn build_message_of_op_between_ranks(
    op: OpIndex,
    ends: (Npu, Npu),
    ports: ConsecutivePortsOpenedByOperation,
    bytes: u64,
    tell_injected: bool,
) -> NetworkMessage {
    NetworkMessage {
        op,
        ends,
        from: ports.nth_port(0),
        to: ports.nth_port(1),
        path: None,
        amount: UnroundedBufferShare::from_bytes(bytes),
        tell_injected,
        sole_sender: true,
        order: 0,
        turn: MessagePlaceInReceiverProgram::default(),
    }
}

impl<'a> Messages<'a> {
    pub fn new(settings: &RunSettings<'_>) -> Self {
        Self {
            comm: settings.comm,
            ends_on_arrival: settings.sends_end_on_arrival,
            pairs: Vec::new(),
            channels: Vec::new(),
            request_channels: &[],
        }
    }

    /// Adds the matches of a launch, and returns the index of the first match. If `as_issued` is true, halves are
    /// matched in the order of issue.
    pub fn add_matches(&mut self, plan: &'a ReplayPlan, as_issued: bool) -> u32 {
        let count = plan.pairs as usize;
        if as_issued {
            self.request_channels = &plan.request_channels;
            let first = self.channels.len();
            self.channels
                .resize_with(first + count, OneChannelMessageQueues::default);
            first as u32
        } else {
            let first = self.pairs.len();
            self.pairs.resize(first + count, MessageState::default());
            first as u32
        }
    }

    /// Resets matches that an earlier launch has used.
    pub fn reset_matches(&mut self, first: u32, count: u32) {
        self.pairs[first as usize..][..count as usize].fill(MessageState::default());
    }

    /// Returns true if a message bypasses the network, because durations are recorded or the message's size is unknown.
    #[inline]
    fn keeps_recorded_time<D: EventOrderDiscipline>(&self, graph: &Graph, message: usize) -> bool {
        let unknown = || !D::MATCHES_AS_ISSUED && graph.messages()[message].size_unknown;
        self.comm != CommunicationDurationSource::Model || unknown()
    }

    /// Starts a send that has taken its lane.
    #[inline]
    pub fn post_send<D: EventOrderDiscipline, N: NetworkBackend>(
        &mut self,
        flow: &Dataflow<'_>,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        send @ InstanceNode { instance, node }: InstanceNode,
    ) {
        let running = flow.instance(instance);
        let index = running.graph.message_index(node);
        if self.keeps_recorded_time::<D>(running.graph, index) {
            self.start_send(flow, effects, now, send);
            return;
        }
        let ends = (
            running.npu,
            flow.peer_rank_and_npu_of_message(instance, index).1,
        );
        let bytes = running.graph.stated_bytes_of_node(node);
        let key = (
            ends.0.0,
            0,
            flow.launch_index_of_instance(instance) as u32,
            node.0,
            0,
        );
        let pair = flow.match_index_of_message(instance, index);
        self.notify_send_transfers_begin::<D>(
            flow,
            effects,
            pair,
            send,
            fabric.needs_message_requests(),
        );
        let ports = fabric.open_network_ports_for_operation(2);
        let op = fabric.allocate_message_op(InFlightMessageContext::Send {
            pair,
            sender: instance,
            node,
            ports,
        });
        // A send that completes on arrival needs no notice when its message has left.
        let tell = !self.ends_on_arrival;
        let message = build_message_of_op_between_ranks(op, ends, ports, bytes, tell);
        if fabric.needs_message_requests() {
            self.withhold_send_until_request(fabric, effects, now, pair, message);
        } else {
            submit_message::<D, N>(fabric, effects, now, key, message);
        }
    }

    /// Posts a receive.
    #[inline]
    pub fn post_receive<D: EventOrderDiscipline, N: NetworkBackend>(
        &mut self,
        flow: &Dataflow<'_>,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        receive @ InstanceNode { instance, node }: InstanceNode,
    ) {
        let index = flow.instance(instance).graph.message_index(node);
        let pair = flow.match_index_of_message(instance, index);
        if D::MATCHES_AS_ISSUED {
            let rendezvous = fabric.needs_message_requests();
            self.match_message_half(flow, effects, pair, receive, true, rendezvous);
            if rendezvous {
                self.request_message_of_receive(flow, fabric, effects, now, receive);
            } else {
                self.complete_receive_or_post(effects, now, pair, receive);
            }
        } else if self.keeps_recorded_time::<D>(flow.instance(instance).graph, index) {
            self.start_receive(flow, effects, now, receive, pair);
        } else if pair == NONE {
            self.send_for_untraced_sender::<D, N>(flow, fabric, effects, now, receive);
        } else {
            let state = &mut self.pairs[pair as usize];
            (state.posted, state.waiter) = (node.0 + 1, instance);
            if state.sent {
                effects.queue_collective_begin_notification(flow.instance(instance).id, node);
            }
            if state.delivered {
                effects.end_node::<D>(now, instance, node);
            }
        }
    }

    /// Notifies observers of the transfers that begin when a send is issued. These are the receive's transfer and,
    /// unless the receiver must first request the message, also the send's.
    fn notify_send_transfers_begin<D: EventOrderDiscipline>(
        &mut self,
        flow: &Dataflow<'_>,
        effects: &mut Effects,
        pair: u32,
        send @ InstanceNode { instance, node }: InstanceNode,
        rendezvous: bool,
    ) {
        let matched = pair != NONE;
        if !(matched && D::MATCHES_AS_ISSUED && rendezvous) {
            effects.queue_collective_begin_notification(flow.instance(instance).id, node);
        }
        if matched && D::MATCHES_AS_ISSUED {
            self.match_message_half(flow, effects, pair, send, false, rendezvous);
        } else if matched {
            let state = &mut self.pairs[pair as usize];
            state.sent = true;
            if let Some(receive) = state.posted.checked_sub(1) {
                effects.queue_collective_begin_notification(
                    flow.instance(state.waiter).id,
                    NodeIndex(receive),
                );
            }
        }
    }

    /// Matches an issued half with the channel's oldest opposite half, and notifies observers that both halves begin.
    /// An eager send has already begun. If receivers must request messages, halves with different sizes match too,
    /// because requests do not state a size.
    fn match_message_half(
        &mut self,
        flow: &Dataflow<'_>,
        effects: &mut Effects,
        pair: u32,
        half: InstanceNode,
        is_receive: bool,
        rendezvous: bool,
    ) {
        let of_requests = |pair: u32| self.request_channels[pair as usize];
        let channel = if rendezvous { of_requests(pair) } else { pair };
        let channel = &mut self.channels[channel as usize];
        if channel.unmet.is_empty() || channel.unmet_receive == is_receive {
            channel.unmet_receive = is_receive;
            channel.unmet.push_back(half);
            return;
        }
        let other = channel.unmet.pop_front();
        for (InstanceNode { instance, node }, receives) in other
            .map(|other| (other, !is_receive))
            .into_iter()
            .chain([(half, is_receive)])
        {
            if receives || rendezvous {
                effects.queue_collective_begin_notification(flow.instance(instance).id, node);
            }
        }
    }

    /// Submits a message whose sender has no trace. The engine assumes that such a sender sends as soon as the receiver
    /// is ready.
    fn send_for_untraced_sender<D: EventOrderDiscipline, N: NetworkBackend>(
        &self,
        flow: &Dataflow<'_>,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        InstanceNode { instance, node }: InstanceNode,
    ) {
        let running = flow.instance(instance);
        let index = running.graph.message_index(node);
        let ends = (
            flow.peer_rank_and_npu_of_message(instance, index).1,
            running.npu,
        );
        let bytes = running.graph.stated_bytes_of_node(node);
        effects.queue_collective_begin_notification(running.id, node);
        // The key contains the receiver's node, because the sender has no node. It is unambiguous, because the sender's
        // NPU sends nothing else in this launch except in collectives.
        let (serial, InstanceId(id)) = (flow.launch_index_of_instance(instance) as u32, running.id);
        let key = (ends.0.0, 0, serial, id, node.0.into());
        let ports = fabric.open_network_ports_for_operation(2);
        let op = fabric.allocate_message_op(InFlightMessageContext::Mirrored {
            receiver: instance,
            node,
            ports,
        });
        let message = build_message_of_op_between_ranks(op, ends, ports, bytes, false);
        submit_message::<D, N>(fabric, effects, now, key, message);
    }

    /// Completes a receive with the channel's oldest arrived message. If no message has arrived, posts the receive.
    fn complete_receive_or_post(
        &mut self,
        effects: &mut Effects,
        now: Time,
        pair: u32,
        receive @ InstanceNode { instance, node }: InstanceNode,
    ) {
        let channel = &mut self.channels[pair as usize];
        if channel.arrived > 0 {
            channel.arrived -= 1;
            effects.end_node_at(now, instance, node);
        } else {
            channel.listening.push_back(receive);
        }
    }

    /// Handles the arrival of `send`'s message. If the arrival also ends the send, that end comes before the end of the
    /// receive.
    #[inline]
    pub fn on_message_arrived<D: EventOrderDiscipline>(
        &mut self,
        effects: &mut Effects,
        now: Time,
        pair: u32,
        send: InstanceNode,
    ) {
        if self.ends_on_arrival {
            effects.end_node::<D>(now, send.instance, send.node);
        }
        if pair == NONE {
            return;
        }
        if D::MATCHES_AS_ISSUED {
            effects.push_follow_up(LoopFollowUpWork::Deliver(pair));
            return;
        }
        let state = &mut self.pairs[pair as usize];
        state.delivered = true;
        if let Some(node) = state.posted.checked_sub(1) {
            effects.end_node::<D>(now, state.waiter, NodeIndex(node));
        }
    }

    /// Uses an arrived message to end the channel's oldest posted receive. If no receive is posted, counts the message
    /// for later.
    pub fn deliver_message<D: EventOrderDiscipline>(
        &mut self,
        effects: &mut Effects,
        now: Time,
        pair: u32,
    ) {
        let channel = &mut self.channels[pair as usize];
        match channel.listening.pop_front() {
            Some(InstanceNode { instance, node }) => effects.end_node::<D>(now, instance, node),
            None => channel.arrived += 1,
        }
    }

    /// Returns true if an instance has posted a receive in one of its channels.
    pub fn has_instance_posted_receive(&self, pairs: &[u32], instance: InstanceIndex) -> bool {
        pairs.iter().any(|&pair| {
            let mut listening = self.channels[pair as usize].listening.iter();
            listening.any(|receive| receive.instance == instance)
        })
    }
}

fn submit_message<D: EventOrderDiscipline, N: NetworkBackend>(
    fabric: &mut Fabric<'_, N>,
    effects: &mut Effects,
    now: Time,
    key: MessageContentOrderKey,
    message: NetworkMessage,
) {
    if N::SHARED {
        fabric.submit_message::<D>(now, key, message, effects);
    } else {
        fabric.pass_message_to_network(now, &message, effects);
    }
}
