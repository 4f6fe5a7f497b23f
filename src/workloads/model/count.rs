//! Counts weights, multiplications and elements of operators, and sums them over layers and models.

use super::spec::{TensorContraction, saturate_to_u64};
use super::{LayerOperator, Model, ModelLayer, OperatorKind};

/// Returns the sum of `terms`, saturated at `u64::MAX`.
pub(super) fn saturating_sum(terms: impl IntoIterator<Item = u64>) -> u64 {
    terms.into_iter().fold(0, u64::saturating_add)
}

impl OperatorKind {
    /// Number of weights. 0 if another operator owns the weights (tied weights).
    pub fn parameter_count(&self) -> u64 {
        saturate_to_u64(saturating_total(
            self.to_axes_and_tensors()
                .weight_gradient_element_counts(false),
        ))
    }

    /// Number of multiplications in matrix products, in the forward pass of one sample.
    /// Element-wise work does not count, because publications usually omit it. Attention counts all
    /// token pairs, even under a causal mask.
    pub fn multiplication_count(&self) -> u64 {
        let spec = self.to_axes_and_tensors();
        let products = spec.products.iter().filter(|one| one.multiplies);
        let each = |one: &TensorContraction| {
            spec.tensor_element_count(one.result)
                .saturating_mul(spec.tensor_element_count(one.over))
        };
        saturate_to_u64(saturating_total(products.map(each)))
    }

    /// The part of [`multiplications`](Self::multiplication_count) that a causal kernel skips: products of tokens with
    /// later tokens, which are `s (s - 1) / 2` of `s s` pairs.
    pub fn causally_skipped_multiplications(&self) -> u64 {
        let spec = self.to_axes_and_tensors();
        let products = spec.products.iter().filter(|one| !one.skipped.is_empty());
        saturate_to_u64(saturating_total(
            products.map(|one| spec.tensor_element_count(one.skipped)),
        ))
    }

    /// Number of elements per token in the KV cache: either the token's keys and values, or the latent vector and the
    /// rotary key from which they are computed.
    pub fn kv_cache_elements_per_token(&self) -> u64 {
        match *self {
            Self::Attention {
                kv_heads, width, ..
            } => kv_heads.saturating_mul(width).saturating_mul(2),
            Self::ShapedAttention { latent, turned, .. } if latent > 0 => {
                latent.saturating_add(turned)
            }
            Self::ShapedAttention {
                kv_heads,
                width,
                value_width,
                ..
            } => kv_heads.saturating_mul(width.saturating_add(value_width)),
            _ => 0,
        }
    }

    /// Bytes that linear attention stores per sequence; 0 for other operators. Each value head
    /// stores its state, and the convolution stores its last inputs with `number` bytes per value.
    pub fn sequence_state_bytes(&self, number: u64) -> u64 {
        match self {
            Self::LinearAttention { sizes, .. } => {
                sizes.state_and_convolution_bytes_per_npu(1, number)
            }
            _ => 0,
        }
    }

    /// Number of multiplications for each pair of a decoded token and an earlier token: query times key, and score
    /// times value. With latent vectors, heads multiply directly by these vectors, because the up-projections are
    /// merged into the queries and the weighted sums.
    pub fn multiplications_per_decode_pair(&self) -> u64 {
        let [heads, keys, values] = match *self {
            Self::Attention { heads, width, .. } => [heads, width, width],
            Self::ShapedAttention {
                heads,
                latent,
                turned,
                ..
            } if latent > 0 => [heads, latent.saturating_add(turned), latent],
            Self::ShapedAttention {
                heads,
                width,
                value_width,
                ..
            } => [heads, width, value_width],
            _ => [0; 3],
        };
        heads.saturating_mul(keys.saturating_add(values))
    }

    /// Number of weights in look-up tables.
    ///
    /// LIGHTSPEED's Table 5.2, and the simulator that computed it, count each of these weights as
    /// one multiplication per sample, as if a look-up were a product with a one-hot vector. The
    /// counts of GPT-2, BERT and DLRM in Table 5.2 are the sums of these weights and
    /// [`multiplications`](Self::multiplication_count). No published sizes explain the values of
    /// MegatronBERT (3.57e9) and DLRM (3.14e9) in Table 5.2.
    pub fn table_weights(&self) -> u64 {
        if self.to_axes_and_tensors().looks_up_table_rows() {
            self.parameter_count()
        } else {
            0
        }
    }

    /// Number of elements per sample that the operator reads from earlier operators or from the
    /// previous layer; for a look-up, the number of token ids.
    pub fn input_elements(&self) -> u64 {
        let spec = self.to_axes_and_tensors();
        saturate_to_u64(spec.sum_tensor_volumes(&spec.inputs))
    }

