//! Emits the nodes of a rank, in the order in which the host would launch them.
//!
//! All kernels of a rank form one chain: each kernel waits for the previous one, and passes follow the schedule's
//! order. The only kernels outside this chain are those for weight gradients that overlap a sum over the tensor group.
//! A pass begins with a receive from the previous stage, for which its kernels wait. It ends with a send, for which no
//! node waits. Gradient reductions and parameter gathers have their own lanes.

use super::TrainingGenerator;
use super::program::{
    LayerProgram, ProgramNode, ProgramNodeOperation, ProgramPredecessorsOrNodeDependency,
    add_tensor_class_bytes, merge_memory_changes,
};
use super::residency::{SramPolicy, TensorsKeptInSram};
use crate::generate::TraceEmitter;
use crate::generate::plan::{BackwardPrefetch, ParallelGroupKind, TensorDataStageCoordinates};
use crate::generate::schedule::{PassKind, PipelinePass};
use chakram_trace::format::{
    CollectiveKind, KernelShape, MemoryBoundKernelClass, NodeMemoryChanges,
    NodePhaseStageLayerAndShapes, Op, TensorClass, TraceError, TrainingPhase,
};
use std::collections::BTreeMap;
use std::fmt::Write as _;

mod activations;
mod gradients;
mod memory_traffic;
mod messages;

pub(super) use memory_traffic::MOST_PIECES;

use gradients::LayerGradientEmissionProgress;
use memory_traffic::create_remote_access;

/// Lane of all kernels except kernels of parallel branches.
pub const COMPUTE_LANE: i64 = 0;
/// Lane of the collectives of tensor groups.
pub const TENSOR_LANE: i64 = 1;
/// Lane of gradient reductions.
pub const GRADIENT_LANE: i64 = 2;
/// Lane of parameter gathers.
pub const PARAMETER_LANE: i64 = 3;
/// Lane of token exchanges between ranks with different experts.
pub const EXPERT_LANE: i64 = 5;
/// Lane of context-parallel exchanges: tokens, keys, values or heads.
pub const CONTEXT_LANE: i64 = 6;
/// Lane of loads and stores of operands that are not kept in SRAM.
pub const MEMORY_LANE: i64 = 4;
/// Lane of reductions over copies of a shard.
const COPIES_LANE: i64 = 10;
/// First lane for kernels of parallel branches. If there are more branches than lanes, some share a lane.
pub const BRANCH_LANE: i64 = 7;
const BRANCH_LANES: u32 = 3;

/// Emits the nodes of a rank.
pub(super) struct RankEmitter<'w, 's> {
    plan: &'w TrainingGenerator,
    out: &'w mut TraceEmitter<'s>,
    place: TensorDataStageCoordinates,
    rank: u32,
    step: u32,
    /// Last nodes of the chain; the next node of the chain depends on them.
    chain_tail: Vec<u64>,
    /// Nodes on which the current program depends.
    entry: Vec<u64>,
    /// Ids of the nodes that the current program (or, between programs, the last one) has emitted, by item.
    ids: Vec<u64>,
    /// Layer and item of the sum that adapters, instead of the group, compute in the current pass; `None` if there is
    /// no such sum.
    handed: Option<(usize, usize)>,
    /// Prefix of the node names in the current program.
    common: String,
    /// Dependencies of the next node; one buffer is reused for all nodes.
    data: Vec<u64>,
    /// Nodes that have computed gradients, but have no reduction waiting for them yet. The first list is for weights
    /// that every replica has, and the second is for experts' weights.
    unreduced_producers: [Vec<u64>; 2],
    /// Nodes of the gradient reductions of the current step.
    reduced: Vec<u64>,
    /// For each layer, the parameter gathers that must end before the layer's next forward pass.
    updated: BTreeMap<usize, Vec<u64>>,
    /// For each micro-batch and layer with offloaded activations, the store of these activations.
    stored_activations: BTreeMap<(u32, usize), u64>,
    /// Memory changes that are attached to the next emitted node.
    pending_memory: NodeMemoryChanges,
    /// The residency rule, and the operands that this stage keeps in SRAM; `None` if the plan has
    /// no residency rule.
    sram: Option<(SramPolicy, TensorsKeptInSram)>,
}

