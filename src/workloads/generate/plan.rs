//! Plans, which state how many NPUs run a model, and how its operators and state are distributed over them.
//!
//! A [`ParallelismPlan`] does not know any model or machine.
//! [`ModelAndParallelismPlan`](super::ModelAndParallelismPlan) combines a plan with a model and rejects plans that do
//! not fit the model.

use super::schedule::PipelineSchedule;
use super::{PatternOptionError, refused_option_value_error};
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

pub use axis_mapping::{AxisPartMapping, MachineDimensionRef};
pub use binding::PlanMachineProperties;
pub use core_placement::{CorePlacement, TensorNeighbours, TileOrder};
pub use operators::{OperatorNamePattern, OperatorPatternDegrees};
pub use options::join_degrees_with_commas;
pub use options::{OPTIONS, OptionValueSyntax, ParallelismPlan, PlanDraft, PlanOption};
pub use placement::{AllRankCoordinatesAndGroups, ParallelGroupKind, TensorDataStageCoordinates};
pub use rank_memory::{
    RankMemoryCapacity, RankPeakOwnAndRemoteBytes, operation_accesses_remote_memory,
};
pub use routing::{ExpertCapacityFactor, ExpertRoutingBalance};
pub(in crate::generate) use routing::{fullest_rank_load_ratio, mean_ranks_per_token};
pub use tile_order::TiledMachineCoreGrid;

impl ParallelismPlan {
    /// Number of ranks in the job. It has 128 bits because the degrees may not have been checked yet.
    pub fn rank_count(&self) -> u128 {
        let members: u128 = match self.stage_tensor.is_empty() {
            true => u128::from(self.tensor) * u128::from(self.pipeline),
            false => self.stage_tensor.iter().copied().map(u128::from).sum(),
        };
        u128::from(self.data) * u128::from(self.context) * members
    }

    /// Number of ranks of a stage.
    pub fn rank_count_of_stage(&self, stage: u32) -> u64 {
        u64::from(self.tensor_degree_of_stage(stage))
            .saturating_mul(self.weight_replicas_per_stage().into())
    }

    /// Number of ranks with the same weights in a stage: data-parallel replicas times the ranks
    /// that share a sequence (context parallelism).
    pub fn weight_replicas_per_stage(&self) -> u32 {
        // Saturate, because the number of ranks may not have been checked yet.
        self.data.saturating_mul(self.context)
    }

    /// Returns the stage with the model's first part and the stage with its last part. If two stages have copies of
    /// these parts, returns the one that has both parts.
    pub fn stages_of_model_ends(&self) -> [u32; 2] {
        self.schedule.stages_of_first_and_last_part(self.pipeline)
    }

    /// Number of ranks with the same weights, including the second copy of each stage under
    /// DualPipe.
    pub fn weight_copy_count(&self) -> u32 {
        self.weight_replicas_per_stage()
            .saturating_mul(self.schedule.copy_count_of_each_part())
    }

    /// Returns true if the plan keeps state or activations in remote memory.
    pub fn uses_remote_memory(&self) -> bool {
        self.offload != OffloadedState::None || self.offload_activations
    }

    /// Number of ranks that shard one copy of the state under ZeRO.
    pub fn state_shards(&self) -> u32 {
        match self.shard {
            // Avoid a division by zero, because degrees of 0 are rejected only after this call.
            Some(ranks) if self.has_several_ranks_per_state_shard() => ranks.max(1),
            _ => self.weight_copy_count(),
        }
    }

    /// Returns true if each shard of the state is on several ranks (hybrid sharding, HSDP).
    pub fn has_several_ranks_per_state_shard(&self) -> bool {
        self.shard
            .is_some_and(|ranks| ranks < self.weight_replicas_per_stage())
    }

    /// Kind of the groups that shard the training state of ordinary weights, which all replicas have.
    pub fn sharding_group_kind(&self) -> ParallelGroupKind {
        match self.has_several_ranks_per_state_shard() {
            true => ParallelGroupKind::Shard,
            false => ParallelGroupKind::Data,
        }
    }

