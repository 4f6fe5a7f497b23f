//! The `remote_memory` table: memory outside the NPUs, in one of several designs. Each design has its own keys.

use super::{BANDWIDTH, LATENCY, parse_capacity, parse_optional_capacity, parse_size};
use crate::memory::{
    HierarchicalPool, MemoryAttachment, MemoryNetworkAttachment, MemoryPoolSwitchLevel, MeshPool,
    MultiLevelSwitchPool, NamedRemoteMemory, NpusWithMemoryPorts, RemoteMemory, RingPool,
};
use crate::topology::Topology;
use chakram_base::config::{ConfigError, ConfigField, ConfigTable, quote_and_truncate_for_message};
use chakram_base::ids::Npu;
use chakram_base::units::Bandwidth;
use std::collections::BTreeSet;

/// Keys that all pools with a network of their own have in common.
macro_rules! pool_keys {
    ($($own:literal),*) => {
        &["attachment", $($own,)* "group_bandwidth", "chunk", "latency", "capacity", "through"]
    };
}

const CHANNEL: &[&str] = &["attachment", "bandwidth", "latency", "capacity", "through"];
/// Keys of a memory channel that NPUs access through the network.
const CHUNKED: &[&str] = &[
    "attachment",
    "bandwidth",
    "latency",
    "capacity",
    "through",
    "chunk",
];
const HIERARCHICAL: &[&str] = pool_keys!(
    "groups",
    "out_switches",
    "npus_per_node",
    "node_bandwidth",
    "in_node_bandwidth"
);
const SWITCH: &[&str] = pool_keys!("groups", "npu_bandwidth", "level");
const RING: &[&str] = pool_keys!("groups", "link_bandwidth", "npu_bandwidth");
const PORTS: &[&str] = &["attachment", "at", "bandwidth", "latency", "capacity"];
const MESH: &[&str] = pool_keys!("columns", "rows", "link_bandwidth", "npu_bandwidth");

/// Maximum number of memories, and also of switches.
const MOST: u32 = 1 << 20;

/// An example of a chunk, for error messages.
const CHUNK: &str = "1 MB";

/// Reads the memories that traces address by name, in the order of the file.
pub(super) fn parse_named_memories(
    root: &ConfigTable<'_>,
    topology: &Topology,
) -> Result<Vec<NamedRemoteMemory>, ConfigError> {
    let Some(field) = root.get("remote_memories") else {
        return Ok(Vec::new());
    };
    let tables = field.read_table(None)?;
    let memories: Vec<_> = tables
        .fields()
        .map(|(name, field)| {
            if name.trim().is_empty() || name.chars().any(char::is_control) {
                return Err(tables.invalid_table_error(
                    quote_and_truncate_for_message(name),
                    "a name for the memory",
                ));
            }
            Ok(NamedRemoteMemory {
                name: name.to_owned(),
                memory: parse_remote_memory(&field, topology)?,
            })
        })
        .collect::<Result<_, _>>()?;
    if memories.is_empty() {
        return Err(tables.invalid_table_error(
            "no memory",
            "a table [remote_memories.NAME] for each memory",
        ));
    }
    Ok(memories)
}

