//! Tests reduce-scatters on all small grids, for all groups of members and sums within groups.

use super::oracle::{
    ElementBitSet, check_groups_are_equal_sized_and_ordered, list_elements_per_member,
    list_layouts, list_ordered_factorizations,
};
use super::*;
use std::collections::BTreeSet;

/// For every grid and every choice of its digits, returns the chosen digits. For each member, also returns its digits
/// at all other positions.
fn list_grid_digit_choices_with_other_digits(
    members: u32,
) -> BTreeSet<(Vec<MemberNumberDigit>, Vec<Vec<u32>>)> {
    let mut all = BTreeSet::new();
    for radices in list_ordered_factorizations(members) {
        for chosen in 0..1_u32 << radices.len() {
            let is_chosen = |place: usize| chosen >> place & 1 == 1;
            let digits = (0..radices.len())
                .filter(|&place| is_chosen(place))
                .map(|place| MemberNumberDigit {
                    parts: radices[place],
                    stride: radices[..place].iter().product(),
                });
            let others = |mut member: u32| {
                let mut others = Vec::new();
                for (place, radix) in radices.iter().enumerate() {
                    if !is_chosen(place) {
                        others.push(member % radix);
                    }
                    member /= radix;
                }
                others
            };
            all.insert((digits.collect(), (0..members).map(others).collect()));
        }
    }
    all
}

#[test]
fn groups_differ_in_the_chosen_digits_only() {
    for members in 1..=24 {
        for (digits, others) in list_grid_digit_choices_with_other_digits(members) {
            let among = EqualSizedMemberGroups::from_members_differing_in_digits(&digits, members);
            check_groups_are_equal_sized_and_ordered(&among, members);
            for one in 0..members {
                for other in 0..members {
                    assert_eq!(
                        among.group_of(one) == among.group_of(other),
                        others[one as usize] == others[other as usize],
                        "{one} and {other} of {members}, {digits:?}"
                    );
                }
            }
        }
    }
}

/// Groups the members with equal `others`. Returns true if, in every group, the members have partial sums of the same
/// elements, together need each element once, and each need equally many.
fn every_group_needs_equal_shares_of_one_sum(
    own: &[ElementBitSet],
    needed: &[ElementBitSet],
    others: &[Vec<u32>],
) -> bool {
    let members = 0..own.len();
    members.clone().all(|one| {
        let group: Vec<usize> = members
            .clone()
            .filter(|&m| others[m] == others[one])
            .collect();
        let kept: u64 = group.iter().map(|&m| needed[m].count()).sum();
        let all = group
            .iter()
            .fold(ElementBitSet::default(), |all, &m| all.or(needed[m]));
        group.len() > 1
            && group.iter().all(|&m| own[m] == own[one])
            && group
                .iter()
                .all(|&m| needed[m].count() == needed[one].count())
            && all == own[one]
            && kept == all.count()
    })
}

#[test]
fn sum_is_reduce_scattered_if_each_member_keeps_an_equal_share() {
    let mut times = [0; 2];
    for members in 1..=8 {
        let (layouts, choices) = (
            list_layouts(members),
            list_grid_digit_choices_with_other_digits(members),
        );
        for from in &layouts {
            for to in &layouts {
                let ([own, needed], _) = list_elements_per_member(from, to, members);
                for (over, others) in &choices {
                    let expected = every_group_needs_equal_shares_of_one_sum(&own, &needed, others);
                    let among = reduce_scatter_groups(from, over, to, members);
                    let what = || format!("{from:?} {over:?} {to:?} {members}");
                    assert_eq!(among.is_some(), expected, "{}", what());
                    if let Some(among) = among {
                        assert_eq!(
                            among,
                            EqualSizedMemberGroups::from_members_differing_in_digits(over, members),
                            "{}",
                            what()
                        );
                    }
                    times[usize::from(expected)] += 1;
                }
            }
        }
    }
    assert!(times.iter().all(|&times| times > 100), "{times:?}");
}
