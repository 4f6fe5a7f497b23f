//! Plans: the number of NPUs on which a model runs, and the distribution of its operators and state over them.
//!
//! A [`ParallelismPlan`] says nothing of a model and nothing of a machine. [`TrainingPattern`](super::TrainingPattern) brings it
//! together with a model and refuses what does not fit.

use super::schedule::PipelineSchedule;
use super::{GenerateError, refused};
use std::fmt;

mod axis_mapping;
mod binding;
mod blame;
mod core_placement;
mod file;
mod map;
mod operators;
mod options;
mod placement;
mod rank_memory;
mod routing;
mod tile_order;

pub use axis_mapping::{AxisMapping, DimensionRef};
pub use binding::MachineFacts;
pub use core_placement::{CorePlacement, TensorNeighbours, TileOrder};
pub use operators::OperatorDegrees;
pub use options::listed;
pub use options::{OPTIONS, ParallelismPlan, PlanDraft, PlanOption, ValueSyntax};
pub use placement::{ParallelGroupKind, RankCoordinates, RankPlacement};
pub use rank_memory::{RankMemory, RankPeak, streams};
pub use routing::{CapacityFactor, RoutingBalance};
pub(in crate::generate) use routing::{distinct_ranks, fullest};
pub use tile_order::CoreGrid;

impl ParallelismPlan {
    /// Number of ranks.
    pub fn ranks(&self) -> u128 {
        let members: u128 = match self.stage_tensor.is_empty() {
            true => u128::from(self.tensor) * u128::from(self.pipeline),
            false => self.stage_tensor.iter().copied().map(u128::from).sum(),
        };
        u128::from(self.data) * u128::from(self.context) * members
    }

    /// Ranks of a stage.
    pub fn ranks_of(&self, stage: u32) -> u64 {
        u64::from(self.tensor_of(stage)).saturating_mul(self.replicas().into())
    }

    /// Ranks that have the same weights: replicas of the model, and in each as many as share the tokens of a sequence.
    pub fn replicas(&self) -> u32 {
        // Numbers of ranks are checked before they are multiplied anywhere.
        self.data.saturating_mul(self.context)
    }

    /// The stages that have the first and the last part of a model; where each part is on two stages, one that has both.
    pub fn end_stages(&self) -> [u32; 2] {
        self.schedule.ends(self.pipeline)
    }

    /// Ranks that have the same weights, with those that have them on another stage.
    pub fn copies(&self) -> u32 {
        self.replicas().saturating_mul(self.schedule.copies())
    }

    /// Tensor-parallel degree of experts.
    pub fn tensor_of_experts(&self) -> u32 {
        self.expert_tensor.unwrap_or(self.tensor).max(1)
    }

    /// Returns true if members of a tensor group have different experts, or copies of different tokens for the same ones.
    pub fn shares_out_experts(&self) -> bool {
        self.tensor_of_experts() != self.tensor
    }

    /// Ranks of a stage with the same shard of experts, of the same or of different ones.
    pub fn expert_ranks(&self) -> u32 {
        self.replicas()
            .saturating_mul(self.tensor / self.tensor_of_experts())
    }

    /// Ranks of a stage that have the same shard of the same experts.
    pub fn expert_replicas(&self) -> u32 {
        // Degrees of 0 are refused, but files are read before that.
        self.expert_ranks() / self.expert.max(1)
    }

    /// Ranks that have the same shard of the same experts, with those that have them on another stage.
    pub fn expert_copies(&self) -> u32 {
        self.expert_replicas()
            .saturating_mul(self.schedule.copies())
    }

    /// Tensor-parallel degree of `stage`.
    pub fn tensor_of(&self, stage: u32) -> u32 {
        let own = self.stage_tensor.get(stage as usize);
        own.copied().unwrap_or(self.tensor)
    }

