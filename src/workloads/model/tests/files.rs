//! Tests valid and invalid model files.

use crate::model::{
    LayerRole, Model, ModelError, ModelWithDefinitionProperties, OperatorKind, PRESETS,
};
use proptest::prelude::*;

pub(super) fn find_preset_text(name: &str) -> &'static str {
    PRESETS
        .iter()
        .find(|preset| preset.name == name)
        .unwrap()
        .text
}

pub(super) fn parse_model_text(text: &str) -> Result<Model, ModelError> {
    Ok(ModelWithDefinitionProperties::parse(text, "m.toml", None)?.model)
}

fn expect_parse_error(text: &str) -> String {
    parse_model_text(text).unwrap_err().to_string()
}

/// Returns Llama-3 8B's file, with one line changed.
fn change_llama3_text(from: &str, to: &str) -> String {
    let text = find_preset_text("llama3-8b");
    assert!(text.contains(from), "{from}");
    text.replace(from, to)
}

#[test]
fn invalid_keys_are_refused_with_their_lines() {
    let found = expect_parse_error(&change_llama3_text("kv_heads = 8", "kvheads = 8"));
    assert!(
        found.starts_with("m.toml:9: key `kvheads`: found an unknown key, expected one of"),
        "{found}"
    );
    let found = expect_parse_error(&change_llama3_text("kv_heads = 8", "kv_heads = 5"));
    assert!(
        found.ends_with("key `kv_heads`: found 5, expected a number that divides 32 heads"),
        "{found}"
    );
    let found = expect_parse_error(&change_llama3_text(
        "heads = 32\nkv_heads = 8",
        "heads = 33",
    ));
    assert!(
        found.contains("found 33, expected a number that divides `hidden` = 4096"),
        "{found}"
    );
    let found = expect_parse_error(&change_llama3_text("vocabulary = 128256", ""));
    assert!(
        found.contains("key `vocabulary`: found nothing, expected a whole number from 1"),
        "{found}"
    );
    let found = expect_parse_error(&change_llama3_text(
        "activation = \"swiglu\"",
        "activation = \"selu\"",
    ));
    assert!(
        found.contains("expected one of gelu, relu, swiglu, clamped-swiglu, geglu"),
        "{found}"
    );
    let found = expect_parse_error(&change_llama3_text("tied = false", ""));
    assert!(
        found.contains("key `tied`: found nothing, expected true if logits"),
        "{found}"
    );
    let found = expect_parse_error(&change_llama3_text(
        "head = \"logits\"",
        "head = \"pooler\"",
    ));
    assert!(
        found.contains("key `tied`: found a key for logits, expected no such key"),
        "{found}"
    );
    let found = expect_parse_error(&change_llama3_text(
        "positions = \"rotary\"",
        "positions = \"rotary\"\nposition_rows = 9",
    ));
    assert!(found.contains("key `position_rows`"), "{found}");
    let found = expect_parse_error(&change_llama3_text(
        "kind = \"transformer\"",
        "kind = \"mlp\"",
    ));
    assert!(
        found.contains("expected one of transformer, vit, layers"),
        "{found}"
    );
    assert!(expect_parse_error("kind = 3").contains("found the number 3"));
    assert!(expect_parse_error("").contains("key `kind`: found nothing"));
    assert!(expect_parse_error("kind = \"vit").contains("not TOML"));
}

#[test]
fn sizes_out_of_range_are_refused() {
    for (from, to) in [
        ("layers = 32", "layers = 20001"),
        ("layers = 32", "layers = 0"),
        ("hidden = 4096", "hidden = 0"),
        ("hidden = 4096", "hidden = -4096"),
        ("hidden = 4096", "hidden = 4096.0"),
        ("ffn = 14336", "ffn = 99999999999999999999999999"),
    ] {
        let found = expect_parse_error(&change_llama3_text(from, to));
        assert!(
            found.contains("expected a whole number from 1 to"),
            "{found}"
        );
    }
    // Each size is valid by itself, but their product is too large. The 32 layers have 32 x 3 x 4096 x 10^12
    // parameters, a count that fits into 64 bits; with 8192 tokens, the number of multiplications does not fit.
    let found = expect_parse_error(&change_llama3_text(
        "ffn = 14336",
        "ffn = 1_000_000_000_000",
    ));
    assert!(
        found.starts_with("m.toml: the model's multiplications do not fit in 64 bits"),
        "{found}"
    );
    let found = expect_parse_error(
        &change_llama3_text("vocabulary = 128256", "vocabulary = 1_000_000_000_000")
            .replace("4096", "100_000_000"),
    );
    assert!(
        found.starts_with("m.toml: the model's parameters do not fit"),
        "{found}"
    );
}

