//! Serves queued requests in batches; all requests of a batch are for the same model. A batch is served when it is
//! full, or when one of its requests has waited long enough.
//!
//! If several models have such a batch, the batch with the oldest request is served first.

use super::{QueuedRequest, ServiceQueue};
use chakram_base::units::{Span, Time};
use std::collections::VecDeque;

/// Queued requests of each model.
#[derive(Debug)]
pub struct PerModelBatchingQueue {
    most: usize,
    wait: Span,
    queues: Vec<VecDeque<QueuedRequest>>,
}

impl PerModelBatchingQueue {
    /// Creates the queue for batches of at most `most` requests. A batch that is not full is served
    /// once its oldest request has waited for `wait`.
    pub fn new(most: u32, wait: Span, models: usize) -> Self {
        Self {
            most: most as usize,
            wait,
            queues: vec![VecDeque::new(); models],
        }
    }
}

impl ServiceQueue for PerModelBatchingQueue {
    fn enqueue_request(&mut self, request: QueuedRequest) {
        self.queues[request.model as usize].push_back(request);
    }

    fn choose_requests(&mut self, now: Time, batch: &mut Vec<QueuedRequest>) {
        let ripe = |queue: &&mut VecDeque<QueuedRequest>| {
            let oldest = queue.front();
            oldest.is_some_and(|oldest| queue.len() >= self.most || oldest.since + self.wait <= now)
        };
        let first = |queue: &&mut VecDeque<QueuedRequest>| {
            queue.front().map(|oldest| (oldest.since, oldest.number))
        };
        let chosen = self.queues.iter_mut().filter(ripe).min_by_key(first);
        if let Some(queue) = chosen {
            let count = queue.len().min(self.most);
            batch.extend(queue.drain(..count));
        }
    }

    fn wake_at(&self) -> Option<Time> {
        let oldest = self.queues.iter().filter_map(VecDeque::front);
        oldest.map(|oldest| oldest.since + self.wait).min()
    }
}
