//! Models: networks of layers, independent of the number of NPUs that run them.
//!
//! A [`Model`] is a chain of [`ModelLayer`]s, a layer a chain of [`LayerOperator`]s. Sizes are those of one *sample*: a
//! sequence of tokens, an image, a row of features. Nothing here knows of batches, ranks or time.
//!
//! Models are described in TOML files, or are presets, or are made from a few numbers ([`TransformerModel`],
//! [`VisionTransformer`]).
//!
//! Rules of counting:
//!
//! - *Parameters* are all weights that are trained: matrices, biases, gains of norms, tables. Weights that two
//!   operators share count once, where they are picked from ([`OperatorKind::Embedding`]).
//! - *Multiplications* are those of matrix products and convolutions in a forward pass of one sample; two FLOPs
//!   each. What is done per element (norms, activations, softmax, sums) is left out, as papers do. Attention
//!   counts the whole square of tokens, also where tokens look back only, as Megatron's formulas do; kernels
//!   that skip the other half do [`OperatorKind::skippable_multiplications`] less.
//! - *Kept bytes* are those that the backward pass needs ([`OperatorKind::saved_bytes`]).
//!
//! Counts are whole numbers of 64 bits that stop at [`u64::MAX`]; a model's file that gets there is refused.

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

pub use architecture::{LatentAttention, TransformerArchitecture};
pub use definition::{DefinitionKind, ModelDefinition, ModelSizes};
pub use error::{ModelError, not_from_hubs};
pub use preset::{ModelPreset, ModelSource, PRESETS};
pub use spec::{
    AxisCut, AxisSpec, ChainRole, ElementBytes, ExpertExchange, KeptTensor, KeptWith, KernelSpec,
    MovingKernels, MovingSpec, OperatorAxis, OperatorSpec, ProductSpec, WeightSpec, WindowSpec,
};
pub use transformer::{
    ExpertRouting, OutputHead, PositionEncoding, TransformerBlock, TransformerModel,
};
pub use vit::VisionTransformer;

/// A network of layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Display name: `gpt3-175b`.
    pub name: String,
    /// Publication that states its sizes.
    pub source: String,
    /// Tokens of a sample; 1 where a sample is no sequence.
    pub sequence: u64,
    /// First to last; the output of each layer is the input of the next.
    pub layers: Vec<ModelLayer>,
}

/// A part of a model that stays together: the unit of pipelining, recomputation and sharding.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelLayer {
    /// `embedding`, `layer17`, `head`, `conv3_1`.
    pub name: String,
    /// Position of the layer in the model, where kinds are treated differently.
    pub role: LayerRole,
    /// First to last.
    pub operators: Vec<LayerOperator>,
}

/// Position of a layer in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerRole {
    /// Before the blocks: token and position embeddings, the stem of a network on images, embedding bags.
    Input,
    /// One of the blocks, which a pipeline distributes evenly over stages.
    Block,
    /// Behind the blocks: the last norm, logits or classifier, and the loss.
    Output,
}

/// One operation with its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerOperator {
    /// `attention.qkv`, `mlp.up`, `norm1`: unique within its layer.
    pub name: String,
    /// The computation.
    pub work: OperatorKind,
    /// Sharding under tensor parallelism.
    pub cut: TensorSplit,
    /// True for an operator on the skip path, which joins the branch at a [`OperatorKind::Residual`].
    pub around: bool,
}

/// Sharding of an operator under tensor parallelism (Shoeybi et al., "Megatron-LM", 2019, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorSplit {
    /// Every member does all of it; with sequence parallelism, each its part of the tokens.
    Replicated,
    /// By outputs: each member has some columns of the weights, needs the whole input, and its part of the
    /// input's gradient is summed over members.
    ColumnParallel,
    /// By inputs: each member has some rows of the weights, and outputs are summed over members.
    RowParallel,
    /// Inside a sharded region, between an operator sharded by outputs and one sharded by inputs: heads, columns of
    /// an activation.
    InsideRegion,
}

