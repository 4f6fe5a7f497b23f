//! Pipeline schedules: the order in which a stage runs the forward and backward passes of its
//! micro-batches.
//!
//! Four parameters define most pipeline schedules: the number of chunks into which a stage's layers are divided, the
//! number of micro-batches that a chunk processes before the next chunk runs, the number of forward passes in the
//! warm-up, and whether there are backward passes. After the warm-up, forward and backward passes alternate. After the
//! last forward pass, the remaining backward passes follow. Backward passes keep the order of micro-batches, but
//! reverse the order of chunks (Narayanan et al., "Efficient large-scale language model training on GPU clusters using
//! Megatron-LM", SC'21, figures 3 and 4). The other schedules are defined by lists of steps. They compute weight
//! gradients in separate passes ([`zero_bubble`]), run two passes at once ([`dual_pipe`]), or come from a file
//! ([`StagePassOrders`]).
//!
//! The dependencies between stages follow the same rule in all schedules ([`PipelineSchedule::predecessor_of`]). With
//! buffered sends, no schedule deadlocks, even with blocking receives.

use super::{
    MOST_NODES, PatternOptionError, check_at_least, check_limit, refused_option_value_error,
};
use std::sync::Arc;

mod dual_pipe;
mod gpipe;
mod ideal;
mod inference;
mod interleaved;
mod layer_wise;
mod one_f_one_b;
mod pass_orders;
mod passes;
#[cfg(test)]
mod tests;
mod zero_bubble;

pub use ideal::PassDurations;
pub use pass_orders::{PassOrderFileError, StagePassOrders};
pub use passes::PipelineStepIter;

/// A pipeline schedule: the order of passes on each stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PipelineSchedule {
    /// All forward passes, then all backward passes.
    GPipe,
    /// One forward, one backward (1F1B), after a warm-up of forward passes.
    OneForwardOneBackward,
    /// 1F1B in which each stage has several chunks of layers.
    Interleaved {
        /// Number of model chunks per stage, at least 2.
        chunks: u32,
    },
    /// Interleaved 1F1B with one more forward pass in the warm-up. A forward pass and the backward pass after it are
    /// then independent, so they overlap.
    InterleavedPairs {
        /// Number of model chunks per stage; at least 2, or 1 without a pipeline.
        chunks: u32,
    },
    /// All micro-batches pass through one layer before any of them enters the next layer, in both
    /// forward and backward direction.
    LayerWise {
        /// Number of layers per stage; each layer is a chunk.
        layers: u32,
    },
    /// Forward passes only.
    Inference,
    /// 1F1B with separate passes for weight gradients, which are postponed (ZB-H1).
    ZeroBubbleH1,
    /// ZB-H1 with two chunks per stage, which micro-batches pass in a V-shaped path (ZB-V).
    ZeroBubbleV,
    /// Micro-batches enter at both ends of the pipeline, and forward passes overlap backward
    /// passes.
    DualPipe,
    /// DualPipe with two chunks per stage, which micro-batches pass in a V-shaped path.
    DualPipeV,
    /// An order of passes for each stage, read from a file.
    Listed(Arc<StagePassOrders>),
}

/// Kind of a pass, which determines the results that it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PassKind {
    /// A forward pass, which computes activations. It runs from the first layer to the last.
    Forward,
    /// A backward pass that computes gradients of activations and of weights. It runs from the last layer to the first.
    Backward,
    /// A backward pass that computes only gradients of activations. It runs from the last layer to the first.
    InputGradient,
    /// A pass that computes only gradients of weights. It runs after the pass that computes the gradients of
    /// activations.
    WeightGradient,
}

impl PassKind {
    /// Returns true if the pass computes weight gradients.
    pub fn computes_weight_gradients(self) -> bool {
        matches!(self, Self::Backward | Self::WeightGradient)
    }
}

/// A pass of one micro-batch through one chunk of a stage's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PipelinePass {
    /// The results that the pass computes.
    pub kind: PassKind,
    /// Index of the micro-batch, counting from 0.
    pub micro_batch: u32,
    /// Index of the chunk among the stage's chunks, from 0; [`PipelineSchedule::part_of_chunk`] maps it to a part of
    /// the model.
    pub chunk: u32,
}

/// An entry in a stage's order: one pass, or two independent passes that overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassOrOverlappingPair {
    /// The only pass of the step, or the forward pass of a pair.
    pub pass: PipelinePass,
    /// The backward pass of a pair, which overlaps the forward pass.
    pub beside: Option<PipelinePass>,
    /// True if no later step of the stage computes gradients of the same chunk's weights. Without backward passes, true
    /// if no later step uses the chunk's weights.
    pub completes: bool,
}

