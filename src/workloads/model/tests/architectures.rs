//! Checks counts and formulas against published values, for transformers with latent attention,
//! shared experts or mixed layers.

use super::load_preset_model;
use crate::model::{AttentionSpan, Model, ModelWithDefinitionProperties, OperatorKind};

/// Compares three counts of released models with published numbers: all parameters, the active
/// parameters per token (with both embeddings), and the bytes per token in a 16-bit KV cache.
#[test]
fn released_models_have_their_published_counts() {
    for (name, parameters, active, cached) in [
        ("mixtral-8x7b", 46_702_792_704, 12_879_925_248, 131_072),
        ("mixtral-8x22b", 140_620_634_112, 39_152_031_744, 229_376),
        ("grok-1", 315_684_820_992, 83_756_587_008, 262_144),
        ("deepseek-v2-lite", 15_706_484_224, 2_661_150_208, 31_104),
        ("deepseek-v2", 235_741_434_880, 21_375_800_320, 69_120),
        ("deepseek-v3", 671_026_419_200, 37_552_297_472, 70_272),
        ("kimi-k2", 1_026_408_232_448, 32_861_500_928, 70_272),
        ("qwen3-30b-a3b", 30_532_122_624, 3_353_032_704, 98_304),
        ("qwen3-235b-a22b", 235_093_634_560, 22_190_763_520, 192_512),
        ("gpt-oss-20b", 20_914_757_184, 4_187_440_704, 49_152),
        ("gpt-oss-120b", 116_829_156_672, 5_711_982_912, 73_728),
        ("llama4-scout", 107_769_861_120, 17_172_894_720, 196_608),
        ("llama4-maverick", 400_711_848_960, 17_184_691_200, 196_608),
    ] {
        let model = load_preset_model(name);
        assert_eq!(model.parameter_count(), parameters, "{name}");
        assert_eq!(model.active_parameters(), active, "{name}");
        assert_eq!(
            2 * model.kv_cache_elements_per_token_in_all_layers(),
            cached,
            "{name}"
        );
    }
    // A block has 2 x h x 4096 and 2 x h x 1024 weights in attention, 256 in attention's norms, 3 h
    // f in the MLP, and 2 h in the block's norms. Outside the blocks, the word table has V h
    // weights, and the last norm has h weights. With h = 2560 and f = 9728, the count is 36
    // (26,214,400 + 256 + 74,711,040 + 5,120) + 388,956,160 + 2,560.
    assert_eq!(
        load_preset_model("qwen3-4b").parameter_count(),
        4_022_468_096
    );
    // The models below follow Qwen3's formula. Version 0.3 of Mixtral 8x22B has 32768 vocabulary entries instead of
    // 32000, which adds 2 x 768 x 6144 weights.
    for (name, h, l, heads, f, copies) in [
        ("qwen3-0.6b", 1024, 28, 16, 3072, 1),
        ("qwen3-1.7b", 2048, 28, 16, 6144, 1),
        ("qwen3-8b", 4096, 36, 32, 12_288, 2),
    ] {
        let block = 2 * h * heads * 128 + 2 * h * 1024 + 256 + 3 * h * f + 2 * h;
        let expected = l * block + copies * 151_936 * h + h;
        assert_eq!(
            load_preset_model(name).parameter_count(),
            expected,
            "{name}"
        );
    }
    let more = load_preset_model("mixtral-8x22b-v0.3").parameter_count()
        - load_preset_model("mixtral-8x22b").parameter_count();
    assert_eq!(more, 2 * 768 * 6144);
}

fn list_operators_of_named_layer<'m>(
    model: &'m Model,
    layer: &str,
) -> &'m [crate::model::LayerOperator] {
    let mut layers = model.layers.iter();
    &layers.find(|one| one.name == layer).unwrap().operators
}

fn sum_layer_parameters_with_prefix(model: &Model, layer: &str, prefix: &str) -> u64 {
    let operators = list_operators_of_named_layer(model, layer).iter();
    let own = operators.filter(|one| one.name.starts_with(prefix));
    own.map(|one| one.parameter_count()).sum()
}

