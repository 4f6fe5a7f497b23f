//! Policies that serve one request at a time, in ascending order of a key. In a tie, the request that arrived first is
//! served first.
//!
//! | policy | key |
//! |---|---|
//! | first come, first served | instant at which it entered the queue |
//! | shortest job first | its remaining time without load |
//! | priority | level of its model |
//! | priority with aging a | instant at which it entered the queue + level x a |
//! | earliest deadline | instant at which it should be complete |
//!
//! With aging, a request becomes one level more urgent each time it has waited for a time a. At time t, a request of
//! level l that arrived at time s has level l - (t - s) / a. Therefore the request with the smallest s + l a is the
//! most urgent. A request of level l is overtaken only by requests that arrive less than l a later, so its wait is
//! bounded. Without aging, the wait has no bound.

use super::{QueuedRequest, ServiceQueue};
use crate::scenario::ServicePolicyWithParameters;
use chakram_base::units::{Span, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Function that returns a request's key.
pub type RequestKeyFunction = Box<dyn Fn(&QueuedRequest) -> u64>;

/// Returns the key function of a policy. The policy must use keys.
pub fn key_function_of(kind: ServicePolicyWithParameters) -> RequestKeyFunction {
    match kind {
        ServicePolicyWithParameters::ShortestJob => Box::new(|request| request.work.0),
        ServicePolicyWithParameters::Priority { aging: None } => {
            Box::new(|request| request.level.into())
        }
        ServicePolicyWithParameters::Priority { aging: Some(aging) } => {
            Box::new(move |request| priority_key_with_aging(request, aging))
        }
        ServicePolicyWithParameters::EarliestDeadline => Box::new(|request| request.due.0),
        _ => Box::new(|request| request.since.0),
    }
}

fn priority_key_with_aging(request: &QueuedRequest, aging: Span) -> u64 {
    (request.since + aging.times(request.level.into())).0
}

/// A request with its key.
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

/// Requests, sorted by key.
pub struct KeyedQueue {
    key: RequestKeyFunction,
    heap: BinaryHeap<Reverse<KeyedRequest>>,
}

impl KeyedQueue {
    pub fn new(key: RequestKeyFunction) -> Self {
        Self {
            key,
            heap: BinaryHeap::new(),
        }
    }
}

impl ServiceQueue for KeyedQueue {
    fn enqueue_request(&mut self, request: QueuedRequest) {
        let key = (self.key)(&request);
        self.heap.push(Reverse(KeyedRequest { key, request }));
    }

    fn choose_requests(&mut self, _now: Time, batch: &mut Vec<QueuedRequest>) {
        batch.extend(self.heap.pop().map(|Reverse(first)| first.request));
    }

    fn should_preempt_running(&self, running: &QueuedRequest) -> bool {
        let first = self.heap.peek();
        first.is_some_and(|Reverse(first)| first.key < (self.key)(running))
    }
}
