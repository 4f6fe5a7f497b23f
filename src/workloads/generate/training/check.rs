//! Checks that a plan can distribute a model.

use super::bytes_per_value;
use super::context_shards;
use super::dataflow::derives_megatron_split_if_none_stated;
use super::emit::MOST_PIECES;
use super::local_experts;
use super::padded_heads::pad_heads;
use super::sharded::reject_modules_absent_from_model;
use super::stage_cuts::first_layers_of_parts;
use super::tensor_cut;
use crate::generate::plan::{
    AdapterSums, ContextExchange, ExpertProducts, ParallelAxis, ParallelismPlan, ResidencyRule,
    SplitUnit,
};
use crate::generate::schedule::PipelineSchedule;
use crate::generate::{
    MOST_NODES, MOST_WORK, PatternOptionError, check_limit, refused_option_value_error,
};
use crate::model::{LayerOperator, LayerRole, Model};
use chakram_base::ids::MAX_NPUS;

/// Maximum number of members in a tensor group, if operators have their own degrees. It exists because later code
/// compares all pairs of members.
const MOST_MEMBERS: u64 = 1 << 12;

/// Checks that `plan` can distribute `model`, and returns the number of micro-batches per step.
pub(super) fn check_plan_and_count_micro_batches(
    model: &Model,
    plan: &ParallelismPlan,
) -> Result<u32, PatternOptionError> {
    plan.check_values()?;
    check_parallel_degrees(plan)?;
    plan.check_core_for_each_rank()?;
    check_total_layers_of_stages(model, plan)?;
    let micro_batches = check_batch_and_count_micro_batches(plan)?;
    plan.schedule
        .check_stage_and_micro_batch_counts(plan.pipeline, micro_batches)?;
    plan.check_option_combinations()?;
    check_layers_fit_stages(model, plan)?;
    local_experts::check_expert_degrees(model, plan)?;
    reject_modules_absent_from_model(model, plan)?;
    context_shards::check_context_degree(model, plan)?;
    let model = &*pad_heads(model, plan)?;
    let derived = derives_megatron_split_if_none_stated(model, plan);
    if plan.operators.is_empty() {
        check_stage_tensor_degrees(model, plan)?;
    }
    if derived || !plan.operators.is_empty() {
        check_operator_degrees(model, plan)?;
    }
    check_smallest_tile_fits_sram(model, plan)?;
    check_tied_gradients_last(model, plan, micro_batches)?;
    let parts = u128::from(plan.pipeline) * u128::from(plan.schedule.chunk_count());
    let tags = 2 * u128::from(plan.steps) * parts * u128::from(micro_batches);
    check_limit(
        "messages of a job",
        tags,
        i32::MAX as u64,
        "fewer steps or micro-batches",
    )?;
    check_no_overflow(model, plan)?;
    let nodes = max_nodes_per_rank(model, plan, micro_batches);
    check_limit(
        "nodes of one rank of every stage",
        nodes,
        MOST_NODES,
        "fewer steps or micro-batches",
    )?;
    Ok(micro_batches)
}

/// If a stage has both the model's first and last parts, which share a tied matrix, checks that it completes the first
/// part's gradients last. The tied matrix's gradients are summed when the first part is complete, so the last part's
/// gradients must be complete by then.
fn check_tied_gradients_last(
    model: &Model,
    plan: &ParallelismPlan,
    micro_batches: u32,
) -> Result<(), PatternOptionError> {
    let [first, last] = plan.stages_of_model_ends();
    let mut operators = model.equal_layer_runs().flat_map(|run| &run[0].operators);
    let is_tied =
        |one: &LayerOperator| one.work.to_axes_and_tensors().tied_weight_count().is_some();
    if first != last || plan.pipeline == 1 || !plan.has_training() || !operators.any(is_tied) {
        return Ok(());
    }
    let part_of = |chunk| plan.schedule.part_of_chunk(first, chunk, plan.pipeline);
    let completed = plan
        .schedule
        .steps_of_stage(first, plan.pipeline, micro_batches)
        .filter(|step| step.completes)
        .map(|step| part_of(step.beside.unwrap_or(step.pass).chunk))
        .last();
    if completed == Some(0) {
        return Ok(());
    }
    let expected = format!(
        "orders that end with the first part on its stage, because the first and the last part share one matrix of \
         {}",
        model.name
    );
    Err(refused_option_value_error(
        "pass_orders",
        "others",
        expected,
    ))
}

