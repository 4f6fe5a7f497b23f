//! Models as model files describe them.
//!
//! Every file has `name`, `source` and `kind`; unknown keys are rejected. Defaults are in parentheses.
//!
//! - `kind = "transformer"`: `layers`, `hidden`, `heads`, `vocabulary`, `sequence`; `kv_heads`
//!   (heads), `head_width` (hidden / heads), `ffn` (4 hidden), `experts` of `ffn` columns each (in
//!   place of one MLP) and `experts_per_token`; `activation` gelu, relu, swiglu or geglu;
//!   `norm` layernorm or rmsnorm, `norm_after` (false), `embedding_norm` (false), `final_norm`
//!   (unless norm_after); `positions` learned, rotary or none, `qk_norm` (false), `position_rows`
//!   (sequence), `segments` (0); `biases`, `causal` (true), `dropout` (false); `head` logits,
//!   masked or pooler (logits), `tied` for logits. Further keys, for a
//!   [`TransformerArchitecture`](super::TransformerArchitecture):
//!   - `kv_rank`, `plain_width`, `turned_width`, `value_width` and `query_rank` (0) for latent attention;
//!   - `qkv_biases` (biases), `sinks` (false), `window` or `piece`: length of the window or piece of tokens
//!     to which a token attends, except in every `full_every`-th layer (0: none); `sandwich_norm` (false);
//!   - `shared_ffn` (0), `scores` softmax or sigmoid (softmax), `router_bias`, `correction_bias` (false),
//!     `groups` (0) and `groups_per_token` (groups) of experts. Only every `experts_every`-th (1) layer after
//!     the first `dense_layers` (0) has experts; the others have an MLP of `dense_ffn` (ffn);
//!   - `more_predictions` (0).
//! - `kind = "vit"`: `layers`, `hidden`, `heads`, `ffn` (4 hidden), `image`, `channels` (3), `patch`, `classes`,
//!   `dropout` (false).
//! - `kind = "layers"`: `input`, which has `channels`, `height` and `width`, or `columns`, or
//!   `tokens`; and layers under `[[layer]]`, each with a `name`, a `role` (input, block, output)
//!   and `operators`. An entry can describe several layers: `repeat` is their number, and `first`
//!   (0) is the number in the name of the first. An operator's input sizes are computed from the
//!   operators before it. An operator has an `op`, a `name` (the op), a `cut` (whole), and
//!   - `linear`: `outputs`, `bias` (true), `tied` (false); an image becomes one row;
//!   - `attention`: `heads`, `kv_heads` (heads), `causal`, `dropout`, `rotary`, `qk_norm` (false);
//!   - `convolution`: `outputs`, `kernel`, `stride` (1), `padding` (0), `groups` (1), `bias` (true);
//!   - `pool`: `kernel`, `stride` (kernel), `padding` (0);
//!   - `expert_dispatch`: `experts`, `experts_per_token`; `expert_linear`: `experts`, `outputs`, `bias` (true);
//!     `expert_combine`: `experts_per_token`;
//!   - `norm`: `bias` (true); `activation`: `function`, `gated` (false); `residual`: `dropout` (false); `loss`;
//!   - `embedding`: `vocabulary`, `width`; `embedding_bag`: `rows`, `width`, `lookups` (1), outside the chain;
//!     `interaction`: `vectors`.
//!
//! An operator with `around = true` is on the skip path. The next residual adds the results of the
//! skip path and of the branch, which must have equal sizes.

use super::Model;

/// A model, and the properties that its file gives for the model as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelDefinition {
    /// Form in which the file describes the model.
    pub kind: DefinitionKind,
    /// Width of the activations between blocks; `None` if blocks differ in width.
    pub hidden: Option<u64>,
    /// The model that the file describes.
    pub model: Model,
}

/// Sizes that replace the sizes in a model file; `None` keeps the file's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelSizes {
    /// Number of tokens per sample.
    pub tokens: Option<u64>,
    /// Number of blocks; layers before and after the blocks do not count.
    pub layers: Option<u64>,
}

/// Form in which a file describes its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefinitionKind {
    /// A few numbers of a transformer over tokens.
    Transformer,
    /// A few numbers of a transformer over an image's patches.
    Vit,
    /// A list of layers with their operators.
    Layers,
}

impl DefinitionKind {
    /// Every form, with the word for it in files.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::Transformer, "transformer"),
        (Self::Vit, "vit"),
        (Self::Layers, "layers"),
    ];

    /// Value of `kind` in model files.
    pub fn kind_name(self) -> &'static str {
        match self {
            Self::Transformer => "transformer",
            Self::Vit => "vit",
            Self::Layers => "layers",
        }
    }
}
