//! Tests the tables, text and JSON of models.

use super::*;
use clap::Parser;
use serde_json::Value;

#[derive(Parser)]
struct ModelCommandLine {
    #[command(flatten)]
    args: ModelArgs,
}

fn run_model_command(words: &[&str]) -> Result<String, Box<dyn Error>> {
    let line = ModelCommandLine::try_parse_from([&["model"], words].concat())?;
    let mut out = Vec::new();
    print_model_list_or_model(&line.args, &mut out)?;
    Ok(String::from_utf8(out)?)
}

fn run_model_command_json(words: &[&str]) -> Value {
    serde_json::from_str(&run_model_command(&[words, &["--format", "json"]].concat()).unwrap())
        .unwrap()
}

#[test]
fn the_list_names_every_preset_with_its_parameters() {
    let text = run_model_command(&["list"]).unwrap();
    assert_eq!(text.lines().count(), 1 + PRESETS.len());
    assert!(
        text.lines().all(|line| line.chars().count() <= 120),
        "{text}"
    );
    let line = text
        .lines()
        .find(|line| line.starts_with("llama3-405b"))
        .unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(
        words[1..6],
        ["transformer", "405,853,388,800", "126", "16384", "8192"]
    );
    assert!(line.ends_with("Grattafiori et al., 2024"), "{line}");
    let csv = run_model_command(&["list", "--format", "csv"]).unwrap();
    assert_eq!(csv.lines().count(), 1 + PRESETS.len());
    assert!(
        csv.contains("\nvgg-16,layers,138357544,15470264320,15,,1,\"Simonyan"),
        "{csv}"
    );
    let document = run_model_command_json(&["list"]);
    assert_eq!(document["schema"], "chakram.models.1");
    assert_eq!(
        document["models"].as_array().map(Vec::len),
        Some(PRESETS.len())
    );
}

#[test]
fn a_model_is_shown_with_layers_that_are_alike_together() {
    let text = run_model_command(&["show", "gpt2-xl"]).unwrap();
    assert!(
        text.starts_with("gpt2-xl: transformer, 48 blocks, hidden 1600, 1024 tokens per sample\n"),
        "{text}"
    );
    assert!(
        text.contains("1,557,611,200") && text.contains("1,753,351,782,400 per sample"),
        "{text}"
    );
    // A multiplication counts as two FLOPs, and both passes together need three times the forward pass's FLOPs.
    assert!(
        text.contains("3.5067e12 per sample, forward; 1.0520e13 with backward"),
        "{text}"
    );
    assert!(
        text.contains("layer0 … layer47  48 identical, each"),
        "{text}"
    );
    assert!(
        text.contains("attention 25 heads x 64, causal, dropout"),
        "{text}"
    );
    // The layers take 20 lines: 1 heading, 3 lines for layers, and 3 + 10 + 3 lines for operators.
    // Before the layers, the text has 10 lines: 2 lines of introduction, 6 totals and 2 empty
    // lines.
    assert_eq!(text.lines().count(), 20 + 10, "{text}");
    let text = run_model_command(&["show", "resnet-18"]).unwrap();
    assert!(
        text.contains("convolution 3 to 64, … stride 2, padding 3"),
        "{text}"
    );
    assert!(text.contains("stage1.0 … stage1.1"), "{text}");
}

#[test]
fn json_has_every_number() {
    let document = run_model_command_json(&["show", "llama3-8b", "--tokens", "16"]);
    assert_eq!(document["schema"], "chakram.model.1");
    let model = &document["model"];
    assert_eq!(model["tokens"], 16);
    assert_eq!(model["layers"][1]["count"], 32);
    assert_eq!(model["layers"][1]["last"], "layer31");
    let core = &model["layers"][1]["operators"][2];
    assert_eq!(core["name"], "attention.core");
    assert_eq!(core["sizes"]["kv_heads"], 8);
    // The two matrix products of attention have 2 x 32 heads x 16 x 16 tokens x 128
    // multiplications.
    assert_eq!(core["macs"], 2_097_152);
    // The layers' counts add up to the model's totals.
    let layers = model["layers"].as_array().unwrap();
    for key in [
        "parameters",
        "macs",
        "saved_activation_bytes",
        "saved_activation_bytes_fused",
    ] {
        let of = |layer: &Value| {
            let operators = layer["operators"].as_array().unwrap();
            let each: u64 = operators.iter().map(|o| o[key].as_u64().unwrap()).sum();
            each * layer["count"].as_u64().unwrap()
        };
        let sum: u64 = layers.iter().map(of).sum();
        assert_eq!(model[key], sum, "{key}");
    }
}

#[test]
fn a_preset_written_as_toml_loads_as_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.toml");
    let path = path.to_str().unwrap();
    for preset in PRESETS {
        assert_eq!(
            run_model_command(&["show", preset.name, "--toml", "-o", path]).unwrap(),
            ""
        );
        assert_eq!(std::fs::read_to_string(path).unwrap(), preset.text);
        let [mine, known] =
            [path, preset.name].map(|name| run_model_command(&["show", name]).unwrap());
        assert_eq!(mine, known);
    }
    assert_eq!(
        run_model_command(&["show", "dlrm", "--toml", "-o", "-"]).unwrap(),
        PRESETS.last().unwrap().text
    );
}

#[test]
fn invalid_uses_of_the_tokens_option_are_refused() {
    assert!(run_model_command(&["show", "gpt2-xl", "--toml", "--tokens", "3"]).is_err());
    assert!(run_model_command(&["show", "gpt2-xl", "--tokens", "0"]).is_err());
    let error = run_model_command(&["show", "gpt2-xl", "--tokens", "4096"])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("gpt2-xl:") && error.contains("learned positions for 1024"),
        "{error}"
    );
}
