//! Gradient reductions, and the nodes at the end of a step.

use super::super::buckets::GradientBucket;
use super::super::program::OperatorWeightGradients;
use super::memory_traffic::create_remote_access;
use super::{
    COMPUTE_LANE, COPIES_LANE, GRADIENT_LANE, MEMORY_LANE, PARAMETER_LANE, RankEmitter,
    TENSOR_LANE, WholeStepNode,
};
use crate::generate::plan::{AblationEffect, Optimizer, ParallelGroupKind, ZeroStage};
use crate::generate::schedule::{PassKind, PipelinePass};
use chakram_trace::format::{
    CollectiveKind, NodeMemoryChanges, Op, TensorClass, TraceError, TrainingPhase,
};

/// Progress of a layer's gradients while the layer's program is emitted.
pub(super) struct LayerGradientEmissionProgress<'p> {
    /// Gradients that the layer's operators compute and that are not recorded yet, from the last
    /// operator to the first.
    pub found: &'p [OperatorWeightGradients],
    /// Number of operators whose gradients are complete, counted from the last operator.
    pub operators: u32,
    /// Buckets that are not reduced yet, in the order in which they become complete.
    pub buckets: &'p [GradientBucket],
}

impl RankEmitter<'_, '_> {
    /// Records the gradients that the program's nodes have computed so far, and emits the
    /// reductions of complete buckets.
    pub(super) fn emit_complete_bucket_reductions(
        &mut self,
        now: &mut LayerGradientEmissionProgress<'_>,
        pass: PipelinePass,
    ) -> Result<(), TraceError> {
        while let Some((found, rest)) = now.found.split_first()
            && found.until as usize <= self.ids.len()
        {
            now.found = rest;
            now.operators += 1;
            self.record_gradient_producers(found);
            while let Some((bucket, rest)) = now.buckets.split_first()
                && bucket.operators == now.operators
            {
                now.buckets = rest;
                self.emit_bucket_reduction(bucket, pass)?;
                // This operator also computes a gradient in the next bucket, so that bucket's reduction must depend on
                // its node too.
                if bucket.divided {
                    self.record_gradient_producers(found);
                }
            }
        }
        Ok(())
    }

    fn record_gradient_producers(&mut self, found: &OperatorWeightGradients) {
        let nodes = found.nodes.iter();
        self.unreduced_producers[usize::from(found.of_experts)]
            .extend(nodes.map(|node| self.ids[*node as usize]));
    }

