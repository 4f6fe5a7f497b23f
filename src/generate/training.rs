//! A model under a plan, as the nodes of its ranks.
//!
//! The pages of this module say where each number comes from: what kernels cost (`cost`), which collectives
//! tensor parallelism needs (`layer`), which gradients are reduced together (`buckets`), what is kept of every parameter (`state`), and in which order a rank does it
//! all (`walk`).

use super::GenerateError;
use super::plan::{
    Attention, Buckets, Effect, Family, Optimizer, Placement, Plan, Recompute, Zero,
};
use super::schedule::{Passes, Schedule};
use crate::model::{Model, Work};
use crate::trace::Dtype;
use std::ops::Range;
use std::sync::OnceLock;

mod buckets;
mod check;
mod cost;
mod layer;
mod parts;
mod program;
mod ranks;
mod shard;
mod state;
mod summary;
#[cfg(test)]
mod tests;
mod together;
mod walk;

pub use state::{Resident, State};
pub use summary::{Communication, Groups, Stage, Summary};
pub use walk::{COMPUTE_LANE, GRADIENT_LANE, PARAMETER_LANE, TENSOR_LANE};

use buckets::Bucket;
use cost::Sizes;
use layer::{Context, Lowered};
use parts::Parts;

/// A model and the plan by which it is trained or asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    /// What.
    pub model: Model,
    /// How.
    pub plan: Plan,
}

impl Training {
    /// Checks that the model can be dealt out as the plan says, and prepares what all ranks share.
    pub(super) fn prepare(mut self) -> Result<Prepared, GenerateError> {
        if matches!(self.plan.schedule, Schedule::LayerWise { .. }) {
            let layers = u32::try_from(self.model.layers.len()).unwrap_or(u32::MAX);
            self.plan.schedule = Schedule::LayerWise { layers };
        }
        let micro_batches = check::check(&self.model, &self.plan)?;
        if !self.plan.place.is_empty() {
            self.plan.ranks = self.plan.placed()?;
            self.plan.place.clear();
        }
        if self.plan.recompute == Recompute::AsNeeded {
            return self.least_recomputed(micro_batches);
        }
        Prepared::new(self, micro_batches)
    }

