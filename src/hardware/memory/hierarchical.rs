//! Memory groups behind out-node switches, which connect to the switches inside nodes.
//!
//! The design is from Won et al., "ASTRA-sim2.0" (ISPASS 2023), section IV-D, Fig. 6 and 7;
//! in-switch collectives are from Fig. 8. Every group has a link to every out-node switch, and
//! every out-node switch has a link to every node:
//!
//! ```text
//! groups      out-node switches      nodes      NPUs
//!   G ═══ G x S links ═══ S ═══ S x N links ═══ N ──── n ports
//! ```
//!
//! Every NPU loads W bytes, spread evenly over the groups. The chunk c is the number of bytes sent at once over a link
//! between a group and a switch. A group's bandwidth is the sum over its S links, and a node's bandwidth is the sum
//! over its S links. Units are bytes, bytes per second and seconds:
//!
//! ```text
//! stages        = W x n / (G x S x c)
//! group→switch  = c x S / group_bandwidth
//! switch→node   = G x c x S / (N x node_bandwidth)       in the switches: G x c x S / node_bandwidth
//! node→NPU      = G x S x c / (n x in_node_bandwidth)    in the switches: G x S x c / in_node_bandwidth
//! ```
//!
//! `memory/fair_sharing.rs` computes a duration from these times. This design models all memories together as one
//! server. Each node is one server, because its S links always carry equal loads, and so is each NPU's port. NPUs of
//! different nodes thus contend only at the memories. A store takes the same path in reverse, and shares its bandwidth
//! with loads.
//!
//! With in-switch collectives, W is the size of each NPU's part in memory. For loads, all n parts reach every node and
//! every NPU; for stores, the switches reduce n parts on the way to the memory.

use super::MemoryPoolSwitchLevel;
use super::pool_layout::NpuPathsOverPoolServers;
use chakram_base::units::{Bandwidth, Bytes};
use serde::Serialize;

/// A pool with two levels of switches. The NPUs of a node have consecutive numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HierarchicalPool {
    /// Number of memory groups, at least 1.
    pub groups: u32,
    /// Number of out-node switches, at least 1.
    pub out_switches: u32,
    /// Number of NPUs per node, at least 1. The machine's NPU count must be a multiple of it.
    pub npus_per_node: u32,
    /// Bytes per second between a node and the out-node switches, summed over all these switches.
    #[serde(rename = "node_bandwidth_bytes_per_s")]
    pub node_bandwidth: Bandwidth,
    /// Bytes per second between an NPU and the switch of its node.
    #[serde(rename = "in_node_bandwidth_bytes_per_s")]
    pub in_node_bandwidth: Bandwidth,
    /// Bytes sent at once over a link between a group and an out-node switch.
    #[serde(rename = "chunk_bytes")]
    pub chunk: Bytes,
}

impl HierarchicalPool {
    pub(super) fn fits_npus(&self, npus: u32) -> bool {
        let some = self.groups > 0 && self.out_switches > 0 && self.npus_per_node > 0;
        some && npus.is_multiple_of(self.npus_per_node)
    }

    /// Returns the bytes that one access moves in one round of chunks, on a machine with `npus` NPUs.
    pub(super) fn bytes_per_access_in_chunk_round(&self, npus: u32) -> f64 {
        self.bytes_per_round() / f64::from(npus)
    }

    /// Returns the bytes that all groups together send in one round, in which each link carries one chunk.
    fn bytes_per_round(&self) -> f64 {
        f64::from(self.groups) * f64::from(self.out_switches) * self.chunk.0 as f64
    }

