//! Fair sharing: messages in flight share the bandwidth of each link on their routes by max-min fairness.
//!
//! A message is a stream of bytes that occupies all links of its route at the same time ([`LinkGraph::route_between`]).
//! The route states which part of the bytes passes over each link. At each moment all rates rise together until a link
//! saturates. The saturated link fixes the rates of the messages that cross the link; all other rates continue to rise.
//! Rates change when a message begins or has left, and are constant in between. A message is delivered one latency
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
//! another and shares only its current link. A link of length d counts d times. Alone, the message takes
//!
//! T = Σ (α + d m / B).
//!
//! A load or store of a memory at an NPU is also a stream. The route of a load or store includes one more link, the
//! memory's link, which loads and stores share.
//!
//! # Events
//!
//! Submissions and departures of an instant are collected, and rates are solved once per round. Only the next departure
//! is scheduled as an event. A new event has a new number; the previous event is then ignored because its number is
//! outdated.
//!
//! # Failed links
//!
//! Bytes on a link are lost when the link fails, and the sender sends them again. If a message left at rate r from b to
//! e, with latency c before the link and α over it, the lost bytes at time t are
//!
//! part × r × |[b, e] ∩ [t − c − α, t − c]|
//!
//! but at most the number of bytes that have left; r is the rate at t, or at e if e is earlier. Bytes that have passed
//! the link arrive. Bytes that have not left, and bytes sent again, take another route. A message without another route
//! never arrives.

