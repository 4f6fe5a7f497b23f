//! Contention-free network: messages of one operation contend for ports, and messages of different operations do not
//! contend.
//!
//! A port sends one of an operation's messages at a time and receives one at a time. An operation opens a port for each
//! member and dimension, or two ports if the member is wired to neighbours on either side. (In the model
//! [`ports`](super::PortContentionNetwork), all operations share these ports.) A message leaves its sender through the
//! port of the first dimension that it crosses, and enters its receiver through the port of the last dimension. In
//! between, the message contends only with messages of the same operation between the same two NPUs. Let α be the time
//! from the departure of the first byte to its arrival, including delays in devices on the path
//! ([`PathLatencyAndRates::time_of_first_byte`](crate::topology::Path::first_byte)). Let s be the serialization on the
//! slowest link of the path, s_e on the first link and s_i on the last link. If a message is submitted at t, its port's
//! egress is free at e and its receiver's ingress is free at i, then the message
//!
//! - begins to leave at b = max(t, e), has left at b + s, and occupies the egress until b + s_e,
//! - enters from c = max(b + α, i) on, occupies the ingress until c + s_i, and has arrived at max(c + s_i, b + α + s).
//!
//! A message that arrives before its turn ([`MessagePlaceInReceiverProgram`](super::MessagePlaceInReceiverProgram))
//! does not delay messages that its receiver takes earlier. If the first and the last link are both faster than the
//! slowest link, the first byte arrives (at b + α) at least s after the first byte of the previous message between the
//! same NPUs. Every model with contention has at least these servers, so no model is faster than the contention-free
//! model.
//!
//! For each port, the network stores only the times until which the two directions are busy. A message is therefore
//! handled in constant time, without a queue. The ingress serves messages in the order in which their first bytes
//! arrive, with ties resolved by [`NetworkMessage::order`]. If all messages into a port come from one sender, they
//! arrive in the order of submission. A message's end is then known on submission. If a port has several senders, a
//! message's end is known only when its first byte arrives.

use super::contended::PortsOrLinksOnRoute;
use super::contended::route::{iter_servers_between, link_rate_and_latency_after_server};
use super::{
    ConsecutivePortsOpenedByOperation, EventScheduler, MessagePlaceInReceiverProgram,
    MessageProgressNotice, NetworkBackend, NetworkEvent, NetworkMessage,
};
use crate::topology::{LineSendPattern, Topology};
use chakram_base::ids::Npu;
use chakram_base::units::{Bandwidth, Span, Time};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, Default)]
struct PortEgressIngressFreeTimes {
    egress: Time,
    ingress: Time,
    /// Position, in the receiver's program, of the message that entered last.
    last: MessagePlaceInReceiverProgram,
    others: Time,
}

/// A message that has begun to leave, but whose first byte has not arrived yet.
#[derive(Clone, Copy, Debug, Default)]
struct MessageBeforeFirstByteArrival {
    to: u32,
    serialization: Span,
    /// Additional delay of the last byte if another link is slower than the last link.
    tail: Span,
    turn: MessagePlaceInReceiverProgram,
}

/// The model's state: the times until which the open ports are busy.
#[derive(Debug)]
pub struct ContentionFreePortBusyTimes<'a> {
    topology: &'a Topology,
    /// Messages that will enter a shared port, indexed by op. Only messages that share their receiver's port with other
    /// messages are stored.
    arriving: Vec<MessageBeforeFirstByteArrival>,
    calendars: Vec<PortEgressIngressFreeTimes>,
    /// Time at which the slowest link becomes free, by the sender's port and the receiver. Recorded only for slowest
    /// links that are neither first nor last.
    bottlenecks: BTreeMap<(u32, Npu), Time>,
    /// First ports of closed ranges, grouped by the size of the range. Ranges are reused because operations of the same
    /// size recur.
    closed: Vec<(u32, Vec<u32>)>,
}

