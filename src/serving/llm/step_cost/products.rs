//! Computes how many seconds matrix products with weights take, for given formats and given numbers of experts that
//! receive tokens.

use super::super::model_sizes::{
    MatrixProductSplit, ModelBlockKindWithCount, ModelBlockMatrixProduct,
};
use super::super::rules::InputQuantizingKernels;
use super::StepTimeCalculator;
use super::expert_kernels::NpuRatesForExpertKernels;
use chakram_base::dtype::Dtype;
use chakram_base::kernel_shape::KernelShape;
use chakram_base::units::Span;
use chakram_hardware::compute::KernelTraceFacts;

/// Fraction of the peak rate that matrix products reach if their four-bit weights must first be converted (an
/// assumption).
pub(super) const WEIGHT_ONLY_PEAK: f64 = 0.7;

/// Time of the kernel that quantizes a product's input to four bits. The machines' curves of such products include it:
/// the shortest product takes 7.1 us instead of 1.9 us (B200; aiconfigurator, Apache-2.0).
const FP4_QUANTIZATION: Span = Span::from_ns(5200);

impl StepTimeCalculator {
    /// Returns the format in which products with `weights` weights are computed. This is the weights' own format,
    /// except that products with four-bit weights are computed in BF16 on NPUs without four-bit arithmetic.
    pub(super) fn compute_format_for_weights(&self, weights: Dtype) -> Dtype {
        match weights {
            Dtype::Fp4
                if self
                    .class
                    .peaks
                    .peak_rate_if_supported(Dtype::Fp4)
                    .is_none() =>
            {
                Dtype::Bf16
            }
            weights => weights,
        }
    }

    /// Returns true if a separate kernel quantizes the input of `product`, a product of `kind` outside experts whose
    /// weights have one scale per tensor.
    pub(super) fn has_separate_quantization_kernel(
        &self,
        kind: &ModelBlockKindWithCount,
        product: &ModelBlockMatrixProduct,
    ) -> bool {
        match self.quantization {
            InputQuantizingKernels::Fused => false,
            InputQuantizingKernels::Separate => true,
            InputQuantizingKernels::Attention => {
                // The first product that is divided by inputs follows attention.
                let divided =
                    |of: &&ModelBlockMatrixProduct| of.split == MatrixProductSplit::ByInputs;
                kind.products
                    .iter()
                    .find(divided)
                    .is_some_and(|first| std::ptr::eq(first, product))
            }
        }
    }

    /// Returns how many seconds a product outside experts takes. If `quantizes`, the time of a four-bit product
    /// includes the kernel that quantizes its input; kernels that quantize inputs to FP8 are counted elsewhere.
    pub(super) fn dense_product_seconds(&self, [m, n, k]: [u64; 3], quantizes: bool) -> f64 {
        let weights = self.formats.weights;
        let has_curve = self.class.curves.gemm[Dtype::Fp4 as usize].is_some();
        if self.compute_format_for_weights(weights) != Dtype::Fp4 || !has_curve {
            return self.weight_product_seconds([1, m, n, k], weights);
        }
        let measured = self.kernel_seconds(gemm_kernel_facts_from_sizes([1, m, n, k], Dtype::Fp4));
        match quantizes {
            true => measured,
            false => measured - FP4_QUANTIZATION.as_seconds() * self.class.slowdown,
        }
    }

    /// Returns true if the times of four-bit products come from the FP8 curve.
    pub(super) fn prices_fp4_by_fp8(&self) -> bool {
        let known = |format: Dtype| self.class.curves.gemm[format as usize].is_some();
        known(Dtype::Fp4) && known(Dtype::Fp8)
    }

