//! Execution of collectives. A collective runs in stages; each stage works in one phase, which is a dimension that the
//! group spans. In each stage, every member runs a small program that computes its next step on demand.
//!
//! Message schedules are never materialised. A [`CollectiveStage`] names the operation that the members perform in one
//! phase. [`CollectiveAlgorithm::nth_send`] returns a member's next message, and the number of messages that the member
//! must receive first. The event loop runs these programs step by step. If members start together on identical paths,
//! closed-form formulas predict when they end.
//!
//! Reductions take no time of their own: NPU memory is many times faster than the network, so reductions keep up with
//! arriving bytes.

use crate::group::GroupPhasesAndMemberPositions;
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::ids::Position;
use chakram_base::units::UnroundedBufferShare;

mod across_nodes;
mod algorithm;
pub mod auto;
mod backend;
mod binomial;
mod chunk_count;
mod chunk_schedule;
mod curve;
mod custom;
mod direct;
mod double_binary_tree;
mod flow_shop;
mod halving_doubling;
mod inter_dimension;
mod late_ring;
mod line_cost;
mod native;
mod pairwise;
mod peer_sizes;
mod pipeline;
mod protocol;
mod recursive_doubling;
mod ring;
mod routes;
mod stage_assignment;
mod stage_flow;
mod tree;

pub use across_nodes::CrossNodeNcclRingAndTreeModel;
pub use algorithm::{
    CollectiveAlgorithm, DimensionAlgorithmChoice, UserAlgorithmHandle, UserAlgorithmModel,
};
pub use backend::{
    BusEventScheduler, BusTransferTrigger, ChunkQueueIndexAndCapacity,
    CollectiveAlgorithmsFormatter, CollectiveBackend, CollectiveEndpointModel,
    CollectiveMatchingRules, CollectiveMemberNpus, CollectiveRequest, EndpointBusTransfer,
    EndpointDelayOrBusProcessing, MemberOrderChangeForMessages, PostedReceiveSenderAndStep,
    ScriptAction, ScriptExecutingMemberId, ScriptMemberEvent, SortEventsByContentMarker,
    SortEventsByInsertionMarker, TransferCompletionToken, UncontendedMessageCostFunctions,
};
pub use chunk_count::ChunkCountChoiceCache;
pub use chunk_schedule::{ChunkAdmissionOrderPerPhase, ChunkAndEnteredStage, ChunkStageSequences};
pub use curve::{
    CollectiveCurve, MeasurementSetupLinkProperties, find_dimension_measured_on_other_links,
    predict_time_from_one_dimension_curves as find_measured_time_collective,
};
pub use custom::{
    MemberScript, NamedScriptedAlgorithm, ScriptExecutor, ScriptFault, ScriptOp, ScriptedAlgorithm,
};
pub use flow_shop::{
    FlowShopEndAndQueueOrder, FlowShopInput, StageBeginAndAdmittingPassage, WaitingChunkPriority,
    simulate_flow_shop, simulate_flow_shop_observed,
};
pub use inter_dimension::DimensionVisitOrder;
pub use native::NativeBackend;
pub use peer_sizes::PairBytesByPhase;
pub use pipeline::ChunkCountOrderAndOverlap;
pub use protocol::{FittedCollectiveProtocol, fastest_protocol_time as find_fastest_time_protocol};
pub use stage_assignment::{
    ChunkShareAndPhaseOrder, StageWithAlgorithm, append_chunk_stages_with_algorithms,
    outward_phases,
};

/// The operation that members perform in one phase of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveStagePrimitive {
    /// Each member of a line (the members along one dimension) ends with one part of the sum of all buffers.
    ReduceScatter,
    /// Each member of a line ends with the parts of all members.
    AllGather,
    /// Each member of a line ends with the sum of all buffers, in one stage.
    AllReduce,
    /// Each member sends a separate part of its buffer to every other member.
    AllToAll,
    /// The root of the line sends its buffer to all members.
    Broadcast,
    /// The root of the line ends with the sum of all buffers.
    Reduce,
    /// The root of the line ends with the parts of all members.
    Gather,
    /// The root of the line sends a separate part of its buffer to each member.
    Scatter,
}

