//! Infers groups from worker threads.
//!
//! Gloo creates two threads for each new group, so thread numbers ascend in pairs, in the order in which the groups are
//! declared. A capture shows only threads that did work. If some groups were unused, several assignments of pairs to
//! groups fit this order. All ranks run the same program and therefore share one assignment. In the best assignment,
//! each group's calls agree in kind and size, and end together.

use super::super::calls::{CommOp, RankCommCallsAndAnomalies};
use super::super::rank_timeline::{JoinedRankCapture, NONE};
use super::JobGroup;
use std::collections::BTreeMap;

/// A rank's worker threads, divided into pools. A pool contains one group's threads.
#[derive(Debug, Default)]
pub(super) struct CandidateWorkerThreadPartitions {
    /// Candidate partitions of the threads into pools. The first pairs threads that have neighbouring numbers, and the
    /// second splits the threads at the largest gaps between numbers.
    ways: Vec<Vec<Vec<u32>>>,
    /// Threads whose calls name their group.
    named: BTreeMap<u32, u32>,
}

impl CandidateWorkerThreadPartitions {
    pub(super) fn new(
        rank: &JoinedRankCapture,
        calls: &RankCommCallsAndAnomalies,
        own: &[u32],
        groups: &[JobGroup],
    ) -> Self {
        let mut named: BTreeMap<u32, u32> = BTreeMap::new();
        let mut threads: Vec<(u64, u32)> = Vec::new();
        for call in calls.list.iter().filter(|call| call.worker != NONE) {
            let track = rank.threads[call.worker as usize].track;
            let tid = rank.kineto.tracks[track as usize].tid.parse();
            threads.push((tid.unwrap_or(u64::MAX), call.worker));
            let name = call.asked.group.as_ref();
            let group =
                name.and_then(|name| own.iter().find(|&&g| groups[g as usize].called == *name));
            if let Some(&group) = group {
                named.insert(call.worker, group);
            }
        }
        threads.sort_unstable();
        threads.dedup();
        let mut ways = vec![
            pair_threads_with_consecutive_numbers(&threads),
            group_threads_by_largest_number_gaps(&threads, own.len()),
        ];
        // A partition with more pools than declared groups is impossible.
        ways.retain(|pools| !pools.is_empty() && pools.len() <= own.len());
        ways.dedup();
        Self { ways, named }
    }
}

/// Pairs threads with consecutive numbers.
fn pair_threads_with_consecutive_numbers(threads: &[(u64, u32)]) -> Vec<Vec<u32>> {
    let mut pools: Vec<Vec<u32>> = Vec::new();
    let mut before = None;
    for &(tid, thread) in threads {
        match pools.last_mut() {
            Some(pool) if pool.len() == 1 && before == tid.checked_sub(1) => pool.push(thread),
            _ => pools.push(vec![thread]),
        }
        before = Some(tid);
    }
    pools
}

/// Splits threads into `groups` runs at the largest gaps between their numbers. Returns an empty list if a run
/// would have more than two threads, because a group has only two.
fn group_threads_by_largest_number_gaps(threads: &[(u64, u32)], groups: usize) -> Vec<Vec<u32>> {
    if threads.len() < groups {
        return Vec::new();
    }
    let mut cuts: Vec<usize> = (1..threads.len()).collect();
    if threads.len() == groups * 2 {
        // If every group has all its threads, pair them in order.
        cuts.retain(|cut| cut % 2 == 0);
    } else {
        cuts.sort_by_key(|&cut| std::cmp::Reverse(threads[cut].0 - threads[cut - 1].0));
        cuts.truncate(groups - 1);
        cuts.sort_unstable();
    }
    let ends = cuts.iter().copied().chain([threads.len()]);
    let starts = [0].into_iter().chain(cuts.iter().copied());
    let run = |(from, to): (usize, usize)| threads[from..to].iter().map(|&(_, t)| t).collect();
    let runs: Vec<Vec<u32>> = starts.zip(ends).map(run).collect();
    if runs.iter().all(|run| run.len() <= 2) {
        runs
    } else {
        Vec::new()
    }
}