impl<'a> ContentionFreePortBusyTimes<'a> {
    /// Creates the network with no ports.
    pub fn new(topology: &'a Topology) -> Self {
        Self {
            topology,
            arriving: Vec::new(),
            calendars: Vec::new(),
            bottlenecks: BTreeMap::new(),
            closed: Vec::new(),
        }
    }
}

impl NetworkBackend for ContentionFreePortBusyTimes<'_> {
    const NAME: &'static str = "contention_free";
    const SHARED: bool = false;

    fn is_send_pattern_conflict_free(&self, _: usize, _: u32, _: LineSendPattern) -> bool {
        true
    }

    fn open_ports(&mut self, count: u32) -> ConsecutivePortsOpenedByOperation {
        let alike = self.closed.iter_mut().find(|(size, _)| *size == count);
        // Reuses a range of the same size, so memory is bounded by concurrent operations.
        if let Some(first) = alike.and_then(|(_, firsts)| firsts.pop()) {
            let range = first as usize..(first + count) as usize;
            self.calendars[range].fill(PortEgressIngressFreeTimes::default());
            return ConsecutivePortsOpenedByOperation { first, count };
        }
        let first = self.calendars.len() as u32;
        self.calendars.resize(
            self.calendars.len() + count as usize,
            PortEgressIngressFreeTimes::default(),
        );
        ConsecutivePortsOpenedByOperation { first, count }
    }

    fn close_ports(&mut self, ports: ConsecutivePortsOpenedByOperation) {
        if !self.bottlenecks.is_empty() {
            let own = ports.first..ports.first + ports.count;
            self.bottlenecks.retain(|(port, _), _| !own.contains(port));
        }
        match self
            .closed
            .iter_mut()
            .find(|(size, _)| *size == ports.count)
        {
            Some((_, firsts)) => firsts.push(ports.first),
            None => self.closed.push((ports.count, vec![ports.first])),
        }
    }

    #[inline]
    fn submit_message(
        &mut self,
        now: Time,
        message: &NetworkMessage,
        agenda: &mut impl EventScheduler,
    ) {
        let path = message.path_in(self.topology);
        let slowest = path.bandwidth.serialization_time(message.amount);
        // If the path is given, the message stays in one dimension, or all messages of the operation are between the
        // same two NPUs.
        let [out, into] = match message.path {
            Some(_) => [slowest; 2],
            None => first_and_last_link_rates(self.topology, message.ends)
                .map(|link| link.serialization_time(message.amount)),
        };
        let egress = &mut self.calendars[message.from.0 as usize].egress;
        let begin = now.max(*egress);
        *egress = begin + out;
        if message.tell_injected {
            agenda.schedule_event(begin + slowest, NetworkEvent::Injected(message.op));
        }
        let mut passes = begin;
        // If the slowest link is neither the first nor the last, it also limits the messages between these two NPUs.
        if slowest > out.max(into) {
            let key = (message.from.0, message.ends.1);
            let free = self.bottlenecks.entry(key).or_insert(begin);
            passes = begin.max(*free);
            *free = passes + slowest;
        }
        let first_byte = passes + path.time_of_first_byte(message.amount);
        let arriving = MessageBeforeFirstByteArrival {
            to: message.to.0,
            serialization: into,
            tail: slowest - into,
            turn: message.turn,
        };
        if message.sole_sender {
            let delivered = self.admit_message_and_return_arrival(first_byte, arriving);
            agenda.schedule_event(delivered, NetworkEvent::Delivered(message.op));
        } else {
            let op = message.op.index();
            if op >= self.arriving.len() {
                self.arriving
                    .resize(op + 1, MessageBeforeFirstByteArrival::default());
            }
            self.arriving[op] = arriving;
            let (order, op) = (message.order, message.op);
            agenda.schedule_event(first_byte, NetworkEvent::FirstByte { order, op });
        }
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
            NetworkEvent::Delivered(op) => notices.push(MessageProgressNotice::Delivered(op)),
            NetworkEvent::FirstByte { op, .. } => {
                let delivered =
                    self.admit_message_and_return_arrival(now, self.arriving[op.index()]);
                if delivered == now {
                    // No byte follows the first, so the message has arrived, and needs no further event.
                    notices.push(MessageProgressNotice::Delivered(op));
                } else {
                    agenda.schedule_event(delivered, NetworkEvent::Delivered(op));
                }
            }
            NetworkEvent::Hop { .. } | NetworkEvent::LinkFree(_) => {
                unreachable!("messages pass no devices here")
            }
        }
    }
}

