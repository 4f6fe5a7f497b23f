//! Emits the nodes of each of a workload's ranks, either to trace files or to graphs in memory.

use super::{
    RankGroupGrid, RankGroupParallelism, SimaiComm, SimaiLayer, SimaiStage, SimaiWorkload,
};
use chakram_base::ids::{GraphId, Rank};
use chakram_base::units::{Span, Time};
use chakram_trace::format::groups::metadata_text;
use chakram_trace::format::labels::TrainingPhase;
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::write::{Sink, TraceWriter};
use chakram_trace::format::{CollectiveKind, GroupName, Op, TraceError};
use chakram_trace::graph::{EnforcedDependencyKinds, GraphBuilder, RankBindingsOfGraphSlots};
use chakram_trace::workload::{MissingRankPolicy, Workload, WorkloadBuilder};
use std::collections::BTreeMap;
use std::io::Write;

impl SimaiComm {
    /// Returns how many bytes one member has: the shard for an all-gather, and the whole buffer for other collectives.
    fn bytes_of_member(self, members: u32) -> u64 {
        match self.kind {
            CollectiveKind::AllGather => self.bytes.div_ceil(members.into()),
            _ => self.bytes,
        }
    }
}

impl SimaiWorkload {
    /// Writes the trace of `rank`, which runs `passes` passes. Returns the number of nodes.
    ///
    /// # Errors
    ///
    /// Fails if writing to `out` fails.
    pub fn write_rank<W: Write>(
        &self,
        grid: &RankGroupGrid,
        rank: u32,
        passes: u32,
        out: W,
    ) -> Result<(W, u64), TraceError> {
        let io = |source: std::io::Error| TraceError::from_io("", "write", source);
        let mut writer = TraceWriter::new(out).map_err(io)?;
        let nodes = self.emit_rank(grid, rank, passes, &mut writer)?;
        Ok((writer.into_unflushed_sink(), nodes))
    }

    /// Builds the job in memory. The result equals the job read from the traces that [`Self::write_rank`] writes. Ranks
    /// share one graph and differ only in their groups. Broadcasts require several graphs, because a graph states the
    /// root's rank.
    ///
    /// # Errors
    ///
    /// Fails if a rank has more nodes than a graph can hold.
    pub fn build_workload(
        &self,
        grid: &RankGroupGrid,
        passes: u32,
    ) -> Result<Workload, TraceError> {
        let mut builder = WorkloadBuilder::default();
        builder.declare_groups(grid.groups_with_several_members());
        builder.declare_group_roles(&grid.group_roles());
        // For each list of roots: the graph, and the role of the group in each slot of the graph.
        let mut built: BTreeMap<Vec<u32>, (GraphId, Vec<RankGroupParallelism>)> = BTreeMap::new();
        let broadcasts = self.roles_of_broadcasting_groups();
        for rank in 0..grid.npus {
            let roots = broadcasts.iter();
            let roots = roots.map(|&role| grid.group_of_rank(role, rank).first);
            let roots: Vec<u32> = roots.collect();
            if !built.contains_key(&roots) {
                let mut graph = GraphBuilder::new(rank, EnforcedDependencyKinds::Auto, u64::MAX);
                self.emit_rank(grid, rank, passes, &mut graph)?;
                let (graph, binding) = graph.finish_graph()?;
                let slots = binding.groups.iter().flatten();
                let slots = slots.map(|name| grid.role_of_group(rank, name));
                built.insert(
                    roots.clone(),
                    (builder.add_or_reuse_equal_graph(graph), slots.collect()),
                );
            }
            let (graph, slots) = &built[&roots];
            let names = slots.iter().map(|&role| {
                let group = grid.group_of_rank(role, rank);
                Some(group.number.to_string())
            });
            let binding = RankBindingsOfGraphSlots {
                groups: names.collect(),
                ..RankBindingsOfGraphSlots::default()
            };
            let added = builder.add_rank(Rank(rank), *graph, binding, Time::ZERO);
            added.expect("each rank is added once");
        }
        let workload = builder.finish_workload(Some(grid.npus), MissingRankPolicy::Refuse);
        Ok(workload.expect("every rank is present, and a member of its groups"))
    }

