//! Rendezvous between ranks: a message is sent only after its receiver has requested it.

use super::{Messages, OneChannelMessageQueues};
use crate::dataflow::Dataflow;
use crate::effects::Effects;
use crate::event::{EventClass, PackedEvent};
use crate::fabric::{Fabric, InFlightMessageContext};
use crate::ids::InstanceNode;
use chakram_base::units::Time;
use chakram_hardware::network::{NetworkBackend, NetworkMessage};

impl Messages<'_> {
    /// Asks for the message of a posted receive by sending a rendezvous request to its sender.
    pub(super) fn request_message_of_receive<N: NetworkBackend>(
        &self,
        flow: &Dataflow<'_>,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        InstanceNode { instance, node }: InstanceNode,
    ) {
        let running = flow.instance(instance);
        let index = running.graph.message_index(node);
        let op = InFlightMessageContext::RankRequest {
            pair: flow.match_index_of_message(instance, index),
            receiver: instance,
            node,
        };
        let ends = (
            running.npu,
            flow.peer_rank_and_npu_of_message(instance, index).1,
        );
        fabric.send_rendezvous_request(now, op, ends, effects);
    }

    /// Handles the arrival of a rendezvous request from a rank. Posts the rank's receive, and releases the oldest
    /// withheld message, if any. Requests do not state a size, so the oldest message is released whatever its size.
    pub fn on_request_arrived<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        pair: u32,
        receive: InstanceNode,
    ) {
        self.complete_receive_or_post(effects, now, pair, receive);
        let channel = self.request_channels[pair as usize];
        let channel = &mut self.channels[channel as usize];
        match channel.expected.pop_front() {
            Some(op) => fabric.submit_withheld_message(now, op, effects),
            None => channel.asked += 1,
        }
    }

    /// Withholds an issued send until the receiver's request has arrived.
    pub(super) fn withhold_send_until_request<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        pair: u32,
        message: NetworkMessage,
    ) {
        let op = message.op;
        fabric.withhold_message(message);
        let channel = self.request_channels[pair as usize];
        let OneChannelMessageQueues {
            asked, expected, ..
        } = &mut self.channels[channel as usize];
        match asked {
            0 => expected.push_back(op),
            _ => {
                *asked -= 1;
                let event = PackedEvent::of_op(EventClass::Requested, 0, op);
                effects.agenda.push(now, event);
            }
        }
    }
}
