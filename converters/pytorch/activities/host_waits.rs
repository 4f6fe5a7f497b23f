//! Finds the waits of host threads for communication.

use super::super::calls::{CommCall, RankCommCallsAndAnomalies};
use super::super::rank_timeline::{
    HostIntervalKind, InnermostIntervalSegment, JoinedRankCapture, NONE,
};
use super::InferredDependencyCounts;
use std::collections::BTreeMap;

/// The call or device event for which a thread waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AwaitedCommCallOrDeviceEvent {
    /// A communication call, by its index.
    Call(u32),
    /// A device event, by its index.
    Device(u32),
}

/// Interval in which a thread did no work, because it waited for other work to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostWait {
    /// Index of the waiting thread.
    pub thread: u32,
    /// Earliest possible start of the wait, in ns.
    pub from: i64,
    /// End of the wait, in ns.
    pub to: i64,
    /// The call or device event for which the thread waited.
    pub source: AwaitedCommCallOrDeviceEvent,
    /// Host interval that contains the wait and continues after it, or [`NONE`] if the next
    /// activity starts after the wait.
    pub into: u32,
}

/// Minimum idle time, in ns, that shows a wait from times alone. Python leaves gaps of some tens of microseconds
/// between operators.
const NOTICEABLE: i64 = 100_000;
/// Minimum idle time, in ns, if the thread had just launched the call and resumed soon after the
/// call ended.
const PROMPT: i64 = 40_000;
/// Maximum number of nested operators around the operator that requests communication.
const DEEPEST: usize = 16;

/// Records when each call's result becomes usable. The worker may first copy the result into place, so the result may
/// become usable after the call's end.
pub(super) fn record_when_call_results_are_usable(
    rank: &JoinedRankCapture,
    calls: &mut RankCommCallsAndAnomalies,
) {
    for (worker, list) in group_calls_by_worker(calls) {
        let range = rank.threads[worker as usize].items.clone();
        let items = &rank.items[range.start as usize..range.end as usize];
        for (place, &index) in list.iter().enumerate() {
            let call = &calls.list[index as usize];
            let next = list.get(place + 1).map(|&next| &calls.list[next as usize]);
            let until = next.map_or(i64::MAX, |next| next.start);
            let later = next.map_or(i64::MAX, |next| next.launched);
            let first = items.partition_point(|item| item.start < call.end);
            let mut done = call.done;
            for item in items[first..].iter().take_while(|item| item.start < until) {
                // The worker may prepare the next call as soon as it is launched. From that launch on, count only work
                // on this call's results.
                let ours = item.start < done
                    || host_node_uses_any_storage(rank, item.host, &call.asked.results);
                if item.start >= later && !ours {
                    break;
                }
                done = done.max(item.end);
            }
            calls.list[index as usize].done = done;
        }
    }
}

/// Returns each worker's calls, sorted by start.
pub(super) fn group_calls_by_worker(calls: &RankCommCallsAndAnomalies) -> BTreeMap<u32, Vec<u32>> {
    let mut workers: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (index, call) in calls.list.iter().enumerate() {
        if call.worker != NONE {
            workers.entry(call.worker).or_default().push(index as u32);
        }
    }
    for list in workers.values_mut() {
        list.sort_by_key(|&index| (calls.list[index as usize].start, index));
    }
    workers
}

fn host_node_uses_any_storage(rank: &JoinedRankCapture, host: u32, storages: &[u64]) -> bool {
    let mut used = rank
        .host
        .input_and_output_storages_of_node(host)
        .into_iter()
        .flatten();
    used.any(|storage| storages.contains(storage))
}

/// Returns the segment that contains `time`; a segment includes its end.
pub(super) fn segment_at(
    segments: &[InnermostIntervalSegment],
    time: i64,
) -> Option<&InnermostIntervalSegment> {
    let index = segments.partition_point(|segment| segment.to < time);
    segments.get(index).filter(|segment| segment.from < time)
}

