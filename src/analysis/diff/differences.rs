//! Lists the differences between two traces with matched nodes.

use super::fields::{self, NodeFieldChange};
use super::matching::{self, NodeMatching};
use super::side::ComparedTrace;
use chakram_trace::graph::RawTrace;
use chakram_trace::graph::raw_trace::PredecessorIdIndexAndKind;

/// A node of both traces that differs in some fields.
#[derive(Clone, Debug)]
pub struct ChangedNode {
    /// The node's index in the first and in the second trace.
    pub nodes: [u32; 2],
    /// The fields that differ, with the values in both traces.
    pub fields: Vec<NodeFieldChange>,
}

/// A dependency between matched nodes that is in only one of the traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddedOrRemovedDependency {
    /// Index of the dependent node in the first and in the second trace.
    pub node: [u32; 2],
    /// Index in both traces of the node on which `node` depends; `None` if the dependency's id belongs to no node of
    /// either trace.
    pub on: Option<[u32; 2]>,
    /// True for a control dependency (which only orders the two nodes), false for a data dependency.
    pub control: bool,
    /// True if the dependency is in the second trace, false if it is in the first.
    pub added: bool,
}

/// Differences between two traces. Differences in ids or in record order are ignored.
#[derive(Clone, Debug)]
pub struct TraceDiff {
    /// Pairs of corresponding nodes.
    pub pairs: NodeMatching,
    /// Nodes that are only in the first trace; their dependencies are not listed.
    pub removed: Vec<u32>,
    /// Nodes that are only in the second trace; their dependencies are not listed.
    pub added: Vec<u32>,
    /// Matched nodes with different fields, in the order in which the first trace lists them.
    pub changed: Vec<ChangedNode>,
    /// Dependencies between matched nodes that exist in only one of the traces.
    pub edges: Vec<AddedOrRemovedDependency>,
}

impl TraceDiff {
    /// Returns true if there are no differences.
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty()
            && self.added.is_empty()
            && self.changed.is_empty()
            && self.edges.is_empty()
    }
}

/// Maximum number of nodes in each of the compared traces.
pub const MOST: usize = (1 << 31) - 1;

/// Parses both traces; large traces are parsed in parallel.
pub fn parse_both_traces(contents: [&[u8]; 2]) -> [RawTrace<'_>; 2] {
    const LARGE: usize = 1 << 20;
    let large = contents.iter().all(|bytes| bytes.len() >= LARGE);
    let [first, second] = contents;
    matching::run_both_in_parallel_if_much(
        large,
        || RawTrace::read_trace(first),
        || RawTrace::read_trace(second),
    )
}

/// Compares two traces of at most [`MOST`] nodes each.
pub fn compare_traces<'o>(first: &'o RawTrace<'o>, second: &'o RawTrace<'o>) -> TraceDiff {
    compare_traces_matching_large_ones_by_id(&label_both_traces([first, second]), matching::MANY)
}

/// Like [`compare_traces`], but first tries to match nodes by id if each trace has at least `many` nodes.
fn compare_traces_matching_large_ones_by_id(
    sides: &[ComparedTrace<'_>; 2],
    many: usize,
) -> TraceDiff {
    let [first, second] = [0, 1].map(|which: usize| sides[which].raw);
    let pairs = matching::match_nodes(sides, many);
    let mut changed = Vec::new();
    let mut edges = Vec::new();
    let mut buffer = Vec::new();
    for a in first.range_of_all_node_indices() {
        let Some(b) = pairs.partner_of_node(0, a) else {
            continue;
        };
        let (x, y) = (&first.nodes[a as usize], &second.nodes[b as usize]);
        // Most records are identical, so compare their bytes first, and decode only records that
        // differ.
        if x.record.bytes != y.record.bytes {
            let partners = |one: u64, other: u64| {
                let nodes = sides[0].node_with_id(one).zip(sides[1].node_with_id(other));
                nodes.is_some_and(|(one, other)| pairs.partner_of_node(0, one) == Some(other))
            };
            fields::compare_nodes(x, y, &partners, &mut buffer);
            if !buffer.is_empty() {
                changed.push(ChangedNode {
                    nodes: [a, b],
                    fields: std::mem::take(&mut buffer),
                });
            }
        }
        compare_dependencies(sides, &pairs, [a, b], &mut edges);
    }
    TraceDiff {
        removed: pairs.unmatched_nodes(0).collect(),
        added: pairs.unmatched_nodes(1).collect(),
        pairs,
        changed,
        edges,
    }
}

fn label_both_traces<'o>([first, second]: [&'o RawTrace<'o>; 2]) -> [ComparedTrace<'o>; 2] {
    let many = first.nodes.len().min(second.nodes.len()) >= matching::MANY;
    matching::run_both_in_parallel_if_much(
        many,
        || ComparedTrace::new(first),
        || ComparedTrace::new(second),
    )
}

/// Index of the predecessor in the first trace (`u32::MAX` if there is none), and a flag that is true for a control
/// dependency.
type DependencyByFirstTracePredecessor = (u32, bool);