/// Computation of an operator with its sizes per sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum OperatorKind {
    /// `rows x inputs` by `inputs x outputs`, with a bias of `outputs` if `bias`.
    Linear {
        /// Rows of the input: tokens, or 1.
        rows: u64,
        /// Columns of the input.
        inputs: u64,
        /// Columns of the output.
        outputs: u64,
        /// True if a vector is added to each row.
        bias: bool,
        /// True if the weights are those of the embedding, where they are counted.
        tied: bool,
    },
    /// Products of queries and keys, softmax, and products with values.
    Attention {
        /// Tokens of a sample, whose keys and values queries are multiplied with.
        tokens: u64,
        /// Tokens whose queries, keys and values come in: all of a sample, but for a shard of context parallelism.
        queries: u64,
        /// Query heads.
        heads: u64,
        /// Heads of keys and of values; `heads` unless they are shared.
        kv_heads: u64,
        /// Columns of a head.
        width: u64,
        /// True if tokens attend to earlier ones only.
        causal: bool,
        /// True if dropout follows the softmax.
        dropout: bool,
        /// True if queries and keys are turned by their positions first (rotary position embedding).
        rotary: bool,
        /// True if each head of queries and of keys is scaled to length 1 before that, then by a gain that all heads of queries
        /// share, and another one of keys.
        qk_norm: bool,
    },
    /// The same where heads of values have another width than those of queries and keys, tokens attend to some of the others, or
    /// each head has a score besides those of tokens.
    ShapedAttention {
        /// Tokens of a sample, whose keys and values queries are multiplied with.
        tokens: u64,
        /// Tokens whose queries, keys and values come in: all of a sample, but for a shard of context parallelism.
        queries: u64,
        /// Query heads.
        heads: u64,
        /// Heads of keys and of values.
        kv_heads: u64,
        /// Columns of a head of queries and of keys.
        width: u64,
        /// Columns of a head of values.
        value_width: u64,
        /// Columns of a head that are turned by positions; with latent vectors all heads of keys share one set of them.
        turned: u64,
        /// Numbers of the latent vector from which a token's keys and values are found; 0 where there is none.
        latent: u64,
        /// Tokens that a token attends to.
        span: AttentionSpan,
        /// True if each head has a weight that its softmax counts as a score.
        sinks: bool,
        /// True if tokens attend to earlier ones only.
        causal: bool,
        /// True if dropout follows the softmax.
        dropout: bool,
        /// True if heads of queries and of keys are scaled, as in [`OperatorKind::Attention`].
        qk_norm: bool,
    },
    /// Two products side by side: from latent vectors of `query_rank` and `kv_rank` numbers to heads of queries, and of keys and values.
    LatentUp {
        /// Rows: tokens.
        rows: u64,
        /// Numbers from which queries are found.
        query_rank: u64,
        /// Numbers from which keys and values are found.
        kv_rank: u64,
        /// Heads.
        heads: u64,
        /// Columns of queries of a head.
        query_width: u64,
        /// Columns of keys and values of a head.
        kv_width: u64,
    },
    /// Scores of each token for each expert, their softmax, and a copy of the token for each expert with one of the
    /// `chosen` highest scores (Shazeer et al., "Outrageously Large Neural Networks", 2017, section 2).
    ExpertDispatch {
        /// Tokens of a sample.
        tokens: u64,
        /// Columns of a token.
        width: u64,
        /// Experts of the layer.
        experts: u64,
        /// Experts that each token is sent to.
        chosen: u64,
        /// How scores become a choice.
        form: RouterForm,
    },
    /// A product for each expert: `rows` copies of tokens, shared out evenly among experts, by `inputs x outputs` of the
    /// expert, with a bias of `outputs` each if `bias`.
    ExpertLinear {
        /// Copies of tokens, of all experts together.
        rows: u64,
        /// Experts, each with weights of its own.
        experts: u64,
        /// Columns of the input.
        inputs: u64,
        /// Columns of the output.
        outputs: u64,
        /// True if a vector is added to each row.
        bias: bool,
    },
    /// Sum of the copies of each token, weighted by its scores.
    ExpertCombine {
        /// Tokens of a sample.
        tokens: u64,
        /// Columns of a token.
        width: u64,
        /// Copies of each token.
        chosen: u64,
    },
    /// Each row is scaled to mean 0 and variance 1 (LayerNorm, BatchNorm) or to length 1 (RMSNorm), then by a
    /// gain of `width`, and shifted by a bias of `width` if `bias`.
    Norm {
        /// Rows: tokens, or pixels.
        rows: u64,
        /// Columns: hidden size, or channels.
        width: u64,
        /// True if there is a bias.
        bias: bool,
    },
    /// A function of each element. If `gated`, of one half of `2 width` inputs, times the other.
    Activation {
        /// The function.
        function: ActivationFunction,
        /// Rows.
        rows: u64,
        /// Columns of the output.
        width: u64,
        /// True for a gate (SwiGLU).
        gated: bool,
    },
    /// Adds the branch's output to the skip path (or, in front of the blocks, the embeddings of an input), with
    /// dropout if `dropout`.
    Residual {
        /// Rows.
        rows: u64,
        /// Columns.
        width: u64,
        /// True if dropout precedes the sum.
        dropout: bool,
    },
    /// Picks a row of a table for each token: words, positions, kinds of token.
    Embedding {
        /// Rows of the table.
        vocabulary: u64,
        /// Columns of the table.
        width: u64,
        /// Rows picked.
        tokens: u64,
    },
    /// Cross entropy over classes.
    Loss {
        /// Rows.
        rows: u64,
        /// Classes.
        classes: u64,
    },
    /// A convolution of two dimensions.
    Convolution {
        /// Channels of the input.
        inputs: u64,
        /// Channels of the output.
        outputs: u64,
        /// Height and width of the input.
        size: [u64; 2],
        /// Height and width of the filter.
        kernel: [u64; 2],
        /// Pixels from one output to the next.
        stride: u64,
        /// Pixels added on each side.
        padding: u64,
        /// Parts that channels fall into; 1 unless it is a grouped or depthwise one.
        groups: u64,
        /// True if each output channel has a bias.
        bias: bool,
    },
    /// The largest or the mean of each window.
    Pool {
        /// Channels.
        channels: u64,
        /// Height and width of the input.
        size: [u64; 2],
        /// Height and width of the window.
        kernel: [u64; 2],
        /// Pixels from one output to the next.
        stride: u64,
        /// Pixels added on each side.
        padding: u64,
    },
    /// Sums `lookups` rows of a table.
    EmbeddingBag {
        /// Rows of the table.
        rows: u64,
        /// Columns of the table.
        width: u64,
        /// Rows picked for each sample.
        lookups: u64,
    },
    /// Products of each two of `vectors` vectors, appended to the first of them unchanged (DLRM).
    Interaction {
        /// Number of vectors.
        vectors: u64,
        /// Numbers of one.
        width: u64,
    },
}

