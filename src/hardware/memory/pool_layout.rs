//! Path of an access through a pool. Bytes cross stages one after another; a stage has servers, each with a rate.
//!
//! Every layout includes the memories, which serve all NPUs, and the NPUs' own ports. Each design of a pool adds
//! servers in between. A tensor's bytes are spread evenly over all memories, which therefore act as one server with
//! their total rate. A server is one link, or several links that always carry equal loads.

use super::{MemoryPoolSwitchLevel, RemoteMemoryAccess};
use chakram_base::units::Bandwidth;

/// A server on the path of an access.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PathServerStageAndWeight {
    /// Index of the server in the layout.
    pub server: u32,
    /// Stage of the server. Bytes cross the servers of one stage in parallel, and the stages one after another.
    pub stage: u32,
    /// Number of bytes that the server carries for each byte of the access.
    pub weight: f64,
    /// The value of `weight` if switches gather or reduce the bytes: see
    /// [`PathServerStageAndWeight::hop_over_one_of_identical_servers`].
    pub in_switch: f64,
}

impl PathServerStageAndWeight {
    /// Creates a hop over one of `alike` identical servers of a stage. The server of the hop carries every byte of the
    /// access.
    ///
    /// With in-switch gathering, each of the servers carries the bytes of all n NPUs, not only the bytes of the n /
    /// `alike` NPUs behind it. The weight is therefore `alike`, so that each access accounts for its own share.
    pub fn hop_over_one_of_identical_servers(server: u32, stage: u32, alike: u32) -> Self {
        Self {
            server,
            stage,
            weight: 1.0,
            in_switch: f64::from(alike),
        }
    }
}

/// The servers of a design, and the path of each NPU over them.
#[derive(Debug)]
pub(super) struct NpuPathsOverPoolServers {
    /// Bytes per second of each server.
    rates: Vec<f64>,
    /// Path of an access from each station, without the NPU's port. A station is a group of NPUs whose paths differ
    /// only in their ports, such as the NPUs of a node. The first NPU of station s is s x `per_station`.
    stations: Vec<Vec<PathServerStageAndWeight>>,
    per_station: u32,
    npus: u32,
    /// Index of the first server that stores use instead of the NPUs' ports. If stores and loads share the ports, this
    /// is the index of the first port.
    outward: u32,
    stages: u32,
    /// Bytes that one access moves in one round of chunks when all NPUs load together.
    pub chunk_bytes: f64,
}

/// Index of the memories' stage, and also of their server.
const MEMORIES: u32 = 0;
/// Index of the stage made up of the NPUs' ports.
pub(super) const PORTS: u32 = 1;
/// Server index of the first port.
const FIRST_PORT: u32 = 1;
/// Index of the first stage between the memories and the ports. The numbering of stages does not affect the result.
pub(super) const BETWEEN: u32 = 2;

impl NpuPathsOverPoolServers {
    /// Creates a layout with memories, and with ports for `npus` NPUs. The memories deliver `memories` bytes per second
    /// in total, and the NPUs are spread evenly over `stations`. In one round, each link sends one chunk, and all
    /// memories together send `round` bytes.
    pub fn new(npus: u32, stations: u32, memories: f64, port: Bandwidth, round: f64) -> Self {
        let mut rates = vec![memories];
        rates.resize(npus as usize + 1, port.bytes_per_second());
        let memories = PathServerStageAndWeight::hop_over_one_of_identical_servers(0, MEMORIES, 1);
        Self {
            rates,
            stations: vec![vec![memories]; stations as usize],
            per_station: npus / stations,
            npus,
            outward: FIRST_PORT,
            stages: BETWEEN,
            chunk_bytes: round / f64::from(npus),
        }
    }

    /// Adds `count` servers and returns the index of the first.
    pub fn add_servers_and_return_first_index(&mut self, count: u32, rate: Bandwidth) -> u32 {
        let first = self.rates.len();
        let last = first + count as usize;
        self.rates.resize(last, rate.bytes_per_second());
        first as u32
    }

    /// Allows ports to send and receive at the full rate at the same time.
    pub fn make_ports_full_duplex(&mut self) {
        let (first, last) = (FIRST_PORT as usize, (FIRST_PORT + self.npus) as usize);
        self.outward = self.rates.len() as u32;
        self.rates.extend_from_within(first..last);
    }

    /// Adds the server `leg` to the path of accesses from `station`.
    pub fn append_hop(&mut self, station: u32, leg: PathServerStageAndWeight) {
        self.stations[station as usize].push(leg);
        self.stages = self.stages.max(leg.stage + 1);
    }

    /// Returns the bytes per second of each server, by index.
    pub fn server_rates(&self) -> &[f64] {
        &self.rates
    }

    /// Returns the number of stages in the layout.
    pub fn stage_count(&self) -> usize {
        self.stages as usize
    }

    /// Returns the servers on the path of `access`.
    pub fn servers_on_path(
        &self,
        access: &RemoteMemoryAccess,
    ) -> impl Iterator<Item = PathServerStageAndWeight> + use<'_> {
        let npu = access.npu.0;
        let station = &self.stations[(npu / self.per_station) as usize];
        // If stores have no servers of their own, `outward` equals FIRST_PORT, so stores share the ports with loads.
        let first = if access.store {
            self.outward
        } else {
            FIRST_PORT
        };
        let port = PathServerStageAndWeight::hop_over_one_of_identical_servers(
            first + npu,
            PORTS,
            self.npus,
        );
        station.iter().copied().chain([port])
    }

    /// Returns the last hop of the path, over the NPU's port.
    pub fn port_hop(&self, access: &RemoteMemoryAccess) -> PathServerStageAndWeight {
        self.servers_on_path(access)
            .last()
            .expect("the port is the last")
    }

    /// Creates a layout with levels of switches between the NPUs and the memories; the first level connects the NPUs.
    pub fn build_switch_tree(
        npus: u32,
        memories: f64,
        port: Bandwidth,
        round: f64,
        levels: &[MemoryPoolSwitchLevel],
    ) -> Self {
        let stations = npus / levels.first().map_or(1, |level| level.fan_in);
        let mut layout = Self::new(npus, stations, memories, port, round);
        let mut below = 1;
        for (stage, level) in (BETWEEN..).zip(levels) {
            if stage > BETWEEN {
                // The lowest level's fan-in is already included in `stations`.
                below *= level.fan_in;
            }
            let first =
                layout.add_servers_and_return_first_index(stations / below, level.bandwidth);
            for station in 0..stations {
                let leg = PathServerStageAndWeight::hop_over_one_of_identical_servers(
                    first + station / below,
                    stage,
                    stations / below,
                );
                layout.append_hop(station, leg);
            }
        }
        layout
    }
}
