//! Recomputation of single modules of a block, as with Megatron-LM's option `recompute-modules`.
//!
//! There are two kinds of modules. The results of *dropped* modules (norms, the products that expand latent vectors,
//! the activation of experts) are not saved for the operators that use them. Before the backward pass of these
//! operators, the module runs again, from its own input, which is saved. *Checkpointed* modules (the MLP, the experts,
//! the shared experts) save only their input. Before their backward pass, they run again, with their exchanges.

use super::MemberOperator;
use crate::generate::plan::{ParallelismPlan, RecomputedModule, RecomputedModules};
use crate::generate::{PatternOptionError, refused_option_value_error};
use crate::model::{LayerRole, Model, ModelLayer, OperatorKind};
use std::ops::Range;

/// Consecutive operators that run again, and the point at which they do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecomputedOperators {
    /// Indices of the operators.
    pub operators: Range<usize>,
    /// Index of the operator whose backward pass follows this rerun.
    pub before: usize,
    /// Bytes that the operators save when they run again.
    pub bytes: u64,
}

/// Returns the module of operator `i` of `layer`, or `None` if the operator belongs to no module in `modules`.
fn module_of_operator(
    layer: &ModelLayer,
    i: usize,
    modules: RecomputedModules,
) -> Option<RecomputedModule> {
    if layer.role != LayerRole::Block {
        return None;
    }
    let operator = &layer.operators[i];
    let name: &str = &operator.name;
    let part = name.split_once('.').map_or(name, |(part, _)| part);
    let of: &[RecomputedModule] = match part {
        "norm1" | "norm2" if name == part => &[RecomputedModule::Norms],
        "mlp" => &[RecomputedModule::Mlp],
        "shared" => &[RecomputedModule::Experts, RecomputedModule::SharedExperts],
        "experts" if matches!(operator.work, OperatorKind::Activation { .. }) => &[
            RecomputedModule::Experts,
            RecomputedModule::ExpertActivation,
        ],
        "experts" => &[RecomputedModule::Experts],
        _ if matches!(operator.work, OperatorKind::LatentUp { .. }) => {
            &[RecomputedModule::LatentUp]
        }
        _ => &[],
    };
    let mut of = of.iter().copied();
    of.find(|module| modules.has_module(*module))
}

/// Lists the operators of `layer` that run again, and lowers the bytes that the operators of `own` save in the forward
/// pass.
pub(super) fn list_recomputed_and_lower_saved_bytes(
    layer: &ModelLayer,
    modules: RecomputedModules,
    own: &mut [MemberOperator<'_>],
    kept: impl Fn(&MemberOperator<'_>) -> u64,
) -> Vec<RecomputedOperators> {
    if modules.is_empty() {
        return Vec::new();
    }
    let of: Vec<Option<RecomputedModule>> = (0..own.len())
        .map(|i| module_of_operator(layer, i, modules))
        .collect();
    let mut groups: Vec<RecomputedOperators> = Vec::new();
    for (i, module) in of.iter().enumerate() {
        let Some(module) = module else { continue };
        let joins = i > 0 && of[i - 1] == Some(*module) && !module.drops_results();
        match groups.last_mut().filter(|_| joins) {
            Some(group) => (group.operators.end, group.before) = (i + 1, i),
            None => groups.push(RecomputedOperators {
                operators: i..i + 1,
                before: i,
                bytes: 0,
            }),
        }
    }
    for i in 0..own.len() {
        let Some(&Some(source)) = own[i].step.sources.first() else {
            continue;
        };
        let Some(group) = groups
            .iter_mut()
            .find(|group| group.operators.contains(&source))
        else {
            continue;
        };
        let drops = of[source].is_some_and(RecomputedModule::drops_results);
        let bytes = match (drops, group.operators.contains(&i)) {
            (true, _) => kept(&own[i]).min(own[source].output_bytes),
            (false, true) => kept(&own[i]),
            (false, false) => continue,
        };
        group.before = group.before.max(i);
        group.bytes = group.bytes.saturating_add(bytes);
        own[i].again.dropped += bytes;
    }
    groups
}

/// Rejects modules that no block of `model` has.
pub(in crate::generate::training) fn reject_modules_absent_from_model(
    model: &Model,
    plan: &ParallelismPlan,
) -> Result<(), PatternOptionError> {
    let is_in_model = |module: &RecomputedModule| {
        let mut only = RecomputedModules::default();
        only.add_module(*module);
        let mut layers = model.equal_layer_runs().map(|run| &run[0]);
        layers.any(|layer| {
            (0..layer.operators.len()).any(|i| module_of_operator(layer, i, only).is_some())
        })
    };
    let mut asked = plan.recompute_modules.iter_modules();
    let Some(absent) = asked.find(|module| !is_in_model(module)) else {
        return Ok(());
    };
    let all = RecomputedModule::ALL.iter().map(|(module, _)| *module);
    let present = all.filter(is_in_model).map(|module| module.to_string());
    let expected = match present.collect::<Vec<_>>().join(", ") {
        names if names.is_empty() => format!("none, because {} has no modules", model.name),
        names => format!("modules of {}: {names}", model.name),
    };
    Err(refused_option_value_error(
        "recompute_modules",
        absent,
        expected,
    ))
}
