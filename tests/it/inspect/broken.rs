//! Tests broken files, conflicting options, and pipes whose reader closes.

use super::{build_attribute, build_kernel_node, encode_trace_file, run_inspect};
use chakram::internals::proto::Node;
use chakram::internals::proto::attribute_proto::Value as Attribute;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

fn write_trace_bytes(folder: &Path, rank: u32, contents: &[u8]) {
    std::fs::write(folder.join(format!("job.{rank}.et")), contents).unwrap();
}

/// Runs the command. Returns the exit code, the standard output and the standard error.
fn run_inspect_as_text(args: &[&str]) -> (i32, String, String) {
    let output = run_inspect(args);
    (
        output.status.code().expect("it ends by itself"),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn readable_nodes_are_shown_and_faults_of_traces_are_named_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    // Rank 0 is sound, except that one control dependency is on a missing node; replays repair such a dependency. Rank
    // 1 has a send without a peer, a kernel with a data dependency on a missing node, a second node 1, and two nodes on
    // a cycle with a third node after the cycle. Its trace is truncated within the last record. Rank 2 is empty.
    let mut own = build_kernel_node(1, "a", 1, &[]);
    own.ctrl_deps = vec![77];
    write_trace_bytes(folder.path(), 0, &encode_trace_file(Vec::new(), &[own]));
    let send = Node {
        r#type: 5,
        ..build_kernel_node(2, "send", 1, &[1])
    };
    let nodes = [
        build_kernel_node(1, "a", 1, &[]),
        send,
        build_kernel_node(3, "c", 1, &[99]),
        build_kernel_node(1, "again", 1, &[]),
        build_kernel_node(4, "d", 1, &[5]),
        build_kernel_node(5, "e", 1, &[4]),
        build_kernel_node(6, "f", 1, &[5]),
        build_kernel_node(7, "lost", 1, &[]),
    ];
    let mut contents = encode_trace_file(Vec::new(), &nodes);
    contents.pop();
    write_trace_bytes(folder.path(), 1, &contents);
    write_trace_bytes(folder.path(), 2, &[]);
    let (code, text, warning) = run_inspect_as_text(&[path]);
    assert_eq!(code, 0, "{warning}");
    // The faults are rank 2, the broken send, the truncation, node 1, node 99, and three nodes
    // without times.
    assert_eq!(warning, "warning: 8 faults; the readable part is shown\n");
    let place = |what: &str| {
        text.find(what)
            .unwrap_or_else(|| panic!("{what:?} in\n{text}"))
    };
    let order = [
        "8 FAULTS: only the readable part is shown",
        "rank 2: ",
        "without `comm_dst`",
        "record 8",
        "a second node with the id 1",
        "node 3 depends on the data of node 99, which does not exist",
        "of dependencies or depend on one: 4 (d) → 5",
        "NOTES",
        "rank 0: node 1 follows node 77, which does not exist",
        "TYPES",
    ]
    .map(place);
    assert!(order.is_sorted(), "{text}");
    let types: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("  unreadable"))
        .collect();
    assert_eq!(types.len(), 1, "{text}");
    let (code, text, _) = run_inspect_as_text(&[path, "--format", "json"]);
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (code, document["unreadable"][0]["rank"].as_u64()),
        (0, Some(2))
    );
    assert_eq!(document["ranks"][1]["nodes"], 7);
    let (code, text, warning) = run_inspect_as_text(&[path, "--list"]);
    assert_eq!((code, text.lines().count()), (0, 1 + 8), "{text}");
    assert!(warning.starts_with("warning: 8 faults"), "{warning}");
    // A critical path needs the traces of all ranks.
    let (code, _, error) = run_inspect_as_text(&[path, "--critical-path"]);
    assert_eq!((code, error.contains("job.2.et")), (2, true), "{error}");
    let (code, text, _) = run_inspect_as_text(&[path, "--critical-path", "--rank", "0-1"]);
    assert_eq!(code, 0);
    assert!(
        text.contains("3 nodes left out, which are on a dependency cycle or depend on one"),
        "{text}"
    );
    assert!(text.contains("one path for each rank"), "{text}");
}

