//! Independent operators of a layer, with the dependencies of each operator if they run in
//! parallel.
//!
//! In the forward pass, an operator waits for the operators whose results it uses; in the backward
//! pass, for the operators that use its result. An operator that uses the layer's input, or
//! nothing, waits for the layer's own dependencies. The layer ends when all its branches have
//! ended.

use super::MemberOperator;
use crate::generate::plan::BranchOrder;
use crate::generate::training::program::{ProgramBuilder, ProgramDependency};

/// Dependencies that represent each operator's result while a program is written. Not tracked if
/// operators run in sequence.
pub(super) struct BranchFronts {
    parallel: bool,
    /// Dependencies at the start of the program.
    entry: Vec<ProgramDependency>,
    ends: Vec<Option<Vec<ProgramDependency>>>,
}

impl BranchFronts {
    /// Starts at the current front of `to`, before the first of `count` operators.
    pub fn new(order: BranchOrder, count: usize, to: &ProgramBuilder) -> Self {
        Self {
            parallel: order == BranchOrder::Parallel,
            entry: to.front.clone(),
            ends: vec![None; count],
        }
    }

    /// Starts operator `i` after the completed operators in `before`, or else at the program's start.
    pub fn begin(
        &self,
        own: &[MemberOperator<'_>],
        i: usize,
        before: impl Iterator<Item = usize>,
        to: &mut ProgramBuilder,
    ) {
        if self.parallel {
            to.branch = own[i].step.branch;
            to.front = self.join_fronts(before);
        }
    }

    /// Records the end of operator `i`.
    pub fn end(&mut self, i: usize, to: &mut ProgramBuilder) {
        if self.parallel {
            self.ends[i] = Some(to.front.clone());
            to.branch = 0;
        }
    }

    /// Continues the chain after operators `last`, or at the program's start if there are none.
    pub fn finish(&self, last: impl Iterator<Item = usize>, to: &mut ProgramBuilder) {
        if self.parallel {
            to.front = self.join_fronts(last);
        }
    }

    fn join_fronts(&self, operators: impl Iterator<Item = usize>) -> Vec<ProgramDependency> {
        let mut joined: Vec<ProgramDependency> = Vec::new();
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
pub(super) fn sources_of<'o>(
    own: &'o [MemberOperator<'_>],
    i: usize,
) -> impl Iterator<Item = usize> + 'o {
    own[i].step.sources.iter().copied().flatten()
}

/// Returns the operators of the layer that use the result of operator `i`.
pub(super) fn consumers_of<'o>(
    own: &'o [MemberOperator<'_>],
    i: usize,
) -> impl Iterator<Item = usize> + 'o {
    let takes = move |one: &MemberOperator<'_>| one.step.sources.contains(&Some(i));
    (i + 1..own.len()).filter(move |&other| takes(&own[other]))
}

/// Returns the last operators of the forward program: no operator uses their results.
pub(super) fn last_operators<'o>(
    own: &'o [MemberOperator<'_>],
) -> impl Iterator<Item = usize> + 'o {
    (0..own.len()).filter(|&i| consumers_of(own, i).next().is_none())
}

/// Returns the last operators of the backward program: they use the layer's input, or nothing.
pub(super) fn first_operators<'o>(
    own: &'o [MemberOperator<'_>],
) -> impl Iterator<Item = usize> + 'o {
    (0..own.len()).filter(|&i| own[i].step.sources.iter().all(Option::is_none))
}
