//! Number of parameters on a rank, and the state (weights, gradients, optimizer state) of those that it stores and
//! updates.
//!
//! ZeRO shards the state of common weights among all replicas. The state of experts is sharded among the replicas that
//! have the same experts.

use super::layer::AllAndTrainedWeightCounts;
use super::{TrainingGenerator, cost};
use crate::generate::MOST_WORK;
use crate::generate::plan::{ElementwiseKernels, OffloadedState, Optimizer, ZeroStage};
use crate::generate::training::{MemoryPerParameter, NpuParameterStateBytes};
use chakram_trace::format::Dtype;

impl TrainingGenerator {
    /// Returns the number of weights of a rank on `stage`, including adapters and a copy of tied
    /// weights.
    pub(super) fn all_and_trained_weights_of_stage(&self, stage: u32) -> AllAndTrainedWeightCounts {
        sum_weight_counts(
            self.stage_layers(stage)
                .map(|layer| self.parts.weight_counts_of_layer(layer)),
        )
    }

    /// Returns the number of expert weights of a rank; fewer replicas have copies of expert weights than of other
    /// weights.
    fn stage_expert_weight_counts(&self, stage: u32) -> AllAndTrainedWeightCounts {
        let layers = self.stage_layers(stage);
        sum_weight_counts(layers.map(|layer| self.lowered_layer(layer).expert_parameters))
    }

    /// Returns four kinds of state, each with its number of weights on `stage`: trained and frozen weights that every
    /// replica has, then trained and frozen expert weights.
    fn parameter_memories_of_stage(&self, stage: u32) -> [(MemoryPerParameter, u64); 4] {
        let experts = self.stage_expert_weight_counts(stage);
        let all = self.all_and_trained_weights_of_stage(stage);
        let common = AllAndTrainedWeightCounts {
            all: all.all - experts.all,
            trained: all.trained - experts.trained,
        };
        let state = self.parameter_state();
        let of_experts = MemoryPerParameter {
            replicas: self.plan.expert_copies(),
            ..state
        };
        // Frozen weights are only stored; they need no gradients or optimizer state.
        let frozen = |state| MemoryPerParameter {
            optimizer: Optimizer::None,
            passes: 0,
            ..state
        };
        [
            (state, common.trained),
            (frozen(state), common.all - common.trained),
            (of_experts, experts.trained),
            (frozen(of_experts), experts.all - experts.trained),
        ]
    }

    fn parameter_state(&self) -> MemoryPerParameter {
        let trains = self.plan.has_training();
        MemoryPerParameter {
            weight: self.sizes.number,
            gradient: self.sizes.gradient,
            optimizer: if trains {
                self.plan.optimizer
            } else {
                Optimizer::None
            },
            mixed: self.plan.mixed && self.sizes.number < 4,
            zero: self.plan.zero,
            replicas: self.plan.state_shards(),
            passes: self.extra_optimizer_pass_bytes_per_parameter(),
        }
    }

    /// Returns the bytes per parameter that a step moves outside the optimizer's kernel, in passes
    /// over gradients and weights.
    fn extra_optimizer_pass_bytes_per_parameter(&self) -> u64 {
        let mut bytes = 0;
        if self.plan.elementwise == ElementwiseKernels::Megatron {
            // For each fp16 gradient, Megatron-LM's optimizer writes a single-precision copy (4
            // bytes written), unscales and checks it (4 read, 4 written), and reads the master copy
            // to write the weight (4 read).
            if self.plan.dtype == Dtype::Fp16 {
                bytes += 16;
            }
            // Clipping computes the norm of all gradients, and multiplies them by the clipping factor.
            if self.plan.clip {
                bytes += 12;
            }
        }
        if self.plan.elementwise.is_eager_or_compiled_pytorch() {
            // Unfused Adam works on lists of single-precision tensors. Its kernels move these bytes per parameter:
            // decay (8), first moment (12), second moment (8 + 12), root, correction and epsilon (8 each), weights
            // (16). Together, these are 80 bytes; a fused kernel moves only 28.
            if self.plan.optimizer == Optimizer::Adam {
                bytes += 52;
            }
            if self.plan.clip {
                bytes += 12;
            }
        }
        if self.sizes.casts_operands() {
            // The casts read the weights, and write them in the operands' format, once as stored and once transposed.
            let linears = self.plan.linears.map_or(0, cost::bytes_of_two_numbers);
            bytes += self.sizes.number + linears;
        }
        bytes
    }

    /// Returns the bytes of a rank's state in the NPU's own memory.
    pub(super) fn resident_bytes(&self, stage: u32) -> NpuParameterStateBytes {
        let state = self.state_bytes(stage);
        match self.plan.offload {
            OffloadedState::None => state,
            OffloadedState::Optimizer => NpuParameterStateBytes {
                optimizer: 0,
                ..state
            },
            OffloadedState::All => NpuParameterStateBytes::default(),
        }
    }

