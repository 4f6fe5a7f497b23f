//! The `remote_memory` table: memory beyond the NPUs, in one of several designs with keys of their own.

use super::{BANDWIDTH, LATENCY, capacity, size};
use crate::machine::MachineError;
use crate::machine::config::{Field, Table};
use crate::memory::{Attachment, Hierarchical, Level, Mesh, RemoteMemory, Ring, Switch};
use crate::units::Bandwidth;

/// The keys of every pool that is a network.
macro_rules! pool_keys {
    ($($own:literal),*) => {
        &["attachment", $($own,)* "group_bandwidth", "chunk", "latency", "capacity"]
    };
}

const CHANNEL: &[&str] = &["attachment", "bandwidth", "latency", "capacity"];
const HIERARCHICAL: &[&str] = pool_keys!(
    "groups",
    "out_switches",
    "npus_per_node",
    "node_bandwidth",
    "in_node_bandwidth"
);
const SWITCH: &[&str] = pool_keys!("groups", "npu_bandwidth", "level");
const RING: &[&str] = pool_keys!("groups", "link_bandwidth", "npu_bandwidth");
const MESH: &[&str] = pool_keys!("columns", "rows", "link_bandwidth", "npu_bandwidth");

/// The most memories or switches of a kind.
const MOST: u32 = 1 << 20;

/// An example of a chunk, for messages.
const CHUNK: &str = "1 MB";

/// Reads and checks the table for a machine of `npus` NPUs.
pub(super) fn remote(field: &Field<'_>, npus: u32) -> Result<RemoteMemory, MachineError> {
    let names = Attachment::NAMES.map(|name| (name, name));
    let all = [CHANNEL, HIERARCHICAL, SWITCH, RING, MESH].concat();
    let table = field.table(Some(&all))?;
    let chosen = table.choice("attachment", &names)?;
    let keys = match chosen {
        "hierarchical" => HIERARCHICAL,
        "switch" => SWITCH,
        "ring" => RING,
        "mesh" => MESH,
        _ => CHANNEL,
    };
    let table = field.table(Some(keys))?;
    let attachment = match chosen {
        "hierarchical" => Attachment::Hierarchical(hierarchical(&table, npus)?),
        "switch" => Attachment::Switch(switch(&table, npus)?),
        "ring" => Attachment::Ring(ring(&table, npus)?),
        "mesh" => Attachment::Mesh(mesh(&table, npus)?),
        "pool" => Attachment::Pool,
        _ => Attachment::PerNpu,
    };
    let bandwidth = match keys == CHANNEL {
        true => "bandwidth",
        false => "group_bandwidth",
    };
    Ok(RemoteMemory {
        attachment,
        bandwidth: rate(&table, bandwidth)?,
        latency: table.quantity("latency", LATENCY)?,
        capacity: capacity(&table, "capacity")?,
        whole_ns: false,
    })
}

fn hierarchical(table: &Table<'_>, npus: u32) -> Result<Hierarchical, MachineError> {
    let npus_per_node = count(table, "npus_per_node", npus)?;
    divides(table, "npus_per_node", npus_per_node, npus)?;
    Ok(Hierarchical {
        groups: count(table, "groups", MOST)?,
        out_switches: count(table, "out_switches", MOST)?,
        npus_per_node,
        node_bandwidth: rate(table, "node_bandwidth")?,
        in_node_bandwidth: rate(table, "in_node_bandwidth")?,
        chunk: size(table, "chunk", CHUNK)?,
    })
}

fn switch(table: &Table<'_>, npus: u32) -> Result<Switch, MachineError> {
    let expected =
        "a table [[remote_memory.level]] for each level of switches, that of the NPUs first";
    let tables = table
        .need("level", expected)?
        .tables(&["fan_in", "bandwidth"])?;
    let mut levels = Vec::with_capacity(tables.len());
    // What is left to be joined.
    let mut below = npus;
    for level in &tables {
        let fan_in = count(level, "fan_in", below)?;
        divides(level, "fan_in", fan_in, below)?;
        below /= fan_in;
        levels.push(Level {
            fan_in,
            bandwidth: rate(level, "bandwidth")?,
        });
    }
    Ok(Switch {
        groups: count(table, "groups", MOST)?,
        npu_bandwidth: rate(table, "npu_bandwidth")?,
        levels,
        chunk: size(table, "chunk", CHUNK)?,
    })
}

fn ring(table: &Table<'_>, npus: u32) -> Result<Ring, MachineError> {
    let groups = count(table, "groups", npus.min(Ring::MOST))?;
    divides(table, "groups", groups, npus)?;
    Ok(Ring {
        groups,
        link_bandwidth: rate(table, "link_bandwidth")?,
        npu_bandwidth: rate(table, "npu_bandwidth")?,
        chunk: size(table, "chunk", CHUNK)?,
    })
}

fn mesh(table: &Table<'_>, npus: u32) -> Result<Mesh, MachineError> {
    let columns = count(table, "columns", npus.min(Mesh::MOST))?;
    let rows = count(table, "rows", npus.min(Mesh::MOST) / columns)?;
    divides(table, "rows", columns * rows, npus)?;
    Ok(Mesh {
        columns,
        rows,
        link_bandwidth: rate(table, "link_bandwidth")?,
        npu_bandwidth: rate(table, "npu_bandwidth")?,
        chunk: size(table, "chunk", CHUNK)?,
    })
}

fn rate(table: &Table<'_>, key: &str) -> Result<Bandwidth, MachineError> {
    table.quantity(key, BANDWIDTH)
}

/// A whole number from 1 to `most`.
fn count(table: &Table<'_>, key: &str, most: u32) -> Result<u32, MachineError> {
    let expected = format!("a whole number from 1 to {most}");
    table.need(key, expected)?.count(most)
}

/// Refuses the value of `key`, which makes `part` of something, unless this divides `all`.
fn divides(table: &Table<'_>, key: &str, part: u32, all: u32) -> Result<(), MachineError> {
    if all.is_multiple_of(part) {
        return Ok(());
    }
    let found = format!("one that makes {part}, which does not divide {all}");
    Err(table.need(key, "")?.refuse(found, "equal parts"))
}
