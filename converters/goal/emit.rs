//! Writes the traces of a schedule, one per rank.
//!
//! A calculation becomes host work of the same duration on its processor's lane. A lane runs one calculation at a time,
//! in the order in which calculations become ready. Messages occupy no processor. If operation B requires that A has
//! ended, B depends on A. If B requires only that A has begun, B depends on A's predecessors, because B may begin as
//! soon as A begins.

use super::{GoalOperationKind, GoalRankProgram, GoalSchedule, error_at_line};
use chakram_base::units::Span;
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::write::{NodeFieldsBeyondView, TraceWriter};
use chakram_trace::format::{Op, TraceError};
use std::collections::BTreeSet;
use std::io::Write;

impl GoalSchedule {
    /// Writes the trace of a rank. Returns `out` and the number of nodes written.
    ///
    /// # Errors
    ///
    /// Fails if operations require one another in a cycle, or if writing to `out` fails.
    pub fn write_rank_as_trace<W: Write>(&self, rank: u32, out: W) -> Result<(W, u64), TraceError> {
        let io = |source: std::io::Error| TraceError::from_io("", "write", source);
        let mut writer = TraceWriter::new(out).map_err(io)?;
        let program = &self.programs[rank as usize];
        let after = program.list_dependencies_per_operation(rank)?;
        let mut id = 0;
        for (operation, after) in program.operations.iter().zip(&after) {
            id += 1;
            let causes: Vec<u64> = after.iter().map(|&place| u64::from(place) + 1).collect();
            let op = match operation.kind {
                GoalOperationKind::Calculation { .. } => Op::Host,
                GoalOperationKind::Message {
                    receive,
                    peer,
                    bytes,
                    tag,
                } => Op::Message {
                    receive,
                    peer,
                    tag,
                    bytes,
                    own: Some(rank),
                    host: false,
                },
            };
            let name = match (&*operation.label, operation.kind) {
                ("", GoalOperationKind::Calculation { .. }) => "calc",
                ("", GoalOperationKind::Message { receive: true, .. }) => "recv",
                ("", GoalOperationKind::Message { .. }) => "send",
                (label, _) => label,
            };
            let mut view = NodeView::new(id, name, op);
            if let GoalOperationKind::Calculation { ns } = operation.kind {
                view.lane = Some(i64::from(operation.cpu));
                view.recorded = Span::from_ns(ns);
            }
            writer.write_node(&view, &causes, &NodeFieldsBeyondView::default())?;
        }
        if id == 0 {
            // A trace needs at least one node, so an empty program gets a node that does
            // nothing.
            id = 1;
            let view = NodeView::new(id, "nothing", Op::NoOp);
            writer.write_node(&view, &[], &NodeFieldsBeyondView::default())?;
        }
        Ok((writer.into_unflushed_sink(), id))
    }
}

impl GoalRankProgram {
    /// Returns, for each operation, the operations that must end before it begins.
    fn list_dependencies_per_operation(&self, rank: u32) -> Result<Vec<BTreeSet<u32>>, TraceError> {
        let count = self.operations.len();
        let mut waits = vec![0_u32; count];
        let mut later: Vec<Vec<u32>> = vec![Vec::new(); count];
        for (place, operation) in (0..).zip(&self.operations) {
            for &earlier in operation.after_end.iter().chain(&operation.after_begin) {
                waits[place as usize] += 1;
                later[earlier as usize].push(place);
            }
        }
        let mut ready: Vec<u32> = (0..count as u32)
            .filter(|&place| waits[place as usize] == 0)
            .collect();
        let mut after: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); count];
        let mut done = 0;
        while let Some(place) = ready.pop() {
            done += 1;
            let operation = &self.operations[place as usize];
            let mut own: BTreeSet<u32> = operation.after_end.iter().copied().collect();
            for &earlier in &operation.after_begin {
                own.extend(&after[earlier as usize]);
            }
            after[place as usize] = own;
            for &next in &later[place as usize] {
                waits[next as usize] -= 1;
                if waits[next as usize] == 0 {
                    ready.push(next);
                }
            }
        }
        if done == count {
            return Ok(after);
        }
        let stuck = waits.iter().position(|&waits| waits > 0).unwrap_or(0);
        let operation = &self.operations[stuck];
        Err(error_at_line(
            operation.line,
            format!(
                "the dependencies of rank {rank} form a cycle, which contains operation `{}`",
                operation.label
            ),
            "dependencies without a cycle",
        ))
    }
}
