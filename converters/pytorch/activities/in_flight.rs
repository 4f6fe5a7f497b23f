//! Creates the activities of communication in flight on the host.

use super::super::calls::{CommOp, RankCommCallsAndAnomalies};
use super::super::rank_timeline::{JoinedRankCapture, NONE};
use super::host_waits::group_calls_by_worker;
use super::thread_chains::ActivitiesByThread;
use super::{
    ActivityKindAndIndex, CommCallLaneAndSubmitter, HostOrDeviceActivity,
    RankActivitiesAndDependencies, ThreadCommunicationOrStreamLane,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Lanes, ordered by when they become free.
type HostCommLanesByFreeTime = BinaryHeap<Reverse<(i64, u32)>>;

/// Creates an activity, with its dependencies, for every call that the host executed.
pub(super) fn create_activities_of_host_calls(
    rank: &JoinedRankCapture,
    calls: &RankCommCallsAndAnomalies,
    chains: &ActivitiesByThread,
    activities: &mut RankActivitiesAndDependencies,
) {
    let mut order: Vec<u32> = (0..calls.list.len() as u32)
        .filter(|&call| !calls.list[call as usize].on_device())
        .collect();
    order.sort_by_key(|&call| (calls.list[call as usize].start, call));
    // Calls of one worker queue for it, and messages to one peer queue for their connection. No other calls are queued,
    // even if the recorded times suggest it. Each worker and each connection gets its own lane, or several lanes if its
    // calls were in flight concurrently.
    let mut lanes: BTreeMap<(u32, Option<u32>, bool), HostCommLanesByFreeTime> = BTreeMap::new();
    let mut count = 0;
    for index in order {
        let call = &calls.list[index as usize];
        let free = lanes
            .entry(match call.worker {
                NONE => (NONE, call.asked.peer, call.act == CommOp::Send),
                worker => (worker, None, false),
            })
            .or_default();
        let lane = match free.peek() {
            Some(&Reverse((from, lane))) if from <= call.start => {
                free.pop();
                lane
            }
            _ => {
                count += 1;
                count - 1
            }
        };
        free.push(Reverse((call.end, lane)));
        let work = activities.push(HostOrDeviceActivity {
            kind: ActivityKindAndIndex::Call(index),
            begin: call.start,
            end: call.end,
        });
        activities.of_call[index as usize] = work;
        activities.call_places[index as usize] = CommCallLaneAndSubmitter {
            lane: ThreadCommunicationOrStreamLane::Flight(lane),
            item: call.item,
        };
        let caller = rank.items[call.item as usize].thread;
        let launch =
            chains.last_activity_of_thread_ended_by(caller, call.launched, &activities.list);
        activities.add_dependency(launch, work);
    }
    for (worker, list) in group_calls_by_worker(calls) {
        for (place, &index) in list.iter().enumerate() {
            let call = &calls.list[index as usize];
            let work = activities.of_call[index as usize];
            let caller = rank.items[call.item as usize].thread;
            let launch =
                chains.last_activity_of_thread_ended_by(caller, call.launched, &activities.list);
            // A call that was launched while the worker was still busy had to queue.
            let busy =
                chains.last_activity_of_thread_ended_by(worker, call.start, &activities.list);
            if busy != NONE && activities.list[busy as usize].end > call.launched {
                activities.add_dependency(busy, work);
            }
            let before = place.checked_sub(1).map(|before| list[before]);
            if let Some(before) = before
                && calls.list[before as usize].end > call.launched
            {
                activities.add_dependency(activities.of_call[before as usize], work);
            }
            // The worker's next activity depends on the call, unless that activity belongs to the next call.
            let next = list.get(place + 1).map(|&next| &calls.list[next as usize]);
            let next = chains.first_activity_entirely_within(
                worker,
                call.end,
                next.map_or(i64::MAX, |n| n.start),
                activities,
            );
            activities.add_dependency(work, next);
            // Activities of the worker between the call's launch and start prepared the call.
            let preparing = chains.first_activity_entirely_within(
                worker,
                call.launched,
                call.start,
                activities,
            );
            activities.add_dependency(launch, preparing);
        }
    }
}