/// Rejects plans whose smallest matrix-product tile does not fit into SRAM: a row of inputs, a column of weights, and
/// their result. If a product sums over K values, each core of a tensor group with t cores has at least K / t of them.
fn check_smallest_tile_fits_sram(
    model: &Model,
    plan: &ParallelismPlan,
) -> Result<(), PatternOptionError> {
    let (Some(sram), true) = (plan.sram, plan.residency != ResidencyRule::None) else {
        return Ok(());
    };
    let members = plan.tensor_degrees().max().unwrap_or(1).max(1);
    let row = |operator: &LayerOperator| {
        let spec = operator.work.to_axes_and_tensors();
        let summed = if spec.sums_over_input_columns() {
            spec.extent_of_axis('k')
        } else {
            0
        };
        summed.div_ceil(members.into())
    };
    let operators = model.equal_layer_runs().flat_map(|run| &run[0].operators);
    let Some(widest) = operators.max_by_key(|operator| row(operator)) else {
        return Ok(());
    };
    let row = row(widest);
    let tile = row.saturating_mul(2).saturating_add(1);
    let tile = tile.saturating_mul(bytes_per_value(plan.dtype));
    if sram >= tile {
        return Ok(());
    }
    let expected = format!(
        "at least {tile} B for a tile of {}: a row of {row} inputs, a column of weights of equal length, and their result",
        widest.name
    );
    Err(refused_option_value_error(
        "sram",
        format!("{sram} B"),
        expected,
    ))
}

/// Upper bound on the number of nodes of a rank: the sum, over all stages, of one rank's nodes.
pub(super) fn max_nodes_per_rank(
    model: &Model,
    plan: &ParallelismPlan,
    micro_batches: u32,
) -> u128 {
    let parts = u128::from(plan.pipeline) * u128::from(plan.schedule.chunk_count());
    // An operator has at most 28 nodes, for both directions together and including reductions and messages. With a
    // residency rule, at most four of these are kernels with operands: the forward kernel, its recomputation, and two
    // backward kernels (gradients of the input and of the weights). Each of them has a load, a store, and a node that
    // waits for both; the optimizer has one load and one store.
    let accesses = match (plan.residency, plan.largest_access) {
        (ResidencyRule::None, _) => 0,
        (_, None) => 1,
        (_, Some(_)) => u128::from(MOST_PIECES),
    };
    let waits = accesses.min(1);
    // Each expert has kernels for casts, for a matrix product and its two gradients, and the additional kernels that
    // these products need.
    let experts = match plan.expert_products {
        ExpertProducts::OneByOne => {
            let operators = model.equal_layer_runs().flat_map(|run| &run[0].operators);
            let most = operators
                .map(|one| one.work.to_axes_and_tensors().expert_weights())
                .max();
            u128::from(most.unwrap_or(0) / u64::from(plan.expert.max(1)))
        }
        ExpertProducts::Grouped | ExpertProducts::Fused => 0,
    };
    // With an adapter, an operator has three matrix products instead of one, with their gradients
    // and sums.
    let products = if plan.lora.is_some() { 3 } else { 1 };
    // Each step of a ring has a kernel, a merge, and up to four messages per direction.
    let steps = match plan.context_exchange {
        ContextExchange::Ring => 24 * u128::from(plan.context),
        ContextExchange::AllGather | ContextExchange::AllToAll => 0,
    };
    // Each of an operator's two gradients may be summed over the copies of its shard, and each block may store and load
    // its activations.
    let copies = if plan.has_several_ranks_per_state_shard() {
        2
    } else {
        0
    };
    let copies = copies + if plan.offload_activations { 2 } else { 0 };
    let each =
        steps + copies + products * (28 + 15 * experts) + 4 * (2 * accesses + waits) + 2 * accesses;
    let operators = model.layers.iter();
    let operators = operators.map(|layer| layer.operators.len() as u128);
    let of_pass = (operators.sum::<u128>() + parts) * each;
    of_pass * u128::from(plan.steps) * u128::from(micro_batches)
}

