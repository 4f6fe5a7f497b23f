//! Counts where a replay's durations come from.

use chakram_hardware::compute::{CorrelatedErrorClass, KernelDurationWithBasis};

/// Node counts and total node times, by where the durations come from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DurationSourceCounts {
    /// Number of kernels that the chosen compute model timed.
    pub priced: u64,
    /// Number of kernels that take their roofline time because they have no recorded duration.
    pub estimated: u64,
    /// Number of kernels that kept their recorded duration because FLOPs, bytes or a peak rate is missing for the
    /// roofline.
    pub fell_back: u64,
    /// Total duration of the kernels in `fell_back`, in picoseconds.
    pub fell_back_time: u128,
    /// Number of kernels that kept their recorded duration because they were recorded on another maker's NPU.
    pub kept: u64,
    /// Total duration of the kernels in `kept`, in picoseconds; included in `recorded_time`.
    pub kept_time: u128,
    /// True if recorded kernels run on an NPU class whose rates differ from those of the NPU where they were recorded.
    pub carried: bool,
    /// True if the options name the NPU class on which kernels were recorded.
    pub recording_class_known: bool,
    /// Number of kernels in `fell_back` that lack only the FLOPs.
    pub flops_unknown: u64,
    /// Total duration of the kernels in `flops_unknown`, in picoseconds.
    pub flops_unknown_time: u128,
    /// Number of kernels with unknown FLOPs, whose duration is bounded from below by their bytes; included in
    /// `estimated`.
    pub by_bytes: u64,
    /// Number of kernels that take no time because neither their sizes nor their durations are known.
    pub unknown: u64,
    /// Number of kernels with durations from curves.
    pub by_curves: u64,
    /// Total duration of the kernels in `by_curves`, in picoseconds.
    pub curve_time: u128,
    /// For each [`CorrelatedErrorClass`], the sum of the standard deviations of the kernels in `by_curves`, in
    /// picoseconds.
    pub curve_deviations: [u128; CorrelatedErrorClass::COUNT],
    /// Total duration of kernels with recorded durations, in picoseconds.
    pub recorded_time: u128,
    /// Total duration of kernels with roofline times, in picoseconds.
    pub roofline_time: u128,
    /// Number of kernels in `priced` that take roofline times because no curve applies to them, although the options
    /// request curves.
    pub without_curve: u64,
    /// Number of kernels with durations from loop nests; included in `priced`.
    pub mapped: u64,
    /// Total duration of the kernels in `mapped`, in picoseconds; included in `roofline_time`.
    pub mapped_time: u128,
    /// Total energy of the kernels in `mapped`, in picojoules.
    pub mapped_energy: f64,
    /// True if roofline times assume peak rates because no efficiency is given.
    pub at_peaks: bool,
    /// Number of collective and message nodes that take their recorded or captured duration.
    pub as_recorded: u64,
    /// Number of nodes in `as_recorded` that take no time because the trace has no duration for them.
    pub unrecorded: u64,
    /// Number of collective and message nodes that take their recorded duration because their size is unknown.
    pub size_unknown: u64,
    /// Total recorded transfer time of the nodes in `size_unknown`, in picoseconds.
    pub size_unknown_time: u128,
    /// Number of nodes in `size_unknown` that take no time because the trace has no duration for them.
    pub size_unknown_free: u64,
    /// Number of communication nodes with an unknown operation or unknown partners, which take their recorded duration.
    pub comm_unknown: u64,
    /// Total recorded duration of the nodes in `comm_unknown`, in picoseconds.
    pub comm_unknown_time: u128,
    /// Number of nodes in `comm_unknown` that take no time because the trace has no duration for them.
    pub comm_unknown_free: u64,
    /// Number of trace lanes beyond the machine's lanes; each of them shares a machine lane with others.
    pub sharing: u64,
}

impl DurationSourceCounts {
    pub(super) fn add_source_counts(&mut self, other: Self) {
        self.priced += other.priced;
        self.estimated += other.estimated;
        self.fell_back += other.fell_back;
        self.fell_back_time += other.fell_back_time;
        self.kept += other.kept;
        self.kept_time += other.kept_time;
        self.carried |= other.carried;
        self.recording_class_known |= other.recording_class_known;
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
        self.without_curve += other.without_curve;
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

    /// Returns the fraction of kernel time that loop nests do not account for, or 0 if there are no kernels.
    pub fn kernel_time_share_without_loop_nest(&self) -> f64 {
        let all = self.recorded_time + self.roofline_time + self.curve_time;
        let rest = all.saturating_sub(self.mapped_time);
        rest as f64 / all.max(1) as f64
    }

    /// Counts a kernel by where its duration comes from. `computes` is true if the compute model also sets the
    /// durations of recorded kernels.
    pub(super) fn count_kernel_duration_source(
        &mut self,
        price: KernelDurationWithBasis,
        computes: bool,
    ) {
        let (count, time) = match price {
            KernelDurationWithBasis::Modeled(span) if computes => {
                (&mut self.priced, Some((&mut self.roofline_time, span)))
            }
            KernelDurationWithBasis::Modeled(span) => {
                (&mut self.priced, Some((&mut self.recorded_time, span)))
            }
            KernelDurationWithBasis::Fallback(span) => {
                self.fell_back_time += u128::from(span.0);
                (&mut self.fell_back, Some((&mut self.recorded_time, span)))
            }
            KernelDurationWithBasis::Kept(span) => {
                self.kept_time += u128::from(span.0);
                (&mut self.kept, Some((&mut self.recorded_time, span)))
            }
            KernelDurationWithBasis::Estimated(span) => {
                (&mut self.estimated, Some((&mut self.roofline_time, span)))
            }
            KernelDurationWithBasis::BytesAlone(span) => {
                self.by_bytes += 1;
                (&mut self.estimated, Some((&mut self.roofline_time, span)))
            }
            KernelDurationWithBasis::Curve {
                span,
                deviation,
                class,
            } => {
                self.curve_deviations[class as usize] += u128::from(deviation.0);
                (&mut self.by_curves, Some((&mut self.curve_time, span)))
            }
            KernelDurationWithBasis::Mapped { span, energy } => {
                self.mapped += 1;
                self.mapped_time += u128::from(span.0);
                self.mapped_energy += energy;
                (&mut self.priced, Some((&mut self.roofline_time, span)))
            }
            KernelDurationWithBasis::Unknown => (&mut self.unknown, None),
            KernelDurationWithBasis::NoPeak(_) => return,
        };
        *count += 1;
        if let Some((sum, span)) = time {
            *sum += u128::from(span.0);
        }
    }
}
