//! Models from Hugging Face's `config.json`.
//!
//! The parser reads the keys on which the model's sizes depend. It ignores keys that are known not to affect sizes. It
//! rejects every other key by name.

use super::MOST_LAYERS;
use crate::model::{
    ActivationFunction, AttentionSpan, DeltaAttentionSizes, ExpertScoringAndGroupRule,
    ExtendedTransformerModel, LatentAttentionSizes, Model, ModelError, OutputHead,
    PositionEncoding, TokenAndLayerCountOverrides, TotalAndChosenExpertCounts, TransformerBlock,
    TransformerModel,
};
use chakram_base::config::{ConfigError, quote_and_truncate_for_message};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Supported values of the key `model_type`.
const KINDS: [&str; 17] = [
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_text",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "deepseek_v2",
    "deepseek_v3",
    "kimi_k2",
    "gpt_oss",
    "llama4",
    "llama4_text",
];

/// Keys that affect no size: token ids, scaling factors, and settings for saving and running the
/// model.
const NO_SIZES: &[&str] = &[
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_scale",
    "attn_temperature_tuning",
    "auto_map",
    "aux_loss_alpha",
    "bos_token_id",
    "cache_implementation",
    "dtype",
    "eos_token_id",
    "ep_size",
    "floor_scale",
    "for_llm_compression",
    "initial_context_length",
    "initializer_range",
    "max_window_layers",
    "model_type",
    "norm_topk_prob",
    "mtp_use_dedicated_embeddings",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "partial_rotary_factor",
    "pretraining_tp",
    "quantization_config",
    "return_dict",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "routed_scaling_factor",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "seq_aux",
    "swiglu_limit",
    "torch_dtype",
    "transformers_version",
    "unsloth_fixed",
    "use_cache",
    "use_flash_attn",
];

/// A `config.json`, and the keys read so far.
struct KeyTrackingHubConfig<'t> {
    text: &'t str,
    file: &'t str,
    keys: Map<String, Value>,
    /// Keys read so far.
    known: RefCell<BTreeSet<String>>,
}

type HubConfigReadResult<T> = Result<T, ConfigError>;

impl KeyTrackingHubConfig<'_> {
    fn error_at(&self, key: &str, why: String) -> ConfigError {
        let at = self.text.find(&format!("\"{key}\"")).unwrap_or(0);
        ConfigError::Key {
            file: self.file.to_owned(),
            line: self.text[..at].lines().count().max(1),
            key: key.to_owned(),
            why,
        }
    }

    /// Returns the value of `key`, or `None` if the key is missing or its value is null.
    fn value_of(&self, key: &str) -> Option<&Value> {
        self.known.borrow_mut().insert(key.to_owned());
        self.keys.get(key).filter(|value| !value.is_null())
    }

    fn invalid_value<T>(&self, key: &str, expected: &str) -> HubConfigReadResult<T> {
        let found = self.keys.get(key).map_or("nothing".to_owned(), |value| {
            let text = value.to_string();
            text.chars().take(80).collect()
        });
        Err(self.error_at(key, format!("found {found}, expected {expected}")))
    }

    fn read_size(&self, key: &str) -> HubConfigReadResult<Option<u64>> {
        let expected = "a whole number from 1 to 1000000000000";
        match self.value_of(key) {
            None => Ok(None),
            Some(value) => match value.as_u64().filter(|n| (1..=super::MOST).contains(n)) {
                Some(size) => Ok(Some(size)),
                None => self.invalid_value(key, expected),
            },
        }
    }

    fn require_size(&self, key: &str) -> HubConfigReadResult<u64> {
        match self.read_size(key)? {
            Some(size) => Ok(size),
            None => self.invalid_value(key, "a whole number, 1 or more"),
        }
    }

    fn read_count(&self, key: &str) -> HubConfigReadResult<u64> {
        match self.value_of(key) {
            None => Ok(0),
            Some(value) => match value.as_u64().filter(|n| *n <= super::MOST) {
                Some(count) => Ok(count),
                None => self.invalid_value(key, "a whole number"),
            },
        }
    }

    fn read_flag(&self, key: &str, default: bool) -> HubConfigReadResult<bool> {
        match self.value_of(key) {
            None => Ok(default),
            Some(value) => match value.as_bool() {
                Some(flag) => Ok(flag),
                None => self.invalid_value(key, "true or false"),
            },
        }
    }

    fn read_text_value(&self, key: &str) -> HubConfigReadResult<Option<&str>> {
        match self.value_of(key) {
            None => Ok(None),
            Some(value) => match value.as_str() {
                Some(word) => Ok(Some(word)),
                None => self.invalid_value(key, "a text"),
            },
        }
    }

    /// Returns the size given by the first of `keys` that is in the file.
    fn read_first_size(&self, keys: &[&str]) -> HubConfigReadResult<Option<u64>> {
        let found: HubConfigReadResult<Vec<_>> =
            keys.iter().map(|key| self.read_size(key)).collect();
        Ok(found?.into_iter().flatten().next())
    }

    /// Rejects keys that were not read, unless they are known not to affect sizes.
    fn reject_unread_keys(&self) -> HubConfigReadResult<()> {
        let known = self.known.borrow();
        let unknown = |key: &&String| !known.contains(*key) && !NO_SIZES.contains(&key.as_str());
        match self.keys.keys().find(unknown) {
            None => Ok(()),
            Some(key) => {
                let why = format!(
                    "found an unknown key, expected the keys of {}; try: remove the key if no size \
                     depends on it, or describe the model in TOML",
                    self.keys
                        .get("model_type")
                        .and_then(Value::as_str)
                        .unwrap_or("the model")
                );
                Err(self.error_at(key, why))
            }
        }
    }
}

