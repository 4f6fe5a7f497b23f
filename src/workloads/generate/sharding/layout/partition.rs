//! Partitions of members into groups of equal size.

use super::{MemberNumberDigit, are_digits_of_one_grid};
use std::collections::BTreeMap;

/// A division of members into groups of equal size, numbered in the order of their first members.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EqualSizedMemberGroups {
    /// Index of each member's group.
    group_of: Vec<u32>,
    /// Members, sorted by group and then in ascending order.
    members: Vec<u32>,
    size: u32,
}

impl EqualSizedMemberGroups {
    /// Creates groups of members whose numbers differ only in `digits`.
    ///
    /// # Panics
    /// Panics if `digits` do not belong to one grid of `members`, or overlap in it.
    pub fn from_members_differing_in_digits(digits: &[MemberNumberDigit], members: u32) -> Self {
        assert!(
            are_digits_of_one_grid(digits, members),
            "{digits:?} of {members}"
        );
        let first = |member: u32| {
            let parts = digits
                .iter()
                .map(|digit| digit.shard_of_member(member) * digit.stride);
            member - parts.sum::<u32>()
        };
        let firsts: Vec<u32> = (0..members).map(first).collect();
        Self::from_equal_keys(&firsts).expect("a grid has groups of equal size")
    }

    /// Creates groups of `size` consecutive members; `size` must divide `members`.
    pub fn from_consecutive_members(members: u32, size: u32) -> Self {
        let keys: Vec<u32> = (0..members).map(|member| member / size).collect();
        Self::from_equal_keys(&keys).expect("all runs have one size")
    }

    /// Creates groups in which neighbouring members are `stride` apart; `stride` must divide
    /// `members`.
    pub fn from_strided_members(members: u32, stride: u32) -> Self {
        let keys: Vec<u32> = (0..members).map(|member| member % stride).collect();
        Self::from_equal_keys(&keys).expect("all strides have one size")
    }

    /// Creates one group for all members that have the same key. Returns `None` if the groups would differ in size.
    pub(super) fn from_equal_keys<K: Ord>(keys: &[K]) -> Option<Self> {
        let mut numbers: BTreeMap<&K, u32> = BTreeMap::new();
        let mut groups: Vec<Vec<u32>> = Vec::new();
        let mut group_of = Vec::with_capacity(keys.len());
        for (member, key) in (0..).zip(keys) {
            let group = *numbers.entry(key).or_insert(groups.len() as u32);
            match groups.get_mut(group as usize) {
                Some(group) => group.push(member),
                None => groups.push(vec![member]),
            }
            group_of.push(group);
        }
        // Groups are numbered in order of first appearance, so that equal partitions have equal
        // fields.
        let size = groups.first()?.len();
        groups
            .iter()
            .all(|group| group.len() == size)
            .then(|| Self {
                group_of,
                members: groups.concat(),
                size: size as u32,
            })
    }

    /// Number of members per group.
    pub fn group_size(&self) -> u32 {
        self.size
    }

    /// Total number of members in all groups.
    pub fn total_member_count(&self) -> u32 {
        self.group_of.len() as u32
    }

    /// Number of groups in the partition.
    pub fn group_count(&self) -> u32 {
        self.group_of.len() as u32 / self.size
    }

    /// Returns the index of the group of `member`.
    pub fn group_of(&self, member: u32) -> u32 {
        self.group_of[member as usize]
    }

    /// Returns the members of `group`, in ascending order.
    pub fn members_of(&self, group: u32) -> Vec<u32> {
        let size = self.size as usize;
        self.members[group as usize * size..][..size].to_vec()
    }

    /// Returns true if a single group has all members.
    pub fn has_single_group(&self) -> bool {
        self.group_count() == 1
    }
}
