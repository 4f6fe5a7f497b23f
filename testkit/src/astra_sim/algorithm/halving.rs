//! The order of partners in halving-doubling. While sizes are halved, the distances are 1, 2, 4, …; while sizes are
//! doubled, the order is reversed.

use super::super::config::CollectiveOperation;
use super::RingMembersAndOwnIndex;

/// Current position in the sequence of partners.
#[derive(Debug)]
pub struct HalvingPartnerCursor {
    kind: CollectiveOperation,
    n: usize,
    distance: usize,
    /// `true` while distances grow and sizes shrink.
    outwards: bool,
}

impl HalvingPartnerCursor {
    pub fn new(kind: CollectiveOperation, n: usize) -> Option<Self> {
        let outwards = match kind {
            CollectiveOperation::AllReduce | CollectiveOperation::ReduceScatter => true,
            CollectiveOperation::AllGather => false,
            CollectiveOperation::AllToAll => return None,
        };
        let distance = if outwards { 1 } else { n / 2 };
        Some(Self {
            kind,
            n,
            distance,
            outwards,
        })
    }

    pub fn first_message_size(&self, size: u64) -> u64 {
        if self.outwards { size / 2 } else { size }
    }

    /// Returns the number of messages, trunc(rounds · log2 n). The result is a number of complete
    /// rounds only if n is a power of two.
    pub fn message_count_of_rounds(&self, rounds: usize) -> usize {
        (rounds as f64 * (self.n as f64).log2()) as usize
    }

    pub fn step_count(&self) -> usize {
        self.message_count_of_rounds(1)
    }

    /// Returns `true` if there is a next message, that is, if the distance is not 0.
    pub fn has_next_message(&self) -> bool {
        self.distance > 0
    }

    /// Returns the peer at the current distance. NPUs at this distance exchange data in pairs.
    pub fn current_partner(&self, peers: &RingMembersAndOwnIndex) -> usize {
        let clockwise = self.distance == 0 || (peers.me / self.distance).is_multiple_of(2);
        peers.ring_index_after_steps(peers.me, self.distance, clockwise)
    }

    /// Moves to the next distance, and returns the next size. An all-reduce reverses direction at the largest distance.
    pub fn advance_to_next_distance(&mut self, mut size: u64) -> u64 {
        (self.distance, size) = next_distance_and_size(self.outwards, self.distance, size);
        if self.distance == self.n && self.kind == CollectiveOperation::AllReduce {
            self.outwards = false;
            (self.distance, size) = next_distance_and_size(false, self.distance, size);
        }
        size
    }
}

fn next_distance_and_size(outwards: bool, distance: usize, size: u64) -> (usize, u64) {
    match outwards {
        true => (distance.saturating_mul(2), size / 2),
        false => (distance / 2, size.saturating_mul(2)),
    }
}
