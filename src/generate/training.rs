//! A model under a plan, as the nodes of its ranks.
//!
//! The pages of this module derive each number: costs of kernels (`cost`), collectives of tensor parallelism
//! (`layer`, and `sharded` where operators have degrees of their own), gradient buckets (`buckets`), memory per
//! parameter (`state`), and the order of a rank's nodes (`walk`).

use super::plan::{
    AblationEffect, AttentionKernel, BucketPolicy, ElementwiseKernels, Optimizer,
    ParallelGroupKind, ParallelismPlan, RankPlacement, RecomputePolicy, ZeroStage,
};
use super::schedule::{PassIter, PipelineSchedule};
use super::sharding::MemberPartition;
use super::{GenerateError, MOST_WORK, check_limit, refused};
use crate::model::Model;
use crate::trace::{Dtype, Op};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;

mod adapters;
mod buckets;
mod check;
mod cost;
mod dataflow;
mod emit;
mod layer;
mod local_experts;
mod model_chunks;
mod operator_recompute;
mod padded_heads;
mod parameter_state;
mod process_groups;
mod program;
mod ranks;
mod residency;
mod shard_spec;
mod sharded;
mod stage_cuts;
mod summary;
#[cfg(test)]
mod tests;
mod tied_embedding;

pub use emit::{
    COMPUTE_LANE, EXPERT_LANE, GRADIENT_LANE, MEMORY_LANE, PARAMETER_LANE, TENSOR_LANE,
};
pub use parameter_state::{ParameterState, ResidentBytes};
pub use summary::{CommunicationTotals, ParallelGroups, PlanSummary, StageSummary};

use adapters::AdapterGroups;
use buckets::GradientBucket;
use cost::CostParameters;
use dataflow::{DataflowTracer, LayerDataflow, ShardedActivation};
use layer::{LoweredLayer, LoweringContext};
use model_chunks::ModelChunks;
use shard_spec::ShardSpec;
use sharded::ShardedLowering;
use tied_embedding::TiedEmbedding;

/// Numbers of groups.
const MOST_GROUPS: u64 = i32::MAX as u64;

/// A model and the plan by which it is trained or served.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingPattern {
    /// The model.
    pub model: Model,
    /// The plan.
    pub plan: ParallelismPlan,
}

impl TrainingPattern {
    /// Checks that the model can be distributed as the plan says, and prepares the data that all ranks share.
    pub(super) fn prepare(mut self) -> Result<TrainingGenerator, GenerateError> {
        if matches!(self.plan.schedule, PipelineSchedule::LayerWise { .. }) {
            let layers = u32::try_from(self.model.layers.len()).unwrap_or(u32::MAX);
            self.plan.schedule = PipelineSchedule::LayerWise { layers };
        }
        let micro_batches = check::check(&self.model, &self.plan)?;
        if !self.plan.place.is_empty() {
            self.plan.ranks = self.plan.placed()?;
            self.plan.place.clear();
        }
        if self.plan.recompute == RecomputePolicy::AsNeeded {
            return self.least_recomputed(micro_batches);
        }
        TrainingGenerator::new(self, micro_batches)
    }

    /// The first recomputation, from least to most, with which every stage fits.
    fn least_recomputed(self, micro_batches: u32) -> Result<TrainingGenerator, GenerateError> {
        let capacity = self.plan.capacity.unwrap_or(u64::MAX);
        let mut choices = vec![
            RecomputePolicy::None,
            RecomputePolicy::Selective,
            RecomputePolicy::Full,
        ];
        if self.plan.attention == AttentionKernel::Flash {
            // Flash attention recomputes its scores anyway, so selective recomputation would be a duplicate.
            choices.remove(1);
        }
        let mut least = u64::MAX;
        for recompute in choices {
            let mut plan = self.plan.clone();
            plan.recompute = recompute;
            let model = self.model.clone();
            let prepared = TrainingGenerator::new(Self { model, plan }, micro_batches)?;
            let stages = 0..prepared.plan.pipeline;
            let peak = stages.map(|stage| prepared.peak(stage)).max();
            least = least.min(peak.unwrap_or(0));
            if peak <= Some(capacity) {
                return Ok(prepared);
            }
        }
        Err(refused(
            "recompute",
            "as-needed",
            format!(
                "an NPU with {least} B of memory, which is what everything recomputed leaves, where \
                 there are {capacity} B; try more tensor or pipeline parallelism, or zero"
            ),
        ))
    }
}

