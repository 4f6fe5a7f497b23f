//! Color refinement: divides nodes into classes of equal nodes. A class is split while its nodes have
//! neighbours in different classes.
//!
//! Classes contain nodes of both traces. A class with one node of each trace is a pair, and is removed from the
//! partition. If a class contains several nodes of each trace, finer labels split it. Nodes that remain equal are
//! paired in id order. After each of these steps, classes are refined until they no longer change. If two traces differ
//! only in ids and order, the algorithm finds the correct pairs. The exceptions are graphs so regular that different
//! nodes have the same number of neighbours in every class. Each split visits only the edges of a class's smaller part,
//! so that the total time is O(edges · log nodes).

use super::equal_labels::for_each_equal_label;
use super::{NodeLabelsByTrace, NodeMatching};
use crate::diff::side::{ComparedTrace, DependencyWalkDirection};
use std::collections::VecDeque;

/// Class number of nodes that are paired, or cannot be paired.
const NONE: u32 = u32::MAX;

/// A class: a range in the member list, and the number of these members that belong to the first
/// trace.
#[derive(Clone, Copy, Debug)]
struct RefinementClass {
    start: u32,
    len: u32,
    first: u32,
    queued: bool,
}

impl RefinementClass {
    fn is_balanced(&self) -> bool {
        self.first * 2 == self.len
    }
}

/// A set of nodes that splits classes. Two members of a class are separated if different numbers of their edges lead
/// into this set.
enum SplittingClassOrNodePair {
    Class(u32),
    /// A pair, identified by its node of the first trace.
    Pair(u32),
}

/// Partition of unpaired nodes into classes. The nodes of the second trace are numbered after all nodes of the
/// first trace.
pub(super) struct ColorRefinement<'x, 'o> {
    sides: &'x [ComparedTrace<'o>; 2],
    pairs: &'x mut NodeMatching,
    /// For each node, the index of its class.
    class: Vec<u32>,
    /// For each node, its index in `members`.
    place: Vec<u32>,
    members: Vec<u32>,
    classes: Vec<RefinementClass>,
    queue: VecDeque<SplittingClassOrNodePair>,
    /// Indices of classes that contain several nodes of each trace. The last one in this list is resolved next.
    ambiguous: Vec<u32>,
    /// For each node, its number of edges into the current splitter. Data dependencies are counted in the lower half,
    /// control dependencies in the upper half.
    count: Vec<u64>,
}

