//! Aligns each lane of one trace with the same lane of the other trace, in program order.

use super::NodeMatching;
use super::residual::count_agreeing_neighbours;
use crate::diff::side::ComparedTrace;
use chakram_trace::format::Op;
use chakram_trace::graph::DistinctKeyInterner;
use chakram_trace::graph::stable_hash;
use imara_diff::{Algorithm, Diff, Token};
use std::collections::BTreeMap;

/// Identifies a lane by its number in the trace and the kind of its nodes (0 empty, 1 host, 2 NPU).
type LaneNumberAndNodeKind = (Option<i64>, u8);

fn lane_and_kind_of_node(side: &ComparedTrace<'_>, node: u32) -> LaneNumberAndNodeKind {
    let view = &side.raw.nodes[node as usize].view;
    let kind = match view.op {
        Op::NoOp => 0,
        Op::Host => 1,
        _ => 2,
    };
    (view.lane, kind)
}

/// Returns the nodes of each lane, in an order that respects dependencies.
fn group_nodes_by_lane(side: &ComparedTrace<'_>) -> BTreeMap<LaneNumberAndNodeKind, Vec<u32>> {
    let mut lanes: BTreeMap<LaneNumberAndNodeKind, Vec<u32>> = BTreeMap::new();
    for &node in side.order.iter().chain(&side.unordered) {
        lanes
            .entry(lane_and_kind_of_node(side, node))
            .or_default()
            .push(node);
    }
    lanes
}

/// Aligns lanes. Nodes with equal keys at the same position become pairs. Known pairs are anchors of the
/// alignment.
pub(super) fn pair_by_lane_alignment(sides: &[ComparedTrace<'_>; 2], pairs: &mut NodeMatching) {
    let [mut a, mut b] = [0, 1].map(|which| group_nodes_by_lane(&sides[which]));
    a.retain(|lane, _| b.contains_key(lane));
    for (lane, first) in a {
        let second = b.remove(&lane).unwrap_or_default();
        let lists = [first, second];
        let some = |which: usize| {
            let list: &[u32] = &lists[which];
            list.iter()
                .any(|&node| pairs.partner_of_node(which, node).is_none())
        };
        if some(0) && some(1) {
            align_lane(sides, pairs, lists);
        }
    }
}

fn align_lane(sides: &[ComparedTrace<'_>; 2], pairs: &mut NodeMatching, mut lists: [Vec<u32>; 2]) {
    // Keep only the two ends of a run of known pairs, which are sufficient anchors.
    let mut kept = [0, 1].map(|which| {
        let list: &Vec<u32> = &lists[which];
        let free: Vec<bool> = list
            .iter()
            .map(|&n| pairs.partner_of_node(which, n).is_none())
            .collect();
        let near = (0..list.len())
            .map(|i| free[i] || i > 0 && free[i - 1] || i + 1 < free.len() && free[i + 1]);
        near.collect::<Vec<bool>>()
    });
    let mut wanted = [0, 1].map(|which| vec![false; pairs.node_count_of_trace(which) as usize]);
    for which in [0, 1] {
        for (&node, &near) in lists[which].iter().zip(&kept[which]) {
            if near {
                wanted[which][node as usize] = true;
                if let Some(partner) = pairs.partner_of_node(which, node) {
                    wanted[1 - which][partner as usize] = true;
                }
            }
        }
    }
    for which in [0, 1] {
        kept[which].clear();
        lists[which].retain(|&node| wanted[which][node as usize]);
    }
    let mut numbers = DistinctKeyInterner::default();
    let tokens = [0, 1].map(|which| {
        let tokens = lists[which].iter().map(|&node| {
            // The two nodes of a known pair get a token that no other node has, so that the alignment keeps the pair.
            let label = match (which, pairs.partner_of_node(which, node)) {
                (_, None) => sides[which].labels_by_name_lane_and_peers()[node as usize],
                (0, Some(_)) => stable_hash(&(node, "pair")),
                (_, Some(partner)) => stable_hash(&(partner, "pair")),
            };
            Token(numbers.intern_key(label))
        });
        tokens.collect::<Vec<_>>()
    });
    let mut diff = Diff::default();
    let count = numbers.keys().len() as u32;
    diff.compute_with(Algorithm::Histogram, &tokens[0], &tokens[1], count);
    let (mut i, mut j) = (0, 0);
    let mut equal = |from: &mut usize, to: &mut usize, end: usize| {
        while *from < end {
            let (x, y) = (lists[0][*from], lists[1][*to]);
            // The alignment may put unrelated nodes at the same position. Their neighbours contradict the pair, so skip
            // it.
            let free =
                pairs.partner_of_node(0, x).is_none() && pairs.partner_of_node(1, y).is_none();
            if free && count_agreeing_neighbours(sides, pairs, x, y).is_plausible() {
                pairs.set_pair(x, y);
            }
            (*from, *to) = (*from + 1, *to + 1);
        }
    };
    for hunk in diff.hunks() {
        equal(&mut i, &mut j, hunk.before.start as usize);
        (i, j) = (hunk.before.end as usize, hunk.after.end as usize);
    }
    let end = lists[0].len();
    equal(&mut i, &mut j, end);
}
