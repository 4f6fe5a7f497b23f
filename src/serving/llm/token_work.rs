//! Computes how much work one NPU does per token, for formulas and bounds that do not use kernel times.

use super::super::error::ServeError;
use super::deployment::EngineModelNpusAndMemory;
use super::model_sizes::LlmModelSizes;
use super::scenario::FORMATS;
use super::step_cost::expected_active_experts;
use chakram_base::dtype::Dtype;
use chakram_hardware::machine::NpuClass;

/// How many bytes of weights a step reads, how many weights a token uses, and how many blocks there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightBytesAndActiveWeights {
    /// Bytes of weights that each NPU reads per step. Only experts that receive tokens count.
    pub weight_bytes: f64,
    /// Number of weights in the whole model that one token uses.
    pub active: f64,
    /// Number of blocks.
    pub layers: f64,
    format: Dtype,
}

impl WeightBytesAndActiveWeights {
    /// Returns the work of `model` on the NPUs that `place` describes, in steps of `batch` tokens.
    ///
    /// # Errors
    ///
    /// Fails if there is no such model, or if the model cannot be served.
    pub fn new(
        model: &str,
        place: &EngineModelNpusAndMemory,
        batch: f64,
    ) -> Result<Self, ServeError> {
        let sizes = LlmModelSizes::load_by_name(model)?;
        let format_called = |named: &str| {
            let known = FORMATS.iter().find(|(_, name)| *name == named);
            known.map_or(Dtype::Bf16, |(format, _)| *format)
        };
        let format = format_called(&place.weights);
        let of_experts = place.expert_weights.as_deref();
        let of_experts = of_experts.map_or(format, format_called);
        let (mut unread, mut unused) = (0.0, 0.0);
        for kind in &sizes.kinds {
            for product in &kind.products {
                let Some([experts, chosen]) = product.experts else {
                    continue;
                };
                let [inputs, outputs] =
                    kind.product_inputs_and_outputs_per_npu(product, place.tensor);
                let touched =
                    expected_active_experts(experts, chosen, batch.max(1.0).round() as u64);
                let each = (inputs * outputs * kind.count) as f64;
                let unread_bytes = (experts - touched) as f64 * each * of_experts.element_bytes();
                unread += unread_bytes / f64::from(place.data_parallel);
                let whole = (product.inputs * product.outputs * kind.count) as f64;
                unused += (experts - chosen) as f64 * whole;
            }
        }
        Ok(Self {
            weight_bytes: place.memory.weights as f64 - unread,
            active: sizes.parameters as f64 - unused,
            layers: sizes.layers as f64,
            format,
        })
    }

    /// Returns an NPU's peak rate in FLOP/s in the weights' format. Falls back to BF16 if the NPU does not compute in
    /// this format; `None` if it computes in neither.
    pub fn peak_flops_in_weight_format(&self, class: &NpuClass) -> Option<f64> {
        let own = class.peaks.peak_rate_if_supported(self.format);
        own.or(class.peaks.peak_rate_if_supported(Dtype::Bf16))
            .map(|rate| rate.per_second())
    }
}