/// A node that belongs to a step as a whole instead of a layer's program.
struct WholeStepNode<'n> {
    name: std::fmt::Arguments<'n>,
    op: Op<'n>,
    lane: Option<i64>,
    phase: TrainingPhase,
    pass: Option<PipelinePass>,
    layer: Option<u32>,
    memory: NodeMemoryChanges,
}

impl<'w, 's> RankEmitter<'w, 's> {
    pub fn new(plan: &'w TrainingGenerator, rank: u32, out: &'w mut TraceEmitter<'s>) -> Self {
        let place = plan.placement.coordinates_of_rank(rank);
        let sram = plan.sram_policy();
        Self {
            plan,
            out,
            sram: sram.map(|sram| (sram, plan.sram_residency_of_stage(place.stage, &sram))),
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
            stored_activations: BTreeMap::new(),
            pending_memory: NodeMemoryChanges::default(),
        }
    }

    /// Emits the nodes of all steps.
    pub fn emit_all_steps(&mut self) -> Result<(), TraceError> {
        self.emit_resident_allocations()?;
        let plan = self.plan;
        let trains = plan.plan.has_training();
        for step in 0..plan.plan.steps {
            self.step = step;
            if plan.gathers_updated_parameters_before_step() {
                self.emit_updated_parameter_gathers()?;
            }
            let mut has_begun = vec![false; plan.chunk_count() as usize];
            for step in plan.ordered_passes_of_stage(self.place.stage) {
                // If two passes overlap, receive both inputs before the first pass starts, and send
                // only after both passes have ended.
                let mut begun = Vec::with_capacity(2);
                for pass in step.iter_passes() {
                    let chunk = &mut has_begun[pass.chunk as usize];
                    // Without resharding, the parameters stay gathered after the chunk's first pass
                    // in a step.
                    let is_later = std::mem::replace(chunk, true);
                    begun.push((
                        pass,
                        self.emit_gathers_and_receive_before_pass(pass, is_later)?,
                    ));
                }
                // Both passes start at the current end of the chain, because neither depends on the other.
                let begin = step.beside.map(|_| self.chain_tail.clone());
                let mut ends = Vec::new();
                for (pass, gathers) in begun {
                    if let Some(begin) = &begin {
                        self.chain_tail.clone_from(begin);
                    }
                    let complete =
                        step.completes && (pass.kind.computes_weight_gradients() || !trains);
                    self.emit_pass(pass, complete, gathers)?;
                    ends.append(&mut self.chain_tail);
                }
                self.chain_tail = ends;
                for pass in step.iter_passes() {
                    self.emit_result_send(pass)?;
                }
            }
            if trains {
                self.emit_end_of_step()?;
            }
        }
        self.emit_remaining_frees()
    }

    /// Frees memory that no later node frees. Such memory remains if the plan omits all kernels of the layers that
    /// would free it.
    fn emit_remaining_frees(&mut self) -> Result<(), TraceError> {
        let memory = std::mem::take(&mut self.pending_memory);
        if memory.is_none() {
            return Ok(());
        }
        // Emit an empty node, because memory can change only at nodes.
        self.out.set_name(format_args!("released"));
        let labels = NodePhaseStageLayerAndShapes {
            stage: Some(self.place.stage),
            ..NodePhaseStageLayerAndShapes::default()
        };
        self.data.clear();
        self.data.append(&mut self.chain_tail);
        self.dedup_dependencies();
        let emitted = self.out.emit_node_with_memory_and_labels(
            (Op::NoOp, None),
            None,
            memory,
            labels,
            &self.data,
        );
        emitted.map(drop)
    }

    fn emit_resident_allocations(&mut self) -> Result<(), TraceError> {
        let bytes = self.plan.resident_bytes(self.place.stage);
        let mut memory = NodeMemoryChanges::default();
        memory.allocates[TensorClass::Weights as usize] = bytes.weights;
        memory.allocates[TensorClass::Gradients as usize] = bytes.gradients;
        memory.allocates[TensorClass::Optimizer as usize] = bytes.optimizer;
        memory.remote = self.plan.offloaded_bytes(self.place.stage);
        self.out.set_name(format_args!("resident"));
        let labels = NodePhaseStageLayerAndShapes {
            stage: Some(self.place.stage),
            ..NodePhaseStageLayerAndShapes::default()
        };
        let id = self.out.emit_node_with_memory_and_labels(
            (Op::NoOp, None),
            None,
            memory,
            labels,
            &[],
        )?;
        self.chain_tail.push(id);
        Ok(())
    }

