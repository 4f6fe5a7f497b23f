//! Inference: micro-batches pass through the stages one after another, and no activations are saved for a
//! backward pass.
//!
//! In the steady state, a micro-batch leaves the pipeline each time the slowest stage ends a pass;
//! PALM calls this rate throughput.
//! [`PipelineSchedule::ideal_step_time`](super::PipelineSchedule::ideal_step_time) also includes
//! the time to fill and drain the pipeline.

use super::ScheduleParameters;

pub(super) fn inference_schedule_parameters(micro_batches: u32) -> ScheduleParameters {
    ScheduleParameters {
        chunks: 1,
        micro_batches_per_turn: micro_batches,
        warm_up: micro_batches.into(),
        training: false,
    }
}
