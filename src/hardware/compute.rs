//! Durations of compute nodes on an NPU class.

use super::devices::maker_of;
use chakram_base::dtype::Dtype;
use chakram_base::kernel_shape::KernelShape;
use chakram_base::units::{Bandwidth, FlopRate, Span, UnroundedBufferShare};

mod attention;
mod curves;
mod gemm;
mod gemm_table;
mod host;
mod loop_nest;
mod measured;
mod recorded_on;
mod roofline;
mod scaled;
mod systolic;
mod words;

pub use attention::{
    AttentionKernelTimeCurve, AttentionSizes, AttentionWaveConstants,
    ComputeRateFactorsByHeadWidth, DecodeAttentionCurveConstants,
};
pub use curves::{
    CorrelatedErrorClass, CurveKernelDuration, KernelTimeCurves, MemoryBoundKernelTimeCurve,
    PowerLimitMatrixAndAttentionFactors,
};
pub use gemm::{GemmTimeCurve, GemmTimeWithIntermediateValues, LongGemmPowerLimitSlowdown};
pub use gemm_table::MeasuredGemms;
pub use host::HostDurationSource;
pub use loop_nest::{
    BestMapping, GemminiSettings, LayerShape, LayerTensor, LoopDimension, LoopMapping,
    LoopNestAccelerator, LoopNestCost, LoopNestModel, MappingCost, MemoryLevel,
    MemoryLevelCapacity, RowAndColumnLoopDimensions, TensorLevelAccesses, search_mapping,
};
pub use measured::{MeasuredKernels, MeasuredTimeAtFlopsAndBytes, SameKernelTimesByWorkAmount};
pub use recorded_on::RecordingNpuClass;
pub use systolic::SystolicArrays;
pub use words::{
    ACCELERATOR, parse_efficiency, parse_host_duration_source, parse_kernel_duration_model,
    parse_loop_nest, parse_scale_factor, set_accelerator_value,
};

/// Peak rates of an NPU class, one for each number format that the class supports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeakRatesByFormat {
    rates: [Option<FlopRate>; Dtype::COUNT],
    /// Systolic arrays for matrix multiplications of known sizes, if the class has arrays.
    systolic: Option<SystolicArrays>,
}

impl PeakRatesByFormat {
    /// Sets the peak rate for the number format `dtype`.
    pub fn set_peak(&mut self, dtype: Dtype, rate: FlopRate) {
        self.rates[dtype as usize] = Some(rate);
    }

    /// Sets the systolic arrays, which run matrix multiplications of known sizes.
    pub fn set_systolic_arrays(&mut self, arrays: Option<SystolicArrays>) {
        self.systolic = arrays;
    }

    /// Returns the systolic arrays, or `None` if the class has none.
    pub fn get_systolic_arrays_if_any(&self) -> Option<&SystolicArrays> {
        self.systolic.as_ref()
    }

    /// Returns the number formats in which the class computes, with their peak rates.
    pub fn iter_peaks(&self) -> impl Iterator<Item = (Dtype, FlopRate)> {
        let all = Dtype::ALL.into_iter();
        all.filter_map(|(dtype, _)| Some((dtype, self.peak_rate_if_supported(dtype)?)))
    }

    /// Returns the peak rate for `dtype`, or `None` if the class does not support this format.
    pub fn peak_rate_if_supported(&self, dtype: Dtype) -> Option<FlopRate> {
        self.rates[dtype as usize]
    }
}

