//! A trace that has been checked, with its program order and the start times of its nodes.

use chakram_base::units::{Span, Time};
use chakram_trace::format::TraceError;
use chakram_trace::format::encoder::ProtobufMessageBuilder;
use chakram_trace::format::rewrite::{AttributeSetOrRemoval, RecordEdit};
use chakram_trace::format::wire::FrameCursor;
use chakram_trace::graph::captured_timeline::{
    NONE, NodeDelayDurationAndLane, NodeStartEndTimesAndCauses,
};
use chakram_trace::graph::cycle::find_short_cycle;
use chakram_trace::graph::raw_trace::{PredecessorIdIndexAndKind, RawTrace};

/// A trace that a replay would accept.
#[derive(Debug)]
pub struct ReplayableTrace<'a> {
    pub raw: RawTrace<'a>,
    /// True if control dependencies form a cycle, so that none of them is enforced.
    pub cyclic: bool,
    /// All nodes in program order.
    pub order: Vec<u32>,
    /// Start time of each node if the rank runs alone, without waiting for other ranks.
    pub starts: Vec<Span>,
}

impl<'a> ReplayableTrace<'a> {
    /// Reads a trace and computes the start of each node. Fails if a replay would reject the trace.
    pub fn read_trace(contents: &'a [u8]) -> Result<Self, TraceError> {
        let mut raw = RawTrace::read_trace(contents);
        if !raw.faults.is_empty() {
            return Err(raw.faults.swap_remove(0).error);
        }
        if raw.metadata.captured.is_some()
            && let Some(first) = FrameCursor::new(contents).next_record()?
        {
            // The slice will change the metadata record, so check now that this is possible.
            let attributes = [("captured_ns", AttributeSetOrRemoval::Remove)];
            let edit = RecordEdit {
                attributes: &attributes,
                ..RecordEdit::default()
            };
            edit.write_edited(first, &mut ProtobufMessageBuilder::default())?;
        }
        check_raw_trace(&raw)?;
        let rows = |cyclic| raw.build_successors(|node, dep| is_enforced(node, dep, cyclic));
        let (mut next, mut cyclic) = (rows(false), false);
        let mut order = next.topological_order();
        if order.len() < raw.nodes.len() {
            (next, cyclic) = (rows(true), true);
            order = next.topological_order();
        }
        if order.len() < raw.nodes.len() {
            let stuck = next.flag_nodes_on_or_behind_cycles(&order);
            let cycle = find_short_cycle(&next, |node| stuck[node as usize]);
            return Err(dependency_cycle_error(&raw, &cycle));
        }
        // The rank runs alone, and nodes do not wait for their lanes.
        let run = NodeStartEndTimesAndCauses::new(&next, 0, |node| {
            let view = &raw.nodes[node as usize].view;
            NodeDelayDurationAndLane {
                delay: view.delay,
                length: view.recorded_duration_with_wait(),
                lane: NONE,
                settles: false,
            }
        });
        Ok(Self {
            starts: run
                .start
                .into_iter()
                .map(|at| at.since(Time::ZERO))
                .collect(),
            raw,
            cyclic,
            order,
        })
    }

    /// Returns the dependencies of node `i` that a replay enforces.
    pub fn enforced_dependencies(
        &self,
        i: u32,
    ) -> impl Iterator<Item = PredecessorIdIndexAndKind> + '_ {
        let cyclic = self.cyclic;
        let deps = self.raw.dependencies_of(i).iter().copied();
        deps.filter(move |dep| is_enforced(i, dep, cyclic))
    }
}

/// Returns true if a replay enforces the dependency.
fn is_enforced(node: u32, dep: &PredecessorIdIndexAndKind, cyclic: bool) -> bool {
    let control = dep.control && (cyclic || dep.node == node);
    dep.node != PredecessorIdIndexAndKind::MISSING && !control
}

fn check_raw_trace(raw: &RawTrace<'_>) -> Result<(), TraceError> {
    let twice = raw
        .nodes
        .windows(2)
        .find(|pair| pair[0].view.id == pair[1].view.id);
    if let Some([_, second]) = twice {
        return Err(TraceError::invalid_node(
            second.view.id,
            "a second node with this id",
            "give each node of a file its own id; the tool that wrote the file is at fault",
        )
        .in_record(second.record.number, second.record.offset));
    }
    for i in raw.range_of_all_node_indices() {
        let lost = |dep: &&PredecessorIdIndexAndKind| {
            !dep.control && dep.node == PredecessorIdIndexAndKind::MISSING
        };
        if let Some(dep) = raw.dependencies_of(i).iter().find(lost) {
            let item = &raw.nodes[i as usize];
            return Err(TraceError::invalid_node(
                item.view.id,
                format!(
                    "the node depends on the data of node {}, which does not exist",
                    dep.id
                ),
                "capture or convert the trace again; it is incomplete",
            )
            .in_record(item.record.number, item.record.offset));
        }
    }
    Ok(())
}

fn dependency_cycle_error(raw: &RawTrace<'_>, cycle: &[u32]) -> TraceError {
    const SHOWN: usize = 6;
    let id = |&i: &u32| raw.nodes[i as usize].view.id;
    let ids: Vec<String> = cycle
        .iter()
        .take(SHOWN)
        .map(|i| id(i).to_string())
        .collect();
    let more = if cycle.len() > SHOWN { ", …" } else { "" };
    TraceError::invalid_node(
        cycle.first().map_or(0, id),
        format!(
            "data dependencies close a cycle of {} nodes: {}{more}",
            cycle.len(),
            ids.join(", ")
        ),
        "capture or convert the trace again",
    )
}