impl CollectiveStagePrimitive {
    /// Returns true if one member of each line, the root, has a special role.
    pub fn has_root(self) -> bool {
        matches!(
            self,
            Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter
        )
    }
}

/// One stage of a collective: an operation in one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveStage {
    /// Index of the phase among the phases of the group's extent.
    pub phase: usize,
    /// Operation that the members perform in this stage.
    pub primitive: CollectiveStagePrimitive,
    /// Size of the data that a line's members together gather, scatter or reduce.
    pub buffer: UnroundedBufferShare,
    /// True if the chunk uses the second of the two trees. Chunks alternate between the trees. Algorithms without two
    /// trees ignore this field.
    pub mirrored: bool,
    /// True if the two halves of the buffer go around a ring in opposite directions, so that an NPU sends over both its
    /// links.
    pub bidirectional: bool,
}

impl CollectiveStage {
    /// Returns the size of one of `n` equal parts of the buffer, or half of that if a ring is used in both directions.
    #[inline]
    pub fn one_of_n_equal_parts_per_direction(&self, n: u32) -> UnroundedBufferShare {
        self.buffer
            .one_of_n_equal_parts(n)
            .one_of_n_equal_parts(1 + u32::from(self.bidirectional))
    }
}

/// Calls `take` with each stage of one chunk of `kind` over the phases of `extent`, in execution order. `whole` is the
/// chunk's share of the buffer ([`CollectiveKind::buffer_bytes`]).
///
/// `order` contains the index of every phase once: the order in which a chunk passes through the phases on its way
/// outward. Reduce-scatter, all-gather, all-reduce and all-to-all follow `order`; all other kinds ignore `order` and
/// use the order of phase indices. Earlier phases shrink the data of later phases. Let the phases have sizes n_0, n_1,
/// … in this order.
/// - On its way outward, a reduce-scatter works on buffers of S, S/n_0, S/(n_0 n_1), ….
/// - An all-gather goes inward, with the same buffer in each phase.
/// - An all-reduce is a reduce-scatter and then an all-gather. If `fused` is true, a single all-reduce stage replaces
///   the two stages in the last phase.
/// - An all-to-all sends the whole buffer S through every dimension.
/// - Reduce and gather go outward along the lines that have data; broadcast and scatter go inward along them.
/// - A barrier is an all-gather without data.
pub fn decompose_collective(
    kind: CollectiveKind,
    extent: &GroupPhasesAndMemberPositions,
    whole: UnroundedBufferShare,
    order: &[usize],
    fused: bool,
    mut take: impl FnMut(CollectiveStage),
) {
    let mut hand = |phase: usize, primitive, buffer| {
        take(CollectiveStage {
            phase,
            primitive,
            buffer,
            mirrored: false,
            bidirectional: false,
        });
    };
    let size = |d: &usize| extent.phases[*d].size;
    // S divided by the sizes of the first `k` phases in `order`.
    let shrunk = |order: &[usize], k: usize| {
        whole.one_of_n_equal_parts(order[..k].iter().map(size).product())
    };
    // S divided by the sizes of all phases outside phase d.
    let outside = |d: usize| {
        let phase = &extent.phases[d];
        whole.one_of_n_equal_parts(extent.member_count() / (phase.stride * phase.size))
    };
    let identity = outward_phases(extent);
    // Barriers, broadcasts and scatters ignore `order`: the order of phase indices determines which lines have data.
    let mut inward = |primitive| {
        for &d in identity.iter().rev() {
            let buffer = match primitive {
                CollectiveStagePrimitive::AllGather => shrunk(identity, d),
                CollectiveStagePrimitive::Scatter => outside(d),
                _ => whole,
            };
            hand(d, primitive, buffer);
        }
    };
    match kind {
        CollectiveKind::AllReduce => {
            // Number of phases with two stages; a fused all-reduce has only one stage in the last phase.
            let both = order.len() - usize::from(fused && !order.is_empty());
            for (k, &d) in order[..both].iter().enumerate() {
                hand(d, CollectiveStagePrimitive::ReduceScatter, shrunk(order, k));
            }
            for &d in &order[both..] {
                hand(d, CollectiveStagePrimitive::AllReduce, shrunk(order, both));
            }
            for (k, &d) in order[..both].iter().enumerate().rev() {
                hand(d, CollectiveStagePrimitive::AllGather, shrunk(order, k));
            }
        }
        CollectiveKind::ReduceScatter => {
            for (k, &d) in order.iter().enumerate() {
                hand(d, CollectiveStagePrimitive::ReduceScatter, shrunk(order, k));
            }
        }
        CollectiveKind::AllGather => {
            for (k, &d) in order.iter().enumerate().rev() {
                hand(d, CollectiveStagePrimitive::AllGather, shrunk(order, k));
            }
        }
        CollectiveKind::AllToAll => {
            for &d in order {
                hand(d, CollectiveStagePrimitive::AllToAll, whole);
            }
        }
        CollectiveKind::Barrier => inward(CollectiveStagePrimitive::AllGather),
        CollectiveKind::Broadcast => inward(CollectiveStagePrimitive::Broadcast),
        CollectiveKind::Scatter => inward(CollectiveStagePrimitive::Scatter),
        CollectiveKind::Reduce => {
            for &d in identity {
                hand(d, CollectiveStagePrimitive::Reduce, whole);
            }
        }
        CollectiveKind::Gather => {
            for &d in identity {
                hand(d, CollectiveStagePrimitive::Gather, outside(d));
            }
        }
    }
}