/// Where kernel durations come from. By default a kernel takes its recorded duration, or its roofline time if nothing
/// was recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KernelDurationSource {
    /// The recorded duration. If there is none, the NPU class's curves determine the kernel's time; if the curves or
    /// the kernel's shape are missing, the roofline model does. If an efficiency is given, a kernel without a recorded
    /// duration always takes its roofline time at this fraction of the peak rates.
    Recorded(RooflinePeakFraction),
    /// The same duration as with [`Self::Recorded`], times a factor.
    Scaled(f64, RooflinePeakFraction),
    /// The duration that the NPU class's curves give for the kernel's class and shape. If the shape or the curves are
    /// missing, the kernel takes its roofline time at the peak rates. If it has no roofline time either, it takes its
    /// recorded duration.
    Curves,
    /// The roofline duration at this fraction of the peak rates. If the trace has neither FLOPs nor bytes, the kernel
    /// takes its recorded duration.
    Roofline(RooflinePeakFraction),
    /// The duration of loop nests on an accelerator, with the best mapping found for each kernel. If the trace has
    /// neither FLOPs nor bytes, the kernel takes its recorded duration.
    LoopNest(LoopNestModel),
    /// The duration recorded on another NPU class, times the ratio of the two classes' roofline times. If nothing was
    /// recorded, the kernel takes its roofline duration.
    RecordedOn(RecordingNpuClass),
    /// Works as [`Self::RecordedOn`] does, with the NPU class of the device that each capture names.
    /// [`compute_model_with_recording_class`](super::recordings::compute_model_with_recording_class) inserts it.
    RecordedOnDevices,
    /// Recorded durations only: a kernel without a recorded duration takes no time.
    RecordedOnly,
}

impl Default for KernelDurationSource {
    fn default() -> Self {
        Self::Recorded(RooflinePeakFraction::default())
    }
}

/// Fraction of the peak rates that kernels reach: more than 0 and at most 1. The default of 1 does not count as a value
/// set by the user.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RooflinePeakFraction {
    fraction: f64,
    stated: bool,
}

impl RooflinePeakFraction {
    /// Returns `None` unless `fraction` is more than 0 and at most 1.
    pub fn new(fraction: f64) -> Option<Self> {
        (fraction > 0.0 && fraction <= 1.0).then_some(Self {
            fraction,
            stated: true,
        })
    }

    /// Returns the fraction: more than 0, at most 1.
    pub fn as_fraction(self) -> f64 {
        self.fraction
    }

    /// Returns true if the user set the efficiency.
    pub fn is_stated(self) -> bool {
        self.stated
    }
}

impl Default for RooflinePeakFraction {
    fn default() -> Self {
        Self {
            fraction: 1.0,
            stated: false,
        }
    }
}

/// Facts that the trace states about a kernel; models compute the kernel's duration from them.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelTraceFacts<'a> {
    /// Name of the kernel (empty if unknown).
    pub name: &'a str,
    /// Captured duration, or zero when unknown.
    pub recorded: Span,
    /// True if the trace is a capture that timed every kernel. A duration of zero is then a known value, not a missing
    /// one.
    pub captured: bool,
    /// Number of operations, or zero if unknown.
    pub flops: u64,
    /// True if arithmetic dominates the kernel's time but the number of operations is unknown. The bytes then give only
    /// a lower bound on the duration.
    pub flops_unknown: bool,
    /// Bytes read and written, or zero when unknown.
    pub bytes: u64,
    /// The number format of the kernel's arithmetic, or `None` if unknown.
    pub dtype: Option<Dtype>,
    /// Class and shape, or `None` if unknown.
    pub shape: Option<KernelShape>,
}

/// Duration of a kernel, and its basis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KernelDurationWithBasis {
    /// Duration that the requested model predicts.
    Modeled(Span),
    /// Recorded duration, because the model lacks the kernel's FLOPs or bytes, or a peak rate.
    Fallback(Span),
    /// Recorded duration, kept because the kernel was recorded on another maker's NPU.
    Kept(Span),
    /// The duration that the class's curves give.
    Curve {
        /// The duration.
        span: Span,
        /// Standard deviation of the duration.
        deviation: Span,
        /// Class of the curve. Kernels of the same class have correlated errors.
        class: CorrelatedErrorClass,
    },
    /// Duration and energy under the best mapping of the kernel's loop nest.
    Mapped {
        /// The duration.
        span: Span,
        /// Energy in picojoules.
        energy: f64,
    },
    /// Roofline duration, because no duration was recorded.
    Estimated(Span),
    /// Lower bound of the duration from the bytes moved, because FLOPs are unknown and no duration was recorded.
    BytesAlone(Span),
    /// Nothing is known about this kernel, so it takes no time.
    Unknown,
    /// Unknown duration, which counts as zero: the kernel has FLOPs but no recorded duration, and the class lacks a
    /// peak rate for its format. `None` if the trace states no format.
    NoPeak(Option<Dtype>),
}

