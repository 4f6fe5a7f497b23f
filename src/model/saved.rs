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

use super::count::{product, sum};
use super::{ActivationFunction, LayerOperator, Model, ModelLayer, OperatorKind};

/// Bytes of an element of a mask, and of a number that stays in full precision.
const MASK: u64 = 1;
const FULL: u64 = 4;

impl OperatorKind {
    /// Bytes kept from the forward pass of one sample for its backward pass, with `element` bytes an element.
    ///
    /// Attention is `fused` where scores never reach memory (FlashAttention): a number of 4 bytes for each row of
    /// them is kept in their place.
    pub fn saved_bytes(&self, element: u64, fused: bool) -> u64 {
        let input = product(&[self.input_elements(), element]);
        match *self {
            Self::Linear { .. }
            | Self::Norm { .. }
            | Self::Convolution { .. }
            | Self::Pool { .. }
            | Self::Interaction { .. } => input,
            // Its output, which the next operator saves as its input, shows where the input was negative.
            Self::Activation {
                function: ActivationFunction::Relu,
                gated: false,
                ..
            } => 0,
            Self::Activation { .. } => input,
            Self::Attention { tokens, heads, .. } if fused => {
                sum([input, product(&[heads, tokens, FULL])])
            }
            // The softmax's output; with dropout also the mask, and the masked output.
            Self::Attention {
                tokens,
                heads,
                dropout,
                ..
            } => {
                let each = if dropout {
                    sum([element, MASK, element])
                } else {
                    element
                };
                sum([input, product(&[heads, tokens, tokens, each])])
            }
            Self::Residual { dropout: true, .. } => product(&[self.output_elements(), MASK]),
            // Logits are kept in full precision, whatever the rest.
            Self::Loss { .. } => product(&[self.input_elements(), FULL]),
            Self::Residual { dropout: false, .. }
            | Self::Embedding { .. }
            | Self::EmbeddingBag { .. } => 0,
        }
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
        sum(self.layers.iter().map(|l| l.saved_bytes(element, fused)))
    }
}
