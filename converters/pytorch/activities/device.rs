//! Finds the launches of kernels and copies, the dependencies between streams, and the host's waits
//! for device work.

use super::super::calls::{CommCall, RankCommCallsAndAnomalies};
use super::super::kineto::EventCategory;
use super::super::rank_timeline::{DeviceInterval, HostIntervalKind, JoinedRankCapture, NONE};
use super::super::timeline_events::TimelineEventWithoutTimes;
use super::host_waits::{AwaitedCommCallOrDeviceEvent, CommCallResultUses, HostWait};
use super::thread_chains::HostActivityLatestEndTimes;
use super::{
    ActivityKindAndIndex, CommCallLaneAndSubmitter, HostOrDeviceActivity, InferredDependencyCounts,
    RankActivitiesAndDependencies, ThreadCommunicationOrStreamLane,
};

/// Calls of CUDA, HIP, SYCL (unified runtime and its predecessor), Level Zero and CANN that return only after
/// device work has ended.
const BLOCKING: [&str; 22] = [
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cudaThreadSynchronize",
    "hipStreamSynchronize",
    "hipDeviceSynchronize",
    "hipEventSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "cuCtxSynchronize",
    "urQueueFinish",
    "urEventWait",
    "piQueueFinish",
    "piEventsWait",
    "zeCommandQueueSynchronize",
    "zeCommandListHostSynchronize",
    "zeEventHostSynchronize",
    "zeFenceHostSynchronize",
    "aclrtSynchronizeDevice",
    "aclrtSynchronizeStream",
    "aclrtSynchronizeStreamWithTimeout",
    "aclrtSynchronizeEvent",
];

/// Returns true if a call with this name returns only after device work has ended.
fn is_blocking_call(name: &str) -> bool {
    // With per-thread default streams, CUDA's entry points end in `_ptsz`, so remove this suffix. CANN's calls begin
    // with the name of their layer, so remove it too.
    let name = name.strip_prefix("AscendCL@").unwrap_or(name);
    BLOCKING.contains(&name.strip_suffix("_ptsz").unwrap_or(name))
}

/// Finds the host's waits for the device. The host waits in synchronizing calls. It also waits in calls that request a
/// copy and return only when the copy has ended. A copy that blocks the host also waits for earlier work on the copy's
/// stream.
pub(super) fn find_host_waits_for_device(
    rank: &JoinedRankCapture,
    bounds: &mut HostActivityLatestEndTimes,
    waits: &mut Vec<HostWait>,
    found: &mut InferredDependencyCounts,
) {
    if rank.devices.is_empty() {
        return;
    }
    let launches = DeviceEventsByStreamAndLaunch::new(rank);
    let syncs = sync_events_by_correlation(rank);
    for (index, item) in rank.items.iter().enumerate() {
        if rank.kind_of_host_interval(item) != HostIntervalKind::Runtime
            || !is_blocking_call(rank.event_name(item.event))
        {
            continue;
        }
        let event = &rank.events[item.event as usize];
        let stream = syncs
            .binary_search_by_key(&event.correlation, |&(correlation, _)| correlation)
            .ok()
            .and_then(|i| stream_of_sync_event(rank, syncs[i].1));
        // The launched event that ended last. If the capture names a stream, only events on it count.
        let last = match stream {
            Some(stream) => launches.last_event_on_stream_launched_before(stream, item.start),
            None => launches.last_event_ended_on_any_stream(rank, item.start, item.end),
        };
        let Some(device) = last else { continue };
        let end = rank.devices[device as usize].end.min(item.end);
        found.device_syncs += 1;
        waits.push(HostWait {
            thread: item.thread,
            from: item.start.min(end),
            to: end,
            source: AwaitedCommCallOrDeviceEvent::Device(device),
            into: index as u32,
        });
    }
    for (index, device) in rank.devices.iter().enumerate() {
        let Some(item) = rank.items.get(device.launch as usize) else {
            continue;
        };
        let copy = rank.events[device.event as usize].category == EventCategory::Copy;
        if !copy || device.end > item.end || device.end <= item.start {
            continue;
        }
        found.device_syncs += 1;
        // A call that returns after its copy also waits for earlier work on the stream, because a
        // queued copy starts only after the kernels before it.
        let before = index.checked_sub(1).map(|before| &rank.devices[before]);
        let queued = before.is_some_and(|b| b.stream == device.stream && b.end > item.start);
        let from = if queued {
            item.start
        } else {
            device.start.max(item.start)
        };
        let latest = &mut bounds.latest[device.launch as usize];
        *latest = (*latest).min(from);
        waits.push(HostWait {
            thread: item.thread,
            from,
            to: device.end,
            source: AwaitedCommCallOrDeviceEvent::Device(index as u32),
            into: NONE,
        });
    }
}

