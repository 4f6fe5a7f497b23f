//! Roofline: a kernel takes the longer of its arithmetic time and its memory time.
//!
//! `t = max(flops / (e peak(dtype)), bytes / (e memory bandwidth))`, with `t` in seconds, `peak` in operations per
//! second, and the bandwidth in bytes per second (Williams, Waterman, Patterson, "Roofline", CACM 2009). With the
//! efficiency `e = 1`, this time is a lower bound for real kernels. A single efficiency `e` lowers both roofs and does
//! not move the ridge point. The arithmetic intensity at which a kernel becomes compute-bound depends only on the
//! machine; the fraction of the roofline that the kernel reaches depends on the software.
//!
//! On a class with systolic arrays, a matrix product of known sizes takes at least the cycles that they need
//! (`compute/systolic.rs`).

use super::{KernelTraceFacts, PeakRatesByFormat, RooflinePeakFraction};
use chakram_base::dtype::Dtype;
use chakram_base::kernel_shape::KernelShape;
use chakram_base::units::{Bandwidth, Span, UnroundedBufferShare};

/// Number formats assumed for kernels whose trace names no format, in order of preference. The first format in the list
/// that the class supports is used. The list begins with bf16 because training uses it today; the most similar formats
/// follow.
const ASSUMED: [Dtype; Dtype::COUNT] = [
    Dtype::Bf16,
    Dtype::Fp16,
    Dtype::Tf32,
    Dtype::Fp32,
    Dtype::Fp8,
    Dtype::Fp64,
    Dtype::Int8,
    Dtype::Fp4,
];

/// Returns the roofline duration of a kernel, rounded to the nearest picosecond. Returns `None` if the class has no
/// peak for the kernel's format, or if neither FLOPs nor bytes are known.
pub(super) fn roofline_duration(
    kernel: &KernelTraceFacts<'_>,
    peaks: &PeakRatesByFormat,
    memory: Bandwidth,
    efficiency: RooflinePeakFraction,
) -> Option<Span> {
    let &KernelTraceFacts { flops, bytes, .. } = kernel;
    if flops == 0 && bytes == 0 {
        return None;
    }
    let peak = match kernel.dtype {
        Some(dtype) => peaks.peak_rate_if_supported(dtype),
        None => ASSUMED
            .iter()
            .find_map(|&dtype| peaks.peak_rate_if_supported(dtype)),
    };
    let arithmetic = match (flops, peak) {
        (0, _) => Span::ZERO,
        (_, None) => return None,
        (_, Some(peak)) => {
            let product = match kernel.shape {
                Some(KernelShape::Gemm { batch, m, n, k }) => Some((batch, [m, n, k])),
                _ => None,
            };
            let arrays = peaks.get_systolic_arrays_if_any().zip(product);
            let cycles =
                arrays.and_then(|(arrays, (batch, sizes))| arrays.matmul_duration(batch, sizes));
            // The peak bounds the duration from below, even if a machine file states faster arrays.
            cycles.unwrap_or(Span::ZERO).max(peak.time_for_flops(flops))
        }
    };
    let bound = arithmetic.max(memory.serialization_time(UnroundedBufferShare::from_bytes(bytes)));
    Some(bound.scale_by(1.0 / efficiency.as_fraction()))
}
