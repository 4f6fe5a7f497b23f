//! Text workloads of SimAI and its generator AICB: the layers of a transformer with their times and collectives, for all NPUs
//! alike, and the degrees of its parallelism.
//!
//! A pass is that of SimAI's own loop. Forward, each layer computes and then exchanges; nothing goes on before that ends.
//! Backward, from the last layer, the gradient of the input does the same, and then that of the weights computes and begins
//! its collective, for which only the same layer of the next pass waits. Times are nanoseconds.

use chakram_trace::format::CollectiveKind;
use std::collections::BTreeSet;

mod emit;
mod grid;
mod parse;

pub use grid::{GroupRole, RankGrid};

/// Words that begin such a file.
const KINDS: [&str; 2] = ["HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER"];

/// A workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimaiWorkload {
    /// Word of its first line.
    pub kind: &'static str,
    /// NPUs of a tensor-parallel group.
    pub tensor: u32,
    /// Pipeline stages.
    pub pipeline: u32,
    /// NPUs of an expert-parallel group.
    pub expert: u32,
    /// Number of NPUs, unless the file leaves it open.
    pub npus: Option<u32>,
    /// The layers; at least one.
    pub layers: Vec<SimaiLayer>,
    /// Layers whose inputs are kept.
    checkpoints: BTreeSet<usize>,
    /// Layers before whose backward pass those behind the last checkpoint are computed again.
    recomputing: BTreeSet<usize>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimaiLayer {
    /// Name, a word.
    pub name: String,
    /// Forward.
    pub forward: SimaiStage,
    /// Gradient of the input.
    pub input_gradient: SimaiStage,
    /// Gradient of the weights.
    pub weight_gradient: SimaiStage,
}

/// One stage of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimaiStage {
    /// Compute time.
    pub ns: u64,
    /// Collective behind it, unless it has none or of no bytes.
    pub comm: Option<SimaiComm>,
}

/// Collective of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimaiComm {
    /// The operation.
    pub kind: CollectiveKind,
    /// Groups that carry it out.
    pub role: GroupRole,
    /// Bytes of the whole buffer, which an all-gather ends with and a reduce-scatter begins with.
    pub bytes: u64,
}
