//! Lowers a model and a plan to nodes, rank by rank.
//!
//! The submodules explain how every number is computed: kernel costs (`cost`), collectives of
//! tensor and expert parallelism (`sharded`), gradient buckets (`buckets`), memory per parameter
//! (`parameter_state`) and per rank (`rank_state`), and the order of a rank's nodes (`emit`).

use super::plan::{
    AblationEffect, AllRankCoordinatesAndGroups, AttentionKernel, BucketPolicy, ExpertProducts,
    OffloadGather, OffloadedState, Optimizer, ParallelGroupKind, ParallelismPlan,
    RankMemoryCapacity, RankPeakOwnAndRemoteBytes, RecomputePolicy, RecomputedModules, ZeroStage,
};
use super::schedule::{PassKind, PassOrOverlappingPair, PipelinePass, PipelineSchedule};
use super::{MOST_WORK, PatternOptionError, refused_option_value_error};
use crate::model::{LayerRole, Model, TrainedOperatorWeights};
use chakram_trace::format::{Dtype, Op};
use std::collections::BTreeMap;
use std::ops::Range;

mod adapters;
mod buckets;
mod check;
mod context_shards;
mod cost;
mod dataflow;
mod distinct_layers;
mod emit;
mod frozen_weights;
mod layer;
mod local_experts;
mod model_chunks;
mod model_flops;
mod operator_recompute;
mod padded_heads;
mod parameter_state;
mod process_groups;
mod program;
mod rank_state;
mod ranks;
mod residency;
mod saved_tensors;
mod shard_spec;
mod sharded;
mod stage_cuts;
mod summary;
mod tensor_cut;
#[cfg(test)]
mod tests;
mod tied_embedding;

pub use emit::{
    COMPUTE_LANE, CONTEXT_LANE, EXPERT_LANE, GRADIENT_LANE, MEMORY_LANE, PARAMETER_LANE,
    TENSOR_LANE,
};
pub use parameter_state::{MemoryPerParameter, NpuParameterStateBytes};
pub use summary::{
    CommunicationKindTotals, ParallelGroupsOfOneKind, PerRankStageTotals, PlanSummary,
};

use adapters::InterStageAdapterGroups;
use buckets::GradientBucket;
use cost::KernelCostSizesAndOptions;
use distinct_layers::DistinctLayers;
use layer::{LayerLoweringOptions, LoweredLayer};
use model_chunks::AllModelPartsAndGradientBuckets;
use ranks::CachedExactAndMinimumNodeCounts;

/// Maximum number of groups in a job.
const MOST_GROUPS: u64 = i32::MAX as u64;

/// A model and the plan for its training or inference.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelAndParallelismPlan {
    /// The model to train or run.
    pub model: Model,
    /// The plan that distributes the model over ranks.
    pub plan: ParallelismPlan,
}

impl ModelAndParallelismPlan {
    /// Checks that the plan can distribute the model, and prepares the data that all ranks share.
    pub(super) fn prepare_generator(mut self) -> Result<TrainingGenerator, PatternOptionError> {
        if matches!(self.plan.schedule, PipelineSchedule::LayerWise { .. }) {
            // Every layer is a chunk, so the model determines the number of chunks.
            let layers = u32::try_from(self.model.layers.len()).unwrap_or(u32::MAX);
            self.plan.schedule = PipelineSchedule::LayerWise { layers };
        }
        let micro_batches = check::check_plan_and_count_micro_batches(&self.model, &self.plan)?;
        frozen_weights::freeze_weights(&mut self.model, &self.plan)?;
        saved_tensors::mark_operators_saved_by_plan(&mut self.model, &self.plan)?;
        if !self.plan.place.is_empty() {
            self.plan.ranks = self.plan.ranks_by_order_position()?;
            // Clear the mapping, which would otherwise renumber the ranks a second time.
            self.plan.place.clear();
        }
        if self.plan.recompute == RecomputePolicy::AsNeeded {
            return self.choose_least_recompute_that_fits_memory(micro_batches);
        }
        TrainingGenerator::new(self, micro_batches)
    }

