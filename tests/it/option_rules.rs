//! Options of replays in studies and on command lines: each value is accepted by both with one answer, or refused by both
//! for one reason.

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

fn chakram(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chakram"));
    command.current_dir(folder).args(words).output().unwrap()
}

/// The text of an error without the marks that differ between keys and flags.
fn plain(text: &str) -> String {
    let text = text.replace('`', "").replace("--", "").replace(" = ", " ");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Sweeps each option by itself over `work`, which `command` replays, and returns the keys and values that are refused.
fn refused(folder: &Path, machine: &str, work: &str, command: &[&str]) -> Vec<String> {
    let mut refused = Vec::new();
    for (key, values) in OPTIONS {
        // An efficiency is a number.
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
        let output = chakram(folder, &["sweep", "study.toml", "-o", &out]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{machine} {key}: {error}");
        let rows = std::fs::read_to_string(folder.join(&out).join("rows.jsonl")).unwrap();
        let rows = rows
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        std::fs::remove_dir_all(folder.join(&out)).unwrap();
        for (row, value) in rows.zip(values) {
            let of = format!("{machine}, {work}: {key} {value}");
            let (flag, word) = (format!("--{key}"), value.replace('_', "-"));
            let more = ["--machine", machine, &flag, &word, "--format", "json"];
            let replay = chakram(folder, &[command, &more].concat());
            let error = plain(&String::from_utf8_lossy(&replay.stderr));
            if row["outcome"] == "replayed" {
                let report: Value = serde_json::from_slice(&replay.stdout)
                    .unwrap_or_else(|_| panic!("{of}: {error}"));
                assert_eq!(report["makespan_ps"], row["time_ps"], "{of}");
            } else {
                assert_eq!(replay.status.code(), Some(2), "{of}");
                let detail = row["detail"].as_str().unwrap();
                // A study has no flags, and a command line has no keys.
                assert!(
                    detail.contains(&format!("`{key}")) && !detail.contains("--"),
                    "{detail}"
                );
                assert!(!String::from_utf8_lossy(&replay.stderr).contains(&format!("`{key}")));
                let detail = plain(detail);
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
    // Its kernels were recorded; so were delays on the host.
    let work = format!("trace = {captured:?}");
    let without = [
        "compute curves",
        "launch eager",
        "launch graph",
        "collectives curves",
    ];
    let recorded = ["efficiency 0.5", "efficiency 1"];
    let found = MACHINES.map(|machine| refused(folder, machine, &work, &["replay", captured]));
    assert_eq!(found[0], [&without[..1], &recorded, &without[1..]].concat());
    assert_eq!(found[1], recorded);
    // Kernels of a model are not recorded, and there is no host.
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
    let found = MACHINES.map(|machine| refused(folder, machine, work, &command));
    assert_eq!(found[0], [&without[..1], &host, &without[1..]].concat());
    assert_eq!(found[1], host);
    // A pattern's kernels last as it says.
    let pattern = ["generate", "data-parallel", "--ranks", "4", "-o", "pattern"];
    assert!(chakram(folder, &pattern).status.success());
    let found = MACHINES.map(|machine| {
        let work = "trace = \"pattern\"";
        refused(folder, machine, work, &["replay", "pattern"])
    });
    let idle = [&recorded[..], &host].concat();
    assert_eq!(found[0], [&without[..1], &idle, &without[1..]].concat());
    assert_eq!(found[1], idle);
}

/// A value that only the machine of another row takes is a row, too.
#[test]
fn an_option_is_refused_on_the_machine_that_lacks_what_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let study = "name = \"options\"\nobjective = \"time\"\n[base]\nmodel = \"gpt2-small\"\ntokens = 16\nplan.batch = 2\n\
        collectives = \"curves\"\n[[axis]]\nkey = \"machine\"\nvalues = [\"mi300x\", \"dgx-h100\"]\n";
    std::fs::write(dir.path().join("study.toml"), study).unwrap();
    let output = chakram(dir.path(), &["sweep", "study.toml", "-o", "out"]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("1 replayed, 1 infeasible: collectives 1"),
        "{said}"
    );
}
