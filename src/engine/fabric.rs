//! Fabric: the network and the memories, with the traffic in flight on them.

use super::agenda::Agenda;
use super::compiled_replay::CompiledReplay;
use super::discipline::EventOrderDiscipline;
use super::effects::{Effects, MessageContentOrderKey, MessageToSubmitThisInstant};
use super::event::{EventClass, PackedEvent};
use crate::Observer;
use chakram_base::ids::{EndpointId, Npu, OpIndex};
use chakram_base::units::{Time, UnroundedBufferShare};
use chakram_hardware::network::{
    CollectiveLinkReservations, ConsecutivePortsOpenedByOperation, EventScheduler,
    LinkFailureEffectOnMessages, LinkTrafficBytes, MessageProgressNotice, NetworkBackend,
    NetworkEvent, NetworkMessage, RehearsableLinks,
};
use chakram_hardware::topology::Topology;
use std::collections::BTreeMap;
use std::sync::Arc;

mod accesses;
mod in_flight;

pub(super) use accesses::{NetworkMemoryAccess, find_too_many_chunks_fault};
pub(super) use in_flight::InFlightMessageContext;

use accesses::RemoteMemoryState;
use in_flight::InFlightOpSlab;

/// Resources outside NPUs: the network and memories.
#[derive(Debug)]
pub(super) struct Fabric<'a, N> {
    topology: &'a Topology,
    network: N,
    /// Ops of all messages in flight.
    ops: InFlightOpSlab,
    notices: Vec<MessageProgressNotice>,
    /// Size of a rendezvous request, or `None` if messages need no request.
    request_bytes: Option<u64>,
    /// Messages that wait for their rendezvous request.
    withheld: BTreeMap<OpIndex, NetworkMessage>,
    /// Bytes carried by each link, or `None` if they are not counted.
    traffic: Option<Box<LinkTrafficBytes<'a>>>,
    /// The unnamed memory (`None` if there is none), followed by the named memories.
    memories: Vec<Option<RemoteMemoryState<'a>>>,
}

impl EventScheduler for Agenda {
    #[inline]
    fn schedule_event(&mut self, at: Time, event: NetworkEvent) {
        // Events of different ops at the same instant use separate ports and counters, so their order has no effect.
        // There are two exceptions: first bytes at the same port and messages at the same link are ordered by content,
        // and only then by op index.
        let event = match event {
            NetworkEvent::Injected(op) => PackedEvent::of_op(EventClass::Injected, 0, op),
            NetworkEvent::FirstByte { order, op } => {
                PackedEvent::of_op(EventClass::FirstByte, order, op)
            }
            NetworkEvent::Delivered(op) => PackedEvent::of_op(EventClass::Delivered, 0, op),
            NetworkEvent::Hop { order, op } => PackedEvent::of_op(EventClass::Hop, order, op),
            NetworkEvent::LinkFree(link) => PackedEvent::new(EventClass::LinkFree, 0, link),
        };
        self.push(at, event);
    }
}

impl<'a, N: NetworkBackend> Fabric<'a, N> {
    /// Creates an idle fabric for the machine of `prepared`.
    pub fn new(prepared: &CompiledReplay<'a>, mut network: N, request_bytes: Option<u64>) -> Self {
        let topology = prepared.machine.topology();
        let traffic = if prepared.links {
            LinkTrafficBytes::new(topology).map(Box::new)
        } else {
            None
        };
        Self {
            topology,
            memories: RemoteMemoryState::create_remote_memories(prepared, &mut network),
            network,
            ops: InFlightOpSlab::default(),
            notices: Vec::new(),
            request_bytes,
            withheld: BTreeMap::new(),
            traffic,
        }
    }

    /// Returns the network model.
    #[inline]
    pub fn network_model(&self) -> &N {
        &self.network
    }

    #[inline]
    pub fn open_network_ports_for_operation(
        &mut self,
        ports: u32,
    ) -> ConsecutivePortsOpenedByOperation {
        self.network.open_ports(ports)
    }