impl KernelDurationWithBasis {
    /// Returns the duration, whatever its basis.
    pub fn duration(self) -> Span {
        match self {
            Self::Modeled(span)
            | Self::Fallback(span)
            | Self::Kept(span)
            | Self::Curve { span, .. }
            | Self::Mapped { span, .. }
            | Self::Estimated(span)
            | Self::BytesAlone(span) => span,
            Self::Unknown | Self::NoPeak(_) => Span::ZERO,
        }
    }
}

impl KernelDurationSource {
    /// Returns true if the model computes durations from FLOPs and bytes even if one was recorded.
    pub fn ignores_recorded_durations(self) -> bool {
        match self {
            Self::Roofline(_)
            | Self::Curves
            | Self::LoopNest(_)
            | Self::RecordedOn(_)
            | Self::RecordedOnDevices => true,
            Self::Recorded(_) | Self::Scaled(..) | Self::RecordedOnly => false,
        }
    }

    /// Returns true if roofline times assume the full peak rates, because no fraction of the peaks was given.
    pub fn assumes_full_peak_rates(self) -> bool {
        match self {
            Self::Roofline(efficiency)
            | Self::Recorded(efficiency)
            | Self::Scaled(_, efficiency) => !efficiency.stated,
            Self::Curves => true,
            _ => false,
        }
    }

    /// Returns the model for kernels on the NPU class `name`. Kernels that were recorded on another maker's NPU keep
    /// their recorded durations.
    pub fn keep_recorded_if_other_npu_maker(self, name: &str) -> Self {
        match self {
            Self::RecordedOn(class) => {
                Self::RecordedOn(class.keep_recorded_times_if_maker_differs(maker_of(name)))
            }
            other => other,
        }
    }

    /// Returns true if kernels were recorded on an NPU whose rates differ from `peaks` and `memory`.
    pub fn was_recorded_at_other_rates(
        self,
        peaks: &PeakRatesByFormat,
        memory: Option<Bandwidth>,
    ) -> bool {
        match (self, memory) {
            (Self::RecordedOn(class), Some(memory)) => !class.has_same_rates(peaks, memory),
            _ => false,
        }
    }

    /// Returns true if kernels keep their recorded durations.
    pub fn keeps_recorded_durations(self) -> bool {
        matches!(self, Self::Recorded(_) | Self::RecordedOnly)
    }

    /// Returns the same model with roofline durations at `efficiency`, or `None` if the efficiency
    /// would have no effect.
    pub fn with_roofline_efficiency(self, efficiency: RooflinePeakFraction) -> Option<Self> {
        match self {
            Self::Scaled(factor, _) => Some(Self::Scaled(factor, efficiency)),
            Self::Roofline(_) => Some(Self::Roofline(efficiency)),
            Self::Recorded(_) => Some(Self::Recorded(efficiency)),
            Self::Curves
            | Self::LoopNest(_)
            | Self::RecordedOn(_)
            | Self::RecordedOnDevices
            | Self::RecordedOnly => None,
        }
    }

    /// Returns true if the user chose a model under which kernels may take no time.
    pub fn allows_zero_time_kernels(self) -> bool {
        match self {
            Self::RecordedOnly => true,
            Self::Scaled(factor, _) => factor == 0.0,
            Self::Recorded(_)
            | Self::RecordedOn(_)
            | Self::RecordedOnDevices
            | Self::Curves
            | Self::Roofline(_)
            | Self::LoopNest(_) => false,
        }
    }

    /// Returns true if the model uses the NPU class's curves, if there are any, for kernels without
    /// a recorded duration.
    pub fn prefers_curves(self) -> bool {
        match self {
            Self::Recorded(efficiency) | Self::Scaled(_, efficiency) => !efficiency.stated,
            Self::Curves => true,
            Self::Roofline(_)
            | Self::RecordedOn(_)
            | Self::RecordedOnDevices
            | Self::RecordedOnly
            | Self::LoopNest(_) => false,
        }
    }

