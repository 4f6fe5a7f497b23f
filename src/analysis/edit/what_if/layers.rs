//! Changes the number of layers. Layers are parts of a step that occur equally often in the forward pass and in the
//! backward pass.
//!
//! Layers are found by their structure: a sequence of operators with shapes that is repeated without gaps. The longest
//! such repetition in the forward pass gives the number of layers. The backward pass must have the same number of
//! repetitions, but the optimizer may have a different number. Added layers are copies of an inner layer; removed
//! layers are inner layers. The gradient reductions are divided into new buckets.
//!
//! Work on parameters that is not done once per layer (such as a fused optimizer, or copies out of buckets) is scaled
//! by the number of parameters.

use super::MatchedAndChangedItemCounts;
use super::gradients::{self, CollectiveTimesPerKib, StepGradientReductions};
use super::grammar::AddedLayersOrScaleFactor;
use super::program::EditableRankProgram;
use chakram_trace::format::TraceError;
use std::collections::BTreeSet;

mod buckets;
mod copies;
mod labels;
mod parameters;
mod passes;
mod repetition;

use buckets::StepGradientBuckets;
pub(super) use buckets::{BUCKETS, BucketLimitAndLayerBytes};
use copies::{
    LayerEditor, PassLayers, collect_layer_nodes_with_transfers, have_same_operators_and_transfers,
    label_of_generated_layer,
};
use labels::AddedLayerCountByLabelRange;
pub(super) use labels::shift_layer_labels_of_all_nodes;
use passes::{
    PassNodesWithSignatures, StepPasses, find_layers_as_longest_repetition,
    find_repetitions_of_period_and_count,
};
use repetition::{NodeRepetitionPeriodAndCount, longest_repetition};

/// The repeated layers on all ranks of a job. A stage may contain several parts of the model, each with its own layers.
#[derive(Debug, Default)]
pub(super) struct JobRepeatedLayerLabels {
    /// Number of pipeline stages times the number of parts per stage.
    parts: u64,
    labels: AddedLayerCountByLabelRange,
}

impl JobRepeatedLayerLabels {
    /// Adds the layers of a rank in a job with `stages` stages.
    pub fn learn_rank(
        &mut self,
        program: &EditableRankProgram<'_>,
        stages: u32,
        change: AddedLayersOrScaleFactor,
    ) -> Result<(), TraceError> {
        let reductions =
            StepGradientReductions::find_reductions(program, 0).keep_bucket_reductions(program);
        let passes = StepPasses::find_passes(program, 0, &reductions);
        let Some((layers, runs)) = find_repeated_layers_in_forward_passes(&passes) else {
            return Ok(());
        };
        let mut labels = BTreeSet::new();
        for (pass, found) in &runs {
            let label = |index| {
                label_of_generated_layer(
                    program,
                    passes.forward[*pass].items_of_repetition(*found, index),
                )
            };
            labels.extend(label(0).zip(label(found.times - 1)));
        }
        self.parts = self
            .parts
            .max(u64::from(stages) * labels.len().max(1) as u64);
        let by = self.compute_added_layers_of_part(layers.times as u64, change)?;
        self.labels
            .0
            .extend(labels.into_iter().map(|label| (label, by)));
        Ok(())
    }

    /// Returns the number of layers to add to a part that has `old` layers. Fails if the parts would end up with
    /// different numbers of layers.
    fn compute_added_layers_of_part(
        &self,
        old: u64,
        change: AddedLayersOrScaleFactor,
    ) -> Result<i64, TraceError> {
        let parts = self.parts.max(1) as i64;
        match change {
            AddedLayersOrScaleFactor::By(by) if by % parts == 0 => Ok(by / parts),
            AddedLayersOrScaleFactor::By(by) => Err(super::refuse_edit(
                format!("layers={by:+}: the {parts} stages must get equally many layers"),
                &format!("a multiple of {parts}"),
            )),
            AddedLayersOrScaleFactor::Times(factor)
                if (old * factor.over).is_multiple_of(factor.under) =>
            {
                Ok(factor.scale_value(old) as i64 - old as i64)
            }
            AddedLayersOrScaleFactor::Times(factor) => Err(super::refuse_edit(
                format!("{old} layers times {factor} are not a whole number"),
                "another factor, or a number of layers such as layers=+2",
            )),
        }
    }
}

/// Returns the longest repetition in a step's forward passes, which gives the layers, and all repetitions of the same
/// length and count, each with the index of its pass.
fn find_repeated_layers_in_forward_passes(
    passes: &StepPasses,
) -> Option<(
    NodeRepetitionPeriodAndCount,
    Vec<(usize, NodeRepetitionPeriodAndCount)>,
)> {
    let found = passes
        .forward
        .iter()
        .filter_map(find_layers_as_longest_repetition);
    let layers = found.max_by_key(|found| found.covered_count())?;
    let runs = find_repetitions_of_period_and_count(&passes.forward, layers.period, layers.times);
    // The repetition must cover 40 % of the passes, because a shorter repetition may occur inside a layer.
    let covered: usize = runs.iter().map(|(_, found)| found.covered_count()).sum();
    let passed: BTreeSet<usize> = runs.iter().map(|(pass, _)| *pass).collect();
    let all: usize = passed
        .iter()
        .map(|&pass| passes.forward[pass].items.len())
        .sum();
    (covered * 5 >= all * 2).then_some((layers, runs))
}

