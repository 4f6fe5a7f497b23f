//! Memory at ports, such as ports at the edges of dies. Each port is located at an NPU and has its own memory.
//!
//! An NPU uses the port with the least latency. With ties, it uses the port with the fewest hops, then the one with the
//! lowest number. A core uses a port of its own die if the die has ports. Ports are endpoints of the network, so the
//! network computes the time of an access ([`MemoryLoadStoreTransfer`](crate::network::MemoryLoadStoreTransfer)).

use crate::topology::{DieAndCoreLayout, DimensionShape, Topology};
use chakram_base::ids::Npu;
use std::collections::VecDeque;

/// The NPUs at which a memory has its ports.
#[derive(Clone, Debug, PartialEq)]
pub struct NpusWithMemoryPorts {
    /// The NPU of each port, by port number.
    npus: Vec<Npu>,
    /// The ports of each die, on a machine of tiles. The x coordinate varies fastest.
    of_die: Vec<Vec<u32>>,
}

impl NpusWithMemoryPorts {
    /// Creates ports at `npus`, numbered in this order.
    pub fn new(npus: Vec<Npu>, topology: &Topology) -> Self {
        let mut of_die = Vec::new();
        if let Some(tiles) = topology.tile_grid() {
            of_die.resize(tiles.dies[0] as usize * tiles.dies[1] as usize, Vec::new());
            for (port, npu) in (0..).zip(&npus) {
                of_die[die_of_npu(tiles, *npu)].push(port);
            }
        }
        Self { npus, of_die }
    }

    /// Returns the number of ports.
    pub fn port_count(&self) -> u32 {
        self.npus.len() as u32
    }

    /// Returns the NPU of each port, by port number.
    pub fn npu_of_each_port(&self) -> &[Npu] {
        &self.npus
    }

    /// Returns the port that an NPU uses on the machine with this topology. Returns `None` if every port's route has a
    /// faulty link.
    pub fn nearest_port(&self, npu: Npu, topology: &Topology) -> Option<u32> {
        let own = topology
            .tile_grid()
            .map(|tiles| &self.of_die[die_of_npu(tiles, npu)]);
        let own = own.into_iter().flatten().copied();
        self.nearest_of_ports(own, npu, topology)
            .or_else(|| self.nearest_of_ports(0..self.port_count(), npu, topology))
    }

    /// Returns the nearest of `ports` that is reachable from `npu`.
    fn nearest_of_ports(
        &self,
        ports: impl Iterator<Item = u32>,
        npu: Npu,
        topology: &Topology,
    ) -> Option<u32> {
        let reached = ports.filter_map(|port| {
            let at = self.npus[port as usize];
            // Loads need a route from the port, and stores need a route to the port.
            let open = |a, b| topology.first_dimension_crossed_between(a, b).is_ok();
            let latency = topology
                .path_between_npus(at, npu)
                .map_or(0, |path| path.latency.0);
            let ways = open(at, npu) && open(npu, at);
            let hops = || match topology.explicit_links() {
                Some(graph) => graph.hop_count(at, npu),
                None => topology.hop_count(at, npu),
            };
            ways.then(|| (latency, hops(), port))
        });
        reached.min().map(|(_, _, port)| port)
    }

    /// Returns the largest number of hops from a core to a port of the core's die. For cores whose die has no ports,
    /// the ports of all dies count.
    pub fn max_hops_to_nearest_port(&self, topology: &Topology) -> u32 {
        let Some(tiles) = topology.tile_grid() else {
            return 0;
        };
        let mut hops: Vec<Option<u32>> = vec![None; topology.npu_count() as usize];
        let mut queue: VecDeque<Npu> = self.npus.iter().copied().collect();
        for port in &self.npus {
            hops[port.index()] = Some(0);
        }
        let mut most = 0;
        while let Some(at) = queue.pop_front() {
            let far = hops[at.index()].unwrap_or(0);
            most = most.max(far);
            for (d, dimension) in topology.dimensions().iter().enumerate() {
                let (x, last) = (topology.coordinate_of(at, d), dimension.size - 1);
                let closes = dimension.shape == DimensionShape::Ring;
                let up = if x < last {
                    Some(x + 1)
                } else {
                    closes.then_some(0)
                };
                let down = if x > 0 {
                    Some(x - 1)
                } else {
                    closes.then_some(last)
                };
                for next in [up, down].into_iter().flatten() {
                    let next = topology.npu_with_changed_coordinate(at, d, next);
                    let own = die_of_npu(tiles, next);
                    let enters = own == die_of_npu(tiles, at) || self.of_die[own].is_empty();
                    if enters && hops[next.index()].is_none() {
                        hops[next.index()] = Some(far + 1);
                        queue.push_back(next);
                    }
                }
            }
        }
        most
    }
}

/// Returns the number that identifies a core's die. The x coordinate varies fastest.
fn die_of_npu(tiles: &DieAndCoreLayout, npu: Npu) -> usize {
    let [x, y] = tiles.die_of_core(npu.0);
    x as usize + y as usize * tiles.dies[0] as usize
}
