//! Interleaved 1F1B (Narayanan et al., SC'21, section 2.2.2), in Megatron-LM's order. Every stage
//! has v model chunks. A chunk processes S micro-batches before the next chunk runs.
//!
//! Stage i of S has a warm-up of 2 (S - i - 1) + (v - 1) S forward passes. (v - 1) S of these precede the last chunk,
//! and two come for each later stage, one per direction. With exactly S micro-batches, all forward passes belong to the
//! warm-up.
//!
//! With one more forward pass in the warm-up, the backward pass after a forward pass does not need its result, even on
//! the last stage. The two passes can then overlap: one computes while the other exchanges the tokens of experts
//! (`overlap-moe-expert-parallel-comm` of Megatron-LM, `core/pipeline_parallel/combined_1f1b.py`).

use super::{PassKind, PassOrOverlappingPair, PipelineStepIter, ScheduleParameters};
use crate::generate::{PatternOptionError, check_at_least, refused_option_value_error};

pub(super) fn check_interleaved_schedule(
    chunks: u32,
    stages: u32,
    micro_batches: u32,
) -> Result<(), PatternOptionError> {
    check_at_least("chunks", chunks, 2)?;
    let over = micro_batches % stages;
    if over == 0 {
        return Ok(());
    }
    let below = micro_batches - over;
    let above = u64::from(below) + u64::from(stages);
    let next = match below {
        0 => format!("{above}"),
        _ => format!("{below} or {above}"),
    };
    let why = format!(
        "a multiple of the {stages} stages, because interleaved chunks change after that many micro-batches: {next}"
    );
    Err(refused_option_value_error(
        "micro_batches",
        micro_batches,
        why,
    ))
}

pub(super) fn interleaved_schedule_parameters(
    chunks: u32,
    stage: u32,
    stages: u32,
    micro_batches: u32,
) -> ScheduleParameters {
    let forwards = u64::from(chunks) * u64::from(micro_batches);
    let ahead = u64::from(stages - stage - 1) * 2 + u64::from(chunks - 1) * u64::from(stages);
    ScheduleParameters {
        chunks,
        micro_batches_per_turn: stages,
        // If there are as many micro-batches as stages, Megatron-LM runs all forward passes first.
        warm_up: if micro_batches == stages {
            forwards
        } else {
            forwards.min(ahead)
        },
        training: true,
    }
}

/// Returns the steps of a stage in interleaved 1F1B with overlapping pairs of passes.
pub(super) fn interleaved_steps_with_overlapping_pairs(
    chunks: u32,
    stage: u32,
    stages: u32,
    micro_batches: u32,
) -> Vec<PassOrOverlappingPair> {
    let mut shape = interleaved_schedule_parameters(chunks, stage, stages, micro_batches);
    let forwards = shape.forward_pass_count(micro_batches);
    shape.warm_up = forwards.min(shape.warm_up + 1);
    let mut alone = PipelineStepIter::from_schedule_parameters(shape, micro_batches);
    let mut steps: Vec<PassOrOverlappingPair> =
        alone.by_ref().take(shape.warm_up as usize).collect();
    while let Some(step) = alone.next() {
        let beside = match step.pass.kind {
            PassKind::Forward => alone.next().map(|backward| backward.pass),
            _ => None,
        };
        steps.push(PassOrOverlappingPair { beside, ..step });
    }
    steps
}
