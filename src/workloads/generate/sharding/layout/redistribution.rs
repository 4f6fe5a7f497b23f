//! Redistribution of a result from one layout to another.
//!
//! Consider an axis that is split into `f` shards and needed in `t` shards. The split into `f` and the split into `t`
//! have a boundary at every multiple of 1/gcd(f, t). Between two such boundaries is a *block* of f/gcd shards of one
//! split and t/gcd shards of the other; shards of different blocks are disjoint. If one of these two numbers is 1, the
//! axis is *nested*, and any two shards of a block intersect in the same fraction of the axis, 1/lcm(f, t). The blocks
//! of a result are the products of its axes' blocks.
//!
//! If all axes are nested and every member needs elements only of its own shard's block, then it
//! already has one fragment of the needed elements and receives each other fragment from a member
//! of its block. All fragments of a block are equal. Within a group of members that together have
//! each shard of the block once, this exchange is a collective. If members with equal needs can
//! form such groups, the collective is an all-gather (of the needed elements of their shards),
//! otherwise an all-to-all. Members with the same shard are assigned to groups in ascending order.
//!
//! Otherwise fragments differ in size, or a member has none of the elements that it needs, and point-to-point messages
//! are used.

use super::{MemberPartition, MeshAxis, ShardLayout, on_one_grid};
use std::collections::BTreeMap;

mod messages;

/// The communication that gives every member the elements that it needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Redistribution {
    /// Every member already has the elements that it needs.
    Nothing,
    /// All-gather: each member of a group has one shard of the needed elements, and every member
    /// needs all shards. Elements that are not needed are not sent.
    AllGather {
        /// Groups of the all-gather.
        among: MemberPartition,
        /// Each member has 1/share of the whole after the all-gather.
        share: u64,
    },
    /// All-to-all: each member of a group has an equal fragment for every member, including itself. Elements that no
    /// member needs are not sent, and elements that two members need are in both of their fragments.
    AllToAll {
        /// Groups of the all-to-all.
        among: MemberPartition,
        /// Each member of the all-to-all sends 1/share of the whole, and receives the same amount.
        share: u64,
    },
    /// Point-to-point messages.
    Messages {
        /// Ascending by sender and receiver, at most one for each pair.
        messages: Vec<ShardMessage>,
        /// Number of equal fragments in the whole result.
        of: u64,
    },
}

/// A message from one member to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShardMessage {
    /// Sending member.
    pub from: u32,
    /// Receiving member.
    pub to: u32,
    /// Size in fragments; [`Redistribution::Messages`] has their total.
    pub pieces: u64,
}

/// Returns the communication that turns layout `from` into layout `to` among `members`.
///
/// In messages, a fragment that several members have comes from the nearest of them, or from the
/// lower of two equally near members. The module documentation describes groups. The number of
/// messages is at most the number of members times the number of shards of `from`.
///
/// # Panics
/// Panics if the digits of a layout do not belong to one grid of `members`, or share a position in it.
pub fn plan_redistribution(from: &ShardLayout, to: &ShardLayout, members: u32) -> Redistribution {
    let change = LayoutChange::new(from, to, members);
    if !change.in_blocks() {
        return change.nearest_messages();
    }
    if change.senders_per_block() == 1 {
        return Redistribution::Nothing;
    }
    let share = to.parts();
    if let Some(among) = change.partition_by_class(|member| to.shard_indices(member)) {
        return Redistribution::AllGather { among, share };
    }
    // Each shard of a block is on the same number of members, and only the block's members have
    // these shards.
    let among = change
        .partition_by_class(|member| change.block_of(member))
        .expect("members of a block have its parts");
    Redistribution::AllToAll { among, share }
}