    /// Returns the duration of `kernel` and its basis, on a class with these peaks, memory bandwidth and curves.
    /// Without a bandwidth, neither the roofline nor the curves give a time.
    pub fn price_kernel(
        &self,
        kernel: &KernelTraceFacts<'_>,
        peaks: &PeakRatesByFormat,
        memory: Option<Bandwidth>,
        curves: &KernelTimeCurves,
    ) -> KernelDurationWithBasis {
        let timed = kernel.captured || kernel.recorded > Span::ZERO;
        let factor = match *self {
            Self::Scaled(factor, _) => factor,
            _ => 1.0,
        };
        let elsewhere =
            matches!(self, Self::RecordedOn(class) if class.keeps_recorded_time_on_other_maker());
        let keeps = timed && (elsewhere || !self.ignores_recorded_durations());
        if kernel.flops_unknown && !keeps {
            return self.recorded_or_memory_time_without_flops(kernel, memory, factor);
        }
        if (*self == Self::Curves || self.prefers_curves() && !timed)
            && let Some(price) =
                memory.and_then(|memory| curves.price_kernel(kernel, peaks, memory))
        {
            let span = scaled::scale_recorded_duration(price.span, factor);
            return KernelDurationWithBasis::Curve {
                span,
                deviation: scaled::scale_recorded_duration(span, price.error),
                class: price.class,
            };
        }
        let recorded = timed.then_some(kernel.recorded);
        let roofline = |efficiency| roofline::roofline_duration(kernel, peaks, memory?, efficiency);
        let times = |factor, span| scaled::scale_recorded_duration(span, factor);
        let priced = match (*self, recorded) {
            (Self::Recorded(_) | Self::RecordedOnly, Some(span)) => {
                Some(KernelDurationWithBasis::Modeled(span))
            }
            (Self::Scaled(factor, _), Some(span)) => {
                Some(KernelDurationWithBasis::Modeled(times(factor, span)))
            }
            (Self::RecordedOn(class), Some(span)) if class.keeps_recorded_time_on_other_maker() => {
                Some(KernelDurationWithBasis::Kept(span))
            }
            // The recording device is unknown, so the recorded duration is kept.
            (Self::RecordedOnDevices, Some(span)) => Some(KernelDurationWithBasis::Kept(span)),
            (Self::RecordedOn(class), Some(span)) => {
                let carried =
                    memory.and_then(|memory| class.scale_time_to_class(kernel, peaks, memory));
                Some(carried.map_or(
                    KernelDurationWithBasis::Fallback(span),
                    KernelDurationWithBasis::Modeled,
                ))
            }
            (Self::RecordedOn(_) | Self::RecordedOnDevices, None) => {
                roofline(RooflinePeakFraction::default()).map(KernelDurationWithBasis::Estimated)
            }
            (Self::Recorded(efficiency), None) => {
                roofline(efficiency).map(KernelDurationWithBasis::Estimated)
            }
            (Self::Scaled(factor, efficiency), None) => roofline(efficiency)
                .map(|span| KernelDurationWithBasis::Estimated(times(factor, span))),
            (Self::Roofline(_) | Self::Curves, _) => {
                let efficiency = match *self {
                    Self::Roofline(efficiency) => efficiency,
                    _ => RooflinePeakFraction::default(),
                };
                roofline(efficiency)
                    .map(KernelDurationWithBasis::Modeled)
                    .or(recorded
                        .filter(|&span| span > Span::ZERO)
                        .map(KernelDurationWithBasis::Fallback))
            }
            (Self::LoopNest(model), _) => {
                let found =
                    model
                        .price_kernel(kernel)
                        .map(|price| KernelDurationWithBasis::Mapped {
                            span: model.convert_cycles_to_time(price),
                            energy: price.energy,
                        });
                found.or(recorded
                    .filter(|&span| span > Span::ZERO)
                    .map(KernelDurationWithBasis::Fallback))
            }
            (Self::RecordedOnly, None) => Some(KernelDurationWithBasis::Unknown),
        };
        priced.unwrap_or(
            if kernel.flops > 0 || memory.is_none() && kernel.bytes > 0 {
                KernelDurationWithBasis::NoPeak(kernel.dtype)
            } else {
                KernelDurationWithBasis::Unknown
            },
        )
    }
}

