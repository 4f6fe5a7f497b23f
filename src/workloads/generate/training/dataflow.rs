//! Layouts of results over the members of a tensor group, and the inputs of each operator.
//!
//! The first applicable rule of this list determines an operator's sharding:
//!
//! 1. the degrees that the plan gives for this operator;
//! 2. the model's tensor parallelism ([`OperatorTensorParallelSplit`]): by outputs or by inputs, into one shard per
//!    member. If neither the model nor the plan specifies it, it is derived. In that case, a product is split by inputs
//!    if its input is split by columns. Otherwise, a product is split by outputs or, if the number of outputs does not
//!    divide evenly, by inputs. Tables that sum their rows are split by columns, because a gather of columns moves half
//!    as many bytes as a sum over rows;
//! 3. with sequence parallelism, shards of tokens, if the tokens divide evenly;
//! 4. the layout of the operator's input: split by samples, and by rows too if they divide evenly. The columns stay
//!    split only if the operator treats columns independently (activations, residuals, pools, norms over the channels
//!    of images, attention heads, and classes of a loss inside a sharded region).
//!
//! An input that arrives in a different layout is redistributed before the operator
//! ([`plan_redistribution`](crate::generate::sharding::plan_redistribution)).
//!
//! The skip path around a branch carries the previous residual sum. If a layer begins with a norm or an activation,
//! norms and activations are part of the branch (GPT-2, Llama). Otherwise, they follow the sums, and the skip path
//! carries their output (BERT, ResNet). An embedding's tables keep separate results until a sum combines all of them.
//! The tables of embedding bags keep separate results until an interaction combines them. A residual passes its
//! gradient to each of its inputs, where it is redistributed separately.
//!
//! A layout describes the fraction of a result that a member holds, not the individual elements that an operator needs.
//! So an operator that needs only the first token, such as a classifier after a transformer, receives all tokens if
//! they are sharded. Norms over the channels of images use only the member's own samples and rows, as BatchNorm does
//! without synchronized statistics.

use super::layer::LayerLoweringOptions;
use super::shard_spec::OperatorShardingByMemberDigits;
use super::tensor_cut;
use crate::generate::plan::{OperatorPatternDegrees, ParallelismPlan};
use crate::generate::sharding::{
    MemberNumberDigit, OperatorAxisShardCounts, OperatorShardWorkAndSums, SampleRowColumnSharding,
    reduce_scatter_groups,
};
use crate::generate::{PatternOptionError, refused_option_value_error};
use crate::model::{
    LayerOperator, Model, ModelLayer, OperatorAxesAndTensorsSpec, OperatorInputSource,
    OperatorShardAxis, OperatorTensorParallelSplit,
};

/// A result that one operator passes to the next operator, with its layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ShardedActivation {
    pub layout: SampleRowColumnSharding,
    /// Digit that distinguishes members with different partial sums, if these sums have not been added up yet.
    pub partial_over: Option<MemberNumberDigit>,
    /// Number of elements per sample, summed over all members.
    pub elements: u64,
    /// Number of columns; for an image, the number of channels.
    pub columns: u64,
    pub image: bool,
    /// Index of the operator that produced the activation; `None` for an activation of another
    /// layer.
    pub produced_by: Option<usize>,
}

/// An operator's input: the layout in which it arrives, and the layout that the operator needs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OperatorInputLayoutChange {
    pub from: ShardedActivation,
    pub need: SampleRowColumnSharding,
}

/// An operator with its sharding among the members of a tensor group.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ShardedOperator<'l> {
    pub operator: &'l LayerOperator,
    pub cutting: OperatorShardingByMemberDigits,
    /// Inputs of the operator; empty for operators that read samples or token ids.
    pub inputs: Vec<OperatorInputLayoutChange>,
    /// For each input, the index of the operator that produces it; `None` for the layer's input.
    pub sources: Vec<Option<usize>>,
    /// Index of the branch within the layer: 0 is the chain of operators, and 1 is the skip path. If the model's input
    /// goes through several tables, each table has its own branch.
    pub branch: u32,
    /// For an image sharded by rows, the sharding of the operator's windows, which determines the rows that they cover.
    pub windows: Option<OperatorShardWorkAndSums>,
}

/// A layer's operators with their shardings, and the layout of its output.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ShardedLayerOperatorsAndOutput<'l> {
    pub steps: Vec<ShardedOperator<'l>>,
    pub end: ShardedActivation,
}

