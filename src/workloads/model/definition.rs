//! Models as model files describe them.
//!
//! Every file has `name`, `source` and `kind`; unknown keys are rejected. The tables list the other keys, with their
//! defaults in parentheses.
//!
//! A file with `kind = "transformer"` describes a transformer over tokens:
//!
//! | part | keys |
//! |---|---|
//! | sizes | `layers`, `hidden`, `heads`, `vocabulary`, `sequence`; `kv_heads` (heads), `head_width` (hidden / heads), `ffn` (4 hidden) |
//! | experts in place of one MLP | `experts` of `ffn` columns each, `experts_per_token` |
//! | functions | `activation` gelu, relu, swiglu, clamped-swiglu or geglu; `biases`, `causal` (true), `dropout` (false) |
//! | norms | `norm` layernorm or rmsnorm, `norm_after` (false), `embedding_norm` (false), `final_norm` (unless norm_after), `qk_norm` (false) |
//! | positions | `positions` learned, rotary or none, `position_rows` (sequence), `segments` (0) |
//! | end | `head` logits, masked or pooler (logits), `tied` for logits |
//!
//! Other keys describe a [`ExtendedTransformerModel`](super::ExtendedTransformerModel):
//!
//! | part | keys |
//! |---|---|
//! | latent attention | `kv_rank`, `plain_width`, `turned_width`, `value_width`, `query_rank` (0) |
//! | linear attention | `linear_value_heads`, `linear_key_heads` (linear_value_heads), `linear_key_width`, `linear_value_width`, `linear_taps`, `linear_state_bytes` (4); in all layers except every `full_every`-th (0: none) |
//! | attention | `output_gate` (false), `qkv_biases` (biases), `sinks` (false); `window` or `piece`: length of the window or piece of tokens to which a token attends, except in every `full_every`-th layer (0: none); `sandwich_norm` (false) |
//! | shared experts, router | `shared_ffn` (0), `scores` softmax or sigmoid (softmax), `router_bias`, `correction_bias` (false), `groups` (0) and `groups_per_token` (groups) of experts |
//! | layers with experts | every `experts_every`-th (1) layer after the first `dense_layers` (0); the others have an MLP of `dense_ffn` (ffn) |
//! | more predicted tokens | `more_predictions` (0) |
//!
//! A file with `kind = "vit"` describes a transformer over an image's patches:
//!
//! | part | keys |
//! |---|---|
//! | sizes | `layers`, `hidden`, `heads`, `ffn` (4 hidden), `image`, `channels` (3), `patch`, `classes` |
//! | functions | `dropout` (false) |
//!
//! A file with `kind = "layers"` lists layers and their operators:
//!
//! | part | keys |
//! |---|---|
//! | `input` | `channels`, `height` and `width`, or `columns`, or `tokens` |
//! | `[[layer]]` | `name`, `role` (input, block, output), `operators`; `repeat`: number of layers that the entry describes; `first` (0): number in the name of the first of them |
//! | any operator | `op`, `name` (the op), `cut` (whole), `around` (false) |
//! | `linear` | `outputs`, `bias` (true), `tied` (false); an image becomes one row |
//! | `attention` | `heads`, `kv_heads` (heads), `causal`, `dropout`, `rotary`, `qk_norm` (false) |
//! | `convolution` | `outputs`, `kernel`, `stride` (1), `padding` (0), `groups` (1), `bias` (true) |
//! | `pool` | `kernel`, `stride` (kernel), `padding` (0) |
//! | `expert_dispatch` | `experts`, `experts_per_token` |
//! | `expert_linear` | `experts`, `outputs`, `bias` (true) |
//! | `expert_combine` | `experts_per_token` |
//! | `norm` | `bias` (true) |
//! | `activation` | `function`, `gated` (false) |
//! | `residual` | `dropout` (false) |
//! | `loss` | none |
//! | `embedding` | `vocabulary`, `width` |
//! | `embedding_bag` | `rows`, `width`, `lookups` (1); its result is outside the chain |
//! | `interaction` | `vectors` |
//!
//! The sizes of an operator's input follow from the operators before it.
//!
//! An operator with `around = true` is on the skip path. The next residual adds up the results of the skip path and the
//! branch, which must be equally large.

use super::Model;

/// A model, with the properties that its file gives for the whole model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelWithDefinitionProperties {
    /// Form in which the file describes the model.
    pub kind: ModelDefinitionForm,
    /// Width of the activations between blocks; `None` if blocks differ in width.
    pub hidden: Option<u64>,
    /// The model that the file describes.
    pub model: Model,
}

/// Sizes that replace the sizes in a model file; `None` keeps the file's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenAndLayerCountOverrides {
    /// Number of tokens per sample.
    pub tokens: Option<u64>,
    /// Number of blocks; layers before and after the blocks do not count.
    pub layers: Option<u64>,
}

/// Form in which a file describes its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelDefinitionForm {
    /// A few sizes of a transformer over tokens.
    Transformer,
    /// A few sizes of a transformer over an image's patches.
    Vit,
    /// A list of layers with their operators.
    Layers,
}

impl ModelDefinitionForm {
    /// All forms, with their names in files.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::Transformer, "transformer"),
        (Self::Vit, "vit"),
        (Self::Layers, "layers"),
    ];

    /// Returns the value of `kind` in model files.
    pub fn kind_name(self) -> &'static str {
        match self {
            Self::Transformer => "transformer",
            Self::Vit => "vit",
            Self::Layers => "layers",
        }
    }
}
