//! Round robin over cores: each request is assigned to a processor when it arrives, and its jobs
//! are assigned to cores when they are ready.

use super::{QueuedRequest, ServiceQueue};
use chakram_base::units::Time;
use std::collections::VecDeque;

/// Queued requests, in order of arrival.
#[derive(Debug, Default)]
pub struct ArrivalOrderQueue(VecDeque<QueuedRequest>);

impl ServiceQueue for ArrivalOrderQueue {
    fn enqueue_request(&mut self, request: QueuedRequest) {
        self.0.push_back(request);
    }

    fn choose_requests(&mut self, _now: Time, batch: &mut Vec<QueuedRequest>) {
        batch.extend(self.0.pop_front());
    }
}
