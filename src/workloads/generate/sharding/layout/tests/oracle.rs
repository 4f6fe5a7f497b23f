//! Executes redistributions on explicit sets of elements, for all layouts on up to 12 members.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

/// A set of a result's elements, one bit each. 192 bits suffice, because there are at most 144
/// elements (the product of the numbers of shards in both layouts).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ElementBitSet([u64; 3]);

impl ElementBitSet {
    pub(super) fn and(self, other: Self) -> Self {
        Self([0, 1, 2].map(|i| self.0[i] & other.0[i]))
    }

    pub(super) fn or(self, other: Self) -> Self {
        Self([0, 1, 2].map(|i| self.0[i] | other.0[i]))
    }

    pub(super) fn count(self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// Returns all ordered factorizations of `members` into factors greater than 1.
pub(super) fn list_ordered_factorizations(members: u32) -> Vec<Vec<u32>> {
    if members == 1 {
        return vec![vec![]];
    }
    let mut all = Vec::new();
    for first in (2..=members).filter(|&first| members.is_multiple_of(first)) {
        for mut rest in list_ordered_factorizations(members / first) {
            rest.push(first);
            all.push(rest);
        }
    }
    all
}

/// Returns all layouts: every choice of digits from every mixed-radix grid, assigned to the axes in
/// every way.
pub(super) fn list_layouts(members: u32) -> Vec<SampleRowColumnSharding> {
    let mut all = BTreeSet::new();
    for radices in list_ordered_factorizations(members) {
        let mut places = vec![MemberNumberDigit::WHOLE];
        let mut stride = 1;
        for parts in radices {
            places.push(MemberNumberDigit { parts, stride });
            stride *= parts;
        }
        for (s, &samples) in places.iter().enumerate() {
            for (r, &rows) in places.iter().enumerate() {
                for (c, &columns) in places.iter().enumerate() {
                    let taken = [s, r, c];
                    let twice = |i: &usize| *i > 0 && taken.iter().filter(|j| *j == i).count() > 1;
                    if !taken.iter().any(twice) {
                        all.insert(SampleRowColumnSharding {
                            samples,
                            rows,
                            columns,
                        });
                    }
                }
            }
        }
    }
    all.into_iter().collect()
}

/// Returns the elements of each member under both layouts, and the total number of elements.
pub(super) fn list_elements_per_member(
    from: &SampleRowColumnSharding,
    to: &SampleRowColumnSharding,
    members: u32,
) -> ([Vec<ElementBitSet>; 2], u64) {
    let digits = |layout: &SampleRowColumnSharding| [layout.samples, layout.rows, layout.columns];
    let (before, after) = (digits(from), digits(to));
    let size = [0, 1, 2].map(|axis| {
        let (a, b) = (before[axis].parts, after[axis].parts);
        (a..).step_by(a as usize).find(|all| all % b == 0).unwrap()
    });
    let has = |digits: &[MemberNumberDigit; 3], member: u32| {
        let mut set = ElementBitSet::default();
        let ranges = [0, 1, 2].map(|axis| {
            let MemberNumberDigit { parts, stride } = digits[axis];
            let length = size[axis] / parts;
            let part = (member / stride) % parts;
            part * length..(part + 1) * length
        });
        for s in ranges[0].clone() {
            for r in ranges[1].clone() {
                for c in ranges[2].clone() {
                    let element = (s * size[1] + r) * size[2] + c;
                    set.0[element as usize / 64] |= 1 << (element % 64);
                }
            }
        }
        set
    };
    let both = [before, after].map(|digits| (0..members).map(|m| has(&digits, m)).collect());
    (both, size.map(u64::from).iter().product())
}

/// Checks that groups have equal sizes and are in the order of their first members.
pub(super) fn check_groups_are_equal_sized_and_ordered(
    among: &EqualSizedMemberGroups,
    members: u32,
) {
    let mut seen = Vec::new();
    for group in 0..among.group_count() {
        let in_it: Vec<u32> = (0..members)
            .filter(|&m| among.group_of(m) == group)
            .collect();
        assert_eq!(among.members_of(group), in_it);
        assert_eq!(among.group_size() as usize, in_it.len());
        assert!(seen.last() < Some(&in_it[0]), "{seen:?} {in_it:?}");
        seen.push(in_it[0]);
    }
    assert_eq!(among.group_size() * among.group_count(), members);
    assert_eq!(among.has_single_group(), seen.len() == 1);
}

/// Returns each member's elements after its group has exchanged all needed ones, and the fragment size. Checks that
/// fragments have equal sizes, and that no member receives an element twice.
fn exchange_within_groups(
    among: &EqualSizedMemberGroups,
    own: &[ElementBitSet],
    needed: &[ElementBitSet],
) -> (Vec<ElementBitSet>, u64) {
    let members = own.len() as u32;
    check_groups_are_equal_sized_and_ordered(among, members);
    let mut sizes = BTreeSet::new();
    let after = (0..members).map(|to| {
        let mut has = ElementBitSet::default();
        for from in (0..members).filter(|&m| among.group_of(m) == among.group_of(to)) {
            let piece = own[from as usize].and(needed[to as usize]);
            assert_eq!(piece.and(has).count(), 0, "twice");
            has = has.or(piece);
            sizes.insert(piece.count());
        }
        has
    });
    let after = after.collect();
    assert_eq!(sizes.len(), 1, "{sizes:?}");
    (after, *sizes.first().unwrap())
}

/// Returns true if an all-gather is possible. Members with equal needs must have fragments that cover these needs, have
/// equal sizes, and occur equally often.
fn can_all_gather(own: &[ElementBitSet], needed: &[ElementBitSet]) -> bool {
    let mut classes: BTreeMap<ElementBitSet, BTreeMap<ElementBitSet, u32>> = BTreeMap::new();
    for (&own, &needed) in own.iter().zip(needed) {
        *classes
            .entry(needed)
            .or_default()
            .entry(own.and(needed))
            .or_default() += 1;
    }
    classes.iter().all(|(&needed, pieces)| {
        let all = pieces
            .keys()
            .fold(ElementBitSet::default(), |all, &piece| all.or(piece));
        let mut kinds = pieces.iter().map(|(piece, &times)| (piece.count(), times));
        let first = kinds.next();
        all == needed && pieces.len() > 1 && kinds.all(|kind| Some(kind) == first)
    })
}

/// Returns true if an all-to-all is possible. Every member must already have some of the elements that it needs. Of the
/// elements that another member needs, it must have either none or a fixed number, which is the same for all members.
fn can_exchange_all_to_all(own: &[ElementBitSet], needed: &[ElementBitSet]) -> bool {
    let size = own[0].and(needed[0]).count();
    let begins = own
        .iter()
        .zip(needed)
        .all(|(a, &b)| a.and(b).count() == size);
    let mut pieces = own
        .iter()
        .flat_map(|own| needed.iter().map(|&needed| own.and(needed).count()));
    size > 0 && begins && pieces.all(|piece| piece == size || piece == 0)
}

/// Executes messages, and returns the number of elements sent. Checks that each message comes from
/// the nearest member that has the elements.
fn execute_messages_and_count_elements(
    messages: &[ShardMessage],
    piece: u64,
    own: &[ElementBitSet],
    needed: &[ElementBitSet],
) -> u64 {
    let mut has = own.to_vec();
    let mut sent = 0;
    assert!(messages.is_sorted_by_key(|m| (m.from, m.to)));
    for &ShardMessage { from, to, pieces } in messages {
        let elements = own[from as usize].and(needed[to as usize]);
        assert_eq!(elements.count(), pieces * piece);
        assert!(pieces > 0);
        assert_eq!(elements.and(has[to as usize]).count(), 0, "it has that");
        has[to as usize] = has[to as usize].or(elements);
        sent += elements.count();
        let holders = (0..own.len() as u32).filter(|&h| own[h as usize].and(elements) == elements);
        assert_eq!(holders.min_by_key(|&h| (h.abs_diff(to), h)), Some(from));
    }
    for (has, &needed) in has.iter().zip(needed) {
        assert_eq!(has.and(needed), needed);
    }
    sent
}

#[test]
fn everyone_has_what_it_needs_and_nothing_is_moved_twice() {
    let mut kinds = [0; 4];
    for members in 1..=12 {
        let layouts = list_layouts(members);
        // Axes are interchangeable, so only one order of axes is tested for more than 9 members.
        let ordered = |from: &&SampleRowColumnSharding| {
            from.samples >= from.rows && from.rows >= from.columns
        };
        for from in layouts.iter().filter(|from| members <= 9 || ordered(from)) {
            for to in &layouts {
                let ([own, needed], elements) = list_elements_per_member(from, to, members);
                let least = |(own, &needed): (&ElementBitSet, &ElementBitSet)| {
                    needed.count() - own.and(needed).count()
                };
                let least: u64 = own.iter().zip(&needed).map(least).sum();
                let change = plan_redistribution(from, to, members);
                let what = || format!("{from:?} {to:?} {members}: {change:?}");
                let collective = |among: &EqualSizedMemberGroups, share: u64| {
                    let (after, piece) = exchange_within_groups(among, &own, &needed);
                    assert_eq!(after, needed, "{}", what());
                    assert!(among.group_size() > 1, "{}", what());
                    assert_eq!(
                        u64::from(among.group_size()) * piece * share,
                        elements,
                        "{}",
                        what()
                    );
                    let moved = u64::from(members * (among.group_size() - 1)) * piece;
                    assert_eq!(moved, least, "{}", what());
                };
                assert_eq!(change == Redistribution::Nothing, least == 0, "{}", what());
                let kind = match &change {
                    Redistribution::Nothing => 0,
                    Redistribution::AllGather { among, share } => {
                        collective(among, *share);
                        for member in 0..members {
                            let first = among.members_of(among.group_of(member))[0];
                            assert_eq!(
                                needed[member as usize],
                                needed[first as usize],
                                "{}",
                                what()
                            );
                        }
                        1
                    }
                    Redistribution::AllToAll { among, share } => {
                        collective(among, *share);
                        assert!(!can_all_gather(&own, &needed), "{}", what());
                        2
                    }
                    Redistribution::Messages { messages, of } => {
                        assert_eq!(elements % of, 0, "{}", what());
                        let sent = execute_messages_and_count_elements(
                            messages,
                            elements / of,
                            &own,
                            &needed,
                        );
                        assert_eq!(sent, least, "{}", what());
                        assert!(!can_exchange_all_to_all(&own, &needed), "{}", what());
                        3
                    }
                };
                kinds[kind] += 1;
            }
        }
    }
    assert!(kinds.iter().all(|&times| times > 500), "{kinds:?}");
}