/// A way to assign pools to groups: the index of the partition, and a bit mask of the rank's groups that were used.
type PartitionIndexAndUsedGroupBits = (usize, u32);

/// For each rank, the group of each worker thread.
type GroupsByRankAndWorkerThread = Vec<BTreeMap<u32, u32>>;

/// Maximum number of groups for which assignments are enumerated.
const MOST: usize = 12;
/// Minimum difference between scores, in ns, that makes one assignment clearly better than another.
const CLEAR: i64 = 1_000;

/// Returns, for each rank, the group of each worker thread. A rank's map is empty if its groups cannot be inferred.
pub(super) fn infer_group_of_each_worker_thread(
    ranks: &[JoinedRankCapture],
    calls: &[RankCommCallsAndAnomalies],
    groups: &[JobGroup],
    own: &[Vec<u32>],
    pools: &[CandidateWorkerThreadPartitions],
) -> GroupsByRankAndWorkerThread {
    let most = own.iter().map(Vec::len).max().unwrap_or(0).min(MOST);
    let mut scored: Vec<(
        (u64, i64),
        PartitionIndexAndUsedGroupBits,
        GroupsByRankAndWorkerThread,
    )> = Vec::new();
    for way in 0..2 {
        // The loop visits all sets of used groups; `MOST` limits the number of sets to 4,096.
        for places in 1..1_u32 << most {
            let given: Option<GroupsByRankAndWorkerThread> = own
                .iter()
                .zip(pools)
                .map(|(own, pools)| assign_groups_to_threads_of_rank(own, pools, (way, places)))
                .collect();
            if let Some(given) = given
                && group_sizes_fit_calls(calls, groups, &given)
                && !scored.iter().any(|(.., other)| *other == given)
            {
                let score = score_worker_groups(ranks, calls, groups, &given);
                scored.push((score, (way, places), given));
            }
        }
    }
    scored.sort_by_key(|&(score, choice, _)| (score, choice));
    let clear = match &scored[..] {
        [] => false,
        [_] => true,
        [(best, ..), (next, ..), ..] => best.0 < next.0 || next.1 > 3 * best.1 + CLEAR,
    };
    match scored.into_iter().next() {
        Some((.., given)) if clear => given,
        _ => pools.iter().map(|pools| pools.named.clone()).collect(),
    }
}

/// Returns the groups of a rank's threads under `choice`, or `None` if `choice` does not fit the rank.
fn assign_groups_to_threads_of_rank(
    own: &[u32],
    pools: &CandidateWorkerThreadPartitions,
    (way, places): PartitionIndexAndUsedGroupBits,
) -> Option<BTreeMap<u32, u32>> {
    let mut given = pools.named.clone();
    // A rank without workers fits every assignment, so only the named threads are assigned. A rank's only partition is
    // used for both kinds.
    let Some(cut) = pools.ways.get(way).or(pools.ways.first()) else {
        return Some(given);
    };
    let used = own.iter().enumerate().filter(|(i, _)| places >> i & 1 == 1);
    let used: Vec<u32> = used.map(|(_, &group)| group).collect();
    if used.len() != cut.len() {
        return None;
    }
    for (pool, group) in cut.iter().zip(used) {
        for &thread in pool {
            if *given.entry(thread).or_insert(group) != group {
                return None;
            }
        }
    }
    Some(given)
}

/// Returns true if each call's number of members fits the group of its worker.
fn group_sizes_fit_calls(
    calls: &[RankCommCallsAndAnomalies],
    groups: &[JobGroup],
    given: &[BTreeMap<u32, u32>],
) -> bool {
    calls.iter().zip(given).all(|(calls, given)| {
        calls.list.iter().all(|call| {
            let group = given
                .get(&call.worker)
                .map(|&group| &groups[group as usize]);
            let shown = super::member_count_shown_by_sizes(call);
            group
                .zip(shown)
                .is_none_or(|(group, shown)| group.ranks.len() == shown as usize)
        })
    })
}