    /// Tensor-parallel degree of experts, which may differ from the degree of other layers.
    pub fn tensor_degree_of_experts(&self) -> u32 {
        self.expert_tensor.unwrap_or(self.tensor).max(1)
    }

    /// Returns true if the members of a tensor group have different experts, or process different tokens with the same
    /// experts.
    pub fn tensor_groups_split_experts_or_their_tokens(&self) -> bool {
        self.tensor_degree_of_experts() != self.tensor
    }

    /// Number of ranks of a stage that have the same shard index for experts. Their experts may differ.
    pub fn count_ranks_with_same_expert_shard(&self) -> u32 {
        self.weight_replicas_per_stage()
            .saturating_mul(self.tensor / self.tensor_degree_of_experts())
    }

    /// Number of ranks of a stage with the same shard of the same experts.
    pub fn count_same_expert_shard_ranks_in_stage(&self) -> u32 {
        // Avoid a division by zero, because degrees of 0 are rejected only after this call.
        self.count_ranks_with_same_expert_shard() / self.expert.max(1)
    }

    /// Number of ranks with the same shard of the same experts, including copies on other stages.
    pub fn expert_copies(&self) -> u32 {
        self.count_same_expert_shard_ranks_in_stage()
            .saturating_mul(self.schedule.copy_count_of_each_part())
    }

    /// Tensor-parallel degree of `stage`, which may differ from the plan's general degree.
    pub fn tensor_degree_of_stage(&self, stage: u32) -> u32 {
        let own = self.stage_tensor.get(stage as usize);
        own.copied().unwrap_or(self.tensor)
    }

    /// The plan's general tensor-parallel degree, followed by the degrees that stages set themselves, possibly with
    /// repetitions.
    pub fn tensor_degrees(&self) -> impl Iterator<Item = u32> + '_ {
        std::iter::once(self.tensor).chain(self.stage_tensor.iter().copied())
    }

    /// Returns true if stages have different tensor-parallel degrees.
    pub fn has_uneven_tensor_degrees(&self) -> bool {
        self.stage_tensor.iter().any(|own| *own != self.tensor)
    }

    /// Returns true if the plan does not number ranks in the default order.
    fn has_custom_rank_order(&self) -> bool {
        let usual = Self::new();
        self.order != usual.order || !self.ranks.is_empty() || !self.place.is_empty()
    }

    /// Returns true if some weights are not trained.
    pub fn has_frozen_weights(&self) -> bool {
        self.lora.is_some() || !self.frozen.is_empty()
    }

    /// Returns the value of the option that freezes weights, for error messages.
    fn format_frozen_weights_setting(&self) -> String {
        match (self.lora, self.frozen.first()) {
            (Some(rank), _) => rank.to_string(),
            (None, Some(first)) => format!("none, and frozen is {first}"),
            (None, None) => "none".to_owned(),
        }
    }

    /// Returns true if there is a backward pass.
    pub fn has_training(&self) -> bool {
        self.schedule.has_training()
    }

    /// Number of micro-batches per replica and step, rounded down; another check rejects plans with a remainder.
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

/// Defines an enum, and the word that files and options use for each variant.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$of])* $variant,)* }

        impl $name {
            /// All variants of the option, each with its word.
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
    /// An axis of parallelism. Ranks along it have different work or data.
    ParallelAxis {
        /// Tensor parallelism: ranks have different shards of a matrix.
        Tensor = "tp",
        /// Data parallelism: ranks have different samples.
        Data = "dp",
        /// Pipeline parallelism: ranks have different layers.
        Pipeline = "pp",
    }
}

words! {
    /// Training state that replicas shard, so that each stores only a part (Rajbhandari et al., "ZeRO", 2020). Each
    /// stage of ZeRO also shards everything that the previous stage shards.
    ZeroStage {
        /// Nothing is sharded: every replica has the whole state.
        None = "0",
        /// The state of the optimizer is sharded.
        Optimizer = "1",
        /// The state of the optimizer and the gradients are sharded.
        Gradients = "2",
        /// The state of the optimizer, gradients and parameters are sharded, as in FSDP.
        Parameters = "3",
    }
}

