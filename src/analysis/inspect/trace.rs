//! The trace of one rank, prepared for inspection.

use super::class::InspectedNodeType;
use super::fault::RejectedAndRepairedFaults;
use super::lanes::NodeLaneTable;
use super::metadata::TraceMetadataRecord;
use super::times::RankNodeTimes;
use chakram_base::interrupt::wrap_with_current_token;
use chakram_base::units::Span;
use chakram_trace::format::{Op, TraceError};
use chakram_trace::graph::{Csr, RawTrace};
use std::{panic, thread};

/// A rank's trace, with data that inspections derive from it.
#[derive(Debug)]
pub struct InspectedRankTrace<'a> {
    /// Rank of the trace.
    pub rank: u32,
    /// Nodes and dependencies; records that could not be decoded are in `faults` instead.
    pub raw: RawTrace<'a>,
    /// The metadata record.
    pub header: TraceMetadataRecord,
    /// Type of each node.
    pub classes: Vec<InspectedNodeType>,
    /// Lane of each node.
    pub lanes: NodeLaneTable<'a>,
    /// For each node, its successors by enforced dependencies.
    pub next: Csr,
    /// Times of the nodes.
    pub times: RankNodeTimes,
    /// Faults of the trace.
    pub faults: RejectedAndRepairedFaults,
}

struct TraceLanesSuccessorsAndTimes<'a> {
    lanes: NodeLaneTable<'a>,
    next: Csr,
    times: RankNodeTimes,
}

impl<'a> TraceLanesSuccessorsAndTimes<'a> {
    fn new(
        raw: &RawTrace<'a>,
        classes: &[InspectedNodeType],
        faults: &mut RejectedAndRepairedFaults,
    ) -> Self {
        let lanes = NodeLaneTable::new(raw);
        let mut next = raw.build_successors(|node, dep| dep.node != node);
        let mut times = RankNodeTimes::new(raw, classes, &lanes, &next);
        // Nodes that did not run are on a cycle, or depend on one.
        if times.run.ran < raw.nodes.len() {
            let all = raw
                .range_of_all_node_indices()
                .flat_map(|node| raw.dependencies_of(node));
            let control = all.filter(|dep| dep.control).count() as u64;
            if control > 0 {
                let data = raw.build_successors(|node, dep| dep.node != node && !dep.control);
                let again = RankNodeTimes::new(raw, classes, &lanes, &data);
                faults.note_ignored_control_dependencies(control);
                (next, times) = (data, again);
            }
            faults.add_fault_of_nodes_stuck_by_cycle(raw, &next, &times.run);
        }
        Self { lanes, next, times }
    }
}

impl<'a> InspectedRankTrace<'a> {
    /// Reads the trace of `rank` from decompressed contents; `told` adds the name of the file to an error.
    ///
    /// Fails only if neither the metadata record nor any node can be decoded.
    pub fn read_trace(
        rank: u32,
        contents: &'a [u8],
        told: impl Fn(TraceError) -> TraceError,
    ) -> Result<Self, TraceError> {
        Self::read_trace_while_running(rank, contents, told, |_| ()).map(|(trace, ())| trace)
    }

    /// Like [`Self::read_trace`], but another thread runs `beside` on the raw trace at the same time.
    pub(super) fn read_trace_while_running<R: Send>(
        rank: u32,
        contents: &'a [u8],
        told: impl Fn(TraceError) -> TraceError,
        beside: impl FnOnce(&RawTrace<'a>) -> R + Send,
    ) -> Result<(Self, R), TraceError> {
        let mut raw = RawTrace::read_trace(contents);
        raw.map_fault_errors(told);
        let header = TraceMetadataRecord::decode_from_trace_contents(contents);
        if raw.nodes.is_empty()
            && header == TraceMetadataRecord::default()
            && let Some(first) = raw.faults.pop()
        {
            return Err(first.error);
        }
        let mut classes: Vec<InspectedNodeType> = raw
            .nodes
            .iter()
            .map(|item| InspectedNodeType::of_op(&item.view.op))
            .collect();
        for node in raw.faults.iter().filter_map(|fault| fault.node) {
            classes[node as usize] = InspectedNodeType::Unreadable;
        }
        let mut faults = RejectedAndRepairedFaults::default();
        faults.add_unreadable_records(&mut raw);
        faults.add_structure_faults(&raw);
        let (analysis, beside) = thread::scope(|scope| {
            let beside = scope.spawn(wrap_with_current_token(|| beside(&raw)));
            let analysis = TraceLanesSuccessorsAndTimes::new(&raw, &classes, &mut faults);
            (analysis, beside.join())
        });
        let beside = beside.unwrap_or_else(|panic| panic::resume_unwind(panic));
        let trace = Self {
            rank,
            header,
            classes,
            lanes: analysis.lanes,
            next: analysis.next,
            times: analysis.times,
            faults,
            raw,
        };
        Ok((trace, beside))
    }

    /// Returns the duration of a node, including waiting for other ranks.
    pub fn duration_of_node(&self, node: u32) -> Span {
        self.raw.nodes[node as usize]
            .view
            .recorded_duration_with_wait()
    }

    /// Returns how long the node waited for other ranks, as part of its duration.
    pub fn node_wait_for_other_ranks(&self, node: u32) -> Span {
        if self.classes[node as usize].is_communication() {
            self.raw.nodes[node as usize].view.wait
        } else {
            Span::ZERO
        }
    }

    /// Returns a node's FLOPs and bytes, as the file records them.
    pub fn flops_and_bytes_of_node(&self, node: u32) -> (u64, u64) {
        match self.raw.nodes[node as usize].view.op {
            Op::NoOp | Op::Host => (0, 0),
            Op::Compute { flops, bytes, .. } => (flops, bytes),
            Op::Memory { bytes, .. }
            | Op::Message { bytes, .. }
            | Op::Collective { bytes, .. }
            | Op::Communication { bytes } => (0, bytes),
        }
    }

    /// Returns the nodes in program order: the order of ids, unless dependencies require a different order.
    pub fn program_order(&self) -> Vec<u32> {
        if self.next.iter_all_edges().all(|(from, to)| from < to) {
            return self.raw.range_of_all_node_indices().collect();
        }
        self.next.topological_order()
    }
}
