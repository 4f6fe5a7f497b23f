//! A layer whose operators have degrees of their own, as the members of a tensor group run it.
//!
//! The sharding of its operators determines what a layer does ([`dataflow`](super::dataflow)):
//!
//! | | forward | backward |
//! |---|---|---|
//! | into an operator | a layout other than the needed one is redistributed | the gradient of the input is redistributed back |
//! | its products | terms over `k` are summed, with an all-reduce | terms of the input's gradient are summed over `n` |
//! | … | a sum of which each member needs only its shard is a reduce-scatter | the same |
//! | windows that reach over the edge of a shard | rows come from the neighbours | gradients of these rows go back |
//! | weights | | gradients are summed over `b` and `m`, once at the end of a step |
//!
//! In bytes, for `B` samples of `M` rows in numbers of `d` bytes and gradients of `g`:
//!
//! | | buffer of a member | among those that differ in |
//! |---|---|---|
//! | sum of an output of `N` columns (FD) | `d BMN / bmn` | k |
//! | sum of an input's gradient of `K` columns (BD) | `d BMK / bmk` | n |
//! | sum of weights' gradients (GU) | `g (NK / nk + N / n)`, the bias being the last term | b and m |
//! | rows of an image of `W` pixels and `C` channels from a neighbour | `d B W C / bk` each; of a pool `/ bn` | m |
//! | a loss over classes that are sharded, three times | `4 BM / bm` | n |
//!
//! A matrix tied to a table is sharded like the table, and on one stage its gradient is the table's: summed once.
//!
//! (PALM, Table III.) Communication is minimal: an all-gather or an all-to-all where possible, messages otherwise.
//! With the degrees of Megatron-LM this equals [`layer`](super::layer), except for sequence parallelism: gathered
//! inputs are saved here, and not gathered again.

use super::super::GenerateError;
use super::buckets;
use super::cost::{LoweredKernel, OperatorKernels};
use super::dataflow::{LayerDataflow, OperatorInput, ShardedActivation, ShardedOperator};
use super::layer::{LoweredLayer, LoweringContext, behind, name, stamp};
use super::operator_recompute::{RecomputedPart, recomputed};
use super::program::{LayerProgram, ProgramBuilder, ProgramDependency, ProgramTask};
use crate::generate::check_limit;
use crate::generate::plan::{AblationEffect, ParallelGroupKind, RecomputePolicy};
use crate::generate::sharding::MemberPartition;
use crate::model::{ChainRole, LayerRole, ModelLayer, OperatorSpec};
use crate::trace::{CollectiveKind, TensorClass, TrainingPhase};
use std::collections::BTreeMap;

mod redistribution;
mod redistribution_cache;
#[cfg(test)]
mod tests;

use redistribution::PendingRedistribution;
use redistribution_cache::{GroupRedistribution, RedistributionCache};

/// Nodes of all members and layers that differ, where members send each other messages: some 200 bytes each.
const MOST_ITEMS: u64 = 1 << 23;

/// Lowers layers, and collects the groups of members that communicate.
pub(super) struct ShardedLowering {
    pub context: LoweringContext,
    /// True if the first and the last stage have a copy each of a tied matrix.
    pub copies: bool,
    /// Groups within a tensor group, in the order of [`ParallelGroupKind::Operator`].
    pub partitions: Vec<MemberPartition>,
    /// Messages of a layer that the same two members may send each other, at most.
    pub slots: u32,
    known: RedistributionCache,
    /// Nodes so far.
    items: u64,
}

/// An operator as a member has it.
struct MemberOperator<'s> {
    step: &'s ShardedOperator<'s>,
    spec: OperatorSpec,
    kernels: OperatorKernels,
    /// Part that is done again, where that is chosen operator by operator.
    again: RecomputedPart,
    /// True if its input, of which it keeps a shard, is gathered again backwards.
    regathers: bool,
    parameters: u64,
    /// Weights in the order in which their gradients are found.
    found: [u64; 2],
    /// True if the gradient of its input is needed.
    wanted: bool,
    /// True if the plan leaves it out entirely: nothing is moved for it.
    idle: bool,
}

/// The programs of one member, in construction.
struct MemberProgramWriter<'w> {
    lowering: &'w mut ShardedLowering,
    member: u32,
    /// Messages so far.
    slot: u32,
}