    /// Number of output elements per sample.
    pub fn output_elements(&self) -> u64 {
        let spec = self.to_axes_and_tensors();
        saturate_to_u64(spec.sum_tensor_volumes(&spec.outputs))
    }

    /// Number of rows of the output for operators with windows; 0 for all others.
    pub fn output_rows_of_windows(&self) -> u64 {
        self.to_axes_and_tensors().extent_of_axis('h')
    }
}

/// Returns the sum of `counts`, saturated at `u128::MAX`.
fn saturating_total(counts: impl Iterator<Item = u128>) -> u128 {
    counts.fold(0, u128::saturating_add)
}

impl LayerOperator {
    /// Number of weights.
    pub fn parameter_count(&self) -> u64 {
        self.work.parameter_count()
    }

    /// Number of multiplications in the forward pass of one sample.
    pub fn multiplication_count(&self) -> u64 {
        self.work.multiplication_count()
    }
}

impl ModelLayer {
    /// Number of weights, summed over the layer's operators.
    pub fn parameter_count(&self) -> u64 {
        saturating_sum(self.operators.iter().map(LayerOperator::parameter_count))
    }

    /// Number of multiplications in the forward pass of one sample.
    pub fn multiplication_count(&self) -> u64 {
        saturating_sum(
            self.operators
                .iter()
                .map(LayerOperator::multiplication_count),
        )
    }

    /// Number of multiplications that a kernel for causal attention skips.
    pub fn causally_skipped_multiplications(&self) -> u64 {
        let each = |operator: &LayerOperator| operator.work.causally_skipped_multiplications();
        saturating_sum(self.operators.iter().map(each))
    }

    /// Number of weights in look-up tables.
    pub fn table_weights(&self) -> u64 {
        saturating_sum(self.operators.iter().map(|o| o.work.table_weights()))
    }

    /// Number of elements per sample that the layer reads from the previous layer.
    pub fn input_elements(&self) -> u64 {
        let first = self.operators.first();
        first.map_or(0, |operator| operator.work.input_elements())
    }

    /// Number of output elements per sample.
    pub fn output_elements(&self) -> u64 {
        let last = self.operators.last();
        last.map_or(0, |operator| operator.work.output_elements())
    }
}

impl Model {
    /// Returns runs of consecutive, identical layers, in the model's order.
    pub fn equal_layer_runs(&self) -> impl Iterator<Item = &[ModelLayer]> {
        self.layers
            .chunk_by(|one, other| (one.role, &one.operators) == (other.role, &other.operators))
    }

    /// Sums a count over all layers; the sum saturates.
    pub(super) fn sum_over_layers(&self, count: impl Fn(&ModelLayer) -> u64) -> u64 {
        let each = |run: &[ModelLayer]| count(&run[0]).saturating_mul(run.len() as u64);
        saturating_sum(self.equal_layer_runs().map(each))
    }

    /// Number of weights.
    pub fn parameter_count(&self) -> u64 {
        self.sum_over_layers(ModelLayer::parameter_count)
    }

    /// Number of weights that one token uses: all weights except those of experts that the token does not choose.
    pub fn active_parameters(&self) -> u64 {
        let tokens = self.sequence.max(1);
        self.sum_over_layers(|layer| {
            saturating_sum(layer.operators.iter().map(|operator| match operator.work {
                OperatorKind::ExpertLinear { rows, experts, .. } => {
                    let each = operator.parameter_count() / experts.max(1);
                    each.saturating_mul(rows / tokens)
                }
                _ => operator.parameter_count(),
            }))
        })
    }

    /// Number of elements per token in the KV cache, summed over all layers.
    pub fn kv_cache_elements_per_token_in_all_layers(&self) -> u64 {
        self.sum_over_layers(|layer| {
            saturating_sum(
                layer
                    .operators
                    .iter()
                    .map(|o| o.work.kv_cache_elements_per_token()),
            )
        })
    }

    /// Bytes that linear attention stores per sequence, summed over all layers; activations have
    /// `number` bytes per value.
    pub fn linear_attention_bytes_per_sequence(&self, number: u64) -> u64 {
        self.sum_over_layers(|layer| {
            let each = layer.operators.iter();
            saturating_sum(each.map(|one| one.work.sequence_state_bytes(number)))
        })
    }

    /// Number of multiplications in the forward pass of one sample.
    pub fn multiplication_count(&self) -> u64 {
        self.sum_over_layers(ModelLayer::multiplication_count)
    }

    /// Number of multiplications that a kernel for causal attention skips.
    pub fn causally_skipped_multiplications(&self) -> u64 {
        self.sum_over_layers(ModelLayer::causally_skipped_multiplications)
    }

    /// Number of weights in look-up tables.
    pub fn table_weights(&self) -> u64 {
        self.sum_over_layers(ModelLayer::table_weights)
    }
}