/// A model under a plan, lowered.
#[derive(Debug)]
pub(super) struct TrainingGenerator {
    model: Model,
    plan: ParallelismPlan,
    placement: RankPlacement,
    micro_batches: u32,
    sizes: CostParameters,
    /// Layers that differ, and which of them each layer is.
    lowered: Vec<LoweredLayer>,
    lowered_of: Vec<u32>,
    parts: ModelChunks,
    /// Messages of a layer in a pass that the same two members may send each other, at most; 0 if members of a tensor
    /// group are all alike.
    slots: u32,
    /// Groups that exchange activations with other stages, if not every member does for itself.
    adapters: Option<AdapterGroups>,
    /// Nodes of a rank on each stage, for each member of a tensor group if these differ.
    counts: Vec<OnceLock<u64>>,
}

/// Bytes of a number.
fn bytes_of(dtype: Dtype) -> u64 {
    match dtype {
        Dtype::Fp64 => 8,
        Dtype::Fp32 | Dtype::Tf32 => 4,
        Dtype::Fp16 | Dtype::Bf16 => 2,
        Dtype::Fp8 | Dtype::Int8 | Dtype::Fp4 => 1,
    }
}

impl TrainingGenerator {
    fn new(training: TrainingPattern, micro_batches: u32) -> Result<Self, GenerateError> {
        let TrainingPattern { model, plan } = training;
        let mut recompute = plan.recompute;
        if plan.without.has(AblationEffect::Recompute) {
            recompute = RecomputePolicy::None;
        }
        let sizes = CostParameters {
            samples: plan.micro_batch,
            number: bytes_of(plan.dtype),
            gradient: bytes_of(plan.gradients.unwrap_or(plan.dtype)),
            sums: micro_batches > 1,
            fused: plan.attention == AttentionKernel::Flash,
            softmax: plan.softmax,
            loss: plan.loss,
            dropout: plan.dropout && plan.trains(),
            linear: plan.linears.filter(|linears| *linears != plan.dtype),
            scaling: plan.scaling,
            elementwise: plan.elementwise,
        };
        let context = LoweringContext {
            sizes,
            tensor: plan.tensor.into(),
            sequence: plan.sequence_parallel && plan.tensor > 1,
            expert: plan.expert.into(),
            recompute,
            without: plan.without,
            overlap: plan.tensor_overlap,
            branches: plan.branches,
            trains: plan.trains(),
        };
        let DistinctLayers {
            lowered,
            lowered_of,
            mut partitions,
            slots,
        } = {
            let padded = padded_heads::padded(&model, &plan)?;
            DistinctLayers::new(&local_experts::local(padded, &plan), &plan, &context)?
        };
        check::messages(&model, &plan, slots, micro_batches)?;
        let layers: Vec<&LoweredLayer> =
            lowered_of.iter().map(|of| &lowered[*of as usize]).collect();
        let parts = ModelChunks::new(&model, &plan, &layers, sizes);
        let mut placement = RankPlacement::new(&plan);
        let adapters = AdapterGroups::new(&plan, &mut partitions);
        placement.use_partitions(partitions);
        if parts.tied().is_some() && plan.trains() {
            placement.use_embedding();
        }
        if plan.clip && plan.trains() {
            placement.use_model();
        }
        // Node counts are found by a walk, so they are cached per class of ranks.
        let apart = slots > 0 || adapters.is_some();
        let kinds = plan.pipeline * if apart { plan.tensor } else { 1 };
        let counts = (0..kinds).map(|_| OnceLock::new()).collect();
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
            adapters,
            counts,
        })
    }

    /// Returns true if members of a tensor group have nodes of their own.
    fn members_differ(&self) -> bool {
        self.slots > 0 || self.adapters.is_some()
    }

    /// Passes of a rank on `stage`, in order.
    fn passes(&self, stage: u32) -> PassIter {
        let (stages, count) = (self.plan.pipeline, self.micro_batches);
        self.plan.schedule.passes(stage, stages, count)
    }

    fn chunks(&self) -> u32 {
        self.plan.schedule.chunks()
    }

    /// Number of model chunks of all stages, over which layers are distributed.
    fn parts(&self) -> u32 {
        self.chunks() * self.plan.pipeline
    }

    fn layers(&self, part: u32) -> Range<usize> {
        self.parts.layers(part)
    }

    fn lowered(&self, layer: usize) -> &LoweredLayer {
        &self.lowered[self.lowered_of[layer] as usize]
    }

    /// Layers of all chunks of a stage.
    fn stage_layers(&self, stage: u32) -> impl Iterator<Item = usize> + '_ {
        let parts = (0..self.chunks()).map(move |chunk| chunk * self.plan.pipeline + stage);
        parts.flat_map(|part| self.layers(part))
    }

    /// Weights of a rank on `stage`, a copy of tied ones included.
    fn stage_parameters(&self, stage: u32) -> u64 {
        let layers = self.stage_layers(stage);
        layers.fold(0, |sum, layer| {
            sum.saturating_add(self.parts.weights(layer))
        })
    }

    /// Of those, weights of experts that fewer replicas have.
    fn stage_experts(&self, stage: u32) -> u64 {
        let layers = self.stage_layers(stage);
        layers.fold(0, |sum: u64, layer| {
            sum.saturating_add(self.lowered(layer).expert_parameters)
        })
    }

    /// The state of weights that all replicas have, and that of experts, each with its number of weights on `stage`.
    fn states(&self, stage: u32) -> [(ParameterState, u64); 2] {
        let experts = self.stage_experts(stage);
        let common = self.stage_parameters(stage) - experts;
        let replicas = self.plan.data / self.plan.expert;
        let state = self.state();
        let of_experts = ParameterState { replicas, ..state };
        [(state, common), (of_experts, experts)]
    }

    fn state(&self) -> ParameterState {
        let trains = self.plan.trains();
        ParameterState {
            weight: self.sizes.number,
            gradient: self.sizes.gradient,
            optimizer: if trains {
                self.plan.optimizer
            } else {
                Optimizer::None
            },
            mixed: self.plan.mixed && self.sizes.number < 4,
            zero: self.plan.zero,
            replicas: self.plan.data,
            passes: self.optimizer_passes(),
        }
    }

    /// Bytes of each parameter that goes over gradients and weights move beside the optimizer's own kernel.
    fn optimizer_passes(&self) -> u64 {
        let mut bytes = 0;
        if self.plan.elementwise == ElementwiseKernels::Megatron {
            // Megatron-LM's optimizer for 16 bits. Gradients in fp16 are copied to single precision (4 written), then
            // unscaled and checked (4 + 4), and the master copy is read for the weights (4).
            if self.plan.dtype == Dtype::Fp16 {
                bytes += 16;
            }
            // Their norm, and the product with what clips them.
            if self.plan.clip {
                bytes += 12;
            }
        }
        if self.plan.elementwise.is_pytorch() {
            // Adam one operation after another over lists of tensors in single precision: decay (8), first moment (12), second
            // moment (8 + 12), root, correction and epsilon (8 each), weights (16): 80, of which 28 are those of one kernel.
            if self.plan.optimizer == Optimizer::Adam {
                bytes += 52;
            }
            if self.plan.clip {
                bytes += 12;
            }
        }
        if self.sizes.quantizes() {
            // Weights are read, and written as operands, as they are and transposed.
            let linears = self.plan.linears.map_or(0, cost::pair_bytes);
            bytes += self.sizes.number + linears;
        }
        bytes
    }

    fn resident(&self, stage: u32) -> ResidentBytes {
        let parameters = self.stage_parameters(stage);
        let [common, experts] = self
            .states(stage)
            .map(|(state, parameters)| state.resident(parameters));
        let mut resident = ResidentBytes {
            weights: common.weights.saturating_add(experts.weights),
            gradients: common.gradients.saturating_add(experts.gradients),
            optimizer: common.optimizer.saturating_add(experts.optimizer),
        };
        if self.plan.trains() && self.plan.accumulate && self.micro_batches > 1 {
            resident.gradients = parameters.saturating_mul(self.sizes.gradient);
        }
        resident
    }

    /// Returns true if gradients are sharded among replicas, between micro-batches too.
    fn shares_gradients(&self) -> bool {
        self.plan.zero >= ZeroStage::Gradients
            && self.communicates()
            && (self.micro_batches == 1 || !self.plan.accumulate)
    }

    /// Bytes of the gradients that a rank finds of a layer, and that replicas sum.
    fn gradient_bytes(&self, layer: usize) -> u64 {
        let alone = match self.plan.data == self.plan.expert {
            true => self.lowered(layer).expert_parameters,
            false => 0,
        };
        (self.parts.weights(layer) - alone) * self.sizes.gradient
    }

    /// Bytes that a step of a rank's optimizer moves.
    fn step_bytes(&self, stage: u32) -> u64 {
        let of = |(state, parameters): (ParameterState, u64)| {
            let stepped = state.stepped(parameters);
            stepped.saturating_mul(state.moved())
        };
        let [common, experts] = self.states(stage).map(of);
        common.saturating_add(experts).min(MOST_WORK)
    }

    fn communicates(&self) -> bool {
        self.plan.data > 1 && !self.plan.without.has(AblationEffect::DataCommunication)
    }

    fn gathers_parameters(&self) -> bool {
        self.plan.zero == ZeroStage::Parameters && self.communicates()
    }

    /// Returns true if parameters are copied out of the buffers in which they are gathered, and gradients into those in
    /// which they are reduced, as FSDP2 does.
    fn copies_parameters(&self) -> bool {
        self.gathers_parameters() && self.plan.elementwise.is_pytorch()
    }

    fn gathers_after_step(&self) -> bool {
        let shared = matches!(self.plan.zero, ZeroStage::Optimizer | ZeroStage::Gradients);
        shared && self.communicates() && self.plan.optimizer != Optimizer::None
    }

    /// Returns true if those gathers run beside the forward pass of the next step: a step begins with those of the
    /// step before, so that one step alone costs as much as each of many.
    fn gathers_before_step(&self) -> bool {
        self.plan.gather_overlap && self.gathers_after_step()
    }

    /// Returns true if a backward pass ends with reductions; `complete` for the pass that completes its gradients.
    fn reduces(&self, complete: bool) -> bool {
        let each = self.plan.zero >= ZeroStage::Gradients && !self.plan.accumulate;
        self.communicates() && self.plan.trains() && (complete || each)
    }

    /// Bytes of a layer's parameters when they are gathered.
    fn gathered_bytes(&self, layer: usize) -> u64 {
        self.parts.weights(layer) * self.sizes.number
    }

    /// A kernel that moves `bytes`.
    fn copy(&self, bytes: u64) -> Op<'static> {
        Op::Compute {
            flops: 0,
            bytes,
            dtype: Some(self.plan.dtype),
        }
    }

    /// Gradients that are reduced when they are found in `layer`.
    fn buckets(&self, layer: usize) -> &[GradientBucket] {
        self.parts.buckets(layer)
    }

    /// Name of the place where a bucket ends, in parts: layer, slash, operator.
    fn bucket_end(&self, bucket: &GradientBucket) -> [&str; 3] {
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

    /// Bytes of gradients in a bucket.
    fn bucket_bytes(&self, bucket: &GradientBucket) -> u64 {
        bucket.weights * self.sizes.gradient
    }

    /// Bytes of the parameters of a bucket that one replica has stepped.
    fn bucket_shard(&self, bucket: &GradientBucket) -> u64 {
        let bytes = bucket.weights * self.sizes.number;
        bytes.div_ceil(self.placement.members(bucket.among).into())
    }

    /// Bytes between part `below` and the next, for a member of a tensor group.
    fn boundary(&self, below: u32) -> u64 {
        if self.plan.without.has(AblationEffect::PipelineCommunication) {
            return 0;
        }
        let last = self.layers(below).last();
        let among = match (self.plan.scatter_gather, last) {
            (true, _) => self.plan.tensor.into(),
            (false, Some(layer)) => self.lowered(layer).output_shards,
            (false, None) => 1,
        };
        self.parts.boundary(below).div_ceil(among)
    }

    /// Sums at the end of a step, in order: (name, bytes, group).
    fn last_sums(&self, stage: u32) -> Vec<(&'static str, u64, ParallelGroupKind)> {
        let mut sums = Vec::new();
        // Ordered by group kind, so that all members of a group emit sums in one order.
        let mut partial: BTreeMap<ParallelGroupKind, u64> = BTreeMap::new();
        for layer in self.stage_layers(stage) {
            for (family, weights) in &self.lowered(layer).partial {
                let sum = partial.entry(*family).or_default();
                *sum = sum.saturating_add(*weights);
            }
        }
        let tensor =
            self.plan.tensor > 1 && !self.plan.without.has(AblationEffect::TensorCommunication);
        for (family, weights) in partial.into_iter().filter(|_| tensor) {
            let what = if self.plan.operators.is_empty() {
                "norms/all-reduce"
            } else {
                "operators/all-reduce"
            };
            let bytes = weights.saturating_mul(self.sizes.gradient);
            sums.push((what, bytes, family));
        }
        // Tied weights have one copy on the first and one on the last stage.
        let ends = stage == 0 || stage + 1 == self.plan.pipeline;
        let tied = ends && !self.plan.without.has(AblationEffect::DataCommunication);
        if let Some(weights) = self.parts.tied().filter(|_| tied) {
            let bytes = weights * self.sizes.gradient;
            sums.push(("embedding/all-reduce", bytes, ParallelGroupKind::Embedding));
        }
        if self.plan.clip && self.placement.members(ParallelGroupKind::Model) > 1 {
            // The norm of all gradients is one number in single precision.
            sums.push(("norm/all-reduce", 4, ParallelGroupKind::Model));
        }
        if self.plan.clip && self.plan.expert > 1 {
            // Each rank has the gradients of its own experts.
            sums.push(("norm/experts/all-reduce", 4, ParallelGroupKind::Expert));
        }
        sums
    }
}

