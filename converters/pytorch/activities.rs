//! Finds the activities of a rank, and the dependencies that determine when each activity can
//! start.
//!
//! Every operator becomes one activity. An operator's own work is placed in one gap between its
//! child calls ([`own_places`]). The operator's remaining time, and the time between operators,
//! becomes host time before the next activity. The conversion therefore loses no time, and each
//! activity keeps its recorded time. An annotation becomes a mark of zero length, because the time
//! between its child calls belongs to Python.
//!
//! An activity depends on each of the following activities that ended before it started:
//!
//! - the previous activity on its thread or stream;
//! - if it is communication or a kernel, the activity that launched it;
//! - if it had to wait ([`host_waits`]), the communication or kernel for which it waited. The wait itself belongs to no
//!   activity, because the replay determines how long it lasts;
//! - if its thread was idle, the last activity to end on another thread.
//!
//! The host time before an activity begins when the last of its dependencies ends.

use super::calls::RankCommCallsAndAnomalies;
use super::rank_timeline::{HostIntervalKind, JoinedRankCapture, NONE};

mod device;
mod handoffs;
mod host_waits;
mod in_flight;
mod own_places;
mod thread_chains;

use host_waits::AwaitedCommCallOrDeviceEvent;

/// Kind of an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivityKindAndIndex {
    /// A host interval of [`JoinedRankCapture::items`].
    Item(u32),
    /// An event of [`JoinedRankCapture::devices`] that is not communication.
    Device(u32),
    /// A call in [`RankCommCallsAndAnomalies::list`].
    Call(u32),
    /// Zero-length mark at the end of a thread's last interval.
    End(u32),
}

/// Lane of an activity. Activities of one lane do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ThreadCommunicationOrStreamLane {
    /// A host thread.
    Thread(u32),
    /// Communication in flight on the host: calls of one worker thread, or messages to one peer.
    Flight(u32),
    /// A stream of the device.
    Stream(i64),
}

/// An activity of a rank.
#[derive(Clone, Copy, Debug)]
pub struct HostOrDeviceActivity {
    /// Kind of the recorded event that the activity represents.
    pub kind: ActivityKindAndIndex,
    /// Start of the activity, in ns since the epoch, by this rank's clock.
    pub begin: i64,
    /// End of the activity, in ns since the epoch, by this rank's clock.
    pub end: i64,
}

/// The lane on which a call runs, and the host interval that submitted it.
#[derive(Clone, Copy, Debug)]
pub struct CommCallLaneAndSubmitter {
    /// Lane on which the call runs.
    pub lane: ThreadCommunicationOrStreamLane,
    /// Host interval that submitted the call.
    pub item: u32,
}

/// Number of dependencies that each rule inferred, and number of anomalies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct InferredDependencyCounts {
    /// Number of waits for messages, inferred from the ends of the messages' recorded intervals.
    pub message_waits: u64,
    /// Number of waits by callers that blocked until the call ended.
    pub blocking: u64,
    /// Number of waits inside `wait_tensor`.
    pub wait_tensor: u64,
    /// Number of waits before the first use of the result's storage.
    pub first_use: u64,
    /// Number of waits that were inferred from times alone: a thread was idle until communication
    /// ended.
    pub by_time: u64,
    /// Number of times the host waited for the device.
    pub device_syncs: u64,
    /// Number of waits by one stream for another.
    pub stream_waits: u64,
    /// Number of waits by threads that resumed when another thread had finished its work.
    pub handoffs: u64,
    /// Number of dependencies that were dropped because the earlier activity ended after the later one began.
    pub cut: u64,
    /// Number of communication calls for whose result no activity waits.
    pub unawaited: u64,
}

/// Activities of a rank, with their dependencies.
#[derive(Debug, Default)]
pub struct RankActivitiesAndDependencies {
    /// All activities; the other fields refer to activities by index in this list.
    pub list: Vec<HostOrDeviceActivity>,
    /// Pairs (cause, effect) without duplicates, sorted by effect.
    pub dependencies: Vec<(u32, u32)>,
    /// For each call, the index of its activity.
    pub of_call: Vec<u32>,
    /// For each call, its lane and its host interval. For a call without an activity, the values have no meaning.
    pub call_places: Vec<CommCallLaneAndSubmitter>,
    /// For each host interval, the index of its activity.
    pub of_item: Vec<u32>,
    /// For each call, true if the program blocked until the call ended.
    pub blocked: Vec<bool>,
    /// Numbers of inferred dependencies, by rule.
    pub stats: InferredDependencyCounts,
}

