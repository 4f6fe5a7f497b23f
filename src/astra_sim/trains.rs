//! Messages that cut through a chain of servers, first come, first served.
//!
//! A message of m bytes whose first byte comes to a server at t begins at b = max(t, free). The server is
//! then held for m / held; the first byte is at the next one after the latency between, where it queues
//! when it is there and not before. The last byte leaves at max(b + m / rate, the last byte's leaving the
//! server before plus the latency between): a server cannot pass on what has not come. `held` and `rate`
//! differ where a server is several links that a single message cannot use at once.

use super::quirks::{self, Quirks};
use crate::ids::Npu;
use crate::network::{Message, Network, NetworkEvent, Notice, Ports, Schedule};
use crate::units::Time;

/// Where a message is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The NPU.
    pub npu: u32,
    /// What of its way there it has behind it, in the way's own count; 0 at its sender.
    pub state: u32,
}

/// A server on a message's way, and where that leads.
#[derive(Clone, Copy, Debug)]
pub struct Leg {
    /// The NPU that has the server, and which of its servers it is.
    pub server: (u32, u32),
    /// Bytes per ns by which it is held.
    pub held: f64,
    /// Bytes per ns of a single message.
    pub rate: f64,
    /// ns from there to the next.
    pub latency: f64,
    /// Where the message is then.
    pub to: Place,
}

/// Which servers messages pass.
pub trait Way {
    /// What people call the network.
    const NAME: &'static str;

    /// The next server of a message at `at` for NPU `to`; `None` when it is there.
    fn leg(&self, at: Place, to: u32) -> Option<Leg>;

    /// Servers of an NPU.
    fn servers(&self) -> u32;
}

/// A message under way.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    bytes: f64,
    at: Place,
    to: u32,
    /// When its last byte leaves the server before and comes to this one.
    last: Time,
}

/// See the module.
#[derive(Debug)]
pub struct Trains<W> {
    way: W,
    quirks: Quirks,
    /// When servers are free, by NPU; those of one are made when the first message passes there.
    free: Vec<Box<[Time]>>,
    /// By op.
    carried: Vec<Carried>,
}

impl<W: Way> Trains<W> {
    /// Messages of `npus` NPUs along `way`, with nothing under way.
    pub(super) fn along(way: W, npus: u32, quirks: Quirks) -> Self {
        Self {
            way,
            quirks,
            free: vec![Box::default(); npus as usize],
            carried: Vec::new(),
        }
    }

    /// The first byte of an op's message is at its next server.
    fn enter(&mut self, now: Time, op: u32, agenda: &mut impl Schedule) {
        let state = &mut self.carried[op as usize];
        let Some(leg) = self.way.leg(state.at, state.to) else {
            // To oneself, and nowhere else: other messages are delivered by the last byte.
            agenda.schedule(now, NetworkEvent::Delivered(op));
            return;
        };
        let free = &mut self.free[leg.server.0 as usize];
        if free.is_empty() {
            *free = vec![Time::ZERO; self.way.servers() as usize].into();
        }
        let free = &mut free[leg.server.1 as usize];
        let begin = now.max(*free);
        *free = begin + self.quirks.span(state.bytes / leg.held);
        let latency = self.quirks.span(leg.latency);
        let passes = self.quirks.span(state.bytes / leg.rate);
        state.last = state.last.max(begin + passes) + latency;
        state.at = leg.to;
        match self.way.leg(state.at, state.to) {
            None => agenda.schedule(state.last, NetworkEvent::Delivered(op)),
            Some(_) => agenda.schedule(begin + latency, NetworkEvent::Hop { order: 0, op }),
        }
    }
}

impl<W: Way> Network for Trains<W> {
    const NAME: &'static str = W::NAME;
    const SHARED: bool = true;

    // Nobody has asked for more than these safe answers.
    fn keeps_apart(&self, _: usize, _: u32, _: bool) -> bool {
        false
    }

    fn is_idle(&self, _: Time, _: Npu, _: usize) -> bool {
        false
    }

    fn open(&mut self, count: u32) -> Ports {
        Ports::new(0, count)
    }

    fn close(&mut self, _: Ports) {}

    #[inline]
    fn submit(&mut self, now: Time, message: &Message, agenda: &mut impl Schedule) {
        let op = message.op as usize;
        if op >= self.carried.len() {
            self.carried.resize(op + 1, Carried::default());
        }
        let (Npu(npu), Npu(to)) = message.ends;
        self.carried[op] = Carried {
            bytes: quirks::bytes(message.amount),
            at: Place { npu, state: 0 },
            to,
            last: now,
        };
        self.enter(now, message.op, agenda);
    }

    #[inline]
    fn handle(
        &mut self,
        now: Time,
        event: NetworkEvent,
        agenda: &mut impl Schedule,
        notices: &mut Vec<Notice>,
    ) {
        match event {
            NetworkEvent::Hop { op, .. } => self.enter(now, op, agenda),
            NetworkEvent::Delivered(op) => notices.push(Notice::Delivered(op)),
            _ => unreachable!("messages hop, and are delivered"),
        }
    }
}
