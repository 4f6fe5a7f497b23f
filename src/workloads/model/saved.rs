//! Activations that operators save for the backward pass.
//!
//! In a forward pass, each operator saves the data for its gradients that no other operator saves:
//! its input (its output is the next operator's input) and data of its own, such as dropout masks.
//! Therefore, saved bytes can be summed over operators.
//!
//! For a transformer block with h columns, a heads, s tokens and 2 bytes per element, the sum is `s
//! h (34 + 5 a s / h)` of Korthikanti et al., "Reducing Activation Recomputation in Large
//! Transformer Models" (2022), equation 1, operator by operator as in their section 4.1. As in
//! Korthikanti et al., means and variances of norms do not count, and token ids do not count,
//! because they are the sample itself.
//!
//! One kind of tensor is counted twice: a ResNet block that changes the number of channels has two
//! convolutions on one input, and both count this input.

use super::count::sum;
use super::{LayerOperator, Model, ModelLayer, OperatorKind};

impl OperatorKind {
    /// Returns the bytes kept from the forward pass of one sample for its backward pass, with
    /// `element` bytes per element.
    ///
    /// `fused` attention never writes scores to memory (FlashAttention): it keeps a number of 4 bytes per row of scores
    /// instead.
    pub fn saved_bytes(&self, element: u64, fused: bool) -> u64 {
        self.spec().kept_bytes(element, fused)[0]
    }
}

impl LayerOperator {
    /// Bytes kept for the backward pass of one sample, as in [`OperatorKind::saved_bytes`].
    pub fn saved_bytes(&self, element: u64, fused: bool) -> u64 {
        self.work.saved_bytes(element, fused)
    }
}

impl ModelLayer {
    /// Bytes kept for the backward pass of one sample, as in [`OperatorKind::saved_bytes`].
    pub fn saved_bytes(&self, element: u64, fused: bool) -> u64 {
        sum(self.operators.iter().map(|o| o.saved_bytes(element, fused)))
    }
}

impl Model {
    /// Bytes kept for the backward pass of one sample, as in [`OperatorKind::saved_bytes`].
    pub fn saved_bytes(&self, element: u64, fused: bool) -> u64 {
        self.over_layers(|layer| layer.saved_bytes(element, fused))
    }
}