/// Parses the model in `text`. Error messages call the text `file`. Returns the hidden size and the model.
pub(super) fn parse_hidden_size_and_model(
    text: &str,
    file: &str,
    sizes: TokenAndLayerCountOverrides,
) -> Result<(u64, Model), ModelError> {
    let syntax = |line: usize, why: String| ConfigError::Syntax {
        file: file.to_owned(),
        line,
        why,
    };
    let value: Value = serde_json::from_str(text)
        .map_err(|error| syntax(error.line().max(1), format!("nor JSON: {error}")))?;
    let Value::Object(keys) = value else {
        return Err(syntax(1, "nor a JSON object".to_owned()).into());
    };
    let config = KeyTrackingHubConfig {
        text,
        file,
        keys,
        known: RefCell::default(),
    };
    let config = text_config(config)?;
    let architecture = read_transformer_model(&config, sizes)?;
    config.reject_unread_keys()?;
    let kind = config.read_text_value("model_type")?.unwrap_or("model");
    let base = architecture.base;
    let model = Model {
        name: hub_model_name_from_folder_or_type(file, kind),
        source: format!("{file}, a config.json of {kind}"),
        sequence: base.block.tokens,
        layers: architecture.expand_layers(),
    };
    Ok((base.block.hidden, model))
}