    /// Emits `node`, which depends on the nodes in `self.data`, and returns the node's id.
    fn emit_node(&mut self, node: WholeStepNode<'_>) -> Result<u64, TraceError> {
        match self.plan.plan.steps {
            1 => self.out.set_name(node.name),
            _ => (self.out).set_name(format_args!("step{}/{}", self.step, node.name)),
        }
        let labels = NodePhaseStageLayerAndShapes {
            phase: Some(node.phase),
            stage: Some(self.place.stage),
            micro_batch: node.pass.map(|pass| pass.micro_batch),
            layer: node.layer,
            ..NodePhaseStageLayerAndShapes::default()
        };
        let (lane, memory) = (node.lane, node.memory);
        // Outside layers, the only compute nodes are the optimizer's kernel, and copies before or after collectives.
        let kernel = match (node.phase, node.op) {
            (TrainingPhase::Optimizer, _) => {
                Some(KernelShape::Moving(MemoryBoundKernelClass::Optimizer))
            }
            (_, Op::Compute { .. }) => {
                Some(KernelShape::Moving(MemoryBoundKernelClass::ElementWise))
            }
            _ => None,
        };
        self.dedup_dependencies();
        self.out.emit_node_with_memory_and_labels(
            (node.op, kernel),
            lane,
            memory,
            labels,
            &self.data,
        )
    }

    /// Returns the layers of a pass in execution order.
    fn layers_of_pass_in_order(
        &self,
        pass: PipelinePass,
    ) -> impl Iterator<Item = usize> + Clone + use<> {
        let part = self.plan.part_of_chunk(self.place.stage, pass.chunk);
        let layers = self.plan.layers_of_part(part);
        let (first, end) = (layers.start, layers.end);
        let forward = pass.kind == PassKind::Forward;
        (first..end).map(move |i| if forward { i } else { end - 1 - (i - first) })
    }

    /// Returns the stage of `other`. Returns `None` for the same stage, which needs no message.
    fn stage_if_other_than_own(&self, other: Option<(u32, PipelinePass)>) -> Option<u32> {
        let stage = other.map(|(stage, _)| stage);
        stage.filter(|stage| *stage != self.place.stage)
    }

    /// Emits the start of a pass: the first parameter gathers, and the receive for the pass's
    /// input. `is_later` is true if this is not the chunk's first pass in the step.
    fn emit_gathers_and_receive_before_pass(
        &mut self,
        pass: PipelinePass,
        is_later: bool,
    ) -> Result<PassParameterGatherNodes, TraceError> {
        let (plan, own) = (self.plan, self.place.stage);
        let gathered = plan.gathers_parameters() && needs_weights(pass);
        let mut gathers =
            PassParameterGatherNodes::new(gathered, is_later, self.layers_of_pass_in_order(pass));
        self.emit_parameter_gathers(&mut gathers, self.last_layer_gathered_before(0, pass), pass)?;
        let before = (plan.plan.schedule).predecessor_of(pass, own, plan.plan.pipeline);
        if let Some(sender) = self.stage_if_other_than_own(before) {
            self.emit_input_receive(pass, plan.part_of_chunk(own, pass.chunk), sender)?;
        }
        Ok(gathers)
    }

    /// Emits the send of a pass's result if another stage needs the result.
    fn emit_result_send(&mut self, pass: PipelinePass) -> Result<(), TraceError> {
        let (plan, own) = (self.plan, self.place.stage);
        let behind =
            (plan.plan.schedule).stage_and_pass_using_result(pass, own, plan.plan.pipeline);
        if let Some(receiver) = self.stage_if_other_than_own(behind) {
            let sent =
                self.emit_output_send(pass, plan.part_of_chunk(own, pass.chunk), receiver)?;
            // Without overlap, the chain waits for the send, so that the stage does not compute meanwhile.
            if let (Some(sent), false) = (sent, plan.plan.pipeline_overlap) {
                self.chain_tail.clear();
                self.chain_tail.push(sent);
            }
        }
        Ok(())
    }