/// Creates the activities of all device events and device calls, with their dependencies. Returns the
/// activity of each device event.
pub(super) fn create_device_activities(
    rank: &JoinedRankCapture,
    calls: &RankCommCallsAndAnomalies,
    activities: &mut RankActivitiesAndDependencies,
    found: &mut InferredDependencyCounts,
) -> Vec<u32> {
    let mut made: Vec<(u32, u32)> = Vec::new();
    for (index, call) in calls.list.iter().enumerate() {
        if call.on_device() {
            made.push((call.device, index as u32));
        }
    }
    made.sort_unstable();
    let mut placed = vec![NONE; rank.devices.len()];
    // The stream's latest activities so far. The list has several activities if one kernel executed
    // a batch of messages.
    let mut previous: (i64, Vec<u32>) = (i64::MIN, Vec::new());
    for (index, device) in rank.devices.iter().enumerate() {
        if previous.0 != device.stream {
            previous = (device.stream, Vec::new());
        }
        let from = made.partition_point(|&(d, _)| d < index as u32);
        let own = made[from..].iter().take_while(|&&(d, _)| d == index as u32);
        let own: Vec<u32> = own.map(|&(_, call)| call).collect();
        // A call's later kernels have no activities of their own, so use the activity of its first kernel.
        let further = &calls.further;
        if let Ok(at) = further.binary_search_by_key(&(index as u32), |&(device, _)| device)
            && own.is_empty()
        {
            placed[index] = placed[further[at].1 as usize];
            continue;
        }
        // A call ends with its last kernel, even if the stream runs other work between the call's
        // kernels.
        let ends = previous
            .1
            .iter()
            .map(|&work| activities.list[work as usize].end);
        let busy = ends.max().filter(|&end| end > device.start);
        let begin = busy.unwrap_or(device.start);
        let launch = activities.of_item.get(device.launch as usize);
        let launch = launch.copied().unwrap_or(NONE);
        let mut pieces = Vec::new();
        let mut add = |activities: &mut RankActivitiesAndDependencies, kind, end: i64| {
            let end = begin.max(end);
            let work = activities.push(HostOrDeviceActivity { kind, begin, end });
            activities.add_dependency(launch, work);
            for &before in &previous.1 {
                activities.add_dependency(before, work);
            }
            pieces.push(work);
            work
        };
        match &own[..] {
            [] => {
                let kind = ActivityKindAndIndex::Device(index as u32);
                placed[index] = add(activities, kind, device.end);
            }
            // Messages of a batch run concurrently, but on one lane they would wait for one another. Each message
            // therefore has its own lane.
            [_, ..] => {
                for (place, &call) in own.iter().enumerate() {
                    let lane = match place {
                        0 => ThreadCommunicationOrStreamLane::Stream(device.stream),
                        _ => ThreadCommunicationOrStreamLane::Flight(place as u32 - 1),
                    };
                    let end = calls.list[call as usize].end;
                    let work = add(activities, ActivityKindAndIndex::Call(call), end);
                    activities.of_call[call as usize] = work;
                    let item = device.launch;
                    activities.call_places[call as usize] = CommCallLaneAndSubmitter { lane, item };
                    placed[index] = work;
                }
            }
        }
        previous.1 = pieces;
    }
    add_stream_wait_dependencies(rank, &placed, activities, found);
    link_collectives_to_stream_work(rank, calls, &placed, activities, found);
    placed
}

