//! Computes durations of kernels from their class and shape. The curves' constants were fitted to measurements on an
//! NPU class.

use super::{
    AttentionKernelTimeCurve, AttentionSizes, GemmTimeCurve, KernelTraceFacts,
    LongGemmPowerLimitSlowdown, MeasuredGemms, MeasuredKernels, PeakRatesByFormat,
};
use chakram_base::dtype::Dtype;
use chakram_base::kernel_shape::{KernelShape, MemoryBoundKernelClass};
use chakram_base::units::{Bandwidth, Span};

/// Curve of memory-bound kernels: `t = gap + max(floor, bytes / (fraction x bandwidth))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryBoundKernelTimeCurve {
    /// Fraction of the memory's bandwidth that each [`MemoryBoundKernelClass`] reaches.
    pub fractions: [f64; MemoryBoundKernelClass::ALL.len()],
    /// Duration of the shortest kernel, in seconds.
    pub floor: f64,
    /// Seconds between the end of a kernel and the start of the next kernel in the same lane.
    pub gap: f64,
    /// Relative error of the curve's durations, one standard deviation.
    pub error: f64,
}

/// Class of kernels whose errors are correlated, because their durations depend on the same fitted constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CorrelatedErrorClass {
    /// Kernels measured by name.
    Measured,
    /// Matrix multiplications. Errors of different sizes partly cancel.
    Gemm,
    /// Matrix multiplications with a curve of other makers' NPUs. All sizes have the same error.
    CarriedOverGemm,
    /// Attention that runs as one kernel.
    Attention,
    /// Memory-bound kernels.
    Moving,
}

impl CorrelatedErrorClass {
    /// Number of curve classes.
    pub const COUNT: usize = 5;
}

/// The duration that a curve gives for a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurveKernelDuration {
    /// The duration.
    pub span: Span,
    /// Relative error of the duration, one standard deviation.
    pub error: f64,
    /// Class of the curve.
    pub class: CorrelatedErrorClass,
}

/// Factors by which continuous load and a power limit change an NPU's rates. A factor of 1 means the rate of the
/// measured curves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerLimitMatrixAndAttentionFactors {
    /// Factor by which continuous load and a power limit change the rate of matrix multiplications.
    pub products: f64,
    /// Factor by which a power limit changes the rate of attention.
    pub attention: f64,
    /// Slowdown of long matrix multiplications that reach the power limit.
    pub throttling: Option<LongGemmPowerLimitSlowdown>,
}

impl Default for PowerLimitMatrixAndAttentionFactors {
    fn default() -> Self {
        Self {
            products: 1.0,
            attention: 1.0,
            throttling: None,
        }
    }
}

/// Time curves of kernels on an NPU class. A curve is missing if its kernels were not measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelTimeCurves {
    /// Kernels measured by name. The measured times take precedence over the curves.
    pub measured: MeasuredKernels,
    /// Time curve of matrix multiplications, by number format.
    pub gemm: [Option<GemmTimeCurve>; Dtype::COUNT],
    /// Measured shapes that correct the time curve of matrix multiplications, by number format.
    pub products: [Option<MeasuredGemms>; Dtype::COUNT],
    /// Curve of attention, by number format.
    pub attention: [Option<AttentionKernelTimeCurve>; Dtype::COUNT],
    /// Name of the attention kernel that was measured, or `None` if unknown.
    pub attention_kernel: Option<String>,
    /// Curve of memory-bound kernels, for all number formats.
    pub moving: Option<MemoryBoundKernelTimeCurve>,
    /// Factors for continuous load that the curves above already include.
    pub kept: PowerLimitMatrixAndAttentionFactors,
    /// How long a kernel takes if it begins while a collective runs on the NPU, divided by its time alone. Collectives
    /// slow kernels down, because they use some multiprocessors and memory bandwidth.
    pub beside_collectives: Option<f64>,
}

impl KernelTimeCurves {
    /// Returns true if there is no curve.
    pub fn is_empty(&self) -> bool {
        let empty = Self {
            kept: self.kept,
            ..Self::default()
        };
        *self == empty
    }

    /// Returns the duration of `kernel`. Returns `None` unless kernels of the same name were measured, or a curve
    /// exists for the kernel's class, shape and format.
    pub fn price_kernel(
        &self,
        kernel: &KernelTraceFacts<'_>,
        peaks: &PeakRatesByFormat,
        memory: Bandwidth,
    ) -> Option<CurveKernelDuration> {
        let price = |seconds, error, class| {
            let span = Span::from_seconds_saturating(seconds);
            Some(CurveKernelDuration { span, error, class })
        };
        if let Some((seconds, error)) = self
            .measured
            .kernel_seconds_and_error_on_npu(kernel, peaks, memory)
        {
            return price(seconds, error, CorrelatedErrorClass::Measured);
        }
        let format = || {
            let dtype = kernel.dtype?;
            Some((dtype, peaks.peak_rate_if_supported(dtype)?.per_second()))
        };
        match kernel.shape? {
            KernelShape::Gemm { batch, m, n, k } => {
                let (dtype, peak) = format()?;
                let curve = self.gemm[dtype as usize].as_ref()?;
                let sizes = [batch, m, n, k];
                let estimate = curve.estimate_gemm_with_intermediate_values(
                    sizes,
                    dtype.element_bytes(),
                    peak,
                    memory,
                );
                let table = self.products[dtype as usize].as_ref();
                // The table contains only single matrix products, no batches.
                let table = table.filter(|_| batch == 1);
                let known = table.and_then(|table| {
                    Some((table.interpolate_factor([m, n, k], &estimate)?, table.error))
                });
                let class = match known.is_none() && curve.is_carried_over {
                    true => CorrelatedErrorClass::CarriedOverGemm,
                    false => CorrelatedErrorClass::Gemm,
                };
                let (factor, error) = known.unwrap_or((1.0, curve.error));
                price(estimate.seconds * factor, error, class)
            }
            KernelShape::Attention {
                batch,
                heads,
                kv_heads,
                queries,
                keys,
                width,
                causal,
                backward,
            } => {
                let (dtype, peak) = format()?;
                let curve = self.attention[dtype as usize].as_ref()?;
                let of = AttentionSizes {
                    sizes: [batch, heads, kv_heads, queries, keys, width],
                    causal,
                    element: dtype.element_bytes(),
                };
                let forward = curve.predict_seconds(&of, peak, memory);
                let times = if backward { curve.backward } else { 1.0 };
                price(
                    times * forward,
                    curve.error,
                    CorrelatedErrorClass::Attention,
                )
            }
            KernelShape::Moving(class) => {
                let curve = self.moving.as_ref()?;
                let rate = curve.fractions[class as usize] * memory.bytes_per_second();
                let time = (kernel.bytes as f64 / rate).max(curve.floor);
                price(curve.gap + time, curve.error, CorrelatedErrorClass::Moving)
            }
        }
    }
}