impl ContentionFreePortBusyTimes<'_> {
    /// Returns the arrival time of a message whose first byte is at its port at `first_byte`.
    #[inline]
    fn admit_message_and_return_arrival(
        &mut self,
        first_byte: Time,
        message: MessageBeforeFirstByteArrival,
    ) -> Time {
        let port = &mut self.calendars[message.to as usize];
        let MessagePlaceInReceiverProgram { strand, step } = port.last;
        let is_early = strand == message.turn.strand && step > message.turn.step;
        let free = if is_early { port.others } else { port.ingress };
        let end = first_byte.max(free) + message.serialization;
        if is_early {
            port.others = end;
            port.ingress = end.max(port.ingress);
        } else {
            (port.others, port.ingress, port.last) = (port.ingress, end, message.turn);
        }
        end.max(first_byte + message.serialization + message.tail)
    }
}

/// Returns the bandwidths of the first and the last link between two NPUs.
#[inline]
fn first_and_last_link_rates(topology: &Topology, (a, b): (Npu, Npu)) -> [Bandwidth; 2] {
    if topology.tile_grid().is_none() {
        return topology
            .first_and_last_port(a, b)
            .map(|(dimension, _)| topology.link_bandwidth(dimension));
    }
    // On tiles, links between and inside dies have different rates, so follow the route to find the first and the last
    // link.
    let mut hops = iter_servers_between(PortsOrLinksOnRoute::Links, (a.into(), b.into()), topology);
    let first = hops.next().expect("a message goes from one NPU to another");
    let last = hops.last().unwrap_or(first);
    [first, last].map(|hop| link_rate_and_latency_after_server(hop.place, topology).0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::PathLatencyAndRates;
    use chakram_base::ids::OpIndex;
    use chakram_base::units::UnroundedBufferShare;

    #[derive(Default)]
    struct TestNetworkEventRecorder(Vec<(u64, NetworkEvent)>);
    impl EventScheduler for TestNetworkEventRecorder {
        fn schedule_event(&mut self, at: Time, event: NetworkEvent) {
            self.0.push((at.0, event));
        }
    }

    /// Returns a topology that consists of one switch. The tests' messages state their paths, so the switch does not
    /// affect their times.
    fn build_switch_topology() -> Topology {
        Topology::new(vec![crate::topology::TopologyDimension {
            name: String::new(),
            shape: crate::topology::DimensionShape::Switch,
            size: 4,
            bandwidth: Bandwidth::new(1e9).unwrap(),
            latency: Span::from_ns(1),
        }])
        .unwrap()
    }

    /// Returns a path with a latency of 300 ns and a bandwidth of 1 GB/s.
    fn build_fixed_test_path() -> PathLatencyAndRates {
        PathLatencyAndRates {
            latency: Span::from_ns(300),
            bandwidth: Bandwidth::new(1e9).unwrap(),
            switching: crate::topology::SwitchingMode::IDEAL,
            others: chakram_base::units::SummedSecondsPerByte::ZERO,
        }
    }

    /// Handles all scheduled events, including events that are scheduled in the meantime. Returns the handled events in
    /// order of time.
    fn handle_all_events(
        network: &mut ContentionFreePortBusyTimes<'_>,
        mut log: TestNetworkEventRecorder,
    ) -> Vec<(u64, NetworkEvent)> {
        let mut done = Vec::new();
        let mut notices = Vec::new();
        while !log.0.is_empty() {
            log.0.sort_unstable();
            let (at, event) = log.0.remove(0);
            network.handle_event(Time(at), event, &mut log, &mut notices);
            done.push((at, event));
        }
        done
    }

    #[test]
    fn one_port_sends_one_at_a_time_and_receives_one_at_a_time() {
        // 1,000 B at 1 GB/s = 1 us = 1,000,000 ps; latency 300 ns.
        let path = build_fixed_test_path();
        let topology = build_switch_topology();
        let mut network = ContentionFreePortBusyTimes::new(&topology);
        let ports = network.open_ports(3);
        let mut log = TestNetworkEventRecorder::default();
        let mut send = |op, from, to, sole_sender| {
            let message = NetworkMessage {
                op: OpIndex(op),
                ends: (Npu(from), Npu(to)),
                from: ports.nth_port(from),
                to: ports.nth_port(to),
                path: Some(path),
                amount: UnroundedBufferShare::from_bytes(1000),
                tell_injected: true,
                sole_sender,
                order: 0,
                turn: Default::default(),
            };
            network.submit_message(Time::ZERO, &message, &mut log);
        };
        send(0, 0, 1, true);
        // The message from NPU 1 waits for the egress of NPU 0 and leaves from 1 to 2 us. The first byte of the message
        // arrives at 1.3 us.
        send(1, 0, 2, false);
        // The message from NPU 2 is submitted later, but leaves from 0 to 1 us and enters from 0.3 to 1.3 us. From 1.3
        // to 2.3 us, the ingress then receives the message from NPU 0.
        send(2, 1, 2, false);
        use NetworkEvent::{Delivered, FirstByte, Injected};
        let first_byte = |op| FirstByte {
            order: 0,
            op: OpIndex(op),
        };
        let (injected, delivered) = (|op| Injected(OpIndex(op)), |op| Delivered(OpIndex(op)));
        assert_eq!(
            handle_all_events(&mut network, log),
            [
                (300_000, first_byte(2)),
                (1_000_000, injected(0)),
                (1_000_000, injected(2)),
                (1_300_000, first_byte(1)),
                (1_300_000, delivered(0)),
                (1_300_000, delivered(2)),
                (2_000_000, injected(1)),
                (2_300_000, delivered(1)),
            ]
        );
    }

    #[test]
    fn messages_that_come_at_once_enter_by_their_order() {
        // Two senders send 1,000 and 3,000 B at 1 GB/s. Both first bytes arrive at 300 ns.
        let path = build_fixed_test_path();
        for (order, ends) in [
            ([0, 1], [1_300_000, 4_300_000]),
            ([1, 0], [4_300_000, 3_300_000]),
        ] {
            let topology = build_switch_topology();
            let mut network = ContentionFreePortBusyTimes::new(&topology);
            let ports = network.open_ports(3);
            let mut log = TestNetworkEventRecorder::default();
            for op in 0..2 {
                let message = NetworkMessage {
                    op: OpIndex(op),
                    ends: (Npu(op), Npu(2)),
                    from: ports.nth_port(op),
                    to: ports.nth_port(2),
                    path: Some(path),
                    amount: UnroundedBufferShare::from_bytes(1000 + 2000 * u64::from(op)),
                    tell_injected: false,
                    sole_sender: false,
                    order: order[op as usize],
                    turn: Default::default(),
                };
                network.submit_message(Time::ZERO, &message, &mut log);
            }
            let events = handle_all_events(&mut network, log);
            for (op, end) in (0..).zip(ends) {
                assert!(
                    events.contains(&(end, NetworkEvent::Delivered(OpIndex(op)))),
                    "{events:?}"
                );
            }
        }
    }

    #[test]
    fn ports_are_used_again_and_begin_empty() {
        let topology = build_switch_topology();
        let mut network = ContentionFreePortBusyTimes::new(&topology);
        let a = network.open_ports(4);
        network.calendars[1].egress = Time(5);
        network.close_ports(a);
        assert_eq!(network.open_ports(4), a);
        assert_eq!(network.calendars[1].egress, Time::ZERO);
        assert_ne!(network.open_ports(4), a);
    }
}