/// Results that the next operator of a layer can use.
struct ActivationsForNextOperator {
    main: Option<ShardedActivation>,
    around: Option<ShardedActivation>,
    /// Results outside the chain, such as the results of several tables, which wait until one operator uses them all.
    side: Vec<ShardedActivation>,
    /// True if norms and activations follow residual sums, so that the next skip path carries their output.
    behind: bool,
}

/// Tracks the layouts of results from layer to layer.
pub(super) struct ActivationLayoutTracer<'p> {
    pub operators: &'p [OperatorPatternDegrees],
    pub members: u32,
    /// Number of members that shard each expert; `None` if all do.
    pub expert_members: Option<u32>,
    pub samples: u64,
    pub sequence: bool,
    /// True if Megatron-LM's split is derived, because neither the model nor the plan specifies a
    /// split.
    pub derives: bool,
}

impl<'p> ActivationLayoutTracer<'p> {
    pub fn new(model: &Model, plan: &'p ParallelismPlan, context: &LayerLoweringOptions) -> Self {
        Self {
            derives: derives_megatron_split_if_none_stated(model, plan),
            operators: &plan.operators,
            members: plan.tensor,
            expert_members: plan
                .tensor_groups_split_experts_or_their_tokens()
                .then_some(plan.tensor_degree_of_experts()),
            samples: context.sizes.samples,
            sequence: context.sequence,
        }
    }

