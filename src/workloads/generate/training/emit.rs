//! The nodes of one rank, in the order in which its host would launch them.
//!
//! All kernels of a rank form one chain, pass after pass in the schedule's order, except weight gradients that overlap
//! a sum over the tensor group. A pass begins with a receive from the previous stage, on which the pass's chain
//! depends, and ends with a send on which nothing depends. Gradient reductions and parameter gathers have separate
//! lanes.

use super::TrainingGenerator;
use super::program::{
    LayerProgram, ProgramDependency, ProgramNode, ProgramTask, add_bytes, merge_changes,
};
use super::residency::{SramPolicy, SramResidency};
use crate::generate::TraceEmitter;
use crate::generate::plan::{ParallelGroupKind, RankCoordinates};
use crate::generate::schedule::{PassKind, PipelinePass};
use chakram_trace::format::{
    CollectiveKind, KernelShape, MemoryChanges, MovingKernel, NodeLabels, Op, TensorClass,
    TraceError, TrainingPhase,
};
use std::collections::BTreeMap;
use std::fmt::Write as _;

mod gradients;
mod memory_traffic;
mod messages;

pub(super) use memory_traffic::MOST_PIECES;

use gradients::GradientProgress;

/// The lane of kernels.
pub const COMPUTE_LANE: i64 = 0;
/// The lane of tensor groups' collectives.
pub const TENSOR_LANE: i64 = 1;
/// The lane of reductions of gradients.
pub const GRADIENT_LANE: i64 = 2;
/// The lane on which parameters are gathered.
pub const PARAMETER_LANE: i64 = 3;
/// The lane on which tokens are exchanged between experts.
pub const EXPERT_LANE: i64 = 5;
/// The lane on which ranks exchange tokens, keys, values or heads for context parallelism.
pub const CONTEXT_LANE: i64 = 6;
/// The lane of loads and stores beyond SRAM.
pub const MEMORY_LANE: i64 = 4;
/// The first lane for kernels of parallel branches. If there are more branches than lanes, they share lanes.
pub const BRANCH_LANE: i64 = 7;
const BRANCH_LANES: u32 = 3;

/// Emits the nodes of a rank.
pub(super) struct RankEmitter<'w, 's> {
    plan: &'w TrainingGenerator,
    out: &'w mut TraceEmitter<'s>,
    place: RankCoordinates,
    rank: u32,
    step: u32,
    /// Dependencies of the next node of the chain.
    chain_tail: Vec<u64>,
    /// Dependencies of the program in progress.
    entry: Vec<u64>,
    /// Node ids of the current program, or of the last one.
    ids: Vec<u64>,
    /// The layer and item of a sum that adapters compute instead, in the current pass.
    handed: Option<(usize, usize)>,
    /// Common start of the node names of the current program.
    common: String,
    /// Scratch for the dependencies of a node.
    data: Vec<u64>,
    /// Nodes that produced gradients on which no reduction depends yet: gradients of weights that
    /// all replicas have, and of experts' weights.
    unreduced_producers: [Vec<u64>; 2],
    /// Reductions of the current step.
    reduced: Vec<u64>,
    /// Parameter gathers that a later forward pass of each layer must wait for.
    updated: BTreeMap<usize, Vec<u64>>,
    /// Memory changes that the next node makes.
    pending_memory: MemoryChanges,
    /// SRAM, and the stage's operands that stay in SRAM, if the plan has a residency rule.
    sram: Option<(SramPolicy, SramResidency)>,
}

/// A node outside layers.
struct StepNode<'n> {
    name: std::fmt::Arguments<'n>,
    op: Op<'n>,
    lane: Option<i64>,
    phase: TrainingPhase,
    pass: Option<PipelinePass>,
    layer: Option<u32>,
    memory: MemoryChanges,
}

