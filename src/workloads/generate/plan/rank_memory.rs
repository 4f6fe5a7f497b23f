//! Memory of ranks: each NPU's own memory, and remote memory. If a plan has a residency rule, bytes that do not fit
//! into an NPU's own memory are stored in remote memory. If a plan offloads state, this state is in remote memory, and
//! everything else is in the NPU's own memory.

use super::{ParallelismPlan, ResidencyRule};
use chakram_base::shared_memory::RemoteMemoryCapacityAndSharers;
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::{MemoryLocation, Op};

/// Largest number of bytes in use at once on a rank, if its nodes run in id order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankPeakOwnAndRemoteBytes {
    /// Number of bytes in use at the rank's peak, without offloaded state.
    pub bytes: u64,
    /// Bytes of state that the rank keeps in remote memory.
    pub remote: u64,
    /// True if nodes load from or store to remote memory. Bytes that do not fit on the NPU can then be stored there.
    pub streams: bool,
    used: u64,
}

impl RankPeakOwnAndRemoteBytes {
    /// Creates the peak of a rank that needs `bytes`; `streams` is true if the rank accesses remote
    /// memory.
    pub fn new(bytes: u64, streams: bool) -> Self {
        Self {
            bytes,
            streams,
            ..Self::default()
        }
    }

    /// Returns this peak for a rank that also keeps `remote` bytes of state in remote memory.
    pub fn with_added_remote_state_bytes(self, remote: u64) -> Self {
        Self { remote, ..self }
    }

    /// Adds the memory changes of the next node, in id order.
    pub fn add_node(&mut self, node: &NodeView<'_>) {
        let sum = |all: &[u64]| all.iter().fold(0, |sum: u64, one| sum.saturating_add(*one));
        self.used = self.used.saturating_add(sum(&node.memory.allocates));
        self.bytes = self.bytes.max(self.used);
        self.used = self.used.saturating_sub(sum(&node.memory.frees));
        self.remote = self.remote.saturating_add(node.memory.remote);
        self.streams |= operation_accesses_remote_memory(&node.op);
    }
}

/// Returns true if the operation accesses the unnamed remote memory.
pub fn operation_accesses_remote_memory(op: &Op<'_>) -> bool {
    matches!(op, Op::Memory { place, .. } if *place == MemoryLocation::Remote)
}

/// Memory available to the ranks of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankMemoryCapacity {
    /// Capacity of an NPU's own memory, in bytes.
    pub own: u64,
    /// Remote memory; `None` if the plan does not use remote memory.
    pub shared: Option<RemoteMemoryCapacityAndSharers>,
    /// True if bytes that do not fit into an NPU's own memory are stored in remote memory.
    pub spills: bool,
    /// Number of ranks of the job.
    pub ranks: u64,
}

impl RankMemoryCapacity {
    /// Creates the memory for the ranks of `plan`; each NPU has `own` bytes.
    pub fn new(own: u64, plan: &ParallelismPlan) -> Self {
        let spills = plan.residency != ResidencyRule::None;
        Self {
            own,
            shared: plan
                .shared_memory
                .filter(|_| spills || plan.uses_remote_memory()),
            spills,
            ranks: u64::try_from(plan.rank_count()).unwrap_or(u64::MAX),
        }
    }

    /// Number of bytes that a rank can store: its own memory and, if it `streams` and stores the excess in remote
    /// memory, an equal share of the remote memory.
    pub fn capacity_with_remote_share_if_streaming(&self, streams: bool) -> u64 {
        let shared = self.shared.filter(|_| streams && self.spills);
        let share = shared.map_or(0, |shared| shared.bytes_per_rank(self.ranks));
        self.own.saturating_add(share)
    }

