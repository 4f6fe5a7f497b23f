//! Memories and NPUs on a ring.
//!
//! The design is from Won et al., "ASTRA-sim2.0" (ISPASS 2023), Fig. 5, "ring". The paper gives no formula, so one is
//! derived here. The ring has k stations. A station connects one memory and n / k NPUs. Each station has a link to and
//! from each of its two neighbours: 2 k links in all, of `link_bandwidth` each.
//!
//! An NPU's bytes are spread evenly over all memories. Each byte of an access takes the shorter direction; if both are
//! equally long, half of the bytes take each. A byte from a memory at distance d crosses d links. The mean distance is
//! k / 4 for even k, and (k² - 1) / (4 k) for odd k. If every NPU loads W bytes, the links together carry n x W bytes
//! times the mean distance. By symmetry, all 2 k links carry equal loads:
//!
//! ```text
//! bytes on a link = n x W x (k / 4) / (2 k) = n x W / 8            for odd k: n x W x (k² - 1) / (8 k²)
//! ```
//!
//! Memories send chunks of c bytes. The ring as a whole is one stage, because a chunk is on many links at once. Times
//! in seconds:
//!
//! ```text
//! stages  = W x n / (k x c)
//! memory  = c / group_bandwidth
//! ring    = c x k / 8 / link_bandwidth                             for odd k: c x (k² - 1) / (8 k) / …
//! port    = k x c / (n x npu_bandwidth)
//! ```
//!
//! A single active NPU is limited by the two links into its station. Each of these links carries (k - 1) / (2 k) of the
//! NPU's bytes.
//!
//! Every link is a server. An access passes the links towards its station. The j-th link before the station (from 0)
//! carries the bytes of all memories on its side that are more than j stations away.

use super::pool_layout::{BETWEEN, NpuPathsOverPoolServers, PathServerStageAndWeight};
use chakram_base::units::{Bandwidth, Bytes};
use serde::Serialize;

/// A pool on a ring. NPUs of a station have consecutive numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RingPool {
    /// Number of stations, each with a memory, from 1 to [`Self::MOST`]. The machine's NPU count must be a multiple of
    /// this number.
    pub groups: u32,
    /// Bytes per second of a link, which carries bytes in one direction only.
    #[serde(rename = "link_bandwidth_bytes_per_s")]
    pub link_bandwidth: Bandwidth,
    /// Bytes per second between an NPU and its station.
    #[serde(rename = "npu_bandwidth_bytes_per_s")]
    pub npu_bandwidth: Bandwidth,
    /// Bytes that a memory sends in one chunk.
    #[serde(rename = "chunk_bytes")]
    pub chunk: Bytes,
}

impl RingPool {
    /// Maximum number of stations. An access uses one link for each station, so this limit also bounds its links.
    pub const MOST: u32 = 1024;

    pub(super) fn fits_npus(&self, npus: u32) -> bool {
        (1..=Self::MOST).contains(&self.groups) && npus.is_multiple_of(self.groups)
    }

    /// Returns the servers of a pool in which each memory has bandwidth `memory`.
    pub(super) fn build_layout(&self, memory: Bandwidth, npus: u32) -> NpuPathsOverPoolServers {
        let k = self.groups;
        let round = f64::from(k) * self.chunk.0 as f64;
        let memories = f64::from(k) * memory.bytes_per_second();
        let mut layout = NpuPathsOverPoolServers::new(npus, k, memories, self.npu_bandwidth, round);
        // The upward links of all stations come first, then the downward links.
        let up = layout.add_servers_and_return_first_index(2 * k, self.link_bandwidth);
        let down = up + k;
        for station in 0..k {
            // Twice the number of memories at distance j + 1 or more on one side. Doubling keeps the number whole,
            // because the farthest memory of an even ring counts half on each side.
            for j in 0..k / 2 {
                let twice = k - 1 - 2 * j;
                let leg = |server| PathServerStageAndWeight {
                    server,
                    stage: BETWEEN,
                    weight: f64::from(twice) / f64::from(2 * k),
                    in_switch: 0.0,
                };
                layout.append_hop(station, leg(up + (station + k - 1 - j) % k));
                layout.append_hop(station, leg(down + (station + 1 + j) % k));
            }
        }
        layout
    }
}

#[cfg(test)]
mod tests {
    use super::super::fair_sharing::testing::{
        create_pool, simulate_common_end, simulate_lone_end,
    };
    use super::super::{MemoryAttachment, RemoteMemory};
    use super::*;

    /// Returns a ring with ports of 100 GB/s and chunks of 40 kB.
    fn build_ring_pool(groups: u32, memory: f64, link: f64) -> RemoteMemory {
        let rate = |gb: f64| Bandwidth::new(gb * 1e9).unwrap();
        let design = RingPool {
            groups,
            link_bandwidth: rate(link),
            npu_bandwidth: rate(100.0),
            chunk: Bytes(40_000),
        };
        create_pool(MemoryAttachment::Ring(design), memory)
    }

    #[test]
    fn busiest_links_of_a_ring_of_eight_carry_an_eighth_of_all_bytes() {
        // There are 8 stations with 2 NPUs each. Each NPU loads 1 MB, which takes 50 stages. A stage takes 40 kB / 100
        // GB/s = 0.4 us in the memory, 40 kB x 8 / 8 / 10 GB/s = 4 us in the ring, and 320 kB / 1,600 GB/s = 0.2 us in
        // the ports. The total is 0.4 + 4 + 0.2 + 49 x 4 = 200.6 us; the links alone would take 16 MB / 8 / 10 GB/s =
        // 200 us.
        assert_eq!(
            simulate_common_end(&build_ring_pool(8, 100.0, 10.0), 16, 1_000_000, false),
            200_600_000
        );
        // Memories of 5 GB/s are the slowest stage, with 8 us per chunk: 8 + 4 + 0.2 + 49 x 8.
        assert_eq!(
            simulate_common_end(&build_ring_pool(8, 5.0, 10.0), 16, 1_000_000, false),
            404_200_000
        );
        // There are 5 stations with one NPU each. The links take 5 x 1 MB x 24 / (8 x 25) / 10 GB/s = 60 us, which is
        // 25 stages of 2.4 us. The memory and the port take 0.4 us each.
        assert_eq!(
            simulate_common_end(&build_ring_pool(5, 100.0, 10.0), 5, 1_000_000, false),
            60_800_000
        );
    }

    #[test]
    fn single_npu_is_limited_by_the_links_to_its_station() {
        // A single NPU takes 1 MB x 7 / 16 / 10 GB/s = 43.75 us. The NPU's share of a round is 8 x 40 kB / 16 = 20 kB,
        // which take 0.025 us in the memories at 800 GB/s, and 0.2 us in the port.
        assert_eq!(
            simulate_lone_end(&build_ring_pool(8, 100.0, 10.0), 16, 1_000_000),
            43_975_000
        );
        // A single station has no links. An access takes 10 us in the port, plus 0.4 us for a share of 40 kB in the
        // memory at 100 GB/s.
        assert_eq!(
            simulate_lone_end(&build_ring_pool(1, 100.0, 10.0), 1, 1_000_000),
            10_400_000
        );
    }
}
