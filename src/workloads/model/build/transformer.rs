//! Parses `kind = "transformer"`.

use super::{
    block_count_of_caller_or_file, read_flag_or_default, read_positive_integer,
    read_size_or_default,
};
use crate::model::{
    ActivationFunction, AttentionSpan, DeltaAttentionSizes, ExpertScoringAndGroupRule,
    ExtendedTransformerModel, LatentAttentionSizes, ModelLayer, OutputHead, PositionEncoding,
    TokenAndLayerCountOverrides, TotalAndChosenExpertCounts, TransformerBlock, TransformerModel,
};
use chakram_base::config::{ConfigError, ConfigTable};

pub(super) const KEYS: &[&str] = &[
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_width",
    "ffn",
    "experts",
    "experts_per_token",
    "experts_every",
    "dense_layers",
    "dense_ffn",
    "shared_ffn",
    "scores",
    "router_bias",
    "correction_bias",
    "groups",
    "groups_per_token",
    "query_rank",
    "kv_rank",
    "plain_width",
    "turned_width",
    "value_width",
    "qkv_biases",
    "sinks",
    "window",
    "piece",
    "full_every",
    "linear_key_heads",
    "linear_value_heads",
    "linear_key_width",
    "linear_value_width",
    "linear_taps",
    "linear_state_bytes",
    "output_gate",
    "sandwich_norm",
    "more_predictions",
    "vocabulary",
    "sequence",
    "activation",
    "norm",
    "norm_after",
    "qk_norm",
    "positions",
    "position_rows",
    "segments",
    "embedding_norm",
    "final_norm",
    "biases",
    "causal",
    "dropout",
    "head",
    "tied",
];

/// Activations of the MLP, each with its name in model files. Each entry has a function, and a flag that is true if the
/// activation is gated.
const ACTIVATIONS: [((ActivationFunction, bool), &str); 5] = [
    ((ActivationFunction::Gelu, false), "gelu"),
    ((ActivationFunction::Relu, false), "relu"),
    ((ActivationFunction::Silu, true), "swiglu"),
    ((ActivationFunction::ClampedSilu, true), "clamped-swiglu"),
    ((ActivationFunction::Gelu, true), "geglu"),
];

/// Norms, each with its name in model files; the flag is true if the norm has a bias.
const NORMS: [(bool, &str); 2] = [(true, "layernorm"), (false, "rmsnorm")];

/// Returns the number of tokens per sample, the hidden size, and the layers.
pub(super) fn parse_tokens_hidden_and_layers(
    root: &ConfigTable<'_>,
    sizes: TokenAndLayerCountOverrides,
) -> Result<(u64, Option<u64>, Vec<ModelLayer>), ConfigError> {
    let layers = block_count_of_caller_or_file(root, sizes.layers)?;
    let hidden = read_positive_integer(root, "hidden")?;
    let sequence = read_positive_integer(root, "sequence")?;
    // The position table keeps the file's number of rows, even if samples have another length.
    let rows = read_size_or_default(root, "position_rows", 1, sequence)?;
    let tokens = sizes.tokens.unwrap_or(sequence);
    let positions = [
        (PositionEncoding::Learned(rows), "learned"),
        (PositionEncoding::Rotary, "rotary"),
        (PositionEncoding::None, "none"),
    ];
    let positions = root.read_choice("positions", &positions)?;
    match (positions, root.get("position_rows")) {
        (PositionEncoding::Learned(rows), _) if tokens > rows => {
            return Err(root
                .require_field("sequence", "tokens of a sample")?
                .invalid_value_error(
                    format_args!("{tokens} tokens of a sample, and learned positions for {rows}"),
                    "no more tokens than positions; `position_rows` says how many are learned",
                ));
        }
        (PositionEncoding::Rotary | PositionEncoding::None, Some(field)) => {
            return Err(field.invalid_value_error(
                "rows of a table of positions",
                "no such key, because positions are not learned",
            ));
        }
        _ => {}
    }
    let norm_after = read_flag_or_default(root, "norm_after", false)?;
    let transformer = TransformerModel {
        layers,
        block: TransformerBlock {
            rotary: positions == PositionEncoding::Rotary,
            ..parse_block(root, [tokens, hidden], norm_after)?
        },
        vocabulary: read_positive_integer(root, "vocabulary")?,
        positions,
        segments: read_size_or_default(root, "segments", 0, 0)?,
        embedding_norm: read_flag_or_default(root, "embedding_norm", false)?,
        final_norm: read_flag_or_default(root, "final_norm", !norm_after)?,
        head: parse_output_head(root)?,
    };
    let architecture = parse_parts_beyond_plain_transformer(root, transformer)?;
    Ok((tokens, Some(hidden), architecture.expand_layers()))
}

