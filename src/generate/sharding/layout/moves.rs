//! What is moved from one layout to another.
//!
//! Along an axis that is cut into `f` parts and shall be cut into `t`, both cuts meet at every multiple of
//! 1/gcd(f, t). Between two of these lies a *block* of f/gcd parts of one cut and t/gcd of the other, and parts of
//! different blocks have nothing in common. If one of the two numbers of a block is 1, the axis is *nested*, and any
//! two parts of a block have the same in common: 1/lcm(f, t) of the axis. The blocks of a result are the products of
//! its axes' blocks.
//!
//! If all axes are nested and every member needs something of the block in which it has its part, then it has one
//! piece of what it needs, and gets each of the others from someone in its block: all pieces are equal. With any
//! group of members that have the block's parts, each part once, that is a collective. If such groups can be formed
//! of members with equal needs, it is an all-gather (of what they need of their parts), else an all-to-all. Members
//! that have the same part are dealt to groups in ascending order.
//!
//! Else, pieces differ in size or some member has nothing of what it needs, so there are messages.

use super::{Digit, Layout, Partition, on_one_grid};
use std::collections::BTreeMap;

mod messages;

/// What has to be moved so that everyone has what it needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Move {
    /// Everyone has it already.
    Nothing,
    /// The members of each group have a part each of what they need, and all need them all: all-gather. What they
    /// do not need of what they have, they leave out.
    Gather {
        /// Who gathers.
        among: Partition,
        /// What a member has afterwards of the whole is 1/share.
        share: u64,
    },
    /// Each member of a group has an equal piece for every other and itself: all-to-all. What nobody in the group
    /// needs is left out, and what two need is in the pieces of both.
    Exchange {
        /// Who exchanges.
        among: Partition,
        /// A member brings 1/share of the whole into it, and takes as much out of it.
        share: u64,
    },
    /// Pieces from one to another.
    Messages {
        /// Ascending by sender and receiver, at most one for each two of them.
        messages: Vec<Message>,
        /// Equal pieces of the whole.
        of: u64,
    },
}

/// What a member sends to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Message {
    /// Who sends.
    pub from: u32,
    /// Who receives.
    pub to: u32,
    /// Pieces of the whole; how many the whole has, [`Move::Messages`] says.
    pub pieces: u64,
}

/// What has to be moved from `from` to `to` among `members`.
///
/// A piece that several members have comes from the nearest one if it is a message, the lower one of two; see the
/// head of this file for groups. There are at most as many messages as members times parts of `from`.
///
/// # Panics
/// When the digits of one of them are not digits of one grid of `members`, each in a place of its own.
pub fn moves(from: &Layout, to: &Layout, members: u32) -> Move {
    let change = Change::new(from, to, members);
    if !change.in_blocks() {
        return change.messages();
    }
    if change.senders() == 1 {
        return Move::Nothing;
    }
    let share = to.parts();
    if let Some(among) = change.deal(|member| to.part(member)) {
        return Move::Gather { among, share };
    }
    // A block's parts are all there, equally often, and only its own members have them.
    let among = change
        .deal(|member| change.block(member))
        .expect("members of a block have its parts");
    Move::Exchange { among, share }
}

/// Who takes part in a reduce-scatter, if that is what a sum over `over` and the move from `from` to `to` can be.
///
/// Members that differ in `over` only have terms of the same part of `from`. It can if `to` gives each of them an
/// equal share of that part and another one to each: say, columns by 4 cut from the whole, and 4 members that sum.
///
/// # Panics
/// When `over` or the digits of a layout are not digits of one grid of `members`, each in a place of its own.
pub fn scatters(from: &Layout, over: &[Digit], to: &Layout, members: u32) -> Option<Partition> {
    let change = Change::new(from, to, members);
    let among = Partition::over(over, members);
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
struct Change<'a> {
    from: &'a Layout,
    to: &'a Layout,
    members: u32,
    axes: [Cuts; 3],
}

/// Two cuts of an axis.
#[derive(Clone, Copy)]
struct Cuts {
    from: u64,
    to: u64,
    blocks: u64,
}

impl Cuts {
    fn new(from: u32, to: u32) -> Self {
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

    /// Pieces that both cuts are made of.
    fn pieces(&self) -> u64 {
        self.from / self.blocks * self.to
    }
}

impl<'a> Change<'a> {
    fn new(from: &'a Layout, to: &'a Layout, members: u32) -> Self {
        for layout in [from, to] {
            let fits = on_one_grid(&layout.axes(), members);
            assert!(fits, "{layout:?} of {members}");
        }
        let (before, after) = (from.axes(), to.axes());
        let axes = [0, 1, 2].map(|axis| Cuts::new(before[axis].parts, after[axis].parts));
        Self {
            from,
            to,
            members,
            axes,
        }
    }

    /// Equal pieces of the whole of which all parts of both layouts are made.
    fn pieces(&self) -> u64 {
        self.axes.iter().map(Cuts::pieces).product()
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

    /// The block of which it needs something.
    fn needed_block(&self, member: u32) -> [u64; 3] {
        let part = self.to.part(member);
        [0, 1, 2].map(|axis| part[axis] * self.axes[axis].blocks / self.axes[axis].to)
    }

    /// Whether everything is nested and stays within blocks.
    fn in_blocks(&self) -> bool {
        let nested = |cuts: &Cuts| cuts.blocks == cuts.from || cuts.blocks == cuts.to;
        self.axes.iter().all(nested)
            && (0..self.members).all(|member| self.block(member) == self.needed_block(member))
    }

    /// Groups of members of a class that have a block's parts of `from`, each part once, if all classes can be dealt
    /// into such groups.
    fn deal(&self, class: impl Fn(u32) -> [u64; 3]) -> Option<Partition> {
        let mut holders: BTreeMap<([u64; 3], [u64; 3]), u32> = BTreeMap::new();
        let mut groups = Vec::with_capacity(self.members as usize);
        for member in 0..self.members {
            let class = class(member);
            let earlier = holders.entry((class, self.from.part(member))).or_default();
            groups.push((class, *earlier));
            *earlier += 1;
        }
        Partition::by(&groups).filter(|among| u64::from(among.size()) == self.senders())
    }
}
