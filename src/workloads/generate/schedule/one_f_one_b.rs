//! 1F1B with a flush, which Narayanan et al. call PipeDream-Flush ("Memory-efficient pipeline-parallel DNN training",
//! 2021); it is Megatron-LM's schedule without interleaving. Stage i of S runs S - i - 1 forward passes as a warm-up,
//! and then alternates forward and backward passes. With equal stages, it takes as long as GPipe, but stores the
//! activations of at most S - i micro-batches.

use super::ScheduleParameters;

pub(super) fn one_f_one_b_schedule_parameters(
    stage: u32,
    stages: u32,
    micro_batches: u32,
) -> ScheduleParameters {
    ScheduleParameters {
        chunks: 1,
        micro_batches_per_turn: micro_batches,
        warm_up: micro_batches.min(stages - stage - 1).into(),
        training: true,
    }
}
