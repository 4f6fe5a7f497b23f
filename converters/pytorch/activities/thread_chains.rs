//! Orders the activities of each host thread.

use super::super::calls::RankCommCallsAndAnomalies;
use super::super::rank_timeline::{JoinedRankCapture, NONE};
use super::host_waits::HostWait;
use super::own_places::{self, OwnWorkPositionAmongChildren};
use super::{
    ActivityKindAndIndex, HostOrDeviceActivity, RankActivitiesAndDependencies,
    host_interval_counts_as_work,
};

/// Upper bounds on when the activities of host intervals end.
pub(super) struct HostActivityLatestEndTimes {
    /// For each host interval that launches something, the latest time at which its activity can end. The part of the
    /// interval after the launch belongs to the next activity.
    pub latest: Vec<i64>,
}

impl HostActivityLatestEndTimes {
    pub(super) fn new(rank: &JoinedRankCapture, calls: &RankCommCallsAndAnomalies) -> Self {
        let mut this = Self {
            latest: vec![i64::MAX; rank.items.len()],
        };
        for call in calls.list.iter().filter(|call| call.worker != NONE) {
            this.lower_interval_end_bound(call.item, call.launched);
        }
        for device in &rank.devices {
            if let Some(launch) = rank.items.get(device.launch as usize) {
                this.lower_interval_end_bound(device.launch, device.start.max(launch.start));
            }
        }
        this
    }

    fn lower_interval_end_bound(&mut self, item: u32, time: i64) {
        let latest = &mut self.latest[item as usize];
        *latest = (*latest).min(time);
    }
}

/// Activities of each thread, sorted by start, without overlaps.
pub(super) struct ActivitiesByThread(Vec<Vec<u32>>);

/// Chooses when each host interval's activity happens, and orders the activities of each thread.
pub(super) fn place_activities_in_thread_chains(
    rank: &JoinedRankCapture,
    calls: &RankCommCallsAndAnomalies,
    bounds: HostActivityLatestEndTimes,
    waits: &[HostWait],
    activities: &mut RankActivitiesAndDependencies,
) -> ActivitiesByThread {
    // Earliest time at which the activity can start, for host intervals that contain a wait.
    let mut earliest = vec![i64::MIN; rank.items.len()];
    for wait in waits.iter().filter(|wait| wait.into != NONE) {
        let earliest = &mut earliest[wait.into as usize];
        *earliest = (*earliest).max(wait.to);
    }
    // For each host interval, choose the longest stretch of its own time that contains no wait and falls between the
    // child calls on either side of its position.
    let places = own_places::find_own_work_position_among_children(rank);
    let of_launch = |item: usize| match bounds.latest[item] {
        // The host interval launched its work before the position of its own work, so use the time up to the launch.
        latest if latest < places[item].span.0 => (rank.items[item].start, latest),
        _ => places[item].span,
    };
    let mut place: Vec<(i64, i64)> = (0..rank.items.len())
        .map(|item| match places[item] {
            OwnWorkPositionAmongChildren {
                part_of: Some(mark),
                ..
            } => (mark, mark),
            OwnWorkPositionAmongChildren {
                is_whole: true,
                span,
                ..
            } => span,
            _ if !host_interval_counts_as_work(rank.kind_of_host_interval(&rank.items[item])) => {
                (rank.items[item].start, rank.items[item].start)
            }
            _ => (of_launch(item).0, of_launch(item).0),
        })
        .collect();
    let mut carved_of: Vec<Vec<(i64, i64)>> = vec![Vec::new(); rank.threads.len()];
    for wait in waits.iter().filter(|wait| wait.from < wait.to) {
        carved_of[wait.thread as usize].push((wait.from, wait.to));
    }
    for (thread, carved) in (0..).zip(carved_of) {
        let carved = merge_intervals(carved);
        for item in rank.threads[thread as usize].items.clone() {
            let (from, to) = place[item as usize];
            // The activity of an operator whose work includes its children begins after the last
            // wait inside the operator.
            let before = carved.partition_point(|&(start, _)| start < to);
            if places[item as usize].is_whole
                && let Some(&(_, end)) = carved[..before].last()
                && end > from
            {
                place[item as usize].0 = end.min(to);
            }
        }
        let mut next = 0;
        rank.for_each_segment_of_thread(thread, |segment| {
            let Some(item) = rank.items.get(segment.owner as usize) else {
                return;
            };
            let own = &places[segment.owner as usize];
            if !host_interval_counts_as_work(rank.kind_of_host_interval(item))
                || own.is_whole
                || own.part_of.is_some()
            {
                return;
            }
            while carved.get(next).is_some_and(|&(_, to)| to <= segment.from) {
                next += 1;
            }
            let owner = segment.owner as usize;
            let within = of_launch(owner);
            let mut offer = |from: i64, to: i64| {
                let (from, to) = (from.max(within.0), to.min(within.1));
                let (from, to) = (from.max(earliest[owner]), to.min(bounds.latest[owner]));
                let best = &mut place[owner];
                if to - from > best.1 - best.0 {
                    *best = (from, to);
                }
            };
            let mut from = segment.from;
            for &(start, end) in carved[next..]
                .iter()
                .take_while(|&&(start, _)| start < segment.to)
            {
                if start > from {
                    offer(from, start.min(segment.to));
                }
                from = from.max(end);
            }
            if from < segment.to {
                offer(from, segment.to);
            }
        });
    }
    for (i, place) in place.iter_mut().enumerate() {
        // A host interval that has no own time after its wait becomes a mark at the end of the wait.
        if place.0 == place.1 && earliest[i] > place.0 {
            let mark = earliest[i].min(rank.items[i].end);
            *place = (mark, mark);
        }
    }
    // Free this memory now, because the code below needs as much again.
    drop((earliest, bounds));
    // When each thread finished its last call. A message is finished when its caller's wait for the message ends. Any
    // other call is finished when its worker is done with it.
    let mut awaited = vec![None; rank.threads.len()];
    for call in calls.list.iter().filter(|call| !call.on_device()) {
        let on = match call.worker {
            NONE => rank.items[call.item as usize].thread,
            worker => worker,
        };
        let last = &mut awaited[on as usize];
        *last = (*last).max(Some(call.done));
    }
    // An upper bound: one activity per host interval, device event and call, and one for the end of each thread.
    let most = rank.items.len() + rank.devices.len() + rank.threads.len();
    activities.list.reserve_exact(most + calls.list.len());
    // An upper bound: each activity depends on its predecessor on the lane, and device work depends on its launch as
    // well.
    let waited = waits.len() + 4 * calls.list.len();
    activities
        .dependencies
        .reserve_exact(most + rank.devices.len() + waited);
    let mut chains = Vec::with_capacity(rank.threads.len());
    for (thread, own) in rank.threads.iter().enumerate() {
        let mut order =
            own_places::sort_host_intervals_by_position(rank, own.items.clone(), &places);
        // Most activities are already in order. Only host intervals that overlap without nesting, or that contain
        // waits, move.
        order.sort_by_key(|&item| place[item as usize]);
        let mut chain = Vec::with_capacity(order.len() + 1);
        for item in order {
            let (begin, end) = place[item as usize];
            let work = activities.push(HostOrDeviceActivity {
                kind: ActivityKindAndIndex::Item(item),
                begin,
                end,
            });
            activities.of_item[item as usize] = work;
            chain.push(work);
        }
        let last = chain.last().map(|&work| activities.list[work as usize].end);
        let items = own.items.clone();
        let end = rank.items[items.start as usize..items.end as usize]
            .iter()
            .map(|item| item.end);
        let end = end.chain(awaited[thread]).max();
        if let (Some(last), Some(end)) = (last, end)
            // The mark keeps the replay from ending before the thread does.
            && end > last
        {
            chain.push(activities.push(HostOrDeviceActivity {
                kind: ActivityKindAndIndex::End(thread as u32),
                begin: end,
                end,
            }));
        }
        for pair in chain.windows(2) {
            activities.add_dependency(pair[0], pair[1]);
        }
        chains.push(chain);
    }
    ActivitiesByThread(chains)
}

