//! Matches collectives: the k-th call of a group on one member matches the k-th call on every other member.

use super::RankAndCommIndex;
use crate::format::CollectiveKind;
use crate::graph::Csr;
use std::borrow::{Borrow, Cow};

/// The properties of a collective on which members must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CollectiveSignature {
    /// Kind of collective.
    pub kind: CollectiveKind,
    /// Number of bytes that the trace states.
    pub bytes: u64,
    /// The root, if this kind of collective has one and the root is a member.
    pub root: Option<u32>,
}

/// Difference between the calls of two members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CollectiveDifference {
    /// One member has fewer calls than the other.
    Count,
    /// The calls are different kinds of collectives.
    Kind,
    /// The calls have different sizes.
    Size,
    /// The calls have different roots.
    Root,
}

/// One member's collective calls in one group, in program order.
#[derive(Clone, Debug)]
pub struct MemberCalls<'a> {
    /// Index of the member among the matched ranks.
    pub rank: u32,
    /// Index of each call among all the rank's calls.
    pub calls: Cow<'a, [u32]>,
}

impl MemberCalls<'_> {
    /// Returns the `k`-th call, or `None` if there are fewer calls.
    pub fn call_at(&self, k: usize) -> Option<RankAndCommIndex> {
        self.calls.get(k).map(|&call| (self.rank, call))
    }

    /// Iterates over all calls.
    pub fn iter_calls_of_this_member(&self) -> impl Iterator<Item = RankAndCommIndex> + Clone {
        self.calls.iter().map(|&call| (self.rank, call))
    }

    /// Returns true if both members share one list of calls, so that no comparison is needed.
    fn shares_call_list_with(&self, other: &Self) -> bool {
        match (&self.calls, &other.calls) {
            (Cow::Borrowed(own), Cow::Borrowed(other)) => std::ptr::eq(*own, *other),
            _ => false,
        }
    }
}

/// The first collective of a group on which some member disagrees with the first member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstCollectiveDisagreement {
    /// Index of the collective within the group, counting from 0.
    pub k: usize,
    /// Difference between the two members' calls.
    pub difference: CollectiveDifference,
    /// Rank of the disagreeing member.
    pub other: u32,
    /// The calls of the first member and of the disagreeing member. A call is `None` if the member has no such call.
    pub calls: [Option<RankAndCommIndex>; 2],
}

/// Returns the first collective in which one of `others` differs from `first`. If several members differ, the earliest
/// collective counts. If members differ on the same collective, the first difference in the order of
/// [`CollectiveDifference`] counts.
pub fn find_disagreement<'a, M: Borrow<MemberCalls<'a>>>(
    first: &MemberCalls<'a>,
    others: impl IntoIterator<Item = M>,
    signature: impl Fn(RankAndCommIndex) -> CollectiveSignature,
) -> Option<FirstCollectiveDisagreement> {
    let differing = others.into_iter().filter_map(|other| {
        let other = other.borrow();
        if other.shares_call_list_with(first) {
            return None;
        }
        let (one, two) = (
            first.iter_calls_of_this_member().map(&signature),
            other.iter_calls_of_this_member().map(&signature),
        );
        let (k, a, b) = find_first_differing_entries(one, two)?;
        let difference = match (a, b) {
            (Some(a), Some(b)) if a.kind != b.kind => CollectiveDifference::Kind,
            (Some(a), Some(b)) if a.bytes != b.bytes => CollectiveDifference::Size,
            (Some(_), Some(_)) => CollectiveDifference::Root,
            _ => CollectiveDifference::Count,
        };
        Some(FirstCollectiveDisagreement {
            k,
            difference,
            other: other.rank,
            calls: [first.call_at(k), other.call_at(k)],
        })
    });
    differing.min_by_key(|found| (found.k, found.difference))
}

/// Returns the index of the first entry that differs between two sequences, and both entries.
pub fn find_first_differing_entries<T: PartialEq>(
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

/// A trace's collective calls, listed by group slot.
#[derive(Clone, Debug, Default)]
pub struct TraceCallsByGroupSlot(Csr);

impl TraceCallsByGroupSlot {
    /// Builds the lists from the (slot, index) pairs of all calls, which must be in program order with ascending
    /// indices.
    pub fn new(slots: usize, calls: impl Iterator<Item = (u32, u32)> + Clone) -> Self {
        let each_call = |each: &mut dyn FnMut(u32, u32)| {
            calls.clone().for_each(|(slot, call)| each(slot, call));
        };
        Self(Csr::new(slots, each_call))
    }

    /// Returns the calls that `rank` makes in one group. `slots` are the trace's slots for that group.
    pub fn calls_of_member(
        &self,
        rank: u32,
        slots: impl IntoIterator<Item = u32>,
    ) -> MemberCalls<'_> {
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