    /// Those of all stages, at least once each.
    pub fn tensor_degrees(&self) -> impl Iterator<Item = u32> + '_ {
        std::iter::once(self.tensor).chain(self.stage_tensor.iter().copied())
    }

    /// Returns true if stages have unlike tensor degrees.
    pub fn is_uneven(&self) -> bool {
        self.stage_tensor.iter().any(|own| *own != self.tensor)
    }

    /// Returns true if ranks are numbered otherwise than by default.
    fn numbers_ranks(&self) -> bool {
        let usual = Self::new();
        self.order != usual.order || !self.ranks.is_empty() || !self.place.is_empty()
    }

    /// Returns true if there is a backward pass.
    pub fn trains(&self) -> bool {
        self.schedule.trains()
    }

    /// Micro-batches of a replica in a step; what is left over is refused elsewhere.
    pub fn micro_batches(&self) -> u64 {
        let at_once = u64::from(self.data).saturating_mul(self.micro_batch);
        self.batch / at_once.max(1)
    }
}

impl Default for ParallelismPlan {
    fn default() -> Self {
        Self::new()
    }
}

/// An enum of words: each with the one that files and options have for it.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$of])* $variant,)* }

        impl $name {
            /// All of them, with their words.
            pub const ALL: &'static [(Self, &'static str)] = &[$((Self::$variant, $word),)*];
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(Self::ALL[*self as usize].1)
            }
        }
    };
}

use words;

words! {
    /// An axis of parallelism, along which ranks differ.
    ParallelAxis {
        /// Shard of a matrix.
        Tensor = "tp",
        /// The samples.
        Data = "dp",
        /// The layers.
        Pipeline = "pp",
    }
}

words! {
    /// State of training that is sharded over replicas instead of being replicated (Rajbhandari et al., "ZeRO",
    /// 2020): each stage shares what those before it do.
    ZeroStage {
        /// Nothing: every replica has all of it.
        None = "0",
        /// State of the optimizer.
        Optimizer = "1",
        /// And gradients.
        Gradients = "2",
        /// And parameters, as FSDP does.
        Parameters = "3",
    }
}

words! {
    /// Activations that are recomputed for the backward pass instead of being saved.
    RecomputePolicy {
        /// Nothing.
        None = "none",
        /// Scores of attention, from queries and keys to what they weigh.
        Selective = "selective",
        /// Every block, from its input.
        Full = "full",
        /// The least of these with which the plan fits into the NPU's memory.
        AsNeeded = "as-needed",
        /// Operator by operator: all but attention and every other product.
        Operators = "operators",
    }
}

words! {
    /// Rule by which a stage's operands stay in SRAM or are loaded and stored.
    ResidencyRule {
        /// Everything is in the NPU's memory.
        None = "none",
        /// Both, weights, activations or neither, whatever takes least.
        Corrected = "corrected",
        /// Algorithm 1 of PALM, to the letter.
        AsPrinted = "as-printed",
    }
}

words! {
    /// Unit by which gradients are put into buckets.
    BucketPolicy {
        /// Whole layers; a bucket is reduced when the backward pass of its last layer ends.
        Layers = "layers",
        /// Weights and biases one by one, as PyTorch's `DistributedDataParallel` does; a bucket is reduced when
        /// the last of its gradients is found, in the middle of a layer too.
        Parameters = "parameters",
    }
}

words! {
    /// The optimizer, which turns gradients into steps.
    Optimizer {
        /// Nobody.
        None = "none",
        /// Plain descent, without memory.
        Sgd = "sgd",
        /// Two moments of every parameter.
        Adam = "adam",
    }
}

words! {
    /// Implementation of attention.
    AttentionKernel {
        /// In one kernel; scores stay on chip and are found again by the backward one (Dao et al.,
        /// "FlashAttention", 2022).
        Flash = "flash",
        /// Product, softmax, dropout, product, each a kernel that reads and writes all scores.
        Unfused = "unfused",
    }
}

words! {
    /// Implementation of the softmax of unfused attention.
    SoftmaxKernel {
        /// One kernel that also scales and masks.
        Fused = "fused",
        /// Kernel by kernel in single precision: cast, scale, mask, softmax, cast.
        Unfused = "unfused",
        /// As Megatron-LM chooses: fused where the sequences and heads of a micro-batch on an NPU are a multiple of 4.
        Megatron = "megatron",
    }
}

