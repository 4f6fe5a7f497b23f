//! A radix heap of all pending events of the replay, ordered by instant.
//!
//! Time never runs backward, so buckets are relative to the latest time taken from the heap. An event's bucket is given
//! by the highest bit in which the event's time differs from that time. However many events are pending, each moves
//! down at most 64 buckets, and in practice two or three. Events at the same instant keep the order in which they were
//! scheduled.
//!
//! Delays of one NPU can be batched ([`Agenda::add_delay_end`]). The agenda then delivers the delays that end at the
//! same instant as one batch, in the order in which they were scheduled. The batch takes the position of the delay that
//! was scheduled first. ASTRA-sim delivers delays in the same order.

use super::event::{EventClass, PackedEvent};
use super::ids::InstanceIndex;
use chakram_base::ids::Npu;
use chakram_base::units::Time;
use std::collections::VecDeque;

/// Sentinel that means "no batched delay".
const NONE: u32 = u32::MAX;

/// The pending events of a replay, ordered by instant.
#[derive(Debug)]
pub(super) struct Agenda {
    /// Bucket 0 contains the events due at `last`. Bucket b contains the events whose instants differ from `last` in
    /// bit b - 1 but in no higher bit.
    buckets: [Vec<(Time, PackedEvent)>; 65],
    /// Bit b - 1 is set when bucket b is not empty.
    filled: u64,
    last: Time,
    /// Scratch space for [`Self::refill_lowest_bucket`], kept to reuse its allocation.
    spill: Vec<(Time, PackedEvent)>,
    /// For each NPU, the pending batches of delays, as (instant at which the delays end, batch).
    pending: Vec<VecDeque<(Time, u32)>>,
    gatherings: Vec<SameNpuDelaysEndingTogether>,
    free_gatherings: Vec<u32>,
    delays: Vec<OneDelayOfBatch>,
    free_delays: Vec<u32>,
}

/// Batch of an NPU's delays that end at the same instant, stored as a linked list in `delays`.
#[derive(Clone, Copy, Debug)]
struct SameNpuDelaysEndingTogether {
    first: u32,
    last: u32,
}

/// A delay in a batch, linked to the next delay of the batch.
#[derive(Clone, Copy, Debug)]
struct OneDelayOfBatch {
    event: PackedEvent,
    /// The caller's value, returned when the delay ends.
    detail: u32,
    next: u32,
}

impl Default for Agenda {
    fn default() -> Self {
        Self {
            buckets: [const { Vec::new() }; 65],
            filled: 0,
            last: Time::ZERO,
            spill: Vec::new(),
            pending: Vec::new(),
            gatherings: Vec::new(),
            free_gatherings: Vec::new(),
            delays: Vec::new(),
            free_delays: Vec::new(),
        }
    }
}

impl Agenda {
    /// Adds an event at `at`, which must not be earlier than the last instant taken.
    #[inline]
    pub fn push(&mut self, at: Time, event: PackedEvent) {
        debug_assert!(at >= self.last, "time runs forward");
        // The bucket is given by the highest differing bit, or is 0 if the instants are equal.
        let bucket = (u64::BITS - (at.0 ^ self.last.0).leading_zeros()) as usize;
        self.buckets[bucket].push((at, event));
        if bucket > 0 {
            self.filled |= 1 << (bucket - 1);
        }
    }

