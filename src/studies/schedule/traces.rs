//! Writes schedules as traces with one rank per chip. The barriers around each step's sub-layers
//! are optional.
//!
//! Each sub-layer becomes a kernel. Its duration is the sub-layer's cost. A receive from another chip is a message, and
//! a load from memory is a wait on a separate lane. Each barrier is a barrier collective of all chips. A chip runs its
//! sub-layers in the order of the schedule.

use super::{
    OrderedSubLayersOfModel, StepCostsAndTransferLog, SubLayerTimeAndEnergy,
    SubLayersByAcceleratorAndStep, TransferSource,
};
use chakram_base::units::Span;
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::write::Sink;
use chakram_trace::format::{CollectiveKind, GroupName, Op, TraceError};
use std::collections::BTreeMap;

/// A schedule, with the transfers and costs of its steps.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleWithCosts<'s> {
    /// The sub-layers with their dependencies.
    pub graph: &'s OrderedSubLayersOfModel,
    /// The sub-layer that each accelerator runs in each step.
    pub schedule: &'s SubLayersByAcceleratorAndStep,
    /// Cost of each sub-layer.
    pub costs: &'s [SubLayerTimeAndEnergy],
    /// Simulated transfers and costs of the schedule's steps.
    pub totals: &'s StepCostsAndTransferLog,
    /// True if barriers surround each step's sub-layers.
    pub barriers: bool,
    /// Number of accelerators per chip.
    pub accelerators: usize,
}

/// First lane of a chip, for its network interface. The next lanes are for the host's commands and the chip's
/// accelerators.
const INTERFACE: i64 = 0;
const HOST: i64 = 1;
const PROCESSING: i64 = 2;

/// Writes the nodes of one rank.
struct RankWriter<'w> {
    out: &'w mut dyn Sink,
    next: u64,
    /// Nodes that every node of the next stage waits for.
    gate: Vec<u64>,
}

impl RankWriter<'_> {
    fn write_node(&mut self, mut node: NodeView<'_>, after: &[u64]) -> Result<u64, TraceError> {
        node.id = self.next;
        self.next += 1;
        self.out.receive_node(&node, after)?;
        Ok(node.id)
    }

    fn write_barrier(&mut self, step: usize, after: &[u64]) -> Result<u64, TraceError> {
        let op = Op::Collective {
            kind: CollectiveKind::Barrier,
            bytes: 0,
            group: GroupName::World,
            root: None,
            dimensions: None,
            host: false,
        };
        let name = format!("barrier of step {step}");
        self.write_node(NodeView::new(0, &name, op), after)
    }
}

