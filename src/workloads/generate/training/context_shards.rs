//! Context parallelism of degree `c`: each rank has `s / c` of a sequence's `s` tokens.
//!
//! Operators process each token independently, except attention: a query needs the keys and values
//! of every token. Ranks can exchange keys and values in three ways. Below, there are `B` samples,
//! `d` bytes per value, `a` query heads, and `v` key and value heads with `w` columns each:
//!
//! | | attention of a rank | forward | backward |
//! |---|---|---|---|
//! | `all-gather` (Llama Team, "The Llama 3 Herd of Models", 2024, section 3.3.2) | `s / c` queries of all heads, all keys | all-gather of keys and values, `2 d B (s / c) v w` bytes per rank | the same again, and a reduce-scatter of their gradients, `2 d B s v w` |
//! | `all-to-all` (Jacobs et al., "DeepSpeed Ulysses", 2023, section 3) | all tokens, `a / c` and `v / c` heads | all-to-all of queries, keys and values, `d B (s / c) (a + 2 v) w`, and of the output, `d B (s / c) a w` | all-to-all of the gradient of each |
//! | `ring` (Liu et al., "Ring Attention", 2023; Transformer Engine) | `s / c` queries, and in each of `c` steps the keys of one rank | `c - 1` times keys and values to the next rank, `2 d B (s / c) v w` each | the same again, and `c - 1` times their gradients |
//!
//! In a ring, the first step uses the rank's own keys. The transfer for each later step overlaps the previous step's
//! kernel. Each rank holds two pieces of the sequence. With a causal mask, a rank's queries attend to half of another
//! rank's keys. If the other rank is earlier in the context group, all `s / c` queries attend to its first piece. If
//! the other rank is later, half of the queries attend to both of its pieces. In both cases, there are `(s / c)^2 / 2`
//! query-key pairs. The plan treats every rank as if it were always in the first case, which is true only of the last
//! rank. A `merge` kernel adds the result of each step to the results of earlier steps. The backward pass begins with
//! the keys that arrived last. Each rank therefore ends with the summed gradients of its own keys and values.
//!
//! Gathered keys and values are freed after attention. A sequence is divided into `2 c` pieces. Rank `i` has the `i`-th
//! piece from the start and the `i`-th piece from the end of the sequence, so that all ranks compute the same number of
//! causal scores (section 3.3.2 of "The Llama 3 Herd of Models"). Ranks of a context group have the same weights, and
//! each computes a part of the gradients. Gradients are therefore summed over all `data x context` replicas.

use crate::generate::plan::{ContextExchange, ParallelismPlan, RecomputePolicy};
use crate::generate::{PatternOptionError, refused_option_value_error};
use crate::model::{
    AttentionSpan, LayerOperator, Model, OperatorAxesAndTensorsSpec, OperatorKind,
    OperatorShardAxis,
};
use std::borrow::Cow;

/// Returns `model` with only one rank's tokens.
pub(super) fn reduce_model_to_one_context_shard<'m>(
    model: Cow<'m, Model>,
    plan: &ParallelismPlan,
) -> Cow<'m, Model> {
    let shards = u64::from(plan.context);
    if shards == 1 {
        return model;
    }
    let mut model = model.into_owned();
    let operators = model.layers.iter_mut().flat_map(|one| &mut one.operators);
    for operator in operators {
        match (&mut operator.work, plan.context_exchange) {
            (
                OperatorKind::Attention { queries, .. }
                | OperatorKind::ShapedAttention { queries, .. },
                ContextExchange::AllGather,
            ) => {
                *queries /= shards;
            }
            (
                OperatorKind::Attention {
                    tokens, queries, ..
                }
                | OperatorKind::ShapedAttention {
                    tokens, queries, ..
                },
                ContextExchange::Ring,
            ) => {
                *queries /= shards;
                *tokens /= shards;
            }
            (
                work @ (OperatorKind::Attention { .. } | OperatorKind::ShapedAttention { .. }),
                ContextExchange::AllToAll,
            ) => {
                divide_operator_axis_sizes(work, OperatorShardAxis::N, shards);
            }
            (work, _) => divide_operator_axis_sizes(work, OperatorShardAxis::M, shards),
        }
    }
    Cow::Owned(model)
}

fn divide_operator_axis_sizes(work: &mut OperatorKind, axis: OperatorShardAxis, shards: u64) {
    let sizes = work.divisible_sizes_mut().into_iter();
    sizes
        .filter(|(cut, _)| *cut == axis)
        .for_each(|(_, size)| *size /= shards);
}

