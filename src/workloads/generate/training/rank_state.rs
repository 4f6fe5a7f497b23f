//! Number of parameters on a rank, and the state (weights, gradients, optimizer state) that the
//! rank stores and updates for them.
//!
//! ZeRO shards the state of common weights among all replicas, and the state of experts among the replicas
//! that have the same experts.

use super::{TrainingGenerator, cost};
use crate::generate::MOST_WORK;
use crate::generate::plan::{ElementwiseKernels, Optimizer, ZeroStage};
use crate::generate::training::{ParameterState, ResidentBytes};
use chakram_trace::format::Dtype;

impl TrainingGenerator {
    /// Returns the number of weights of a rank on `stage`, including copies of tied weights.
    pub(super) fn stage_parameters(&self, stage: u32) -> u64 {
        let layers = self.stage_layers(stage);
        layers.fold(0, |sum, layer| {
            sum.saturating_add(self.parts.weights_of_layer(layer))
        })
    }

    /// Returns the number of a rank's weights that belong to experts and that only some replicas
    /// have.
    fn stage_experts(&self, stage: u32) -> u64 {
        let layers = self.stage_layers(stage);
        layers.fold(0, |sum: u64, layer| {
            sum.saturating_add(self.lowered_layer(layer).expert_parameters)
        })
    }

    /// Returns two states, each with the number of its weights on a rank of `stage`: the state of
    /// weights that all replicas have, and the state of experts' weights.
    fn parameter_states(&self, stage: u32) -> [(ParameterState, u64); 2] {
        let experts = self.stage_experts(stage);
        let common = self.stage_parameters(stage) - experts;
        let replicas = self.plan.expert_copies();
        let state = self.parameter_state();
        let of_experts = ParameterState { replicas, ..state };
        [(state, common), (of_experts, experts)]
    }

    fn parameter_state(&self) -> ParameterState {
        let trains = self.plan.has_training();
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
            replicas: self.plan.copy_count(),
            passes: self.optimizer_passes(),
        }
    }

    /// Returns the bytes per parameter that passes over gradients and weights move in a step, apart
    /// from the optimizer's kernel.
    fn optimizer_passes(&self) -> u64 {
        let mut bytes = 0;
        if self.plan.elementwise == ElementwiseKernels::Megatron {
            // Megatron-LM's 16-bit optimizer copies fp16 gradients to single precision (4 written), then
            // unscales and checks them (4 + 4), and reads the master copy to write the weights (4).
            if self.plan.dtype == Dtype::Fp16 {
                bytes += 16;
            }
            // Clipping computes the norm of all gradients, and multiplies the gradients by the
            // clipping factor.
            if self.plan.clip {
                bytes += 12;
            }
        }
        if self.plan.elementwise.is_pytorch() {
            // Unfused Adam works on lists of single-precision tensors: decay (8), first moment (12), second
            // moment (8 + 12), root, correction and epsilon (8 each), weights (16). Of these 80 bytes, a
            // fused kernel moves only 28.
            if self.plan.optimizer == Optimizer::Adam {
                bytes += 52;
            }
            if self.plan.clip {
                bytes += 12;
            }
        }
        if self.sizes.casts_operands() {
            // The casts read weights, and write them in the operands' format, both as they are and
            // transposed.
            let linears = self.plan.linears.map_or(0, cost::pair_bytes);
            bytes += self.sizes.number + linears;
        }
        bytes
    }

    pub(super) fn resident_bytes(&self, stage: u32) -> ResidentBytes {
        let parameters = self.stage_parameters(stage);
        let [common, experts] = self
            .parameter_states(stage)
            .map(|(state, parameters)| state.resident_bytes(parameters));
        let mut resident = ResidentBytes {
            weights: common.weights.saturating_add(experts.weights),
            gradients: common.gradients.saturating_add(experts.gradients),
            optimizer: common.optimizer.saturating_add(experts.optimizer),
        };
        if self.plan.has_training() && self.plan.accumulate && self.micro_batches > 1 {
            resident.gradients = parameters.saturating_mul(self.sizes.gradient);
        }
        resident
    }

    /// Returns true if replicas shard gradients, even between micro-batches.
    pub(super) fn shares_gradients(&self) -> bool {
        self.plan.zero >= ZeroStage::Gradients
            && self.has_communication()
            && (self.micro_batches == 1 || !self.plan.accumulate)
    }

    /// Returns the bytes of a layer's gradients on a rank before replicas sum them.
    pub(super) fn gradient_bytes(&self, layer: usize) -> u64 {
        let experts = self.lowered_layer(layer).expert_parameters;
        let common = self.parts.weights_of_layer(layer) - experts;
        let parts = [
            (common, self.plan.copy_count()),
            (experts, self.plan.expert_copies()),
        ];
        let summed = parts.into_iter().filter(|(_, ranks)| *ranks > 1);
        summed.map(|(weights, _)| weights).sum::<u64>() * self.sizes.gradient
    }

    /// Returns the bytes that a rank's optimizer step moves.
    pub(super) fn step_bytes(&self, stage: u32) -> u64 {
        let of = |(state, parameters): (ParameterState, u64)| {
            let stepped = state.updated_parameters(parameters);
            stepped.saturating_mul(state.bytes_moved_per_step())
        };
        let [common, experts] = self.parameter_states(stage).map(of);
        common.saturating_add(experts).min(MOST_WORK)
    }
}
