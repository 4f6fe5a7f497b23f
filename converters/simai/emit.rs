//! Writes the traces of a workload, one per rank.

use super::{GroupRole, RankGrid, SimaiComm, SimaiLayer, SimaiStage, SimaiWorkload};
use chakram_base::units::Span;
use chakram_trace::format::groups::metadata_text;
use chakram_trace::format::labels::TrainingPhase;
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::write::{NodeExtras, TraceWriter};
use chakram_trace::format::{CollectiveKind, GroupName, Op, TraceError};
use std::io::Write;

impl SimaiComm {
    /// Returns one member's bytes: the shard for an all-gather, the whole buffer for other collectives.
    fn bytes_of_member(self, members: u32) -> u64 {
        match self.kind {
            CollectiveKind::AllGather => self.bytes.div_ceil(members.into()),
            _ => self.bytes,
        }
    }
}

impl SimaiWorkload {
    /// Writes the trace of `rank` with `passes` passes. Returns the number of nodes.
    ///
    /// # Errors
    ///
    /// Fails if writing to `out` fails.
    pub fn write_rank<W: Write>(
        &self,
        grid: &RankGrid,
        rank: u32,
        passes: u32,
        out: W,
    ) -> Result<(W, u64), TraceError> {
        let io = |source: std::io::Error| TraceError::from_io("", "write", source);
        let mut emitter = StageEmitter {
            writer: TraceWriter::new(out).map_err(io)?,
            grid,
            rank,
            nodes: 0,
            causes: Vec::new(),
        };
        emitter.write_groups()?;
        // For each layer, the id of its weight-gradient collective, until a node waits for it.
        let mut reduced: Vec<Option<u64>> = vec![None; self.layers.len()];
        for _ in 0..passes {
            for (layer, reduced) in self.layers.iter().zip(&mut reduced) {
                emitter.causes.extend(reduced.take());
                emitter.write_blocking(layer, layer.forward, TrainingPhase::Forward)?;
            }
            for (index, layer) in self.layers.iter().enumerate().rev() {
                for again in self.recomputed_layers(index) {
                    emitter.write_blocking(again, again.forward, TrainingPhase::Recompute)?;
                }
                emitter.write_blocking(layer, layer.input_gradient, TrainingPhase::Backward)?;
                emitter.write_compute(layer, layer.weight_gradient, TrainingPhase::Backward)?;
                let phase = TrainingPhase::Synchronize;
                reduced[index] = emitter.write_collective(layer, layer.weight_gradient, phase)?;
            }
        }
        Ok((emitter.writer.into_inner(), emitter.nodes))
    }

    /// Returns the layers that are recomputed before the backward pass of the layer `index`: all layers since the
    /// last checkpoint.
    fn recomputed_layers(&self, index: usize) -> &[SimaiLayer] {
        let from = self.checkpoints.range(..=index).next_back();
        match from {
            Some(&from) if self.recomputing.contains(&index) => &self.layers[from..index],
            _ => &[],
        }
    }
}

/// Writes the nodes of a rank.
struct StageEmitter<'g, W> {
    writer: TraceWriter<W>,
    grid: &'g RankGrid,
    rank: u32,
    nodes: u64,
    /// Ids of the nodes that the next node depends on.
    causes: Vec<u64>,
}

impl<W: Write> StageEmitter<'_, W> {
    fn write_groups(&mut self) -> Result<(), TraceError> {
        self.nodes = 1;
        let declared = self.grid.declared_groups(self.rank);
        let text = metadata_text(&declared);
        // A trace needs at least one node, so write an empty node if there are no groups to declare.
        let node = match declared.is_empty() {
            true => NodeView::new(1, "nothing", Op::NoOp),
            false => NodeView::declare_groups(1, &text),
        };
        self.writer.write_node(&node, &[], &NodeExtras::default())
    }

    /// Writes a node that depends on all nodes in `causes`, and returns its id.
    fn write_node(
        &mut self,
        name: &str,
        op: Op<'_>,
        ns: u64,
        phase: TrainingPhase,
    ) -> Result<u64, TraceError> {
        self.nodes += 1;
        let mut node = NodeView::new(self.nodes, name, op);
        node.recorded = Span::from_ns(ns);
        node.labels.phase = Some(phase);
        self.writer
            .write_node(&node, &self.causes, &NodeExtras::default())?;
        Ok(self.nodes)
    }

    /// Writes the computation of a stage; the next node depends on this computation.
    fn write_compute(
        &mut self,
        layer: &SimaiLayer,
        stage: SimaiStage,
        phase: TrainingPhase,
    ) -> Result<(), TraceError> {
        if stage.ns > 0 {
            let op = Op::Compute {
                flops: 0,
                bytes: 0,
                dtype: None,
            };
            let id = self.write_node(&layer.name, op, stage.ns, phase)?;
            self.causes.clear();
            self.causes.push(id);
        }
        Ok(())
    }

    /// Writes the collective of a stage, if it has one and the group has other members.
    fn write_collective(
        &mut self,
        layer: &SimaiLayer,
        stage: SimaiStage,
        phase: TrainingPhase,
    ) -> Result<Option<u64>, TraceError> {
        let Some(comm) = stage.comm else {
            return Ok(None);
        };
        let group = self.grid.group_of_rank(comm.role, self.rank);
        if group.count == 1 {
            return Ok(None);
        }
        let op = Op::Collective {
            kind: comm.kind,
            bytes: comm.bytes_of_member(group.count),
            group: GroupName::from_number(group.number),
            root: (comm.kind == CollectiveKind::Broadcast).then_some(group.first),
            dimensions: None,
            host: false,
        };
        let (_, role) = GroupRole::ALL[comm.role as usize];
        let name = format!("{} {role} {}", layer.name, comm.kind);
        self.write_node(&name, op, 0, phase).map(Some)
    }

    /// Writes a stage whose collective blocks the next stage.
    fn write_blocking(
        &mut self,
        layer: &SimaiLayer,
        stage: SimaiStage,
        phase: TrainingPhase,
    ) -> Result<(), TraceError> {
        self.write_compute(layer, stage, phase)?;
        if let Some(id) = self.write_collective(layer, stage, phase)? {
            self.causes.clear();
            self.causes.push(id);
        }
        Ok(())
    }
}