/// Maximum number of samples in a micro-batch.
const MOST_SAMPLES: u64 = u32::MAX as u64;

/// Upper bound on the bytes per parameter: its weight, gradient and optimizer state, and the bytes that a step moves
/// for it. The largest sum is 86 bytes, for Adam with 8-byte values and all additional passes.
const STATE: u128 = 96;

/// Rejects models and batches for which sums could overflow later. Sums of FLOPs must fit into 128 bits, and a rank's
/// total number of bytes at any time must fit into 64 bits. The bounds use the whole model, because a rank's part of an
/// operator never exceeds the operator.
fn check_no_overflow(model: &Model, plan: &ParallelismPlan) -> Result<(), PatternOptionError> {
    let most = |what, found, limit, hint| check_limit(what, found, limit, hint).map(drop);
    let samples = u128::from(plan.micro_batch);
    let fewer = "a smaller micro-batch";
    most("samples of a micro-batch", samples, MOST_SAMPLES, fewer)?;
    let all = u128::from(plan.batch) * u128::from(plan.steps);
    most(
        "samples of a job",
        all,
        MOST_WORK / 8,
        "fewer samples or steps",
    )?;
    let (number, fused) = (bytes_per_value(plan.dtype), plan.attention.is_fused());
    let (mut weights, mut multiplications, mut kept, mut widest) = (0, 0, 0, 0);
    let operators = model.equal_layer_runs().flat_map(|run| {
        let works = run[0].operators.iter().map(|operator| &operator.work);
        works.map(|work| (work, run.len() as u128))
    });
    for (work, times) in operators {
        // Count a tied matrix twice, because the last pipeline stage has a copy of it.
        weights += times
            * work
                .to_axes_and_tensors()
                .weight_gradient_element_counts(true)
                .fold(0, u128::saturating_add);
        multiplications += times * u128::from(work.multiplication_count());
        kept += times * u128::from(work.saved_bytes(number, fused));
        widest = widest
            .max(work.input_elements())
            .max(work.output_elements());
    }
    let smaller = "a smaller model";
    most(
        "bytes of parameters and their state",
        weights * STATE,
        MOST_WORK,
        smaller,
    )?;
    most(
        "multiplications of a sample",
        multiplications,
        u64::MAX - 1,
        smaller,
    )?;
    // Add the largest input or output, with the widest format (8 bytes per element).
    let kept = (kept + 8 * u128::from(widest)) * samples;
    most(
        "bytes of a micro-batch in all layers",
        kept,
        MOST_WORK,
        fewer,
    )
}

fn check_parallel_degrees(plan: &ParallelismPlan) -> Result<(), PatternOptionError> {
    let ranks = plan.rank_count();
    if ranks > MAX_NPUS.into() {
        let expected = format!("{MAX_NPUS} ranks or fewer, as machines have NPUs");
        return Err(refused_option_value_error(
            "data x tensor x pipeline",
            ranks,
            expected,
        ));
    }
    for (axis, word) in ParallelAxis::ALL {
        if !plan.order.contains(axis) {
            let found = plan.order.map(|axis| axis.to_string()).join(",");
            let expected = format!("tp, dp and pp in some order; {word} is missing");
            return Err(refused_option_value_error("order", found, expected));
        }
    }
    if !plan.ranks.is_empty() {
        let mut sorted = plan.ranks.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().map(u64::from).eq(0..ranks as u64) {
            let last = ranks.saturating_sub(1);
            let expected = format!("each rank from 0 to {last} once, at its position");
            let found = format!("a list of {}", plan.ranks.len());
            return Err(refused_option_value_error("ranks", found, expected));
        }
    }
    Ok(())
}