impl<'w, 's> RankEmitter<'w, 's> {
    pub fn new(plan: &'w TrainingGenerator, rank: u32, out: &'w mut TraceEmitter<'s>) -> Self {
        let place = plan.placement.place(rank);
        let sram = plan.sram_policy();
        Self {
            plan,
            out,
            sram: sram.map(|sram| (sram, plan.residency_of(place.stage, &sram))),
            place,
            rank,
            step: 0,
            chain_tail: Vec::new(),
            entry: Vec::new(),
            ids: Vec::new(),
            handed: None,
            common: String::new(),
            data: Vec::new(),
            unreduced_producers: Default::default(),
            reduced: Vec::new(),
            updated: BTreeMap::new(),
            pending_memory: MemoryChanges::default(),
        }
    }

    /// Emits all steps.
    pub fn run(&mut self) -> Result<(), TraceError> {
        self.allocate_resident()?;
        let plan = self.plan;
        let trains = plan.plan.trains();
        for step in 0..plan.plan.steps {
            self.step = step;
            if plan.gathers_before_step() {
                self.gather_updated()?;
            }
            let mut kept = vec![false; plan.chunk_count() as usize];
            for step in plan.steps_of_stage(self.place.stage) {
                // Two overlapping passes start with the inputs of both passes, and send when both
                // passes have ended.
                let mut begun = Vec::with_capacity(2);
                for pass in step.passes() {
                    let chunk = &mut kept[pass.chunk as usize];
                    // Parameters that are not resharded are present after the first pass of a step.
                    let present = std::mem::replace(chunk, !plan.plan.reshard);
                    begun.push((pass, self.begin_pass(pass, present)?));
                }
                // Both passes start from the current end of the chain, because neither depends on
                // the other.
                let begin = step.beside.map(|_| self.chain_tail.clone());
                let mut ends = Vec::new();
                for (pass, gathers) in begun {
                    if let Some(begin) = &begin {
                        self.chain_tail.clone_from(begin);
                    }
                    let complete = step.completes && (pass.kind.finds_weights() || !trains);
                    self.emit_pass(pass, complete, gathers)?;
                    ends.append(&mut self.chain_tail);
                }
                self.chain_tail = ends;
                for pass in step.passes() {
                    self.hand_on(pass)?;
                }
            }
            if trains {
                self.emit_end_of_step()?;
            }
        }
        self.free_released()
    }

    /// Frees memory that no later node frees, because all kernels of the layers after the last node
    /// are left out.
    fn free_released(&mut self) -> Result<(), TraceError> {
        let memory = std::mem::take(&mut self.pending_memory);
        if memory.is_none() {
            return Ok(());
        }
        // An empty node is needed, because only nodes change memory.
        self.out.set_name(format_args!("released"));
        let labels = NodeLabels {
            stage: Some(self.place.stage),
            ..NodeLabels::default()
        };
        self.data.clear();
        self.data.append(&mut self.chain_tail);
        self.dedup_dependencies();
        let emitted = self
            .out
            .emit_with((Op::NoOp, None), None, memory, labels, &self.data);
        emitted.map(drop)
    }

    fn allocate_resident(&mut self) -> Result<(), TraceError> {
        let bytes = self.plan.resident_bytes(self.place.stage);
        let mut memory = MemoryChanges::default();
        memory.allocates[TensorClass::Weights as usize] = bytes.weights;
        memory.allocates[TensorClass::Gradients as usize] = bytes.gradients;
        memory.allocates[TensorClass::Optimizer as usize] = bytes.optimizer;
        self.out.set_name(format_args!("resident"));
        let labels = NodeLabels {
            stage: Some(self.place.stage),
            ..NodeLabels::default()
        };
        let id = self
            .out
            .emit_with((Op::NoOp, None), None, memory, labels, &[])?;
        self.chain_tail.push(id);
        Ok(())
    }

