//! Options of a plan. Each option is declared once, with its field, key in files, flag, default,
//! help and checks.

use super::{
    AblationEffect, AdapterSums, AttentionKernel, AxisPartMapping, BackwardPrefetch, BranchOrder,
    BucketPolicy, ContextExchange, CorePlacement, ElementwiseKernels, ExpertCapacityFactor,
    ExpertExchangeForm, ExpertProducts, ExpertRoutingBalance, LossKernel, OffloadGather,
    OffloadedState, OperatorNamePattern, OperatorPatternDegrees, Optimizer, ParallelAxis,
    RecomputePolicy, RecomputedModule, RecomputedModules, RemovedEffectSet, ResidencyRule,
    ScalingRecipe, ScheduleName, SoftmaxKernel, SplitUnit, TensorNeighbours, ZeroStage,
};
use crate::generate::schedule::{PipelineSchedule, StagePassOrders};
use crate::generate::{PatternOptionError, refused_option_value_error};
use chakram_base::config::{ConfigError, ConfigField};
use chakram_base::shared_memory::RemoteMemoryCapacityAndSharers;
use chakram_base::units::Bytes;
use chakram_trace::format::Dtype;
use std::sync::Arc;
pub use value::OptionValueSyntax;
use value::{AxisMappingOrCorePlacement, OptionValue};

mod value;

/// Headings that group the options in help texts.
const PARALLELISM: &str = "Parallelism and batch";
const MEMORY: &str = "Memory and optimizer";
const OVERLAP: &str = "Overlap and gradient buckets";
const NUMERICS: &str = "Numerics and steps";

/// Formats degrees in the syntax of their flag, such as `4,2`.
pub fn join_degrees_with_commas(degrees: &[u32]) -> String {
    let words: Vec<String> = degrees.iter().map(u32::to_string).collect();
    words.join(",")
}

/// An option of a plan: a key in plan files, and a flag with the same name.
#[derive(Debug)]
pub struct PlanOption {
    /// Key in plan files.
    pub key: &'static str,
    /// Second name of the flag, such as `dp` for `data`.
    pub alias: Option<&'static str>,
    /// Placeholder for the flag's value in help; empty for an option without a flag.
    pub value: &'static str,
    /// Help text of the option. Braces mark the keys of other options, as in `with {zero} 3`.
    pub help: &'static str,
    /// Heading above the option in help texts.
    pub heading: &'static str,
    /// Default value in the flag's syntax; empty if there is no default or it is computed.
    pub default: &'static str,
    /// True if short help omits the option.
    pub is_rare: bool,
    /// Syntax of each word after the flag.
    pub syntax: OptionValueSyntax,
    /// True if the flag accepts a comma-separated list.
    pub is_list: bool,
    /// True if the flag may be given without a value, which then means true.
    pub is_switch: bool,
    /// Options that contradict this one.
    pub excludes: &'static [&'static str],
    /// Smallest valid number, for options that are numbers.
    least: u64,
    /// Example of a valid quantity, for error messages.
    example: &'static str,
    /// Sets the option from a field of a plan file.
    pub(super) read_field: fn(&mut PlanDraft, &Self, &ConfigField<'_>) -> Result<(), ConfigError>,
    /// Sets the option from the words that follow its flag.
    pub set: fn(&mut PlanDraft, &[String]) -> Result<(), String>,
    check: fn(&ParallelismPlan, &Self) -> Result<(), PatternOptionError>,
    refusals: &'static [OptionConflictCheck],
}

/// A conflict between options. Functions detect it, and format the rejected value and the expected value.
type OptionConflictCheck = (
    fn(&ParallelismPlan) -> bool,
    fn(&ParallelismPlan) -> String,
    &'static str,
);

impl PlanOption {
    const BASE: Self = Self {
        key: "",
        alias: None,
        value: "",
        help: "",
        heading: PARALLELISM,
        default: "",
        is_rare: false,
        syntax: OptionValueSyntax::Number,
        is_list: false,
        is_switch: false,
        excludes: &[],
        least: 1,
        example: "",
        read_field: |_, _, _| Ok(()),
        set: |_, _| Ok(()),
        check: |_, _| Ok(()),
        refusals: &[],
    };

    /// Sets the option in `draft` from a field of a plan file.
    ///
    /// # Errors
    ///
    /// Fails if the field is not a valid value of the option.
    pub fn set_option_from_field(
        &self,
        draft: &mut PlanDraft,
        field: &ConfigField<'_>,
    ) -> Result<(), ConfigError> {
        (self.read_field)(draft, self, field)
    }
}

/// A plan under construction.
pub struct PlanDraft {
    pub(super) plan: ParallelismPlan,
    pub(super) schedule: Option<ScheduleName>,
    pub(super) chunks: Option<u32>,
}

impl PlanDraft {
    /// Starts a draft with the options of `plan`.
    pub fn new(plan: ParallelismPlan) -> Self {
        Self {
            plan,
            schedule: None,
            chunks: None,
        }
    }

    /// Returns the plan, with the schedule that the options name.
    ///
    /// # Errors
    ///
    /// Fails if the schedule has no chunks but some are given, or if it needs chunks and none are given.
    pub fn finish_plan(mut self) -> Result<ParallelismPlan, PatternOptionError> {
        if let (PipelineSchedule::Listed(_), None, Some(chunks)) =
            (&self.plan.schedule, self.schedule, self.chunks)
        {
            let expected = "nothing beside pass_orders, which say what each stage has";
            return Err(refused_option_value_error("chunks", chunks, expected));
        }
        if self.schedule.is_some() || self.chunks.is_some() {
            self.plan.schedule = self.schedule_name().to_schedule(self.chunks)?;
        }
        if let (1, Some(most)) = (self.plan.tensor, self.plan.stage_tensor.iter().max()) {
            self.plan.tensor = *most;
        }
        Ok(self.plan)
    }

    /// Replaces the schedule with the given order of passes on each stage.
    pub fn replace_schedule_with_passes(&mut self, orders: StagePassOrders) {
        self.schedule = None;
        self.plan.schedule = PipelineSchedule::Listed(Arc::new(orders));
    }