impl KernelDurationSource {
    /// Returns the recorded duration of a kernel with unknown FLOPs. If nothing was recorded, returns the time of the
    /// kernel's memory traffic, or `Unknown` if the model allows only recorded durations.
    fn recorded_or_memory_time_without_flops(
        self,
        kernel: &KernelTraceFacts<'_>,
        memory: Option<Bandwidth>,
        factor: f64,
    ) -> KernelDurationWithBasis {
        if kernel.captured || kernel.recorded > Span::ZERO {
            return KernelDurationWithBasis::Fallback(kernel.recorded);
        }
        match memory {
            Some(memory) if kernel.bytes > 0 && self != Self::RecordedOnly => {
                let span =
                    memory.serialization_time(UnroundedBufferShare::from_bytes(kernel.bytes));
                KernelDurationWithBasis::BytesAlone(scaled::scale_recorded_duration(span, factor))
            }
            _ => KernelDurationWithBasis::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_a100_rates() -> (PeakRatesByFormat, Option<Bandwidth>) {
        let mut peaks = PeakRatesByFormat::default();
        peaks.set_peak(Dtype::Bf16, FlopRate::new(312e12).unwrap());
        peaks.set_peak(Dtype::Fp32, FlopRate::new(19.5e12).unwrap());
        (peaks, Bandwidth::new(2e12))
    }

    const PEAK: KernelDurationSource = KernelDurationSource::Roofline(RooflinePeakFraction {
        fraction: 1.0,
        stated: true,
    });

    const KERNEL: KernelTraceFacts<'_> = KernelTraceFacts {
        name: "",
        recorded: Span(5_000_000),
        captured: false,
        flops: 312_000_000,
        flops_unknown: false,
        bytes: 1_000_000,
        dtype: Some(Dtype::Bf16),
        shape: None,
    };

    #[test]
    fn roofline_is_the_longer_of_arithmetic_and_memory() {
        let (peaks, memory) = build_a100_rates();
        let price = |k: KernelTraceFacts<'_>| {
            PEAK.price_kernel(&k, &peaks, memory, &KernelTimeCurves::default())
        };
        // 312e6 / 312e12 = 1 us; 1e6 / 2e12 = 0.5 us.
        assert_eq!(
            price(KERNEL),
            KernelDurationWithBasis::Modeled(Span(1_000_000))
        );
        // Four times the bytes take 4e6 / 2e12 = 2 us.
        let heavy = KernelTraceFacts {
            bytes: 4_000_000,
            ..KERNEL
        };
        assert_eq!(
            price(heavy),
            KernelDurationWithBasis::Modeled(Span(2_000_000))
        );
        // In single precision, the kernel takes 312e6 / 19.5e12 = 16 us.
        let single = KernelTraceFacts {
            dtype: Some(Dtype::Fp32),
            ..KERNEL
        };
        assert_eq!(
            price(single),
            KernelDurationWithBasis::Modeled(Span(16_000_000))
        );
    }

