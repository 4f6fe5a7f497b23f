//! Tests valid, altered and damaged files and flags of ASTRA-sim, and the cases of the corpus.

use crate::commands::run_chakram;
use crate::corpus::unpack_cases_in_memory;
use crate::harness::astra_sim::run_every_parser;
use chakram::astra_sim::{
    AnalyticalCongestionModel, AstraFlags, AstraInputs, PerNodeCustomAlgorithmPaths,
};
use chakram::trace::{NodeFieldsBeyondView, NodeView, Op, Sink, TraceWriter};
use proptest::prelude::*;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::process::{Command, Output};

const SYSTEM: &str = r#"{
  "scheduling-policy": "LIFO",
  "endpoint-delay": 10,
  "active-chunks-per-dimension": 1,
  "preferred-dataset-splits": 4,
  "all-reduce-implementation": ["ring"],
  "all-gather-implementation": ["direct2"],
  "reduce-scatter-implementation": ["oneRing"],
  "all-to-all-implementation": ["halvingDoubling"],
  "all-to-all-implementation-custom": ["a"],
  "collective-optimization": "localBWAware",
  "local-mem-bw": 1600.5,
  "boost-mode": 0,
  "model-shared-bus": 1, "L": 10, "o": 5, "g": 5, "G": 0.01,
  "roofline-enabled": 0,
  "peak-perf": 9e2
}"#;
const NETWORK: &str = "topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ 50 ]  # GB/s\n\
    latency:\n  - 500.5  # ns\n";
const MEMORY: &str = r#"{"memory-type": "PER_NODE_MEMORY_EXPANSION", "remote-mem-latency": 5,
  "remote-mem-bw": 128.5, "num-nodes": 2, "num-npus-per-node": 4}"#;
const GROUPS: &str = r#"{"1": [0, 1, 2, 3], "2": [7, 6], "12": [5]}"#;
const PER_NODE: &str = "# nodes\n7: a/ring\n\"12\": 'b c'\n";
const LOGGING: &str = "[[sink]]\nname = \"f\"\n[logger]\nlevel = 1\n";

/// Returns a system file that names an algorithm in `folder`.
fn system_text_with_algorithm_in_folder(folder: &Path) -> String {
    let prefix = folder.join("a");
    SYSTEM.replace("[\"a\"]", &format!("[{:?}]", prefix.display().to_string()))
}

/// Returns a folder with input files and a one-node trace for each NPU, and the arguments that name them.
fn write_input_folder() -> (tempfile::TempDir, Vec<String>) {
    let folder = tempfile::tempdir().expect("there is room");
    let workload = folder.path().join("wl");
    let mut arguments = vec![format!("--workload-configuration={}", workload.display())];
    for rank in 0..8 {
        let mut trace = TraceWriter::new(Vec::new()).expect("memory takes all");
        let node = NodeView::new(0, "host", Op::Host);
        trace.receive_node(&node, &[]).expect("memory takes all");
        let file = folder.path().join(format!("wl.{rank}.et"));
        std::fs::write(file, trace.into_unflushed_sink()).expect("there is room");
    }
    // The algorithm that the system file names does nothing.
    let script = TraceWriter::new(Vec::new()).expect("memory takes all");
    std::fs::write(folder.path().join("a.0.et"), script.into_unflushed_sink())
        .expect("there is room");
    let system = system_text_with_algorithm_in_folder(folder.path());
    for (flag, name, text) in [
        ("system-configuration", "system.json", &system[..]),
        ("network-configuration", "network.yml", NETWORK),
        ("remote-memory-configuration", "memory.json", MEMORY),
        ("comm-group-configuration", "groups.json", GROUPS),
    ] {
        std::fs::write(folder.path().join(name), text).expect("there is room");
        let path = folder.path().join(name);
        arguments.push(format!("--{flag}={}", path.display()));
    }
    (folder, arguments)
}

fn astra_sim(arguments: &[String], more: &[&str]) -> Output {
    let arguments = arguments.iter().map(String::as_str);
    let all: Vec<_> = ["astra-sim"]
        .into_iter()
        .chain(arguments)
        .chain(more.iter().copied())
        .collect();
    run_chakram(&all)
}

/// Returns the JSON report about these inputs.
fn parse_report_about_inputs(output: &Output) -> Value {
    let said: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    said["astra_sim"].clone()
}

fn text_from_bytes(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("messages are text")
}

