//! Dependencies between a layer's operators if independent operators run in parallel.
//!
//! In the forward pass, an operator waits for the operators whose results it uses. In the backward pass, it waits for
//! the operators that use its result. If all its inputs come from outside the layer, it waits for the nodes before the
//! layer. The layer ends when all its branches have ended.

use super::MemberOperator;
use crate::generate::plan::BranchOrder;
use crate::generate::training::program::{
    LayerProgramBuilder, ProgramPredecessorsOrNodeDependency,
};

/// For each operator, its last nodes in the current program. Operators that use its result wait for them. The list is
/// empty if operators run one after another.
pub(super) struct LastNodesPerOperator {
    parallel: bool,
    /// Nodes on which the whole program depends.
    entry: Vec<ProgramPredecessorsOrNodeDependency>,
    ends: Vec<Option<Vec<ProgramPredecessorsOrNodeDependency>>>,
}

impl LastNodesPerOperator {
    /// Starts at the current end of the chain in `to`, before the first operator. There are `count`
    /// operators.
    pub fn new(order: BranchOrder, count: usize, to: &LayerProgramBuilder) -> Self {
        Self {
            parallel: order == BranchOrder::Parallel,
            entry: to.front.clone(),
            ends: vec![None; count],
        }
    }

    /// Makes operator `i` start after the operators in `before`, or at the beginning of the program
    /// if `before` is empty.
    pub fn make_operator_wait_for_operators(
        &self,
        own: &[MemberOperator<'_>],
        i: usize,
        before: impl Iterator<Item = usize>,
        to: &mut LayerProgramBuilder,
    ) {
        if self.parallel {
            to.branch = own[i].step.branch;
            to.front = self.join_operator_ends(before);
        }
    }

    /// Records the last nodes of operator `i`.
    pub fn record_operator_end(&mut self, i: usize, to: &mut LayerProgramBuilder) {
        if self.parallel {
            self.ends[i] = Some(to.front.clone());
            to.branch = 0;
        }
    }

    /// Continues the chain after the operators `last`, or at the beginning of the program if `last`
    /// is empty.
    pub fn continue_chain_after(
        &self,
        last: impl Iterator<Item = usize>,
        to: &mut LayerProgramBuilder,
    ) {
        if self.parallel {
            to.front = self.join_operator_ends(last);
        }
    }

    fn join_operator_ends(
        &self,
        operators: impl Iterator<Item = usize>,
    ) -> Vec<ProgramPredecessorsOrNodeDependency> {
        let mut joined: Vec<ProgramPredecessorsOrNodeDependency> = Vec::new();
        for front in operators.filter_map(|i| self.ends[i].as_ref()) {
            joined.extend(front.iter().filter(|one| !self.entry.contains(one)));
        }
        joined.sort_unstable();
        joined.dedup();
        if joined.is_empty() {
            return self.entry.clone();
        }
        joined
    }
}

/// Returns the operators of the layer whose results operator `i` uses.
pub(super) fn source_operators_of<'o>(
    own: &'o [MemberOperator<'_>],
    i: usize,
) -> impl Iterator<Item = usize> + 'o {
    own[i].step.sources.iter().copied().flatten()
}

/// Returns the operators of the layer that use the result of operator `i`.
pub(super) fn consumer_operators_of<'o>(
    own: &'o [MemberOperator<'_>],
    i: usize,
) -> impl Iterator<Item = usize> + 'o {
    let takes = move |one: &MemberOperator<'_>| one.step.sources.contains(&Some(i));
    (i + 1..own.len()).filter(move |&other| takes(&own[other]))
}

/// Returns the last operators of the forward program, whose results no other operator uses.
pub(super) fn list_last_operators<'o>(
    own: &'o [MemberOperator<'_>],
) -> impl Iterator<Item = usize> + 'o {
    (0..own.len()).filter(|&i| consumer_operators_of(own, i).next().is_none())
}

/// Returns the last operators of the backward program, whose inputs no operator of the layer
/// produces.
pub(super) fn list_first_operators<'o>(
    own: &'o [MemberOperator<'_>],
) -> impl Iterator<Item = usize> + 'o {
    (0..own.len()).filter(|&i| own[i].step.sources.iter().all(Option::is_none))
}