/// Changes the number of layers on a rank. Returns the counts, and the number of layers added to the whole job.
pub(super) fn change_layer_count_on_rank(
    program: &mut EditableRankProgram<'_>,
    change: AddedLayersOrScaleFactor,
    job: &JobRepeatedLayerLabels,
    rates: &CollectiveTimesPerKib,
) -> Result<(MatchedAndChangedItemCounts, AddedLayersAndBucketSizes), TraceError> {
    let mut counts = MatchedAndChangedItemCounts::default();
    let (mut delta, mut buckets) = (0, None);
    for step in 0..program.steps {
        let found = change_layers_in_step(program, step, change, job, rates, &mut counts)?;
        if let Some((by, of_step)) = found {
            (delta, buckets) = (by, buckets.or(of_step));
        }
    }
    if counts.matched == 0 {
        return Err(super::refuse_edit(
            "the layers are unknown: no sequence of operators is repeated equally often in the forward and the backward pass",
            "edit a job with identical layers",
        ));
    }
    let changed = AddedLayersAndBucketSizes {
        by: delta * job.parts.max(1) as i64,
        buckets,
    };
    Ok((counts, changed))
}

/// Result of editing layers: the number of layers added to the whole job, and the bucket sizes of gradients.
pub(super) struct AddedLayersAndBucketSizes {
    pub by: i64,
    pub buckets: Option<BucketLimitAndLayerBytes>,
}