    /// Emits a bucket's reduction, which depends on all gradient nodes that no reduction waits for yet.
    fn emit_bucket_reduction(
        &mut self,
        bucket: &GradientBucket,
        pass: PipelinePass,
    ) -> Result<(), TraceError> {
        self.data.clear();
        let of_experts = bucket.among == ParallelGroupKind::ExpertData;
        self.data
            .append(&mut self.unreduced_producers[usize::from(of_experts)]);
        // If reductions may not overlap computation, this one waits for all earlier kernels.
        if !self.plan.plan.overlap {
            self.data.extend_from_slice(&self.chain_tail);
        }
        if self.data.is_empty() {
            // The plan may omit all kernels that compute these gradients. The reduction then depends on the last
            // remaining node.
            match self.ids.last() {
                Some(last) => self.data.push(*last),
                None => self.data.extend_from_slice(&self.chain_tail),
            }
        }
        let bytes = self.plan.bucket_bytes(bucket);
        let [layer, slash, operator] = self.plan.name_parts_of_bucket_end(bucket);
        if self.plan.copies_through_collective_buffers() {
            // The copy reads gradients in their kernels' format, and writes them in the reduction's
            // format.
            let copied = bucket.weights.saturating_mul(self.plan.sizes.number);
            let id = self.emit_node(WholeStepNode {
                name: format_args!(
                    "mb{}/{layer}{slash}{operator}/gradients/pack",
                    pass.micro_batch
                ),
                op: self.plan.build_copy_kernel_op(copied.saturating_add(bytes)),
                lane: Some(COMPUTE_LANE),
                phase: TrainingPhase::Synchronize,
                pass: Some(pass),
                layer: Some(bucket.layer as u32),
                memory: NodeMemoryChanges::default(),
            })?;
            self.data.clear();
            self.data.push(id);
        }
        let in_switches = self.plan.gathers_parameters_in_switches(bucket.among);
        // Number of gradient bytes that each replica stores.
        let members = self.plan.placement.member_count(bucket.among);
        let shard = bytes.div_ceil(members.into());
        let (kind, what) = match self.plan.plan.zero {
            _ if in_switches => (CollectiveKind::ReduceScatter, "store"),
            ZeroStage::None => (CollectiveKind::AllReduce, "all-reduce"),
            _ => (CollectiveKind::ReduceScatter, "reduce-scatter"),
        };
        let mut memory = std::mem::take(&mut self.pending_memory);
        if self.plan.shards_gradients() {
            // The full gradients are freed, because each replica keeps only its shard of the
            // result.
            memory.frees[TensorClass::Temporary as usize] += bytes;
        }
        let stores_result = self.plan.offloads_parameters() && !in_switches;
        if stores_result {
            // The sum stays in the NPU's memory until it is stored.
            memory.allocates[TensorClass::Temporary as usize] += shard;
        }
        let id = self.emit_node(WholeStepNode {
            name: format_args!(
                "mb{}/{layer}{slash}{operator}/gradients/{what}",
                pass.micro_batch
            ),
            op: match in_switches {
                true => create_remote_access(true, shard, true),
                false => self.create_collective_op(kind, bytes, bucket.among),
            },
            lane: Some(match in_switches {
                true => MEMORY_LANE,
                false => self.plan.reduction_lane(),
            }),
            phase: TrainingPhase::Synchronize,
            pass: Some(pass),
            layer: Some(bucket.layer as u32),
            memory,
        })?;
        let id = match bucket.among {
            ParallelGroupKind::Shard => self.emit_sum_over_shard_copies(id, bucket, pass)?,
            _ => id,
        };
        let id = match stores_result {
            true => {
                self.data.clear();
                self.data.push(id);
                let mut memory = NodeMemoryChanges::default();
                memory.frees[TensorClass::Temporary as usize] = shard;
                self.emit_node(WholeStepNode {
                    name: format_args!(
                        "mb{}/{layer}{slash}{operator}/gradients/store",
                        pass.micro_batch
                    ),
                    op: create_remote_access(true, shard, false),
                    lane: Some(MEMORY_LANE),
                    phase: TrainingPhase::Synchronize,
                    pass: Some(pass),
                    layer: Some(bucket.layer as u32),
                    memory,
                })?
            }
            false => id,
        };
        self.reduced.push(id);
        Ok(())
    }

    /// Emits the sum of a bucket's shard over the ranks that have copies of the shard. The sum depends on `reduced`,
    /// the reduction within the sharding group.
    fn emit_sum_over_shard_copies(
        &mut self,
        reduced: u64,
        bucket: &GradientBucket,
        pass: PipelinePass,
    ) -> Result<u64, TraceError> {
        let plan = self.plan;
        let members = plan.placement.member_count(bucket.among);
        let shard = plan.bucket_bytes(bucket).div_ceil(members.into());
        let [layer, slash, operator] = plan.name_parts_of_bucket_end(bucket);
        self.data.clear();
        self.data.push(reduced);
        self.emit_node(WholeStepNode {
            name: format_args!(
                "mb{}/{layer}{slash}{operator}/gradients/all-reduce",
                pass.micro_batch
            ),
            op: self.create_collective_op(
                CollectiveKind::AllReduce,
                shard,
                ParallelGroupKind::ShardCopies,
            ),
            lane: Some(COPIES_LANE),
            phase: TrainingPhase::Synchronize,
            pass: Some(pass),
            layer: Some(bucket.layer as u32),
            memory: NodeMemoryChanges::default(),
        })
    }

    /// Emits the reductions of all buckets of part `at`, one after another in the chain.
    pub(super) fn emit_part_bucket_reductions_chained(
        &mut self,
        at: u32,
        pass: PipelinePass,
    ) -> Result<(), TraceError> {
        for layer in self.plan.layers_of_part(at).rev() {
            for bucket in self.plan.buckets_ending_in(layer) {
                self.emit_bucket_reduction(bucket, pass)?;
                // The chain depends on each reduction, so the next one waits for it.
                let reduced = self.reduced.pop();
                self.chain_tail.clear();
                self.chain_tail.extend(reduced);
            }
        }
        Ok(())
    }

