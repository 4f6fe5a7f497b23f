//! Lowers the layers of a model to programs. Equal layers are lowered only once.

use super::MOST_GROUPS;
use super::dataflow::{ActivationLayoutTracer, ShardedActivation, ShardedLayerOperatorsAndOutput};
use super::layer::{LayerLoweringOptions, LoweredLayer};
use super::shard_spec::OperatorShardingByMemberDigits;
use super::sharded::ShardedLayerLowerer;
use super::stage_cuts::first_layers_of_parts;
use super::tied_embedding::TiedEmbeddingTable;
use crate::generate::plan::{ParallelismPlan, RecomputePolicy};
use crate::generate::sharding::EqualSizedMemberGroups;
use crate::generate::{PatternOptionError, check_limit, refused_option_value_error};
use crate::model::{LayerRole, Model};

/// A lowered layer, kept as an example for later equal layers.
struct LoweredLayerExample<'m> {
    layer: usize,
    /// Number of members in the layer's tensor group.
    members: u32,
    recompute: RecomputePolicy,
    before: Option<ShardedActivation>,
    flow: ShardedLayerOperatorsAndOutput<'m>,
}

/// Rejects a sharded input of layer `i` if the previous layer's stage has a different tensor degree
/// (`unlike`), because groups of different sizes cannot exchange shards.
fn refuse_sharded_input_from_unlike_stage(
    i: usize,
    held: &Option<ShardedActivation>,
    unlike: bool,
) -> Result<(), PatternOptionError> {
    let shards = held.as_ref().map_or(1, |held| held.layout.shard_count());
    if unlike && shards > 1 {
        let expected = format!("equal degrees at layer {i}, whose input has {shards} shards");
        return Err(refused_option_value_error(
            "stage_tensor",
            "unlike degrees",
            expected,
        ));
    }
    Ok(())
}

/// The distinct layers of a model and, for each layer of the model, the index of its distinct layer.
pub(super) struct DistinctLayers {
    pub lowered: Vec<LoweredLayer>,
    pub lowered_of: Vec<u32>,
    pub partitions: Vec<EqualSizedMemberGroups>,
    pub slots: u32,
    pub ring_slots: u32,
}

impl DistinctLayers {
    /// Lowers the layers of `model`. Layers with the same operators, inputs and position in their
    /// stage are lowered only once.
    pub fn new(
        model: &Model,
        plan: &ParallelismPlan,
        context: &LayerLoweringOptions,
    ) -> Result<Self, PatternOptionError> {
        let mut follow = ActivationLayoutTracer::new(model, plan, context);
        let mut lowering = {
            let [first, last] = plan.stages_of_model_ends();
            ShardedLayerLowerer::new(*context, first != last)
        };
        let mut tied = TiedEmbeddingTable::default();
        let mut lowered: Vec<LoweredLayer> = Vec::new();
        let mut examples: Vec<LoweredLayerExample<'_>> = Vec::new();
        let mut lowered_of = Vec::new();
        let (mut held, mut cuts) = (None, false);
        let starts = first_layers_of_parts(model, plan);
        let part_of = |layer: usize| starts.partition_point(|start| *start <= layer) - 1;
        let mut members = plan.tensor;
        for (i, layer) in model.layers.iter().enumerate() {
            if plan.has_uneven_tensor_degrees() {
                let own = plan.tensor_degree_of_stage(part_of(i) as u32 % plan.pipeline);
                refuse_sharded_input_from_unlike_stage(i, &held, own != members)?;
                members = own;
                (follow.members, lowering.context.tensor) = (own, own.into());
            }
            let before = &model.layers[starts[part_of(i)]..i];
            let blocks = before.iter().filter(|one| one.role == LayerRole::Block);
            let is_kept =
                (plan.recompute_blocks).is_some_and(|most| blocks.count() >= most as usize);
            let recompute = match is_kept {
                true => RecomputePolicy::None,
                false => context.recompute,
            };
            lowering.context.recompute = recompute;
            // Patterns select operators by layer names, so with degrees for individual operators, every layer is
            // lowered separately. Otherwise, equal layers with equal inputs have equal shardings.
            let known = examples.iter().rposition(|one| {
                let example = &model.layers[one.layer];
                (one.members, one.before) == (members, held)
                    && one.recompute == recompute
                    && (example.role, &example.operators) == (layer.role, &layer.operators)
            });
            if let (true, Some(known)) = (plan.operators.is_empty(), known) {
                held = Some(examples[known].flow.end);
                lowered_of.push(known as u32);
                continue;
            }
            let flow = follow.trace_layer_layouts(layer, held)?;
            for step in &flow.steps {
                tied.record_table_or_check_tied_product(&layer.name, step)?;
                cuts |= step.cutting != OperatorShardingByMemberDigits::WHOLE;
            }
            let before = held.replace(flow.end);
            let same = |one: &LoweredLayerExample<'_>| {
                let role = model.layers[one.layer].role;
                (one.members, role) == (members, layer.role)
                    && one.recompute == recompute
                    && one.flow == flow
            };
            let known = examples.iter().position(same);
            lowered_of.push(known.unwrap_or(lowered.len()) as u32);
            if known.is_none() {
                lowered.push(lowering.lower_layer(layer, &flow)?);
                examples.push(LoweredLayerExample {
                    layer: i,
                    members,
                    recompute,
                    before,
                    flow,
                });
            }
        }
        if follow.derives && !cuts {
            let expected = format!("a number that divides sizes of operators of {}", model.name);
            return Err(refused_option_value_error("tensor", plan.tensor, expected));
        }
        if plan.has_uneven_tensor_degrees()
            && (lowering.slots > 0 || !lowering.partitions.is_empty())
        {
            let expected = format!(
                "one degree for all stages, because members of a tensor group of {} exchange messages or form groups",
                model.name
            );
            return Err(refused_option_value_error(
                "stage_tensor",
                "unlike degrees",
                expected,
            ));
        }
        let groups = lowering.partitions.len() as u128 * plan.rank_count();
        let hint = "fewer different degrees of operators";
        check_limit("groups of operators", groups, MOST_GROUPS, hint)?;
        let partitions = lowering.partitions.len() as u128;
        check_limit(
            "ways to cut a tensor group",
            partitions,
            u16::MAX.into(),
            hint,
        )?;
        Ok(Self {
            lowered,
            lowered_of,
            partitions: lowering.partitions,
            slots: lowering.slots,
            ring_slots: lowering.ring_slots,
        })
    }
}
