//! Adds dependencies for threads that continued when another thread had finished its work.

use super::super::calls::RankCommCallsAndAnomalies;
use super::super::rank_timeline::{JoinedRankCapture, NONE};
use super::thread_chains::ActivitiesByThread;
use super::{
    HostOrDeviceActivity, InferredDependencyCounts, RankActivitiesAndDependencies,
    flag_worker_threads,
};

/// Adds a dependency for each thread that starts, or continues after a pause, when another thread has
/// finished its work. For example, `backward()` continues after the device's autograd thread has
/// finished.
pub(super) fn link_handoffs(
    chains: &ActivitiesByThread,
    rank: &JoinedRankCapture,
    calls: &RankCommCallsAndAnomalies,
    activities: &mut RankActivitiesAndDependencies,
    found: &mut InferredDependencyCounts,
) {
    let workers = flag_worker_threads(rank, calls);
    let free: Vec<u32> = (0..rank.threads.len() as u32)
        .filter(|&thread| !workers[thread as usize])
        .collect();
    if free.len() < 2 {
        return;
    }
    let gaps = find_long_gaps_and_thread_starts(chains, &free, &activities.list);
    let works: usize = free
        .iter()
        .map(|&thread| chains.activities_of(thread).len())
        .sum();
    // If there are few gaps, searching each thread is cheaper than building a list of all ends.
    let merged = (gaps.len().saturating_mul(free.len()) > works)
        .then(|| SeveralThreadsActivitiesByEnd::new(chains, &free, &activities.list));
    for ThreadGap {
        thread,
        since,
        work,
    } in gaps
    {
        let begin = activities.list[work as usize].begin;
        // The activity on another thread that ended last before the gap's end.
        let waker = match &merged {
            Some(merged) => {
                merged.last_activity_of_other_threads_ended_by(begin, thread, &activities.list)
            }
            None => {
                let others = free.iter().filter(|&&other| other != thread);
                let last = others.map(|&other| {
                    chains.last_activity_of_thread_ended_by(other, begin, &activities.list)
                });
                let ended = last.filter(|&work| work != NONE);
                ended.max_by_key(|&work| (activities.list[work as usize].end, work))
            }
        };
        let Some(waker) = waker else {
            continue;
        };
        let woke = activities.list[waker as usize].end;
        // The other activity ended the gap only if it ended nearer to the gap's end than to its start.
        if woke > since && (since == i64::MIN || begin - woke < woke - since) {
            activities.add_dependency(waker, work);
            found.handoffs += 1;
        }
    }
}

/// Returns the gaps that are longer than Python usually leaves, and the start of every thread except the first.
fn find_long_gaps_and_thread_starts(
    chains: &ActivitiesByThread,
    free: &[u32],
    list: &[HostOrDeviceActivity],
) -> Vec<ThreadGap> {
    /// Minimum length of a gap, in ns; shorter gaps usually come from Python code.
    const NOTICEABLE: i64 = 100_000;
    let mut gaps = Vec::new();
    for &thread in free {
        let mut previous = None;
        for &work in chains.activities_of(thread) {
            let HostOrDeviceActivity { begin, end, .. } = list[work as usize];
            let since = previous.unwrap_or(if thread == free[0] { begin } else { i64::MIN });
            previous = Some(end);
            if begin.saturating_sub(since) >= NOTICEABLE {
                gaps.push(ThreadGap {
                    thread,
                    since,
                    work,
                });
            }
        }
    }
    gaps
}

/// Period without recorded work on a thread.
struct ThreadGap {
    thread: u32,
    /// End of the previous activity, or `i64::MIN` if the thread had no earlier activity.
    since: i64,
    /// First activity after the gap.
    work: u32,
}

/// Activities of several threads, sorted by end.
struct SeveralThreadsActivitiesByEnd {
    /// Index and thread of each activity.
    list: Vec<(u32, u32)>,
    /// For each entry, the index of the last earlier entry from another thread, or [`NONE`].
    of_another: Vec<u32>,
}

impl SeveralThreadsActivitiesByEnd {
    fn new(chains: &ActivitiesByThread, threads: &[u32], list: &[HostOrDeviceActivity]) -> Self {
        let of = |&thread: &u32| {
            chains
                .activities_of(thread)
                .iter()
                .map(move |&work| (work, thread))
        };
        let mut merged: Vec<(u32, u32)> = threads.iter().flat_map(of).collect();
        // Each thread's activities are already sorted by end, so the sort only merges them.
        merged.sort_by_key(|&(work, _)| (list[work as usize].end, work));
        let mut of_another = Vec::with_capacity(merged.len());
        let mut last = NONE;
        for (i, &(_, thread)) in (0..).zip(&merged) {
            let before = merged.get((i as usize).wrapping_sub(1));
            if before.is_some_and(|&(_, other)| other != thread) {
                last = i - 1;
            }
            of_another.push(last);
        }
        Self {
            list: merged,
            of_another,
        }
    }

    /// Returns the activity that ended last among those that ended by `time` on any thread except `thread`.
    fn last_activity_of_other_threads_ended_by(
        &self,
        time: i64,
        thread: u32,
        list: &[HostOrDeviceActivity],
    ) -> Option<u32> {
        let after = self
            .list
            .partition_point(|&(work, _)| list[work as usize].end <= time);
        let last = after.checked_sub(1)?;
        let last = match self.list[last].1 == thread {
            true => self.of_another[last],
            false => last as u32,
        };
        let &(work, _) = self.list.get(last as usize)?;
        Some(work)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ActivityKindAndIndex;
    use super::*;
    use crate::pytorch::stream::damage::build_pseudo_random_generator;

    /// For each thread, the merged list must give the same last end as a search through all other threads.
    #[test]
    fn merged_list_gives_same_last_end_as_search_of_other_threads() {
        let mut below = build_pseudo_random_generator(3);
        for threads in 2..6 {
            let mut list = Vec::new();
            let mut chains = vec![Vec::new(); threads];
            for (thread, chain) in chains.iter_mut().enumerate() {
                let mut end = 0;
                for _ in 0..below(40) {
                    // Many activities end at the same time, on one thread and on several threads.
                    let begin = end;
                    end += below(4) as i64;
                    chain.push(list.len() as u32);
                    let kind = ActivityKindAndIndex::End(thread as u32);
                    list.push(HostOrDeviceActivity { kind, begin, end });
                }
            }
            let chains = ActivitiesByThread::from_sorted_chains(chains);
            let all: Vec<u32> = (0..threads as u32).collect();
            let merged = SeveralThreadsActivitiesByEnd::new(&chains, &all, &list);
            for time in -1..100 {
                for &thread in &all {
                    let others = all.iter().filter(|&&other| other != thread);
                    let last = others
                        .map(|&other| chains.last_activity_of_thread_ended_by(other, time, &list));
                    let last = last.filter(|&work| work != NONE);
                    let expected = last.max_by_key(|&work| (list[work as usize].end, work));
                    assert_eq!(
                        merged.last_activity_of_other_threads_ended_by(time, thread, &list),
                        expected,
                        "{thread} at {time}"
                    );
                }
            }
        }
    }
}
