//! Exchanges between the ranks of a context group before and after attention.

use super::super::layer::node_name_with_phase_and_suffix;
use super::super::program::LayerProgramBuilder;
use super::MemberOperator;
use super::MemberProgramWriter;
use crate::generate::plan::{ContextExchange, ParallelGroupKind};
use chakram_trace::format::{CollectiveKind, TensorClass, TrainingPhase};

impl MemberProgramWriter<'_> {
    /// Emits the exchange of attention's inputs: all-gathers of all tokens' keys and values, or all-to-alls after which
    /// each rank has all tokens of some heads. In the backward pass, it also emits the exchange of the gradient of
    /// attention's output.
    pub(super) fn exchange_before_attention(
        &mut self,
        one: &MemberOperator<'_>,
        phase: TrainingPhase,
        to: &mut LayerProgramBuilder,
    ) {
        let [queries, keys] = one.context_bytes;
        match self.context_exchange(one) {
            None | Some(ContextExchange::Ring) => {}
            Some(ContextExchange::AllGather) => {
                let mut held = all_tokens_key_value_bytes(one);
                if phase == TrainingPhase::Backward {
                    // The gradients of keys and values have the same size as the keys and values.
                    held = held.saturating_mul(2);
                }
                to.allocate_bytes_at_next_node(TensorClass::Temporary, held);
                let kind = CollectiveKind::AllGather;
                self.emit_context_collective(one, kind, ".all-gather", keys, phase, to);
            }
            Some(ContextExchange::AllToAll) => {
                let (suffix, bytes) = match phase {
                    // The output has the same shape as the queries.
                    TrainingPhase::Backward => (".output.all-to-all", queries),
                    _ => (".all-to-all", queries.saturating_add(keys)),
                };
                self.emit_context_collective(
                    one,
                    CollectiveKind::AllToAll,
                    suffix,
                    bytes,
                    phase,
                    to,
                );
            }
        }
    }

    /// Emits the exchange after attention. This exchange returns attention's results (the output, or the inputs'
    /// gradients) to the ranks that have the tokens.
    pub(super) fn exchange_after_attention(
        &mut self,
        one: &MemberOperator<'_>,
        phase: TrainingPhase,
        to: &mut LayerProgramBuilder,
    ) {
        let [queries, keys] = one.context_bytes;
        let back = phase == TrainingPhase::Backward;
        match self.context_exchange(one) {
            None | Some(ContextExchange::Ring) => {}
            Some(ContextExchange::AllGather) => {
                if back {
                    to.free_bytes_at_last_node(
                        TensorClass::Temporary,
                        all_tokens_key_value_bytes(one),
                    );
                    let (kind, bytes) = (
                        CollectiveKind::ReduceScatter,
                        all_tokens_key_value_bytes(one),
                    );
                    self.emit_context_collective(one, kind, ".reduce-scatter", bytes, phase, to);
                }
                to.free_bytes_at_last_node(TensorClass::Temporary, all_tokens_key_value_bytes(one));
            }
            Some(ContextExchange::AllToAll) => {
                let (suffix, bytes) = match back {
                    true => (".all-to-all", queries.saturating_add(keys)),
                    false => (".output.all-to-all", queries),
                };
                self.emit_context_collective(
                    one,
                    CollectiveKind::AllToAll,
                    suffix,
                    bytes,
                    phase,
                    to,
                );
            }
        }
    }

    pub(super) fn context_exchange(&self, one: &MemberOperator<'_>) -> Option<ContextExchange> {
        let exchanges = one.context_bytes != [0; 2] && !one.idle;
        self.lowering_context().context.filter(|_| exchanges)
    }

    fn emit_context_collective(
        &mut self,
        one: &MemberOperator<'_>,
        kind: CollectiveKind,
        suffix: &str,
        bytes: u64,
        phase: TrainingPhase,
        to: &mut LayerProgramBuilder,
    ) {
        let name = node_name_with_phase_and_suffix(phase, &one.step.operator.name, suffix);
        self.emit_collective(name, kind, bytes, ParallelGroupKind::Context, phase, to);
    }
}

/// Returns the bytes of all tokens' keys and values.
fn all_tokens_key_value_bytes(one: &MemberOperator<'_>) -> u64 {
    let [tokens, own] = ['t', 'm'].map(|axis| u128::from(one.spec.extent_of_axis(axis)));
    let bytes = u128::from(one.context_bytes[1]) * tokens / own.max(1);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