words! {
    /// Which activations are recomputed in the backward pass instead of saved in the forward pass.
    RecomputePolicy {
        /// Nothing is recomputed.
        None = "none",
        /// Attention scores: everything is recomputed from the product of queries and keys up to the product with
        /// values.
        Selective = "selective",
        /// Every block is recomputed from its input.
        Full = "full",
        /// The policy (`none`, `selective` or `full`) that recomputes the least among those with which the plan fits
        /// into an NPU's memory.
        AsNeeded = "as-needed",
        /// All results are recomputed, except those of attention and of every second matrix product.
        Operators = "operators",
    }
}

words! {
    /// A part of a block that is recomputed by itself (`recompute-modules` of Megatron-LM).
    RecomputedModule {
        /// The norms before attention and before the MLP or the experts. Their results are not saved.
        Norms = "layernorm",
        /// The products that expand latent vectors back to full size. Their results are not saved.
        LatentUp = "mla-up",
        /// The activation of experts. Its result is not saved.
        ExpertActivation = "moe-act",
        /// The MLP of blocks without experts, recomputed from its input.
        Mlp = "mlp",
        /// The router, the experts with their exchanges, and the shared experts, recomputed from their input.
        Experts = "moe",
        /// The shared experts, recomputed from their input.
        SharedExperts = "shared-experts",
    }
}

impl RecomputedModule {
    /// Returns true if the module's results are recomputed instead of saved; false if the module is
    /// recomputed from its input, and its results are saved.
    pub fn drops_results(self) -> bool {
        matches!(self, Self::Norms | Self::LatentUp | Self::ExpertActivation)
    }
}

/// The set of modules that are recomputed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecomputedModules(u8);

impl RecomputedModules {
    /// Adds `module` to the set.
    pub fn add_module(&mut self, module: RecomputedModule) {
        self.0 |= 1 << module as u8;
    }

    /// Returns true if `module` is in the set.
    pub fn has_module(self, module: RecomputedModule) -> bool {
        self.0 & (1 << module as u8) != 0
    }

    /// Returns true if no module is recomputed.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the modules of the set.
    pub fn iter_modules(self) -> impl Iterator<Item = RecomputedModule> {
        let all = RecomputedModule::ALL.iter().map(|(module, _)| *module);
        all.filter(move |module| self.has_module(*module))
    }
}

impl fmt::Display for RecomputedModules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self
            .iter_modules()
            .map(|module| module.to_string())
            .collect();
        write!(f, "{}", words.join(","))
    }
}

words! {
    /// Rule that decides which operands of a stage stay in SRAM. All others are loaded or stored at each use.
    ResidencyRule {
        /// No rule: all operands are in the NPU's memory.
        None = "none",
        /// SRAM keeps weights, activations, both or neither, whichever causes the least memory
        /// traffic.
        Corrected = "corrected",
        /// Algorithm 1 of PALM, exactly as printed.
        AsPrinted = "as-printed",
    }
}

words! {
    /// Training state kept in remote memory instead of the NPU's memory.
    OffloadedState {
        /// All state is in the NPU's memory.
        None = "none",
        /// The state of the optimizer, as in ZeRO-Offload (Ren et al., 2021).
        Optimizer = "optimizer",
        /// Shards of parameters, gradients and optimizer state, as in ZeRO-Infinity (Rajbhandari et
        /// al., 2021).
        All = "all",
    }
}

words! {
    /// Where offloaded parameters are gathered and gradients are reduced.
    OffloadGather {
        /// NPUs load and store shards, and gather and reduce them over the network.
        Network = "network",
        /// Switches of a memory pool gather loaded parameters, and reduce stored gradients.
        InSwitch = "in-switch",
    }
}

words! {
    /// Unit in which gradients enter a bucket.
    BucketPolicy {
        /// Whole layers; a bucket is reduced when the backward pass of its last layer ends.
        Layers = "layers",
        /// Single weights and biases, as in PyTorch's `DistributedDataParallel`. A bucket is reduced as soon
        /// as its last gradient is computed, even in the middle of a layer.
        Parameters = "parameters",
    }
}