/// Appends the differences between the dependencies of two matched nodes. Dependencies on unmatched nodes are skipped.
fn compare_dependencies(
    sides: &[ComparedTrace<'_>; 2],
    pairs: &NodeMatching,
    node: [u32; 2],
    edges: &mut Vec<AddedOrRemovedDependency>,
) {
    let [a, b] = [0, 1].map(|which| sides[which].raw.dependencies_of(node[which]));
    let known = |which: usize,
                 dep: &PredecessorIdIndexAndKind|
     -> Option<DependencyByFirstTracePredecessor> {
        match dep.target() {
            None => Some((PredecessorIdIndexAndKind::MISSING, dep.control)),
            Some(target) => {
                let partner = pairs.partner_of_node(which, target)?;
                Some((if which == 0 { target } else { partner }, dep.control))
            }
        }
    };
    let same = |(x, y): (&PredecessorIdIndexAndKind, &PredecessorIdIndexAndKind)| {
        known(0, x) == known(1, y)
    };
    // Both lists usually have the same order, so sorting is rarely necessary.
    if a.len() == b.len() && a.iter().zip(b).all(same) {
        return;
    }
    let sorted = |which: usize, deps: &[PredecessorIdIndexAndKind]| {
        let mut list: Vec<_> = deps.iter().filter_map(|dep| known(which, dep)).collect();
        list.sort_unstable();
        list
    };
    let (a, b) = (sorted(0, a), sorted(1, b));
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        let added = match (a.get(i), b.get(j)) {
            (Some(x), Some(y)) if x == y => {
                (i, j) = (i + 1, j + 1);
                continue;
            }
            (Some(x), Some(y)) => y < x,
            (x, _) => x.is_none(),
        };
        let (target, control) = if added { b[j] } else { a[i] };
        let on = (target != PredecessorIdIndexAndKind::MISSING).then(|| {
            [
                target,
                pairs
                    .partner_of_node(0, target)
                    .expect("only pairs are listed"),
            ]
        });
        edges.push(AddedOrRemovedDependency {
            node,
            on,
            control,
            added,
        });
        if added { j += 1 } else { i += 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::matching::same_ids;
    use chakram_trace::format::Op;
    use chakram_trace::format::scan::NodeView;
    use chakram_trace::format::write::{NodeFieldsBeyondView, TraceWriter};

    /// Builds a chain of a hundred nodes. Every third node also depends on the node five places earlier. `edit` changes
    /// a node, or drops it by returning false.
    fn build_edited_chain_trace(edit: impl Fn(u64, &mut String, &mut Vec<u64>) -> bool) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = TraceWriter::new(&mut out).unwrap();
        let mut kept = Vec::new();
        for id in 1..=100_u64 {
            let mut name = format!("op{}", id % 4);
            let mut deps = vec![id - 1];
            if id % 3 == 0 {
                deps.push(id.saturating_sub(5));
            }
            if edit(id, &mut name, &mut deps) {
                deps.retain(|dep| kept.contains(dep));
                kept.push(id);
                let node = NodeView::new(id, &name, Op::Host);
                writer
                    .write_node(&node, &deps, &NodeFieldsBeyondView::default())
                    .unwrap();
            }
        }
        out
    }

    /// Returns the number of differences of each kind, and checks that matching by id does not change it.
    fn count_differences_checking_id_matching(second: &[u8]) -> (usize, usize, usize, usize) {
        let first = build_edited_chain_trace(|_, _, _| true);
        let raw_traces = parse_both_traces([&first, second]);
        let sides = label_both_traces([&raw_traces[0], &raw_traces[1]]);
        let mut pairs = NodeMatching::new([sides[0].len(), sides[1].len()]);
        let sure = same_ids::pair_same_ids_if_nearly_all_identical(&sides, &mut pairs);
        assert!(
            sure && pairs.unmatched_nodes(0).count() < 10,
            "nearly all are namesakes"
        );
        let counts = |many| {
            let found = compare_traces_matching_large_ones_by_id(&sides, many);
            let TraceDiff {
                removed,
                added,
                changed,
                edges,
                ..
            } = &found;
            (removed.len(), added.len(), changed.len(), edges.len())
        };
        assert_eq!(counts(1), counts(usize::MAX));
        counts(1)
    }

    #[test]
    fn matching_by_id_first_gives_the_same_differences() {
        assert_eq!(
            count_differences_checking_id_matching(&build_edited_chain_trace(|_, _, _| true)),
            (0, 0, 0, 0)
        );
        let renamed = build_edited_chain_trace(|id, name, _| {
            if id == 50 {
                name.push('x');
            }
            true
        });
        assert_eq!(
            count_differences_checking_id_matching(&renamed),
            (0, 0, 1, 0)
        );
        assert_eq!(
            count_differences_checking_id_matching(&build_edited_chain_trace(|id, _, _| id != 50)),
            (1, 0, 0, 0)
        );
        let tied = build_edited_chain_trace(|id, _, deps| {
            if id == 61 {
                deps.push(3);
            }
            true
        });
        assert_eq!(count_differences_checking_id_matching(&tied), (0, 0, 0, 1));
    }
}
