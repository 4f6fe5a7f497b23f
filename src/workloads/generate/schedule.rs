//! Pipeline schedules: in which order a stage runs the forward and backward passes of its micro-batches.
//!
//! Schedules differ in four parameters only: the number of chunks of a stage's layers, the number of micro-batches
//! that pass a chunk before the next chunk, the number of forward passes before the first backward one, and the
//! presence of backward passes. After the warm-up, forward and backward passes alternate; when no forward pass is
//! left, the remaining backward ones follow. Backward passes keep the order of micro-batches (Narayanan et al.,
//! "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC'21, figures 3 and 4), and
//! reverse that of chunks.
//!
//! Dependencies between stages are the same in all of them: [`PipelineSchedule::predecessor`]. With buffered sends no
//! order of passes deadlocks, even if receives block.

use super::{GenerateError, MOST_NODES, check_at_least, check_limit};

mod gpipe;
mod ideal;
mod inference;
mod interleaved;
mod layer_wise;
mod one_f_one_b;
mod passes;
#[cfg(test)]
mod tests;

pub use passes::PassIter;

/// Order of the passes in a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineSchedule {
    /// All forward passes, then all backward passes.
    GPipe,
    /// One forward, one backward, after a warm-up.
    OneForwardOneBackward,
    /// The same with several chunks of layers on every stage.
    Interleaved {
        /// Chunks of a stage, at least 2.
        chunks: u32,
    },
    /// All micro-batches through one layer, then all through the next; backward likewise.
    LayerWise {
        /// Layers of a stage, each of which is a chunk.
        layers: u32,
    },
    /// Forward passes only.
    Inference,
}

/// Direction of a pass through the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PassDirection {
    /// From the first layer to the last.
    Forward,
    /// From the last layer to the first.
    Backward,
}

/// A pass of one micro-batch through one chunk of a stage's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PipelinePass {
    /// Direction of the pass.
    pub direction: PassDirection,
    /// Index of the micro-batch, from 0.
    pub micro_batch: u32,
    /// Index of the chunk among the stage's layers, from 0; the layers of chunk c on stage s of S are the (c S +
    /// s)-th part of the model.
    pub chunk: u32,
}

/// Parameters in which schedules differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScheduleShape {
    /// Parts of a stage's layers.
    chunks: u32,
    /// Number of micro-batches that pass a chunk before the next chunk is scheduled.
    micro_batches_per_turn: u32,
    /// Forward passes before the first backward one.
    warm_up: u64,
    /// True if there are backward passes.
    training: bool,
}

impl PipelineSchedule {
    /// Checks that a pipeline of `stages` can run `micro_batches` a step.
    pub fn check(&self, stages: u32, micro_batches: u32) -> Result<(), GenerateError> {
        check_at_least("stages", stages, 1)?;
        check_at_least("micro_batches", micro_batches, 1)?;
        match *self {
            Self::Interleaved { chunks } => interleaved::check(chunks, stages, micro_batches)?,
            Self::LayerWise { layers } => check_at_least("layers", layers, 1)?,
            Self::GPipe | Self::OneForwardOneBackward | Self::Inference => {}
        }
        // Each pass is at least one node of a trace.
        let passes = 2 * u128::from(micro_batches) * u128::from(self.chunks());
        check_limit(
            "passes of a stage",
            passes,
            MOST_NODES,
            "fewer micro-batches",
        )
        .map(drop)
    }

    /// Number of model chunks on a stage; every micro-batch passes each of them separately.
    pub fn chunks(&self) -> u32 {
        match *self {
            Self::Interleaved { chunks } => chunks,
            Self::LayerWise { layers } => layers,
            Self::GPipe | Self::OneForwardOneBackward | Self::Inference => 1,
        }
    }

    /// Returns true if there are backward passes.
    pub fn trains(&self) -> bool {
        *self != Self::Inference
    }

    /// The passes of stage `stage` of `stages` in the order in which it runs them.
    ///
    /// # Panics
    /// Panics where [`PipelineSchedule::check`] refuses, or if `stage` is not below `stages`.
    pub fn passes(&self, stage: u32, stages: u32, micro_batches: u32) -> PassIter {
        PassIter::new(self.shape(stage, stages, micro_batches), micro_batches)
    }

    /// Maximum number of passes whose activations stage `stage` holds: forward passes whose backward pass is not
    /// over. Each is 1/[`chunks`](PipelineSchedule::chunks) of the activations of a micro-batch on the stage.
    ///
    /// These are the passes of the warm-up and the one behind it: min(m, S - i) for 1F1B on stage i of S, m for
    /// GPipe, none for inference, which saves nothing.
    ///
    /// # Panics
    /// As [`PipelineSchedule::passes`].
    pub fn stored(&self, stage: u32, stages: u32, micro_batches: u32) -> u64 {
        let shape = self.shape(stage, stages, micro_batches);
        if shape.training {
            shape.forwards(micro_batches).min(shape.warm_up + 1)
        } else {
            0
        }
    }

    fn shape(&self, stage: u32, stages: u32, micro_batches: u32) -> ScheduleShape {
        if let Err(error) = self.check(stages, micro_batches) {
            panic!("{error}");
        }
        assert!(stage < stages, "stage {stage} of {stages} does not exist");
        match *self {
            Self::GPipe => gpipe::shape(micro_batches),
            Self::OneForwardOneBackward => one_f_one_b::shape(stage, stages, micro_batches),
            Self::Interleaved { chunks } => {
                interleaved::shape(chunks, stage, stages, micro_batches)
            }
            Self::LayerWise { layers } => layer_wise::shape(layers, micro_batches),
            Self::Inference => inference::shape(micro_batches),
        }
    }

    /// Returns the stage and the pass there whose output is the input of `pass` on stage `stage` of `stages`:
    /// activations of the layers in front, or gradients of the layers behind. `None` if there are no such layers.
    ///
    /// From the last stage it goes on with the next chunk on the first, and back likewise; with one stage that
    /// is the stage itself, and no message. A backward pass needs its own forward pass as well, which is on the
    /// same stage and earlier in its order.
    pub fn predecessor(
        &self,
        pass: PipelinePass,
        stage: u32,
        stages: u32,
    ) -> Option<(u32, PipelinePass)> {
        match pass.direction {
            PassDirection::Forward => towards_first(pass, stage, stages),
            PassDirection::Backward => self.towards_last(pass, stage, stages),
        }
    }

    /// The stage and the pass there that begins with the result of `pass` on stage `stage` of `stages`: the
    /// other side of [`PipelineSchedule::predecessor`].
    pub fn successor(
        &self,
        pass: PipelinePass,
        stage: u32,
        stages: u32,
    ) -> Option<(u32, PipelinePass)> {
        match pass.direction {
            PassDirection::Forward => self.towards_last(pass, stage, stages),
            PassDirection::Backward => towards_first(pass, stage, stages),
        }
    }

    fn towards_last(
        &self,
        pass: PipelinePass,
        stage: u32,
        stages: u32,
    ) -> Option<(u32, PipelinePass)> {
        if stage + 1 < stages {
            return Some((stage + 1, pass));
        }
        let chunk = pass.chunk + 1;
        (chunk < self.chunks()).then_some((0, PipelinePass { chunk, ..pass }))
    }
}

fn towards_first(pass: PipelinePass, stage: u32, stages: u32) -> Option<(u32, PipelinePass)> {
    if stage > 0 {
        return Some((stage - 1, pass));
    }
    let chunk = pass.chunk.checked_sub(1)?;
    Some((stages - 1, PipelinePass { chunk, ..pass }))
}
