//! Tests software stacks: `--stack` of `generate` and `score`, and the studies' key for it.

use crate::commands::run_chakram;
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

fn run_job_for_json(more: &[&str]) -> Value {
    let output = run_chakram(&[&JOB[..], more].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

fn read_makespan_ps(report: &Value) -> u64 {
    report["makespan_ps"].as_u64().expect("it ends")
}

fn find_decided_value(report: &Value, part: &str) -> Value {
    let rows = report["stack"]["decided"].as_array().expect("rows");
    let found = rows.iter().find(|row| row["part"] == part);
    found.map_or(Value::Null, |row| row["value"].clone())
}

#[test]
fn a_stack_sets_prices_and_options_and_the_report_says_which() {
    let own = run_job_for_json(&[]);
    assert_eq!(own["stack"]["name"], "reference");
    assert_eq!(own["stack"]["given"], false);
    assert_eq!(find_decided_value(&own, "attention"), "FlashAttention-3");
    let stack = run_job_for_json(&["--stack", "pytorch-eager"]);
    assert_eq!(find_decided_value(&stack, "attention"), "FlashAttention-2");
    assert_eq!(find_decided_value(&stack, "elementwise"), "eager");
    assert!(read_makespan_ps(&stack) > read_makespan_ps(&own));
    // An option given with its default value replaces the stack's, and the rest of the stack stays.
    let fused = run_job_for_json(&["--stack", "pytorch-eager", "--elementwise", "fused"]);
    assert!(read_makespan_ps(&fused) < read_makespan_ps(&stack));
    assert_eq!(find_decided_value(&fused, "elementwise"), Value::Null);
    assert_eq!(fused["stack"]["left"][0]["part"], "elementwise");
    // The options are the stack's, given by hand, except for kernel times.
    let by_hand = run_job_for_json(&["--elementwise", "eager"]);
    assert!(
        read_makespan_ps(&by_hand) > read_makespan_ps(&own)
            && read_makespan_ps(&by_hand) < read_makespan_ps(&stack)
    );
    let reference = run_job_for_json(&["--stack", "reference"]);
    assert_eq!(read_makespan_ps(&reference), read_makespan_ps(&own));
    let unused = &reference["settings"]["without_effect"][0]["key"];
    assert_eq!(unused, "stack");
}

/// If a column gives the stack of rows, or a study has an axis of stacks, the makespans equal those that `generate`
/// gives.
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
    let output = run_chakram(&score);
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
    let seconds = |more: &[&str]| read_makespan_ps(&run_job_for_json(more)) as f64 / 1e12;
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
    // A command-line option applies to all rows.
    let all = run_chakram(&[&score[..], &["--stack", "llm-foundry"]].concat());
    let text = String::from_utf8(all.stdout).expect("it is text");
    assert_eq!(text.matches("llm-foundry").count(), 3);
    let study = put(
        "s.toml",
        "name = \"stacks\"\n[base]\nmachine = \"dgx-h100\"\nmodel = \"gpt2-small\"\n\"plan.batch\" = 2\n\
         \"plan.micro_batch\" = 2\n[[axis]]\nkey = \"stack\"\nvalues = [\"pytorch-eager\", \"llm-foundry\", \"reference\"]\n",
    );
    let out = folder.path().join("out").display().to_string();
    let output = run_chakram(&["sweep", &study, "-o", &out]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    let table = std::fs::read_to_string(Path::new(&out).join("rows.jsonl")).expect("rows");
    for stack in stacks {
        let makespan = read_makespan_ps(&run_job_for_json(stack)).to_string();
        assert!(table.contains(&makespan), "{makespan}\n{table}");
    }
}

#[test]
fn unknown_unreadable_or_misspelled_stacks_are_refused_by_name() {
    let said = |words: &[&str]| {
        let output = run_chakram(words);
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

/// Writes four steps of two widths, with the columns file, into a folder of their own.
fn write_measured_steps_and_columns(folder: &Path, steps: &str, name: &str) -> [String; 2] {
    let put = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).expect("there is room");
        folder.join(name).display().to_string()
    };
    let columns = put(
        "columns.toml",
        "measured = \"s\"\nunit = \"s\"\nmachine = \"dgx-a100\"\n[columns]\nhidden = \"width\"\n\
         micro-batch = \"mb\"\n[fixed]\nlayers = \"2\"\nheads = \"8\"\nsequence = \"256\"\nvocabulary = \"1024\"\n\
         batch = \"4\"\n",
    );
    [put(name, &format!("width,mb,s\n{steps}")), columns]
}

fn run_score_for_json(runs: &str, columns: &str, more: &[&str]) -> Value {
    let score = ["score", runs, "--columns", columns, "--format", "json"];
    let output = run_chakram(&[&score[..], more].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

/// Steps that all take a fifth longer than predicted correct the step of another width, however the steps are given.
#[test]
fn runs_are_corrected_by_runs_of_other_models() {
    let folder = tempfile::tempdir().expect("there is room");
    let widths = [512, 768, 1024, 1280];
    let line = |seconds: f64, width: u64| format!("{width},4,{seconds}\n");
    let guess: String = widths.iter().map(|&width| line(1.0, width)).collect();
    let [runs, columns] = write_measured_steps_and_columns(folder.path(), &guess, "guess.csv");
    let plain = run_score_for_json(&runs, &columns, &[]);
    assert!(plain.get("correction").is_none() && plain["runs"][0].get("corrected").is_none());
    let second = |run: &Value| run["predicted_s"].as_f64().expect("it is predicted");
    let predicted = plain["runs"].as_array().expect("runs").iter().map(second);
    let rows: Vec<String> = (predicted.zip(widths))
        .map(|(seconds, width)| line(1.2 * seconds, width))
        .collect();
    let [runs, columns] =
        write_measured_steps_and_columns(folder.path(), &rows.concat(), "runs.csv");
    let found = run_score_for_json(&runs, &columns, &["--leave-out", "hidden"]);
    let scores = &found["correction"]["scores"];
    let mean = |pointer: &str| {
        found
            .pointer(pointer)
            .and_then(Value::as_f64)
            .expect(pointer)
    };
    // Without a correction, the error is 1 - 1 / 1.2; the prior keeps part of it.
    assert!((mean("/scores/chakram/mean") - 1.0 / 6.0).abs() < 1e-6);
    assert!(mean("/correction/scores/chakram/mean") < 0.06, "{scores}");
    assert_eq!(scores["intervals"]["coverage"], 1.0);
    assert_eq!(found["runs"][0]["corrected"]["steps"], 3);
    // The first run gets the same correction when the others are given as a table of steps.
    let [one, columns] = write_measured_steps_and_columns(folder.path(), &rows[0], "one.csv");
    let [others, _] =
        write_measured_steps_and_columns(folder.path(), &rows[1..].concat(), "others.csv");
    let by_steps = run_score_for_json(&one, &columns, &["--steps", &others]);
    assert_eq!(
        by_steps["runs"][0]["corrected"],
        found["runs"][0]["corrected"]
    );
    // Steps that are off by a half in opposite directions contradict one another, so nothing is corrected.
    let unlike: Vec<String> = (rows.iter().zip([1.0, 0.6, 1.0, 0.6]))
        .map(|(row, factor)| {
            let cells: Vec<&str> = row.trim().split(',').collect();
            let seconds: f64 = cells[2].parse().expect("a number");
            format!("{},4,{}\n", cells[0], factor * seconds)
        })
        .collect();
    let [runs, columns] =
        write_measured_steps_and_columns(folder.path(), &unlike.concat(), "unlike.csv");
    let found = run_score_for_json(&runs, &columns, &["--leave-out", "model"]);
    for run in found["runs"].as_array().expect("runs") {
        assert_eq!(run["corrected"]["predicted_s"], run["predicted_s"]);
        assert_eq!(run["corrected"]["low_s"], run["low_s"]);
    }
    // The test gives an option that no run states, and a table of steps that cannot be read.
    let score = ["score", &runs, "--columns", &columns];
    for (more, expected) in [
        (
            ["--leave-out", "zero"],
            "--leave-out zero: no run states this option",
        ),
        (
            ["--leave-out", "micro-batch"],
            "--leave-out micro_batch: all runs have 4, so no other runs can correct them",
        ),
        (["--steps", "nowhere.csv"], "cannot read nowhere.csv"),
        (
            ["--scenarios", &columns],
            "the argument '--columns <FILE.toml>' cannot be used with",
        ),
    ] {
        let output = run_chakram(&[&score[..], &more].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn pairs_that_differ_in_one_option_are_counted_by_their_order() {
    let folder = tempfile::tempdir().expect("there is room");
    // With micro-batches of one sample, a step launches four times as many kernels. The measurement
    // in the third row contradicts this.
    let rows = "512,1,0.4\n512,4,0.1\n768,1,0.1\n768,4,0.4\n";
    let [runs, columns] = write_measured_steps_and_columns(folder.path(), rows, "runs.csv");
    let found = run_score_for_json(&runs, &columns, &["--signs"]);
    let signs = &found["signs"];
    // Two pairs of rows differ in micro-batches, and two differ in widths. Rows with equal measurements differ in both
    // options, so they form no pair.
    assert_eq!(signs[0]["option"], "hidden", "{signs}");
    let micro_batch = &signs[1];
    assert_eq!(micro_batch["option"], "micro_batch", "{signs}");
    assert_eq!(
        (&micro_batch["pairs"], &micro_batch["right"]),
        (&2.into(), &1.into()),
        "{signs}"
    );
    let text = run_chakram(&["score", &runs, "--columns", &columns, "--signs"]);
    let text = String::from_utf8(text.stdout).expect("it is text");
    assert!(
        text.contains("micro-batch: 1 of 2 pairs in order"),
        "{text}"
    );
    let refused = run_chakram(&[
        "score",
        &runs,
        "--columns",
        &columns,
        "--signs",
        "--format",
        "csv",
    ]);
    assert_eq!(refused.status.code(), Some(2));
}

fn replay_makespan_seconds(command: &str) -> f64 {
    let words: Vec<&str> = command.split_whitespace().collect();
    let output = run_chakram(&[&words[..], &["--format", "json"]].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    read_makespan_ps(&report) as f64 / 1e12
}

/// Publications state the signs of these differences for A100: Korthikanti et al. (2022), Tables 4 and 5, for the 22B
/// model, and Narayanan et al. (SC'21), section 5.3.2, for interleaving.
#[test]
fn published_signs_are_predicted() {
    let step = "generate megatron-22b --tensor 8 --batch 4 --micro-batch 4 --dtype fp16 --attention unfused \
                --tensor-overlap false --machine selene";
    let full = replay_makespan_seconds(&format!("{step} --recompute full"));
    let selective = replay_makespan_seconds(&format!("{step} --recompute selective"));
    let both =
        replay_makespan_seconds(&format!("{step} --recompute selective --sequence-parallel"));
    // The paper states 1.42 and 1.10 s; with sequence parallelism, a layer takes 0.6 of 19.6 ms less.
    assert!((full / both - 1.42 / 1.10).abs() < 0.05, "{full} {both}");
    let less = 1.0 - both / selective;
    assert!(less > 0.002 && less < 0.05, "{less}");
    // There are 48 blocks, and recomputing half of them costs half.
    let none = replay_makespan_seconds(&format!("{step} --recompute none"));
    let half = replay_makespan_seconds(&format!("{step} --recompute full --recompute-blocks 24"));
    let part = (half - none) / (full - none);
    assert!((part - 0.5).abs() < 0.02, "{part}");
    // With few micro-batches interleaving gains more than a tenth; with more of them it gains less.
    let stages = "generate megatron-3.6b --pipeline 5 --micro-batch 1 --dtype fp16 --attention unfused --machine selene";
    let gain = |batch: u32| {
        let step = format!("{stages} --batch {batch}");
        replay_makespan_seconds(&step)
            / replay_makespan_seconds(&format!("{step} --schedule interleaved --chunks 2"))
            - 1.0
    };
    let [few, many] = [10, 40].map(gain);
    assert!(few > many && many > 0.0 && few > 0.1, "{few} {many}");
}