    /// Traces `layer`; `before` is the output of the previous layer.
    pub fn trace_layer_layouts<'l>(
        &self,
        layer: &'l ModelLayer,
        before: Option<ShardedActivation>,
    ) -> Result<ShardedLayerOperatorsAndOutput<'l>, PatternOptionError> {
        let mut way = ActivationsForNextOperator {
            main: before,
            around: before,
            side: Vec::new(),
            behind: !layer.operators.first().is_some_and(has_norm_before_branch),
        };
        let mut steps = Vec::with_capacity(layer.operators.len());
        let mut last = before;
        let mut tables = 0;
        for (i, operator) in layer.operators.iter().enumerate() {
            let stands = if operator.around {
                way.around
            } else {
                way.main
            };
            let spec = operator.work.to_axes_and_tensors();
            let (cutting, windows) =
                self.operator_sharding(&layer.name, operator, &spec, stands.as_ref())?;
            let need = cutting.input_layout(&spec);
            let gives = ShardedActivation {
                layout: cutting.output_layout(),
                partial_over: cutting.partial_sum_digit(),
                elements: operator.work.output_elements(),
                columns: spec.output_column_count(),
                image: spec.windows.is_some()
                    || spec.computes_columns_independently()
                        && stands.is_some_and(|held| held.image),
                produced_by: Some(i),
            };
            let sources = way.producers_of_inputs(operator, &spec);
            let inputs = way.advance_past_operator(operator, &spec, need, gives, self.members);
            let beside = matches!(
                spec.role,
                OperatorInputSource::Table | OperatorInputSource::Beside
            );
            tables += u32::from(beside);
            steps.push(ShardedOperator {
                operator,
                cutting,
                inputs,
                sources,
                branch: match (operator.around, beside) {
                    (true, _) => 1,
                    (_, true) => tables,
                    _ => 0,
                },
                windows,
            });
            last = Some(gives);
        }
        // If the layer's last operator is outside the chain, its result is not the layer's output, so return the
        // chain's result.
        let end = way
            .main
            .or(last)
            .map(|held| ShardedActivation {
                produced_by: None,
                partial_over: None,
                layout: self.layer_output_layout(&held),
                ..held
            })
            .ok_or_else(|| {
                refused_option_value_error("model", &layer.name, "a layer with operators")
            })?;
        Ok(ShardedLayerOperatorsAndOutput { steps, end })
    }

    /// Returns the layout of a layer's output. With sequence parallelism, a reduce-scatter replaces a sum over all
    /// members, so that each member receives only its own tokens.
    fn layer_output_layout(&self, held: &ShardedActivation) -> SampleRowColumnSharding {
        let all = MemberNumberDigit::new(self.members, 1);
        let rows = held.elements / held.columns.max(1);
        let scatters = self.sequence && held.partial_over == Some(all) && !held.image;
        if scatters && rows.is_multiple_of(self.members.into()) {
            let layout = held.layout;
            return SampleRowColumnSharding {
                rows: all,
                ..layout
            };
        }
        held.layout
    }

    /// Derives Megatron-LM's split of an operator, if neither the model nor the plan specifies a
    /// split.
    fn derive_megatron_split_of_operator(
        &self,
        spec: &OperatorAxesAndTensorsSpec,
        before: Option<&ShardedActivation>,
    ) -> OperatorTensorParallelSplit {
        let members = u64::from(self.members);
        let arrives = before.filter(|held| held.layout.columns.parts == self.members);
        let fits = |axis| spec.can_divide_axis(axis, members);
        let tied = spec.tied_weight_count().is_some();
        // An image that is flattened to a row can be split only into whole channels.
        let channels =
            |held: &ShardedActivation| !held.image || held.columns.is_multiple_of(members);
        let by_inputs = fits(OperatorShardAxis::K) && before.is_none_or(channels) && !tied;
        match spec.role {
            OperatorInputSource::Table => OperatorTensorParallelSplit::RowParallel,
            OperatorInputSource::Beside if fits(OperatorShardAxis::N) => {
                OperatorTensorParallelSplit::ColumnParallel
            }
            OperatorInputSource::Beside if by_inputs => OperatorTensorParallelSplit::RowParallel,
            OperatorInputSource::Next if spec.sums_over_input_columns() => {
                match (arrives, by_inputs, fits(OperatorShardAxis::N)) {
                    (Some(_), true, _) | (_, true, false) => {
                        OperatorTensorParallelSplit::RowParallel
                    }
                    (_, _, true) => OperatorTensorParallelSplit::ColumnParallel,
                    _ if tied => OperatorTensorParallelSplit::ColumnParallel,
                    _ => OperatorTensorParallelSplit::Replicated,
                }
            }
            _ if arrives.is_some() => OperatorTensorParallelSplit::InsideRegion,
            _ => OperatorTensorParallelSplit::Replicated,
        }
    }

    /// Returns the sharding of `operator` and, for an image sharded by rows, of its windows.
    fn operator_sharding(
        &self,
        layer: &str,
        operator: &LayerOperator,
        spec: &OperatorAxesAndTensorsSpec,
        before: Option<&ShardedActivation>,
    ) -> Result<
        (
            OperatorShardingByMemberDigits,
            Option<OperatorShardWorkAndSums>,
        ),
        PatternOptionError,
    > {
        // Search from the end, because later entries override earlier ones.
        let mut own = self.operators.iter().rev();
        let Some(own) = own.find(|one| one.matches_operator(layer, &operator.name)) else {
            return self.default_sharding_of_operator(operator, spec, before);
        };
        // The channels of images are normalized independently.
        let image = before.is_some_and(|held| held.image);
        let free = image.then(|| spec.clone().allow_column_division());
        let whose = |error: PatternOptionError| match error {
            PatternOptionError::Refused {
                option,
                found,
                expected,
            } => PatternOptionError::Refused {
                option,
                found,
                expected: format!("{expected} (operator {} of {layer})", operator.name),
            },
            other => other,
        };
        let sharding = OperatorShardWorkAndSums::from_spec(
            free.as_ref().unwrap_or(spec),
            self.samples,
            own.degrees,
            self.members,
        )
        .map_err(whose)?;
        let cutting = OperatorShardingByMemberDigits {
            samples: sharding.position_digit_of_axis(OperatorShardAxis::B),
            rows: sharding.position_digit_of_axis(OperatorShardAxis::M),
            outputs: sharding.position_digit_of_axis(OperatorShardAxis::N),
            inputs: sharding.position_digit_of_axis(OperatorShardAxis::K),
        };
        if let (Some(held), true) = (before, spec.is_matrix_product_without_windows()) {
            let parts = u64::from(cutting.inputs.parts);
            if held.image && !held.columns.is_multiple_of(parts) {
                let expected = format!(
                    "a divisor of the {} channels before operator {} of {layer}",
                    held.columns, operator.name
                );
                return Err(refused_option_value_error("k", parts, expected));
            }
        }
        let windows = (cutting.rows.parts > 1 && spec.extent_of_axis('h') > 0).then_some(sharding);
        if windows.is_some() && !cutting.divides_windows_exactly(&operator.work) {
            let expected = "1, because the padding is as large as the rows that a window for one output row covers";
            return Err(whose(refused_option_value_error(
                "m",
                cutting.rows.parts,
                expected,
            )));
        }
        Ok((cutting, windows))
    }

    fn default_sharding_of_operator(
        &self,
        operator: &LayerOperator,
        spec: &OperatorAxesAndTensorsSpec,
        before: Option<&ShardedActivation>,
    ) -> Result<
        (
            OperatorShardingByMemberDigits,
            Option<OperatorShardWorkAndSums>,
        ),
        PatternOptionError,
    > {
        let work = &operator.work;
        let all = MemberNumberDigit::new(self.members, 1);
        let mut cutting = OperatorShardingByMemberDigits::WHOLE;
        let cut = match self.derives {
            true => self.derive_megatron_split_of_operator(spec, before),
            false => operator.cut,
        };
        // A block of neighbouring members shards each expert and processes the same tokens. Other blocks process other
        // tokens.
        let own = self.expert_members.filter(|_| spec.expert_weights() > 0);
        let within = own.map_or(all, |members| {
            cutting.rows = MemberNumberDigit::new(self.members / members, members);
            MemberNumberDigit::new(members, 1)
        });
        match cut {
            OperatorTensorParallelSplit::ColumnParallel => {
                tensor_cut::check_split_divides_operator(operator, cut, within.parts.into())?;
                cutting.outputs = within;
                return Ok((cutting, None));
            }
            OperatorTensorParallelSplit::RowParallel => {
                tensor_cut::check_split_divides_operator(operator, cut, within.parts.into())?;
                cutting.inputs = within;
                return Ok((cutting, None));
            }
            OperatorTensorParallelSplit::Replicated | OperatorTensorParallelSplit::InsideRegion => {
            }
        }
        let rows = spec.divisible_token_rows_per_sample();
        let divides = |rows: u64, digit: MemberNumberDigit| rows.is_multiple_of(digit.parts.into());
        if cut == OperatorTensorParallelSplit::Replicated
            && self.sequence
            && rows.is_some_and(|rows| divides(rows, all))
        {
            cutting.rows = all;
            return Ok((cutting, None));
        }
        let Some(before) = before else {
            return Ok((cutting, None));
        };
        let layout = before.layout;
        cutting.samples = layout.samples;
        if rows.is_some_and(|rows| divides(rows, layout.rows)) {
            cutting.rows = layout.rows;
        }
        let between = cut == OperatorTensorParallelSplit::InsideRegion;
        let parts = u64::from(layout.columns.parts);
        if spec.is_attention() {
            tensor_cut::check_split_divides_operator(
                operator,
                OperatorTensorParallelSplit::InsideRegion,
                parts,
            )?;
        }
        // Vocabularies are padded, so their size always divides evenly.
        let classes = spec.reduces_rows_to_numbers() && between;
        let by_column = if before.image {
            spec.clone()
                .allow_column_division()
                .can_divide_axis(OperatorShardAxis::N, parts)
        } else {
            spec.can_divide_axis(OperatorShardAxis::N, parts)
        };
        let by_itself = classes || spec.computes_columns_independently() && by_column;
        if by_itself {
            cutting.outputs = layout.columns;
        }
        let mut windows = None;
        if work.output_rows_of_windows() > 0 && layout.rows.parts > 1 {
            let degrees = OperatorAxisShardCounts {
                b: 1,
                m: layout.rows.parts,
                n: 1,
                k: 1,
            };
            // If an image's windows cannot be sharded by rows, every member needs all rows.
            let cut = OperatorShardingByMemberDigits {
                rows: layout.rows,
                ..cutting
            };
            windows = OperatorShardWorkAndSums::new(work, 1, degrees, layout.rows.parts).ok();
            windows = windows.filter(|_| cut.divides_windows_exactly(work));
            if windows.is_some() {
                cutting = cut;
            }
        }
        Ok((cutting, windows))
    }
}