    /// Emits the nodes of a pass, from its receive to its send.
    fn emit_pass(
        &mut self,
        pass: PipelinePass,
        complete: bool,
        mut gathers: PassParameterGatherNodes,
    ) -> Result<(), TraceError> {
        let plan = self.plan;
        let at = plan.part_of_chunk(self.place.stage, pass.chunk);
        let forward = pass.kind == PassKind::Forward;
        let reduces =
            pass.kind.computes_weight_gradients() && plan.backward_ends_with_reductions(complete);
        self.handed = plan.find_sum_computed_by_adapters(at, pass.kind);
        let mut loads = Vec::new();
        for (k, layer) in self.layers_of_pass_in_order(pass).enumerate() {
            if k > 0 {
                self.emit_parameter_gathers(
                    &mut gathers,
                    self.last_layer_gathered_before(k, pass),
                    pass,
                )?;
            }
            self.emit_activation_loads(
                &mut loads,
                self.layers_of_pass_in_order(pass),
                k + 2,
                pass,
            )?;
            self.chain_tail
                .extend(gathers.ids.get(k).into_iter().flatten());
            self.chain_tail.extend(loads[k]);
            if forward {
                // Only the first micro-batch needs to wait for the gathers, because later micro-batches run after it.
                self.chain_tail
                    .extend(self.updated.remove(&layer).into_iter().flatten());
            }
            if gathers.ids.get(k).is_some_and(|ids| !ids.is_empty())
                && plan.copies_through_collective_buffers()
            {
                self.emit_gathered_parameter_copy_out(layer, pass)?;
            }
            let lowered = plan.lowered_layer(layer);
            let program = lowered.program_for_member(pass.kind, self.place.tensor);
            // If parameters are kept for the whole step, the last pass that uses the weights (or
            // the weight-gradient pass) frees them.
            let frees = plan.gathers_parameters()
                && match plan.reshards_layer(layer) {
                    true => needs_weights(pass),
                    false => complete,
                };
            let freed = if frees {
                plan.gathered_parameter_bytes(layer)
            } else {
                0
            };
            if reduces && plan.shards_gradients() {
                // Each member holds all gradients until they are reduced.
                let whole = plan.layer_gradient_bytes_to_sum(layer);
                add_tensor_class_bytes(
                    &mut self.pending_memory.allocates,
                    TensorClass::Temporary,
                    whole,
                );
            }
            let finding = (complete || reduces).then(|| LayerGradientEmissionProgress {
                found: &program.found,
                operators: 0,
                buckets: if reduces && plan.plan.overlap {
                    plan.buckets_ending_in(layer)
                } else {
                    &[]
                },
            });
            self.emit_layer_program(program, layer, pass, finding, freed)?;
            self.emit_activation_store(layer, pass)?;
            self.emit_parameter_gathers(&mut gathers, self.last_layer_gathered_during(k), pass)?;
        }
        if reduces && !plan.plan.overlap && !complete {
            self.emit_part_bucket_reductions_chained(at, pass)?;
        }
        Ok(())
    }

    /// Emits a copy of a layer's parameters out of the gather buffer: one read and one write.
    fn emit_gathered_parameter_copy_out(
        &mut self,
        layer: usize,
        pass: PipelinePass,
    ) -> Result<(), TraceError> {
        let plan = self.plan;
        self.data.clear();
        self.data.append(&mut self.chain_tail);
        let name = &plan.model.layers[layer].name;
        let id = self.emit_node(WholeStepNode {
            name: format_args!(
                "mb{}/{name}/{}/unpack",
                pass.micro_batch,
                fwd_bwd_or_grad_label(pass)
            ),
            op: plan.build_copy_kernel_op(plan.gathered_parameter_bytes(layer).saturating_mul(2)),
            lane: Some(COMPUTE_LANE),
            phase: TrainingPhase::Synchronize,
            pass: Some(pass),
            layer: Some(layer as u32),
            memory: NodeMemoryChanges::default(),
        })?;
        self.chain_tail.push(id);
        Ok(())
    }

