//! How ranks are placed by default on a machine whose jobs leave some NPUs of each rack free.

use chakram_base::ids::Npu;

/// A dimension whose domains (such as racks) keep some NPUs free if a job spans several domains. For example, jobs use
/// only 64 of a rack's 72 NPUs, so that groups with power-of-two sizes do not cross racks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NpuLimitPerSpannedDomain {
    /// Index of the outermost dimension of a domain.
    pub dimension: usize,
    /// Number of NPUs per domain: the size of this dimension times the sizes of all inner dimensions.
    pub npus: u32,
    /// Number of NPUs per domain that run ranks if the job needs more than one domain.
    pub used: u32,
}

impl NpuLimitPerSpannedDomain {
    /// Returns the NPU of `rank` in a job of `ranks` ranks.
    ///
    /// A job that fits in one domain fills it in order. In a larger job, the ranks fill the first [`Self::used`] NPUs
    /// of each domain: rank r is on NPU `r / used * npus + r % used`.
    pub fn npu_of_rank(&self, rank: u32, ranks: u32) -> Npu {
        if ranks <= self.npus {
            return Npu(rank);
        }
        Npu(rank / self.used * self.npus + rank % self.used)
    }

    /// Returns the number of domains that a job of `ranks` ranks needs.
    pub fn domain_count(&self, ranks: u32) -> u32 {
        match ranks <= self.npus {
            true => 1,
            false => ranks.div_ceil(self.used),
        }
    }

    /// Returns the number of ranks in the largest job that fits on a machine with `npus` NPUs.
    pub fn max_ranks_of_job_on_machine(&self, npus: u32) -> u32 {
        match npus / self.npus {
            0 | 1 => npus,
            domains => (domains * self.used).max(self.npus),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RACKS: NpuLimitPerSpannedDomain = NpuLimitPerSpannedDomain {
        dimension: 0,
        npus: 72,
        used: 64,
    };

    /// 72 ranks fill a rack. If a job has 73 ranks, 64 of them are in the first rack, so rank 64 is on the first NPU of
    /// the second rack, NPU 72.
    #[test]
    fn jobs_beyond_one_rack_leave_eight_npus_of_each_free() {
        assert_eq!(RACKS.npu_of_rank(71, 72), Npu(71));
        assert_eq!(RACKS.npu_of_rank(63, 73), Npu(63));
        assert_eq!(RACKS.npu_of_rank(64, 73), Npu(72));
        assert_eq!(RACKS.npu_of_rank(127, 128), Npu(72 + 63));
        assert_eq!(
            [72, 73, 128, 129].map(|n| RACKS.domain_count(n)),
            [1, 2, 2, 3]
        );
        assert_eq!(
            [72, 144, 216].map(|n| RACKS.max_ranks_of_job_on_machine(n)),
            [72, 128, 192]
        );
    }
}
