//! The collective algorithms that a machine file can name. Each algorithm implements some primitives; a substitute runs
//! for all other primitives.

use super::line_cost::LineMessageCosts;
use super::{
    CollectiveStage, CollectiveStagePrimitive, MemberLinePosition, SendStepWithConditions, direct,
    double_binary_tree, halving_doubling, pairwise, recursive_doubling, ring, tree,
};
use crate::topology::PathLatencyAndRates;
use chakram_base::units::{Span, UnroundedBufferShare, UnroundedTimeEstimate};
use std::fmt;

/// Algorithm that members use in one stage, along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveAlgorithm {
    /// Members pass data from neighbour to neighbour around a ring.
    Ring,
    /// Each member sends to every other member, one after another through its port.
    Direct,
    /// Members exchange parts with partners at doubling distances; the exchanged part halves each time.
    HalvingDoubling,
    /// Members exchange the whole buffer with partners at doubling distances.
    RecursiveDoubling,
    /// Data goes up and down two binary trees; successive chunks alternate between the trees.
    DoubleBinaryTree,
    /// Data goes up and down a binary tree.
    MemberMessageTree,
    /// Each member exchanges data with one partner per round.
    Pairwise,
    /// An algorithm that the caller implements.
    Own(UserAlgorithmHandle),
}

/// An algorithm that the caller implements, for members of one dimension.
///
/// Each member of a line sends the messages that [`Self::nth_send`] returns, one after another. Before each step, the
/// member waits until it has received as many messages as the step requires. The engine handles late members, chunks
/// and contention.
pub trait UserAlgorithmModel: fmt::Debug + Sync {
    /// Name of the algorithm in reports.
    fn name(&self) -> &'static str;

    /// Returns true if `n` members can run `primitive` with this algorithm. If it returns false, a substitute runs
    /// ([`CollectiveAlgorithm::resolve_unsupported_algorithm`]).
    fn supports_primitive(&self, primitive: CollectiveStagePrimitive, n: u32) -> bool;

    /// Returns the `i`-th message that the member at `line` sends, or `None` after the last message.
    fn nth_send(
        &self,
        stage: &CollectiveStage,
        line: MemberLinePosition,
        i: u32,
    ) -> Option<SendStepWithConditions>;

    /// Returns the number of messages that the member at `line` receives.
    fn receive_count(&self, stage: &CollectiveStage, line: MemberLinePosition) -> u32;

    /// Returns the duration of `stage` for `n` members that start together, if nothing else uses their links and all
    /// their paths equal `path`. Returns `None` if no closed form is proven exact.
    fn closed_form(
        &self,
        _: &CollectiveStage,
        _n: u32,
        _path: &PathLatencyAndRates,
    ) -> Option<Span> {
        None
    }
}

