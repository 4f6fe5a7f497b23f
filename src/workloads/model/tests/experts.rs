//! Tests models with experts: their weights, multiplications, saved bytes, and errors for invalid
//! files.

use super::files::{find_preset_text, parse_model_text};
use super::load_preset_model;
use crate::model::{LayerRole, OperatorKind};

#[test]
fn mixtral_parameter_counts_match_released_models() {
    // A block has h (2 A d + 2 K d) weights in attention, E experts with 3 h f weights each, a
    // router with h E weights, and two gains. Outside the blocks, there are two tables with V h
    // weights each, and a final gain with h weights.
    let mixtral = |h: u64, l: u64, a: u64, f: u64| {
        let (kv, d, experts, v) = (8, 128, 8, 32_000);
        let block = h * (2 * a * d + 2 * kv * d) + experts * 3 * h * f + h * experts + 2 * h;
        2 * v * h + l * block + h
    };
    for (name, formula, released) in [
        (
            "mixtral-8x7b",
            mixtral(4096, 32, 32, 14_336),
            46_702_792_704,
        ),
        (
            "mixtral-8x22b",
            mixtral(6144, 56, 48, 16_384),
            140_620_634_112,
        ),
    ] {
        assert_eq!(formula, released, "{name}");
        assert_eq!(
            load_preset_model(name).parameter_count(),
            released,
            "{name}"
        );
    }
}

#[test]
fn qwen_parameter_counts_match_released_models() {
    // The counts follow Mixtral's formula, except that heads have d = 128 columns, and queries and
    // keys each have a gain of d weights. The block has either one MLP with 3 h f weights, or a
    // router and experts with 3 h f weights each.
    let qwen = |h: u64, l: u64, [a, kv]: [u64; 2], f: u64, experts: u64| {
        let (v, d) = (151_936, 128);
        let router = if experts > 1 { h * experts } else { 0 };
        let block = h * (2 * a * d + 2 * kv * d) + 2 * d + experts * 3 * h * f + router + 2 * h;
        2 * v * h + l * block + h
    };
    for (name, formula, released) in [
        (
            "qwen3-14b",
            qwen(5120, 40, [40, 8], 17_408, 1),
            14_768_307_200,
        ),
        (
            "qwen3-32b",
            qwen(5120, 64, [64, 8], 25_600, 1),
            32_762_123_264,
        ),
        (
            "qwen3-30b-a3b",
            qwen(2048, 48, [32, 4], 768, 128),
            30_532_122_624,
        ),
        (
            "qwen3-235b-a22b",
            qwen(4096, 94, [64, 4], 1_536, 128),
            235_093_634_560,
        ),
    ] {
        assert_eq!(formula, released, "{name}");
        assert_eq!(
            load_preset_model(name).parameter_count(),
            released,
            "{name}"
        );
    }
}

#[test]
fn a_token_is_multiplied_with_the_experts_that_it_is_sent_to() {
    // In Mixtral 8x7B, a token uses 12,879,925,248 weights: all weights except those of six experts in each layer, 6 x
    // 32 x 3 h f. Of these weights, V h are looked up and (2 x 32 + 1) h are gains. Neither the table nor the gains are
    // factors of matrix products. In each of 32 layers, attention takes 2 A d multiplications per token pair.
    let (h, s) = (4096_u64, 32_768);
    let active = 46_702_792_704 - 6 * 32 * 3 * h * 14_336;
    assert_eq!(active, 12_879_925_248);
    let of_token = active - 32_000 * h - 65 * h + 32 * 2 * 32 * 128 * s;
    assert_eq!(
        load_preset_model("mixtral-8x7b").multiplication_count(),
        s * of_token
    );
}

#[test]
fn experts_keep_copies_of_tokens() {
    // For t tokens with values of 2 B, a block saves these bytes after attention: the inputs of the norm (2 th) and of
    // the router (2 th); 8 scores of 4 B per token; two copies of each token (2 x 2 th), with the halves of a gate for
    // each copy (2 x 2 x 2 tf); the input of the last product (2 x 2 tf); and the results to be summed (2 x 2 th).
    let model = load_preset_model("mixtral-8x7b");
    let (t, h, f) = (32_768, 4096, 14_336);
    let block = model
        .layers
        .iter()
        .find(|layer| layer.role == LayerRole::Block)
        .unwrap();
    let behind = block.operators.iter().skip_while(|one| one.name != "norm2");
    let kept: u64 = behind.map(|one| one.saved_bytes(2, true)).sum();
    assert_eq!(
        kept,
        2 * 2 * t * h + 4 * 8 * t + 4 * t * h + 8 * t * f + 4 * t * f + 4 * t * h
    );
}

#[test]
fn experts_in_files_are_read_or_refused() {
    let changed = |from: &str, to: &str| {
        let text = find_preset_text("mixtral-8x7b");
        assert!(text.contains(from), "{from}");
        parse_model_text(&text.replace(from, to)).map_err(|error| error.to_string())
    };
    let refused = |from: &str, to: &str, why: &str| {
        let error = changed(from, to).unwrap_err();
        assert!(error.contains(why), "{error}");
    };
    refused(
        "experts = 8\n",
        "",
        "key `experts_per_token`: found experts of a token, expected none without `experts`",
    );
    refused(
        "experts_per_token = 2\n",
        "",
        "key `experts_per_token`: found nothing, expected experts that each token",
    );
    refused(
        "experts_per_token = 2",
        "experts_per_token = 9",
        "key `experts_per_token`: found the number 9, expected a whole number from 1 to 8",
    );
    refused(
        "experts = 8",
        "experts = 1",
        "key `experts`: found the number 1, expected a whole number from 2",
    );
    // The block is defined operator by operator and runs with 5 tokens. It has 4 x 3 weights in the router, and 3
    // experts with 4 x 6 + 6 and 3 x 4 weights each; a gate halves the 6 columns.
    let layers = |combine: u64| {
        parse_model_text(&format!(
            r#"
name = "m"
source = "none"
kind = "layers"
input = {{ tokens = 5 }}
[[layer]]
name = "embedding"
role = "input"
operators = [{{ op = "embedding", vocabulary = 10, width = 4 }}]
[[layer]]
name = "block"
role = "block"
operators = [
  {{ op = "expert_dispatch", experts = 3, experts_per_token = 2 }},
  {{ op = "expert_linear", experts = 3, outputs = 6, name = "up" }},
  {{ op = "activation", function = "silu", gated = true }},
  {{ op = "expert_linear", experts = 3, outputs = 4, bias = false, name = "down" }},
  {{ op = "expert_combine", experts_per_token = {combine} }},
  {{ op = "residual" }},
]
"#
        ))
    };
    let model = layers(2).unwrap();
    let block = &model.layers[1];
    assert_eq!(
        block.parameter_count(),
        4 * 3 + 3 * (4 * 6 + 6) + 3 * (3 * 4)
    );
    // The router multiplies 5 tokens by 4 x 3 weights, and the experts multiply 10 copies by 4 x 6
    // and by 3 x 4 weights.
    assert_eq!(block.multiplication_count(), 5 * 12 + 10 * 24 + 10 * 12);
    let up = OperatorKind::ExpertLinear {
        rows: 10,
        experts: 3,
        inputs: 4,
        outputs: 6,
        bias: true,
    };
    assert_eq!(block.operators[1].work, up);
    let error = layers(3).unwrap_err().to_string();
    assert!(
        error.contains("10 rows before it, and 3 copies of each token"),
        "{error}"
    );
    let error = layers(5).unwrap_err().to_string();
    assert!(error.contains("2 x 4 to be added to 5 x 4"), "{error}");
}