/// Returns the groups of a reduce-scatter, if a sum over `over` followed by the redistribution from
/// `from` to `to` is a reduce-scatter.
///
/// Members that differ only in `over` have partial sums of the same shard of `from`. Sum and
/// redistribution are a reduce-scatter if `to` gives each of these members an equal and distinct
/// share of that shard: for example, columns split by 4, and 4 members that sum.
///
/// # Panics
/// Panics if `over` or the digits of a layout do not belong to one grid of `members`, or share a position in it.
pub fn reduce_scatter_groups(
    from: &ShardLayout,
    over: &[MeshAxis],
    to: &ShardLayout,
    members: u32,
) -> Option<MemberPartition> {
    let change = LayoutChange::new(from, to, members);
    let among = MemberPartition::over(over, members);
    let slices = change.in_blocks() && change.senders_per_block() == 1;
    if !slices || among.size() == 1 || change.receivers_per_block() != u64::from(among.size()) {
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
    (0..among.count()).all(shares_out).then_some(among)
}

/// Two layouts of a result on the same members.
struct LayoutChange<'a> {
    from: &'a ShardLayout,
    to: &'a ShardLayout,
    members: u32,
    axes: [AxisSplits; 3],
}

/// The two splits of one axis.
#[derive(Clone, Copy)]
struct AxisSplits {
    from: u64,
    to: u64,
    blocks: u64,
}

impl AxisSplits {
    fn new(from: u32, to: u32) -> Self {
        // Euclid's algorithm: the number of blocks is gcd(from, to).
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

    /// Number of fragments in the common refinement of both splits.
    fn fragment_count(&self) -> u64 {
        self.from / self.blocks * self.to
    }
}

impl<'a> LayoutChange<'a> {
    fn new(from: &'a ShardLayout, to: &'a ShardLayout, members: u32) -> Self {
        for layout in [from, to] {
            let fits = on_one_grid(&layout.axis_digits(), members);
            assert!(fits, "{layout:?} of {members}");
        }
        let (before, after) = (from.axis_digits(), to.axis_digits());
        let axes = [0, 1, 2].map(|axis| AxisSplits::new(before[axis].parts, after[axis].parts));
        Self {
            from,
            to,
            members,
            axes,
        }
    }

    /// Number of equal fragments of the whole in the common refinement of both layouts.
    fn fragment_count(&self) -> u64 {
        self.axes.iter().map(AxisSplits::fragment_count).product()
    }

    /// Number of shards of `from` in a block.
    fn senders_per_block(&self) -> u64 {
        self.axes
            .iter()
            .map(|cuts| cuts.from / cuts.blocks)
            .product()
    }

    /// Number of shards of `to` in a block.
    fn receivers_per_block(&self) -> u64 {
        self.axes.iter().map(|cuts| cuts.to / cuts.blocks).product()
    }

    /// Returns the block of `member`'s shard of `from`.
    fn block_of(&self, member: u32) -> [u64; 3] {
        let part = self.from.shard_indices(member);
        [0, 1, 2].map(|axis| part[axis] * self.axes[axis].blocks / self.axes[axis].from)
    }

    /// Returns the block whose elements `member` needs.
    fn needed_block(&self, member: u32) -> [u64; 3] {
        let part = self.to.shard_indices(member);
        [0, 1, 2].map(|axis| part[axis] * self.axes[axis].blocks / self.axes[axis].to)
    }

    /// Returns true if all axes are nested and every member needs only elements of its own block.
    fn in_blocks(&self) -> bool {
        let nested = |cuts: &AxisSplits| cuts.blocks == cuts.from || cuts.blocks == cuts.to;
        self.axes.iter().all(nested)
            && (0..self.members).all(|member| self.block_of(member) == self.needed_block(member))
    }

    /// Partitions the members of each class into groups that have each shard of a block of `from` once, if all classes
    /// allow it.
    fn partition_by_class(&self, class: impl Fn(u32) -> [u64; 3]) -> Option<MemberPartition> {
        let mut holders: BTreeMap<([u64; 3], [u64; 3]), u32> = BTreeMap::new();
        let mut groups = Vec::with_capacity(self.members as usize);
        for member in 0..self.members {
            let class = class(member);
            let earlier = holders
                .entry((class, self.from.shard_indices(member)))
                .or_default();
            // The k-th member with a shard goes to the k-th group of its class.
            groups.push((class, *earlier));
            *earlier += 1;
        }
        MemberPartition::by_equal_keys(&groups)
            .filter(|among| u64::from(among.size()) == self.senders_per_block())
    }
}