/// Merges overlapping intervals; returns the result sorted by start.
fn merge_intervals(mut list: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    list.sort_unstable();
    list.dedup_by(|later, before| {
        let overlap = later.0 <= before.1;
        if overlap {
            before.1 = before.1.max(later.1);
        }
        overlap
    });
    list
}

impl ActivitiesByThread {
    /// Returns the last activity of `thread` that had ended by `time`.
    pub(super) fn last_activity_of_thread_ended_by(
        &self,
        thread: u32,
        time: i64,
        list: &[HostOrDeviceActivity],
    ) -> u32 {
        let chain = &self.0[thread as usize];
        let after = chain.partition_point(|&work| list[work as usize].end <= time);
        after.checked_sub(1).map_or(NONE, |last| chain[last])
    }

    /// Returns the first activity of `thread` that started at or after `time`.
    pub(super) fn first_activity_of_thread_starting_from(
        &self,
        thread: u32,
        time: i64,
        list: &[HostOrDeviceActivity],
    ) -> u32 {
        let chain = &self.0[thread as usize];
        let first = chain.partition_point(|&work| list[work as usize].begin < time);
        chain.get(first).copied().unwrap_or(NONE)
    }

    /// Returns the first activity of `thread` that started at or after `from` and ended by `to`.
    pub(super) fn first_activity_entirely_within(
        &self,
        thread: u32,
        from: i64,
        to: i64,
        activities: &RankActivitiesAndDependencies,
    ) -> u32 {
        let first = self.first_activity_of_thread_starting_from(thread, from, &activities.list);
        match activities.list.get(first as usize) {
            Some(work) if work.end <= to => first,
            _ => NONE,
        }
    }

    /// Returns the activities of `thread`, in order.
    pub(super) fn activities_of(&self, thread: u32) -> &[u32] {
        &self.0[thread as usize]
    }
}

#[cfg(test)]
impl ActivitiesByThread {
    /// Wraps existing chains, without checks.
    pub(super) fn from_sorted_chains(chains: Vec<Vec<u32>>) -> Self {
        Self(chains)
    }
}
