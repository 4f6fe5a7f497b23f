//! Memory per parameter in training, and the bytes that an optimizer step moves.
//!
//! Bytes per parameter, if a weight has `d` bytes and a gradient has `g` bytes:
//!
//! | optimizer | weights | gradients | kept | moved by a step |
//! |---|---|---|---|---|
//! | Adam, mixed precision | `d` | `g` | 12: master copy and two moments in single precision | `g + d + 24`: reads the gradient, writes the weight, reads and writes the three |
//! | Adam, one format | `d` | `g` | `2d`: two moments | `g + 6d`: reads the gradient, reads and writes the other three |
//! | SGD | `d` | `g` | 0 | `g + 2d` |
//! | none | `d` | 0 | 0 | 0 |
//!
//! Passes outside the optimizer's kernel also move bytes in a step: Megatron-LM's passes for fp16
//! gradients (16: copied to single precision, unscaled and checked, copied back to weights),
//! PyTorch's unfused Adam (52 more than a fused kernel), gradient clipping (12: norm and scaling),
//! and weight casts for 8-bit products.
//!
//! With a 16-bit format and mixed precision, Adam needs 16 bytes per parameter. With ZeRO, each of `N` replicas keeps
//! only its shard of the sharded state (Rajbhandari et al., 2020, figure 1: `16`, `4 + 12/N`, `2 + 14/N`, `16/N`).

use crate::generate::plan::{Optimizer, ZeroStage};

/// Memory that training needs per parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPerParameter {
    /// Number of bytes per weight, in the model's format.
    pub weight: u64,
    /// Number of bytes per weight gradient.
    pub gradient: u64,
    /// The optimizer, on which the optimizer state and the bytes that a step moves depend.
    pub optimizer: Optimizer,
    /// True if the optimizer keeps a single-precision master copy of the weights.
    pub mixed: bool,
    /// The ZeRO stage, which says what state the replicas shard.
    pub zero: ZeroStage,
    /// Number of replicas that shard the state.
    pub replicas: u32,
    /// Bytes per parameter that a step moves outside the optimizer's kernel, such as those for gradient clipping.
    pub passes: u64,
}

/// Bytes that one NPU stores during the whole run, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NpuParameterStateBytes {
    /// Bytes of weights on the NPU.
    pub weights: u64,
    /// Bytes of gradients on the NPU.
    pub gradients: u64,
    /// Bytes of optimizer state on the NPU.
    pub optimizer: u64,
}

impl NpuParameterStateBytes {
    /// Sum of weights, gradients and optimizer state; saturates.
    pub fn total_bytes(self) -> u64 {
        let state = self.weights.saturating_add(self.gradients);
        state.saturating_add(self.optimizer)
    }
}

impl MemoryPerParameter {
    /// Returns the bytes that an NPU stores for the state of `parameters` parameters.
    pub fn resident_bytes(&self, parameters: u64) -> NpuParameterStateBytes {
        let bytes = |each: u64, shared| {
            let all = u128::from(each) * u128::from(parameters);
            let among = if self.zero >= shared {
                self.replicas
            } else {
                1
            };
            u64::try_from(all.div_ceil(among.into())).unwrap_or(u64::MAX)
        };
        NpuParameterStateBytes {
            weights: bytes(self.weight, ZeroStage::Parameters),
            gradients: bytes(self.gradient_bytes_per_parameter(), ZeroStage::Gradients),
            optimizer: bytes(
                self.optimizer_state_bytes_per_parameter(),
                ZeroStage::Optimizer,
            ),
        }
    }

    /// Returns the number of parameters that the optimizer of one NPU updates.
    pub fn parameters_updated_per_npu(&self, parameters: u64) -> u64 {
        match self.zero {
            ZeroStage::None => parameters,
            _ => parameters.div_ceil(self.replicas.into()),
        }
    }

    /// Number of bytes that an optimizer step moves per updated parameter.
    pub fn bytes_moved_per_updated_parameter(&self) -> u64 {
        let (d, g) = (self.weight, self.gradient);
        match (self.optimizer, self.mixed) {
            (Optimizer::None, _) => 0,
            (Optimizer::Sgd, _) => g + 2 * d + self.passes,
            (Optimizer::Adam, true) => g + d + 24 + self.passes,
            (Optimizer::Adam, false) => g + 6 * d + self.passes,
        }
    }

    /// Bytes of optimizer state per parameter.
    pub fn optimizer_state_bytes_per_parameter(&self) -> u64 {
        match (self.optimizer, self.mixed) {
            (Optimizer::None | Optimizer::Sgd, _) => 0,
            (Optimizer::Adam, true) => 12,
            (Optimizer::Adam, false) => 2 * self.weight,
        }
    }

    /// Gradient bytes per parameter; 0 if no optimizer needs gradients.
    pub fn gradient_bytes_per_parameter(&self) -> u64 {
        match self.optimizer {
            Optimizer::None => 0,
            _ => self.gradient,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_shares_what_its_paper_says() {
        // With 7.5 billion parameters on 64 replicas and mixed-precision Adam (16 B per parameter),
        // a replica stores 120 GB without ZeRO. With stages 1 to 3, a replica stores (4 + 12/64)
        // 7.5e9 = 31.40625 GB, (2 + 14/64) 7.5e9 = 16.640625 GB, and 16/64 x 7.5e9 = 1.875 GB.
        let expected = [
            (ZeroStage::None, 120_000_000_000),
            (ZeroStage::Optimizer, 31_406_250_000),
            (ZeroStage::Gradients, 16_640_625_000),
            (ZeroStage::Parameters, 1_875_000_000),
        ];
        for (zero, bytes) in expected {
            let state = MemoryPerParameter {
                weight: 2,
                gradient: 2,
                optimizer: Optimizer::Adam,
                mixed: true,
                zero,
                replicas: 64,
                passes: 0,
            };
            assert_eq!(
                state.resident_bytes(7_500_000_000).total_bytes(),
                bytes,
                "{zero}"
            );
        }
    }

    #[test]
    fn a_parameter_has_the_bytes_of_its_formats() {
        // Each row lists the settings, then the bytes per parameter of weights, gradients and optimizer state, and
        // finally the bytes that a step moves per parameter.
        let expected = [
            ((2, Optimizer::Adam, true), [2, 2, 12], 2 + 2 + 24),
            ((4, Optimizer::Adam, false), [4, 4, 8], 4 + 24),
            ((2, Optimizer::Sgd, true), [2, 2, 0], 6),
            ((4, Optimizer::Sgd, false), [4, 4, 0], 12),
            ((2, Optimizer::None, false), [2, 0, 0], 0),
        ];
        for ((bytes, optimizer, mixed), [weights, gradients, kept], moved) in expected {
            let state = MemoryPerParameter {
                weight: bytes,
                gradient: bytes,
                optimizer,
                mixed,
                zero: ZeroStage::None,
                replicas: 1,
                passes: 0,
            };
            let resident = NpuParameterStateBytes {
                weights,
                gradients,
                optimizer: kept,
            };
            assert_eq!(
                (
                    state.resident_bytes(1),
                    state.bytes_moved_per_updated_parameter()
                ),
                (resident, moved)
            );
        }
    }
}
