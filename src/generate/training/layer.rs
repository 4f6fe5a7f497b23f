//! A layer as one member of a tensor group runs it, forwards and backwards.
//!
//! A sharded region begins with an operator sharded by outputs and ends with one sharded by inputs (Shoeybi et al.,
//! 2019):
//!
//! | | forward | backward |
//! |---|---|---|
//! | into the region | | all-reduce of the input's gradient |
//! | out of it | all-reduce of the output | |
//! | with sequence parallelism, into it | all-gather of the input | all-gather of the input again, reduce-scatter of its gradient |
//! | … out of it | reduce-scatter of the output | all-gather of the output's gradient |
//!
//! (Korthikanti et al., 2022, section 4.2.2.) The sum of the input's gradient overlaps the product that computes the
//! gradient of the weights, and the second all-gather of the input overlaps the product before.

use super::super::GenerateError;
use super::buckets;
use super::cost::{CostParameters, LoweredKernel, OperatorKernels};
use super::operator_recompute::{RecomputedPart, recomputed};
use super::program::{LayerProgram, ProgramBuilder, ProgramTask};
use super::shard::shard;
use crate::generate::plan::{AblationEffect, AblationSet, ParallelGroupKind, RecomputePolicy};
use crate::generate::schedule::PassDirection;
use crate::model::{LayerOperator, LayerRole, ModelLayer, OperatorKind, TensorSplit};
use crate::trace::{CollectiveKind, TensorClass, TrainingPhase};

/// Options that all layers of a plan share.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoweringContext {
    pub sizes: CostParameters,
    /// Members of a tensor group.
    pub tensor: u64,
    pub sequence: bool,
    pub recompute: RecomputePolicy,
    pub without: AblationSet,
    /// True if sums over the tensor group overlap products that do not need them.
    pub overlap: bool,
    pub trains: bool,
}

/// A layer's programs and weights.
#[derive(Clone, Debug)]
pub(super) struct LoweredLayer {
    /// Forwards: one for all members of a tensor group, or one for each.
    pub forward: Vec<LayerProgram>,
    /// Backwards, as many.
    pub backward: Vec<LayerProgram>,
    /// Weights that a member has.
    pub parameters: u64,
    /// Of those, weights whose gradients a member computes for a shard of the samples or tokens only, with the group
    /// over which they are summed.
    pub partial: Vec<(ParallelGroupKind, u64)>,
    /// The operator with a matrix tied to the embedding's: the number of operators behind it, and a member's number
    /// of weights of the matrix.
    pub tied: Option<(usize, u64)>,
    /// Bytes kept from the forward to the backward pass.
    pub keeps: u64,
    /// Number of shards of its output among members, known with degrees of operators.
    pub output_shards: u64,
}

impl LoweredLayer {
    /// Returns the program of `member` of a tensor group in a pass.
    pub fn program(&self, direction: PassDirection, member: u32) -> &LayerProgram {
        let programs = match direction {
            PassDirection::Forward => &self.forward,
            PassDirection::Backward => &self.backward,
        };
        &programs[member as usize % programs.len()]
    }
}

/// An operator as a member has it.
struct LoweredOperator<'l> {
    operator: &'l LayerOperator,
    kernels: OperatorKernels,
    /// Weights in the order in which their gradients are found.
    found: [u64; 2],
    /// Bytes of all inputs and outputs of a tensor group.
    input: u64,
    output: u64,
    /// True if it begins a sharded region.
    enters: bool,
    /// True if the gradient of its input is needed.
    wanted: bool,
    /// Part that is done again, where that is chosen operator by operator.
    again: RecomputedPart,
}