    /// Returns how many seconds a product of activations with `weights` weights takes.
    pub(super) fn weight_product_seconds(&self, [batch, m, n, k]: [u64; 4], weights: Dtype) -> f64 {
        let format = self.compute_format_for_weights(weights);
        if format == Dtype::Fp4 && self.prices_fp4_by_fp8() {
            // The measured FP4 curve includes the kernel that quantizes the activations, but engines fuse it into the
            // preceding kernel. Without quantization, a product reads 9/16 of the bytes of an FP8 product and computes
            // at twice the rate.
            let columns = (n * 9).div_ceil(16);
            return self.kernel_seconds(gemm_kernel_facts_from_sizes(
                [batch, m, columns, k],
                Dtype::Fp8,
            ));
        }
        if format == weights {
            return self.kernel_seconds(gemm_kernel_facts_from_sizes([batch, m, n, k], format));
        }
        // The kernel reads 0.5625 bytes per weight instead of 2, and does the same multiplications.
        let narrow = self.kernel_seconds(gemm_kernel_facts_from_sizes(
            [batch, m, (n * 9).div_ceil(32), k],
            format,
        ));
        let flops = 2.0 * batch as f64 * m as f64 * n as f64 * k as f64;
        let peak = self.class.peaks.peak_rate_if_supported(format);
        peak.map_or(narrow, |peak| {
            narrow.max(flops / (WEIGHT_ONLY_PEAK * peak.per_second()) * self.class.slowdown)
        })
    }

    /// Returns how many seconds a product of several experts takes; `sizes` are the number of experts and, for each
    /// expert, its rows, its columns, and the size of the dimension that the product sums over.
    pub(super) fn expert_product_seconds(&self, sizes: [u64; 4]) -> f64 {
        let weights = self.formats.experts;
        let computes_in = self.expert_compute_format();
        let rates = self
            .class
            .peaks
            .peak_rate_if_supported(computes_in)
            .zip(self.class.memory_bandwidth());
        let Some((curve, (peak, memory))) = self.expert_kernels.zip(rates) else {
            return self.weight_product_seconds(sizes, weights);
        };
        let rates = NpuRatesForExpertKernels {
            peak: peak.per_second(),
            bandwidth: memory.bytes_per_second(),
            weight: weights.element_bytes(),
            input: computes_in.element_bytes(),
        };
        curve.product_seconds(sizes, rates) * self.class.slowdown
    }

    /// Returns the format in which experts are computed.
    pub(super) fn expert_compute_format(&self) -> Dtype {
        match self.expert_kernels {
            Some(curve) if curve.converts_weights() => Dtype::Bf16,
            _ => self.compute_format_for_weights(self.formats.experts),
        }
    }

    /// Returns how many expert products an NPU computes and, for each product, its rows, its columns, and the size of
    /// the summed dimension. A step has `tokens` tokens, and at most `padded` tokens per rank.
    pub(super) fn expert_product_sizes(
        &self,
        kind: &ModelBlockKindWithCount,
        product: &ModelBlockMatrixProduct,
        [experts, chosen]: [u64; 2],
        [tokens, padded]: [u64; 2],
    ) -> [u64; 4] {
        let touched = expected_active_experts(experts, chosen, tokens);
        let gathered = padded * u64::from(self.ranks);
        let rows = (gathered * chosen).div_ceil(touched);
        if !self.has_whole_experts {
            let [k, n] = kind.product_inputs_and_outputs_per_npu(product, self.npus);
            return [touched, rows, n, k];
        }
        // Divide the active experts among the NPUs, because each NPU has whole experts.
        let own = touched.div_ceil(u64::from(self.npus * self.ranks));
        [own, rows, product.outputs, product.inputs]
    }
}

/// Returns the expected number of experts that receive at least one of `tokens` tokens. Each token goes to `chosen` of
/// `experts` experts, all of which are equally likely.
pub(in super::super) fn expected_active_experts(experts: u64, chosen: u64, tokens: u64) -> u64 {
    let all = experts as f64;
    let (mut none, mut each, mut left) = (1.0, 1.0 - chosen as f64 / all, tokens);
    // Compute the power by repeated squaring.
    while left > 0 {
        if left % 2 == 1 {
            none *= each;
        }
        each *= each;
        left /= 2;
    }
    ((all * (1.0 - none)).round() as u64).clamp(1, experts)
}

pub(super) fn gemm_kernel_facts_from_sizes(
    [batch, m, n, k]: [u64; 4],
    format: Dtype,
) -> KernelTraceFacts<'static> {
    let bytes =
        format.element_bytes() * (batch * (m * k + n * k)) as f64 + 2.0 * (batch * m * n) as f64;
    KernelTraceFacts {
        flops: 2 * batch * m * n * k,
        bytes: bytes as u64,
        dtype: Some(format),
        shape: Some(KernelShape::Gemm { batch, m, n, k }),
        ..KernelTraceFacts::default()
    }
}