#[test]
fn token_counts_that_the_model_cannot_have_are_refused() {
    let found = Model::load_with_token_count("gpt2-small", 1025)
        .unwrap_err()
        .to_string();
    assert!(
        found.contains("found 1025 tokens of a sample, and learned positions for 1024"),
        "{found}"
    );
    for name in ["vit-b-16", "resnet-18", "dlrm"] {
        let found = Model::load_with_token_count(name, 7)
            .unwrap_err()
            .to_string();
        assert!(
            found.contains("a request for 7 tokens per sample of a model without tokens"),
            "{found}"
        );
    }
    for tokens in [0, u64::MAX] {
        for name in ["gpt2-small", "llama3-8b", "vit-b-16", "resnet-18"] {
            let found = Model::load_with_token_count(name, tokens).unwrap_err();
            let expected = format!(
                "{name}: {tokens} tokens per sample; expected a whole number from 1 to 1000000000000"
            );
            assert_eq!(found.to_string(), expected);
        }
    }
    // The position table may have more rows than a sample has tokens.
    let text = find_preset_text("gpt2-small").replace(
        "positions = \"learned\"",
        "positions = \"learned\"\nposition_rows = 2048",
    );
    let model = ModelWithDefinitionProperties::parse(&text, "m", Some(2000))
        .unwrap()
        .model;
    assert_eq!(model.parameter_count(), 124_439_808 + 1024 * 768);
    assert_eq!(model.sequence, 2000);
}

/// A block of GPT-2 XL, defined operator by operator.
const BLOCK: &str = r#"
name = "by hand"
source = "a test"
kind = "layers"
input = { tokens = 1024 }

[[layer]]
name = "embedding"
role = "input"
operators = [
  { op = "embedding", name = "tokens", vocabulary = 50257, width = 1600, cut = "inputs" },
  { op = "embedding", name = "positions", vocabulary = 1024, width = 1600 },
  { op = "residual", name = "sum", dropout = true },
]

[[layer]]
name = "layer"
role = "block"
repeat = 48
operators = [
  { op = "norm", name = "norm1" },
  { op = "linear", name = "attention.qkv", outputs = 4800, cut = "outputs" },
  { op = "attention", name = "attention.core", heads = 25, causal = true, dropout = true, cut = "between" },
  { op = "linear", name = "attention.out", outputs = 1600, cut = "inputs" },
  { op = "residual", name = "residual1", dropout = true },
  { op = "norm", name = "norm2" },
  { op = "linear", name = "mlp.up", outputs = 6400, cut = "outputs" },
  { op = "activation", name = "mlp.activation", function = "gelu", cut = "between" },
  { op = "linear", name = "mlp.down", outputs = 1600, cut = "inputs" },
  { op = "residual", name = "residual2", dropout = true },
]

[[layer]]
name = "head"
role = "output"
operators = [
  { op = "norm", name = "norm" },
  { op = "linear", name = "logits", outputs = 50257, bias = false, tied = true, cut = "outputs" },
  { op = "loss", cut = "between" },
]
"#;

#[test]
fn handwritten_operators_make_the_same_model_as_the_gpt2_xl_preset() {
    let mine = parse_model_text(BLOCK).unwrap();
    let known = Model::load_named("gpt2-xl").unwrap();
    assert_eq!(mine.layers, known.layers);
    assert_eq!(mine.sequence, 1024);
    let short = ModelWithDefinitionProperties::parse(BLOCK, "m", Some(77))
        .unwrap()
        .model;
    assert_eq!(
        short.layers[5],
        Model::load_with_token_count("gpt2-xl", 77).unwrap().layers[5]
    );
}