/// Returns true if Megatron-LM's split of `model` is derived, because neither the model nor the
/// plan specifies a split.
pub(super) fn derives_megatron_split_if_none_stated(model: &Model, plan: &ParallelismPlan) -> bool {
    let mut operators = model.layers.iter().flat_map(|layer| &layer.operators);
    let states = |one: &LayerOperator| one.cut != OperatorTensorParallelSplit::Replicated;
    plan.tensor > 1 && plan.operators.is_empty() && !operators.any(states)
}

impl ActivationsForNextOperator {
    /// For each input of `operator`, returns the index of the operator that produces it; `None` stands for the
    /// layer's input. Call this function before [`advance_past_operator`](Self::advance_past_operator), which
    /// replaces the current results.
    fn producers_of_inputs(
        &self,
        operator: &LayerOperator,
        spec: &OperatorAxesAndTensorsSpec,
    ) -> Vec<Option<usize>> {
        let of = |held: &ShardedActivation| held.produced_by;
        match spec.role {
            _ if operator.around => self.around.iter().map(of).collect(),
            OperatorInputSource::Table | OperatorInputSource::Beside => Vec::new(),
            OperatorInputSource::Next => self.main.iter().map(of).collect(),
            OperatorInputSource::Join | OperatorInputSource::Collect => {
                let alone = self.side.is_empty() && spec.role == OperatorInputSource::Join;
                let around = self.around.iter().filter(|_| alone);
                let all = self.main.iter().chain(&self.side).chain(around);
                all.map(of).collect()
            }
        }
    }