impl ShardedLowering {
    /// Creates a lowering without layers.
    pub fn new(context: LoweringContext, copies: bool) -> Self {
        Self {
            context,
            copies,
            partitions: Vec::new(),
            slots: 0,
            known: RedistributionCache::default(),
            items: 0,
        }
    }

    fn members(&self) -> u32 {
        // The degree is one of a plan's, which has 32 bits.
        self.context.tensor as u32
    }

    /// Returns the group kind of the partition `among`, which is added if it is new.
    fn family(&mut self, among: &MemberPartition) -> ParallelGroupKind {
        if among.is_all() {
            return ParallelGroupKind::Tensor;
        }
        let known = self.partitions.iter().position(|one| one == among);
        let number = known.unwrap_or_else(|| {
            self.partitions.push(among.clone());
            self.partitions.len() - 1
        });
        // Numbers out of range are refused once all layers are lowered.
        ParallelGroupKind::Operator(u16::try_from(number).unwrap_or(u16::MAX))
    }

    /// Shards of the input of a product cut by outputs that members gather, and gather again backwards: with sequence
    /// parallelism each keeps its tokens alone (Korthikanti et al., 2022, section 4.2.2).
    fn regathers(&self, step: &ShardedOperator<'_>, spec: &OperatorSpec) -> Option<u64> {
        let [input] = &step.inputs[..] else {
            return None;
        };
        let [from, need] = [input.from.layout.rows, input.need.rows];
        let gathers = from.parts > 1 && need.parts == 1 && step.cutting.outputs.parts > 1;
        (self.context.sequence && gathers && spec.sums()).then_some(from.parts.into())
    }

    /// Bytes that an operator keeps over the forward pass, unless its layer is run again as a whole.
    fn kept(&self, one: &MemberOperator<'_>) -> u64 {
        self.context.keeps(&one.kernels) - one.again.dropped
    }

    /// Lowers `layer`, whose operators are sharded as in `flow`.
    pub fn lower(
        &mut self,
        layer: &ModelLayer,
        flow: &LayerDataflow<'_>,
    ) -> Result<LoweredLayer, GenerateError> {
        let mut own = Vec::with_capacity(flow.steps.len());
        let (mut parameters, mut tied) = (0_u64, None);
        let mut partial: BTreeMap<ParallelGroupKind, u64> = BTreeMap::new();
        for (i, step) in flow.steps.iter().enumerate() {
            let cutting = &step.cutting;
            let spec = step.operator.work.spec();
            let work = cutting.local_shard(&step.operator.work);
            let mut sizes = self.context.sizes_of(layer);
            sizes.samples = sizes.samples.div_ceil(cutting.samples.parts.into());
            let mut kernels = sizes.kernels(work.clone())?;
            let weights = work.parameters();
            parameters = parameters.saturating_add(weights);
            let behind = flow.steps.len() - 1 - i;
            let tied_weights = work.spec().tied_weights();
            tied = tied.or(tied_weights.map(|weights| (behind, weights)));
            // On one stage both operators add to one gradient, which is summed for the table.
            let copy = tied_weights.filter(|_| self.copies);
            let gradient = weights.saturating_add(copy.unwrap_or(0));
            let apart = MemberPartition::over(&[cutting.samples, cutting.rows], self.members());
            if gradient > 0 && apart.size() > 1 {
                let sum = partial.entry(self.family(&apart)).or_default();
                *sum = sum.saturating_add(gradient);
            }
            let regathers = self.regathers(step, &spec);
            if let Some(shards) = regathers {
                kernels.keeps /= shards;
            }
            self.context.leave_out(layer, &spec, &mut kernels);
            let chosen = self.context.recompute == RecomputePolicy::Operators;
            let again = if chosen && layer.role == LayerRole::Block {
                recomputed(&layer.operators, i, &work, &kernels, &sizes)?
            } else {
                RecomputedPart::default()
            };
            own.push(MemberOperator {
                step,
                kernels,
                again,
                regathers: regathers.is_some(),
                parameters: weights,
                found: buckets::found(&work),
                wanted: !step.inputs.is_empty(),
                idle: self.context.leaves_out(layer, &spec),
                spec,
            });
        }
        let full =
            layer.role == LayerRole::Block && self.context.recompute == RecomputePolicy::Full;
        let bytes = self
            .context
            .sizes
            .samples
            .saturating_mul(self.context.sizes.number);
        let kept_input = flow.steps.first().map_or(0, |step| {
            let shards = step.inputs.first().map_or(1, |one| one.from.layout.parts());
            let elements = step.operator.work.input_elements();
            elements.saturating_mul(bytes) / shards
        });
        let (mut forward, mut backward) = (Vec::new(), Vec::new());
        let mut alike = false;
        for member in 0..self.members() {
            let mut writer = MemberProgramWriter {
                lowering: self,
                member,
                slot: 0,
            };
            let programs = writer.programs(&own, &flow.end, full.then_some(kept_input));
            let slots = writer.slot;
            self.slots = self.slots.max(slots);
            self.items += (programs.0.items.len() + programs.1.items.len()) as u64;
            check_limit(
                "nodes of a tensor group",
                self.items.into(),
                MOST_ITEMS,
                "a smaller tensor degree, or degrees with which results lie alike and need no messages",
            )?;
            forward.push(programs.0);
            backward.push(programs.1);
            // Without messages all members run the same program, so the first one stands for all.
            if slots == 0 {
                alike = true;
                break;
            }
        }
        debug_assert!(alike || forward.len() == self.members() as usize);
        let all = own.iter().map(|one| self.kept(one)).sum();
        Ok(LoweredLayer {
            forward,
            backward,
            parameters,
            partial: partial.into_iter().collect(),
            tied,
            keeps: match (self.context.trains, full) {
                (false, _) => 0,
                (true, true) => kept_input,
                (true, false) => all,
            },
            output_shards: flow.end.layout.parts(),
        })
    }
}