fn check_batch_and_count_micro_batches(plan: &ParallelismPlan) -> Result<u32, PatternOptionError> {
    // Compute in 128 bits, because no earlier check limits the options.
    let at_once = u128::from(plan.data) * u128::from(plan.micro_batch);
    if !u128::from(plan.batch).is_multiple_of(at_once) {
        let expected = format!(
            "a multiple of data x micro_batch, {} x {} = {at_once}",
            plan.data, plan.micro_batch
        );
        return Err(refused_option_value_error("batch", plan.batch, expected));
    }
    let count = u128::from(plan.batch) / at_once;
    let most = u64::from(u32::MAX);
    let count = check_limit("micro-batches", count, most, "a larger micro-batch")?;
    Ok(count as u32)
}

fn check_layers_fit_stages(
    model: &Model,
    plan: &ParallelismPlan,
) -> Result<(), PatternOptionError> {
    let count = model.layers.len();
    if count == 0 || model.layers.iter().any(|layer| layer.operators.is_empty()) {
        return Err(refused_option_value_error(
            "model",
            &model.name,
            "layers with operators",
        ));
    }
    let chunks = plan.schedule.chunk_count();
    let parts = u64::from(plan.schedule.part_count(plan.pipeline));
    if let (PipelineSchedule::LayerWise { .. }, true) = (&plan.schedule, plan.pipeline > 1) {
        let expected = "1 with schedule = layer-wise, which has every layer on all ranks";
        return Err(refused_option_value_error(
            "pipeline",
            plan.pipeline,
            expected,
        ));
    }
    if !plan.stages.is_empty() {
        return check_stage_layer_ranges(plan, count, parts);
    }
    if matches!(plan.schedule, PipelineSchedule::LayerWise { .. }) {
        return Ok(());
    }
    if plan.split != SplitUnit::Blocks {
        return check_layers_divisible(plan, count as u64, parts);
    }
    let blocks = model
        .layers
        .iter()
        .filter(|layer| layer.role == LayerRole::Block)
        .count() as u64;
    if !blocks.is_multiple_of(parts) || blocks < parts && parts > 1 {
        let times = match chunks {
            1 => String::new(),
            _ => format!("a number that times {chunks} chunks is "),
        };
        let expected = format!(
            "{times}a divisor of the {blocks} blocks of {}; or split = multiplications; or `[[stage]]` with the \
             layers of each stage, which are {}",
            model.name,
            describe_layers(model)
        );
        return Err(refused_option_value_error(
            "pipeline",
            plan.pipeline,
            expected,
        ));
    }
    debug_assert!(first_layers_of_parts(model, plan).is_sorted());
    Ok(())
}

/// Rejects a model that cannot be divided among the stages. The number of parts must divide `count`, the number of
/// blocks or layers. If the plan balances multiplications, there must not be more parts than layers.
fn check_layers_divisible(
    plan: &ParallelismPlan,
    count: u64,
    parts: u64,
) -> Result<(), PatternOptionError> {
    let (fits, divides) = match plan.split {
        SplitUnit::Multiplications => (parts <= count, "at most"),
        SplitUnit::Blocks | SplitUnit::Layers => (count.is_multiple_of(parts), "a divisor of"),
    };
    if fits {
        return Ok(());
    }
    let expected = format!(
        "a number that times {} chunks is {divides} all {count} layers, with split = {}",
        plan.schedule.chunk_count(),
        plan.split
    );
    Err(refused_option_value_error(
        "pipeline",
        plan.pipeline,
        expected,
    ))
}