    /// Makes the output of `operator` the current result. Returns the operator's inputs. Each input has the layout in
    /// which it arrives and the layout that the operator needs.
    fn advance_past_operator(
        &mut self,
        operator: &LayerOperator,
        spec: &OperatorAxesAndTensorsSpec,
        need: SampleRowColumnSharding,
        gives: ShardedActivation,
        members: u32,
    ) -> Vec<OperatorInputLayoutChange> {
        let take = |held: Option<ShardedActivation>| {
            held.map(|from| OperatorInputLayoutChange { from, need })
        };
        // True if the branch and the skip path both use the current result. A table uses no earlier
        // result, so it never forks.
        let fork = self.around == self.main && spec.role != OperatorInputSource::Table;
        if operator.around {
            let input = take(self.around);
            if fork {
                mark_partial_sum_complete(&mut self.main, &need, members);
            }
            self.around = Some(gives);
            return input.into_iter().collect();
        }
        let inputs = match spec.role {
            OperatorInputSource::Table => {
                // Keep an earlier table's result outside the chain until an operator uses it.
                let own = self.main.take().filter(|held| held.produced_by.is_some());
                self.side.extend(own);
                self.around = Some(gives);
                Vec::new()
            }
            OperatorInputSource::Beside => {
                self.side.push(gives);
                return Vec::new();
            }
            OperatorInputSource::Join | OperatorInputSource::Collect => {
                let beside = std::mem::take(&mut self.side);
                let alone = beside.is_empty() && spec.role == OperatorInputSource::Join;
                let around = self.around.filter(|_| alone);
                let others = merge_activations_with_equal_layout(beside)
                    .into_iter()
                    .chain(around);
                let all = self.main.into_iter().chain(others);
                all.map(|from| OperatorInputLayoutChange { from, need })
                    .collect()
            }
            OperatorInputSource::Next => take(self.main).into_iter().collect(),
        };
        if fork {
            mark_partial_sum_complete(&mut self.around, &need, members);
        }
        self.main = Some(gives);
        if matches!(
            spec.role,
            OperatorInputSource::Join | OperatorInputSource::Table
        ) || fork && self.behind && has_norm_before_branch(operator)
        {
            self.around = self.main;
        }
        inputs
    }
}

/// Marks the pending sum of `held` as complete before a second operator uses it, because the redistribution for the
/// first operator has already added it up. If the sum was a reduce-scatter, its result is sharded among the members.
fn mark_partial_sum_complete(
    held: &mut Option<ShardedActivation>,
    need: &SampleRowColumnSharding,
    members: u32,
) {
    if let Some(held) = held
        && let Some(over) = held.partial_over.take()
        && reduce_scatter_groups(&held.layout, &[over], need, members).is_some()
    {
        held.layout = *need;
    }
}

/// Returns true if a layer that begins with `operator` applies a norm before each branch, as GPT-2 and Llama do. In
/// BERT and ResNet, the norm follows a residual sum, and the next skip path carries its output.
fn has_norm_before_branch(operator: &LayerOperator) -> bool {
    operator
        .work
        .to_axes_and_tensors()
        .is_norm_or_activation_on_chain()
}

/// Merges results with equal layouts into one result.
fn merge_activations_with_equal_layout(all: Vec<ShardedActivation>) -> Vec<ShardedActivation> {
    let mut found: Vec<ShardedActivation> = Vec::new();
    for held in all {
        let like = |one: &&mut ShardedActivation| {
            (one.layout, one.partial_over) == (held.layout, held.partial_over)
        };
        match found.iter_mut().find(like) {
            Some(one) => {
                one.elements = one.elements.saturating_add(held.elements);
                one.columns = one.columns.saturating_add(held.columns);
            }
            None => found.push(held),
        }
    }
    found
}