words! {
    /// Implementation of the cross entropy of logits.
    LossKernel {
        /// Kernel by kernel in single precision, as PyTorch and Megatron-LM do.
        Composite = "composite",
        /// One kernel each way, which leaves gradients in place of logits, as Transformer Engine's does.
        Fused = "fused",
    }
}

words! {
    /// Kernels beside products.
    ElementwiseKernels {
        /// One for each operator, as hand-written kernels and compilers make them.
        Fused = "fused",
        /// Megatron-LM's: also sums for biases, copies around unfused attention, a sum of weights' gradients apart from
        /// their product, and the passes of its optimizer.
        Megatron = "megatron",
        /// PyTorch's operations one by one: RMSNorm, rotary positions, and gates of activations.
        Eager = "eager",
        /// PyTorch's, fused within a block as `torch.compile` does.
        Compiled = "compiled",
    }
}

impl ElementwiseKernels {
    /// Returns whether the framework is PyTorch itself: heads of keys and values are repeated for all query heads, and
    /// FSDP2 copies parameters and gradients out of and into the buffers of its collectives.
    pub fn is_pytorch(self) -> bool {
        matches!(self, Self::Eager | Self::Compiled)
    }
}

words! {
    /// Exchange by which tokens of a sequence that ranks share meet in attention.
    ContextExchange {
        /// Keys and values of all tokens are gathered (Llama 3).
        AllGather = "all-gather",
        /// Each rank gets all tokens of some heads (DeepSpeed Ulysses).
        AllToAll = "all-to-all",
    }
}

words! {
    /// Kernels of experts' products, where a rank has several experts.
    ExpertProducts {
        /// One for each expert, each launched by itself.
        OneByOne = "one-by-one",
        /// One for all experts of a rank.
        Grouped = "grouped",
        /// The same, with copies of tokens, gates and casts on their way in and out.
        Fused = "fused",
    }
}

words! {
    /// Exchange of tokens between ranks that have different experts.
    ExpertExchangeForm {
        /// All-to-all of a copy for each expert of a token.
        Copies = "copies",
        /// All-to-all of a copy for each rank that has an expert of a token.
        Ranks = "ranks",
        /// All tokens of all ranks are gathered, and results reduced and scattered.
        AllGather = "all-gather",
    }
}

words! {
    /// Scaling of numbers of 8 bits for products.
    ScalingRecipe {
        /// By the largest number of steps before.
        Delayed = "delayed",
        /// By the largest number of the tensor, which is found first.
        Current = "current",
        /// By the largest of each 32 numbers (MXFP8).
        Block = "block",
    }
}

words! {
    /// Units of a model that are dealt out evenly to the stages of a pipeline.
    SplitUnit {
        /// The blocks; what is before goes with the first, what is behind with the last.
        Blocks = "blocks",
        /// All layers, among which embedding and head count as one each.
        Layers = "layers",
        /// Multiplications, as far as whole layers go: no cut has a largest stage with fewer.
        Multiplications = "multiplications",
    }
}

words! {
    /// Operators of a layer that do not depend on one another, such as a branch and what goes around it.
    BranchOrder {
        /// One after another, as the model lists them.
        InOrder = "in-order",
        /// Side by side, on lanes of their own.
        Parallel = "parallel",
    }
}

words! {
    /// Place at which the sum that a stage's last product leaves is formed, with adapters (PALM, Fig. 11).
    AdapterSums {
        /// In the tensor group that has its parts, before it is sent (strategy 1, Eq. 7).
        Source = "source",
        /// By each adapter over its share, then by adapters of the destination (strategy 2, Eq. 8).
        Destination = "destination",
    }
}

words! {
    /// An effect that can be left out, to see its share.
    AblationEffect {
        /// Stages wait for one another.
        Bubble = "bubble",
        /// Logits and the loss, with other products behind the blocks.
        Logits = "logits",
        /// Kernels that only move bytes: norms, activations, residuals, softmax, dropout, pools.
        MemoryBound = "memory-bound",
        /// Collectives of tensor groups.
        TensorCommunication = "tensor-communication",
        /// Exchange of tokens between ranks that have different experts.
        ExpertCommunication = "expert-communication",
        /// Exchange of keys, values and heads between ranks that have different tokens of a sequence.
        ContextCommunication = "context-communication",
        /// Collectives of replicas, and the sum of tied weights over the first and the last stage.
        DataCommunication = "data-communication",
        /// The bytes between stages.
        PipelineCommunication = "pipeline-communication",
        /// The optimizer's step.
        Optimizer = "optimizer",
        /// Recomputation.
        Recompute = "recompute",
    }
}