/// Returns a summary of a model's layers for error messages.
fn describe_layers(model: &Model) -> String {
    let count = model.layers.len();
    let is_block = |layer: &crate::model::ModelLayer| layer.role == LayerRole::Block;
    let first = model.layers.iter().position(is_block);
    let last = model.layers.iter().rposition(is_block);
    let (Some(first), Some(last)) = (first, last) else {
        return format!("{count} and no blocks");
    };
    let range = |first: usize, last: usize| {
        if first == last {
            format!("{first} is")
        } else {
            format!("{first}-{last} are")
        }
    };
    let blocks = model.layers.iter().filter(|layer| is_block(layer)).count();
    let mut around = Vec::new();
    if first > 0 {
        around.push(format!("{} before", range(0, first - 1)));
    }
    if last + 1 < count {
        around.push(format!("{} after", range(last + 1, count - 1)));
    }
    if around.is_empty() {
        format!("{count}, all of them blocks")
    } else {
        format!(
            "{count}, of which {} the {blocks} blocks",
            around.join(" and ")
        )
    }
}

/// Describes the layers, of `count`, that no stage of the plan has. Empty if there are none.
fn describe_layers_without_stage(plan: &ParallelismPlan, count: usize) -> String {
    let has_stage = |layer: usize| {
        let mut stages = plan.stages.iter();
        stages.any(|[first, last]| (*first as usize..=*last as usize).contains(&layer))
    };
    let mut ranges: Vec<[usize; 2]> = Vec::new();
    for layer in (0..count).filter(|layer| !has_stage(*layer)) {
        match ranges.last_mut() {
            Some([_, last]) if *last + 1 == layer => *last = layer,
            _ => ranges.push([layer, layer]),
        }
    }
    let ranges: Vec<String> = (ranges.iter())
        .map(|[first, last]| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        })
        .collect();
    match ranges.is_empty() {
        true => String::new(),
        false => format!("; no stage has layer {}", ranges.join(", ")),
    }
}

/// Rejects stages whose total number of layers differs from the model's, for example because the user counted only
/// blocks. This check must precede all others that depend on the model.
fn check_total_layers_of_stages(
    model: &Model,
    plan: &ParallelismPlan,
) -> Result<(), PatternOptionError> {
    let said: u64 = plan.stages.iter().fold(0, |said, [first, last]| {
        said + (u64::from(*last) + 1).saturating_sub((*first).into())
    });
    if plan.stages.is_empty() || said == model.layers.len() as u64 {
        return Ok(());
    }
    let expected = format!(
        "all layers of {}, {}{}",
        model.name,
        describe_layers(model),
        describe_layers_without_stage(plan, model.layers.len())
    );
    Err(refused_option_value_error(
        "stage",
        format!("{said} layers"),
        expected,
    ))
}

/// Rejects stages that are not consecutive ranges of layers, and plans with the wrong number of stages.
/// [`check_total_layers_of_stages`] has already checked that the stages cover all layers, so consecutive ranges end
/// with the last layer.
fn check_stage_layer_ranges(
    plan: &ParallelismPlan,
    count: usize,
    parts: u64,
) -> Result<(), PatternOptionError> {
    let found = plan.stages.len();
    if found as u64 != parts {
        let expected = format!("{parts} ranges, one for each stage and chunk");
        return Err(refused_option_value_error("stage", found, expected));
    }
    let mut next = 0;
    for (i, [first, last]) in plan.stages.iter().enumerate() {
        if *first != next || last < first || *last as usize >= count {
            let expected = format!(
                "at index {i} a range that begins with layer {next} and ends before layer {count}{}",
                describe_layers_without_stage(plan, count)
            );
            return Err(refused_option_value_error(
                "stage",
                format!("{first}-{last}"),
                expected,
            ));
        }
        next = last + 1;
    }
    Ok(())
}

fn check_stage_tensor_degrees(
    model: &Model,
    plan: &ParallelismPlan,
) -> Result<(), PatternOptionError> {
    for members in plan.stage_tensor.iter().filter(|own| **own > 1) {
        check_operators_divisible(model, [(*members).into(); 2])?;
    }
    let [first, last] = [0, plan.pipeline - 1].map(|stage| plan.tensor_degree_of_stage(stage));
    let mut operators = model.equal_layer_runs().flat_map(|run| &run[0].operators);
    let mut is_tied =
        || operators.any(|one| one.work.to_axes_and_tensors().tied_weight_count().is_some());
    if first != last && is_tied() {
        let expected = format!(
            "one degree for the first and the last stage, which both have the embedding's table of {}",
            model.name
        );
        return Err(refused_option_value_error(
            "stage_tensor",
            format!("{first} and {last}"),
            expected,
        ));
    }
    let members = u64::from(plan.tensor);
    if members == 1 {
        return Ok(());
    }
    if plan.sequence_parallel && !model.sequence.is_multiple_of(members) {
        let expected = format!(
            "false: the {} tokens of a sample are no multiple of tensor = {members}",
            model.sequence
        );
        return Err(refused_option_value_error(
            "sequence_parallel",
            "true",
            expected,
        ));
    }
    check_operators_divisible(model, [members, plan.tensor_degree_of_experts().into()])
}

