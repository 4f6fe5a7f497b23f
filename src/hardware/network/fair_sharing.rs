//! Fair sharing: messages in flight share every link on their way, max-min fairly.
//!
//! A message is a stream of bytes that occupies all links of its way at once ([`LinkGraph::route`]), each with the part
//! of it that passes there. At each moment all rates rise together until a link saturates, which fixes the rates of the
//! messages that pass it, and the others continue to rise. Rates change when a message begins or has left, and are
//! constant in between. It is delivered a latency after its last byte has left: alone after
//!
//! T = Σα + Σγ + m / min(B / part),
//!
//! in which the minimum is over the links of its way, and γ the serialization of a segment ([`SwitchingMode`]) at the rate of a
//! link, on all links but one of the slowest: zero with ideal cut-through, and that of the message where dimensions store and
//! forward. Devices that wait for a segment thus delay a message, and take no part of a link. That is what flows of a transport that shares links fairly do; no
//! queue, no packet and no acknowledgement is modelled.
//!
//! On links of a machine's own ([`Topology::graph`]) whose devices store and forward, a message passes one link after
//! another, and shares only the one that it is on. A link of length d carries it d times: alone it arrives after
//!
//! T = Σ (α + d m / B).
//!
//! A load or store of a memory at an NPU is such a stream too: the memory's link, which loads and stores share, is one more on
//! its way.
//!
//! # Events
//!
//! Submissions and departures of an instant are collected, and rates are fixed once for each round of it. One event is
//! pending, the next departure; a newer one replaces it, and one with an older number says nothing.
//!
//! # Failed links
//!
//! What a link carries when it fails is lost, and the sender sends it again: of a message that left at rate r from b to e, and has a
//! latency c before the link and α over it, that is
//!
//! part × r × |[b, e] ∩ [t − c − α, t − c]|
//!
//! bytes at time t, at most all that has left; r is the rate at t, or at e if that was before. What has passed the link arrives; what
//! has not left, and what is sent again, takes the way that is left. A message without any never arrives.

use super::{
    DeliveryNotice, EventScheduler, FailingLinks, MemoryTransfer, NetworkBackend, NetworkEvent,
    NetworkMessage,
};
use crate::topology::link_graph::{DirectedLink, LinkGraph, LinkPart};
use crate::topology::{LinePattern, SwitchingMode, Topology};
use chakram_base::ids::{EndpointId, Npu, OpIndex};
use chakram_base::units::{BufferShare, InverseRate, Span, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Relative difference below which rates are equal: sums in another order may differ in their last bits, and equal
/// rates must be fixed together.
const ALIKE: f64 = 1.0 + 1e-9;

/// In seconds.
const HALF_PICOSECOND: f64 = 0.5e-12;

/// A message, load or store in flight whose bytes have not all left.
#[derive(Clone, Copy, Debug)]
struct MessageStream {
    op: OpIndex,
    order: u32,
    tells: bool,
    ends: (EndpointId, EndpointId),
    /// Time at which its first byte left.
    begun: Time,
    /// Bytes of the message.
    size: f64,
    /// Range of the links in [`FairSharingNetwork::ways`] that it occupies.
    way: (u32, u32),
    /// End of the links that it has to pass.
    last: u32,
    /// Latency behind these links.
    latency: Span,
    /// Bytes left at the last settlement.
    left: f64,
    /// Bytes per second since then.
    rate: f64,
    /// Time at which all have left at that rate.
    leaves: Time,
    /// Whether the present settlement has fixed its rate.
    fixed: bool,
}

/// Way between two endpoints.
#[derive(Clone, Copy, Debug)]
struct StreamWay {
    /// Range in [`FairSharingNetwork::ways`].
    links: (u32, u32),
    latency: Span,
    /// Inverse rate of the links at which a device waits for a segment.
    others: InverseRate,
}

/// A message all of whose bytes have left, and not arrived.
#[derive(Clone, Copy, Debug)]
struct DepartedMessage {
    stream: MessageStream,
    left: Time,
    arrives: Time,
}

/// A link in the course of a settlement.
#[derive(Clone, Copy, Debug, Default)]
struct LinkShare {
    /// Parts of the streams whose rate is not fixed.
    open: f64,
    count: u32,
    /// Bytes per second that the others take.
    taken: f64,
}

/// See the module.
#[derive(Debug)]
pub struct FairSharingNetwork<'a> {
    topology: &'a Topology,
    graph: Arc<LinkGraph>,
    /// Links of the graph, and behind them those of memories.
    links: Vec<DirectedLink>,
    /// Whether devices forward whole messages.
    stores: bool,
    /// By op, messages that are between two links.
    between: BTreeMap<OpIndex, MessageStream>,
    /// Links of all ways that were used.
    ways: Vec<LinkPart>,
    way_of: BTreeMap<(EndpointId, EndpointId), StreamWay>,
    streams: Vec<MessageStream>,
    /// Instant of the last settlement.
    settled: Time,
    /// Number of the settlement that is pending, and its time.
    pending: (u32, Option<Time>),
    shares: Vec<LinkShare>,
    /// Links that streams use, while rates are fixed.
    used: Vec<u32>,
    /// Messages on the last of their way, where links may fail.
    departed: Option<BTreeMap<OpIndex, DepartedMessage>>,
    /// Scheduled arrivals of messages of which a part is sent again, with their number.
    overtaken: BTreeMap<(Time, OpIndex), u32>,
    /// Ends between which failed links left no way.
    cut_off: BTreeSet<(EndpointId, EndpointId)>,
}

