//! Admits requests to the queue. They come from arrivals (a file or random numbers) and from users. Each enters the
//! queue when its datapath latency ends.

use super::{RequestInServingSystem, ServeRunState};
use crate::arrivals::RequestArrival;
use crate::error::ServeError;
use crate::policy::QueuedRequest;
use chakram_base::units::{Span, Time};
use std::cmp::Reverse;

/// An event that no job causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DatapathOrThinkTimeEnd {
    /// The datapath latency of a request has ended. The fields are the request's number and the index of its state.
    Ready(u64, u32),
    /// A user's thinking time has ended, so the user sends a request.
    Ask(u64),
}

impl ServeRunState<'_> {
    /// Admits all requests that are due now to the queue.
    pub(super) fn admit_arrivals(&mut self) -> Result<(), ServeError> {
        let now = self.now;
        while let Some(&Reverse((at, timer))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            match timer {
                DatapathOrThinkTimeEnd::Ready(_, slot) => self.enqueue_ready_request(slot),
                DatapathOrThinkTimeEnd::Ask(_) => {
                    let model = self.mix.next();
                    self.admit_request(RequestArrival {
                        at: now,
                        model,
                        tokens: [0, 0],
                    });
                }
            }
        }
        while let Some(arrival) = self.next_arrival.filter(|arrival| arrival.at <= now) {
            self.admit_request(arrival);
            self.next_arrival = self.arrivals.next()?;
        }
        Ok(())
    }

    /// Schedules a user's next request, unless the scenario has reached its maximum number of requests or duration.
    pub(super) fn schedule_next_user_request(&mut self, at: Time) {
        let stop = &self.prepared.scenario.stop;
        let over = stop.requests.is_some_and(|most| self.asked >= most)
            || stop.duration.is_some_and(|end| at >= Time::ZERO + end);
        if !over {
            let timer = DatapathOrThinkTimeEnd::Ask(self.asked);
            self.asked += 1;
            self.timers.push(Reverse((at, timer)));
        }
    }

    fn admit_request(&mut self, arrival: RequestArrival) {
        let model = self.model_by_index(arrival.model);
        let stated = arrival.tokens != [0, 0];
        let tokens = match model.served.tokens {
            Some(tokens) if !stated => tokens,
            _ => arrival.tokens,
        };
        let ready = arrival.at + model.datapath;
        let slot = self.requests.add_item(RequestInServingSystem {
            number: self.arrived,
            model: arrival.model,
            arrival: arrival.at,
            ready,
            tokens,
        });
        self.recorder
            .on_arrived(self.arrived, arrival.model, self.now);
        if model.datapath == Span::ZERO {
            self.enqueue_ready_request(slot);
        } else {
            let timer = DatapathOrThinkTimeEnd::Ready(self.arrived, slot);
            self.timers.push(Reverse((ready, timer)));
        }
        self.arrived += 1;
    }

    fn enqueue_ready_request(&mut self, slot: u32) {
        let state = self.requests[slot];
        let model = self.model_by_index(state.model);
        let due = model.served.deadline.unwrap_or(Span::MAX);
        self.recorder.queue.change_level(self.now, 1);
        self.policy.enqueue_request(QueuedRequest {
            number: state.number,
            slot,
            resumes: false,
            model: state.model,
            since: state.ready,
            due: state.arrival + due,
            level: model.served.level,
            work: match self.orders_queue_by_work() {
                true => model.unloaded_batch_time(self.prepared, &[state], &[]),
                false => Span::ZERO,
            },
        });
    }
}
