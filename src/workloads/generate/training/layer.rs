//! Options that all layers of a plan share, and the result of lowering a layer.

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
    /// Ranks among which the experts of a layer are divided.
    pub expert: u64,
    /// Kernels of experts' products, and the exchange of tokens with ranks that have other experts.
    pub expert_products: ExpertProducts,
    pub exchange: ExpertExchangeForm,
    /// Number format of tokens sent to experts, if it differs from the activations' format.
    pub exchange_dtype: Option<Dtype>,
    /// Number of rows on the rank with the fullest experts, divided by the mean.
    pub expert_load: f64,
    /// Copies of a token that are sent, divided by the copies that experts receive.
    pub sent_copies: f64,
    /// True if gradients of experts and of other weights are summed among different ranks.
    pub experts_apart: bool,
    /// Exchange between ranks with different tokens of a sequence, or `None`.
    pub context: Option<ContextExchange>,
    pub recompute: RecomputePolicy,
    pub without: AblationSet,
    /// True if sums over the tensor group overlap independent products.
    pub overlap: bool,
    pub branches: BranchOrder,
    pub trains: bool,
    /// True if weight gradients have separate passes.
    pub splits: bool,
}

/// A layer's programs and weights.
#[derive(Clone, Debug)]
pub(super) struct LoweredLayer {
    /// Forward programs: one for all members of a tensor group, or one for each.
    pub forward: Vec<LayerProgram>,
    /// Backward programs; their number equals the number of forward programs.
    pub backward: Vec<LayerProgram>,
    /// Split backward programs: for gradients of inputs, then for gradients of weights; the same
    /// number of each. Empty if no backward pass is split.
    pub apart: [Vec<LayerProgram>; 2],
    /// Weights of one member.
    pub parameters: u64,
    /// Number of one member's weights that belong to experts, if ranks have different experts.
    pub expert_parameters: u64,
    /// The part of all weights for which a member computes gradients only from its shard of the samples or tokens, with
    /// the group over which they are summed.
    pub partial: Vec<(ParallelGroupKind, u64)>,
    /// The operator with a matrix tied to the embedding, as the number of operators after this
    /// operator, and one member's weights of the matrix.
    pub tied: Option<(usize, u64)>,
    /// Bytes kept from the forward to the backward pass.
    pub keeps: u64,
    /// Number of shards of the layer's output among members.
    pub output_shards: u64,
    /// For each operator, true if the gradient of its input is needed, or `None` if the plan leaves the operator
    /// out.
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
        // A single program serves all members if they are identical.
        &programs[member as usize % programs.len()]
    }
}

impl LoweringContext {
    /// Sizes for the kernels of `layer`: products outside blocks, most importantly the logits, keep the plan's format.
    pub fn sizes_of(&self, layer: &ModelLayer) -> CostParameters {
        let linear = self.sizes.linear;
        CostParameters {
            linear: linear.filter(|_| layer.role == LayerRole::Block),
            ..self.sizes
        }
    }

    /// Returns true if an operator of `layer` is left out entirely, including its communication.
    pub fn is_left_out(&self, layer: &ModelLayer, spec: &OperatorSpec) -> bool {
        let loss = spec.reduces_columns();
        let logits = layer.role == LayerRole::Output && spec.is_linear();
        (loss && !self.trains) || (loss || logits) && self.without.has(AblationEffect::Logits)
    }

    /// Removes the `kernels` of an operator of `layer` that the plan leaves out, and the kernels that are fused into
    /// the products of experts.
    pub fn leave_out(
        &self,
        layer: &ModelLayer,
        spec: &OperatorSpec,
        among_experts: bool,
        kernels: &mut OperatorKernels,
    ) {
        if self.is_left_out(layer, spec) {
            kernels.forward.clear();
            kernels.backward.clear();
            kernels.weights = None;
            kernels.after_weights.clear();
        }
        if self.expert_products == ExpertProducts::Fused && among_experts {
            // Copies, gates and casts are fused into the products.
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

    /// Bytes that an operator keeps, unless its whole layer is recomputed.
    pub fn keeps(&self, kernels: &OperatorKernels) -> u64 {
        match self.recompute {
            RecomputePolicy::Selective => kernels.keeps,
            _ => kernels.keeps.saturating_add(kernels.scores),
        }
    }
}

/// Returns true for kernels of a router's scores, which are never fused into a product of experts.
fn is_of_scores(suffix: &str) -> bool {
    [
        ".choose", ".sigmoid", ".bias", ".groups", ".highest", ".sum", ".scores",
    ]
    .contains(&suffix)
}

pub(super) fn node_name(phase: TrainingPhase, operator: &str, suffix: &str) -> String {
    let phase = match phase {
        TrainingPhase::Forward => "fwd",
        TrainingPhase::Recompute => "again",
        _ => "bwd",
    };
    format!("{phase}/{operator}{suffix}")
}

/// Returns the kernels after the weight-gradient kernel of `operator`.
pub(super) fn kernels_after_weights<'k>(
    kernels: &'k OperatorKernels,
    operator: &'k str,
) -> impl Iterator<Item = (String, ProgramTask, [&'k str; 2])> {
    kernels.after_weights.iter().map(move |kernel| {
        let (task, shapes) = task_and_shapes(kernel);
        let name = node_name(TrainingPhase::Backward, operator, kernel.suffix);
        (name, task, shapes)
    })
}

/// Returns the task of a node that runs `kernel`, and the shapes of its inputs and outputs.
pub(super) fn task_and_shapes(kernel: &LoweredKernel) -> (ProgramTask, [&str; 2]) {
    let task = ProgramTask::Kernel {
        flops: kernel.flops,
        bytes: kernel.bytes,
        shape: kernel.shape,
        dtype: kernel.dtype,
        operands: kernel.operands,
    };
    (task, [&kernel.inputs, &kernel.outputs])
}
