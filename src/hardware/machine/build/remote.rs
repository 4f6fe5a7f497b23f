//! The `remote_memory` table: memory outside the NPUs, in one of several designs. Each design has its own keys.

use super::{BANDWIDTH, LATENCY, capacity, optional_capacity, size};
use crate::memory::{
    HierarchicalPool, MemoryAttachment, MemoryPorts, MeshPool, NamedMemory, NetworkAttachment,
    RemoteMemory, RingPool, SwitchLevel, SwitchPool,
};
use crate::topology::Topology;
use chakram_base::config::{ConfigError, ConfigField, ConfigTable, quoted};
use chakram_base::ids::Npu;
use chakram_base::units::Bandwidth;
use std::collections::BTreeSet;

/// Keys common to all pools that are networks.
macro_rules! pool_keys {
    ($($own:literal),*) => {
        &["attachment", $($own,)* "group_bandwidth", "chunk", "latency", "capacity", "through"]
    };
}

const CHANNEL: &[&str] = &["attachment", "bandwidth", "latency", "capacity", "through"];
/// Keys of a memory channel that NPUs reach through the network.
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

/// Maximum number of memories, and of switches.
const MOST: u32 = 1 << 20;

/// An example of a chunk, for error messages.
const CHUNK: &str = "1 MB";

/// Reads the memories that traces address by name, in the order of the file.
pub(super) fn named(
    root: &ConfigTable<'_>,
    topology: &Topology,
) -> Result<Vec<NamedMemory>, ConfigError> {
    let Some(field) = root.get("remote_memories") else {
        return Ok(Vec::new());
    };
    let tables = field.table(None)?;
    let memories: Vec<_> = tables
        .fields()
        .map(|(name, field)| {
            if name.trim().is_empty() || name.chars().any(char::is_control) {
                return Err(tables.refuse(quoted(name), "a name for the memory"));
            }
            Ok(NamedMemory {
                name: name.to_owned(),
                memory: remote(&field, topology)?,
            })
        })
        .collect::<Result<_, _>>()?;
    if memories.is_empty() {
        return Err(tables.refuse(
            "no memory",
            "a table [remote_memories.NAME] for each memory",
        ));
    }
    Ok(memories)
}

/// Parses and checks the table for a machine with this network.
pub(super) fn remote(
    field: &ConfigField<'_>,
    topology: &Topology,
) -> Result<RemoteMemory, ConfigError> {
    let npus = topology.npus();
    let names = MemoryAttachment::NAMES.map(|name| (name, name));
    // Open the table twice: with all keys to find the attachment, then with only the attachment's keys, so that all
    // other keys are rejected.
    let all = [CHUNKED, HIERARCHICAL, SWITCH, RING, MESH, PORTS].concat();
    let table = field.table(Some(&all))?;
    let chosen = table.choice("attachment", &names)?;
    let keys = match chosen {
        "hierarchical" => HIERARCHICAL,
        "switch" => SWITCH,
        "ring" => RING,
        "mesh" => MESH,
        "ports" => PORTS,
        _ if table.get("through").is_some() => CHUNKED,
        _ => CHANNEL,
    };
    let table = field.table(Some(keys))?;
    let dimension = table.optional("through", |field| through(field, chosen, topology))?;
    // With `through`, the port bandwidth of the design is the network's, so the table must not state it too.
    let port = |key| port(&table, key, dimension, topology);
    let attachment = match chosen {
        "hierarchical" => {
            MemoryAttachment::Hierarchical(hierarchical(&table, npus, port("in_node_bandwidth")?)?)
        }
        "switch" => MemoryAttachment::Switch(switch(&table, npus, port("npu_bandwidth")?)?),
        "ring" => MemoryAttachment::Ring(ring(&table, npus)?),
        "mesh" => MemoryAttachment::Mesh(mesh(&table, npus)?),
        "ports" => MemoryAttachment::Ports(ports(&table, topology)?),
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
            NetworkAttachment::new(topology, dimension, size(&table, "chunk", CHUNK)?)
        }
        None => None,
    };
    Ok(RemoteMemory {
        attachment,
        bandwidth: rate(&table, bandwidth)?,
        latency: table.quantity("latency", LATENCY)?,
        // The NPUs share the capacity of ports and of a pool that is a network.
        capacity: match keys == CHANNEL {
            true => optional_capacity(&table, "capacity")?,
            false => Some(capacity(&table, "capacity")?),
        },
        whole_ns: false,
        through,
    })
}

/// Returns the dimension whose ports a pool or channel of the attachment `chosen` uses, or `None`.
fn through(
    field: &ConfigField<'_>,
    chosen: &str,
    topology: &Topology,
) -> Result<usize, ConfigError> {
    if matches!(chosen, "ring" | "mesh") {
        let found = format!("a dimension, but the attachment is {chosen}");
        let expected =
            "no `through` with attachment ring or mesh, because their NPUs have no memory ports";
        return Err(field.refuse(found, expected));
    }
    let dimensions = topology.dimensions();
    let names: Vec<_> = (0..)
        .zip(dimensions)
        .map(|(d, dimension)| (d, dimension.name.as_str()))
        .collect();
    let chosen: usize = field.choice(&names)?;
    let dimension = &dimensions[chosen];
    if dimension.shape.has_ports() {
        Ok(chosen)
    } else {
        let name = quoted(&dimension.name);
        let found = format!("{name}, whose shape is {}", dimension.shape);
        let expected =
            "a dimension of shape switch or fully_connected, where each NPU has its own port";
        Err(field.refuse(found, expected))
    }
}

