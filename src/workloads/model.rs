//! Models: networks of layers, described independently of the NPUs that run them.
//!
//! A [`Model`] is a chain of [`ModelLayer`]s, and a layer is a chain of [`LayerOperator`]s. All
//! sizes in a model are per *sample*: a sequence of tokens, an image, or a row of features. A model
//! does not depend on batches, ranks or time.
//!
//! A model is loaded from a TOML file or a preset, or is created from a few sizes
//! ([`TransformerModel`], [`VisionTransformer`]).
//!
//! Rules for counts:
//!
//! - *Parameters* are all trained weights: matrices, biases, gains of norms, tables. Weights that two operators share
//!   count only once, in the operator that looks them up ([`OperatorKind::Embedding`]).
//! - *Multiplications* are the multiply-adds of matrix products and convolutions in the forward pass of one sample.
//!   Each multiply-add is two FLOPs. Element-wise work (norms, activations, softmax, sums) does not count, as in most
//!   papers. All token pairs in attention count, even with a causal mask, as in Megatron-LM's formulas. Kernels for
//!   causal attention skip [`OperatorKind::causally_skipped_multiplications`] of these multiplications.
//! - *Kept bytes* are the bytes that the forward pass saves for the backward pass ([`OperatorKind::saved_bytes`]).
//!
//! Counts are 64-bit integers that saturate at [`u64::MAX`]. A model file with a saturated count is rejected.

mod architecture;
mod build;
mod count;
mod definition;
mod error;
mod hub_name;
mod preset;
mod saved;
mod spec;
mod transformer;
mod vit;

use serde::Serialize;

pub use architecture::{DeltaAttentionSizes, ExtendedTransformerModel, LatentAttentionSizes};
pub use definition::{
    ModelDefinitionForm, ModelWithDefinitionProperties, TokenAndLayerCountOverrides,
};
pub use error::{ModelError, explain_models_not_loaded_from_hubs};
pub use preset::{ModelPreset, PRESETS, PresetOrModelFileText};
pub use spec::{
    DELTA_CHUNK, DividingDegreeOrReason, FormatDependentElementBytes, ImageWindowStrideAndPadding,
    MemoryBoundKernelSpec, MemoryBoundKernelsByPass, OperatorAxesAndTensorsSpec,
    OperatorInputSource, OperatorKernelSpec, OperatorShardAxis, OperatorTokenExchangeSide,
    TensorAxis, TensorContraction, TensorKeptForBackward, WeightsOfOneGradientTensor,
    WhichAttentionKernelsSaveTensor,
};
pub use transformer::{
    OutputHead, POSITION_TABLE, PositionEncoding, TotalAndChosenExpertCounts, TransformerBlock,
    TransformerModel,
};
pub use vit::VisionTransformer;

/// A neural network as a sequence of layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Display name, such as `gpt3-175b`.
    pub name: String,
    /// Publication that gives the model's sizes.
    pub source: String,
    /// Number of tokens per sample; 1 if samples are not sequences.
    pub sequence: u64,
    /// Layers in execution order; each layer's output is the next layer's input.
    pub layers: Vec<ModelLayer>,
}

/// A part of a model that a pipeline never divides. Stages and recomputation work in units of
/// layers.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelLayer {
    /// Name of the layer, such as `embedding`, `layer17`, `head` or `conv3_1`.
    pub name: String,
    /// Position of the layer in the model: before, in or after the blocks. Plans treat these positions differently.
    pub role: LayerRole,
    /// Operators in execution order.
    pub operators: Vec<LayerOperator>,
}

/// Position of a layer in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerRole {
    /// A layer before the blocks: embeddings of tokens and positions, the stem of an image network,
    /// or embedding bags.
    Input,
    /// A layer between input and output, such as a transformer block. A pipeline divides blocks
    /// evenly among its stages.
    Block,
    /// A layer after the blocks: the final norm, the logits or classifier, or the loss.
    Output,
}

/// One operation of a layer, with its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerOperator {
    /// Name of the operator, such as `attention.qkv`, `mlp.up` or `norm1`; unique within its layer.
    pub name: String,
    /// Kind of the operator, with its sizes.
    pub work: OperatorKind,
    /// Axis along which tensor parallelism splits the operator, if any.
    pub cut: OperatorTensorParallelSplit,
    /// True for an operator on the skip path, which joins the branch at an
    /// [`OperatorKind::Residual`].
    pub around: bool,
    /// Says which of the operator's weights are trained.
    pub training: TrainedOperatorWeights,
    /// Says whether the forward pass saves the operator's output, if a plan states this for each operator.
    pub saved: OutputSavedOrRecomputed,
}