words! {
    /// The optimizer, which determines the optimizer state and the cost of an update.
    Optimizer {
        /// Weights are not updated.
        None = "none",
        /// Plain gradient descent, without state.
        Sgd = "sgd",
        /// Adam: two moments per parameter.
        Adam = "adam",
    }
}

words! {
    /// How attention is implemented.
    AttentionKernel {
        /// A single fused kernel. Scores stay on chip, so the backward kernel recomputes them (Dao et al.,
        /// "FlashAttention", 2022).
        Flash = "flash",
        /// The fused kernel for sequences of unequal lengths. Kernels before it gather the tokens of all sequences from
        /// queries, keys and values (unpadding), and kernels after it scatter the results (`flash_attn.bert_padding`).
        Unpadded = "unpadded",
        /// Separate kernels for the matrix product, softmax, dropout and the second product. Each of them reads and
        /// writes all scores.
        Unfused = "unfused",
    }
}

words! {
    /// How the softmax of unfused attention is implemented.
    SoftmaxKernel {
        /// One kernel that also scales and masks.
        Fused = "fused",
        /// Separate kernels in single precision: cast, scale, mask, softmax, cast.
        Unfused = "unfused",
        /// Megatron-LM's rule: the softmax is fused if the number of sequences times the number of heads, for a
        /// micro-batch on an NPU, is a multiple of 4.
        Megatron = "megatron",
    }
}

words! {
    /// How the cross-entropy loss is implemented.
    LossKernel {
        /// Separate kernels in single precision, as in PyTorch and Megatron-LM.
        Composite = "composite",
        /// One kernel per direction that overwrites the logits with their gradients, as in Transformer
        /// Engine.
        Fused = "fused",
    }
}

words! {
    /// How all kernels that are not matrix products are implemented.
    ElementwiseKernels {
        /// One kernel per operator, as in hand-written kernels and compilers.
        Fused = "fused",
        /// Megatron-LM's kernels: they include bias sums, copies before and after unfused
        /// attention, separate sums for weight gradients, and the passes of its optimizer.
        Megatron = "megatron",
        /// PyTorch's unfused operations: RMSNorm, rotary positions and gated activations take several kernels
        /// each.
        Eager = "eager",
        /// PyTorch's operations, fused within each block as `torch.compile` does.
        Compiled = "compiled",
    }
}

impl AttentionKernel {
    /// Returns true for a kernel that keeps the scores on the chip.
    pub fn is_fused(self) -> bool {
        matches!(self, Self::Flash | Self::Unpadded)
    }
}

impl ElementwiseKernels {
    /// Returns true if the kernels are PyTorch's own. PyTorch's attention repeats each key and value head for the query
    /// heads that share it, and FSDP2 copies parameters and gradients to and from collective buffers.
    pub fn is_eager_or_compiled_pytorch(self) -> bool {
        matches!(self, Self::Eager | Self::Compiled)
    }
}

words! {
    /// Exchange between ranks that share a sequence's tokens, so that each rank can compute
    /// attention.
    ContextExchange {
        /// Every rank gathers keys and values of all tokens (Llama 3).
        AllGather = "all-gather",
        /// Each rank receives all tokens for some of the heads (DeepSpeed Ulysses).
        AllToAll = "all-to-all",
        /// Keys and values pass around a ring of ranks, each of which computes attention on its current block (Ring
        /// Attention).
        Ring = "ring",
    }
}

words! {
    /// How one rank runs the matrix products of several experts.
    ExpertProducts {
        /// One kernel per expert.
        OneByOne = "one-by-one",
        /// One kernel for all experts of a rank.
        Grouped = "grouped",
        /// One kernel for all experts, which also copies tokens, multiplies by gates, and casts
        /// inputs and outputs.
        Fused = "fused",
    }
}