impl LoweringContext {
    /// Lowers `layer`; the gradient of the `first` layer's input is not needed.
    pub fn lower(&self, layer: &ModelLayer, first: bool) -> Result<LoweredLayer, GenerateError> {
        let mut parts = Vec::new();
        let (mut parameters, mut partial, mut tied) = (0, 0, None);
        let mut before = None;
        for (i, operator) in layer.operators.iter().enumerate() {
            let work = shard(operator, self.tensor, self.sequence);
            parameters += work.parameters();
            tied = tied
                .or(tied_weights(&work).map(|weights| (layer.operators.len() - 1 - i, weights)));
            if operator.cut == TensorSplit::Replicated && self.sequence {
                partial += work.parameters();
            }
            let found = buckets::found(&work);
            let sizes = self.sizes_of(layer);
            let mut kernels = sizes.kernels(work.clone())?;
            let enters = operator.cut == TensorSplit::ColumnParallel
                && before != Some(TensorSplit::ColumnParallel);
            if operator.cut == TensorSplit::ColumnParallel {
                // Operators side by side keep one input for all, and each member its part of it.
                kernels.keeps = match (enters, self.sequence) {
                    (false, _) => 0,
                    (true, true) => kernels.keeps / self.tensor,
                    (true, false) => kernels.keeps,
                };
            }
            before = Some(operator.cut);
            self.leave_out(layer, &operator.work, &mut kernels);
            let chosen = self.recompute == RecomputePolicy::Operators;
            let again = if chosen && layer.role == LayerRole::Block {
                recomputed(&layer.operators, i, &work, &kernels, &sizes)?
            } else {
                RecomputedPart::default()
            };
            let bytes = self.sizes.samples.saturating_mul(self.sizes.number);
            parts.push(LoweredOperator {
                operator,
                kernels,
                found,
                input: operator.work.input_elements().saturating_mul(bytes),
                output: operator.work.output_elements().saturating_mul(bytes),
                enters,
                wanted: !(first && i == 0),
                again,
            });
        }
        let full = layer.role == LayerRole::Block && self.recompute == RecomputePolicy::Full;
        let kept_input = parts.first().map_or(0, |part| part.input) / self.shares();
        let mut forward = ProgramBuilder::new();
        if self.trains && full {
            forward.allocate(TensorClass::Activations, kept_input);
        }
        for part in &parts {
            self.forward(
                part,
                TrainingPhase::Forward,
                self.trains && !full,
                &mut forward,
            );
        }
        let mut backward = ProgramBuilder::new();
        if self.trains {
            if full {
                for part in &parts {
                    self.forward(part, TrainingPhase::Recompute, true, &mut backward);
                }
            }
            for part in &parts {
                backward.allocate(TensorClass::Activations, part.again.dropped);
                for kernel in &part.again.kernels {
                    let phase = TrainingPhase::Recompute;
                    let (task, shapes) = stamp(kernel);
                    let name = name(phase, &part.operator.name, kernel.suffix);
                    backward.push_chained(name, phase, task, shapes);
                }
            }
            self.backward(&parts, &mut backward);
            if full {
                backward.free(TensorClass::Activations, kept_input);
            }
        }
        let kept = |part: &LoweredOperator<'_>| self.keeps(&part.kernels) - part.again.dropped;
        let all = parts.iter().map(kept).sum();
        Ok(LoweredLayer {
            forward: vec![forward.finish()],
            backward: vec![backward.finish()],
            parameters,
            partial: if partial > 0 {
                vec![(ParallelGroupKind::Tensor, partial)]
            } else {
                Vec::new()
            },
            tied,
            output_shards: self.shares(),
            keeps: match (self.trains, full) {
                (false, _) => 0,
                (true, true) => kept_input,
                (true, false) => all,
            },
        })
    }

    /// Sizes of the kernels of `layer`: products outside blocks, the logits first of all, keep the plan's format.
    pub fn sizes_of(&self, layer: &ModelLayer) -> CostParameters {
        let linear = self.sizes.linear;
        CostParameters {
            linear: linear.filter(|_| layer.role == LayerRole::Block),
            ..self.sizes
        }
    }

    /// Number of members that share the tokens.
    fn shares(&self) -> u64 {
        if self.sequence { self.tensor } else { 1 }
    }

    /// Returns true if an operator of `layer` is left out entirely, with the communication that it needs.
    pub fn leaves_out(&self, layer: &ModelLayer, work: &OperatorKind) -> bool {
        let spec = work.spec();
        let loss = spec.reduces_columns();
        let logits = layer.role == LayerRole::Output && spec.is_linear();
        (loss && !self.trains) || (loss || logits) && self.without.has(AblationEffect::Logits)
    }

