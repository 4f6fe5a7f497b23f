//! The one queue of pending events: a radix heap over instants.
//!
//! Time never runs backward, so an event lies in the bucket of the highest bit in which its instant
//! differs from the last one taken; each event moves down at most 64 buckets, in practice two or
//! three, whatever is pending. Events of one instant keep the order in which they were scheduled.

use crate::units::Time;

/// Bits of an event that say which of its class it is.
const PAYLOAD_BITS: u32 = 32;
/// Bits of an event that say whose it is.
const RANK_BITS: u32 = 29;

/// What is due: a class, a rank and a payload in one word, so that numerical order is the order in
/// which events of one instant are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event(u64);

/// Classes of events, in the order in which an instant handles them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Class {
    /// A node of the rank is complete; the payload is the node.
    Node,
    /// A collective answered by closed form is complete; the payload is its run.
    Run,
    /// The network has injected the message of an op.
    Injected,
    /// The first byte of an op's message is at the receiver's port.
    FirstByte,
    /// The network has delivered the message of an op.
    Delivered,
    /// The delay of a node of the rank is over; the payload is the node.
    Ready,
    /// The rank's instance is released.
    Release,
}

impl Class {
    const ALL: [Self; 7] = [
        Self::Node,
        Self::Run,
        Self::Injected,
        Self::FirstByte,
        Self::Delivered,
        Self::Ready,
        Self::Release,
    ];
}

impl Event {
    #[inline]
    pub fn new(class: Class, rank: u32, payload: u32) -> Self {
        debug_assert!(
            rank < 1 << RANK_BITS,
            "ranks are bounded by the machine's size"
        );
        let class = (class as u64) << (PAYLOAD_BITS + RANK_BITS);
        Self(class | u64::from(rank) << PAYLOAD_BITS | u64::from(payload))
    }

    #[inline]
    pub fn class(self) -> Class {
        Class::ALL[(self.0 >> (PAYLOAD_BITS + RANK_BITS)) as usize]
    }

    #[inline]
    pub fn rank(self) -> u32 {
        (self.0 >> PAYLOAD_BITS) as u32 & ((1 << RANK_BITS) - 1)
    }

    #[inline]
    pub fn payload(self) -> u32 {
        self.0 as u32
    }
}

/// Pending events.
#[derive(Debug)]
pub(super) struct Agenda {
    /// Bucket 0 holds events due at `last`; bucket b those whose instants differ from it in bit
    /// b - 1 and in none above.
    buckets: [Vec<(Time, Event)>; 65],
    /// Bit b - 1 is set when bucket b is not empty.
    filled: u64,
    last: Time,
    /// Kept for its allocation.
    spill: Vec<(Time, Event)>,
}

impl Default for Agenda {
    fn default() -> Self {
        Self {
            buckets: [const { Vec::new() }; 65],
            filled: 0,
            last: Time::ZERO,
            spill: Vec::new(),
        }
    }
}

impl Agenda {
    /// Adds an event at `at`, which must not lie before the instant last taken.
    #[inline]
    pub fn push(&mut self, at: Time, event: Event) {
        debug_assert!(at >= self.last, "time runs forward");
        let bucket = (u64::BITS - (at.0 ^ self.last.0).leading_zeros()) as usize;
        self.buckets[bucket].push((at, event));
        if bucket > 0 {
            self.filled |= 1 << (bucket - 1);
        }
    }

    /// The instant of the next events, `None` when nothing is pending.
    #[inline]
    pub fn next_time(&mut self) -> Option<Time> {
        if self.buckets[0].is_empty() {
            if self.filled == 0 {
                return None;
            }
            self.refill();
        }
        Some(self.last)
    }

    /// Whether anything is due at `now`, the instant last taken.
    #[inline]
    pub fn has(&self, now: Time) -> bool {
        debug_assert_eq!(now, self.last, "only the present can be asked for");
        !self.buckets[0].is_empty()
    }

    /// Moves the lowest filled bucket down, so that bucket 0 holds the earliest events.
    fn refill(&mut self) {
        let lowest = self.filled.trailing_zeros() as usize + 1;
        self.filled &= self.filled - 1;
        if let [single] = self.buckets[lowest][..] {
            self.last = single.0;
            self.buckets[0].push(single);
            self.buckets[lowest].clear();
            return;
        }
        std::mem::swap(&mut self.buckets[lowest], &mut self.spill);
        let earliest = self.spill.iter().map(|(at, _)| *at).min();
        self.last = earliest.expect("a filled bucket holds events");
        for i in 0..self.spill.len() {
            let (at, event) = self.spill[i];
            self.push(at, event);
        }
        self.spill.clear();
    }

    /// Moves the events due at [`Self::next_time`] into `batch`, in the order they were scheduled.
    #[inline]
    pub fn take(&mut self, batch: &mut Vec<Event>) {
        batch.clear();
        batch.extend(self.buckets[0].drain(..).map(|(_, event)| event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn words_hold_class_rank_and_payload() {
        for class in Class::ALL {
            let event = Event::new(class, (1 << RANK_BITS) - 1, u32::MAX);
            assert_eq!(event.class(), class);
            assert_eq!(event.rank(), (1 << RANK_BITS) - 1);
            assert_eq!(event.payload(), u32::MAX);
        }
        let earlier = Event::new(Class::Node, 9, 9);
        assert!(earlier < Event::new(Class::Run, 0, 0));
    }

    proptest! {
        /// Against a map from instant to list: the same instants, and within one the same order.
        #[test]
        fn events_come_in_order_of_time_and_then_of_scheduling(
            steps in prop::collection::vec((0_u32..4, prop::collection::vec(0_u64..2000, 0..5)), 1..200)
        ) {
            let mut agenda = Agenda::default();
            let mut oracle: BTreeMap<u64, Vec<Event>> = BTreeMap::new();
            let mut now = 0;
            let mut number = 0;
            let mut batch = Vec::new();
            for (scale, delays) in steps {
                for delay in delays {
                    let at = now + (delay << (8 * scale));
                    let event = Event::new(Class::Node, 0, number);
                    number += 1;
                    agenda.push(Time(at), event);
                    oracle.entry(at).or_default().push(event);
                }
                if let Some(at) = agenda.next_time() {
                    agenda.take(&mut batch);
                    let (expected_at, expected) = oracle.pop_first().unwrap();
                    prop_assert_eq!(at.0, expected_at);
                    prop_assert_eq!(&batch, &expected);
                    now = at.0;
                }
            }
        }
    }
}
