//! Layer-wise execution (PALM, Table II: a pipeline of depth 1): all micro-batches go through one layer before
//! the next one has its turn, and back likewise, so one layer's weights are at work at a time.
//!
//! With several stages, layers are dealt out in turn as chunks are when interleaved, and the first stage goes on
//! with its next layer when the last one is through with the first micro-batch (Lamy-Poirier, "Breadth-first
//! pipeline parallelism", 2022).

use super::Shape;

pub(super) fn shape(layers: u32, micro_batches: u32) -> Shape {
    Shape {
        chunks: layers,
        together: micro_batches,
        warm_up: u64::from(layers) * u64::from(micro_batches),
        training: true,
    }
}
