//! A node with all its fields, and its neighbourhood.

use super::row::NodeRow;
use super::trace::InspectedRankTrace;
use chakram_trace::format::attr::AttrView;
use chakram_trace::format::escape_and_shorten_name;
use chakram_trace::format::wire::{WireCursor, WireValue};
use chakram_trace::graph::dot::{DotEdge, DotVertex, render_dot};
use chakram_trace::graph::neighbourhood::find_neighbourhood;
use std::collections::BTreeMap;

/// An attribute or other field of a node: its name, its type, and its value as text.
pub type FieldNameTypeAndText = (String, &'static str, String);

/// A node with all its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeWithAllFields<'a> {
    /// The node as a row of a list.
    pub row: NodeRow<'a>,
    /// Name of the node's lane, if the file has one.
    pub lane_name: Option<String>,
    /// Index of the node's record, where the metadata record is 0, and byte offset of the record in the decompressed
    /// file.
    pub place: (usize, usize),
    /// All fields except name, id and dependencies, in file order.
    pub fields: Vec<FieldNameTypeAndText>,
}

/// A node near another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAtDistance<'a> {
    /// The node as a row of a list.
    pub row: NodeRow<'a>,
    /// Number of dependencies on the shortest path to the other node.
    pub distance: u32,
    /// True if only control dependencies connect this node with nearer nodes.
    pub control: bool,
}

/// The nodes on one side of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NearbyPredecessorsOrSuccessors<'a> {
    /// The listed nodes, nearest first.
    pub nodes: Vec<NodeAtDistance<'a>>,
    /// True if the list omits some nodes.
    pub more: bool,
}

/// A node, and the nodes around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNeighbourhood<'a> {
    /// The node in the centre.
    pub node: NodeWithAllFields<'a>,
    /// Nodes on which `node` depends, directly or through other nodes.
    pub before: NearbyPredecessorsOrSuccessors<'a>,
    /// Nodes that depend on `node`, directly or through other nodes.
    pub after: NearbyPredecessorsOrSuccessors<'a>,
    /// Ids on which `node` depends but that belong to no node of the trace.
    pub nowhere: Vec<u64>,
    /// Dependencies among the listed nodes: the predecessor's id, the successor's id, and a flag that is true if only
    /// control dependencies connect the two.
    pub edges: Vec<(u64, u64, bool)>,
}

impl<'a> NodeNeighbourhood<'a> {
    /// Collects the node `id` of `trace`, and the nodes that are at most `depth` dependencies away from it: no more
    /// than `most` on each side. Returns `None` if there is no such node.
    pub fn new(trace: &InspectedRankTrace<'a>, id: u64, depth: u32, most: usize) -> Option<Self> {
        let centre = trace.raw.find_node(id)?;
        let raw = &trace.raw;
        let next = raw.build_successors(|node, dep| dep.node != node);
        let previous = next.reverse_edges();
        let (before, more_before) = find_neighbourhood(centre, depth, most, &previous);
        let (after, more_after) = find_neighbourhood(centre, depth, most, &next);
        // For each shown node, its distance from the centre.
        let near = before.iter().chain(&after).copied();
        let near: BTreeMap<u32, u32> = near.chain([(centre, 0)]).collect();
        let mut pairs: BTreeMap<(u32, u32), bool> = BTreeMap::new();
        for &node in near.keys() {
            for dep in raw.dependencies_of(node) {
                if dep.node != node && near.contains_key(&dep.node) {
                    // An edge is marked as control only if its two nodes are connected by control dependencies alone.
                    *pairs.entry((dep.node, node)).or_insert(true) &= dep.control;
                }
            }
        }
        let neighbours = |found: &[(u32, u32)], backward: bool, more: bool| {
            let distances: BTreeMap<u32, u32> =
                found.iter().copied().chain([(centre, 0)]).collect();
            let control = |node: u32, distance: u32| {
                let row = if backward {
                    next.row(node)
                } else {
                    previous.row(node)
                };
                let nearer = row
                    .iter()
                    .filter(|other| distances.get(other) == Some(&(distance - 1)));
                let pair = |&other: &u32| {
                    if backward {
                        (node, other)
                    } else {
                        (other, node)
                    }
                };
                nearer.map(pair).all(|pair| pairs.get(&pair) == Some(&true))
            };
            let nodes = found.iter().map(|&(node, distance)| NodeAtDistance {
                row: trace.row_of_node(node),
                distance,
                control: control(node, distance),
            });
            NearbyPredecessorsOrSuccessors {
                nodes: nodes.collect(),
                more,
            }
        };
        let id_of = |node: u32| raw.nodes[node as usize].view.id;
        let named = raw
            .dependencies_of(centre)
            .iter()
            .filter(|dep| dep.target().is_none());
        Some(Self {
            node: decode_all_node_fields(trace, centre),
            before: neighbours(&before, true, more_before),
            after: neighbours(&after, false, more_after),
            nowhere: named.map(|dep| dep.id).collect(),
            edges: pairs
                .iter()
                .map(|(&(a, b), &control)| (id_of(a), id_of(b), control))
                .collect(),
        })
    }

