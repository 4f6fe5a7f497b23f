//! Tests replay options in studies and on command lines: either both accept a value with the same
//! result, or both reject it for the same reason.

use chakram::internals::{REPLAY_OPTIONS, ReplayOptionDefinition, ReplayOptionValueKind};
use chakram::trace::{NodeView, Op, Sink, TraceWriter};
use chakram::units::Span;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const MACHINES: [&str; 2] = ["mi300x", "dgx-h100"];

const OPTIONS: [(&str, &[&str]); 6] = [
    ("compute", &["recorded", "scaled:0.5", "roofline", "curves"]),
    ("efficiency", &["0.5", "1"]),
    ("host", &["recorded", "scaled:0.5"]),
    ("launch", &["none", "eager", "graph"]),
    ("collectives", &["algorithms", "curves"]),
    ("network", &["contention_free", "links"]),
];

fn run_chakram_in(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chakram"));
    command.current_dir(folder).args(words).output().unwrap()
}

/// Returns an error's text without the notation that distinguishes keys from flags.
fn remove_key_notation_from_error(text: &str) -> String {
    let text = text.replace('`', "").replace("--", "").replace(" = ", " ");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Sweeps each option separately over `work`, which `command` replays. Returns the rejected keys
/// and values.
fn sweep_and_list_rejected_options(
    folder: &Path,
    machine: &str,
    work: &str,
    command: &[&str],
) -> Vec<String> {
    let mut refused = Vec::new();
    for (key, values) in OPTIONS {
        // In a study, an efficiency is a number and not a string.
        let quoted = values.iter().map(|value| match key {
            "efficiency" => (*value).to_owned(),
            _ => format!("{value:?}"),
        });
        let quoted: Vec<String> = quoted.collect();
        let study = format!(
            "name = \"options\"\nobjective = \"time\"\n[base]\nmachine = \"{machine}\"\n{work}\n\
             [[axis]]\nkey = \"{key}\"\nvalues = [{}]\n",
            quoted.join(", ")
        );
        let out = format!("{machine}-{key}");
        std::fs::write(folder.join("study.toml"), study).unwrap();
        let output = run_chakram_in(folder, &["sweep", "study.toml", "-o", &out]);
        let error = String::from_utf8_lossy(&output.stderr);
        // Exit code 3 means that no value is possible.
        assert!(
            matches!(output.status.code(), Some(0 | 3)),
            "{machine} {key}: {error}"
        );
        let rows = std::fs::read_to_string(folder.join(&out).join("rows.jsonl")).unwrap();
        let rows = rows
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        std::fs::remove_dir_all(folder.join(&out)).unwrap();
        for (row, value) in rows.zip(values) {
            let of = format!("{machine}, {work}: {key} {value}");
            let (flag, word) = (format!("--{key}"), value.replace('_', "-"));
            let more = ["--machine", machine, &flag, &word, "--format", "json"];
            let replay = run_chakram_in(folder, &[command, &more].concat());
            let error = remove_key_notation_from_error(&String::from_utf8_lossy(&replay.stderr));
            if row["outcome"] == "replayed" {
                let report: Value = serde_json::from_slice(&replay.stdout)
                    .unwrap_or_else(|_| panic!("{of}: {error}"));
                assert_eq!(report["makespan_ps"], row["time_ps"], "{of}");
            } else {
                assert_eq!(replay.status.code(), Some(2), "{of}");
                let detail = row["detail"].as_str().unwrap();
                // Errors of a study name no flags, and errors of the command line name no keys.
                assert!(
                    detail.contains(&format!("`{key}")) && !detail.contains("--"),
                    "{detail}"
                );
                assert!(!String::from_utf8_lossy(&replay.stderr).contains(&format!("`{key}")));
                let detail = remove_key_notation_from_error(detail);
                assert!(error.contains(&detail), "{of}: {detail}\n{error}");
                assert_eq!(row["reason"], key, "{of}");
                refused.push(format!("{key} {value}"));
            }
        }
    }
    refused
}

#[test]
fn studies_and_command_lines_refuse_the_same_options() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let captured = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/ddp-resnet18");
    let captured = captured.to_str().unwrap();
    // A capture has recorded kernels and recorded host delays.
    let work = format!("trace = {captured:?}");
    let without = [
        "compute curves",
        "launch eager",
        "launch graph",
        "collectives curves",
    ];
    let recorded = ["efficiency 0.5", "efficiency 1"];
    let found = MACHINES.map(|machine| {
        sweep_and_list_rejected_options(folder, machine, &work, &["replay", captured])
    });
    assert_eq!(found[0], [&without[..1], &recorded, &without[1..]].concat());
    assert_eq!(found[1], recorded);
    // A model's kernels are not recorded, and it has no host time.
    let work = "model = \"gpt2-small\"\ntokens = 16\nplan.batch = 2\nplan.data = 2";
    let command = [
        "generate",
        "gpt2-small",
        "--tokens",
        "16",
        "--batch",
        "2",
        "--data",
        "2",
    ];
    let host = ["host scaled:0.5"];
    let found =
        MACHINES.map(|machine| sweep_and_list_rejected_options(folder, machine, work, &command));
    assert_eq!(found[0], [&without[..1], &host, &without[1..]].concat());
    assert_eq!(found[1], host);
    // A pattern's kernels have the durations that the pattern states.
    let pattern = ["generate", "data-parallel", "--ranks", "4", "-o", "pattern"];
    assert!(run_chakram_in(folder, &pattern).status.success());
    let found = MACHINES.map(|machine| {
        let work = "trace = \"pattern\"";
        sweep_and_list_rejected_options(folder, machine, work, &["replay", "pattern"])
    });
    let idle = [&recorded[..], &host].concat();
    assert_eq!(found[0], [&without[..1], &idle, &without[1..]].concat());
    assert_eq!(found[1], idle);
}

