//! Chunks through the queues of one NPU, when every phase takes a known time: a flow shop.
//!
//! All NPUs that begin a collective together do the same, so one stands for all. Each queue has as many
//! places as chunks may be in a phase at once, and serves first come, first served; a chunk that ends a
//! phase joins the queue of the next before the place it leaves is taken.

use crate::units::Span;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

#[derive(Clone, Debug, Default)]
struct Queue {
    waiting: VecDeque<u32>,
    running: u32,
}

struct Shop<'a> {
    spans: &'a [Span],
    queues: Vec<Queue>,
    queue_of: &'a [u32],
    capacity: u32,
    /// The phase that each chunk is in or waits for.
    phase: Vec<u32>,
    /// Ends of phases: when, in which order they were begun, and the chunk.
    ends: BinaryHeap<Reverse<(Span, u64, u32)>>,
    begun: u64,
}

impl Shop<'_> {
    fn admit(&mut self, now: Span, queue: u32) {
        let state = &mut self.queues[queue as usize];
        while state.running < self.capacity
            && let Some(chunk) = state.waiting.pop_front()
        {
            state.running += 1;
            self.begun += 1;
            let end = now + self.spans[self.phase[chunk as usize] as usize];
            self.ends.push(Reverse((end, self.begun, chunk)));
        }
    }

    fn put(&mut self, chunk: u32) -> u32 {
        let queue = self.queue_of[self.phase[chunk as usize] as usize];
        self.queues[queue as usize].waiting.push_back(chunk);
        queue
    }
}

/// When the last of `chunks` has passed the phases, which last as `spans` say and have the queues
/// `queue_of`, each with `capacity` places.
pub(super) fn last_end(spans: &[Span], queue_of: &[u32], chunks: u32, capacity: u32) -> Span {
    let queues = queue_of.iter().max().map_or(0, |&queue| queue as usize + 1);
    let mut shop = Shop {
        spans,
        queues: vec![Queue::default(); queues],
        queue_of,
        capacity,
        phase: vec![0; chunks as usize],
        ends: BinaryHeap::new(),
        begun: 0,
    };
    if spans.is_empty() {
        return Span::ZERO;
    }
    for chunk in 0..chunks {
        let queue = shop.put(chunk);
        shop.admit(Span::ZERO, queue);
    }
    let mut last = Span::ZERO;
    while let Some(Reverse((now, _, chunk))) = shop.ends.pop() {
        last = now;
        let left = queue_of[shop.phase[chunk as usize] as usize];
        shop.phase[chunk as usize] += 1;
        let next = ((shop.phase[chunk as usize] as usize) < spans.len()).then(|| shop.put(chunk));
        shop.queues[left as usize].running -= 1;
        shop.admit(now, left);
        if let Some(next) = next {
            shop.admit(now, next);
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(spans: &[u64], queues: &[u32], chunks: u32, capacity: u32) -> u64 {
        let spans: Vec<Span> = spans.iter().map(|&ns| Span::from_ns(ns)).collect();
        last_end(&spans, queues, chunks, capacity).0 / 1000
    }

    #[test]
    fn one_queue_serves_chunk_after_chunk() {
        // Four chunks of 7 ns one after another, two at a time, all at once.
        assert_eq!(end(&[7], &[0], 4, 1), 28);
        assert_eq!(end(&[7], &[0], 4, 2), 14);
        assert_eq!(end(&[7], &[0], 4, 9), 7);
    }

    #[test]
    fn two_queues_are_a_pipeline() {
        // Out 5 and 3: the slower is never idle, and the last chunk's 3 follow: 4 · 5 + 3.
        assert_eq!(end(&[5, 3], &[0, 1], 4, 1), 23);
        // Out 3 and 5: the first fills for 3, then 4 · 5.
        assert_eq!(end(&[3, 5], &[0, 1], 4, 1), 23);
    }

    #[test]
    fn the_way_back_queues_behind_the_way_out() {
        // Queue 0, then 1, then 0 again. Two chunks: out 0-2 and 2-4; over there 2-12 and 12-22; back when
        // they come: 12-14 and 22-24.
        assert_eq!(end(&[2, 10, 2], &[0, 1, 0], 2, 1), 24);
        // Over there 1: chunk 0 comes back at 3 behind chunk 1, which is out 2-4; back 4-6. Chunk 1 is over
        // there 4-5 and back 6-8.
        assert_eq!(end(&[2, 1, 2], &[0, 1, 0], 2, 1), 8);
    }
}
