//! A single state machine for the algorithms ring, direct and halving-doubling. At the start, the machine prepares one
//! packet for each message that may be in flight; later, it prepares one for each received message. Each packet that
//! has crossed the bus yields a credit, which sends the oldest prepared packet.
//!
//! Packets come in rounds: first the packets that are never reduced, then those that may be reduced. A reduce-scatter
//! reduces the latter in every round, and an all-reduce in every second round.

use super::super::algorithms::AlgorithmStyle;
use super::super::config::CollectiveOperation;
use super::halving::HalvingPartnerCursor;
use super::{AlgorithmAction, AlgorithmEvent, MemoryMove, RingMembersAndOwnIndex};
use std::collections::VecDeque;

/// State of a ring, direct or halving-doubling algorithm on one NPU.
#[derive(Debug)]
pub struct RingDirectOrHalvingAlgorithm {
    kind: CollectiveOperation,
    peers: RingMembersAndOwnIndex,
    clockwise: bool,
    route: PeerSequence,
    pub final_size: u64,
    /// Size of the next packet.
    size: u64,
    /// Index of the destination in [`RingMembersAndOwnIndex`]; `src` is the index of the source.
    dst: usize,
    src: usize,
    packets: VecDeque<(usize, usize, u64)>,
    sends_left: usize,
    credits: usize,
    window: usize,
    received: usize,
    /// Number of packets left in this round that are never reduced.
    plain_left: usize,
    reducible_left: usize,
    reducible: usize,
    odd_round: bool,
}

/// Rule for the peers and sizes of successive packets.
#[derive(Debug)]
enum PeerSequence {
    Neighbours,
    EveryPeer,
    Partners(HalvingPartnerCursor),
}

impl RingDirectOrHalvingAlgorithm {
    /// Creates the state machine. Returns `None` for an all-to-all by halving-doubling, which ASTRA-sim does not
    /// support.
    pub fn new(
        kind: CollectiveOperation,
        style: AlgorithmStyle,
        peers: RingMembersAndOwnIndex,
        clockwise: bool,
        size: u64,
    ) -> Option<Self> {
        let n = peers.ids.len();
        let parts = n as u64;
        let rounds = match kind {
            CollectiveOperation::AllReduce => 2,
            _ => 1,
        };
        let mut this = Self {
            kind,
            clockwise,
            route: PeerSequence::Neighbours,
            final_size: match kind {
                CollectiveOperation::AllReduce | CollectiveOperation::AllToAll => size,
                CollectiveOperation::AllGather => size * parts,
                CollectiveOperation::ReduceScatter => size / parts,
            },
            size: match kind {
                CollectiveOperation::AllGather => size,
                _ => size / parts,
            },
            dst: peers.ring_index_after_steps(peers.me, 1, clockwise),
            src: peers.ring_index_after_steps(peers.me, 1, !clockwise),
            packets: VecDeque::new(),
            sends_left: rounds * (n - 1),
            credits: 0,
            window: 1,
            received: 0,
            plain_left: 0,
            reducible_left: 0,
            reducible: n - 1,
            odd_round: false,
            peers,
        };
        match style {
            AlgorithmStyle::Direct(window) => {
                this.route = PeerSequence::EveryPeer;
                this.window = window.unwrap_or(n - 1).min(n - 1);
                this.reducible = match this.peers.group {
                    true => (n - 1) * this.window,
                    false => this.window,
                };
            }
            AlgorithmStyle::HalvingDoubling => {
                let halving = HalvingPartnerCursor::new(kind, n)?;
                this.size = halving.first_message_size(size);
                this.sends_left = halving.message_count_of_rounds(rounds);
                this.reducible = halving.step_count() - 1;
                this.dst = halving.current_partner(&this.peers);
                this.src = this.dst;
                this.route = PeerSequence::Partners(halving);
            }
            _ if kind == CollectiveOperation::AllToAll => this.sends_left = n * (n - 1) / 2,
            _ => {}
        }
        Some(this)
    }

