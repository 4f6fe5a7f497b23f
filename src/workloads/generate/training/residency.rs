//! Tensors that a stage keeps in its cores' SRAM, and the loads and stores of all others.
//!
//! W, I and O are the bytes of an operator's weights, inputs and outputs on one core. ΣWSG is the
//! stage's sum of weights, gradients and optimizer state, and ΣI is the stage's sum of inputs. C is
//! the SRAM's capacity. A stage keeps one of the following in SRAM:
//!
//! | kept | where | an operator loads and stores |
//! |---|---|---|
//! | both | ΣWSG + ΣI ≤ C | nothing |
//! | weights | ΣWSG ≤ C | I + O |
//! | activations | ΣI ≤ C | W |
//! | neither | otherwise | min(W + ⌈W/C⌉ I, I + ⌈I/C⌉ W) + O |
//!
//! If either the weights or the activations would fit, but not both together, the stage keeps the kind that saves more
//! traffic. If it keeps neither, an operator divides one of its operands into parts that fit (at least one part), and
//! loads the other operand once for each part. These rules are Algorithm 1 of Fang et al. (PALM) with five corrections.
//! The printed algorithm has these faults: the second branch (ΣWSG ≤ C) is never taken, because its condition implies
//! the first branch's condition (ΣW ≤ C); ΣI is computed but not used; ⌈O/C⌉ is printed instead of ⌈I/C⌉; the operand
//! that stays in SRAM is never loaded; and no branch keeps both. [`ResidencyRule::AsPrinted`] is the algorithm as
//! printed.
//!
//! A larger SRAM never causes more traffic. If only weights or only activations are kept, an
//! operator moves at most W + I + O bytes, which is the minimum without SRAM.

use super::program::{OperatorOperandBytes, ProgramNodeOperation};
use super::{MOST_WORK, TrainingGenerator};
use crate::generate::plan::ResidencyRule;
use crate::generate::schedule::PassKind;

/// The kinds of tensors that a stage keeps in SRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TensorsKeptInSram {
    Both,
    Weights,
    Activations,
    Neither,
}

impl TensorsKeptInSram {
    /// True if weights and their state stay in SRAM.
    pub fn keeps_weights_in_sram(self) -> bool {
        matches!(self, Self::Both | Self::Weights)
    }
}

/// A core's SRAM, and the rule that decides which tensors it keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct SramPolicy {
    pub rule: ResidencyRule,
    /// SRAM capacity in bytes, at least 1.
    pub capacity: u64,
}

impl SramPolicy {
    /// Returns the bytes that an operator loads and stores, if the stage keeps the tensors `kept` in SRAM.
    pub fn operand_load_and_store_bytes(
        &self,
        kept: TensorsKeptInSram,
        of: OperatorOperandBytes,
    ) -> [u64; 2] {
        let OperatorOperandBytes {
            input: i,
            weights: w,
            output: o,
        } = of;
        let parts = |bytes: u64| bytes.div_ceil(self.capacity.max(1));
        let [load, store] = match kept {
            TensorsKeptInSram::Both => [0, 0],
            TensorsKeptInSram::Weights => [i, o],
            TensorsKeptInSram::Activations => [w, 0],
            TensorsKeptInSram::Neither if self.rule == ResidencyRule::AsPrinted => {
                let [a, b] = [parts(w).saturating_mul(i), parts(o).saturating_mul(w)];
                [a.min(b), o]
            }
            TensorsKeptInSram::Neither => {
                // An absent operand counts as one part; otherwise, an operator without weights would never load its
                // input.
                let weights_stay = w.saturating_add(parts(w).max(1).saturating_mul(i));
                let inputs_stay = i.saturating_add(parts(i).max(1).saturating_mul(w));
                [weights_stay.min(inputs_stay), o]
            }
        };
        [load, store].map(|bytes| bytes.min(MOST_WORK))
    }

    /// Returns the tensors that a stage keeps in SRAM. The stage's weights take `weights` bytes; together with
    /// gradients and optimizer state, they take `state` bytes. `operands` lists the operands of each forward operator
    /// of the stage.
    pub fn choose_kept_tensors(
        &self,
        weights: u64,
        state: u64,
        operands: &[OperatorOperandBytes],
    ) -> TensorsKeptInSram {
        let inputs = operands
            .iter()
            .fold(0, |sum: u64, of| sum.saturating_add(of.input));
        let fits = |bytes: u64| bytes <= self.capacity;
        if self.rule == ResidencyRule::AsPrinted {
            return match (fits(weights), fits(state)) {
                (true, _) => TensorsKeptInSram::Weights,
                // `(false, true)` is unreachable: `state` includes the weights, so if the state fits, the weights fit
                // too, and the first arm applies.
                (false, true) => TensorsKeptInSram::Activations,
                (false, false) => TensorsKeptInSram::Neither,
            };
        }
        if fits(state.saturating_add(inputs)) {
            return TensorsKeptInSram::Both;
        }
        let total = |kept| {
            let traffic = operands
                .iter()
                .flat_map(|of| self.operand_load_and_store_bytes(kept, *of));
            traffic.fold(0, u64::saturating_add)
        };
        let (weights, activations) = (TensorsKeptInSram::Weights, TensorsKeptInSram::Activations);
        match (fits(state), fits(inputs)) {
            (true, true) if total(activations) < total(weights) => activations,
            (true, _) => weights,
            (false, true) => activations,
            (false, false) => TensorsKeptInSram::Neither,
        }
    }
}