impl PassOrOverlappingPair {
    /// Creates a step of one pass that does not complete its chunk.
    fn from_single_pass(pass: PipelinePass) -> Self {
        Self {
            pass,
            beside: None,
            completes: false,
        }
    }

    /// Returns the step's one or two passes.
    pub fn iter_passes(self) -> impl Iterator<Item = PipelinePass> {
        [Some(self.pass), self.beside].into_iter().flatten()
    }
}

/// Marks each chunk's last step that computes weight gradients. Without backward passes, marks each
/// chunk's last step.
fn mark_last_step_of_each_chunk(steps: &mut [PassOrOverlappingPair]) {
    let trains = steps.iter().any(|step| {
        step.iter_passes()
            .any(|pass| pass.kind != PassKind::Forward)
    });
    let mut completed: Vec<u32> = Vec::new();
    for step in steps.iter_mut().rev() {
        let mut finders = step
            .iter_passes()
            .filter(|pass| pass.kind.computes_weight_gradients() || !trains);
        let Some(finder) = finders.next() else {
            continue;
        };
        if !completed.contains(&finder.chunk) {
            completed.push(finder.chunk);
            step.completes = true;
        }
    }
}

/// Rule that maps a stage's chunks to parts of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkPlacement<'o> {
    /// On stage s of S, chunk c is part c S + s.
    Cyclic,
    /// On stage s of S, chunk 0 is part s, and chunk 1 is part 2 S - 1 - s.
    Folded,
    /// On stage s of S, chunk 0 is part s, and chunk 1 is part S - 1 - s, so each of the S parts is on two stages.
    Mirrored,
    /// The order file lists the parts on each stage.
    Listed(&'o StagePassOrders),
}

/// Parameters that define most schedules (see the module's documentation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScheduleParameters {
    /// Number of chunks into which a stage's layers are divided.
    chunks: u32,
    /// Number of micro-batches that a chunk processes before the next chunk runs.
    micro_batches_per_turn: u32,
    /// Number of forward passes before the first backward pass.
    warm_up: u64,
    /// True if there are backward passes.
    training: bool,
}

impl PipelineSchedule {
    /// Checks that this schedule can run `micro_batches` micro-batches per step on `stages` stages.
    pub fn check_stage_and_micro_batch_counts(
        &self,
        stages: u32,
        micro_batches: u32,
    ) -> Result<(), PatternOptionError> {
        check_at_least("stages", stages, 1)?;
        check_at_least("micro_batches", micro_batches, 1)?;
        match self {
            Self::Interleaved { chunks } => {
                interleaved::check_interleaved_schedule(*chunks, stages, micro_batches)?
            }
            Self::InterleavedPairs { chunks: 1 } if stages == 1 => {}
            Self::InterleavedPairs { chunks } => {
                interleaved::check_interleaved_schedule(*chunks, stages, micro_batches)?
            }
            Self::LayerWise { layers } => check_at_least("layers", *layers, 1)?,
            Self::DualPipe => dual_pipe::check_dual_pipe(stages, micro_batches)?,
            Self::DualPipeV => dual_pipe::check_dual_pipe_v(stages, micro_batches)?,
            Self::Listed(orders) => check_listed_order_matches_plan(orders, stages, micro_batches)?,
            Self::GPipe
            | Self::OneForwardOneBackward
            | Self::Inference
            | Self::ZeroBubbleH1
            | Self::ZeroBubbleV => {}
        }
        // A pass needs at least one node, so the maximum trace size limits the number of passes.
        let each = if self.splits_backward() { 3 } else { 2 };
        let passes = each * u128::from(micro_batches) * u128::from(self.chunk_count());
        check_limit(
            "passes of a stage",
            passes,
            MOST_NODES,
            "fewer micro-batches",
        )
        .map(drop)
    }

    /// Number of model chunks on a stage. Every micro-batch passes through all of them, except in DualPipe, where it
    /// passes only through the chunk of its direction.
    pub fn chunk_count(&self) -> u32 {
        match self {
            Self::Interleaved { chunks } | Self::InterleavedPairs { chunks } => *chunks,
            Self::LayerWise { layers } => *layers,
            Self::ZeroBubbleV | Self::DualPipe | Self::DualPipeV => 2,
            Self::Listed(orders) => orders.chunk_count(),
            Self::GPipe | Self::OneForwardOneBackward | Self::Inference | Self::ZeroBubbleH1 => 1,
        }
    }