    pub fn actions_after_event(&mut self, input: AlgorithmEvent) -> Vec<AlgorithmAction> {
        match input {
            AlgorithmEvent::Start => (0..self.window)
                .map(|_| self.prepare_packet_and_bus_move())
                .collect(),
            AlgorithmEvent::Received => {
                self.received += 1;
                vec![self.prepare_packet_and_bus_move()]
            }
            AlgorithmEvent::Ready | AlgorithmEvent::Ended(_) => self.add_and_spend_credits(),
        }
    }

    fn add_and_spend_credits(&mut self) -> Vec<AlgorithmAction> {
        self.credits += 1;
        let mut acts = Vec::new();
        let half = self.peers.ids.len() - 1;
        let direct = matches!(self.route, PeerSequence::EveryPeer);
        if direct && self.kind == CollectiveOperation::AllReduce && self.sends_left <= half {
            // When all messages of an all-reduce's first half have arrived, the machine spends all credits at once to
            // start the second half.
            if self.received < half {
                return acts;
            }
            for _ in 0..self.window {
                self.send_and_receive_packet_by_credit(&mut acts);
            }
        } else {
            self.send_and_receive_packet_by_credit(&mut acts);
        }
        if self.sends_left == 0 && self.credits == self.window {
            acts.push(AlgorithmAction::Over);
        }
        acts
    }

    /// Uses a credit, if there is one: sends the oldest packet, and receives a packet of the same
    /// size.
    fn send_and_receive_packet_by_credit(&mut self, acts: &mut Vec<AlgorithmAction>) {
        if self.sends_left == 0 || self.credits == 0 {
            return;
        }
        if let Some((dst, src, bytes)) = self.packets.pop_front() {
            let (dst, src) = (self.peers.ids[dst], self.peers.ids[src]);
            acts.push(AlgorithmAction::Send { dst, bytes });
            acts.push(AlgorithmAction::Receive { src, bytes });
            self.sends_left -= 1;
            self.credits -= 1;
        }
    }

    /// Prepares a packet, and moves its data over the bus.
    fn prepare_packet_and_bus_move(&mut self) -> AlgorithmAction {
        if self.plain_left == 0 && self.reducible_left == 0 {
            self.plain_left = self.window;
            self.reducible_left = self.reducible;
            self.odd_round = !self.odd_round;
        }
        self.packets.push_back((self.dst, self.src, self.size));
        let mut how = MemoryMove {
            bytes: self.size,
            reduce: false,
            to_memory: true,
            send_back: false,
            fast: self.peers.group,
        };
        if self.plain_left > 0 {
            self.plain_left -= 1;
        } else {
            how.to_memory = false;
            how.send_back = self.reducible_left > self.window;
            how.reduce = match self.kind {
                CollectiveOperation::ReduceScatter => true,
                CollectiveOperation::AllReduce => self.odd_round,
                _ => false,
            };
            self.reducible_left -= 1;
        }
        self.advance_to_next_peers();
        AlgorithmAction::Move(how)
    }

    /// Sets the peers and the size for the next packet.
    fn advance_to_next_peers(&mut self) {
        let me = self.peers.me;
        let peers = &self.peers;
        let next = |index, clockwise| {
            let next = peers.ring_index_after_steps(index, 1, clockwise);
            match next == me {
                true => peers.ring_index_after_steps(next, 1, clockwise),
                false => next,
            }
        };
        match &mut self.route {
            PeerSequence::Neighbours => {}
            PeerSequence::EveryPeer => {
                self.dst = next(self.dst, self.clockwise);
                self.src = next(self.src, !self.clockwise);
            }
            PeerSequence::Partners(halving) => {
                self.size = halving.advance_to_next_distance(self.size);
                self.dst = halving.current_partner(peers);
                if halving.has_next_message() {
                    self.src = self.dst;
                }
            }
        }
    }
}