use super::{
    DeliveryNotice, EventScheduler, FailingLinks, MemoryTransfer, NetworkBackend, NetworkEvent,
    NetworkMessage,
};
use crate::topology::link_graph::{DirectedLink, LinkFraction, LinkGraph};
use crate::topology::{LinePattern, SwitchingMode, Topology};
use chakram_base::ids::{EndpointId, Npu, OpIndex};
use chakram_base::units::{BufferShare, InverseRate, Span, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Relative difference below which rates count as equal. Equal rates must be fixed together, although sums in another
/// order may differ in their last bits.
const ALIKE: f64 = 1.0 + 1e-9;

/// Half a picosecond, in seconds.
const HALF_PICOSECOND: f64 = 0.5e-12;

/// A message, load or store in flight that still has unsent bytes.
#[derive(Clone, Copy, Debug)]
struct MessageStream {
    op: OpIndex,
    order: u32,
    tells: bool,
    ends: (EndpointId, EndpointId),
    /// Time at which the first byte left.
    begun: Time,
    /// Size of the message in bytes.
    size: f64,
    /// Range of entries in [`FairSharingNetwork::ways`] that contain the stream's links.
    way: (u32, u32),
    /// End of the range of links in `ways` that the message still has to pass.
    last: u32,
    /// Latency from the end of these links to the receiver.
    latency: Span,
    /// Bytes that had not left the sender when rates were last computed.
    left: f64,
    /// Bytes per second since rates were last computed.
    rate: f64,
    /// Time at which all bytes will have left if the rate does not change.
    leaves: Time,
    /// True once the current computation of rates has fixed the stream's rate.
    fixed: bool,
}

/// Route between two endpoints.
#[derive(Clone, Copy, Debug)]
struct StreamRoute {
    /// Range of entries in [`FairSharingNetwork::ways`] that contain the route's links.
    links: (u32, u32),
    latency: Span,
    /// Sum of the inverse rates of the links at which a device waits for a segment.
    others: InverseRate,
}

/// A message whose bytes have all left but not yet arrived.
#[derive(Clone, Copy, Debug)]
struct DepartedMessage {
    stream: MessageStream,
    left: Time,
    arrives: Time,
}

/// State of a link while rates are computed.
#[derive(Clone, Copy, Debug, Default)]
struct LinkRateState {
    /// Sum of the parts of all streams on the link that still have no fixed rate.
    open: f64,
    count: u32,
    /// Bytes per second that the fixed streams take.
    taken: f64,
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
    /// Messages that wait to enter their next link, by op.
    between: BTreeMap<OpIndex, MessageStream>,
    /// Links of all routes used so far.
    ways: Vec<LinkFraction>,
    way_of: BTreeMap<(EndpointId, EndpointId), StreamRoute>,
    streams: Vec<MessageStream>,
    /// Time up to which the streams' bytes have been counted.
    settled: Time,
    /// Number of the latest event that computes rates, and its time if it is pending.
    pending: (u32, Option<Time>),
    shares: Vec<LinkRateState>,
    /// Links that streams use; filled while rates are solved.
    used: Vec<u32>,
    /// Messages that have left but not arrived; recorded only if links may fail.
    departed: Option<BTreeMap<OpIndex, DepartedMessage>>,
    /// Number of arrival events to ignore, by time and op. An event is ignored if a part of the op's message is sent
    /// again, so that the message arrives later.
    overtaken: BTreeMap<(Time, OpIndex), u32>,
    /// Endpoint pairs that failed links have cut off from each other.
    cut_off: BTreeSet<(EndpointId, EndpointId)>,
}

impl<'a> FairSharingNetwork<'a> {
    /// Creates the network without messages. Returns `None` if the topology has more NPUs than a graph of links
    /// supports.
    pub fn new(topology: &'a Topology) -> Option<Self> {
        let graph = topology.link_graph()?;
        let links = topology.links_with_memories(&graph);
        Some(Self {
            shares: vec![LinkRateState::default(); links.len()],
            topology,
            graph,
            links,
            stores: topology.explicit_links().is_some()
                && topology.switching_mode() == SwitchingMode::StoreAndForward,
            between: BTreeMap::new(),
            ways: Vec::new(),
            way_of: BTreeMap::new(),
            streams: Vec::new(),
            settled: Time::ZERO,
            pending: (0, None),
            used: Vec::new(),
            departed: None,
            overtaken: BTreeMap::new(),
            cut_off: BTreeSet::new(),
        })
    }

    /// Records the links that messages in flight occupy, so that links may fail.
    pub fn enable_link_failures(&mut self) {
        self.departed = Some(BTreeMap::new());
    }

    /// Returns the route between two endpoints, or `None` if failed links leave no route.
    fn find_route(&mut self, ends: (EndpointId, EndpointId)) -> Option<StreamRoute> {
        let (topology, graph, ways) = (self.topology, &self.graph, &mut self.ways);
        if let Some(&way) = self.way_of.get(&ends) {
            return Some(way);
        }
        let route = topology.route_between(graph, ends)?;
        let way = {
            let first = ways.len() as u32;
            ways.extend(route.links);
            // Devices on explicit links either forward bytes at once or store whole messages, so segments play no role.
            let path = topology.path_between(ends);
            let path = path.filter(|_| topology.explicit_links().is_none());
            StreamRoute {
                links: (first, ways.len() as u32),
                latency: route.latency,
                others: path.map_or(InverseRate::ZERO, |path| path.others),
            }
        };
        self.way_of.insert(ends, way);
        Some(way)
    }

    /// Sends `amount` between two endpoints from `now` on. `tells` and `order` are as in [`NetworkMessage`].
    fn begin_stream(
        &mut self,
        now: Time,
        (op, tells, order): (OpIndex, bool, u32),
        (ends, amount): ((EndpointId, EndpointId), BufferShare),
        agenda: &mut impl EventScheduler,
    ) {
        let Some(StreamRoute {
            links: way,
            latency,
            others,
        }) = self.find_route(ends)
        else {
            self.cut_off.insert(ends);
            return;
        };
        let segment = self.topology.switching_mode().first_segment(amount);
        let latency = latency + others.serialization_time(segment);
        let size = amount.bytes as f64 / amount.parts as f64;
        let stream = MessageStream {
            op,
            order,
            tells,
            ends,
            begun: now,
            size,
            way,
            last: way.1,
            latency,
            left: size,
            // Rates are computed later at the same instant, so no byte moves before the rate is set.
            rate: 0.0,
            leaves: Time::END,
            fixed: false,
        };
        if self.stores {
            self.add_to_links(stream, way.0);
        } else {
            self.streams.push(stream);
        }
        // Streams in flight keep their rates until this instant.
        self.schedule_rate_update(now, agenda);
    }

    /// Adds `stream` to its links from index `first` on.
    fn add_to_links(&mut self, mut stream: MessageStream, first: u32) {
        let link = self.links[self.ways[first as usize].0 as usize];
        stream.way = (first, first + 1);
        stream.latency = link.latency;
        stream.left = link.stored_bytes(stream.size);
        (stream.rate, stream.leaves) = (0.0, Time::END);
        self.streams.push(stream);
    }

    /// Schedules an event at `at` that computes rates; it replaces the pending event.
    fn schedule_rate_update(&mut self, at: Time, agenda: &mut (impl EventScheduler + ?Sized)) {
        if self.pending.1 == Some(at) {
            return;
        }
        self.pending = (self.pending.0.wrapping_add(1), Some(at));
        agenda.schedule_event(at, NetworkEvent::LinkFree(self.pending.0));
    }

    /// Removes the streams that have left, and solves the rates of the other streams.
    fn settle_rates(&mut self, now: Time, agenda: &mut impl EventScheduler) {
        self.advance_streams(now, agenda);
        self.solve_rates();
        let mut next: Option<Time> = None;
        for stream in &mut self.streams {
            stream.leaves = if stream.left > 0.0 {
                now + Span::from_seconds(stream.left / stream.rate)
            } else {
                now
            };
            next = Some(next.map_or(stream.leaves, |next| next.min(stream.leaves)));
        }
        self.pending.1 = None;
        if let Some(at) = next {
            self.schedule_rate_update(at, agenda);
        }
    }

    /// Advances streams to `now`, and removes the streams whose bytes have all left.
    fn advance_streams(&mut self, now: Time, agenda: &mut (impl EventScheduler + ?Sized)) {
        let elapsed = now.since(self.settled).as_seconds();
        self.settled = now;
        self.streams.retain_mut(|stream| {
            stream.left -= stream.rate * elapsed;
            // Rounded times must not decide whether a stream has left, so a stream counts as left if the remaining
            // bytes take less than half a picosecond.
            if stream.leaves > now && stream.left > stream.rate * HALF_PICOSECOND {
                return true;
            }
            if stream.tells {
                agenda.schedule_event(now, NetworkEvent::Injected(stream.op));
            }
            let (order, op) = (stream.order, stream.op);
            let event = if stream.way.1 < stream.last {
                stream.tells = false;
                self.between.insert(op, *stream);
                NetworkEvent::Hop { order, op }
            } else {
                if let Some(departed) = &mut self.departed {
                    let message = DepartedMessage {
                        stream: *stream,
                        left: now,
                        arrives: now + stream.latency,
                    };
                    departed.insert(op, message);
                }
                NetworkEvent::Delivered(op)
            };
            agenda.schedule_event(now + stream.latency, event);
            false
        });
    }

    /// Solves all rates by progressive filling. Each pass saturates at least one link, so the number of passes is at
    /// most the number of links.
    fn solve_rates(&mut self) {
        for link in self.used.drain(..) {
            self.shares[link as usize] = LinkRateState::default();
        }
        for stream in &mut self.streams {
            stream.fixed = false;
            for &(link, part) in &self.ways[stream.way.0 as usize..stream.way.1 as usize] {
                let share = &mut self.shares[link as usize];
                if share.count == 0 {
                    self.used.push(link);
                }
                share.open += part;
                share.count += 1;
            }
        }
        let mut open = self.streams.len();
        while open > 0 {
            let (shares, links) = (&self.shares, &self.links);
            let full = |link: u32| {
                let share = &shares[link as usize];
                let rate = links[link as usize].bandwidth.bytes_per_second();
                // Rounding may make the sum of rates exceed the link's rate, so clamp the remaining rate to zero.
                (share.count > 0).then(|| (rate - share.taken).max(0.0) / share.open)
            };
            let fulls = self.used.iter().filter_map(|&link| full(link));
            let least = fulls.fold(f64::INFINITY, f64::min);
            let narrow = least * ALIKE;
            // The saturated links are collected before any rate is fixed, because `full` reads
            // shares that change when rates are fixed.
            let tight: Vec<u32> = self
                .used
                .iter()
                .copied()
                .filter(|&link| full(link).is_some_and(|rate| rate <= narrow))
                .collect();
            let mut tight = tight;
            tight.sort_unstable();
            for stream in &mut self.streams {
                let way = &self.ways[stream.way.0 as usize..stream.way.1 as usize];
                let is_tight = way
                    .iter()
                    .any(|(link, _)| tight.binary_search(link).is_ok());
                if stream.fixed || !is_tight {
                    continue;
                }
                (stream.fixed, stream.rate) = (true, least);
                open -= 1;
                for &(link, part) in way {
                    let share = &mut self.shares[link as usize];
                    share.open -= part;
                    share.count -= 1;
                    share.taken += part * least;
                }
            }
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
        transfer: &MemoryTransfer,
        agenda: &mut impl EventScheduler,
    ) -> Option<Time> {
        let whole = (transfer.ends, transfer.amount);
        self.begin_stream(now, (transfer.op, false, 0), whole, agenda);
        None
    }

    fn uncontended_time(&self, (a, b): (Npu, Npu), amount: BufferShare) -> Option<Span> {
        if !self.stores {
            return Some(self.topology.path_between_npus(a, b)?.time_message(amount));
        }
        // Round the time link by link, in the same way as the times of messages.
        let size = amount.bytes as f64 / amount.parts as f64;
        let route = self.graph.route_between(a, b);
        let links = route.links.iter().map(|(link, _)| {
            let link = self.links[*link as usize];
            let rate = link.bandwidth.bytes_per_second();
            link.latency + Span::from_seconds(link.stored_bytes(size) / rate)
        });
        links.reduce(|sum, link| sum + link)
    }

    fn failing_links(&mut self) -> Option<&mut dyn FailingLinks> {
        self.departed.is_some().then_some(self)
    }

    /// Returns false, because there is no proof of where a collective's messages meet on an arbitrary graph.
    fn is_conflict_free(&self, _: usize, _: u32, _: LinePattern) -> bool {
        false
    }

    fn handle_event(
        &mut self,
        now: Time,
        event: NetworkEvent,
        agenda: &mut impl EventScheduler,
        notices: &mut Vec<DeliveryNotice>,
    ) {
        match event {
            NetworkEvent::Injected(op) => notices.push(DeliveryNotice::Injected(op)),
            NetworkEvent::Delivered(op) => {
                if self.take_superseded_arrival(now, op) {
                    return;
                }
                if let Some(departed) = &mut self.departed {
                    departed.remove(&op);
                }
                notices.push(DeliveryNotice::Delivered(op));
            }
            NetworkEvent::LinkFree(number) => {
                if number == self.pending.0 && self.pending.1.is_some() {
                    self.settle_rates(now, agenda);
                }
            }
            NetworkEvent::Hop { op, .. } => {
                let stream = self.between.remove(&op);
                let stream = stream.expect("a message between two links was put there");
                self.add_to_links(stream, stream.way.1);
                self.schedule_rate_update(now, agenda);
            }
            NetworkEvent::FirstByte { .. } => unreachable!("messages are streams here"),
        }
    }
}

mod failures;
#[cfg(test)]
mod tests;