    pub(super) fn schedule_name(&self) -> ScheduleName {
        let now = ScheduleName::from_schedule(&self.plan.schedule);
        let usual = ScheduleName::OneForwardOneBackward;
        self.schedule.or(now).unwrap_or(usual)
    }
}

impl ParallelismPlan {
    /// Rejects options with values that are invalid in every plan.
    pub(in crate::generate) fn check_values(&self) -> Result<(), PatternOptionError> {
        OPTIONS.iter().try_for_each(|one| (one.check)(self, one))
    }

    /// Sets an option to `words`, a default that the user did not give. On failure, the plan stays unchanged.
    ///
    /// # Errors
    ///
    /// Fails if the option cannot be combined with the other options; the error states the reason.
    pub fn set_default_option(
        &mut self,
        option: &PlanOption,
        words: &[String],
    ) -> Result<(), PatternOptionError> {
        let mut draft = PlanDraft::new(self.clone());
        (option.set)(&mut draft, words)
            .map_err(|why| refused_option_value_error(option.key, words.join(","), why))?;
        let plan = draft.finish_plan()?;
        let check = |plan: &Self| {
            plan.check_values()
                .and_then(|()| plan.check_option_combinations())
        };
        // If the plan is already invalid without this option, the option is not the cause.
        if check(self).is_ok() {
            check(&plan)?;
        }
        *self = plan;
        Ok(())
    }

    /// Rejects combinations of options that are invalid together.
    pub(in crate::generate) fn check_option_combinations(&self) -> Result<(), PatternOptionError> {
        for option in OPTIONS {
            for (applies, found, expected) in option.refusals {
                if applies(self) {
                    return Err(refused_option_value_error(
                        option.key,
                        found(self),
                        *expected,
                    ));
                }
            }
        }
        Ok(())
    }
}

macro_rules! plan_option {
    ($name:ident, $help:literal, { $($given:tt)* }, [$Field:ty], []) => {
        PlanOption {
            check: |plan, option| plan.$name.check_for_option(option),
            ..plan_option!($name, $help, { $($given)* }, [$Field],
                [$Field, |draft, value| draft.plan.$name = value])
        }
    };
    ($name:ident, $help:literal, { $($given:tt)* }, [$Field:ty], [$Value:ty, $set:expr]) => {
        PlanOption {
            $($given)*,
            ..PlanOption {
                key: stringify!($name),
                help: $help,
                syntax: <$Value as OptionValue>::SYNTAX,
                is_list: <$Value as OptionValue>::IS_LIST,
                read_field: |draft, option, field| {
                    let set: fn(&mut PlanDraft, $Value) = $set;
                    set(draft, OptionValue::parse_field(field, option)?);
                    Ok(())
                },
                set: |draft, words| {
                    let set: fn(&mut PlanDraft, $Value) = $set;
                    set(draft, OptionValue::parse(words)?);
                    Ok(())
                },
                ..PlanOption::BASE
            }
        }
    };
}