/// Checks that every operator can be sharded over `members` members as its tensor split requires. Operators of experts
/// are sharded over `expert_members` members instead.
fn check_operators_divisible(
    model: &Model,
    [members, expert_members]: [u64; 2],
) -> Result<(), PatternOptionError> {
    let mut own = members;
    for operator in model.equal_layer_runs().flat_map(|run| &run[0].operators) {
        let spec = operator.work.to_axes_and_tensors();
        if spec.expert_weights() > 0 {
            own = expert_members;
        } else if spec.sums_over_input_columns() || spec.exchange.is_some() {
            own = members;
        }
        tensor_cut::check_split_divides_operator(operator, operator.cut, own)?;
    }
    Ok(())
}

/// Checks the operators that have their own degrees in the plan: each operator must exist, and its
/// degrees must be compatible with the rest of the plan.
fn check_operator_degrees(model: &Model, plan: &ParallelismPlan) -> Result<(), PatternOptionError> {
    if plan.scatter_gather {
        let expected = "false where operators have degrees, or a cut that the model does not state: results \
             go to the next stage without resharding";
        return Err(refused_option_value_error(
            "scatter_gather",
            "true",
            expected,
        ));
    }
    if plan.adapter_sums == AdapterSums::Destination {
        let expected =
            "source where operators have degrees, or a cut that the model does not state";
        return Err(refused_option_value_error(
            "adapter_sums",
            plan.adapter_sums,
            expected,
        ));
    }
    check_limit(
        "members of a tensor group if operators have their own degrees",
        plan.tensor.into(),
        MOST_MEMBERS,
        "a smaller tensor degree",
    )?;
    for one in &plan.operators {
        let mut names = model.layers.iter().flat_map(|layer| {
            let operators = layer.operators.iter();
            operators.map(|operator| (&layer.name, &operator.name))
        });
        if !names.any(|(layer, operator)| one.matches_operator(layer, operator)) {
            let expected = format!(
                "an operator of {}, such as {}; `*` stands for any letters, and `layer/operator` for one of a layer",
                model.name, model.layers[0].operators[0].name
            );
            return Err(refused_option_value_error(
                "operator",
                format!("{:?}", one.name),
                expected,
            ));
        }
        if one.degrees.device_count() != plan.tensor.into() {
            let found = one.degrees.device_count();
            let expected = format!(
                "{}, the plan's tensor degree, as the product of b, m, n and k of {:?}",
                plan.tensor, one.name
            );
            return Err(refused_option_value_error("operator", found, expected));
        }
    }
    Ok(())
}

/// Checks that a tensor group's messages need no more tags than exist, and that a rank's nodes need no more ids.
pub(super) fn check_message_tags_and_node_ids(
    model: &Model,
    plan: &ParallelismPlan,
    slots: u32,
    micro_batches: u32,
) -> Result<(), PatternOptionError> {
    let layers = model.layers.len() as u128 * u128::from(slots);
    let tags = layers * u128::from(plan.steps) * u128::from(micro_batches);
    check_limit(
        "messages between members of a tensor group",
        tags,
        i32::MAX as u64,
        "fewer steps or micro-batches",
    )?;
    let nodes = tags * 2 * u128::from(plan.tensor - 1);
    check_limit(
        "messages of a rank",
        nodes,
        MOST_NODES,
        "a smaller tensor degree",
    )
    .map(drop)
}
