//! The options of a plan, each declared once: its field, its key in files, its flag, default, help and checks.

use super::map::AxisMapping;
use super::{
    AblationEffect, AblationSet, AttentionKernel, BucketPolicy, OperatorDegrees, Optimizer,
    ParallelAxis, RecomputePolicy, ScheduleName, SoftmaxKernel, ZeroStage,
};
use crate::config::{ConfigError, ConfigField};
use crate::generate::schedule::PipelineSchedule;
use crate::generate::{GenerateError, refused};
use crate::trace::Dtype;
use crate::units::Bytes;
use value::OptionValue;
pub use value::ValueSyntax;

mod value;

/// An option of a plan: a key of its files, and a flag of the same name.
#[derive(Debug)]
pub struct PlanOption {
    /// Key in files.
    pub key: &'static str,
    /// Another name of the flag.
    pub alias: Option<&'static str>,
    /// Name of the flag's value in help; empty where there is no flag.
    pub value: &'static str,
    /// Meaning, for help.
    pub help: &'static str,
    /// Words that the flag takes.
    pub syntax: ValueSyntax,
    /// Whether the flag takes several words, with commas.
    pub is_list: bool,
    /// Whether the flag by itself means true.
    pub is_switch: bool,
    /// Options that cannot be given beside it, by key.
    pub excludes: &'static [&'static str],
    /// Least number that it takes.
    least: u64,
    /// A quantity that it takes, for messages.
    example: &'static str,
    /// Sets it to what a field of a file says.
    pub(super) read: fn(&mut PlanDraft, &Self, &ConfigField<'_>) -> Result<(), ConfigError>,
    /// Sets it to what the words behind its flag say.
    pub set: fn(&mut PlanDraft, &[String]) -> Result<(), String>,
    check: fn(&ParallelismPlan, &Self) -> Result<(), GenerateError>,
    refusals: &'static [OptionConflict],
}

/// A case in which the value of an option is refused for what the others are: when, the value, what is expected.
type OptionConflict = (
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
        syntax: ValueSyntax::Number,
        is_list: false,
        is_switch: false,
        excludes: &[],
        least: 1,
        example: "",
        read: |_, _, _| Ok(()),
        set: |_, _| Ok(()),
        check: |_, _| Ok(()),
        refusals: &[],
    };
}

/// A plan while its options are set.
pub struct PlanDraft {
    pub(super) plan: ParallelismPlan,
    pub(super) schedule: Option<ScheduleName>,
    pub(super) chunks: Option<u32>,
}

impl PlanDraft {
    /// Begins with the options of `plan`.
    pub fn new(plan: ParallelismPlan) -> Self {
        Self {
            plan,
            schedule: None,
            chunks: None,
        }
    }

    /// Returns the plan.
    ///
    /// # Errors
    ///
    /// Chunks of a schedule that has none, or none of the one that needs them.
    pub fn finish(mut self) -> Result<ParallelismPlan, GenerateError> {
        if self.schedule.is_some() || self.chunks.is_some() {
            self.plan.schedule = self.schedule_name().schedule(self.chunks)?;
        }
        Ok(self.plan)
    }

    pub(super) fn schedule_name(&self) -> ScheduleName {
        let now = ScheduleName::of(self.plan.schedule);
        self.schedule.unwrap_or(now)
    }
}

impl ParallelismPlan {
    /// Refuses options that no plan can have.
    pub(in crate::generate) fn check_values(&self) -> Result<(), GenerateError> {
        OPTIONS.iter().try_for_each(|one| (one.check)(self, one))
    }

    /// Refuses options that do not go with one another.
    pub(in crate::generate) fn check_together(&self) -> Result<(), GenerateError> {
        for option in OPTIONS {
            for (applies, found, expected) in option.refusals {
                if applies(self) {
                    return Err(refused(option.key, found(self), *expected));
                }
            }
        }
        Ok(())
    }
}

