//! Layer-wise execution (PALM, Table II: a pipeline of depth 1): all micro-batches pass one layer
//! before the next layer starts, in forward and in backward direction. Therefore the weights of
//! only one layer are in use at a time.
//!
//! If there are several stages, layers are distributed round-robin like the chunks of interleaved 1F1B. The
//! first stage continues with its next layer when the last stage has processed the first micro-batch
//! (Lamy-Poirier, "Breadth-first pipeline parallelism", 2022).

use super::ScheduleShape;

pub(super) fn layer_wise_shape(layers: u32, micro_batches: u32) -> ScheduleShape {
    ScheduleShape {
        chunks: layers,
        micro_batches_per_turn: micro_batches,
        warm_up: u64::from(layers) * u64::from(micro_batches),
        training: true,
    }
}
