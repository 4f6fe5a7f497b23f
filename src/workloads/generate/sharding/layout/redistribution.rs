//! Redistribution of a result from one layout to another.
//!
//! Consider one axis that has `f` shards before the redistribution and `t` shards after it. Both splits have a boundary
//! at every multiple of 1/gcd(f, t). The section between two neighbouring common boundaries is a *block*. It consists
//! of f/gcd shards of one split and of t/gcd shards of the other, and no shard extends into another block. The axis is
//! *nested* if f/gcd or t/gcd is 1: any two shards in a block then intersect in the same fraction of the axis, 1/lcm(f,
//! t). A block of the whole result is a product of one block per axis.
//!
//! The communication is a collective if all axes are nested, and every member needs only elements from the block of its
//! own shard. In this case, each member already has one fragment of the elements that it needs, and receives every
//! other fragment from a member of its block. All fragments of a block have the same size. Together, the members of one
//! exchange have each shard of the block exactly once. The collective is an all-gather of the needed elements if
//! members with equal needs can form such groups. Otherwise, it is an all-to-all. Members with the same shard join the
//! groups in ascending order, one member per group.
//!
//! If an axis is not nested, or if a member has none of the elements that it needs, fragments may differ in size.
//! Members then exchange point-to-point messages.

use super::{
    EqualSizedMemberGroups, MemberNumberDigit, SampleRowColumnSharding, are_digits_of_one_grid,
};
use std::collections::BTreeMap;

mod messages;

/// Communication that sends every member the elements that it needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Redistribution {
    /// Every member already has the elements that it needs.
    Nothing,
    /// All-gather: each member of a group has one shard of the elements that the group needs, and every member needs
    /// all of them. Elements that no member needs are not sent.
    AllGather {
        /// Groups of members; each group runs one all-gather.
        among: EqualSizedMemberGroups,
        /// Each member has 1/share of the whole result after the all-gather.
        share: u64,
    },
    /// All-to-all: each member of a group has one fragment for every member of the group, including itself. All
    /// fragments have the same size. Elements that no member needs are not sent; an element that two members need is
    /// sent to both.
    AllToAll {
        /// Groups of members; each group runs one all-to-all.
        among: EqualSizedMemberGroups,
        /// Each member sends 1/share of the whole result, and receives the same amount.
        share: u64,
    },
    /// Point-to-point messages between members.
    Messages {
        /// Messages in ascending order of sender and receiver, at most one per pair.
        messages: Vec<ShardMessage>,
        /// Number of equal fragments into which the whole result is divided.
        of: u64,
    },
}

/// A message from one member to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShardMessage {
    /// Member that sends the message.
    pub from: u32,
    /// Member that receives the message.
    pub to: u32,
    /// Size of the message, in fragments of [`Redistribution::Messages`].
    pub pieces: u64,
}

/// Returns the communication that turns layout `from` into layout `to` among `members`.
///
/// If several members have a fragment, the nearest one sends it. If two are equally near, the lower one sends it. The
/// module documentation explains how members form the groups of collectives. The number of messages is at most the
/// number of members times the number of shards of `from`.
///
/// # Panics
/// Panics if the digits of a layout do not belong to one grid of `members`, or overlap in it.
pub fn plan_redistribution(
    from: &SampleRowColumnSharding,
    to: &SampleRowColumnSharding,
    members: u32,
) -> Redistribution {
    let change = LayoutChange::new(from, to, members);
    if !change.needs_only_elements_of_own_block() {
        return change.messages_from_nearest_holders();
    }
    if change.shards_per_block_before() == 1 {
        return Redistribution::Nothing;
    }
    let share = to.shard_count();
    if let Some(among) =
        change.split_classes_into_groups_with_all_shards(|member| to.shard_indices(member))
    {
        return Redistribution::AllGather { among, share };
    }
    // Valid groups always exist, because each shard of a block is on the same number of members, and members of other
    // blocks have no shard of it.
    let among = change
        .split_classes_into_groups_with_all_shards(|member| change.block_of_held_shard(member))
        .expect("members of a block have its parts");
    Redistribution::AllToAll { among, share }
}

/// Returns the groups for a reduce-scatter that replaces both a sum over `over` and the redistribution from `from` to
/// `to`. Returns `None` if there is no such reduce-scatter.
///
/// Members that differ only in `over` have partial sums for the same shard of `from`. A reduce-scatter replaces both if
/// `to` gives each of these members a distinct, equal part of that shard. For example, if four members sum and `to`
/// splits the columns by 4, each keeps a quarter of the sum.
///
/// # Panics
/// Panics if `over` or the digits of a layout do not belong to one grid of `members`, or overlap in it.
pub fn reduce_scatter_groups(
    from: &SampleRowColumnSharding,
    over: &[MemberNumberDigit],
    to: &SampleRowColumnSharding,
    members: u32,
) -> Option<EqualSizedMemberGroups> {
    let change = LayoutChange::new(from, to, members);
    let among = EqualSizedMemberGroups::from_members_differing_in_digits(over, members);
    let slices = change.needs_only_elements_of_own_block() && change.shards_per_block_before() == 1;
    if !slices
        || among.group_size() == 1
        || change.shards_per_block_after() != u64::from(among.group_size())
    {
        return None;
    }
    let shares_out = |group| {
        let group = among.members_of(group);
        let has = from.shard_indices(group[0]);
        let mut needs: Vec<[u64; 3]> = group
            .iter()
            .map(|&member| to.shard_indices(member))
            .collect();
        needs.sort_unstable();
        group
            .iter()
            .all(|&member| from.shard_indices(member) == has)
            && needs.windows(2).all(|two| two[0] != two[1])
    };
    (0..among.group_count()).all(shares_out).then_some(among)
}

