//! Prices of kernels by class and shape: constants of an NPU class that were fitted to measurements.

use super::{GemmCurve, KernelProfile, PeakRates};
use crate::trace::{Dtype, KernelShape, MovingKernel};
use crate::units::{Bandwidth, Span};

/// Attention in one kernel. With `F` FLOPs, `Y` bytes of queries, keys, values and outputs, and `s` queries of a
/// sequence:
///
/// `t = start + ((F (1 + ramp / s) / (compute peak))^3 + (Y / (memory bandwidth))^3)^(1/3)`, and backwards `backward`
/// times the forward kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionCurve {
    /// Seconds of the shortest kernel.
    pub start: f64,
    /// Part of the peak that long sequences reach.
    pub compute: f64,
    /// Part of the memory's bandwidth.
    pub memory: f64,
    /// Queries of a sequence at which half of that part is reached.
    pub ramp: f64,
    /// Backward kernel in forward kernels.
    pub backward: f64,
    /// Relative error, one standard deviation.
    pub error: f64,
}

impl AttentionCurve {
    /// Seconds of a kernel of `flops` and `bytes` with `queries` in a sequence.
    fn seconds(&self, [flops, bytes, queries]: [f64; 3], peak: f64, memory: Bandwidth) -> f64 {
        let compute = flops * (1.0 + self.ramp / queries.max(1.0)) / (self.compute * peak);
        let memory = bytes / (self.memory * memory.bytes_per_second());
        self.start + libm::cbrt(compute * compute * compute + memory * memory * memory)
    }
}

/// Kernels that move bytes: `t = gap + max(floor, bytes / (fraction x bandwidth))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MovingCurve {
    /// Part of the memory's bandwidth, by [`MovingKernel`].
    pub fractions: [f64; MovingKernel::ALL.len()],
    /// Shortest kernel.
    pub floor: f64,
    /// From the end of a kernel to the next one in the same lane.
    pub gap: f64,
    /// Relative error, one standard deviation.
    pub error: f64,
}

/// Curves of an NPU class; it has none of what was not measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelCurves {
    /// By number format.
    pub gemm: [Option<GemmCurve>; Dtype::COUNT],
    /// By number format.
    pub attention: [Option<AttentionCurve>; Dtype::COUNT],
    /// Of all formats.
    pub moving: Option<MovingCurve>,
}

/// Bytes of an element.
fn element_bytes(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::Fp64 => 8.0,
        Dtype::Fp32 | Dtype::Tf32 => 4.0,
        Dtype::Fp16 | Dtype::Bf16 => 2.0,
        Dtype::Fp8 | Dtype::Int8 => 1.0,
        // A scale of a byte goes with 16 numbers.
        Dtype::Fp4 => 0.5625,
    }
}

impl KernelCurves {
    /// Returns whether there is no curve.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the duration of `kernel` and its relative error, if there is a curve for its class, shape and format.
    pub fn price(
        &self,
        kernel: &KernelProfile,
        peaks: &PeakRates,
        memory: Bandwidth,
    ) -> Option<(Span, f64)> {
        let format = || {
            let dtype = kernel.dtype?;
            Some((dtype, peaks.get(dtype)?.per_second()))
        };
        let (seconds, error) = match kernel.shape? {
            KernelShape::Gemm { batch, m, n, k } => {
                let (dtype, peak) = format()?;
                let curve = self.gemm[dtype as usize].as_ref()?;
                let sizes = [batch, m, n, k];
                (
                    curve.seconds(sizes, element_bytes(dtype), peak, memory),
                    curve.error,
                )
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
                let [b, a, v, q, s, w] =
                    [batch, heads, kv_heads, queries, keys, width].map(|size| size as f64);
                // Two products; with a causal mask the scores behind the diagonal are left out.
                let pairs = if causal {
                    q * (s - (q - 1.0) / 2.0).max(1.0)
                } else {
                    q * s
                };
                let flops = 4.0 * b * a * w * pairs;
                let bytes = element_bytes(dtype) * b * w * (2.0 * a * q + 2.0 * v * s);
                let forward = curve.seconds([flops, bytes, q], peak, memory);
                let times = if backward { curve.backward } else { 1.0 };
                (times * forward, curve.error)
            }
            KernelShape::Moving(class) => {
                let curve = self.moving.as_ref()?;
                let rate = curve.fractions[class as usize] * memory.bytes_per_second();
                let time = (kernel.bytes as f64 / rate).max(curve.floor);
                (curve.gap + time, curve.error)
            }
        };
        Some((Span::from_seconds(seconds), error))
    }
}
