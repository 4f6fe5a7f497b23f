//! Determines the order of node ids.

use super::super::activities::RankActivitiesAndDependencies;
use super::super::calls::RankCommCallsAndAnomalies;
use super::super::rank_timeline::{JoinedRankCapture, NONE};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Returns the activities in order of id. Each follows its dependencies. Beyond that, each thread's activities and each
/// rank's calls are in program order, and submitted work follows its submitter. Times do not influence this order, so
/// two captures of one program have the same ids.
pub(super) fn order_activities(
    rank: &JoinedRankCapture,
    activities: &RankActivitiesAndDependencies,
    calls: &RankCommCallsAndAnomalies,
) -> Vec<u32> {
    // Calls are matched across ranks in order of id, so the ids must follow program order.
    let made = activities.of_call.iter().zip(&calls.list);
    let mut last: BTreeMap<(u32, bool), u32> = BTreeMap::new();
    let mut program = Vec::new();
    for (&work, call) in made.filter(|&(&work, _)| work != NONE) {
        if let Some(before) = last.insert((call.group, call.is_message()), work) {
            program.push((before, work));
        }
    }
    let order = sort_topologically_omitting_cycles(rank, activities, &program);
    if order.len() == activities.list.len() {
        return order;
    }
    // If a call ended before an earlier call began, the times contradict program order. In this
    // case, only the dependencies determine the order.
    sort_topologically_omitting_cycles(rank, activities, &[])
}

/// Sorts the activities topologically by dependencies and by the edges `more`. Activities that are ready together are
/// sorted by submitter. The result omits activities on a cycle.
fn sort_topologically_omitting_cycles(
    rank: &JoinedRankCapture,
    activities: &RankActivitiesAndDependencies,
    more: &[(u32, u32)],
) -> Vec<u32> {
    let count = activities.list.len();
    let edges = || activities.dependencies.iter().chain(more);
    let mut waiting = vec![0_u32; count];
    let mut start = vec![0_u32; count + 1];
    for &(cause, effect) in edges() {
        waiting[effect as usize] += 1;
        start[cause as usize + 1] += 1;
    }
    for i in 0..count {
        start[i + 1] += start[i];
    }
    // Each range was filled from its end, so `start` now contains the beginning of each range.
    start.remove(0);
    let mut effects = vec![0_u32; edges().count()];
    for &(cause, effect) in edges().rev() {
        let place = &mut start[cause as usize];
        *place -= 1;
        effects[*place as usize] = effect;
    }
    start.push(effects.len() as u32);
    // On each thread, the activities of host intervals are numbered in order, so sorting by the submitter's number
    // gives program order.
    let key = |work: u32| (activities.submitter_of(rank, work), work);
    let mut ready: BinaryHeap<Reverse<(u32, u32)>> = (0..count as u32)
        .filter(|&work| waiting[work as usize] == 0)
        .map(|work| Reverse(key(work)))
        .collect();
    let mut order = Vec::with_capacity(count);
    while let Some(Reverse((_, work))) = ready.pop() {
        order.push(work);
        let (from, to) = (start[work as usize], start[work as usize + 1]);
        for &effect in &effects[from as usize..to as usize] {
            waiting[effect as usize] -= 1;
            if waiting[effect as usize] == 0 {
                ready.push(Reverse(key(effect)));
            }
        }
    }
    order
}