impl TrainingGenerator {
    /// Returns the SRAM and the residency rule, or `None` if the plan has no rule.
    pub(super) fn sram_policy(&self) -> Option<SramPolicy> {
        (self.plan.residency != ResidencyRule::None).then(|| SramPolicy {
            rule: self.plan.residency,
            capacity: self.plan.sram.unwrap_or(0),
        })
    }

    /// Returns the tensors that `stage` keeps in SRAM.
    pub(super) fn sram_residency_of_stage(
        &self,
        stage: u32,
        sram: &SramPolicy,
    ) -> TensorsKeptInSram {
        let operands: Vec<OperatorOperandBytes> = self
            .stage_layers(stage)
            .flat_map(|layer| {
                &self
                    .lowered_layer(layer)
                    .program_for_member(PassKind::Forward, 0)
                    .items
            })
            .filter_map(|item| match item.task {
                ProgramNodeOperation::Kernel { operands, .. } => operands,
                _ => None,
            })
            .collect();
        let resident = self.resident_bytes(stage);
        sram.choose_kept_tensors(resident.weights, resident.total_bytes(), &operands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPERATOR: OperatorOperandBytes = OperatorOperandBytes {
        input: 30,
        weights: 50,
        output: 20,
    };

    fn build_corrected_sram_policy(capacity: u64) -> SramPolicy {
        SramPolicy {
            rule: ResidencyRule::Corrected,
            capacity,
        }
    }

    /// Tests a stage with two operators. Each operator has 50 B of weights and 30 B of inputs; the weights of both
    /// operators, with gradients and state, take 400 B.
    fn tensors_kept_with_sram_capacity(capacity: u64) -> TensorsKeptInSram {
        build_corrected_sram_policy(capacity).choose_kept_tensors(100, 400, &[OPERATOR; 2])
    }

    #[test]
    fn every_residency_is_reached_and_has_its_traffic() {
        for (capacity, state, traffic) in [
            (460, TensorsKeptInSram::Both, [0, 0]),
            // Weights would fit, activations would also fit, and both cause the same traffic per operator: I + O = 50 B
            // or W = 50 B. The stage then keeps the weights.
            (459, TensorsKeptInSram::Weights, [30, 20]),
            (399, TensorsKeptInSram::Activations, [50, 0]),
            // The operator loads min(50 + 2 x 30, 30 + 1 x 50) = 80 B, and stores its result.
            (40, TensorsKeptInSram::Neither, [80, 20]),
            // The operator loads min(50 + 5 x 30, 30 + 3 x 50) = 180 B.
            (10, TensorsKeptInSram::Neither, [180, 20]),
        ] {
            assert_eq!(
                tensors_kept_with_sram_capacity(capacity),
                state,
                "{capacity}"
            );
            assert_eq!(
                build_corrected_sram_policy(capacity).operand_load_and_store_bytes(state, OPERATOR),
                traffic,
                "{capacity}"
            );
        }
    }

    /// An operator without weights loads its input once. A look-up reads only weights, and loads each row once.
    #[test]
    fn operands_of_operators_without_weights_or_inputs_are_loaded_once() {
        let of = |input, weights| OperatorOperandBytes {
            input,
            weights,
            output: 20,
        };
        let neither = |operand| {
            build_corrected_sram_policy(10)
                .operand_load_and_store_bytes(TensorsKeptInSram::Neither, operand)
        };
        assert_eq!(neither(of(30, 0)), [30, 20]);
        assert_eq!(neither(of(0, 50)), [50, 20]);
    }

    #[test]
    fn more_sram_never_means_more_traffic() {
        let operators = [(30, 50, 20), (7, 200, 90), (500, 1, 500), (64, 0, 64)];
        let operators = operators.map(|(input, weights, output)| OperatorOperandBytes {
            input,
            weights,
            output,
        });
        let mut before = u64::MAX;
        for capacity in 1..3000 {
            let policy = build_corrected_sram_policy(capacity);
            let state = policy.choose_kept_tensors(251, 2008, &operators);
            let all = operators
                .iter()
                .flat_map(|of| policy.operand_load_and_store_bytes(state, *of));
            let all = all.sum();
            assert!(all <= before, "{capacity}: {all} after {before}");
            before = all;
        }
        assert_eq!(before, 0);
    }

    /// With the printed algorithm, SRAM keeps weights as soon as they fit without their state, and
    /// results are stored even if everything fits.
    #[test]
    fn the_printed_algorithm_has_a_branch_that_is_never_taken() {
        let printed = |capacity| SramPolicy {
            rule: ResidencyRule::AsPrinted,
            capacity,
        };
        for capacity in 1..1000 {
            let state = printed(capacity).choose_kept_tensors(100, 400, &[OPERATOR; 2]);
            let expected = if capacity >= 100 {
                TensorsKeptInSram::Weights
            } else {
                TensorsKeptInSram::Neither
            };
            assert_eq!(state, expected, "{capacity}");
        }
        // The operator loads min(2 x 30, 1 x 50) = 50 B: the printed rule omits the single load of
        // the operand that stays.
        assert_eq!(
            printed(40).operand_load_and_store_bytes(TensorsKeptInSram::Neither, OPERATOR),
            [50, 20]
        );
        assert_eq!(
            printed(10_000).operand_load_and_store_bytes(TensorsKeptInSram::Weights, OPERATOR),
            [30, 20]
        );
    }
}
