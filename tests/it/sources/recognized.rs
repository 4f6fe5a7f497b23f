//! Tests other tools' inputs when they are given to commands that do not read them: the error names the format and the
//! command that reads it.

use super::{TemporaryTestFolder, expect_cli_error, run_for_exit_and_text, run_for_stdout};

const CAPTURE: &str = "traces/ddp-resnet18/capture";
const KINETO: &str = r#"{"schemaVersion": 1, "traceEvents": []}"#;
const NETWORK: &str =
    "topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n";

/// Every command that takes traces; `{}` is replaced by the input.
const COMMANDS: [&[&str]; 12] = [
    &["replay", "{}", "-m", "dgx-h100"],
    &["inspect", "{}"],
    &["validate", "{}"],
    &["diff", "{}", "{}"],
    &["slice", "{}", "--annotation", "step", "-o", "out"],
    &[
        "scale", "{}", "--grid", "data=2", "--to", "data=4", "-o", "out",
    ],
    &["anonymise", "{}", "--random-key", "-o", "out"],
    &["audit", "--leaks", "{}"],
    &["archive", "add", "ARCHIVE", "{}"],
    &["convert", "trace", "{}", "-o", "out.et"],
    &["convert", "text", "{}", "--npus", "2", "-o", "out"],
    &["sweep", "{}"],
];

#[test]
fn every_command_says_what_reads_a_capture() {
    let folder = TemporaryTestFolder::new();
    let archive = folder.path("jobs.etz");
    run_for_stdout(&["archive", "create", &archive, "-q"]);
    let nested = folder.path("run");
    for rank in ["rank0", "rank1"] {
        std::fs::create_dir_all(format!("{nested}/{rank}")).expect("there is room");
        std::fs::write(format!("{nested}/{rank}/trace.json"), KINETO).expect("there is room");
    }
    let plain = folder.write_file("step 3.json", KINETO);
    let ranked = folder.write_file("kineto.0.json", KINETO);
    for (input, word) in [
        (CAPTURE, CAPTURE.to_owned()),
        (&nested, nested.clone()),
        (&plain, format!("'{plain}'")),
        (&ranked, ranked.clone()),
    ] {
        for command in COMMANDS {
            let words = command.iter().map(|word| match *word {
                "{}" => input,
                "ARCHIVE" => &archive,
                word => word,
            });
            let error = expect_cli_error(&words.collect::<Vec<_>>());
            let expected = format!(
                "error: {input}: this is a capture of PyTorch\n  try: chakram convert pytorch {word} -o job\n"
            );
            // A study or a text workload is a file, so a folder gives another error.
            if !(matches!(command[0], "sweep") || command[1] == "text") || input.ends_with(".json")
            {
                assert_eq!(error, expected, "{command:?}");
            }
        }
    }
}

/// The table has other tools' words for commands and options, addresses, lists of machines, and
/// ranges. Each error says what to type.
#[test]
fn words_of_other_tools_are_refused_with_what_to_type() {
    let folder = TemporaryTestFolder::new();
    let config = folder.write_file(
        "config.json",
        r#"{"architectures":["LlamaForCausalLM"],"hidden_size":4096,"num_hidden_layers":32}"#,
    );
    let gates = folder.write_file(
        "gates.json",
        r#"{"model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":2,"vocab_size":100,
            "max_position_embeddings":64,"intermediate_size":128,"fancy_gates":3}"#,
    );
    let study = |values: &str| {
        let text = format!(
            "name = \"s\"\n[base]\nmachine = \"dgx-h100\"\nmodel = \"gpt2-small\"\n[[axis]]\nkey = \"plan.data\"\nvalues = {values}\n"
        );
        folder.write_file("study.toml", text)
    };
    let study = study("[\"1..8\"]");
    for (words, expected) in [
        (
            &["replay", &config][..],
            "this is a Hugging Face model configuration, a model that `chakram generate` and `chakram serve` read",
        ),
        // Commands that read models name the key that is wrong.
        (&["generate", &config], "key `model_type`: found \"\""),
        (
            &["model", "show", &gates],
            "key `fancy_gates`: found an unknown key",
        ),
        (
            &[
                "serve", &gates, "--rate", "1", "--input", "9", "--output", "9",
            ],
            "key `fancy_gates`",
        ),
        (
            &["replay", "s3://bucket/job"],
            "try: aws s3 cp --recursive s3://bucket/job job",
        ),
        (
            &["convert", "https://host/trace.json", "-o", "job"],
            "try: curl -LO https://host/trace.json",
        ),
        (
            &["generate", "gpt2-small", "-m", "dgx-a100,dgx-h100"],
            "chakram replay TRACES --machine dgx-a100 --machine dgx-h100",
        ),
        (
            &["generate", "gpt2-small", "-m", "dgx-h100", "--fsdp"],
            "'--zero 3'",
        ),
        (&["list"], "`chakram machine list`"),
        (&["compare", "a", "b"], "--machine A --machine B"),
        (&["simulate", "job"], "`chakram replay TRACES"),
        (
            &["sweep", &study],
            "`from = 1` and `to = 8` in place of `values`",
        ),
    ] {
        let error = expect_cli_error(words);
        assert!(error.contains(expected), "{words:?}: {error}");
    }
}

