//! Redistribution of a result from one layout to another.
//!
//! Consider an axis that is split into `f` shards and needed in `t`. The boundaries of both coincide at every
//! multiple of 1/gcd(f, t). Between two of these lies a *block* of f/gcd shards of one split and t/gcd of the other;
//! shards of different blocks are disjoint. If one of the two numbers is 1, the axis is *nested*, and any two shards
//! of a block intersect in the same fraction of the axis, 1/lcm(f, t). The blocks of a result are the products of its
//! axes' blocks.
//!
//! If all axes are nested and every member needs elements of the block that its shard is in, then it has one fragment
//! of the elements that it needs, and receives each of the others from a member of its block: all fragments are equal.
//! Among any group of members that have the block's shards, each shard once, that is a collective. If such groups can
//! be formed of members with equal needs, it is an all-gather (of the needed elements of their shards), else an
//! all-to-all. Members with the same shard are assigned to groups in ascending order.
//!
//! Otherwise fragments differ in size, or a member has nothing of what it needs: point-to-point messages.

use super::{MemberPartition, MeshAxis, ShardLayout, on_one_grid};
use std::collections::BTreeMap;

mod messages;

/// Communication that gives every member what it needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Redistribution {
    /// Everyone has it already.
    Nothing,
    /// All-gather: the members of each group have one shard each of what they need, and all need all of them.
    /// Elements that they have but do not need are left out.
    AllGather {
        /// Groups that gather.
        among: MemberPartition,
        /// A member has 1/share of the whole afterwards.
        share: u64,
    },
    /// All-to-all: each member of a group has an equal fragment for every other and itself. Elements that nobody in the
    /// group needs are left out, and those that two need are in the fragments of both.
    AllToAll {
        /// Groups that exchange.
        among: MemberPartition,
        /// A member brings 1/share of the whole into it, and takes as much out of it.
        share: u64,
    },
    /// Fragments from one to another.
    Messages {
        /// Ascending by sender and receiver, at most one for each two of them.
        messages: Vec<ShardMessage>,
        /// Equal fragments of the whole.
        of: u64,
    },
}

/// A message from one member to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShardMessage {
    /// Sender.
    pub from: u32,
    /// Receiver.
    pub to: u32,
    /// Size in fragments, of which [`Redistribution::Messages`] states the total.
    pub pieces: u64,
}

/// Returns the communication that turns layout `from` into layout `to` among `members`.
///
/// A fragment that several members have comes from the nearest one if it is a message, the lower one of two; see the
/// head of this file for groups. There are at most as many messages as members times parts of `from`.
///
/// # Panics
/// Panics if the digits of one of them are not digits of one grid of `members`, each in a place of its own.
pub fn redistribute(from: &ShardLayout, to: &ShardLayout, members: u32) -> Redistribution {
    let change = LayoutChange::new(from, to, members);
    if !change.in_blocks() {
        return change.messages();
    }
    if change.senders() == 1 {
        return Redistribution::Nothing;
    }
    let share = to.parts();
    if let Some(among) = change.partition_by_class(|member| to.part(member)) {
        return Redistribution::AllGather { among, share };
    }
    // A block's parts are all there, equally often, and only its own members have them.
    let among = change
        .partition_by_class(|member| change.block(member))
        .expect("members of a block have its parts");
    Redistribution::AllToAll { among, share }
}

/// Returns the groups of a reduce-scatter, if a sum over `over` followed by the move from `from` to `to` is one.
///
/// Members that differ in `over` only have partial sums of the same shard of `from`. It is a reduce-scatter if `to`
/// gives each of them an equal and distinct share of that shard: say, columns split by 4, and 4 members that sum.
///
/// # Panics
/// Panics if `over` or the digits of a layout are not digits of one grid of `members`, each in a place of its own.
pub fn reduce_scatter_groups(
    from: &ShardLayout,
    over: &[MeshAxis],
    to: &ShardLayout,
    members: u32,
) -> Option<MemberPartition> {
    let change = LayoutChange::new(from, to, members);
    let among = MemberPartition::over(over, members);
    let slices = change.in_blocks() && change.senders() == 1;
    if !slices || among.size() == 1 || change.receivers() != u64::from(among.size()) {
        return None;
    }
    let shares_out = |group| {
        let group = among.members_of(group);
        let has = from.part(group[0]);
        let mut needs: Vec<[u64; 3]> = group.iter().map(|&member| to.part(member)).collect();
        needs.sort_unstable();
        group.iter().all(|&member| from.part(member) == has)
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

/// Two splits of an axis.
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

    /// Number of fragments: the common refinement of both splits.
    fn pieces(&self) -> u64 {
        self.from / self.blocks * self.to
    }
}

impl<'a> LayoutChange<'a> {
    fn new(from: &'a ShardLayout, to: &'a ShardLayout, members: u32) -> Self {
        for layout in [from, to] {
            let fits = on_one_grid(&layout.axes(), members);
            assert!(fits, "{layout:?} of {members}");
        }
        let (before, after) = (from.axes(), to.axes());
        let axes = [0, 1, 2].map(|axis| AxisSplits::new(before[axis].parts, after[axis].parts));
        Self {
            from,
            to,
            members,
            axes,
        }
    }

    /// Number of equal fragments of the whole: the common refinement of both layouts.
    fn pieces(&self) -> u64 {
        self.axes.iter().map(AxisSplits::pieces).product()
    }

    /// Parts of `from` in a block.
    fn senders(&self) -> u64 {
        self.axes
            .iter()
            .map(|cuts| cuts.from / cuts.blocks)
            .product()
    }

    /// Parts of `to` in a block.
    fn receivers(&self) -> u64 {
        self.axes.iter().map(|cuts| cuts.to / cuts.blocks).product()
    }

    /// The block in which `member` has its part.
    fn block(&self, member: u32) -> [u64; 3] {
        let part = self.from.part(member);
        [0, 1, 2].map(|axis| part[axis] * self.axes[axis].blocks / self.axes[axis].from)
    }

    /// The block of which `member` needs elements.
    fn needed_block(&self, member: u32) -> [u64; 3] {
        let part = self.to.part(member);
        [0, 1, 2].map(|axis| part[axis] * self.axes[axis].blocks / self.axes[axis].to)
    }

    /// Returns true if all axes are nested and every member needs elements of its own block only.
    fn in_blocks(&self) -> bool {
        let nested = |cuts: &AxisSplits| cuts.blocks == cuts.from || cuts.blocks == cuts.to;
        self.axes.iter().all(nested)
            && (0..self.members).all(|member| self.block(member) == self.needed_block(member))
    }

    /// Groups of members of one class that have a block's shards of `from`, each shard once, if all classes can be
    /// partitioned into such groups.
    fn partition_by_class(&self, class: impl Fn(u32) -> [u64; 3]) -> Option<MemberPartition> {
        let mut holders: BTreeMap<([u64; 3], [u64; 3]), u32> = BTreeMap::new();
        let mut groups = Vec::with_capacity(self.members as usize);
        for member in 0..self.members {
            let class = class(member);
            let earlier = holders.entry((class, self.from.part(member))).or_default();
            // The k-th holder of each shard goes to the k-th group of its class.
            groups.push((class, *earlier));
            *earlier += 1;
        }
        MemberPartition::by(&groups).filter(|among| u64::from(among.size()) == self.senders())
    }
}
