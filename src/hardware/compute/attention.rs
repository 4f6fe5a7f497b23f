//! Fused attention (one kernel): prefill, the backward pass, and decoding of one token at a time.

use chakram_base::units::Bandwidth;

/// How query tiles run on multiprocessors in waves, and how long a partly filled wave takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionWaveConstants {
    /// Number of multiprocessors. Each computes one tile at a time: 128 queries of a head.
    pub multiprocessors: f64,
    /// Additional time of the last, partly filled wave, as a fraction of a full wave's time.
    pub tail: f64,
}

/// How long attention takes between one query per sequence and all keys. Let the kernel move `Y` bytes for `b`
/// sequences and `v` KV heads (heads of keys and values). Then `t = start + Y / (memory bandwidth) + head b v /
/// multiprocessors`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeAttentionCurveConstants {
    /// Duration of the shortest kernel, in seconds.
    pub start: f64,
    /// Fraction of the memory's bandwidth that the kernel reaches.
    pub memory: f64,
    /// Seconds that a multiprocessor spends on one KV head of one sequence.
    pub head: f64,
    /// Number of multiprocessors per NPU.
    pub multiprocessors: f64,
}

/// Compute rates for the head widths (columns) of [`Self::WIDTHS`], each divided by the curve's rate. Between two
/// widths, the factor is linear in the logarithm of the width; beyond them, the nearest width's factor applies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ComputeRateFactorsByHeadWidth(pub [f64; ComputeRateFactorsByHeadWidth::WIDTHS.len()]);

impl ComputeRateFactorsByHeadWidth {
    /// Head widths for which files may give factors, each with the factor's key.
    pub const WIDTHS: [(u64, &'static str); 3] = [(64, "64"), (128, "128"), (256, "256")];

    /// Returns the factor for heads of `width` columns.
    pub fn factor_at(&self, width: f64) -> f64 {
        let ends = Self::WIDTHS.map(|(width, _)| width as f64);
        let width = width.clamp(ends[0], ends[ends.len() - 1]);
        let after = ends
            .iter()
            .position(|end| *end >= width)
            .unwrap_or(1)
            .max(1);
        let part = libm::log(width / ends[after - 1]) / libm::log(ends[after] / ends[after - 1]);
        self.0[after - 1] + part * (self.0[after] - self.0[after - 1])
    }
}

/// Time of fused attention (one kernel). Let the kernel have `F` FLOPs, `Y` bytes of queries, keys, values and outputs,
/// and `s` queries per sequence:
///
/// `t = start + ((F (1 + ramp / s) w / (compute peak))^3 + (Y / (memory bandwidth))^3)^(1/3)`. A backward kernel takes
/// `backward` times as long. If [`Self::widths`] states a factor for the head width, that factor multiplies the compute
/// rate. If [`Self::waves`] is given, `w = (1 + tail / max(n, 1)) / min(n, 1)`; otherwise `w = 1`. `n` is the number of
/// waves: the number of tiles (128 queries of one head each) divided by the number of multiprocessors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionKernelTimeCurve {
    /// Duration of the shortest kernel, in seconds.
    pub start: f64,
    /// Fraction of the peak that long sequences reach.
    pub compute: f64,
    /// Fraction of the memory's bandwidth that the kernel reaches.
    pub memory: f64,
    /// Number of queries per sequence at which the kernel reaches half of the fraction `compute`.
    pub ramp: f64,
    /// Time of the backward kernel divided by the forward kernel's time.
    pub backward: f64,
    /// Relative error of the curve's durations, one standard deviation.
    pub error: f64,
    /// Waves of tiles over multiprocessors, or `None` if the curve does not depend on waves.
    pub waves: Option<AttentionWaveConstants>,
    /// Curve for one query per sequence, or `None` if decoding was not measured.
    pub decode: Option<DecodeAttentionCurveConstants>,
    /// Compute rates for head widths that differ from the curve's, or `None` if they were not measured.
    pub widths: Option<ComputeRateFactorsByHeadWidth>,
}

/// Sizes of an attention operation.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSizes {
    /// Numbers of sequences, query heads, KV heads, queries per sequence, keys per sequence, and columns per head.
    pub sizes: [u64; 6],
    /// True if queries attend to earlier keys only.
    pub causal: bool,
    /// Bytes per element.
    pub element: f64,
}

impl AttentionKernelTimeCurve {
    /// Returns the time, in seconds, of a forward kernel at `peak` operations per second.
    pub fn predict_seconds(&self, of: &AttentionSizes, peak: f64, memory: Bandwidth) -> f64 {
        let [b, a, v, q, s, w] = of.sizes.map(|size| size as f64);
        let bytes = of.element * b * w * (2.0 * a * q + 2.0 * v * s);
        let bandwidth = memory.bytes_per_second();
        if let (Some(decode), 1) = (&self.decode, of.sizes[3]) {
            let heads = decode.head * b * v / decode.multiprocessors;
            return decode.start + bytes / (decode.memory * bandwidth) + heads;
        }
        // Attention consists of two matrix multiplications. With a causal mask, the scores of later keys are skipped.
        let pairs = if of.causal {
            q * (s - (q - 1.0) / 2.0).max(1.0)
        } else {
            q * s
        };
        let mut flops = 4.0 * b * a * w * pairs;
        if let Some(waves) = self.waves {
            let count = b * a * (q / 128.0).ceil() / waves.multiprocessors;
            flops *= (1.0 + waves.tail / count.max(1.0)) / count.min(1.0);
        }
        let of_width = self.widths.map_or(1.0, |widths| widths.factor_at(w));
        let rate = self.compute * of_width * peak;
        let compute = flops * (1.0 + self.ramp / q.max(1.0)) / rate;
        let memory = bytes / (self.memory * bandwidth);
        self.start + libm::cbrt(compute * compute * compute + memory * memory * memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_of_widths_are_linear_in_the_logarithm_and_end_with_the_table() {
        let factors = ComputeRateFactorsByHeadWidth([0.8, 1.0, 1.1]);
        for (width, expected) in [
            (32.0, 0.8),
            (64.0, 0.8),
            (128.0, 1.0),
            (256.0, 1.1),
            (512.0, 1.1),
        ] {
            assert!(
                (factors.factor_at(width) - expected).abs() < 1e-12,
                "{width}"
            );
        }
        // At the geometric mean of 64 and 128, the factor is the mean of the factors for 64 and for 128.
        let between = factors.factor_at(64.0 * 2.0_f64.sqrt());
        assert!((between - 0.9).abs() < 1e-12, "{between}");
    }
}