/// A study keeps the row of the only machine on which a value is valid.
#[test]
fn an_option_is_refused_on_the_machine_that_lacks_what_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let study = "name = \"options\"\nobjective = \"time\"\n[base]\nmodel = \"gpt2-small\"\ntokens = 16\nplan.batch = 2\n\
        collectives = \"curves\"\n[[axis]]\nkey = \"machine\"\nvalues = [\"mi300x\", \"dgx-h100\"]\n";
    std::fs::write(dir.path().join("study.toml"), study).unwrap();
    let output = run_chakram_in(dir.path(), &["sweep", "study.toml", "-o", "out"]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("1 replayed, 1 infeasible: collectives 1"),
        "{said}"
    );
}

/// Returns a replay's results: its JSON without names, options, notes, and counters of methods.
fn strip_report_to_replay_results(report: &Value) -> Value {
    let mut report = report.clone();
    let document = report.as_object_mut().unwrap();
    for label in [
        "machine",
        "network",
        "warnings",
        "settings",
        "options",
        "inputs",
        "closed",
        "stepwise",
        "unfolded",
        "messages",
        "collectives_analytical",
        "collectives_materialized",
        "collectives_simulated",
    ] {
        document.remove(label);
    }
    for row in document["collectives"].as_array_mut().unwrap() {
        for label in ["algorithm", "measured", "derived_from", "calls_simulated"] {
            row.as_object_mut().unwrap().remove(label);
        }
    }
    for rows in ["/npus", "/memory/npus"] {
        let rows = report.pointer_mut(rows).and_then(Value::as_array_mut);
        for row in rows.into_iter().flatten() {
            row.as_object_mut().unwrap().remove("npu");
        }
    }
    report
}

/// Returns the report of `command`; `None` if the command rejects its options.
fn run_for_report_json_unless_rejected(folder: &Path, command: &[&str]) -> Option<Value> {
    let output = run_chakram_in(folder, &[command, &["--format", "json"]].concat());
    let report = serde_json::from_slice(&output.stdout).ok();
    assert_eq!(output.status.success(), report.is_some(), "{command:?}");
    report
}

/// Runs `command` with each option, and returns the options that change no result. The report must
/// name exactly these options.
fn list_options_that_change_no_result<'o>(
    folder: &Path,
    command: &[&str],
    options: &[(&'o str, &[&str])],
) -> Vec<&'o str> {
    let before = strip_report_to_replay_results(
        &run_for_report_json_unless_rejected(folder, command).unwrap(),
    );
    let mut idle = Vec::new();
    for (key, words) in options {
        let Some(after) = run_for_report_json_unless_rejected(folder, &[command, words].concat())
        else {
            continue;
        };
        let named = &after["settings"]["without_effect"];
        let named = named.as_array().map_or(&[][..], Vec::as_slice);
        let mut named = named.iter();
        let found = named.find(|one| one["key"] == *key);
        assert_eq!(
            strip_report_to_replay_results(&after) == before,
            found.is_some(),
            "{words:?}: {after}"
        );
        if let Some(found) = found {
            assert!(!found["reason"].as_str().unwrap().is_empty(), "{found}");
            idle.push(*key);
        }
    }
    idle
}