#[test]
fn error_inside_a_capture_folder_names_the_convert_command() {
    let folder = TemporaryTestFolder::new();
    std::fs::write(folder.path("kineto.0.json"), KINETO).expect("there is room");
    for name in [".", "./"] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_chakram"))
            .current_dir(folder.path(""))
            .args(["replay", name])
            .output()
            .expect("it runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            error.ends_with(&format!("try: chakram convert pytorch {name} -o job\n")),
            "{error}"
        );
    }
}

#[test]
fn inputs_of_every_tool_are_named() {
    let folder = TemporaryTestFolder::new();
    for (name, text, what, command) in [
        (
            "a.txt",
            "DATA\n1\nl -1 1 NONE 0 2 NONE 0 3 ALLREDUCE 8 4\n",
            "a text workload of ASTRA-sim 1.0",
            "chakram convert text {} --npus N -o job",
        ),
        (
            "b.txt",
            "HYBRID_TRANSFORMER\tep: 1\n",
            "a text workload of SimAI",
            "chakram convert simai {} -o job",
        ),
        (
            "c.goal",
            "num_ranks 2\nrank 0 {\nl1: calc 10\n}\nrank 1 {\n}\n",
            "a schedule in GOAL",
            "chakram convert goal {} -o job",
        ),
        (
            "d.xml",
            "<algo name=\"x\" proto=\"Simple\" ngpus=\"2\" coll=\"allreduce\"></algo>",
            "an algorithm of MSCCL",
            "chakram convert msccl {} --size SIZE -o job",
        ),
        (
            "e.json",
            "{\"id\": \"0\", \"name\": \"x\"}",
            "an execution trace",
            "chakram convert trace {} -o job.0.et",
        ),
        (
            "network.yml",
            NETWORK,
            "a network file of ASTRA-sim",
            "chakram machine import {} -o machine.toml, a machine for other commands; or chakram astra-sim --network-configuration {}, with the other files",
        ),
        (
            "system.json",
            "{\"scheduling-policy\": \"LIFO\", \"endpoint-delay\": 10}",
            "a system file of ASTRA-sim",
            "chakram machine import NETWORK.yml {} -o machine.toml, a machine for other commands; or chakram astra-sim --system-configuration {}, with the other files",
        ),
        ("f.sqlite", "SQLite format 3\0", "a database of SQLite", ""),
        (
            "g.json",
            "version https://git-lfs.github.com/spec/v1\n",
            "a Git LFS pointer",
            "",
        ),
        ("h.json", "<!DOCTYPE html><html>", "a page of HTML", ""),
        (
            "i.json",
            "{\"rocprofiler-sdk-tool\": [{}]}",
            "JSON of rocprofv3",
            "",
        ),
    ] {
        let path = folder.write_file(name, text);
        for reader in ["inspect", "validate"] {
            let error = expect_cli_error(&[reader, &path]);
            let begins = format!("error: {path}: this is {what}");
            assert!(error.starts_with(&begins), "{error}");
            assert!(error.contains(&command.replace("{}", &path)), "{error}");
        }
        // `convert` detects the format, and names formats that it cannot read.
        if command.is_empty() {
            let error = expect_cli_error(&["convert", &path, "-o", &folder.path("out")]);
            assert!(error.contains(what), "{error}");
        }
        let checked = run_for_exit_and_text(&["machine", "check", &path]);
        assert_eq!(checked.code, 2);
        // A trace is not a machine, and a machine file is recognized by its name.
        if what != "an execution trace" {
            assert!(checked.out.contains(what), "{}", checked.out);
        }
    }
    // If the file's name is that of a trace, the error comes from the trace reader.
    let path = folder.write_file("job.0.json", "{\"id\": \"0\", \"nam\": \"x\"}");
    let error = expect_cli_error(&["inspect", &path]);
    assert!(!error.contains("convert trace"), "{error}");
}

#[test]
fn machines_and_models_of_other_tools_are_named() {
    let folder = TemporaryTestFolder::new();
    let network = folder.write_file("network.yml", NETWORK);
    let error = expect_cli_error(&["replay", "traces/ddp-resnet18", "-m", &network]);
    assert!(
        error.contains("this is a network file of ASTRA-sim")
            && error.contains(&format!("chakram machine import {network}")),
        "{error}"
    );
    let capture = folder.write_file("k.json", KINETO);
    let error = expect_cli_error(&["replay", "traces/ddp-resnet18", "-m", &capture]);
    assert!(error.contains("chakram convert pytorch"), "{error}");
    let error = expect_cli_error(&["generate", "meta-llama/Llama-3.1-8B"]);
    assert!(error.contains("nearest preset is `llama3-8b`"), "{error}");
    let error = expect_cli_error(&["serve", "meta-llama/Llama-3.1-8B"]);
    assert!(error.contains("nearest preset is `llama3-8b`"), "{error}");
    let error = expect_cli_error(&["serve", "llama3-8b"]);
    assert!(
        error.contains("llama3-8b is a language model: the arrivals of requests are not given"),
        "{error}"
    );
    let error = expect_cli_error(&["serve", "dlrm"]);
    assert!(
        error.contains(
            "model dlrm: the blocks have no attention; only decoders with causal attention are served"
        ),
        "{error}"
    );
    let error = expect_cli_error(&["serve", "none.toml"]);
    assert!(error.contains("cannot read none.toml"), "{error}");
    // An error with another cause is unchanged.
    let error = expect_cli_error(&["replay", "none", "-m", "dgx-h100", "-o", &capture]);
    assert!(error.contains("no such file or folder"), "{error}");
}
