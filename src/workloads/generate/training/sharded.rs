//! Lowers layers to kernels and collectives, for each member of a tensor group.
//!
//! The shardings of a layer's operators ([`dataflow`](super::dataflow)) determine its computation and
//! its communication:
//!
//! | | forward | backward |
//! |---|---|---|
//! | into an operator | an input whose layout is not the needed layout is redistributed | the gradient of the input is redistributed back |
//! | its products | terms over `k` are summed after it, with an all-reduce | terms of the input's gradient are summed over `n` |
//! | … | the sum is a reduce-scatter if each member needs only its shard | the same |
//! | windows that reach over the edge of a shard | rows come from the neighbours | gradients of these rows return |
//! | weights | | gradients are summed over `b` and `m`, once at the end of a step |
//!
//! The table gives byte counts, as in PALM's Table III, for `B` samples of `M` rows, `d` bytes per
//! value and `g` bytes per gradient:
//!
//! | | buffer of a member | exchanged between members that differ in |
//! |---|---|---|
//! | sum of an output of `N` columns (FD) | `d BMN / bmn` | k |
//! | sum of an input's gradient of `K` columns (BD) | `d BMK / bmk` | n |
//! | sum of weights' gradients (GU) | `g (NK / nk + N / n)`, the bias being the last term | b and m |
//! | rows of an image of `W` pixels and `C` channels from a neighbour | `d B W C / bk` each; of a pool `/ bn` | m |
//! | a loss over sharded classes, three times | `4 BM / bm` | n |
//!
//! Communication moves the minimum number of bytes: by an all-gather or an all-to-all if possible,
//! and by messages otherwise.
//!
//! With Megatron-LM's split, the sums are the same as in Megatron-LM (Shoeybi et al., 2019). An all-reduce follows a
//! matrix product split by inputs. An all-reduce of the gradient precedes a matrix product split by outputs. With
//! sequence parallelism (Korthikanti et al., 2022, section 4.2.2), operators without a split work on shards of the
//! tokens, and each all-reduce becomes an all-gather and a reduce-scatter:
//!
//! | | forward | backward |
//! |---|---|---|
//! | before a product that is split by outputs | all-gather of the input | all-gather of the input again (members keep only their own tokens), and reduce-scatter of its gradient |
//! | after a product that is split by inputs | reduce-scatter of the output | all-gather of the output's gradient |
//!
//! The sum of the input's gradient overlaps the product for the weights' gradient. The second all-gather of the input
//! overlaps the kernels before it. DTensor, which torchtitan uses, keeps the gathered input instead of gathering it
//! twice.
//!
//! With expert parallelism, ranks of different tensor groups exchange token copies, and each rank sends all its copies
//! in one collective. Each copy has `d` bytes per element; a token has either one copy per chosen expert, or one copy
//! per rank with a chosen expert. In the forward pass, one all-to-all follows the operator that makes the copies, and
//! another precedes the operator that combines the results. In the backward pass, each all-to-all is on the opposite
//! side of its operator.
//!
//! With context parallelism, ranks exchange keys and values, or heads, before and after attention
//! ([`context_shards`](super::context_shards)).
//!
//! A tied matrix has the same sharding as its table. On the same stage, the matrix and the table share a single
//! gradient, which is summed once.

use super::super::PatternOptionError;
use super::buckets;
use super::context_shards;
use super::cost::{KernelCostSizesAndOptions, LoweredKernel, OperatorKernels};
use super::dataflow::{ShardedLayerOperatorsAndOutput, ShardedOperator};
use super::frozen_weights::adapter_products;
use super::layer::{
    AllAndTrainedWeightCounts, LayerLoweringOptions, LoweredLayer, MatrixTiedToEmbedding,
};
use super::local_experts::scale_count;
use super::operator_recompute::{RecomputedOperatorPart, recomputed_operator_part};
use super::saved_tensors::recomputed_part_if_saved_outputs_are_named;
use crate::generate::check_limit;
use crate::generate::plan::{
    AblationEffect, ExpertExchangeForm, ExpertProducts, ParallelGroupKind, RecomputePolicy,
};
use crate::generate::sharding::{EqualSizedMemberGroups, MemberNumberDigit};
use crate::model::{
    LayerRole, ModelLayer, OperatorAxesAndTensorsSpec, OperatorKind, OperatorShardAxis,
    OperatorTensorParallelSplit, OperatorTokenExchangeSide, OutputSavedOrRecomputed,
    TrainedOperatorWeights,
};
use std::collections::BTreeMap;