    /// The first recomputation, from least to most, with which every stage fits.
    fn least_recomputed(self, micro_batches: u32) -> Result<Prepared, GenerateError> {
        let capacity = self.plan.capacity.unwrap_or(u64::MAX);
        let mut choices = vec![Recompute::None, Recompute::Selective, Recompute::Full];
        if self.plan.attention == Attention::Flash {
            choices.remove(1);
        }
        let mut least = u64::MAX;
        for recompute in choices {
            let mut plan = self.plan.clone();
            plan.recompute = recompute;
            let model = self.model.clone();
            let prepared = Prepared::new(Self { model, plan }, micro_batches)?;
            let stages = 0..prepared.plan.pipeline;
            let peak = stages.map(|stage| prepared.peak(stage)).max();
            least = least.min(peak.unwrap_or(0));
            if peak <= Some(capacity) {
                return Ok(prepared);
            }
        }
        Err(super::refused(
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
pub(super) struct Prepared {
    model: Model,
    plan: Plan,
    placement: Placement,
    micro_batches: u32,
    sizes: Sizes,
    /// Layers that differ, and which of them each layer is.
    lowered: Vec<Lowered>,
    lowered_of: Vec<u32>,
    parts: Parts,
    /// Nodes of a rank on each stage.
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

impl Prepared {
    fn new(training: Training, micro_batches: u32) -> Result<Self, GenerateError> {
        let Training { model, plan } = training;
        let mut recompute = plan.recompute;
        if plan.without.has(Effect::Recompute) {
            recompute = Recompute::None;
        }
        let sizes = Sizes {
            samples: plan.micro_batch,
            number: bytes_of(plan.dtype),
            gradient: bytes_of(plan.gradients.unwrap_or(plan.dtype)),
            sums: micro_batches > 1,
            fused: plan.attention == Attention::Flash,
            dropout: plan.dropout && plan.trains(),
        };
        let context = Context {
            sizes,
            tensor: plan.tensor.into(),
            sequence: plan.sequence_parallel && plan.tensor > 1,
            recompute,
            without: plan.without,
            overlap: plan.tensor_overlap,
            trains: plan.trains(),
        };
        let mut lowered: Vec<Lowered> = Vec::new();
        let mut examples: Vec<usize> = Vec::new();
        let mut lowered_of = Vec::new();
        for (i, layer) in model.layers.iter().enumerate() {
            // The first layer stands for itself: nobody asks for its input's gradient.
            let same = |&other: &usize| {
                let example = &model.layers[other];
                other != 0 && example.role == layer.role && example.operators == layer.operators
            };
            let known = examples.iter().position(same);
            lowered_of.push(known.unwrap_or(lowered.len()) as u32);
            if known.is_none() {
                lowered.push(context.lower(layer, i == 0)?);
                examples.push(i);
            }
        }
        let layers = lowered_of.iter().map(|of| &lowered[*of as usize]);
        let layers: Vec<&Lowered> = layers.collect();
        let parts = Parts::new(&model, &plan, &layers, sizes);
        let mut placement = Placement::new(&plan);
        if parts.tied().is_some() && plan.trains() {
            placement.use_family(Family::Embedding);
        }
        if plan.clip && plan.trains() {
            placement.use_family(Family::Model);
        }
        let counts = (0..plan.pipeline).map(|_| OnceLock::new()).collect();
        Ok(Self {
            model,
            plan,
            placement,
            micro_batches,
            sizes,
            lowered,
            lowered_of,
            parts,
            counts,
        })
    }

    /// Passes of a rank on `stage`, in order.
    fn passes(&self, stage: u32) -> Passes {
        let (stages, count) = (self.plan.pipeline, self.micro_batches);
        self.plan.schedule.passes(stage, stages, count)
    }

    fn chunks(&self) -> u32 {
        self.plan.schedule.chunks()
    }

    /// Parts that layers are dealt out to: chunks of all stages.
    fn parts(&self) -> u32 {
        self.chunks() * self.plan.pipeline
    }

    fn layers(&self, part: u32) -> Range<usize> {
        self.parts.layers(part)
    }

    fn lowered(&self, layer: usize) -> &Lowered {
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

    fn state(&self) -> State {
        let trains = self.plan.trains();
        State {
            weight: self.sizes.number,
            gradient: self.sizes.gradient,
            optimizer: match trains {
                true => self.plan.optimizer,
                false => Optimizer::None,
            },
            mixed: self.plan.mixed && self.sizes.number < 4,
            zero: self.plan.zero,
            replicas: self.plan.data,
        }
    }

    fn resident(&self, stage: u32) -> Resident {
        let parameters = self.stage_parameters(stage);
        let mut resident = self.state().resident(parameters);
        if self.plan.trains() && self.plan.accumulate && self.micro_batches > 1 {
            resident.gradients = parameters.saturating_mul(self.sizes.gradient);
        }
        resident
    }

    /// Whether each replica has a part of the gradients, between micro-batches too.
    fn shares_gradients(&self) -> bool {
        self.plan.zero >= Zero::Gradients
            && self.communicates()
            && (self.micro_batches == 1 || !self.plan.accumulate)
    }

    /// Bytes of the gradients that a rank finds of a layer.
    fn gradient_bytes(&self, layer: usize) -> u64 {
        self.parts.weights(layer) * self.sizes.gradient
    }

    /// Bytes that a step of a rank's optimizer moves.
    fn step_bytes(&self, stage: u32) -> u64 {
        let state = self.state();
        let stepped = state.stepped(self.stage_parameters(stage));
        stepped.saturating_mul(state.moved()).min(super::MOST_WORK)
    }

    fn communicates(&self) -> bool {
        self.plan.data > 1 && !self.plan.without.has(Effect::DataCommunication)
    }

    fn gathers_parameters(&self) -> bool {
        self.plan.zero == Zero::Parameters && self.communicates()
    }

    fn gathers_after_step(&self) -> bool {
        let shared = matches!(self.plan.zero, Zero::Optimizer | Zero::Gradients);
        shared && self.communicates() && self.plan.optimizer != Optimizer::None
    }

    /// Whether a backward pass ends with reductions; `complete` if its gradients are.
    fn reduces(&self, complete: bool) -> bool {
        let each = self.plan.zero >= Zero::Gradients && !self.plan.accumulate;
        self.communicates() && self.plan.trains() && (complete || each)
    }

    /// Bytes of a layer's parameters when they are gathered.
    fn gathered_bytes(&self, layer: usize) -> u64 {
        self.parts.weights(layer) * self.sizes.number
    }

    /// Gradients that are reduced when they are found in `layer`.
    fn buckets(&self, layer: usize) -> &[Bucket] {
        self.parts.buckets(layer)
    }

    /// Where a bucket ends, as people would say it.
    fn bucket_end(&self, bucket: &Bucket) -> [&str; 3] {
        let layer = &self.model.layers[bucket.layer];
        match self.plan.buckets {
            Buckets::Layers => [&layer.name, "", ""],
            Buckets::Parameters => {
                let operator = layer.operators.len() - bucket.operators as usize;
                [&layer.name, "/", &layer.operators[operator].name]
            }
        }
    }

    /// Bytes of gradients in a bucket.
    fn bucket_bytes(&self, bucket: &Bucket) -> u64 {
        bucket.weights * self.sizes.gradient
    }

    /// Bytes of the parameters of a bucket that one replica has stepped.
    fn bucket_shard(&self, bucket: &Bucket) -> u64 {
        let bytes = bucket.weights * self.sizes.number;
        bytes.div_ceil(self.plan.data.into())
    }

    /// Bytes between part `below` and the next, for a member of a tensor group.
    fn boundary(&self, below: u32) -> u64 {
        if self.plan.without.has(Effect::PipelineCommunication) {
            return 0;
        }
        let shared = self.plan.sequence_parallel || self.plan.scatter_gather;
        let among = if shared { self.plan.tensor } else { 1 };
        self.parts.boundary(below).div_ceil(among.into())
    }

    /// Sums at the end of a step, in order: what, how many bytes, and among whom.
    fn last_sums(&self, stage: u32) -> Vec<(&'static str, u64, Family)> {
        let mut sums = Vec::new();
        let layers = self.stage_layers(stage);
        let partial: u64 = layers.map(|layer| self.lowered(layer).partial).sum();
        let tensor = self.plan.tensor > 1 && !self.plan.without.has(Effect::TensorCommunication);
        if tensor && partial > 0 {
            sums.push((
                "norms/all-reduce",
                partial * self.sizes.gradient,
                Family::Tensor,
            ));
        }
        let ends = stage == 0 || stage + 1 == self.plan.pipeline;
        let tied = ends && !self.plan.without.has(Effect::DataCommunication);
        if let Some(weights) = self.parts.tied().filter(|_| tied) {
            let bytes = weights * self.sizes.gradient;
            sums.push(("embedding/all-reduce", bytes, Family::Embedding));
        }
        if self.plan.clip && self.placement.members(Family::Model) > 1 {
            sums.push(("norm/all-reduce", 4, Family::Model));
        }
        sums
    }
}

/// Whether any of the model's operators is like `wanted`.
fn any(model: &Model, mut wanted: impl FnMut(&Work) -> bool) -> bool {
    let operators = model.layers.iter().flat_map(|layer| &layer.operators);
    operators.into_iter().any(|operator| wanted(&operator.work))
}