/// Adds dependencies between streams from `cudaStreamWaitEvent` calls, if the profiler recorded them.
fn add_stream_wait_dependencies(
    rank: &JoinedRankCapture,
    placed: &[u32],
    activities: &mut RankActivitiesAndDependencies,
    found: &mut InferredDependencyCounts,
) {
    let launches = DeviceEventsByStreamAndLaunch::new(rank);
    let runtime = runtime_calls_by_correlation(rank);
    let start_of = |correlation: u64| {
        let at = runtime
            .binary_search_by_key(&correlation, |&(key, _)| key)
            .ok()?;
        Some(rank.items[runtime[at].1 as usize].start)
    };
    for event in &rank.events {
        if event.category != EventCategory::Sync {
            continue;
        }
        let argument = |key: &str| integer_argument(rank, event, key);
        let (Some(on), Some(record)) = (
            argument("wait_on_stream"),
            argument("wait_on_cuda_event_record_corr_id"),
        ) else {
            continue;
        };
        let recorded = u64::try_from(record).ok().and_then(start_of);
        let (Some(recorded), Some(waited)) = (recorded, start_of(event.correlation)) else {
            continue;
        };
        let source = launches.last_event_on_stream_launched_before(on, recorded);
        let target = launches
            .first_event_on_stream_launched_after(rank.details_of_event(event).stream, waited);
        if let (Some(source), Some(target)) = (source, target) {
            found.stream_waits += 1;
            activities.add_dependency(placed[source as usize], placed[target as usize]);
        }
    }
}