/// Handle of an algorithm that the caller implements. Handles are equal if their names are equal.
#[derive(Clone, Copy, Debug)]
pub struct UserAlgorithmHandle(pub &'static dyn UserAlgorithmModel);

impl PartialEq for UserAlgorithmHandle {
    fn eq(&self, other: &Self) -> bool {
        self.0.name() == other.0.name()
    }
}

impl Eq for UserAlgorithmHandle {}

impl CollectiveAlgorithm {
    /// Every algorithm with its name in machine files. If several algorithms are equally fast, `auto` chooses the first
    /// of them in this list.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Ring, "ring"),
        (Self::Direct, "direct"),
        (Self::HalvingDoubling, "halving_doubling"),
        (Self::RecursiveDoubling, "recursive_doubling"),
        (Self::DoubleBinaryTree, "double_binary_tree"),
        (Self::MemberMessageTree, "tree"),
        (Self::Pairwise, "pairwise"),
    ];

    /// Returns true if `n` members can run `primitive` with this algorithm.
    ///
    /// | algorithm | supports |
    /// |---|---|
    /// | ring, direct | all but the fused all-reduce |
    /// | halving_doubling | reduce-scatter and all-gather of 2^L members; with a root, anything |
    /// | recursive_doubling | the same, and the fused all-reduce of 2^L members |
    /// | double_binary_tree, tree | the fused all-reduce, broadcast and reduce |
    /// | pairwise | reduce-scatter, all-gather and all-to-all |
    #[inline]
    pub fn supports_primitive(self, primitive: CollectiveStagePrimitive, n: u32) -> bool {
        use CollectiveStagePrimitive as P;
        match self {
            Self::Ring | Self::Direct => primitive != P::AllReduce,
            Self::HalvingDoubling | Self::RecursiveDoubling => match primitive {
                P::ReduceScatter | P::AllGather => n.is_power_of_two(),
                P::AllReduce => self == Self::RecursiveDoubling && n.is_power_of_two(),
                P::AllToAll => false,
                P::Broadcast | P::Reduce | P::Gather | P::Scatter => true,
            },
            Self::DoubleBinaryTree | Self::MemberMessageTree => {
                matches!(primitive, P::AllReduce | P::Broadcast | P::Reduce)
            }
            Self::Pairwise => {
                matches!(primitive, P::ReduceScatter | P::AllGather | P::AllToAll)
            }
            Self::Own(own) => own.0.supports_primitive(primitive, n),
        }
    }

    /// Returns the algorithm that runs if this one is requested for `primitive` among `n` members: this algorithm
    /// itself if it supports the primitive, otherwise a substitute:
    ///
    /// - For reduce-scatter and all-gather, the substitute is ring.
    /// - For all-to-all, the substitute is pairwise.
    /// - For primitives with a root, the substitute is ring. If pairwise is requested for a rooted primitive, direct
    ///   replaces it, because only exchanges with the root carry data.
    /// - For the fused all-reduce, the substitute is the tree algorithm. Callers request a fused all-reduce only if it
    ///   is supported.
    #[inline]
    pub fn resolve_unsupported_algorithm(
        self,
        primitive: CollectiveStagePrimitive,
        n: u32,
    ) -> Self {
        match primitive {
            _ if self.supports_primitive(primitive, n) => self,
            CollectiveStagePrimitive::AllToAll => Self::Pairwise,
            CollectiveStagePrimitive::AllReduce => Self::MemberMessageTree,
            // With pairwise, a member of a rooted primitive would send nothing except in the round with the root.
            _ if primitive.has_root() && self == Self::Pairwise => Self::Direct,
            _ => Self::Ring,
        }
    }

    /// Returns the `i`-th message that the member at `line` sends, or `None` after the last. Messages leave in
    /// ascending order of `i`, one at a time. Returns `None` for every `i` if the algorithm does not support the
    /// stage's primitive.
    #[inline]
    pub fn nth_send(
        self,
        stage: &CollectiveStage,
        line: MemberLinePosition,
        i: u32,
    ) -> Option<SendStepWithConditions> {
        match self {
            Self::Ring => ring::nth_send(stage, line, i),
            Self::Direct => direct::nth_send(stage, line, i),
            Self::HalvingDoubling => halving_doubling::nth_send(stage, line, i),
            Self::RecursiveDoubling => recursive_doubling::nth_send(stage, line, i),
            Self::DoubleBinaryTree => double_binary_tree::nth_send(stage, line, i),
            Self::MemberMessageTree => tree::nth_send(stage, line, i),
            Self::Pairwise => pairwise::nth_send(stage, line, i),
            Self::Own(own) => own.0.nth_send(stage, line, i),
        }
    }

    /// Returns the number of messages that the member at `line` receives.
    #[inline]
    pub fn receive_count(self, stage: &CollectiveStage, line: MemberLinePosition) -> u32 {
        match self {
            Self::Ring => ring::receive_count(stage, line),
            Self::Direct => direct::receive_count(stage, line),
            Self::HalvingDoubling => halving_doubling::receive_count(stage, line),
            Self::RecursiveDoubling => recursive_doubling::receive_count(stage, line),
            Self::DoubleBinaryTree => double_binary_tree::receive_count(stage, line),
            Self::MemberMessageTree => tree::receive_count(stage, line),
            Self::Pairwise => pairwise::receive_count(stage, line),
            Self::Own(own) => own.0.receive_count(stage, line),
        }
    }

    /// Returns the duration of `stage` among `n` members that start together on identical paths, or `None` if no closed
    /// form is proven exact.
    ///
    /// Closed forms are proven exact only for primitives without a root. In these primitives, the members' programs
    /// differ only by a rotation or exchange of indices, so all members finish together. Each algorithm's module has a
    /// table of its formulas; tests compare them with the event loop. Members of a tree end one after another, so trees
    /// have no closed form.
    pub fn closed_form(
        self,
        stage: &CollectiveStage,
        n: u32,
        path: &PathLatencyAndRates,
    ) -> Option<Span> {
        if stage.primitive.has_root() || !self.supports_primitive(stage.primitive, n) {
            return None;
        }
        match self {
            Self::Ring => Some(ring::closed_form(stage, n, path)),
            Self::Direct => Some(direct::closed_form(stage, n, path)),
            Self::HalvingDoubling => Some(halving_doubling::closed_form(stage, n, path)),
            Self::RecursiveDoubling => Some(recursive_doubling::closed_form(stage, n, path)),
            Self::DoubleBinaryTree | Self::MemberMessageTree => None,
            Self::Pairwise => Some(pairwise::closed_form(stage, n, path)),
            Self::Own(own) => own.0.closed_form(stage, n, path),
        }
    }

    /// Returns the time that a formula gives for `primitive` on a line's buffer with this algorithm
    /// ([`auto`](super::auto)). Returns `None` if the algorithm does not support the primitive, or if no formula is
    /// known.
    pub(super) fn estimate_cost(
        self,
        line: &LineMessageCosts<'_>,
        primitive: CollectiveStagePrimitive,
        buffer: UnroundedBufferShare,
    ) -> Option<UnroundedTimeEstimate> {
        if !self.supports_primitive(primitive, line.member_count()) {
            return None;
        }
        match self {
            Self::Ring => Some(ring::estimate_cost(line, primitive, buffer)),
            Self::Direct => Some(direct::estimate_cost(line, primitive, buffer)),
            Self::HalvingDoubling => Some(halving_doubling::estimate_cost(line, primitive, buffer)),
            Self::RecursiveDoubling => {
                Some(recursive_doubling::estimate_cost(line, primitive, buffer))
            }
            Self::DoubleBinaryTree | Self::MemberMessageTree => {
                Some(tree::estimate_cost(line, primitive, buffer))
            }
            Self::Pairwise => Some(pairwise::estimate_cost(line, buffer)),
            Self::Own(_) => None,
        }
    }

    /// Approximates a stage among `n` members by a series of equal messages, for stages without a closed form. Returns
    /// their size and their number, which is at least 1. In an all-reduce, members send the whole buffer once per
    /// level, or twice per level in trees. In a broadcast or reduce, trees and the doubling algorithms send the whole
    /// buffer once per level, and `direct` sends it to one member after another. In all other cases, members send
    /// shares of 1 / n of the buffer.
    pub(super) fn approximate_serial_messages(
        self,
        stage: &CollectiveStage,
        n: u32,
    ) -> (UnroundedBufferShare, u32) {
        use CollectiveStagePrimitive as P;
        let levels = n.next_power_of_two().ilog2();
        let trees = matches!(self, Self::MemberMessageTree | Self::DoubleBinaryTree);
        let doubling = matches!(self, Self::HalvingDoubling | Self::RecursiveDoubling);
        match stage.primitive {
            P::AllReduce if trees => (stage.buffer, 2 * levels),
            P::AllReduce => (stage.buffer, levels),
            P::Broadcast | P::Reduce if trees || doubling => (stage.buffer, levels),
            P::Broadcast | P::Reduce if self == Self::Direct => (stage.buffer, n - 1),
            _ => (stage.one_of_n_equal_parts_per_direction(n), n - 1),
        }
    }

    /// Returns true if each member receives from only one other member, the same in all steps.
    pub fn receives_from_same_member_in_all_steps(self) -> bool {
        self == Self::Ring
    }
}

