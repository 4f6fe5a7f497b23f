//! Machines as JSON, in base units: bytes, bytes and operations per second, picoseconds.

use crate::cli::terminal;
use crate::collective::{AlgorithmChoice, InterDimensionPolicy, IntraDimensionPolicy};
use crate::ids::Npu;
use crate::machine::{Machine, NpuClass};
use crate::memory::MemoryAttachment;
use crate::topology::SwitchingMode;
use crate::trace::Dtype;
use crate::units::Bandwidth;
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// Prints one JSON document under its schema's name and version.
pub(super) fn print(out: &mut dyn Write, schema: &str, key: &str, value: Value) -> io::Result<()> {
    let mut document = Map::new();
    document.insert("schema".to_owned(), schema.into());
    document.insert("tool_version".to_owned(), env!("CARGO_PKG_VERSION").into());
    document.insert(key.to_owned(), value);
    out.write_all(terminal::json(&document).as_bytes())
}

/// Renders a machine as the list has it.
pub(super) fn summary(machine: &Machine) -> Value {
    let dimensions: Vec<_> = machine
        .topology()
        .dimensions()
        .iter()
        .zip(machine.algorithms())
        .map(|(dimension, algorithm)| {
            json!({
                "name": dimension.name,
                "shape": dimension.shape.to_string(),
                "size": dimension.size,
                "bandwidth_bytes_per_s": dimension.bandwidth.bytes_per_second(),
                "latency_ps": dimension.latency.0,
                "algorithm": name_of(&AlgorithmChoice::ALL, algorithm),
            })
        })
        .collect();
    json!({
        "name": machine.name(),
        "description": machine.description(),
        "npus": machine.topology().npus(),
        "scalable": machine.scalable(),
        "network": network(machine),
        "dimensions": dimensions,
    })
}

/// Renders the network model, and its switching; `segment_bytes` is the part of a message that has to have arrived
/// before it is passed on, null for all.
fn network(machine: &Machine) -> Value {
    json!({
        "model": machine.network().to_string(),
        "segment_bytes": match machine.topology().switching() {
            SwitchingMode::CutThrough { segment } => Some(segment.0),
            SwitchingMode::StoreAndForward => None,
        },
    })
}

/// Renders all of a machine.
pub(super) fn details(machine: &Machine) -> Value {
    let mut all = summary(machine);
    all["classes"] = machine.classes().iter().map(class).collect();
    let runs = machine.class_runs();
    all["class_runs"] = runs
        .map(|(Npu(first), Npu(last), class)| json!({"first": first, "last": last, "class": class}))
        .collect();
    let pipeline = machine.pipeline();
    all["collectives"] = json!({
        "chunks": pipeline.chunks,
        "active": pipeline.active,
        "schedule": name_of(&InterDimensionPolicy::ALL, &pipeline.inter),
        "order": name_of(&IntraDimensionPolicy::ALL, &pipeline.intra),
    });
    all["remote_memory"] = machine.remote().map_or(Value::Null, |remote| {
        let mut value = json!({
            "attachment": remote.attachment.name(),
            "bandwidth_bytes_per_s": remote.bandwidth.bytes_per_second(),
            "latency_ps": remote.latency.0,
            "capacity_bytes": remote.capacity.0,
        });
        if let Some(own) = design(&remote.attachment) {
            value["design"] = own;
        }
        if let Some(through) = &remote.through {
            value["through"] = through.name().into();
            if remote.attachment.is_channel() {
                value["chunk_bytes"] = through.chunk().0.into();
            }
        }
        value
    });
    all
}

/// Renders the design of a memory pool that is a network.
fn design(attachment: &MemoryAttachment) -> Option<Value> {
    let rate = |bandwidth: Bandwidth| bandwidth.bytes_per_second();
    Some(match attachment {
        MemoryAttachment::PerNpu | MemoryAttachment::Pool | MemoryAttachment::PerNode(_) => {
            return None;
        }
        MemoryAttachment::Hierarchical(design) => json!({
            "groups": design.groups,
            "out_switches": design.out_switches,
            "npus_per_node": design.npus_per_node,
            "node_bandwidth_bytes_per_s": rate(design.node_bandwidth),
            "in_node_bandwidth_bytes_per_s": rate(design.in_node_bandwidth),
            "chunk_bytes": design.chunk.0,
        }),
        MemoryAttachment::Switch(design) => json!({
            "groups": design.groups,
            "npu_bandwidth_bytes_per_s": rate(design.npu_bandwidth),
            "levels": design.levels.iter().map(|level| json!({
                "fan_in": level.fan_in,
                "bandwidth_bytes_per_s": rate(level.bandwidth),
            })).collect::<Vec<_>>(),
            "chunk_bytes": design.chunk.0,
        }),
        MemoryAttachment::Ring(design) => json!({
            "groups": design.groups,
            "link_bandwidth_bytes_per_s": rate(design.link_bandwidth),
            "npu_bandwidth_bytes_per_s": rate(design.npu_bandwidth),
            "chunk_bytes": design.chunk.0,
        }),
        MemoryAttachment::Mesh(design) => json!({
            "columns": design.columns,
            "rows": design.rows,
            "link_bandwidth_bytes_per_s": rate(design.link_bandwidth),
            "npu_bandwidth_bytes_per_s": rate(design.npu_bandwidth),
            "chunk_bytes": design.chunk.0,
        }),
    })
}

fn class(class: &NpuClass) -> Value {
    let rates = Dtype::ALL.iter().filter_map(|(dtype, name)| {
        let rate = class.peaks.get(*dtype)?;
        Some(((*name).to_owned(), rate.per_second().into()))
    });
    json!({
        "name": class.name,
        "peak_flop_per_s": rates.collect::<Map<_, _>>(),
        "memory_bandwidth_bytes_per_s": class.memory.bandwidth.bytes_per_second(),
        "memory_latency_ps": class.memory.latency.0,
        "memory_capacity_bytes": class.memory.capacity.0,
        "lanes": class.lanes,
        "host_lanes": class.host_lanes,
    })
}

/// Returns the name that machine files give `value`.
fn name_of<T: PartialEq>(all: &[(T, &'static str)], value: &T) -> &'static str {
    let found = all.iter().find(|(known, _)| known == value);
    found.map_or("", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_memory_says_through_which_dimension_it_is_reached() {
        let machine = Machine::load("traces/prefetch-4/machine.toml").unwrap();
        let remote = &details(&machine)["remote_memory"];
        assert_eq!(remote["through"], "in-node");
        let design = &remote["design"];
        assert_eq!(design["in_node_bandwidth_bytes_per_s"], 256e9);
        // Pools have a chunk of their own; one for a channel stands beside the dimension.
        assert_eq!(design["chunk_bytes"], 64_000);
        assert_eq!(remote.get("chunk_bytes"), None);
        let machine = Machine::preset("hiermem").unwrap();
        assert_eq!(details(&machine)["remote_memory"].get("through"), None);
    }
}