/// The rule for options: each option changes the results, or the report states that the option has
/// no effect. The step has two replicas on one node, in bf16. It has no pipeline, so no work
/// overlaps with messages, and each node occupies one lane.
#[test]
fn each_option_changes_results_or_is_reported_as_without_effect() {
    let dir = tempfile::tempdir().unwrap();
    let step = "generate gpt2-small --tokens 16 --batch 4 --data 2 --machine dgx-h100";
    let step: Vec<&str> = step.split(' ').collect();
    let options: [(&str, &[&str]); 21] = [
        ("compute", &["--compute", "roofline"]),
        ("compute", &["--compute", "recorded"]),
        ("launch", &["--launch", "none"]),
        ("launch", &["--launch", "eager"]),
        ("collectives", &["--collectives", "algorithms"]),
        ("collectives", &["--collectives", "curves"]),
        ("network", &["--network", "links"]),
        ("network", &["--network", "contention-free"]),
        ("comm", &["--comm", "model"]),
        ("map", &["--map", "0-1"]),
        ("map", &["--map", "2,5"]),
        ("tokens", &["--tokens", "32"]),
        ("plan.zero", &["--zero", "1"]),
        ("plan.optimizer", &["--optimizer", "adam"]),
        ("plan.optimizer", &["--optimizer", "sgd"]),
        ("plan.overlap", &["--overlap", "false"]),
        ("plan.pipeline_overlap", &["--pipeline-overlap", "false"]),
        ("plan.order", &["--order", "dp,tp,pp"]),
        ("plan.bucket", &["--bucket", "80MB"]),
        ("plan.recompute", &["--recompute", "full"]),
        (
            "plan.recompute_blocks",
            &["--recompute", "full", "--recompute-blocks", "3"],
        ),
    ];
    let idle = list_options_that_change_no_result(dir.path(), &step, &options);
    let expected = [
        "compute",
        "launch",
        "collectives",
        "network",
        "network",
        "comm",
        "map",
        "map",
    ];
    let plan = ["plan.optimizer", "plan.pipeline_overlap", "plan.order"];
    assert_eq!(idle, [&expected[..], &plan].concat());
    // Two ranks of a capture, with recorded times.
    let captured = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/ddp-resnet18");
    let command = [
        "replay",
        captured.to_str().unwrap(),
        "--machine",
        "dgx-h100",
    ];
    let options: [(&str, &[&str]); 8] = [
        ("compute", &["--compute", "roofline"]),
        ("host", &["--host", "scaled:0.5"]),
        ("comm", &["--comm", "recorded"]),
        ("missing_ranks", &["--absent", "refuse"]),
        ("dependencies", &["--deps", "both"]),
        ("delays", &["--delay", "1=1ms"]),
        ("map", &["--map", "4,3"]),
        ("network", &["--network", "ports"]),
    ];
    let idle = list_options_that_change_no_result(dir.path(), &command, &options);
    let expected = ["missing_ranks", "dependencies", "map", "network"];
    assert_eq!(idle, expected);
}

