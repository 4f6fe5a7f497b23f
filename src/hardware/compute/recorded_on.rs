//! Durations recorded on another NPU class, scaled by the ratio of both classes' rooflines.
//!
//! ```text
//! t = f + (r - f) T / T',   f = min(r, 10 us)
//! ```
//!
//! where `r` is the recorded time, `T` is the roofline time on this class, and `T'` is the roofline time on the class
//! of the recording. A kernel thus reaches the same fraction of the roofline on this class as in the recording. Habitat
//! (Yu et al., USENIX ATC 2021) scales kernels between GPUs by such ratios, with an additional factor for waves of
//! thread blocks. The time `f`, during which a kernel does not fill the device (launch, first loads, last stores), is
//! the same on all classes. Three public models were captured on H100 and on MI300X; the memory of MI300X is 1.58 times
//! as fast. In these models, kernels of up to 10 us take 0.9 to 1.5 times as long on MI300X, depending on their class;
//! attention in one kernel takes 3 times as long. Longer kernels take 0.6 to 1.0 times as long.
//!
//! A kernel for which the trace states neither FLOPs nor bytes (launched by a graph, or fused) is assumed to move
//! bytes. A kernel whose FLOPs are marked unknown keeps its recorded time.
//!
//! Times are not scaled between makers: the makers' libraries are different programs, so a kernel does not reach the
//! same fraction of the roofline. MI300X has 1.32 times the peak and 1.58 times the bandwidth of H100. However, in the
//! three models, all kernels together take 1.40, 0.76 and 1.27 times as long on MI300X, and matrix products alone 1.28,
//! 1.01 and 0.88 times as long. No ratio of rates predicts these factors. The recorded time is therefore kept, and the
//! prediction interval is wide enough to include the measured ratios.

use super::{KernelTraceFacts, PeakRatesByFormat, RooflinePeakFraction, roofline};
use chakram_base::dtype::Dtype;
use chakram_base::units::{Bandwidth, FlopRate, Span};

/// Part of a kernel's time during which it does not fill the device; the same on all classes.
const UNFILLED: Span = Span(10_000_000);

/// Shortest roofline time for which rounding to picoseconds does not distort a ratio. Kernels with a shorter time are
/// assumed to move bytes.
const EXACT: Span = Span(1_000);

/// NPU class on which kernels were recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordingNpuClass {
    peaks: [Option<FlopRate>; Dtype::COUNT],
    memory: Bandwidth,
    /// Maker of the NPU, or `None` if unknown.
    maker: Option<&'static str>,
    /// True if the target NPU class has a different maker.
    elsewhere: bool,
}

impl RecordingNpuClass {
    /// Creates a class with these peaks and this memory bandwidth, of unknown maker.
    pub fn new(peaks: &PeakRatesByFormat, memory: Bandwidth) -> Self {
        Self {
            peaks: peaks.rates,
            memory,
            maker: None,
            elsewhere: false,
        }
    }

    /// Sets the maker; times of kernels are not scaled to classes of other makers.
    pub fn set_maker(self, maker: Option<&'static str>) -> Self {
        Self { maker, ..self }
    }

    /// Returns this recording class, prepared for predictions on an NPU class of `maker`. If both makers are known and
    /// differ, kernels keep their recorded times.
    pub(super) fn keep_recorded_times_if_maker_differs(self, maker: Option<&'static str>) -> Self {
        let differs = self
            .maker
            .zip(maker)
            .is_some_and(|(own, other)| own != other);
        Self {
            elsewhere: differs,
            ..self
        }
    }

    /// Returns true if kernels keep their recorded time because the target class has a different maker.
    pub(super) fn keeps_recorded_time_on_other_maker(&self) -> bool {
        self.elsewhere
    }

    /// Returns true if the class is an NPU of a known maker.
    pub fn is_of_known_maker(&self) -> bool {
        self.maker.is_some()
    }

    /// Returns true if the class has the rates `peaks` and `memory`.
    pub(super) fn has_same_rates(&self, peaks: &PeakRatesByFormat, memory: Bandwidth) -> bool {
        self.peaks == peaks.rates && self.memory == memory
    }