    /// Emits a layer's program, and the reductions of the buckets that it completes. Its last node frees `freed` bytes
    /// of gathered parameters.
    fn emit_layer_program(
        &mut self,
        program: &LayerProgram,
        layer: usize,
        pass: PipelinePass,
        mut finding: Option<LayerGradientEmissionProgress<'_>>,
        freed: u64,
    ) -> Result<(), TraceError> {
        self.ids.clear();
        self.set_node_name_prefix(layer, pass);
        // The program starts after the nodes at the end of the chain.
        std::mem::swap(&mut self.entry, &mut self.chain_tail);
        let count = program.items.len();
        for (i, item) in program.items.iter().enumerate() {
            self.data.clear();
            self.add_program_dependencies(&item.after);
            let mut memory = item.memory;
            // Earlier layers without nodes may have left memory changes. Attach them here, because memory can change
            // only at nodes.
            if i == 0 {
                merge_memory_changes(&mut memory, &std::mem::take(&mut self.pending_memory));
            }
            if i + 1 == count {
                add_tensor_class_bytes(&mut memory.frees, TensorClass::Temporary, freed);
            }
            let handed = self.handed == Some((layer, i));
            let id = self.emit_program_node(item, layer, pass, memory, handed)?;
            self.ids.push(id);
            // After the last item, reductions wait until `self.chain_tail` has advanced, so the code after the loop
            // emits them.
            if let Some(finding) = finding.as_mut().filter(|_| i + 1 < count) {
                self.emit_complete_bucket_reductions(finding, pass)?;
            }
        }
        // No node of the layer could free the memory, so the next node frees it.
        if count == 0 {
            add_tensor_class_bytes(
                &mut self.pending_memory.frees,
                TensorClass::Temporary,
                freed,
            );
        }
        merge_memory_changes(&mut self.pending_memory, &program.rest);
        self.data.clear();
        self.add_program_dependencies(&program.exit);
        self.chain_tail.clear();
        self.chain_tail.extend_from_slice(&self.data);
        match finding {
            Some(mut finding) => self.emit_complete_bucket_reductions(&mut finding, pass),
            None => Ok(()),
        }
    }