/// The same rule for axes: rows that differ only in one key have different results, or they all name the key.
#[test]
fn each_axis_changes_results_or_its_rows_report_no_effect() {
    let dir = tempfile::tempdir().unwrap();
    let study = "name = \"axes\"\nobjective = \"time\"\n[base]\nmodel = \"gpt2-small\"\ntokens = 16\nplan.batch = 4\nplan.data = 2\n\
        machine = \"dgx-h100\"\n";
    let axis =
        |key: &str, values: &str| format!("[[axis]]\nkey = \"{key}\"\nvalues = [{values}]\n");
    let axes = [
        axis(
            "machine.dimension.nvlink.bandwidth",
            "\"225 GB/s\", \"450 GB/s\"",
        ),
        axis("machine.npu.h100.peak.fp64", "\"1 TFLOP/s\", \"2 TFLOP/s\""),
        axis("network", "\"links\", \"contention_free\""),
        axis("power.busy", "100.0, 200.0"),
    ];
    let study = study.to_owned() + &axes.concat();
    std::fs::write(dir.path().join("study.toml"), study).unwrap();
    let output = run_chakram_in(dir.path(), &["sweep", "study.toml", "-o", "out"]);
    let said = String::from_utf8(output.stdout).unwrap();
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains(
            "`machine.npu.h100.peak.fp64` has no effect in all rows: no kernel computes in `fp64`"
        ),
        "{said}"
    );
    let rows = std::fs::read_to_string(dir.path().join("out/rows.jsonl")).unwrap();
    let rows: Vec<Value> = rows
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 16);
    for row in &rows {
        let named = row["without_effect"].as_array().unwrap().iter();
        let named: Vec<&str> = named.map(|one| one["key"].as_str().unwrap()).collect();
        assert_eq!(
            named,
            ["machine.npu.h100.peak.fp64", "network", "power.busy"]
        );
        // Checks each key: results are equal if and only if the report says that the key has no effect.
        for key in row["point"].as_object().unwrap().keys() {
            let others = rows.iter().filter(|other| {
                let point = other["point"].as_object().unwrap();
                point
                    .iter()
                    .all(|(k, value)| k == key || row["point"][k] == *value)
            });
            let results =
                |row: &Value| ["time_ps", "parts_ps", "memory_bytes"].map(|key| row[key].clone());
            let is_same = others.map(results).all(|of| of == results(row));
            assert_eq!(is_same, named.contains(&&**key), "{key}");
        }
    }
    let csv = std::fs::read_to_string(dir.path().join("out/rows.csv")).unwrap();
    assert!(csv.lines().next().unwrap().ends_with(",without_effect"));
    assert!(
        csv.lines()
            .nth(1)
            .unwrap()
            .contains("power.busy: no objective of the study uses it"),
        "{csv}"
    );
    let page = std::fs::read_to_string(dir.path().join("out/index.html")).unwrap();
    assert!(page.contains("no kernel computes in `fp64`"));
}

/// An option's value, as written in a study, and as command-line arguments after the flag.
type OptionValueAsStudyAndFlag = (String, Vec<String>);

/// Writes an algorithm for an all-reduce of two members, in which each member sends to the other.
fn write_two_member_all_reduce_algorithm(folder: &Path) {
    for rank in 0..2 {
        let mut writer = TraceWriter::new(Vec::new()).unwrap();
        for (id, receive, after) in [(1, false, &[][..]), (2, true, &[1])] {
            let op = Op::Message {
                receive,
                peer: 1 - rank,
                tag: 0,
                bytes: 4000,
                own: None,
                host: false,
            };
            let node = NodeView {
                recorded: Span::from_ns(1000),
                ..NodeView::new(id, "node", op)
            };
            writer.receive_node(&node, after).unwrap();
        }
        std::fs::write(
            folder.join(format!("ring.{rank}.et")),
            writer.into_unflushed_sink(),
        )
        .unwrap();
    }
}

/// Returns the values to try for an option. If there are only a few words, all of them are tried.
/// The values of a new option follow from its syntax, or must be added here.
fn list_values_to_try(option: &ReplayOptionDefinition) -> Vec<OptionValueAsStudyAndFlag> {
    let text = |word: &str| (format!("{word:?}"), vec![word.to_owned()]);
    let number = |word: &str| (word.to_owned(), vec![word.to_owned()]);
    let key = option.key.display_key_in_files().to_string();
    match (option.syntax, key.as_str()) {
        (ReplayOptionValueKind::Choice(choices), _) => {
            let words = choices().into_iter();
            let value = |word: &str| (format!("{word:?}"), vec![word.replace('_', "-")]);
            words.map(|(word, _)| value(word)).collect()
        }
        (ReplayOptionValueKind::Switch, _) => {
            vec![("true".to_owned(), vec![]), ("false".to_owned(), vec![])]
        }
        (_, "compute") => ["recorded", "scaled:0.5", "roofline", "loopnest:gemmini-16"]
            .map(text)
            .to_vec(),
        (_, "recorded_on") => vec![text("trn1"), text("dgx-a100"), text("capture")],
        (_, "efficiency") => vec![number("0.5")],
        (_, "host") => vec![text("recorded"), text("scaled:0.5")],
        (_, "bandwidth") => vec![text("10GB/s"), text("100GB/s")],
        (_, "latency") => vec![text("500ns"), text("2us")],
        (_, "map") => vec![text("1,0"), text("0-1")],
        (_, "groups") => vec![text("groups.json")],
        (_, "ranks") => vec![number("2"), number("4")],
        // The capture has a step 2.
        (_, "step") => vec![number("2"), number("9")],
        (_, "delays") => {
            let several = ["0=1ms", "1=20us"].map(str::to_owned);
            vec![text("1=1ms"), (format!("{several:?}"), several.to_vec())]
        }
        (_, "edits") => {
            let several = ["batch=2x", "accumulate=2"].map(str::to_owned);
            vec![text("batch=2x"), (format!("{several:?}"), several.to_vec())]
        }
        (_, "custom") => vec![text("all-reduce=ring")],
        (_, "kernel") => vec![text("*=0.5"), text("class:gemm=2")],
        (_, "collective") => vec![text("all-reduce=2"), text("all_reduce=1ms")],
        (_, "slow") => vec![text("1=1.5"), text("9=2")],
        (_, "fail") => vec![text("1@2ms"), text("0-1@2ms")],
        (_, "jitter") => vec![text("5%"), text("0.1,seed=3")],
        (_, "set") => vec![
            text("machine.npu.h100.memory_bandwidth=1TB/s"),
            text("machine.dimension.nvlink.latency=5us"),
        ],
        _ => panic!("which values has {key}?"),
    }
}

