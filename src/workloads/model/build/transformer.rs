//! `kind = "transformer"`.

use super::{blocks, flag_or, size, size_or};
use crate::model::{
    ActivationFunction, ExpertRouting, ModelLayer, ModelSizes, OutputHead, PositionEncoding,
    TransformerBlock, TransformerModel,
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

/// The perceptron's function, and whether it is gated.
const ACTIVATIONS: [((ActivationFunction, bool), &str); 4] = [
    ((ActivationFunction::Gelu, false), "gelu"),
    ((ActivationFunction::Relu, false), "relu"),
    ((ActivationFunction::Silu, true), "swiglu"),
    ((ActivationFunction::Gelu, true), "geglu"),
];

/// Norms by name in files, and whether they have a bias.
const NORMS: [(bool, &str); 2] = [(true, "layernorm"), (false, "rmsnorm")];

/// Tokens of a sample, hidden size and layers.
pub(super) fn layers(
    root: &ConfigTable<'_>,
    sizes: ModelSizes,
) -> Result<(u64, Option<u64>, Vec<ModelLayer>), ConfigError> {
    let layers = blocks(root, sizes.layers)?;
    let hidden = size(root, "hidden")?;
    let sequence = size(root, "sequence")?;
    // The table of positions keeps the file's size when samples get another length.
    let rows = size_or(root, "position_rows", 1, sequence)?;
    let tokens = sizes.tokens.unwrap_or(sequence);
    let positions = [
        (PositionEncoding::Learned(rows), "learned"),
        (PositionEncoding::Rotary, "rotary"),
        (PositionEncoding::None, "none"),
    ];
    let positions = root.choice("positions", &positions)?;
    match (positions, root.get("position_rows")) {
        (PositionEncoding::Learned(rows), _) if tokens > rows => {
            return Err(root.need("sequence", "tokens of a sample")?.refuse(
                format_args!("{tokens} tokens of a sample, and learned positions for {rows}"),
                "no more tokens than positions; `position_rows` says how many are learned",
            ));
        }
        (PositionEncoding::Rotary | PositionEncoding::None, Some(field)) => {
            return Err(field.refuse(
                "rows of a table of positions",
                "none, since positions are not learned",
            ));
        }
        _ => {}
    }
    let norm_after = flag_or(root, "norm_after", false)?;
    let transformer = TransformerModel {
        layers,
        block: TransformerBlock {
            rotary: positions == PositionEncoding::Rotary,
            ..block(root, [tokens, hidden], norm_after)?
        },
        vocabulary: size(root, "vocabulary")?,
        positions,
        segments: size_or(root, "segments", 0, 0)?,
        embedding_norm: flag_or(root, "embedding_norm", false)?,
        final_norm: flag_or(root, "final_norm", !norm_after)?,
        head: head(root)?,
    };
    Ok((tokens, Some(hidden), transformer.layers()))
}

fn block(
    root: &ConfigTable<'_>,
    [tokens, hidden]: [u64; 2],
    norm_after: bool,
) -> Result<TransformerBlock, ConfigError> {
    let (heads, kv_heads, head_width) = heads(root, hidden)?;
    let (function, gated) = root.choice("activation", &ACTIVATIONS)?;
    Ok(TransformerBlock {
        tokens,
        hidden,
        heads,
        kv_heads,
        head_width,
        ffn: size_or(root, "ffn", 1, hidden.saturating_mul(4))?,
        function,
        gated,
        norm_bias: root.choice("norm", &NORMS)?,
        norm_after,
        biases: root.need("biases", "true or false")?.flag()?,
        causal: flag_or(root, "causal", true)?,
        dropout: flag_or(root, "dropout", false)?,
        rotary: false,
        qk_norm: flag_or(root, "qk_norm", false)?,
        experts: experts(root)?,
    })
}

/// Experts in place of one perceptron, if the file has them.
fn experts(root: &ConfigTable<'_>) -> Result<Option<ExpertRouting>, ConfigError> {
    let Some(field) = root.get("experts") else {
        return match root.get("experts_per_token") {
            Some(field) => Err(field.refuse("experts of a token", "none without `experts`")),
            None => Ok(None),
        };
    };
    let experts = field.between(2, super::MOST)?;
    let chosen = root
        .need("experts_per_token", "experts that each token is sent to")?
        .between(1, experts)?;
    Ok(Some(ExpertRouting { experts, chosen }))
}

/// Heads of queries, those of keys and values, and the columns of one.
pub(super) fn heads(root: &ConfigTable<'_>, hidden: u64) -> Result<(u64, u64, u64), ConfigError> {
    let heads = size(root, "heads")?;
    let kv_heads = size_or(root, "kv_heads", 1, heads)?;
    if let Some(field) = root.get("kv_heads")
        && !heads.is_multiple_of(kv_heads)
    {
        return Err(field.refuse(
            kv_heads,
            format_args!("a number that divides {heads} heads"),
        ));
    }
    if let Some(field) = root.get("head_width") {
        return Ok((heads, kv_heads, field.between(1, super::MOST)?));
    }
    if !hidden.is_multiple_of(heads) {
        return Err(root.need("heads", "heads")?.refuse(
            heads,
            format_args!("a number that divides `hidden` = {hidden}, or `head_width` as well"),
        ));
    }
    Ok((heads, kv_heads, hidden / heads))
}

fn head(root: &ConfigTable<'_>) -> Result<OutputHead, ConfigError> {
    let heads = [
        ("logits", "logits"),
        ("masked", "masked"),
        ("pooler", "pooler"),
    ];
    let head = root.or("head", "logits", |field| field.choice(&heads))?;
    match (head, root.get("tied")) {
        ("logits", _) => {
            let tied = root.need("tied", "whether logits use the embedding's weights")?;
            Ok(OutputHead::Logits { tied: tied.flag()? })
        }
        (_, Some(field)) => Err(field.refuse(
            "a key for logits",
            format_args!("none, since the head is {head:?}"),
        )),
        ("masked", None) => Ok(OutputHead::Masked),
        _ => Ok(OutputHead::Pooler),
    }
}