#[test]
fn flags_are_taken_as_the_original_takes_them() {
    let (_folder, arguments) = write_input_folder();
    let output = astra_sim(
        &arguments,
        &[
            "--rendezvous-protocol",
            "--injection-scale",
            "2.55",
            "--format=json",
        ],
    );
    assert!(
        output.status.success(),
        "{}",
        text_from_bytes(&output.stderr)
    );
    let said = parse_report_about_inputs(&output).to_string();
    // 10 ns x 2.55 = 25.5 ns, which is truncated to 25 ns.
    for part in [
        "wl.RANK.et",
        "8 NPUs, congestion-unaware, rendezvous: ring of 8",
        "25 ns at each end",
        "3 declared",
        "`boost-mode`: has no effect",
        "128.5 counts as 128",
    ] {
        assert!(said.contains(part), "{part:?} in\n{said}");
    }
    // If a flag is given twice, the last one counts.
    let twice = [
        "--rendezvous-protocol=true",
        "--rendezvous-protocol=F",
        "--comm-scale=2",
        "--format=json",
    ];
    let said = parse_report_about_inputs(&astra_sim(&arguments, &twice)).to_string();
    assert!(!said.contains("rendezvous"), "{said}");
    assert!(said.contains("`--comm-scale`: has no effect"), "{said}");
    for bad in [
        &["--num-queues-per-dim=0"][..],
        &["--injection-scale=-1"],
        &["--injection-scale=nan"],
        &["--rendezvous-protocol=perhaps"],
        &["--logging-configuration=no/such.toml"],
        &["--network-model=exact"],
    ] {
        let output = astra_sim(&arguments, bad);
        assert_eq!(output.status.code(), Some(2), "{bad:?}");
        assert!(!output.stderr.is_empty(), "{bad:?}");
    }
    // Only collectives use the endpoint delay.
    let none = astra_sim(&arguments, &["--injection-scale=0.05"]);
    assert!(none.status.success(), "{}", text_from_bytes(&none.stderr));
    let output = astra_sim(&arguments[1..], &[]);
    assert_eq!(
        output.status.code(),
        Some(2),
        "a flag that is needed is missing"
    );
}

/// Unknown flags and positional words are ignored with a note, as in the original. After
/// `--rendezvous-protocol`, any word counts as positional.
#[test]
fn unknown_flags_and_words_are_left_out() {
    let (_folder, arguments) = write_input_folder();
    let plain = astra_sim(&arguments, &["--rendezvous-protocol=true"]);
    for (more, note) in [
        (
            &["--rendezvous-protocol", "true"][..],
            "`true`: ignored, as in the original",
        ),
        (
            &["--rendezvous-protocol", "false"],
            "--rendezvous-protocol must follow `=`; without a value the flag is on",
        ),
        (
            &["--rendezvous-protocol", "--what=5"],
            "`--what=5`: ignored, because it is unknown",
        ),
        (
            &["extra", "--rendezvous-protocol"],
            "`extra`: ignored, because it is unknown",
        ),
        (
            &["--rendezvous-protocol", "--comm-scales", "2"],
            "`--comm-scales`: ignored, because it is unknown; did you mean `--comm-scale`?",
        ),
    ] {
        let output = astra_sim(&arguments, more);
        assert_eq!(output.status.code(), Some(0), "{more:?}");
        assert_eq!(output.stdout, plain.stdout, "{more:?}");
        assert!(
            text_from_bytes(&output.stderr).contains(note),
            "{}",
            text_from_bytes(&output.stderr)
        );
    }
}

/// Control dependencies on missing nodes are dropped with a note, with and without `--lenient`.
/// Data dependencies on missing nodes are rejected.
#[test]
fn dangling_control_dependencies_are_noted_and_data_ones_rejected() {
    let (folder, arguments) = write_input_folder();
    let write = |data: &[u64], control: &[u64]| {
        let mut trace = TraceWriter::new(Vec::new()).expect("memory takes all");
        let node = NodeView::new(1, "host", Op::Host);
        let extra = NodeFieldsBeyondView {
            control,
            ..NodeFieldsBeyondView::default()
        };
        trace
            .write_node(&node, data, &extra)
            .expect("memory takes all");
        std::fs::write(folder.path().join("wl.3.et"), trace.into_unflushed_sink())
            .expect("there is room");
    };
    let plain = astra_sim(&arguments, &[]);
    for lenient in [&[][..], &["--lenient"]] {
        write(&[], &[7, 8]);
        let output = astra_sim(&arguments, lenient);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}",
            text_from_bytes(&output.stderr)
        );
        assert_eq!(output.stdout, plain.stdout);
        let note = "wl.3.et: `ctrl_deps`: 2 dependencies on nodes that do not exist are left out";
        assert!(
            text_from_bytes(&output.stderr).contains(note),
            "{}",
            text_from_bytes(&output.stderr)
        );
        write(&[7], &[]);
        let output = astra_sim(&arguments, lenient);
        assert_eq!(output.status.code(), Some(2), "{lenient:?}");
        assert!(text_from_bytes(&output.stderr).contains("node 7, which does not exist"));
    }
}

