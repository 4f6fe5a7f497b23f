//! `doubleBinaryTree`: an all-reduce that sends data up a binary tree and down again. Chunks alternate between two
//! mirrored trees.
//!
//! With n = 2^L members, the root has one subtree: a complete binary tree of the other n-1 members. An in-order
//! traversal numbers this subtree along the line. The root is the last member of the line, or the first in the mirrored
//! tree. A leaf sends its data to its parent. An inner member reduces the messages of its two children, and sends the
//! result to its parent. When the final result comes down, the member reduces it again (unless
//! [`Quirk::TreeReductions`](super::super::Quirk::TreeReductions) is corrected), and sends it to both children. A
//! member ends as soon as it has sent these messages, even if they have not been delivered yet.

use super::MemberQueueDirectionAndTree;
use chakram_hardware::collective::{MemberLinePosition, PostedReceiveSenderAndStep};

/// A member's role in its tree, with the indices of its parent and children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TreeRole {
    Root { child: u32 },
    Inner { parent: u32, left: u32, right: u32 },
    Leaf { parent: u32 },
}

/// A message up or down the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TreeMessageWithCredits {
    pub to: u32,
    /// Number of credits that the sender needs before the message.
    pub after: u32,
    /// Number of steps after which the receiver posts the receive.
    pub recv_posted: u32,
}

impl TreeRole {
    /// Returns the role of the member at `position`.
    pub fn role_of_member(slot: MemberQueueDirectionAndTree, position: MemberLinePosition) -> Self {
        let n = position.size;
        // An in-order traversal gives the subtree the indices 1 to n-1, and the root has index n. If b is the lowest
        // set bit of x, the parent of x is x + b or x - b, whichever has the higher lowest set bit.
        let place = |index: u32| match index {
            0 if slot.mirrored => n,
            _ => index + u32::from(!slot.mirrored),
        };
        let index = |place: u32| if slot.mirrored { place % n } else { place - 1 };
        let x = place(position.index);
        if x == n {
            return Self::Root {
                child: index(n / 2),
            };
        }
        let bit = x & x.wrapping_neg();
        let parent = match x & (2 * bit) {
            0 => x + bit,
            _ => x - bit,
        };
        match bit {
            1 => Self::Leaf {
                parent: index(parent),
            },
            _ => Self::Inner {
                parent: index(parent),
                left: index(x - bit / 2),
                right: index(x + bit / 2),
            },
        }
    }

    /// Returns a member's credits at the start. A leaf has one credit, because its own data first passes through the
    /// endpoint.
    pub fn initial_credits(self) -> u32 {
        u32::from(matches!(self, Self::Leaf { .. }))
    }

    pub fn receive_count(self) -> u32 {
        match self {
            Self::Inner { .. } => 3,
            Self::Root { .. } | Self::Leaf { .. } => 1,
        }
    }

    pub fn reduces_data(self) -> bool {
        !matches!(self, Self::Leaf { .. })
    }

    /// Returns the `i`-th message.
    pub fn nth_send(self, i: u32) -> Option<TreeMessageWithCredits> {
        // Members post receives from their children at the start, and the receive from their parent after they have
        // sent their message up.
        let (to, after, recv_posted) = match (self, i) {
            (Self::Leaf { parent }, 0) => (parent, 1, 0),
            (Self::Inner { parent, .. }, 0) => (parent, 2, 0),
            (Self::Inner { left, .. }, 1) => (left, 3, 1),
            (Self::Inner { right, .. }, 2) => (right, 3, 1),
            (Self::Root { child }, 0) => (child, 1, 1),
            _ => return None,
        };
        Some(TreeMessageWithCredits {
            to,
            after,
            recv_posted,
        })
    }

    /// Returns the `k`-th source from which a member receives after it has taken `taken` steps.
    pub fn nth_receive_source_after_steps(
        self,
        slot: MemberQueueDirectionAndTree,
        position: MemberLinePosition,
        taken: u32,
        k: u32,
    ) -> Option<PostedReceiveSenderAndStep> {
        let child = |from| PostedReceiveSenderAndStep { from, step: 0 };
        let parent = |from| {
            let above = Self::role_of_member(
                slot,
                MemberLinePosition {
                    index: from,
                    ..position
                },
            );
            let mut steps = (0..).map_while(|i| above.nth_send(i));
            let step = steps.position(|m| m.to == position.index && m.recv_posted > 0)?;
            Some(PostedReceiveSenderAndStep {
                from,
                step: step as u32,
            })
        };
        match (self, taken, k) {
            (Self::Root { child: c }, 0, 0) => Some(child(c)),
            (Self::Inner { left, .. }, 0, 0) => Some(child(left)),
            (Self::Inner { right, .. }, 0, 1) => Some(child(right)),
            (Self::Inner { parent: p, .. } | Self::Leaf { parent: p }, 1, 0) => parent(p),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_tree_role(index: u32, size: u32, mirrored: bool) -> TreeRole {
        let position = MemberLinePosition {
            size,
            index,
            root: 0,
            position: index,
        };
        let slot = MemberQueueDirectionAndTree {
            mirrored,
            ..MemberQueueDirectionAndTree::default()
        };
        TreeRole::role_of_member(slot, position)
    }

    #[test]
    fn eight_members_have_the_expected_tree_roles() {
        // An in-order traversal numbers the nodes 0..=6, so the leaves are 0, 2, 4 and 6. The leaves' parents are 1 and
        // 5, and the parent of 1 and 5 is 3. The root is 7.
        assert_eq!(find_tree_role(7, 8, false), TreeRole::Root { child: 3 });
        let inner = |parent, left, right| TreeRole::Inner {
            parent,
            left,
            right,
        };
        assert_eq!(find_tree_role(3, 8, false), inner(7, 1, 5));
        assert_eq!(find_tree_role(1, 8, false), inner(3, 0, 2));
        assert_eq!(find_tree_role(5, 8, false), inner(3, 4, 6));
        assert_eq!(find_tree_role(6, 8, false), TreeRole::Leaf { parent: 5 });
        // In the mirrored tree, an in-order traversal numbers the members 1..=7, and the root is 0.
        assert_eq!(find_tree_role(0, 8, true), TreeRole::Root { child: 4 });
        assert_eq!(find_tree_role(4, 8, true), inner(0, 2, 6));
        assert_eq!(find_tree_role(7, 8, true), TreeRole::Leaf { parent: 6 });
        // With two members, one member is the root and the other is a leaf.
        assert_eq!(find_tree_role(1, 2, false), TreeRole::Root { child: 0 });
        assert_eq!(find_tree_role(0, 2, false), TreeRole::Leaf { parent: 1 });
    }
}
