//! Labels that show users where a node belongs in its job, such as the phase, stage and layer. Replays use only the
//! phase.

use std::fmt;

/// Phase of a training step or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum TrainingPhase {
    /// The forward pass.
    Forward,
    /// The backward pass.
    Backward,
    /// Recomputation of parts of the forward pass for the backward pass.
    Recompute,
    /// Reduction of gradients and gathering of parameters.
    Synchronize,
    /// The optimizer's step.
    Optimizer,
}

impl TrainingPhase {
    /// All phases with their names in files.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Forward, "forward"),
        (Self::Backward, "backward"),
        (Self::Recompute, "recompute"),
        (Self::Synchronize, "synchronize"),
        (Self::Optimizer, "optimizer"),
    ];

    /// Returns the phase called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        let named = Self::ALL.into_iter().find(|(_, known)| *known == name);
        named.map(|(phase, _)| phase)
    }
}

impl fmt::Display for TrainingPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// Labels that locate a node in its job; unknown or invalid values are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodePhaseStageLayerAndShapes<'a> {
    /// Phase of the step. It affects how long it takes to launch a kernel.
    pub phase: Option<TrainingPhase>,
    /// Pipeline stage, counting from 0.
    pub stage: Option<u32>,
    /// Micro-batch, counting from 0.
    pub micro_batch: Option<u32>,
    /// Layer, counted from 0 over the whole model.
    pub layer: Option<u32>,
    /// Shapes of the node's inputs in PyTorch's notation, such as `[[4096, 12288], [12288, 36864]]`; empty if unknown.
    pub inputs: &'a str,
    /// Shapes of the node's outputs in the same notation; empty if unknown.
    pub outputs: &'a str,
}
