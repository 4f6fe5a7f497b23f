//! Machines as JSON. Units are bytes, bytes per second, operations per second, and picoseconds.

use super::tile_ratios::TileMachineHardwareRatios;
use chakram_base::ids::Npu;
use chakram_base::units::Bandwidth;
use chakram_hardware::collective::{
    DimensionAlgorithmChoice, DimensionVisitOrder, WaitingChunkPriority,
};
use chakram_hardware::machine::{Machine, NetworkSettings, NpuClass};
use chakram_hardware::memory::{NetworkPoolDesign, RemoteMemory};
use chakram_trace::format::Dtype;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// JSON document that `machine list` prints.
#[derive(Serialize)]
pub(super) struct MachineListDocument<'a> {
    /// The machines.
    pub machines: Vec<MachineSummary<'a>>,
}

/// JSON document that `machine show` prints.
#[derive(Serialize)]
pub(super) struct MachineDocument<'a> {
    /// The machine.
    pub machine: MachineDetails<'a>,
}

#[derive(Serialize)]
pub(super) struct MachineSummary<'a> {
    name: &'a str,
    description: &'a str,
    npus: u32,
    scalable: bool,
    network: NetworkSettings,
    dimensions: Vec<DimensionDocument<'a>>,
}

#[derive(Serialize)]
struct DimensionDocument<'a> {
    name: &'a str,
    shape: String,
    /// Kind of the topology (Clos network or graph), if it consists of individual links.
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<&'a str>,
    size: u32,
    bandwidth_bytes_per_s: f64,
    latency_ps: u64,
    algorithm: &'static str,
}

/// JSON with all properties of a machine.
#[derive(Serialize)]
pub(super) struct MachineDetails<'a> {
    #[serde(flatten)]
    summary: MachineSummary<'a>,
    classes: Vec<NpuClassDocument<'a>>,
    class_runs: Vec<NpuClassRangeDocument>,
    collectives: CollectiveChunkSettingsDocument,
    remote_memory: Option<RemoteMemoryDocument<'a>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    remote_memories: BTreeMap<&'a str, RemoteMemoryDocument<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tiles: Option<TileMachineDiesAndCoresDocument>,
}

/// Dies and cores of a machine of tiles. Each core is a pair of coordinates, x and y.
#[derive(Serialize)]
struct TileMachineDiesAndCoresDocument {
    dies: [u32; 2],
    cores: [u32; 2],
    link_bandwidth_bytes_per_s: f64,
    link_latency_ps: u64,
    die_bandwidth_bytes_per_s: f64,
    die_latency_ps: u64,
    half_duplex: bool,
    barrier_ps: Option<u64>,
    faulty_cores: Vec<[u32; 2]>,
    /// Faulty links: for each, the core at its lower end, and its dimension.
    faulty_links: Vec<([u32; 2], usize)>,
    /// Core at each port of the edge memory.
    memory_ports: Vec<[u32; 2]>,
    #[serde(flatten)]
    ratios: Option<TileMachineHardwareRatios>,
}

#[derive(Serialize)]
struct NpuClassDocument<'a> {
    name: &'a str,
    peak_flop_per_s: Map<String, Value>,
    /// Null if the machine file states no bandwidth.
    memory_bandwidth_bytes_per_s: Option<f64>,
    memory_latency_ps: Option<u64>,
    memory_capacity_bytes: Option<u64>,
    lanes: u32,
    host_lanes: u32,
}

#[derive(Serialize)]
struct NpuClassRangeDocument {
    first: u32,
    last: u32,
    class: usize,
}

#[derive(Serialize)]
struct CollectiveChunkSettingsDocument {
    /// Number of chunks; null if each collective chooses its own number.
    chunks: Option<u32>,
    active: u32,
    schedule: &'static str,
    order: &'static str,
}

#[derive(Serialize)]
struct RemoteMemoryDocument<'a> {
    attachment: &'static str,
    bandwidth_bytes_per_s: f64,
    latency_ps: u64,
    /// Null if the capacity is unknown.
    capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    design: Option<NetworkPoolDesign<'a>>,
    /// NPUs at the memory's ports; absent if the ports are at tiles.
    #[serde(skip_serializing_if = "<[Npu]>::is_empty")]
    at: &'a [Npu],
    #[serde(skip_serializing_if = "Option::is_none")]
    through: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk_bytes: Option<u64>,
}

impl<'a> MachineSummary<'a> {
    /// Summarizes `machine`.
    pub(super) fn of_machine(machine: &'a Machine) -> Self {
        let topology = machine.topology();
        let dimensions = topology
            .dimensions()
            .iter()
            .zip(machine.collective_algorithms());
        let graph = topology.explicit_links();
        let dimensions = dimensions.enumerate();
        let dimensions = dimensions.map(|(d, (dimension, algorithm))| DimensionDocument {
            name: &dimension.name,
            shape: dimension.shape.to_string(),
            links: graph.and_then(|graph| graph.explicit_links_label(d)),
            size: dimension.size,
            bandwidth_bytes_per_s: dimension.bandwidth.bytes_per_second(),
            latency_ps: dimension.latency.0,
            algorithm: name_of_value_in_table(&DimensionAlgorithmChoice::ALL, algorithm),
        });
        Self {
            name: machine.name(),
            description: machine.description(),
            npus: topology.npu_count(),
            scalable: machine.is_scalable(),
            network: machine.network_settings(),
            dimensions: dimensions.collect(),
        }
    }
}