impl<'a> FairSharingNetwork<'a> {
    /// No message is in flight. `None` if the network has more NPUs than a graph of links may have.
    pub fn new(topology: &'a Topology) -> Option<Self> {
        let graph = topology.link_graph()?;
        let links = topology.links_with_memories(&graph);
        Some(Self {
            shares: vec![LinkShare::default(); links.len()],
            topology,
            graph,
            links,
            stores: topology.graph().is_some()
                && topology.switching() == SwitchingMode::StoreAndForward,
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

    /// Keeps what messages in flight are on, so that links may fail.
    pub fn expect_failures(&mut self) {
        self.departed = Some(BTreeMap::new());
    }

    /// Returns the way between two endpoints; `None` if failed links leave none.
    fn way(&mut self, ends: (EndpointId, EndpointId)) -> Option<StreamWay> {
        let (topology, graph, ways) = (self.topology, &self.graph, &mut self.ways);
        if let Some(&way) = self.way_of.get(&ends) {
            return Some(way);
        }
        let route = topology.route_between(graph, ends)?;
        let way = {
            let first = ways.len() as u32;
            ways.extend(route.links);
            // Links of a machine's own cut through without segments, or store each message link by link.
            let path = topology.path_between(ends);
            let path = path.filter(|_| topology.graph().is_none());
            StreamWay {
                links: (first, ways.len() as u32),
                latency: route.latency,
                others: path.map_or(InverseRate::ZERO, |path| path.others),
            }
        };
        self.way_of.insert(ends, way);
        Some(way)
    }

    /// Sends `amount` between two endpoints from `now` on. `tells` and `order` are those of a message.
    fn begin(
        &mut self,
        now: Time,
        (op, tells, order): (OpIndex, bool, u32),
        (ends, amount): ((EndpointId, EndpointId), BufferShare),
        agenda: &mut impl EventScheduler,
    ) {
        let Some(StreamWay {
            links: way,
            latency,
            others,
        }) = self.way(ends)
        else {
            self.cut_off.insert(ends);
            return;
        };
        let segment = self.topology.switching().segment(amount);
        let latency = latency + others.serialization(segment);
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
            // It has not moved before the settlement, which follows at the same instant.
            rate: 0.0,
            leaves: Time::END,
            fixed: false,
        };
        if self.stores {
            self.enter(stream, way.0);
        } else {
            self.streams.push(stream);
        }
        // Streams in flight move on at their rates until now.
        self.settle_at(now, agenda);
    }

    /// Has `stream` pass the first of the links from `first` on.
    fn enter(&mut self, mut stream: MessageStream, first: u32) {
        let link = self.links[self.ways[first as usize].0 as usize];
        stream.way = (first, first + 1);
        stream.latency = link.latency;
        stream.left = link.stored(stream.size);
        (stream.rate, stream.leaves) = (0.0, Time::END);
        self.streams.push(stream);
    }

    /// Has the network settle at `at`, instead of when it would.
    fn settle_at(&mut self, at: Time, agenda: &mut (impl EventScheduler + ?Sized)) {
        if self.pending.1 == Some(at) {
            return;
        }
        self.pending = (self.pending.0.wrapping_add(1), Some(at));
        agenda.schedule(at, NetworkEvent::LinkFree(self.pending.0));
    }

    /// Ends the streams that have left, and fixes the rates of the others.
    fn settle(&mut self, now: Time, agenda: &mut impl EventScheduler) {
        self.advance(now, agenda);
        self.share();
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
            self.settle_at(at, agenda);
        }
    }

    /// Moves streams on to `now`, and ends those that have left.
    fn advance(&mut self, now: Time, agenda: &mut (impl EventScheduler + ?Sized)) {
        let elapsed = now.since(self.settled).seconds();
        self.settled = now;
        self.streams.retain_mut(|stream| {
            stream.left -= stream.rate * elapsed;
            // Ties are of bytes: one of which less is left than passes in half a picosecond has left, whatever was rounded.
            if stream.leaves > now && stream.left > stream.rate * HALF_PICOSECOND {
                return true;
            }
            if stream.tells {
                agenda.schedule(now, NetworkEvent::Injected(stream.op));
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
            agenda.schedule(now + stream.latency, event);
            false
        });
    }

    /// Fixes all rates, by progressive filling: each pass saturates at least one link, so there are at most as many
    /// passes as links.
    fn share(&mut self) {
        for link in self.used.drain(..) {
            self.shares[link as usize] = LinkShare::default();
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
                (share.count > 0).then(|| (rate - share.taken).max(0.0) / share.open)
            };
            let fulls = self.used.iter().filter_map(|&link| full(link));
            let least = fulls.fold(f64::INFINITY, f64::min);
            let narrow = least * ALIKE;
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

    fn submit(&mut self, now: Time, message: &NetworkMessage, agenda: &mut impl EventScheduler) {
        let (from, to) = message.ends;
        let of = (message.op, message.tell_injected, message.order);
        self.begin(now, of, ((from.into(), to.into()), message.amount), agenda);
    }

    /// Its end moves with what shares links with it later.
    fn access(
        &mut self,
        now: Time,
        transfer: &MemoryTransfer,
        agenda: &mut impl EventScheduler,
    ) -> Option<Time> {
        let whole = (transfer.ends, transfer.amount);
        self.begin(now, (transfer.op, false, 0), whole, agenda);
        None
    }

    fn uncontended(&self, (a, b): (Npu, Npu), amount: BufferShare) -> Option<Span> {
        if !self.stores {
            return Some(self.topology.path(a, b)?.time(amount));
        }
        // Rounded link by link, as messages pass.
        let size = amount.bytes as f64 / amount.parts as f64;
        let route = self.graph.route(a, b);
        let links = route.links.iter().map(|(link, _)| {
            let link = self.links[*link as usize];
            let rate = link.bandwidth.bytes_per_second();
            link.latency + Span::from_seconds(link.stored(size) / rate)
        });
        links.reduce(|sum, link| sum + link)
    }

    fn failing_links(&mut self) -> Option<&mut dyn FailingLinks> {
        self.departed.is_some().then_some(self)
    }

    /// Nobody has worked out where messages of a collective meet on an arbitrary graph.
    fn is_conflict_free(&self, _: usize, _: u32, _: LinePattern) -> bool {
        false
    }

    fn handle(
        &mut self,
        now: Time,
        event: NetworkEvent,
        agenda: &mut impl EventScheduler,
        notices: &mut Vec<DeliveryNotice>,
    ) {
        match event {
            NetworkEvent::Injected(op) => notices.push(DeliveryNotice::Injected(op)),
            NetworkEvent::Delivered(op) => {
                if self.is_overtaken(now, op) {
                    return;
                }
                if let Some(departed) = &mut self.departed {
                    departed.remove(&op);
                }
                notices.push(DeliveryNotice::Delivered(op));
            }
            NetworkEvent::LinkFree(number) => {
                if number == self.pending.0 && self.pending.1.is_some() {
                    self.settle(now, agenda);
                }
            }
            NetworkEvent::Hop { op, .. } => {
                let stream = self.between.remove(&op);
                let stream = stream.expect("a message between two links was put there");
                self.enter(stream, stream.way.1);
                self.settle_at(now, agenda);
            }
            NetworkEvent::FirstByte { .. } => unreachable!("messages are streams here"),
        }
    }
}

mod failures;
#[cfg(test)]
mod tests;
