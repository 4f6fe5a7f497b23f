//! Networks with contention: messages pass a sequence of servers, and each server carries one message at a time.
//!
//! Messages cross dimensions in order, innermost first. The model determines the servers of a route
//! ([`PortsOrLinksOnRoute`]): the links, or the ports of NPUs. A server serves messages in the order of arrival. A
//! message of m bytes occupies server i, whose rate is B_i, for s = m/B_i, from b to b + s without a gap. Let α be the
//! latency of the link, and γ the serialization of a segment on the link ([`SwitchingMode`]). γ is zero with ideal
//! cut-through, and all of s with store-and-forward. The first segment reaches the next device, as the *head*, at
//! b + γ + α, and the last byte, the *tail*, at b + s + α. The message then reaches the next server at
//! ready = max(head, tail − (s − γ)), where s and γ belong to the slowest link from this server on.
//!
//! From this time on, the server never has to wait for a segment. A message that arrives more slowly than the server
//! can forward it is collected before the server, so it occupies a fast link only for its serialization time there. If
//! a slower link follows, collecting the message would only move the wait to that link. It is therefore forwarded as it
//! arrives, in its place in the queue. It counts as passing without a gap, because the longer time at the slower link
//! makes up for the gaps.
//!
//! # Alone
//!
//! If a message is alone, no server is busy, so b = ready. Let δ_i = s_i − γ_i, which is larger for slower links. Let
//! D_i be the maximum of δ_j over all links j from link i on, and E_i = max(head_i + D_i, tail_i). Because b_i =
//! max(head_i, tail_i − D_i) = E_i − D_i, and D_i is the larger of δ_i and D_{i+1},
//!
//! E_{i+1} − γ_i − α_i = max(b_i + D_{i+1}, b_i + δ_i) = b_i + D_i = E_i.
//!
//! E_0 is head_0 + D_0, with head and tail at the time of submission. The last E is the last tail, so
//!
//! T = Σα + Σγ + max δ = Σα + (Σγ of all but the slowest) + m/B_min,
//!
//! T equals [`Path::time`](crate::topology::Path::time) to the picosecond: each γ except the slowest link's is the
//! difference of two partial sums, which are rounded once.
//!
//! If several links are between two servers, α is their total latency, and γ counts once for each link except one.
//!
//! # When a send completes
//!
//! A send completes when the message's last byte has left: m/B_min after the first byte began to leave, where B_min is
//! the rate of the path's slowest link. The sender's waiting time is T minus the time of the first byte. A slow path
//! thus slows down the sender (back-pressure), so bytes never accumulate after a fast port. The port itself, whose rate
//! is B, is occupied only for m/B, so messages over other paths can use it in the meantime. Queues later on the route
//! exert no back-pressure on the sender.
//!
//! # Loads and stores
//!
//! A memory attached to the network adds one server, the memory's link: the first server of a load, the last server of
//! a store. When a memory access is issued, it joins the queues of all its servers at the same time
//! (`contended/access.rs`).
//!
//! # Events
//!
//! A message joins a server's queue when it is ready, in the order of events. A queue's state is therefore only the
//! time until which its server is busy. A message joins the queue of its first server when it is submitted. Each
//! further server costs one event, and so does the arrival. Messages that are ready at the same instant are ordered by
//! their senders' numbers; messages of one sender keep the order in which they left it.

use super::servers::QueueingServerTable;
use super::{
    CollectiveLinkReservations, EventScheduler, LinkAndPortBusyTimes, MemoryLoadStoreTransfer,
    MessageProgressNotice, NetworkBackend, NetworkEvent, NetworkMessage,
};
use crate::topology::{DimensionShape, LineSendPattern, SwitchingMode, Topology};
use chakram_base::ids::{EndpointId, Npu, OpIndex};
use chakram_base::units::{Span, Time, UnroundedBufferShare};
use in_flight::InFlightMessageAtNextServer;
use route::{RouteCursor, RouteServerAndLinkCountToNext, iter_servers_between, servers_of_npu};
use std::marker::PhantomData;

pub use route::PortsOrLinksOnRoute;

mod access;
mod in_flight;
pub(super) mod route;

/// Selects the servers at which messages contend.
pub trait ContendedPortOrLinkSelector {
    /// Name in machine files and reports.
    const NAME: &'static str;

    /// The servers at which messages contend.
    const REACH: PortsOrLinksOnRoute;
}

/// State of a network with contention; the module documentation describes the model.
#[derive(Debug)]
pub struct ContendedNetwork<'a, D> {
    topology: &'a Topology,
    servers: QueueingServerTable,
    /// Messages in flight, by op.
    in_flight: Vec<Option<InFlightMessageAtNextServer>>,
    detail: PhantomData<D>,
}

impl<'a, D: ContendedPortOrLinkSelector> ContendedNetwork<'a, D> {
    /// Creates the network with no messages in flight.
    pub fn new(topology: &'a Topology) -> Self {
        Self {
            topology,
            servers: QueueingServerTable::new(topology.dimensions().len()),
            in_flight: Vec::new(),
            detail: PhantomData,
        }
    }

    /// Advances a message whose service at a server begins at `begin`. The message then goes to the next server, or
    /// arrives.
    #[inline]
    fn advance_message(&mut self, begin: Time, op: OpIndex, agenda: &mut impl EventScheduler) {
        let in_flight = self.in_flight[op.index()]
            .as_mut()
            .expect("it is under way");
        match in_flight.begin_service_and_find_next_ready(begin, self.topology) {
            None => {
                agenda.schedule_event(in_flight.tail_arrival_time(), NetworkEvent::Delivered(op))
            }
            Some(ready) => {
                let order = in_flight.priority_among_ready_messages();
                agenda.schedule_event(ready, NetworkEvent::Hop { order, op });
            }
        }
    }
}

