//! Roofline: a kernel is limited by arithmetic or by memory, whichever takes longer.
//!
//! `t = max(flops / peak(dtype), bytes / memory bandwidth)` (Williams, Waterman, Patterson 2009).
//! No efficiency is assumed, so this is a lower bound of what real kernels reach.

use super::Peaks;
use crate::trace::Dtype;
use crate::units::{Amount, Bandwidth, Span};

/// The format that kernels compute in when the trace does not say: what training uses today, and
/// then whatever comes nearest among the formats that the class has.
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

/// `None` when the class has no peak for `dtype`, or neither FLOPs nor bytes are known.
pub(super) fn duration(
    flops: u64,
    bytes: u64,
    dtype: Option<Dtype>,
    peaks: &Peaks,
    memory: Bandwidth,
) -> Option<Span> {
    if flops == 0 && bytes == 0 {
        return None;
    }
    let peak = match dtype {
        Some(dtype) => peaks.get(dtype),
        None => ASSUMED.iter().find_map(|&dtype| peaks.get(dtype)),
    };
    let arithmetic = match (flops, peak) {
        (0, _) => Span::ZERO,
        (_, None) => return None,
        (_, Some(peak)) => peak.duration(flops),
    };
    Some(arithmetic.max(memory.serialization(Amount::whole(bytes))))
}
