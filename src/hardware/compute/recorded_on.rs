//! Recorded on another NPU class: times are carried over by the ratio of the rooflines of both classes.
//!
//! ```text
//! t = f + (r - f) T / T',   f = min(r, 10 us)
//! ```
//!
//! with the recorded time `r`, and what roofline takes on this class, `T`, and on the one of the recording, `T'`. So whatever part
//! of the roofline a kernel reached where it was recorded, it reaches here. Habitat (Yu et al., USENIX ATC 2021) carries kernels
//! between GPUs by such ratios, with a factor for waves of thread blocks on top. What a kernel takes that does not fill a
//! device, launch, first loads and last stores, does not shrink with the bandwidth: of three public models that were
//! captured on H100 and on MI300X, whose memory is 1.58 times as fast, kernels of up to 10 us take 0.9 to 1.5 times as long on
//! the latter by class (attention in one kernel 3 times), and longer ones 0.6 to 1.0 times.
//!
//! A kernel of which the trace says neither FLOPs nor bytes (launched by graphs, fused) is taken to move bytes. One whose FLOPs are
//! unknown is no such, and keeps its time.
//!
//! Between makers no kernel is carried. Their libraries are other programs, so the part of the roofline that a kernel reaches
//! does not go along: of the three models, kernels take 1.40, 0.76 and 1.27 times as long in all on MI300X, whose peak and
//! bandwidth are 1.32 and 1.58 times those of H100, and products of matrices alone 1.28, 1.01 and 0.88 times. No rate tells which, so
//! the recorded time stays, and the interval of the prediction is as wide as these.

use super::{KernelProfile, PeakRates, RooflineEfficiency, roofline};
use chakram_base::dtype::Dtype;
use chakram_base::units::{Bandwidth, FlopRate, Span};

/// Time of a kernel that does not fill a device, on any.
const UNFILLED: Span = Span(10_000_000);

/// Times from which on rounding to picoseconds leaves a ratio as it is; kernels that do less move some bytes.
const EXACT: Span = Span(1_000);

/// NPU class on which kernels were recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordingClass {
    peaks: [Option<FlopRate>; Dtype::COUNT],
    memory: Bandwidth,
    /// Who makes it, if that is known.
    maker: Option<&'static str>,
    /// Whether it is asked for kernels on a class of another maker.
    elsewhere: bool,
}

impl RecordingClass {
    /// A class with these peaks and this memory bandwidth.
    pub fn new(peaks: &PeakRates, memory: Bandwidth) -> Self {
        Self {
            peaks: peaks.rates,
            memory,
            maker: None,
            elsewhere: false,
        }
    }

    /// Returns the class of this maker, of which kernels are not carried to classes of others.
    pub fn made_by(self, maker: Option<&'static str>) -> Self {
        Self { maker, ..self }
    }

    /// Returns the class as kernels on one of `maker` are carried from it.
    pub(super) fn towards(self, maker: Option<&'static str>) -> Self {
        let differs = self
            .maker
            .zip(maker)
            .is_some_and(|(own, other)| own != other);
        Self {
            elsewhere: differs,
            ..self
        }
    }

    /// Returns whether kernels keep their recorded time, as the class that they run on is of another maker.
    pub(super) fn keeps(&self) -> bool {
        self.elsewhere
    }

    /// Returns true if `peaks` and `memory` are those of the class.
    pub(super) fn has_rates(&self, peaks: &PeakRates, memory: Bandwidth) -> bool {
        self.peaks == peaks.rates && self.memory == memory
    }

