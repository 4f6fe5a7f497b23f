//! Counts the open dependencies of nodes. Each node's count takes only one byte, because the loop reads it once per
//! edge and mostly misses the caches.

use chakram_trace::graph::huge_pages;
use std::ops::Range;

/// Bits of the byte that count open dependencies.
const COUNT: u8 = 0x3f;
/// Maximum count in these bits; the remaining value is reserved for [`COMPLETE`].
const MOST: u8 = COUNT - 1;
/// Flag: the node has an entry in [`OpenDependencyCounts::beyond`].
const MORE: u8 = 0x40;
/// Flag: the graph gives the node a delay. The loop reads the graph's delays only for nodes with this flag.
const DELAYED: u8 = 0x80;
/// Sentinel: the node is complete.
const COMPLETE: u8 = DELAYED | MORE | COUNT;

/// Open dependencies of all nodes, one byte for each node.
#[derive(Debug)]
pub(super) struct OpenDependencyCounts {
    left: Vec<u8>,
    /// Dependencies that exceed the maximum of a byte, as (node, count), sorted by node.
    beyond: Vec<(usize, u32)>,
}

/// State of a node after one of its dependencies completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeReadinessAfterDependency {
    Waiting,
    Ready,
    /// All dependencies of the node are complete, and the node's delay begins.
    Delayed,
}