mod branches;
mod context_exchange;
mod member;
mod module_recompute;
mod redistribution;
mod redistribution_cache;
mod ring;
#[cfg(test)]
mod tests;

use module_recompute::list_recomputed_and_lower_saved_bytes;
use redistribution_cache::RedistributionCache;
use ring::RingAttentionStepKernels;

pub(super) use module_recompute::reject_modules_absent_from_model;

/// Maximum number of nodes in the programs of all distinct members and layers. The limit matters if members exchange
/// messages, because each member then has its own programs. A node takes about 200 bytes, so all programs together take
/// at most about 1.7 GB.
const MOST_ITEMS: u64 = 1 << 23;

/// Builds the programs of one member of a tensor group.
struct MemberProgramWriter<'w> {
    lowering: &'w mut ShardedLayerLowerer,
    member: u32,
    /// Number of messages in the layer's programs so far.
    slot: u32,
    /// Number of messages in the layer's programs so far that go to the next rank of a context
    /// group.
    ring_slot: u32,
}

impl MemberProgramWriter<'_> {
    fn lowering_context(&self) -> LayerLoweringOptions {
        self.lowering.context
    }
}

/// Lowers layers, and collects the groups of members that communicate.
pub(super) struct ShardedLayerLowerer {
    pub context: LayerLoweringOptions,
    /// True if both the first and the last stage have a copy of a tied matrix.
    pub copies: bool,
    /// Partitions of a tensor group into groups; a partition's index here is the number in
    /// [`ParallelGroupKind::Operator`].
    pub partitions: Vec<EqualSizedMemberGroups>,
    /// Maximum number of messages that one layer sends from one member to another.
    pub slots: u32,
    /// Maximum number of messages that one layer sends to the next rank of a context group.
    pub ring_slots: u32,
    known: RedistributionCache,
    /// Number of program nodes written so far.
    items: u64,
}

/// An operator as one member runs it.
pub(super) struct MemberOperator<'s> {
    pub(super) step: &'s ShardedOperator<'s>,
    spec: OperatorAxesAndTensorsSpec,
    kernels: OperatorKernels,
    /// The part of the operator that the backward pass recomputes, if recomputation is chosen per
    /// operator.
    pub(super) again: RecomputedOperatorPart,
    /// True if the member keeps only its own shard of the gathered input, and gathers the input again for
    /// the backward pass.
    regathers: bool,
    /// Number of trained weights on this member.
    trained: u64,
    /// Number of trained weights in each weight tensor, in the order in which their gradients are
    /// computed.
    found: [u64; 2],
    /// True if the weights are frozen and an adapter is trained.
    has_adapter: bool,
    /// True if the weights belong to experts that some other ranks lack.
    of_experts: bool,
    /// Size of the operator's output, in bytes.
    pub(super) output_bytes: u64,
    /// Numbers of elements exchanged among ranks with different experts, and among nodes before that exchange. The
    /// number for nodes is 0 if nodes are not distinguished.
    exchanged: [u64; 2],
    /// Kernels that sort received copies by expert, and kernels that sort results by receiver.
    orders: [Vec<LoweredKernel>; 2],
    /// Bytes exchanged with ranks that have other tokens: first for queries, then for keys and
    /// values together.
    context_bytes: [u64; 2],
    /// Attention to the keys of other ranks in a ring, or `None` without a ring.
    ring: Option<RingAttentionStepKernels>,
    /// True if the gradient of the input is needed.
    wanted: bool,
    /// True if the plan omits the operator entirely, including its communication.
    idle: bool,
}

