//! The k-th collective of a group on each of its members.

use super::CommRef;
use crate::format::CollectiveKind;
use crate::graph::Csr;
use std::borrow::{Borrow, Cow};

/// Properties of a collective on which members must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CollectiveSignature {
    /// Its kind.
    pub kind: CollectiveKind,
    /// The bytes, as the trace says them.
    pub bytes: u64,
    /// The root, if the kind has one and it is a member.
    pub root: Option<u32>,
}

/// Difference between calls of two members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CollectiveDifference {
    /// One of the members calls nothing more.
    Count,
    /// Kinds differ.
    Kind,
    /// Sizes differ.
    Size,
    /// Roots differ.
    Root,
}

/// A member's calls of the collectives of a group, in program order.
#[derive(Clone, Debug)]
pub struct MemberCalls<'a> {
    /// The member's place among the ranks that are matched.
    pub rank: u32,
    /// The number of each call among the rank's.
    pub calls: Cow<'a, [u32]>,
}

impl MemberCalls<'_> {
    /// Returns the `k`-th call, if there is one.
    pub fn at(&self, k: usize) -> Option<CommRef> {
        self.calls.get(k).map(|&call| (self.rank, call))
    }

    /// Returns all calls.
    pub fn iter(&self) -> impl Iterator<Item = CommRef> + Clone {
        self.calls.iter().map(|&call| (self.rank, call))
    }

    /// Returns true if both certainly make the same calls: those of one trace that they share.
    fn is_like(&self, other: &Self) -> bool {
        match (&self.calls, &other.calls) {
            (Cow::Borrowed(own), Cow::Borrowed(other)) => std::ptr::eq(*own, *other),
            _ => false,
        }
    }
}

/// The first collective of a group on which a member disagrees with the first member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveDisagreement {
    /// The number of the collective, from 0.
    pub k: usize,
    /// Difference between the two.
    pub difference: CollectiveDifference,
    /// The rank of the member.
    pub other: u32,
    /// The calls of the first member and of that one, if they make any.
    pub calls: [Option<CommRef>; 2],
}

/// Returns the first collective on which one of `others` differs from `first`; of several members the first whose
/// difference weighs most.
pub fn disagreement<'a, M: Borrow<MemberCalls<'a>>>(
    first: &MemberCalls<'a>,
    others: impl IntoIterator<Item = M>,
    signature: impl Fn(CommRef) -> CollectiveSignature,
) -> Option<CollectiveDisagreement> {
    let differing = others.into_iter().filter_map(|other| {
        let other = other.borrow();
        if other.is_like(first) {
            return None;
        }
        let (one, two) = (first.iter().map(&signature), other.iter().map(&signature));
        let (k, a, b) = first_difference(one, two)?;
        let difference = match (a, b) {
            (Some(a), Some(b)) if a.kind != b.kind => CollectiveDifference::Kind,
            (Some(a), Some(b)) if a.bytes != b.bytes => CollectiveDifference::Size,
            (Some(_), Some(_)) => CollectiveDifference::Root,
            _ => CollectiveDifference::Count,
        };
        Some(CollectiveDisagreement {
            k,
            difference,
            other: other.rank,
            calls: [first.at(k), other.at(k)],
        })
    });
    differing.min_by_key(|found| (found.k, found.difference))
}

/// Returns the number, from 0, of the first entry in which two sequences differ, and both entries.
pub fn first_difference<T: PartialEq>(
    one: impl IntoIterator<Item = T>,
    other: impl IntoIterator<Item = T>,
) -> Option<(usize, Option<T>, Option<T>)> {
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    let mut k = 0;
    loop {
        match (one.next(), other.next()) {
            (None, None) => return None,
            (a, b) if a != b => return Some((k, a, b)),
            _ => k += 1,
        }
    }
}

/// The calls that a trace makes of each group that it names.
#[derive(Clone, Debug, Default)]
pub struct SlotCalls(Csr);

impl SlotCalls {
    /// Takes (slot, number) of each call, in program order; numbers ascend.
    pub fn new(slots: usize, calls: impl Iterator<Item = (u32, u32)> + Clone) -> Self {
        let each_call = |each: &mut dyn FnMut(u32, u32)| {
            calls.clone().for_each(|(slot, call)| each(slot, call));
        };
        Self(Csr::new(slots, each_call))
    }

    /// Returns the calls of `rank`, whose trace it is, in the group that it names by these slots.
    pub fn member(&self, rank: u32, slots: impl IntoIterator<Item = u32>) -> MemberCalls<'_> {
        let mut slots = slots.into_iter();
        let mut calls = Cow::Borrowed(slots.next().map_or(&[][..], |slot| self.0.row(slot)));
        for slot in slots {
            calls.to_mut().extend_from_slice(self.0.row(slot));
        }
        if let Cow::Owned(several) = &mut calls {
            several.sort_unstable();
        }
        MemberCalls { rank, calls }
    }
}
