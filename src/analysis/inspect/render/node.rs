//! Renders a node with all its fields, and the nodes around it.

use super::OmissionHints;
use super::json::{NamedViewDocument, build_view_document};
use super::labels::describe_time_basis;
use super::list::{self, NodeDocument};
use crate::inspect::{InspectedRankTrace, NearbyPredecessorsOrSuccessors, NodeNeighbourhood};
use chakram_base::units::Span;
use chakram_report::document::VersionedDocument;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_report::text::TextStyleWidthAndDetail;
use chakram_trace::format::escape_and_shorten_name;
use serde::Serialize;
use std::fmt::{Display, Result, Write as _};

/// Maximum length of a value in the text form; JSON contains whole values.
const VALUE: usize = 72;

/// Renders a node of `trace` with its neighbourhood as text.
pub fn render_node_and_neighbours_as_text(
    trace: &InspectedRankTrace<'_>,
    near: &NodeNeighbourhood<'_>,
    hints: &OmissionHints,
    style: TextStyleWidthAndDetail,
) -> String {
    let mut out = String::new();
    write_node_and_neighbours(&mut out, trace, near, hints, style)
        .expect("a string grows as needed");
    out
}

fn write_node_and_neighbours(
    out: &mut String,
    trace: &InspectedRankTrace<'_>,
    near: &NodeNeighbourhood<'_>,
    hints: &OmissionHints,
    style: TextStyleWidthAndDetail,
) -> Result {
    let h = style.heading;
    let node = &near.node;
    let row = &node.row;
    let (record, byte) = node.place;
    let name = escape_and_shorten_name(row.name);
    writeln!(
        out,
        "{h}rank {} node {}{h:#}  {name}{}",
        row.rank,
        row.id,
        list::format_group_or_peer(row)
    )?;
    let mut fact = |name: &str, text: String| writeln!(out, "  {name:<12} {text}");
    let lane = match &node.lane_name {
        Some(name) => format!("{}: {}", row.lane, escape_and_shorten_name(name)),
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
    let (_, end) = trace.times.first_start_and_last_end();
    let times = &trace.times;
    let captured = trace.raw.metadata.captured;
    fact(
        "times",
        describe_time_basis(times.basis, times.whole_micros, Span(end.0), captured),
    )?;
    fact("record", format!("number {record}, byte {byte}"))?;
    writeln!(out)?;
    let mut table = TextTable::new([
        left_aligned_column("FIELDS AND ATTRIBUTES", 23),
        left_aligned_column("", 10),
        left_aligned_column("", 0),
    ]);
    for (name, kind, value) in &node.fields {
        table.add_row(&[
            &style.clip_to_width(name, 30),
            kind,
            &style.clip_to_width(value, VALUE),
        ]);
    }
    out.push_str(&table.to_text(style));
    write_neighbour_table(out, "DEPENDENCIES", &near.before, hints, style)?;
    for id in &near.nowhere {
        writeln!(out, "  ! node {id}, which does not exist")?;
    }
    write_neighbour_table(out, "DEPENDENTS", &near.after, hints, style)
}

fn write_neighbour_table(
    out: &mut String,
    title: &str,
    near: &NearbyPredecessorsOrSuccessors<'_>,
    hints: &OmissionHints,
    style: TextStyleWidthAndDetail,
) -> Result {
    let table = TextTable::new([
        left_aligned_column(title, 18),
        right_aligned_column("id", 9),
        right_aligned_column("start", 14),
        right_aligned_column("end", 13),
        right_aligned_column("duration", 13),
        left_aligned_column("type", 14).with_gap_before(2),
        left_aligned_column("name", 0).with_gap_before(1),
    ]);
    table.write_heading(out, style)?;
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
            &format_args!(
                "{}{}",
                escape_and_shorten_name(row.name),
                list::format_group_or_peer(row)
            ),
        ];
        table.write_row(out, &cells)?;
    }
    if near.more {
        writeln!(out, "  … more: {}", (hints.limit)(near.nodes.len() * 10))?;
    }
    Ok(())
}

/// A node and its neighbourhood in JSON.
#[derive(Debug, Serialize)]
pub struct NeighbourhoodDocument<'n> {
    times: &'static str,
    node: InspectedNode<'n>,
    dependencies: NearbyNodesDocument<'n>,
    dangling_dependencies: &'n [u64],
    dependents: NearbyNodesDocument<'n>,
    edges: Vec<EdgeBetweenNearbyNodesDocument>,
}

#[derive(Debug, Serialize)]
struct InspectedNode<'n> {
    #[serde(flatten)]
    row: NodeDocument<'n>,
    lane_name: Option<&'n str>,
    record: usize,
    byte: usize,
    fields: Vec<SingleNodeFieldEntry<'n>>,
}

#[derive(Debug, Serialize)]
struct SingleNodeFieldEntry<'n> {
    name: &'n str,
    r#type: &'static str,
    value: &'n str,
}

#[derive(Debug, Serialize)]
struct NearbyNodesDocument<'n> {
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

impl<'n> From<&'n NearbyPredecessorsOrSuccessors<'_>> for NearbyNodesDocument<'n> {
    fn from(near: &'n NearbyPredecessorsOrSuccessors<'_>) -> Self {
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
struct EdgeBetweenNearbyNodesDocument {
    from: u64,
    to: u64,
    control_only: bool,
}

/// Returns the neighbourhood as a JSON document.
pub fn build_node_neighbourhood_document<'n>(
    trace: &InspectedRankTrace<'_>,
    near: &'n NodeNeighbourhood<'_>,
) -> VersionedDocument<NamedViewDocument<NeighbourhoodDocument<'n>>> {
    let node = &near.node;
    let fields = node
        .fields
        .iter()
        .map(|(name, kind, value)| SingleNodeFieldEntry {
            name,
            r#type: kind,
            value,
        });
    let edges = near.edges.iter();
    let edges = edges.map(|&(from, to, control_only)| EdgeBetweenNearbyNodesDocument {
        from,
        to,
        control_only,
    });
    let body = NeighbourhoodDocument {
        times: trace.times.basis.name_of_basis(),
        node: InspectedNode {
            row: NodeDocument::from(&node.row),
            lane_name: node.lane_name.as_deref(),
            record: node.place.0,
            byte: node.place.1,
            fields: fields.collect(),
        },
        dependencies: NearbyNodesDocument::from(&near.before),
        dangling_dependencies: &near.nowhere,
        dependents: NearbyNodesDocument::from(&near.after),
        edges: edges.collect(),
    };
    build_view_document("node", body)
}
