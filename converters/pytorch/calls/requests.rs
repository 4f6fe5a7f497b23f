//! Finds requests that a later launch executes.
//!
//! NCCL launches no kernels inside a group (between `ncclGroupStart` and `ncclGroupEnd`). `batch_isend_irecv` and the
//! coalescing manager record every request separately. One launch at the group's end executes all of the group's
//! requests, and it is outside their ranges. A launch outside all requests therefore belongs to the requests that its
//! thread made since the previous launch. If a group is too large for one kernel, NCCL launches several kernels in
//! succession.

use super::super::kineto::{EventCategory, is_launch};
use super::super::rank_timeline::{JoinedRankCapture, NONE};
use super::args;
use std::collections::BTreeMap;

/// The host intervals that describe a communication request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommRequestHostIntervalIndices {
    /// Host interval of `record_param_comms`, or [`NONE`].
    pub record: u32,
    /// Host interval of the `c10d` operator, or [`NONE`].
    pub operator: u32,
}

/// A rank's requests that a later launch executes.
#[derive(Debug, Default)]
pub(super) struct RequestsByExecutingLaunch {
    /// Requests, by the host interval of the launch that executes them.
    by_launch: BTreeMap<u32, Vec<CommRequestHostIntervalIndices>>,
    /// Requests without a known launch.
    pub unlaunched: Vec<CommRequestHostIntervalIndices>,
}

impl RequestsByExecutingLaunch {
    /// Returns the requests that the launch `item` executes, in program order.
    pub fn requests_executed_by_launch(&self, item: u32) -> &[CommRequestHostIntervalIndices] {
        self.by_launch.get(&item).map_or(&[], Vec::as_slice)
    }

    /// Finds the requests whose launch is outside the request's own interval. `communicating` maps each host interval
    /// that launches communication kernels to true if the launch is outside every request.
    pub fn find_requests_launched_outside_interval(
        rank: &JoinedRankCapture,
        communicating: &BTreeMap<u32, bool>,
    ) -> Self {
        let mut found = Self::default();
        if !communicating.values().any(|&outside| outside) && rank.dropped.is_empty() {
            return found;
        }
        let mut launched: Vec<u32> = rank.devices.iter().map(|device| device.launch).collect();
        launched.sort_unstable();
        let roles = HostIntervalCommRequestRole::classify_event_names(rank);
        for thread in &rank.threads {
            let mut walk = ThreadRequestLaunchMatcher::default();
            for index in thread.items.clone() {
                let item = &rank.items[index as usize];
                let event = &rank.events[item.event as usize];
                walk.close_open_request_if_ended(item.start, &mut found.unlaunched);
                match roles[event.name as usize] {
                    // Only NCCL itself launches a group's kernels, so an operator of another kind ends
                    // the group.
                    HostIntervalCommRequestRole::Other
                        if event.category == EventCategory::CpuOp =>
                    {
                        walk.last.clear()
                    }
                    HostIntervalCommRequestRole::Other => {}
                    HostIntervalCommRequestRole::Record => {
                        walk.open_request_or_add_record_to_open_one(index, NONE, item.end)
                    }
                    HostIntervalCommRequestRole::Operator => {
                        walk.open_request_or_add_record_to_open_one(NONE, index, item.end)
                    }
                    HostIntervalCommRequestRole::Launch => match communicating.get(&index) {
                        Some(true) => {
                            let requests = walk.take_requests_executed_by_outside_launch();
                            found.by_launch.insert(index, requests);
                        }
                        Some(false) => walk.mark_open_request_launched(),
                        // The profiler may have dropped the launch of these requests, or a graph capture may have
                        // recorded it.
                        None if launched.binary_search(&index).is_err() => {
                            if !walk.mark_launched_returning_whether_open()
                                && rank.has_no_enclosing_operator(index)
                            {
                                let requests = walk.take_requests_executed_by_outside_launch();
                                found.by_launch.insert(index, requests);
                            }
                        }
                        None => walk.last.clear(),
                    },
                }
            }
            walk.close_open_request_if_ended(i64::MAX, &mut found.unlaunched);
            found.unlaunched.append(&mut walk.pending);
        }
        found
    }
}

/// Role of a host interval, determined by its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostIntervalCommRequestRole {
    Other,
    Record,
    Operator,
    Launch,
}

impl HostIntervalCommRequestRole {
    fn classify_event_names(rank: &JoinedRankCapture) -> Vec<Self> {
        let texts = &rank.kineto.texts;
        let roles = (0..texts.len() as u32).map(|name| match texts.get(name) {
            "record_param_comms" => Self::Record,
            name if args::comm_op_of_operator(name).is_some() => Self::Operator,
            name if is_launch(name) => Self::Launch,
            _ => Self::Other,
        });
        roles.collect()
    }
}

/// State of the walk over a thread.
#[derive(Debug, Default)]
struct ThreadRequestLaunchMatcher {
    /// The open request, its end, and whether it launched a kernel itself.
    open: Option<(CommRequestHostIntervalIndices, i64, bool)>,
    /// Requests that have ended and wait for a launch.
    pending: Vec<CommRequestHostIntervalIndices>,
    /// Requests that the last launch executed. Launches right after it execute the same requests.
    last: Vec<CommRequestHostIntervalIndices>,
}

impl ThreadRequestLaunchMatcher {
    /// Closes the open request if it ended by `now`.
    fn close_open_request_if_ended(
        &mut self,
        now: i64,
        unlaunched: &mut Vec<CommRequestHostIntervalIndices>,
    ) {
        let Some((request, _, own)) = self.open.take_if(|(_, end, _)| *end <= now) else {
            return;
        };
        if own {
            // The request launched its own kernel, so no group was open. Earlier pending requests therefore have no
            // launch.
            unlaunched.append(&mut self.pending);
        } else {
            self.pending.push(request);
        }
        self.last.clear();
    }

    /// If an operator is already open, adds the record to its request instead of opening a new one.
    fn open_request_or_add_record_to_open_one(&mut self, record: u32, operator: u32, end: i64) {
        match &mut self.open {
            Some((request, ..)) => {
                if request.record == NONE {
                    request.record = record;
                }
            }
            open => {
                *open = Some((
                    CommRequestHostIntervalIndices { record, operator },
                    end,
                    false,
                ))
            }
        }
    }

    /// Records that the open request launched its own kernel.
    fn mark_open_request_launched(&mut self) {
        if let Some((.., own)) = &mut self.open {
            *own = true;
        }
    }

    fn mark_launched_returning_whether_open(&mut self) -> bool {
        self.mark_open_request_launched();
        self.open.is_some()
    }

    /// Returns the requests that a launch outside all requests executes.
    fn take_requests_executed_by_outside_launch(&mut self) -> Vec<CommRequestHostIntervalIndices> {
        if !self.pending.is_empty() {
            self.last = std::mem::take(&mut self.pending);
        }
        self.last.clone()
    }
}
