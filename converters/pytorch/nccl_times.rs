//! Computes how long kernels take by NCCL's own formula. These times separate transfer from waiting even if the partner
//! ranks have no capture.
//!
//! NCCL chooses among its algorithms by a formula (`tuning.cc` of NCCL 2.18 to 2.22). For a ring of `n` GPUs on one
//! host with NVLink, and a buffer whose total size is `B` bytes, NCCL's time is:
//!
//! ```text
//! time = base + latency x (steps - 1) + B x steps / (n x bandwidth)
//! bandwidth = min(links x link x share, most)
//! ```
//!
//! | protocol | base | latency | share | most of Volta, Ampere, Hopper |
//! | --- | --: | --: | --: | --- |
//! | LL | 6.6 us | 0.6 us | 1/4 of an all-reduce, else 1/3 | 39, 87.7, 141 GB/s |
//! | LL128 | 14 us | 1.9 us | 0.92 | |
//! | Simple | 8.4 us | 3.4 us | 1 | |
//!
//! An all-reduce has `2 (n - 1)` steps, and other collectives have `n - 1` steps. A kernel that sends and receives is
//! timed as one step of the Simple protocol. The step sends `(n - 1) / n` of the buffer to all peers at the same time.
//! `topo.h` assumes 20 GB/s per link on Volta (6 links) and Ampere (12 links), and 20.6 GB/s on Hopper (18 links).
//!
//! The formula was compared with 1,177 collectives that ran undisturbed among 2, 4 and 8 A100 and H100 (NCCL 2.27 to
//! 2.29, 512 B to 512 MiB, ai-dynamo/aiconfigurator, Apache-2.0). The table gives the ratio of the measured time to the
//! smallest time that the formula gives for any protocol. Both systems are weighted equally:
//!
//! | collective | median | 95 of 100 below |
//! | --- | --: | --: |
//! | all-reduce | 1.13 | 1.69 |
//! | all-gather | 1.36 | 1.96 |
//! | reduce-scatter | 1.29 | 1.83 |
//! | all-to-all | 1.48 | 2.17 |
//!
//! The formula does not cover trees, reductions in the switch, other collectives, groups that span several hosts, PCI
//! Express, or other libraries.

use chakram_trace::format::CollectiveKind;

/// Expected kernel times, in ns, if no member waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedNcclKernelTimesWithoutWaits {
    /// Median of the measured times.
    pub typical: u64,
    /// 95th percentile of the measured times.
    pub most: u64,
}

/// Median and 95th percentile of measured kernel times, as multiples of the formula's time.
const MEASURED: [(CollectiveKind, f64, f64); 4] = [
    (CollectiveKind::AllReduce, 1.13, 1.69),
    (CollectiveKind::AllGather, 1.36, 1.96),
    (CollectiveKind::ReduceScatter, 1.29, 1.83),
    (CollectiveKind::AllToAll, 1.48, 2.17),
];

/// NVLink bandwidth of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NvlinkRate {
    /// Bandwidth over all links in one direction, in GB/s.
    all: f64,
    /// Maximum bandwidth of the LL protocol, in GB/s.
    most_ll: f64,
}

/// NVLink rates of devices, each with a part of the device's name.
const DEVICES: [(&str, NvlinkRate); 4] = [
    ("V100-SXM", NvlinkRate::new(6.0 * 20.0, 39.0)),
    ("A100-SXM", NvlinkRate::new(12.0 * 20.0, 87.7)),
    ("H100 80GB HBM3", NvlinkRate::new(18.0 * 20.6, 141.0)),
    ("NVIDIA H200", NvlinkRate::new(18.0 * 20.6, 141.0)),
];

impl NvlinkRate {
    const fn new(all: f64, most_ll: f64) -> Self {
        Self { all, most_ll }
    }

    /// Returns the NVLink rates of the device `name`, or `None` if the device has no NVLink or is unknown.
    pub fn from_device_name(name: &str) -> Option<Self> {
        // On these cards, NVLink bridges connect only pairs of devices, if any.
        if name.contains("PCIe") || name.contains("NVL") {
            return None;
        }
        let mut known = DEVICES.iter();
        let known = known.find(|(part, _)| name.contains(part));
        known.map(|&(_, rate)| rate)
    }

