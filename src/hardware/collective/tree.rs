//! Tree: data goes up a binary tree and down again, for any number of members.
//!
//! Members are numbered from the root, x = index − root. The root, 0, has one child: the top of a binary tree over 1 …
//! n−1. The members' numbers are the in-order numbers of this tree. If 2^b is the lowest set bit of x, the children of
//! x are x − 2^(b−1) and x + 2^(b−1). If no member has the upper number, the upper child is x + 2^j with the largest j
//! for which such a member exists. In this tree, odd numbers are leaves, a member's subtree is a contiguous range of
//! numbers, and the depth is h = ⌈log2 n⌉. NCCL numbers the members of its trees in the same way
//! (`src/graph/trees.cc`).
//!
//! Let t be the time to send the buffer of size S, and α the latency. If all members start together, the times below
//! are exact for n = 2^h, and upper bounds otherwise. At every level except the root's, two children share their
//! parent's port, for sending or receiving:
//!
//! | primitive | messages | ends after |
//! |---|---|---|
//! | reduce | S to the parent, after all children's messages | hα + (2h−1)t |
//! | broadcast | S to the children after the parent's message, the lower child first | hα + (2h−1)t |
//! | all-reduce | up as in a reduce, then down as in a broadcast | 2hα + (4h−2)t |
//!
//! Members end at different times, so there is no closed form. In an all-reduce, a member's message to its parent
//! depends on the messages of all its children. The number of received messages alone therefore shows which ones have
//! arrived.

use super::line_cost::LineMessageCosts;
use super::{
    CollectiveStage, CollectiveStagePrimitive, MemberLinePosition, SendStepWithConditions,
};
use chakram_base::units::{UnroundedBufferShare, UnroundedTimeEstimate};

/// The numbers of a member's parent and children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TreeNeighbours {
    pub parent: Option<u32>,
    /// The child with the lower number, or the only child.
    pub below: Option<u32>,
    pub above: Option<u32>,
}

impl TreeNeighbours {
    /// Returns the neighbours of the member with number `x`, out of `n` members.
    pub fn of_member(n: u32, x: u32) -> Self {
        if x == 0 {
            return Self {
                parent: None,
                below: Some(n.next_power_of_two() / 2),
                above: None,
            };
        }
        // The lowest set bit determines the member's level; leaves are odd.
        let bit = x & x.wrapping_neg();
        let without = x ^ bit;
        let up = without | bit << 1;
        let room = (bit / 2).min(n - 1 - x);
        Self {
            parent: Some(if up < n { up } else { without }),
            below: (bit > 1).then(|| x - bit / 2),
            above: (room > 0).then(|| x + (1 << room.ilog2())),
        }
    }

    fn child_count(&self) -> u32 {
        u32::from(self.below.is_some()) + u32::from(self.above.is_some())
    }

    /// Returns the `i`-th message as (the receiver's number, number of messages that must be received first).
    fn nth_message(&self, primitive: CollectiveStagePrimitive, i: u32) -> Option<(u32, u32)> {
        let children = self.child_count();
        let ups = match (primitive, self.parent) {
            (
                CollectiveStagePrimitive::Reduce | CollectiveStagePrimitive::AllReduce,
                Some(parent),
            ) if i == 0 => {
                return Some((parent, children));
            }
            (CollectiveStagePrimitive::AllReduce, Some(_)) => 1,
            (CollectiveStagePrimitive::AllReduce | CollectiveStagePrimitive::Broadcast, _) => 0,
            _ => return None,
        };
        let child = match i - ups {
            0 => self.below?,
            1 => self.above?,
            _ => return None,
        };
        Some((child, self.receive_count(primitive)))
    }

    /// Returns the number of messages that the member receives. The member sends down the tree only after receiving all
    /// of them.
    fn receive_count(&self, primitive: CollectiveStagePrimitive) -> u32 {
        let parents = u32::from(self.parent.is_some());
        match primitive {
            CollectiveStagePrimitive::AllReduce => self.child_count() + parents,
            CollectiveStagePrimitive::Reduce => self.child_count(),
            CollectiveStagePrimitive::Broadcast => parents,
            _ => 0,
        }
    }
}

