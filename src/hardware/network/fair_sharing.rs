//! Fair sharing: messages in flight share the bandwidth of each link on their routes by max-min fairness.
//!
//! A message is a stream of bytes that occupies all links of its route at the same time ([`LinkGraph::route_between`]).
//! The route states what part of the bytes passes over each link. At each moment, all rates rise together until a link
//! saturates. A saturated link fixes the rates of the messages that cross it; all other rates continue to rise. Rates
//! change when a message begins or when one has left, and are constant in between. A message is delivered one latency
//! after its last byte has left. Alone, a message of m bytes takes
//!
//! T = Σα + Σγ + m / min(B / part),
//!
//! where the minimum is over the links of the route. γ is the serialization time of a segment ([`SwitchingMode`]) at a
//! link's rate. The sum of γ excludes one of the slowest links. γ is zero with ideal cut-through, and the serialization
//! of the whole message if dimensions store and forward. Devices that wait for a segment thus delay a message without
//! occupying a link. Flows of a fair transport protocol share links in this way; queues, packets and acknowledgements
//! are not modelled.
//!
//! On explicit links ([`Topology::explicit_links`]) whose devices store and forward, a message passes one link after
//! another and shares only its current link. A link of length d counts as d links. Alone, the message takes
//!
//! T = Σ (α + d m / B).
//!
//! A load or store of a memory at an NPU is also a stream. Its route includes one more link, the memory's, which loads
//! and stores share.
//!
//! # Events
//!
//! Messages that leave at an instant are removed first. Rates are computed in a later round of the same instant,
//! because senders often begin the next message when the previous one has left. If the new messages can take over the
//! old rates ([`rates`]), no other rate is computed. The network schedules one event for the next departure. A new
//! event replaces the previous one and gets a new number; events with outdated numbers are ignored.
//!
//! # Equal links
//!
//! In a Clos network, links over which messages are sprayed in equal parts count as one link in routes
//! ([`BundledRouteFinder`](crate::topology::link_graph::BundledRouteFinder)), unless links may fail.
//!
//! # Failed links
//!
//! Bytes on a link are lost when the link fails, and the sender sends them again. Suppose a message left at rate r from
//! b to e, with latency c before the link and α over it. The lost bytes at time t are then
//!
//! part × r × |[b, e] ∩ [t − c − α, t − c]|
//!
//! but at most the number of bytes that have left; r is the rate at t, or at e if e is earlier. Bytes that have passed
//! the link arrive. Bytes that have not left, and bytes sent again, take another route. A message without another route
//! never arrives.

use super::{
    EventScheduler, LinkFailureHandler, MemoryLoadStoreTransfer, MessageProgressNotice,
    NetworkBackend, NetworkEvent, NetworkMessage,
};
use crate::topology::link_graph::{
    BundledRouteFinder, DirectedLink, LinkGraph, LinkMessageFraction, RouteLinksAndFractions,
};
use crate::topology::{LineSendPattern, SwitchingMode, Topology};
use chakram_base::ids::{EndpointId, Npu, OpIndex};
use chakram_base::units::{Span, SummedSecondsPerByte, Time, UnroundedBufferShare};
use rates::MaxMinRates;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A message, load or store in flight with unsent bytes.
#[derive(Clone, Debug)]
struct TransferWithUnsentBytes {
    op: OpIndex,
    order: u32,
    tells: bool,
    ends: (EndpointId, EndpointId),
    /// Position in the order of submission or, if devices store and forward, in the order of entry to the next link.
    sequence: u64,
    /// Time at which the first byte left.
    begun: Time,
    /// Size of the message in bytes.
    size: f64,
    /// The links of the route.
    route: Vec<LinkMessageFraction>,
    /// Range of the links in `route` that the stream occupies: all links, or one link if devices store and forward.
    active: (u32, u32),
    /// Latency from the end of the active links to the receiver, or to the next link.
    latency: Span,
    /// Bytes that had not yet left the sender at `settled`.
    left: f64,
    /// Time at which the rate last changed.
    settled: Time,
    /// Bytes per second since `settled`.
    rate: f64,
    /// Time at which all bytes will have left if the rate does not change.
    leaves: Time,
    /// True once the current computation of rates has fixed the stream's rate.
    is_fixed: bool,
}

impl TransferWithUnsentBytes {
    /// Returns the links that the stream occupies.
    fn occupied_links(&self) -> &[LinkMessageFraction] {
        &self.route[self.active.0 as usize..self.active.1 as usize]
    }

    /// Counts the bytes that have left up to `now`.
    fn settle_bytes(&mut self, now: Time) {
        self.left -= self.rate * now.since(self.settled).as_seconds();
        self.settled = now;
    }

