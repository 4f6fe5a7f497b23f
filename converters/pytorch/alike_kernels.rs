//! Estimates the work of kernels without an operator from kernels that have one and share their name. Likewise,
//! estimates the bytes of copies from copies of the same name.
//!
//! A kernel has no operator, and thus no known shapes, if a graph launched it or if it was launched before the capture
//! began. Kernels with the same name run the same program, on different data. Among several such kernels, the one with
//! the nearest duration is chosen. Its FLOPs and bytes (`work'`) are scaled by the ratio of the durations:
//!
//! ```text
//! work = work' t / t'
//! ```

use super::op_work::OpCost;
use chakram_trace::format::Dtype;

/// A kernel and its known work.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimedKernelWithKnownWork {
    /// Index of the kernel's name.
    pub name: u32,
    /// Duration in ns.
    pub time: u64,
    /// FLOPs and bytes; zero if the kernel has no operator, or if its operator has unknown shapes.
    pub cost: OpCost,
    /// Element type with which the kernel computes.
    pub dtype: Option<Dtype>,
}

impl TimedKernelWithKnownWork {
    /// Returns true if FLOPs and bytes are both known.
    pub fn has_known_flops_and_bytes(&self) -> bool {
        !self.cost.flops_unknown && (self.cost.flops > 0 || self.cost.bytes > 0)
    }
}

/// Kernels with known work, from which the work of their namesakes is estimated.
#[derive(Debug, Default)]
pub(super) struct SameNameWorkEstimator {
    /// Kernels with known work, sorted by name and then by time.
    known: Vec<TimedKernelWithKnownWork>,
}

impl SameNameWorkEstimator {
    /// Collects a rank's kernels with known work, if there are kernels with the same names whose work is unknown.
    pub fn new(kernels: impl Iterator<Item = TimedKernelWithKnownWork> + Clone) -> Self {
        let unknown = kernels
            .clone()
            .filter(|kernel| !kernel.has_known_flops_and_bytes());
        let mut names: Vec<u32> = unknown.map(|kernel| kernel.name).collect();
        names.sort_unstable();
        names.dedup();
        let asked = |kernel: &TimedKernelWithKnownWork| {
            kernel.time > 0
                && kernel.has_known_flops_and_bytes()
                && names.binary_search(&kernel.name).is_ok()
        };
        let mut known: Vec<_> = kernels.filter(asked).collect();
        known.sort_by_key(|kernel| (kernel.name, kernel.time));
        Self { known }
    }

    /// Estimates the work of a kernel called `name` that took `time` ns. Returns `None` if no
    /// kernel with this name has known work.
    pub fn estimate_work(&self, name: u32, time: u64) -> Option<TimedKernelWithKnownWork> {
        let before = |kernel: &TimedKernelWithKnownWork| (kernel.name, kernel.time) < (name, time);
        let above = self.known.partition_point(before);
        let near = [above.checked_sub(1), Some(above)].into_iter().flatten();
        let near = near.filter_map(|i| self.known.get(i));
        let near = near.filter(|kernel| kernel.name == name);
        let nearest = near.min_by_key(|kernel| kernel.time.abs_diff(time))?;
        Some(TimedKernelWithKnownWork {
            time,
            cost: nearest.cost.scale_by_time_fraction(time, nearest.time),
            ..*nearest
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_timed_kernel_with_flops_and_bytes(
        name: u32,
        time: u64,
        flops: u64,
        bytes: u64,
    ) -> TimedKernelWithKnownWork {
        TimedKernelWithKnownWork {
            name,
            time,
            cost: OpCost {
                flops,
                bytes,
                ..OpCost::default()
            },
            dtype: Some(Dtype::Bf16).filter(|_| flops + bytes > 0),
        }
    }

    #[test]
    fn a_kernel_without_an_operator_does_what_the_nearest_of_its_name_does() {
        let kernels = [
            build_timed_kernel_with_flops_and_bytes(0, 400, 16_000, 800),
            build_timed_kernel_with_flops_and_bytes(0, 100, 2000, 500),
            build_timed_kernel_with_flops_and_bytes(0, 120, 0, 0),
            build_timed_kernel_with_flops_and_bytes(1, 50, 0, 70),
            build_timed_kernel_with_flops_and_bytes(2, 10, 0, 0),
        ];
        let alike = SameNameWorkEstimator::new(kernels.into_iter());
        let work = |name, time| {
            let found = alike.estimate_work(name, time)?;
            assert_eq!(found.dtype, Some(Dtype::Bf16));
            Some((found.cost.flops, found.cost.bytes))
        };
        // A duration of 120 ns is nearer to 100 than to 400: 2000 · 120 ÷ 100 = 2,400 FLOPs, 500 · 120 ÷ 100 = 600
        // bytes.
        assert_eq!(work(0, 120), Some((2400, 600)));
        // A duration of 300 ns is nearer to 400: 16,000 · 300 ÷ 400 = 12,000 and 800 · 300 ÷ 400 = 600.
        assert_eq!(work(0, 300), Some((12_000, 600)));
        // The first kernel is shorter than all known kernels, and the second kernel is longer.
        assert_eq!(work(0, 50), Some((1000, 250)));
        assert_eq!(work(0, 800), Some((32_000, 1600)));
        // All kernels with name 1 have known work, and no kernel with name 2 has known work.
        assert_eq!(work(1, 50), None);
        assert_eq!(work(2, 10), None);
    }
}
