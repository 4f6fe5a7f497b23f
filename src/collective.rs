//! How a collective is carried out: which stages over which phases of the group, and in each stage
//! a small program per member that is asked for its next step.
//!
//! Schedules are never materialised. [`Stage`]s say what a collective does in each dimension the
//! group spans; [`Algorithm::step`] says what the member at one index of a line sends next, and after how many
//! receptions. The same programs run stepwise in the event loop and have closed forms for members
//! that start together on paths that are all alike.
//!
//! Reductions cost no time of their own: they proceed at the rate at which bytes arrive, which NPU
//! memory exceeds many times over.

use crate::group::Extent;
use crate::trace::CollectiveKind;
use crate::units::Amount;

mod algorithm;
pub mod auto;
mod binomial;
mod carried;
mod closed;
mod course;
mod custom;
mod direct;
mod double_binary_tree;
mod flow_shop;
mod halving_doubling;
mod manner;
mod native;
mod pairwise;
mod pipeline;
mod recursive_doubling;
mod ring;
mod routes;
mod schedule;
mod tree;

pub use algorithm::{Algorithm, Choice};
pub use carried::{Carried, Chunk, carried, outward};
pub use closed::closed_form;
pub use course::{Course, Gates, Passage};
pub use custom::{Custom, Fault, Part, Players, Script, Scripts};
pub use flow_shop::{Intra, Schedule, Stages, schedule};
pub use manner::{
    Act, Clock, Cue, Describer, Endpoint, Load, Manner, Party, Passing, Queue, Quiet, Request,
    Source, Ticket,
};
pub use native::Native;
pub use pipeline::Pipeline;
pub use schedule::Inter;

/// What a collective does along one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Primitive {
    /// Each member of a line ends with the sum of its part.
    ReduceScatter,
    /// Each member of a line ends with all parts.
    AllGather,
    /// Each member of a line ends with the sum of all buffers, in one stage.
    AllReduce,
    /// Each member sends each other its part.
    AllToAll,
    /// The root of the line sends its buffer to all.
    Broadcast,
    /// The root of the line ends with the sum of all buffers.
    Reduce,
    /// The root of the line ends with all parts.
    Gather,
    /// The root of the line sends each member its part.
    Scatter,
}

impl Primitive {
    /// Whether one member of each line plays a part of its own.
    pub fn has_root(self) -> bool {
        matches!(
            self,
            Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter
        )
    }
}

/// One phase's part in a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Index of the phase in the extent.
    pub phase: usize,
    /// What is done.
    pub primitive: Primitive,
    /// The buffer of a line: what its members together build, share or reduce.
    pub buffer: Amount,
    /// The second of two trees that chunks take in turn; of no meaning elsewhere.
    pub mirrored: bool,
    /// Half of everything goes each way round a ring, so that an NPU sends over both its links.
    pub both_ways: bool,
}

impl Stage {
    /// One of `n` equal parts of the buffer, or the half of one that goes one way round.
    #[inline]
    pub fn part(&self, n: u32) -> Amount {
        self.buffer.part(n).part(1 + u32::from(self.both_ways))
    }
}

