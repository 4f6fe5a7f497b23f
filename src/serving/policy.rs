//! Policies that determine the order in which requests are served. The server asks the policy for requests when a
//! request enters the queue and when a processor has a free slot. Each file of this module contains one policy.

mod batching;
mod keyed;
mod round_robin;

pub use batching::PerModelBatchingQueue;
pub use keyed::KeyedQueue;
pub use round_robin::ArrivalOrderQueue;

use super::scenario::ServicePolicyWithParameters;
use chakram_base::units::{Span, Time};

/// A request that waits for a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuedRequest {
    /// Index of the request in order of arrival.
    pub number: u64,
    /// Index of the request's state. For a preempted request, the index of its batch in flight.
    pub slot: u32,
    /// True for a preempted request, which continues where it stopped.
    pub resumes: bool,
    /// Index of the request's model.
    pub model: u32,
    /// Time at which the request first entered the queue.
    pub since: Time,
    /// Time by which the request should be complete.
    pub due: Time,
    /// Priority level of the request's model; 0 is the most urgent.
    pub level: u32,
    /// Service time that the request would still need on idle processors.
    pub work: Span,
}

/// A queue of requests whose order a policy determines.
pub trait ServiceQueue {
    /// Adds a request to the queue.
    fn enqueue_request(&mut self, request: QueuedRequest);

    /// Moves the requests to serve next into `batch`, which must be empty before the call. Moves none if the queue is
    /// empty, or if the queued requests should wait for others.
    fn choose_requests(&mut self, now: Time, batch: &mut Vec<QueuedRequest>);

    /// Returns the time from which [`Self::choose_requests`] may choose requests even if no more enter the queue.
    fn wake_at(&self) -> Option<Time> {
        None
    }

    /// Returns true if a queued request should be served instead of `running`.
    fn should_preempt_running(&self, _running: &QueuedRequest) -> bool {
        false
    }
}

/// Creates a queue with the policy `kind`, for `models` models.
pub fn create_policy_queue(
    kind: ServicePolicyWithParameters,
    models: usize,
) -> Box<dyn ServiceQueue> {
    match kind {
        ServicePolicyWithParameters::RoundRobin => Box::new(ArrivalOrderQueue::default()),
        ServicePolicyWithParameters::FirstCome
        | ServicePolicyWithParameters::ShortestJob
        | ServicePolicyWithParameters::Priority { .. }
        | ServicePolicyWithParameters::EarliestDeadline => {
            Box::new(KeyedQueue::new(keyed::key_function_of(kind)))
        }
        ServicePolicyWithParameters::Batching { batch, wait } => {
            Box::new(PerModelBatchingQueue::new(batch, wait, models))
        }
    }
}