    /// Returns the roles of the groups that execute broadcasts.
    fn roles_of_broadcasting_groups(&self) -> Vec<RankGroupParallelism> {
        let stages = self
            .layers
            .iter()
            .flat_map(|layer| [layer.forward, layer.input_gradient, layer.weight_gradient]);
        let broadcasts = stages
            .filter_map(|stage| stage.comm)
            .filter(|comm| comm.kind == CollectiveKind::Broadcast);
        let used: Vec<RankGroupParallelism> = broadcasts.map(|comm| comm.role).collect();
        let roles = RankGroupParallelism::ALL.iter().map(|(role, _)| *role);
        roles.filter(|role| used.contains(role)).collect()
    }

    /// Emits the nodes of `rank`, which runs `passes` passes, to `sink`. Returns the number of nodes.
    fn emit_rank(
        &self,
        grid: &RankGroupGrid,
        rank: u32,
        passes: u32,
        sink: &mut impl Sink,
    ) -> Result<u64, TraceError> {
        let mut emitter = SimaiNodeEmitter {
            sink,
            grid,
            rank,
            nodes: 0,
            causes: Vec::new(),
        };
        emitter.emit_groups()?;
        // For each layer, the id of its weight-gradient collective until a node waits for it.
        let mut reduced: Vec<Option<u64>> = vec![None; self.layers.len()];
        for _ in 0..passes {
            for (layer, reduced) in self.layers.iter().zip(&mut reduced) {
                emitter.causes.extend(reduced.take());
                emitter.emit_compute_and_blocking_collective(
                    layer,
                    layer.forward,
                    TrainingPhase::Forward,
                )?;
            }
            for (index, layer) in self.layers.iter().enumerate().rev() {
                for again in self.recomputed_layers(index) {
                    emitter.emit_compute_and_blocking_collective(
                        again,
                        again.forward,
                        TrainingPhase::Recompute,
                    )?;
                }
                emitter.emit_compute_and_blocking_collective(
                    layer,
                    layer.input_gradient,
                    TrainingPhase::Backward,
                )?;
                emitter.emit_compute(layer, layer.weight_gradient, TrainingPhase::Backward)?;
                let phase = TrainingPhase::Synchronize;
                reduced[index] = emitter.emit_collective(layer, layer.weight_gradient, phase)?;
            }
        }
        Ok(emitter.nodes)
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

/// Emits the nodes of a rank.
struct SimaiNodeEmitter<'g, S> {
    sink: &'g mut S,
    grid: &'g RankGroupGrid,
    rank: u32,
    nodes: u64,
    /// Ids of the nodes on which the next node depends.
    causes: Vec<u64>,
}

impl<S: Sink> SimaiNodeEmitter<'_, S> {
    fn emit_groups(&mut self) -> Result<(), TraceError> {
        self.nodes = 1;
        let declared = self.grid.declared_groups_of_rank(self.rank);
        let text = metadata_text(&declared);
        // A trace needs at least one node, so if there are no groups to declare, write an empty
        // node.
        let node = match declared.is_empty() {
            true => NodeView::new(1, "nothing", Op::NoOp),
            false => NodeView::declare_groups(1, &text),
        };
        self.sink.receive_node(&node, &[])
    }

    /// Emits a node that depends on all nodes in `causes`, and returns its id.
    fn emit_node(
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
        self.sink.receive_node(&node, &self.causes)?;
        Ok(self.nodes)
    }

    /// Emits the computation of a stage, and makes the next node depend on it.
    fn emit_compute(
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
            let id = self.emit_node(&layer.name, op, stage.ns, phase)?;
            self.causes.clear();
            self.causes.push(id);
        }
        Ok(())
    }

    /// Emits a stage's collective, unless there is none or this member is alone in the group.
    fn emit_collective(
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
        let (_, role) = RankGroupParallelism::ALL[comm.role as usize];
        let name = format!("{} {role} {}", layer.name, comm.kind);
        self.emit_node(&name, op, 0, phase).map(Some)
    }

    /// Emits a stage whose collective must end before the next stage begins.
    fn emit_compute_and_blocking_collective(
        &mut self,
        layer: &SimaiLayer,
        stage: SimaiStage,
        phase: TrainingPhase,
    ) -> Result<(), TraceError> {
        self.emit_compute(layer, stage, phase)?;
        if let Some(id) = self.emit_collective(layer, stage, phase)? {
            self.causes.clear();
            self.causes.push(id);
        }
        Ok(())
    }
}
