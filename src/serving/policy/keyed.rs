//! Policies that serve the request with the least key, one at a time; of equal keys the one that arrived first.
//!
//! | policy | key |
//! |---|---|
//! | first come, first served | instant at which it came into the queue |
//! | shortest job first | time that it still takes without load |
//! | priority | level of its model |
//! | priority with aging a | instant at which it came into the queue + level x a |
//! | earliest deadline | instant at which it should be complete |
//!
//! With aging, waiting for a counts as one level: at t a request of level l that came at s is of level l - (t - s) / a,
//! and the least of these is the least s + l a. A request of level l is therefore overtaken only by requests that came
//! less than l a after it, which bounds how long it can starve. Without aging nothing does.

use super::{QueuedRequest, ServicePolicy};
use crate::scenario::PolicyKind;
use chakram_base::units::{Span, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Key of a request.
pub type RequestKey = Box<dyn Fn(&QueuedRequest) -> u64>;

/// Returns the key of a policy that has one.
pub fn key(kind: PolicyKind) -> RequestKey {
    match kind {
        PolicyKind::ShortestJob => Box::new(|request| request.work.0),
        PolicyKind::Priority { aging: None } => Box::new(|request| request.level.into()),
        PolicyKind::Priority { aging: Some(aging) } => {
            Box::new(move |request| aged(request, aging))
        }
        PolicyKind::EarliestDeadline => Box::new(|request| request.due.0),
        _ => Box::new(|request| request.since.0),
    }
}

fn aged(request: &QueuedRequest, aging: Span) -> u64 {
    (request.since + aging.times(request.level.into())).0
}

/// A request under its key.
#[derive(Debug, PartialEq, Eq)]
struct KeyedRequest {
    key: u64,
    request: QueuedRequest,
}

impl Ord for KeyedRequest {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let order = |of: &Self| (of.key, of.request.number);
        order(self).cmp(&order(other))
    }
}

impl PartialOrd for KeyedRequest {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Requests by a key.
pub struct KeyedQueue {
    key: RequestKey,
    heap: BinaryHeap<Reverse<KeyedRequest>>,
}

impl KeyedQueue {
    pub fn new(key: RequestKey) -> Self {
        Self {
            key,
            heap: BinaryHeap::new(),
        }
    }
}

impl ServicePolicy for KeyedQueue {
    fn enqueue(&mut self, request: QueuedRequest) {
        let key = (self.key)(&request);
        self.heap.push(Reverse(KeyedRequest { key, request }));
    }

    fn choose(&mut self, _now: Time, batch: &mut Vec<QueuedRequest>) {
        batch.extend(self.heap.pop().map(|Reverse(first)| first.request));
    }

    fn overtakes(&self, running: &QueuedRequest) -> bool {
        let first = self.heap.peek();
        first.is_some_and(|Reverse(first)| first.key < (self.key)(running))
    }
}