/// Returns the part for the text transformer of a multimodal model; otherwise, the whole file.
fn text_config(config: KeyTrackingHubConfig<'_>) -> HubConfigReadResult<KeyTrackingHubConfig<'_>> {
    let Some(Value::Object(inner)) = config.keys.get("text_config") else {
        return Ok(config);
    };
    for key in ["vision_config", "audio_config"] {
        if config.keys.get(key).is_some_and(|value| !value.is_null()) {
            return config.invalid_value(
                key,
                "no such part; try a file with only the text_config, the transformer over tokens",
            );
        }
    }
    let mut keys = inner.clone();
    for (key, value) in &config.keys {
        if key != "text_config" && !keys.contains_key(key) {
            keys.insert(key.clone(), value.clone());
        }
    }
    Ok(KeyTrackingHubConfig { keys, ..config })
}

/// Returns a name for the model: the folder of its file or, if the path has none, its model type.
fn hub_model_name_from_folder_or_type(file: &str, kind: &str) -> String {
    let folder = std::path::Path::new(file).parent();
    let folder = folder.and_then(|folder| folder.file_name());
    let folder = folder.and_then(|name| name.to_str());
    folder
        .filter(|name| *name != "." && !name.is_empty())
        .unwrap_or(kind)
        .to_owned()
}

fn read_transformer_model(
    config: &KeyTrackingHubConfig<'_>,
    sizes: TokenAndLayerCountOverrides,
) -> Result<ExtendedTransformerModel, ModelError> {
    let kind = config.read_text_value("model_type")?.unwrap_or_default();
    if !KINDS.contains(&kind) {
        let why = format!(
            "found {}, expected one of {}; other models are described in TOML",
            quote_and_truncate_for_message(kind),
            KINDS.join(", ")
        );
        return Err(config.error_at("model_type", why).into());
    }
    let layers = sizes
        .layers
        .unwrap_or(config.require_size("num_hidden_layers")?);
    if !(1..=MOST_LAYERS).contains(&layers) {
        let why = format!("found {layers}, expected a whole number from 1 to {MOST_LAYERS}");
        return Err(config.error_at("num_hidden_layers", why).into());
    }
    let hidden = config.require_size("hidden_size")?;
    let heads = config.require_size("num_attention_heads")?;
    let latent = read_latent_attention(config)?;
    let head_width = match (latent, config.read_size("head_dim")?) {
        (Some(_), _) => 1,
        (None, Some(width)) => width,
        (None, None) if hidden.is_multiple_of(heads) => hidden / heads,
        (None, None) => config.invalid_value("head_dim", "columns of a head")?,
    };
    let kv_heads = config.read_size("num_key_value_heads")?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        config.invalid_value(
            "num_key_value_heads",
            "a number that divides num_attention_heads",
        )?;
    }
    let longest = config.require_size("max_position_embeddings")?;
    let tokens = sizes.tokens.unwrap_or(longest);
    let biases = read_biases(config, kind)?;
    let experts = read_expert_routing(config)?;
    let function = match config.read_text_value("hidden_act")? {
        None | Some("silu" | "swish") if kind == "gpt_oss" => ActivationFunction::ClampedSilu,
        None | Some("silu" | "swish") => ActivationFunction::Silu,
        Some("gelu" | "gelu_new" | "gelu_pytorch_tanh") => ActivationFunction::Gelu,
        Some(_) => config.invalid_value("hidden_act", "silu or gelu")?,
    };
    let dense_ffn = dense_ffn(config, kind)?;
    let ffn = match (experts, config.read_size("moe_intermediate_size")?) {
        (Some(_), Some(own)) => own,
        (Some(_), None) => config.require_size("intermediate_size")?,
        (None, _) => dense_ffn,
    };
    let block = TransformerBlock {
        tokens,
        hidden,
        heads,
        kv_heads: if latent.is_some() { heads } else { kv_heads },
        head_width,
        ffn,
        function,
        gated: true,
        norm_bias: false,
        norm_after: false,
        biases: biases.1,
        causal: true,
        dropout: false,
        rotary: true,
        qk_norm: kind.starts_with("qwen3"),
        experts,
    };
    // These norms of heads have no gains, and so no weights; this call only marks the key as read.
    config.value_of("use_qk_norm");
    let base = TransformerModel {
        layers,
        block,
        vocabulary: config.require_size("vocab_size")?,
        positions: PositionEncoding::Rotary,
        segments: 0,
        embedding_norm: false,
        final_norm: true,
        head: OutputHead::Logits {
            tied: config.read_flag("tie_word_embeddings", false)?,
        },
    };
    let delta = read_delta_attention(config)?;
    let (span, full_every) = match delta {
        None => read_attention_span(config, kind, layers)?,
        Some(_) => (AttentionSpan::All, full_attention_interval(config, layers)?),
    };
    let shared = config.read_count("n_shared_experts")?;
    let shared_ffn = config.read_count("shared_expert_intermediate_size")?;
    let drafts = ["num_nextn_predict_layers", "mtp_num_hidden_layers"];
    let one = u64::from(matches!(kind, "llama4" | "llama4_text") && experts.is_some());
    Ok(ExtendedTransformerModel {
        latent,
        delta,
        output_gate: config.read_flag("attn_output_gate", delta.is_some())?,
        qkv_biases: biases.0,
        sinks: kind == "gpt_oss",
        span,
        full_every,
        shared_ffn: (shared + one).saturating_mul(ffn).max(shared_ffn),
        router: read_router_rule(config, kind)?,
        dense_layers: config.read_count("first_k_dense_replace")?,
        experts_every: experts_every(config, layers)?,
        dense_ffn,
        more_predictions: config
            .read_count(drafts[0])?
            .max(config.read_count(drafts[1])?),
        ..ExtendedTransformerModel::from_plain_transformer(base)
    })
}

fn read_latent_attention(
    config: &KeyTrackingHubConfig<'_>,
) -> HubConfigReadResult<Option<LatentAttentionSizes>> {
    let Some(kv_rank) = config.read_size("kv_lora_rank")? else {
        return Ok(None);
    };
    Ok(Some(LatentAttentionSizes {
        query_rank: config.read_size("q_lora_rank")?.unwrap_or(0),
        kv_rank,
        plain: config.require_size("qk_nope_head_dim")?,
        turned: config.require_size("qk_rope_head_dim")?,
        values: config.require_size("v_head_dim")?,
    }))
}

