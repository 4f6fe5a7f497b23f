//! 1F1B with a flush (Narayanan et al., "Memory-efficient pipeline-parallel DNN training", 2021, as
//! PipeDream-Flush; Megatron-LM's schedule without interleaving): stage i of S runs S - i - 1 forward passes
//! ahead, then one forward and one backward in turn. It takes as long as GPipe where stages are equal and holds
//! at most S - i micro-batches.

use super::Shape;

pub(super) fn shape(stage: u32, stages: u32, micro_batches: u32) -> Shape {
    Shape {
        chunks: 1,
        together: micro_batches,
        warm_up: micro_batches.min(stages - stage - 1).into(),
        training: true,
    }
}
