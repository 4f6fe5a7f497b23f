//! Options that a plan's layers share, and the result of lowering a layer.

use super::cost::{KernelCostSizesAndOptions, LoweredKernel, OperatorKernels};
use super::local_experts::RelativeExpertExchangeLoads;
use super::program::{LayerProgram, ProgramNodeOperation};
use crate::generate::plan::{
    AblationEffect, BranchOrder, ContextExchange, ExpertExchangeForm, ExpertProducts,
    ParallelGroupKind, RecomputePolicy, RecomputedModules, RemovedEffectSet,
};
use crate::generate::schedule::PassKind;
use crate::model::{LayerRole, ModelLayer, OperatorAxesAndTensorsSpec};
use chakram_trace::format::{Dtype, TrainingPhase};

/// Options that are equal for all layers of a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerLoweringOptions {
    pub sizes: KernelCostSizesAndOptions,
    /// Number of members per tensor group.
    pub tensor: u64,
    pub sequence: bool,
    /// Number of ranks that divide a layer's experts.
    pub expert: u64,
    /// Kind of kernels that compute the experts' matrix products.
    pub expert_products: ExpertProducts,
    /// How ranks exchange tokens with ranks that have other experts.
    pub exchange: ExpertExchangeForm,
    /// Number format of tokens sent to experts, if it differs from the activations'.
    pub exchange_dtype: Option<Dtype>,
    /// Number of token copies exchanged between ranks with different experts, relative to balanced loads.
    pub loads: RelativeExpertExchangeLoads,
    /// True if experts' gradients are summed over other groups of ranks than the remaining gradients.
    pub experts_apart: bool,
    /// Exchange among the ranks that share a sequence's tokens; `None` without context parallelism.
    pub context: Option<ContextExchange>,
    /// Number of ranks that share a sequence's tokens.
    pub context_ranks: u32,
    pub recompute: RecomputePolicy,
    pub recompute_modules: RecomputedModules,
    pub without: RemovedEffectSet,
    /// True if sums over the tensor group overlap matrix products that do not depend on them.
    pub overlap: bool,
    pub branches: BranchOrder,
    pub trains: bool,
    /// True if separate passes compute weight gradients.
    pub splits: bool,
}

/// Number of all weights, and number of trained weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AllAndTrainedWeightCounts {
    pub all: u64,
    /// Number of weights that have gradients and optimizer state.
    pub trained: u64,
}

/// A matrix tied to the embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MatrixTiedToEmbedding {
    /// Number of operators in the layer after the operator with the matrix.
    pub behind: usize,
    /// Number of weights of the matrix on one member.
    pub weights: u64,
    pub is_trained: bool,
}

/// The programs and weights of a lowered layer.
#[derive(Clone, Debug)]
pub(super) struct LoweredLayer {
    /// Forward programs: one if all members of a tensor group run the same program, otherwise one per member.
    pub forward: Vec<LayerProgram>,
    /// Backward programs, as many as forward programs.
    pub backward: Vec<LayerProgram>,
    /// Programs of split backward passes: one list for input gradients, and one for weight gradients. Each has as many
    /// programs as the forward pass, or none if backward passes are not split.
    pub apart: [Vec<LayerProgram>; 2],
    /// Number of weights on one member, including adapters.
    pub parameters: AllAndTrainedWeightCounts,
    /// Number of experts' weights on one member, if ranks have different experts.
    pub expert_parameters: AllAndTrainedWeightCounts,
    /// For weights with partial gradients, because each member uses only its own samples or tokens: the group that sums
    /// these gradients, and the number of weights.
    pub partial: Vec<(ParallelGroupKind, u64)>,
    /// The matrix tied to the embedding.
    pub tied: Option<MatrixTiedToEmbedding>,
    /// Bytes that the forward pass saves for the backward pass.
    pub keeps: u64,
    /// Number of shards of the layer's output.
    pub output_shards: u64,
    /// For each operator, true if the gradient of its input is needed; `None` if the plan omits the
    /// operator.
    pub input_gradients: Vec<Option<bool>>,
}

impl LoweredLayer {
    /// Returns the program that `member` of a tensor group runs in a pass of the kind `kind`.
    pub fn program_for_member(&self, kind: PassKind, member: u32) -> &LayerProgram {
        let programs = match kind {
            PassKind::Forward => &self.forward,
            PassKind::Backward => &self.backward,
            PassKind::InputGradient => &self.apart[0],
            PassKind::WeightGradient => &self.apart[1],
        };
        // If all members run the same program, the list has only one entry.
        &programs[member as usize % programs.len()]
    }
}

