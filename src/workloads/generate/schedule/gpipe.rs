//! GPipe (Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", 2019). All
//! forward passes precede all backward passes, so every stage stores the activations of every micro-batch.
//!
//! In the figure of Huang et al., the backward passes begin with the last micro-batch. Here, they begin with the first
//! micro-batch, as in figure 3 of Narayanan et al. (SC'21). Time and peak memory are the same.

use super::ScheduleParameters;

pub(super) fn gpipe_schedule_parameters(micro_batches: u32) -> ScheduleParameters {
    ScheduleParameters {
        chunks: 1,
        micro_batches_per_turn: micro_batches,
        warm_up: micro_batches.into(),
        training: true,
    }
}