/// Adds the dependencies of collectives. A collective waits for earlier work on the caller's stream, and the first
/// kernel that uses the result waits for the collective.
fn link_collectives_to_stream_work(
    rank: &JoinedRankCapture,
    calls: &RankCommCallsAndAnomalies,
    placed: &[u32],
    activities: &mut RankActivitiesAndDependencies,
    found: &mut InferredDependencyCounts,
) {
    if calls.list.iter().all(|call| !call.on_device()) {
        return;
    }
    let uses = CommCallResultUses::new(rank, calls);
    let mut by_launch: Vec<(u32, u32)> = Vec::with_capacity(rank.devices.len());
    let streams: Vec<i64> = {
        let mut streams: Vec<i64> = calls.list.iter().filter_map(|call| call.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    };
    for (i, device) in rank.devices.iter().enumerate() {
        // Communication streams run no compute kernels, so skip launches on these streams.
        if device.launch != NONE && streams.binary_search(&device.stream).is_err() {
            by_launch.push((device.launch, i as u32));
        }
    }
    by_launch.sort_unstable();
    for (index, call) in calls
        .list
        .iter()
        .enumerate()
        .filter(|(_, call)| call.on_device())
    {
        let own = activities.of_call[index];
        let thread = rank.items[call.item as usize].thread;
        let before = by_launch.partition_point(|&(launch, _)| launch < call.item);
        // c10d makes its stream wait for the caller's current stream. The caller's last launch is assumed to be the
        // last work on the caller's current stream.
        let given = before.checked_sub(1).map(|i| by_launch[i]);
        if let Some((launch, device)) = given
            && rank.items[launch as usize].thread == thread
        {
            found.stream_waits += 1;
            activities.add_dependency(placed[device as usize], own);
        }
        let user = uses
            .find_host_intervals_using_results(rank, call)
            .find_map(|item| {
                let end = rank.items[item as usize].end;
                let from = by_launch.partition_point(|&(launch, _)| launch < item);
                let &(launch, device) = by_launch.get(from)?;
                let inside = &rank.items[launch as usize];
                let launched =
                    inside.thread == rank.items[item as usize].thread && inside.start < end;
                // A kernel that started before the collective ended did not wait for it.
                (launched && rank.devices[device as usize].start >= call.end).then_some(device)
            });
        if let Some(device) = user {
            found.first_use += 1;
            activities.add_dependency(own, placed[device as usize]);
            continue;
        }
        // A Kineto trace without a host trace names no storages, so only times can show which
        // kernel waited.
        let timed = find_kernels_waiting_for_comm_call(rank, call, &streams);
        match timed.len() {
            0 => found.unawaited += 1,
            _ => found.by_time += 1,
        }
        for device in timed {
            activities.add_dependency(own, placed[device as usize]);
        }
    }
}

/// Maximum time, in ns, from the end of a collective until a kernel that waited for it starts.
const AT_ONCE: i64 = 20_000;

/// Returns the kernels that waited for `call`. Such a kernel was launched before the call ended, and began right after
/// it, on a stream that was idle when the call ended. `communicating` lists the streams on which communication runs.
fn find_kernels_waiting_for_comm_call(
    rank: &JoinedRankCapture,
    call: &CommCall,
    communicating: &[i64],
) -> Vec<u32> {
    if !call.asked.results.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(first) = rank.devices.get(from) {
        let stream = first.stream;
        let own = &rank.devices[from..];
        let own = &own[..own.partition_point(|device| device.stream == stream)];
        let next = own.partition_point(|device| device.start < call.end);
        if let Some(device) = own.get(next)
            && communicating.binary_search(&stream).is_err()
            && device.start - call.end <= AT_ONCE
            && rank
                .items
                .get(device.launch as usize)
                .is_some_and(|launch| launch.end <= call.end)
            && next
                .checked_sub(1)
                .is_none_or(|before| own[before].end <= call.end)
        {
            found.push((from + next) as u32);
        }
        from += own.len();
    }
    found
}

/// Index to find device events by stream and launch.
struct DeviceEventsByStreamAndLaunch {
    /// For each device event, its stream, the start of its launch, and its index.
    list: Vec<(i64, i64, u32)>,
    streams: Vec<i64>,
}

impl DeviceEventsByStreamAndLaunch {
    fn new(rank: &JoinedRankCapture) -> Self {
        let of = |(i, device): (usize, &DeviceInterval)| {
            (
                device.stream,
                rank.items
                    .get(device.launch as usize)
                    .map_or(i64::MIN, |launch| launch.start),
                i as u32,
            )
        };
        let mut list: Vec<_> = rank.devices.iter().enumerate().map(of).collect();
        list.sort_unstable();
        let mut streams: Vec<i64> = list.iter().map(|&(stream, ..)| stream).collect();
        streams.dedup();
        Self { list, streams }
    }

    fn last_event_on_stream_launched_before(&self, stream: i64, time: i64) -> Option<u32> {
        let after = self
            .list
            .partition_point(|&(s, at, _)| (s, at) < (stream, time));
        let &(found, _, device) = self.list.get(after.checked_sub(1)?)?;
        (found == stream).then_some(device)
    }

    fn first_event_on_stream_launched_after(&self, stream: i64, time: i64) -> Option<u32> {
        let from = self
            .list
            .partition_point(|&(s, at, _)| (s, at) < (stream, time));
        let &(found, _, device) = self.list.get(from)?;
        (found == stream).then_some(device)
    }

    /// Returns the event on any stream that was the last to end at or before `until`. Ignores events launched after
    /// `launched`.
    fn last_event_ended_on_any_stream(
        &self,
        rank: &JoinedRankCapture,
        launched: i64,
        until: i64,
    ) -> Option<u32> {
        let candidates = self
            .streams
            .iter()
            .filter_map(|&stream| self.last_event_on_stream_launched_before(stream, launched));
        candidates
            .filter(|&device| rank.devices[device as usize].end <= until)
            .max_by_key(|&device| (rank.devices[device as usize].end, device))
    }
}

fn runtime_calls_by_correlation(rank: &JoinedRankCapture) -> Vec<(u64, u32)> {
    let runtime = rank.items.iter().enumerate();
    let runtime =
        runtime.filter(|(_, item)| rank.kind_of_host_interval(item) == HostIntervalKind::Runtime);
    let mut list: Vec<(u64, u32)> = runtime
        .map(|(i, item)| (rank.events[item.event as usize].correlation, i as u32))
        .collect();
    list.sort_unstable();
    list
}

fn sync_events_by_correlation(rank: &JoinedRankCapture) -> Vec<(u64, u32)> {
    let syncs = rank.events.iter().enumerate();
    let syncs = syncs.filter(|(_, event)| event.category == EventCategory::Sync);
    let mut list: Vec<(u64, u32)> = syncs
        .map(|(i, event)| (event.correlation, i as u32))
        .collect();
    list.sort_unstable();
    list
}

/// Returns the stream of a synchronization event, or `None` if the event covers all streams.
fn stream_of_sync_event(rank: &JoinedRankCapture, event: u32) -> Option<i64> {
    let event = &rank.events[event as usize];
    let name = rank.kineto.texts.get(event.name);
    let stream = rank.details_of_event(event).stream;
    (name.starts_with("Stream Sync") && stream >= 0).then_some(stream)
}

fn integer_argument(
    rank: &JoinedRankCapture,
    event: &TimelineEventWithoutTimes,
    key: &str,
) -> Option<i64> {
    let args = rank.args_of_event(event)?;
    let (_, value) = args.iter().find(|(name, _)| name == key)?;
    value.trim_matches('"').parse().ok()
}