    /// Emits `node`, which waits for `self.data`.
    fn emit_node(&mut self, node: StepNode<'_>) -> Result<u64, TraceError> {
        match self.plan.plan.steps {
            1 => self.out.set_name(node.name),
            _ => (self.out).set_name(format_args!("step{}/{}", self.step, node.name)),
        }
        let labels = NodeLabels {
            phase: Some(node.phase),
            stage: Some(self.place.stage),
            micro_batch: node.pass.map(|pass| pass.micro_batch),
            layer: node.layer,
            ..NodeLabels::default()
        };
        let (lane, memory) = (node.lane, node.memory);
        // Outside layers, the only compute nodes are the optimizer's kernel and copies around
        // collectives.
        let kernel = match (node.phase, node.op) {
            (TrainingPhase::Optimizer, _) => Some(KernelShape::Moving(MovingKernel::Optimizer)),
            (_, Op::Compute { .. }) => Some(KernelShape::Moving(MovingKernel::ElementWise)),
            _ => None,
        };
        self.dedup_dependencies();
        self.out
            .emit_with((node.op, kernel), lane, memory, labels, &self.data)
    }

    /// Layers of a pass in execution order.
    fn layers_of(&self, pass: PipelinePass) -> impl Iterator<Item = usize> + Clone + use<> {
        let part = self.plan.part_of_chunk(self.place.stage, pass.chunk);
        let layers = self.plan.layers_of_part(part);
        let (first, end) = (layers.start, layers.end);
        let forward = pass.kind == PassKind::Forward;
        (first..end).map(move |i| if forward { i } else { end - 1 - (i - first) })
    }

    /// Returns the stage of `other`, if it is another stage; within a stage no message is needed.
    fn other_stage(&self, other: Option<(u32, PipelinePass)>) -> Option<u32> {
        let stage = other.map(|(stage, _)| stage);
        stage.filter(|stage| *stage != self.place.stage)
    }

    /// Emits the start of a pass: the first parameter gathers, unless parameters are `present`, and the receive.
    fn begin_pass(
        &mut self,
        pass: PipelinePass,
        present: bool,
    ) -> Result<ParameterGathers, TraceError> {
        let (plan, own) = (self.plan, self.place.stage);
        let gathered = plan.gathers_parameters() && !present && needs_weights(pass);
        let mut gathers = ParameterGathers::new(gathered, self.layers_of(pass));
        self.gather_parameters(&mut gathers, 0, pass)?;
        let before = (plan.plan.schedule).predecessor(pass, own, plan.plan.pipeline);
        if let Some(sender) = self.other_stage(before) {
            self.receive_input(pass, plan.part_of_chunk(own, pass.chunk), sender)?;
        }
        Ok(gathers)
    }

    /// Emits the send of a pass's result, if another stage needs it.
    fn hand_on(&mut self, pass: PipelinePass) -> Result<(), TraceError> {
        let (plan, own) = (self.plan, self.place.stage);
        let behind = (plan.plan.schedule).successor(pass, own, plan.plan.pipeline);
        if let Some(receiver) = self.other_stage(behind) {
            let sent = self.send_output(pass, plan.part_of_chunk(own, pass.chunk), receiver)?;
            // Without overlap the chain waits for the send, because the stage must not compute
            // during the send.
            if let (Some(sent), false) = (sent, plan.plan.pipeline_overlap) {
                self.chain_tail.clear();
                self.chain_tail.push(sent);
            }
        }
        Ok(())
    }

