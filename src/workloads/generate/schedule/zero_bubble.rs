//! Zero-bubble schedules (Qi et al., "Zero bubble pipeline parallelism", 2024): separate passes compute weight
//! gradients and fill the bubble. The previous stage waits only for input gradients, so it starts earlier.

use super::{PassKind, PipelinePass};

fn create_pipeline_pass(kind: PassKind, micro_batch: u32, chunk: u32) -> PipelinePass {
    PipelinePass {
        kind,
        micro_batch,
        chunk,
    }
}

/// Returns ZB-H1's steps: the order of 1F1B, with weight gradients postponed. Stage i of S computes a micro-batch's
/// weight gradients i micro-batches later than its input gradients. Every stage therefore stores the activations of at
/// most S micro-batches, which is as many as the first stage stores in 1F1B.
pub(super) fn zb_h1_passes(stage: u32, stages: u32, micro_batches: u32) -> Vec<PipelinePass> {
    let warm_up = micro_batches.min(stages - stage - 1);
    let mut order = Vec::new();
    let mut forwards = 0..micro_batches;
    let mut weights = 0..micro_batches;
    let forward = |micro_batch| create_pipeline_pass(PassKind::Forward, micro_batch, 0);
    order.extend(forwards.by_ref().take(warm_up as usize).map(forward));
    for micro_batch in 0..micro_batches {
        order.extend(forwards.next().map(forward));
        order.push(create_pipeline_pass(
            PassKind::InputGradient,
            micro_batch,
            0,
        ));
        if micro_batch >= stage {
            let late = weights.next();
            order.extend(late.map(|late| create_pipeline_pass(PassKind::WeightGradient, late, 0)));
        }
    }
    order.extend(weights.map(|late| create_pipeline_pass(PassKind::WeightGradient, late, 0)));
    order
}

/// Returns ZB-V's steps. Stage i of S has the i-th part of the model from the front and the i-th
/// part from the back, so a micro-batch's path through the stages is V-shaped. In the warm-up,
/// forward passes fill this path. Then, after each forward pass, a stage runs both backward passes
/// of a chunk. At the end, the stage computes the remaining weight gradients.
pub(super) fn zb_v_passes(stage: u32, stages: u32, micro_batches: u32) -> Vec<PipelinePass> {
    let mut order = Vec::new();
    // For each kind of pass (forward, input gradients, weight gradients), the micro-batch that each chunk processes
    // next.
    let mut next = [[0_u32; 2]; 3];
    // With few micro-batches, take the order of a full pipeline, and omit the micro-batches that do not exist.
    let enough = micro_batches.max(2 * stages - 1);
    let mut add = |kind: PassKind, chunk: u32, next: &mut [[u32; 2]; 3]| {
        let row = match kind {
            PassKind::InputGradient => 1,
            PassKind::WeightGradient => 2,
            PassKind::Forward | PassKind::Backward => 0,
        };
        let count = &mut next[row][chunk as usize];
        if *count < micro_batches {
            order.push(create_pipeline_pass(kind, *count, chunk));
        }
        *count += 1;
    };
    let (forward, input, weight) = (
        PassKind::Forward,
        PassKind::InputGradient,
        PassKind::WeightGradient,
    );
    for _ in 0..2 * (stages - stage) - 1 {
        add(forward, 0, &mut next);
    }
    for _ in 0..stage {
        add(forward, 1, &mut next);
        add(forward, 0, &mut next);
    }
    for _ in 0..stages - stage {
        add(forward, 1, &mut next);
        add(input, 1, &mut next);
        add(weight, 1, &mut next);
    }
    while next[0][1] < next[0][0] || next[0][0] < enough {
        if next[0][0] < enough {
            add(forward, 0, &mut next);
        }
        add(input, 0, &mut next);
        add(weight, 0, &mut next);
        add(forward, 1, &mut next);
        add(input, 1, &mut next);
        add(weight, 1, &mut next);
    }
    for _ in 0..stage {
        add(input, 0, &mut next);
        add(input, 1, &mut next);
    }
    for _ in 0..stages - stage {
        add(input, 0, &mut next);
        add(weight, 0, &mut next);
    }
    for chunk in [1, 0] {
        while next[2][chunk] < next[1][chunk] {
            add(weight, chunk as u32, &mut next);
        }
    }
    order
}
