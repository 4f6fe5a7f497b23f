//! Threads that went on when another thread had ended its work.

use super::super::calls::CommCalls;
use super::super::rank_timeline::{NONE, RankTimeline};
use super::thread_chains::ThreadChains;
use super::{Activities, Activity, DependencyStats, workers};

/// Connects threads that continued when another thread had ended its work, as `backward()` does when the device's
/// thread has ended, and threads that start.
pub(super) fn link(
    chains: &ThreadChains,
    rank: &RankTimeline,
    calls: &CommCalls,
    activities: &mut Activities,
    found: &mut DependencyStats,
) {
    let workers = workers(rank, calls);
    let free: Vec<u32> = (0..rank.threads.len() as u32)
        .filter(|&thread| !workers[thread as usize])
        .collect();
    if free.len() < 2 {
        return;
    }
    let gaps = gaps(chains, &free, &activities.list);
    let works: usize = free.iter().map(|&thread| chains.of(thread).len()).sum();
    // Few gaps are looked up thread by thread, without a list of all ends.
    let merged = (gaps.len().saturating_mul(free.len()) > works)
        .then(|| MergedEnds::new(chains, &free, &activities.list));
    for ThreadGap {
        thread,
        since,
        work,
    } in gaps
    {
        let begin = activities.list[work as usize].begin;
        // The last end of an activity on another thread.
        let waker = match &merged {
            Some(merged) => merged.last_by(begin, thread, &activities.list),
            None => {
                let others = free.iter().filter(|&&other| other != thread);
                let last = others.map(|&other| chains.before(other, begin, &activities.list));
                let ended = last.filter(|&work| work != NONE);
                ended.max_by_key(|&work| (activities.list[work as usize].end, work))
            }
        };
        let Some(waker) = waker else {
            continue;
        };
        let woke = activities.list[waker as usize].end;
        // Closer to the end of the gap than to its start: then it ended the gap.
        if woke > since && (since == i64::MIN || begin - woke < woke - since) {
            activities.add_dependency(waker, work);
            found.handoffs += 1;
        }
    }
}

/// Returns the gaps of threads that are longer than Python's own, and the beginnings of all threads but the first.
fn gaps(chains: &ThreadChains, free: &[u32], list: &[Activity]) -> Vec<ThreadGap> {
    /// Length of a gap, ns, below which it is Python's own.
    const NOTICEABLE: i64 = 100_000;
    let mut gaps = Vec::new();
    for &thread in free {
        let mut previous = None;
        for &work in chains.of(thread) {
            let Activity { begin, end, .. } = list[work as usize];
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

/// Time in which a thread did nothing.
struct ThreadGap {
    thread: u32,
    /// End of its last activity before, or the least time if there is none.
    since: i64,
    /// First activity behind it.
    work: u32,
}

/// Activities of several threads by their ends.
struct MergedEnds {
    /// Activity and thread.
    list: Vec<(u32, u32)>,
    /// For each the last one before it that is of another thread, or [`NONE`].
    of_another: Vec<u32>,
}

impl MergedEnds {
    fn new(chains: &ThreadChains, threads: &[u32], list: &[Activity]) -> Self {
        let of = |&thread: &u32| chains.of(thread).iter().map(move |&work| (work, thread));
        let mut merged: Vec<(u32, u32)> = threads.iter().flat_map(of).collect();
        // Chains are by end already, so that this merges them.
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

    /// Returns the last activity to end by `time` of any thread but `thread`.
    fn last_by(&self, time: i64, thread: u32, list: &[Activity]) -> Option<u32> {
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
    use super::super::ActivityKind;
    use super::*;
    use crate::pytorch::stream::damage::numbers_below;

    /// The last end among others is the latest of the last ends of each other thread, at any time.
    #[test]
    fn the_last_end_of_other_threads_is_that_of_a_search_in_each() {
        let mut below = numbers_below(3);
        for threads in 2..6 {
            let mut list = Vec::new();
            let mut chains = vec![Vec::new(); threads];
            for (thread, chain) in chains.iter_mut().enumerate() {
                let mut end = 0;
                for _ in 0..below(40) {
                    // Many end together, on one thread and on several.
                    let begin = end;
                    end += below(4) as i64;
                    chain.push(list.len() as u32);
                    let kind = ActivityKind::End(thread as u32);
                    list.push(Activity { kind, begin, end });
                }
            }
            let chains = ThreadChains::of_chains(chains);
            let all: Vec<u32> = (0..threads as u32).collect();
            let merged = MergedEnds::new(&chains, &all, &list);
            for time in -1..100 {
                for &thread in &all {
                    let others = all.iter().filter(|&&other| other != thread);
                    let last = others.map(|&other| chains.before(other, time, &list));
                    let last = last.filter(|&work| work != NONE);
                    let expected = last.max_by_key(|&work| (list[work as usize].end, work));
                    assert_eq!(
                        merged.last_by(time, thread, &list),
                        expected,
                        "{thread} at {time}"
                    );
                }
            }
        }
    }
}