    /// Formats the prefix for the names of a layer's nodes in a pass.
    fn set_node_name_prefix(&mut self, layer: usize, pass: PipelinePass) {
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

    /// Adds the nodes `after`, which belong to the current program, to `self.data`.
    fn add_program_dependencies(&mut self, after: &[ProgramPredecessorsOrNodeDependency]) {
        for one in after {
            match one {
                ProgramPredecessorsOrNodeDependency::Entry => {
                    self.data.extend_from_slice(&self.entry)
                }
                ProgramPredecessorsOrNodeDependency::Node(item) => {
                    self.data.push(self.ids[*item as usize])
                }
            }
        }
    }

    fn emit_program_node(
        &mut self,
        item: &ProgramNode,
        layer: usize,
        pass: PipelinePass,
        memory: NodeMemoryChanges,
        handed: bool,
    ) -> Result<u64, TraceError> {
        let plan = self.plan;
        if handed {
            let own = item.name.replace("all-reduce", "reduce");
            self.out.set_name_from_parts(&self.common, &own);
        } else {
            self.out.set_name_from_parts(&self.common, &item.name);
        }
        let (op, lane) = match item.task {
            ProgramNodeOperation::Kernel {
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
            ProgramNodeOperation::Collective { bytes, .. } if handed => {
                let shares = plan.tensor_group_shares_of_stage(self.place.stage);
                let shares = shares.and_then(|own| own.shares);
                // An adapter share with a single member needs no sum.
                let reduce =
                    |family| self.create_collective_op(CollectiveKind::Reduce, bytes, family);
                (shares.map_or(Op::NoOp, reduce), Some(TENSOR_LANE))
            }
            ProgramNodeOperation::Collective {
                kind,
                bytes,
                family,
            } => {
                let lane = match family {
                    ParallelGroupKind::Expert
                    | ParallelGroupKind::ExpertNode
                    | ParallelGroupKind::ExpertAcross => EXPERT_LANE,
                    ParallelGroupKind::Context => CONTEXT_LANE,
                    _ => TENSOR_LANE,
                };
                (self.create_collective_op(kind, bytes, family), Some(lane))
            }
            ProgramNodeOperation::Message {
                receive,
                peer,
                bytes,
                slot,
            } => {
                // Tags are unique per step, layer, slot and micro-batch; `match_messages_and_report_defects` ensures
                // that they fit into an `i32`.
                let peer = TensorDataStageCoordinates {
                    tensor: peer,
                    ..self.place
                };
                let tag = self.message_tag(layer, [plan.slots, slot], pass);
                (self.build_peer_message_op(receive, peer, tag, bytes), None)
            }
            ProgramNodeOperation::RingMessage {
                receive,
                bytes,
                slot,
            } => {
                let members = plan.plan.context;
                let own = self.place.data % members;
                let step = if receive { members - 1 } else { 1 };
                let peer = TensorDataStageCoordinates {
                    data: self.place.data - own + (own + step) % members,
                    ..self.place
                };
                let tag = self.message_tag(layer, [plan.ring_slots, slot], pass);
                (self.build_peer_message_op(receive, peer, tag, bytes), None)
            }
        };
        let labels = NodePhaseStageLayerAndShapes {
            phase: Some(item.phase),
            stage: Some(self.place.stage),
            micro_batch: Some(pass.micro_batch),
            layer: Some(layer as u32),
            inputs: &item.inputs,
            outputs: &item.outputs,
        };
        let kernel = match item.task {
            ProgramNodeOperation::Kernel { shape, .. } => shape,
            _ => None,
        };
        self.dedup_dependencies();
        let moved = match (self.sram, item.task) {
            (Some((sram, kept)), ProgramNodeOperation::Kernel { operands, .. }) => operands
                .map_or([0; 2], |operands| {
                    sram.operand_load_and_store_bytes(kept, operands)
                }),
            _ => [0; 2],
        };
        let own = self.out.emit_node_with_memory_and_labels(
            (op, kernel),
            lane,
            memory,
            labels,
            &self.data,
        )?;
        if moved == [0; 2] {
            return Ok(own);
        }
        self.emit_parallel_loads_stores_and_wait(own, moved, labels)
    }

    /// Returns a tag that is unique among messages between the same ranks. `slots` is the number of messages per layer,
    /// and `slot` is this message's index among them.
    fn message_tag(&self, layer: usize, [slots, slot]: [u32; 2], pass: PipelinePass) -> i32 {
        let plan = self.plan;
        let number = u64::from(self.step) * plan.model.layers.len() as u64 + layer as u64;
        let number = number * u64::from(slots) + u64::from(slot);
        (number * u64::from(plan.micro_batches) + u64::from(pass.micro_batch)) as i32
    }

    fn build_peer_message_op(
        &self,
        receive: bool,
        peer: TensorDataStageCoordinates,
        tag: i32,
        bytes: u64,
    ) -> Op<'static> {
        Op::Message {
            receive,
            peer: self.plan.placement.rank_at(peer),
            tag,
            bytes,
            own: Some(self.rank),
            host: false,
        }
    }

    /// Sorts `self.data` and removes duplicates.
    fn dedup_dependencies(&mut self) {
        if self.data.len() > 1 {
            self.data.sort_unstable();
            self.data.dedup();
        }
    }

    fn create_collective_op(
        &self,
        kind: CollectiveKind,
        bytes: u64,
        family: ParallelGroupKind,
    ) -> Op<'static> {
        Op::Collective {
            kind,
            bytes,
            group: self.plan.placement.group_name(family, self.place),
            root: None,
            dimensions: None,
            host: false,
        }
    }

    /// Emits a node that loads or gathers the parameters `at`; it depends on the nodes in `self.data`.
    fn emit_parameter_load_or_gather(
        &mut self,
        at: LayerParameterGather,
        what: &str,
        op: Op<'_>,
        lane: i64,
        memory: NodeMemoryChanges,
    ) -> Result<u64, TraceError> {
        let plan = self.plan;
        let name = &plan.model.layers[at.layer].name;
        let of_experts = match at.among {
            ParallelGroupKind::ExpertData => "/experts",
            _ => "",
        };
        let direction = fwd_bwd_or_grad_label(at.pass);
        self.emit_node(WholeStepNode {
            name: format_args!(
                "mb{}/{name}/{direction}{of_experts}/{what}",
                at.pass.micro_batch
            ),
            op,
            lane: Some(lane),
            phase: TrainingPhase::Synchronize,
            pass: Some(at.pass),
            layer: Some(at.layer as u32),
            memory,
        })
    }

