//! Iterator that computes a stage's steps one at a time.

use super::{PassKind, PassOrOverlappingPair, PipelinePass, ScheduleParameters};

/// The steps of a stage, computed one at a time (see
/// [`PipelineSchedule::steps_of_stage`](super::PipelineSchedule::steps_of_stage)).
#[derive(Clone, Debug)]
pub struct PipelineStepIter(ComputedOrListedStepIter);

#[derive(Clone, Debug)]
enum ComputedOrListedStepIter {
    Counted(ParameterizedScheduleSteps),
    Listed(std::vec::IntoIter<PassOrOverlappingPair>),
}

/// Steps of a stage in a schedule that a [`ScheduleParameters`] defines.
#[derive(Clone, Debug)]
struct ParameterizedScheduleSteps {
    shape: ScheduleParameters,
    micro_batches: u32,
    forwards: u64,
    next: u64,
    end: u64,
}

impl ScheduleParameters {
    /// Number of forward passes that a stage runs per step.
    pub(super) fn forward_pass_count(&self, micro_batches: u32) -> u64 {
        u64::from(micro_batches) * u64::from(self.chunks)
    }

    /// Returns a stage's `i`-th forward or backward pass, counted from 0.
    fn nth_pass_of_kind(&self, kind: PassKind, i: u64) -> PipelinePass {
        let together = u64::from(self.micro_batches_per_turn);
        let round = together * u64::from(self.chunks);
        let (round, within) = (i / round, i % round);
        let chunk = (within / together) as u32;
        PipelinePass {
            kind,
            micro_batch: (round * together + within % together) as u32,
            chunk: match kind {
                PassKind::Forward => chunk,
                _ => self.chunks - 1 - chunk,
            },
        }
    }
}

impl PipelineStepIter {
    pub(super) fn from_schedule_parameters(shape: ScheduleParameters, micro_batches: u32) -> Self {
        let forwards = shape.forward_pass_count(micro_batches);
        Self(ComputedOrListedStepIter::Counted(
            ParameterizedScheduleSteps {
                shape,
                micro_batches,
                forwards,
                next: 0,
                end: forwards * if shape.training { 2 } else { 1 },
            },
        ))
    }

    pub(super) fn from_steps(steps: Vec<PassOrOverlappingPair>) -> Self {
        Self(ComputedOrListedStepIter::Listed(steps.into_iter()))
    }
}

impl ParameterizedScheduleSteps {
    fn next(&mut self) -> Option<PassOrOverlappingPair> {
        if self.next == self.end {
            return None;
        }
        let i = self.next;
        self.next += 1;
        // Until the last forward pass, forward and backward passes alternate, beginning with a forward pass.
        let (warm_up, forwards) = (self.shape.warm_up, self.forwards);
        let (kind, i) = match i {
            _ if i < warm_up => (PassKind::Forward, i),
            // The end mirrors the warm-up: after the last forward pass, only backward passes remain.
            _ if i >= 2 * forwards - warm_up => (PassKind::Backward, i - forwards),
            _ if (i - warm_up).is_multiple_of(2) => {
                (PassKind::Forward, warm_up + (i - warm_up) / 2)
            }
            _ => (PassKind::Backward, (i - warm_up) / 2),
        };
        let pass = self.shape.nth_pass_of_kind(kind, i);
        // Micro-batches pass through a chunk in order, so the last micro-batch's pass is the chunk's last step.
        let last = pass.micro_batch + 1 == self.micro_batches;
        Some(PassOrOverlappingPair {
            pass,
            beside: None,
            completes: last && (kind == PassKind::Backward || !self.shape.training),
        })
    }
}

impl Iterator for PipelineStepIter {
    type Item = PassOrOverlappingPair;

    fn next(&mut self) -> Option<PassOrOverlappingPair> {
        match &mut self.0 {
            ComputedOrListedStepIter::Counted(steps) => steps.next(),
            ComputedOrListedStepIter::Listed(steps) => steps.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = match &self.0 {
            ComputedOrListedStepIter::Counted(steps) => (steps.end - steps.next) as usize,
            ComputedOrListedStepIter::Listed(steps) => steps.len(),
        };
        (left, Some(left))
    }
}

impl ExactSizeIterator for PipelineStepIter {}