#[test]
fn unknown_keys_are_ignored_if_that_is_asked_for() {
    let (folder, arguments) = write_input_folder();
    let system = system_text_with_algorithm_in_folder(folder.path())
        .replace("\"peak-perf\"", "\"peak-pref\"");
    std::fs::write(folder.path().join("system.json"), system).expect("there is room");
    let output = astra_sim(&arguments, &[]);
    assert_eq!(output.status.code(), Some(2));
    let error = text_from_bytes(&output.stderr);
    assert!(
        error.contains("system.json:16: key `peak-pref`: found an unknown key"),
        "{error}"
    );
    assert!(error.contains("did you mean `peak-perf`?"), "{error}");
    let lenient = ["--what", "5", "--lenient", "--format", "json"];
    let output = astra_sim(&arguments, &lenient);
    assert!(
        output.status.success(),
        "{}",
        text_from_bytes(&output.stderr)
    );
    let said = parse_report_about_inputs(&output);
    let notes = said["notes"].as_array().expect("a list");
    let notes: Vec<_> = notes.iter().filter_map(Value::as_str).collect();
    assert_eq!(
        notes[0],
        "command line: `--what`: ignored, because it is unknown"
    );
    assert_eq!(
        notes[1],
        "command line: `5`: ignored, because it is unknown"
    );
    let peak = "`peak-pref`: ignored, because it is unknown; did you mean `peak-perf`?";
    assert!(notes.iter().any(|note| note.ends_with(peak)), "{notes:?}");
}

#[cfg(unix)]
#[test]
fn chakram_called_by_the_name_of_astra_sim_behaves_like_astra_sim() {
    let (folder, arguments) = write_input_folder();
    for (name, model) in [
        (
            "AstraSim_Analytical_Congestion_Unaware",
            "congestion-unaware",
        ),
        ("AstraSim_Analytical_Congestion_Aware", "congestion-aware"),
    ] {
        let link = folder.path().join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_chakram"), &link).expect("there is room");
        let output = Command::new(&link)
            .current_dir(folder.path())
            .args(&arguments)
            .arg("--format=json")
            .output();
        let output = output.expect("the link leads to the program");
        assert!(
            output.status.success(),
            "{}",
            text_from_bytes(&output.stderr)
        );
        assert!(text_from_bytes(&output.stdout).contains(model), "{name}");
        // Unknown fields are ignored.
        let run = |more: &[&str]| {
            let mut program = Command::new(&link);
            program
                .current_dir(folder.path())
                .args(&arguments)
                .args(more)
                .output()
        };
        assert_eq!(run(&["--what"]).expect("it runs").status.code(), Some(0));
    }
}

/// Cases whose inputs are rejected, each with a part of the error.
const REFUSED: &[(&str, &str)] = &[
    ("a_R4S8_ar_1MB_s4", "found 2 dimensions, expected one"),
    ("a_T444_ar_1MB_s4_lbw", "found 3 dimensions, expected one"),
    (
        "u_R4S8_ar_1MB_s4_ring-ring-ring",
        "found 3 names, expected one for each of the 2",
    ),
    ("u_x_nosplits", "the original divides by zero"),
    ("u_x_typo_key", "did you mean `preferred-dataset-splits`?"),
];

/// Keys that the notes of some cases mention.
const NOTED: &[&str] = &[
    "all-gather-implementation",
    "all-reduce-implementation",
    "all-to-all-implementation",
    "boost-mode",
    "local-reduction-delay",
    "reduce-scatter-implementation",
];

#[test]
fn cases_of_the_corpus_are_read() {
    let Some(cases) = unpack_cases_in_memory() else {
        return;
    };
    let mut refused = Vec::new();
    let mut noted = BTreeSet::new();
    for (name, case) in &cases {
        let get = |file: &str| case.get(file).map(|bytes| text_from_bytes(bytes));
        let line = get("args.txt").expect("each case has its arguments");
        let model = match line.starts_with("aware") {
            true => AnalyticalCongestionModel::Aware,
            false => AnalyticalCongestionModel::Unaware,
        };
        let groups = line.contains("comm-group-configuration");
        let [system, network, memory] = ["system.json", "network.yml", "memory.json"];
        let mut flags =
            AstraFlags::new("wl/wl".into(), system.into(), network.into(), memory.into());
        flags.model = model;
        flags.groups = if groups { "comm.json" } else { "empty" }.into();
        flags.rendezvous = line.contains("rendezvous-protocol=true");
        if line.contains("injection-scale=2") {
            flags.injection_scale = 2.0;
        }
        let read = &mut |_: &'static str, path: &Path| {
            let found = get(path.to_str().expect("plain names"));
            found
                .map(str::to_owned)
                .ok_or_else(|| io::ErrorKind::NotFound.into())
        };
        match AstraInputs::read_files(&flags, read) {
            Err(error) => {
                let expected = get("expect.json").expect("each case has its answer");
                let expected: Value = serde_json::from_str(expected).expect("it is JSON");
                flags.lenient = true;
                let read = AstraInputs::read_files(&flags, read).is_ok();
                assert_eq!(read, expected["status"] == "ok", "{name}: {error}");
                refused.push((name.clone(), error.to_string()));
            }
            Ok(inputs) => {
                let ranks = case.keys().filter(|file| file.ends_with(".et")).count();
                assert!(inputs.network.npu_count() as usize >= ranks, "{name}");
                noted.extend(inputs.notes.into_iter().map(|note| note.key));
            }
        }
    }
    let noted: Vec<_> = noted.iter().map(String::as_str).collect();
    assert_eq!(noted, NOTED);
    let names: Vec<_> = refused.iter().map(|(name, _)| name.as_str()).collect();
    let expected: Vec<_> = REFUSED.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, expected, "{refused:#?}");
    for ((_, error), (name, part)) in refused.iter().zip(REFUSED) {
        assert!(error.contains(part), "{name}: {error}");
    }
}

