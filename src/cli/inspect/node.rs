//! One node in full, with its neighbourhood.

use super::json::head;
use super::labels::basis;
use super::list;
use crate::inspect::{InspectedTrace, NearbyNodes, NodeNeighbourhood};
use crate::report::table::{TextTable, left, right};
use crate::report::text::{TextStyle, clip};
use crate::trace::escape;
use crate::units::Span;
use serde_json::{Value, json};
use std::fmt::{Display, Result, Write as _};

/// Maximum length of a value in text; JSON has all of it.
const VALUE: usize = 72;

/// Renders the neighbourhood of a node of `trace` as text.
pub fn text(trace: &InspectedTrace<'_>, near: &NodeNeighbourhood<'_>, style: TextStyle) -> String {
    let mut out = String::new();
    write(&mut out, trace, near, style).expect("a string grows as needed");
    out
}

fn write(
    out: &mut String,
    trace: &InspectedTrace<'_>,
    near: &NodeNeighbourhood<'_>,
    style: TextStyle,
) -> Result {
    let h = style.heading;
    let node = &near.node;
    let row = &node.row;
    let (record, byte) = node.place;
    let name = escape(row.name);
    writeln!(
        out,
        "{h}rank {} node {}{h:#}  {name}{}",
        row.rank,
        row.id,
        list::with(row)
    )?;
    let mut fact = |name: &str, text: String| writeln!(out, "  {name:<12} {text}");
    let lane = match &node.lane_name {
        Some(name) => format!("{}: {}", row.lane, escape(name)),
        None => row.lane.to_string(),
    };
    fact("type", format!("{} on {lane}", row.class))?;
    match row.ran {
        Some((start, end)) => fact("ran", format!("{start} to {end}"))?,
        None => fact(
            "ran",
            "never: it is on or behind a dependency cycle".to_owned(),
        )?,
    }
    let wait = match row.wait {
        Span::ZERO => String::new(),
        wait => format!(", including {wait} waiting for other ranks"),
    };
    fact(
        "duration",
        format!("{}{wait}; delay before start {}", row.length, row.delay),
    )?;
    let (_, end) = trace.times.extent();
    let times = &trace.times;
    let captured = trace.raw.metadata.captured;
    fact(
        "times",
        basis(times.basis, times.whole_micros, Span(end.0), captured),
    )?;
    fact("record", format!("number {record}, byte {byte}"))?;
    writeln!(out, "\n{h}FIELDS AND ATTRIBUTES{h:#}")?;
    for (name, kind, value) in &node.fields {
        let value = clip(value, VALUE);
        writeln!(out, "  {:<20} {kind:<9} {value}", clip(name, 30))?;
    }
    side(out, "DEPENDENCIES", &near.before, style)?;
    for id in &near.nowhere {
        writeln!(out, "  ! node {id}, which does not exist")?;
    }
    side(out, "DEPENDENTS", &near.after, style)
}

fn side(out: &mut String, title: &str, near: &NearbyNodes<'_>, style: TextStyle) -> Result {
    let table = TextTable::new([
        left(title, 18),
        right("id", 9),
        right("start", 14),
        right("end", 13),
        right("duration", 13),
        left("type", 14).after(2),
        left("name", 0).after(1),
    ]);
    table.heading(out, style)?;
    if near.nodes.is_empty() {
        writeln!(out, "  nothing")?;
    }
    for other in &near.nodes {
        let row = &other.row;
        let far = match (other.distance, other.control) {
            (1, false) => "data".to_owned(),
            (1, true) => "control".to_owned(),
            (n, _) => format!("{n} away"),
        };
        let time = |at: Option<crate::units::Time>| at.map_or("-".to_owned(), |at| at.to_string());
        let cells: [&dyn Display; 7] = [
            &far,
            &row.id,
            &time(row.ran.map(|(start, _)| start)),
            &time(row.ran.map(|(_, end)| end)),
            &row.length,
            &row.class,
            &format_args!("{}{}", escape(row.name), list::with(row)),
        ];
        table.row(out, &cells)?;
    }
    if near.more {
        writeln!(out, "  … more: --limit {}", near.nodes.len() * 10)?;
    }
    Ok(())
}

/// Renders the neighbourhood as JSON.
pub fn json(trace: &InspectedTrace<'_>, near: &NodeNeighbourhood<'_>) -> Value {
    let side = |near: &NearbyNodes<'_>| -> Value {
        let nodes = near.nodes.iter().map(|other| {
            let mut node = list::json(&other.row);
            node["distance"] = other.distance.into();
            node["control_only"] = other.control.into();
            node
        });
        json!({"nodes": nodes.collect::<Vec<_>>(), "more": near.more})
    };
    let node = &near.node;
    let fields = node.fields.iter();
    let fields =
        fields.map(|(name, kind, value)| json!({"name": name, "type": kind, "value": value}));
    let mut own = list::json(&node.row);
    own["lane_name"] = node.lane_name.clone().into();
    own["record"] = node.place.0.into();
    own["byte"] = node.place.1.into();
    own["fields"] = fields.collect();
    let mut document = head("node");
    document.insert("times".to_owned(), trace.times.basis.word().into());
    document.insert("node".to_owned(), own);
    document.insert("dependencies".to_owned(), side(&near.before));
    document.insert(
        "dangling_dependencies".to_owned(),
        near.nowhere.clone().into(),
    );
    document.insert("dependents".to_owned(), side(&near.after));
    let edges = near.edges.iter();
    let edges =
        edges.map(|(from, to, control)| json!({"from": from, "to": to, "control_only": control}));
    document.insert("edges".to_owned(), edges.collect());
    document.into()
}