impl<D: ContendedPortOrLinkSelector> NetworkBackend for ContendedNetwork<'_, D> {
    const NAME: &'static str = D::NAME;
    const SHARED: bool = true;

    #[inline]
    fn submit_message(
        &mut self,
        now: Time,
        message: &NetworkMessage,
        agenda: &mut impl EventScheduler,
    ) {
        let op = message.op.index();
        if op >= self.in_flight.len() {
            self.in_flight.resize(op + 1, None);
        }
        let path = message.path_in(self.topology);
        let in_flight =
            InFlightMessageAtNextServer::new(now, (message, &path), D::REACH, self.topology);
        let mut ahead = in_flight.route_after_next_server();
        // Announce the message at all later servers, so that they do not count as idle before it has passed.
        while let Some(stop) = ahead.next(self.topology) {
            self.servers.expect_message(stop.place);
        }
        let begin = self.servers.serve_message_and_return_begin(
            now,
            in_flight.next_server(),
            in_flight.service_time_at_next_server(),
        );
        if message.tell_injected {
            // Because of back-pressure, the message leaves at the rate of the path's slowest link.
            let left = begin + path.bandwidth.serialization_time(message.amount);
            agenda.schedule_event(left, NetworkEvent::Injected(message.op));
        }
        self.in_flight[op] = Some(in_flight);
        self.advance_message(begin, message.op, agenda);
    }

    fn serve_access(
        &mut self,
        now: Time,
        transfer: &MemoryLoadStoreTransfer,
        _: &mut impl EventScheduler,
    ) -> Option<Time> {
        Some(access::serve_access(self, now, transfer))
    }

    fn link_and_memory_port_busy_times(&self) -> Option<LinkAndPortBusyTimes> {
        LinkAndPortBusyTimes::collect_busy_times_on_tiles(self.topology, &self.servers)
    }

    fn uncontended_time(&self, (a, b): (Npu, Npu), amount: UnroundedBufferShare) -> Option<Span> {
        Some(self.topology.path_between_npus(a, b)?.time_message(amount))
    }

    fn is_send_pattern_conflict_free(
        &self,
        dimension: usize,
        members: u32,
        pattern: LineSendPattern,
    ) -> bool {
        let dimension = &self.topology.dimensions()[dimension];
        match dimension.shape {
            // An NPU's ports along a dimension carry only messages that it sends or receives.
            _ if D::REACH == PortsOrLinksOnRoute::Ports => true,
            DimensionShape::Switch | DimensionShape::FullyConnected => true,
            _ if self.topology.is_half_duplex() => false,
            // Two members are joined by one link in each direction, and no other message uses it.
            DimensionShape::Ring | DimensionShape::Mesh if dimension.size == 2 => true,
            // Each member sends upwards over its own link. On a mesh the last member sends to the first over downward
            // links, which no other member uses.
            DimensionShape::Ring | DimensionShape::Mesh => {
                pattern == LineSendPattern::Neighbours && members == dimension.size
            }
        }
    }

    fn reservable_links_mut(&mut self) -> Option<&mut dyn CollectiveLinkReservations> {
        Some(self)
    }

    fn npu_port_servers_for_other_traffic(&mut self) -> Option<&mut QueueingServerTable> {
        Some(&mut self.servers)
    }

    #[inline]
    fn handle_event(
        &mut self,
        now: Time,
        event: NetworkEvent,
        agenda: &mut impl EventScheduler,
        notices: &mut Vec<MessageProgressNotice>,
    ) {
        match event {
            NetworkEvent::Injected(op) => notices.push(MessageProgressNotice::Injected(op)),
            NetworkEvent::Delivered(op) => {
                self.in_flight[op.index()] = None;
                notices.push(MessageProgressNotice::Delivered(op));
            }
            NetworkEvent::Hop { op, .. } => {
                let in_flight = self.in_flight[op.index()]
                    .as_ref()
                    .expect("it is under way");
                let begin = self.servers.serve_expected_message_and_return_begin(
                    now,
                    in_flight.next_server(),
                    in_flight.service_time_at_next_server(),
                );
                self.advance_message(begin, op, agenda);
            }
            NetworkEvent::FirstByte { .. } | NetworkEvent::LinkFree(_) => {
                unreachable!("servers are asked when a message comes")
            }
        }
    }
}

impl<D: ContendedPortOrLinkSelector> CollectiveLinkReservations for ContendedNetwork<'_, D> {
    fn are_npu_links_idle(&self, now: Time, npu: Npu, dimension: usize) -> bool {
        servers_of_npu(D::REACH, self.topology, npu, dimension)
            .all(|place| self.servers.is_server_idle_and_unreserved(now, place))
    }

    fn reserve_or_release_npu_links(&mut self, npu: Npu, dimension: usize, claim: Option<u32>) {
        for place in servers_of_npu(D::REACH, self.topology, npu, dimension) {
            self.servers.set_reservation_owner_of_server(place, claim);
        }
    }

    #[inline]
    fn lowest_owner_of_disturbed_reservations(
        &self,
        _: Time,
        ends: (EndpointId, EndpointId),
    ) -> Option<u32> {
        if !self.servers.has_reserved_server() {
            return None;
        }
        iter_servers_between(D::REACH, ends, self.topology)
            .filter_map(|stop| self.servers.reservation_owner_of_server(stop.place))
            .min()
    }
}
