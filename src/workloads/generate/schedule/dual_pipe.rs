//! DualPipe (DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.2.1): micro-batches enter a pipeline at both ends, and a
//! forward pass in one direction runs beside a backward pass in the other, so that each hides the other's communication. Every
//! part of the model is on two stages. DualPipeV (Qi et al., 2025) is one half of it: stage i of S has the i-th part from the
//! front and the i-th from the back, and the two directions are the two halves of a micro-batch's way.
//!
//! Both follow eight steps. With h the distance of a stage from the nearer end, H of the middle, and M micro-batches in
//! each direction, F a forward pass, B a backward one, 0 and 1 the directions, I and W a backward pass in two:
//!
//! | step | times | |
//! |---|---|---|
//! | 1 | 2 (H - h - 1) | F0 |
//! | 2 | h + 1 | F0, F1 |
//! | 3 | H - h - 1 | I1, W1, F1 |
//! | 4 | M - 2 H + h + 1 | F0 beside B1, F1 beside B0 |
//! | 5 | H - h - 1 | B1, F1 beside B0 |
//! | 6 | h + 1 | B1, B0; from the middle on I1, I0 |
//! | 7 | H - h - 1 | the first W that is left, I0 |
//! | 8 | h + 1 | the first W that is left |
//!
//! The first pair of step 4 runs one after the other on the two stages in the middle, which have no message to wait for.

use super::{PassKind, PipelinePass, PipelineStep};
use crate::generate::{GenerateError, refused};
use std::collections::VecDeque;

/// Refuses stages or micro-batches of which there are too few, or which do not divide into two directions.
pub(super) fn check(stages: u32, micro_batches: u32) -> Result<(), GenerateError> {
    if stages % 2 == 1 {
        let expected = "an even number with schedule = dualpipe, which has two directions";
        return Err(refused("pipeline", stages, expected));
    }
    let least = u64::from(stages) * 2;
    if u64::from(micro_batches) < least || micro_batches % 2 == 1 {
        let expected = format!(
            "an even number, {least} or more, twice the {stages} stages, with schedule = dualpipe"
        );
        return Err(refused("micro_batches", micro_batches, expected));
    }
    Ok(())
}

/// Refuses too few micro-batches for DualPipeV.
pub(super) fn check_v(stages: u32, micro_batches: u32) -> Result<(), GenerateError> {
    let least = u64::from(stages) * 2;
    if u64::from(micro_batches) < least {
        let expected =
            format!("{least} or more, twice the {stages} stages, with schedule = dualpipe-v");
        return Err(refused("micro_batches", micro_batches, expected));
    }
    Ok(())
}

/// The steps of DualPipe. Chunk 0 of a stage is what micro-batches pass that enter at the first stage, which are the first half.
pub(super) fn both_ways(stage: u32, stages: u32, micro_batches: u32) -> Vec<PipelineStep> {
    let (half, each) = (stages / 2, micro_batches / 2);
    let upper = stage >= half;
    let distance = if upper { stages - 1 - stage } else { stage };
    // Beyond the middle the directions change places.
    let chunk = |way: u32| way ^ u32::from(upper);
    eight_steps(distance, half, each, |kind, way, count| PipelinePass {
        kind,
        micro_batch: chunk(way) * each + count,
        chunk: chunk(way),
    })
}

/// The steps of DualPipeV.
pub(super) fn v(stage: u32, stages: u32, micro_batches: u32) -> Vec<PipelineStep> {
    eight_steps(stage, stages, micro_batches, |kind, way, count| {
        PipelinePass {
            kind,
            micro_batch: count,
            chunk: way,
        }
    })
}

/// The eight steps of a stage at `distance` from its end, of `half` to the middle, with `each` micro-batches in each direction;
/// `pass` says which one the count-th of a kind and a direction is.
fn eight_steps(
    distance: u32,
    half: u32,
    each: u32,
    pass: impl Fn(PassKind, u32, u32) -> PipelinePass,
) -> Vec<PipelineStep> {
    let mut steps = StepList {
        steps: Vec::new(),
        forwards: [0; 2],
        backwards: [0; 2],
        left: VecDeque::new(),
        pass,
    };
    let apart = half - distance - 1;
    for _ in 0..2 * apart {
        steps.forward(0);
    }
    for _ in 0..=distance {
        steps.forward(0);
        steps.forward(1);
    }
    for _ in 0..apart {
        steps.backward(1, true);
        steps.weights();
        steps.forward(1);
    }
    for i in 0..each + distance + 1 - 2 * half {
        if i == 0 && apart == 0 {
            steps.forward(0);
            steps.backward(1, false);
        } else {
            steps.pair(0);
        }
        steps.pair(1);
    }
    for _ in 0..apart {
        steps.backward(1, false);
        steps.pair(1);
    }
    let middle = distance.div_ceil(2);
    for i in 0..=distance {
        // Of an odd number of pairs the middle one is split in its second half only.
        let whole = distance.is_multiple_of(2) && i == middle;
        steps.backward(1, i >= middle && !whole);
        steps.backward(0, i >= middle);
    }
    for _ in 0..apart {
        steps.weights();
        steps.backward(0, true);
    }
    for _ in 0..=distance {
        steps.weights();
    }
    steps.steps
}

/// Steps of a stage, with the number of passes so far in each direction.
struct StepList<P> {
    steps: Vec<PipelineStep>,
    forwards: [u32; 2],
    backwards: [u32; 2],
    /// Gradients of weights that are still to be found.
    left: VecDeque<PipelinePass>,
    pass: P,
}

impl<P: Fn(PassKind, u32, u32) -> PipelinePass> StepList<P> {
    fn next_forward(&mut self, way: u32) -> PipelinePass {
        let count = &mut self.forwards[way as usize];
        *count += 1;
        (self.pass)(PassKind::Forward, way, *count - 1)
    }

    fn next_backward(&mut self, kind: PassKind, way: u32) -> PipelinePass {
        let count = &mut self.backwards[way as usize];
        *count += 1;
        (self.pass)(kind, way, *count - 1)
    }

    fn forward(&mut self, way: u32) {
        let pass = self.next_forward(way);
        self.steps.push(PipelineStep::alone(pass));
    }

    fn backward(&mut self, way: u32, split: bool) {
        let kind = match split {
            true => PassKind::InputGradient,
            false => PassKind::Backward,
        };
        let pass = self.next_backward(kind, way);
        self.steps.push(PipelineStep::alone(pass));
        if split {
            self.left.push_back(PipelinePass {
                kind: PassKind::WeightGradient,
                ..pass
            });
        }
    }

    /// A forward pass in direction `way` beside a backward one in the other.
    fn pair(&mut self, way: u32) {
        let pass = self.next_forward(way);
        let beside = self.next_backward(PassKind::Backward, 1 - way);
        self.steps.push(PipelineStep {
            beside: Some(beside),
            ..PipelineStep::alone(pass)
        });
    }

    fn weights(&mut self) {
        let first = self.left.pop_front();
        self.steps.extend(first.map(PipelineStep::alone));
    }
}