    /// Changes the rate, starting at `now`.
    fn set_rate(&mut self, rate: f64, now: Time) {
        if rate == self.rate {
            return;
        }
        self.settle_bytes(now);
        self.rate = rate;
        self.leaves = if self.left > 0.0 {
            now + Span::from_seconds_saturating(self.left / rate)
        } else {
            now
        };
    }
}

/// A message whose bytes have all left, but not all arrived.
#[derive(Clone, Debug)]
struct DepartedMessage {
    stream: TransferWithUnsentBytes,
    arrives: Time,
}

/// State of a network with fair sharing; the module documentation describes the model.
#[derive(Debug)]
pub struct FairSharingNetwork<'a> {
    topology: &'a Topology,
    graph: Arc<LinkGraph>,
    /// Links of the graph, followed by links of memories.
    links: Vec<DirectedLink>,
    /// True if devices store and forward whole messages.
    stores: bool,
    /// Messages that are waiting to enter their next link, by op.
    between: BTreeMap<OpIndex, TransferWithUnsentBytes>,
    bundled_routes: BundledRouteFinder,
    /// Routes between NPUs and memories, and all routes if links may fail.
    routes: BTreeMap<(EndpointId, EndpointId), RouteLinksAndFractions>,
    /// Streams in flight, by slot.
    streams: Vec<Option<TransferWithUnsentBytes>>,
    free_slots: Vec<u32>,
    /// Slots of streams that are waiting for a rate.
    entering: Vec<u32>,
    /// Slots of the streams that leave at each time.
    departures: BTreeMap<Time, Vec<u32>>,
    rates: MaxMinRates,
    /// Number of streams that have entered links so far.
    sequence: u64,
    /// Number of the latest event that computes rates, and the event's time if it is still pending.
    pending: (u32, Option<Time>),
    /// Routes of departed messages, kept so that their memory can be reused.
    spare_routes: Vec<Vec<LinkMessageFraction>>,
    /// Messages that have left but not arrived; recorded only if links may fail.
    departed: Option<BTreeMap<OpIndex, DepartedMessage>>,
    /// Number of arrival events to ignore, by time and op. An event is ignored if a part of its message is sent again
    /// and arrives later.
    overtaken: BTreeMap<(Time, OpIndex), u32>,
    /// Endpoint pairs that failed links have cut off from each other.
    cut_off: BTreeSet<(EndpointId, EndpointId)>,
}

impl<'a> FairSharingNetwork<'a> {
    /// Creates the network with no messages. Returns `None` if the topology has more NPUs than a link graph supports.
    pub fn new(topology: &'a Topology) -> Option<Self> {
        let graph = topology.explicit_or_built_link_graph()?;
        let links = topology.list_links_with_memory_links(&graph);
        Some(Self {
            topology,
            bundled_routes: BundledRouteFinder::new(&graph),
            graph,
            rates: MaxMinRates::new(&links),
            links,
            stores: topology.explicit_links().is_some()
                && topology.switching_mode() == SwitchingMode::StoreAndForward,
            between: BTreeMap::new(),
            routes: BTreeMap::new(),
            streams: Vec::new(),
            free_slots: Vec::new(),
            entering: Vec::new(),
            departures: BTreeMap::new(),
            sequence: 0,
            pending: (0, None),
            spare_routes: Vec::new(),
            departed: None,
            overtaken: BTreeMap::new(),
            cut_off: BTreeSet::new(),
        })
    }

    /// Records the links that messages in flight occupy, so that links may fail.
    pub fn enable_link_failures(&mut self) {
        self.departed = Some(BTreeMap::new());
    }

    /// Returns the links and the latency between two endpoints, or `None` if failed links leave no route.
    fn find_route(&mut self, ends: (EndpointId, EndpointId)) -> Option<RouteLinksAndFractions> {
        let mut found = RouteLinksAndFractions {
            links: self.spare_routes.pop().unwrap_or_default(),
            latency: Span::ZERO,
        };
        let mut endpoints = [ends.0, ends.1].into_iter();
        let is_access = endpoints.any(|endpoint| self.topology.memory_at(endpoint).is_some());
        // A failed link belongs to no bundle, because its bytes move to other links.
        if self.departed.is_none() && !is_access {
            let ends = (Npu(ends.0.0), Npu(ends.1.0));
            self.bundled_routes
                .find_route(&self.graph, ends, &mut found);
            return Some(found);
        }
        if !self.routes.contains_key(&ends) {
            let route = self.topology.route_between(&self.graph, ends)?;
            self.routes.insert(ends, route);
        }
        let route = &self.routes[&ends];
        found.links.clone_from(&route.links);
        found.latency = route.latency;
        Some(found)
    }

