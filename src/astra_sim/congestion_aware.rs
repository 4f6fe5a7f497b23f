//! The congestion-aware network: one dimension of links that carry one message at a time.
//!
//! A message is stored whole at every device and then forwarded. On a link that is free at t it arrives at the next
//! device at t + ⌊latency + m / bandwidth⌋ ns, and the link is free again at t + ⌊m / bandwidth⌋; messages that find
//! it busy queue, first come, first served. On a ring messages take the shorter way, and upwards where both are
//! equal; a switch is a device of its own between any two NPUs.
//!
//! Where all NPUs carry out a collective together and each link has one user at a time, nothing waits: a message takes the
//! sum of its hops, and the collective has the closed form that it has without congestion. That is so of all algorithms but
//! trees under full connection, and of ring and halving-doubling, whose members send one message at a time, on rings and
//! switches. With direct on a switch only a member's own messages wait for one another. With direct on a ring messages of
//! several senders queue for a link, and which is first where they come to it at one instant is said by the order of events.
//!
//! All of that is [`Quirk::StoreAndForward`](super::Quirk::StoreAndForward); without it, messages go over
//! [`CutThroughLinks`](super::CutThroughLinks).

use super::congestion_unaware::path_rate;
use super::network_file::{self, AstraDimension};
use super::quirks::{self, QuirkSet};
use chakram_base::ids::{Npu, OpIndex};
use chakram_base::units::{BufferShare, Span, Time};
use chakram_hardware::network::{
    DeliveryNotice, EventScheduler, NetworkBackend, NetworkEvent, NetworkMessage,
};
use chakram_hardware::topology::{DimensionShape, LinePattern};

/// Sentinel op: none.
const NONE: OpIndex = OpIndex(u32::MAX);

/// A directed link: whether it is busy, and the queue of messages, by op.
#[derive(Clone, Copy, Debug)]
struct QueuedLink {
    busy: bool,
    first: OpIndex,
    last: OpIndex,
}

const FREE: QueuedLink = QueuedLink {
    busy: false,
    first: NONE,
    last: NONE,
};

/// A message in flight.
#[derive(Clone, Copy, Debug)]
struct ForwardedMessage {
    bytes: f64,
    at: u32,
    to: u32,
    /// Next message in the queue of its link.
    next: OpIndex,
}

/// The congestion-aware network, as the module describes it.
#[derive(Debug)]
pub struct CongestionAware {
    shape: DimensionShape,
    npus: u32,
    latency: f64,
    bytes_per_ns: f64,
    quirks: QuirkSet,
    /// By device and then by its links; those of a device are allocated when it first sends.
    links: Vec<Box<[QueuedLink]>>,
    /// By op.
    carried: Vec<ForwardedMessage>,
}

impl CongestionAware {
    /// Creates the network of `file`, of which only the first dimension counts: files with more are refused before.
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
            bytes_per_ns: path_rate(&file.dimensions[0], quirks),
            quirks,
            // One more device for a switch.
            links: vec![Box::default(); npus as usize + 1],
            carried: Vec::new(),
        }
    }

    /// Returns the next link of a message at `at` for `to`, as an index among the links of `at`, and the device at
    /// its end.
    #[inline]
    fn next_link(&self, at: u32, to: u32) -> (u32, u32) {
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

    /// Returns the number of links of a device.
    fn fan_out(&self, device: u32) -> usize {
        match self.shape {
            DimensionShape::Ring | DimensionShape::Mesh => 2,
            DimensionShape::Switch if device < self.npus => 1,
            DimensionShape::FullyConnected | DimensionShape::Switch => self.npus as usize,
        }
    }

    /// Forwards a message that is at a device over its next link, or queues it there.
    #[inline]
    fn forward(&mut self, now: Time, op: OpIndex, agenda: &mut impl EventScheduler) {
        let ForwardedMessage { at, to, .. } = self.carried[op.index()];
        let (link, device) = self.next_link(at, to);
        if self.links[at as usize].is_empty() {
            // Full connection has n² links, so those of a device that never sends are not allocated.
            self.links[at as usize] = vec![FREE; self.fan_out(at)].into();
        }
        let state = &mut self.links[at as usize][link as usize];
        if !state.busy {
            state.busy = true;
            self.transmit(now, op, link, device, agenda);
            return;
        }
        match state.first {
            NONE => state.first = op,
            _ => self.carried[state.last.index()].next = op,
        }
        state.last = op;
        self.carried[op.index()].next = NONE;
    }

    /// Sends a message over a link of its device, which is its own from now on, to the device at the end.
    #[inline]
    fn transmit(
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
        agenda.schedule(now + self.hop(bytes), NetworkEvent::Hop { order: 0, op });
        let free = now + self.quirks.span(bytes / self.bytes_per_ns);
        // Fits 32 bits: at most (`MAX_NPUS` + 1) · `MAX_NPUS` links.
        let number = at * self.stride() + link;
        agenda.schedule(free, NetworkEvent::LinkFree(number));
    }

    /// Returns the time of a message over a free link, until it is whole at the next device.
    #[inline]
    fn hop(&self, bytes: f64) -> Span {
        self.quirks.span(self.latency + bytes / self.bytes_per_ns)
    }

    /// Returns the difference between the link numbers of neighbouring devices.
    fn stride(&self) -> u32 {
        match self.shape {
            DimensionShape::Ring | DimensionShape::Mesh => 2,
            DimensionShape::FullyConnected | DimensionShape::Switch => self.npus,
        }
    }

    /// Maximum number of NPUs whose links can be numbered.
    pub const MAX_NPUS: u32 = 65_535;
}