    /// Emits the nodes of a pass between its messages.
    fn emit_pass(
        &mut self,
        pass: PipelinePass,
        complete: bool,
        mut gathers: ParameterGathers,
    ) -> Result<(), TraceError> {
        let plan = self.plan;
        let at = plan.part_of_chunk(self.place.stage, pass.chunk);
        let forward = pass.kind == PassKind::Forward;
        let reduces = pass.kind.finds_weights() && plan.ends_with_reductions(complete);
        self.handed = plan.handed_sum(at, pass.kind);
        for (k, layer) in self.layers_of(pass).enumerate() {
            if k > 0 {
                self.gather_parameters(&mut gathers, k, pass)?;
            }
            self.chain_tail.extend(gathers.ids.get(k));
            if forward {
                // Later micro-batches follow the first micro-batch, so only the first waits for the
                // gathers.
                self.chain_tail
                    .extend(self.updated.remove(&layer).into_iter().flatten());
            }
            if gathers.ids.len() > k && plan.copies_parameters() {
                self.copy_out(layer, pass)?;
            }
            let lowered = plan.lowered_layer(layer);
            let program = lowered.program(pass.kind, self.place.tensor);
            // Parameters kept for the step are freed by the last pass that uses them, or by its weight gradients.
            let frees = plan.gathers_parameters()
                && match plan.plan.reshard {
                    true => needs_weights(pass),
                    false => complete,
                };
            let freed = if frees { plan.gathered_bytes(layer) } else { 0 };
            if reduces && plan.shares_gradients() {
                // Gradients are whole until they are reduced.
                let whole = plan.gradient_bytes(layer);
                add_bytes(
                    &mut self.pending_memory.allocates,
                    TensorClass::Temporary,
                    whole,
                );
            }
            let finding = (complete || reduces).then(|| GradientProgress {
                found: &program.found,
                operators: 0,
                buckets: if reduces && plan.plan.overlap {
                    plan.buckets_ending_in(layer)
                } else {
                    &[]
                },
            });
            self.emit_program(program, layer, pass, finding, freed)?;
        }
        if reduces && !plan.plan.overlap && !complete {
            self.reduce_all_buckets(at, pass)?;
        }
        Ok(())
    }

    /// Copies the parameters of a layer from the buffer in which they were gathered: one read and one write.
    fn copy_out(&mut self, layer: usize, pass: PipelinePass) -> Result<(), TraceError> {
        let plan = self.plan;
        self.data.clear();
        self.data.append(&mut self.chain_tail);
        let name = &plan.model.layers[layer].name;
        let id = self.emit_node(StepNode {
            name: format_args!(
                "mb{}/{name}/{}/unpack",
                pass.micro_batch,
                direction_label(pass)
            ),
            op: plan.copy_op(plan.gathered_bytes(layer).saturating_mul(2)),
            lane: Some(COMPUTE_LANE),
            phase: TrainingPhase::Synchronize,
            pass: Some(pass),
            layer: Some(layer as u32),
            memory: MemoryChanges::default(),
        })?;
        self.chain_tail.push(id);
        Ok(())
    }

    /// Emits a layer's program, with reductions of the buckets that complete within it; its last node frees `freed`
    /// bytes of gathered parameters.
    fn emit_program(
        &mut self,
        program: &LayerProgram,
        layer: usize,
        pass: PipelinePass,
        mut finding: Option<GradientProgress<'_>>,
        freed: u64,
    ) -> Result<(), TraceError> {
        self.ids.clear();
        self.begin_names(layer, pass);
        // The tail of the chain so far becomes the entry of the program.
        std::mem::swap(&mut self.entry, &mut self.chain_tail);
        let count = program.items.len();
        for (i, item) in program.items.iter().enumerate() {
            self.data.clear();
            self.depend_on(&item.after);
            let mut memory = item.memory;
            // Earlier layers without nodes left these memory changes, because only nodes can carry
            // them.
            if i == 0 {
                merge_changes(&mut memory, &std::mem::take(&mut self.pending_memory));
            }
            if i + 1 == count {
                add_bytes(&mut memory.frees, TensorClass::Temporary, freed);
            }
            let handed = self.handed == Some((layer, i));
            let id = self.emit_item(item, layer, pass, memory, handed)?;
            self.ids.push(id);
            // Gradients that the last node completes are handled after the loop, when the chain has
            // advanced.
            if let Some(finding) = finding.as_mut().filter(|_| i + 1 < count) {
                self.reduce_complete_buckets(finding, pass)?;
            }
        }
        // The layer has no node, so the next node frees the memory.
        if count == 0 {
            add_bytes(
                &mut self.pending_memory.frees,
                TensorClass::Temporary,
                freed,
            );
        }
        merge_changes(&mut self.pending_memory, &program.rest);
        self.data.clear();
        self.depend_on(&program.exit);
        self.chain_tail.clear();
        self.chain_tail.extend_from_slice(&self.data);
        match finding {
            Some(mut finding) => self.reduce_complete_buckets(&mut finding, pass),
            None => Ok(()),
        }
    }

