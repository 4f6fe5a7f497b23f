//! Reads text workloads of SimAI and of its generator AICB. A workload contains the degrees of parallelism, and a
//! transformer's layers with their times and collectives. All NPUs have the same layers.
//!
//! One pass corresponds to one pass of SimAI's own loop. In the forward pass, each layer first computes and then
//! communicates. After that, the next layer starts. The backward pass goes from the last layer to the first. An
//! input-gradient stage computes and communicates in the same way. Then the weight gradient is computed and its
//! collective starts. Only the same layer of the next pass waits for this collective. Times are in nanoseconds.

use crate::words::IgnoredWords;
use chakram_trace::format::CollectiveKind;
use std::collections::BTreeSet;

mod emit;
mod grid;
mod parse;

pub use grid::{RankGroupGrid, RankGroupParallelism};

/// First words of SimAI's files, one for each kind of workload.
const KINDS: [&str; 2] = ["HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER"];

/// A workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimaiWorkload {
    /// First word of the file, which names the kind of workload.
    pub kind: &'static str,
    /// Size of a tensor-parallel group.
    pub tensor: u32,
    /// Number of pipeline stages.
    pub pipeline: u32,
    /// Size of an expert-parallel group.
    pub expert: u32,
    /// Number of NPUs, or `None` if the file does not state it.
    pub npus: Option<u32>,
    /// The layers, at least one.
    pub layers: Vec<SimaiLayer>,
    /// Indices of the layers whose inputs are kept (activation checkpoints).
    checkpoints: BTreeSet<usize>,
    /// Indices of the layers that require recomputation: before the backward pass of such a layer, all layers since the
    /// last checkpoint run again.
    recomputing: BTreeSet<usize>,
    /// Words of the file that have no effect.
    pub ignored: IgnoredWords,
}

/// One layer of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimaiLayer {
    /// Name of the layer, a single word.
    pub name: String,
    /// Forward stage.
    pub forward: SimaiStage,
    /// Input-gradient stage.
    pub input_gradient: SimaiStage,
    /// Weight-gradient stage.
    pub weight_gradient: SimaiStage,
}

/// One stage of a layer: its compute time and its collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimaiStage {
    /// Compute time, in ns.
    pub ns: u64,
    /// Collective after the compute; `None` if there is none, or if it has zero bytes.
    pub comm: Option<SimaiComm>,
}

/// Collective of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimaiComm {
    /// Kind of the collective.
    pub kind: CollectiveKind,
    /// Role of the groups that execute the collective.
    pub role: RankGroupParallelism,
    /// Size of the whole buffer in bytes: the output of an all-gather, or the input of a reduce-scatter.
    pub bytes: u64,
}