impl ScheduleWithCosts<'_> {
    /// Passes the nodes of `chip` to `out`.
    ///
    /// # Errors
    ///
    /// Fails if `out` fails.
    pub fn write_chip_nodes(&self, chip: u32, out: &mut dyn Sink) -> Result<(), TraceError> {
        let mut writer = RankWriter {
            out,
            next: 1,
            gate: Vec::new(),
        };
        // Nodes that produced data on this chip: its sub-layers, and the current step's transfers
        // to it.
        let mut done: BTreeMap<u32, u64> = BTreeMap::new();
        let mut here: BTreeMap<super::ChipDataId, u64> = BTreeMap::new();
        let mut by_step: Vec<Vec<usize>> = vec![Vec::new(); self.schedule.step_count()];
        for (i, entry) in self.totals.log.iter().enumerate() {
            by_step[entry.step as usize].push(i);
        }
        let mut last: Vec<Option<u64>> = vec![None; self.accelerators];
        let mut issued: Option<u64> = None;
        for (step, entries) in by_step.iter().enumerate() {
            let mut moved = Vec::new();
            let dispatch = self.totals.steps[step].dispatch;
            if dispatch > 0.0 {
                // Without barriers, the host continues as soon as it has issued all previous commands.
                let after: Vec<u64> = writer.gate.iter().copied().chain(issued).collect();
                let mut node = build_interface_wait_node("commands of the host", dispatch);
                node.lane = Some(HOST);
                let id = writer.write_node(node, &after)?;
                issued = Some(id);
                writer.gate = vec![id];
                moved.push(id);
            }
            for &i in entries {
                let entry = &self.totals.log[i];
                let name = format!("{} for step {step}", entry.data);
                let tag = i32::try_from(i).unwrap_or(i32::MAX);
                let gate = writer.gate.clone();
                match entry.from {
                    Some(TransferSource::Chip(other)) if other == chip => {
                        // A chip sends only data that it produced or received earlier.
                        let made = entry
                            .data
                            .producing_task()
                            .and_then(|task| done.get(&task).copied());
                        let had = here.get(&entry.data).copied().or(made);
                        let after: Vec<u64> = gate.into_iter().chain(had).collect();
                        let op = message_op(false, entry.chip, tag, entry.bytes);
                        moved.push(writer.write_node(NodeView::new(0, &name, op), &after)?);
                    }
                    Some(TransferSource::Chip(other)) if entry.chip == chip => {
                        let op = message_op(true, other, tag, entry.bytes);
                        let id = writer.write_node(NodeView::new(0, &name, op), &gate)?;
                        here.insert(entry.data, id);
                        moved.push(id);
                    }
                    Some(TransferSource::Memory) if entry.chip == chip => {
                        let id = writer
                            .write_node(build_interface_wait_node(&name, entry.seconds), &gate)?;
                        here.insert(entry.data, id);
                        moved.push(id);
                    }
                    None if entry.written && entry.chip == chip => {
                        moved.push(
                            writer.write_node(
                                build_interface_wait_node(&name, entry.seconds),
                                &gate,
                            )?,
                        );
                    }
                    _ => {}
                }
            }
            let mut ends: Vec<u64> = last.iter().flatten().copied().collect();
            if self.barriers {
                ends.extend(&writer.gate);
                ends.extend(&moved);
                ends.sort_unstable();
                ends.dedup();
                ends = vec![writer.write_barrier(step, &ends)?];
            }
            let begins = ends.clone();
            for (own, task) in
                self.schedule
                    .sub_layers_of_chip_at_step(chip as usize, self.accelerators, step)
            {
                let mut after: Vec<u64> = if self.barriers {
                    begins.clone()
                } else {
                    last[own].into_iter().chain(issued).collect()
                };
                for (data, _) in self.graph.data_needed_by(task, 1) {
                    let made = data
                        .producing_task()
                        .and_then(|task| done.get(&task).copied());
                    after.extend(here.get(&data).copied().or(made));
                }
                after.sort_unstable();
                after.dedup();
                let seconds = self.costs[task as usize].seconds;
                let name = &self.graph.tasks[task as usize].name;
                let mut node = build_interface_wait_node(name, seconds);
                node.lane = Some(PROCESSING + own as i64);
                let id = writer.write_node(node, &after)?;
                done.insert(task, id);
                last[own] = Some(id);
                ends.push(id);
            }
            if self.barriers {
                writer.gate = vec![writer.write_barrier(step, &ends)?];
            } else {
                writer.gate.clear();
            }
        }
        Ok(())
    }
}

fn message_op(receive: bool, peer: u32, tag: i32, bytes: u64) -> Op<'static> {
    Op::Message {
        receive,
        peer,
        tag,
        bytes,
        own: None,
        host: false,
    }
}

/// Creates a wait on the network interface's lane.
fn build_interface_wait_node(name: &str, seconds: f64) -> NodeView<'_> {
    let op = Op::Compute {
        flops: 0,
        bytes: 0,
        dtype: None,
    };
    let span = Span::from_seconds_saturating(seconds);
    NodeView {
        recorded: span,
        micros: span.0 / 1_000_000,
        lane: Some(INTERFACE),
        ..NodeView::new(0, name, op)
    }
}
