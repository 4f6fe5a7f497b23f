//! Measured kernels, identified by name. Their times are known at the measured sizes, and estimated for others.
//!
//! If kernels with the same name, number format, FLOPs and bytes were measured, a kernel takes the mean of their times.
//! For any other kernel of a measured name and format, the time is estimated from its work `w`. A name's work is FLOPs
//! if all its measured sizes have FLOPs, and otherwise bytes:
//!
//! ```text
//! between two:     ln t = ln t_a + (ln t_b - ln t_a) (ln w - ln w_a) / (ln w_b - ln w_a)
//! beyond the last: t = w (sum of t) / (sum of w), over sizes of at least half the work of the last
//! below the first: t = max(w (sum of t) / (sum of w), shortest), over sizes of at most twice the work of the first
//! ```
//!
//! Outside the measured range, time is proportional to work. The time per unit of work is the mean over all sizes
//! within a factor of two of the nearest measured size. If only one size counted, its random error would affect all
//! estimates outside the range. No estimate is below the shortest time of any measured kernel, because that is the time
//! of a launch. Times of kernels with equal work are averaged. Some kernels took no time because they ran inside
//! others. A time of zero applies only to kernels of the same size, and does not enter interpolations.
//!
//! If an NPU's peaks or memory bandwidth differ from the measured NPU's, measured times are
//! [scaled](super::recorded_on) in the same way as recorded times.

use super::{KernelTraceFacts, PeakRatesByFormat, RecordingNpuClass};
use chakram_base::dtype::Dtype;
use chakram_base::units::{Bandwidth, Span};
use std::collections::BTreeMap;

/// Mean time of kernels with the same number of FLOPs and bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredTimeAtFlopsAndBytes {
    /// Number of operations per kernel.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Mean duration in seconds.
    pub seconds: f64,
}

/// Times of the kernels with one name and format, and their relative errors (one standard deviation).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SameKernelTimesByWorkAmount {
    /// Times in ascending order of FLOPs, then bytes.
    times: Vec<MeasuredTimeAtFlopsAndBytes>,
    /// Pairs (work, seconds) in ascending order of work; each value of work occurs once.
    by_work: Vec<(f64, f64)>,
    /// Seconds per unit of work, one value for work below the smallest measured and one for work above the largest.
    ends: [f64; 2],
    /// True if work is FLOPs, false if bytes.
    by_flops: bool,
    /// Relative error for measured sizes.
    error: f64,
    /// Relative error for other sizes.
    between: f64,
}

impl SameKernelTimesByWorkAmount {
    /// Returns `None` if `times` is empty, has the same FLOPs and bytes twice, or contains a time below zero.
    pub fn new(
        mut times: Vec<MeasuredTimeAtFlopsAndBytes>,
        error: f64,
        between: f64,
    ) -> Option<Self> {
        let size = |time: &MeasuredTimeAtFlopsAndBytes| (time.flops, time.bytes);
        times.sort_by_key(size);
        let twice = times
            .windows(2)
            .any(|pair| size(&pair[0]) == size(&pair[1]));
        let known =
            |time: &MeasuredTimeAtFlopsAndBytes| time.seconds >= 0.0 && time.seconds.is_finite();
        if times.is_empty() || twice || !times.iter().all(known) {
            return None;
        }
        let by_flops = times.iter().all(|time| time.flops > 0);
        let work =
            |time: &MeasuredTimeAtFlopsAndBytes| if by_flops { time.flops } else { time.bytes };
        let mut sums: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
        for time in times.iter().filter(|time| time.seconds > 0.0) {
            let (sum, count) = sums.entry(work(time)).or_default();
            *sum += time.seconds;
            *count += 1.0;
        }
        let mean = |(work, (sum, count)): (u64, (f64, f64))| (work as f64, sum / count);
        let by_work: Vec<_> = sums.into_iter().map(mean).collect();
        let first = by_work.first().map_or(0.0, |&(work, _)| work);
        let last = by_work.last().map_or(0.0, |&(work, _)| work);
        let rate = |near: &dyn Fn(f64) -> bool| {
            let near = by_work.iter().filter(|&&(work, _)| near(work));
            let sums = near.fold((0.0, 0.0), |sums, at| (sums.0 + at.0, sums.1 + at.1));
            sums.1 / f64::max(sums.0, 1.0)
        };
        Some(Self {
            ends: [
                rate(&|work| work <= 2.0 * first),
                rate(&|work| work >= last / 2.0),
            ],
            by_work,
            times,
            by_flops,
            error,
            between,
        })
    }