    /// Removes those `kernels` of an operator of `layer` that the plan leaves out.
    pub fn leave_out(
        &self,
        layer: &ModelLayer,
        work: &OperatorKind,
        kernels: &mut OperatorKernels,
    ) {
        if self.leaves_out(layer, work) {
            kernels.forward.clear();
            kernels.backward.clear();
            kernels.weights = None;
            kernels.after_weights.clear();
        }
        if self.without.has(AblationEffect::MemoryBound) {
            kernels.forward.retain(|kernel| !kernel.moves);
            kernels.backward.retain(|kernel| !kernel.moves);
            kernels.after_weights.retain(|kernel| !kernel.moves);
        }
    }

    /// Bytes that an operator keeps, unless its layer is run again as a whole.
    pub fn keeps(&self, kernels: &OperatorKernels) -> u64 {
        match self.recompute {
            RecomputePolicy::Selective => kernels.keeps,
            _ => kernels.keeps.saturating_add(kernels.scores),
        }
    }

    fn collective(
        &self,
        part: &LoweredOperator<'_>,
        what: &str,
        phase: TrainingPhase,
        kind: CollectiveKind,
        bytes: u64,
    ) -> Option<(String, ProgramTask)> {
        let silent = self.tensor == 1 || self.without.has(AblationEffect::TensorCommunication);
        // Without the kernel its communication is left out too.
        let idle = part.kernels.forward.is_empty();
        let bytes = match kind {
            CollectiveKind::AllGather => bytes.div_ceil(self.tensor),
            _ => bytes,
        };
        let name = name(phase, &part.operator.name, &format!(".{what}"));
        (!silent && !idle && bytes > 0).then_some({
            let family = ParallelGroupKind::Tensor;
            let task = ProgramTask::Collective {
                kind,
                bytes,
                family,
            };
            (name, task)
        })
    }

    fn forward(
        &self,
        part: &LoweredOperator<'_>,
        phase: TrainingPhase,
        keeps: bool,
        to: &mut ProgramBuilder,
    ) {
        if part.enters && self.sequence {
            let kind = CollectiveKind::AllGather;
            let gather = self.collective(part, "all-gather", phase, kind, part.input);
            if let Some((name, task)) = gather {
                to.push_chained(name, phase, task, ["", ""]);
            }
        }
        if keeps {
            let kept = self.keeps(&part.kernels) - part.again.dropped;
            to.allocate(TensorClass::Activations, kept);
        }
        self.kernels(part, phase, to);
        match (&part.operator.work, part.operator.cut) {
            (_, TensorSplit::RowParallel) => self.reduce_outputs(part, phase, to),
            (OperatorKind::Loss { rows, .. }, TensorSplit::InsideRegion) => {
                // Maximum, sum of exponentials, and the right class's logit: one number per row each.
                let bytes = 4 * rows * self.sizes.samples;
                for what in ["maximum", "sum", "logit"] {
                    let kind = CollectiveKind::AllReduce;
                    if let Some((name, task)) = self.collective(part, what, phase, kind, bytes) {
                        to.push_chained(name, phase, task, ["", ""]);
                    }
                }
            }
            _ => {}
        }
    }

    /// Sums outputs over members.
    fn reduce_outputs(
        &self,
        part: &LoweredOperator<'_>,
        phase: TrainingPhase,
        to: &mut ProgramBuilder,
    ) {
        let (what, kind) = if self.sequence {
            ("reduce-scatter", CollectiveKind::ReduceScatter)
        } else {
            ("all-reduce", CollectiveKind::AllReduce)
        };
        if let Some((name, task)) = self.collective(part, what, phase, kind, part.output) {
            to.push_chained(name, phase, task, ["", ""]);
        }
    }

    fn kernels(&self, part: &LoweredOperator<'_>, phase: TrainingPhase, to: &mut ProgramBuilder) {
        for kernel in &part.kernels.forward {
            let (task, shapes) = stamp(kernel);
            let name = name(phase, &part.operator.name, kernel.suffix);
            to.push_chained(name, phase, task, shapes);
        }
    }