fn read_delta_attention(
    config: &KeyTrackingHubConfig<'_>,
) -> HubConfigReadResult<Option<DeltaAttentionSizes>> {
    let Some(value_heads) = config.read_size("linear_num_value_heads")? else {
        return Ok(None);
    };
    let key_heads = config.require_size("linear_num_key_heads")?;
    if !value_heads.is_multiple_of(key_heads) {
        config.invalid_value(
            "linear_num_value_heads",
            "a multiple of linear_num_key_heads",
        )?;
    }
    Ok(Some(DeltaAttentionSizes {
        key_heads,
        value_heads,
        key_width: config.require_size("linear_key_head_dim")?,
        value_width: config.require_size("linear_value_head_dim")?,
        taps: config.require_size("linear_conv_kernel_dim")?,
        state_bytes: match config.read_text_value("mamba_ssm_dtype")? {
            None | Some("float32") => 4,
            Some("bfloat16" | "float16") => 2,
            Some(_) => config.invalid_value("mamba_ssm_dtype", "float32, bfloat16 or float16")?,
        },
    }))
}

/// Returns the period of full attention, in layers. The last layer of each period has full attention, and the others
/// have linear attention.
fn full_attention_interval(
    config: &KeyTrackingHubConfig<'_>,
    layers: u64,
) -> HubConfigReadResult<u64> {
    config.value_of("sliding_window");
    if config.read_flag("use_sliding_window", false)? {
        config.invalid_value("use_sliding_window", "false beside linear attention")?;
    }
    let stated = config.read_size("full_attention_interval")?;
    let Some(types) = config.value_of("layer_types") else {
        return Ok(stated.unwrap_or(4));
    };
    let words: Option<Vec<&str>> = types
        .as_array()
        .and_then(|all| all.iter().map(Value::as_str).collect());
    let full = words.unwrap_or_default();
    let full: Vec<bool> = full.iter().map(|word| *word == "full_attention").collect();
    let first = full.iter().position(|full| *full);
    let every = stated.unwrap_or(first.map_or(layers + 1, |first| first as u64 + 1));
    let regular = (1..).zip(&full);
    let mut odd = regular.filter(|(number, full)| u64::is_multiple_of(*number, every) != **full);
    match full.is_empty() || odd.next().is_some() {
        true => config.invalid_value("layer_types", "full attention in every n-th layer"),
        false => Ok(every),
    }
}

/// Returns whether the matrix products before attention have biases, and whether all products do.
fn read_biases(config: &KeyTrackingHubConfig<'_>, kind: &str) -> HubConfigReadResult<(bool, bool)> {
    let attention = config.read_flag("attention_bias", false)?;
    if config.read_flag("mlp_bias", false)? && !attention {
        config.invalid_value("mlp_bias", "false without attention_bias")?;
    }
    Ok(match kind {
        "qwen2" => (true, false),
        _ => (attention, attention),
    })
}

fn read_expert_routing(
    config: &KeyTrackingHubConfig<'_>,
) -> HubConfigReadResult<Option<TotalAndChosenExpertCounts>> {
    let experts =
        config.read_first_size(&["num_local_experts", "num_experts", "n_routed_experts"])?;
    let chosen = config.read_first_size(&["num_experts_per_tok", "experts_per_token"])?;
    match (experts, chosen) {
        (None, _) => Ok(None),
        (Some(experts), Some(chosen)) if chosen <= experts => {
            Ok(Some(TotalAndChosenExpertCounts { experts, chosen }))
        }
        (Some(_), _) => config.invalid_value(
            "num_experts_per_tok",
            "the number of experts per token, at most the number of experts",
        ),
    }
}

fn dense_ffn(config: &KeyTrackingHubConfig<'_>, kind: &str) -> HubConfigReadResult<u64> {
    let own = match config.read_size("intermediate_size")? {
        Some(own) => own,
        // If all blocks have experts, the file may state only the experts' size.
        None => match config.read_size("moe_intermediate_size")? {
            Some(own) => own,
            None => config.require_size("intermediate_size")?,
        },
    };
    let dense = config.read_size("intermediate_size_mlp")?;
    Ok(match kind {
        "llama4" | "llama4_text" => dense.unwrap_or(own),
        _ => own,
    })
}