    /// Number of parts into which the model is divided.
    pub fn part_count(&self, stages: u32) -> u32 {
        match self {
            Self::DualPipe => stages,
            _ => self.chunk_count() * stages,
        }
    }

    /// Returns the stage with the model's first part and the stage with its last part. If two stages have copies of
    /// these parts, both entries of the result are the stage that has both parts.
    pub fn stages_of_first_and_last_part(&self, stages: u32) -> [u32; 2] {
        match self.chunk_placement_kind() {
            ChunkPlacement::Cyclic => [0, stages.max(1) - 1],
            ChunkPlacement::Folded | ChunkPlacement::Mirrored => [0; 2],
            ChunkPlacement::Listed(orders) => orders.stages_of_first_and_last_part(),
        }
    }

    /// Number of stages that have a copy of each part of the model.
    pub fn copy_count_of_each_part(&self) -> u32 {
        if *self == Self::DualPipe { 2 } else { 1 }
    }

    /// Returns true if there are backward passes.
    pub fn has_training(&self) -> bool {
        match self {
            Self::Inference => false,
            Self::Listed(orders) => orders.has_training(),
            _ => true,
        }
    }

    /// Returns true if the schedule splits backward passes into input gradients and weight gradients. An option of the
    /// plan that splits them does not count.
    pub fn splits_backward(&self) -> bool {
        matches!(
            self,
            Self::ZeroBubbleH1
                | Self::ZeroBubbleV
                | Self::DualPipe
                | Self::DualPipeV
                | Self::Listed(_)
        )
    }

    /// Returns true if stages keep the activations of all micro-batches until the first backward pass.
    pub fn keeps_all_activations(&self) -> bool {
        matches!(self, Self::GPipe | Self::LayerWise { .. })
    }

    /// Returns two numbers of micro-batches: the period with which a stage's steps repeat, and the smallest number of
    /// micro-batches per step from which this holds. Returns `None` if the period is unknown.
    pub fn repeat_period_and_minimum(&self, stages: u32) -> Option<(u32, u32)> {
        match self {
            Self::Interleaved { .. } => Some((stages, stages)),
            Self::InterleavedPairs { .. } => Some((stages, 2 * stages)),
            Self::ZeroBubbleH1 => Some((1, stages)),
            Self::ZeroBubbleV => Some((1, 2 * stages - 1)),
            Self::DualPipe => Some((2, 2 * stages)),
            Self::DualPipeV => Some((1, 2 * stages)),
            Self::Listed(_) => None,
            Self::GPipe
            | Self::OneForwardOneBackward
            | Self::LayerWise { .. }
            | Self::Inference => Some((1, 1)),
        }
    }

    /// Returns the passes of stage `stage` out of `stages`, in execution order.
    ///
    /// # Panics
    /// Panics under the same conditions as [`PipelineSchedule::steps_of_stage`].
    pub fn passes_of_stage(
        &self,
        stage: u32,
        stages: u32,
        micro_batches: u32,
    ) -> impl Iterator<Item = PipelinePass> + use<> {
        let steps = self.steps_of_stage(stage, stages, micro_batches);
        steps.flat_map(PassOrOverlappingPair::iter_passes)
    }

    /// Returns the steps of stage `stage` out of `stages`, in execution order.
    ///
    /// # Panics
    /// Panics if [`PipelineSchedule::check_stage_and_micro_batch_counts`] rejects the arguments, or if `stage` is not
    /// below `stages`.
    pub fn steps_of_stage(&self, stage: u32, stages: u32, micro_batches: u32) -> PipelineStepIter {
        match self.schedule_parameters_of_stage(stage, stages, micro_batches) {
            Some(shape) => PipelineStepIter::from_schedule_parameters(shape, micro_batches),
            None => PipelineStepIter::from_steps(self.build_list_defined_steps(
                stage,
                stages,
                micro_batches,
            )),
        }
    }