impl fmt::Display for CollectiveAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Own(own) = self {
            return f.pad(own.0.name());
        }
        let name = Self::ALL.iter().find(|(known, _)| known == self);
        f.pad(name.map_or("", |(_, name)| name))
    }
}

/// A machine's choice of algorithm for one of its dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DimensionAlgorithmChoice {
    /// The algorithm that is fastest by its formula ([`auto`](super::auto)).
    Auto,
    /// An algorithm by name, or its substitute ([`CollectiveAlgorithm::resolve_unsupported_algorithm`]).
    Named(CollectiveAlgorithm),
    /// The choice that NCCL and RCCL make for large buffers: rings, except for all-to-all, gather and scatter. These
    /// three consist of sends and receives between members, as in `direct` (NCCL user guide, "Point-to-point
    /// communication").
    Nccl,
}

impl DimensionAlgorithmChoice {
    /// Every choice with its name in machine files.
    pub const ALL: [(Self, &'static str); CollectiveAlgorithm::ALL.len() + 2] = {
        let mut all = [(Self::Auto, "auto"); CollectiveAlgorithm::ALL.len() + 2];
        all[CollectiveAlgorithm::ALL.len()] = (Self::Nccl, "nccl");
        let mut i = 0;
        while i < CollectiveAlgorithm::ALL.len() {
            let (algorithm, name) = CollectiveAlgorithm::ALL[i];
            all[i] = (Self::Named(algorithm), name);
            i += 1;
        }
        all
    };

    /// Returns the algorithm requested for `primitive`, or `None` if the choice depends on sizes.
    /// [`CollectiveAlgorithm::resolve_unsupported_algorithm`] returns the substitute of an unsupported algorithm.
    pub fn requested_algorithm(
        self,
        primitive: CollectiveStagePrimitive,
    ) -> Option<CollectiveAlgorithm> {
        use CollectiveStagePrimitive as P;
        match (self, primitive) {
            (Self::Auto, _) => None,
            (Self::Named(algorithm), _) => Some(algorithm),
            (Self::Nccl, P::AllToAll | P::Gather | P::Scatter) => Some(CollectiveAlgorithm::Direct),
            (Self::Nccl, _) => Some(CollectiveAlgorithm::Ring),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CollectiveAlgorithm::{
        Direct, HalvingDoubling, MemberMessageTree, Pairwise, RecursiveDoubling, Ring,
    };
    use CollectiveStagePrimitive as P;

    #[test]
    fn each_variant_prints_its_name() {
        for (algorithm, name) in CollectiveAlgorithm::ALL {
            assert_eq!(algorithm.to_string(), name);
        }
        assert_eq!(
            DimensionAlgorithmChoice::ALL[2].0,
            DimensionAlgorithmChoice::Named(HalvingDoubling)
        );
        assert_eq!(
            DimensionAlgorithmChoice::ALL.last(),
            Some(&(DimensionAlgorithmChoice::Auto, "auto"))
        );
    }

    #[test]
    fn nccl_sends_straight_where_each_member_has_data_for_one_other() {
        for (primitive, expected) in [
            (P::AllReduce, Ring),
            (P::ReduceScatter, Ring),
            (P::AllGather, Ring),
            (P::Broadcast, Ring),
            (P::Reduce, Ring),
            (P::AllToAll, Direct),
            (P::Gather, Direct),
            (P::Scatter, Direct),
        ] {
            let found = DimensionAlgorithmChoice::Nccl.requested_algorithm(primitive);
            assert_eq!(found, Some(expected), "{primitive:?}");
        }
        assert_eq!(
            DimensionAlgorithmChoice::Auto.requested_algorithm(P::AllToAll),
            None
        );
    }

    #[test]
    fn unsupported_algorithms_are_replaced_by_a_substitute() {
        let table = [
            (HalvingDoubling, P::ReduceScatter, 8, HalvingDoubling),
            (HalvingDoubling, P::ReduceScatter, 6, Ring),
            (HalvingDoubling, P::Scatter, 6, HalvingDoubling),
            (RecursiveDoubling, P::AllToAll, 8, Pairwise),
            (RecursiveDoubling, P::AllReduce, 6, MemberMessageTree),
            (MemberMessageTree, P::AllGather, 8, Ring),
            (MemberMessageTree, P::Gather, 8, Ring),
            (Pairwise, P::Broadcast, 8, Direct),
        ];
        for (asked, primitive, n, used) in table {
            assert_eq!(
                asked.resolve_unsupported_algorithm(primitive, n),
                used,
                "{asked} {primitive:?}"
            );
        }
    }
}
