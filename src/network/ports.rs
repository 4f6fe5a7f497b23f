//! Ports: an NPU has one port for each dimension, which all operations share.
//!
//! A port sends one message at a time and receives one at a time, first come, first served. Between
//! ports messages do not meet. A message passes the sender's port in the first dimension that it crosses
//! and the receiver's in the last, each at the bandwidth of its dimension. With these two rates,
//! serializations s and s', and T the time that it takes alone ([`Path::time`](crate::topology::Path::time)), one that is handed over
//! at t, while its ports are busy until e and i,
//!
//! - begins to leave at b = max(t, e) and has left at b + s,
//! - comes to the receiver's port at r = b + T − s', from where on that need not wait for any of it,
//! - begins to enter at max(r, i) and has arrived s' later.
//!
//! So a dimension in between may be the slowest, and what comes more slowly than a port receives takes the
//! port only as long as if it had come at once. Messages that come at one instant enter by the number of
//! their sender, and those of one sender in the order in which they left. Alone, a message arrives at t + T, as in the contention-free model.

use super::servers::{IN, OUT, Place, Servers};
use super::{Message, Network, NetworkEvent, Notice, Ports, Schedule};
use crate::ids::Npu;
use crate::topology::Topology;
use crate::units::{Amount, Span, Time};

/// A message that has not come to its receiver's port.
#[derive(Clone, Copy, Debug)]
struct Arriving {
    to: Place,
    serialization: Span,
}

/// See the module.
#[derive(Debug)]
pub struct SharedPorts<'a> {
    topology: &'a Topology,
    servers: Servers,
    /// By op.
    arriving: Vec<Option<Arriving>>,
}

impl<'a> SharedPorts<'a> {
    /// No message is under way.
    pub fn new(topology: &'a Topology) -> Self {
        Self {
            topology,
            servers: Servers::new(topology.dimensions().len()),
            arriving: Vec::new(),
        }
    }

    /// The ports of a message, its sender's and its receiver's.
    #[inline]
    fn places(&self, (a, b): (Npu, Npu)) -> [Place; 2] {
        let differ = |&d: &usize| self.topology.coordinate(a, d) != self.topology.coordinate(b, d);
        let mut crossed = (0..self.topology.dimensions().len()).filter(differ);
        let first = crossed.next().expect("a message goes to another NPU");
        let last = crossed.next_back().unwrap_or(first);
        [(first, OUT, a), (last, IN, b)].map(|(dimension, side, npu)| Place {
            dimension,
            side,
            npu,
        })
    }

    /// How long `amount` takes to pass a port.
    #[inline]
    fn serialization(&self, place: Place, amount: Amount) -> Span {
        let dimension = &self.topology.dimensions()[place.dimension];
        dimension.bandwidth.serialization(amount)
    }
}

/// The port of an NPU.
fn sides(npu: Npu, dimension: usize) -> [Place; 2] {
    [OUT, IN].map(|side| Place {
        dimension,
        side,
        npu,
    })
}

impl Network for SharedPorts<'_> {
    const NAME: &'static str = "ports";
    const SHARED: bool = true;

    fn open(&mut self, count: u32) -> Ports {
        Ports::new(0, count)
    }

    fn close(&mut self, _: Ports) {}

    #[inline]
    fn submit(&mut self, now: Time, message: &Message, agenda: &mut impl Schedule) {
        let (a, b) = message.ends;
        let [from, to] = self.places(message.ends);
        let path = message.path.or_else(|| self.topology.path(a, b));
        let path = path.expect("a message goes from one NPU to another");
        let span = self.serialization(from, message.amount);
        let begin = self.servers.serve(now, from, span);
        if message.tell_injected {
            agenda.schedule(begin + span, NetworkEvent::Injected(message.op));
        }
        let serialization = self.serialization(to, message.amount);
        let before = path.time(message.amount) - serialization;
        self.servers.expect(to);
        let op = message.op as usize;
        if op >= self.arriving.len() {
            self.arriving.resize(op + 1, None);
        }
        self.arriving[op] = Some(Arriving { to, serialization });
        let (order, op) = (a.0, message.op);
        agenda.schedule(begin + before, NetworkEvent::Hop { order, op });
    }

    fn uncontended(&self, (a, b): (Npu, Npu), amount: Amount) -> Option<Span> {
        Some(self.topology.path(a, b)?.time(amount))
    }

    fn keeps_apart(&self, _: usize, _: u32, _: bool) -> bool {
        true
    }

    fn is_idle(&self, now: Time, npu: Npu, dimension: usize) -> bool {
        sides(npu, dimension)
            .into_iter()
            .all(|place| self.servers.is_idle(now, place))
    }

    fn claim(&mut self, npu: Npu, dimension: usize, claim: Option<u32>) {
        for place in sides(npu, dimension) {
            self.servers.claim(place, claim);
        }
    }

    #[inline]
    fn claimed(&self, ends: (Npu, Npu)) -> Option<u32> {
        if !self.servers.any_claimed() {
            return None;
        }
        let places = self.places(ends).into_iter();
        places.filter_map(|place| self.servers.claimed(place)).min()
    }

    fn attachments(&mut self) -> Option<&mut Servers> {
        Some(&mut self.servers)
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
            NetworkEvent::Injected(op) => notices.push(Notice::Injected(op)),
            NetworkEvent::Delivered(op) => notices.push(Notice::Delivered(op)),
            NetworkEvent::Hop { op, .. } => {
                let arriving = self.arriving[op as usize].take();
                let Arriving { to, serialization } = arriving.expect("it has left");
                let begin = self.servers.receive(now, to, serialization);
                agenda.schedule(begin + serialization, NetworkEvent::Delivered(op));
            }
            NetworkEvent::FirstByte { .. } | NetworkEvent::LinkFree(_) => {
                unreachable!("ports are asked when a message comes")
            }
        }
    }
}

#[cfg(test)]
mod tests;