/// Keys that are valid only for models with experts.
const OF_EXPERTS: [&str; 8] = [
    "experts_every",
    "dense_layers",
    "dense_ffn",
    "shared_ffn",
    "scores",
    "router_bias",
    "correction_bias",
    "groups",
];

/// Keys of latent attention, in addition to `kv_rank`.
const OF_LATENTS: [&str; 4] = ["query_rank", "plain_width", "turned_width", "value_width"];

/// Keys of linear attention, in addition to `linear_value_heads`.
const OF_DELTAS: [&str; 5] = [
    "linear_key_heads",
    "linear_key_width",
    "linear_value_width",
    "linear_taps",
    "linear_state_bytes",
];

/// Parses the parts that a [`TransformerModel`] cannot describe.
fn parse_parts_beyond_plain_transformer(
    root: &ConfigTable<'_>,
    base: TransformerModel,
) -> Result<ExtendedTransformerModel, ConfigError> {
    let plain = ExtendedTransformerModel::from_plain_transformer(base);
    let without =
        |keys: &[&str], other: &str| {
            let found = keys.iter().find_map(|key| root.get(key));
            match found {
                Some(field) => Err(field
                    .invalid_value_error("this key", format_args!("this key only with `{other}`"))),
                None => Ok(()),
            }
        };
    if base.block.experts.is_none() {
        without(&OF_EXPERTS, "experts")?;
    }
    if root.get("groups").is_none() {
        without(&["groups_per_token"], "groups")?;
    }
    let latent = parse_latent_attention(root)?;
    if latent.is_none() {
        without(&OF_LATENTS, "kv_rank")?;
    }
    let delta = parse_delta_attention(root, &base)?;
    if delta.is_none() {
        without(&OF_DELTAS, "linear_value_heads")?;
    }
    if latent.is_some() {
        without(&["output_gate"], "kv_heads")?;
    }
    let span = match (root.get("window"), root.get("piece")) {
        (Some(window), None) => AttentionSpan::Window(window.read_integer_between(1, super::MOST)?),
        (None, Some(piece)) => AttentionSpan::Piece(piece.read_integer_between(1, super::MOST)?),
        (None, None) => {
            if delta.is_none() {
                without(&["full_every"], "window")?;
            }
            AttentionSpan::All
        }
        (Some(_), Some(piece)) => {
            return Err(piece.invalid_value_error("both this key and `window`", "one of the two"));
        }
    };
    if span != AttentionSpan::All && !base.block.causal {
        let expected = "true with `window` or `piece`";
        return Err(root
            .require_field("causal", expected)?
            .invalid_value_error("false", expected));
    }
    if root.get("sandwich_norm").is_some() && base.block.norm_after {
        let field = root.require_field("sandwich_norm", "")?;
        return Err(
            field.invalid_value_error("norms on both sides", "no such key with `norm_after`")
        );
    }
    let groups = read_size_or_default(root, "groups", 1, 0)?;
    let experts = base.block.experts.map_or(0, |routing| routing.experts);
    if let Some(field) = root.get("groups")
        && !experts.is_multiple_of(groups.max(1))
    {
        let expected = format_args!("a number that divides {experts} experts");
        return Err(field.invalid_value_error(groups, expected));
    }
    let chosen_groups = match root.get("groups_per_token") {
        Some(field) => field.read_integer_between(1, groups.max(1))?,
        None => groups,
    };
    Ok(ExtendedTransformerModel {
        latent,
        delta,
        output_gate: read_flag_or_default(root, "output_gate", false)?,
        qkv_biases: read_flag_or_default(root, "qkv_biases", plain.qkv_biases)?,
        sinks: read_flag_or_default(root, "sinks", false)?,
        span,
        full_every: read_size_or_default(root, "full_every", 1, 0)?,
        sandwich_norm: read_flag_or_default(root, "sandwich_norm", false)?,
        shared_ffn: read_size_or_default(root, "shared_ffn", 0, 0)?,
        router: ExpertScoringAndGroupRule {
            bias: read_flag_or_default(root, "router_bias", false)?,
            correction: read_flag_or_default(root, "correction_bias", false)?,
            sigmoid: root.read_or_default("scores", false, |field| {
                field.read_choice(&[(false, "softmax"), (true, "sigmoid")])
            })?,
            groups,
            chosen_groups,
        },
        dense_layers: read_size_or_default(root, "dense_layers", 0, 0)?,
        experts_every: read_size_or_default(root, "experts_every", 1, 1)?,
        dense_ffn: read_size_or_default(root, "dense_ffn", 1, base.block.ffn)?,
        more_predictions: read_size_or_default(root, "more_predictions", 0, 0)?
            .min(super::MOST_LAYERS),
        ..plain
    })
}

