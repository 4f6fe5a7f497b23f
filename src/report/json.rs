//! The report for programs: one JSON document, times in whole picoseconds.
//!
//! `schema` is `chakram.report.1`; a field may be added under the same number, never changed. `operators` has one row
//! for all micro-batches, `mb*/…`, unless all rows are asked for.

use super::breakdown::Part;
use super::memory::{ByClass, MemoryRow};
use super::operators::{Operator, Rows};
use super::summary::{NpuRow, Report, kind_label};
use crate::trace::TensorClass;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::io::{self, Write};

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

/// `report` with the options and inputs that led to it, and these rows of operators.
pub fn document<'r>(
    report: &'r Report,
    options: Map<String, Value>,
    inputs: &[Input],
    rows: Rows,
) -> Document<'r> {
    let mut fields = Map::new();
    fields.insert("schema".to_owned(), SCHEMA.into());
    fields.insert("tool_version".to_owned(), env!("CARGO_PKG_VERSION").into());
    fields.insert("options".to_owned(), options.into());
    fields.insert("inputs".to_owned(), self::inputs(inputs));
    Document::new(fields, report, rows)
}

/// A report on its way out. Operators can be millions, so they are written one by one and never held as values.
#[derive(Debug)]
pub struct Document<'r> {
    fields: Map<String, Value>,
    operators: Cow<'r, [Operator]>,
}

/// The field of operators, which stands empty among the others.
const OPERATORS: &str = "operators";

impl<'r> Document<'r> {
    /// `fields`, and behind them what `report` says.
    pub(super) fn new(mut fields: Map<String, Value>, report: &'r Report, rows: Rows) -> Self {
        fields.extend(body(report));
        Self {
            fields,
            operators: rows.of(&report.operators),
        }
    }
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.fields.len()))?;
        for (key, value) in &self.fields {
            match &**key {
                OPERATORS => map.serialize_entry(key, &OperatorRows(&self.operators))?,
                _ => map.serialize_entry(key, value)?,
            }
        }
        map.end()
    }
}

struct OperatorRows<'r>(&'r [Operator]);

impl Serialize for OperatorRows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Row<'r> {
            name: &'r str,
            kind: &'static str,
            calls: u64,
            total_ps: u64,
        }
        serializer.collect_seq(self.0.iter().map(|operator| Row {
            name: &operator.name,
            kind: kind_label(operator.kind),
            calls: operator.calls,
            total_ps: operator.total.0,
        }))
    }
}

/// Writes a document as people indent it, with a line's end behind.
///
/// # Errors
///
/// When `out` takes no more.
pub fn write(out: &mut dyn Write, document: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, document)?;
    out.write_all(b"\n")
}

/// Inputs as documents name them.
pub(super) fn inputs(inputs: &[Input]) -> Value {
    let inputs = inputs
        .iter()
        .map(|input| json!({"role": input.role, "name": input.name, "blake3": input.blake3}));
    inputs.collect()
}

/// What a report says of the replay itself, but for operators.
fn body(report: &Report) -> Map<String, Value> {
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
        OPERATORS: null,
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
