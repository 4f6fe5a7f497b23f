//! Busy times of memory ports and of links between cores.

use super::servers::{IN, QueueingServerTable};
use crate::topology::Topology;
use chakram_base::ids::Npu;
use chakram_base::units::Span;

/// A link between two neighbouring cores. It has one direction, or both if half duplex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreToCoreLinkBusyTime {
    /// The core at the start of the link.
    pub from: Npu,
    /// The core at the end of the link.
    pub to: Npu,
    /// Time for which transfers occupied the link.
    pub busy: Span,
}

/// The links and memory ports of a machine of tiles that were busy at least once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkAndPortBusyTimes {
    /// The links, by dimension, direction and core.
    pub links: Vec<CoreToCoreLinkBusyTime>,
    /// Busy time of each memory port, in ascending order of port numbers.
    pub ports: Vec<Span>,
}

impl LinkAndPortBusyTimes {
    /// Returns the busy times of servers on tiles, or `None` on other machines.
    pub(super) fn collect_busy_times_on_tiles(
        topology: &Topology,
        servers: &QueueingServerTable,
    ) -> Option<Self> {
        topology.tile_grid()?;
        let dimensions = topology.dimensions().len();
        let mut ports = Vec::new();
        for (place, busy) in servers
            .iter_busy_servers()
            .filter(|(place, _)| place.dimension == dimensions)
        {
            ports.resize(place.npu.index() + 1, Span::ZERO);
            ports[place.npu.index()] = busy;
        }
        let links = servers
            .iter_busy_servers()
            .filter(|(place, _)| place.dimension < dimensions);
        let links = links.map(|(place, busy)| {
            let (d, x) = (
                place.dimension,
                topology.coordinate_of(place.npu, place.dimension),
            );
            let size = topology.dimensions()[d].size;
            let beside = if place.side == IN {
                (x + size - 1) % size
            } else {
                (x + 1) % size
            };
            CoreToCoreLinkBusyTime {
                from: place.npu,
                to: topology.npu_with_changed_coordinate(place.npu, d, beside),
                busy,
            }
        });
        Some(Self {
            links: links.collect(),
            ports,
        })
    }
}