/// Three of every four blocks have linear attention. Such a block has h (2 K k + 2 V v + 2 V) weights before attention,
/// V v h after attention, t (2 K k + V v) in convolutions, 2 V in decays, and v in the norm. Every fourth block has
/// full attention, and a gate with the same number of columns as its queries. Qwen's table says that the models have 80
/// and 397 billion parameters, of which 3 and 17 billion are active.
#[test]
fn linear_attention_has_the_weights_of_its_formula() {
    for (name, h, l, [heads, values], f, words, published) in [
        (
            "qwen3-next-80b-a3b",
            2048,
            48,
            [16, 32],
            512,
            151_936,
            [80, 3],
        ),
        (
            "qwen3.5-397b-a17b",
            4096,
            60,
            [32, 64],
            1024,
            248_320,
            [397, 17],
        ),
    ] {
        let model = load_preset_model(name);
        let (keys, k, v, t) = (16, 128, 128, 4);
        let linear = h * (2 * keys * k + 2 * values * v + 2 * values)
            + values * v * h
            + t * (2 * keys * k + values * v)
            + 2 * values
            + v;
        let full = h * (2 * heads + 2 * 2) * 256 + heads * 256 * h + 2 * 256;
        assert_eq!(
            sum_layer_parameters_with_prefix(&model, "layer0", "attention"),
            linear,
            "{name}"
        );
        assert_eq!(
            sum_layer_parameters_with_prefix(&model, "layer3", "attention"),
            full,
            "{name}"
        );
        let expert = 3 * h * f;
        let block = |experts: u64| (experts + 1) * expert + 512 * h + 2 * h;
        let all =
            |experts: u64| l * block(experts) + l / 4 * (3 * linear + full) + 2 * words * h + h;
        assert_eq!(model.parameter_count(), all(512), "{name}");
        assert_eq!(model.active_parameters(), all(10), "{name}");
        let billions = |count: u64| (count as f64 / 1e9).round() as u64;
        assert!(
            billions(model.parameter_count()).abs_diff(published[0]) <= 1,
            "{name}"
        );
        assert!(
            billions(all(10) - words * h).abs_diff(published[1]) <= 1,
            "{name}"
        );
        // A quarter of the blocks cache the keys and values of 2 heads with 256 columns each. Each of the other blocks
        // stores the last three inputs of the convolutions and, for each value head, a state of 128 x 128 values in
        // single precision.
        assert_eq!(
            model.kv_cache_elements_per_token_in_all_layers(),
            l / 4 * 2 * 2 * 256,
            "{name}"
        );
        let state = values * k * v * 4 + 3 * 2 * (2 * keys * k + values * v);
        assert_eq!(
            model.linear_attention_bytes_per_sequence(2),
            l / 4 * 3 * state,
            "{name}"
        );
    }
}

/// For each token and value head, products within chunks of 64 tokens take 64 (3 k + 2 v) multiplications, and products
/// with states take 3 k v multiplications. The convolutions take t multiplications per column.
#[test]
fn linear_attention_multiplies_in_chunks_and_by_states() {
    let model = load_preset_model("qwen3-next-80b-a3b");
    let core = list_operators_of_named_layer(&model, "layer0").iter();
    let core = core
        .clone()
        .find(|one| one.name == "attention.core")
        .unwrap();
    let tokens = model.sequence;
    let head = 64 * 5 * 128 + 3 * 128 * 128;
    let convolved = 4 * (2 * 16 * 128 + 32 * 128);
    assert_eq!(
        core.multiplication_count(),
        tokens * (32 * head + convolved)
    );
    assert_eq!(core.work.kv_cache_elements_per_token(), 0);
}

/// Latent attention has h q + q + q A (n + r) + h (c + r) + c + c A (n + v) + A v h weights.
#[test]
fn latent_attention_has_the_weights_of_its_formula() {
    for (name, expected) in [
        ("deepseek-v3", 187_107_328),
        ("deepseek-v2", 149_227_520),
        ("kimi-k2", 101_124_096),
    ] {
        assert_eq!(
            sum_layer_parameters_with_prefix(&load_preset_model(name), "layer7", "attention"),
            expected,
            "{name}"
        );
    }
    let v3 = load_preset_model("deepseek-v3");
    // Each of the three dense layers has 3 x 7168 x 18432 weights. Each later layer has 256 experts
    // and a shared expert, with 3 x 7168 x 2048 weights each.
    assert_eq!(
        sum_layer_parameters_with_prefix(&v3, "layer2", "mlp"),
        3 * 7168 * 18_432
    );
    assert_eq!(sum_layer_parameters_with_prefix(&v3, "layer3", "mlp"), 0);
    assert_eq!(
        sum_layer_parameters_with_prefix(&v3, "layer3", "shared"),
        44_040_192
    );
    assert_eq!(
        sum_layer_parameters_with_prefix(&v3, "layer3", "experts"),
        256 * 44_040_192 + 7168 * 256 + 256
    );
    // An additional block predicts one more token. It equals the last block, with two additional norms, a product from
    // 2 h to h, and a final norm: 11.61 x 10^9 weights.
    let text = crate::model::PRESETS
        .iter()
        .find(|one| one.name == "deepseek-v3")
        .unwrap()
        .text;
    let more = ModelWithDefinitionProperties::parse(
        &format!("{text}\nmore_predictions = 1\n"),
        "m.toml",
        None,
    );
    let more = more.unwrap().model;
    assert_eq!(
        more.parameter_count() - v3.parameter_count(),
        11_610_068_224
    );
    assert_eq!(more.layers.len(), v3.layers.len() + 1);
    // One matrix computes the logits of both predicted tokens, and the loss covers both, so the number of
    // multiplications doubles.
    let logits = |model: &Model| model.layers.last().unwrap().multiplication_count();
    assert_eq!(logits(&more), 2 * logits(&v3));
}