fn read_router_rule(
    config: &KeyTrackingHubConfig<'_>,
    kind: &str,
) -> HubConfigReadResult<ExpertScoringAndGroupRule> {
    let sigmoid = match config.read_text_value("scoring_func")? {
        None => matches!(kind, "llama4" | "llama4_text"),
        Some("softmax") => false,
        Some("sigmoid") => true,
        Some(_) => config.invalid_value("scoring_func", "softmax or sigmoid")?,
    };
    let correction = match config.read_text_value("topk_method")? {
        None | Some("greedy" | "group_limited_greedy") => false,
        Some("noaux_tc") => true,
        Some(_) => {
            config.invalid_value("topk_method", "greedy, group_limited_greedy or noaux_tc")?
        }
    };
    let groups = config.read_count("n_group")?;
    let chosen_groups = match config.read_count("topk_group")? {
        0 => groups,
        chosen => chosen,
    };
    Ok(ExpertScoringAndGroupRule {
        bias: kind == "gpt_oss",
        correction,
        sigmoid,
        groups,
        chosen_groups,
    })
}

/// Returns the period of experts, in layers; the last layer of each period has experts.
fn experts_every(config: &KeyTrackingHubConfig<'_>, layers: u64) -> HubConfigReadResult<u64> {
    let keys = [
        "interleave_moe_layer_step",
        "moe_layer_freq",
        "decoder_sparse_step",
    ];
    let every = config.read_first_size(&keys)?.unwrap_or(1);
    for key in ["mlp_only_layers", "moe_layers"] {
        let Some(value) = config.value_of(key) else {
            continue;
        };
        let listed: Option<Vec<u64>> = value
            .as_array()
            .map(|all| all.iter().filter_map(Value::as_u64).collect());
        let regular: Vec<u64> = (0..layers).filter(|i| (i + 1) % every == 0).collect();
        let is_regular = listed.is_some_and(|listed| match key {
            "mlp_only_layers" => listed.is_empty(),
            _ => listed == regular,
        });
        if !is_regular {
            config.invalid_value(
                key,
                "no such list, or the layers that follow from the step between them",
            )?;
        }
    }
    Ok(every)
}

/// Returns the attention span of layers without full attention, and the period of full attention in layers. The last
/// layer of each period has full attention.
fn read_attention_span(
    config: &KeyTrackingHubConfig<'_>,
    kind: &str,
    layers: u64,
) -> HubConfigReadResult<(AttentionSpan, u64)> {
    let window = config.read_size("sliding_window")?;
    let piece = config.read_size("attention_chunk_size")?;
    let used = config.read_flag("use_sliding_window", !kind.starts_with("qwen"))?;
    let types = config.value_of("layer_types");
    let turned = config.value_of("no_rope_layers").and_then(Value::as_array);
    let interval = config.read_size("no_rope_layer_interval")?;
    let span = match (window.filter(|_| used), piece) {
        (Some(window), None) => AttentionSpan::Window(window),
        (None, Some(piece)) => AttentionSpan::Piece(piece),
        (None, None) => AttentionSpan::All,
        (Some(_), Some(_)) => {
            config.invalid_value("attention_chunk_size", "none beside sliding_window")?
        }
    };
    if kind.starts_with("qwen") && span != AttentionSpan::All {
        config.invalid_value(
            "use_sliding_window",
            "false, because the layers with a window are unknown",
        )?;
    }
    let full: Vec<bool> = match (types, turned, interval) {
        (Some(types), _, _) => {
            let words: Option<Vec<&str>> = types
                .as_array()
                .and_then(|all| all.iter().map(Value::as_str).collect());
            match words {
                Some(words) => words.iter().map(|word| *word == "full_attention").collect(),
                None => config.invalid_value("layer_types", "a list of kinds of attention")?,
            }
        }
        // A zero marks a layer without rotary embedding, which has full attention.
        (None, Some(turned), _) if !turned.is_empty() => {
            turned.iter().map(|one| one.as_u64() == Some(0)).collect()
        }
        (None, _, Some(every)) => (0..layers).map(|i| (i + 1) % every == 0).collect(),
        (None, _, None) if matches!(kind, "llama4" | "llama4_text") => {
            (0..layers).map(|i| (i + 1) % 4 == 0).collect()
        }
        (None, _, None) => return Ok((span, 0)),
    };
    let every = full
        .iter()
        .position(|full| *full)
        .map_or(0, |first| first as u64 + 1);
    let regular = |(i, full): (u64, &bool)| *full == (every > 0 && (i + 1) % every == 0);
    if span == AttentionSpan::All || full.iter().all(|full| *full) {
        return Ok((AttentionSpan::All, 0));
    }
    if (0..).zip(&full).all(regular) {
        return Ok((span, every));
    }
    config.invalid_value("layer_types", "full attention in every n-th layer")
}