    /// Returns how long devices between two endpoints wait for a segment of a message.
    fn device_wait_for_first_segment(
        &self,
        ends: (EndpointId, EndpointId),
        amount: UnroundedBufferShare,
    ) -> Span {
        // Devices on explicit links either forward bytes at once or store whole messages, so segments do not matter.
        let switching = self.topology.switching_mode();
        if switching == SwitchingMode::IDEAL || self.topology.explicit_links().is_some() {
            return Span::ZERO;
        }
        let path = self.topology.path_between(ends);
        let others = path.map_or(SummedSecondsPerByte::ZERO, |path| path.others);
        others.serialization_time(switching.first_segment(amount))
    }

    /// Sends `amount` bytes between two endpoints, starting at `now`. For `tells` and `order`, see [`NetworkMessage`].
    fn begin_stream(
        &mut self,
        now: Time,
        (op, tells, order): (OpIndex, bool, u32),
        (ends, amount): ((EndpointId, EndpointId), UnroundedBufferShare),
        agenda: &mut impl EventScheduler,
    ) {
        let Some(route) = self.find_route(ends) else {
            self.cut_off.insert(ends);
            return;
        };
        let latency = route.latency + self.device_wait_for_first_segment(ends, amount);
        let size = amount.bytes as f64 / amount.parts as f64;
        let stream = TransferWithUnsentBytes {
            op,
            order,
            tells,
            ends,
            sequence: 0,
            begun: now,
            size,
            active: (0, route.links.len() as u32),
            route: route.links,
            latency,
            left: size,
            settled: now,
            rate: 0.0,
            leaves: Time::END,
            is_fixed: false,
        };
        if self.stores {
            self.enter_link(now, stream, 0);
        } else {
            self.add_stream_and_defer_rates(stream);
        }
        self.schedule_rate_update(now, agenda);
    }

    /// Adds a stream without a rate. Rates are computed later at the same instant, so no byte moves before that.
    fn add_stream_and_defer_rates(&mut self, mut stream: TransferWithUnsentBytes) {
        stream.sequence = self.sequence;
        self.sequence += 1;
        let slot = self.free_slots.pop().unwrap_or(self.streams.len() as u32);
        if slot as usize == self.streams.len() {
            self.streams.push(None);
        }
        self.streams[slot as usize] = Some(stream);
        self.entering.push(slot);
    }

    /// Moves `stream` onto the link with index `at` of its route.
    fn enter_link(&mut self, now: Time, mut stream: TransferWithUnsentBytes, at: u32) {
        let link = self.links[stream.route[at as usize].0 as usize];
        stream.active = (at, at + 1);
        stream.latency = link.latency;
        stream.left = link.bytes_times_length(stream.size);
        (stream.rate, stream.settled, stream.leaves) = (0.0, now, Time::END);
        self.add_stream_and_defer_rates(stream);
    }

    /// Schedules an event at `at` that computes rates; it replaces the pending event.
    fn schedule_rate_update(&mut self, at: Time, agenda: &mut (impl EventScheduler + ?Sized)) {
        if self.pending.1 == Some(at) {
            return;
        }
        self.pending = (self.pending.0.wrapping_add(1), Some(at));
        agenda.schedule_event(at, NetworkEvent::LinkFree(self.pending.0));
    }

    /// Removes the streams that have left. If there are none, computes the rates of all streams.
    fn remove_departures_or_compute_rates(&mut self, now: Time, agenda: &mut impl EventScheduler) {
        self.pending.1 = None;
        if self.remove_departures(now, agenda) {
            // Notified senders may send further messages at this instant, so rates are computed afterwards.
            self.schedule_rate_update(now, agenda);
            return;
        }
        self.assign_rates_to_entering_streams(now);
        if let Some((&at, _)) = self.departures.first_key_value() {
            self.schedule_rate_update(at, agenda);
        }
    }

    /// Assigns rates to the streams that are waiting for them, and changes other rates if necessary.
    fn assign_rates_to_entering_streams(&mut self, now: Time) {
        for &slot in &self.entering {
            let stream = self.streams[slot as usize].as_mut();
            let stream = stream.expect("streams enter before they leave");
            if let Some(rate) = self
                .rates
                .add_stream_at_lowest_link_level(stream.occupied_links())
            {
                stream.set_rate(rate, now);
            }
        }
        if self.rates.confirm_rates() {
            for slot in self.entering.drain(..) {
                let stream = self.streams[slot as usize].as_ref();
                let leaves = stream.map_or(now, |stream| stream.leaves);
                self.departures.entry(leaves).or_default().push(slot);
            }
            return;
        }
        self.entering.clear();
        self.rates.solve_rates(&mut self.streams, now);
        self.departures.clear();
        for (slot, stream) in (0..).zip(&self.streams) {
            if let Some(stream) = stream {
                self.departures.entry(stream.leaves).or_default().push(slot);
            }
        }
    }