    /// Adds an event that ends a delay of `npu` at `at`. If a batch of this NPU and instant is pending or being
    /// delivered, the event joins the batch. Otherwise the event starts a new batch, whose delivery is scheduled as an
    /// [`EventClass::Alarm`] event.
    #[inline]
    pub fn add_delay_end(&mut self, npu: Npu, at: Time, event: PackedEvent, detail: u32) {
        let delay = OneDelayOfBatch {
            event,
            detail,
            next: NONE,
        };
        let number = match self.free_delays.pop() {
            Some(number) => {
                self.delays[number as usize] = delay;
                number
            }
            None => {
                self.delays.push(delay);
                self.delays.len() as u32 - 1
            }
        };
        if npu.index() >= self.pending.len() {
            self.pending.resize_with(npu.index() + 1, VecDeque::new);
        }
        // Most new delays end at or after the latest pending instant, so check the back of the list before searching.
        let pending = &mut self.pending[npu.index()];
        let place = match pending.back() {
            Some(&(last, _)) if last > at => pending.partition_point(|&(end, _)| end <= at),
            _ => pending.len(),
        };
        if let Some(&(_, gathering)) = place
            .checked_sub(1)
            .map(|i| &pending[i])
            .filter(|g| g.0 == at)
        {
            let gathering = &mut self.gatherings[gathering as usize];
            match gathering.first {
                NONE => gathering.first = number,
                _ => self.delays[gathering.last as usize].next = number,
            }
            gathering.last = number;
            return;
        }
        let new = SameNpuDelaysEndingTogether {
            first: number,
            last: number,
        };
        let gathering = match self.free_gatherings.pop() {
            Some(gathering) => {
                self.gatherings[gathering as usize] = new;
                gathering
            }
            None => {
                self.gatherings.push(new);
                self.gatherings.len() as u32 - 1
            }
        };
        if place == pending.len() {
            pending.push_back((at, gathering));
        } else {
            pending.insert(place, (at, gathering));
        }
        self.push(at, PackedEvent::new(EventClass::Alarm, npu.0, gathering));
    }

    /// Returns the next delay of a due batch, with the value that the caller stored for it. The call after the last
    /// delay closes the batch; a later delay for this instant starts a new one.
    #[inline]
    pub fn take_batched_delay(&mut self, npu: Npu, gathering: u32) -> Option<(PackedEvent, u32)> {
        let number = self.gatherings[gathering as usize].first;
        if number == NONE {
            let first = self.pending[npu.index()].pop_front();
            debug_assert_eq!(
                first.map(|(_, g)| g),
                Some(gathering),
                "the earliest is due"
            );
            self.free_gatherings.push(gathering);
            return None;
        }
        let OneDelayOfBatch {
            event,
            detail,
            next,
        } = self.delays[number as usize];
        self.gatherings[gathering as usize].first = next;
        self.free_delays.push(number);
        Some((event, detail))
    }

    /// Advances to the instant of the next events and returns it, or `None` if nothing is pending. Afterwards, no event
    /// can be added before this instant.
    #[inline]
    pub fn advance_to_next_time(&mut self) -> Option<Time> {
        if self.buckets[0].is_empty() {
            if self.filled == 0 {
                return None;
            }
            self.refill_lowest_bucket();
        }
        Some(self.last)
    }

    /// Returns the instant that [`Self::advance_to_next_time`] would return, but does not advance time, so earlier
    /// events can still be added.
    pub fn peek_time(&self) -> Option<Time> {
        if !self.buckets[0].is_empty() {
            return Some(self.last);
        }
        let lowest = self
            .buckets
            .get(self.filled.trailing_zeros() as usize + 1)?;
        lowest.iter().map(|(at, _)| *at).min()
    }

    /// Returns true if an event is pending at `now`, the last instant taken.
    #[inline]
    pub fn has_event_at(&self, now: Time) -> bool {
        debug_assert_eq!(now, self.last, "only the present can be asked for");
        !self.buckets[0].is_empty()
    }

    /// Moves the events of the lowest filled bucket down, so that bucket 0 contains the earliest
    /// events.
    fn refill_lowest_bucket(&mut self) {
        let lowest = self.filled.trailing_zeros() as usize + 1;
        self.filled &= self.filled - 1;
        // A single event, the common case in sparse traces, needs no redistribution.
        if let [single] = self.buckets[lowest][..] {
            self.last = single.0;
            self.buckets[0].push(single);
            self.buckets[lowest].clear();
            return;
        }
        std::mem::swap(&mut self.buckets[lowest], &mut self.spill);
        let earliest = self.spill.iter().map(|(at, _)| *at).min();
        self.last = earliest.expect("a filled bucket holds events");
        // These events differ from the new `last` only in lower bits, so each event moves down by at least one bucket.
        for i in 0..self.spill.len() {
            let (at, event) = self.spill[i];
            self.push(at, event);
        }
        self.spill.clear();
    }