/// Says whether the forward pass saves an operator's output for the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputSavedOrRecomputed {
    /// The plan's recomputation policy decides.
    #[default]
    ByPolicy,
    /// The output is saved.
    Yes,
    /// The output is not saved, so the backward pass recomputes it.
    No,
}

/// The weights of an operator that training changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrainedOperatorWeights {
    /// All weights.
    #[default]
    All,
    /// Trains no weights: they have neither gradients nor optimizer state.
    Frozen,
    /// Trains a low-rank adapter of frozen weights: the product of a matrix with `rank` columns and a matrix with
    /// `rank` rows (Hu et al., "LoRA", 2021).
    Adapter {
        /// Rank of the adapter, which is the number of columns of its first matrix.
        rank: u32,
    },
}

/// Axis along which a tensor group splits an operator (Shoeybi et al., "Megatron-LM", 2019, section
/// 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorTensorParallelSplit {
    /// Every member computes the whole operator. With sequence parallelism, each member does so only for its own
    /// tokens.
    Replicated,
    /// Split by outputs: each member has some columns of the weights, and needs the whole input.
    /// The members sum the input's gradient.
    ColumnParallel,
    /// Split by inputs: each member has some rows of the weights. The members sum the outputs.
    RowParallel,
    /// The operator lies between an operator split by outputs and an operator split by inputs. Each member computes its
    /// own heads, or its own columns of an activation.
    InsideRegion,
}

