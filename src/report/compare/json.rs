//! The comparison for programs: one JSON document, times in whole picoseconds.
//!
//! `schema` is `chakram.comparison.1`; `machines` holds the reports of `chakram.report.1` without what
//! is the same for all, or how a replay failed; `comparison` holds each machine against the first that
//! has a report.

use super::csv::status;
use super::words::explain;
use super::{Change, Column, Comparison, Moved, Side, Why};
use crate::report::breakdown::Part;
use crate::report::json::{self, Input, PART_KEYS, SCHEMA, inputs};
use crate::report::operators::Rows;
use crate::report::summary::Report;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// `comparison` with the options and inputs that led to it, and these rows of operators.
pub fn document<'c>(
    comparison: &'c Comparison<'_>,
    options: Map<String, Value>,
    from: &[Input],
    rows: Rows,
) -> Document<'c> {
    let machines = comparison.columns.iter();
    let against = match comparison.reference() {
        None => Vec::new(),
        Some((column, first)) => {
            let reports = comparison.reports();
            reports
                .map(|(other, report)| row(column, first, other, report))
                .collect()
        }
    };
    Document {
        schema: "chakram.comparison.1",
        tool_version: env!("CARGO_PKG_VERSION"),
        options,
        inputs: inputs(from),
        machines: machines.map(|column| machine(column, rows)).collect(),
        comparison: against,
    }
}

/// A comparison on its way out.
#[derive(Debug, Serialize)]
pub struct Document<'c> {
    schema: &'static str,
    tool_version: &'static str,
    options: Map<String, Value>,
    inputs: Value,
    machines: Vec<Machine<'c>>,
    comparison: Vec<Value>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Machine<'c> {
    Completed(json::Document<'c>),
    Failed(Value),
}

fn machine<'c>(column: &'c Column<'_>, rows: Rows) -> Machine<'c> {
    match &column.result {
        Ok(report) => {
            let mut fields = Map::new();
            fields.insert("schema".to_owned(), SCHEMA.into());
            Machine::Completed(json::Document::new(fields, report, rows))
        }
        Err(error) => Machine::Failed(json!({
            "schema": SCHEMA,
            "machine": {"name": column.machine.name(), "npus": column.machine.topology().npus()},
            "failed": {"how": status(column), "message": error.to_string()},
        })),
    }
}

fn row(column: &Column<'_>, first: &Report, other: &Column<'_>, report: &Report) -> Value {
    let why = Why::new(first, report);
    let parts = Part::ALL.iter().zip(PART_KEYS);
    let parts = parts.map(|((part, _), key)| (key.to_owned(), change(&why.part(*part))));
    let lines = match std::ptr::eq(first, report) {
        true => Vec::new(),
        false => explain(&why, &column.name, &other.name),
    };
    let words: Vec<_> = lines
        .into_iter()
        .map(|(indent, text)| format!("{}{text}", "  ".repeat(indent)))
        .collect();
    json!({
        "machine": other.name,
        "against": column.name,
        "makespan": change(&why.makespan),
        "speed": why.makespan.speed(),
        "change_percent": why.makespan.percent(),
        "difference_from_capture_percent": report.difference(),
        "mean": parts.collect::<Map<_, _>>(),
        "after_last_node": change(&why.after_last),
        "communication": why.communication.iter().map(moved).collect::<Vec<_>>(),
        "words": words,
    })
}

fn change(change: &Change) -> Value {
    json!({
        "before_ps": change.before.0,
        "after_ps": change.after.0,
        "change_ps": change.more() as i64,
    })
}

fn moved(moved: &Moved) -> Value {
    json!({
        "what": moved.what,
        "kind": moved.kind.map(|kind| kind.to_string()),
        "groups": moved.groups,
        "exposed": change(&moved.exposed()),
        "before": moved.before.as_ref().map(side),
        "after": moved.after.as_ref().map(side),
    })
}

fn side(side: &Side) -> Value {
    let mean = &side.mean;
    json!({
        "mean_waiting_ps": mean.waiting.0,
        "mean_exposed_waiting_ps": mean.exposed_waiting.0,
        "mean_transferring_ps": mean.transferring.0,
        "mean_exposed_transferring_ps": mean.exposed_transferring.0,
        "hidden_share_of_transfer": side.hidden(),
        "transfer_ps": side.transfer.0,
        "waited_ps_mean_of_members": side.waited.0,
        "bus_bytes_per_s": side.bus,
        "algorithm": side.algorithm,
    })
}