/// Hands `take` the stages of `kind` over the phases of `extent`, in order, where a chunk's share of the
/// buffer ([`CollectiveKind::buffer`]) is `whole`.
///
/// `order` has the index of every phase once, in the order in which a chunk goes outward. Reduce-scatter,
/// all-gather, all-reduce and all-to-all take any; the rest go by the identity, whatever `order` says.
/// Phases that come earlier shrink what later ones carry. With sizes n_0, n_1, … in that order:
/// reduce-scatter goes outward with S, S/n_0, S/(n_0 n_1), …; all-gather comes back inward with the
/// same buffers; all-reduce is the one after the other, or, where it is `fused`, has one stage in
/// place of the two that meet in the last phase; all-to-all crosses every dimension with all of S;
/// reduce and gather go outward, broadcast and scatter inward, along the lines that hold data. A barrier is
/// an all-gather of nothing.
pub fn stages(
    kind: CollectiveKind,
    extent: &Extent,
    whole: Amount,
    order: &[usize],
    fused: bool,
    mut take: impl FnMut(Stage),
) {
    let mut hand = |phase: usize, primitive, buffer| {
        take(Stage {
            phase,
            primitive,
            buffer,
            mirrored: false,
            both_ways: false,
        });
    };
    let size = |d: &usize| extent.phases[*d].size;
    // S divided by the sizes of the phases before place `k` of an order.
    let shrunk = |order: &[usize], k: usize| whole.part(order[..k].iter().map(size).product());
    // S divided by the sizes outside phase d.
    let outside = |d: usize| {
        let phase = &extent.phases[d];
        whole.part(extent.size() / (phase.stride * phase.size))
    };
    let identity = outward(extent);
    let mut inward = |primitive| {
        for &d in identity.iter().rev() {
            let buffer = match primitive {
                Primitive::AllGather => shrunk(identity, d),
                Primitive::Scatter => outside(d),
                _ => whole,
            };
            hand(d, primitive, buffer);
        }
    };
    match kind {
        CollectiveKind::AllReduce => {
            let both = order.len() - usize::from(fused && !order.is_empty());
            for (k, &d) in order[..both].iter().enumerate() {
                hand(d, Primitive::ReduceScatter, shrunk(order, k));
            }
            for &d in &order[both..] {
                hand(d, Primitive::AllReduce, shrunk(order, both));
            }
            for (k, &d) in order[..both].iter().enumerate().rev() {
                hand(d, Primitive::AllGather, shrunk(order, k));
            }
        }
        CollectiveKind::ReduceScatter => {
            for (k, &d) in order.iter().enumerate() {
                hand(d, Primitive::ReduceScatter, shrunk(order, k));
            }
        }
        CollectiveKind::AllGather => {
            for (k, &d) in order.iter().enumerate().rev() {
                hand(d, Primitive::AllGather, shrunk(order, k));
            }
        }
        CollectiveKind::AllToAll => {
            for &d in order {
                hand(d, Primitive::AllToAll, whole);
            }
        }
        CollectiveKind::Barrier => inward(Primitive::AllGather),
        CollectiveKind::Broadcast => inward(Primitive::Broadcast),
        CollectiveKind::Scatter => inward(Primitive::Scatter),
        CollectiveKind::Reduce => {
            for &d in identity {
                hand(d, Primitive::Reduce, whole);
            }
        }
        CollectiveKind::Gather => {
            for &d in identity {
                hand(d, Primitive::Gather, outside(d));
            }
        }
    }
}

/// A member's place in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Members of the line; at least 2.
    pub size: u32,
    /// This member's index.
    pub index: u32,
    /// The root's index; 0 where there is no root.
    pub root: u32,
}

impl Seat {
    /// The seat of the member at `position` along `phase`, in a collective rooted at position
    /// `root`. `None` when its line has no part in this stage: with a root, only lines that hold or
    /// want data take part, those whose indices along all inner phases are the root's.
    pub fn new(extent: &Extent, stage: &Stage, position: u32, root: u32) -> Option<Self> {
        let phase = &extent.phases[stage.phase];
        // The inner phases are the remainder by this phase's stride.
        if stage.primitive.has_root() && position % phase.stride != root % phase.stride {
            return None;
        }
        Some(Self {
            size: phase.size,
            index: phase.index(position),
            root: phase.index(root),
        })
    }

    /// The same seat where the line is numbered from its other end, in which the other way round is that to the
    /// next.
    #[inline]
    pub fn reversed(self) -> Self {
        Self {
            size: self.size,
            index: self.size - 1 - self.index,
            root: self.size - 1 - self.root,
        }
    }
}

/// One step of a member: a message, and when it may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The receiver's index in the line.
    pub to: u32,
    /// What is sent.
    pub amount: Amount,
    /// How many credits it needs: messages of this stage that were received and dealt with, and those
    /// that the member began with.
    pub after: u32,
    /// How many messages of this stage must have arrived besides.
    pub arrived: u32,
    /// How many steps the receiver must have taken to listen to it.
    pub heard: u32,
}
