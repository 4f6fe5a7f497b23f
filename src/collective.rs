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

use crate::group::{Extent, Phase};
use crate::topology::Path;
use crate::trace::CollectiveKind;
use crate::units::Amount;
use std::fmt;

mod closed;
mod direct;
mod manner;
mod native;
mod ring;

pub use closed::closed_form;
pub use manner::{
    Act, Clock, Cost, Cue, Describer, Endpoint, Load, Manner, Party, Passing, Queue, Request,
    Source, Ticket,
};
pub use native::{Carried, Native};

/// How the members of one dimension carry out their part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Neighbour to neighbour, around a ring of all members.
    Ring,
    /// Every member to every other, one after another through its port.
    Direct,
}

impl Algorithm {
    /// Every algorithm with the name it has in machine files.
    pub const ALL: [(Self, &'static str); 2] = [(Self::Ring, "ring"), (Self::Direct, "direct")];
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// What a collective does along one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Primitive {
    /// Each member of a line ends with the sum of its part.
    ReduceScatter,
    /// Each member of a line ends with all parts.
    AllGather,
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
}

/// Hands `take` the stages of `kind` over the phases of `extent`, in order, with a buffer of `bytes`
/// ([`CollectiveKind::buffer`]).
///
/// Inner dimensions shrink what outer ones carry. With sizes n_0, n_1, … from the inside:
/// reduce-scatter goes outward with S, S/n_0, S/(n_0 n_1), …; all-gather comes back inward with the
/// same buffers; all-reduce is the one after the other; all-to-all crosses every dimension with all
/// of S; reduce and gather go outward, broadcast and scatter inward, along the lines that hold data.
/// A barrier is an all-gather of nothing.
pub fn stages(kind: CollectiveKind, extent: &Extent, bytes: u64, take: impl FnMut(Stage)) {
    let whole = Amount::whole(bytes);
    let stage = |phase: usize, primitive, buffer| Stage {
        phase,
        primitive,
        buffer,
    };
    // S divided by the sizes inside phase d: the positions' stride is that product.
    let shrunk = |d: usize| whole.part(extent.phases[d].stride);
    // S divided by the sizes outside phase d.
    let outside = |d: usize| {
        let phase = &extent.phases[d];
        whole.part(extent.size() / (phase.stride * phase.size))
    };
    let outward = 0..extent.phases.len();
    let inward = outward.clone().rev();
    match kind {
        CollectiveKind::AllReduce => {
            let out = outward.map(|d| stage(d, Primitive::ReduceScatter, shrunk(d)));
            let back = inward.map(|d| stage(d, Primitive::AllGather, shrunk(d)));
            out.chain(back).for_each(take);
        }
        CollectiveKind::ReduceScatter => {
            outward
                .map(|d| stage(d, Primitive::ReduceScatter, shrunk(d)))
                .for_each(take);
        }
        CollectiveKind::AllGather | CollectiveKind::Barrier => {
            inward
                .map(|d| stage(d, Primitive::AllGather, shrunk(d)))
                .for_each(take);
        }
        CollectiveKind::AllToAll => {
            outward
                .map(|d| stage(d, Primitive::AllToAll, whole))
                .for_each(take);
        }
        CollectiveKind::Broadcast => {
            inward
                .map(|d| stage(d, Primitive::Broadcast, whole))
                .for_each(take);
        }
        CollectiveKind::Reduce => {
            outward
                .map(|d| stage(d, Primitive::Reduce, whole))
                .for_each(take);
        }
        CollectiveKind::Gather => {
            outward
                .map(|d| stage(d, Primitive::Gather, outside(d)))
                .for_each(take);
        }
        CollectiveKind::Scatter => {
            inward
                .map(|d| stage(d, Primitive::Scatter, outside(d)))
                .for_each(take);
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

impl Algorithm {
    /// The `i`-th message that the member in `seat` sends, `None` after the last. Messages leave in
    /// this order, one at a time.
    #[inline]
    pub fn step(self, stage: &Stage, seat: Seat, i: u32) -> Option<Step> {
        match self {
            Self::Ring => ring::step(stage, seat, i),
            Self::Direct => direct::step(stage, seat, i),
        }
    }

    /// How many messages the member in `seat` receives.
    #[inline]
    pub fn receives(self, stage: &Stage, seat: Seat) -> u32 {
        match self {
            Self::Ring => ring::receives(stage, seat),
            Self::Direct => direct::receives(stage, seat),
        }
    }

    /// Whether each member receives from one other only.
    pub fn has_sole_senders(self) -> bool {
        self == Self::Ring
    }

    /// The one path that every message of this stage takes, `None` when they differ.
    pub fn common_path(
        self,
        extent: &Extent,
        phase: &Phase,
        topology: &crate::topology::Topology,
    ) -> Option<Path> {
        match self {
            Self::Ring => extent.neighbour_path(phase, topology),
            Self::Direct => extent.any_path(phase, topology),
        }
    }
}
