//! Programs of one member of a tensor group: kernels, sums and redistributions, in execution order.

use super::super::dataflow::{OperatorInputLayoutChange, ShardedActivation, ShardedOperator};
use super::super::layer::{
    node_name_with_phase_and_suffix, program_task_and_shapes_of_kernel, tasks_after_weight_gradient,
};
use super::super::program::{
    LayerProgram, LayerProgramBuilder, ProgramNodeOperation, ProgramPredecessorsOrNodeDependency,
};
use super::branches::{self, LastNodesPerOperator};
use super::module_recompute::RecomputedOperators;
use super::redistribution::NeededSumOrRedistribution;
use super::redistribution_cache::RedistributionWithGroups;
use super::{MemberOperator, MemberProgramWriter};
use crate::generate::plan::{
    AblationEffect, ExpertExchangeForm, ParallelGroupKind, RecomputePolicy,
};
use crate::generate::training::cost::LoweredKernel;
use crate::model::{OperatorInputSource, OperatorTokenExchangeSide};
use chakram_trace::format::{CollectiveKind, TensorClass, TrainingPhase};

impl MemberProgramWriter<'_> {
    /// Builds the forward program and the backward program. With full recomputation, only the layer's input (`full`
    /// bytes) is saved. `again` lists the modules that are recomputed by themselves.
    pub(super) fn build_forward_and_backward_programs(
        &mut self,
        own: &[MemberOperator<'_>],
        end: &ShardedActivation,
        full: Option<u64>,
        again: &[RecomputedOperators],
    ) -> (LayerProgram, LayerProgram) {
        let trains = self.lowering_context().trains;
        let mut forward = LayerProgramBuilder::new();
        // Only the layer's input is saved, because the backward pass recomputes all other
        // activations from it.
        if let Some(kept) = full.filter(|_| trains) {
            forward.allocate_bytes_at_next_node(TensorClass::Activations, kept);
        }
        self.build_forward_program(
            own,
            end,
            TrainingPhase::Forward,
            trains && full.is_none(),
            &mut forward,
        );
        let mut backward = LayerProgramBuilder::new();
        if trains {
            if full.is_some() {
                self.build_forward_program(own, end, TrainingPhase::Recompute, true, &mut backward);
            }
            for one in own.iter().filter(|_| again.is_empty()) {
                backward.allocate_bytes_at_next_node(TensorClass::Activations, one.again.dropped);
                let operator = &one.step.operator.name;
                push_kernels(
                    &one.again.kernels,
                    TrainingPhase::Recompute,
                    operator,
                    &mut backward,
                );
            }
            let order = self.lowering_context().branches;
            let mut fronts = LastNodesPerOperator::new(order, own.len(), &backward);
            for i in (0..own.len()).rev() {
                fronts.make_operator_wait_for_operators(
                    own,
                    i,
                    branches::consumer_operators_of(own, i),
                    &mut backward,
                );
                for group in again.iter().filter(|group| group.before == i) {
                    backward.allocate_bytes_at_next_node(TensorClass::Activations, group.bytes);
                    for at in group.operators.clone() {
                        let phase = TrainingPhase::Recompute;
                        self.build_forward_operator(own, at, phase, false, &mut backward);
                    }
                }
                self.build_backward_operator(own, end, i, &mut backward);
                fronts.record_operator_end(i, &mut backward);
            }
            fronts.continue_chain_after(branches::list_first_operators(own), &mut backward);
            backward.free_bytes_at_last_node(TensorClass::Activations, full.unwrap_or(0));
        }
        (forward.finish_program(), backward.finish_program())
    }

    fn build_forward_program(
        &mut self,
        own: &[MemberOperator<'_>],
        end: &ShardedActivation,
        phase: TrainingPhase,
        keeps: bool,
        to: &mut LayerProgramBuilder,
    ) {
        let mut fronts = LastNodesPerOperator::new(self.lowering_context().branches, own.len(), to);
        for i in 0..own.len() {
            fronts.make_operator_wait_for_operators(
                own,
                i,
                branches::source_operators_of(own, i),
                to,
            );
            self.build_forward_operator(own, i, phase, keeps, to);
            fronts.record_operator_end(i, to);
        }
        fronts.continue_chain_after(branches::list_last_operators(own), to);
        // The layer's output must not have a pending sum, so emit its sum here.
        if let Some(one) = find_layer_output_operator(own)
            && let Some(over) = one.step.cutting.partial_sum_digit()
            && !one.idle
        {
            let moved = NeededSumOrRedistribution {
                from: &one.step.cutting.output_layout(),
                over: Some(over),
                need: &end.layout,
                elements: end.elements,
            };
            let name: &str = &one.step.operator.name;
            self.emit_pending_sum_and_redistribution(&moved, [name, name], phase, to);
        }
    }

    /// Emits operator `i`, from the redistribution of its inputs to the sum of its results.
    fn build_forward_operator(
        &mut self,
        own: &[MemberOperator<'_>],
        i: usize,
        phase: TrainingPhase,
        keeps: bool,
        to: &mut LayerProgramBuilder,
    ) {
        let one = &own[i];
        // If an operator of this layer produced the input with a pending sum, that sum was already emitted after
        // the operator.
        for input in one
            .step
            .inputs
            .iter()
            .filter(|input| !is_input_sum_pending(input))
        {
            self.redistribute_input(own, one, input, phase, to);
        }
        self.exchange_halo(one, false, phase, to);
        if keeps {
            let kept = self.lowering.kept_bytes(one);
            to.allocate_bytes_at_next_node(TensorClass::Activations, kept);
        }
        sort_token_copies_for_experts(one, OperatorTokenExchangeSide::Combine, phase, to);
        self.emit_expert_token_exchange(one, OperatorTokenExchangeSide::Combine, phase, to);
        self.exchange_before_attention(one, phase, to);
        match &one.ring {
            Some(ring) => self.emit_forward_ring_attention(one, ring, phase, to),
            None => push_kernels(&one.kernels.forward, phase, &one.step.operator.name, to),
        }
        self.exchange_after_attention(one, phase, to);
        self.emit_expert_token_exchange(one, OperatorTokenExchangeSide::Dispatch, phase, to);
        sort_token_copies_for_experts(one, OperatorTokenExchangeSide::Dispatch, phase, to);
        self.emit_class_loss_sums(one, phase, to);
        for (whose, input) in later_inputs_with_pending_sum_of_operator(own, i) {
            self.redistribute_input(own, whose, input, phase, to);
        }
    }

    /// Redistributes an input of `one` to the layout that the operator needs.
    fn redistribute_input(
        &mut self,
        own: &[MemberOperator<'_>],
        one: &MemberOperator<'_>,
        input: &OperatorInputLayoutChange,
        phase: TrainingPhase,
        to: &mut LayerProgramBuilder,
    ) {
        let from = &input.from;
        // Compute a pending sum even if the plan omits the operator that uses it, but not if the plan omits the
        // operator that produces the summands.
        let found = from.produced_by.is_some_and(|by| !own[by].idle);
        let sums = from.partial_over.is_some() && found;
        let moved = NeededSumOrRedistribution {
            from: &from.layout,
            over: from.partial_over,
            need: if one.idle { &from.layout } else { &input.need },
            elements: if one.idle && !sums { 0 } else { from.elements },
        };
        // A sum is named after the operator that produced the summands, and a redistribution after the operator that
        // needs it.
        let whose = [self.producer_name(own, from, one), &one.step.operator.name];
        self.emit_pending_sum_and_redistribution(&moved, whose, phase, to);
    }

    /// Redistributes the gradient of an input of `one` to the layout in which the input arrived at
    /// `one`.
    fn redistribute_gradient_to_input_layout(
        &mut self,
        own: &[MemberOperator<'_>],
        one: &MemberOperator<'_>,
        input: &OperatorInputLayoutChange,
        to: &mut LayerProgramBuilder,
    ) {
        let outputs = one.step.cutting.outputs;
        let moved = NeededSumOrRedistribution {
            from: &input.need,
            over: (one.spec.sums_over_input_columns() && outputs.parts > 1).then_some(outputs),
            need: &input.from.layout,
            elements: input.from.elements,
        };
        let whose = [
            &*one.step.operator.name,
            self.producer_name(own, &input.from, one),
        ];
        self.emit_pending_sum_and_redistribution(&moved, whose, TrainingPhase::Backward, to);
    }

    /// Returns the name of the operator that produced `held`, or of `one` if another layer produced it.
    fn producer_name<'o>(
        &self,
        own: &'o [MemberOperator<'_>],
        held: &ShardedActivation,
        one: &'o MemberOperator<'_>,
    ) -> &'o str {
        let from = held.produced_by.and_then(|by| own.get(by)).unwrap_or(one);
        &from.step.operator.name
    }

    /// Emits the three sums that a loss over sharded classes needs: the maximum, the sum of
    /// exponentials, and the logit of the correct class. Each sum has one value of 4 bytes per row.
    fn emit_class_loss_sums(
        &mut self,
        one: &MemberOperator<'_>,
        phase: TrainingPhase,
        to: &mut LayerProgramBuilder,
    ) {
        let (spec, cutting) = (&one.spec, &one.step.cutting);
        if !spec.reduces_rows_to_numbers() {
            return;
        }
        let rows = spec.extent_of_axis('m');
        let silent = self
            .lowering_context()
            .without
            .has_effect(AblationEffect::TensorCommunication);
        if cutting.outputs.parts == 1 || one.idle || silent {
            return;
        }
        let family = self.lowering.find_sum_groups(cutting.outputs);
        let share = u64::from(cutting.samples.parts) * u64::from(cutting.rows.parts);
        let bytes = rows.saturating_mul(4 * self.lowering_context().sizes.samples) / share;
        for what in ["maximum", "sum", "logit"] {
            let suffix = format!(".{what}");
            let name = node_name_with_phase_and_suffix(phase, &one.step.operator.name, &suffix);
            self.emit_collective(name, CollectiveKind::AllReduce, bytes, family, phase, to);
        }
    }

    /// If `one` is the operator that `at` selects (dispatch or combine), exchanges token copies, or
    /// their gradients, with ranks that have other experts.
    fn emit_expert_token_exchange(
        &mut self,
        one: &MemberOperator<'_>,
        at: OperatorTokenExchangeSide,
        phase: TrainingPhase,
        to: &mut LayerProgramBuilder,
    ) {
        let [exchanged, over_nodes] = one.exchanged;
        if one.spec.exchange != Some(at) || exchanged == 0 || one.idle {
            return;
        }
        let context = self.lowering_context();
        // Only data on the way to the experts, namely tokens and gradients of results, is cast to the exchange format.
        // Data on the way back keeps its format.
        let goes = are_tokens_going_to_experts(at, phase);
        let to_bytes = |elements: u64| match context.exchange_dtype {
            // A scaled format sends a 4 B scale with every 128 values of 1 B.
            Some(_) if goes => elements.saturating_add(elements.div_ceil(32)),
            _ => elements.saturating_mul(context.sizes.number),
        };
        let bytes = to_bytes(exchanged);
        let all_to_all = CollectiveKind::AllToAll;
        let among = ParallelGroupKind::Expert;
        let mut exchanges = match (context.exchange, goes) {
            (ExpertExchangeForm::AllGather, true) => {
                vec![(".all-gather", CollectiveKind::AllGather, bytes, among)]
            }
            (ExpertExchangeForm::AllGather, false) => {
                // For a reduce-scatter, `comm_size` is the size of the whole buffer, summed over all ranks.
                let bytes = bytes.saturating_mul(context.expert);
                vec![(
                    ".reduce-scatter",
                    CollectiveKind::ReduceScatter,
                    bytes,
                    among,
                )]
            }
            (ExpertExchangeForm::Nodes, _) => {
                let across = ParallelGroupKind::ExpertAcross;
                vec![
                    (
                        ".nodes.all-to-all",
                        all_to_all,
                        to_bytes(over_nodes),
                        across,
                    ),
                    (
                        ".all-to-all",
                        all_to_all,
                        bytes,
                        ParallelGroupKind::ExpertNode,
                    ),
                ]
            }
            (ExpertExchangeForm::Copies | ExpertExchangeForm::Ranks, _) => {
                vec![(".all-to-all", all_to_all, bytes, among)]
            }
        };
        // Results are summed within a node before they are sent to other nodes.
        if !goes {
            exchanges.reverse();
        }
        for (suffix, kind, bytes, among) in exchanges {
            let name = node_name_with_phase_and_suffix(phase, &one.step.operator.name, suffix);
            self.emit_collective(name, kind, bytes, among, phase, to);
        }
    }

    fn build_backward_operator(
        &mut self,
        own: &[MemberOperator<'_>],
        end: &ShardedActivation,
        i: usize,
        to: &mut LayerProgramBuilder,
    ) {
        let (phase, one) = (TrainingPhase::Backward, &own[i]);
        let context = self.lowering_context();
        let operator = &one.step.operator.name;
        // If a reduce-scatter computes the sum, its result's gradient is sharded and must be gathered.
        let late = later_inputs_with_pending_sum_of_operator(own, i)
            .filter(|(whose, input)| is_gradient_redistributed_before_producer(whose, input));
        for (whose, input) in late.filter(|(whose, _)| !whose.idle) {
            self.redistribute_gradient_to_input_layout(own, whose, input, to);
        }
        let is_last = find_layer_output_operator(own).is_some_and(|last| std::ptr::eq(last, one));
        if is_last && one.step.cutting.partial_sum_digit().is_some() && !one.idle {
            let moved = NeededSumOrRedistribution {
                from: &end.layout,
                over: None,
                need: &one.step.cutting.output_layout(),
                elements: end.elements,
            };
            self.emit_pending_sum_and_redistribution(&moved, [operator, operator], phase, to);
        }
        let entry = to.front.clone();
        let gathered = one
            .step
            .inputs
            .first()
            .filter(|_| one.regathers && !one.idle);
        let gathered = gathered.and_then(|input| {
            let moves = self
                .lowering
                .find_redistribution(&input.from.layout, &input.need);
            let RedistributionWithGroups::Gather { family, of } = *moves else {
                return None;
            };
            let (kind, bytes) = (
                CollectiveKind::AllGather,
                self.micro_batch_bytes(input.from.elements),
            );
            let bytes = bytes.div_ceil(of);
            let task = ProgramNodeOperation::Collective {
                kind,
                bytes,
                family,
            };
            let name = node_name_with_phase_and_suffix(phase, operator, ".all-gather");
            let silent = context
                .without
                .has_effect(AblationEffect::TensorCommunication);
            (!silent && bytes > 0).then(|| {
                // Only the weight gradient needs the gathered input. With split backward passes, the weight-gradient
                // pass therefore gathers it.
                to.of_weights = true;
                let item = if context.overlap {
                    to.push_parallel_node(name, phase, task, entry.clone(), ["", ""])
                } else {
                    to.push_chained_node(name, phase, task, ["", ""])
                };
                to.of_weights = false;
                item
            })
        });
        self.exchange_before_attention(one, phase, to);
        if context.recompute == RecomputePolicy::Selective && one.kernels.scores > 0 {
            to.allocate_bytes_at_next_node(TensorClass::Activations, one.kernels.scores);
            push_kernels(&one.kernels.forward, TrainingPhase::Recompute, operator, to);
        }
        // Gradients of the copies return from the experts to which the copies were sent.
        sort_token_copies_for_experts(one, OperatorTokenExchangeSide::Dispatch, phase, to);
        self.emit_expert_token_exchange(one, OperatorTokenExchangeSide::Dispatch, phase, to);
        let weights = one.kernels.weights.as_ref();
        let kernels = match &one.ring {
            Some(ring) => self.emit_backward_ring_attention(one, ring, to),
            None => &one.kernels.backward,
        };
        for kernel in kernels {
            let needed = one.wanted || weights.is_none() && one.trained > 0;
            if !needed {
                continue;
            }
            let (task, shapes) = program_task_and_shapes_of_kernel(kernel);
            let item = to.push_chained_node(
                node_name_with_phase_and_suffix(phase, operator, kernel.suffix),
                phase,
                task,
                shapes,
            );
            if weights.is_none() && one.trained > 0 {
                to.mark_weight_gradient(item);
            }
        }
        self.emit_expert_token_exchange(one, OperatorTokenExchangeSide::Combine, phase, to);
        sort_token_copies_for_experts(one, OperatorTokenExchangeSide::Combine, phase, to);
        self.exchange_after_attention(one, phase, to);
        // The weight-gradient kernels either overlap the sums and redistributions of the input's
        // gradient, or run before them.
        let found = |to: &mut LayerProgramBuilder,
                     mut after: Vec<ProgramPredecessorsOrNodeDependency>,
                     beside: bool| {
            let Some(kernel) = weights else { return };
            let (task, shapes) = program_task_and_shapes_of_kernel(kernel);
            let name = node_name_with_phase_and_suffix(phase, operator, kernel.suffix);
            after.extend(gathered.map(ProgramPredecessorsOrNodeDependency::Node));
            to.of_weights = true;
            let item = to.push_parallel_node(name, phase, task, after, shapes);
            to.record_output_gradient_bytes_item_reads(item, one.output_bytes);
            to.push_after_weight_gradient(
                item,
                tasks_after_weight_gradient(&one.kernels, operator),
                beside,
            );
            to.of_weights = false;
        };
        // Free the saved tensors after the operator's kernels, but before the sums of its
        // gradients.
        let kept = one.kernels.keeps.saturating_add(one.kernels.scores);
        let before = to.front.clone();
        let overlaps = context.overlap && weights.is_some();
        if !overlaps {
            found(to, before.clone(), false);
            to.free_bytes_at_last_node(TensorClass::Activations, kept);
        }
        self.exchange_halo(one, true, phase, to);
        let inputs = one.step.inputs.iter();
        for input in inputs
            .filter(|input| !one.idle && !is_gradient_redistributed_before_producer(one, input))
        {
            self.redistribute_gradient_to_input_layout(own, one, input, to);
        }
        if overlaps {
            let beside = to.front != before;
            // An adapter's gradients also depend on the gradient of its first product's result, so they cannot start at
            // `entry`.
            let after = if beside && !one.has_adapter {
                entry
            } else {
                before
            };
            found(to, after, beside);
            to.free_bytes_at_last_node(TensorClass::Activations, kept);
        }
        to.record_operator_gradients_complete(one.found, one.of_experts);
    }
}

/// Returns true if an operator of the same layer produced this input with a pending sum.
fn is_input_sum_pending(input: &OperatorInputLayoutChange) -> bool {
    input.from.partial_over.is_some() && input.from.produced_by.is_some()
}

/// Returns true if the gradient of `input` is redistributed late: just before the backward pass of the operator that
/// produced the pending sum. This happens if `one` does not sum its input's gradient, because its weight gradient then
/// has no sum to overlap.
fn is_gradient_redistributed_before_producer(
    one: &MemberOperator<'_>,
    input: &OperatorInputLayoutChange,
) -> bool {
    is_input_sum_pending(input)
        && !(one.spec.sums_over_input_columns() && one.step.cutting.outputs.parts > 1)
}

/// Returns the inputs for which operator `i` produced a pending sum, each with the operator that uses the input.
fn later_inputs_with_pending_sum_of_operator<'o, 's>(
    own: &'o [MemberOperator<'s>],
    i: usize,
) -> impl Iterator<Item = (&'o MemberOperator<'s>, &'o OperatorInputLayoutChange)> {
    let each = own[i..].iter();
    let inputs = each.flat_map(|one| one.step.inputs.iter().map(move |input| (one, input)));
    inputs
        .filter(move |(_, input)| is_input_sum_pending(input) && input.from.produced_by == Some(i))
}

/// Returns the operator that produces the layer's output.
fn find_layer_output_operator<'o, 's>(
    own: &'o [MemberOperator<'s>],
) -> Option<&'o MemberOperator<'s>> {
    own.iter().rev().find(|one| can_be_layer_output(one.step))
}