    /// Returns the steps of a schedule that is defined by a list instead of a [`ScheduleParameters`].
    fn build_list_defined_steps(
        &self,
        stage: u32,
        stages: u32,
        micro_batches: u32,
    ) -> Vec<PassOrOverlappingPair> {
        let alone = |passes: Vec<PipelinePass>| {
            let steps = passes
                .into_iter()
                .map(PassOrOverlappingPair::from_single_pass);
            steps.collect::<Vec<_>>()
        };
        let mut steps = match self {
            Self::ZeroBubbleH1 => alone(zero_bubble::zb_h1_passes(stage, stages, micro_batches)),
            Self::ZeroBubbleV => alone(zero_bubble::zb_v_passes(stage, stages, micro_batches)),
            Self::DualPipe => dual_pipe::dual_pipe_steps(stage, stages, micro_batches),
            Self::DualPipeV => dual_pipe::dual_pipe_v_steps(stage, stages, micro_batches),
            Self::InterleavedPairs { chunks } => {
                interleaved::interleaved_steps_with_overlapping_pairs(
                    *chunks,
                    stage,
                    stages,
                    micro_batches,
                )
            }
            Self::Listed(orders) => return orders.steps_of_stage(stage),
            _ => unreachable!("other schedules have a shape"),
        };
        mark_last_step_of_each_chunk(&mut steps);
        steps
    }

    /// Returns the steps of all stages in the format of order files ([`StagePassOrders`]), one line per
    /// stage.
    ///
    /// # Panics
    /// Panics under the same conditions as [`PipelineSchedule::steps_of_stage`].
    pub fn to_lines(&self, stages: u32, micro_batches: u32) -> Vec<String> {
        let line = |stage| {
            let steps = self.steps_of_stage(stage, stages, micro_batches);
            let cells = steps.map(|step| {
                pass_orders::format_order_cell(&step, |chunk| {
                    self.part_of_chunk(stage, chunk, stages)
                })
            });
            cells.collect::<Vec<_>>().join(",")
        };
        (0..stages).map(line).collect()
    }

    /// Returns the maximum number of passes whose activations stage `stage` stores at once. A pass's activations are
    /// stored until its gradients are complete. A pass stores 1/[`chunks`](PipelineSchedule::chunk_count) of a
    /// micro-batch's activations on the stage.
    ///
    /// Without split passes, this is the warm-up plus one: min(m, S - i) for 1F1B on stage i of S, and m for GPipe. For
    /// inference, which saves no activations, it is 0.
    ///
    /// # Panics
    /// Panics under the same conditions as [`PipelineSchedule::passes_of_stage`].
    pub fn max_passes_with_stored_activations(
        &self,
        stage: u32,
        stages: u32,
        micro_batches: u32,
    ) -> u64 {
        match self.schedule_parameters_of_stage(stage, stages, micro_batches) {
            Some(shape) if shape.training => shape
                .forward_pass_count(micro_batches)
                .min(shape.warm_up + 1),
            Some(_) => 0,
            None if self.has_training() => {
                let (mut held, mut most) = (0, 0);
                for pass in self.passes_of_stage(stage, stages, micro_batches) {
                    match pass.kind {
                        PassKind::Forward => held += 1,
                        PassKind::InputGradient => {}
                        PassKind::Backward | PassKind::WeightGradient => held -= 1,
                    }
                    most = most.max(held);
                }
                most
            }
            None => 0,
        }
    }

    fn schedule_parameters_of_stage(
        &self,
        stage: u32,
        stages: u32,
        micro_batches: u32,
    ) -> Option<ScheduleParameters> {
        if let Err(error) = self.check_stage_and_micro_batch_counts(stages, micro_batches) {
            panic!("{error}");
        }
        assert!(stage < stages, "stage {stage} of {stages} does not exist");
        Some(match self {
            Self::GPipe => gpipe::gpipe_schedule_parameters(micro_batches),
            Self::OneForwardOneBackward => {
                one_f_one_b::one_f_one_b_schedule_parameters(stage, stages, micro_batches)
            }
            Self::Interleaved { chunks } => {
                interleaved::interleaved_schedule_parameters(*chunks, stage, stages, micro_batches)
            }
            Self::LayerWise { layers } => {
                layer_wise::layer_wise_schedule_parameters(*layers, micro_batches)
            }
            Self::Inference => inference::inference_schedule_parameters(micro_batches),
            _ => return None,
        })
    }