/// Declares [`ParallelismPlan`] and [`OPTIONS`]. `as TYPE => |draft, value| …` declares an option whose value and
/// field differ in type; `, and NAME, …` declares another option for the same field.
macro_rules! plan_options {
    ($(
        $(#[$doc:meta])*
        $name:ident: $Field:ty = $default:expr, $help:literal { $($given:tt)* } $(as $Value:ty => $set:expr)?
        $(, and $more:ident, $more_help:literal { $($more_given:tt)* } as $More:ty => $more_set:expr)*;
    )*) => {
        /// Distribution of a model's training or inference over many NPUs.
        #[derive(Clone, Debug, PartialEq)]
        pub struct ParallelismPlan {
            $(#[doc = concat!($help, ".")] $(#[$doc])* pub $name: $Field,)*
            /// The machine's remote memory. Under a residency rule, it stores the state that does not fit into the
            /// NPUs' own memory. This field is not an option: binding the plan to a machine sets it.
            pub shared_memory: Option<RemoteMemoryCapacityAndSharers>,
        }

        impl ParallelismPlan {
            /// Returns a plan for one step of one sample on one NPU, with Adam and bf16.
            pub fn new() -> Self {
                Self { $($name: $default,)* shared_memory: None }
            }
        }

        /// Every option, in help order.
        pub static OPTIONS: &[PlanOption] = &[$(
            plan_option!($name, $help, { $($given)* }, [$Field], [$($Value, $set)?]),
            $(plan_option!($more, $more_help, { $($more_given)* }, [$More], [$More, $more_set]),)*
        )*];
    };
}

plan_options! {
    data: u32 = 1, "Data-parallel degree" { value: "N", alias: Some("dp"), default: "1" };
    tensor: u32 = 1, "Tensor-parallel degree" { value: "N", alias: Some("tp"), default: "1" };
    /// If empty, all stages have the degree `tensor`. Otherwise, `tensor` is the largest entry.
    /// [`ParallelismPlan::tensor_degree_of_stage`] returns a stage's degree.
    stage_tensor: Vec<u32> = Vec::new(),
    "Tensor-parallel degree of each stage (4,2), joined by {adapters}" {
        value: "N", is_rare: true, refusals: &[
            (|p| !p.stage_tensor.is_empty() && p.stage_tensor.len() != p.pipeline as usize,
                |p| format!("{} degrees", p.stage_tensor.len()), "one for each stage of pipeline"),
            (|p| p.stage_tensor.contains(&0), |_| "0".to_owned(), "1 or more for each stage"),
            (|p| p.stage_tensor.iter().max().is_some_and(|most| *most != p.tensor), |p| join_degrees_with_commas(&p.stage_tensor),
                "no tensor beside, or the largest of the stages'"),
            (|p| p.has_uneven_tensor_degrees() && p.adapters.is_none(), |p| join_degrees_with_commas(&p.stage_tensor),
                "adapters beside, as many on both sides of a boundary between unlike stages"),
            (|p| p.has_uneven_tensor_degrees() && !p.operators.is_empty(), |p| join_degrees_with_commas(&p.stage_tensor),
                "one degree for all stages where operators have degrees of their own"),
            (|p| p.has_uneven_tensor_degrees() && (p.sequence_parallel || p.scatter_gather || p.pad_heads), |p| join_degrees_with_commas(&p.stage_tensor),
                "one degree for all stages beside sequence_parallel, scatter_gather and pad_heads"),
            (|p| p.has_uneven_tensor_degrees() && p.has_custom_rank_order(), |p| join_degrees_with_commas(&p.stage_tensor),
                "one degree for all stages beside order, ranks, and place on dimensions; cores of tiles go with it"),
        ]
    };
    pipeline: u32 = 1, "Pipeline-parallel degree" { value: "N", alias: Some("pp"), default: "1" };
    /// A divisor of `data` x `context` x `tensor` / `expert_tensor`, the maximum number of ranks that can divide a
    /// layer's experts.
    expert: u32 = 1, "Expert-parallel degree" {
        value: "N", alias: Some("ep"), default: "1", refusals: &[
            (|p| p.expert > 1 && !p.count_ranks_with_same_expert_shard().is_multiple_of(p.expert), |p| p.expert.to_string(),
                "a divisor of data x context x tensor / expert_tensor, the blocks of ranks that have whole experts; expert_tensor \
                 is tensor by default"),
            (|p| p.expert > 1 && !p.operators.is_empty(), |p| p.expert.to_string(),
                "1 where operators have degrees of their own"),
        ]
    };
    /// Number of neighbouring members of a tensor group that shard each expert. If absent, all members shard it, as in
    /// Megatron-LM. The other members have other experts, or the same experts for other tokens.
    expert_tensor: Option<u32> = None,
    "Tensor-parallel degree of experts; by default {tensor}" {
        value: "N", alias: Some("etp"), is_rare: true, refusals: &[
            (|p| p.expert_tensor.is_some_and(|n| n == 0 || !p.tensor.is_multiple_of(n)),
                |p| p.expert_tensor.unwrap_or(0).to_string(), "a divisor of tensor"),
            (|p| p.tensor_groups_split_experts_or_their_tokens() && !p.sequence_parallel, |p| p.tensor_degree_of_experts().to_string(),
                "tensor, or sequence_parallel beside, so that members of a tensor group have different tokens"),
            (|p| p.tensor_groups_split_experts_or_their_tokens() && !p.operators.is_empty(), |p| p.tensor_degree_of_experts().to_string(),
                "tensor where operators have degrees of their own"),
        ]
    } as u32 => |draft, degree| draft.plan.expert_tensor = Some(degree);
    expert_products: ExpertProducts = ExpertProducts::Grouped,
    "Kernels of experts' products: one-by-one, grouped, or fused with copies, gates and casts" {
        value: "KERNELS", default: "grouped", is_rare: true
    };
    expert_exchange: ExpertExchangeForm = ExpertExchangeForm::Copies,
    "How tokens reach experts: copies per expert, per rank of an expert, or per node and then per rank, or an all-gather" {
        value: "FORM", default: "copies", is_rare: true, refusals: &[
            (|p| p.expert_exchange == ExpertExchangeForm::Nodes && p.expert_node.is_none(), |p| p.expert_exchange.to_string(),
                "expert_node beside it, the number of ranks of an expert group on one node"),
            (|p| p.expert_exchange != ExpertExchangeForm::Copies && p.expert == 1, |p| p.expert_exchange.to_string(),
                "copies with expert = 1, which exchanges nothing"),
            (|p| p.expert_exchange != ExpertExchangeForm::Copies && p.tensor_groups_split_experts_or_their_tokens(), |p| p.expert_exchange.to_string(),
                "copies where members of a tensor group have different experts or tokens"),
        ]
    };
    expert_node: Option<u32> = None, "Ranks of an expert group on one node, with {expert_exchange} nodes" {
        value: "N", is_rare: true, refusals: &[
            (|p| p.expert_node.is_some() && p.expert_exchange != ExpertExchangeForm::Nodes,
                |p| p.expert_node.unwrap_or(0).to_string(), "expert_exchange = nodes beside it"),
            (|p| p.expert_node.is_some_and(|n| n < 2 || n >= p.expert || !p.expert.is_multiple_of(n)),
                |p| p.expert_node.unwrap_or(0).to_string(), "a divisor of expert, above 1 and below expert"),
        ]
    } as u32 => |draft, ranks| draft.plan.expert_node = Some(ranks);
    expert_exchange_dtype: Option<Dtype> = None, "Data type of tokens sent to experts; by default as activations" {
        value: "DTYPE", is_rare: true, refusals: &[
            (|p| p.expert_exchange_dtype.is_some() && p.expert == 1,
                |p| p.expert_exchange_dtype.map_or_else(String::new, |dtype| dtype.to_string()),
                "none with expert = 1, which exchanges nothing"),
            (|p| p.expert_exchange_dtype.is_some_and(|dtype| dtype != Dtype::Fp8),
                |p| p.expert_exchange_dtype.map_or_else(String::new, |dtype| dtype.to_string()),
                "fp8, with a scale of 4 B for each 128 numbers"),
        ]
    } as Dtype => |draft, dtype| draft.plan.expert_exchange_dtype = Some(dtype);
    routing: ExpertRoutingBalance = ExpertRoutingBalance::Balanced,
    "Tokens per expert: balanced, or by a power law, skewed:POWER or skewed:POWER:SEED" {
        value: "HOW", default: "balanced", is_rare: true
    };
    /// If given, these measured token counts determine the load of experts, in place of a distribution.
    expert_counts: Vec<u32> = Vec::new(), "Measured number of tokens of each expert: 40,3,17,…" {
        value: "COUNTS", is_rare: true, least: 0, refusals: &[
            (|p| !p.expert_counts.is_empty() && p.routing != ExpertRoutingBalance::Balanced, |p| format!("{} counts", p.expert_counts.len()),
                "none beside routing = skewed"),
            (|p| !p.expert_counts.is_empty() && p.expert_counts.iter().all(|count| *count == 0), |_| "0".to_owned(),
                "tokens of some experts"),
        ]
    };
    capacity_factor: Option<ExpertCapacityFactor> = None,
    "Token slots of each expert divided by its mean tokens; further tokens are dropped, free slots padded" {
        value: "FACTOR", is_rare: true
    } as ExpertCapacityFactor => |draft, factor| draft.plan.capacity_factor = Some(factor);
    /// Additional copies of experts with many tokens, besides the one copy that each expert has anyway.
    redundant_experts: u32 = 0, "Copies of full experts, in addition to one copy of each, with {schedule} inference" {
        value: "N", default: "0", is_rare: true, least: 0, refusals: &[
            (|p| p.redundant_experts > 0 && p.has_training(), |p| p.redundant_experts.to_string(),
                "0 in training, where the gradients of copies would have to be summed, or schedule = inference"),
            (|p| p.redundant_experts > 0 && p.expert == 1, |p| p.redundant_experts.to_string(),
                "0 with expert = 1, where every rank has all experts"),
            (|p| p.redundant_experts > 0 && p.capacity_factor.is_some(), |p| p.redundant_experts.to_string(),
                "0 with capacity_factor, which gives all experts the same number of tokens"),
        ]
    };
    /// Number of neighbouring replicas that divide the tokens of their sequences.
    context: u32 = 1, "Context-parallel degree" {
        value: "N", alias: Some("cp"), default: "1", refusals: &[
            (|p| p.context > 1 && !p.operators.is_empty(), |p| p.context.to_string(),
                "1 where operators have degrees of their own"),
            (|p| p.context > 1 && p.has_uneven_tensor_degrees(), |p| p.context.to_string(),
                "1 where stages have unlike tensor degrees"),
        ]
    };
    context_exchange: ContextExchange = ContextExchange::AllGather,
    "Context parallelism: gather keys and values, exchange heads, or pass keys and values around a ring" {
        value: "KIND", default: "all-gather", is_rare: true, refusals: &[
            (|p| p.context_exchange != ContextExchange::AllGather && p.context == 1, |p| p.context_exchange.to_string(),
                "all-gather with context = 1, which exchanges nothing"),
            (|p| p.context_exchange == ContextExchange::Ring && p.attention != AttentionKernel::Flash,
                |p| p.context_exchange.to_string(), "attention = flash beside it, whose results of blocks can be merged"),
        ]
    };
    sequence_parallel: bool = false, "Sequence parallelism: shard tokens over the tensor group" {
        value: "BOOL", alias: Some("sp"), default: "false", is_switch: true, refusals: &[
            (|p| p.sequence_parallel && p.tensor == 1, |_| "true".to_owned(),
                "false with tensor = 1: it shards tokens over a tensor group"),
        ]
    };
    pad_heads: bool = false, "Pad attention heads to a multiple of {tensor}" {
        value: "BOOL", default: "false", is_rare: true, is_switch: true, refusals: &[
            (|p| p.pad_heads && p.tensor == 1, |_| "true".to_owned(),
                "false with tensor = 1, which every number of heads is a multiple of"),
        ]
    };
    zero: ZeroStage = ZeroStage::None,
    "ZeRO stage: shard optimizer states (1), gradients (2), parameters (3, as FSDP)" {
        value: "STAGE", default: "0", refusals: &[
            (|p| p.zero != ZeroStage::None && p.weight_copy_count() == 1, |p| p.zero.to_string(),
                "0 with data = 1: there are no replicas to shard over"),
            (|p| p.zero == ZeroStage::Parameters && p.schedule.copy_count_of_each_part() > 1, |p| p.zero.to_string(),
                "0, 1 or 2 with schedule = dualpipe, which has each part of the model on two stages"),
            (|p| !p.has_training() && matches!(p.zero, ZeroStage::Optimizer | ZeroStage::Gradients), |p| p.zero.to_string(),
                "0 or 3 with schedule = inference, which has neither gradients nor optimizer"),
            (|p| p.has_training() && p.optimizer == Optimizer::None && p.zero == ZeroStage::Optimizer, |p| p.zero.to_string(),
                "0, 2 or 3 with optimizer = none"),
        ]
    };
    /// If absent, all replicas shard the state. Otherwise, neighbouring replicas form groups that
    /// each have the whole state, as in PyTorch's `HYBRID_SHARD`.
    shard: Option<u32> = None, "Number of neighbouring replicas that shard state, with {zero}; others have copies (HSDP)" {
        value: "N", is_rare: true, refusals: &[
            (|p| p.shard.is_some() && p.zero == ZeroStage::None, |p| p.shard.unwrap_or(0).to_string(),
                "zero = 1, 2 or 3 beside it, which says what is sharded"),
            (|p| p.shard.is_some_and(|n| n < 2 || !p.weight_replicas_per_stage().is_multiple_of(n)), |p| p.shard.unwrap_or(0).to_string(),
                "a divisor of data x context above 1"),
            (|p| p.shard.is_some() && p.schedule.copy_count_of_each_part() > 1, |p| p.shard.unwrap_or(0).to_string(),
                "nothing with schedule = dualpipe, which has copies of the state on two stages"),
            (|p| p.shard.is_some() && (p.expert > 1 || p.tensor_groups_split_experts_or_their_tokens()), |p| p.shard.unwrap_or(0).to_string(),
                "nothing beside experts on different ranks, whose state fewer ranks share"),
            (|p| p.shard.is_some() && p.offload_gather == OffloadGather::InSwitch, |p| p.shard.unwrap_or(0).to_string(),
                "nothing beside offload_gather = in-switch, which gathers from all replicas"),
        ]
    } as u32 => |draft, ranks| draft.plan.shard = Some(ranks);
    batch: u64 = 1, "Global batch size, in samples per step" { value: "N", default: "1" };
    micro_batch: u64 = 1, "Micro-batch size, in samples" { value: "N", default: "1" };
    schedule: PipelineSchedule = PipelineSchedule::OneForwardOneBackward, "Pipeline schedule" {
        value: "NAME", default: "1f1b"
    } as ScheduleName => |draft, name| draft.schedule = Some(name),
        and chunks, "Model chunks per stage, with {schedule} interleaved or interleaved-pairs" { value: "N", is_rare: true }
        as u32 => |draft, chunks| draft.chunks = Some(chunks),
        // Only plan files have this key; on the command line, a flag names a file with these orders.
        and pass_orders, "Passes of each stage, step by step" { value: "" }
        as StagePassOrders => |draft, orders| draft.replace_schedule_with_passes(orders);
    split_backward: bool = false,
    "Compute gradients of inputs first, for the previous stage, and gradients of weights later" {
        value: "BOOL", default: "false", is_rare: true, is_switch: true, refusals: &[
            (|p| p.split_backward && !p.has_training(), |_| "true".to_owned(),
                "false with schedule = inference, which has no backward passes"),
            (|p| p.split_backward && p.schedule.splits_backward(), |_| "true".to_owned(),
                "false beside pass_orders, and with schedule = zb-h1, zb-v, dualpipe and dualpipe-v, which say what is split"),
            (|p| p.split_backward && matches!(p.schedule, PipelineSchedule::InterleavedPairs { .. }), |_| "true".to_owned(),
                "false with schedule = interleaved-pairs, whose backward passes run beside forward passes"),
        ]
    };
    split: SplitUnit = SplitUnit::Blocks,
    "Unit divided evenly among pipeline stages" {
        value: "UNIT", default: "blocks", is_rare: true
    };
    order: [ParallelAxis; 3] = [ParallelAxis::Tensor, ParallelAxis::Data, ParallelAxis::Pipeline],
    "Rank order: axes of neighbouring ranks, innermost first" { value: "AXES", default: "tp,dp,pp", is_rare: true }
        as [ParallelAxis; 3] => |draft, order| {
            draft.plan.order = order;
            draft.plan.place.clear();
        };
    /// If empty, rank r is at position r of the order.
    ranks: Vec<u32> = Vec::new(), "Rank at each position of that order: 0,2,1,3" {
        value: "RANKS", least: 0, is_rare: true
    } as Vec<u32> => |draft, ranks| {
            draft.plan.ranks = ranks;
            draft.plan.place.clear();
        };
    // `place` numbers ranks, and so do `order` and `ranks`; the later setting overrides the earlier one.
    place: Vec<AxisPartMapping> = Vec::new(),
    "Map axes to dimensions of the machine (tp@nvlink,dp:2@1,pp@1), or ranks to cores of tiles: line, s_shape, spiral, \
     or x:y for each" {
        value: "PLACE", excludes: &["order", "ranks"], is_rare: true
    } as Vec<AxisMappingOrCorePlacement> => |draft, words| {
        draft.plan.ranks.clear();
        draft.plan.place.clear();
        draft.plan.tiles = CorePlacement::None;
        for word in words {
            match word {
                AxisMappingOrCorePlacement::Axis(axis) => draft.plan.place.push(axis),
                AxisMappingOrCorePlacement::Tiles(tiles) => draft.plan.tiles.add_cores_or_set_order(tiles),
            }
        }
    };
    tiles: CorePlacement = CorePlacement::None, "Cores of the ranks on a machine of tiles" { refusals: &[
        (|p| p.tiles != CorePlacement::None && !p.place.is_empty(), |p| p.tiles.to_string(),
            "either cores of tiles or dimensions of a machine in place"),
        (|p| p.tiles != CorePlacement::None && !p.ranks.is_empty(), |p| p.tiles.to_string(),
            "nothing beside ranks, which number ranks too"),
    ] };
    tensor_neighbours: TensorNeighbours = TensorNeighbours::Near,
    "Places of a tensor group's members on tiles (opposite: replicas between)" {
        value: "WHERE", default: "near", is_rare: true, refusals: &[
            (|p| p.tensor_neighbours == TensorNeighbours::Opposite && p.tiles == CorePlacement::None,
                |p| p.tensor_neighbours.to_string(), "near without an order of tiles in place"),
        ]
    };
    recompute: RecomputePolicy = RecomputePolicy::None, "Activation recomputation (checkpointing)" {
        value: "POLICY", heading: MEMORY, default: "none", refusals: &[
            (|p| p.recompute == RecomputePolicy::Selective && p.attention.is_fused(), |p| p.recompute.to_string(),
                "none, full or as-needed with fused attention, which recomputes its scores by itself; or \
                 attention = unfused"),
            (|p| p.recompute == RecomputePolicy::AsNeeded && p.capacity.is_none(), |p| p.recompute.to_string(),
                "beside a capacity, or a machine that has one"),
            (|p| p.recompute == RecomputePolicy::Operators && !p.operators.is_empty(), |p| p.recompute.to_string(),
                "none or full where operators have degrees of their own"),
            (|p| !p.has_training() && p.recompute != RecomputePolicy::None, |p| p.recompute.to_string(),
                "none with schedule = inference, which saves no activations"),
        ]
    };
    /// If absent, all blocks are recomputed.
    recompute_blocks: Option<u32> = None,
    "Recompute only the first N blocks of each stage and chunk, with {recompute} full" {
        value: "N", heading: MEMORY, is_rare: true, refusals: &[
            (|p| p.recompute_blocks.is_some() && p.recompute != RecomputePolicy::Full,
                |p| p.recompute_blocks.unwrap_or(0).to_string(), "recompute = full beside it, which recomputes blocks"),
            (|p| p.recompute_blocks == Some(0), |_| "0".to_owned(), "1 or more, or recompute = none"),
        ]
    } as u32 => |draft, blocks| draft.plan.recompute_blocks = Some(blocks);
    recompute_modules: RecomputedModules = RecomputedModules::default(),
    "Parts of blocks that are recomputed one by one, beside {recompute} none or selective; comma-separated, repeatable" {
        value: "MODULES", heading: MEMORY, is_rare: true, refusals: &[
            (|p| !p.recompute_modules.is_empty() && !matches!(p.recompute, RecomputePolicy::None | RecomputePolicy::Selective),
                |p| p.recompute_modules.to_string(), "recompute = none or selective beside it"),
            (|p| p.recompute_modules.has_module(RecomputedModule::Experts)
                && (p.recompute_modules.has_module(RecomputedModule::ExpertActivation)
                    || p.recompute_modules.has_module(RecomputedModule::SharedExperts)),
                |p| p.recompute_modules.to_string(), "moe alone, which contains moe-act and shared-experts"),
            (|p| !p.recompute_modules.is_empty() && !p.has_training(), |p| p.recompute_modules.to_string(),
                "none with schedule = inference, which saves no activations"),
            (|p| !p.recompute_modules.is_empty() && !p.operators.is_empty(), |p| p.recompute_modules.to_string(),
                "none where operators have degrees of their own"),
        ]
    } as Vec<RecomputedModule> => |draft, modules| {
            modules.into_iter().for_each(|one| draft.plan.recompute_modules.add_module(one));
        };
    /// If empty, the policy's own choice of operators applies.
    saved: Vec<OperatorNamePattern> = Vec::new(),
    "Operators whose outputs are saved, with {recompute} operators; others are recomputed: attention.qkv,attention.core" {
        value: "OPERATORS", heading: MEMORY, is_rare: true, refusals: &[
            (|p| !p.saved.is_empty() && p.recompute != RecomputePolicy::Operators, |p| p.saved[0].to_string(),
                "recompute = operators beside it, which recomputes all other operators"),
        ]
    };
    capacity: Option<u64> = None, "Memory capacity of an NPU; by default the machine's" {
        value: "SIZE", heading: MEMORY, example: "80 GB"
    } as Bytes => |draft, bytes| draft.plan.capacity = Some(bytes.0);
    residency: ResidencyRule = ResidencyRule::None,
    "Rule for data that SRAM does not keep (as-printed: as in PALM)" {
        value: "RULE", heading: MEMORY, default: "none", is_rare: true, refusals: &[
            (|p| p.residency != ResidencyRule::None && p.sram.is_none(), |p| p.residency.to_string(),
                "beside sram, or a machine, whose NPUs have some"),
        ]
    };
    sram: Option<u64> = None, "SRAM of a core, for {residency}; by default the machine's" {
        value: "SIZE", heading: MEMORY, is_rare: true, example: "3 MB", refusals: &[
            (|p| p.sram == Some(0), |_| "0 B".to_owned(), "bytes, for example 3 MB"),
        ]
    } as Bytes => |draft, bytes| draft.plan.sram = Some(bytes.0);
    largest_access: Option<u64> = None,
    "Largest load or store, for {residency}; by default all of memory" {
        value: "SIZE", heading: MEMORY, is_rare: true, example: "64 GB", refusals: &[
            (|p| p.largest_access.is_some_and(|most| Some(most) < p.sram), |p| p.largest_access.unwrap_or(0).to_string(),
                "at least the SRAM of a core, which a load fills"),
        ]
    } as Bytes => |draft, bytes| draft.plan.largest_access = Some(bytes.0);
    /// Shards in remote memory are loaded before each gather of parameters, and stored after each
    /// reduction of gradients. The optimizer's step loads and stores its state.
    offload: OffloadedState = OffloadedState::None,
    "State in remote memory: the optimizer's, or all, with {zero} 3 (as ZeRO-Infinity)" {
        value: "STATE", heading: MEMORY, default: "none", is_rare: true, refusals: &[
            (|p| p.offload != OffloadedState::None && !p.has_training(), |p| p.offload.to_string(),
                "none with schedule = inference, which has no such state"),
            (|p| p.offload != OffloadedState::None && p.residency != ResidencyRule::None, |p| p.offload.to_string(),
                "none with residency, which decides by itself what is in remote memory"),
            (|p| p.offload != OffloadedState::None && p.optimizer == Optimizer::None, |p| p.offload.to_string(),
                "none with optimizer = none"),
            (|p| p.offload == OffloadedState::All && p.zero != ZeroStage::Parameters, |p| p.offload.to_string(),
                "none or optimizer, or zero = 3 beside, which loads parameters layer by layer"),
            (|p| p.offload == OffloadedState::All && p.weight_copy_count() == 1, |p| p.offload.to_string(),
                "none or optimizer without replicas, which share nothing"),
            (|p| p.offload == OffloadedState::All && p.accumulate, |p| p.offload.to_string(),
                "none or optimizer beside accumulate, which keeps whole gradients"),
        ]
    };
    offload_gather: OffloadGather = OffloadGather::Network,
    "Where offloaded parameters are gathered and gradients reduced: network, or in-switch (of a pool)" {
        value: "WHERE", heading: MEMORY, default: "network", is_rare: true, refusals: &[
            (|p| p.offload_gather == OffloadGather::InSwitch && p.offload != OffloadedState::All, |p| p.offload_gather.to_string(),
                "network, or offload = all beside it"),
            (|p| p.offload_gather == OffloadGather::InSwitch && (p.tensor > 1 || p.pipeline > 1 || p.expert > 1),
                |p| p.offload_gather.to_string(),
                "network, or tensor = 1, pipeline = 1 and expert = 1, because switches gather for all NPUs"),
        ]
    };
    offload_activations: bool = false, "Keep saved activations of blocks in remote memory until the backward pass" {
        value: "BOOL", heading: MEMORY, default: "false", is_rare: true, is_switch: true, refusals: &[
            (|p| p.offload_activations && !p.has_training(), |_| "true".to_owned(),
                "false with schedule = inference, which saves no activations"),
            (|p| p.offload_activations && p.residency != ResidencyRule::None, |_| "true".to_owned(),
                "false with residency, which decides by itself what is in remote memory"),
        ]
    };
    /// If absent, no operator has an adapter.
    lora: Option<u32> = None, "Rank of low-rank adapters (LoRA), with all other weights frozen" {
        value: "RANK", heading: MEMORY, is_rare: true, refusals: &[
            (|p| p.lora == Some(0), |_| "0".to_owned(), "1 or more"),
            (|p| p.has_frozen_weights() && !p.has_training(), |p| p.format_frozen_weights_setting(),
                "no adapters and no frozen weights with schedule = inference, which changes no weights"),
            (|p| p.has_frozen_weights() && p.recompute == RecomputePolicy::Operators, |p| p.format_frozen_weights_setting(),
                "recompute = none, selective or full beside it"),
            (|p| p.has_frozen_weights() && p.residency != ResidencyRule::None, |p| p.format_frozen_weights_setting(),
                "residency = none beside it: rules of residency keep gradients of all weights"),
        ]
    } as u32 => |draft, rank| draft.plan.lora = Some(rank);
    /// If empty, all matrix products of blocks except those of routers have adapters.
    lora_targets: Vec<OperatorNamePattern> = Vec::new(),
    "Products with adapters, with {lora}; by default all of blocks: attention.qkv,mlp.*" {
        value: "OPERATORS", heading: MEMORY, is_rare: true, refusals: &[
            (|p| !p.lora_targets.is_empty() && p.lora.is_none(), |p| p.lora_targets[0].to_string(),
                "nothing without lora, the rank of adapters"),
        ]
    };
    frozen: Vec<OperatorNamePattern> = Vec::new(), "Operators whose weights are not trained: tokens,layer0/*" {
        value: "OPERATORS", heading: MEMORY, is_rare: true, refusals: &[
            (|p| !p.frozen.is_empty() && p.lora.is_some(), |p| p.frozen[0].to_string(),
                "nothing beside lora, which freezes all weights except those of adapters"),
        ]
    };
    prefetch: u32 = 1, "Number of layers whose parameters are gathered ahead, with {zero} 3" {
        value: "LAYERS", heading: MEMORY, default: "1", is_rare: true, least: 0
    };
    backward_prefetch: BackwardPrefetch = BackwardPrefetch::Pre,
    "Whether backward passes gather parameters ahead before (pre) or after (post) the current layer ({zero} 3)" {
        value: "WHEN", heading: MEMORY, default: "pre", is_rare: true
    };
    /// If false, parameters stay gathered until the end of the step.
    reshard: bool = true, "Free gathered parameters after each pass ({zero} 3)" {
        value: "BOOL", heading: MEMORY, default: "true", is_rare: true
    };
    /// If absent, `reshard` decides for all layers together whether their parameters are freed.
    reshard_blocks: Option<u32> = None, "Free gathered parameters only of the first N blocks of each stage and chunk" {
        value: "N", heading: MEMORY, is_rare: true, least: 0, refusals: &[
            (|p| p.reshard_blocks.is_some() && p.zero != ZeroStage::Parameters, |p| p.reshard_blocks.unwrap_or(0).to_string(),
                "zero = 3 beside it, which gathers parameters"),
            (|p| p.reshard_blocks.is_some() && !p.reshard, |p| p.reshard_blocks.unwrap_or(0).to_string(),
                "reshard = true beside it"),
        ]
    } as u32 => |draft, blocks| draft.plan.reshard_blocks = Some(blocks);
    accumulate: bool = false, "Reduce gradients once per step, with {zero} 2 or 3" {
        value: "BOOL", heading: MEMORY, default: "false", is_rare: true, is_switch: true
    };
    optimizer: Optimizer = Optimizer::Adam, "Optimizer" { value: "NAME", heading: MEMORY, default: "adam" };
    /// Model weights have 16 bits. If true, Adam keeps an additional fp32 copy of the weights.
    mixed: bool = true, "Mixed precision: Adam keeps fp32 master weights" {
        value: "BOOL", heading: MEMORY, default: "true", is_rare: true
    };
    clip: bool = false, "Clip gradients by their global norm" {
        value: "BOOL", heading: MEMORY, default: "false", is_rare: true, is_switch: true
    };
    overlap: bool = true, "Overlap gradient reduction with the backward pass" {
        value: "BOOL", heading: OVERLAP, default: "true", is_rare: true
    };
    tensor_overlap: bool = true, "Overlap tensor-parallel sums with weight gradients" {
        value: "BOOL", heading: OVERLAP, default: "true", is_rare: true
    };
    pipeline_overlap: bool = true, "Overlap messages between stages with other passes" {
        value: "BOOL", heading: OVERLAP, default: "true", is_rare: true
    };
    gather_overlap: bool = false,
    "Gather parameters during the next forward pass, with {zero} 1 or 2" {
        value: "BOOL", heading: OVERLAP, default: "false", is_rare: true, is_switch: true, refusals: &[
            (|p| p.gather_overlap && !matches!(p.zero, ZeroStage::Optimizer | ZeroStage::Gradients), |_| "true".to_owned(),
                "false unless zero is 1 or 2: parameters are gathered after the optimizer with these only"),
        ]
    };
    branches: BranchOrder = BranchOrder::InOrder,
    "How independent operators of a layer run, such as branches" {
        value: "HOW", heading: OVERLAP, default: "in-order", is_rare: true
    };
    scatter_gather: bool = false,
    "Scatter-gather activations between stages" {
        value: "BOOL", heading: OVERLAP, default: "false", is_rare: true, is_switch: true, refusals: &[
            (|p| p.scatter_gather && (p.tensor == 1 || p.sequence_parallel), |_| "true".to_owned(),
                "false with tensor = 1, and with sequence_parallel, which sends shards anyway"),
        ]
    };
    /// If absent, every rank exchanges its own data with other stages (PALM's Fig. 11, strategy 1).
    adapters: Option<u32> = None,
    "Number of members of a tensor group that send to the next stage, where each receiver broadcasts; by default all" {
        value: "N", heading: OVERLAP, is_rare: true, refusals: &[
            (|p| p.adapters.is_some_and(|n| n == 0 || !p.tensor_degrees().all(|tensor| tensor.is_multiple_of(n))),
                |p| p.adapters.unwrap_or(0).to_string(), "a divisor of tensor, and of that of each stage"),
            (|p| p.adapters.is_some() && (!p.schedule.has_cyclic_chunk_placement() || p.split_backward || p.schedule.splits_backward()),
                |p| p.adapters.unwrap_or(0).to_string(),
                "nothing beside schedules in the shape of a V, from both ends or of a file, and split backward passes"),
            (|p| p.adapters.is_some() && (p.scatter_gather || p.sequence_parallel),
                |p| p.adapters.unwrap_or(0).to_string(),
                "nothing beside scatter_gather and sequence_parallel, with which every member sends a part"),
        ]
    } as u32 => |draft, adapters| draft.plan.adapters = Some(adapters);
    adapter_sums: AdapterSums = AdapterSums::Source,
    "When adapters sum a stage's result: before or after it is sent" {
        value: "WHERE", heading: OVERLAP, default: "source", is_rare: true, refusals: &[
            (|p| p.adapter_sums == AdapterSums::Destination && p.adapters.is_none(), |p| p.adapter_sums.to_string(),
                "source without adapters"),
        ]
    };
    buckets: BucketPolicy = BucketPolicy::Layers, "Bucket gradients by layers, or by parameters like PyTorch" {
        value: "POLICY", heading: OVERLAP, default: "layers", is_rare: true
    };
    /// A bucket ends with the first gradient that fills it to this size.
    bucket: u64 = 40_000_000, "Gradient bucket size" {
        value: "SIZE", heading: OVERLAP, default: "40 MB", is_rare: true, example: "40 MB", refusals: &[
            (|p| p.bucket == 0, |_| "0 B".to_owned(), "bytes, for example 40 MB"),
        ]
    } as Bytes => |draft, bytes| draft.plan.bucket = bytes.0;
    first_bucket: Option<u64> = None, "Size of the first gradient buckets; by default {bucket}" {
        value: "SIZE", heading: OVERLAP, is_rare: true, example: "1 MiB", refusals: &[
            (|p| p.first_bucket == Some(0), |_| "0 B".to_owned(), "bytes, for example 1 MiB"),
        ]
    } as Bytes => |draft, bytes| draft.plan.first_bucket = Some(bytes.0);
    dtype: Dtype = Dtype::Bf16, "Data type of weights and activations" {
        value: "DTYPE", heading: NUMERICS, default: "bf16", refusals: &[
            (|p| p.dtype == Dtype::Fp4, |p| p.dtype.to_string(),
                "a format of whole bytes; four bits come with scales that no model states"),
        ]
    };
    gradients: Option<Dtype> = None, "Data type of gradients; by default as weights" {
        value: "DTYPE", heading: NUMERICS, is_rare: true, refusals: &[
            (|p| p.gradients == Some(Dtype::Fp4), |_| "fp4".to_owned(), "a format of whole bytes"),
        ]
    } as Dtype => |draft, dtype| draft.plan.gradients = Some(dtype);
    linears: Option<Dtype> = None,
    "Data type of operands of linear layers in blocks; by default as weights" {
        value: "DTYPE", heading: NUMERICS, is_rare: true, refusals: &[
            (|p| matches!((p.linears, p.dtype), (Some(Dtype::Tf32), dtype) if dtype != Dtype::Fp32),
                |_| "tf32".to_owned(), "tf32 with dtype = fp32, whose numbers it shortens"),
        ]
    } as Dtype => |draft, dtype| draft.plan.linears = Some(dtype);
    scaling: ScalingRecipe = ScalingRecipe::Delayed,
    "Scaling of 8-bit operands (block is MXFP8)" {
        value: "RECIPE", heading: NUMERICS, default: "delayed", is_rare: true
    };
    elementwise: ElementwiseKernels = ElementwiseKernels::Fused,
    "Kernels other than products: fused (one per operator), megatron (like Megatron-LM), eager or compiled (like PyTorch)" {
        value: "KERNELS", heading: NUMERICS, default: "fused", is_rare: true
    };
    attention: AttentionKernel = AttentionKernel::Flash, "Attention kernel" {
        value: "KERNEL", heading: NUMERICS, default: "flash"
    };
    softmax: SoftmaxKernel = SoftmaxKernel::Fused,
    "Softmax of unfused attention: fused with scale and mask, unfused, or megatron (fused when Megatron-LM fuses it)" {
        value: "KERNEL", heading: NUMERICS, default: "fused", is_rare: true
    };
    loss: LossKernel = LossKernel::Composite,
    "Cross entropy of logits: composite (kernel by kernel) or fused" {
        value: "KERNEL", heading: NUMERICS, default: "composite", is_rare: true
    };
    dropout: bool = true, "Apply the model's dropout" {
        value: "BOOL", heading: NUMERICS, default: "true", is_rare: true
    };
    steps: u32 = 1, "Number of training steps" { value: "N", heading: NUMERICS, default: "1" };
    /// If empty, layers are divided evenly. With several chunks per stage, the first chunks of all stages come first,
    /// then the second chunks, and so on.
    stages: Vec<[u32; 2]> = Vec::new(), "First and last layer of each stage" { key: "stage" }
        as () => |_, ()| ();
    /// If several patterns match an operator, the last one applies.
    operators: Vec<OperatorPatternDegrees> = Vec::new(), "Operators that tensor groups shard with degrees of their own" { key: "operator" }
        as () => |_, ()| ();
    without: RemovedEffectSet = RemovedEffectSet::default(),
    "Ablation: effects to leave out; comma-separated, repeatable" { value: "EFFECTS", heading: NUMERICS, is_rare: true }
        as Vec<AblationEffect> => |draft, effects| effects.into_iter().for_each(|one| draft.plan.without.add_effect(one));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_refers_to_options_by_their_keys() {
        let keys = OPTIONS
            .iter()
            .flat_map(|option| option.help.split('{').skip(1));
        let keys: Vec<_> = keys.map(|rest| rest.split_once('}').unwrap().0).collect();
        assert!(keys.contains(&"zero"));
        for key in keys {
            assert!(OPTIONS.iter().any(|option| option.key == key), "{key}");
        }
    }

    #[test]
    fn defaults_that_help_names_are_those_of_a_new_plan() {
        let named = OPTIONS.iter().filter(|option| !option.default.is_empty());
        assert!(named.clone().count() > 20);
        for option in named {
            let mut draft = PlanDraft::new(ParallelismPlan::new());
            let words: Vec<_> = match option.is_list {
                true => option.default.split(',').map(str::to_owned).collect(),
                false => vec![option.default.to_owned()],
            };
            (option.set)(&mut draft, &words).unwrap();
            assert_eq!(
                draft.finish_plan().unwrap(),
                ParallelismPlan::new(),
                "{}",
                option.key
            );
        }
    }
}