impl ShardedLayerLowerer {
    /// Creates a lowering without layers.
    pub fn new(context: LayerLoweringOptions, copies: bool) -> Self {
        Self {
            context,
            copies,
            partitions: Vec::new(),
            slots: 0,
            ring_slots: 0,
            known: RedistributionCache::default(),
            items: 0,
        }
    }

    fn member_count(&self) -> u32 {
        // The conversion is lossless, because plans have 32-bit degrees.
        self.context.tensor as u32
    }

    /// Returns the group kind of the partition `among`; a new partition gets the next free number.
    fn group_kind_of_partition(&mut self, among: &EqualSizedMemberGroups) -> ParallelGroupKind {
        if among.has_single_group() {
            return ParallelGroupKind::Tensor;
        }
        let known = self.partitions.iter().position(|one| one == among);
        let number = known.unwrap_or_else(|| {
            self.partitions.push(among.clone());
            self.partitions.len() - 1
        });
        // If there are too many partitions for `u16`, a check after the last layer rejects the model.
        ParallelGroupKind::Operator(u16::try_from(number).unwrap_or(u16::MAX))
    }

    /// For a matrix product split by outputs, returns the number of shards of its input. Returns `None` unless members
    /// gather the input again in the backward pass. They do so with sequence parallelism, because each member keeps
    /// only its own tokens (Korthikanti et al., 2022, section 4.2.2). Token copies for experts are not gathered again,
    /// as in Megatron-LM's dispatcher.
    fn regathered_input_shard_count(
        &self,
        step: &ShardedOperator<'_>,
        spec: &OperatorAxesAndTensorsSpec,
    ) -> Option<u64> {
        let [input] = &step.inputs[..] else {
            return None;
        };
        let [from, need] = [input.from.layout.rows, input.need.rows];
        let gathers = from.parts > 1 && need.parts == 1 && step.cutting.outputs.parts > 1;
        let again = spec.sums_over_input_columns() && spec.expert_weights() == 0;
        (self.context.sequence && gathers && again).then_some(from.parts.into())
    }

    /// Returns the number of elements (of tokens or token copies) that a member exchanges with ranks that have other
    /// experts, and the number that it exchanges among nodes. `spec` describes the member's shard of an operator.
    fn expert_exchange_element_counts(
        &self,
        spec: &OperatorAxesAndTensorsSpec,
        sizes: &KernelCostSizesAndOptions,
    ) -> [u64; 2] {
        let copies = match spec.exchange {
            Some(OperatorTokenExchangeSide::Dispatch) => spec.sum_tensor_volumes(&spec.outputs),
            Some(OperatorTokenExchangeSide::Combine) => spec.sum_tensor_volumes(&spec.inputs),
            None => 0,
        };
        let silent = self
            .context
            .without
            .has_effect(AblationEffect::ExpertCommunication);
        if self.context.expert == 1 || silent {
            return [0; 2];
        }
        let all = copies.saturating_mul(sizes.samples.into());
        let loads = self.context.loads;
        // In an exchange by all-gather, a rank gathers each token once, whichever experts it chooses.
        let each = match self.context.exchange {
            ExpertExchangeForm::AllGather => {
                let copied = spec.extent_of_axis('c') / spec.extent_of_axis('m').max(1);
                [all / u128::from(copied.max(1)), 0]
            }
            _ => [loads.sent, loads.over_nodes].map(|factor| scale_count(all, factor)),
        };
        each.map(|elements| u64::try_from(elements).unwrap_or(u64::MAX))
    }