    fn chunk_placement_kind(&self) -> ChunkPlacement<'_> {
        match self {
            Self::ZeroBubbleV | Self::DualPipeV => ChunkPlacement::Folded,
            Self::DualPipe => ChunkPlacement::Mirrored,
            Self::Listed(orders) => ChunkPlacement::Listed(orders),
            _ => ChunkPlacement::Cyclic,
        }
    }

    /// Returns the index of the model part that stage `stage` out of `stages` runs as chunk `chunk`.
    pub fn part_of_chunk(&self, stage: u32, chunk: u32, stages: u32) -> u32 {
        match self.chunk_placement_kind() {
            ChunkPlacement::Folded if chunk == 1 => 2 * stages - 1 - stage,
            ChunkPlacement::Mirrored if chunk == 1 => stages - 1 - stage,
            ChunkPlacement::Listed(orders) => orders.part_of_chunk(stage, chunk),
            _ => chunk * stages + stage,
        }
    }

    /// Returns the stage and the chunk that contain part `part`. If two stages have copies of it, returns the first.
    pub fn stage_and_chunk_of(&self, part: u32, stages: u32) -> (u32, u32) {
        match self.chunk_placement_kind() {
            ChunkPlacement::Folded if part >= stages => (2 * stages - 1 - part, 1),
            ChunkPlacement::Listed(orders) => orders.stage_and_chunk_of_part(part),
            _ => (part % stages, part / stages),
        }
    }

    /// Returns true if each stage sends its results to the next stage, and the last stage sends to the first.
    pub fn has_cyclic_chunk_placement(&self) -> bool {
        self.chunk_placement_kind() == ChunkPlacement::Cyclic
    }

    /// Returns the stage and the pass that produce the input of `pass` on stage `stage` out of `stages`. The input is
    /// activations from the previous layers, or gradients from the next layers. Returns `None` at the ends of the
    /// model. Also returns `None` for weight gradients, whose inputs are on the same stage. A backward pass's
    /// predecessor has the same kind as `pass`, even if the schedule has separate weight-gradient passes.
    ///
    /// In most schedules, the first stage's next chunk follows the last stage's chunk. Backward passes run through
    /// stages and chunks in reverse order. A single stage has all chunks and therefore exchanges no messages. A
    /// backward pass also needs its own forward pass, which comes earlier in the same stage's order.
    pub fn predecessor_of(
        &self,
        pass: PipelinePass,
        stage: u32,
        stages: u32,
    ) -> Option<(u32, PipelinePass)> {
        match pass.kind {
            PassKind::Forward => self.adjacent_pass(pass, stage, stages, false),
            PassKind::Backward | PassKind::InputGradient => {
                self.adjacent_pass(pass, stage, stages, true)
            }
            PassKind::WeightGradient => None,
        }
    }

    /// Returns the stage and the pass that use the result of `pass` on stage `stage` out of `stages`. This is the
    /// inverse of [`PipelineSchedule::predecessor_of`].
    pub fn stage_and_pass_using_result(
        &self,
        pass: PipelinePass,
        stage: u32,
        stages: u32,
    ) -> Option<(u32, PipelinePass)> {
        match pass.kind {
            PassKind::Forward => self.adjacent_pass(pass, stage, stages, true),
            PassKind::Backward | PassKind::InputGradient => {
                self.adjacent_pass(pass, stage, stages, false)
            }
            PassKind::WeightGradient => None,
        }
    }

    /// Returns the same micro-batch's pass through the next part of the model if `behind` is true, and through the
    /// previous part otherwise.
    fn adjacent_pass(
        &self,
        pass: PipelinePass,
        stage: u32,
        stages: u32,
        behind: bool,
    ) -> Option<(u32, PipelinePass)> {
        let part = self.part_of_chunk(stage, pass.chunk, stages);
        let part = match behind {
            true => Some(part + 1).filter(|next| *next < self.part_count(stages)),
            false => part.checked_sub(1),
        }?;
        if self.chunk_placement_kind() == ChunkPlacement::Mirrored {
            // A micro-batch passes only through the chunks of its direction. The chunk index therefore does not change,
            // and determines the next stage.
            let stage = if pass.chunk == 1 {
                stages - 1 - part
            } else {
                part
            };
            return Some((stage, pass));
        }
        let (stage, chunk) = self.stage_and_chunk_of(part, stages);
        Some((stage, PipelinePass { chunk, ..pass }))
    }
}

/// Rejects a listed order if its number of stages or micro-batches differs from the plan's.
fn check_listed_order_matches_plan(
    orders: &StagePassOrders,
    stages: u32,
    micro_batches: u32,
) -> Result<(), PatternOptionError> {
    let lines = orders.stage_count();
    if lines != stages {
        let expected = format!("{lines}, the number of stages in the pass orders");
        return Err(refused_option_value_error("pipeline", stages, expected));
    }
    let listed = orders.micro_batches();
    if listed != micro_batches {
        let expected = format!(
            "{listed} micro-batches per step, as in the pass orders: batch / (data x micro_batch)"
        );
        return Err(refused_option_value_error(
            "micro_batches",
            micro_batches,
            expected,
        ));
    }
    Ok(())
}