    /// Copies the pending node events of the instance `from` that `is_copied` accepts, once for each instance in `to`.
    pub fn copy_node_events_to_instances(
        &mut self,
        from: InstanceIndex,
        to: &[InstanceIndex],
        is_copied: impl Fn(PackedEvent) -> bool,
    ) {
        for bucket in &mut self.buckets {
            for place in 0..bucket.len() {
                let (at, event) = bucket[place];
                if event.is_node_or_delay_end()
                    && event.instance_node().instance == from
                    && is_copied(event)
                {
                    let copy = |&to: &InstanceIndex| {
                        (
                            at,
                            PackedEvent::of_node(
                                event.event_class(),
                                to,
                                event.instance_node().node,
                            ),
                        )
                    };
                    bucket.extend(to.iter().map(copy));
                }
            }
        }
    }

    /// Moves the events due at [`Self::advance_to_next_time`] into `batch`, in the order of scheduling.
    #[inline]
    pub fn take_due_events(&mut self, batch: &mut Vec<PackedEvent>) {
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
    fn delays_of_an_npu_at_one_time_are_delivered_with_the_first() {
        let mut agenda = Agenda::default();
        let event = |payload| PackedEvent::new(EventClass::Node, 0, payload);
        // At instant 5, the order is NPU 1's batch, a message, and NPU 0's batch. NPU 1's later delays join NPU 1's
        // batch.
        agenda.add_delay_end(Npu(1), Time(5), event(10), 7);
        agenda.push(Time(5), event(20));
        agenda.add_delay_end(Npu(0), Time(5), event(30), 0);
        agenda.add_delay_end(Npu(1), Time(9), event(40), 0);
        agenda.add_delay_end(Npu(1), Time(3), event(50), 0);
        agenda.add_delay_end(Npu(1), Time(5), event(11), 8);
        let mut order = Vec::new();
        let mut batch = Vec::new();
        while agenda.advance_to_next_time().is_some() {
            agenda.take_due_events(&mut batch);
            for event in batch.clone() {
                if event.event_class() != EventClass::Alarm {
                    order.push((event.payload_bits(), 0));
                    continue;
                }
                while let Some((delayed, detail)) =
                    agenda.take_batched_delay(Npu(event.rank_bits()), event.payload_bits())
                {
                    order.push((delayed.payload_bits(), detail));
                    // A zero-length delay that is added while the batch is delivered joins the batch.
                    if delayed.payload_bits() == 10 {
                        agenda.add_delay_end(
                            Npu(1),
                            Time(5),
                            PackedEvent::new(EventClass::Node, 0, 12),
                            0,
                        );
                    }
                }
            }
        }
        let expected = [
            (50, 0),
            (10, 7),
            (11, 8),
            (12, 0),
            (20, 0),
            (30, 0),
            (40, 0),
        ];
        assert_eq!(order, expected);
    }

    proptest! {
        /// The agenda must give the same instants as a map from instants to lists, and the same order of events within
        /// each instant.
        #[test]
        fn events_come_in_order_of_time_and_then_of_scheduling(
            steps in prop::collection::vec((0_u32..4, prop::collection::vec(0_u64..2000, 0..5)), 1..200)
        ) {
            let mut agenda = Agenda::default();
            let mut oracle: BTreeMap<u64, Vec<PackedEvent>> = BTreeMap::new();
            let mut now = 0;
            let mut number = 0;
            let mut batch = Vec::new();
            for (scale, delays) in steps {
                for delay in delays {
                    let at = now + (delay << (8 * scale));
                    let event = PackedEvent::new(EventClass::Node, 0, number);
                    number += 1;
                    agenda.push(Time(at), event);
                    oracle.entry(at).or_default().push(event);
                }
                if let Some(at) = agenda.advance_to_next_time() {
                    agenda.take_due_events(&mut batch);
                    let (expected_at, expected) = oracle.pop_first().unwrap();
                    prop_assert_eq!(at.0, expected_at);
                    prop_assert_eq!(&batch, &expected);
                    now = at.0;
                }
            }
        }
    }
}