/// Parses latent attention; returns `None` if the file does not describe any.
fn parse_latent_attention(
    root: &ConfigTable<'_>,
) -> Result<Option<LatentAttentionSizes>, ConfigError> {
    let Some(kv_rank) = root.get("kv_rank") else {
        return Ok(None);
    };
    for key in ["kv_heads", "head_width", "qkv_biases", "qk_norm"] {
        if let Some(field) = root.get(key) {
            return Err(field.invalid_value_error("this key", "no such key with `kv_rank`"));
        }
    }
    Ok(Some(LatentAttentionSizes {
        query_rank: read_size_or_default(root, "query_rank", 1, 0)?,
        kv_rank: kv_rank.read_integer_between(1, super::MOST)?,
        plain: read_positive_integer(root, "plain_width")?,
        turned: read_positive_integer(root, "turned_width")?,
        values: read_positive_integer(root, "value_width")?,
    }))
}

/// Parses linear attention; returns `None` if the file does not describe any.
fn parse_delta_attention(
    root: &ConfigTable<'_>,
    base: &TransformerModel,
) -> Result<Option<DeltaAttentionSizes>, ConfigError> {
    let Some(field) = root.get("linear_value_heads") else {
        return Ok(None);
    };
    for key in ["window", "piece", "kv_rank"] {
        if let Some(field) = root.get(key) {
            return Err(
                field.invalid_value_error("this key", "no such key with `linear_value_heads`")
            );
        }
    }
    if !base.block.causal {
        let expected = "true with `linear_value_heads`";
        return Err(root
            .require_field("causal", expected)?
            .invalid_value_error("false", expected));
    }
    let value_heads = field.read_integer_between(1, super::MOST)?;
    let key_heads = read_size_or_default(root, "linear_key_heads", 1, value_heads)?;
    if !value_heads.is_multiple_of(key_heads) {
        return Err(field.invalid_value_error(
            value_heads,
            format_args!("a multiple of {key_heads} heads of keys"),
        ));
    }
    Ok(Some(DeltaAttentionSizes {
        key_heads,
        value_heads,
        key_width: read_positive_integer(root, "linear_key_width")?,
        value_width: read_positive_integer(root, "linear_value_width")?,
        taps: read_positive_integer(root, "linear_taps")?,
        state_bytes: root.read_or_default("linear_state_bytes", 4, |field| {
            field.read_integer_between(1, 8)
        })?,
    }))
}

