//! Compares slices of random graphs with a few lines of code that compute dependencies and start
//! times.

use super::rig::{
    build_count_attribute, decode_trace_nodes, encode_trace_file, find_integer_attribute_value,
};
use chakram::edit::{AnnotationStepOrIdSelector, JobCommunication, KeptNodesOfRank};
use chakram::internals::MOST_BEHIND;
use chakram::internals::proto::Node;
use chakram::workload::DeclaredGroups;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Nodes with this id or a larger id are cut.
const CUT: u64 = 1000;

/// Returns all direct and indirect dependencies of each node, by id. If `data` is true, follows
/// only data dependencies.
fn find_all_dependencies_of_each_node(nodes: &[Node], data: bool) -> BTreeMap<u64, BTreeSet<u64>> {
    let mut behind: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    // Repeat until nothing changes. This is slow, but obviously correct.
    loop {
        let before = behind.values().map(BTreeSet::len).sum::<usize>() + behind.len();
        for node in nodes {
            let order = if data { &[][..] } else { &node.ctrl_deps[..] };
            let mut all = BTreeSet::new();
            for on in node.data_deps.iter().chain(order) {
                all.insert(*on);
                all.extend(behind.get(on).into_iter().flatten());
            }
            behind.insert(node.id, all);
        }
        if behind.values().map(BTreeSet::len).sum::<usize>() + behind.len() == before {
            return behind;
        }
    }
}

/// Returns the start of each node, in ns.
fn compute_node_starts(nodes: &[Node]) -> BTreeMap<u64, u64> {
    let by_id: BTreeMap<u64, &Node> = nodes.iter().map(|node| (node.id, node)).collect();
    let mut starts: BTreeMap<u64, u64> = BTreeMap::new();
    while starts.len() < nodes.len() {
        for node in nodes {
            let on = node.data_deps.iter().chain(&node.ctrl_deps);
            let ends: Option<Vec<u64>> = on
                .map(|on| Some(starts.get(on)? + by_id[on].duration_micros * 1000))
                .collect();
            if let Some(ends) = ends {
                let delay = find_integer_attribute_value(node, "delay_ns").unwrap_or(0) as u64;
                starts.insert(node.id, ends.into_iter().max().unwrap_or(0) + delay);
            }
        }
    }
    starts
}

fn check_slice_keeps_waits_and_starts(whole_trace: &[Node]) -> Result<(), TestCaseError> {
    let kept: BTreeSet<u64> = whole_trace
        .iter()
        .map(|n| n.id)
        .filter(|&id| id < CUT)
        .collect();
    prop_assume!(!kept.is_empty());
    let contents = encode_trace_file(whole_trace);
    let mut meetings = JobCommunication::default();
    let cut = AnnotationStepOrIdSelector::Ids(0..=CUT - 1);
    let part = KeptNodesOfRank::select_nodes_and_collect_communication(
        &contents,
        0,
        &cut,
        &DeclaredGroups::new(),
        &mut meetings,
    )
    .unwrap();
    let (after, sliced) = part
        .encode_slice_of_trace(&contents, part.earliest_start())
        .unwrap();
    let after = decode_trace_nodes(&after);
    for data in [false, true] {
        let (before, after) = (
            find_all_dependencies_of_each_node(whole_trace, data),
            find_all_dependencies_of_each_node(&after, data),
        );
        for id in &kept {
            let of = |list: &BTreeSet<u64>| -> BTreeSet<u64> {
                list.iter()
                    .copied()
                    .filter(|on| kept.contains(on))
                    .collect()
            };
            prop_assert_eq!(
                of(&before[id]),
                of(&after[id]),
                "behind {} (data {})",
                id,
                data
            );
        }
    }
    let (before, now) = (
        compute_node_starts(whole_trace),
        compute_node_starts(&after),
    );
    let first = kept.iter().map(|id| before[id]).min().unwrap();
    for id in &kept {
        prop_assert_eq!(before[id] - first, now[id], "start of {}", id);
    }
    let edges = |nodes: &[Node]| -> usize {
        let of = |node: &Node| node.data_deps.len() + node.ctrl_deps.len();
        nodes.iter().map(of).sum()
    };
    prop_assert!(edges(&after) <= MOST_BEHIND * edges(whole_trace));
    prop_assert_eq!((sliced.kept + sliced.joints) as usize, after.len());
    let extra = after.iter().filter(|node| node.id >= CUT);
    prop_assert!(
        extra
            .clone()
            .all(|node| node.name == "joint" && node.duration_micros == 0)
    );
    prop_assert_eq!(extra.count() as u64, sliced.joints);
    Ok(())
}

/// A node: a random number that decides whether it is cut, its duration, its delay, and its dependencies. Each
/// dependency has its distance back, and true for a data dependency.
type RandomNodeProperties = (u32, u64, u64, Vec<(usize, bool)>);

/// Returns nodes in program order, with dependencies on earlier nodes. A random choice decides
/// which nodes are cut, more often near `cut`.
fn random_node_graph_strategy() -> impl Strategy<Value = Vec<Node>> {
    let dep = (0_usize..40, any::<bool>());
    let node = (
        0_u32..100,
        0_u64..9,
        0_u64..5,
        prop::collection::vec(dep, 0..12),
    );
    (prop::collection::vec(node, 1..40), 0_u32..100).prop_map(|(drawn, cut)| {
        let id = |i: usize, luck: u32| if luck < cut { CUT + i as u64 } else { i as u64 };
        let ids: Vec<u64> = drawn.iter().enumerate().map(|(i, d)| id(i, d.0)).collect();
        let make = |(i, (_, us, delay, deps)): (usize, &RandomNodeProperties)| {
            let mut node = Node {
                id: ids[i],
                name: format!("n{i}"),
                r#type: 4,
                duration_micros: *us,
                ..Node::default()
            };
            for &(on, data) in deps.iter().filter(|_| i > 0) {
                let list = if data {
                    &mut node.data_deps
                } else {
                    &mut node.ctrl_deps
                };
                list.push(ids[on % i]);
            }
            if *delay > 0 {
                node.attr.push(build_count_attribute("delay_ns", *delay));
            }
            node
        };
        drawn.iter().enumerate().map(make).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn slicing_keeps_which_nodes_wait_for_which_and_since_when(graph in random_node_graph_strategy()) {
        check_slice_keeps_waits_and_starts(&graph)?;
    }
}
