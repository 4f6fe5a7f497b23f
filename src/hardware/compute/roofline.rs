//! Roofline: a kernel takes the longer of its arithmetic time and its memory time.
//!
//! `t = max(flops / (e peak(dtype)), bytes / (e memory bandwidth))`, with `t` in seconds, `peak` in operations per
//! second, and the bandwidth in bytes per second (Williams, Waterman, Patterson, "Roofline", CACM 2009). With the
//! efficiency `e = 1` this is a lower bound of real kernels. One efficiency `e` for both roofs lowers the whole
//! roofline and leaves its ridge point in place: the arithmetic intensity at which a kernel becomes compute-bound
//! depends on the machine, the achieved fraction on the software.
//!
//! On a class with systolic arrays a product of known sizes takes at least the cycles of the arrays
//! (`compute/systolic.rs`).

use super::{KernelProfile, PeakRates, RooflineEfficiency};
use chakram_base::dtype::Dtype;
use chakram_base::kernel_shape::KernelShape;
use chakram_base::units::{Bandwidth, BufferShare, Span};

/// Number formats assumed for kernels whose trace states none; the first in which the class
/// computes is used. First is bf16, which training uses today, then follow the most similar
/// formats.
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

/// Returns the duration, rounded to the nearest picosecond, or `None` if the class has no peak for
/// `dtype`, or if neither FLOPs nor bytes are known.
pub(super) fn duration(
    kernel: &KernelProfile<'_>,
    peaks: &PeakRates,
    memory: Bandwidth,
    efficiency: RooflineEfficiency,
) -> Option<Span> {
    let &KernelProfile { flops, bytes, .. } = kernel;
    if flops == 0 && bytes == 0 {
        return None;
    }
    let peak = match kernel.dtype {
        Some(dtype) => peaks.get(dtype),
        None => ASSUMED.iter().find_map(|&dtype| peaks.get(dtype)),
    };
    let arithmetic = match (flops, peak) {
        (0, _) => Span::ZERO,
        (_, None) => return None,
        (_, Some(peak)) => {
            let product = match kernel.shape {
                Some(KernelShape::Gemm { batch, m, n, k }) => Some((batch, [m, n, k])),
                _ => None,
            };
            let arrays = peaks.systolic().zip(product);
            let cycles = arrays.and_then(|(arrays, (batch, sizes))| arrays.duration(batch, sizes));
            // The peak is a lower bound even if a machine file states faster arrays.
            cycles.unwrap_or(Span::ZERO).max(peak.duration(flops))
        }
    };
    let bound = arithmetic.max(memory.serialization(BufferShare::whole(bytes)));
    Some(bound.scaled(1.0 / efficiency.fraction()))
}