/// Returns the flag of a key. The flag must occur in the command's help.
fn flag_of_option_key(key: &str, help: &str) -> String {
    let flag = match key {
        "dependencies" => "--deps".to_owned(),
        "missing_ranks" => "--absent".to_owned(),
        "delays" => "--delay".to_owned(),
        "edits" => "--edit".to_owned(),
        _ => format!("--{}", key.replace('_', "-")),
    };
    assert!(
        help.contains(&format!("{flag}\n")) || help.contains(&format!("{flag} ")),
        "{flag}"
    );
    flag
}

/// Every replay option is a key of studies, with the same result to the picosecond or the same
/// error. The test iterates over the table of options, so it covers new options automatically.
#[test]
fn every_replay_option_gives_the_same_result_in_a_study() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    write_two_member_all_reduce_algorithm(folder);
    let alike = ["generate", "data-parallel", "--ranks", "8", "-o", "alike"];
    assert!(run_chakram_in(folder, &alike).status.success());
    std::fs::write(folder.join("groups.json"), "{\"0\": [0, 1], \"1\": [1, 0]}").unwrap();
    let captured = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/ddp-resnet18");
    let captured = captured.to_str().unwrap();
    let help = String::from_utf8(run_chakram_in(folder, &["replay", "--help"]).stdout).unwrap();
    let (mut answered, mut tried) = (0, 0);
    for option in REPLAY_OPTIONS {
        let key = option.key.display_key_in_files().to_string();
        let flag = flag_of_option_key(&key, &help);
        let (machine, beside): (&str, &[(&str, &str)]) = match key.as_str() {
            "bandwidth" => ("h100:Ring(2)", &[("latency", "500ns")]),
            "latency" => ("h100:Ring(2)", &[("bandwidth", "50GB/s")]),
            "fill_domains" => ("gb200-nvl72x2", &[]),
            "ranks" => ("dgx-h100", &[("missing_ranks", "mirror")]),
            _ => ("dgx-h100", &[]),
        };
        let work = match key.as_str() {
            // Equal ranks are simulated once for all.
            "aggregate" => "alike",
            _ => captured,
        };
        let values = list_values_to_try(option);
        let listed: Vec<&str> = values.iter().map(|(toml, _)| toml.as_str()).collect();
        let base: String = beside
            .iter()
            .map(|(key, value)| format!("{key} = {value:?}\n"))
            .collect();
        let study = format!(
            "name = \"all\"\nobjective = \"time\"\n[base]\nmachine = \"{machine}\"\ntrace = {work:?}\n{base}\
             [[axis]]\nkey = \"{key}\"\nvalues = [{}]\n",
            listed.join(", ")
        );
        std::fs::write(folder.join("study.toml"), study).unwrap();
        let output = run_chakram_in(folder, &["sweep", "study.toml", "-o", &key]);
        let error = String::from_utf8_lossy(&output.stderr);
        // Exit code 3 means that no value is possible.
        assert!(
            matches!(output.status.code(), Some(0 | 3)),
            "{key}: {error}"
        );
        let rows = std::fs::read_to_string(folder.join(&key).join("rows.jsonl")).unwrap();
        let rows: Vec<Value> = rows
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(rows.len(), values.len(), "{key}");
        for (row, (toml, words)) in rows.iter().zip(&values) {
            let mut command = vec!["replay".to_owned(), work.to_owned()];
            command.extend(["--machine", machine, "--format", "json"].map(str::to_owned));
            for (key, value) in beside {
                command.extend([flag_of_option_key(key, &help), (*value).to_owned()]);
            }
            match words.is_empty() {
                true if toml == "true" => command.push(flag.clone()),
                _ => command.extend(words.iter().flat_map(|word| [flag.clone(), word.clone()])),
            }
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            let replay = run_chakram_in(folder, &command);
            tried += 1;
            if row["outcome"] == "replayed" {
                let error = String::from_utf8_lossy(&replay.stderr);
                let report: Value = serde_json::from_slice(&replay.stdout)
                    .unwrap_or_else(|_| panic!("{command:?}: {error}"));
                assert_eq!(report["makespan_ps"], row["time_ps"], "{command:?}");
                answered += 1;
            } else {
                assert_ne!(replay.status.code(), Some(0), "{command:?}: {row}");
            }
        }
        // Rows with a single result state the reason, and rows with several results do not name a key.
        let results = |row: &Value| (row["time_ps"].to_string(), row["parts_ps"].to_string());
        let times: std::collections::BTreeSet<_> = rows.iter().map(results).collect();
        if ["bandwidth", "comm", "delays", "host", "latency"].contains(&&*key) {
            assert!(times.len() > 1, "{key} acts: {rows:?}");
        }
        let all_replayed = rows.iter().all(|row| row["outcome"] == "replayed");
        for row in rows.iter().filter(|_| rows.len() > 1 && all_replayed) {
            let named = row["without_effect"].as_array();
            let named = named.is_some_and(|all| all.iter().any(|one| one["key"] == *key));
            assert!(!named || times.len() == 1, "{key}: {row}");
            if option.is_exact {
                assert!(named, "{key}: {row}");
            }
        }
    }
    assert!(
        answered >= 30 && answered + 10 > tried,
        "{answered} of {tried}"
    );
}