fn change_layers_in_step(
    program: &mut EditableRankProgram<'_>,
    step: u32,
    change: AddedLayersOrScaleFactor,
    job: &JobRepeatedLayerLabels,
    rates: &CollectiveTimesPerKib,
    counts: &mut MatchedAndChangedItemCounts,
) -> Result<Option<(i64, Option<BucketLimitAndLayerBytes>)>, TraceError> {
    let all = StepGradientReductions::find_reductions(program, step);
    let is_apart = |&item: &u32| {
        let is_sum = program.has_layers && program.facts_of_item(item).layer.is_none();
        !is_sum
            && !gradients::is_bucket_reduction(program, item)
            && program.items[item as usize].caller.is_none()
    };
    if all.collectives.iter().any(is_apart) {
        return Err(super::refuse_edit(
            "the reductions of gradient shards belong to no layer, so the reductions of more layers are unknown",
            "generate the job with the number of layers that you want",
        ));
    }
    let reductions = all.keep_bucket_reductions(program);
    let passes = StepPasses::find_passes(program, step, &reductions);
    let Some((layers, forward)) = find_repeated_layers_in_forward_passes(&passes) else {
        return Ok(None);
    };
    // The parameters of the first or last layer of a backward pass are not gathered ahead, so this layer may differ
    // from the others.
    let fewer = Some(layers.times - 1).filter(|&times| times > 1);
    let mut backward = Vec::new();
    let mut unlike = Vec::new();
    for (index, pass) in passes.backward.iter().enumerate() {
        let exact = [Some(layers.times), fewer]
            .into_iter()
            .flatten()
            .find_map(|times| {
                let found = longest_repetition(&pass.signatures, Some(times))?;
                (found.covered_count() * 5 >= pass.items.len() * 2).then_some(found)
            });
        match exact {
            Some(found) => backward.push((index, found)),
            None => unlike.push(index),
        }
    }
    let trains = !passes.backward.is_empty();
    let blocks = match unlike.is_empty() {
        true => Vec::new(),
        false => passes
            .find_backward_layers_by_autograd_sequence(program, &forward, &unlike)
            .ok_or_else(|| {
                super::refuse_edit(
                    format!(
                        "the forward pass repeats {} nodes {} times, but the backward pass repeats no sequence equally often",
                        layers.period, layers.times
                    ),
                    "edit a job with identical layers",
                )
            })?,
    };
    let old = layers.times as i64;
    let by = job.compute_added_layers_of_part(layers.times as u64, change)?;
    let new = old.saturating_add(by);
    if !(1..=100_000).contains(&new) {
        return Err(super::refuse_edit(
            format!("the job would have {new} layers"),
            "1 to 100000 layers",
        ));
    }
    counts.matched += layers.times as u64 * forward.len() as u64;
    counts.changed += by.unsigned_abs() * forward.len() as u64;
    let copied = passes.forward.iter().chain(&passes.backward);
    let copied = copied.map(|pass| pass.items.len()).sum::<usize>() / layers.times + 1;
    super::check_memory_for_copies(copied, by.max(0) as u64)?;
    if by == 0 {
        return Ok(Some((0, None)));
    }
    if -by >= old - 1
        && backward
            .first()
            .is_some_and(|(_, found)| (found.times as i64) < old)
    {
        return Err(super::refuse_edit(
            "the layers differ in the backward pass, so at least two must stay",
            "keep two layers",
        ));
    }
    if !blocks.is_empty() && -by + 2 > old {
        return Err(super::refuse_edit(
            "the first and the last layer differ from the others, so neither can be removed",
            "keep two layers",
        ));
    }
    let weights = parameters::weight_bytes_of_job_and_one_layer(program, &passes, &backward);
    let repeated: Vec<(u32, u32)> = forward
        .iter()
        .filter_map(|(pass, found)| {
            let label = |index| {
                label_of_generated_layer(
                    program,
                    passes.forward[*pass].items_of_repetition(*found, index),
                )
            };
            label(0).zip(label(found.times - 1))
        })
        .collect();
    let layer_bytes = weights.map(|(_, layer)| layer);
    let buckets = StepGradientBuckets::find_buckets(
        program,
        step,
        &reductions,
        &passes,
        &repeated,
        layer_bytes,
    )?;
    if !blocks.is_empty() {
        // On some ranks, transfers start late, so the traces list them in different orders. Move each transfer to
        // directly after its launch, so that all ranks have the same order.
        program.move_transfers_after_launches(step);
    }
    let optimizer = longest_repetition(&passes.optimizer.signatures, Some(layers.times));
    let optimizer =
        optimizer.filter(|found| found.covered_count() * 4 > passes.optimizer.items.len());
    let mut runs = Vec::new();
    for (pass, found) in &forward {
        runs.push(collect_pass_layers_and_copy_template(
            program,
            &passes.forward[*pass],
            *found,
            false,
            by,
        ));
    }
    for (pass, found) in &backward {
        runs.push(collect_pass_layers_and_copy_template(
            program,
            &passes.backward[*pass],
            *found,
            true,
            by,
        ));
    }
    for block in &blocks {
        let parts: Vec<&[u32]> = block.iter().map(Vec::as_slice).collect();
        let layers = collect_layer_nodes_with_transfers(program, &parts);
        let middle = (old + by.min(0)) as usize / 2;
        runs.push(PassLayers {
            backward: true,
            template: middle.saturating_sub(usize::from(by < 0)),
            layers,
        });
    }
    if let Some(found) = optimizer {
        runs.push(collect_pass_layers_and_copy_template(
            program,
            &passes.optimizer,
            found,
            false,
            by,
        ));
    }
    if !blocks.is_empty() {
        counts.notes.insert(
            "layers of the backward pass by the operators whose gradients they compute".to_owned(),
        );
    }
    let mut editor = LayerEditor::new(program, runs, by);
    editor.apply_edit(program, counts);
    job.labels
        .relabel_layers_in_step(program, step, &editor, by);
    buckets.regroup_buckets(program, step, &editor, rates, counts)?;
    let by_weights = weights.map(|(all, layer)| {
        let all = all as f64;
        ((all + layer as f64 * by as f64) / all, Some(u32::MAX))
    });
    let growth = buckets
        .parameter_growth_factor_and_last_hook(program, step)
        .or(by_weights);
    if let (Some((ratio, _)), 0) = (growth, step) {
        parameters::scale_resident_memory(program, ratio);
    }
    match growth {
        Some((ratio, from)) => {
            let steps = optimizer.is_none();
            parameters::scale_parameter_work(program, step, ratio, from, steps, counts);
        }
        None if optimizer.is_none() && trains && !passes.optimizer.items.is_empty() => {
            counts.notes.insert(
                "the optimizer's time is as captured: the parameters of a layer are unknown"
                    .to_owned(),
            );
        }
        None => {}
    }
    Ok(Some((by, buckets.bucket_limit_and_layer_bytes())))
}

/// Returns the layers of a pass, and selects the template to copy: if possible, an inner layer that is equal to a
/// neighbour.
fn collect_pass_layers_and_copy_template(
    program: &EditableRankProgram<'_>,
    pass: &PassNodesWithSignatures,
    found: NodeRepetitionPeriodAndCount,
    backward: bool,
    by: i64,
) -> PassLayers {
    let parts: Vec<&[u32]> = (0..found.times)
        .map(|index| pass.items_of_repetition(found, index))
        .collect();
    let layers = collect_layer_nodes_with_transfers(program, &parts);
    let times = layers.len();
    let is_alike =
        |at: usize| have_same_operators_and_transfers(program, &layers[at], &layers[at - 1]);
    let left = (times as i64 + by.min(0)).max(1) as usize;
    let template = match backward {
        true => (2..times).find(|&at| is_alike(at)).map_or(1, |at| at - 1),
        // Select the template by its distance from the end, which an edit does not change, so that the inverse edit
        // removes the copies.
        false => {
            let last = (1..times.saturating_sub(1)).rev().find(|&at| is_alike(at));
            let from_end = last.map_or(2, |at| times - at);
            left.saturating_sub(from_end)
        }
    };
    PassLayers {
        backward,
        template: template.min(left.saturating_sub(2)),
        layers,
    }
}