/// Returns the number of the member at `line`, counted from the root.
pub(super) fn number_from_root(line: MemberLinePosition) -> u32 {
    (line.index + line.size - line.root) % line.size
}

/// Returns the `i`-th message of the member whose number in its tree is `x`; `index` converts numbers back to indices.
pub(super) fn nth_send_of_tree_member(
    stage: &CollectiveStage,
    line: MemberLinePosition,
    x: u32,
    i: u32,
    index: impl Fn(u32) -> u32,
) -> Option<SendStepWithConditions> {
    let (to, after) = TreeNeighbours::of_member(line.size, x).nth_message(stage.primitive, i)?;
    Some(SendStepWithConditions {
        to: (index(to) + line.root) % line.size,
        amount: stage.buffer,
        after,
        arrived: 0,
        recv_posted: 0,
    })
}

/// Returns the number of messages that the member with number `x` in its tree receives.
pub(super) fn receive_count_of_tree_member(
    stage: &CollectiveStage,
    line: MemberLinePosition,
    x: u32,
) -> u32 {
    TreeNeighbours::of_member(line.size, x).receive_count(stage.primitive)
}

pub(super) fn nth_send(
    stage: &CollectiveStage,
    line: MemberLinePosition,
    i: u32,
) -> Option<SendStepWithConditions> {
    nth_send_of_tree_member(stage, line, number_from_root(line), i, |x| x)
}

pub(super) fn receive_count(stage: &CollectiveStage, line: MemberLinePosition) -> u32 {
    receive_count_of_tree_member(stage, line, number_from_root(line))
}

/// Returns the unrounded times of the module's table, for [`auto`](super::auto). Two trees take the same time as a
/// single tree.
pub(super) fn estimate_cost(
    line: &LineMessageCosts<'_>,
    primitive: CollectiveStagePrimitive,
    buffer: UnroundedBufferShare,
) -> UnroundedTimeEstimate {
    let n = line.member_count();
    // At every level except the root's, two children share one port, so the second child's message adds one
    // serialization time.
    let once = line.sum_over_doublings(|way, j| {
        let passes = way.without_load_of_other_messages().time_under_load(buffer);
        let first = way.time_of_first_byte(buffer) + passes;
        if 2 << j < n { first + passes } else { first }
    });
    match primitive {
        CollectiveStagePrimitive::AllReduce => once.times(2),
        _ => once,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_of_eleven_members_has_expected_parents_and_children() {
        // The tree over 1 ..= 10 has 8 at the top. The lower child of 8 is 4, with the children 2 and 6. The upper
        // child of 8 is 10, because 12 does not exist; the only child of 10 is 9.
        let relatives = |parent, below, above| TreeNeighbours {
            parent,
            below,
            above,
        };
        let of = |x| TreeNeighbours::of_member(11, x);
        assert_eq!(of(0), relatives(None, Some(8), None));
        assert_eq!(of(8), relatives(Some(0), Some(4), Some(10)));
        assert_eq!(of(4), relatives(Some(8), Some(2), Some(6)));
        assert_eq!(of(6), relatives(Some(4), Some(5), Some(7)));
        assert_eq!(of(10), relatives(Some(8), Some(9), None));
        assert_eq!(of(9), relatives(Some(10), None, None));
    }

    #[test]
    fn parents_and_children_know_each_other() {
        for n in 2..=130 {
            for x in 0..n {
                let own = TreeNeighbours::of_member(n, x);
                for child in [own.below, own.above].into_iter().flatten() {
                    assert_eq!(
                        TreeNeighbours::of_member(n, child).parent,
                        Some(x),
                        "{child} of {n}"
                    );
                }
                let mut up = own.parent;
                let mut depth = 0;
                while let Some(parent) = up {
                    let at = TreeNeighbours::of_member(n, parent);
                    assert!([at.below, at.above].contains(&Some(x)) || depth > 0);
                    (up, depth) = (at.parent, depth + 1);
                }
                assert!(depth <= n.next_power_of_two().ilog2(), "{x} of {n}");
            }
        }
    }
}
