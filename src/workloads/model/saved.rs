//! Activations that operators save for the backward pass.
//!
//! In a forward pass, each operator saves the data that its gradients need, unless another operator saves them. These
//! data are its input, and internal data such as dropout masks. It does not save its output, which is the next
//! operator's input. No tensor is therefore counted twice, and saved bytes can be summed over operators.
//!
//! A transformer block with h columns, a heads, s tokens and 2 bytes per element saves `s h (34 + 5 a s / h)` bytes
//! (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, equation 1). This module
//! adds these bytes up operator by operator, as section 4.1 of that paper does. As in Korthikanti et al., the means and
//! variances of norms do not count. Token ids do not count either, because they are part of the sample.
//!
//! Only one tensor is counted twice. In a ResNet block that changes the number of channels, two convolutions have the
//! same input, and both count it.

use super::count::saturating_sum;
use super::{LayerOperator, Model, ModelLayer, OperatorKind};

impl OperatorKind {
    /// Returns the bytes that the forward pass of one sample saves for the backward pass, with
    /// `element` bytes per element.
    ///
    /// Fused attention (FlashAttention), selected by `fused`, never writes scores to memory; instead, it saves 4 bytes
    /// per row of scores.
    pub fn saved_bytes(&self, element: u64, fused: bool) -> u64 {
        self.to_axes_and_tensors().kept_bytes(element, fused)[0]
    }
}

impl LayerOperator {
    /// Bytes that are saved for the backward pass of one sample, as in
    /// [`OperatorKind::saved_bytes`].
    pub fn saved_bytes(&self, element: u64, fused: bool) -> u64 {
        self.work.saved_bytes(element, fused)
    }
}

impl ModelLayer {
    /// Bytes that are saved for the backward pass of one sample, as in
    /// [`OperatorKind::saved_bytes`].
    pub fn saved_bytes(&self, element: u64, fused: bool) -> u64 {
        saturating_sum(self.operators.iter().map(|o| o.saved_bytes(element, fused)))
    }
}

impl Model {
    /// Bytes that are saved for the backward pass of one sample, as in
    /// [`OperatorKind::saved_bytes`].
    pub fn saved_bytes_per_sample(&self, element: u64, fused: bool) -> u64 {
        self.sum_over_layers(|layer| layer.saved_bytes(element, fused))
    }
}
