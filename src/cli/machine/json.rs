//! Machines as JSON, in base units: bytes, bytes and operations per second, picoseconds.

use crate::collective::Algorithm;
use crate::ids::Npu;
use crate::machine::{Machine, NpuClass};
use crate::memory::Attachment;
use crate::trace::Dtype;
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// Prints one JSON document under its schema's name and version.
pub(super) fn print(out: &mut dyn Write, schema: &str, key: &str, value: Value) -> io::Result<()> {
    let mut document = Map::new();
    document.insert("schema".to_owned(), schema.into());
    document.insert("tool_version".to_owned(), env!("CARGO_PKG_VERSION").into());
    document.insert(key.to_owned(), value);
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}

/// A machine as the list has it.
pub(super) fn summary(machine: &Machine) -> Value {
    let dimensions = machine
        .topology()
        .dimensions()
        .iter()
        .zip(machine.algorithms());
    let dimensions: Vec<_> = dimensions
        .map(|(dimension, algorithm)| {
            json!({
                "name": dimension.name,
                "shape": dimension.shape.to_string(),
                "size": dimension.size,
                "bandwidth_bytes_per_s": dimension.bandwidth.bytes_per_second(),
                "latency_ps": dimension.latency.0,
                "algorithm": name_of(&Algorithm::ALL, algorithm),
            })
        })
        .collect();
    json!({
        "name": machine.name(),
        "description": machine.description(),
        "npus": machine.topology().npus(),
        "scalable": machine.scalable(),
        "dimensions": dimensions,
    })
}

/// All of a machine.
pub(super) fn details(machine: &Machine) -> Value {
    let mut all = summary(machine);
    all["classes"] = machine.classes().iter().map(class).collect();
    let runs = machine.class_runs();
    all["class_runs"] = runs
        .map(|(Npu(first), Npu(last), class)| json!({"first": first, "last": last, "class": class}))
        .collect();
    all["remote_memory"] = machine.remote().map_or(Value::Null, |remote| {
        json!({
            "attachment": name_of(&Attachment::ALL, &remote.attachment),
            "bandwidth_bytes_per_s": remote.bandwidth.bytes_per_second(),
            "latency_ps": remote.latency.0,
            "capacity_bytes": remote.capacity.0,
        })
    });
    all
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

/// The name that machine files give `value`.
fn name_of<T: PartialEq>(all: &[(T, &'static str)], value: &T) -> &'static str {
    let found = all.iter().find(|(known, _)| known == value);
    found.map_or("", |(_, name)| name)
}
