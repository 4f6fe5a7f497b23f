//! Inference: micro-batches follow one another through the stages, and nothing is saved for a backward pass.
//!
//! In the steady state a micro-batch leaves the pipeline each time the slowest stage ends a pass, which PALM reports as
//! throughput; filling and draining take the rest of [`PipelineSchedule::ideal`](super::PipelineSchedule::ideal).

use super::ScheduleShape;

pub(super) fn inference_shape(micro_batches: u32) -> ScheduleShape {
    ScheduleShape {
        chunks: 1,
        micro_batches_per_turn: micro_batches,
        warm_up: micro_batches.into(),
        training: false,
    }
}