    /// Tries recomputation policies, from the least to the most recomputation. Returns the generator for the first
    /// policy with which every stage fits into memory.
    fn choose_least_recompute_that_fits_memory(
        self,
        micro_batches: u32,
    ) -> Result<TrainingGenerator, PatternOptionError> {
        let memory = RankMemoryCapacity::new(self.plan.capacity.unwrap_or(u64::MAX), &self.plan);
        let capacity = memory.capacity_with_remote_share_if_streaming(true);
        let mut choices = vec![
            RecomputePolicy::None,
            RecomputePolicy::Selective,
            RecomputePolicy::Full,
        ];
        if self.plan.attention.is_fused() {
            // Flash attention always recomputes its scores, so selective recomputation would change nothing.
            choices.remove(1);
        }
        let mut least = u64::MAX;
        for recompute in choices {
            let mut plan = self.plan.clone();
            plan.recompute = recompute;
            let model = self.model.clone();
            let prepared = TrainingGenerator::new(Self { model, plan }, micro_batches)?;
            let stages = 0..prepared.plan.pipeline;
            let peaks: Vec<(RankPeakOwnAndRemoteBytes, u64)> = stages
                .map(|stage| {
                    (
                        prepared.peak_bytes(stage),
                        prepared.plan.rank_count_of_stage(stage),
                    )
                })
                .collect();
            let peak = peaks.iter().map(|(peak, _)| peak.bytes).max();
            least = least.min(peak.unwrap_or(0));
            if memory.can_fit_peaks(peaks) {
                return Ok(prepared);
            }
        }
        Err(refused_option_value_error(
            "recompute",
            "as-needed",
            format!(
                "an NPU with at least {least} B of memory, needed even with full recomputation, \
                 but there are {capacity} B; try more tensor or pipeline parallelism, or zero"
            ),
        ))
    }
}

/// A model and a plan, lowered to the data that all ranks share.
#[derive(Debug)]
pub(super) struct TrainingGenerator {
    model: Model,
    plan: ParallelismPlan,
    placement: AllRankCoordinatesAndGroups,
    micro_batches: u32,
    sizes: KernelCostSizesAndOptions,
    /// Distinct layers of the model, and, for each layer of the model, the index of its distinct layer.
    lowered: Vec<LoweredLayer>,
    lowered_of: Vec<u32>,
    parts: AllModelPartsAndGradientBuckets,
    /// Maximum number of messages that one layer sends from one member to another in one pass; 0 if all members of a
    /// tensor group have the same nodes.
    slots: u32,
    /// Maximum number of messages that one layer sends to the next rank of a context group in one pass.
    ring_slots: u32,
    /// Groups whose adapters exchange activations with other stages. This is `None` if each member exchanges its own
    /// activations.
    adapters: Option<InterStageAdapterGroups>,
    /// Node counts of ranks, with one entry per stage. If members of a tensor group have different nodes, there is one
    /// entry per member of a stage's tensor group.
    counts: Vec<CachedExactAndMinimumNodeCounts>,
}

/// Number of bytes per value, rounded up to whole bytes, so that a 4-bit value counts as one byte.
fn bytes_per_value(dtype: Dtype) -> u64 {
    match dtype {
        Dtype::Fp64 => 8,
        Dtype::Fp32 | Dtype::Tf32 => 4,
        Dtype::Fp16 | Dtype::Bf16 => 2,
        Dtype::Fp8 | Dtype::Int8 | Dtype::Fp4 => 1,
    }
}

