//! Computes the seconds of matrix products with weights, for given formats and numbers of experts that receive tokens.

use super::super::model_sizes::{EqualModelBlocks, ModelBlockMatrixProduct};
use super::StepTimeCalculator;
use chakram_base::dtype::Dtype;
use chakram_base::kernel_shape::KernelShape;
use chakram_hardware::compute::KernelTraceFacts;

/// Fraction of the peak rate that matrix products reach if their four-bit weights must first be converted (an
/// assumption).
pub(super) const WEIGHT_ONLY_PEAK: f64 = 0.7;

impl StepTimeCalculator {
    /// Returns the format in which products with `weights` weights are computed. It is the weights' own format, except
    /// that four-bit weights are computed in BF16 on NPUs without four-bit arithmetic.
    pub(super) fn compute_format(&self, weights: Dtype) -> Dtype {
        match weights {
            Dtype::Fp4 if self.class.peaks.get(Dtype::Fp4).is_none() => Dtype::Bf16,
            weights => weights,
        }
    }

    /// Returns true if the times of four-bit products come from the FP8 curve.
    pub(super) fn prices_fp4_by_fp8(&self) -> bool {
        let known = |format: Dtype| self.class.curves.gemm[format as usize].is_some();
        known(Dtype::Fp4) && known(Dtype::Fp8)
    }

    /// Returns the seconds of a product of activations with `weights` weights.
    pub(super) fn weight_product_seconds(&self, [batch, m, n, k]: [u64; 4], weights: Dtype) -> f64 {
        let format = self.compute_format(weights);
        if format == Dtype::Fp4 && self.prices_fp4_by_fp8() {
            // The measured FP4 curve includes the kernel that quantizes the activations, but engines fuse it into the
            // preceding kernel. Without quantization, a product reads 9/16 of the bytes of an FP8 product and computes
            // at twice the rate.
            let columns = (n * 9).div_ceil(16);
            return self.kernel_seconds(gemm_kernel_profile([batch, m, columns, k], Dtype::Fp8));
        }
        if format == weights {
            return self.kernel_seconds(gemm_kernel_profile([batch, m, n, k], format));
        }
        // The kernel reads 0.5625 bytes per weight instead of 2, and does the same multiplications.
        let narrow = self.kernel_seconds(gemm_kernel_profile(
            [batch, m, (n * 9).div_ceil(32), k],
            format,
        ));
        let flops = 2.0 * batch as f64 * m as f64 * n as f64 * k as f64;
        let peak = self.class.peaks.get(format);
        peak.map_or(narrow, |peak| {
            narrow.max(flops / (WEIGHT_ONLY_PEAK * peak.per_second()) * self.class.slowdown)
        })
    }

    /// Returns the number of expert products on an NPU and, for each product, its rows, its columns, and the size of
    /// the summed dimension. A step has `tokens` tokens, and at most `padded` tokens per rank.
    pub(super) fn expert_product_sizes(
        &self,
        kind: &EqualModelBlocks,
        product: &ModelBlockMatrixProduct,
        [experts, chosen]: [u64; 2],
        [tokens, padded]: [u64; 2],
    ) -> [u64; 4] {
        let touched = expected_active_experts(experts, chosen, tokens);
        let gathered = padded * u64::from(self.ranks);
        let rows = (gathered * chosen).div_ceil(touched);
        if !self.has_whole_experts {
            let [k, n] = kind.product_sizes_per_npu(product, self.npus);
            return [touched, rows, n, k];
        }
        // Divide the active experts among the NPUs, because each NPU has whole experts.
        let own = touched.div_ceil(u64::from(self.npus * self.ranks));
        [own, rows, product.outputs, product.inputs]
    }
}

/// Returns the expected number of experts that receive at least one of `tokens` tokens. Each token
/// goes to `chosen` of `experts` equally likely experts.
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

pub(super) fn gemm_kernel_profile(
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
