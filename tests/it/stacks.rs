//! Tests of software stacks: `--stack` of `generate` and `score`, and the key of studies.

use crate::commands::chakram;
use serde_json::Value;
use std::path::Path;

const JOB: [&str; 10] = [
    "generate",
    "gpt2-small",
    "--batch",
    "2",
    "--micro-batch",
    "2",
    "--machine",
    "dgx-h100",
    "--format",
    "json",
];

fn report(more: &[&str]) -> Value {
    let output = chakram(&[&JOB[..], more].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

fn makespan(report: &Value) -> u64 {
    report["makespan_ps"].as_u64().expect("it ends")
}

fn decided(report: &Value, part: &str) -> Value {
    let rows = report["stack"]["decided"].as_array().expect("rows");
    let found = rows.iter().find(|row| row["part"] == part);
    found.map_or(Value::Null, |row| row["value"].clone())
}

#[test]
fn a_stack_sets_prices_and_options_and_the_report_says_which() {
    let own = report(&[]);
    assert_eq!(own["stack"]["name"], "reference");
    assert_eq!(own["stack"]["given"], false);
    assert_eq!(decided(&own, "attention"), "FlashAttention-3");
    let stack = report(&["--stack", "pytorch-eager"]);
    assert_eq!(decided(&stack, "attention"), "FlashAttention-2");
    assert_eq!(decided(&stack, "elementwise"), "eager");
    assert!(makespan(&stack) > makespan(&own));
    // If the option is given with its default value, it replaces the stack's option, and the rest
    // of the stack stays.
    let fused = report(&["--stack", "pytorch-eager", "--elementwise", "fused"]);
    assert!(makespan(&fused) < makespan(&stack));
    assert_eq!(decided(&fused, "elementwise"), Value::Null);
    assert_eq!(fused["stack"]["left"][0]["part"], "elementwise");
    // The options are those of the stack, given by hand, except for kernel times.
    let by_hand = report(&["--elementwise", "eager"]);
    assert!(makespan(&by_hand) > makespan(&own) && makespan(&by_hand) < makespan(&stack));
    let reference = report(&["--stack", "reference"]);
    assert_eq!(makespan(&reference), makespan(&own));
    let unused = &reference["settings"]["without_effect"][0]["key"];
    assert_eq!(unused, "stack");
}

/// The makespans of rows whose stack is in a column, and of a study with an axis of stacks, are those of `generate`.
#[test]
fn scores_and_studies_take_stacks_as_generate_does() {
    let folder = tempfile::tempdir().expect("there is room");
    let put = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("there is room");
        folder.path().join(name).display().to_string()
    };
    let columns = put(
        "columns.toml",
        "measured = \"s\"\nunit = \"s\"\nmachine = \"dgx-h100\"\n[columns]\nstack = \"stack\"\nmicro-batch = \"mb\"\n\
         [fixed]\nmodel = \"gpt2-small\"\nbatch = \"2\"\n",
    );
    let runs = put(
        "runs.csv",
        "stack,mb,s\npytorch-eager,2,0.1\nllm-foundry,2,0.1\n-,2,0.1\n",
    );
    let score = ["score", &runs, "--columns", &columns, "--format", "csv"];
    let output = chakram(&score);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("it is text");
    let column = |name: &str| {
        let heads = text.lines().next().unwrap_or_default();
        let at = heads
            .split(',')
            .position(|head| head == name)
            .expect("it is there");
        let rows = text.lines().skip(1);
        rows.map(|row| row.split(',').nth(at).unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    let seconds = |more: &[&str]| makespan(&report(more)) as f64 / 1e12;
    let found: Vec<f64> = column("predicted_s")
        .iter()
        .map(|s| s.parse().unwrap())
        .collect();
    let stacks = [
        &["--stack", "pytorch-eager"][..],
        &["--stack", "llm-foundry"],
        &[],
    ];
    let expected = stacks.map(seconds);
    for (found, expected) in found.iter().zip(expected) {
        assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
    }
    // An option of the command line is for all rows.
    let all = chakram(&[&score[..], &["--stack", "llm-foundry"]].concat());
    let text = String::from_utf8(all.stdout).expect("it is text");
    assert_eq!(text.matches("llm-foundry").count(), 3);
    let study = put(
        "s.toml",
        "name = \"stacks\"\n[base]\nmachine = \"dgx-h100\"\nmodel = \"gpt2-small\"\n\"plan.batch\" = 2\n\
         \"plan.micro_batch\" = 2\n[[axis]]\nkey = \"stack\"\nvalues = [\"pytorch-eager\", \"llm-foundry\", \"reference\"]\n",
    );
    let out = folder.path().join("out").display().to_string();
    let output = chakram(&["sweep", &study, "-o", &out]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    let table = std::fs::read_to_string(Path::new(&out).join("rows.jsonl")).expect("rows");
    for stack in stacks {
        let makespan = makespan(&report(stack)).to_string();
        assert!(table.contains(&makespan), "{makespan}\n{table}");
    }
}

#[test]
fn stacks_that_cannot_be_had_are_refused_by_name() {
    let said = |words: &[&str]| {
        let output = chakram(words);
        assert!(!output.status.success(), "{words:?}");
        String::from_utf8(output.stderr).expect("it is text")
    };
    let run = |stack: &str| said(&[&JOB[..], &["--stack", stack]].concat());
    assert!(run("megatron").contains("did you mean"));
    assert!(run("nosuch.toml").contains("cannot read stack file nosuch.toml"));
    let folder = tempfile::tempdir().expect("there is room");
    let file = folder.path().join("s.toml");
    std::fs::write(&file, "name = \"s\"\n[plan]\nattenton = \"flash\"\n").expect("there is room");
    let error = run(&file.display().to_string());
    assert!(error.contains("s.toml:3: key `plan.attenton`"), "{error}");
    assert!(Path::new(&file).exists());
}