#[test]
fn control_dependencies_that_close_a_cycle_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = build_kernel_node(1, "a", 3, &[]);
    first.ctrl_deps = vec![2];
    let contents = encode_trace_file(Vec::new(), &[first, build_kernel_node(2, "b", 4, &[1])]);
    write_trace_bytes(folder.path(), 0, &contents);
    let (code, text, warning) = run_inspect_as_text(&[folder.path().to_str().unwrap()]);
    assert_eq!((code, &warning[..]), (0, ""));
    assert!(
        text.contains("control dependencies close a cycle"),
        "{text}"
    );
    assert!(text.contains("recorded run  7.000 us"), "{text}");
}

#[test]
fn inspecting_only_unreadable_traces_exits_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    write_trace_bytes(folder.path(), 0, &[]);
    write_trace_bytes(folder.path(), 1, b"\x28\xb5\x2f\xfd no zstd");
    for more in [
        &[][..],
        &["--list"],
        &["--critical-path"],
        &["--node", "1", "--rank", "0"],
    ] {
        let (code, text, error) = run_inspect_as_text(&[&[path], more].concat());
        assert_eq!(code, 2, "{more:?}: {text}");
        assert!(
            error.contains("job.0.et") && error.contains("the file is empty"),
            "{error}"
        );
    }
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let job = "traces/data-parallel-8";
    for (args, told) in [
        (&["--rank", "9"][..], "none of the 8 files is of this rank"),
        (&["--rank", "x"], "`x` is not a rank"),
        (&["--type", "kernel"], "there is no type `kernel`"),
        (&["--from", "soon"], "--from"),
        (&["--name", "a["], "[[]"),
        (&["--limit", "3"], "--limit is for --list and --node"),
        (&["--table", "types"], "--table needs --format csv"),
        (&["--format", "dot"], "try: --node ID"),
        (&["--node", "1"], "try: --rank 0"),
        (
            &["--node", "1", "--rank", "0", "--format", "csv"],
            "--node has no table",
        ),
        (&["--node", "123456", "--rank", "0"], "has no such node"),
        (
            &["--node", "1", "--rank", "0", "--list"],
            "cannot be used with",
        ),
        (&["--critical-path", "--name", "x"], "cannot be used with"),
        (&["--depth", "2"], "--node"),
        (&["--threads", "0"], "--threads"),
    ] {
        let (code, _, error) = run_inspect_as_text(&[&[job], args].concat());
        assert_eq!(code, 2, "{args:?}");
        assert!(error.contains(told), "{args:?}: {error}");
    }
    assert_eq!(run_inspect_as_text(&["no/such/folder"]).0, 2);
}

#[test]
fn closing_the_output_pipe_early_is_no_failure() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_chakram"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args([
            "inspect",
            "traces/ddp-resnet18",
            "--list",
            "--format",
            "csv",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(program.stdout.take());
    let output = program.wait_with_output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}

#[test]
fn an_output_file_holds_what_would_be_printed() {
    let folder = tempfile::tempdir().unwrap();
    for (i, args) in [&["--list"][..], &["--format", "json"], &["--critical-path"]]
        .iter()
        .enumerate()
    {
        let file = folder.path().join(format!("{i}.txt"));
        let job = ["traces/ddp-resnet18"];
        let printed = super::run_inspect_ok(&[&job[..], args].concat());
        let silent =
            super::run_inspect_ok(&[&job[..], args, &["-o", file.to_str().unwrap()]].concat());
        assert_eq!(
            (std::fs::read_to_string(&file).unwrap(), &silent[..]),
            (printed, "")
        );
    }
}

#[test]
fn attributes_of_odd_types_are_distinguished_from_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut nodes = [
        build_kernel_node(1, "a", 1, &[]),
        build_kernel_node(2, "b", 1, &[]),
    ];
    nodes[0].attr = vec![
        build_attribute("x", Attribute::DoubleVal(0.5)),
        build_attribute("x", Attribute::DoubleVal(1.5)),
    ];
    nodes[1].attr = vec![build_attribute(
        "x",
        Attribute::StringVal("\u{1b}[2J".to_owned()),
    )];
    write_trace_bytes(folder.path(), 0, &encode_trace_file(Vec::new(), &nodes));
    let path = folder.path().to_str().unwrap();
    let (_, text, _) = run_inspect_as_text(&[path]);
    // A node that has the attribute twice counts once.
    assert!(text.contains("x (double 1, string 1)"), "{text}");
    let (_, text, _) = run_inspect_as_text(&[path, "--node", "2"]);
    assert!(text.contains("x") && !text.contains('\u{1b}'), "{text:?}");
}