#[test]
fn chains_are_refused_where_sizes_do_not_fit() {
    let error = |from: &str, to: &str| {
        assert!(BLOCK.contains(from), "{from}");
        expect_parse_error(&BLOCK.replacen(from, to, 1))
    };
    let found = error("outputs = 4800", "outputs = 4801");
    assert!(
        found.starts_with("m.toml:23: key `layer[1].operators[2]`: found 4801 columns, 25 heads"),
        "{found}"
    );
    let found = error("outputs = 1600", "outputs = 1601");
    assert!(
        found.contains("found 1024 x 1601 to be added to 1024 x 1600, expected equal sizes"),
        "{found}"
    );
    let found = error("name = \"norm2\"", "name = \"norm1\"");
    assert!(
        found.contains("found a second operator called \"norm1\""),
        "{found}"
    );
    let found = error(
        "name = \"layer\"\nrole = \"block\"\nrepeat = 48",
        "name = \"head\"\nrole = \"block\"",
    );
    assert!(
        found.contains("found a second layer called \"head\""),
        "{found}"
    );
    let found = error("op = \"loss\"", "op = \"lost\"");
    assert!(
        found.contains("expected one of linear, attention, norm"),
        "{found}"
    );
    let found = error("op = \"loss\"", "op = \"loss\", classes = 3");
    assert!(
        found.contains("key `layer[2].operators[2].classes`: found an unknown key"),
        "{found}"
    );
    let found = error("op = \"norm\"", "op = \"pool\", kernel = 2");
    assert!(
        found.contains("found 1024 x 1600 before it, expected an image"),
        "{found}"
    );
    let found = error("repeat = 48", "repeat = 20000");
    assert!(
        found.contains("key `layer[1].repeat`: found the number 20000"),
        "{found}"
    );
    let found = error("repeat = 48", "first = 1");
    assert!(
        found.contains("found `first` without `repeat`, expected both keys"),
        "{found}"
    );
    let found = error("{ tokens = 1024 }", "{ tokens = 1024, columns = 2 }");
    assert!(
        found.contains("key `input`: found another mixture of keys"),
        "{found}"
    );
    let found = error(
        "op = \"residual\", name = \"sum\"",
        "op = \"residual\", name = \"sum\", around = true",
    );
    assert!(
        found.contains("found a residual sum on the residual path"),
        "{found}"
    );
}

#[test]
fn blocks_with_shortcut_convolutions_may_change_image_size() {
    let model = Model::load_named("resnet-50").unwrap();
    let names: Vec<_> = model
        .layers
        .iter()
        .map(|layer| layer.name.as_str())
        .collect();
    assert_eq!(names.len(), 1 + 3 + 4 + 6 + 3 + 1);
    assert_eq!(
        names[..6],
        [
            "stem", "stage1.0", "stage1.1", "stage1.2", "stage2.0", "stage2.1"
        ]
    );
    let blocks = model
        .layers
        .iter()
        .filter(|layer| layer.role == LayerRole::Block);
    assert_eq!(blocks.count(), 16);
    let shortcut = &model.layers[4].operators[8];
    let OperatorKind::Convolution {
        inputs,
        outputs,
        size,
        stride,
        ..
    } = shortcut.work
    else {
        panic!("{shortcut:?}")
    };
    assert_eq!(
        (shortcut.name.as_str(), inputs, outputs, size, stride),
        ("shortcut.conv", 256, 512, [56, 56], 2)
    );
    let stride = "outputs = 512, kernel = 1, stride = 2, bias = false, around = true";
    let found = expect_parse_error(&find_preset_text("resnet-50").replacen(
        stride,
        &stride.replace("stride = 2", "stride = 1"),
        1,
    ));
    let sizes = "found 512 channels of 28 x 28 to be added to 512 channels of 56 x 56";
    assert!(found.contains(sizes), "{found}");
}

#[test]
fn convolution_windows_and_groups_must_fit_their_input() {
    let error = |from: &str, to: &str| {
        let text = find_preset_text("alexnet");
        assert!(text.contains(from), "{from}");
        expect_parse_error(&text.replacen(from, to, 1))
    };
    let found = error("kernel = 11", "kernel = 229");
    assert!(
        found.contains("found a window of 229 x 229 pixels, expected one that fits 224 x 224"),
        "{found}"
    );
    let found = error("kernel = 11", "kernel = 11, groups = 2");
    assert!(
        found.contains(
            "key `layer[0].operators[0].groups`: found 2, expected a number that divides 3"
        ),
        "{found}"
    );
    let found = error("kernel = 11", "kernel = [1, 2, 3]");
    assert!(
        found.contains("found 3 values, expected a whole number, or [height, width]"),
        "{found}"
    );
    let found = error("role = \"block\"", "role = \"stem\"");
    assert!(
        found.contains("expected one of input, block, output"),
        "{found}"
    );
}

/// Random text that the test below inserts into a file: printable characters, or mostly TOML syntax.
const STRAY: &str = r#"\PC{0,12}|[\[\]{}="0-9.,\n-]{0,12}"#;

proptest! {
    /// A file that is truncated, spliced or otherwise damaged must never cause a panic.
    #[test]
    fn no_text_panics(which in 0..PRESETS.len() + 1, at in 0.0..1.0_f64, cut in 0..40_usize, put in STRAY) {
        let whole = PRESETS.get(which).map_or(BLOCK, |preset| preset.text);
        let at = (whole.len() as f64 * at) as usize;
        let end = (at + cut).min(whole.len());
        let text = format!("{}{put}{}", &whole[..at], &whole[end..]);
        let _ = parse_model_text(&text);
    }
}