impl OpenDependencyCounts {
    /// Creates an empty table with capacity for `nodes` nodes.
    pub fn with_node_capacity(nodes: usize) -> Self {
        Self {
            left: huge_pages::huge_page_vec(nodes),
            beyond: Vec::new(),
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.left.len()
    }

    /// Adds the nodes of a graph with all dependencies open, and returns the index of the first node.
    pub fn add_nodes(&mut self, in_degrees: &[u32]) -> usize {
        let first = self.left.len();
        self.left.extend(
            in_degrees
                .iter()
                .map(|&count| encode_dependency_count(count)),
        );
        if in_degrees.iter().max() > Some(&u32::from(MOST)) {
            let beyond = in_degrees
                .iter()
                .map(|count| count.saturating_sub(MOST.into()));
            let beyond = (first..).zip(beyond).filter(|(_, beyond)| *beyond > 0);
            self.beyond.extend(beyond);
        }
        first
    }

    /// Reopens all dependencies of a graph's nodes, which start at index `first`.
    pub fn reset_nodes(&mut self, first: usize, in_degrees: &[u32]) {
        let nodes = first..first + in_degrees.len();
        for (left, &count) in self.left[nodes.clone()].iter_mut().zip(in_degrees) {
            *left = encode_dependency_count(count);
        }
        let beyond = self.overflow_range(nodes);
        for (node, beyond) in &mut self.beyond[beyond] {
            *beyond = in_degrees[*node - first] - u32::from(MOST);
        }
    }

    /// Records that the node has a delay. Has no effect on a root, whose delay starts when its instance is released.
    pub fn mark_delayed(&mut self, node: usize) {
        let left = &mut self.left[node];
        *left |= if *left > 0 { DELAYED } else { 0 };
    }

    /// Marks a node as complete.
    #[inline]
    pub fn set_complete_marker_of_node(&mut self, node: usize) {
        self.left[node] = COMPLETE;
    }

    /// Completes one dependency of a node, and returns the node's new state.
    #[inline]
    pub fn resolve_dependency(&mut self, node: usize) -> NodeReadinessAfterDependency {
        let left = &mut self.left[node];
        *left -= 1;
        match *left {
            0 => NodeReadinessAfterDependency::Ready,
            left if left & COUNT == 0 => self.refill_zero_count_from_overflow(node),
            _ => NodeReadinessAfterDependency::Waiting,
        }
    }

    /// Moves dependencies from `beyond` into a node's byte once the byte's count has reached zero.
    #[inline(never)]
    fn refill_zero_count_from_overflow(&mut self, node: usize) -> NodeReadinessAfterDependency {
        let flags = self.left[node];
        if flags & MORE != 0
            && let Ok(place) = self.beyond.binary_search_by_key(&node, |(node, _)| *node)
        {
            let beyond = &mut self.beyond[place].1;
            let next = (*beyond).min(u32::from(MOST));
            *beyond -= next;
            if next > 0 {
                self.left[node] |= next as u8;
                return NodeReadinessAfterDependency::Waiting;
            }
        }
        self.left[node] = 0;
        match flags & DELAYED {
            0 => NodeReadinessAfterDependency::Ready,
            _ => NodeReadinessAfterDependency::Delayed,
        }
    }

    /// Returns how many of a node's dependencies are open, or [`None`] if the node is complete.
    pub fn open_dependency_count(&self, node: usize) -> Option<u32> {
        let left = self.left[node];
        let beyond = self.beyond[self.overflow_range(node..node + 1)].iter();
        let beyond: u32 = beyond.map(|(_, beyond)| beyond).sum();
        (left != COMPLETE).then(|| u32::from(left & COUNT) + beyond)
    }

    /// Returns true if all dependencies of a node are complete but the node itself is not. The node's delay may still
    /// be running.
    pub fn is_incomplete_with_met_dependencies(&self, node: usize) -> bool {
        self.left[node] == 0
    }

    /// Returns true if the same dependencies are open in two node ranges of one graph.
    pub fn have_equal_state(&self, one: Range<usize>, other: Range<usize>) -> bool {
        let beyond = |of: &Range<usize>| self.beyond[self.overflow_range(of.clone())].iter();
        let mut pairs = beyond(&one).zip(beyond(&other));
        pairs.all(|((_, a), (_, b))| a == b) && self.left[one] == self.left[other]
    }

    /// Copies the state of one node range to another range in the same graph.
    pub fn copy_counts_between_node_ranges(&mut self, from: Range<usize>, to: Range<usize>) {
        let beyond = [&from, &to].map(|of| self.overflow_range(of.clone()));
        for (from, to) in beyond[0].clone().zip(beyond[1].clone()) {
            self.beyond[to].1 = self.beyond[from].1;
        }
        self.left.copy_within(from, to.start);
    }

    /// Returns the index range in `beyond` for a range of nodes.
    fn overflow_range(&self, nodes: Range<usize>) -> Range<usize> {
        let place = |end: usize| self.beyond.partition_point(|(node, _)| *node < end);
        place(nodes.start)..place(nodes.end)
    }
}

/// Returns the byte for a node that has `count` dependencies and no delay.
#[inline]
fn encode_dependency_count(count: u32) -> u8 {
    if count > u32::from(MOST) {
        MORE | MOST
    } else {
        count as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test has two instances of a graph whose nodes have 0 to 300 dependencies. The counts 62, 63, 124, 125 and
    /// 126 are at or next to multiples of 62, the most that a byte counts. Each node must become ready or delayed
    /// exactly when its last dependency completes.
    #[test]
    fn nodes_become_ready_exactly_when_their_last_dependency_completes() {
        let degrees: Vec<u32> = (0..=300).collect();
        let mut open = OpenDependencyCounts::with_node_capacity(0);
        let firsts = [open.add_nodes(&degrees), open.add_nodes(&degrees)];
        assert_eq!((firsts, open.len()), ([0, 301], 602));
        for round in 0..2 {
            for first in firsts {
                for &degree in degrees.iter().skip(2).step_by(2) {
                    open.mark_delayed(first + degree as usize);
                }
            }
            // Node 0 is a root, so marking it as delayed has no effect.
            open.mark_delayed(0);
            assert!(
                open.is_incomplete_with_met_dependencies(0)
                    && open.open_dependency_count(0) == Some(0)
            );
            for &degree in &degrees[1..] {
                let node = firsts[1] + degree as usize;
                for met in 1..degree {
                    assert_eq!(
                        open.resolve_dependency(node),
                        NodeReadinessAfterDependency::Waiting,
                        "{met} of {degree}"
                    );
                    assert_eq!(open.open_dependency_count(node), Some(degree - met));
                    assert!(!open.is_incomplete_with_met_dependencies(node));
                }
                let last = match degree % 2 {
                    0 => NodeReadinessAfterDependency::Delayed,
                    _ => NodeReadinessAfterDependency::Ready,
                };
                assert_eq!(
                    open.resolve_dependency(node),
                    last,
                    "{degree}, round {round}"
                );
                assert!(
                    open.is_incomplete_with_met_dependencies(node)
                        && open.open_dependency_count(node) == Some(0)
                );
                open.set_complete_marker_of_node(node);
                assert_eq!(open.open_dependency_count(node), None);
                // The counts of the other instance do not change.
                assert_eq!(open.open_dependency_count(degree as usize), Some(degree));
            }
            open.reset_nodes(firsts[1], &degrees);
            assert!(
                (0..=300)
                    .all(|degree| open.open_dependency_count(301 + degree) == Some(degree as u32))
            );
        }
    }

    /// Of the 200 dependencies, 100 are complete: more than the 62 that the byte counts at first. Two copies are equal
    /// until one of them completes a further dependency.
    #[test]
    fn copied_states_are_equal_until_one_resolves_a_dependency() {
        let mut open = OpenDependencyCounts::with_node_capacity(0);
        let degrees = [3, 200, 1];
        let [one, other] =
            [open.add_nodes(&degrees), open.add_nodes(&degrees)].map(|first| first..first + 3);
        assert!(open.have_equal_state(one.clone(), other.clone()));
        for _ in 0..100 {
            open.resolve_dependency(1);
        }
        assert!(!open.have_equal_state(one.clone(), other.clone()));
        open.copy_counts_between_node_ranges(one.clone(), other.clone());
        assert!(open.have_equal_state(one.clone(), other.clone()));
        assert_eq!(open.open_dependency_count(4), Some(100));
        open.resolve_dependency(4);
        assert!(!open.have_equal_state(one, other));
        assert_eq!(
            (open.open_dependency_count(1), open.open_dependency_count(4)),
            (Some(100), Some(99))
        );
    }
}
