//! Model FLOPs of a step. Model FLOPs utilization (MFU) is their rate divided by the peak rate.
//!
//! A multiplication in the forward pass counts as two FLOPs. In the backward pass, it counts as two FLOPs for each
//! factor that needs a gradient. Recomputation does not count, as in Chowdhery et al., "PaLM", 2022, appendix B, and
//! Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, section 6 and appendix A:
//!
//! | operator of `m` multiplications | forward | backward |
//! |---|---|---|
//! | product with weights | `2m` | `2m` for the weights, and `2m` for the input unless it is the job's data |
//! | product with frozen weights | `2m` | `2m` for the input unless it is the job's data |
//! | product of two results: attention, interaction | `2m` | `4m` |
//!
//! For attention, `m` is the number of multiplications that the kernels execute. With a causal mask, a fused kernel
//! computes `s (s + 1) / 2` token pairs for a sequence of `s` tokens. Unfused kernels compute `s s` pairs. Publications
//! count `s s` for both. A fused backward kernel may recompute scores, which count only as hardware FLOPs. Operators
//! that the plan omits do not count.
//!
//! The ranks' kernels execute at least the model FLOPs. The additional FLOPs come from padded heads, replicated
//! operators, and recomputation.

use super::TrainingGenerator;
use super::frozen_weights::adapter_products;
use crate::model::{LayerOperator, TrainedOperatorWeights};
use chakram_trace::format::work_amounts::CountedAttentionPairs;

impl TrainingGenerator {
    /// Returns the model FLOPs of a step, per sample.
    pub(super) fn model_flops(&self) -> u128 {
        let layers = self.model.layers.iter().enumerate();
        let operators = layers.flat_map(|(i, layer)| {
            let gradients = &self.lowered_layer(i).input_gradients;
            layer.operators.iter().zip(gradients)
        });
        let each = operators.filter_map(|(operator, gradient)| {
            let products = 1 + self.backward_products_per_forward(operator, (*gradient)?);
            let own = 2 * products * u128::from(self.forward_multiplications_of_operator(operator));
            let adapter = adapter_products(operator.training, &operator.work);
            let of_adapter = adapter.iter().flatten();
            let of_adapter = of_adapter.map(|work| 6 * u128::from(work.multiplication_count()));
            Some(of_adapter.fold(own, u128::saturating_add))
        });
        each.fold(0, u128::saturating_add)
    }

    /// Number of multiplications that the forward kernels of `operator` execute per sample.
    fn forward_multiplications_of_operator(&self, operator: &LayerOperator) -> u64 {
        let skipped = match self.sizes.fused {
            true => operator.work.causally_skipped_multiplications(),
            false => 0,
        };
        operator.work.multiplication_count() - skipped
    }

    /// Number of backward matrix products per forward product of `operator`.
    fn backward_products_per_forward(
        &self,
        operator: &LayerOperator,
        input_gradient: bool,
    ) -> u128 {
        let spec = operator.work.to_axes_and_tensors();
        let has_weights = !spec.weights.is_empty();
        match (
            self.plan.has_training(),
            has_weights && !spec.is_attention(),
        ) {
            (false, _) => 0,
            (true, true) => {
                let of_weights = operator.training == TrainedOperatorWeights::All;
                u128::from(of_weights) + u128::from(input_gradient)
            }
            // If both factors of a matrix product are results of other operators, either both need gradients or neither
            // does. The gains of attention's norms also have gradients, which depend on the gradients of both factors.
            (true, false) => 2 * u128::from(input_gradient || has_weights),
        }
    }

    /// Returns the kind of token pairs that count as model FLOPs; `None` without attention.
    pub(super) fn counted_attention_kind(&self) -> Option<CountedAttentionPairs> {
        let operators = self
            .model
            .equal_layer_runs()
            .flat_map(|run| &run[0].operators);
        let mut attention = operators
            .filter(|one| one.work.to_axes_and_tensors().is_attention())
            .peekable();
        attention.peek()?;
        let fused = self.plan.attention.is_fused();
        let skips = attention.any(|one| one.work.causally_skipped_multiplications() > 0);
        Some(match fused && skips {
            true => CountedAttentionPairs::Causal,
            false => CountedAttentionPairs::Full,
        })
    }
}