/// Returns the bytes that a rank exchanges in its context group before and after an operator, for its own tokens. The
/// first number is for queries; the second is for keys and values. `sample` is the number of bytes per value times the
/// number of samples per micro-batch.
pub(super) fn context_exchange_bytes(spec: &OperatorAxesAndTensorsSpec, sample: u128) -> [u64; 2] {
    let bytes = |axes: &str| {
        let all = spec.tensor_element_count(axes).saturating_mul(sample);
        u64::try_from(all).unwrap_or(u64::MAX)
    };
    let keys = bytes("mgw");
    let values = if spec.has_axis('u') {
        bytes("mgu")
    } else {
        keys
    };
    [bytes("mnw"), keys.saturating_add(values)]
}

/// Rejects a degree that does not divide the tokens or heads of `model`. Also rejects operators that chakram cannot
/// shard by tokens.
pub(super) fn check_context_degree(
    model: &Model,
    plan: &ParallelismPlan,
) -> Result<(), PatternOptionError> {
    let shards = u64::from(plan.context);
    if shards == 1 {
        return Ok(());
    }
    let wrong = |expected: String| {
        Err(refused_option_value_error(
            "context",
            plan.context,
            expected,
        ))
    };
    if plan.recompute == RecomputePolicy::Operators {
        let expected = "none, selective or full where tokens of a sequence are shared out";
        return Err(refused_option_value_error(
            "recompute",
            plan.recompute,
            expected,
        ));
    }
    let operators = || model.equal_layer_runs().flat_map(|run| &run[0].operators);
    if !operators().any(|one| one.work.to_axes_and_tensors().is_attention()) {
        return wrong(format!(
            "1 for {}, in which no token needs another",
            model.name
        ));
    }
    operators().try_for_each(|one| match describe_valid_context_degree(one, plan) {
        Some(expected) => wrong(format!("{expected} (operator {})", one.name)),
        None => Ok(()),
    })
}

/// If the plan's degree is invalid for `operator`, describes valid ones.
fn describe_valid_context_degree(
    operator: &LayerOperator,
    plan: &ParallelismPlan,
) -> Option<String> {
    let shards = u64::from(plan.context);
    let spec = operator.work.to_axes_and_tensors();
    if !spec.is_attention() {
        // Images have rows of pixels with halos, and context parallelism has no rule for halos.
        let mut sizes = spec
            .sizes_that_axis_degree_must_divide(OperatorShardAxis::M)
            .peekable();
        if spec.windows.is_some() || sizes.peek().is_none() {
            return Some("1 for a model whose operators are not all over tokens".to_owned());
        }
        let mut odd = sizes.filter(|(size, _)| !size.is_multiple_of(shards));
        return odd
            .next()
            .map(|(size, what)| format!("a divisor of {size} {what}"));
    }
    match plan.context_exchange {
        ContextExchange::AllToAll => {
            let members = shards * u64::from(plan.tensor);
            let mut odd = spec
                .sizes_that_axis_degree_must_divide(OperatorShardAxis::N)
                .filter(|(size, _)| !size.is_multiple_of(members));
            odd.next().map(|(size, what)| {
                format!(
                    "a number that times tensor = {} divides {size} {what}, or context-exchange = all-gather",
                    plan.tensor
                )
            })
        }
        ContextExchange::Ring if is_windowed_attention(&operator.work) => Some(
            "1 with context_exchange = ring: tokens attend to windows, so ranks have unequal work in a step; or \
             context_exchange = all-gather"
                .to_owned(),
        ),
        ContextExchange::AllGather | ContextExchange::Ring => {
            let tokens = spec.extent_of_axis('m');
            let causal = spec.products.iter().any(|one| !one.skipped.is_empty());
            // With a causal mask, each rank needs two pieces, because one piece per rank would make the work unequal.
            let pieces = if causal { 2 * shards } else { shards };
            (!tokens.is_multiple_of(pieces)).then(|| match causal {
                true => format!(
                    "a divisor of half of {tokens} tokens, two pieces of a sequence for each rank"
                ),
                false => format!("a divisor of {tokens} tokens"),
            })
        }
    }
}

fn is_windowed_attention(work: &OperatorKind) -> bool {
    matches!(work, OperatorKind::ShapedAttention { span, .. } if *span != AttentionSpan::All)
}

/// Returns the attention between a rank's queries and the keys of another rank in the ring; `work`
/// is the attention between the rank's queries and its own keys.
pub(super) fn ring_step_attention(work: &OperatorKind) -> OperatorKind {
    let mut block = work.clone();
    match &mut block {
        OperatorKind::Attention {
            tokens,
            causal,
            rotary,
            qk_norm,
            ..
        } => {
            *tokens /= if *causal { 2 } else { 1 };
            (*causal, *rotary, *qk_norm) = (false, false, false);
        }
        OperatorKind::ShapedAttention {
            tokens,
            causal,
            turned,
            sinks,
            qk_norm,
            ..
        } => {
            *tokens /= if *causal { 2 } else { 1 };
            (*causal, *turned, *sinks, *qk_norm) = (false, 0, false, false);
        }
        _ => {}
    }
    block
}