impl<'a> MachineDetails<'a> {
    /// Describes `machine`.
    pub(super) fn of_machine(machine: &'a Machine) -> Self {
        let runs = machine.npu_ranges_of_one_class();
        let pipeline = machine.chunking_settings();
        Self {
            summary: MachineSummary::of_machine(machine),
            classes: machine
                .npu_classes()
                .iter()
                .map(NpuClassDocument::of_class)
                .collect(),
            class_runs: runs
                .map(|(first, last, class)| NpuClassRangeDocument {
                    first: first.0,
                    last: last.0,
                    class,
                })
                .collect(),
            collectives: CollectiveChunkSettingsDocument {
                chunks: pipeline.chunks.map(NonZeroU32::get),
                active: pipeline.active.get(),
                schedule: name_of_value_in_table(&DimensionVisitOrder::ALL, &pipeline.inter),
                order: name_of_value_in_table(&WaitingChunkPriority::ALL, &pipeline.intra),
            },
            remote_memory: machine
                .unnamed_remote_memory()
                .map(RemoteMemoryDocument::from_remote_memory),
            remote_memories: machine
                .named_memories()
                .iter()
                .map(|named| {
                    (
                        named.name.as_str(),
                        RemoteMemoryDocument::from_remote_memory(&named.memory),
                    )
                })
                .collect(),
            tiles: TileMachineDiesAndCoresDocument::of_machine(machine),
        }
    }
}

impl TileMachineDiesAndCoresDocument {
    fn of_machine(machine: &Machine) -> Option<Self> {
        let topology = machine.topology();
        let tiles = topology.tile_grid()?;
        let ports = machine
            .unnamed_remote_memory()
            .map_or(&[][..], |memory| memory.list_npus_with_ports());
        let links = tiles.faulty_links.iter();
        Some(Self {
            dies: tiles.dies,
            cores: tiles.cores,
            link_bandwidth_bytes_per_s: topology.link_bandwidth(0).bytes_per_second(),
            link_latency_ps: topology.dimensions()[0].latency.0,
            die_bandwidth_bytes_per_s: tiles.borders.bandwidth.bytes_per_second(),
            die_latency_ps: tiles.borders.latency.0,
            half_duplex: tiles.half_duplex,
            barrier_ps: tiles.barrier.map(|latency| latency.0),
            faulty_cores: tiles
                .faulty_cores
                .iter()
                .map(|core| tiles.coordinates_of_core(*core))
                .collect(),
            faulty_links: links
                .map(|&(core, d)| (tiles.coordinates_of_core(core), d))
                .collect(),
            memory_ports: ports
                .iter()
                .map(|core| tiles.coordinates_of_core(core.0))
                .collect(),
            ratios: TileMachineHardwareRatios::of_machine(machine),
        })
    }
}

impl<'a> NpuClassDocument<'a> {
    fn of_class(class: &'a NpuClass) -> Self {
        let rates = Dtype::ALL.iter().filter_map(|(dtype, name)| {
            let rate = class.peaks.peak_rate_if_supported(*dtype)?;
            Some(((*name).to_owned(), rate.per_second().into()))
        });
        Self {
            name: &class.name,
            peak_flop_per_s: rates.collect(),
            memory_bandwidth_bytes_per_s: class.memory_bandwidth().map(Bandwidth::bytes_per_second),
            memory_latency_ps: class.memory.and_then(|memory| Some(memory.latency?.0)),
            memory_capacity_bytes: class.memory.and_then(|memory| Some(memory.capacity?.0)),
            lanes: class.lanes,
            host_lanes: class.host_lanes,
        }
    }
}

impl<'a> RemoteMemoryDocument<'a> {
    fn from_remote_memory(remote: &'a RemoteMemory) -> Self {
        let through = remote.through.as_ref();
        let chunk = through.filter(|_| remote.attachment.serves_accesses_one_at_a_time());
        Self {
            attachment: remote.attachment.name_in_file(),
            bandwidth_bytes_per_s: remote.bandwidth.bytes_per_second(),
            latency_ps: remote.latency.0,
            capacity_bytes: remote.capacity.map(|capacity| capacity.0),
            design: remote.attachment.pool_design(),
            at: remote.list_npus_with_ports(),
            through: through.map(|through| through.dimension_name()),
            chunk_bytes: chunk.map(|through| through.chunk_size().0),
        }
    }
}

/// Looks up the name of `value` in `all`, the table of the names that machine files use.
fn name_of_value_in_table<T: PartialEq>(all: &[(T, &'static str)], value: &T) -> &'static str {
    let found = all.iter().find(|(known, _)| known == value);
    found.map_or("", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_memory_says_through_which_dimension_it_is_reached() {
        let machine = Machine::load_by_name("../../traces/prefetch-4/machine.toml").unwrap();
        let details = |machine| serde_json::to_value(MachineDetails::of_machine(machine)).unwrap();
        let remote = &details(&machine)["remote_memory"];
        assert_eq!(remote["through"], "in-node");
        let design = &remote["design"];
        assert_eq!(design["in_node_bandwidth_bytes_per_s"], 256e9);
        // A memory pool has its own chunk size, but a single channel uses its dimension's chunk size.
        assert_eq!(design["chunk_bytes"], 64_000);
        assert_eq!(remote.get("chunk_bytes"), None);
        let machine = Machine::load_preset("hiermem").unwrap();
        assert_eq!(details(&machine)["remote_memory"].get("through"), None);
    }
}