/// Tokens of a sequence that a token attends to, of those that a causal mask leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AttentionSpan {
    /// All.
    #[default]
    All,
    /// The last so many.
    Window(u64),
    /// Those of its own piece of the sequence, each of so many.
    Piece(u64),
}

impl AttentionSpan {
    /// Pairs of tokens of a sequence of `tokens` that meet, with a causal mask.
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

/// How a router makes a choice of scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RouterForm {
    /// True if scores have a bias that is trained with them.
    pub bias: bool,
    /// True if the choice adds a bias of each expert, which balances loads and is in no gradient.
    pub correction: bool,
    /// True if scores are logistic functions; of a softmax otherwise.
    pub sigmoid: bool,
    /// Groups of experts, of which the best are chosen first; 0 or 1 for none.
    pub groups: u64,
    /// Groups that a token may choose from.
    pub chosen_groups: u64,
}

/// A function of each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ActivationFunction {
    /// Negative elements become 0.
    Relu,
    /// x times the normal distribution's share below x.
    Gelu,
    /// x times its logistic function, in SwiGLU.
    Silu,
}

impl ActivationFunction {
    /// Every function with its name.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::Relu, "relu"),
        (Self::Gelu, "gelu"),
        (Self::Silu, "silu"),
    ];
}

impl ModelLayer {
    /// A layer of `operators`.
    pub fn new(name: impl Into<String>, role: LayerRole, operators: Vec<LayerOperator>) -> Self {
        Self {
            name: name.into(),
            role,
            operators,
        }
    }
}

impl ModelLayer {
    /// Returns true if operator `index` is one of experts, or what sends tokens to them and adds up their results.
    pub fn stands_among_experts(&self, index: usize) -> bool {
        let at = |exchange| {
            let mut operators = self.operators.iter();
            operators.position(|one| one.work.spec().exchange == Some(exchange))
        };
        match (at(ExpertExchange::Dispatch), at(ExpertExchange::Combine)) {
            (Some(first), Some(last)) => (first..=last).contains(&index),
            _ => false,
        }
    }
}

impl LayerOperator {
    /// An operator called `name`.
    pub fn new(name: impl Into<String>, work: OperatorKind, cut: TensorSplit) -> Self {
        Self {
            name: name.into(),
            work,
            cut,
            around: false,
        }
    }

    /// The same on the way around the branch.
    pub fn around(mut self) -> Self {
        self.around = true;
        self
    }
}

#[cfg(test)]
mod tests;