impl TrainingGenerator {
    fn new(
        training: ModelAndParallelismPlan,
        micro_batches: u32,
    ) -> Result<Self, PatternOptionError> {
        let ModelAndParallelismPlan { model, plan } = training;
        let (mut recompute, mut recompute_modules) = (plan.recompute, plan.recompute_modules);
        if plan.without.has_effect(AblationEffect::Recompute) {
            recompute = RecomputePolicy::None;
            recompute_modules = RecomputedModules::default();
        }
        let sizes = KernelCostSizesAndOptions {
            samples: plan.micro_batch,
            number: bytes_per_value(plan.dtype),
            gradient: bytes_per_value(plan.gradients.unwrap_or(plan.dtype)),
            sums: micro_batches > 1,
            fused: plan.attention.is_fused(),
            unpads: plan.attention == AttentionKernel::Unpadded,
            softmax: plan.softmax,
            loss: plan.loss,
            dropout: plan.dropout && plan.has_training(),
            linear: plan.linears.filter(|linears| *linears != plan.dtype),
            scaling: plan.scaling,
            elementwise: plan.elementwise,
            one_by_one: plan.expert_products == ExpertProducts::OneByOne,
            adds_expert_biases: false,
            counts_on_host: local_experts::needs_expert_counts_on_host(&plan),
            sent: plan.expert_exchange_dtype,
            training: TrainedOperatorWeights::All,
        };
        let loads = local_experts::expert_loads_of_first_expert_layer(&model, &plan);
        let context = LayerLoweringOptions {
            sizes,
            tensor: plan.tensor.into(),
            sequence: plan.sequence_parallel && plan.tensor > 1,
            expert: plan.expert.into(),
            expert_products: plan.expert_products,
            exchange: plan.expert_exchange,
            exchange_dtype: plan.expert_exchange_dtype,
            loads,
            experts_apart: plan.expert > 1 || plan.tensor_groups_split_experts_or_their_tokens(),
            context: (plan.context > 1).then_some(plan.context_exchange),
            context_ranks: plan.context,
            recompute,
            recompute_modules,
            without: plan.without,
            overlap: plan.tensor_overlap,
            branches: plan.branches,
            trains: plan.has_training(),
            splits: plan.split_backward || plan.schedule.splits_backward(),
        };
        let shard = context_shards::reduce_model_to_one_context_shard(
            padded_heads::pad_heads(&model, &plan)?,
            &plan,
        );
        let shard = local_experts::shard_experts(shard, &plan);
        let DistinctLayers {
            lowered,
            lowered_of,
            mut partitions,
            slots,
            ring_slots,
        } = DistinctLayers::new(&shard, &plan, &context)?;
        check::check_message_tags_and_node_ids(
            &model,
            &plan,
            slots.max(ring_slots),
            micro_batches,
        )?;
        let layers: Vec<&LoweredLayer> =
            lowered_of.iter().map(|of| &lowered[*of as usize]).collect();
        let parts = AllModelPartsAndGradientBuckets::new(&shard, &plan, &layers, sizes);
        let mut placement = AllRankCoordinatesAndGroups::new(&plan);
        let adapters = InterStageAdapterGroups::new(&plan, &mut partitions);
        placement.declare_operator_partitions(partitions);
        if parts.trained_tied_weight_count().is_some() && plan.has_training() {
            placement.declare_embedding_groups();
        }
        if plan.clip && plan.has_training() {
            placement.declare_whole_replica_groups();
        }
        // Counting nodes takes a long time, so do it only once per class of ranks.
        let apart = slots > 0 || adapters.is_some();
        let kinds = plan.pipeline * if apart { plan.tensor } else { 1 };
        let counts = (0..kinds)
            .map(|_| CachedExactAndMinimumNodeCounts::default())
            .collect();
        Ok(Self {
            model,
            plan,
            placement,
            micro_batches,
            sizes,
            lowered,
            lowered_of,
            parts,
            slots,
            ring_slots,
            adapters,
            counts,
        })
    }

