//! Cut-through switching: messages pass through a chain of servers, and each server serves them in order of arrival.
//!
//! If the first byte of an m-byte message arrives at a server at time t, service begins at b = max(t, free), where
//! `free` is the time at which the server becomes free. The message occupies the server for m / occupied_rate. The
//! first byte reaches the next server after the latency between the two servers. The message joins that server's queue
//! only when its first byte arrives there. The last byte leaves at max(b + m / rate, departure from the previous server
//! plus the latency in between), because a server cannot forward bytes that have not arrived. `occupied_rate` and
//! `rate` differ if a server consists of several links, of which a message can use only one.

use super::quirks::{self, QuirkSet};
use chakram_base::ids::{Npu, OpIndex};
use chakram_base::units::Time;
use chakram_hardware::network::{
    EventScheduler, MessageProgressNotice, NetworkBackend, NetworkEvent, NetworkMessage,
};
use chakram_hardware::topology::LineSendPattern;

/// Position of a message on its route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageNpuAndRoutingState {
    /// NPU at which the message currently is.
    pub npu: u32,
    /// The message's progress at this NPU, as a code that the routing defines; 0 at the sender.
    pub state: u32,
}

/// A server on a message's route, and the message's position after this server.
#[derive(Clone, Copy, Debug)]
pub struct LinkOrPortHop {
    /// The server's NPU, and its index among that NPU's servers.
    pub server: (u32, u32),
    /// Rate that determines how long a message occupies the server, in bytes per ns.
    pub occupied_rate: f64,
    /// Rate of a single message, in bytes per ns.
    pub rate: f64,
    /// Latency to the next server, in ns.
    pub latency: f64,
    /// Position of the message after this server.
    pub to: MessageNpuAndRoutingState,
}

/// Chooses the servers through which a message passes.
pub trait LinkOrPortRouting {
    /// Name of the network in reports.
    const NAME: &'static str;

    /// Returns the next server for a message that is at `at` and goes to NPU `to`, or `None` if it has arrived.
    fn next_hop(&self, at: MessageNpuAndRoutingState, to: u32) -> Option<LinkOrPortHop>;

    /// Returns the number of servers of an NPU.
    fn servers_per_npu(&self) -> u32;
}

/// State of a message in flight.
#[derive(Clone, Copy, Debug, Default)]
struct MessageInTransit {
    bytes: f64,
    at: MessageNpuAndRoutingState,
    to: u32,
    /// Time at which the message's last byte arrives at this server.
    last: Time,
}

/// A cut-through network; the module's documentation describes it.
#[derive(Debug)]
pub struct CutThroughNetwork<W> {
    routing: W,
    quirks: QuirkSet,
    /// Times at which each NPU's servers become free. An NPU's servers are allocated when a message first passes one of
    /// them.
    free: Vec<Box<[Time]>>,
    /// Messages in flight, by op index.
    carried: Vec<MessageInTransit>,
}

impl<W: LinkOrPortRouting> CutThroughNetwork<W> {
    /// Creates a network of `npus` NPUs in which `way` routes the messages.
    pub(super) fn from_routing(way: W, npus: u32, quirks: QuirkSet) -> Self {
        Self {
            routing: way,
            quirks,
            free: vec![Box::default(); npus as usize],
            carried: Vec::new(),
        }
    }

    /// Handles the arrival of a message's first byte at its next server.
    fn enter_server(&mut self, now: Time, op: OpIndex, agenda: &mut impl EventScheduler) {
        let state = &mut self.carried[op.index()];
        let Some(leg) = self.routing.next_hop(state.at, state.to) else {
            // A message from an NPU to itself passes no server. All other messages are delivered when
            // their last byte arrives.
            agenda.schedule_event(now, NetworkEvent::Delivered(op));
            return;
        };
        let free = &mut self.free[leg.server.0 as usize];
        if free.is_empty() {
            *free = vec![Time::ZERO; self.routing.servers_per_npu() as usize].into();
        }
        let free = &mut free[leg.server.1 as usize];
        let begin = now.max(*free);
        // The message occupies the server at the total rate of the server's links, although it uses only one link.
        *free = begin
            + self
                .quirks
                .convert_ns_to_span(state.bytes / leg.occupied_rate);
        let latency = self.quirks.convert_ns_to_span(leg.latency);
        let passes = self.quirks.convert_ns_to_span(state.bytes / leg.rate);
        state.last = state.last.max(begin + passes) + latency;
        state.at = leg.to;
        match self.routing.next_hop(state.at, state.to) {
            None => agenda.schedule_event(state.last, NetworkEvent::Delivered(op)),
            Some(_) => agenda.schedule_event(begin + latency, NetworkEvent::Hop { order: 0, op }),
        }
    }
}

impl<W: LinkOrPortRouting> NetworkBackend for CutThroughNetwork<W> {
    const NAME: &'static str = W::NAME;
    const SHARED: bool = true;

    // Answering `false` is always safe, because this network uses no closed form.
    fn is_send_pattern_conflict_free(&self, _: usize, _: u32, _: LineSendPattern) -> bool {
        false
    }

    #[inline]
    fn submit_message(
        &mut self,
        now: Time,
        message: &NetworkMessage,
        agenda: &mut impl EventScheduler,
    ) {
        let op = message.op.index();
        if op >= self.carried.len() {
            self.carried.resize(op + 1, MessageInTransit::default());
        }
        let (Npu(npu), Npu(to)) = message.ends;
        self.carried[op] = MessageInTransit {
            bytes: quirks::fractional_bytes_of_share(message.amount),
            at: MessageNpuAndRoutingState { npu, state: 0 },
            to,
            last: now,
        };
        self.enter_server(now, message.op, agenda);
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
            NetworkEvent::Hop { op, .. } => self.enter_server(now, op, agenda),
            NetworkEvent::Delivered(op) => notices.push(MessageProgressNotice::Delivered(op)),
            _ => unreachable!("messages hop, and are delivered"),
        }
    }
}
