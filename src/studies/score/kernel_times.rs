//! Collects the recorded kernel times of jobs by name, format, FLOPs and bytes.

use chakram_base::units::Span;
use chakram_hardware::compute::{MeasuredTimeAtFlopsAndBytes, SameKernelTimesByWorkAmount};
use chakram_hardware::machine::Machine;
use chakram_trace::format::Dtype;
use chakram_trace::graph::NodeKind;
use chakram_trace::workload::Workload;
use std::collections::BTreeMap;

/// Assumed relative errors of a kernel: `[0]` if no size occurs twice, `[1]` if only one size was
/// measured.
const UNKNOWN_ERROR: [f64; 2] = [0.05, 0.3];

/// Kernels of one NPU class with the same name and format.
#[derive(Clone, Debug)]
pub struct OneKernelRecordedTimesBySize {
    /// Index of the class among the machine's NPU classes.
    pub class: usize,
    /// Name of the kernels.
    pub name: String,
    /// Number format of the kernels, if the traces state one.
    pub dtype: Option<Dtype>,
    /// Mean times by size, sorted by FLOPs and then by bytes.
    pub times: Vec<MeasuredTimeAtFlopsAndBytes>,
    /// Number of recorded kernels.
    pub count: u64,
    /// Sum of their times, in seconds.
    pub total: f64,
    /// Relative standard deviation between kernels of equal size, weighted by time.
    pub error: f64,
    /// Mean relative error, weighted by time, if each size is predicted from the others; `None` for fewer than two
    /// sizes.
    pub left_out: Option<f64>,
}

impl OneKernelRecordedTimesBySize {
    /// Returns the expected relative error for a kernel of an unmeasured size.
    pub fn expected_error_at_unmeasured_size(&self) -> f64 {
        self.left_out.unwrap_or(UNKNOWN_ERROR[1]).max(self.error)
    }
}

/// Number of times, their sum in seconds, and the sum of their squares.
#[derive(Clone, Copy, Debug, Default)]
struct TimeMoments {
    count: u64,
    sum: f64,
    squares: f64,
}

impl TimeMoments {
    fn add_moments(&mut self, other: Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.squares += other.squares;
    }

    fn mean_time(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// Returns the sum of squared deviations from the mean time, or zero for a single kernel.
    fn squared_deviation_sum(&self) -> f64 {
        (self.squares - self.sum * self.mean_time()).max(0.0)
    }
}

/// Class, name and number format of kernels.
type KernelClassNameDtypeKey<'w> = (usize, &'w str, Option<Dtype>);

/// Sums of times for each size; the key is (FLOPs, bytes).
type TimeSumsBySize = BTreeMap<(u64, u64), TimeMoments>;

/// Times of all kernels that a job recorded, summed by class, name, format and size.
#[derive(Clone, Debug, Default)]
pub struct RecordedKernelTimes<'w>(BTreeMap<KernelClassNameDtypeKey<'w>, TimeSumsBySize>);

impl<'w> RecordedKernelTimes<'w> {
    /// Adds up the times of kernels that `workload` recorded on the NPUs of `machine`.
    ///
    /// In a capture, a kernel without a time ran inside another kernel, so its time is zero. In
    /// other traces, a missing time is unknown.
    pub fn new(workload: &'w Workload, machine: &Machine) -> Self {
        let mut sums = Self::default();
        for instance in workload.instances() {
            let graph = workload.graph_of(instance);
            let class = machine.class_of_npu(
                machine.npu_of_rank(instance.rank.0, workload.rank_count_including_untraced()),
            );
            for node in graph.nodes() {
                let span = graph.recorded_duration(node);
                let known = graph.captured_end().is_some() || span > Span::ZERO;
                if graph.kind(node) != NodeKind::Compute || !known {
                    continue;
                }
                let id = (class, graph.name(node), graph.dtype(node));
                let size = (graph.flops(node), graph.stated_bytes_of_node(node));
                let seconds = span.as_seconds();
                let sum = TimeMoments {
                    count: 1,
                    sum: seconds,
                    squares: seconds * seconds,
                };
                sums.0
                    .entry(id)
                    .or_default()
                    .entry(size)
                    .or_default()
                    .add_moments(sum);
            }
        }
        sums
    }

    /// Returns the sums with some NPU classes merged; `class` maps old classes to new ones.
    pub fn merge_npu_classes(&self, class: &[usize]) -> Self {
        let mut sums = Self::default();
        for (&(own, name, dtype), sizes) in &self.0 {
            let all = sums.0.entry((class[own], name, dtype)).or_default();
            for (&size, &sum) in sizes {
                all.entry(size).or_default().add_moments(sum);
            }
        }
        sums
    }

    /// Returns the times sorted by class, name and format.
    pub fn times_sorted_by_class_name_and_format(&self) -> Vec<OneKernelRecordedTimesBySize> {
        self.0.iter().map(summarize_times_of_kernel).collect()
    }
}

fn summarize_times_of_kernel(
    (&(class, name, dtype), sizes): (&KernelClassNameDtypeKey<'_>, &TimeSumsBySize),
) -> OneKernelRecordedTimesBySize {
    let time = |(&(flops, bytes), sum): (&(u64, u64), &TimeMoments)| MeasuredTimeAtFlopsAndBytes {
        flops,
        bytes,
        seconds: sum.mean_time(),
    };
    let times: Vec<_> = sizes.iter().map(time).collect();
    let total: f64 = sizes.values().map(|sum| sum.sum).sum();
    let repeated = sizes.values().filter(|sum| sum.count > 1);
    // Divide deviations by their size's mean, which weights each size in proportion to its time.
    let spread: f64 = repeated
        .clone()
        .map(|sum| (sum.squared_deviation_sum() / (sum.count - 1) as f64).sqrt() * sum.count as f64)
        .sum();
    let over: f64 = repeated.map(|sum| sum.sum).sum();
    OneKernelRecordedTimesBySize {
        class,
        name: name.to_owned(),
        dtype,
        count: sizes.values().map(|sum| sum.count).sum(),
        total,
        error: if over > 0.0 {
            spread / over
        } else {
            UNKNOWN_ERROR[0]
        },
        left_out: mean_error_of_left_out_sizes(&times, sizes),
        times,
    }
}

/// Predicts each size from the other sizes, and returns the mean relative error, weighted by time.
fn mean_error_of_left_out_sizes(
    times: &[MeasuredTimeAtFlopsAndBytes],
    sizes: &TimeSumsBySize,
) -> Option<f64> {
    let (mut off, mut over) = (0.0, 0.0);
    for (at, (time, sum)) in times.iter().zip(sizes.values()).enumerate() {
        if time.seconds == 0.0 {
            continue;
        }
        let mut others = times.to_vec();
        others.remove(at);
        let others = SameKernelTimesByWorkAmount::new(others, 0.0, 0.0)?;
        let (seconds, _) = others.interpolate_seconds_and_error(time.flops, time.bytes, 0.0);
        off += (seconds / time.seconds - 1.0).abs() * sum.sum;
        over += sum.sum;
    }
    (over > 0.0).then(|| off / over)
}