/// Returns the bandwidth of the NPUs' ports: from `dimension` if given, otherwise from `key`.
fn port(
    table: &ConfigTable<'_>,
    key: &str,
    dimension: Option<usize>,
    topology: &Topology,
) -> Result<Bandwidth, ConfigError> {
    match (dimension, table.get(key)) {
        (Some(dimension), None) => Ok(topology.dimensions()[dimension].bandwidth),
        (Some(_), Some(field)) => Err(field.refuse(
            "both a bandwidth and `through`",
            "one of the two; `through` uses the NPUs' ports into that dimension",
        )),
        (None, _) => rate(table, key),
    }
}

/// Parses the ports of a memory, given by their NPUs.
fn ports(table: &ConfigTable<'_>, topology: &Topology) -> Result<MemoryPorts, ConfigError> {
    let expected = format!("NPUs from 0 to {} such as \"0-3,6\"", topology.npus() - 1);
    let field = table.need("at", &expected)?;
    let text = field.text(&expected)?;
    let ranges = super::class_assignment::ranges(text, 0, topology.npus())
        .map_err(|piece| field.refuse(quoted(piece), &expected))?;
    let npus: BTreeSet<Npu> = ranges
        .iter()
        .flat_map(|range| (range.first..=range.last).map(Npu))
        .collect();
    Ok(MemoryPorts::new(npus.into_iter().collect(), topology))
}

fn hierarchical(
    table: &ConfigTable<'_>,
    npus: u32,
    in_node_bandwidth: Bandwidth,
) -> Result<HierarchicalPool, ConfigError> {
    let npus_per_node = table.count("npus_per_node", npus)?;
    divides(table, "npus_per_node", npus_per_node, npus)?;
    Ok(HierarchicalPool {
        groups: table.count("groups", MOST)?,
        out_switches: table.count("out_switches", MOST)?,
        npus_per_node,
        node_bandwidth: rate(table, "node_bandwidth")?,
        in_node_bandwidth,
        chunk: size(table, "chunk", CHUNK)?,
    })
}

fn switch(
    table: &ConfigTable<'_>,
    npus: u32,
    npu_bandwidth: Bandwidth,
) -> Result<SwitchPool, ConfigError> {
    let expected =
        "a table [[remote_memory.level]] for each level of switches, nearest to the NPUs first";
    let tables = table
        .need("level", expected)?
        .tables(&["fan_in", "bandwidth"])?;
    let mut levels = Vec::with_capacity(tables.len());
    // NPUs or switches that no level has joined yet.
    let mut below = npus;
    for level in &tables {
        let fan_in = level.count("fan_in", below)?;
        divides(level, "fan_in", fan_in, below)?;
        below /= fan_in;
        levels.push(SwitchLevel {
            fan_in,
            bandwidth: rate(level, "bandwidth")?,
        });
    }
    Ok(SwitchPool {
        groups: table.count("groups", MOST)?,
        npu_bandwidth,
        levels,
        chunk: size(table, "chunk", CHUNK)?,
    })
}

fn ring(table: &ConfigTable<'_>, npus: u32) -> Result<RingPool, ConfigError> {
    let groups = table.count("groups", npus.min(RingPool::MOST))?;
    divides(table, "groups", groups, npus)?;
    Ok(RingPool {
        groups,
        link_bandwidth: rate(table, "link_bandwidth")?,
        npu_bandwidth: rate(table, "npu_bandwidth")?,
        chunk: size(table, "chunk", CHUNK)?,
    })
}

fn mesh(table: &ConfigTable<'_>, npus: u32) -> Result<MeshPool, ConfigError> {
    let columns = table.count("columns", npus.min(MeshPool::MOST))?;
    let rows = table.count("rows", npus.min(MeshPool::MOST) / columns)?;
    divides(table, "rows", columns * rows, npus)?;
    Ok(MeshPool {
        columns,
        rows,
        link_bandwidth: rate(table, "link_bandwidth")?,
        npu_bandwidth: rate(table, "npu_bandwidth")?,
        chunk: size(table, "chunk", CHUNK)?,
    })
}

fn rate(table: &ConfigTable<'_>, key: &str) -> Result<Bandwidth, ConfigError> {
    table.quantity(key, BANDWIDTH)
}

/// Rejects the value of `key`, a number of `part`, unless `part` divides `all`.
fn divides(table: &ConfigTable<'_>, key: &str, part: u32, all: u32) -> Result<(), ConfigError> {
    if all.is_multiple_of(part) {
        return Ok(());
    }
    let found = format!("a value that makes {part} parts, which does not divide {all}");
    Err(table
        .need(key, "")?
        .refuse(found, "a value that divides evenly"))
}