/// A token takes two FLOPs for each weight that multiplies it. For each attended token, it also takes 4 A d FLOPs, or 2
/// A ((n + r) + v) FLOPs with latent vectors. With a causal mask, a token attends to (s + 1) / 2 of s tokens on
/// average.
#[test]
fn multiplications_are_those_of_active_weights_and_scores() {
    // Either every layer attends to all tokens, or every other layer attends to only 128 tokens. Here, one 8192-token
    // chunk of Llama 4 covers the whole sequence.
    let all = u64::MAX;
    for (name, heads, both, window) in [
        ("mixtral-8x7b", 32, 128 + 128, all),
        ("mixtral-8x22b", 48, 128 + 128, all),
        ("mixtral-8x22b-v0.3", 48, 128 + 128, all),
        ("grok-1", 48, 128 + 128, all),
        ("deepseek-v2-lite", 16, 192 + 128, all),
        ("deepseek-v2", 128, 192 + 128, all),
        ("deepseek-v3", 128, 192 + 128, all),
        ("kimi-k2", 64, 192 + 128, all),
        ("qwen3-0.6b", 16, 128 + 128, all),
        ("qwen3-1.7b", 16, 128 + 128, all),
        ("qwen3-4b", 32, 128 + 128, all),
        ("qwen3-8b", 32, 128 + 128, all),
        ("qwen3-14b", 40, 128 + 128, all),
        ("qwen3-32b", 64, 128 + 128, all),
        ("qwen3-30b-a3b", 32, 128 + 128, all),
        ("qwen3-235b-a22b", 64, 128 + 128, all),
        ("gpt-oss-20b", 64, 64 + 64, 128),
        ("gpt-oss-120b", 64, 64 + 64, 128),
        ("llama4-scout", 40, 128 + 128, all),
        ("llama4-maverick", 40, 128 + 128, all),
    ] {
        let model = load_preset_model(name);
        let s = model.sequence;
        let weights: u64 = model
            .layers
            .iter()
            .flat_map(|layer| &layer.operators)
            .map(|one| {
                let spec = one.work.to_axes_and_tensors();
                match one.work {
                    // Gains, biases, sinks and tables are not factors of matrix products.
                    OperatorKind::Norm { .. } | OperatorKind::Embedding { .. } => 0,
                    OperatorKind::Attention { .. } | OperatorKind::ShapedAttention { .. } => 0,
                    OperatorKind::ExpertLinear {
                        rows,
                        inputs,
                        outputs,
                        ..
                    } => inputs * outputs * (rows / s),
                    OperatorKind::ExpertDispatch { width, experts, .. } => width * experts,
                    OperatorKind::Linear {
                        inputs, outputs, ..
                    } => inputs * outputs,
                    _ => {
                        assert!(spec.weights.is_empty() || spec.name == "latent_up");
                        one.parameter_count()
                    }
                }
            })
            .sum();
        let blocks = model.layers.len() as u64 - 2;
        let reach = window.min(s);
        let narrow = reach * (reach + 1) / 2 + (s - reach) * reach;
        let pairs = blocks / 2 * narrow + blocks.div_ceil(2) * (s * (s + 1) / 2);
        let found = model.multiplication_count() - model.causally_skipped_multiplications();
        assert_eq!(found, s * weights + pairs * heads * both, "{name}");
    }
}