/// Effects that are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AblationSet(u16);

impl AblationSet {
    /// Leaves `effect` out.
    pub fn add(&mut self, effect: AblationEffect) {
        self.0 |= 1 << effect as u8;
    }

    /// Returns true if `effect` is left out.
    pub fn has(self, effect: AblationEffect) -> bool {
        self.0 & (1 << effect as u8) != 0
    }
}

words! {
    /// Schedules by name.
    ScheduleName {
        /// All forward passes, then all backward ones.
        GPipe = "gpipe",
        /// One forward, one backward.
        OneForwardOneBackward = "1f1b",
        /// The same with several chunks on a stage.
        Interleaved = "interleaved",
        /// Layer by layer.
        LayerWise = "layer-wise",
        /// Forward passes only.
        Inference = "inference",
        /// Gradients of weights apart and late.
        ZeroBubbleH1 = "zb-h1",
        /// The same with two chunks on a stage, in the shape of a V.
        ZeroBubbleV = "zb-v",
        /// Micro-batches from both ends, forward passes beside backward ones.
        DualPipe = "dualpipe",
        /// The same with two chunks on a stage, in the shape of a V.
        DualPipeV = "dualpipe-v",
    }
}

impl ScheduleName {
    /// The name of `schedule`; orders that are listed have none.
    pub fn of(schedule: &PipelineSchedule) -> Option<Self> {
        Some(match schedule {
            PipelineSchedule::GPipe => Self::GPipe,
            PipelineSchedule::OneForwardOneBackward => Self::OneForwardOneBackward,
            PipelineSchedule::Interleaved { .. } => Self::Interleaved,
            PipelineSchedule::LayerWise { .. } => Self::LayerWise,
            PipelineSchedule::Inference => Self::Inference,
            PipelineSchedule::ZeroBubbleH1 => Self::ZeroBubbleH1,
            PipelineSchedule::ZeroBubbleV => Self::ZeroBubbleV,
            PipelineSchedule::DualPipe => Self::DualPipe,
            PipelineSchedule::DualPipeV => Self::DualPipeV,
            PipelineSchedule::Listed(_) => return None,
        })
    }

    /// The schedule of this name, with `chunks` of layers on a stage.
    ///
    /// # Errors
    ///
    /// Chunks of a schedule that has none, or none of the one that needs them.
    pub fn schedule(self, chunks: Option<u32>) -> Result<PipelineSchedule, GenerateError> {
        let schedule = match (self, chunks) {
            (Self::Interleaved, Some(chunks)) => {
                return Ok(PipelineSchedule::Interleaved { chunks });
            }
            (Self::Interleaved, None) => {
                let expected = "a number, 2 or more, with schedule = interleaved";
                return Err(refused("chunks", "not given", expected));
            }
            (Self::GPipe, None) => PipelineSchedule::GPipe,
            (Self::OneForwardOneBackward, None) => PipelineSchedule::OneForwardOneBackward,
            // A layer is a chunk; how many there are, the model says.
            (Self::LayerWise, None) => PipelineSchedule::LayerWise { layers: 1 },
            (Self::Inference, None) => PipelineSchedule::Inference,
            (Self::ZeroBubbleH1, None) => PipelineSchedule::ZeroBubbleH1,
            (Self::ZeroBubbleV, None) => PipelineSchedule::ZeroBubbleV,
            (Self::DualPipe, None) => PipelineSchedule::DualPipe,
            (Self::DualPipeV, None) => PipelineSchedule::DualPipeV,
            (_, Some(chunks)) => {
                let expected =
                    format!("nothing with schedule = {self}, which has no number of chunks");
                return Err(refused("chunks", chunks, expected));
            }
        };
        Ok(schedule)
    }
}
