//! Order of service. The policy is consulted when a request enters the queue or a processor has a
//! free slot. Each file of this module has one policy.

mod batching;
mod keyed;
mod round_robin;

pub use batching::BatchQueue;
pub use keyed::KeyedQueue;
pub use round_robin::ArrivalQueue;

use super::scenario::PolicyKind;
use chakram_base::units::{Span, Time};

/// A request that waits for a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuedRequest {
    /// Number of the request, by arrival.
    pub number: u64,
    /// Index of the request's state, or, for a preempted request, index of the request's batch in
    /// flight.
    pub slot: u32,
    /// True for a preempted request, which continues where it stopped.
    pub resumes: bool,
    /// Index of its model.
    pub model: u32,
    /// Instant at which the request first entered the queue.
    pub since: Time,
    /// Instant at which the request should be complete.
    pub due: Time,
    /// Priority level of its model, 0 first.
    pub level: u32,
    /// Remaining service time of the request if it were alone.
    pub work: Span,
}

/// A queue with an order of service.
pub trait ServicePolicy {
    /// Adds a request to the queue.
    fn enqueue(&mut self, request: QueuedRequest);

    /// Moves the requests to serve next into `batch`, which is empty. Moves none if the queue is
    /// empty, or if requests should wait for others.
    fn choose(&mut self, now: Time, batch: &mut Vec<QueuedRequest>);

    /// Returns the instant at which [`Self::choose`] may choose differently although no request
    /// enters the queue.
    fn wake_at(&self) -> Option<Time> {
        None
    }

    /// Returns true if a request in the queue should be served instead of `running`.
    fn has_urgent_request(&self, _running: &QueuedRequest) -> bool {
        false
    }
}

/// Returns the queue of a policy for `models` models.
pub fn queue(kind: PolicyKind, models: usize) -> Box<dyn ServicePolicy> {
    match kind {
        PolicyKind::RoundRobin => Box::new(ArrivalQueue::default()),
        PolicyKind::FirstCome
        | PolicyKind::ShortestJob
        | PolicyKind::Priority { .. }
        | PolicyKind::EarliestDeadline => Box::new(KeyedQueue::new(keyed::key(kind))),
        PolicyKind::Batching { batch, wait } => Box::new(BatchQueue::new(batch, wait, models)),
    }
}
