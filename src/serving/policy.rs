//! Order of service: one policy per file, asked when a request comes into the queue or a processor has a free slot.

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
    /// Place of its state; that of the batch in flight if it was put back.
    pub slot: u32,
    /// True for one that was put back and goes on where it stopped.
    pub resumes: bool,
    /// Index of its model.
    pub model: u32,
    /// Instant at which it came into the queue for the first time.
    pub since: Time,
    /// Instant at which it should be complete.
    pub due: Time,
    /// Urgency of its model, 0 first.
    pub level: u32,
    /// Time that it takes from here on without load.
    pub work: Span,
}

/// A queue with an order of service.
pub trait ServicePolicy {
    /// Takes a request into the queue.
    fn enqueue(&mut self, request: QueuedRequest);

    /// Moves the requests to serve next into `batch`, which is empty; none if there are none, or they had better wait.
    fn choose(&mut self, now: Time, batch: &mut Vec<QueuedRequest>);

    /// Instant at which the answer of [`Self::choose`] changes though nothing comes into the queue.
    fn wake_at(&self) -> Option<Time> {
        None
    }

    /// Returns whether a request in the queue should be served in place of `running`.
    fn overtakes(&self, _running: &QueuedRequest) -> bool {
        false
    }
}

/// Returns the queue of a policy for so many models.
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
