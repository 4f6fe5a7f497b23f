//! Tests models from `config.json`: they must equal the presets. Unknown keys must be rejected.

use super::load_preset_model;
use crate::model::{Model, ModelWithDefinitionProperties};

fn parse_hub_config(text: &str) -> Model {
    let found = ModelWithDefinitionProperties::parse(text, "DeepSeek-V3/config.json", None);
    found.unwrap_or_else(|error| panic!("{error}")).model
}

const V3: &str = r#"{
  "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1,
  "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02,
  "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v3",
  "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
  "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
  "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64, "quantization_config": {"fmt": "e4m3"}, "rms_norm_eps": 1e-06, "rope_scaling": {"factor": 40},
  "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false,
  "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "transformers_version": "4.33.1", "use_cache": true,
  "v_head_dim": 128, "vocab_size": 129280
}"#;

const GPT_OSS: &str = r#"{
  "attention_bias": true, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
  "initial_context_length": 4096, "intermediate_size": 2880,
  "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
  "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4,
  "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false,
  "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false, "vocab_size": 201088
}"#;

const QWEN3: &str = r#"{
  "attention_bias": false, "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
  "intermediate_size": 12288, "max_position_embeddings": 40960, "max_window_layers": 94, "mlp_only_layers": [],
  "model_type": "qwen3_moe", "moe_intermediate_size": 1536, "norm_topk_prob": true, "num_attention_heads": 64, "num_experts": 128,
  "num_experts_per_tok": 8, "num_hidden_layers": 94, "num_key_value_heads": 4, "sliding_window": null,
  "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936
}"#;

const QWEN3_NEXT: &str = r#"{
  "architectures": ["Qwen3NextForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1, "full_attention_interval": 4,
  "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5120, "linear_conv_kernel_dim": 4,
  "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
  "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_next", "moe_intermediate_size": 512,
  "norm_topk_prob": true, "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48,
  "num_key_value_heads": 2, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_theta": 10000000,
  "shared_expert_intermediate_size": 512, "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936
}"#;

/// The text part of Qwen3.5's configuration, with eight of sixty blocks.
const QWEN35: &str = r#"{
  "attn_output_gate": true, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 4096,
  "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention",
    "linear_attention", "linear_attention", "linear_attention", "full_attention"],
  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 64,
  "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144,
  "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 1024, "num_attention_heads": 32, "num_experts": 512,
  "num_experts_per_tok": 10, "num_hidden_layers": 8, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
  "shared_expert_intermediate_size": 1024, "tie_word_embeddings": false, "vocab_size": 248320
}"#;

const MAVERICK: &str = r#"{
  "model_type": "llama4",
  "text_config": {
    "attention_bias": false, "attention_chunk_size": 8192, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
    "interleave_moe_layer_step": 2, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "max_position_embeddings": 1048576, "model_type": "llama4_text", "no_rope_layers": [], "num_attention_heads": 40,
    "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 128, "use_qk_norm": false,
    "vocab_size": 202048
  }
}"#;

const QWEN2: &str = r#"{
  "hidden_act": "silu", "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 32768, "model_type": "qwen2",
  "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "sliding_window": 131072,
  "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 152064
}"#;

