//! Scales work on parameters, and a rank's parameter memory, to a new number of parameters.

use super::super::MatchedAndChangedItemCounts;
use super::super::program::{EditableRankProgram, NewAttributeValueOrRemoval, TrainingStepPhase};
use super::super::shapes::{count_elements, parse_shapes};
use super::passes::StepPasses;
use super::repetition::NodeRepetitionPeriodAndCount;
use chakram_base::kernel_shape::KernelShape;
use chakram_trace::format::{Op, TensorClass};

/// Returns how many bytes all weights, and one layer's weights, take in a generated job. The layer's bytes are derived
/// from the matrix multiplications that compute the gradients of its weights.
pub(super) fn weight_bytes_of_job_and_one_layer(
    program: &EditableRankProgram<'_>,
    passes: &StepPasses,
    backward: &[(usize, NodeRepetitionPeriodAndCount)],
) -> Option<(u64, u64)> {
    let weights = TensorClass::Weights as usize;
    let all: u64 = program
        .raw
        .nodes
        .iter()
        .map(|node| node.view.memory.allocates[weights])
        .sum();
    let (pass, found) = backward.first()?;
    let part = passes.backward[*pass].items_of_repetition(*found, 0);
    let mut layer = 0;
    for &item in part {
        let view = program.view_of_item(item);
        let shapes = [
            program.facts_of_item(item).inputs,
            program.facts_of_item(item).outputs,
        ]
        .map(parse_shapes);
        if let (
            Some(KernelShape::Gemm { k, .. }),
            Op::Compute {
                dtype: Some(dtype), ..
            },
        ) = (view.kernel, view.op)
            && let ([one, other, ..], [result, ..]) = (&shapes[0][..], &shapes[1][..])
            && one[0] == k
            && other[0] == k
        {
            layer += count_elements(result).saturating_mul(dtype.element_bytes() as u64);
        }
    }
    (all > 0 && layer > 0).then_some((all, layer))
}

/// Multiplies the memory that a generated job states (for weights, gradients and optimizer states) by `ratio`.
pub(super) fn scale_resident_memory(program: &mut EditableRankProgram<'_>, ratio: f64) {
    for item in program.order.clone() {
        let view = *program.view_of_item(item);
        if view.op != Op::NoOp {
            continue;
        }
        for (name, bytes) in view.memory.nonzero_changes_with_attribute_names() {
            let bytes = (bytes as f64 * ratio).round() as u64;
            program.items[item as usize]
                .changes
                .insert(name, NewAttributeValueOrRemoval::Count(bytes));
        }
    }
}

/// For work on parameters after the backward pass, multiplies times and sizes by `ratio`, the factor by which the
/// parameters grow.
pub(super) fn scale_parameter_work(
    program: &mut EditableRankProgram<'_>,
    step: u32,
    ratio: f64,
    last_hook: Option<u32>,
    optimizer: bool,
    counts: &mut MatchedAndChangedItemCounts,
) {
    let places = program.item_positions();
    let from = last_hook.map_or(0, |hook| {
        places.get(hook as usize).copied().unwrap_or(u32::MAX)
    });
    let mut stretched = 0;
    for item in program.order.clone() {
        let facts = *program.facts_of_item(item);
        let finalizes =
            facts.phase == TrainingStepPhase::Parameters && places[item as usize] > from;
        let steps = optimizer && facts.phase == TrainingStepPhase::Optimizer;
        if facts.step != Some(step) || !(finalizes || steps) {
            continue;
        }
        let view = *program.view_of_item(item);
        if !matches!(view.op, Op::Compute { .. } | Op::Host) {
            continue;
        }
        for (name, span) in [
            ("duration_ns", view.recorded),
            ("delay_ns", view.delay),
            ("profiler_ns", view.profiler),
        ] {
            if span.0 > 0 {
                let ns = (span.0 as f64 / 1000.0 * ratio).round() as u64;
                program.items[item as usize]
                    .changes
                    .insert(name, NewAttributeValueOrRemoval::Count(ns));
            }
        }
        if let Op::Compute { flops, bytes, .. } = view.op {
            for (name, count) in [("num_ops", flops), ("tensor_size", bytes)] {
                if count > 0 {
                    let count = (count as f64 * ratio).round() as u64;
                    program.items[item as usize]
                        .changes
                        .insert(name, NewAttributeValueOrRemoval::Count(count));
                }
            }
        }
        stretched += 1;
    }
    if stretched > 0 {
        counts.notes.insert(
            "work on parameters that does not repeat per layer grows with their number".to_owned(),
        );
    }
}