impl NetworkBackend for CongestionAware {
    const NAME: &'static str = "congestion_aware";
    const SHARED: bool = true;

    /// Full connection has a link for each pair. On the others each link has one user at a time where all NPUs send over one
    /// distance at once: messages cross their h-th links at the same time, which are as many different ones, in
    /// ⌊latency + m / bandwidth⌋ ns, and a link is free again after ⌊m / bandwidth⌋. On a switch they may send again before
    /// that: what leaves NPUs one after another comes to the receivers' links so, from one sender at a time.
    fn is_conflict_free(&self, _: usize, members: u32, pattern: LinePattern) -> bool {
        let all = members == self.npus;
        match pattern {
            _ if self.shape == DimensionShape::FullyConnected => true,
            LinePattern::Neighbours | LinePattern::InStep => all,
            LinePattern::Staggered => all && self.shape == DimensionShape::Switch,
            LinePattern::Any => false,
        }
    }

    fn link_time(&self, amount: BufferShare) -> Option<Span> {
        let bytes = quirks::bytes(amount);
        (self.shape == DimensionShape::Switch).then(|| self.quirks.span(bytes / self.bytes_per_ns))
    }

    /// Each hop takes a truncated time of its own.
    fn uncontended(&self, (from, to): (Npu, Npu), amount: BufferShare) -> Option<Span> {
        let hops = self.shape.hops(self.npus, from.0, to.0);
        Some(self.hop(quirks::bytes(amount)).times(u64::from(hops)))
    }

    #[inline]
    fn submit(&mut self, now: Time, message: &NetworkMessage, agenda: &mut impl EventScheduler) {
        let op = message.op.index();
        let (from, to) = message.ends;
        let carried = ForwardedMessage {
            bytes: quirks::bytes(message.amount),
            at: from.0,
            to: to.0,
            next: NONE,
        };
        if op >= self.carried.len() {
            self.carried.resize(op + 1, carried);
        }
        self.carried[op] = carried;
        self.forward(now, message.op, agenda);
    }

    #[inline]
    fn handle(
        &mut self,
        now: Time,
        event: NetworkEvent,
        agenda: &mut impl EventScheduler,
        notices: &mut Vec<DeliveryNotice>,
    ) {
        match event {
            NetworkEvent::Hop { op, .. } => {
                let ForwardedMessage { at, to, .. } = self.carried[op.index()];
                if at == to {
                    notices.push(DeliveryNotice::Delivered(op))
                } else {
                    self.forward(now, op, agenda)
                }
            }
            NetworkEvent::LinkFree(number) => {
                let (device, link) = (number / self.stride(), number % self.stride());
                let state = &mut self.links[device as usize][link as usize];
                let op = state.first;
                state.busy = op != NONE;
                if op != NONE {
                    let ForwardedMessage { at, to, next, .. } = self.carried[op.index()];
                    state.first = next;
                    let (_, end) = self.next_link(at, to);
                    self.transmit(now, op, link, end, agenda);
                }
            }
            _ => unreachable!("messages hop, and links become free"),
        }
    }
}
