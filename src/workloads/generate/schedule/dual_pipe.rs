//! DualPipe (DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.2.1): micro-batches enter the pipeline at
//! both ends. A forward pass in one direction overlaps a backward pass in the other, so that each hides the
//! communication of the other. Every part of the model has a copy on two stages. DualPipeV (Qi et al., 2025) is one
//! half of DualPipe: stage i of S has the i-th part from the front and the i-th part from the back. A micro-batch
//! passes first through the parts from the front, then through those from the back. Below, the two halves of a
//! micro-batch's path are called directions.
//!
//! Both DualPipe schedules have eight phases. h is a stage's distance from the nearer end, H is the number
//! of stages up to the middle, and M is the number of micro-batches per direction. F is a forward pass, B
//! is a backward pass, I and W are the two parts of a split backward pass, and 0 and 1 are the directions:
//!
//! | phase | times | |
//! |---|---|---|
//! | 1 | 2 (H - h - 1) | F0 |
//! | 2 | h + 1 | F0, F1 |
//! | 3 | H - h - 1 | I1, W1, F1 |
//! | 4 | M - 2 H + h + 1 | F0 with B1, F1 with B0 |
//! | 5 | H - h - 1 | B1, F1 with B0 |
//! | 6 | h + 1 | B1, B0; I1, I0 from the middle of this phase on |
//! | 7 | H - h - 1 | the first remaining W, I0 |
//! | 8 | h + 1 | the first remaining W |
//!
//! The two middle stages need not wait for messages, so they run the first pair of phase 4 one pass after the other.

use super::{PassKind, PassOrOverlappingPair, PipelinePass};
use crate::generate::{PatternOptionError, refused_option_value_error};
use std::collections::VecDeque;

/// Rejects an odd number of stages or micro-batches, which two directions cannot share evenly. Also rejects plans with
/// fewer micro-batches than twice the number of stages.
pub(super) fn check_dual_pipe(stages: u32, micro_batches: u32) -> Result<(), PatternOptionError> {
    if stages % 2 == 1 {
        let expected = "an even number with schedule = dualpipe, which has two directions";
        return Err(refused_option_value_error("pipeline", stages, expected));
    }
    let least = u64::from(stages) * 2;
    if u64::from(micro_batches) < least || micro_batches % 2 == 1 {
        let expected = format!(
            "an even number, {least} or more, twice the {stages} stages, with schedule = dualpipe"
        );
        return Err(refused_option_value_error(
            "micro_batches",
            micro_batches,
            expected,
        ));
    }
    Ok(())
}

/// Rejects plans with fewer micro-batches than twice the number of stages.
pub(super) fn check_dual_pipe_v(stages: u32, micro_batches: u32) -> Result<(), PatternOptionError> {
    let least = u64::from(stages) * 2;
    if u64::from(micro_batches) < least {
        let expected =
            format!("{least} or more, twice the {stages} stages, with schedule = dualpipe-v");
        return Err(refused_option_value_error(
            "micro_batches",
            micro_batches,
            expected,
        ));
    }
    Ok(())
}

/// Returns the steps of DualPipe. The first half of the micro-batches enters at the first stage, and passes through
/// chunk 0 of each stage.
pub(super) fn dual_pipe_steps(
    stage: u32,
    stages: u32,
    micro_batches: u32,
) -> Vec<PassOrOverlappingPair> {
    let (half, each) = (stages / 2, micro_batches / 2);
    let upper = stage >= half;
    let distance = if upper { stages - 1 - stage } else { stage };
    // In the second half of the pipeline, the two directions of a stage are swapped.
    let chunk = |way: u32| way ^ u32::from(upper);
    build_eight_phases(distance, half, each, |kind, way, count| PipelinePass {
        kind,
        micro_batch: chunk(way) * each + count,
        chunk: chunk(way),
    })
}

/// Returns the steps of DualPipeV.
pub(super) fn dual_pipe_v_steps(
    stage: u32,
    stages: u32,
    micro_batches: u32,
) -> Vec<PassOrOverlappingPair> {
    build_eight_phases(stage, stages, micro_batches, |kind, way, count| {
        PipelinePass {
            kind,
            micro_batch: count,
            chunk: way,
        }
    })
}