/// Parses and checks the `remote_memory` table for a machine with this network.
pub(super) fn parse_remote_memory(
    field: &ConfigField<'_>,
    topology: &Topology,
) -> Result<RemoteMemory, ConfigError> {
    let npus = topology.npu_count();
    let names = MemoryAttachment::NAMES.map(|name| (name, name));
    // Open the table twice: first with all keys, to find the attachment, and then with only the attachment's keys, to
    // reject all others.
    let all = [CHUNKED, HIERARCHICAL, SWITCH, RING, MESH, PORTS].concat();
    let table = field.read_table(Some(&all))?;
    let chosen = table.read_choice("attachment", &names)?;
    let keys = match chosen {
        "hierarchical" => HIERARCHICAL,
        "switch" => SWITCH,
        "ring" => RING,
        "mesh" => MESH,
        "ports" => PORTS,
        _ if table.get("through").is_some() => CHUNKED,
        _ => CHANNEL,
    };
    let table = field.read_table(Some(keys))?;
    let dimension = table.read_optional("through", |field| {
        parse_attached_dimension(field, chosen, topology)
    })?;
    // With `through`, the network determines the bandwidth of the NPUs' ports, so the table must not state it.
    let port = |key| npu_port_bandwidth_from_dimension_or_key(&table, key, dimension, topology);
    let attachment = match chosen {
        "hierarchical" => MemoryAttachment::Hierarchical(parse_hierarchical_pool(
            &table,
            npus,
            port("in_node_bandwidth")?,
        )?),
        "switch" => {
            MemoryAttachment::Switch(parse_switch_pool(&table, npus, port("npu_bandwidth")?)?)
        }
        "ring" => MemoryAttachment::Ring(parse_ring_pool(&table, npus)?),
        "mesh" => MemoryAttachment::Mesh(parse_mesh_pool(&table, npus)?),
        "ports" => MemoryAttachment::Ports(parse_npus_with_memory_ports(&table, topology)?),
        "pool" => MemoryAttachment::Pool,
        _ => MemoryAttachment::PerNpu,
    };
    let bandwidth = if [CHANNEL, CHUNKED, PORTS].contains(&keys) {
        "bandwidth"
    } else {
        "group_bandwidth"
    };
    let through = match dimension {
        Some(dimension) => {
            MemoryNetworkAttachment::new(topology, dimension, parse_size(&table, "chunk", CHUNK)?)
        }
        None => None,
    };
    Ok(RemoteMemory {
        attachment,
        bandwidth: parse_bandwidth_or_link_rates(&table, bandwidth)?,
        latency: table.read_quantity("latency", LATENCY)?,
        // NPUs share the capacity of memory at ports and of a pool with its own network, so the table must state that
        // capacity.
        capacity: match keys == CHANNEL {
            true => parse_optional_capacity(&table, "capacity")?,
            false => Some(parse_capacity(&table, "capacity")?),
        },
        whole_ns: false,
        through,
    })
}

/// Parses the name of the dimension through which NPUs access a pool or channel. `chosen` is the name of the
/// attachment.
fn parse_attached_dimension(
    field: &ConfigField<'_>,
    chosen: &str,
    topology: &Topology,
) -> Result<usize, ConfigError> {
    if matches!(chosen, "ring" | "mesh") {
        let found = format!("a dimension, but the attachment is {chosen}");
        let expected =
            "no `through` with attachment ring or mesh, because their NPUs have no memory ports";
        return Err(field.invalid_value_error(found, expected));
    }
    let dimensions = topology.dimensions();
    let names: Vec<_> = (0..)
        .zip(dimensions)
        .map(|(d, dimension)| (d, dimension.name.as_str()))
        .collect();
    let chosen: usize = field.read_choice(&names)?;
    let dimension = &dimensions[chosen];
    if dimension.shape.has_ports() {
        Ok(chosen)
    } else {
        let name = quote_and_truncate_for_message(&dimension.name);
        let found = format!("{name}, whose shape is {}", dimension.shape);
        let expected =
            "a dimension of shape switch or fully_connected, where each NPU has its own port";
        Err(field.invalid_value_error(found, expected))
    }
}

/// Returns the bandwidth of the NPUs' ports, which comes from `dimension` if given, and otherwise from `key`.
fn npu_port_bandwidth_from_dimension_or_key(
    table: &ConfigTable<'_>,
    key: &str,
    dimension: Option<usize>,
    topology: &Topology,
) -> Result<Bandwidth, ConfigError> {
    match (dimension, table.get(key)) {
        (Some(dimension), None) => Ok(topology.dimensions()[dimension].bandwidth),
        (Some(_), Some(field)) => Err(field.invalid_value_error(
            "both a bandwidth and `through`",
            "one of the two; `through` uses the NPUs' ports into that dimension",
        )),
        (None, _) => parse_bandwidth_or_link_rates(table, key),
    }
}

/// Parses a memory's ports; each port is named by its NPU.
fn parse_npus_with_memory_ports(
    table: &ConfigTable<'_>,
    topology: &Topology,
) -> Result<NpusWithMemoryPorts, ConfigError> {
    let expected = format!(
        "NPUs from 0 to {} such as \"0-3,6\"",
        topology.npu_count() - 1
    );
    let field = table.require_field("at", &expected)?;
    let text = field.read_text(&expected)?;
    let ranges = super::class_assignment::parse_npu_ranges(text, 0, topology.npu_count()).map_err(
        |piece| field.invalid_value_error(quote_and_truncate_for_message(piece), &expected),
    )?;
    let npus: BTreeSet<Npu> = ranges
        .iter()
        .flat_map(|range| (range.first..=range.last).map(Npu))
        .collect();
    Ok(NpusWithMemoryPorts::new(
        npus.into_iter().collect(),
        topology,
    ))
}