    /// Returns the bytes of a rank's state in remote memory, and the largest number of bytes of offloaded activations
    /// there.
    pub(super) fn offloaded_bytes(&self, stage: u32) -> u64 {
        let [all, resident] = [self.state_bytes(stage), self.resident_bytes(stage)];
        let layers = self.stage_layers(stage);
        let pass = layers.fold(0, |sum: u64, layer| {
            sum.saturating_add(self.offloaded_activation_bytes_of_layer(layer))
        }) / u64::from(self.chunk_count());
        let stored = self.plan.schedule.max_passes_with_stored_activations(
            stage,
            self.plan.pipeline,
            self.micro_batches,
        );
        (all.total_bytes() - resident.total_bytes()).saturating_add(pass.saturating_mul(stored))
    }

    /// Returns the bytes of a rank's state, wherever it is stored.
    fn state_bytes(&self, stage: u32) -> NpuParameterStateBytes {
        let trained = self.all_and_trained_weights_of_stage(stage).trained;
        let mut resident = NpuParameterStateBytes::default();
        for (state, parameters) in self.parameter_memories_of_stage(stage) {
            let more = state.resident_bytes(parameters);
            resident = NpuParameterStateBytes {
                weights: resident.weights.saturating_add(more.weights),
                gradients: resident.gradients.saturating_add(more.gradients),
                optimizer: resident.optimizer.saturating_add(more.optimizer),
            };
        }
        if self.plan.has_training() && self.plan.accumulate && self.micro_batches > 1 {
            resident.gradients = trained.saturating_mul(self.sizes.gradient);
        }
        resident
    }

    /// Returns true if each replica keeps only a shard of the gradients, even between
    /// micro-batches.
    pub(super) fn shards_gradients(&self) -> bool {
        self.plan.zero >= ZeroStage::Gradients
            && self.has_communication_between_replicas()
            && (self.micro_batches == 1 || !self.plan.accumulate)
    }

    /// Returns the bytes of a layer's gradients on a rank before replicas sum them.
    pub(super) fn layer_gradient_bytes_to_sum(&self, layer: usize) -> u64 {
        let experts = self.lowered_layer(layer).expert_parameters.trained;
        let common = self.parts.weight_counts_of_layer(layer).trained - experts;
        let parts = [
            (common, self.plan.weight_copy_count()),
            (experts, self.plan.expert_copies()),
        ];
        let summed = parts.into_iter().filter(|(_, ranks)| *ranks > 1);
        summed.map(|(weights, _)| weights).sum::<u64>() * self.sizes.gradient
    }

    /// Returns the bytes that an optimizer step loads from and stores to remote memory, if state is kept there.
    pub(super) fn optimizer_remote_load_and_store_bytes(&self, stage: u32) -> [u64; 2] {
        let sum = |each: &dyn Fn(&MemoryPerParameter) -> u64| {
            self.sum_over_updated_parameters(stage, each)
        };
        let kept = MemoryPerParameter::optimizer_state_bytes_per_parameter;
        match self.plan.offload {
            // Half of the bytes that a step moves are loads, and half are stores.
            OffloadedState::None => {
                let moved = self.bytes_moved_by_optimizer_step(stage);
                [moved.div_ceil(2), moved / 2]
            }
            OffloadedState::Optimizer => [sum(&kept), sum(&kept)],
            OffloadedState::All => [
                sum(&|state| kept(state) + state.gradient_bytes_per_parameter()),
                sum(&|state| match state.optimizer {
                    Optimizer::None => 0,
                    Optimizer::Sgd | Optimizer::Adam => kept(state) + state.weight,
                }),
            ],
        }
    }

    /// Returns the bytes that a rank's optimizer step moves.
    pub(super) fn bytes_moved_by_optimizer_step(&self, stage: u32) -> u64 {
        self.sum_over_updated_parameters(
            stage,
            &MemoryPerParameter::bytes_moved_per_updated_parameter,
        )
    }

    /// Returns the sum of `bytes_of` over the parameters that a rank's optimizer updates.
    fn sum_over_updated_parameters(
        &self,
        stage: u32,
        bytes_of: &dyn Fn(&MemoryPerParameter) -> u64,
    ) -> u64 {
        let states = self.parameter_memories_of_stage(stage).into_iter();
        let bytes = states.map(|(state, parameters)| {
            let updated = state.parameters_updated_per_npu(parameters);
            updated.saturating_mul(bytes_of(&state))
        });
        bytes.fold(0, u64::saturating_add).min(MOST_WORK)
    }
}

fn sum_weight_counts(
    counts: impl Iterator<Item = AllAndTrainedWeightCounts>,
) -> AllAndTrainedWeightCounts {
    counts.fold(AllAndTrainedWeightCounts::default(), |sum, one| {
        AllAndTrainedWeightCounts {
            all: sum.all.saturating_add(one.all),
            trained: sum.trained.saturating_add(one.trained),
        }
    })
}
