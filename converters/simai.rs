//! Text workloads of SimAI and its generator AICB: the layers of a transformer with their times and collectives,
//! identical for all NPUs, and the degrees of parallelism.
//!
//! A pass follows SimAI's own loop. Forward, each layer computes and then communicates; the next layer starts after
//! that. Backward, from the last layer, the input gradient does the same. Then the weight gradient computes and starts
//! its collective; only the same layer of the next pass waits for it. Times are nanoseconds.

use chakram_trace::format::CollectiveKind;
use std::collections::BTreeSet;

mod emit;
mod grid;
mod parse;

pub use grid::{GroupRole, RankGrid};

/// First words of such files.
const KINDS: [&str; 2] = ["HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER"];

/// A workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimaiWorkload {
    /// First word of its first line.
    pub kind: &'static str,
    /// Size of a tensor-parallel group.
    pub tensor: u32,
    /// Pipeline stages.
    pub pipeline: u32,
    /// Size of an expert-parallel group.
    pub expert: u32,
    /// Number of NPUs; `None` if the file does not state it.
    pub npus: Option<u32>,
    /// The layers; at least one.
    pub layers: Vec<SimaiLayer>,
    /// Layers whose inputs are kept (activation checkpoints).
    checkpoints: BTreeSet<usize>,
    /// Layers before whose backward pass the layers since the last checkpoint are recomputed.
    recomputing: BTreeSet<usize>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimaiLayer {
    /// Name, a single word.
    pub name: String,
    /// Forward stage.
    pub forward: SimaiStage,
    /// Input-gradient stage.
    pub input_gradient: SimaiStage,
    /// Weight-gradient stage.
    pub weight_gradient: SimaiStage,
}

/// One stage of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimaiStage {
    /// Compute time, ns.
    pub ns: u64,
    /// Collective that follows; `None` also for zero bytes.
    pub comm: Option<SimaiComm>,
}

/// Collective of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimaiComm {
    /// The operation.
    pub kind: CollectiveKind,
    /// Role of the groups that carry it out.
    pub role: GroupRole,
    /// Bytes of the whole buffer: the output of an all-gather, the input of a reduce-scatter.
    pub bytes: u64,
}