/// Extracts the activities of `rank`, and records in `calls` when each call's result became usable.
pub fn find_activities_and_record_usable_results(
    rank: &JoinedRankCapture,
    calls: &mut RankCommCallsAndAnomalies,
) -> RankActivitiesAndDependencies {
    host_waits::record_when_call_results_are_usable(rank, calls);
    let mut found = InferredDependencyCounts::default();
    let (mut waits, blocked) =
        host_waits::find_host_waits_for_communication(rank, calls, &mut found);
    let mut bounds = thread_chains::HostActivityLatestEndTimes::new(rank, calls);
    device::find_host_waits_for_device(rank, &mut bounds, &mut waits, &mut found);
    let mut activities = RankActivitiesAndDependencies {
        of_call: vec![NONE; calls.list.len()],
        call_places: vec![CommCallLaneAndSubmitter::UNKNOWN; calls.list.len()],
        of_item: vec![NONE; rank.items.len()],
        blocked,
        ..RankActivitiesAndDependencies::default()
    };
    let chains = thread_chains::place_activities_in_thread_chains(
        rank,
        calls,
        bounds,
        &waits,
        &mut activities,
    );
    in_flight::create_activities_of_host_calls(rank, calls, &chains, &mut activities);
    let device_activities =
        device::create_device_activities(rank, calls, &mut activities, &mut found);
    for wait in &waits {
        let source = match wait.source {
            AwaitedCommCallOrDeviceEvent::Call(call)
                if calls.list[call as usize].done > calls.list[call as usize].end =>
            {
                let call = &calls.list[call as usize];
                chains.last_activity_of_thread_ended_by(call.worker, call.done, &activities.list)
            }
            AwaitedCommCallOrDeviceEvent::Call(call) => activities.of_call[call as usize],
            AwaitedCommCallOrDeviceEvent::Device(device) => device_activities[device as usize],
        };
        let target = match wait.into {
            NONE => chains.first_activity_of_thread_starting_from(
                wait.thread,
                wait.to,
                &activities.list,
            ),
            item => activities.of_item[item as usize],
        };
        activities.add_dependency(source, target);
    }
    handoffs::link_handoffs(&chains, rank, calls, &mut activities, &mut found);
    activities.stats = found;
    activities.sort_and_drop_impossible_dependencies();
    activities
}

impl CommCallLaneAndSubmitter {
    const UNKNOWN: Self = Self {
        lane: ThreadCommunicationOrStreamLane::Flight(0),
        item: NONE,
    };
}

impl RankActivitiesAndDependencies {
    /// Returns the lane of an activity.
    pub fn lane_of_activity(
        &self,
        rank: &JoinedRankCapture,
        activity: &HostOrDeviceActivity,
    ) -> ThreadCommunicationOrStreamLane {
        match activity.kind {
            ActivityKindAndIndex::Item(item) => {
                ThreadCommunicationOrStreamLane::Thread(rank.items[item as usize].thread)
            }
            ActivityKindAndIndex::End(thread) => ThreadCommunicationOrStreamLane::Thread(thread),
            ActivityKindAndIndex::Device(device) => {
                ThreadCommunicationOrStreamLane::Stream(rank.devices[device as usize].stream)
            }
            ActivityKindAndIndex::Call(call) => self.call_places[call as usize].lane,
        }
    }

    /// Returns the activity that submitted `work`. A host activity submits itself, a launch submits
    /// device work, and an operator submits a call. Returns 0 if the launch was before the capture.
    pub fn submitter_of(&self, rank: &JoinedRankCapture, work: u32) -> u32 {
        let item = match self.list[work as usize].kind {
            ActivityKindAndIndex::Item(_) | ActivityKindAndIndex::End(_) => return work,
            ActivityKindAndIndex::Device(device) => rank.devices[device as usize].launch,
            ActivityKindAndIndex::Call(call) => self.call_places[call as usize].item,
        };
        let submitter = self.of_item.get(item as usize).copied();
        submitter
            .filter(|&submitter| submitter != NONE)
            .unwrap_or(0)
    }