words! {
    /// Exchange of tokens between ranks that have different experts.
    ExpertExchangeForm {
        /// All-to-all that sends one copy of a token per chosen expert.
        Copies = "copies",
        /// All-to-all that sends one copy of a token to each rank that has a chosen expert.
        Ranks = "ranks",
        /// All-to-all that sends a token once to each node with a chosen expert. Within the node, a second all-to-all
        /// sends it once to each rank with a chosen expert.
        Nodes = "nodes",
        /// All-gather of all tokens, then reduce-scatter of the results.
        AllGather = "all-gather",
    }
}

words! {
    /// When a backward pass issues the gather of the next layer's parameters. The names are those of PyTorch's
    /// `BackwardPrefetch`.
    BackwardPrefetch {
        /// Before it computes the current layer, so that the gather overlaps the layer's kernels.
        Pre = "pre",
        /// After the current layer and the reduction of its gradients. The gather follows this reduction on their
        /// communicator, so that neither overlaps a kernel, but only one layer is gathered at a time.
        Post = "post",
    }
}

words! {
    /// Method that chooses the scales of 8-bit numbers for matrix products.
    ScalingRecipe {
        /// Scales come from the maxima of earlier steps.
        Delayed = "delayed",
        /// Scales come from the current tensor's maximum, which an extra kernel finds first.
        Current = "current",
        /// Each block of 32 numbers is scaled by its maximum (MXFP8).
        Block = "block",
    }
}

words! {
    /// Unit of a model that is divided evenly among pipeline stages.
    SplitUnit {
        /// Transformer blocks are divided evenly. Input layers belong to the first stage, and output layers to the
        /// last.
        Blocks = "blocks",
        /// All layers are divided evenly; the embedding and the head count as one layer each.
        Layers = "layers",
        /// Layers are divided so that the stage with the most multiplications has as few as possible.
        Multiplications = "multiplications",
    }
}

words! {
    /// Order of a layer's independent operators, such as a branch and its skip path.
    BranchOrder {
        /// Operators run one after another, in the model's order.
        InOrder = "in-order",
        /// Operators run in parallel, on separate lanes.
        Parallel = "parallel",
    }
}

words! {
    /// Where the partial results of a stage's last matrix product are summed (PALM, Fig. 11).
    AdapterSums {
        /// Before sending: the tensor group that computed the partial results sums them (strategy 1, PALM's Eq. 7).
        Source = "source",
        /// After sending: each adapter sums its share, then the adapters at the destination combine the sums (strategy
        /// 2, PALM's Eq. 8).
        Destination = "destination",
    }
}

words! {
    /// An effect that can be removed from a run, to measure how much of the time it causes.
    AblationEffect {
        /// Time for which pipeline stages wait for one another.
        Bubble = "bubble",
        /// Logits, loss, and other matrix products after the blocks.
        Logits = "logits",
        /// Kernels that only move bytes: norms, activations, residuals, softmax, dropout, pools.
        MemoryBound = "memory-bound",
        /// Collectives of tensor groups, such as all-reduces.
        TensorCommunication = "tensor-communication",
        /// Exchange of tokens between ranks that have different experts.
        ExpertCommunication = "expert-communication",
        /// Exchange of keys, values and heads between ranks that share a sequence.
        ContextCommunication = "context-communication",
        /// Collectives of replicas, and the all-reduce of tied weights between the first and the
        /// last stage.
        DataCommunication = "data-communication",
        /// Transfers between pipeline stages.
        PipelineCommunication = "pipeline-communication",
        /// The optimizer step.
        Optimizer = "optimizer",
        /// Recomputation of activations.
        Recompute = "recompute",
    }
}

/// The set of effects that are removed from a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedEffectSet(u16);

impl RemovedEffectSet {
    /// Adds `effect` to the removed effects.
    pub fn add_effect(&mut self, effect: AblationEffect) {
        self.0 |= 1 << effect as u8;
    }

    /// Returns true if `effect` is removed.
    pub fn has_effect(self, effect: AblationEffect) -> bool {
        self.0 & (1 << effect as u8) != 0
    }
}