    /// Returns the steps of a rank on `stage`, in order.
    fn ordered_passes_of_stage(
        &self,
        stage: u32,
    ) -> impl Iterator<Item = PassOrOverlappingPair> + use<> {
        let (stages, count) = (self.plan.pipeline, self.micro_batches);
        let split = self.plan.split_backward;
        let steps = self.plan.schedule.steps_of_stage(stage, stages, count);
        steps.flat_map(move |step| {
            let is_split = split && step.pass.kind == PassKind::Backward;
            let of = |kind| PassOrOverlappingPair {
                pass: PipelinePass { kind, ..step.pass },
                ..step
            };
            let first = match is_split {
                // Only the weight-gradient pass completes the chunk's gradients.
                true => PassOrOverlappingPair {
                    completes: false,
                    ..of(PassKind::InputGradient)
                },
                false => step,
            };
            [Some(first), is_split.then(|| of(PassKind::WeightGradient))]
                .into_iter()
                .flatten()
        })
    }

    fn chunk_count(&self) -> u32 {
        self.plan.schedule.chunk_count()
    }

    /// Number of parts into which the model is divided.
    fn part_count(&self) -> u32 {
        self.plan.schedule.part_count(self.plan.pipeline)
    }

    /// Returns the part of the model that is chunk `chunk` of `stage`.
    fn part_of_chunk(&self, stage: u32, chunk: u32) -> u32 {
        self.plan
            .schedule
            .part_of_chunk(stage, chunk, self.plan.pipeline)
    }

    /// Returns the parts of a stage in the model's order, each with its chunk. Stages with the same parts return them
    /// in the same order.
    fn parts_and_chunks_of_stage(&self, stage: u32) -> std::vec::IntoIter<(u32, u32)> {
        let chunks = 0..self.chunk_count();
        let mut parts: Vec<_> = chunks
            .map(|chunk| (self.part_of_chunk(stage, chunk), chunk))
            .collect();
        parts.sort_unstable();
        parts.into_iter()
    }

    fn layers_of_part(&self, part: u32) -> Range<usize> {
        self.parts.layers_of_part(part)
    }

    fn lowered_layer(&self, layer: usize) -> &LoweredLayer {
        &self.lowered[self.lowered_of[layer] as usize]
    }