    /// Renders the neighbourhood in Graphviz's DOT language.
    pub fn render_dot(&self) -> String {
        let rows: Vec<&NodeRow<'_>> = [&self.node.row]
            .into_iter()
            .chain(
                self.before
                    .nodes
                    .iter()
                    .chain(&self.after.nodes)
                    .map(|near| &near.row),
            )
            .collect();
        // On a cycle, a node may be both before and after the centre.
        let mut places: BTreeMap<u64, u32> = BTreeMap::new();
        let mut vertices = Vec::new();
        for row in rows {
            let next = vertices.len() as u32;
            if *places.entry(row.id).or_insert(next) == next {
                vertices.push(DotVertex {
                    lines: vec![
                        format!("{}: {}", row.id, escape_and_shorten_name(row.name)),
                        format!("{}, {}", row.class, row.length),
                    ],
                    marked: row.id == self.node.row.id,
                });
            }
        }
        let arrows: Vec<DotEdge> = self
            .edges
            .iter()
            .map(|&(from, to, control)| DotEdge {
                from: places[&from],
                to: places[&to],
                control,
            })
            .collect();
        render_dot(&vertices, &arrows)
    }
}

/// Decodes all fields of `node`.
fn decode_all_node_fields<'a>(trace: &InspectedRankTrace<'a>, node: u32) -> NodeWithAllFields<'a> {
    let item = &trace.raw.nodes[node as usize];
    let mut fields = Vec::new();
    let mut cursor = WireCursor::new(item.record.bytes, item.record.offset);
    while !cursor.is_empty() {
        let Ok((number, wire)) = cursor.read_field() else {
            break;
        };
        match (number, wire) {
            (3, WireValue::Varint(v)) => fields.push(("type".to_owned(), "field", v.to_string())),
            (6, WireValue::Varint(v)) => {
                fields.push(("start_time_micros".to_owned(), "field", v.to_string()));
            }
            (7, WireValue::Varint(v)) => {
                fields.push(("duration_micros".to_owned(), "field", v.to_string()));
            }
            (8, WireValue::Bytes(io, at)) => {
                append_io_values_shapes_and_types("inputs", io, at, &mut fields)
            }
            (9, WireValue::Bytes(io, at)) => {
                append_io_values_shapes_and_types("outputs", io, at, &mut fields)
            }
            (10, WireValue::Bytes(message, at)) => {
                if let Ok(attr) = AttrView::scan_attribute(message, at) {
                    let name = String::from_utf8_lossy(attr.name).into_owned();
                    let value = attr.value_text().unwrap_or_default();
                    fields.push((name, attr.type_name(), value));
                }
            }
            (1 | 2 | 4 | 5, _) => {}
            (number, _) => fields.push((format!("field {number}"), "unknown", String::new())),
        }
    }
    NodeWithAllFields {
        row: trace.row_of_node(node),
        lane_name: trace
            .lanes
            .lane_name(trace.lanes.lane_of_node(node))
            .map(str::to_owned),
        place: (item.record.number, item.record.offset),
        fields,
    }
}

/// Appends the values, shapes and types of the node's inputs or outputs, each as text.
fn append_io_values_shapes_and_types(
    of: &str,
    message: &[u8],
    at: usize,
    fields: &mut Vec<FieldNameTypeAndText>,
) {
    let mut cursor = WireCursor::new(message, at);
    while !cursor.is_empty() {
        let Ok((number, wire)) = cursor.read_field() else {
            return;
        };
        let part = match number {
            1 => "values",
            2 => "shapes",
            3 => "types",
            _ => continue,
        };
        if let WireValue::Bytes(text, _) = wire {
            let text = String::from_utf8_lossy(text).into_owned();
            fields.push((format!("{of}.{part}"), "field", text));
        }
    }
}