    #[test]
    fn an_efficiency_slows_arithmetic_and_memory_alike() {
        let (peaks, memory) = build_a100_rates();
        let at = |fraction: f64, kernel: &KernelTraceFacts<'_>| {
            let efficiency = RooflinePeakFraction::new(fraction).unwrap();
            KernelDurationSource::Roofline(efficiency).price_kernel(
                kernel,
                &peaks,
                memory,
                &KernelTimeCurves::default(),
            )
        };
        // 312e6 / (0.64 x 312e12) = 1 us / 0.64 = 1.5625 us; memory: 0.5 us / 0.64 = 0.78125 us.
        assert_eq!(
            at(0.64, &KERNEL),
            KernelDurationWithBasis::Modeled(Span(1_562_500))
        );
        // 4e6 / (0.64 x 2e12) = 2 us / 0.64 = 3.125 us, more than the unchanged arithmetic time.
        let heavy = KernelTraceFacts {
            bytes: 4_000_000,
            ..KERNEL
        };
        assert_eq!(
            at(0.64, &heavy),
            KernelDurationWithBasis::Modeled(Span(3_125_000))
        );
        // A kernel with neither FLOPs nor bytes keeps the recorded duration.
        let bare = KernelTraceFacts {
            flops: 0,
            bytes: 0,
            ..KERNEL
        };
        assert_eq!(
            at(0.64, &bare),
            KernelDurationWithBasis::Fallback(Span(5_000_000))
        );
    }

    #[test]
    fn kernels_of_unknown_flops_keep_their_time() {
        let (peaks, memory) = build_a100_rates();
        let price = |model: KernelDurationSource, kernel: &KernelTraceFacts<'_>| {
            model.price_kernel(kernel, &peaks, memory, &KernelTimeCurves::default())
        };
        let recorded = KernelDurationSource::default();
        let attention = KernelTraceFacts {
            flops: 0,
            flops_unknown: true,
            bytes: 4_000_000,
            ..KERNEL
        };
        let kept = Span(5_000_000);
        assert_eq!(
            price(PEAK, &attention),
            KernelDurationWithBasis::Fallback(kept)
        );
        assert_eq!(
            price(recorded, &attention),
            KernelDurationWithBasis::Modeled(kept)
        );
        // A kernel without a recorded duration takes at least 4e6 / 2e12 = 2 us for its memory traffic, multiplied by
        // the factor if the model is scaled.
        let untimed = KernelTraceFacts {
            recorded: Span::ZERO,
            ..attention
        };
        let least = Span(2_000_000);
        assert_eq!(
            price(PEAK, &untimed),
            KernelDurationWithBasis::BytesAlone(least)
        );
        assert_eq!(
            price(recorded, &untimed),
            KernelDurationWithBasis::BytesAlone(least)
        );
        let half = KernelDurationSource::Scaled(0.5, RooflinePeakFraction::default());
        let expected = KernelDurationWithBasis::BytesAlone(Span(1_000_000));
        assert_eq!(price(half, &untimed), expected);
        let only = KernelDurationSource::RecordedOnly;
        assert_eq!(price(only, &untimed), KernelDurationWithBasis::Unknown);
    }

    #[test]
    fn efficiencies_are_fractions() {
        for bad in [0.0, -0.5, 1.000_001, f64::NAN, f64::INFINITY] {
            assert_eq!(RooflinePeakFraction::new(bad), None);
        }
        for good in [f64::MIN_POSITIVE, 0.5, 1.0] {
            assert_eq!(
                RooflinePeakFraction::new(good).map(RooflinePeakFraction::as_fraction),
                Some(good)
            );
        }
        // At 1e-300 of the peak, 1 us grows beyond the longest representable time, so the result saturates instead of
        // wrapping.
        let (peaks, memory) = build_a100_rates();
        let crawl = KernelDurationSource::Roofline(RooflinePeakFraction::new(1e-300).unwrap());
        assert_eq!(
            crawl
                .price_kernel(&KERNEL, &peaks, memory, &KernelTimeCurves::default())
                .duration(),
            Span(u64::MAX)
        );
        let none = RooflinePeakFraction::new(f64::MIN_POSITIVE).unwrap();
        let none = KernelDurationSource::Roofline(none).price_kernel(
            &KERNEL,
            &peaks,
            memory,
            &KernelTimeCurves::default(),
        );
        assert_eq!(none.duration(), Span(u64::MAX));
    }

    #[test]
    fn kernels_that_the_roofline_cannot_price_are_marked_as_fallback() {
        let (peaks, memory) = build_a100_rates();
        let price = |k: KernelTraceFacts<'_>| {
            PEAK.price_kernel(&k, &peaks, memory, &KernelTimeCurves::default())
        };
        let bare = KernelTraceFacts {
            flops: 0,
            bytes: 0,
            ..KERNEL
        };
        assert_eq!(
            price(bare),
            KernelDurationWithBasis::Fallback(Span(5_000_000))
        );
        let fp8 = KernelTraceFacts {
            dtype: Some(Dtype::Fp8),
            ..KERNEL
        };
        assert_eq!(
            price(fp8),
            KernelDurationWithBasis::Fallback(Span(5_000_000))
        );
        // A kernel has no known duration if the class has no peak for its format and no duration was recorded. Without
        // FLOPs, the kernel's bytes determine the duration: 1e6 / 2e12 s.
        let generated = KernelTraceFacts {
            recorded: Span::ZERO,
            ..fp8
        };
        assert_eq!(
            price(generated),
            KernelDurationWithBasis::NoPeak(Some(Dtype::Fp8))
        );
        let moved = KernelTraceFacts {
            flops: 0,
            ..generated
        };
        assert_eq!(
            price(moved),
            KernelDurationWithBasis::Modeled(Span(500_000))
        );
        let none = PEAK.price_kernel(
            &KernelTraceFacts {
                dtype: None,
                ..generated
            },
            &PeakRatesByFormat::default(),
            memory,
            &KernelTimeCurves::default(),
        );
        assert_eq!(none, KernelDurationWithBasis::NoPeak(None));
        let nothing = KernelTraceFacts {
            recorded: Span::ZERO,
            ..bare
        };
        assert_eq!(price(nothing), KernelDurationWithBasis::Unknown);
    }

    #[test]
    fn scaling_multiplies_what_was_recorded() {
        let (peaks, memory) = build_a100_rates();
        let quarter = KernelDurationSource::Scaled(0.25, RooflinePeakFraction::default());
        let price = quarter.price_kernel(&KERNEL, &peaks, memory, &KernelTimeCurves::default());
        assert_eq!(price, KernelDurationWithBasis::Modeled(Span(1_250_000)));
    }

    #[test]
    fn kernels_without_recorded_duration_take_roofline_time() {
        let (peaks, memory) = build_a100_rates();
        let half = RooflinePeakFraction::new(0.5).unwrap();
        let price = |model: KernelDurationSource, k| {
            model.price_kernel(&k, &peaks, memory, &KernelTimeCurves::default())
        };
        let unrecorded = KernelTraceFacts {
            recorded: Span::ZERO,
            ..KERNEL
        };
        // 312e6 / (0.5 x 312e12) = 2 us, as with roofline alone. A factor of 0.25 reduces this to 0.5 us.
        let recorded = KernelDurationSource::Recorded(half);
        let estimate = price(recorded, unrecorded);
        assert_eq!(
            estimate,
            KernelDurationWithBasis::Estimated(Span(2_000_000))
        );
        let roofline = price(KernelDurationSource::Roofline(half), unrecorded);
        assert_eq!(roofline.duration(), estimate.duration());
        let quarter = price(KernelDurationSource::Scaled(0.25, half), unrecorded);
        assert_eq!(quarter, KernelDurationWithBasis::Estimated(Span(500_000)));
        // A kernel with a recorded duration keeps it instead of an estimate.
        let price_of = price(recorded, KERNEL);
        assert_eq!(price_of, KernelDurationWithBasis::Modeled(Span(5_000_000)));
        // A kernel has no known duration if its format has no peak, or if it has neither FLOPs nor bytes.
        let fp8 = KernelTraceFacts {
            dtype: Some(Dtype::Fp8),
            ..unrecorded
        };
        let no_peak = KernelDurationWithBasis::NoPeak(Some(Dtype::Fp8));
        assert_eq!(price(recorded, fp8), no_peak);
        let nothing = KernelTraceFacts {
            flops: 0,
            bytes: 0,
            ..unrecorded
        };
        assert_eq!(price(recorded, nothing), KernelDurationWithBasis::Unknown);
        // In a capture, a zero duration is a known value: the operator spent all its time before the kernel.
        let captured = KernelTraceFacts {
            captured: true,
            ..unrecorded
        };
        let none = KernelDurationWithBasis::Modeled(Span::ZERO);
        assert_eq!(price(recorded, captured), none);
        assert_eq!(
            price(KernelDurationSource::Roofline(half), captured),
            roofline
        );
        let only = price(KernelDurationSource::RecordedOnly, unrecorded);
        assert_eq!(only, KernelDurationWithBasis::Unknown);
    }
}