/// Adds the `kernels` of `operator` to the chain, one after another.
pub(super) fn push_kernels(
    kernels: &[LoweredKernel],
    phase: TrainingPhase,
    operator: &str,
    to: &mut LayerProgramBuilder,
) {
    for kernel in kernels {
        let (task, shapes) = program_task_and_shapes_of_kernel(kernel);
        to.push_chained_node(
            node_name_with_phase_and_suffix(phase, operator, kernel.suffix),
            phase,
            task,
            shapes,
        );
    }
}

/// Returns true if tokens, or their gradients, are on their way to their experts' ranks; false if they are on the way
/// back.
fn are_tokens_going_to_experts(at: OperatorTokenExchangeSide, phase: TrainingPhase) -> bool {
    (at == OperatorTokenExchangeSide::Dispatch) != (phase == TrainingPhase::Backward)
}

/// Sorts copies of tokens, or their gradients, between an exchange and the experts, if operator `one` is at this end
/// (`at`) of the experts.
fn sort_token_copies_for_experts(
    one: &MemberOperator<'_>,
    at: OperatorTokenExchangeSide,
    phase: TrainingPhase,
    to: &mut LayerProgramBuilder,
) {
    if one.spec.exchange != Some(at) || one.idle {
        return;
    }
    let goes = are_tokens_going_to_experts(at, phase);
    let [by_expert, by_receiver] = &one.orders;
    let kernels = if goes { by_expert } else { by_receiver };
    push_kernels(kernels, phase, &one.step.operator.name, to);
}

/// Returns true if this operator's result can be the layer's output.
fn can_be_layer_output(step: &ShardedOperator<'_>) -> bool {
    !step.operator.around
        && step.operator.work.to_axes_and_tensors().role != OperatorInputSource::Beside
}