fn parse_block(
    root: &ConfigTable<'_>,
    [tokens, hidden]: [u64; 2],
    norm_after: bool,
) -> Result<TransformerBlock, ConfigError> {
    let (heads, kv_heads, head_width) = parse_head_counts(root, hidden)?;
    let (function, gated) = root.read_choice("activation", &ACTIVATIONS)?;
    Ok(TransformerBlock {
        tokens,
        hidden,
        heads,
        kv_heads,
        head_width,
        ffn: read_size_or_default(root, "ffn", 1, hidden.saturating_mul(4))?,
        function,
        gated,
        norm_bias: root.read_choice("norm", &NORMS)?,
        norm_after,
        biases: root.require_field("biases", "true or false")?.read_flag()?,
        causal: read_flag_or_default(root, "causal", true)?,
        dropout: read_flag_or_default(root, "dropout", false)?,
        rotary: false,
        qk_norm: read_flag_or_default(root, "qk_norm", false)?,
        experts: parse_expert_routing(root)?,
    })
}

/// Parses the experts that replace the MLP; returns `None` if the file has no experts.
fn parse_expert_routing(
    root: &ConfigTable<'_>,
) -> Result<Option<TotalAndChosenExpertCounts>, ConfigError> {
    let Some(field) = root.get("experts") else {
        return match root.get("experts_per_token") {
            Some(field) => {
                Err(field.invalid_value_error("experts of a token", "none without `experts`"))
            }
            None => Ok(None),
        };
    };
    let experts = field.read_integer_between(2, super::MOST)?;
    let chosen = root
        .require_field("experts_per_token", "experts that each token is sent to")?
        .read_integer_between(1, experts)?;
    Ok(Some(TotalAndChosenExpertCounts { experts, chosen }))
}

/// Parses the number of query heads, the number of KV heads, and the number of columns per head.
pub(super) fn parse_head_counts(
    root: &ConfigTable<'_>,
    hidden: u64,
) -> Result<(u64, u64, u64), ConfigError> {
    let heads = read_positive_integer(root, "heads")?;
    let kv_heads = read_size_or_default(root, "kv_heads", 1, heads)?;
    if let Some(field) = root.get("kv_heads")
        && !heads.is_multiple_of(kv_heads)
    {
        return Err(field.invalid_value_error(
            kv_heads,
            format_args!("a number that divides {heads} heads"),
        ));
    }
    if root.get("kv_rank").is_some() {
        // With latent attention, other keys give the widths of heads, so nothing uses this number.
        return Ok((heads, heads, 1));
    }
    if let Some(field) = root.get("head_width") {
        return Ok((heads, kv_heads, field.read_integer_between(1, super::MOST)?));
    }
    if !hidden.is_multiple_of(heads) {
        return Err(root.require_field("heads", "heads")?.invalid_value_error(
            heads,
            format_args!("a number that divides `hidden` = {hidden}, or `head_width` as well"),
        ));
    }
    Ok((heads, kv_heads, hidden / heads))
}

fn parse_output_head(root: &ConfigTable<'_>) -> Result<OutputHead, ConfigError> {
    let heads = [
        ("logits", "logits"),
        ("masked", "masked"),
        ("pooler", "pooler"),
    ];
    let head = root.read_or_default("head", "logits", |field| field.read_choice(&heads))?;
    match (head, root.get("tied")) {
        ("logits", _) => {
            let tied = root.require_field(
                "tied",
                "true if logits use the embedding's weights, otherwise false",
            )?;
            Ok(OutputHead::Logits {
                tied: tied.read_flag()?,
            })
        }
        (_, Some(field)) => Err(field.invalid_value_error(
            "a key for logits",
            format_args!("no such key, because the head is {head:?}"),
        )),
        ("masked", None) => Ok(OutputHead::Masked),
        _ => Ok(OutputHead::Pooler),
    }
}
