//! Double binary tree: two binary trees with one root. Chunks alternate between the trees.
//!
//! Both trees of a double binary tree have the shape of a [`tree`]. In the second tree, all members except the root
//! have other numbers. If n is odd, the members are numbered backwards, so that odd and even numbers swap. If n is
//! even, each number is reduced by one, so 1 wraps around to n−1. Leaves have odd numbers, and a member whose number is
//! even in one tree has an odd number in the other. Every member except the root is therefore a leaf in at least one of
//! the two trees. For two chunks of an all-reduce, a member sends 4 messages and receives 4. In a single tree, an inner
//! member sends 6 and receives 6 (P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth
//! broadcast, reduction and scan", Parallel Computing 35, 2009). [`CollectiveStage::mirrored`] selects the tree.
//!
//! One chunk takes the same time in two trees as in a single [`tree`]. With h = ⌈log2 n⌉, an all-reduce takes at most
//! 2hα + (4h−2)t, and a broadcast or reduce at most hα + (2h−1)t. Two trees beat one only if there are many chunks.

use super::{CollectiveStage, MemberLinePosition, SendStepWithConditions, tree};

/// Returns the tree number of the member that is `x` places after the root.
fn number_in_tree(stage: &CollectiveStage, n: u32, x: u32) -> u32 {
    match x {
        0 => 0,
        _ if !stage.mirrored => x,
        _ if n % 2 == 1 => n - x,
        1 => n - 1,
        _ => x - 1,
    }
}

/// Returns the number of places between the root and the member with `number` in its tree: the inverse of
/// [`number_in_tree`].
fn places_after_root(stage: &CollectiveStage, n: u32, number: u32) -> u32 {
    match number {
        0 => 0,
        _ if !stage.mirrored => number,
        _ if n % 2 == 1 => n - number,
        _ if number == n - 1 => 1,
        _ => number + 1,
    }
}

pub(super) fn nth_send(
    stage: &CollectiveStage,
    line: MemberLinePosition,
    i: u32,
) -> Option<SendStepWithConditions> {
    let n = line.size;
    let x = number_in_tree(stage, n, tree::number_from_root(line));
    tree::nth_send_of_tree_member(stage, line, x, i, |x| places_after_root(stage, n, x))
}

pub(super) fn receive_count(stage: &CollectiveStage, line: MemberLinePosition) -> u32 {
    let x = number_in_tree(stage, line.size, tree::number_from_root(line));
    tree::receive_count_of_tree_member(stage, line, x)
}

#[cfg(test)]
mod tests {
    use super::super::CollectiveStagePrimitive;
    use super::*;
    use chakram_base::units::UnroundedBufferShare;

    #[test]
    fn nobody_but_the_root_has_children_in_both_trees() {
        for n in 2..=65 {
            for root in [0, n / 2, n - 1] {
                for index in 0..n {
                    let line = MemberLinePosition {
                        size: n,
                        index,
                        root,
                        position: index,
                    };
                    // In a reduce, members receive only from their children, so a member that receives has children.
                    let children = [false, true].map(|mirrored| {
                        let stage = CollectiveStage {
                            phase: 0,
                            primitive: CollectiveStagePrimitive::Reduce,
                            buffer: UnroundedBufferShare::from_bytes(1),
                            mirrored,
                            bidirectional: false,
                        };
                        receive_count(&stage, line)
                    });
                    if index == root {
                        assert_eq!(children, [1, 1])
                    } else {
                        assert!(children.contains(&0), "{index} of {n}: {children:?}")
                    }
                }
            }
        }
    }
}