    /// Returns the measured times in ascending order of FLOPs, then bytes.
    pub fn measured_times(&self) -> &[MeasuredTimeAtFlopsAndBytes] {
        &self.times
    }

    /// Returns the time, in seconds, of a kernel with these FLOPs and bytes, and its relative error. A kernel with less
    /// work than any measured kernel takes at least `shortest`.
    pub fn interpolate_seconds_and_error(
        &self,
        flops: u64,
        bytes: u64,
        shortest: f64,
    ) -> (f64, f64) {
        let size = |time: &MeasuredTimeAtFlopsAndBytes| (time.flops, time.bytes);
        if let Ok(at) = self.times.binary_search_by_key(&(flops, bytes), size) {
            return (self.times[at].seconds, self.error);
        }
        let work = if self.by_flops { flops } else { bytes } as f64;
        let above = self.by_work.partition_point(|&(known, _)| known < work);
        let seconds = match (above.checked_sub(1), self.by_work.get(above)) {
            (_, Some(&(known, seconds))) if known == work => seconds,
            (Some(below), Some(&(wb, tb))) => {
                let (wa, ta) = self.by_work[below];
                if wa == 0.0 {
                    // The lower point has no work, so the interpolation is linear: zero has no logarithm.
                    ta + (tb - ta) * work / wb
                } else {
                    let part = libm::log(work / wa) / libm::log(wb / wa);
                    ta * libm::exp(libm::log(tb / ta) * part)
                }
            }
            (None, Some(_)) => (self.ends[0] * work).max(shortest),
            (Some(_), None) => self.ends[1] * work,
            (None, None) => 0.0,
        };
        (seconds, self.between)
    }
}

/// Measured kernels of an NPU class, by name and number format.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredKernels {
    by_name: BTreeMap<String, Vec<(Option<Dtype>, SameKernelTimesByWorkAmount)>>,
    /// Shortest measured time of any kernel, in seconds; infinite if no kernel was measured.
    shortest: f64,
    /// NPU class on which all kernels were measured, or `None` if unknown.
    measured_on: Option<RecordingNpuClass>,
}

impl Default for MeasuredKernels {
    fn default() -> Self {
        Self {
            by_name: BTreeMap::new(),
            shortest: f64::INFINITY,
            measured_on: None,
        }
    }
}

impl MeasuredKernels {
    /// Returns true if no kernel was measured.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Sets the NPU class on which all kernels were measured. Has no effect without measurements.
    pub fn set_measured_on(&mut self, class: RecordingNpuClass) {
        self.measured_on = (!self.is_empty()).then_some(class);
    }

    /// Returns the time, in seconds, of `kernel` on an NPU with these rates, and its relative error. Returns `None` if
    /// no kernel with the same name and number format was measured.
    pub fn kernel_seconds_and_error_on_npu(
        &self,
        kernel: &KernelTraceFacts<'_>,
        peaks: &PeakRatesByFormat,
        memory: Bandwidth,
    ) -> Option<(f64, f64)> {
        let (seconds, error) = self.kernel_seconds_and_error(kernel)?;
        let Some(class) = self
            .measured_on
            .filter(|class| !class.has_same_rates(peaks, memory))
        else {
            return Some((seconds, error));
        };
        let recorded = Span::from_seconds_saturating(seconds);
        let kernel = KernelTraceFacts {
            recorded,
            ..*kernel
        };
        let carried = class.scale_time_to_class(&kernel, peaks, memory);
        Some((carried.map_or(seconds, Span::as_seconds), error))
    }

