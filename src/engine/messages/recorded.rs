//! Models messages with recorded durations: the two halves wait for each other, and each then ends after its own
//! duration.

use super::Messages;
use crate::CommunicationDurationSource;
use crate::dataflow::Dataflow;
use crate::effects::Effects;
use crate::ids::InstanceNode;
use crate::plan::NONE;
use chakram_base::ids::NodeIndex;
use chakram_base::units::Time;

/// Begins the transfer of a node that no longer waits for another node. The node ends after its own
/// duration.
fn begin_transfer(
    flow: &Dataflow<'_>,
    effects: &mut Effects,
    now: Time,
    InstanceNode { instance, node }: InstanceNode,
) {
    let running = flow.instance(instance);
    effects.queue_collective_begin_notification(running.id, node);
    let end = now + running.duration_of_node(node);
    effects.end_node_at(end, instance, node);
}

impl Messages<'_> {
    /// Starts a send that has taken its lane.
    pub(super) fn start_send(
        &mut self,
        flow: &Dataflow<'_>,
        effects: &mut Effects,
        now: Time,
        send @ InstanceNode { instance, node }: InstanceNode,
    ) {
        let graph = flow.instance(instance).graph;
        let index = graph.message_index(node);
        let pair = flow.match_index_of_message(instance, index);
        let mut waits = false;
        if pair != NONE && self.comm != CommunicationDurationSource::Captured {
            let state = &mut self.pairs[pair as usize];
            state.delivered = true;
            let (waiter, receive) = (state.waiter, state.posted.checked_sub(1));
            waits = receive.is_none() && !graph.messages()[index].eager;
            if waits {
                (state.posted, state.waiter) = (node.0 + 1, instance);
            }
            if let Some(receive) = receive {
                let receive = InstanceNode {
                    instance: waiter,
                    node: NodeIndex(receive),
                };
                begin_transfer(flow, effects, now, receive);
            }
        }
        if !waits {
            begin_transfer(flow, effects, now, send);
        }
    }

    /// Starts a ready receive.
    pub(super) fn start_receive(
        &mut self,
        flow: &Dataflow<'_>,
        effects: &mut Effects,
        now: Time,
        receive @ InstanceNode { instance, node }: InstanceNode,
        pair: u32,
    ) {
        let mut waits = false;
        if pair != NONE && self.comm != CommunicationDurationSource::Captured {
            let state = &mut self.pairs[pair as usize];
            let (waiter, send) = (state.waiter, state.posted.checked_sub(1));
            waits = !state.delivered;
            if waits {
                (state.posted, state.waiter) = (node.0 + 1, instance);
            }
            if let Some(send) = send {
                let send = InstanceNode {
                    instance: waiter,
                    node: NodeIndex(send),
                };
                begin_transfer(flow, effects, now, send);
            }
        }
        if !waits {
            begin_transfer(flow, effects, now, receive);
        }
    }
}
