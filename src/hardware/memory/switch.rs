//! Memories behind levels of switches: a tree.
//!
//! The design is from Won et al., "ASTRA-sim2.0" (ISPASS 2023), Fig. 5, "multi-level switches". Switches of the first
//! level connect NPUs. Switches of each further level connect the switches of the level below. The memories attach to
//! the switches of the last level. A switch has one upward link, with the bandwidth of its level:
//!
//! ```text
//! n ports ─── n / f1 links ─── n / (f1 x f2) links ─── … ─── G memories
//! ```
//!
//! Every NPU loads W bytes, spread evenly over G memories. Each memory sends chunks of c bytes. If level l has n[l]
//! switches, each above n / n[l] NPUs, the times in seconds are:
//!
//! ```text
//! stages        = W x n / (G x c)
//! memory        = c / group_bandwidth
//! link up of l  = G x c / (n[l] x bandwidth[l])        in the switches: G x c / bandwidth[l]
//! port          = G x c / (n x npu_bandwidth)          in the switches: G x c / npu_bandwidth
//! ```
//!
//! Each level of switches is one stage of the pipeline in `memory/fair_sharing.rs`. Every upward link is a separate
//! server.

use super::MemoryPoolSwitchLevel;
use super::pool_layout::NpuPathsOverPoolServers;
use chakram_base::units::{Bandwidth, Bytes};
use serde::Serialize;

/// A pool with levels of switches. NPUs of one switch have consecutive numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MultiLevelSwitchPool {
    /// Number of memories, at least 1.
    pub groups: u32,
    /// Bytes per second between an NPU and its switch.
    #[serde(rename = "npu_bandwidth_bytes_per_s")]
    pub npu_bandwidth: Bandwidth,
    /// The levels, starting with the NPUs' switches. The machine's NPU count must be a multiple of the product of all
    /// fan-ins.
    pub levels: Vec<MemoryPoolSwitchLevel>,
    /// Bytes that a memory sends in one chunk.
    #[serde(rename = "chunk_bytes")]
    pub chunk: Bytes,
}

impl MultiLevelSwitchPool {
    pub(super) fn fits_npus(&self, npus: u32) -> bool {
        let mut below = npus;
        let joined = self.levels.iter().all(|level| {
            let even = level.fan_in > 0 && below.is_multiple_of(level.fan_in);
            below /= level.fan_in.max(1);
            even
        });
        self.groups > 0 && joined
    }

    /// Returns the bytes that one access moves in one round of chunks, on a machine with `npus` NPUs.
    pub(super) fn bytes_per_access_and_round(&self, npus: u32) -> f64 {
        self.bytes_per_round() / f64::from(npus)
    }

    /// Returns the bytes that all memories together send in one round, in which each memory sends one chunk.
    fn bytes_per_round(&self) -> f64 {
        f64::from(self.groups) * self.chunk.0 as f64
    }

    /// Returns the servers of a pool in which each memory has bandwidth `memory`.
    pub(super) fn build_layout(&self, memory: Bandwidth, npus: u32) -> NpuPathsOverPoolServers {
        let memories = f64::from(self.groups) * memory.bytes_per_second();
        let port = self.npu_bandwidth;
        NpuPathsOverPoolServers::build_switch_tree(
            npus,
            memories,
            port,
            self.bytes_per_round(),
            &self.levels,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::fair_sharing::testing::{
        create_pool, simulate_common_end, simulate_end_of_each_access, simulate_lone_end,
    };
    use super::super::{MemoryAttachment, RemoteMemory};
    use super::*;

    /// Returns a pool of 2 memories of 50 GB/s for 16 NPUs. 4 NPUs share a switch of 20 GB/s, and 2 of these switches
    /// share a switch of 30 GB/s.
    fn build_three_level_switch_pool() -> RemoteMemory {
        let rate = |gb: f64| Bandwidth::new(gb * 1e9).unwrap();
        let level = |fan_in, gb| MemoryPoolSwitchLevel {
            fan_in,
            bandwidth: rate(gb),
        };
        let design = MultiLevelSwitchPool {
            groups: 2,
            npu_bandwidth: rate(10.0),
            levels: vec![level(4, 20.0), level(2, 30.0)],
            chunk: Bytes(120_000),
        };
        create_pool(MemoryAttachment::Switch(design), 50.0)
    }

    #[test]
    fn every_switch_level_is_a_pipeline_stage() {
        // W = 150 kB takes 16 x 150 / (2 x 120) = 10 stages. A stage takes 120 kB / 50 GB/s = 2.4 us in the memory, 240
        // kB / (4 x 20 GB/s) = 3 us in the 4 switches of level 1, 240 kB / (2 x 30 GB/s) = 4 us in the 2 switches of
        // level 2, and 240 kB / (16 x 10 GB/s) = 1.5 us in the ports. The total is 2.4 + 3 + 4 + 1.5 + 9 x 4 = 46.9 us.
        assert_eq!(
            simulate_common_end(&build_three_level_switch_pool(), 16, 150_000, false),
            46_900_000
        );
        // With in-switch gathering, the stages take 2.4, 240 / 20 = 12, 240 / 30 = 8 and 240 / 10 = 24 us. 10 stages
        // take 2.4 + 12 + 8 + 24 + 9 x 24 = 262.4 us.
        assert_eq!(
            simulate_common_end(&build_three_level_switch_pool(), 16, 150_000, true),
            262_400_000
        );
    }

    #[test]
    fn single_access_is_limited_by_the_links_on_its_path() {
        // 150 kB at 10 GB/s take 15 us. A share of 15 kB takes 0.15 us in the memories at 100 GB/s, 0.75 us in level 1,
        // and 0.5 us in level 2.
        assert_eq!(
            simulate_lone_end(&build_three_level_switch_pool(), 16, 150_000),
            16_400_000
        );
        // NPUs 0 and 4 share a switch of level 2, but not of level 1; NPU 8 is below a different switch at both levels.
        // Each of the NPUs 0, 4 and 8 gets its port's full 10 GB/s. A share of 15 kB takes longer in stages that
        // several NPUs use: 1 us in level 2 (NPUs 0 and 4), and 0.45 us in the memories.
        let ends =
            simulate_end_of_each_access(&build_three_level_switch_pool(), 16, &[0, 4, 8], 150_000);
        let two = 15_000_000 + 450_000 + 750_000 + 1_000_000;
        assert_eq!(ends, [two, two, two - 500_000]);
    }
}