    /// The time of `kernel` on another class; `None` if one of both has no peak for its format.
    pub(super) fn carried_over(
        &self,
        kernel: &KernelProfile<'_>,
        peaks: &PeakRates,
        memory: Bandwidth,
    ) -> Option<Span> {
        let own = PeakRates {
            rates: self.peaks,
            systolic: None,
        };
        let whole = RooflineEfficiency::default();
        let mut ratio = self.memory.bytes_per_second() / memory.bytes_per_second();
        if kernel.flops > 0 || kernel.bytes > 0 {
            let here = roofline::duration(kernel, peaks, memory, whole)?;
            let there = roofline::duration(kernel, &own, self.memory, whole)?;
            if there >= EXACT {
                ratio = here.seconds() / there.seconds();
            }
        }
        let fixed = kernel.recorded.min(UNFILLED);
        let rest = Span(kernel.recorded.0 - fixed.0);
        Some(Span(fixed.0.saturating_add(rest.scaled(ratio).0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::{ComputeModel, KernelCurves, KernelTiming};

    fn class(tflops: f64, tbytes: f64) -> (PeakRates, Bandwidth) {
        let mut peaks = PeakRates::default();
        peaks.set(Dtype::Bf16, FlopRate::new(tflops * 1e12).unwrap());
        (peaks, Bandwidth::new(tbytes * 1e12).unwrap())
    }

    /// A kernel carried from 1,000 TFLOP/s and 2 TB/s to 2,000 TFLOP/s and 5 TB/s.
    fn moved(kernel: KernelProfile<'_>) -> KernelTiming {
        let (from, from_memory) = class(1000.0, 2.0);
        let (to, to_memory) = class(2000.0, 5.0);
        let source = RecordingClass::new(&from, from_memory);
        let model = ComputeModel::RecordedOn(source);
        model.price(&kernel, &to, Some(to_memory), &KernelCurves::default())
    }

    const KERNEL: KernelProfile<'_> = KernelProfile {
        name: "",
        recorded: Span(110_000_000),
        captured: true,
        flops: 0,
        flops_unknown: false,
        bytes: 0,
        dtype: Some(Dtype::Bf16),
        shape: None,
    };

    #[test]
    fn times_scale_with_what_bounds_the_kernel() {
        // 110 us, of which 10 stay. 50 us of arithmetic against 0.5 us of memory: the ratio of peaks, 10 + 100/2.
        let product = KernelProfile {
            flops: 50_000_000_000,
            bytes: 1_000_000,
            ..KERNEL
        };
        assert_eq!(moved(product), KernelTiming::Modeled(Span(60_000_000)));
        // 100 MB: 50 us of memory; the ratio of bandwidths, 10 + 100 x 2/5. Nothing known: likewise.
        let copy = KernelProfile {
            bytes: 100_000_000,
            ..KERNEL
        };
        assert_eq!(moved(copy), KernelTiming::Modeled(Span(50_000_000)));
        // So little that it takes no picosecond.
        let tiny = KernelProfile { bytes: 1, ..KERNEL };
        assert_eq!(moved(tiny), KernelTiming::Modeled(Span(50_000_000)));
        assert_eq!(moved(KERNEL), KernelTiming::Modeled(Span(50_000_000)));
        // Bound by memory there and by arithmetic here: 20 GFLOP take 20 and 10 us, 45 MB 22.5 and 9: 10 + 100 x 10 / 22.5.
        let both = KernelProfile {
            flops: 20_000_000_000,
            bytes: 45_000_000,
            ..KERNEL
        };
        assert_eq!(moved(both), KernelTiming::Modeled(Span(54_444_444)));
    }

    #[test]
    fn kernels_are_not_carried_between_makers() {
        let (from, from_memory) = class(1000.0, 2.0);
        let (to, to_memory) = class(2000.0, 5.0);
        let source = RecordingClass::new(&from, from_memory).made_by(Some("NVIDIA"));
        let price = |class: &str| {
            let model = ComputeModel::RecordedOn(source).on_class(class);
            model.price(&KERNEL, &to, Some(to_memory), &KernelCurves::default())
        };
        // 110 us stay on MI300X; elsewhere 10 + 100 x 2/5.
        assert_eq!(price("mi300x"), KernelTiming::Kept(Span(110_000_000)));
        let carried = KernelTiming::Modeled(Span(50_000_000));
        assert_eq!((price("h200"), price("gpu")), (carried, carried));
    }

    #[test]
    fn what_does_not_fill_a_device_stays() {
        for ns in [0, 5_000, 10_000] {
            let recorded = Span::from_ns(ns);
            let short = KernelProfile { recorded, ..KERNEL };
            assert_eq!(moved(short), KernelTiming::Modeled(recorded));
        }
    }

    #[test]
    fn formats_without_a_peak_stay_as_recorded_and_kernels_without_a_time_are_by_roofline() {
        let odd = KernelProfile {
            flops: 1_000_000,
            dtype: Some(Dtype::Fp8),
            ..KERNEL
        };
        assert_eq!(moved(odd), KernelTiming::Fallback(Span(110_000_000)));
        // 100 MB at 5 TB/s.
        let untimed = KernelProfile {
            recorded: Span::ZERO,
            captured: false,
            bytes: 100_000_000,
            ..KERNEL
        };
        assert_eq!(moved(untimed), KernelTiming::Estimated(Span(20_000_000)));
    }
}