    /// Returns when the first activity starts and when the last one ends, in ns since the epoch.
    pub fn time_span(&self) -> (i64, i64) {
        let first = self.list.iter().map(|work| work.begin).min();
        let last = self.list.iter().map(|work| work.end).max();
        (first.unwrap_or(0), last.unwrap_or(0))
    }

    fn push(&mut self, work: HostOrDeviceActivity) -> u32 {
        debug_assert!(work.begin <= work.end, "{work:?} takes time");
        self.list.push(work);
        self.list.len() as u32 - 1
    }

    /// Records that `effect` starts after `cause`. Does nothing if either does not exist.
    fn add_dependency(&mut self, cause: u32, effect: u32) {
        if cause != NONE && effect != NONE && cause != effect {
            self.dependencies.push((cause, effect));
        }
    }

    /// Sorts the dependencies, and drops those that contradict the times: the cause must end before the effect begins.
    /// Zero-length activities at the same moment are ordered by insertion, which prevents cycles.
    fn sort_and_drop_impossible_dependencies(&mut self) {
        sort_dependencies_by_effect_then_cause(&mut self.dependencies, self.list.len());
        self.dependencies.dedup();
        let list = &self.list;
        let before = self.dependencies.len();
        self.dependencies.retain(|&(cause, effect)| {
            let (one, other) = (&list[cause as usize], &list[effect as usize]);
            let moment = one.begin == other.end;
            one.end <= other.begin && (!moment || cause < effect)
        });
        self.stats.cut = (before - self.dependencies.len()) as u64;
        self.dependencies.shrink_to_fit();
        self.list.shrink_to_fit();
    }
}

/// Sorts dependencies by effect, then by cause; `activities` is the total number of activities.
fn sort_dependencies_by_effect_then_cause(dependencies: &mut [(u32, u32)], activities: usize) {
    // Use a counting sort by effect. The few causes of each effect are sorted afterwards.
    let mut place = vec![0_u32; activities + 1];
    for &(_, effect) in &*dependencies {
        place[effect as usize + 1] += 1;
    }
    for i in 0..activities {
        place[i + 1] += place[i];
    }
    let mut causes = vec![NONE; dependencies.len()];
    for &(cause, effect) in &*dependencies {
        let place = &mut place[effect as usize];
        causes[*place as usize] = cause;
        *place += 1;
    }
    // After the loop, `place` contains the end of each effect's range.
    let mut start = 0;
    for (effect, end) in (0..).zip(place) {
        let own = start..end as usize;
        causes[own.clone()].sort_unstable();
        for i in own {
            dependencies[i] = (causes[i], effect);
        }
        start = end as usize;
    }
}

/// Returns a flag for each thread, which is true if the thread only executes work that other threads requested.
fn flag_worker_threads(rank: &JoinedRankCapture, calls: &RankCommCallsAndAnomalies) -> Vec<bool> {
    let mut works_for = vec![false; rank.threads.len()];
    for call in calls.list.iter().filter(|call| call.worker != NONE) {
        works_for[call.worker as usize] = true;
    }
    for call in &calls.list {
        works_for[rank.items[call.item as usize].thread as usize] = false;
    }
    works_for
}

/// Returns true if a host interval's own time counts as work in this role. Otherwise, the time was spent in Python
/// code.
fn host_interval_counts_as_work(role: HostIntervalKind) -> bool {
    role != HostIntervalKind::Annotation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_sorted_by_effect_match_the_standard_library_sort() {
        let mut state = 1_u64;
        for activities in [1, 2, 7, 100] {
            let mut below = || {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 33) as u32 % activities
            };
            let mut list: Vec<(u32, u32)> = (0..300).map(|_| (below(), below())).collect();
            let mut expected = list.clone();
            expected.sort_by_key(|&(cause, effect)| (effect, cause));
            sort_dependencies_by_effect_then_cause(&mut list, activities as usize);
            assert_eq!(list, expected);
        }
        sort_dependencies_by_effect_then_cause(&mut [], 0);
    }
}