    /// Emits the end of a step: the remaining sums, the optimizer, and the gathers of updated
    /// parameters.
    pub(super) fn emit_end_of_step(&mut self) -> Result<(), TraceError> {
        let plan = self.plan;
        if plan.backward_ends_with_reductions(true) && !plan.plan.overlap {
            for (at, chunk) in plan.parts_and_chunks_of_stage(self.place.stage).rev() {
                let pass = PipelinePass {
                    kind: PassKind::Backward,
                    micro_batch: plan.micro_batches - 1,
                    chunk,
                };
                self.emit_part_bucket_reductions_chained(at, pass)?;
            }
        }
        for producers in &mut self.unreduced_producers {
            self.chain_tail.append(producers);
        }
        self.chain_tail.append(&mut self.reduced);
        for (what, bytes, family) in plan.list_final_reductions(self.place.stage) {
            let op = self.create_collective_op(CollectiveKind::AllReduce, bytes, family);
            let lane = match family {
                ParallelGroupKind::Tensor => TENSOR_LANE,
                _ => GRADIENT_LANE,
            };
            self.emit_step_end_node(what, op, lane, TrainingPhase::Synchronize)?;
        }
        let makes = plan.plan.optimizer != Optimizer::None;
        if makes && !plan.plan.without.has_effect(AblationEffect::Optimizer) {
            let moved = plan.bytes_moved_by_optimizer_step(self.place.stage);
            let [loaded, stored] = plan.optimizer_remote_load_and_store_bytes(self.place.stage);
            self.emit_optimizer_state_access(false, loaded)?;
            let op = Op::Compute {
                flops: 0,
                bytes: moved,
                dtype: Some(plan.plan.dtype),
            };
            self.emit_step_end_node("optimizer", op, COMPUTE_LANE, TrainingPhase::Optimizer)?;
            self.emit_optimizer_state_access(true, stored)?;
        }
        if plan.gathers_updated_parameters_after_step()
            && !plan.gathers_updated_parameters_before_step()
        {
            self.emit_updated_parameter_gathers()?;
            self.chain_tail = std::mem::take(&mut self.updated)
                .into_values()
                .flatten()
                .collect();
        }
        Ok(())
    }

    /// Emits the gathers of parameters that the optimizer has updated, in the order in which the
    /// next forward pass uses them.
    pub(super) fn emit_updated_parameter_gathers(&mut self) -> Result<(), TraceError> {
        let plan = self.plan;
        let stepped = self.chain_tail.clone();
        for (at, _) in plan.parts_and_chunks_of_stage(self.place.stage) {
            for bucket in plan
                .layers_of_part(at)
                // Buckets are in backward order, so reverse them for the forward pass.
                .flat_map(|layer| plan.buckets_ending_in(layer).iter().rev())
            {
                let shard = plan.bucket_parameter_bytes_per_member(bucket);
                let op = self.create_collective_op(CollectiveKind::AllGather, shard, bucket.among);
                let [layer, slash, operator] = plan.name_parts_of_bucket_end(bucket);
                self.data.clear();
                self.data.extend_from_slice(&stepped);
                let id = self.emit_node(WholeStepNode {
                    name: format_args!("{layer}{slash}{operator}/parameters/all-gather"),
                    op,
                    lane: Some(PARAMETER_LANE),
                    phase: TrainingPhase::Synchronize,
                    pass: None,
                    layer: Some(bucket.layer as u32),
                    memory: NodeMemoryChanges::default(),
                })?;
                self.updated.entry(bucket.layer).or_default().push(id);
            }
        }
        Ok(())
    }

    /// Emits a node at the end of a step; all later nodes depend on it.
    pub(super) fn emit_step_end_node(
        &mut self,
        what: &str,
        op: Op<'_>,
        lane: i64,
        phase: TrainingPhase,
    ) -> Result<(), TraceError> {
        self.data.clear();
        self.data.append(&mut self.chain_tail);
        let memory = std::mem::take(&mut self.pending_memory);
        let id = self.emit_node(WholeStepNode {
            name: format_args!("{what}"),
            op,
            lane: Some(lane),
            phase,
            pass: None,
            layer: None,
            memory,
        })?;
        self.chain_tail.push(id);
        Ok(())
    }
}