/// Kind of operator, with its sizes per sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum OperatorKind {
    /// Product of `rows x inputs` by `inputs x outputs`. If `bias`, adds a bias of `outputs` to each row.
    Linear {
        /// Number of rows of the input: the number of tokens, or 1.
        rows: u64,
        /// Number of columns of the input.
        inputs: u64,
        /// Number of columns of the output.
        outputs: u64,
        /// True if a bias vector is added to each row.
        bias: bool,
        /// True if the weights belong to the embedding, which counts them.
        tied: bool,
    },
    /// Products of queries with keys, a softmax, and products of scores with values.
    Attention {
        /// Number of tokens per sample whose keys and values queries can attend to.
        tokens: u64,
        /// Number of tokens that have queries: all tokens of a sample, or a rank's own tokens under
        /// context parallelism.
        queries: u64,
        /// Number of query heads.
        heads: u64,
        /// Number of KV heads; fewer than `heads` if query heads share them.
        kv_heads: u64,
        /// Number of elements per head vector.
        width: u64,
        /// True if tokens attend only to themselves and earlier tokens.
        causal: bool,
        /// True if dropout follows the softmax.
        dropout: bool,
        /// True if queries and keys are first rotated by their positions (rotary embedding).
        rotary: bool,
        /// True if each query and key head is first normalized to length 1 and then scaled by a gain. All query heads
        /// share one gain, and all key heads share another.
        qk_norm: bool,
    },
    /// Attention with at least one of three additions: values that are wider or narrower than queries and keys, tokens
    /// that attend only to some others, or an additional score per head (a sink).
    ShapedAttention {
        /// Number of tokens per sample whose keys and values queries can attend to.
        tokens: u64,
        /// Number of tokens that have queries: all tokens of a sample, or a rank's own tokens under
        /// context parallelism.
        queries: u64,
        /// Number of query heads.
        heads: u64,
        /// Number of KV heads.
        kv_heads: u64,
        /// Number of columns per query or key head.
        width: u64,
        /// Number of elements per value head.
        value_width: u64,
        /// Number of columns per query or key head that rotary embedding rotates. With latent vectors, all key heads
        /// share one set of these columns.
        turned: u64,
        /// Number of elements in the latent vector from which a token's keys and values are computed; 0 without a
        /// latent vector.
        latent: u64,
        /// The earlier tokens to which a token attends.
        span: AttentionSpan,
        /// True if each head has a trained weight that is an additional score in its softmax.
        sinks: bool,
        /// True if tokens attend only to themselves and earlier tokens.
        causal: bool,
        /// True if dropout follows the softmax.
        dropout: bool,
        /// True if query and key heads are normalized, as in [`OperatorKind::Attention`].
        qk_norm: bool,
    },
    /// Linear attention with a gated delta rule (Yang et al., "Gated Delta Networks", 2024).
    /// Queries, keys and values pass through a short causal convolution. Each value head has a
    /// state of `key_width x value_width` elements, which replaces the keys and values of all
    /// tokens. The results are normalized, scaled by a gain, and multiplied by a gate.
    LinearAttention {
        /// Number of tokens per sample, which update the state one after another.
        tokens: u64,
        /// Sizes of heads, states and convolution.
        #[serde(flatten)]
        sizes: DeltaAttentionSizes,
    },
    /// The two up-projections of latent attention. The first computes the query heads from a latent vector of
    /// `query_rank` elements, and the second computes the key and value heads from a latent vector of `kv_rank`
    /// elements.
    LatentUp {
        /// Number of tokens per sample.
        rows: u64,
        /// Number of elements in the latent vector of queries.
        query_rank: u64,
        /// Number of elements in the latent vector of keys and values.
        kv_rank: u64,
        /// Number of heads, equal for queries, keys and values.
        heads: u64,
        /// Number of elements per query head.
        query_width: u64,
        /// Number of key and value columns together, per head.
        kv_width: u64,
    },
    /// The router, which scores every token for every expert, applies a softmax, and copies the token to
    /// each of its `chosen` best experts (Shazeer et al., "Outrageously Large Neural Networks", 2017,
    /// section 2).
    ExpertDispatch {
        /// Number of tokens per sample.
        tokens: u64,
        /// Number of elements per token vector.
        width: u64,
        /// Number of experts in the layer.
        experts: u64,
        /// Number of experts that each token chooses.
        chosen: u64,
        /// The rule by which the router chooses experts from scores.
        form: ExpertScoringAndGroupRule,
    },
    /// One matrix product per expert. The experts divide `rows` copies of tokens evenly. Each expert multiplies by its
    /// own `inputs x outputs` matrix and, if `bias`, adds its own bias of `outputs`.
    ExpertLinear {
        /// Number of token copies, summed over all experts.
        rows: u64,
        /// Number of experts, each with its own weights.
        experts: u64,
        /// Number of columns of the input.
        inputs: u64,
        /// Number of columns of the output.
        outputs: u64,
        /// True if each expert adds a bias to its rows.
        bias: bool,
    },
    /// Adds up the results of each token's copies, weighted by the token's scores.
    ExpertCombine {
        /// Number of tokens per sample.
        tokens: u64,
        /// Number of elements per token vector.
        width: u64,
        /// Number of copies per token, one for each chosen expert.
        chosen: u64,
    },
    /// Normalizes each row to mean 0 and variance 1 (LayerNorm, BatchNorm) or to length 1 (RMSNorm). Multiplies the row
    /// by a gain of `width` elements and, if `bias`, adds a bias of `width` elements.
    Norm {
        /// Number of rows: tokens, or pixels.
        rows: u64,
        /// Number of columns: hidden size, or channels.
        width: u64,
        /// True if a bias is added.
        bias: bool,
    },
    /// An element-wise function. If `gated`, the input has `2 width` columns: the function is applied to one half, and
    /// its result is multiplied by the other half.
    Activation {
        /// The function, applied to each element.
        function: ActivationFunction,
        /// Number of rows of the input and of the output: tokens, or pixels.
        rows: u64,
        /// Number of columns of the output.
        width: u64,
        /// True if the activation has a gate (SwiGLU).
        gated: bool,
    },
    /// Adds the branch's output to the skip path, with dropout if `dropout`. Before the blocks, a
    /// residual adds up the embeddings of an input.
    Residual {
        /// Number of rows of both summands: tokens, or pixels.
        rows: u64,
        /// Number of columns of both summands: hidden size, or channels.
        width: u64,
        /// True if dropout is applied before the sum.
        dropout: bool,
    },
    /// Looks up one row of a table for each token, by its word, position or token type.
    Embedding {
        /// Number of rows of the table.
        vocabulary: u64,
        /// Number of columns of the table.
        width: u64,
        /// Number of rows that are looked up.
        tokens: u64,
    },
    /// Cross-entropy loss over classes.
    Loss {
        /// Number of rows of logits: the number of tokens, or 1.
        rows: u64,
        /// Number of columns of logits: classes, or vocabulary entries.
        classes: u64,
    },
    /// A two-dimensional convolution.
    Convolution {
        /// Number of input channels.
        inputs: u64,
        /// Number of output channels.
        outputs: u64,
        /// Height and width of the input, in pixels.
        size: [u64; 2],
        /// Height and width of the filter, in pixels.
        kernel: [u64; 2],
        /// Distance in pixels between neighbouring windows.
        stride: u64,
        /// Number of pixels added on each side.
        padding: u64,
        /// Number of channel groups; 1 for a convolution that is neither grouped nor depthwise.
        groups: u64,
        /// True if each output channel has a bias.
        bias: bool,
    },
    /// A pooling layer: the maximum or mean of each window.
    Pool {
        /// Number of channels, equal for input and output.
        channels: u64,
        /// Height and width of the input, in pixels.
        size: [u64; 2],
        /// Height and width of the window, in pixels.
        kernel: [u64; 2],
        /// Distance in pixels between neighbouring windows.
        stride: u64,
        /// Number of pixels added on each side.
        padding: u64,
    },
    /// An embedding bag: sums `lookups` rows of a table.
    EmbeddingBag {
        /// Number of rows of the table.
        rows: u64,
        /// Number of columns of the table.
        width: u64,
        /// Number of rows that are looked up per sample.
        lookups: u64,
    },
    /// Dot products of all pairs among `vectors` vectors, appended to the first vector (DLRM's
    /// interaction).
    Interaction {
        /// Number of input vectors.
        vectors: u64,
        /// Number of elements per vector.
        width: u64,
    },
}