#[test]
fn files_of_released_models_are_their_presets() {
    let v3 = parse_hub_config(V3);
    assert_eq!(v3.name, "DeepSeek-V3");
    assert_eq!(v3.sequence, 163_840);
    // The file says that the model predicts a second token.
    assert_eq!(
        v3.parameter_count(),
        load_preset_model("deepseek-v3").parameter_count() + 11_610_068_224
    );
    let oss = parse_hub_config(GPT_OSS);
    let layers = |model: &Model| {
        let all = model.layers.iter();
        all.map(|layer| (layer.name.clone(), layer.parameter_count()))
            .collect::<Vec<_>>()
    };
    assert_eq!(layers(&oss), layers(&load_preset_model("gpt-oss-20b")));
    assert_eq!(
        layers(&parse_hub_config(QWEN3)),
        layers(&load_preset_model("qwen3-235b-a22b"))
    );
    assert_eq!(
        layers(&parse_hub_config(MAVERICK)),
        layers(&load_preset_model("llama4-maverick"))
    );
    assert_eq!(
        parse_hub_config(QWEN3_NEXT).layers,
        load_preset_model("qwen3-next-80b-a3b").layers
    );
    let eight = parse_hub_config(QWEN35);
    let whole = load_preset_model("qwen3.5-397b-a17b");
    assert_eq!(eight.layers[..9], whole.layers[..9]);
    let state = "\"mamba_ssm_dtype\": \"float32\"";
    let half = parse_hub_config(&QWEN35.replace(state, "\"mamba_ssm_dtype\": \"bfloat16\""));
    assert!(
        half.linear_attention_bytes_per_sequence(2) < eight.linear_attention_bytes_per_sequence(2)
    );
    // In Qwen2.5-7B, only the products before attention have biases.
    assert_eq!(parse_hub_config(QWEN2).parameter_count(), 7_615_616_512);
    // The file gives the preset's operators, even for samples of another length.
    let at = |tokens| {
        ModelWithDefinitionProperties::parse(GPT_OSS, "config.json", Some(tokens))
            .unwrap()
            .model
    };
    assert_eq!(
        at(4096).layers[3].operators,
        load_preset_model("gpt-oss-20b").layers[3].operators
    );
    assert_eq!(
        at(4096).layers[4].operators,
        load_preset_model("gpt-oss-20b").layers[4].operators
    );
}

#[test]
fn unknown_hub_config_keys_are_refused_by_name() {
    let refusal = |text: &str| {
        ModelWithDefinitionProperties::parse(text, "config.json", None)
            .unwrap_err()
            .to_string()
    };
    let with =
        |key: &str, value: &str| QWEN2.replacen('{', &format!("{{\n  \"{key}\": {value},"), 1);
    let without = |key: &str| QWEN2.replace(&format!("\"{key}\""), "\"use_cache\"");
    for (text, expected) in [
        (
            with("mamba_d_state", "16"),
            "config.json:2: key `mamba_d_state`: found an unknown key, expected the keys of qwen2; try: remove",
        ),
        (
            QWEN2.replace("qwen2", "rwkv"),
            "config.json:2: key `model_type`: found \"rwkv\", expected one of llama, mistral,",
        ),
        (
            QWEN35.replace(
                "\"linear_num_key_heads\": 16",
                "\"linear_num_key_heads\": 12",
            ),
            "key `linear_num_value_heads`: found 64, expected a multiple of linear_num_key_heads",
        ),
        (
            QWEN35.replace(
                "\"full_attention_interval\": 4",
                "\"full_attention_interval\": 3",
            ),
            "expected full attention in every n-th layer",
        ),
        (
            without("hidden_size"),
            "key `hidden_size`: found nothing, expected a whole number",
        ),
        (
            QWEN2.replace("3584", "-3"),
            "config.json:2: key `hidden_size`: found -3, expected a whole number from 1",
        ),
        (
            QWEN2.replace("\"silu\"", "\"relu6\""),
            "key `hidden_act`: found \"relu6\", expected silu or gelu",
        ),
        (
            QWEN2.replace(
                "\"use_sliding_window\": false",
                "\"use_sliding_window\": true",
            ),
            "key `use_sliding_window`: found true",
        ),
        (
            with("vision_config", "{}"),
            "key `vision_config`: found an unknown key",
        ),
        (
            MAVERICK.replacen('{', "{\"vision_config\": {},", 1),
            "key `vision_config`: found {}, expected no such part",
        ),
        (
            GPT_OSS.replace(
                "[\"sliding_attention\", \"full",
                "[\"full_attention\", \"full",
            ),
            "key `layer_types`",
        ),
        ("{".to_owned(), "config.json:1: not TOML: nor JSON: EOF"),
    ] {
        let error = refusal(&text);
        assert!(error.contains(expected), "{error}\n{expected}");
    }
}
