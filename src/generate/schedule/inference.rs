//! Inference: micro-batches follow one another through the stages, and nothing is kept for a way back.
//!
//! Once the pipeline is full, one leaves it each time the slowest stage ends a pass, which is what PALM reports as
//! throughput; filling and draining take what is left of [`Schedule::ideal`](super::Schedule::ideal).

use super::Shape;

pub(super) fn shape(micro_batches: u32) -> Shape {
    Shape {
        chunks: 1,
        together: micro_batches,
        warm_up: micro_batches.into(),
        training: false,
    }
}