/// Returns the number of groups whose calls do not match, and by how many ns the end times of matching calls deviate on
/// average. Constant offsets between the hosts' clocks are removed first.
fn score_worker_groups(
    ranks: &[JoinedRankCapture],
    calls: &[RankCommCallsAndAnomalies],
    groups: &[JobGroup],
    given: &[BTreeMap<u32, u32>],
) -> (u64, i64) {
    let mut wrong = 0;
    let mut off: Vec<i64> = Vec::new();
    let host = |r: usize| ranks[r].kineto.host_name.as_ref();
    for (g, group) in groups.iter().enumerate() {
        let members = group.ranks.iter();
        let members = members.filter_map(|rank| ranks.iter().position(|r| r.rank == *rank));
        let mut first: Option<(usize, Vec<&super::CommCall>)> = None;
        for member in members {
            let list = calls[member].list.iter();
            let own = list.filter(|c| given[member].get(&c.worker) == Some(&(g as u32)));
            let own: Vec<&super::CommCall> = own.collect();
            let Some((other, before)) = &first else {
                first = Some((member, own));
                continue;
            };
            let fits = |(a, b): (&&super::CommCall, &&super::CommCall)| {
                a.act == b.act && calls_have_same_size(a, b)
            };
            if own.len() != before.len() || !own.iter().zip(before).all(fits) {
                wrong += 1;
                continue;
            }
            let mut ends: Vec<i64> = own.iter().zip(before).map(|(a, b)| a.end - b.end).collect();
            ends.sort_unstable();
            let middle = ends.get(ends.len() / 2).copied().unwrap_or(0);
            let same_clock = host(member).is_some() && host(member) == host(*other);
            let apart = if ends.len() < 3 && same_clock {
                0
            } else {
                middle
            };
            off.extend(ends.iter().map(|end| (end - apart).abs()));
        }
    }
    let count = (off.len() as i64).max(1);
    (wrong, off.iter().map(|ns| ns / count).sum())
}

fn calls_have_same_size(a: &super::CommCall, b: &super::CommCall) -> bool {
    use chakram_trace::format::CollectiveKind::{AllReduce, Broadcast, Reduce};
    let one_size = matches!(a.act, CommOp::Collective(AllReduce | Broadcast | Reduce));
    !one_size || a.asked.bytes_in == b.asked.bytes_in
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_split_at_largest_gaps_into_runs_of_at_most_two() {
        // Four threads and two groups are paired in order; three threads are split at the largest gap.
        let four = [(24_463, 0), (24_464, 1), (24_478, 2), (24_479, 3)];
        assert_eq!(
            group_threads_by_largest_number_gaps(&four, 2),
            [vec![0, 1], vec![2, 3]]
        );
        let interleaved = [(19, 0), (21, 1), (22, 2), (26, 3)];
        assert_eq!(
            group_threads_by_largest_number_gaps(&interleaved, 2),
            [vec![0, 1], vec![2, 3]]
        );
        let three = [(24_463, 0), (24_464, 1), (24_478, 2)];
        assert_eq!(
            group_threads_by_largest_number_gaps(&three, 2),
            [vec![0, 1], vec![2]]
        );
        assert!(
            group_threads_by_largest_number_gaps(&[(1, 0), (2, 1), (3, 2)], 1).is_empty(),
            "no group has three"
        );
        assert_eq!(
            pair_threads_with_consecutive_numbers(&four),
            [vec![0, 1], vec![2, 3]]
        );
        assert_eq!(
            pair_threads_with_consecutive_numbers(&three),
            [vec![0, 1], vec![2]]
        );
    }
}