/// Fragments that one of the parsers accepts.
const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "'",
    "\n",
    "\n  ",
    "- ",
    "#",
    "&a ",
    "*a",
    "<<: ",
    "!!int ",
    "|",
    ">",
    "?",
    "---",
    "...",
    "%YAML",
    "~",
    "null",
    "true",
    "0",
    "1",
    "-1",
    "1e999",
    "0.5",
    ".inf",
    ".nan",
    "99999999999999999999",
    "\u{feff}",
    "\\ud800",
    "é",
    "\t",
    "\0",
    "\"a\"",
    "topology",
    "\"L\"",
    "\"preferred-dataset-splits\": 1,",
    "\"memory-type\": \"MEMORY_POOL\",",
    "ring",
    "Ring",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_bytes_end_in_inputs_or_in_a_reason(
        bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300),
    ) {
        run_every_parser(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn bent_files_end_in_inputs_or_in_a_reason(
        which in 0_usize..6,
        edits in proptest::collection::vec((0_usize..2000, 0_usize..12, 0..PIECES.len()), 1..6),
    ) {
        let mut text = [SYSTEM, NETWORK, MEMORY, GROUPS, PER_NODE, LOGGING][which].to_owned();
        for (at, cut, piece) in edits {
            let floor = |at: usize| (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            let from = floor(at % (text.len() + 1));
            let to = floor((from + cut).min(text.len())).max(from);
            text.replace_range(from..to, PIECES[piece]);
        }
        run_every_parser(&text);
    }

    #[test]
    fn pieces_end_in_inputs_or_in_a_reason(
        pieces in proptest::collection::vec(0..PIECES.len(), 0..60),
    ) {
        run_every_parser(&pieces.into_iter().map(|piece| PIECES[piece]).collect::<String>());
    }
}

/// Long, nested or repetitive texts are read or rejected in time proportional to their length.
#[test]
fn nested_or_repetitive_texts_are_parsed_in_linear_time() {
    let mut aliases = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..30 {
        let refer = vec![format!("*a{}", i - 1); 9].join(", ");
        aliases += &format!("a{i}: &a{i} [{refer}]\n");
    }
    run_every_parser(&aliases);
    for (open, close) in [
        ("[", "]"),
        ("{\"a\":", "}"),
        ("{a: ", "}"),
        ("- ", ""),
        ("? ", ""),
    ] {
        for n in [100, 2_000] {
            run_every_parser(&(open.repeat(n) + &close.repeat(n)));
            run_every_parser(
                &(String::from("{\"1\": ") + &open.repeat(n) + &close.repeat(n) + "}"),
            );
            run_every_parser(&(String::from("1: ") + &open.repeat(n)));
        }
    }
    let many = |entry: &dyn Fn(usize) -> String| (0..10_000).map(entry).collect::<String>();
    run_every_parser(&format!(
        "{{{}\"1\": [0]}}",
        many(&|_| "\"1\": [0],".to_owned())
    ));
    run_every_parser(&format!(
        "{{{}\"1\": [0]}}",
        many(&|i| format!("\"{i}\": [0],"))
    ));
    run_every_parser(&many(&|i| format!("{i}: x\n")));
    run_every_parser(&many(&|_| "# a comment\n".to_owned()));
    run_every_parser(&format!("\"{}\": 1", "x".repeat(300_000)));
    let seen: BTreeMap<u64, _> =
        PerNodeCustomAlgorithmPaths::parse(&many(&|i| format!("{i}: x\n")), "f", false)
            .map(|(nodes, _)| {
                nodes
                    .iter()
                    .map(|(id, path)| (id, path.to_owned()))
                    .collect()
            })
            .expect("it is long and plain");
    assert_eq!(seen.len(), 10_000);
}