    /// Returns the kernels that sort token copies between an all-to-all and several experts. `spec` describes a
    /// member's shard of an operator. With one copy per rank or per node, routers copy the tokens in expert order after
    /// the exchange, so no sorting is needed.
    fn token_copy_sorting_kernels(
        &self,
        spec: &OperatorAxesAndTensorsSpec,
        sizes: &KernelCostSizesAndOptions,
    ) -> Result<[Vec<LoweredKernel>; 2], PatternOptionError> {
        let context = &self.context;
        let [rows, width] = match spec.exchange {
            Some(_) => ['c', 'n'].map(|axis| u128::from(spec.extent_of_axis(axis))),
            None => return Ok(Default::default()),
        };
        let orders = context.expert > 1
            && context.loads.local_experts > 1
            && context.exchange == ExpertExchangeForm::Copies
            && context.expert_products != ExpertProducts::Fused
            && !context.without.has_effect(AblationEffect::MemoryBound);
        if !orders {
            return Ok(Default::default());
        }
        let rows = rows.saturating_mul(sizes.samples.into());
        let rows = scale_count(rows, context.loads.experts);
        sizes.kernels_sorting_copies_by_expert_and_back([rows, width], sizes.one_by_one)
    }

    /// Returns the bytes that a member exchanges with ranks that have other tokens: first for queries, then for keys
    /// and values together. `spec` describes the member's shard of the operator.
    fn query_and_key_value_exchange_bytes(
        &self,
        spec: &OperatorAxesAndTensorsSpec,
        sizes: &KernelCostSizesAndOptions,
    ) -> [u64; 2] {
        let silent = self
            .context
            .without
            .has_effect(AblationEffect::ContextCommunication);
        if self.context.context.is_none() || silent || !spec.is_attention() {
            return [0; 2];
        }
        context_shards::context_exchange_bytes(
            spec,
            u128::from(sizes.samples) * u128::from(sizes.number),
        )
    }

    /// Returns the bytes that an operator saves for the backward pass, if its layer is not
    /// recomputed as a whole.
    fn kept_bytes(&self, one: &MemberOperator<'_>) -> u64 {
        self.context.bytes_kept_for_backward(&one.kernels) - one.again.dropped
    }