impl<'x, 'o> ColorRefinement<'x, 'o> {
    /// Pairs nodes that have a unique label in each trace. All other nodes with equal labels form a class.
    /// Returns `None` if there are no classes.
    pub fn new(
        sides: &'x [ComparedTrace<'o>; 2],
        pairs: &'x mut NodeMatching,
        labels: &NodeLabelsByTrace,
    ) -> Option<Self> {
        let mut classes: Vec<RefinementClass> = Vec::new();
        let mut members: Vec<u32> = Vec::new();
        let offset = pairs.node_count_of_trace(0);
        for_each_equal_label(pairs, labels, |pairs, nodes, first| match nodes {
            [a, b] => pairs.set_pair(a.1, b.1 - offset),
            _ => {
                classes.push(RefinementClass {
                    start: members.len() as u32,
                    len: nodes.len() as u32,
                    first: first as u32,
                    queued: false,
                });
                members.extend(nodes.iter().map(|&(_, node)| node));
            }
        });
        if classes.is_empty() {
            return None;
        }
        // Sort classes by ids instead of labels, because labels are hashes, so their order is arbitrary.
        classes.sort_unstable_by_key(|class| members[class.start as usize]);
        let all = sides[0].len() + sides[1].len();
        let mut this = Self {
            sides,
            pairs,
            class: vec![NONE; all],
            place: vec![NONE; all],
            queue: VecDeque::new(),
            ambiguous: (0..classes.len() as u32).rev().collect(),
            count: vec![0; all],
            members,
            classes,
        };
        for number in 0..this.classes.len() as u32 {
            for at in this.range_of_class(number) {
                let node = this.members[at] as usize;
                (this.class[node], this.place[node]) = (number, at as u32);
            }
            if this.classes[number as usize].is_balanced() {
                this.enqueue_class(number);
            }
        }
        this.enqueue_neighbouring_pairs();
        this.refine_classes();
        Some(this)
    }

    fn range_of_class(&self, number: u32) -> std::ops::Range<usize> {
        let class = self.classes[number as usize];
        class.start as usize..(class.start + class.len) as usize
    }

    fn first_index_of_second_trace(&self) -> u32 {
        self.sides[0].len() as u32
    }

    fn enqueue_class(&mut self, number: u32) {
        let class = &mut self.classes[number as usize];
        if !class.queued {
            class.queued = true;
            self.queue
                .push_back(SplittingClassOrNodePair::Class(number));
        }
    }

    /// Enqueues the neighbouring pairs of class members as splitters.
    fn enqueue_neighbouring_pairs(&mut self) {
        let offset = self.first_index_of_second_trace();
        let mut beside: Vec<u32> = Vec::new();
        for &node in self.members.iter().filter(|&&node| node < offset) {
            for way in DependencyWalkDirection::BOTH {
                let next = self.sides[0].neighbours_of(node, way).map(|(next, _)| next);
                beside.extend(next.filter(|&next| self.pairs.partner_of_node(0, next).is_some()));
            }
        }
        beside.sort_unstable();
        beside.dedup();
        self.queue
            .extend(beside.into_iter().map(SplittingClassOrNodePair::Pair));
    }

    /// Splits classes until all members of a class have equal numbers of neighbours in every class.
    fn refine_classes(&mut self) {
        let (mut members, mut touched) = (Vec::new(), Vec::new());
        while let Some(splitter) = self.queue.pop_front() {
            members.clear();
            match splitter {
                SplittingClassOrNodePair::Pair(first) => {
                    let second = self.pairs.partner_of_node(0, first).expect("it is a pair");
                    members.extend([first, second + self.first_index_of_second_trace()]);
                }
                SplittingClassOrNodePair::Class(number) => {
                    let class = &mut self.classes[number as usize];
                    // A class that has more nodes from one trace than from the other does not split other classes. Some
                    // of its nodes have no partner, and their edges would separate correct pairs.
                    if !std::mem::take(&mut class.queued) || !class.is_balanced() {
                        continue;
                    }
                    members.extend_from_slice(&self.members[self.range_of_class(number)]);
                }
            }
            for way in DependencyWalkDirection::BOTH {
                touched.clear();
                for &member in &members {
                    let offset = self.first_index_of_second_trace();
                    let (side, own, shift) = if member < offset {
                        (&self.sides[0], member, 0)
                    } else {
                        (&self.sides[1], member - offset, offset)
                    };
                    for (next, control) in side.neighbours_of(own, way) {
                        let next = next + shift;
                        if self.class[next as usize] != NONE {
                            let count = &mut self.count[next as usize];
                            if *count == 0 {
                                touched.push(next);
                            }
                            *count += if control { 1 << 32 } else { 1 };
                        }
                    }
                }
                self.split_touched_classes(&mut touched);
            }
        }
    }

    /// Splits the classes of the nodes in `touched`, so that all nodes of a class have equal counts, and resets the
    /// counts.
    fn split_touched_classes(&mut self, touched: &mut [u32]) {
        touched.sort_unstable_by_key(|&node| {
            (self.class[node as usize], self.count[node as usize], node)
        });
        let mut parts: Vec<&[u32]> = Vec::new();
        let mut rest = &touched[..];
        while let Some(&node) = rest.first() {
            let number = self.class[node as usize];
            let end = rest.partition_point(|&node| self.class[node as usize] <= number);
            let inside;
            (inside, rest) = rest.split_at(end);
            parts
                .extend(inside.chunk_by(|a, b| self.count[*a as usize] == self.count[*b as usize]));
            let others = self.classes[number as usize].len as usize - inside.len();
            for &node in inside {
                self.count[node as usize] = 0;
            }
            self.split_parts_off_class(number, &mut parts, others);
            parts.clear();
        }
    }

    /// Splits the nodes in `parts` off a class. `rest` nodes of the class belong to no part.
    fn split_parts_off_class(&mut self, number: u32, parts: &mut Vec<&[u32]>, rest: usize) {
        if rest == 0 {
            // If every node is in a part, the largest part can remain in the old class.
            let largest = (0..parts.len()).max_by_key(|&i| (parts[i].len(), usize::MAX - i));
            parts.remove(largest.expect("there is one"));
        }
        if parts.is_empty() {
            return;
        }
        let class = self.classes[number as usize];
        let all = class.queued || !class.is_balanced();
        let mut new = Vec::with_capacity(parts.len());
        for part in parts {
            new.push(self.move_part_to_new_class(number, part));
        }
        // All resulting classes except the largest become splitters. The edge counts into the largest class follow from
        // the others.
        let size = |number: &u32| self.classes[*number as usize].len;
        let largest = new.iter().copied().max_by_key(size).expect("there is one");
        let spare = if size(&number) >= size(&largest) {
            number
        } else {
            largest
        };
        new.push(number);
        for class in new {
            self.convert_to_pair_or_remove_class(class);
            if all || class != spare {
                self.enqueue_class_if_balanced(class);
            }
        }
    }

    fn enqueue_class_if_balanced(&mut self, number: u32) {
        let class = self.classes[number as usize];
        if class.len > 2 && class.is_balanced() {
            self.enqueue_class(number);
        }
    }

    fn move_part_to_new_class(&mut self, number: u32, part: &[u32]) -> u32 {
        let new = self.classes.len() as u32;
        let offset = self.first_index_of_second_trace();
        let first = part.iter().filter(|&&node| node < offset).count() as u32;
        let class = &mut self.classes[number as usize];
        class.len -= part.len() as u32;
        class.first -= first;
        let start = class.start + class.len;
        // Fill the range from its end, so that no member of the part is moved twice.
        let mut end = start + part.len() as u32;
        for &node in part {
            end -= 1;
            let at = self.place[node as usize];
            let other = self.members[end as usize];
            self.members.swap(at as usize, end as usize);
            (self.place[other as usize], self.place[node as usize]) = (at, end);
            self.class[node as usize] = new;
        }
        self.classes.push(RefinementClass {
            start,
            len: part.len() as u32,
            first,
            queued: false,
        });
        new
    }

    /// Turns a class with one node of each trace into a pair. Removes a class with nodes of only one trace.
    fn convert_to_pair_or_remove_class(&mut self, number: u32) {
        let class = self.classes[number as usize];
        let pair = class.len == 2 && class.first == 1;
        if !pair && class.first > 0 && class.first < class.len {
            self.ambiguous.push(number);
            return;
        }
        for at in self.range_of_class(number) {
            self.class[self.members[at] as usize] = NONE;
        }
        if pair {
            let [x, y] = [0, 1].map(|i| self.members[class.start as usize + i]);
            let (first, second) = (x.min(y), x.max(y) - self.first_index_of_second_trace());
            self.pairs.set_pair(first, second);
            self.queue.push_back(SplittingClassOrNodePair::Pair(first));
        }
        self.classes[number as usize].len = 0;
        self.classes[number as usize].first = 0;
    }

    /// Returns true if a class with several nodes of each trace is left.
    pub fn has_tied_class(&mut self) -> bool {
        let classes = &self.classes;
        self.ambiguous
            .retain(|&number| classes[number as usize].len > 0);
        !self.ambiguous.is_empty()
    }

    /// Splits classes by `labels`. All nodes of a new class have the same label, and each trace contributes the same
    /// number of nodes.
    pub fn split_by_labels(&mut self, labels: &NodeLabelsByTrace) {
        let offset = self.first_index_of_second_trace();
        let label = |node: u32| {
            if node < offset {
                labels[0][node as usize]
            } else {
                labels[1][(node - offset) as usize]
            }
        };
        let mut tied = self.ambiguous.clone();
        tied.sort_unstable();
        tied.dedup();
        for number in tied {
            let members = &self.members[self.range_of_class(number)];
            let mut sorted: Vec<(u64, u32)> = members.iter().map(|&n| (label(n), n)).collect();
            sorted.sort_unstable();
            let mut parts: Vec<Vec<u32>> = Vec::new();
            let mut taken = 0;
            for alike in sorted.chunk_by(|a, b| a.0 == b.0) {
                let first = alike.partition_point(|&(_, node)| node < offset);
                // Take the same number of nodes from each trace, so that the new class is balanced.
                let both = first.min(alike.len() - first);
                if both > 0 {
                    let (a, b) = alike.split_at(first);
                    let chosen = a[..both].iter().chain(&b[..both]);
                    parts.push(chosen.map(|&(_, node)| node).collect());
                    taken += 2 * both;
                }
            }
            let rest = sorted.len() - taken;
            let mut parts: Vec<&[u32]> = parts.iter().map(Vec::as_slice).collect();
            if !parts.is_empty() {
                self.split_parts_off_class(number, &mut parts, rest);
            }
        }
        self.refine_classes();
    }

    /// Pairs the members of each class in id order, and refines the other classes after each pair.
    pub fn pair_class_members_in_order(&mut self) {
        let offset = self.first_index_of_second_trace();
        while let Some(number) = self.ambiguous.pop() {
            let class = self.classes[number as usize];
            if class.len == 0 || !class.is_balanced() {
                continue;
            }
            let members = &self.members[self.range_of_class(number)];
            let (mut a, mut b): (Vec<u32>, Vec<u32>) =
                members.iter().partition(|&&node| node < offset);
            a.sort_unstable();
            b.sort_unstable();
            let mut b = b.into_iter();
            for first in a {
                // The refinement after an earlier pair may have split this class.
                if self.class[first as usize] != number
                    || !self.classes[number as usize].is_balanced()
                {
                    continue;
                }
                let second = b.find(|&node| self.class[node as usize] == number);
                let Some(second) = second else { break };
                let mut parts: Vec<&[u32]> = Vec::new();
                let both = [first, second];
                parts.push(&both);
                let rest = self.classes[number as usize].len as usize - 2;
                self.split_parts_off_class(number, &mut parts, rest);
                self.refine_classes();
            }
        }
    }
}