    /// Returns the servers of a pool in which each group has bandwidth `group`.
    pub(super) fn build_layout(&self, group: Bandwidth, npus: u32) -> NpuPathsOverPoolServers {
        let nodes = [MemoryPoolSwitchLevel {
            fan_in: self.npus_per_node,
            bandwidth: self.node_bandwidth,
        }];
        let memories = f64::from(self.groups) * group.bytes_per_second();
        let port = self.in_node_bandwidth;
        NpuPathsOverPoolServers::build_switch_tree(
            npus,
            memories,
            port,
            self.bytes_per_round(),
            &nodes,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::fair_sharing::testing::{
        create_pool, simulate_common_end, simulate_end_of_each_access, simulate_lone_end,
        simulate_two_staggered_accesses,
    };
    use super::super::{MemoryAttachment, RemoteMemory};
    use super::*;

    /// Returns the example pool from the ASTRA-sim 2.0 paper: 256 NPUs in 16 nodes, 8 groups, 4 out-node switches. The
    /// arguments are in GB/s.
    fn build_paper_pool(group: f64, node: f64, in_node: f64) -> RemoteMemory {
        let rate = |gb: f64| Bandwidth::new(gb * 1e9).unwrap();
        let design = HierarchicalPool {
            groups: 8,
            out_switches: 4,
            npus_per_node: 16,
            node_bandwidth: rate(node),
            in_node_bandwidth: rate(in_node),
            chunk: Bytes(1_000_000),
        };
        create_pool(MemoryAttachment::Hierarchical(design), group)
    }

    #[test]
    fn loads_of_all_npus_take_the_pipeline_time_of_the_paper() {
        // With W = 1 MB, the pool sends 256 W in all, 32 W from each group, and 8 W over each of a group's links.
        // Sending 8 W over a link takes 8 stages of one 1 MB chunk. A group has 100 GB/s, so each of its links has 25
        // GB/s. TX group→switch = 1 MB / 25 GB/s = 40 us. A node has 400 GB/s, so each of its links has 100 GB/s, and
        // carries 4 W. TX switch→node = 8 x 1 MB / (16 x 100 GB/s) = 5 us. TX node→NPU = 8 x 4 x 1 MB / (256 x 10
        // GB/s) = 12.5 us. The total is 40 + 5 + 12.5 + 7 x 40 = 337.5 us.
        let us = 1_000_000;
        let memory = build_paper_pool(100.0, 400.0, 10.0);
        assert_eq!(
            simulate_common_end(&memory, 256, 1_000_000, false),
            337_500_000
        );
        // With nodes at 40 GB/s, the node stage is the longest: it takes 8 MB / (16 x 10 GB/s) = 50 us, so the total is
        // 40 + 50 + 12.5 + 7 x 50.
        let memory = build_paper_pool(100.0, 40.0, 10.0);
        assert_eq!(
            simulate_common_end(&memory, 256, 1_000_000, false),
            452_500_000
        );
        // With ports at 2 GB/s, the port stage is the longest: it takes 32 MB / (256 x 2 GB/s) = 62.5 us, so the total
        // is 40 + 50 + 62.5 + 7 x 62.5.
        let memory = build_paper_pool(100.0, 40.0, 2.0);
        assert_eq!(
            simulate_common_end(&memory, 256, 1_000_000, false),
            590 * us
        );
        // W = 1.05 MB takes 8.4 stages: 40 + 50 + 62.5 + 7.4 x 62.5 = 615 us.
        assert_eq!(
            simulate_common_end(&memory, 256, 1_050_000, false),
            615 * us
        );
        // With W = 25 kB, each link carries 0.2 of a chunk. This counts as one smaller chunk, which takes 0.2 x 152.5
        // us.
        assert_eq!(simulate_common_end(&memory, 256, 25_000, false), 30_500_000);
    }

    #[test]
    fn switches_gather_what_all_load() {
        // With in-switch gathering and w = 1 MB, 256 w are loaded: 8 w on each link, 64 w from each switch to each
        // node, and 256 w to each NPU. The 8 stages take TX = 40 us, 8 x 1 MB / (100 GB/s) = 80 us, and 32 x 1 MB /
        // (320 GB/s) = 100 us: 40 + 80 + 100 + 7 x 100 = 920 us.
        let memory = build_paper_pool(100.0, 400.0, 320.0);
        assert_eq!(
            simulate_common_end(&memory, 256, 1_000_000, true),
            920_000_000
        );
        // Without in-switch gathering, each NPU receives its own 256 MB: 2,048 stages of 40 us. The other two stages
        // add 5 us and 32 MB / (256 x 320 GB/s) = 0.390625 us.
        let plain = 2048 * 40_000_000 + 5_000_000 + 390_625;
        assert_eq!(simulate_common_end(&memory, 256, 256_000_000, false), plain);
    }

    #[test]
    fn single_npu_is_limited_by_its_port_and_uses_all_memories() {
        // A single NPU loads 1 MB through a port of 10 GB/s: 100 us. One NPU's share of a round is 8 x 4 x 1 MB / 256 =
        // 125 kB. The share takes 0.3125 us at its node's 400 GB/s, and 0.15625 us at the groups' 800 GB/s.
        let memory = build_paper_pool(100.0, 400.0, 10.0);
        assert_eq!(simulate_lone_end(&memory, 256, 1_000_000), 100_468_750);
    }

    #[test]
    fn nodes_share_only_the_memories() {
        // Two nodes with 2 NPUs each share one group of 100 GB/s behind one switch. Each NPU's share of a chunk of 4 kB
        // is 1 kB.
        let memory = |group: f64| {
            let rate = |gb: f64| Bandwidth::new(gb * 1e9).unwrap();
            let design = HierarchicalPool {
                groups: 1,
                out_switches: 1,
                npus_per_node: 2,
                node_bandwidth: rate(10.0),
                in_node_bandwidth: rate(100.0),
                chunk: Bytes(4_000),
            };
            create_pool(MemoryAttachment::Hierarchical(design), group)
        };
        // The nodes saturate, at 5 GB/s per NPU, so 100 kB take 20 us. A share of 1 kB takes 10 ns in a port and, with
        // n active NPUs, n x 10 ns in the memories. Apart from the time to fill the pipeline, node 1 takes the same
        // time whether node 0 is active or not.
        let ends = simulate_end_of_each_access(&memory(100.0), 4, &[0, 1, 2, 3], 100_000);
        assert_eq!(ends, [20_050_000; 4]);
        let ends = simulate_end_of_each_access(&memory(100.0), 4, &[2, 3], 100_000);
        assert_eq!(ends, [20_030_000; 2]);
        // With memories at 12 GB/s, two NPUs of one node get 10 GB/s together. Four NPUs get 3 GB/s each, so 100 kB
        // take 33.3 us. A chunk's shares take 10 ns in a port and 200 ns in a node.
        let ends = simulate_end_of_each_access(&memory(12.0), 4, &[0, 1, 2, 3], 100_000);
        assert_eq!(ends, [33_333_333 + 210_000; 4]);
    }

    #[test]
    fn who_comes_later_shares_what_is_left() {
        // Each node has one NPU. All groups of memories together have 10 GB/s, and ports and nodes have 100 GB/s each,
        // so the memories are the bottleneck. NPU 0 starts loading 100 kB at time 0. NPU 1 starts loading 100 kB at 5
        // us, when NPU 0 has 50 kB left. Each NPU gets 5 GB/s until NPU 0 finishes, 10 us later. NPU 1 then has 50 kB
        // left, which take 5 us.
        let rate = |gb: f64| Bandwidth::new(gb * 1e9).unwrap();
        let design = HierarchicalPool {
            groups: 2,
            out_switches: 5,
            npus_per_node: 1,
            node_bandwidth: rate(100.0),
            in_node_bandwidth: rate(100.0),
            chunk: Bytes(100),
        };
        let memory = create_pool(MemoryAttachment::Hierarchical(design), 5.0);
        // A chunk's shares of 2 x 5 x 100 / 2 = 500 B take 5 ns in a port and 5 ns in a node.
        let ends = simulate_two_staggered_accesses(&memory, 2, 100_000, 5_000_000);
        assert_eq!(ends, [15_010_000, 20_010_000]);
    }
}
