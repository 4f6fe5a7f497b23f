//! Experts of a rank under expert parallelism: of the `x` experts of a layer `x / e`, for a degree of `e`.
//!
//! The ranks of a stage are `tensor x context x data` for attention and `expert_tensor x expert x replicas` for experts, as in
//! Megatron-LM's `--expert-tensor-parallel-size`: each expert is cut among `expert_tensor` neighbours of a tensor group, `expert`
//! blocks of them have the experts of a layer between them, and the `replicas` that have the same shard of the same experts sum
//! its gradients. With sequence parallelism each member of a tensor group sends the copies of its own tokens; members that cut an
//! expert gather theirs.
//!
//! Routing is even: of `t` tokens with `c` copies each a rank sends `t c`, receives as many, and runs them through its own
//! experts. So rows stay as they are and weights are divided.

use crate::generate::plan::{ParallelismPlan, RecomputePolicy};
use crate::generate::{GenerateError, refused};
use crate::model::{Model, OperatorKind};
use std::borrow::Cow;

/// `model` with the experts that a rank has.
pub(super) fn local<'m>(model: Cow<'m, Model>, plan: &ParallelismPlan) -> Cow<'m, Model> {
    if plan.expert == 1 {
        return model;
    }
    let mut model = model.into_owned();
    let operators = model.layers.iter_mut().flat_map(|one| &mut one.operators);
    for operator in operators {
        if let OperatorKind::ExpertLinear { experts, .. } = &mut operator.work {
            *experts = experts.div_ceil(plan.expert.into());
        }
    }
    Cow::Owned(model)
}

/// Refuses degrees that do not divide the experts of `model`, and what no rule is known for.
pub(super) fn check(model: &Model, plan: &ParallelismPlan) -> Result<(), GenerateError> {
    let operators = model.runs().flat_map(|run| &run[0].operators);
    let own = operators.map(|one| (one, one.work.spec().expert_weights()));
    let mut own = own.filter(|(_, experts)| *experts > 0).peekable();
    if own.peek().is_none() {
        if plan.expert > 1 {
            let expected = format!("1 for {}, which has no experts", model.name);
            return Err(refused("expert", plan.expert, expected));
        }
        if let Some(degree) = plan.expert_tensor {
            let expected = format!("none for {}, which has no experts", model.name);
            return Err(refused("expert_tensor", degree, expected));
        }
        return Ok(());
    }
    if plan.recompute == RecomputePolicy::Operators {
        let expected = "none, selective or full for a model with experts";
        return Err(refused("recompute", plan.recompute, expected));
    }
    let tokens = model.sequence / u64::from(plan.context.max(1));
    if plan.shares_out_experts() && !tokens.is_multiple_of(plan.tensor.into()) {
        let expected = format!(
            "tensor: the {tokens} tokens of a rank's sequences are no multiple of tensor = {}",
            plan.tensor
        );
        return Err(refused("expert_tensor", plan.tensor_of_experts(), expected));
    }
    match own.find(|(_, experts)| !experts.is_multiple_of(plan.expert.into())) {
        Some((operator, experts)) => {
            let expected = format!("a divisor of the {experts} experts of {}", operator.name);
            Err(refused("expert", plan.expert, expected))
        }
        None => Ok(()),
    }
}