macro_rules! plan_option {
    ($name:ident, $help:literal, { $($given:tt)* }, [$Field:ty], []) => {
        PlanOption {
            check: |plan, option| plan.$name.check(option),
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
                read: |draft, option, field| {
                    let set: fn(&mut PlanDraft, $Value) = $set;
                    set(draft, OptionValue::read(field, option)?);
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

/// Declares [`ParallelismPlan`] and [`OPTIONS`]. `as TYPE => |draft, value| …` reads a value of another type than the
/// field's; `, and NAME, …` is an option that says more of the same field.
macro_rules! plan_options {
    ($(
        $(#[$doc:meta])*
        $name:ident: $Field:ty = $default:expr, $help:literal { $($given:tt)* } $(as $Value:ty => $set:expr)?
        $(, and $more:ident, $more_help:literal { $($more_given:tt)* } as $More:ty => $more_set:expr)?;
    )*) => {
        /// A plan of how a model is trained, or asked, on many NPUs.
        #[derive(Clone, Debug, PartialEq)]
        pub struct ParallelismPlan {
            $(#[doc = concat!($help, ".")] $(#[$doc])* pub $name: $Field,)*
        }

        impl ParallelismPlan {
            /// One NPU, one sample, one step with Adam in bf16.
            pub fn new() -> Self {
                Self { $($name: $default,)* }
            }
        }

        /// Every option, in the order of help.
        pub static OPTIONS: &[PlanOption] = &[$(
            plan_option!($name, $help, { $($given)* }, [$Field], [$($Value, $set)?]),
            $(plan_option!($more, $more_help, { $($more_given)* }, [$More], [$More, $more_set]),)?
        )*];
    };
}

plan_options! {
    data: u32 = 1, "Replicas, each with samples of its own" { value: "N", alias: Some("dp") };
    tensor: u32 = 1, "Members that share every matrix" { value: "N", alias: Some("tp") };
    pipeline: u32 = 1, "Stages that share the layers" { value: "N", alias: Some("pp") };
    sequence_parallel: bool = false, "Members of a tensor group also share tokens" {
        value: "BOOL", alias: Some("sp"), is_switch: true, refusals: &[
            (|p| p.sequence_parallel && p.tensor == 1, |_| "true".to_owned(),
                "false with tensor = 1: it shares tokens among a tensor group"),
        ]
    };
    zero: ZeroStage = ZeroStage::None,
    "What replicas share: 1 the optimizer's state, 2 and gradients, 3 and parameters, as FSDP does" {
        value: "LEVEL", refusals: &[
            (|p| p.zero != ZeroStage::None && p.data == 1, |p| p.zero.to_string(),
                "0 with data = 1: there are no replicas to share with"),
            (|p| !p.trains() && matches!(p.zero, ZeroStage::Optimizer | ZeroStage::Gradients), |p| p.zero.to_string(),
                "0 or 3 with schedule = inference, which has neither gradients nor optimizer"),
            (|p| p.trains() && p.optimizer == Optimizer::None && p.zero == ZeroStage::Optimizer, |p| p.zero.to_string(),
                "0, 2 or 3 with optimizer = none"),
        ]
    };
    prefetch: u32 = 1, "With --zero 3, layers whose parameters are gathered ahead" { value: "LAYERS", least: 0 };
    /// Otherwise they stay for the step.
    reshard: bool = true, "With --zero 3, whether parameters go after each pass" { value: "BOOL" };
    accumulate: bool = false, "With --zero 2 or 3, reduce gradients once a step instead of after each micro-batch" {
        value: "BOOL", is_switch: true
    };
    order: [ParallelAxis; 3] = [ParallelAxis::Tensor, ParallelAxis::Data, ParallelAxis::Pipeline],
    "What neighbouring ranks share, innermost first: tp,dp,pp" { value: "AXES" }
        as [ParallelAxis; 3] => |draft, order| {
            draft.plan.order = order;
            draft.plan.place.clear();
        };
    /// Every rank is at its own where this is empty.
    ranks: Vec<u32> = Vec::new(), "The rank at each position of that order: 0,2,1,3" { value: "RANKS", least: 0 }
        as Vec<u32> => |draft, ranks| {
            draft.plan.ranks = ranks;
            draft.plan.place.clear();
        };
    // Each of these numbers ranks, so what is set later goes before what was said of the others.
    place: Vec<AxisMapping> = Vec::new(),
    "Which dimensions of the machine axes lie along, by number or name, in place of an order: tp@nvlink,dp:2@1,pp@1 \
     is tp members along nvlink, and along dimension 1 two of dp and then all of pp" {
        value: "AXIS[:N]@DIMENSION", excludes: &["order", "ranks"]
    } as Vec<AxisMapping> => |draft, place| {
        draft.plan.place = place;
        draft.plan.ranks.clear();
    };
    batch: u64 = 1, "Samples of a step" { value: "N" };
    micro_batch: u64 = 1, "Samples of a micro-batch" { value: "N" };
    schedule: PipelineSchedule = PipelineSchedule::OneForwardOneBackward, "The order of passes" { value: "NAME" }
        as ScheduleName => |draft, name| draft.schedule = Some(name),
        and chunks, "With --schedule interleaved, chunks of layers on a stage" { value: "N" }
        as u32 => |draft, chunks| draft.chunks = Some(chunks);
    recompute: RecomputePolicy = RecomputePolicy::None, "What is computed again for the backward pass" {
        value: "WHAT", refusals: &[
            (|p| p.recompute == RecomputePolicy::Selective && p.attention == AttentionKernel::Flash, |p| p.recompute.to_string(),
                "none, full or as-needed with attention = flash, which finds its scores again by itself; or \
                 attention = unfused"),
            (|p| p.recompute == RecomputePolicy::AsNeeded && p.capacity.is_none(), |p| p.recompute.to_string(),
                "beside a capacity, or a machine that has one"),
            (|p| !p.trains() && p.recompute != RecomputePolicy::None, |p| p.recompute.to_string(),
                "none with schedule = inference, which keeps nothing"),
        ]
    };
    capacity: Option<u64> = None, "Memory of an NPU, for --recompute as-needed; the machine's by default" {
        value: "SIZE", example: "80 GB"
    } as Bytes => |draft, bytes| draft.plan.capacity = Some(bytes.0);
    optimizer: Optimizer = Optimizer::Adam, "Who makes steps of gradients" { value: "NAME" };
    /// It is beside weights of 16 bits.
    mixed: bool = true, "Whether Adam keeps a master copy in single precision" { value: "BOOL" };
    clip: bool = false, "Find the norm of all gradients before the step" { value: "BOOL", is_switch: true };
    buckets: BucketPolicy = BucketPolicy::Layers, "Put gradients into buckets by layers, or by parameters as PyTorch does" {
        value: "WHAT"
    };
    /// The gradient that fills a bucket up to these bytes is its last.
    bucket: u64 = 40_000_000, "Gradients that are reduced together" {
        value: "SIZE", example: "40 MB", refusals: &[
            (|p| p.bucket == 0, |_| "0 B".to_owned(), "bytes, for example 40 MB"),
        ]
    } as Bytes => |draft, bytes| draft.plan.bucket = bytes.0;
    first_bucket: Option<u64> = None, "The same for the first ones found, if it is another size" {
        value: "SIZE", example: "1 MiB", refusals: &[
            (|p| p.first_bucket == Some(0), |_| "0 B".to_owned(), "bytes, for example 1 MiB"),
        ]
    } as Bytes => |draft, bytes| draft.plan.first_bucket = Some(bytes.0);
    overlap: bool = true, "Whether gradients are reduced beside the backward pass" { value: "BOOL" };
    tensor_overlap: bool = true, "Whether sums over a tensor group are formed beside products" { value: "BOOL" };
    scatter_gather: bool = false,
    "Members of a tensor group each send a part to the next stage, which gathers them" {
        value: "BOOL", is_switch: true, refusals: &[
            (|p| p.scatter_gather && (p.tensor == 1 || p.sequence_parallel), |_| "true".to_owned(),
                "false with tensor = 1, and with sequence_parallel, which sends parts anyway"),
        ]
    };
    dtype: Dtype = Dtype::Bf16, "Number format of weights and activations" {
        value: "FORMAT", refusals: &[
            (|p| p.dtype == Dtype::Fp4, |p| p.dtype.to_string(),
                "a format of whole bytes; four bits come with scales that no model states"),
        ]
    };
    gradients: Option<Dtype> = None, "Number format of weights' gradients; that of weights by default" {
        value: "FORMAT", refusals: &[
            (|p| p.gradients == Some(Dtype::Fp4), |_| "fp4".to_owned(), "a format of whole bytes"),
        ]
    } as Dtype => |draft, dtype| draft.plan.gradients = Some(dtype);
    attention: AttentionKernel = AttentionKernel::Flash, "How attention is carried out" { value: "HOW" };
    softmax: SoftmaxKernel = SoftmaxKernel::Fused,
    "With --attention unfused, whether softmax is one kernel with scale and mask; megatron: where Megatron-LM's is" {
        value: "HOW"
    };
    dropout: bool = true, "Whether dropout is carried out where the model has it" { value: "BOOL" };
    steps: u32 = 1, "Steps" { value: "N" };
    /// They are dealt out evenly where this is empty. With several chunks on a stage, all first chunks come before all
    /// second ones.
    stages: Vec<[u32; 2]> = Vec::new(), "First and last of the layers of each stage" { key: "stage" }
        as () => |_, ()| ();
    /// Of several that speak of one, the last counts.
    operators: Vec<OperatorDegrees> = Vec::new(), "Operators that tensor groups cut by degrees of their own" { key: "operator" }
        as () => |_, ()| ();
    without: AblationSet = AblationSet::default(),
    "Leave out an effect, to see what it matters; several times or with commas" { value: "EFFECTS" }
        as Vec<AblationEffect> => |draft, effects| effects.into_iter().for_each(|one| draft.plan.without.add(one));
}