/// For each earlier token, decoding takes 2 A (c + r) + 2 A c FLOPs, which is 278,528 in a layer of
/// DeepSeek-V3. Without latent vectors, decoding takes 4 A d FLOPs per earlier token.
#[test]
fn decode_multiplications_of_latent_attention_use_latent_vectors() {
    let core = |name: &str| {
        let model = load_preset_model(name);
        let operators = list_operators_of_named_layer(&model, "layer0").to_vec();
        operators
            .into_iter()
            .find(|one| one.name == "attention.core")
            .unwrap()
            .work
    };
    assert_eq!(
        2 * core("deepseek-v3").multiplications_per_decode_pair(),
        278_528
    );
    assert_eq!(
        2 * core("qwen3-235b-a22b").multiplications_per_decode_pair(),
        4 * 64 * 128
    );
    assert_eq!(
        2 * core("gpt-oss-20b").multiplications_per_decode_pair(),
        4 * 64 * 64
    );
}

/// Counts token pairs one by one, and compares the counts with each span's formula.
#[test]
fn causal_pairs_of_windows_and_pieces_match_a_pair_by_pair_count() {
    for tokens in 1..40_u64 {
        for reach in 1..45_u64 {
            let count = |meets: &dyn Fn(u64, u64) -> bool| {
                let pairs = (0..tokens).flat_map(|query| (0..=query).map(move |key| (query, key)));
                pairs.filter(|(query, key)| meets(*query, *key)).count() as u128
            };
            let window = count(&|query, key| query - key < reach);
            assert_eq!(AttentionSpan::Window(reach).causal_pairs(tokens), window);
            let piece = count(&|query, key| query / reach == key / reach);
            assert_eq!(AttentionSpan::Piece(reach).causal_pairs(tokens), piece);
        }
    }
    // In every second layer of GPT-OSS, a token attends to 128 tokens, so there are 128 x 129 / 2 +
    // (4096 - 128) x 128 pairs.
    let model = load_preset_model("gpt-oss-20b");
    let found = |layer: &str| {
        let all = list_operators_of_named_layer(&model, layer).iter();
        let attention = all.filter(|one| one.work.to_axes_and_tensors().is_attention());
        let counts = attention.map(|one| {
            let work = &one.work;
            work.multiplication_count() - work.causally_skipped_multiplications()
        });
        counts.sum::<u64>()
    };
    let width = 64 * (64 + 64);
    assert_eq!(
        found("layer0"),
        (128 * 129 / 2 + (4096 - 128) * 128) * width
    );
    assert_eq!(found("layer1"), 4096 * 4097 / 2 * width);
}

#[test]
fn keys_that_need_another_key_are_refused_without_it() {
    let text = |more: &str| {
        format!(
            "name = \"m\"\nsource = \"s\"\nkind = \"transformer\"\nlayers = 2\nhidden = 8\nheads = 2\nvocabulary = 8\n\
             sequence = 8\nactivation = \"swiglu\"\nnorm = \"rmsnorm\"\npositions = \"rotary\"\nbiases = false\ntied = false\n{more}"
        )
    };
    for (more, expected) in [
        (
            "linear_taps = 4",
            "key `linear_taps`: found this key, expected this key only with `linear_value_heads`",
        ),
        (
            "linear_value_heads = 4\nwindow = 4",
            "key `window`: found this key, expected no such key with `linear_value_heads`",
        ),
        (
            "linear_value_heads = 4\nlinear_key_heads = 3",
            "key `linear_value_heads`: found 4, expected a multiple of 3 heads of keys",
        ),
        (
            "shared_ffn = 4",
            "m.toml:14: key `shared_ffn`: found this key, expected this key only with `experts`",
        ),
        (
            "full_every = 2",
            "key `full_every`: found this key, expected this key only with `window`",
        ),
        (
            "value_width = 4",
            "key `value_width`: found this key, expected this key only with `kv_rank`",
        ),
        (
            "kv_rank = 4\nkv_heads = 2",
            "key `kv_heads`: found this key, expected no such key with `kv_rank`",
        ),
        ("kv_rank = 4", "key `plain_width`: found nothing"),
        (
            "window = 4\npiece = 4",
            "key `piece`: found both this key and `window`, expected one of the two",
        ),
        (
            "experts = 4\nexperts_per_token = 2\ngroups = 3",
            "key `groups`: found 3, expected a number that divides 4 experts",
        ),
        (
            "experts = 4\nexperts_per_token = 2\ngroups_per_token = 1",
            "key `groups_per_token`: found this key",
        ),
        (
            "experts = 4\nexperts_per_token = 2\nscores = \"relu\"",
            "key `scores`: found \"relu\", expected one of softmax, sigmoid",
        ),
        ("window = 0", "key `window`: found"),
    ] {
        let error = ModelWithDefinitionProperties::parse(&text(more), "m.toml", None)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}\n{expected}");
    }
}