/// The layouts of a result before and after a redistribution.
struct LayoutChange<'a> {
    from: &'a SampleRowColumnSharding,
    to: &'a SampleRowColumnSharding,
    members: u32,
    axes: [AxisShardCountChange; 3],
}

/// Number of shards along one axis, before and after the redistribution.
#[derive(Clone, Copy)]
struct AxisShardCountChange {
    from: u64,
    to: u64,
    blocks: u64,
}

impl AxisShardCountChange {
    fn new(from: u32, to: u32) -> Self {
        // Euclid's algorithm for gcd(from, to), which is the number of blocks.
        let (mut blocks, mut rest) = (from, to);
        while rest > 0 {
            (blocks, rest) = (rest, blocks % rest);
        }
        Self {
            from: from.into(),
            to: to.into(),
            blocks: blocks.into(),
        }
    }

    /// Number of equal fragments along the axis if it is cut at the boundaries of both splits.
    fn fragment_count(&self) -> u64 {
        self.from / self.blocks * self.to
    }
}

impl<'a> LayoutChange<'a> {
    fn new(
        from: &'a SampleRowColumnSharding,
        to: &'a SampleRowColumnSharding,
        members: u32,
    ) -> Self {
        for layout in [from, to] {
            let fits = are_digits_of_one_grid(&layout.digits_of_all_axes(), members);
            assert!(fits, "{layout:?} of {members}");
        }
        let (before, after) = (from.digits_of_all_axes(), to.digits_of_all_axes());
        let axes =
            [0, 1, 2].map(|axis| AxisShardCountChange::new(before[axis].parts, after[axis].parts));
        Self {
            from,
            to,
            members,
            axes,
        }
    }

    /// Number of equal fragments in the whole result if it is cut at the boundaries of both layouts.
    fn fragment_count(&self) -> u64 {
        self.axes
            .iter()
            .map(AxisShardCountChange::fragment_count)
            .product()
    }

    /// Number of shards per block in the layout before the redistribution.
    fn shards_per_block_before(&self) -> u64 {
        self.axes
            .iter()
            .map(|cuts| cuts.from / cuts.blocks)
            .product()
    }

    /// Number of shards per block in the layout after the redistribution.
    fn shards_per_block_after(&self) -> u64 {
        self.axes.iter().map(|cuts| cuts.to / cuts.blocks).product()
    }

    /// Returns the indices of the block that contains `member`'s shard before the redistribution.
    fn block_of_held_shard(&self, member: u32) -> [u64; 3] {
        let part = self.from.shard_indices(member);
        [0, 1, 2].map(|axis| part[axis] * self.axes[axis].blocks / self.axes[axis].from)
    }

    /// Returns the indices of the block that contains the elements that `member` needs.
    fn needed_block(&self, member: u32) -> [u64; 3] {
        let part = self.to.shard_indices(member);
        [0, 1, 2].map(|axis| part[axis] * self.axes[axis].blocks / self.axes[axis].to)
    }

    /// Returns true if all axes are nested and every member needs only elements of its own block.
    fn needs_only_elements_of_own_block(&self) -> bool {
        let nested =
            |cuts: &AxisShardCountChange| cuts.blocks == cuts.from || cuts.blocks == cuts.to;
        self.axes.iter().all(nested)
            && (0..self.members)
                .all(|member| self.block_of_held_shard(member) == self.needed_block(member))
    }

    /// Divides the members of each class into groups. Together, the members of a group have each `from` shard of a
    /// block exactly once. Returns `None` if this is impossible for some class.
    fn split_classes_into_groups_with_all_shards(
        &self,
        class: impl Fn(u32) -> [u64; 3],
    ) -> Option<EqualSizedMemberGroups> {
        let mut holders: BTreeMap<([u64; 3], [u64; 3]), u32> = BTreeMap::new();
        let mut groups = Vec::with_capacity(self.members as usize);
        for member in 0..self.members {
            let class = class(member);
            let earlier = holders
                .entry((class, self.from.shard_indices(member)))
                .or_default();
            // Among members with the same shard, the k-th member joins the k-th group of its class.
            groups.push((class, *earlier));
            *earlier += 1;
        }
        EqualSizedMemberGroups::from_equal_keys(&groups)
            .filter(|among| u64::from(among.group_size()) == self.shards_per_block_before())
    }
}