    /// Returns the layers of all chunks of a stage.
    fn stage_layers(&self, stage: u32) -> impl Iterator<Item = usize> + '_ {
        let parts = (0..self.chunk_count()).map(move |chunk| self.part_of_chunk(stage, chunk));
        parts.flat_map(|part| self.layers_of_part(part))
    }

    fn has_communication_between_replicas(&self) -> bool {
        let copies = self.plan.weight_copy_count().max(self.plan.expert_copies());
        copies > 1
            && !self
                .plan
                .without
                .has_effect(AblationEffect::DataCommunication)
    }

    fn gathers_parameters(&self) -> bool {
        self.plan.zero == ZeroStage::Parameters && self.has_communication_between_replicas()
    }

    /// Returns true if shards of parameters and gradients are kept in remote memory.
    fn offloads_parameters(&self) -> bool {
        self.plan.offload == OffloadedState::All && self.gathers_parameters()
    }

    /// Returns true if switches of the memory pool gather parameters and reduce gradients for
    /// groups of this kind.
    fn gathers_parameters_in_switches(&self, among: ParallelGroupKind) -> bool {
        let is_in_switch = self.plan.offload_gather == OffloadGather::InSwitch;
        is_in_switch && self.offloads_parameters() && among == ParallelGroupKind::Data
    }

    /// Returns true if the gathered parameters of `layer` are freed after each pass. Otherwise, they
    /// stay gathered until the end of the step.
    fn reshards_layer(&self, layer: usize) -> bool {
        let Some(most) = self.plan.reshard_blocks else {
            return self.plan.reshard;
        };
        let is_block = |layer: &usize| self.model.layers[*layer].role == LayerRole::Block;
        let mut parts = (0..self.part_count()).map(|part| self.layers_of_part(part));
        let own = parts.find(|layers| layers.contains(&layer));
        let before = own.map_or(0..0, |layers| layers.start..layer);
        !is_block(&layer) || before.filter(is_block).count() < most as usize
    }

    /// Returns the lane of gradient reductions. The same communicator gathers sharded parameters and reduces their
    /// gradients, and a communicator runs its collectives one after another (pytorch/pytorch, pull request 177098).
    fn reduction_lane(&self) -> i64 {
        match self.gathers_parameters() {
            true => PARAMETER_LANE,
            false => GRADIENT_LANE,
        }
    }

    /// Returns true if kernels copy parameters out of gather buffers, and gradients into reduction buffers, as in
    /// FSDP2.
    fn copies_through_collective_buffers(&self) -> bool {
        self.gathers_parameters() && self.plan.elementwise.is_eager_or_compiled_pytorch()
    }

    fn gathers_updated_parameters_after_step(&self) -> bool {
        let shared = matches!(self.plan.zero, ZeroStage::Optimizer | ZeroStage::Gradients);
        shared
            && self.has_communication_between_replicas()
            && self.plan.optimizer != Optimizer::None
    }

    /// Returns true if gathering updated parameters overlaps the next step's forward pass. A trace shows these gathers
    /// at the beginning of each step, so that a single step takes as long as each step of a long training run.
    fn gathers_updated_parameters_before_step(&self) -> bool {
        self.plan.gather_overlap && self.gathers_updated_parameters_after_step()
    }

    /// Returns true if a backward pass ends with reductions of gradients. `complete` is true if the chunk's gradients
    /// are complete after this pass.
    fn backward_ends_with_reductions(&self, complete: bool) -> bool {
        let each = self.plan.zero >= ZeroStage::Gradients && !self.plan.accumulate;
        self.has_communication_between_replicas() && self.plan.has_training() && (complete || each)
    }

    /// Size in bytes of a layer's parameters after they are gathered.
    fn gathered_parameter_bytes(&self, layer: usize) -> u64 {
        let parts = self.gathered_bytes_by_group_kind(layer).into_iter();
        parts.map(|(_, bytes)| bytes).sum()
    }

    /// For each kind of group that gathers parameters, the size in bytes of a layer's parameters after the gather. All
    /// replicas share all weights except those of experts, which fewer ranks share.
    fn gathered_bytes_by_group_kind(&self, layer: usize) -> Vec<(ParallelGroupKind, u64)> {
        let experts = self.lowered_layer(layer).expert_parameters.all;
        let parts = [
            (
                self.plan.sharding_group_kind(),
                self.parts.weight_counts_of_layer(layer).all - experts,
            ),
            (ParallelGroupKind::ExpertData, experts),
        ];
        let shared = parts.into_iter().filter(|(among, weights)| {
            let is_first = *among != ParallelGroupKind::ExpertData;
            let is_moved =
                self.ranks_sharing_parameters_in_group(*among) > 1 || self.offloads_parameters();
            *weights > 0 && is_moved || is_first && experts == 0
        });
        let bytes = shared.map(|(among, weights)| (among, weights * self.sizes.number));
        bytes.collect()
    }

    /// Number of ranks that share parameters in a group of the kind `among`.
    fn ranks_sharing_parameters_in_group(&self, among: ParallelGroupKind) -> u32 {
        match among {
            ParallelGroupKind::ExpertData => self.plan.expert_copies(),
            _ => self.plan.state_shards(),
        }
    }

    /// Returns a kernel that copies `bytes` bytes.
    fn build_copy_kernel_op(&self, bytes: u64) -> Op<'static> {
        Op::Compute {
            flops: 0,
            bytes,
            dtype: Some(self.plan.dtype),
        }
    }

    /// Returns the buckets whose last gradient is computed in `layer`. They are also reduced there.
    fn buckets_ending_in(&self, layer: usize) -> &[GradientBucket] {
        self.parts.buckets_ending_at(layer)
    }

    /// Returns the name of the operator (or layer) that completes a bucket. It has three parts that the caller joins:
    /// layer, slash, operator.
    fn name_parts_of_bucket_end(&self, bucket: &GradientBucket) -> [&str; 3] {
        let layer = &self.model.layers[bucket.layer];
        match self.plan.buckets {
            BucketPolicy::Layers if bucket.among == ParallelGroupKind::ExpertData => {
                [&layer.name, "/", "experts"]
            }
            BucketPolicy::Layers => [&layer.name, "", ""],
            BucketPolicy::Parameters => {
                let operator = layer.operators.len() - bucket.operators as usize;
                [&layer.name, "/", &layer.operators[operator].name]
            }
        }
    }

    fn bucket_bytes(&self, bucket: &GradientBucket) -> u64 {
        bucket.weights * self.sizes.gradient
    }

    /// Number of bytes of the bucket's parameters that one replica updates.
    fn bucket_parameter_bytes_per_member(&self, bucket: &GradientBucket) -> u64 {
        let bytes = bucket.weights * self.sizes.number;
        bytes.div_ceil(self.placement.member_count(bucket.among).into())
    }

    /// Number of bytes that one member of a tensor group sends from part `below` to the next part.
    fn stage_boundary_bytes_per_member(&self, below: u32) -> u64 {
        if self
            .plan
            .without
            .has_effect(AblationEffect::PipelineCommunication)
        {
            return 0;
        }
        let last = self.layers_of_part(below).last();
        let among = match (self.plan.scatter_gather, last) {
            (true, _) => self.plan.tensor.into(),
            (false, Some(layer)) => self.lowered_layer(layer).output_shards,
            (false, None) => 1,
        };
        self.parts.boundary_bytes(below).div_ceil(among)
    }

    /// Returns the reductions at the end of a step in execution order, each as (name, bytes,
    /// group).
    fn list_final_reductions(&self, stage: u32) -> Vec<(&'static str, u64, ParallelGroupKind)> {
        let mut sums = Vec::new();
        // The map is ordered by group kind, so that all members of a group emit their sums in the same order.
        let mut partial: BTreeMap<ParallelGroupKind, u64> = BTreeMap::new();
        for layer in self.stage_layers(stage) {
            for (family, weights) in &self.lowered_layer(layer).partial {
                let sum = partial.entry(*family).or_default();
                *sum = sum.saturating_add(*weights);
            }
        }
        let tensor = self.plan.tensor > 1
            && !self
                .plan
                .without
                .has_effect(AblationEffect::TensorCommunication);
        for (family, weights) in partial.into_iter().filter(|_| tensor) {
            let what = if self.plan.operators.is_empty() {
                "norms/all-reduce"
            } else {
                "operators/all-reduce"
            };
            let bytes = weights.saturating_mul(self.sizes.gradient);
            sums.push((what, bytes, family));
        }
        // The first and the last stage each have a copy of the tied weights, and sum the gradients
        // of both copies.
        let ends = self.plan.stages_of_model_ends().contains(&stage);
        let tied = ends
            && !self
                .plan
                .without
                .has_effect(AblationEffect::DataCommunication);
        if let Some(weights) = self.parts.trained_tied_weight_count().filter(|_| tied) {
            let bytes = weights * self.sizes.gradient;
            sums.push(("embedding/all-reduce", bytes, ParallelGroupKind::Embedding));
        }
        if self.plan.clip && self.placement.member_count(ParallelGroupKind::Model) > 1 {
            // The norm of all gradients is a single number of 4 bytes.
            sums.push(("norm/all-reduce", 4, ParallelGroupKind::Model));
        }
        if self.plan.clip && self.plan.expert > 1 {
            // Each rank of an expert-parallel group has only the gradients of its own experts, so a sum over the group
            // is needed to compute their norm.
            sums.push(("norm/experts/all-reduce", 4, ParallelGroupKind::Expert));
        }
        sums
    }
}