/// The earlier tokens to which a token attends under a causal mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AttentionSpan {
    /// A token attends to all earlier tokens.
    #[default]
    All,
    /// A token attends to this number of tokens: itself and the tokens immediately before it.
    Window(u64),
    /// A token attends to earlier tokens of its own chunk of the sequence; chunks have this length.
    Piece(u64),
}

impl AttentionSpan {
    /// Returns the number of query-key pairs in a sequence of `tokens` tokens that this span allows under a causal
    /// mask.
    pub fn causal_pairs(self, tokens: u64) -> u128 {
        let triangle = |side: u64| u128::from(side) * (u128::from(side) + 1) / 2;
        match self {
            Self::All => triangle(tokens),
            Self::Window(window) => {
                let window = window.min(tokens);
                triangle(window) + u128::from(window) * u128::from(tokens - window)
            }
            Self::Piece(piece) => {
                let piece = piece.clamp(1, tokens.max(1));
                u128::from(tokens / piece) * triangle(piece) + triangle(tokens % piece)
            }
        }
    }
}

/// The rule by which a router chooses experts from scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExpertScoringAndGroupRule {
    /// True if scores have a trained bias.
    pub bias: bool,
    /// True if experts are chosen by scores plus a bias per expert. This bias balances the experts' loads, and has no
    /// gradient.
    pub correction: bool,
    /// True if scores are computed with the logistic function instead of a softmax.
    pub sigmoid: bool,
    /// Number of expert groups, if a token first chooses the best groups; 0 or 1 without groups.
    pub groups: u64,
    /// Number of groups from which a token may choose its experts.
    pub chosen_groups: u64,
}

/// A function that is applied to each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ActivationFunction {
    /// Negative elements become 0.
    Relu,
    /// Multiplies x by the normal distribution function of x.
    Gelu,
    /// Multiplies x by the logistic function of x, as in SwiGLU.
    Silu,
    /// Like [`Self::Silu`], but limits both inputs to a range first, as in GPT-OSS.
    #[serde(rename = "clamped-silu")]
    ClampedSilu,
    /// The logistic function, as in gates of attention.
    Sigmoid,
}

impl ActivationFunction {
    /// All functions, with their names in model files.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Relu, "relu"),
        (Self::Gelu, "gelu"),
        (Self::Silu, "silu"),
        (Self::ClampedSilu, "clamped-silu"),
        (Self::Sigmoid, "sigmoid"),
    ];
}

impl ModelLayer {
    /// Creates a layer from operators in execution order.
    pub fn new(name: impl Into<String>, role: LayerRole, operators: Vec<LayerOperator>) -> Self {
        Self {
            name: name.into(),
            role,
            operators,
        }
    }
}

impl ModelLayer {
    /// Returns true if operator `index` belongs to the experts, the dispatch before them, or the combine after them.
    pub fn is_operator_among_experts(&self, index: usize) -> bool {
        let at = |exchange| {
            let mut operators = self.operators.iter();
            operators.position(|one| one.work.to_axes_and_tensors().exchange == Some(exchange))
        };
        match (
            at(OperatorTokenExchangeSide::Dispatch),
            at(OperatorTokenExchangeSide::Combine),
        ) {
            (Some(first), Some(last)) => (first..=last).contains(&index),
            _ => false,
        }
    }
}

impl LayerOperator {
    /// Creates an operator on the branch, not on the skip path.
    pub fn new(
        name: impl Into<String>,
        work: OperatorKind,
        cut: OperatorTensorParallelSplit,
    ) -> Self {
        Self {
            name: name.into(),
            work,
            cut,
            around: false,
            training: TrainedOperatorWeights::All,
            saved: OutputSavedOrRecomputed::ByPolicy,
        }
    }

    /// Moves the operator to the skip path.
    pub fn move_to_skip_path(mut self) -> Self {
        self.around = true;
        self
    }
}

#[cfg(test)]
mod tests;