    /// Returns the place of the last layer whose parameters are gathered while the pass's `k`-th layer runs.
    fn last_layer_gathered_during(&self, k: usize) -> usize {
        k.saturating_add(self.plan.plan.prefetch as usize)
    }

    /// Returns the place of the last layer whose gather is issued before the pass's `k`-th layer.
    fn last_layer_gathered_before(&self, k: usize, pass: PipelinePass) -> usize {
        let is_late = pass.kind != PassKind::Forward
            && self.plan.plan.backward_prefetch == BackwardPrefetch::Post;
        if is_late {
            k
        } else {
            self.last_layer_gathered_during(k)
        }
    }

    /// Emits the parameter gathers that are still missing for the pass's layers up to the `last`-th. Experts'
    /// parameters have a separate gather, because other ranks share them.
    fn emit_parameter_gathers(
        &mut self,
        gathers: &mut PassParameterGatherNodes,
        last: usize,
        pass: PipelinePass,
    ) -> Result<(), TraceError> {
        let plan = self.plan;
        while gathers.ids.len() <= last && gathers.ids.len() < gathers.order.len() {
            let layer = gathers.order[gathers.ids.len()];
            let mut ids = Vec::new();
            if gathers.is_later && !plan.reshards_layer(layer) {
                gathers.ids.push(ids);
                continue;
            }
            for (among, bytes) in plan.gathered_bytes_by_group_kind(layer) {
                // For an all-gather, `comm_size` is the size of a single member's shard.
                let shard = bytes.div_ceil(plan.ranks_sharing_parameters_in_group(among).into());
                let mut memory = NodeMemoryChanges::default();
                memory.allocates[TensorClass::Temporary as usize] = bytes;
                self.data.clear();
                self.data.extend_from_slice(&self.chain_tail);
                let at = LayerParameterGather { pass, layer, among };
                let is_gathered = plan.ranks_sharing_parameters_in_group(among) > 1;
                let in_switches = plan.gathers_parameters_in_switches(among);
                if plan.offloads_parameters() {
                    // The first of these two nodes allocates memory for the gathered parameters.
                    let load = create_remote_access(false, shard, in_switches);
                    let allocated = std::mem::take(&mut memory);
                    let load = self.emit_parameter_load_or_gather(
                        at,
                        "load",
                        load,
                        MEMORY_LANE,
                        allocated,
                    )?;
                    self.data.clear();
                    self.data.push(load);
                    if in_switches || !is_gathered {
                        ids.push(load);
                        continue;
                    }
                }
                let gather = self.create_collective_op(CollectiveKind::AllGather, shard, among);
                ids.push(self.emit_parameter_load_or_gather(
                    at,
                    "gather",
                    gather,
                    PARAMETER_LANE,
                    memory,
                )?);
            }
            gathers.ids.push(ids);
        }
        Ok(())
    }
}

/// Parameters of a layer that a pass gathers in groups of one kind.
#[derive(Clone, Copy)]
struct LayerParameterGather {
    pass: PipelinePass,
    layer: usize,
    among: ParallelGroupKind,
}

/// Returns true if a pass multiplies by weights. Passes for weight gradients need only activations.
fn needs_weights(pass: PipelinePass) -> bool {
    pass.kind != PassKind::WeightGradient
}

fn fwd_bwd_or_grad_label(pass: PipelinePass) -> &'static str {
    match pass.kind {
        PassKind::Forward => "fwd",
        PassKind::Backward | PassKind::InputGradient => "bwd",
        PassKind::WeightGradient => "grad",
    }
}

/// Layers of a pass that gather parameters, and the nodes of these gathers.
struct PassParameterGatherNodes {
    order: Vec<usize>,
    /// True if an earlier pass of the step has gathered the parameters that stay gathered.
    is_later: bool,
    /// For each layer, the nodes of its gathers, if they have already been emitted. The list of a layer whose
    /// parameters are still gathered is empty.
    ids: Vec<Vec<u64>>,
}

impl PassParameterGatherNodes {
    fn new(gathers: bool, is_later: bool, order: impl Iterator<Item = usize>) -> Self {
        Self {
            order: order.filter(|_| gathers).collect(),
            is_later,
            ids: Vec::new(),
        }
    }
}
