//! The congestion-aware network: it has one dimension, and each link carries one message at a time.
//!
//! Every device receives a whole message before it forwards it. If a message of m bytes enters a free link at t, it
//! arrives at the next device at t + ⌊latency + m / bandwidth⌋ ns. The link is free again at t + ⌊m / bandwidth⌋ ns.
//! If the link is busy, messages wait in its queue and leave it in order of arrival. On a ring, a message takes the
//! shorter direction, or the upward direction if both are equally short. A switch is a separate device, so a message
//! crosses two links.
//!
//! If all NPUs run a collective together and each link has one user at a time, no message waits. A message's time is
//! then the sum of its hop times, and the collective has the same closed form as without congestion. On a full
//! connection, messages wait only in tree algorithms. On rings and switches, no message waits in the ring and
//! halving-doubling algorithms, because each member sends one message at a time. With the direct algorithm on a switch,
//! a message waits only for earlier messages of its own sender. With the direct algorithm on a ring, messages from
//! several senders queue for a link. Messages that reach the link at the same instant enter it in the order of their
//! events.
//!
//! [`Quirk::StoreAndForward`](super::Quirk::StoreAndForward) makes each hop wait for the whole message. If it is
//! corrected, messages use [`LinkCutThroughNetwork`](super::LinkCutThroughNetwork).

use super::congestion_unaware::uncontended_rate;
use super::network_file::{self, AstraDimension};
use super::quirks::{self, QuirkSet};
use chakram_base::ids::{Npu, OpIndex};
use chakram_base::units::{Span, Time, UnroundedBufferShare};
use chakram_hardware::network::{
    EventScheduler, MessageProgressNotice, NetworkBackend, NetworkEvent, NetworkMessage,
};
use chakram_hardware::topology::{DimensionShape, LineSendPattern};

/// Sentinel that means "no op".
const NONE: OpIndex = OpIndex(u32::MAX);

/// State of a directed link, with the ops of the messages that wait for it.
#[derive(Clone, Copy, Debug)]
struct LinkQueueState {
    busy: bool,
    first: OpIndex,
    last: OpIndex,
}

const FREE: LinkQueueState = LinkQueueState {
    busy: false,
    first: NONE,
    last: NONE,
};

/// State of a message in flight.
#[derive(Clone, Copy, Debug)]
struct ForwardedMessage {
    bytes: f64,
    at: u32,
    to: u32,
    /// Next message in the queue of the same link.
    next: OpIndex,
}

/// The congestion-aware network; the module's documentation describes it.
#[derive(Debug)]
pub struct CongestionAwareModel {
    shape: DimensionShape,
    npus: u32,
    latency: f64,
    bytes_per_ns: f64,
    quirks: QuirkSet,
    /// Links of each device. Allocated when the device first sends a message.
    links: Vec<Box<[LinkQueueState]>>,
    /// Messages in flight, by op index.
    carried: Vec<ForwardedMessage>,
}

impl CongestionAwareModel {
    /// Creates the network that `file` describes; it must have one dimension.
    pub fn new(file: &network_file::AstraNetworkFile, quirks: QuirkSet) -> Self {
        let AstraDimension {
            shape,
            npus,
            latency,
            ..
        } = file.dimensions[0];
        Self {
            shape,
            npus,
            latency,
            bytes_per_ns: uncontended_rate(&file.dimensions[0], quirks),
            quirks,
            // A switch is an additional device.
            links: vec![Box::default(); npus as usize + 1],
            carried: Vec::new(),
        }
    }

    /// Returns the next link on the way from device `at` to `to`, as an index among the links of `at`, and the device
    /// at the end of that link.
    #[inline]
    fn next_link_towards(&self, at: u32, to: u32) -> (u32, u32) {
        let n = self.npus;
        match self.shape {
            DimensionShape::FullyConnected => (to, to),
            DimensionShape::Switch if at == n => (to, to),
            DimensionShape::Switch => (0, n),
            DimensionShape::Ring => {
                let up = if to >= at { to - at } else { n - at + to };
                if up <= n - up {
                    (0, if at + 1 == n { 0 } else { at + 1 })
                } else {
                    (1, if at == 0 { n - 1 } else { at - 1 })
                }
            }
            DimensionShape::Mesh => unreachable!("network files have none"),
        }
    }

    /// Returns the number of links that leave a device.
    fn link_count_of_device(&self, device: u32) -> usize {
        match self.shape {
            DimensionShape::Ring | DimensionShape::Mesh => 2,
            DimensionShape::Switch if device < self.npus => 1,
            DimensionShape::FullyConnected | DimensionShape::Switch => self.npus as usize,
        }
    }

    /// Sends a device's message over its next link, or adds it to the link's queue.
    #[inline]
    fn forward_message(&mut self, now: Time, op: OpIndex, agenda: &mut impl EventScheduler) {
        let ForwardedMessage { at, to, .. } = self.carried[op.index()];
        let (link, device) = self.next_link_towards(at, to);
        if self.links[at as usize].is_empty() {
            // A full connection has n² links, so allocate links only for devices that send messages.
            self.links[at as usize] = vec![FREE; self.link_count_of_device(at)].into();
        }
        let state = &mut self.links[at as usize][link as usize];
        if !state.busy {
            state.busy = true;
            self.transmit_over_link(now, op, link, device, agenda);
            return;
        }
        match state.first {
            NONE => state.first = op,
            _ => self.carried[state.last.index()].next = op,
        }
        state.last = op;
        self.carried[op.index()].next = NONE;
    }

