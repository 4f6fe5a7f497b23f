//! Binomial trees: broadcast, scatter, reduce and gather in log2 levels among any number of
//! members.
//!
//! Members are numbered from the root, x = index − root. The parent of x is x without its lowest set bit 2^b. The
//! children of x are x + 2^j for all j < b, up to the last member. The subtree of x is x … x + 2^b − 1. Members send to
//! the child with the largest subtree first (R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective
//! Communication Operations in MPICH", 2005, section 4.4).
//!
//! Let all members start together. Let t be the time to send the buffer S, s the time to send S/n, α the latency, and h
//! = ⌈log2 n⌉. The times below are exact for n = 2^h, and upper bounds otherwise:
//!
//! | primitive | messages | ends after |
//! |---|---|---|
//! | broadcast | parent to child, S | h(α + t) |
//! | reduce | child to parent, S, after all messages of the child's children | h(α + t) |
//! | gather, scatter | the same edges, the share of the child's subtree | hα + (n−1)s |

use super::{
    CollectiveStage, CollectiveStagePrimitive, MemberLinePosition, SendStepWithConditions,
};

/// A member's position in the tree.
struct BinomialTreePosition {
    /// Number of members in the line.
    size: u32,
    /// The root's index in the line.
    root: u32,
    /// The member's number, counted from the root.
    x: u32,
}

impl BinomialTreePosition {
    fn new(line: MemberLinePosition) -> Self {
        Self {
            size: line.size,
            root: line.root,
            x: (line.index + line.size - line.root) % line.size,
        }
    }

    /// Returns the number of members in the subtree of `x`.
    fn subtree_size(&self, x: u32) -> u32 {
        match x {
            0 => self.size,
            // The lowest set bit is the size of a full subtree; the end of the line may truncate the subtree.
            _ => (x & x.wrapping_neg()).min(self.size - x),
        }
    }

    /// Returns the number of the member's children: x + 1, x + 2, x + 4, … within its subtree.
    fn child_count(&self) -> u32 {
        self.subtree_size(self.x).next_power_of_two().ilog2()
    }

    /// Returns the member number of the `i`-th child, counted from the child with the largest subtree.
    fn nth_child(&self, i: u32) -> u32 {
        self.x + (1 << (self.child_count() - 1 - i))
    }

    /// Returns the index of the member with number `x`.
    fn line_index_of_member_number(&self, x: u32) -> u32 {
        (self.root + x) % self.size
    }
}

pub(super) fn nth_send(
    stage: &CollectiveStage,
    line: MemberLinePosition,
    i: u32,
) -> Option<SendStepWithConditions> {
    let place = BinomialTreePosition::new(line);
    let is_root = place.x == 0;
    let share = |x| match stage.primitive {
        CollectiveStagePrimitive::Gather | CollectiveStagePrimitive::Scatter => stage
            .buffer
            .k_of_n_equal_parts(place.subtree_size(x), place.size),
        _ => stage.buffer,
    };
    let (to, of, after) = match stage.primitive {
        CollectiveStagePrimitive::Broadcast | CollectiveStagePrimitive::Scatter
            if i < place.child_count() =>
        {
            let child = place.nth_child(i);
            (child, child, u32::from(!is_root))
        }
        CollectiveStagePrimitive::Reduce | CollectiveStagePrimitive::Gather
            if i == 0 && !is_root =>
        {
            (place.x & (place.x - 1), place.x, place.child_count())
        }
        _ => return None,
    };
    Some(SendStepWithConditions {
        to: place.line_index_of_member_number(to),
        amount: share(of),
        after,
        arrived: 0,
        recv_posted: 0,
    })
}

pub(super) fn receive_count(stage: &CollectiveStage, line: MemberLinePosition) -> u32 {
    let place = BinomialTreePosition::new(line);
    match stage.primitive {
        CollectiveStagePrimitive::Broadcast | CollectiveStagePrimitive::Scatter => {
            u32::from(place.x != 0)
        }
        CollectiveStagePrimitive::Reduce | CollectiveStagePrimitive::Gather => place.child_count(),
        _ => 0,
    }
}
