//! Memories and NPUs on a two-dimensional mesh.
//!
//! The design is from Won et al., "ASTRA-sim2.0" (ISPASS 2023), Fig. 5, "mesh". The paper gives no formula, so one is
//! derived here. The mesh has a columns and b rows of stations. A station is a vertex of the mesh with one memory and n
//! / (a b) NPUs. A station has links of `link_bandwidth` to and from each neighbour in the same row and column;
//! opposite edges of the mesh are not connected. Bytes travel along the memory's row to the NPU's column, then along
//! it.
//!
//! Consider a cut through all rows between columns x and x + 1 (from 0). In each row, the x + 1 memories on the left
//! send to the NPUs on the right. A fraction (a - x - 1) / a of all NPUs is to the right of column x. Each memory
//! stores 1 / (a b) of the data of each of the n NPUs:
//!
//! ```text
//! bytes on a link = n x W x (x + 1) (a - x - 1) / (a² b)         in a row
//! bytes on a link = n x W x (y + 1) (b - y - 1) / (a b²)         in a column, by the same argument
//! ```
//!
//! The maximum is in the middle, where (x + 1) (a - x - 1) is a² / 4 (for odd a, (a² - 1) / 4). If the longer side m is
//! even, the busiest links therefore carry n x W x m / (4 a b) bytes. Memories send chunks of c bytes. The mesh as a
//! whole is one stage, because a chunk is on many links at once. Times in seconds:
//!
//! ```text
//! stages  = W x n / (a x b x c)
//! memory  = c / group_bandwidth
//! mesh    = c x m / 4 / link_bandwidth
//! port    = a x b x c / (n x npu_bandwidth)
//! ```
//!
//! Every NPU receives bytes over links in the middle. If the mesh is the bottleneck, it therefore slows all NPUs
//! equally. Every link is a server.

use super::pool_layout::{BETWEEN, NpuPathsOverPoolServers, PathServerStageAndWeight};
use chakram_base::units::{Bandwidth, Bytes};
use serde::Serialize;

/// A pool on a mesh. Stations are numbered along the rows, and NPUs of one station have consecutive numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeshPool {
    /// Number of stations along a row, at least 1.
    pub columns: u32,
    /// Number of rows, at least 1. There are at most [`Self::MOST`] stations. The machine's NPU count must be a
    /// multiple of the number of stations.
    pub rows: u32,
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

impl MeshPool {
    /// Maximum number of stations. An access uses one link fewer than there are stations, so this limit also bounds its
    /// links.
    pub const MOST: u32 = 1024;

    pub(super) fn fits_npus(&self, npus: u32) -> bool {
        let stations = self.columns.saturating_mul(self.rows);
        (1..=Self::MOST).contains(&stations) && npus.is_multiple_of(stations)
    }

    /// Returns the servers of a pool in which each memory has bandwidth `memory`.
    pub(super) fn build_layout(&self, memory: Bandwidth, npus: u32) -> NpuPathsOverPoolServers {
        let (columns, rows) = (self.columns, self.rows);
        let stations = columns * rows;
        let round = f64::from(stations) * self.chunk.0 as f64;
        let memories = f64::from(stations) * memory.bytes_per_second();
        let mut layout =
            NpuPathsOverPoolServers::new(npus, stations, memories, self.npu_bandwidth, round);
        // Each station of the mesh has links to the right, to the left, up and down. Links beyond the mesh's edge have
        // servers too, but no access uses them.
        let links = [(); 4]
            .map(|()| layout.add_servers_and_return_first_index(stations, self.link_bandwidth));
        for station in 0..stations {
            let (x, y) = (station % columns, station / columns);
            let mut carry = |direction: usize, from: (u32, u32), memories: u32| {
                let leg = PathServerStageAndWeight {
                    server: links[direction] + from.1 * columns + from.0,
                    stage: BETWEEN,
                    weight: f64::from(memories) / f64::from(stations),
                    in_switch: 0.0,
                };
                layout.append_hop(station, leg);
            };
            for row in 0..rows {
                for from in 0..x {
                    carry(0, (from, row), from + 1);
                }
                for from in x + 1..columns {
                    carry(1, (from, row), columns - from);
                }
            }
            // A link along the column carries the bytes of all memories in the rows before it.
            for from in 0..y {
                carry(2, (x, from), columns * (from + 1));
            }
            for from in y + 1..rows {
                carry(3, (x, from), columns * (rows - from));
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

    /// Returns a mesh with memories and ports of 100 GB/s, links of 10 GB/s, and chunks of 40 kB.
    fn build_mesh_pool(columns: u32, rows: u32) -> RemoteMemory {
        let rate = |gb: f64| Bandwidth::new(gb * 1e9).unwrap();
        let design = MeshPool {
            columns,
            rows,
            link_bandwidth: rate(10.0),
            npu_bandwidth: rate(100.0),
            chunk: Bytes(40_000),
        };
        create_pool(MemoryAttachment::Mesh(design), 100.0)
    }

    #[test]
    fn the_middle_of_the_longer_side_is_busiest() {
        // There are 4 x 2 stations with 2 NPUs each. Each NPU loads 1 MB, which takes 50 stages. A stage takes 0.4 us
        // in the memory, 40 kB x 4 / 4 / 10 GB/s = 4 us in the mesh, and 320 kB / 1,600 GB/s = 0.2 us in the ports. The
        // total is 0.4 + 4 + 0.2 + 49 x 4 us. The 2 x 4 mesh takes the same time.
        assert_eq!(
            simulate_common_end(&build_mesh_pool(4, 2), 16, 1_000_000, false),
            200_600_000
        );
        assert_eq!(
            simulate_common_end(&build_mesh_pool(2, 4), 16, 1_000_000, false),
            200_600_000
        );
        // There are 3 x 3 stations with one NPU each. The links in the middle take 9 x 1 MB x 2 / (9 x 3) / 10 GB/s =
        // 66.667 us, in 25 stages. The memory and the port take 0.4 us each.
        let middle = 66_666_667 + 800_000;
        assert_eq!(
            simulate_common_end(&build_mesh_pool(3, 3), 9, 1_000_000, false),
            middle
        );
    }

    #[test]
    fn one_alone_is_held_by_the_busiest_link_to_it() {
        // NPU 0 is in the corner of the 4 x 2 mesh. 3 / 8 of its bytes arrive along its row, and half of them along its
        // column: 1 MB / 2 / 10 GB/s = 50 us. A chunk's share of 20 kB takes 0.025 us in the memories at 800 GB/s, and
        // 0.2 us in the port.
        assert_eq!(
            simulate_lone_end(&build_mesh_pool(4, 2), 16, 1_000_000),
            50_225_000
        );
    }
}