/// A member's position in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberLinePosition {
    /// Number of members in the line, at least 2.
    pub size: u32,
    /// Index of this member in the line.
    pub index: u32,
    /// The root's index in the line, or 0 if there is no root.
    pub root: u32,
    /// Position of this member in the extent. Used only by algorithms that treat lines differently.
    pub position: u32,
}

impl MemberLinePosition {
    /// Finds the line in `phase` of the member at `position`, and returns the member's place in it. `root` is the
    /// position of the collective's root. Returns `None` if the member's line takes no part in this stage. A line
    /// consists of members that differ only in their index in one phase. In a rooted collective, a line takes part only
    /// if its indices in all inner phases equal the root's; other lines neither have nor need data.
    pub fn new(
        extent: &GroupPhasesAndMemberPositions,
        stage: &CollectiveStage,
        position: Position,
        root: Position,
    ) -> Option<Self> {
        let phase = &extent.phases[stage.phase];
        // A position modulo this phase's stride combines the indices in all inner phases.
        if stage.primitive.has_root() && position.0 % phase.stride != root.0 % phase.stride {
            return None;
        }
        Some(Self {
            size: phase.size,
            index: phase.member_index_in_dimension(position),
            root: phase.member_index_in_dimension(root),
            position: position.0,
        })
    }

    /// Returns the same member's position, counted from the other end of the line. The opposite direction of a ring
    /// then becomes the direction to the next index.
    #[inline]
    pub fn reversed(self) -> Self {
        Self {
            size: self.size,
            index: self.size - 1 - self.index,
            root: self.size - 1 - self.root,
            ..self
        }
    }
}

/// One step of a member: a message, and the conditions for sending it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendStepWithConditions {
    /// The receiver's index in the line.
    pub to: u32,
    /// Size of the message.
    pub amount: UnroundedBufferShare,
    /// Number of credits that this step requires. A member starts with its initial credits, and earns one for each
    /// message of this stage that it has received and processed.
    pub after: u32,
    /// Number of messages of this stage that must have arrived, in addition to the credits.
    pub arrived: u32,
    /// Number of steps that the receiver must have taken before it posts the receive for this message.
    pub recv_posted: u32,
}