    /// Formats the common start of the names of a layer's nodes in a pass.
    fn begin_names(&mut self, layer: usize, pass: PipelinePass) {
        let layer = &self.plan.model.layers[layer].name;
        self.common.clear();
        let written = match self.plan.plan.steps {
            1 => write!(self.common, "mb{}/{layer}/", pass.micro_batch),
            _ => write!(
                self.common,
                "step{}/mb{}/{layer}/",
                self.step, pass.micro_batch
            ),
        };
        written.expect("a string grows as needed");
    }

    /// Adds to `self.data` the node ids for `after` in the current program.
    fn depend_on(&mut self, after: &[ProgramDependency]) {
        for one in after {
            match one {
                ProgramDependency::Entry => self.data.extend_from_slice(&self.entry),
                ProgramDependency::Node(item) => self.data.push(self.ids[*item as usize]),
            }
        }
    }

    fn emit_item(
        &mut self,
        item: &ProgramNode,
        layer: usize,
        pass: PipelinePass,
        memory: MemoryChanges,
        handed: bool,
    ) -> Result<u64, TraceError> {
        let plan = self.plan;
        if handed {
            let own = item.name.replace("all-reduce", "reduce");
            self.out.name_parts(&self.common, &own);
        } else {
            self.out.name_parts(&self.common, &item.name);
        }
        let (op, lane) = match item.task {
            ProgramTask::Kernel {
                flops,
                bytes,
                dtype,
                ..
            } => {
                let dtype = dtype.or(Some(plan.plan.dtype));
                (
                    Op::Compute {
                        flops,
                        bytes,
                        dtype,
                    },
                    Some(match item.branch {
                        0 => COMPUTE_LANE,
                        branch => BRANCH_LANE + i64::from((branch - 1) % BRANCH_LANES),
                    }),
                )
            }
            ProgramTask::Collective { bytes, .. } if handed => {
                let shares = plan.adapters_of(self.place.stage);
                let shares = shares.and_then(|own| own.shares);
                // A share of one member needs no sum.
                let reduce = |family| self.collective_op(CollectiveKind::Reduce, bytes, family);
                (shares.map_or(Op::NoOp, reduce), Some(TENSOR_LANE))
            }
            ProgramTask::Collective {
                kind,
                bytes,
                family,
            } => {
                let lane = match family {
                    ParallelGroupKind::Expert => EXPERT_LANE,
                    ParallelGroupKind::Context => CONTEXT_LANE,
                    _ => TENSOR_LANE,
                };
                (self.collective_op(kind, bytes, family), Some(lane))
            }
            ProgramTask::Message {
                receive,
                peer,
                bytes,
                slot,
            } => {
                // Tags are unique per step, layer, slot and micro-batch; `check::messages` keeps them within i32.
                let number = u64::from(self.step) * plan.model.layers.len() as u64 + layer as u64;
                let number = number * u64::from(plan.slots) + u64::from(slot);
                let op = Op::Message {
                    receive,
                    peer: plan.placement.rank(RankCoordinates {
                        tensor: peer,
                        ..self.place
                    }),
                    tag: (number * u64::from(plan.micro_batches) + u64::from(pass.micro_batch))
                        as i32,
                    bytes,
                    own: Some(self.rank),
                    host: false,
                };
                (op, None)
            }
        };
        let labels = NodeLabels {
            phase: Some(item.phase),
            stage: Some(self.place.stage),
            micro_batch: Some(pass.micro_batch),
            layer: Some(layer as u32),
            inputs: &item.inputs,
            outputs: &item.outputs,
        };
        let kernel = match item.task {
            ProgramTask::Kernel { shape, .. } => shape,
            _ => None,
        };
        self.dedup_dependencies();
        let moved = match (self.sram, item.task) {
            (Some((sram, kept)), ProgramTask::Kernel { operands, .. }) => {
                operands.map_or([0; 2], |operands| sram.traffic(kept, operands))
            }
            _ => [0; 2],
        };
        let own = self
            .out
            .emit_with((op, kernel), lane, memory, labels, &self.data)?;
        if moved == [0; 2] {
            return Ok(own);
        }
        self.stream_node(own, moved, labels)
    }

