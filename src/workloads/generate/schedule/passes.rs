//! The order of a stage's passes, worked out one at a time.

use super::{PassDirection, PipelinePass, ScheduleShape};

/// The passes of a stage in its order; see [`PipelineSchedule::passes`](super::PipelineSchedule::passes).
#[derive(Clone, Debug)]
pub struct PassIter {
    shape: ScheduleShape,
    forwards: u64,
    next: u64,
    end: u64,
}

impl ScheduleShape {
    /// Forward passes of a stage.
    pub(super) fn forwards(&self, micro_batches: u32) -> u64 {
        u64::from(micro_batches) * u64::from(self.chunks)
    }

    /// The `i`-th pass of a stage in one direction.
    fn pass_at(&self, direction: PassDirection, i: u64) -> PipelinePass {
        let together = u64::from(self.micro_batches_per_turn);
        let round = together * u64::from(self.chunks);
        let (round, within) = (i / round, i % round);
        let chunk = (within / together) as u32;
        PipelinePass {
            direction,
            micro_batch: (round * together + within % together) as u32,
            chunk: match direction {
                PassDirection::Forward => chunk,
                PassDirection::Backward => self.chunks - 1 - chunk,
            },
        }
    }
}

impl PassIter {
    pub(super) fn new(shape: ScheduleShape, micro_batches: u32) -> Self {
        let forwards = shape.forwards(micro_batches);
        Self {
            shape,
            forwards,
            next: 0,
            end: forwards * if shape.training { 2 } else { 1 },
        }
    }
}

impl Iterator for PassIter {
    type Item = PipelinePass;

    fn next(&mut self) -> Option<PipelinePass> {
        if self.next == self.end {
            return None;
        }
        let i = self.next;
        self.next += 1;
        // Between the first backward pass and the last forward one, they alternate, forward first.
        let (warm_up, forwards) = (self.shape.warm_up, self.forwards);
        let (direction, i) = match i {
            _ if i < warm_up => (PassDirection::Forward, i),
            // Symmetric to the warm-up: the last passes are backward only.
            _ if i >= 2 * forwards - warm_up => (PassDirection::Backward, i - forwards),
            _ if (i - warm_up).is_multiple_of(2) => {
                (PassDirection::Forward, warm_up + (i - warm_up) / 2)
            }
            _ => (PassDirection::Backward, (i - warm_up) / 2),
        };
        Some(self.shape.pass_at(direction, i))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.end - self.next) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for PassIter {}
