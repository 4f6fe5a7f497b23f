//! Layer-wise execution (PALM, Table II: a pipeline of depth 1): all micro-batches pass through one layer before the
//! next layer starts, in both forward and backward direction. Only one layer's weights are therefore in use at a time.
//!
//! If there are several stages, layers are assigned to them round-robin, like the chunks of interleaved 1F1B. The first
//! stage continues with its next layer when the last stage has processed the first micro-batch (Lamy-Poirier,
//! "Breadth-first pipeline parallelism", 2022).

use super::ScheduleParameters;

pub(super) fn layer_wise_schedule_parameters(
    layers: u32,
    micro_batches: u32,
) -> ScheduleParameters {
    ScheduleParameters {
        chunks: layers,
        micro_batches_per_turn: micro_batches,
        warm_up: u64::from(layers) * u64::from(micro_batches),
        training: true,
    }
}
