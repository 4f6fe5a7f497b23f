//! Derives the stage and the tensor group of each rank from the roles of the job's groups.

use chakram_engine::CompiledReplay;
use std::collections::BTreeMap;

/// For each rank, returns the index of its stage, and the index of its tensor group in this stage.
pub(super) fn rank_stages_and_tensor_groups(prepared: &CompiledReplay<'_>) -> (Vec<u32>, Vec<u32>) {
    let workload = prepared.workload_with_added_launches();
    let ranks = workload.rank_count_including_untraced() as usize;
    let mut joined: Vec<usize> = (0..ranks).collect();
    let mut tensor = vec![0_u32; ranks];
    fn find_root(joined: &mut [usize], mut at: usize) -> usize {
        while joined[at] != at {
            joined[at] = joined[joined[at]];
            at = joined[at];
        }
        at
    }
    let groups = || workload.groups().iter();
    let of = |role: &'static str| groups().filter(move |group| group.role.as_deref() == Some(role));
    for group in of("tensor").chain(of("data")) {
        for pair in group.members.windows(2) {
            let [a, b] = [pair[0], pair[1]].map(|rank| find_root(&mut joined, rank.index()));
            // The lower rank becomes the root, so that stages are sorted by their first rank.
            joined[a.max(b)] = a.min(b);
        }
    }
    for group in of("tensor") {
        let first = group.members.iter().map(|rank| rank.0).min().unwrap_or(0);
        for rank in &group.members {
            tensor[rank.index()] = first;
        }
    }
    let mut numbers = BTreeMap::new();
    let mut stages = Vec::with_capacity(ranks);
    for rank in 0..ranks {
        let root = find_root(&mut joined, rank);
        let next = numbers.len() as u32;
        stages.push(*numbers.entry(root).or_insert(next));
    }
    // Within each stage, tensor groups are numbered from 0.
    let mut within: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    let groups = (0..ranks).map(|rank| {
        let key = (stages[rank], tensor[rank]);
        *within.entry(key).or_insert_with(|| {
            let count = counts.entry(stages[rank]).or_default();
            *count += 1;
            *count - 1
        })
    });
    let groups = groups.collect();
    (stages, groups)
}
