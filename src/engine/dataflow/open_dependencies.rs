//! Open dependencies of nodes, a byte each: the loop looks at one for every edge, and most do not stay in caches.

use chakram_trace::graph::huge_pages;
use std::ops::Range;

/// Bits that count dependencies which are open.
const COUNT: u8 = 0x3f;
/// The most that they count of a node at once.
const MOST: u8 = COUNT - 1;
/// Flag: there are more in [`OpenDependencies::beyond`], or were.
const MORE: u8 = 0x40;
/// Flag: the node has a delay. Nodes without one cost the loop no look at their graph's delays.
const DELAYED: u8 = 0x80;
/// Sentinel: the node is complete.
const COMPLETE: u8 = DELAYED | MORE | COUNT;

/// See the module.
#[derive(Debug)]
pub(super) struct OpenDependencies {
    left: Vec<u8>,
    /// Of nodes with more dependencies than a byte counts, in order, those that it does not count yet.
    beyond: Vec<(usize, u32)>,
}

/// State of a node of which one more dependency is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeState {
    Waiting,
    Ready,
    /// All are complete, and its delay begins.
    Delayed,
}

impl OpenDependencies {
    /// None, with room for those of `nodes`.
    pub fn with_room(nodes: usize) -> Self {
        Self {
            left: huge_pages::huge_page_vec(nodes),
            beyond: Vec::new(),
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.left.len()
    }

    /// Adds the nodes of a graph, and returns the index of the first.
    pub fn add(&mut self, in_degrees: &[u32]) -> usize {
        let first = self.left.len();
        self.left
            .extend(in_degrees.iter().map(|&count| byte(count)));
        if in_degrees.iter().max() > Some(&u32::from(MOST)) {
            let beyond = in_degrees
                .iter()
                .map(|count| count.saturating_sub(MOST.into()));
            let beyond = (first..).zip(beyond).filter(|(_, beyond)| *beyond > 0);
            self.beyond.extend(beyond);
        }
        first
    }

    /// Opens all dependencies of nodes that were added at `first`.
    pub fn reset(&mut self, first: usize, in_degrees: &[u32]) {
        let nodes = first..first + in_degrees.len();
        for (left, &count) in self.left[nodes.clone()].iter_mut().zip(in_degrees) {
            *left = byte(count);
        }
        let beyond = self.beyond_of(nodes);
        for (node, beyond) in &mut self.beyond[beyond] {
            *beyond = in_degrees[*node - first] - u32::from(MOST);
        }
    }

    /// Gives a node a delay. Roots are delayed from the release of their instance on, so they stay as they are.
    pub fn delay(&mut self, node: usize) {
        let left = &mut self.left[node];
        *left |= if *left > 0 { DELAYED } else { 0 };
    }

    /// Notes that a node is complete.
    #[inline]
    pub fn complete(&mut self, node: usize) {
        self.left[node] = COMPLETE;
    }

    /// Closes a dependency of a node.
    #[inline]
    pub fn meet(&mut self, node: usize) -> NodeState {
        let left = &mut self.left[node];
        *left -= 1;
        match *left {
            0 => NodeState::Ready,
            left if left & COUNT == 0 => self.count_on(node),
            _ => NodeState::Waiting,
        }
    }

    /// Counts those that the byte of a node has not counted yet.
    #[inline(never)]
    fn count_on(&mut self, node: usize) -> NodeState {
        let flags = self.left[node];
        if flags & MORE != 0
            && let Ok(place) = self.beyond.binary_search_by_key(&node, |(node, _)| *node)
        {
            let beyond = &mut self.beyond[place].1;
            let next = (*beyond).min(u32::from(MOST));
            *beyond -= next;
            if next > 0 {
                self.left[node] |= next as u8;
                return NodeState::Waiting;
            }
        }
        self.left[node] = 0;
        match flags & DELAYED {
            0 => NodeState::Ready,
            _ => NodeState::Delayed,
        }
    }

    /// Returns the open dependencies of a node, [`None`] if it is complete.
    pub fn left(&self, node: usize) -> Option<u32> {
        let left = self.left[node];
        let beyond = self.beyond[self.beyond_of(node..node + 1)].iter();
        let beyond: u32 = beyond.map(|(_, beyond)| beyond).sum();
        (left != COMPLETE).then(|| u32::from(left & COUNT) + beyond)
    }

    /// Returns whether all dependencies of a node are complete and its delay is over or has begun, and it is not complete.
    pub fn is_met(&self, node: usize) -> bool {
        self.left[node] == 0
    }

    /// Returns whether as many are open of each node of one range as of the other, of the same graph.
    pub fn are_alike(&self, one: Range<usize>, other: Range<usize>) -> bool {
        let beyond = |of: &Range<usize>| self.beyond[self.beyond_of(of.clone())].iter();
        let mut pairs = beyond(&one).zip(beyond(&other));
        pairs.all(|((_, a), (_, b))| a == b) && self.left[one] == self.left[other]
    }

    /// Makes one range of nodes as another is, of the same graph.
    pub fn copy(&mut self, from: Range<usize>, to: Range<usize>) {
        let beyond = [&from, &to].map(|of| self.beyond_of(of.clone()));
        for (from, to) in beyond[0].clone().zip(beyond[1].clone()) {
            self.beyond[to].1 = self.beyond[from].1;
        }
        self.left.copy_within(from, to.start);
    }

    /// Returns the part of `beyond` that is of a range of nodes.
    fn beyond_of(&self, nodes: Range<usize>) -> Range<usize> {
        let place = |end: usize| self.beyond.partition_point(|(node, _)| *node < end);
        place(nodes.start)..place(nodes.end)
    }
}

/// Returns the byte of a node with this many dependencies, without a delay.
#[inline]
fn byte(count: u32) -> u8 {
    if count > u32::from(MOST) {
        MORE | MOST
    } else {
        count as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two instances of a graph whose nodes have 0 to 300 dependencies: those of 62, 63, 124, 125 and 126 lie at the borders
    /// of a byte's count. Each is met as often as it has dependencies, and is then ready, or delayed, and not before.
    #[test]
    fn nodes_are_ready_when_the_last_of_any_number_is_met() {
        let degrees: Vec<u32> = (0..=300).collect();
        let mut open = OpenDependencies::with_room(0);
        let firsts = [open.add(&degrees), open.add(&degrees)];
        assert_eq!((firsts, open.len()), ([0, 301], 602));
        for round in 0..2 {
            for first in firsts {
                for &degree in degrees.iter().skip(2).step_by(2) {
                    open.delay(first + degree as usize);
                }
            }
            // A root stays as it is.
            open.delay(0);
            assert!(open.is_met(0) && open.left(0) == Some(0));
            for &degree in &degrees[1..] {
                let node = firsts[1] + degree as usize;
                for met in 1..degree {
                    assert_eq!(open.meet(node), NodeState::Waiting, "{met} of {degree}");
                    assert_eq!(open.left(node), Some(degree - met));
                    assert!(!open.is_met(node));
                }
                let last = match degree % 2 {
                    0 => NodeState::Delayed,
                    _ => NodeState::Ready,
                };
                assert_eq!(open.meet(node), last, "{degree}, round {round}");
                assert!(open.is_met(node) && open.left(node) == Some(0));
                open.complete(node);
                assert_eq!(open.left(node), None);
                // The other instance's is as it was.
                assert_eq!(open.left(degree as usize), Some(degree));
            }
            open.reset(firsts[1], &degrees);
            assert!((0..=300).all(|degree| open.left(301 + degree) == Some(degree as u32)));
        }
    }

    /// Of 200 dependencies 100 are met, 62 of which the byte counted first: copies are alike, and differ after one more.
    #[test]
    fn copies_are_alike_until_one_of_them_goes_on() {
        let mut open = OpenDependencies::with_room(0);
        let degrees = [3, 200, 1];
        let [one, other] = [open.add(&degrees), open.add(&degrees)].map(|first| first..first + 3);
        assert!(open.are_alike(one.clone(), other.clone()));
        for _ in 0..100 {
            open.meet(1);
        }
        assert!(!open.are_alike(one.clone(), other.clone()));
        open.copy(one.clone(), other.clone());
        assert!(open.are_alike(one.clone(), other.clone()));
        assert_eq!(open.left(4), Some(100));
        open.meet(4);
        assert!(!open.are_alike(one, other));
        assert_eq!((open.left(1), open.left(4)), (Some(100), Some(99)));
    }
}
