//! Describes where a step's times come from, for reports.

use super::super::model_sizes::ModelBlockKindWithCount;
use super::super::rules::InputQuantizingKernels;
use super::attention::{DECODE_MEMORY, LATENT_MEMORY, LATENT_PEAK};
use super::expert_kernels::ExpertKernelTimingConstants;
use super::products::WEIGHT_ONLY_PEAK;
use super::{
    HOST_REQUEST, HOST_STEP, ServedModelNumberFormats, StepTimeCalculator, name_of_format,
};
use chakram_base::dtype::Dtype;
use chakram_base::units::{format_percent, format_thousands};
use chakram_workloads::model::DELTA_CHUNK;

impl StepTimeCalculator {
    /// Describes where the times come from for products whose weights have the format `weights`, outside experts or in
    /// experts.
    fn describe_product_time_basis(&self, weights: Dtype, in_experts: bool) -> Vec<String> {
        let computes_in = self.compute_format_for_weights(weights);
        let mut all = Vec::new();
        if computes_in != weights {
            all.push(format!(
                "weights in {} are read as such, and products computed in {}, at most at {} of its peak rate (an assumption)",
                name_of_format(weights),
                name_of_format(computes_in),
                format_percent(WEIGHT_ONLY_PEAK)
            ));
        }
        let known = self.class.curves.gemm[computes_in as usize].is_some();
        all.push(format!(
            "products in {}: {}",
            name_of_format(computes_in),
            match known {
                true if in_experts && computes_in == Dtype::Fp4 && self.prices_fp4_by_fp8() => {
                    "curve of FP8 with 9/16 of its columns, because the curve of FP4 contains the quantization of activations"
                }
                true => "fitted curve of the machine",
                false => "roofline at the peak rates, a lower bound",
            }
        ));
        all
    }

    /// Describes where the times of the experts' products come from.
    fn describe_expert_time_basis(&self, curve: ExpertKernelTimingConstants) -> String {
        let [memory, peak] = curve.memory_and_peak_fractions();
        let weights = self.formats.experts;
        format!(
            "experts with weights in {}: an engine's kernels as measured on H100, up to {} of the memory's bandwidth and {} of the \
             peak rate of {}",
            name_of_format(weights),
            format_percent(memory),
            format_percent(peak),
            name_of_format(self.expert_compute_format()),
        )
    }

    /// Describes the kernels that quantize the inputs of products in FP8 and FP4; `None` if there are no such products.
    fn describe_input_quantization_kernels(&self) -> Option<String> {
        let is_narrow = |format| matches!(format, Dtype::Fp8 | Dtype::Fp4);
        if self.formats.has_block_scales {
            return Some(
                "scales per block: a kernel before each product in fp8 quantizes its inputs"
                    .to_owned(),
            );
        }
        let which = match self.quantization {
            InputQuantizingKernels::Fused => "the kernels before them",
            InputQuantizingKernels::Attention => {
                "the kernels before them, after attention a kernel of its own"
            }
            InputQuantizingKernels::Separate => "kernels of their own",
        };
        is_narrow(self.compute_format_for_weights(self.formats.weights)).then(|| {
            format!(
                "inputs of products in {} are quantized by {which}",
                name_of_format(self.formats.weights)
            )
        })
    }

    /// Describes where all times come from.
    pub fn describe_basis(&self) -> Vec<String> {
        let curves = &self.class.curves;
        let mut all = Vec::new();
        let ServedModelNumberFormats {
            weights, experts, ..
        } = self.formats;
        all.extend(self.describe_product_time_basis(weights, false));
        let measured = self.expert_kernels.filter(|_| self.sizes.has_experts());
        match measured {
            Some(curve) => all.push(self.describe_expert_time_basis(curve)),
            None if self.sizes.has_experts() && (experts != weights || experts == Dtype::Fp4) => {
                all.extend(self.describe_product_time_basis(experts, true));
            }
            None => {}
        }
        let known = curves.attention[Dtype::Bf16 as usize].is_some();
        all.push(format!(
            "attention: {}",
            if known {
                "fitted curves of the machine"
            } else {
                "roofline at the peak rates, a lower bound"
            }
        ));
        if self
            .sizes
            .kinds
            .iter()
            .any(|kind| kind.linear_attention_sizes().is_some())
        {
            all.push(format!(
                "linear attention: states of {} bytes a request on each NPU; prompts in chunks of {DELTA_CHUNK} tokens at the roofline, a lower bound; prefixes are not cached",
                format_thousands(self.sizes.linear_attention_state_bytes(self.npus))
            ));
        }
        let of = self
            .sizes
            .kinds
            .iter()
            .filter_map(ModelBlockKindWithCount::attention_sizes);
        if of.clone().any(|attention| attention.latent.is_some()) {
            all.push(format!(
                "attention of one token over latent vectors: {} of the memory's bandwidth or {} of the peak rate, as on H100",
                format_percent(LATENT_MEMORY),
                format_percent(LATENT_PEAK)
            ));
        }
        if of.clone().any(|attention| attention.window.is_some()) {
            all.push(
                "windows: steps read only the window; blocks keep all tokens, as in vLLM without its hybrid manager"
                    .to_owned(),
            );
        }
        let curve = curves.attention[Dtype::Bf16 as usize].as_ref();
        if curve.is_some_and(|curve| curve.decode.is_none()) {
            all.push(format!(
                "attention of one token: {} of the memory's bandwidth, as on H100; it was not measured on this machine",
                format_percent(DECODE_MEMORY)
            ));
        }
        if self.ranks > 1 {
            all.push(format!(
                "{} ranks in lockstep: each step lasts as long as the slowest rank; they gather all tokens for the experts and \
                 scatter the sums",
                self.ranks
            ));
        }
        if self.npus > 1 {
            let kernels = match self.fuses_norms_into_all_reduces() {
                true => "TensorRT-LLM's kernels with the norm after them, as measured on H100",
                false => "vLLM's own kernels as measured",
            };
            let times = match self.all_reduce.own.is_empty() {
                true => "the machine's collectives".to_owned(),
                false => format!(
                    "{kernels}{} up to 4 MiB, the machine's collectives above 4 MiB",
                    self.all_reduce.describe_conversion()
                ),
            };
            all.push(format!("all-reduces among {}: {times}", self.npus));
        }
        all.extend(self.describe_launches());
        all.extend(self.describe_input_quantization_kernels());
        all.push(format!(
            "host: {HOST_STEP} a step and {HOST_REQUEST} a request (inference-sim's fit to vLLM 0.15 on H100); gaps of {}",
            self.gap
        ));
        all
    }
}