    fn backward(&self, parts: &[LoweredOperator<'_>], to: &mut ProgramBuilder) {
        let phase = TrainingPhase::Backward;
        // The node that gathers the input of a region again.
        let mut gathered = None;
        for (i, part) in parts.iter().enumerate().rev() {
            if part.operator.cut == TensorSplit::RowParallel && self.sequence {
                let kind = CollectiveKind::AllGather;
                let gather = self.collective(part, "all-gather", phase, kind, part.output);
                if let Some((name, task)) = gather {
                    to.push_chained(name, phase, task, ["", ""]);
                }
            }
            // Backwards a region begins with the last of the operators side by side.
            let begins = part.operator.cut == TensorSplit::ColumnParallel
                && parts
                    .get(i + 1)
                    .is_none_or(|next| next.operator.cut != TensorSplit::ColumnParallel);
            let entry = to.front.clone();
            if begins && self.sequence {
                let kind = CollectiveKind::AllGather;
                let again = self.collective(part, "all-gather", phase, kind, part.input);
                gathered = again.map(|(name, task)| {
                    if self.overlap {
                        to.push_parallel(name, phase, task, entry.clone(), ["", ""])
                    } else {
                        to.push_chained(name, phase, task, ["", ""])
                    }
                });
            }
            let again = self.recompute == RecomputePolicy::Selective && part.kernels.scores > 0;
            if again {
                to.allocate(TensorClass::Activations, part.kernels.scores);
                self.kernels(part, TrainingPhase::Recompute, to);
            }
            let own = part.kernels.weights.is_some();
            for kernel in part.kernels.backward.iter().filter(|_| part.wanted || !own) {
                let (task, shapes) = stamp(kernel);
                let name = name(phase, &part.operator.name, kernel.suffix);
                let item = to.push_chained(name, phase, task, shapes);
                if !own && part.operator.work.parameters() > 0 {
                    to.gradient(item);
                }
            }
            let reduction = match (part.enters && part.wanted, self.sequence) {
                (false, _) => None,
                (true, true) => {
                    let kind = CollectiveKind::ReduceScatter;
                    self.collective(part, "reduce-scatter", phase, kind, part.input)
                }
                (true, false) => {
                    let kind = CollectiveKind::AllReduce;
                    self.collective(part, "all-reduce", phase, kind, part.input)
                }
            };
            let beside = self.overlap && reduction.is_some();
            let mut sum = reduction;
            if let Some((name, task)) = sum.take_if(|_| beside) {
                to.push_chained(name, phase, task, ["", ""]);
            }
            if let Some(kernel) = &part.kernels.weights {
                let (task, shapes) = stamp(kernel);
                let name = name(phase, &part.operator.name, kernel.suffix);
                let mut after = if beside { entry } else { to.front.clone() };
                after.extend(gathered.map(super::program::ProgramDependency::Node));
                let item = to.push_parallel(name, phase, task, after, shapes);
                to.push_behind(item, behind(&part.kernels, &part.operator.name), beside);
            }
            to.free(
                TensorClass::Activations,
                part.kernels.keeps + part.kernels.scores,
            );
            if let Some((name, task)) = sum {
                to.push_chained(name, phase, task, ["", ""]);
            }
            to.found(part.found);
            if part.enters {
                gathered = None;
            }
        }
    }
}

/// Weights of a matrix that is tied to another.
pub(super) fn tied_weights(work: &OperatorKind) -> Option<u64> {
    work.spec().tied_weights()
}

pub(super) fn name(phase: TrainingPhase, operator: &str, suffix: &str) -> String {
    let phase = match phase {
        TrainingPhase::Forward => "fwd",
        TrainingPhase::Recompute => "again",
        _ => "bwd",
    };
    format!("{phase}/{operator}{suffix}")
}

/// Returns the kernels behind that of the weights' gradient of `operator`.
pub(super) fn behind<'k>(
    kernels: &'k OperatorKernels,
    operator: &'k str,
) -> impl Iterator<Item = (String, ProgramTask, [&'k str; 2])> {
    kernels.after_weights.iter().map(move |kernel| {
        let (task, shapes) = stamp(kernel);
        let name = name(TrainingPhase::Backward, operator, kernel.suffix);
        (name, task, shapes)
    })
}

/// Returns the task of a node that runs `kernel`, and the shapes of its inputs and outputs.
pub(super) fn stamp(kernel: &LoweredKernel) -> (ProgramTask, [&str; 2]) {
    let task = ProgramTask::Kernel {
        flops: kernel.flops,
        bytes: kernel.bytes,
        shape: kernel.shape,
        dtype: kernel.dtype,
        operands: kernel.operands,
    };
    (task, [&kernel.inputs, &kernel.outputs])
}