impl MemberProgramWriter<'_> {
    fn context(&self) -> LoweringContext {
        self.lowering.context
    }

    /// Builds both programs; with full recomputation, `full` bytes of the input are saved instead of activations.
    fn programs(
        &mut self,
        own: &[MemberOperator<'_>],
        end: &ShardedActivation,
        full: Option<u64>,
    ) -> (LayerProgram, LayerProgram) {
        let trains = self.context().trains;
        let mut forward = ProgramBuilder::new();
        if let Some(kept) = full.filter(|_| trains) {
            forward.allocate(TensorClass::Activations, kept);
        }
        self.forward(
            own,
            end,
            TrainingPhase::Forward,
            trains && full.is_none(),
            &mut forward,
        );
        let mut backward = ProgramBuilder::new();
        if trains {
            if full.is_some() {
                self.forward(own, end, TrainingPhase::Recompute, true, &mut backward);
            }
            for one in own {
                backward.allocate(TensorClass::Activations, one.again.dropped);
                let operator = &one.step.operator.name;
                push_kernels(
                    &one.again.kernels,
                    TrainingPhase::Recompute,
                    operator,
                    &mut backward,
                );
            }
            for i in (0..own.len()).rev() {
                self.backward(own, end, i, &mut backward);
            }
            backward.free(TensorClass::Activations, full.unwrap_or(0));
        }
        (forward.finish(), backward.finish())
    }

    fn forward(
        &mut self,
        own: &[MemberOperator<'_>],
        end: &ShardedActivation,
        phase: TrainingPhase,
        keeps: bool,
        to: &mut ProgramBuilder,
    ) {
        for (i, one) in own.iter().enumerate() {
            // What an operator of this layer left to be summed was summed behind it.
            for input in one.step.inputs.iter().filter(|input| !is_pending(input)) {
                self.enters(own, one, input, phase, to);
            }
            self.exchange_halo(one, false, phase, to);
            if keeps {
                let kept = self.lowering.kept(one);
                to.allocate(TensorClass::Activations, kept);
            }
            push_kernels(&one.kernels.forward, phase, &one.step.operator.name, to);
            self.classes(one, phase, to);
            for (whose, input) in pending(own, i) {
                self.enters(own, whose, input, phase, to);
            }
        }
        // The output of a layer is always summed.
        if let Some(one) = last(own)
            && let Some(over) = one.step.cutting.partial_axis()
            && !one.idle
        {
            let moved = PendingRedistribution {
                from: &one.step.cutting.output_layout(),
                over: Some(over),
                need: &end.layout,
                elements: end.elements,
            };
            let name: &str = &one.step.operator.name;
            self.moved(&moved, [name, name], phase, to);
        }
    }

    /// Brings an input of `one` into the layout that it needs.
    fn enters(
        &mut self,
        own: &[MemberOperator<'_>],
        one: &MemberOperator<'_>,
        input: &OperatorInput,
        phase: TrainingPhase,
        to: &mut ProgramBuilder,
    ) {
        let from = &input.from;
        // A pending sum is completed even if its consumer is left out, but only if it was computed.
        let found = from.produced_by.is_some_and(|by| !own[by].idle);
        let sums = from.partial_over.is_some() && found;
        let moved = PendingRedistribution {
            from: &from.layout,
            over: from.partial_over,
            need: if one.idle { &from.layout } else { &input.need },
            elements: if one.idle && !sums { 0 } else { from.elements },
        };
        // A sum is named after the operator that left it pending, a move after the one that needs it.
        let whose = [self.by(own, from, one), &one.step.operator.name];
        self.moved(&moved, whose, phase, to);
    }

    /// Brings the gradient of an input of `one` back to the layout of what it is the gradient of.
    fn leaves(
        &mut self,
        own: &[MemberOperator<'_>],
        one: &MemberOperator<'_>,
        input: &OperatorInput,
        to: &mut ProgramBuilder,
    ) {
        let outputs = one.step.cutting.outputs;
        let moved = PendingRedistribution {
            from: &input.need,
            over: (one.spec.sums() && outputs.parts > 1).then_some(outputs),
            need: &input.from.layout,
            elements: input.from.elements,
        };
        let whose = [&*one.step.operator.name, self.by(own, &input.from, one)];
        self.moved(&moved, whose, TrainingPhase::Backward, to);
    }

    /// Name of the operator that produced `held`, or of `one` if another layer did.
    fn by<'o>(
        &self,
        own: &'o [MemberOperator<'_>],
        held: &ShardedActivation,
        one: &'o MemberOperator<'_>,
    ) -> &'o str {
        let from = held.produced_by.and_then(|by| own.get(by)).unwrap_or(one);
        &from.step.operator.name
    }

    /// Sums over classes that a loss needs where members have some of them each: the maximum, the sum of
    /// exponentials, and the right class's logit, one number of 4 bytes per row.
    fn classes(&mut self, one: &MemberOperator<'_>, phase: TrainingPhase, to: &mut ProgramBuilder) {
        let (spec, cutting) = (&one.spec, &one.step.cutting);
        if !spec.reduces_columns() {
            return;
        }
        let rows = spec.extent('m');
        let silent = self
            .context()
            .without
            .has(AblationEffect::TensorCommunication);
        if cutting.outputs.parts == 1 || one.idle || silent {
            return;
        }
        let family = self.lowering.sums(cutting.outputs);
        let share = u64::from(cutting.samples.parts) * u64::from(cutting.rows.parts);
        let bytes = rows.saturating_mul(4 * self.context().sizes.samples) / share;
        for what in ["maximum", "sum", "logit"] {
            let suffix = format!(".{what}");
            let name = name(phase, &one.step.operator.name, &suffix);
            self.collective(name, CollectiveKind::AllReduce, bytes, family, phase, to);
        }
    }

    fn backward(
        &mut self,
        own: &[MemberOperator<'_>],
        end: &ShardedActivation,
        i: usize,
        to: &mut ProgramBuilder,
    ) {
        let (phase, one) = (TrainingPhase::Backward, &own[i]);
        let context = self.context();
        let operator = &one.step.operator.name;
        // The gradient of a sum that was scattered is gathered.
        for (whose, input) in pending(own, i).filter(|(whose, _)| !whose.idle) {
            self.leaves(own, whose, input, to);
        }
        let is_last = last(own).is_some_and(|last| std::ptr::eq(last, one));
        if is_last && one.step.cutting.partial_axis().is_some() && !one.idle {
            let moved = PendingRedistribution {
                from: &end.layout,
                over: None,
                need: &one.step.cutting.output_layout(),
                elements: end.elements,
            };
            self.moved(&moved, [operator, operator], phase, to);
        }
        let entry = to.front.clone();
        let gathered = one
            .step
            .inputs
            .first()
            .filter(|_| one.regathers && !one.idle);
        let gathered = gathered.and_then(|input| {
            let moves = self.lowering.moves(&input.from.layout, &input.need);
            let GroupRedistribution::Gather { family, of } = *moves else {
                return None;
            };
            let (kind, bytes) = (CollectiveKind::AllGather, self.bytes(input.from.elements));
            let bytes = bytes.div_ceil(of);
            let task = ProgramTask::Collective {
                kind,
                bytes,
                family,
            };
            let name = name(phase, operator, ".all-gather");
            let silent = context.without.has(AblationEffect::TensorCommunication);
            (!silent && bytes > 0).then(|| {
                if context.overlap {
                    to.push_parallel(name, phase, task, entry.clone(), ["", ""])
                } else {
                    to.push_chained(name, phase, task, ["", ""])
                }
            })
        });
        if context.recompute == RecomputePolicy::Selective && one.kernels.scores > 0 {
            to.allocate(TensorClass::Activations, one.kernels.scores);
            push_kernels(&one.kernels.forward, TrainingPhase::Recompute, operator, to);
        }
        let weights = one.kernels.weights.as_ref();
        for kernel in &one.kernels.backward {
            if weights.is_some() && !one.wanted {
                continue;
            }
            let (task, shapes) = stamp(kernel);
            let item = to.push_chained(name(phase, operator, kernel.suffix), phase, task, shapes);
            if weights.is_none() && one.parameters > 0 {
                to.gradient(item);
            }
        }
        // The weights' gradient overlaps the sums and moves of the input's gradient, or precedes them.
        let found = |to: &mut ProgramBuilder, mut after: Vec<ProgramDependency>, beside: bool| {
            let Some(kernel) = weights else { return };
            let (task, shapes) = stamp(kernel);
            let name = name(phase, operator, kernel.suffix);
            after.extend(gathered.map(ProgramDependency::Node));
            let item = to.push_parallel(name, phase, task, after, shapes);
            to.push_behind(item, behind(&one.kernels, operator), beside);
        };
        // What was kept is needed until the operator's own kernels are done, and not for sums of its gradients.
        let kept = one.kernels.keeps.saturating_add(one.kernels.scores);
        let before = to.front.clone();
        let overlaps = context.overlap && weights.is_some();
        if !overlaps {
            found(to, before.clone(), false);
            to.free(TensorClass::Activations, kept);
        }
        self.exchange_halo(one, true, phase, to);
        let inputs = one.step.inputs.iter().filter(|input| !is_pending(input));
        for input in inputs.filter(|_| !one.idle) {
            self.leaves(own, one, input, to);
        }
        if overlaps {
            let beside = to.front != before;
            let after = if beside { entry } else { before };
            found(to, after, beside);
            to.free(TensorClass::Activations, kept);
        }
        to.found(one.found);
    }
}

/// Returns true for a sum that an operator of the same layer left pending.
fn is_pending(input: &OperatorInput) -> bool {
    input.from.partial_over.is_some() && input.from.produced_by.is_some()
}

/// Inputs that operator `i` left to be summed, each with the operator that needs it.
fn pending<'o, 's>(
    own: &'o [MemberOperator<'s>],
    i: usize,
) -> impl Iterator<Item = (&'o MemberOperator<'s>, &'o OperatorInput)> {
    let each = own[i..].iter();
    let inputs = each.flat_map(|one| one.step.inputs.iter().map(move |input| (one, input)));
    inputs.filter(move |(_, input)| is_pending(input) && input.from.produced_by == Some(i))
}

/// The operator whose output is the layer's.
fn last<'o, 's>(own: &'o [MemberOperator<'s>]) -> Option<&'o MemberOperator<'s>> {
    own.iter().rev().find(|one| hands_on(one.step))
}

/// Adds `kernels` of `operator` to the chain.
fn push_kernels(
    kernels: &[LoweredKernel],
    phase: TrainingPhase,
    operator: &str,
    to: &mut ProgramBuilder,
) {
    for kernel in kernels {
        let (task, shapes) = stamp(kernel);
        to.push_chained(name(phase, operator, kernel.suffix), phase, task, shapes);
    }
}

/// Returns true if the operator's output can be the output of its layer.
fn hands_on(step: &ShardedOperator<'_>) -> bool {
    !step.operator.around && step.operator.work.spec().role != ChainRole::Beside
}