impl LayerLoweringOptions {
    /// Returns the parameters that determine the kernel costs in `layer`. Products outside blocks, mainly the product
    /// that computes the logits, always use the plan's number format.
    pub fn kernel_cost_parameters_of_layer(&self, layer: &ModelLayer) -> KernelCostSizesAndOptions {
        let linear = self.sizes.linear;
        KernelCostSizesAndOptions {
            linear: linear.filter(|_| layer.role == LayerRole::Block),
            ..self.sizes
        }
    }

    /// Returns true if the plan omits an operator of `layer` entirely, including its communication.
    pub fn is_operator_left_out(
        &self,
        layer: &ModelLayer,
        spec: &OperatorAxesAndTensorsSpec,
    ) -> bool {
        let loss = spec.reduces_rows_to_numbers();
        let logits = layer.role == LayerRole::Output && spec.is_matrix_product_without_windows();
        (loss && !self.trains)
            || (loss || logits) && self.without.has_effect(AblationEffect::Logits)
    }

    /// Removes two kinds of kernels from an operator of `layer`: those that the plan omits, and those inside the
    /// experts' fused matrix products.
    pub fn leave_out(
        &self,
        layer: &ModelLayer,
        spec: &OperatorAxesAndTensorsSpec,
        among_experts: bool,
        kernels: &mut OperatorKernels,
    ) {
        if self.is_operator_left_out(layer, spec) {
            kernels.forward.clear();
            kernels.backward.clear();
            kernels.weights = None;
            kernels.after_weights.clear();
        }
        if self.expert_products == ExpertProducts::Fused && among_experts {
            // The fused matrix products of experts also copy tokens, multiply by gates, and cast
            // values.
            let stays =
                |kernel: &LoweredKernel| !kernel.moves || is_router_score_kernel(kernel.suffix);
            kernels.forward.retain(stays);
            kernels.backward.retain(stays);
        }
        if self.without.has_effect(AblationEffect::MemoryBound) {
            kernels.forward.retain(|kernel| !kernel.moves);
            kernels.backward.retain(|kernel| !kernel.moves);
            kernels.after_weights.retain(|kernel| !kernel.moves);
        }
    }

    /// Bytes that an operator saves for the backward pass, unless its whole layer is recomputed.
    pub fn bytes_kept_for_backward(&self, kernels: &OperatorKernels) -> u64 {
        match self.recompute {
            RecomputePolicy::Selective => kernels.keeps,
            _ => kernels.keeps.saturating_add(kernels.scores),
        }
    }
}

/// Returns true for the kernels of a router's scores, which the experts' fused matrix products do not include.
fn is_router_score_kernel(suffix: &str) -> bool {
    [
        ".choose", ".sigmoid", ".bias", ".groups", ".highest", ".sum", ".scores",
    ]
    .contains(&suffix)
}

pub(super) fn node_name_with_phase_and_suffix(
    phase: TrainingPhase,
    operator: &str,
    suffix: &str,
) -> String {
    let phase = match phase {
        TrainingPhase::Forward => "fwd",
        TrainingPhase::Recompute => "again",
        _ => "bwd",
    };
    format!("{phase}/{operator}{suffix}")
}

/// Returns the kernels that run after the weight-gradient kernel of `operator`, as program tasks.
pub(super) fn tasks_after_weight_gradient<'k>(
    kernels: &'k OperatorKernels,
    operator: &'k str,
) -> impl Iterator<Item = (String, ProgramNodeOperation, [&'k str; 2])> {
    kernels.after_weights.iter().map(move |kernel| {
        let (task, shapes) = program_task_and_shapes_of_kernel(kernel);
        let name =
            node_name_with_phase_and_suffix(TrainingPhase::Backward, operator, kernel.suffix);
        (name, task, shapes)
    })
}

/// Returns the program task for `kernel`, and the shapes of the kernel's inputs and outputs.
pub(super) fn program_task_and_shapes_of_kernel(
    kernel: &LoweredKernel,
) -> (ProgramNodeOperation, [&str; 2]) {
    let task = ProgramNodeOperation::Kernel {
        flops: kernel.flops,
        bytes: kernel.bytes,
        shape: kernel.shape,
        dtype: kernel.dtype,
        operands: kernel.operands,
    };
    (task, [&kernel.inputs, &kernel.outputs])
}