    #[inline]
    pub fn close_ports(&mut self, ports: ConsecutivePortsOpenedByOperation) {
        self.network.close_ports(ports);
    }

    pub fn reservable_links_mut(&mut self) -> Option<&mut dyn CollectiveLinkReservations> {
        self.network.reservable_links_mut()
    }

    pub fn rehearsable_links_mut(&mut self) -> Option<&mut dyn RehearsableLinks> {
        self.network.links_if_rehearsable()
    }

    /// Returns the lowest-numbered run with a reserved link that bytes sent between `ends` at `now` may use, or `None`.
    #[inline]
    pub fn lowest_run_reserving_route(
        &mut self,
        now: Time,
        ends: (EndpointId, EndpointId),
    ) -> Option<u32> {
        self.network
            .reservable_links_mut()?
            .lowest_owner_of_disturbed_reservations(now, ends)
    }

    /// Allocates an op for a message, and counts the message.
    #[inline]
    pub fn allocate_message_op(&mut self, of: InFlightMessageContext) -> OpIndex {
        self.ops.insert(of)
    }

    /// Allocates an op that only identifies an event and does not count as a message.
    #[inline]
    pub fn allocate_uncounted_event_op(&mut self, of: InFlightMessageContext) -> OpIndex {
        self.ops.insert_uncounted_op(of)
    }

    /// Returns the context that was stored with an op.
    #[inline]
    pub fn context_of_op(&self, op: OpIndex) -> InFlightMessageContext {
        self.ops.get(op)
    }

    /// Frees an op and returns its context.
    #[inline]
    pub fn forget_op(&mut self, op: OpIndex) -> InFlightMessageContext {
        self.ops.remove(op)
    }

    /// Subtracts a rehearsal's messages from the count, because the machine's network never carried them.
    pub fn subtract_rehearsed_messages(&mut self, messages: u64) {
        self.ops.subtract_rehearsal_messages(messages);
    }

    /// Passes a message to the network.
    #[inline]
    pub fn pass_message_to_network(
        &mut self,
        now: Time,
        message: &NetworkMessage,
        effects: &mut Effects,
    ) {
        if let Some(traffic) = &mut self.traffic {
            let (from, to) = message.ends;
            traffic.count_transfer((from.into(), to.into()), message.amount);
        }
        self.network
            .submit_message(now, message, &mut effects.agenda);
    }

    /// Submits a message to the network. In insertion order, submits it immediately. Otherwise submits it later,
    /// together with the instant's other messages, sorted by key.
    #[inline]
    pub fn submit_message<D: EventOrderDiscipline>(
        &mut self,
        now: Time,
        key: MessageContentOrderKey,
        message: NetworkMessage,
        effects: &mut Effects,
    ) {
        if D::AT_ONCE {
            self.pass_message_to_network(now, &message, effects);
        } else {
            effects
                .sends
                .push(MessageToSubmitThisInstant { key, message });
        }
    }

    /// Submits the messages collected at this instant, sorted by key.
    pub fn submit_pending_messages(&mut self, now: Time, effects: &mut Effects) {
        let mut leaving = std::mem::take(&mut effects.sends);
        leaving.sort_unstable_by_key(|leaving| leaving.key);
        for MessageToSubmitThisInstant { message, .. } in leaving.drain(..) {
            if N::SHARED {
                self.ops.assign_submission_number(message.op);
            }
            self.pass_message_to_network(now, &message, effects);
        }
        effects.sends = leaving;
    }

    /// Returns true if receivers must request messages.
    #[inline]
    pub fn needs_message_requests(&self) -> bool {
        self.request_bytes.is_some()
    }