/// Finds when the host waited for its own communication, and the calls on which it blocked.
pub(super) fn find_host_waits_for_communication(
    rank: &JoinedRankCapture,
    calls: &RankCommCallsAndAnomalies,
    found: &mut InferredDependencyCounts,
) -> (Vec<HostWait>, Vec<bool>) {
    let mut waits = Vec::new();
    let mut blocked = vec![false; calls.list.len()];
    if calls.list.iter().all(CommCall::on_device) {
        return (waits, blocked);
    }
    let threads = 0..rank.threads.len() as u32;
    let segments: Vec<_> = threads
        .map(|thread| rank.segments_of_thread(thread))
        .collect();
    let uses = CommCallResultUses::new(rank, calls);
    for (index, call) in calls.list.iter().enumerate() {
        if call.on_device() {
            continue;
        }
        let thread = rank.items[call.item as usize].thread;
        let before = waits.len();
        if call.is_message() {
            match find_host_wait_for_message(rank, call, index, &segments[thread as usize]) {
                Some(wait) => {
                    found.message_waits += 1;
                    waits.push(wait);
                }
                None => found.unawaited += 1,
            }
        } else if call.asked.asynchronous == Some(false) {
            found.blocking += 1;
            waits.push(HostWait {
                thread,
                from: rank.items[call.item as usize].end.min(call.done),
                to: call.done,
                source: AwaitedCommCallOrDeviceEvent::Call(index as u32),
                into: NONE,
            });
        } else {
            // If a result is first used long after the call ended, for example in a later step, the
            // thread may still have waited right after the call. A wait inferred from times
            // therefore takes precedence.
            let used = uses.find_wait_before_first_use(rank, calls, index, &segments);
            let timed = match used {
                Some(wait) if wait.from < wait.to => None,
                _ => find_idle_thread_wait_for_call(rank, call, index, &segments[thread as usize]),
            };
            match (timed, used) {
                (Some(_), _) => found.by_time += 1,
                (None, Some(wait)) if wait.into == NONE => found.first_use += 1,
                (None, Some(_)) => found.wait_tensor += 1,
                (None, None) => found.unawaited += 1,
            }
            waits.extend(timed.or(used));
        }
        if let [wait, ..] = waits[before..] {
            blocked[index] = wait.to - wait.from > NOTICEABLE;
        }
    }
    (waits, blocked)
}

/// Returns the wait for a message. The message's recorded interval ends when the program's wait for it ends. Programs
/// wait between operators. If the interval ends during an operator's own time, no thread waited.
fn find_host_wait_for_message(
    rank: &JoinedRankCapture,
    call: &CommCall,
    index: usize,
    segments: &[InnermostIntervalSegment],
) -> Option<HostWait> {
    let segment = segment_at(segments, call.end);
    let owner = segment.and_then(|segment| rank.items.get(segment.owner as usize));
    if owner.is_some_and(|item| {
        rank.kind_of_host_interval(item) != HostIntervalKind::Annotation && item.end > call.end
    }) {
        return None;
    }
    let from = segment.map_or(call.end, |segment| segment.from);
    Some(HostWait {
        thread: rank.items[call.item as usize].thread,
        from: from.max(call.start),
        to: call.end,
        source: AwaitedCommCallOrDeviceEvent::Call(index as u32),
        into: NONE,
    })
}

/// Returns the wait of a thread that was idle, outside operators, until the call ended. Right after
/// the launch, a shorter idle time is sufficient.
fn find_idle_thread_wait_for_call(
    rank: &JoinedRankCapture,
    call: &CommCall,
    index: usize,
    segments: &[InnermostIntervalSegment],
) -> Option<HostWait> {
    let at = segments.partition_point(|segment| segment.to < call.done);
    let segment = segments
        .get(at)
        .filter(|segment| segment.from < call.done)?;
    let idles = |segment: &InnermostIntervalSegment| {
        let own = rank.items.get(segment.owner as usize);
        own.is_none_or(|item| rank.kind_of_host_interval(item) == HostIntervalKind::Annotation)
    };
    let asker = rank.items[call.item as usize];
    // Operators that enclose the requesting operator end after it and do nothing else, so count them as idle time.
    let ends_asking = |segment: &InnermostIntervalSegment| {
        let owner = rank.items.get(segment.owner as usize);
        owner.is_some_and(|item| item.start <= asker.start && item.end >= asker.end)
    };
    let before = segments[..at].iter().rev().take(DEEPEST);
    let mut between = before.take_while(|segment| segment.to > asker.end);
    let at_once =
        segment.from >= asker.end && between.all(ends_asking) && segment.to - call.done < PROMPT;
    let noticeable = if at_once { PROMPT } else { NOTICEABLE };
    (idles(segment) && call.done - segment.from > noticeable && segment.to > call.done).then_some(
        HostWait {
            thread: asker.thread,
            from: segment.from,
            to: call.done,
            source: AwaitedCommCallOrDeviceEvent::Call(index as u32),
            into: NONE,
        },
    )
}