words! {
    /// Pipeline schedules by name.
    ScheduleName {
        /// All forward passes, then all backward passes.
        GPipe = "gpipe",
        /// One forward, one backward (1F1B).
        OneForwardOneBackward = "1f1b",
        /// 1F1B with several model chunks per stage.
        Interleaved = "interleaved",
        /// Interleaved 1F1B in which forward passes overlap the backward passes that follow them.
        InterleavedPairs = "interleaved-pairs",
        /// All micro-batches pass one layer before the next layer starts.
        LayerWise = "layer-wise",
        /// Forward passes only.
        Inference = "inference",
        /// ZB-H1: weight gradients are computed in separate passes, as late as possible.
        ZeroBubbleH1 = "zb-h1",
        /// ZB-V: split passes as in ZB-H1, with two chunks per stage in a V shape.
        ZeroBubbleV = "zb-v",
        /// DualPipe: micro-batches enter at both ends of the pipeline, and forward and backward passes overlap.
        DualPipe = "dualpipe",
        /// DualPipe with two chunks per stage in a V shape.
        DualPipeV = "dualpipe-v",
    }
}

impl ScheduleName {
    /// Returns the name of `schedule`; `None` for an explicit list of passes.
    pub fn from_schedule(schedule: &PipelineSchedule) -> Option<Self> {
        Some(match schedule {
            PipelineSchedule::GPipe => Self::GPipe,
            PipelineSchedule::OneForwardOneBackward => Self::OneForwardOneBackward,
            PipelineSchedule::Interleaved { .. } => Self::Interleaved,
            PipelineSchedule::InterleavedPairs { .. } => Self::InterleavedPairs,
            PipelineSchedule::LayerWise { .. } => Self::LayerWise,
            PipelineSchedule::Inference => Self::Inference,
            PipelineSchedule::ZeroBubbleH1 => Self::ZeroBubbleH1,
            PipelineSchedule::ZeroBubbleV => Self::ZeroBubbleV,
            PipelineSchedule::DualPipe => Self::DualPipe,
            PipelineSchedule::DualPipeV => Self::DualPipeV,
            PipelineSchedule::Listed(_) => return None,
        })
    }

    /// Returns the schedule with this name, with `chunks` chunks of layers per stage.
    ///
    /// # Errors
    ///
    /// Fails if the schedule has no chunks but `chunks` is given, or if it needs chunks but `chunks` is missing.
    pub fn to_schedule(self, chunks: Option<u32>) -> Result<PipelineSchedule, PatternOptionError> {
        let schedule = match (self, chunks) {
            (Self::Interleaved, Some(chunks)) => {
                return Ok(PipelineSchedule::Interleaved { chunks });
            }
            (Self::InterleavedPairs, Some(chunks)) => {
                return Ok(PipelineSchedule::InterleavedPairs { chunks });
            }
            (Self::Interleaved | Self::InterleavedPairs, None) => {
                let expected = format!("a number, 2 or more, with schedule = {self}");
                return Err(refused_option_value_error("chunks", "not given", expected));
            }
            (Self::GPipe, None) => PipelineSchedule::GPipe,
            (Self::OneForwardOneBackward, None) => PipelineSchedule::OneForwardOneBackward,
            // Each layer is a chunk. The number `layers` is set later, when the model is known.
            (Self::LayerWise, None) => PipelineSchedule::LayerWise { layers: 1 },
            (Self::Inference, None) => PipelineSchedule::Inference,
            (Self::ZeroBubbleH1, None) => PipelineSchedule::ZeroBubbleH1,
            (Self::ZeroBubbleV, None) => PipelineSchedule::ZeroBubbleV,
            (Self::DualPipe, None) => PipelineSchedule::DualPipe,
            (Self::DualPipeV, None) => PipelineSchedule::DualPipeV,
            (_, Some(chunks)) => {
                let expected =
                    format!("no `chunks` with schedule = {self}, whose number of chunks is fixed");
                return Err(refused_option_value_error("chunks", chunks, expected));
            }
        };
        Ok(schedule)
    }
}
