//! Origins of the durations of a replay.

use chakram_hardware::compute::{CurveClass, KernelTiming};

/// Basis of the durations of a replay, counted in nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PricingCoverage {
    /// Kernels priced by the chosen compute model.
    pub priced: u64,
    /// Kernels priced by roofline, because they have no recorded duration.
    pub estimated: u64,
    /// Kernels that kept their recorded duration, because the roofline lacks FLOPs, bytes or a peak.
    pub fell_back: u64,
    /// Sum of their durations, in picoseconds.
    pub fell_back_time: u128,
    /// Kernels that kept their recorded duration, because they were recorded on an NPU of another maker.
    pub kept: u64,
    /// Sum of their durations, in picoseconds, which is part of `recorded_time`.
    pub kept_time: u128,
    /// Whether kernels were recorded on an NPU of other rates than a class that they run on.
    pub carried: bool,
    /// Of `fell_back`, kernels whose FLOPs alone are unknown.
    pub flops_unknown: u64,
    /// Sum of their durations, in picoseconds.
    pub flops_unknown_time: u128,
    /// Kernels priced by their bytes alone, a lower bound, as their FLOPs are unknown; they are among `estimated`.
    pub by_bytes: u64,
    /// Kernels without any known size or duration; they take no time.
    pub unknown: u64,
    /// Kernels priced by curves.
    pub by_curves: u64,
    /// Sum of the durations of kernels by curves, in picoseconds.
    pub curve_time: u128,
    /// Sum of their standard deviations, by [`CurveClass`], in picoseconds.
    pub curve_deviations: [u128; CurveClass::COUNT],
    /// Sum of the durations of kernels that rest on recorded ones, in picoseconds.
    pub recorded_time: u128,
    /// Sum of the durations of kernels by roofline, in picoseconds.
    pub roofline_time: u128,
    /// Kernels priced by loop nests, which are among `priced`.
    pub mapped: u64,
    /// Sum of their durations, in picoseconds, which is part of `roofline_time`.
    pub mapped_time: u128,
    /// Sum of their energy, in picojoules.
    pub mapped_energy: f64,
    /// Whether kernels by roofline run at the peak rates because nobody states a part of them.
    pub at_peaks: bool,
    /// Collectives and messages that last as recorded or captured, counted by their nodes.
    pub as_recorded: u64,
    /// Of those, nodes without a duration in the trace; they take no time.
    pub unrecorded: u64,
    /// Nodes of collectives and messages that last as recorded because nobody knows their size.
    pub size_unknown: u64,
    /// Sum of their recorded transfers, in picoseconds.
    pub size_unknown_time: u128,
    /// Of those, nodes without a duration in the trace; they take no time.
    pub size_unknown_free: u64,
    /// Nodes of communication whose operation or partners nobody knows; they last as recorded.
    pub comm_unknown: u64,
    /// Sum of their recorded durations, in picoseconds.
    pub comm_unknown_time: u128,
    /// Of those, nodes without a duration in the trace; they take no time.
    pub comm_unknown_free: u64,
    /// Lanes of the traces beyond those of the machine, which share one.
    pub sharing: u64,
}

impl PricingCoverage {
    pub(super) fn add(&mut self, other: Self) {
        self.priced += other.priced;
        self.estimated += other.estimated;
        self.fell_back += other.fell_back;
        self.fell_back_time += other.fell_back_time;
        self.kept += other.kept;
        self.kept_time += other.kept_time;
        self.carried |= other.carried;
        self.flops_unknown += other.flops_unknown;
        self.flops_unknown_time += other.flops_unknown_time;
        self.by_bytes += other.by_bytes;
        self.unknown += other.unknown;
        self.by_curves += other.by_curves;
        self.curve_time += other.curve_time;
        for (sum, other) in self.curve_deviations.iter_mut().zip(other.curve_deviations) {
            *sum += other;
        }
        self.recorded_time += other.recorded_time;
        self.roofline_time += other.roofline_time;
        self.mapped += other.mapped;
        self.mapped_time += other.mapped_time;
        self.mapped_energy += other.mapped_energy;
        self.at_peaks |= other.at_peaks;
        self.as_recorded += other.as_recorded;
        self.unrecorded += other.unrecorded;
        self.size_unknown += other.size_unknown;
        self.size_unknown_time += other.size_unknown_time;
        self.size_unknown_free += other.size_unknown_free;
        self.comm_unknown += other.comm_unknown;
        self.comm_unknown_time += other.comm_unknown_time;
        self.comm_unknown_free += other.comm_unknown_free;
        self.sharing += other.sharing;
    }

    /// Part of the time of kernels that loop nests do not price; 0 where there are no kernels.
    pub fn unmapped_share(&self) -> f64 {
        let all = self.recorded_time + self.roofline_time + self.curve_time;
        let rest = all.saturating_sub(self.mapped_time);
        rest as f64 / all.max(1) as f64
    }

    /// Counts a kernel with this price, unless it has none.
    pub(super) fn kernel(&mut self, price: KernelTiming, computes: bool) {
        let (count, time) = match price {
            KernelTiming::Modeled(span) if computes => {
                (&mut self.priced, Some((&mut self.roofline_time, span)))
            }
            KernelTiming::Modeled(span) => {
                (&mut self.priced, Some((&mut self.recorded_time, span)))
            }
            KernelTiming::Fallback(span) => {
                self.fell_back_time += u128::from(span.0);
                (&mut self.fell_back, Some((&mut self.recorded_time, span)))
            }
            KernelTiming::Kept(span) => {
                self.kept_time += u128::from(span.0);
                (&mut self.kept, Some((&mut self.recorded_time, span)))
            }
            KernelTiming::Estimated(span) => {
                (&mut self.estimated, Some((&mut self.roofline_time, span)))
            }
            KernelTiming::BytesAlone(span) => {
                self.by_bytes += 1;
                (&mut self.estimated, Some((&mut self.roofline_time, span)))
            }
            KernelTiming::Curve {
                span,
                deviation,
                class,
            } => {
                self.curve_deviations[class as usize] += u128::from(deviation.0);
                (&mut self.by_curves, Some((&mut self.curve_time, span)))
            }
            KernelTiming::Mapped { span, energy } => {
                self.mapped += 1;
                self.mapped_time += u128::from(span.0);
                self.mapped_energy += energy;
                (&mut self.priced, Some((&mut self.roofline_time, span)))
            }
            KernelTiming::Unknown => (&mut self.unknown, None),
            KernelTiming::NoPeak(_) => return,
        };
        *count += 1;
        if let Some((sum, span)) = time {
            *sum += u128::from(span.0);
        }
    }
}