/// Host intervals that use the result of a call, as (storage, start of the interval, index of the
/// interval).
pub(super) struct CommCallResultUses(Vec<(u64, i64, u32)>);

impl CommCallResultUses {
    /// Finds all host intervals that use storages written by a call.
    pub fn new(rank: &JoinedRankCapture, calls: &RankCommCallsAndAnomalies) -> Self {
        let mut wanted: Vec<u64> = calls
            .list
            .iter()
            .flat_map(|c| c.asked.results.iter().copied())
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut uses = Vec::new();
        for (i, item) in rank.items.iter().enumerate() {
            for storage in rank
                .host
                .input_and_output_storages_of_node(item.host)
                .into_iter()
                .flatten()
            {
                if wanted.binary_search(storage).is_ok() {
                    uses.push((*storage, item.start, i as u32));
                }
            }
        }
        uses.sort_unstable();
        uses.dedup();
        Self(uses)
    }

    /// Returns the host intervals that use a result of `call` and start after the call's operator,
    /// sorted by start.
    pub fn find_host_intervals_using_results<'a>(
        &'a self,
        rank: &'a JoinedRankCapture,
        call: &'a CommCall,
    ) -> impl Iterator<Item = u32> + 'a {
        let asker = rank.items[call.item as usize];
        let mut found: Vec<(i64, u32)> = call
            .asked
            .results
            .iter()
            .flat_map(|storage| {
                let from = self
                    .0
                    .partition_point(|&(s, at, _)| (s, at) < (*storage, asker.end));
                self.0[from..]
                    .iter()
                    .take_while(move |(s, _, _)| s == storage)
                    .take(64)
            })
            .map(|&(_, at, item)| (at, item))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, item)| item)
    }

    /// Returns the wait that happened before or during the first use of a call's result. Uses by
    /// the call's own worker do not count.
    fn find_wait_before_first_use(
        &self,
        rank: &JoinedRankCapture,
        calls: &RankCommCallsAndAnomalies,
        index: usize,
        segments: &[Vec<InnermostIntervalSegment>],
    ) -> Option<HostWait> {
        let call = &calls.list[index];
        for i in self.find_host_intervals_using_results(rank, call) {
            let item = &rank.items[i as usize];
            if item.thread == call.worker {
                continue;
            }
            let inside = rank
                .host_interval_name(item)
                .ends_with("c10d_functional::wait_tensor");
            if inside {
                return (call.done <= item.end).then_some(HostWait {
                    thread: item.thread,
                    from: item.start.min(call.done),
                    to: call.done,
                    source: AwaitedCommCallOrDeviceEvent::Call(index as u32),
                    into: i,
                });
            }
            // A view of an unfinished result can be created without a wait, so an interval that starts before the
            // result is usable is not a use.
            if item.start < call.done {
                continue;
            }
            let before = segment_at(&segments[item.thread as usize], item.start);
            let from = before.map_or(call.done, |segment| segment.from.min(call.done));
            let waited = before.is_some_and(|segment| segment.from < call.done);
            return Some(HostWait {
                thread: item.thread,
                from: if waited { from } else { item.start },
                to: if waited { call.done } else { item.start },
                source: AwaitedCommCallOrDeviceEvent::Call(index as u32),
                into: NONE,
            });
        }
        None
    }
}