    /// Removes duplicate dependencies of the next node.
    fn dedup_dependencies(&mut self) {
        if self.data.len() > 1 {
            self.data.sort_unstable();
            self.data.dedup();
        }
    }

    fn collective_op(
        &self,
        kind: CollectiveKind,
        bytes: u64,
        family: ParallelGroupKind,
    ) -> Op<'static> {
        Op::Collective {
            kind,
            bytes,
            group: self.plan.placement.name(family, self.place),
            root: None,
            dimensions: None,
            host: false,
        }
    }

    /// Gathers the parameters of the pass's layers up to the `k`-th, and of the layers whose
    /// parameters are gathered ahead.
    fn gather_parameters(
        &mut self,
        gathers: &mut ParameterGathers,
        k: usize,
        pass: PipelinePass,
    ) -> Result<(), TraceError> {
        let plan = self.plan;
        let ahead = k.saturating_add(plan.plan.prefetch as usize);
        while gathers.ids.len() <= ahead && gathers.ids.len() < gathers.order.len() {
            let layer = gathers.order[gathers.ids.len()];
            let bytes = plan.gathered_bytes(layer);
            // An all-gather's `comm_size` is one member's shard.
            let shard = bytes.div_ceil(plan.plan.copies().into());
            let mut memory = MemoryChanges::default();
            memory.allocates[TensorClass::Temporary as usize] = bytes;
            self.data.clear();
            self.data.extend_from_slice(&self.chain_tail);
            let name = &plan.model.layers[layer].name;
            let id = self.emit_node(StepNode {
                name: format_args!(
                    "mb{}/{name}/{}/gather",
                    pass.micro_batch,
                    direction_label(pass)
                ),
                op: self.collective_op(CollectiveKind::AllGather, shard, ParallelGroupKind::Data),
                lane: Some(PARAMETER_LANE),
                phase: TrainingPhase::Synchronize,
                pass: Some(pass),
                layer: Some(layer as u32),
                memory,
            })?;
            gathers.ids.push(id);
        }
        Ok(())
    }
}

/// Returns true if a pass multiplies with weights; weight gradients need only activations.
fn needs_weights(pass: PipelinePass) -> bool {
    pass.kind != PassKind::WeightGradient
}

fn direction_label(pass: PipelinePass) -> &'static str {
    match pass.kind {
        PassKind::Forward => "fwd",
        PassKind::Backward | PassKind::InputGradient => "bwd",
        PassKind::WeightGradient => "grad",
    }
}

/// The layers of a pass whose parameters are gathered, and the gather nodes.
struct ParameterGathers {
    order: Vec<usize>,
    ids: Vec<u64>,
}

impl ParameterGathers {
    fn new(gathers: bool, order: impl Iterator<Item = usize>) -> Self {
        Self {
            order: order.filter(|_| gathers).collect(),
            ids: Vec::new(),
        }
    }
}