    /// Sends a message over a link, from the device that it has reached to the device at the link's end. The link is
    /// busy afterwards.
    #[inline]
    fn transmit_over_link(
        &mut self,
        now: Time,
        op: OpIndex,
        link: u32,
        device: u32,
        agenda: &mut impl EventScheduler,
    ) {
        let message = &mut self.carried[op.index()];
        let (bytes, at) = (message.bytes, message.at);
        message.at = device;
        agenda.schedule_event(
            now + self.hop_time(bytes),
            NetworkEvent::Hop { order: 0, op },
        );
        let free = now + self.quirks.convert_ns_to_span(bytes / self.bytes_per_ns);
        // The number fits in 32 bits, because there are at most (`MAX_NPUS` + 1) · `MAX_NPUS` links.
        let number = at * self.links_reserved_per_device() + link;
        agenda.schedule_event(free, NetworkEvent::LinkFree(number));
    }

    /// Returns how long a message that enters a free link needs to arrive completely at the next device.
    #[inline]
    fn hop_time(&self, bytes: f64) -> Span {
        self.quirks
            .convert_ns_to_span(self.latency + bytes / self.bytes_per_ns)
    }

    /// Returns the number of link indices that are reserved for each device.
    fn links_reserved_per_device(&self) -> u32 {
        match self.shape {
            DimensionShape::Ring | DimensionShape::Mesh => 2,
            DimensionShape::FullyConnected | DimensionShape::Switch => self.npus,
        }
    }

    /// Maximum number of NPUs whose links can be numbered.
    pub const MAX_NPUS: u32 = 65_535;
}

impl NetworkBackend for CongestionAwareModel {
    const NAME: &'static str = "congestion_aware";
    const SHARED: bool = true;

    /// A full connection has a link for each pair of NPUs, so no messages share a link. In other shapes, each link has
    /// one user at a time if all NPUs send over the same distance at the same time. All messages then cross the h-th
    /// links of their routes simultaneously, in ⌊latency + m / bandwidth⌋ ns. No two messages cross the same link, and
    /// each link is free again after ⌊m / bandwidth⌋ ns. On a switch, NPUs may send the next message before that time,
    /// because messages reach a receiver's link in the order in which they were sent, from one sender at a time.
    fn is_send_pattern_conflict_free(
        &self,
        _: usize,
        members: u32,
        pattern: LineSendPattern,
    ) -> bool {
        let all = members == self.npus;
        match pattern {
            _ if self.shape == DimensionShape::FullyConnected => true,
            LineSendPattern::Neighbours | LineSendPattern::InStep => all,
            LineSendPattern::Staggered => all && self.shape == DimensionShape::Switch,
            LineSendPattern::Any => false,
        }
    }

    fn message_link_occupancy_time(&self, amount: UnroundedBufferShare) -> Option<Span> {
        let bytes = quirks::fractional_bytes_of_share(amount);
        (self.shape == DimensionShape::Switch)
            .then(|| self.quirks.convert_ns_to_span(bytes / self.bytes_per_ns))
    }

    /// Each hop's time is truncated separately.
    fn uncontended_time(
        &self,
        (from, to): (Npu, Npu),
        amount: UnroundedBufferShare,
    ) -> Option<Span> {
        let hops = self.shape.hop_count(self.npus, from.0, to.0);
        Some(
            self.hop_time(quirks::fractional_bytes_of_share(amount))
                .times(u64::from(hops)),
        )
    }

    #[inline]
    fn submit_message(
        &mut self,
        now: Time,
        message: &NetworkMessage,
        agenda: &mut impl EventScheduler,
    ) {
        let op = message.op.index();
        let (from, to) = message.ends;
        let carried = ForwardedMessage {
            bytes: quirks::fractional_bytes_of_share(message.amount),
            at: from.0,
            to: to.0,
            next: NONE,
        };
        if op >= self.carried.len() {
            self.carried.resize(op + 1, carried);
        }
        self.carried[op] = carried;
        self.forward_message(now, message.op, agenda);
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
            NetworkEvent::Hop { op, .. } => {
                let ForwardedMessage { at, to, .. } = self.carried[op.index()];
                if at == to {
                    notices.push(MessageProgressNotice::Delivered(op))
                } else {
                    self.forward_message(now, op, agenda)
                }
            }
            NetworkEvent::LinkFree(number) => {
                let (device, link) = (
                    number / self.links_reserved_per_device(),
                    number % self.links_reserved_per_device(),
                );
                let state = &mut self.links[device as usize][link as usize];
                let op = state.first;
                state.busy = op != NONE;
                if op != NONE {
                    let ForwardedMessage { at, to, next, .. } = self.carried[op.index()];
                    state.first = next;
                    let (_, end) = self.next_link_towards(at, to);
                    self.transmit_over_link(now, op, link, end, agenda);
                }
            }
            _ => unreachable!("messages hop, and links become free"),
        }
    }
}
