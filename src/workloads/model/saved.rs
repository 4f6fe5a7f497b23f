//! Activations that operators save for the backward pass.
//!
//! Each operator saves the data of its own gradients that no other operator saves already: its input, since its
//! output is the next one's input, and data that only it knows, such as dropout masks. So saved bytes can be summed.
//!
//! For a block of a transformer with h columns, a heads, s tokens and 2 bytes an element this is
//! `s h (34 + 5 a s / h)` of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models"
//! (2022), equation 1, operator by operator as their section 4.1 has it. As there, means and variances of norms
//! are left out; so are the numbers of tokens, which are the sample itself.
//!
//! One tensor is counted twice: a ResNet's block that changes the number of channels has two convolutions on one
//! input, and both count it.

use super::count::sum;
use super::{LayerOperator, Model, ModelLayer, OperatorKind};

impl OperatorKind {
    /// Bytes kept from the forward pass of one sample for its backward pass, with `element` bytes an element.
    ///
    /// Attention is `fused` where scores never reach memory (FlashAttention): a number of 4 bytes for each row of
    /// them is kept in their place.
    pub fn saved_bytes(&self, element: u64, fused: bool) -> u64 {
        self.spec().kept_bytes(element, fused)[0]
    }
}

impl LayerOperator {
    /// Bytes kept for the backward pass of one sample, as [`OperatorKind::saved_bytes`] has them.
    pub fn saved_bytes(&self, element: u64, fused: bool) -> u64 {
        self.work.saved_bytes(element, fused)
    }
}

impl ModelLayer {
    /// Bytes kept for the backward pass of one sample, as [`OperatorKind::saved_bytes`] has them.
    pub fn saved_bytes(&self, element: u64, fused: bool) -> u64 {
        sum(self.operators.iter().map(|o| o.saved_bytes(element, fused)))
    }
}

impl Model {
    /// Bytes kept for the backward pass of one sample, as [`OperatorKind::saved_bytes`] has them.
    pub fn saved_bytes(&self, element: u64, fused: bool) -> u64 {
        self.over_layers(|layer| layer.saved_bytes(element, fused))
    }
}