    /// Removes the streams that have left by `now`, in the order in which they entered. Returns true if there are any.
    fn remove_departures(
        &mut self,
        now: Time,
        agenda: &mut (impl EventScheduler + ?Sized),
    ) -> bool {
        let mut any = false;
        while let Some(entry) = self
            .departures
            .first_entry()
            .filter(|entry| *entry.key() <= now)
        {
            any = true;
            let mut slots = entry.remove();
            slots.sort_unstable_by_key(|slot| {
                let stream = self.streams[*slot as usize].as_ref();
                stream.map(|stream| stream.sequence)
            });
            for slot in slots {
                self.remove_departed_stream(now, slot, agenda);
            }
        }
        any
    }

    fn remove_departed_stream(
        &mut self,
        now: Time,
        slot: u32,
        agenda: &mut (impl EventScheduler + ?Sized),
    ) {
        let stream = self.streams[slot as usize].take();
        let mut stream = stream.expect("a stream leaves once");
        self.free_slots.push(slot);
        self.rates
            .remove_stream(stream.occupied_links(), stream.rate);
        if stream.tells {
            agenda.schedule_event(now, NetworkEvent::Injected(stream.op));
        }
        let (order, op, arrives) = (stream.order, stream.op, now + stream.latency);
        if (stream.active.1 as usize) < stream.route.len() {
            stream.tells = false;
            self.between.insert(op, stream);
            agenda.schedule_event(arrives, NetworkEvent::Hop { order, op });
            return;
        }
        agenda.schedule_event(arrives, NetworkEvent::Delivered(op));
        if let Some(departed) = &mut self.departed {
            (stream.left, stream.settled) = (0.0, now);
            departed.insert(op, DepartedMessage { stream, arrives });
        } else {
            self.spare_routes.push(stream.route);
        }
    }
}

impl NetworkBackend for FairSharingNetwork<'_> {
    const NAME: &'static str = "fair_sharing";
    const SHARED: bool = true;

    fn submit_message(
        &mut self,
        now: Time,
        message: &NetworkMessage,
        agenda: &mut impl EventScheduler,
    ) {
        let (from, to) = message.ends;
        let of = (message.op, message.tell_injected, message.order);
        self.begin_stream(now, of, ((from.into(), to.into()), message.amount), agenda);
    }

    /// Always returns `None`: later streams on the same links may still change the end.
    fn serve_access(
        &mut self,
        now: Time,
        transfer: &MemoryLoadStoreTransfer,
        agenda: &mut impl EventScheduler,
    ) -> Option<Time> {
        let whole = (transfer.ends, transfer.amount);
        self.begin_stream(now, (transfer.op, false, 0), whole, agenda);
        None
    }

    fn uncontended_time(&self, (a, b): (Npu, Npu), amount: UnroundedBufferShare) -> Option<Span> {
        if !self.stores {
            return Some(self.topology.path_between_npus(a, b)?.time_message(amount));
        }
        // Round the time link by link, as the times of messages are rounded.
        let size = amount.bytes as f64 / amount.parts as f64;
        let route = self.graph.route_between(a, b);
        let links = route.links.iter().map(|(link, _)| {
            let link = self.links[*link as usize];
            let rate = link.bandwidth.bytes_per_second();
            link.latency + Span::from_seconds_saturating(link.bytes_times_length(size) / rate)
        });
        links.reduce(|sum, link| sum + link)
    }

    fn links_if_they_may_fail(&mut self) -> Option<&mut dyn LinkFailureHandler> {
        self.departed.is_some().then_some(self)
    }

    /// Returns false, because there is no proof of where a collective's messages meet on an arbitrary graph.
    fn is_send_pattern_conflict_free(&self, _: usize, _: u32, _: LineSendPattern) -> bool {
        false
    }

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
                if self.take_superseded_arrival(now, op) {
                    return;
                }
                if let Some(departed) = &mut self.departed {
                    departed.remove(&op);
                }
                notices.push(MessageProgressNotice::Delivered(op));
            }
            NetworkEvent::LinkFree(number) => {
                if number == self.pending.0 && self.pending.1.is_some() {
                    self.remove_departures_or_compute_rates(now, agenda);
                }
            }
            NetworkEvent::Hop { op, .. } => {
                let stream = self.between.remove(&op);
                let stream = stream.expect("a message between two links was put there");
                let next = stream.active.1;
                self.enter_link(now, stream, next);
                self.schedule_rate_update(now, agenda);
            }
            NetworkEvent::FirstByte { .. } => unreachable!("messages are streams here"),
        }
    }
}

mod failures;
mod rates;
#[cfg(test)]
mod tests;