/// Returns the steps of a stage that is `distance` stages from its end of the pipeline. `half` is
/// the number of stages up to the middle, and `each` is the number of micro-batches per direction.
/// `pass` maps a kind, a direction and an index to a pass.
fn build_eight_phases(
    distance: u32,
    half: u32,
    each: u32,
    pass: impl Fn(PassKind, u32, u32) -> PipelinePass,
) -> Vec<PassOrOverlappingPair> {
    let mut steps = StageStepsBuilder {
        steps: Vec::new(),
        forwards: [0; 2],
        backwards: [0; 2],
        left: VecDeque::new(),
        pass,
    };
    let apart = half - distance - 1;
    for _ in 0..2 * apart {
        steps.push_forward_step(0);
    }
    for _ in 0..=distance {
        steps.push_forward_step(0);
        steps.push_forward_step(1);
    }
    for _ in 0..apart {
        steps.push_backward_steps(1, true);
        steps.push_weight_gradient_step();
        steps.push_forward_step(1);
    }
    for i in 0..each + distance + 1 - 2 * half {
        if i == 0 && apart == 0 {
            steps.push_forward_step(0);
            steps.push_backward_steps(1, false);
        } else {
            steps.push_overlapping_pair(0);
        }
        steps.push_overlapping_pair(1);
    }
    for _ in 0..apart {
        steps.push_backward_steps(1, false);
        steps.push_overlapping_pair(1);
    }
    let middle = distance.div_ceil(2);
    for i in 0..=distance {
        // With an odd number of pairs, split only the second pass of the middle pair.
        let whole = distance.is_multiple_of(2) && i == middle;
        steps.push_backward_steps(1, i >= middle && !whole);
        steps.push_backward_steps(0, i >= middle);
    }
    for _ in 0..apart {
        steps.push_weight_gradient_step();
        steps.push_backward_steps(0, true);
    }
    for _ in 0..=distance {
        steps.push_weight_gradient_step();
    }
    steps.steps
}

/// A stage's steps under construction, with the number of passes so far in each direction.
struct StageStepsBuilder<P> {
    steps: Vec<PassOrOverlappingPair>,
    forwards: [u32; 2],
    backwards: [u32; 2],
    /// Weight gradients that are not yet scheduled, oldest first.
    left: VecDeque<PipelinePass>,
    pass: P,
}

impl<P: Fn(PassKind, u32, u32) -> PipelinePass> StageStepsBuilder<P> {
    fn take_next_forward_pass(&mut self, way: u32) -> PipelinePass {
        let count = &mut self.forwards[way as usize];
        *count += 1;
        (self.pass)(PassKind::Forward, way, *count - 1)
    }

    fn take_next_backward_pass(&mut self, kind: PassKind, way: u32) -> PipelinePass {
        let count = &mut self.backwards[way as usize];
        *count += 1;
        (self.pass)(kind, way, *count - 1)
    }

    fn push_forward_step(&mut self, way: u32) {
        let pass = self.take_next_forward_pass(way);
        self.steps
            .push(PassOrOverlappingPair::from_single_pass(pass));
    }

    fn push_backward_steps(&mut self, way: u32, split: bool) {
        let kind = match split {
            true => PassKind::InputGradient,
            false => PassKind::Backward,
        };
        let pass = self.take_next_backward_pass(kind, way);
        self.steps
            .push(PassOrOverlappingPair::from_single_pass(pass));
        if split {
            self.left.push_back(PipelinePass {
                kind: PassKind::WeightGradient,
                ..pass
            });
        }
    }

    /// Appends a pair: a forward pass in direction `way`, and an overlapping backward pass in the other direction.
    fn push_overlapping_pair(&mut self, way: u32) {
        let pass = self.take_next_forward_pass(way);
        let beside = self.take_next_backward_pass(PassKind::Backward, 1 - way);
        self.steps.push(PassOrOverlappingPair {
            beside: Some(beside),
            ..PassOrOverlappingPair::from_single_pass(pass)
        });
    }

    fn push_weight_gradient_step(&mut self) {
        let first = self.left.pop_front();
        self.steps
            .extend(first.map(PassOrOverlappingPair::from_single_pass));
    }
}