    /// Returns the time of `kernel` on another class, or `None` if either class has no peak for the kernel's format.
    pub(super) fn scale_time_to_class(
        &self,
        kernel: &KernelTraceFacts<'_>,
        peaks: &PeakRatesByFormat,
        memory: Bandwidth,
    ) -> Option<Span> {
        let own = PeakRatesByFormat {
            rates: self.peaks,
            systolic: None,
        };
        let whole = RooflinePeakFraction::default();
        let mut ratio = self.memory.bytes_per_second() / memory.bytes_per_second();
        if kernel.flops > 0 || kernel.bytes > 0 {
            let here = roofline::roofline_duration(kernel, peaks, memory, whole)?;
            let there = roofline::roofline_duration(kernel, &own, self.memory, whole)?;
            if there >= EXACT {
                ratio = here.as_seconds() / there.as_seconds();
            }
        }
        let fixed = kernel.recorded.min(UNFILLED);
        let rest = Span(kernel.recorded.0 - fixed.0);
        Some(Span(fixed.0.saturating_add(rest.scale_by(ratio).0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::{KernelDurationSource, KernelDurationWithBasis, KernelTimeCurves};

    fn build_peak_and_memory_rates(tflops: f64, tbytes: f64) -> (PeakRatesByFormat, Bandwidth) {
        let mut peaks = PeakRatesByFormat::default();
        peaks.set_peak(Dtype::Bf16, FlopRate::new(tflops * 1e12).unwrap());
        (peaks, Bandwidth::new(tbytes * 1e12).unwrap())
    }

    /// Scales a kernel from 1,000 TFLOP/s and 2 TB/s to 2,000 TFLOP/s and 5 TB/s.
    fn scale_recorded_kernel(kernel: KernelTraceFacts<'_>) -> KernelDurationWithBasis {
        let (from, from_memory) = build_peak_and_memory_rates(1000.0, 2.0);
        let (to, to_memory) = build_peak_and_memory_rates(2000.0, 5.0);
        let source = RecordingNpuClass::new(&from, from_memory);
        let model = KernelDurationSource::RecordedOn(source);
        model.price_kernel(&kernel, &to, Some(to_memory), &KernelTimeCurves::default())
    }

    const KERNEL: KernelTraceFacts<'_> = KernelTraceFacts {
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
        // The first 10 of the 110 us do not change. Arithmetic takes 50 us and memory 0.5 us, so the ratio of peaks
        // applies: 10 + 100/2.
        let product = KernelTraceFacts {
            flops: 50_000_000_000,
            bytes: 1_000_000,
            ..KERNEL
        };
        assert_eq!(
            scale_recorded_kernel(product),
            KernelDurationWithBasis::Modeled(Span(60_000_000))
        );
        // 100 MB take 50 us of memory time, so the ratio of bandwidths applies: 10 + 100 x 2/5. A kernel with neither
        // FLOPs nor bytes is assumed to move bytes, so it also takes 50 us.
        let copy = KernelTraceFacts {
            bytes: 100_000_000,
            ..KERNEL
        };
        assert_eq!(
            scale_recorded_kernel(copy),
            KernelDurationWithBasis::Modeled(Span(50_000_000))
        );
        // The roofline time of this kernel is below one picosecond, so the kernel is assumed to move bytes.
        let tiny = KernelTraceFacts { bytes: 1, ..KERNEL };
        assert_eq!(
            scale_recorded_kernel(tiny),
            KernelDurationWithBasis::Modeled(Span(50_000_000))
        );
        assert_eq!(
            scale_recorded_kernel(KERNEL),
            KernelDurationWithBasis::Modeled(Span(50_000_000))
        );
        // The kernel is memory-bound on the recording class and compute-bound on the new one. On the two classes, its
        // 20 GFLOP take 20 and 10 us, and its 45 MB take 22.5 and 9 us. The scaled duration is 10 + 100 x 10 / 22.5.
        let both = KernelTraceFacts {
            flops: 20_000_000_000,
            bytes: 45_000_000,
            ..KERNEL
        };
        assert_eq!(
            scale_recorded_kernel(both),
            KernelDurationWithBasis::Modeled(Span(54_444_444))
        );
    }

    #[test]
    fn kernels_are_not_carried_between_makers() {
        let (from, from_memory) = build_peak_and_memory_rates(1000.0, 2.0);
        let (to, to_memory) = build_peak_and_memory_rates(2000.0, 5.0);
        let source = RecordingNpuClass::new(&from, from_memory).set_maker(Some("NVIDIA"));
        let price = |class: &str| {
            let model =
                KernelDurationSource::RecordedOn(source).keep_recorded_if_other_npu_maker(class);
            model.price_kernel(&KERNEL, &to, Some(to_memory), &KernelTimeCurves::default())
        };
        // The 110 us do not change on MI300X, which comes from a different maker. On other classes the time is 10 + 100
        // x 2/5 us.
        assert_eq!(
            price("mi300x"),
            KernelDurationWithBasis::Kept(Span(110_000_000))
        );
        let carried = KernelDurationWithBasis::Modeled(Span(50_000_000));
        assert_eq!((price("h200"), price("gpu")), (carried, carried));
    }

    #[test]
    fn kernels_up_to_ten_microseconds_keep_their_time() {
        for ns in [0, 5_000, 10_000] {
            let recorded = Span::from_ns(ns);
            let short = KernelTraceFacts { recorded, ..KERNEL };
            assert_eq!(
                scale_recorded_kernel(short),
                KernelDurationWithBasis::Modeled(recorded)
            );
        }
    }

    #[test]
    fn formats_without_a_peak_stay_as_recorded_and_kernels_without_a_time_are_by_roofline() {
        let odd = KernelTraceFacts {
            flops: 1_000_000,
            dtype: Some(Dtype::Fp8),
            ..KERNEL
        };
        assert_eq!(
            scale_recorded_kernel(odd),
            KernelDurationWithBasis::Fallback(Span(110_000_000))
        );
        // Without a recorded duration, the kernel takes the time of 100 MB at 5 TB/s.
        let untimed = KernelTraceFacts {
            recorded: Span::ZERO,
            captured: false,
            bytes: 100_000_000,
            ..KERNEL
        };
        assert_eq!(
            scale_recorded_kernel(untimed),
            KernelDurationWithBasis::Estimated(Span(20_000_000))
        );
    }
}