#[test]
fn studies_refuse_invalid_replay_options() {
    let dir = tempfile::tempdir().unwrap();
    let captured = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/ddp-resnet18");
    let base = |more: &str| {
        format!(
            "name = \"all\"\nobjective = \"time\"\n[base]\nmachine = \"dgx-h100\"\ntrace = {captured:?}\n{more}\n\
             [[axis]]\nkey = \"network\"\nvalues = [\"links\", \"ports\"]\n"
        )
    };
    let said = |study: &str| {
        std::fs::write(dir.path().join("study.toml"), study).unwrap();
        let output = run_chakram_in(dir.path(), &["sweep", "study.toml"]);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    for (more, expected) in [
        (
            "comm = \"recordd\"",
            "study.toml:6: comm = recordd: expected one of model, captured, recorded; did you mean `recorded`?",
        ),
        (
            "stepwise = 3",
            "study.toml:6: stepwise = 3: expected true or false",
        ),
        (
            "map = \"3-1\"",
            "study.toml:6: map = 3-1: `3-1` is not a range of NPUs",
        ),
        (
            "delays = [\"1=1ms\", \"x\"]",
            "study.toml:6: delays = 1=1ms,x: expected RANK=TIME",
        ),
        ("absent = \"mirror\"", "did you mean `missing_ranks`?"),
        ("delay = \"1=1ms\"", "did you mean `delays`?"),
        ("deps = \"data\"", "did you mean `dependencies`?"),
        ("recordedon = \"dgx-h100\"", "did you mean `recorded_on`?"),
        ("recorded_on = \"dgx-h10\"", "did you mean `dgx-h100`?"),
    ] {
        let error = said(&base(more));
        assert!(error.contains(expected), "{more}: {error}");
    }
    let model = "name = \"all\"\nobjective = \"time\"\n[base]\nmachine = \"dgx-h100\"\nmodel = \"gpt2-small\"\ntokens = 16\n\
                 plan.batch = 2\ndelays = \"0=1ms\"\n[[axis]]\nplans = 2\n";
    let error = said(model);
    assert!(
        error.contains("found delays with a model, expected a trace"),
        "{error}"
    );
    let bounded = model
        .replace("delays = \"0=1ms\"", "map = \"0-1\"")
        .replace("objective", "strategy = \"branch-and-bound\"\nobjective");
    let error = said(&bounded);
    assert!(error.contains("branch-and-bound with map"), "{error}");
}