    /// Returns true if ranks with these peaks fit into the memories. Each entry is a peak and the number of ranks that
    /// have it. If the plan allows it, bytes that exceed an NPU's own memory are stored in remote memory, together with
    /// offloaded state. If one remote memory serves all ranks, its whole capacity counts; otherwise, each rank must fit
    /// into its own share. Remote memory of unknown capacity has room for all offloaded state.
    pub fn can_fit_peaks(
        &self,
        peaks: impl IntoIterator<Item = (RankPeakOwnAndRemoteBytes, u64)>,
    ) -> bool {
        let mut all = 0_u128;
        for (peak, ranks) in peaks {
            let beyond = peak.bytes.saturating_sub(self.own);
            let can_spill = self.spills && peak.streams && self.shared.is_some();
            if beyond > 0 && !can_spill {
                return false;
            }
            let beyond = beyond.saturating_add(peak.remote);
            let Some(shared) = self.shared.filter(|_| beyond > 0) else {
                continue;
            };
            let is_common = u64::from(shared.npus) >= self.ranks;
            if !is_common && beyond > shared.bytes_per_rank(self.ranks) {
                return false;
            }
            all += u128::from(beyond) * u128::from(ranks);
            if is_common && all > u128::from(shared.capacity.0) {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_base::units::Bytes;

    /// Four ranks have 10 B of memory each. Two ranks need 40 B each, which is 30 B more than they have. The other two
    /// need 12 B each, which is 2 B more than they have. Together, they need 2 x 30 + 2 x 2 = 64 B of remote memory.
    #[test]
    fn remote_memory_holds_what_is_beyond_the_own() {
        let peak = RankPeakOwnAndRemoteBytes::new;
        let memory = |capacity, npus| RankMemoryCapacity {
            own: 10,
            shared: Some(RemoteMemoryCapacityAndSharers {
                capacity: Bytes(capacity),
                npus,
            }),
            spills: true,
            ranks: 4,
        };
        let unlike = [(peak(40, true), 2), (peak(12, true), 2)];
        assert!(memory(64, 4).can_fit_peaks(unlike));
        assert!(!memory(63, 4).can_fit_peaks(unlike));
        // A job on four of eight NPUs that share a remote memory can use all of it.
        assert!(memory(64, 8).can_fit_peaks(unlike));
        assert_eq!(
            memory(64, 8).capacity_with_remote_share_if_streaming(true),
            10 + 64 / 4
        );
        // With one remote memory per NPU, the rank with the largest need must fit into it.
        assert!(memory(30, 1).can_fit_peaks(unlike));
        assert!(!memory(29, 1).can_fit_peaks(unlike));
        assert_eq!(
            memory(30, 1).capacity_with_remote_share_if_streaming(true),
            40
        );
        // Ranks that never access remote memory have only their own memory. If the plan does not use remote memory,
        // this holds for all ranks.
        assert!(!memory(64, 4).can_fit_peaks([(peak(40, true), 2), (peak(12, false), 2)]));
        let own = RankMemoryCapacity {
            shared: None,
            ..memory(0, 4)
        };
        assert!(!own.can_fit_peaks(unlike) && own.can_fit_peaks([(peak(10, false), 4)]));
    }

    /// Each of four ranks has 10 B of memory, needs 10 B, and offloads 16 B of state. Together, they offload 64 B.
    #[test]
    fn offloaded_state_is_in_remote_memory_only() {
        let memory = |capacity, own| RankMemoryCapacity {
            own,
            shared: Some(RemoteMemoryCapacityAndSharers {
                capacity: Bytes(capacity),
                npus: 4,
            }),
            spills: false,
            ranks: 4,
        };
        let offloads = [(
            RankPeakOwnAndRemoteBytes::new(10, true).with_added_remote_state_bytes(16),
            4,
        )];
        assert!(memory(64, 10).can_fit_peaks(offloads));
        assert!(!memory(63, 10).can_fit_peaks(offloads));
        // Remote memory has room for the tenth byte, but the plan does not store it there.
        assert!(!memory(1000, 9).can_fit_peaks(offloads));
        assert_eq!(
            memory(1000, 9).capacity_with_remote_share_if_streaming(true),
            9
        );
        let unknown = RankMemoryCapacity {
            shared: None,
            ..memory(0, 10)
        };
        assert!(unknown.can_fit_peaks(offloads));
    }
}
