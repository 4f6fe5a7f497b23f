//! Operators of a layer that do not depend on one another: what each waits for, where they run side by side.
//!
//! Forwards an operator waits for those whose results it takes, and backwards for those that take its own. One that takes what
//! comes into the layer, or nothing, waits for what the layer waits for; the layer is over when all of its branches are.

use super::MemberOperator;
use crate::generate::plan::BranchOrder;
use crate::generate::training::program::{ProgramBuilder, ProgramDependency};

/// What the next node of each operator's result waits for, while a program is written. Nothing is kept track of where
/// operators follow one another.
pub(super) struct BranchFronts {
    parallel: bool,
    /// Where the program began, and where each operator ended.
    entry: Vec<ProgramDependency>,
    ends: Vec<Option<Vec<ProgramDependency>>>,
}

impl BranchFronts {
    /// Begins where `to` stands, with none of `count` operators.
    pub fn new(order: BranchOrder, count: usize, to: &ProgramBuilder) -> Self {
        Self {
            parallel: order == BranchOrder::Parallel,
            entry: to.front.clone(),
            ends: vec![None; count],
        }
    }

    /// Operator `i` begins behind those of `before` that are over, or else where the program began.
    pub fn begin(
        &self,
        own: &[MemberOperator<'_>],
        i: usize,
        before: impl Iterator<Item = usize>,
        to: &mut ProgramBuilder,
    ) {
        if self.parallel {
            to.branch = own[i].step.branch;
            to.front = self.join(before);
        }
    }

    /// Operator `i` is over.
    pub fn end(&mut self, i: usize, to: &mut ProgramBuilder) {
        if self.parallel {
            self.ends[i] = Some(to.front.clone());
            to.branch = 0;
        }
    }

    /// Continues the chain behind operators `last`, or where it began if there are none.
    pub fn finish(&self, last: impl Iterator<Item = usize>, to: &mut ProgramBuilder) {
        if self.parallel {
            to.front = self.join(last);
        }
    }

    fn join(&self, operators: impl Iterator<Item = usize>) -> Vec<ProgramDependency> {
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

/// The operators of the layer whose results operator `i` takes.
pub(super) fn sources<'o>(
    own: &'o [MemberOperator<'_>],
    i: usize,
) -> impl Iterator<Item = usize> + 'o {
    own[i].step.sources.iter().copied().flatten()
}

/// The operators of the layer that take the result of operator `i`.
pub(super) fn takers<'o>(
    own: &'o [MemberOperator<'_>],
    i: usize,
) -> impl Iterator<Item = usize> + 'o {
    let takes = move |one: &MemberOperator<'_>| one.step.sources.contains(&Some(i));
    (i + 1..own.len()).filter(move |&other| takes(&own[other]))
}

/// The operators with which the layer ends forwards: nobody takes their results.
pub(super) fn last<'o>(own: &'o [MemberOperator<'_>]) -> impl Iterator<Item = usize> + 'o {
    (0..own.len()).filter(|&i| takers(own, i).next().is_none())
}

/// The operators with which the layer ends backwards: they take what comes into it, or nothing.
pub(super) fn first<'o>(own: &'o [MemberOperator<'_>]) -> impl Iterator<Item = usize> + 'o {
    (0..own.len()).filter(|&i| own[i].step.sources.iter().all(Option::is_none))
}