    /// Returns the expected times of the kernel `name` on `members` GPUs, for a buffer of `bytes` bytes in total.
    /// Returns `None` if the formula does not apply.
    pub fn expected_typical_and_longest_kernel_times(
        &self,
        name: &str,
        kind: CollectiveKind,
        members: u32,
        bytes: u64,
    ) -> Option<ExpectedNcclKernelTimesWithoutWaits> {
        let mut measured = MEASURED.iter();
        let &(_, median, most) = measured.find(|(known, ..)| *known == kind)?;
        let expected = self.time_by_nccl_formula(name, kind, members, bytes)?;
        Some(ExpectedNcclKernelTimesWithoutWaits {
            typical: (expected * median) as u64,
            most: (expected * most) as u64,
        })
    }

    /// Returns the time that NCCL's formula gives, in ns, or `None` if the formula does not apply.
    fn time_by_nccl_formula(
        &self,
        name: &str,
        kind: CollectiveKind,
        members: u32,
        bytes: u64,
    ) -> Option<f64> {
        let n = f64::from(members);
        let has = |part: &str| name.contains(part);
        if !name.starts_with("nccl") || members < 2 {
            return None;
        }
        let (steps, share) = match kind {
            CollectiveKind::AllReduce => (2.0 * (n - 1.0), 4.0),
            _ => (n - 1.0, 3.0),
        };
        let (base, latency, bandwidth) = match () {
            () if has("_SendRecv") => (8.4, 0.0, self.all),
            () if has("_RING_LL128") => (14.0, 1.9, self.all * 0.92),
            () if has("_RING_LL") => (6.6, 0.6, (self.all / share).min(self.most_ll)),
            () if has("_RING_SIMPLE") => (8.4, 3.4, self.all),
            () => return None,
        };
        // 1 GB/s is one byte per nanosecond.
        let moved = bytes as f64 * steps / (n * bandwidth);
        Some((base + latency * (steps - 1.0)) * 1e3 + moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected times are computed by hand. For an all-reduce of 1 MB among eight V100, LL uses a ring of 120 / 4 =
    /// 30 GB/s. The time is therefore 6.6 + 13 x 0.6 us, plus 14 / 8 MB at 30 GB/s. On an H100 the bandwidth is 370.8 /
    /// 4 = 92.7 GB/s.
    #[test]
    fn times_are_those_of_the_formula() {
        let ring = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
        let old = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long)";
        let volta = NvlinkRate::from_device_name("Tesla V100-SXM2-32GB").expect("it has links");
        let hopper = NvlinkRate::from_device_name("NVIDIA H100 80GB HBM3").expect("it has links");
        let formula = |rate: NvlinkRate, name, kind, bytes| {
            let time = rate.time_by_nccl_formula(name, kind, 8, bytes);
            time.map(|time| time as u64)
        };
        let all_reduce = |rate, name| formula(rate, name, CollectiveKind::AllReduce, 1_000_000);
        assert_eq!(all_reduce(volta, ring), Some(14_400 + 58_333));
        assert_eq!(all_reduce(hopper, ring), Some(14_400 + 18_878));
        // The base time is 8.4 us, and 7 / 8 of 240 kB takes 1.75 us at 120 GB/s.
        let exchange = formula(volta, old, CollectiveKind::AllToAll, 240_000);
        assert_eq!(exchange, Some(8_400 + 1_750));
        // The base time is 14 + 6 x 1.9 us, and 7 / 8 of 8 MB at 110.4 GB/s comes on top.
        let gather = "ncclDevKernel_AllGather_RING_LL128(ncclDevKernelArgsStorage<4096ul>)";
        let gather = formula(volta, gather, CollectiveKind::AllGather, 8_000_000);
        assert_eq!(gather, Some(25_400 + 63_405));
        let times = volta.expected_typical_and_longest_kernel_times(
            old,
            CollectiveKind::AllToAll,
            8,
            240_000,
        );
        let (typical, most) = (15_022, 22_025);
        assert_eq!(
            times,
            Some(ExpectedNcclKernelTimesWithoutWaits { typical, most })
        );
        assert_eq!(
            volta.expected_typical_and_longest_kernel_times(old, CollectiveKind::Gather, 8, 1),
            None
        );
        for other in [
            "ncclDevKernel_AllReduce_Sum_f32_TREE_LL",
            "rccl_RING_LL",
            "",
        ] {
            assert_eq!(all_reduce(volta, other), None, "{other}");
        }
        for other in ["NVIDIA H100 PCIe", "NVIDIA H200 NVL", "AMD Instinct MI300X"] {
            assert_eq!(NvlinkRate::from_device_name(other), None, "{other}");
        }
    }
}