fn parse_hierarchical_pool(
    table: &ConfigTable<'_>,
    npus: u32,
    in_node_bandwidth: Bandwidth,
) -> Result<HierarchicalPool, ConfigError> {
    let npus_per_node = table.read_count("npus_per_node", npus)?;
    check_divides(table, "npus_per_node", npus_per_node, npus)?;
    Ok(HierarchicalPool {
        groups: table.read_count("groups", MOST)?,
        out_switches: table.read_count("out_switches", MOST)?,
        npus_per_node,
        node_bandwidth: parse_bandwidth_or_link_rates(table, "node_bandwidth")?,
        in_node_bandwidth,
        chunk: parse_size(table, "chunk", CHUNK)?,
    })
}

fn parse_switch_pool(
    table: &ConfigTable<'_>,
    npus: u32,
    npu_bandwidth: Bandwidth,
) -> Result<MultiLevelSwitchPool, ConfigError> {
    let expected =
        "a table [[remote_memory.level]] for each level of switches, nearest to the NPUs first";
    let tables = table
        .require_field("level", expected)?
        .read_tables(&["fan_in", "bandwidth"])?;
    let mut levels = Vec::with_capacity(tables.len());
    // Number of NPUs, or of switches on the previous level, that no switch connects yet.
    let mut below = npus;
    for level in &tables {
        let fan_in = level.read_count("fan_in", below)?;
        check_divides(level, "fan_in", fan_in, below)?;
        below /= fan_in;
        levels.push(MemoryPoolSwitchLevel {
            fan_in,
            bandwidth: parse_bandwidth_or_link_rates(level, "bandwidth")?,
        });
    }
    Ok(MultiLevelSwitchPool {
        groups: table.read_count("groups", MOST)?,
        npu_bandwidth,
        levels,
        chunk: parse_size(table, "chunk", CHUNK)?,
    })
}

fn parse_ring_pool(table: &ConfigTable<'_>, npus: u32) -> Result<RingPool, ConfigError> {
    let groups = table.read_count("groups", npus.min(RingPool::MOST))?;
    check_divides(table, "groups", groups, npus)?;
    Ok(RingPool {
        groups,
        link_bandwidth: parse_bandwidth_or_link_rates(table, "link_bandwidth")?,
        npu_bandwidth: parse_bandwidth_or_link_rates(table, "npu_bandwidth")?,
        chunk: parse_size(table, "chunk", CHUNK)?,
    })
}

fn parse_mesh_pool(table: &ConfigTable<'_>, npus: u32) -> Result<MeshPool, ConfigError> {
    let columns = table.read_count("columns", npus.min(MeshPool::MOST))?;
    let rows = table.read_count("rows", npus.min(MeshPool::MOST) / columns)?;
    check_divides(table, "rows", columns * rows, npus)?;
    Ok(MeshPool {
        columns,
        rows,
        link_bandwidth: parse_bandwidth_or_link_rates(table, "link_bandwidth")?,
        npu_bandwidth: parse_bandwidth_or_link_rates(table, "npu_bandwidth")?,
        chunk: parse_size(table, "chunk", CHUNK)?,
    })
}

fn parse_bandwidth_or_link_rates(
    table: &ConfigTable<'_>,
    key: &str,
) -> Result<Bandwidth, ConfigError> {
    table.read_quantity(key, BANDWIDTH)
}

/// Fails unless `all` is a multiple of `part`; the value of `key` determines the number of parts.
fn check_divides(
    table: &ConfigTable<'_>,
    key: &str,
    part: u32,
    all: u32,
) -> Result<(), ConfigError> {
    if all.is_multiple_of(part) {
        return Ok(());
    }
    let found = format!("a value that makes {part} parts, which does not divide {all}");
    Err(table
        .require_field(key, "")?
        .invalid_value_error(found, "a value that divides evenly"))
}
