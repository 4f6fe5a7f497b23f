//! The report for programs: one JSON document, times in whole picoseconds.
//!
//! `schema` is `chakram.report.1`; a field may be added under the same number, never changed.

use super::breakdown::Part;
use super::memory::{ByClass, MemoryRow};
use super::summary::{NpuRow, Report, kind_label};
use crate::trace::TensorClass;
use serde_json::{Map, Value, json};

/// The version of what a report says.
pub(super) const SCHEMA: &str = "chakram.report.1";

/// An input of the replay: what it was for, its name, and the hash of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// `trace`, `machine`, `groups`, `custom`.
    pub role: &'static str,
    /// The file, or the name of a preset.
    pub name: String,
    /// BLAKE3 of its bytes, in hexadecimal.
    pub blake3: String,
}

/// Renders `report` with the options and inputs that led to it.
pub fn render(report: &Report, options: Map<String, Value>, inputs: &[Input]) -> Value {
    let mut document = Map::new();
    document.insert("schema".to_owned(), SCHEMA.into());
    document.insert("tool_version".to_owned(), env!("CARGO_PKG_VERSION").into());
    document.insert("options".to_owned(), options.into());
    document.insert("inputs".to_owned(), self::inputs(inputs));
    document.extend(body(report));
    document.into()
}

/// Inputs as documents name them.
pub(super) fn inputs(inputs: &[Input]) -> Value {
    let inputs = inputs
        .iter()
        .map(|input| json!({"role": input.role, "name": input.name, "blake3": input.blake3}));
    inputs.collect()
}

/// What a report says of the replay itself.
pub(super) fn body(report: &Report) -> Map<String, Value> {
    let outcome = &report.outcome;
    let body = json!({
        "machine": {"name": report.machine, "npus": report.npus},
        "ranks": report.ranks,
        "absent_ranks": report.absent.iter().map(|r| r.0).collect::<Vec<_>>(),
        "makespan_ps": outcome.makespan.0,
        "captured_ps": report.captured().map(|(captured, _)| captured.0),
        "nodes": outcome.nodes,
        "messages": outcome.messages,
        "collectives_by_closed_form": outcome.closed,
        "collectives_unfolded": outcome.unfolded,
        "collectives_in_messages": outcome.stepwise,
        "collectives_as_recorded": outcome.recorded,
        "kernels": {
            "priced": report.basis.priced,
            "kept_recorded": report.basis.fell_back,
            "unknown": report.basis.unknown,
        },
        "network": report.network,
        "communication": {
            "as_recorded": report.basis.as_recorded,
            "unknown": report.basis.unrecorded,
        },
        "mean_ps": parts(&std::array::from_fn(|i| report.mean(|time| time.parts[i]))),
        "mean_communicating_ps": report.mean(|time| time.communicating).0,
        "npus": report.rows.iter().map(npu).collect::<Vec<_>>(),
        "collectives": report.collectives.iter().map(collective).collect::<Vec<_>>(),
        "exposed": report.exposed.iter().map(|row| with_role(json!({
            "what": row.what,
            "sum_over_npus_ps": row.exposed.0,
        }), row.role.as_deref())).collect::<Vec<_>>(),
        "operators": report.operators.iter().map(|operator| json!({
            "name": operator.name,
            "kind": kind_label(operator.kind),
            "calls": operator.calls,
            "total_ps": operator.total.0,
        })).collect::<Vec<_>>(),
        "warnings": report.warnings(),
    });
    match body {
        Value::Object(mut fields) => {
            if !report.memory.is_empty() {
                let rows: Vec<_> = report.memory.iter().map(memory).collect();
                let memory = json!({"fits": report.fits(), "npus": rows});
                fields.insert("memory".to_owned(), memory);
            }
            fields
        }
        _ => unreachable!("it is written as an object"),
    }
}

/// The keys of [`Part::ALL`].
pub(super) const PART_KEYS: [&str; 5] = ["compute", "communication", "memory", "host", "idle"];

fn parts(spans: &[crate::units::Span; 5]) -> Value {
    let named = Part::ALL.iter().zip(PART_KEYS);
    let entries = named.map(|((part, _), key)| (key.to_owned(), spans[*part as usize].0.into()));
    Value::Object(entries.collect())
}

fn npu(row: &NpuRow) -> Value {
    json!({
        "rank": row.rank.0,
        "npu": row.npu.0,
        "class": row.class,
        "time_ps": parts(&row.time.parts),
        "communicating_ps": row.time.communicating.0,
        "finish_ps": row.time.finish.0,
        "captured_ps": row.captured.map(|captured| captured.0),
        "difference_percent": row.difference(),
    })
}

fn memory(row: &MemoryRow) -> Value {
    let node = |(id, name): &(u64, String)| json!({"id": id, "name": name});
    json!({
        "rank": row.rank.0,
        "npu": row.npu.0,
        "capacity_bytes": row.capacity.0,
        "peak_bytes": row.peak.0,
        "peak_bytes_by_class": by_class(&row.classes),
        "peak_ps": row.at.0,
        "peak_node": row.node.as_ref().map(node),
        "fits": row.fits(),
        "left_bytes_by_class": by_class(&row.left),
        "missing": row.missing.as_ref().map(|missing| json!({
            "nodes": missing.nodes,
            "first_node": node(&missing.first),
            "bytes_by_class": by_class(&missing.classes),
        })),
    })
}

fn by_class(bytes: &ByClass) -> Value {
    let named = TensorClass::ALL.iter().zip(bytes);
    let entries = named.map(|((_, name), bytes)| ((*name).to_owned(), (*bytes).into()));
    Value::Object(entries.collect())
}

fn collective(row: &super::summary::CollectiveRow) -> Value {
    let tally = &row.tally;
    let value = json!({
        "group": row.group,
        "group_index": row.group_index,
        "members": row.members,
        "present": row.present,
        "kind": row.kind.to_string(),
        "algorithm": row.algorithm,
        "calls": tally.calls,
        "calls_in_messages": tally.stepwise,
        "buffer_bytes": {"sum": tally.bytes, "smallest": tally.smallest, "largest": tally.largest},
        "transfer_ps": tally.transfer.0,
        "waited_ps_sum_over_members": tally.waited.0,
        "waited_for_longest": row.latest.map(|(rank, waited)| json!({
            "rank": rank.0,
            "ps_sum_over_members": waited.0,
        })),
        "bus_bytes_per_s": tally.bus_bandwidth(row.kind, row.members),
    });
    with_role(value, row.role.as_deref())
}

/// What a group is for, where that is known.
fn with_role(mut row: Value, role: Option<&str>) -> Value {
    if let (Some(role), Value::Object(fields)) = (role, &mut row) {
        fields.insert("role".to_owned(), role.into());
    }
    row
}
