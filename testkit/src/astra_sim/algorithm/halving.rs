//! The order of partners in halving-doubling: the distance grows 1, 2, 4, … while sizes are halved, or
//! the reverse.

use super::super::config::Kind;
use super::Peers;

/// Current position in the order of partners.
#[derive(Debug)]
pub struct Halving {
    kind: Kind,
    n: usize,
    distance: usize,
    /// `true` while distances grow and sizes shrink.
    outwards: bool,
}

impl Halving {
    pub fn new(kind: Kind, n: usize) -> Option<Self> {
        let outwards = match kind {
            Kind::AllReduce | Kind::ReduceScatter => true,
            Kind::AllGather => false,
            Kind::AllToAll => return None,
        };
        let distance = if outwards { 1 } else { n / 2 };
        Some(Self {
            kind,
            n,
            distance,
            outwards,
        })
    }

    pub fn first_size(&self, size: u64) -> u64 {
        if self.outwards { size / 2 } else { size }
    }

    /// Returns the number of messages, trunc(rounds · log2 n). It is a number of complete rounds only if n is a
    /// power of two.
    pub fn sends(&self, rounds: usize) -> usize {
        (rounds as f64 * (self.n as f64).log2()) as usize
    }

    pub fn steps(&self) -> usize {
        self.sends(1)
    }

    /// Returns `true` while there is a next message, that is, the distance is not 0.
    pub fn moves(&self) -> bool {
        self.distance > 0
    }

    /// Returns the peer at the current distance. Peers exchange data in pairs.
    pub fn partner(&self, peers: &Peers) -> usize {
        let clockwise = self.distance == 0 || (peers.me / self.distance).is_multiple_of(2);
        peers.walk(peers.me, self.distance, clockwise)
    }

    /// Moves to the next distance, and returns the next size. An all-reduce turns back at the largest
    /// distance.
    pub fn turn(&mut self, mut size: u64) -> u64 {
        (self.distance, size) = step(self.outwards, self.distance, size);
        if self.distance == self.n && self.kind == Kind::AllReduce {
            self.outwards = false;
            (self.distance, size) = step(false, self.distance, size);
        }
        size
    }
}

fn step(outwards: bool, distance: usize, size: u64) -> (usize, u64) {
    match outwards {
        true => (distance.saturating_mul(2), size / 2),
        false => (distance / 2, size.saturating_mul(2)),
    }
}