    /// Adds the measured kernels of one name and number format. Returns false if this name and format already exist.
    pub fn add_kernel(
        &mut self,
        name: String,
        dtype: Option<Dtype>,
        kernel: SameKernelTimesByWorkAmount,
    ) -> bool {
        let least = kernel.by_work.iter().map(|&(_, seconds)| seconds);
        let least = least.fold(f64::INFINITY, f64::min);
        let formats = self.by_name.entry(name).or_default();
        if formats.iter().any(|(known, _)| *known == dtype) {
            return false;
        }
        formats.push((dtype, kernel));
        self.shortest = self.shortest.min(least);
        true
    }

    /// Returns the time of `kernel`, in seconds, and its relative error. Returns `None` if no kernel with the same name
    /// and number format was measured.
    pub fn kernel_seconds_and_error(&self, kernel: &KernelTraceFacts<'_>) -> Option<(f64, f64)> {
        let formats = self.by_name.get(kernel.name)?;
        let (_, measured) = formats.iter().find(|(dtype, _)| *dtype == kernel.dtype)?;
        Some(measured.interpolate_seconds_and_error(kernel.flops, kernel.bytes, self.shortest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make_test_measured_time(
        flops: u64,
        bytes: u64,
        seconds: f64,
    ) -> MeasuredTimeAtFlopsAndBytes {
        MeasuredTimeAtFlopsAndBytes {
            flops,
            bytes,
            seconds,
        }
    }

    #[test]
    fn times_are_exact_at_measured_sizes_and_interpolated_between() {
        let times = vec![
            make_test_measured_time(400, 8, 4.0),
            make_test_measured_time(100, 9, 1.0),
            make_test_measured_time(100, 7, 3.0),
        ];
        let kernel = SameKernelTimesByWorkAmount::new(times, 0.1, 0.3).unwrap();
        assert_eq!(
            kernel.interpolate_seconds_and_error(100, 7, 0.5),
            (3.0, 0.1)
        );
        assert_eq!(
            kernel.interpolate_seconds_and_error(400, 8, 0.5),
            (4.0, 0.1)
        );
        // A kernel with 100 FLOPs but a different number of bytes takes the mean of the times with 100 FLOPs: (1 + 3) /
        // 2.
        assert_eq!(
            kernel.interpolate_seconds_and_error(100, 8, 0.5),
            (2.0, 0.3)
        );
        // In logarithms, 200 is halfway between 100 and 400, so the time is the geometric mean of 2 and 4.
        let (seconds, error) = kernel.interpolate_seconds_and_error(200, 8, 0.5);
        assert!((seconds - 8f64.sqrt()).abs() < 1e-12 && error == 0.3);
        // Twice the largest work takes twice the time. Half the smallest work takes half the time, but at least the
        // shortest time. No other size is within a factor of two of either end, so each end alone determines its rate.
        assert_eq!(kernel.interpolate_seconds_and_error(800, 1, 0.5).0, 8.0);
        assert_eq!(kernel.interpolate_seconds_and_error(50, 1, 0.5).0, 1.0);
        assert_eq!(kernel.interpolate_seconds_and_error(10, 1, 0.5).0, 0.5);
    }

    #[test]
    fn times_beyond_both_ends_average_sizes_within_a_factor_of_two() {
        let times = [
            (100, 1.0),
            (200, 5.0),
            (1000, 10.0),
            (1500, 40.0),
            (2000, 5.0),
        ];
        let times = times.map(|(flops, seconds)| make_test_measured_time(flops, 1, seconds));
        let kernel = SameKernelTimesByWorkAmount::new(times.to_vec(), 0.0, 0.0).unwrap();
        // Above the largest work, the time per operation is (10 + 40 + 5) / (1000 + 1500 + 2000) seconds. Below the
        // smallest work, the time per operation is (1 + 5) / (100 + 200) seconds.
        assert_eq!(kernel.interpolate_seconds_and_error(9000, 1, 0.5).0, 110.0);
        assert_eq!(kernel.interpolate_seconds_and_error(50, 1, 0.5).0, 1.0);
    }

    #[test]
    fn kernels_without_flops_go_by_bytes() {
        let kernel = SameKernelTimesByWorkAmount::new(
            vec![
                make_test_measured_time(0, 0, 1.0),
                make_test_measured_time(0, 100, 3.0),
            ],
            0.0,
            0.0,
        );
        let kernel = kernel.unwrap();
        // Between zero work and the first size with work, the time is linear.
        assert_eq!(kernel.interpolate_seconds_and_error(0, 50, 0.1).0, 2.0);
        assert_eq!(kernel.interpolate_seconds_and_error(0, 200, 0.1).0, 6.0);
        assert_eq!(kernel.interpolate_seconds_and_error(7, 100, 0.1).0, 3.0);
    }

    #[test]
    fn kernels_measured_at_zero_seconds_take_no_time() {
        let times = vec![
            make_test_measured_time(1, 1, 0.0),
            make_test_measured_time(2, 1, 2.0),
        ];
        let kernel = SameKernelTimesByWorkAmount::new(times, 0.0, 0.0).unwrap();
        assert_eq!(kernel.interpolate_seconds_and_error(1, 1, 0.5).0, 0.0);
        assert_eq!(kernel.interpolate_seconds_and_error(1, 2, 0.5).0, 1.0);
        let kernel =
            SameKernelTimesByWorkAmount::new(vec![make_test_measured_time(1, 1, 0.0)], 0.0, 0.0)
                .unwrap();
        assert_eq!(kernel.interpolate_seconds_and_error(4, 4, 0.5).0, 0.0);
    }

    #[test]
    fn names_and_formats_are_told_apart() {
        let mut all = MeasuredKernels::default();
        let kernel = |seconds| {
            SameKernelTimesByWorkAmount::new(vec![make_test_measured_time(1, 1, seconds)], 0.0, 0.0)
                .unwrap()
        };
        assert!(all.add_kernel("mm".to_owned(), None, kernel(1.0)));
        assert!(all.add_kernel("mm".to_owned(), Some(Dtype::Fp32), kernel(2.0)));
        assert!(!all.add_kernel("mm".to_owned(), None, kernel(3.0)));
        let price = |name, dtype| {
            let profile = KernelTraceFacts {
                name,
                dtype,
                flops: 1,
                bytes: 1,
                ..KernelTraceFacts::default()
            };
            all.kernel_seconds_and_error(&profile)
                .map(|(seconds, _)| seconds)
        };
        assert_eq!(price("mm", None), Some(1.0));
        assert_eq!(price("mm", Some(Dtype::Fp32)), Some(2.0));
        assert_eq!(price("mm", Some(Dtype::Bf16)), None);
        assert_eq!(price("mul", None), None);
    }

    #[test]
    fn empty_repeated_or_bad_times_make_no_table() {
        assert_eq!(SameKernelTimesByWorkAmount::new(vec![], 0.0, 0.0), None);
        let twice = vec![
            make_test_measured_time(1, 1, 1.0),
            make_test_measured_time(1, 1, 2.0),
        ];
        assert_eq!(SameKernelTimesByWorkAmount::new(twice, 0.0, 0.0), None);
        for bad in [-1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(
                SameKernelTimesByWorkAmount::new(
                    vec![make_test_measured_time(1, 1, bad)],
                    0.0,
                    0.0
                ),
                None
            );
        }
    }
}