    /// Lowers `layer`; `flow` gives the shardings of the layer's operators.
    pub fn lower_layer(
        &mut self,
        layer: &ModelLayer,
        flow: &ShardedLayerOperatorsAndOutput<'_>,
    ) -> Result<LoweredLayer, PatternOptionError> {
        let mut own = Vec::with_capacity(flow.steps.len());
        let mut parameters = AllAndTrainedWeightCounts::default();
        let mut expert_parameters = AllAndTrainedWeightCounts::default();
        let mut tied = None;
        let mut partial: BTreeMap<ParallelGroupKind, u64> = BTreeMap::new();
        for (i, step) in flow.steps.iter().enumerate() {
            let cutting = &step.cutting;
            let spec = step.operator.work.to_axes_and_tensors();
            let work = cutting.local_part_of_operator(&step.operator.work);
            let mut sizes = self.context.kernel_cost_parameters_of_layer(layer);
            sizes.samples = sizes.samples.div_ceil(cutting.samples.parts.into());
            let training = step.operator.training;
            sizes.training = training;
            // Megatron-LM leaves the bias of a row-parallel product to a later kernel.
            sizes.adds_expert_biases =
                sizes.one_by_one && step.operator.cut == OperatorTensorParallelSplit::RowParallel;
            let mut kernels = sizes.kernels_of_operator(work.clone())?;
            let adapter = adapter_products(training, &work);
            let adapter_weights = adapter.as_ref().map_or([0; 2], |products| {
                products.each_ref().map(OperatorKind::parameter_count)
            });
            let [of_a, of_b] = adapter_weights;
            let trained = match training {
                TrainedOperatorWeights::All => work.parameter_count(),
                TrainedOperatorWeights::Frozen => 0,
                TrainedOperatorWeights::Adapter { .. } => of_a.saturating_add(of_b),
            };
            let weights = [of_a, of_b]
                .iter()
                .fold(work.parameter_count(), |sum, more| {
                    sum.saturating_add(*more)
                });
            parameters.all = parameters.all.saturating_add(weights);
            parameters.trained = parameters.trained.saturating_add(trained);
            let of_experts = self.context.experts_apart && spec.expert_weights() > 0;
            if of_experts {
                let own = &mut expert_parameters;
                own.all = own.all.saturating_add(weights);
                own.trained = own.trained.saturating_add(trained);
            }
            let own_spec = work.to_axes_and_tensors();
            let exchanged = self.expert_exchange_element_counts(&own_spec, &sizes);
            let orders = self.token_copy_sorting_kernels(&own_spec, &sizes)?;
            let context_bytes = self.query_and_key_value_exchange_bytes(&own_spec, &sizes);
            let behind = flow.steps.len() - 1 - i;
            let tied_weights = own_spec.tied_weight_count();
            tied = tied.or(tied_weights.map(|weights| MatrixTiedToEmbedding {
                behind,
                weights,
                is_trained: training == TrainedOperatorWeights::All,
            }));
            // If a tied matrix and its table are on one stage, they share one gradient, which is summed with the table.
            let copy =
                tied_weights.filter(|_| self.copies && training == TrainedOperatorWeights::All);
            let gradient = trained.saturating_add(copy.unwrap_or(0));
            // All heads that share a gain add to its gradient, as samples and rows do to a weight's.
            let shared = spec
                .weights
                .iter()
                .any(|one| !spec.is_tensor_divided_along_axis(OperatorShardAxis::N, one.axes));
            let outputs = match shared && spec.is_attention() {
                true => cutting.outputs,
                false => MemberNumberDigit::WHOLE,
            };
            // Members with different outputs share the adapter's first matrix, so they sum its gradient. Members with
            // different inputs likewise share the second matrix and sum its gradient.
            let gradients = match training {
                TrainedOperatorWeights::Adapter { .. } => {
                    vec![(of_a, cutting.outputs), (of_b, cutting.inputs)]
                }
                _ => vec![(gradient, outputs)],
            };
            for (gradient, columns) in gradients {
                // The experts' gradients are summed over samples and rows later, by the experts'
                // replicas.
                let digits = match of_experts {
                    true => vec![columns],
                    false => vec![cutting.samples, cutting.rows, columns],
                };
                let apart = EqualSizedMemberGroups::from_members_differing_in_digits(
                    &digits,
                    self.member_count(),
                );
                let is_whole = of_experts && training == TrainedOperatorWeights::All;
                if gradient > 0 && apart.group_size() > 1 && !is_whole {
                    let sum = partial
                        .entry(self.group_kind_of_partition(&apart))
                        .or_default();
                    *sum = sum.saturating_add(gradient);
                }
            }
            let regathers = self
                .regathered_input_shard_count(step, &spec)
                .filter(|_| training != TrainedOperatorWeights::Frozen);
            let mut kept_of_adapter = [0; 2];
            if let Some(products) = &adapter {
                sizes.add_adapter_kernels(products, &mut kernels)?;
                kept_of_adapter = sizes.saved_bytes_of_adapter(products)?;
            }
            kernels.keeps = kernels.keeps.saturating_add(kept_of_adapter[0]);
            if let Some(shards) = regathers {
                kernels.keeps /= shards;
            }
            kernels.keeps = kernels.keeps.saturating_add(kept_of_adapter[1]);
            let among_experts = layer.is_operator_among_experts(i);
            self.context
                .leave_out(layer, &spec, among_experts, &mut kernels);
            let chosen = self.context.recompute == RecomputePolicy::Operators;
            let operators = &layer.operators;
            let again = match operators[i].saved {
                _ if !chosen || layer.role != LayerRole::Block => RecomputedOperatorPart::default(),
                OutputSavedOrRecomputed::ByPolicy => {
                    recomputed_operator_part(operators, i, &work, &kernels, &sizes)?
                }
                OutputSavedOrRecomputed::Yes | OutputSavedOrRecomputed::No => {
                    recomputed_part_if_saved_outputs_are_named(operators, i, &kernels, &sizes)
                }
            };
            kernels.keeps = kernels.keeps.saturating_add(again.kept);
            own.push(MemberOperator {
                step,
                kernels,
                again,
                regathers: regathers.is_some(),
                trained,
                found: match training {
                    TrainedOperatorWeights::All => {
                        buckets::gradient_sizes_of_operator_weights(&work)
                    }
                    TrainedOperatorWeights::Frozen => [0; 2],
                    TrainedOperatorWeights::Adapter { .. } => [of_b, of_a],
                },
                has_adapter: adapter.is_some(),
                of_experts,
                output_bytes: work
                    .output_elements()
                    .saturating_mul(sizes.samples.saturating_mul(sizes.number)),
                exchanged,
                orders,
                context_bytes,
                ring: self.ring_attention_kernels(layer, &spec, &work, &sizes)?,
                wanted: !step.inputs.is_empty(),
                idle: self.context.is_operator_left_out(layer, &spec),
                spec,
            });
        }
        let modules = self.context.recompute_modules;
        let again = list_recomputed_and_lower_saved_bytes(layer, modules, &mut own, |one| {
            self.context.bytes_kept_for_backward(&one.kernels)
        });
        let full =
            layer.role == LayerRole::Block && self.context.recompute == RecomputePolicy::Full;
        let bytes = self
            .context
            .sizes
            .samples
            .saturating_mul(self.context.sizes.number);
        let kept_input = flow.steps.first().map_or(0, |step| {
            let shards = step
                .inputs
                .first()
                .map_or(1, |one| one.from.layout.shard_count());
            let elements = step.operator.work.input_elements();
            elements.saturating_mul(bytes) / shards
        });
        let (mut forward, mut backward) = (Vec::new(), Vec::new());
        let mut apart: [Vec<_>; 2] = Default::default();
        let mut alike = false;
        for member in 0..self.member_count() {
            let mut writer = MemberProgramWriter {
                lowering: self,
                member,
                slot: 0,
                ring_slot: 0,
            };
            let programs = writer.build_forward_and_backward_programs(
                &own,
                &flow.end,
                full.then_some(kept_input),
                &again,
            );
            let slots = writer.slot;
            let ring_slots = writer.ring_slot;
            self.slots = self.slots.max(slots);
            self.ring_slots = self.ring_slots.max(ring_slots);
            self.items += (programs.0.items.len() + programs.1.items.len()) as u64;
            check_limit(
                "nodes of a tensor group",
                self.items.into(),
                MOST_ITEMS,
                "a smaller tensor degree, or degrees with which results need no resharding",
            )?;
            forward.push(programs.0);
            if self.context.splits {
                for (pass, program) in apart
                    .iter_mut()
                    .zip(programs.1.split_off_weight_gradient_nodes())
                {
                    pass.push(program);
                }
            }
            backward.push(programs.1);
            // Without messages, all members run the same program, so build only one.
            if slots == 0 {
                alike = true;
                break;
            }
        }
        debug_assert!(alike || forward.len() == self.member_count() as usize);
        let all = own.iter().map(|one| self.kept_bytes(one)).sum();
        Ok(LoweredLayer {
            forward,
            backward,
            apart,
            parameters,
            expert_parameters,
            partial: partial.into_iter().collect(),
            tied,
            keeps: match (self.context.trains, full) {
                (false, _) => 0,
                (true, true) => kept_input,
                (true, false) => all,
            },
            output_shards: flow.end.layout.shard_count(),
            input_gradients: own
                .iter()
                .map(|one| (!one.idle).then_some(one.wanted))
                .collect(),
        })
    }
}
