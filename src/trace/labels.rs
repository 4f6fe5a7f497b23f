//! What people want to know of a node and no replay needs.

use std::fmt;

/// Which part of a training step or a request a node belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Phase {
    /// The forward pass.
    Forward,
    /// The backward pass.
    Backward,
    /// A part of the forward pass that is run again for the backward pass.
    Recompute,
    /// Reducing gradients, gathering parameters.
    Synchronize,
    /// The optimizer's step.
    Optimizer,
}

impl Phase {
    /// Every phase with the name it has in files.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Forward, "forward"),
        (Self::Backward, "backward"),
        (Self::Recompute, "recompute"),
        (Self::Synchronize, "synchronize"),
        (Self::Optimizer, "optimizer"),
    ];
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// Where in its job a node belongs; what is not known or makes no sense is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Labels<'a> {
    /// Which part of a step.
    pub phase: Option<Phase>,
    /// The stage of the pipeline, from 0.
    pub stage: Option<u32>,
    /// The micro-batch, from 0.
    pub micro_batch: Option<u32>,
    /// The layer, from 0 over the whole model.
    pub layer: Option<u32>,
    /// Shapes of its arguments as PyTorch writes them, `[[4096, 12288], [12288, 36864]]`; empty when unknown.
    pub inputs: &'a str,
    /// Shapes of its results.
    pub outputs: &'a str,
}
