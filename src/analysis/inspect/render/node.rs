//! Renders one node with all fields and its neighbourhood.

use super::RenderHints;
use super::json::{ViewDocument, document};
use super::labels::basis;
use super::list::{self, NodeDocument};
use crate::inspect::{InspectedTrace, NearbyNodes, NodeNeighbourhood};
use chakram_base::units::Span;
use chakram_report::document::VersionedDocument;
use chakram_report::table::{TextTable, left, right};
use chakram_report::text::TextStyle;
use chakram_trace::format::escape;
use serde::Serialize;
use std::fmt::{Display, Result, Write as _};

/// Maximum length of a value in text; JSON always has the whole value.
const VALUE: usize = 72;

/// Renders the neighbourhood of a node of `trace` as text.
pub fn text(
    trace: &InspectedTrace<'_>,
    near: &NodeNeighbourhood<'_>,
    hints: &RenderHints,
    style: TextStyle,
) -> String {
    let mut out = String::new();
    write(&mut out, trace, near, hints, style).expect("a string grows as needed");
    out
}

fn write(
    out: &mut String,
    trace: &InspectedTrace<'_>,
    near: &NodeNeighbourhood<'_>,
    hints: &RenderHints,
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
            "never: the node is on a dependency cycle or depends on one".to_owned(),
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
    writeln!(out)?;
    let mut table = TextTable::new([left("FIELDS AND ATTRIBUTES", 23), left("", 10), left("", 0)]);
    for (name, kind, value) in &node.fields {
        table.add(&[&style.clip(name, 30), kind, &style.clip(value, VALUE)]);
    }
    out.push_str(&table.text(style));
    side(out, "DEPENDENCIES", &near.before, hints, style)?;
    for id in &near.nowhere {
        writeln!(out, "  ! node {id}, which does not exist")?;
    }
    side(out, "DEPENDENTS", &near.after, hints, style)
}

fn side(
    out: &mut String,
    title: &str,
    near: &NearbyNodes<'_>,
    hints: &RenderHints,
    style: TextStyle,
) -> Result {
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
        let time =
            |at: Option<chakram_base::units::Time>| at.map_or("-".to_owned(), |at| at.to_string());
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
        writeln!(out, "  … more: {}", (hints.limit)(near.nodes.len() * 10))?;
    }
    Ok(())
}

/// A node with its neighbourhood.
#[derive(Debug, Serialize)]
pub struct NeighbourhoodDocument<'n> {
    times: &'static str,
    node: OwnNode<'n>,
    dependencies: NearbyDocument<'n>,
    dangling_dependencies: &'n [u64],
    dependents: NearbyDocument<'n>,
    edges: Vec<EdgeDocument>,
}

#[derive(Debug, Serialize)]
struct OwnNode<'n> {
    #[serde(flatten)]
    row: NodeDocument<'n>,
    lane_name: Option<&'n str>,
    record: usize,
    byte: usize,
    fields: Vec<FieldDocument<'n>>,
}

#[derive(Debug, Serialize)]
struct FieldDocument<'n> {
    name: &'n str,
    r#type: &'static str,
    value: &'n str,
}

#[derive(Debug, Serialize)]
struct NearbyDocument<'n> {
    nodes: Vec<NearbyNodeDocument<'n>>,
    more: bool,
}

#[derive(Debug, Serialize)]
struct NearbyNodeDocument<'n> {
    #[serde(flatten)]
    row: NodeDocument<'n>,
    distance: u32,
    control_only: bool,
}

impl<'n> From<&'n NearbyNodes<'_>> for NearbyDocument<'n> {
    fn from(near: &'n NearbyNodes<'_>) -> Self {
        let nodes = near.nodes.iter().map(|other| NearbyNodeDocument {
            row: NodeDocument::from(&other.row),
            distance: other.distance,
            control_only: other.control,
        });
        Self {
            nodes: nodes.collect(),
            more: near.more,
        }
    }
}

#[derive(Debug, Serialize)]
struct EdgeDocument {
    from: u64,
    to: u64,
    control_only: bool,
}

/// Returns the JSON document of the neighbourhood.
pub fn json<'n>(
    trace: &InspectedTrace<'_>,
    near: &'n NodeNeighbourhood<'_>,
) -> VersionedDocument<ViewDocument<NeighbourhoodDocument<'n>>> {
    let node = &near.node;
    let fields = node.fields.iter().map(|(name, kind, value)| FieldDocument {
        name,
        r#type: kind,
        value,
    });
    let edges = near.edges.iter();
    let edges = edges.map(|&(from, to, control_only)| EdgeDocument {
        from,
        to,
        control_only,
    });
    let body = NeighbourhoodDocument {
        times: trace.times.basis.word(),
        node: OwnNode {
            row: NodeDocument::from(&node.row),
            lane_name: node.lane_name.as_deref(),
            record: node.place.0,
            byte: node.place.1,
            fields: fields.collect(),
        },
        dependencies: NearbyDocument::from(&near.before),
        dangling_dependencies: &near.nowhere,
        dependents: NearbyDocument::from(&near.after),
        edges: edges.collect(),
    };
    document("node", body)
}