/// Layers that differ, and which of them each layer is.
struct DistinctLayers {
    lowered: Vec<LoweredLayer>,
    lowered_of: Vec<u32>,
    partitions: Vec<MemberPartition>,
    slots: u32,
}

impl DistinctLayers {
    /// Lowers the layers of `model`: equal ones in one place are lowered once.
    fn new(
        model: &Model,
        plan: &ParallelismPlan,
        context: &LoweringContext,
    ) -> Result<Self, GenerateError> {
        let follow = DataflowTracer::new(model, plan, context);
        let mut lowering = ShardedLowering::new(*context, plan.pipeline > 1);
        let mut tied = TiedEmbedding::default();
        let mut lowered: Vec<LoweredLayer> = Vec::new();
        let mut examples: Vec<(usize, Option<ShardedActivation>, LayerDataflow<'_>)> = Vec::new();
        let mut lowered_of = Vec::new();
        let (mut held, mut cuts) = (None, false);
        for (i, layer) in model.layers.iter().enumerate() {
            // Without degrees, which layers have by name, equal layers that are given alike are cut alike.
            let known = examples.iter().rposition(|(other, before, _)| {
                let example = &model.layers[*other];
                *before == held
                    && (example.role, &example.operators) == (layer.role, &layer.operators)
            });
            if let (true, Some(known)) = (plan.operators.is_empty(), known) {
                held = Some(examples[known].2.end);
                lowered_of.push(known as u32);
                continue;
            }
            let flow = follow.layer(layer, held)?;
            for step in &flow.steps {
                tied.check_operator(&layer.name, step)?;
                cuts |= step.cutting != ShardSpec::WHOLE;
            }
            let before = held.replace(flow.end);
            let same = |(other, _, known): &(usize, _, LayerDataflow<'_>)| {
                let example = &model.layers[*other];
                example.role == layer.role && *known == flow
            };
            let known = examples.iter().position(same);
            lowered_of.push(known.unwrap_or(lowered.len()) as u32);
            if known.is_none() {
                lowered.push(lowering.lower(layer, &flow)?);
                examples.push((i, before, flow));
            }
        }
        if follow.derives && !cuts {
            let expected = format!("a number that divides sizes of operators of {}", model.name);
            return Err(refused("tensor", plan.tensor, expected));
        }
        let groups = lowering.partitions.len() as u128 * plan.ranks();
        let hint = "fewer different degrees of operators";
        check_limit("groups of operators", groups, MOST_GROUPS, hint)?;
        let partitions = lowering.partitions.len() as u128;
        check_limit(
            "ways to cut a tensor group",
            partitions,
            u16::MAX.into(),
            hint,
        )?;
        Ok(Self {
            lowered,
            lowered_of,
            partitions: lowering.partitions,
            slots: lowering.slots,
        })
    }
}