    /// Sends a rendezvous request to the network.
    pub fn send_rendezvous_request(
        &mut self,
        now: Time,
        op: InFlightMessageContext,
        ends: (Npu, Npu),
        effects: &mut Effects,
    ) {
        let op = self.ops.insert(op);
        let amount = UnroundedBufferShare::from_bytes(self.request_bytes.unwrap_or(0));
        let message = NetworkMessage::create_message_without_port(op, ends, amount);
        self.pass_message_to_network(now, &message, effects);
    }

    /// Withholds a message until its receiver requests it.
    pub fn withhold_message(&mut self, message: NetworkMessage) {
        self.withheld.insert(message.op, message);
    }

    /// Submits a withheld message that its receiver has requested.
    pub fn submit_withheld_message(&mut self, now: Time, op: OpIndex, effects: &mut Effects) {
        if let Some(message) = self.withheld.remove(&op) {
            self.pass_message_to_network(now, &message, effects);
        }
    }

    /// Takes links of the network out of service.
    pub fn fail_links(
        &mut self,
        now: Time,
        links: &[u32],
        effects: &mut Effects,
    ) -> LinkFailureEffectOnMessages {
        let Some(failing) = self.network.links_if_they_may_fail() else {
            unreachable!("failures of links are refused for networks that know none");
        };
        let effect = failing.fail_links(now, links, &mut effects.agenda);
        if let Some(traffic) = &mut self.traffic {
            traffic.reroute_bytes_around_failed_links(
                Arc::clone(failing.graph_of_links_in_service()),
                &effect.moved,
            );
        }
        effect
    }

    /// Returns the pairs of endpoints that have had no route since links failed.
    pub fn unreachable_pairs(&mut self) -> Vec<(EndpointId, EndpointId)> {
        let failing = self.network.links_if_they_may_fail();
        failing.map_or_else(Vec::new, |failing| failing.unreachable_pairs())
    }

    /// Returns a readable name of an endpoint.
    pub fn name_endpoint(&self, endpoint: EndpointId) -> String {
        match endpoint.0.checked_sub(self.topology.npu_count()) {
            None => format!("NPU {endpoint}"),
            Some(memory) => format!("memory {memory}"),
        }
    }

    /// Handles a network event. The caller then fetches the resulting notices about messages by calling
    /// [`Self::pop_delivery_notice`].
    #[inline]
    pub fn handle_event(&mut self, now: Time, event: NetworkEvent, effects: &mut Effects) {
        let (agenda, notices) = (&mut effects.agenda, &mut self.notices);
        self.network.handle_event(now, event, agenda, notices);
    }

    /// Removes the next notice about an op. If its message has arrived, the caller must free the op.
    #[inline]
    pub fn pop_delivery_notice(&mut self) -> Option<MessageProgressNotice> {
        self.notices.pop()
    }

    /// Sorts the events of a round into content order. At a port or link, messages of one NPU keep the order of
    /// submission, because op indices are reused.
    #[inline]
    pub fn sort_round_events_by_content(&self, round: &mut [PackedEvent]) {
        // An unstable sort is deterministic here, because equal words are equal events.
        round.sort_unstable();
        if !N::SHARED {
            return;
        }
        let of_one = |a: &PackedEvent, b: &PackedEvent| {
            (a.event_class(), b.event_class()) == (EventClass::Hop, EventClass::Hop)
                && a.rank_bits() == b.rank_bits()
        };
        for alike in round.chunk_by_mut(of_one).filter(|alike| alike.len() > 1) {
            alike.sort_unstable_by_key(|event| self.ops.submission_number(event.op_index()));
        }
    }

    /// Returns the number of messages that the network has carried.
    pub fn message_count(&self) -> u64 {
        self.ops.inserted_count()
    }

    /// Reports the load of each link to an observer.
    pub fn report_link_loads<O: Observer + ?Sized>(&self, observer: &mut O) {
        if let Some(traffic) = &self.traffic {
            observer.on_link_loads_measured(&traffic.collect_link_loads());
        }
        if let Some(occupancy) = self.network.link_and_memory_port_busy_times() {
            observer.on_link_and_memory_port_busy_times(&occupancy);
        }
    }
}
