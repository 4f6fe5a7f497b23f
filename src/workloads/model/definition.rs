//! Models as files say them.
//!
//! Every file has `name`, `source` and `kind`; unknown keys are refused. Defaults are in brackets.
//!
//! - `kind = "transformer"`: `layers`, `hidden`, `heads`, `vocabulary`, `sequence`; `kv_heads` (heads), `head_width`
//!   (hidden / heads), `ffn` (4 hidden), `experts` of `ffn` columns each in place of one perceptron and
//!   `experts_per_token`; `activation` gelu, relu, swiglu or geglu; `norm` layernorm or rmsnorm,
//!   `norm_after` (false), `embedding_norm` (false), `final_norm` (unless norm_after); `positions` learned, rotary or
//!   none, `qk_norm` (false), `position_rows` (sequence), `segments` (0); `biases`, `causal` (true), `dropout` (false); `head` logits,
//!   masked or pooler (logits), `tied` for logits. Further parts of a [`TransformerArchitecture`](super::TransformerArchitecture):
//!   - `kv_rank`, `plain_width`, `turned_width`, `value_width` and `query_rank` (0) for latent attention;
//!   - `qkv_biases` (biases), `sinks` (false), `window` or `piece` tokens that a token attends to, but in every `full_every`-th layer
//!     (0: none); `sandwich_norm` (false);
//!   - `shared_ffn` (0), `scores` softmax or sigmoid (softmax), `router_bias`, `correction_bias` (false), `groups` (0) and
//!     `groups_per_token` (groups) of experts; `dense_layers` (0) at the front and all but every `experts_every`-th (1) have a
//!     perceptron of `dense_ffn` (ffn) in their place;
//!   - `more_predictions` (0).
//! - `kind = "vit"`: `layers`, `hidden`, `heads`, `ffn` (4 hidden), `image`, `channels` (3), `patch`, `classes`,
//!   `dropout` (false).
//! - `kind = "layers"`: `input`, which has `channels`, `height` and `width`, or `columns`, or `tokens`; and layers
//!   under `[[layer]]`, which have a `name`, a `role` (input, block, output), `operators`, and, if it stands for
//!   several, how often to `repeat` it and the `first` number behind its name (0). Sizes of an operator's input follow
//!   from what stands before it. An operator has an `op`, a `name` (the op), a `cut` (whole), and
//!   - `linear`: `outputs`, `bias` (true), `tied` (false); an image becomes one row;
//!   - `attention`: `heads`, `kv_heads` (heads), `causal`, `dropout`, `rotary`, `qk_norm` (false);
//!   - `convolution`: `outputs`, `kernel`, `stride` (1), `padding` (0), `groups` (1), `bias` (true);
//!   - `pool`: `kernel`, `stride` (kernel), `padding` (0);
//!   - `expert_dispatch`: `experts`, `experts_per_token`; `expert_linear`: `experts`, `outputs`, `bias` (true);
//!     `expert_combine`: `experts_per_token`;
//!   - `norm`: `bias` (true); `activation`: `function`, `gated` (false); `residual`: `dropout` (false); `loss`;
//!   - `embedding`: `vocabulary`, `width`; `embedding_bag`: `rows`, `width`, `lookups` (1), beside the chain;
//!     `interaction`: `vectors`.
//!
//!   An operator with `around = true` works on what goes around the layer, up to the next residual, which adds both and
//!   wants them of one size.

use super::Model;

/// A model with properties that its file states for it as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelDefinition {
    /// Form of the description.
    pub kind: DefinitionKind,
    /// Width of the activations between blocks, if it is one number.
    pub hidden: Option<u64>,
    /// The model.
    pub model: Model,
}

/// Sizes in place of those that a model's file states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelSizes {
    /// Tokens of a sample.
    pub tokens: Option<u64>,
    /// Blocks.
    pub layers: Option<u64>,
}

/// Form in which a file describes a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefinitionKind {
    /// By the numbers of a transformer over tokens.
    Transformer,
    /// By the numbers of a transformer over the patches of an image.
    Vit,
    /// Layer by layer and operator by operator.
    Layers,
}

impl DefinitionKind {
    /// Every kind with its name.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::Transformer, "transformer"),
        (Self::Vit, "vit"),
        (Self::Layers, "layers"),
    ];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Transformer => "transformer",
            Self::Vit => "vit",
            Self::Layers => "layers",
        }
    }
}
