//! Options that all layers of a plan share, and a layer as it is lowered.

use super::cost::{CostParameters, LoweredKernel, OperatorKernels};
use super::program::{LayerProgram, ProgramTask};
use crate::generate::plan::{
    AblationEffect, AblationSet, BranchOrder, ContextExchange, ExpertExchangeForm, ExpertProducts,
    ParallelGroupKind, RecomputePolicy,
};
use crate::generate::schedule::PassKind;
use crate::model::{LayerRole, ModelLayer, OperatorSpec};
use chakram_trace::format::{Dtype, TrainingPhase};

/// Options that all layers of a plan share.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoweringContext {
    pub sizes: CostParameters,
    /// Members of a tensor group.
    pub tensor: u64,
    pub sequence: bool,
    /// Ranks that have the experts of a layer between them.
    pub expert: u64,
    /// Kernels of experts' products, and the exchange of tokens with ranks that have other experts.
    pub expert_products: ExpertProducts,
    pub exchange: ExpertExchangeForm,
    /// Number format of tokens on their way to experts, if it is another than that of activations.
    pub exchange_dtype: Option<Dtype>,
    /// Rows of the fullest rank's experts over the mean.
    pub expert_load: f64,
    /// Copies of a token that are sent, over those that experts get.
    pub sent_copies: f64,
    /// True if gradients of experts are summed among other ranks than those of other weights.
    pub experts_apart: bool,
    /// Exchange between ranks that have different tokens of a sequence, if there are any.
    pub context: Option<ContextExchange>,
    pub recompute: RecomputePolicy,
    pub without: AblationSet,
    /// True if sums over the tensor group overlap products that do not need them.
    pub overlap: bool,
    pub branches: BranchOrder,
    pub trains: bool,
    /// True if gradients of weights are found in passes of their own.
    pub splits: bool,
}

/// A layer's programs and weights.
#[derive(Clone, Debug)]
pub(super) struct LoweredLayer {
    /// Forwards: one for all members of a tensor group, or one for each.
    pub forward: Vec<LayerProgram>,
    /// Backwards, as many.
    pub backward: Vec<LayerProgram>,
    /// Backwards in two passes, as many of each: gradients of inputs, then of weights. Empty where none is in two.
    pub apart: [Vec<LayerProgram>; 2],
    /// Weights that a member has.
    pub parameters: u64,
    /// Of those, weights of experts, where ranks have different ones.
    pub expert_parameters: u64,
    /// Of all, weights whose gradients a member computes for a shard of the samples or tokens only, with the group
    /// over which they are summed.
    pub partial: Vec<(ParallelGroupKind, u64)>,
    /// The operator with a matrix tied to the embedding's: the number of operators behind it, and a member's number
    /// of weights of the matrix.
    pub tied: Option<(usize, u64)>,
    /// Bytes kept from the forward to the backward pass.
    pub keeps: u64,
    /// Number of shards of its output among members.
    pub output_shards: u64,
    /// Of each operator, whether the gradient of its input is needed; `None` where the plan leaves it out.
    pub input_gradients: Vec<Option<bool>>,
}

impl LoweredLayer {
    /// Returns the program of `member` of a tensor group in a pass.
    pub fn program(&self, kind: PassKind, member: u32) -> &LayerProgram {
        let programs = match kind {
            PassKind::Forward => &self.forward,
            PassKind::Backward => &self.backward,
            PassKind::InputGradient => &self.apart[0],
            PassKind::WeightGradient => &self.apart[1],
        };
        &programs[member as usize % programs.len()]
    }
}

impl LoweringContext {
    /// Sizes of the kernels of `layer`: products outside blocks, the logits first of all, keep the plan's format.
    pub fn sizes_of(&self, layer: &ModelLayer) -> CostParameters {
        let linear = self.sizes.linear;
        CostParameters {
            linear: linear.filter(|_| layer.role == LayerRole::Block),
            ..self.sizes
        }
    }

    /// Returns true if an operator of `layer` is left out entirely, with the communication that it needs.
    pub fn leaves_out(&self, layer: &ModelLayer, spec: &OperatorSpec) -> bool {
        let loss = spec.reduces_columns();
        let logits = layer.role == LayerRole::Output && spec.is_linear();
        (loss && !self.trains) || (loss || logits) && self.without.has(AblationEffect::Logits)
    }

    /// Removes those `kernels` of an operator of `layer` that the plan leaves out, and those that stand beside the products of
    /// experts and are part of these.
    pub fn leave_out(
        &self,
        layer: &ModelLayer,
        spec: &OperatorSpec,
        among_experts: bool,
        kernels: &mut OperatorKernels,
    ) {
        if self.leaves_out(layer, spec) {
            kernels.forward.clear();
            kernels.backward.clear();
            kernels.weights = None;
            kernels.after_weights.clear();
        }
        if self.expert_products == ExpertProducts::Fused && among_experts {
            // Copies, gates and casts are on the way into and out of products.
            let stays = |kernel: &LoweredKernel| !kernel.moves || is_of_scores(kernel.suffix);
            kernels.forward.retain(stays);
            kernels.backward.retain(stays);
        }
        if self.without.has(AblationEffect::MemoryBound) {
            kernels.forward.retain(|kernel| !kernel.moves);
            kernels.backward.retain(|kernel| !kernel.moves);
            kernels.after_weights.retain(|kernel| !kernel.moves);
        }
    }

    /// Bytes that an operator keeps, unless its layer is run again as a whole.
    pub fn keeps(&self, kernels: &OperatorKernels) -> u64 {
        match self.recompute {
            RecomputePolicy::Selective => kernels.keeps,
            _ => kernels.keeps.saturating_add(kernels.scores),
        }
    }
}

/// Returns true for kernels of a router's scores, which no product of experts does on its way.
fn is_of_scores(suffix: &str) -> bool {
    [
        ".choose", ".sigmoid", ".bias", ".groups", ".highest", ".sum", ".scores",
    ]
    .contains(&suffix)
}

pub(super) fn name(phase: TrainingPhase, operator: &str, suffix: &str) -> String {
    let phase = match phase {
        TrainingPhase::Forward => "fwd",
        TrainingPhase::Recompute => "again",
        _ => "bwd",
    };
    format!("{phase}/{operator}{suffix}")
}

/// Returns the kernels behind that of the weights' gradient of `operator`.
pub(super) fn behind<'k>(
    kernels: &'k OperatorKernels,
    operator: &'k str,
) -> impl Iterator<Item = (String, ProgramTask, [&'k str; 2])> {
    kernels.after_weights.iter().map(move |kernel| {
        let (task, shapes) = stamp(kernel);
        let name = name(TrainingPhase::Backward, operator, kernel.suffix);
        (name, task, shapes)
    })
}

/// Returns the task of a node that runs `kernel`, and the shapes of its inputs and outputs.
pub(super) fn stamp(kernel: &LoweredKernel) -> (ProgramTask, [&str; 2]) {
    let task = ProgramTask::Kernel {
        flops: kernel.flops,
        bytes: kernel.bytes,
        shape: kernel.shape,
        dtype: kernel.dtype,
        operands: kernel.operands,
    };
    (task, [&kernel.inputs, &kernel.outputs])
}
