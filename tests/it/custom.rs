//! Tests `chakram replay --custom`, both with an algorithm's files and with files that are rejected.

use super::commands::run_chakram;
use chakram::trace::{CollectiveKind, GroupName, NodeView, Op, Sink, TraceWriter};
use chakram::units::Span;
use std::path::Path;

/// A machine of two NPUs on a ring of 50 GB/s.
pub const TWO_NPU_RING: &str = r#"
name = "two"

[npu.one]
memory_bandwidth = "1 TB/s"
memory_latency = "100 ns"
memory_capacity = "80 GB"
lanes = 2
host_lanes = 1

[npu.one.peak]
fp32 = "10 TFLOP/s"

[[dimension]]
name = "wire"
shape = "ring"
size = 2
bandwidth = "50 GB/s"
latency = "500 ns"
algorithm = "ring"
"#;

/// A node: its id, its operation and its dependencies.
type NodeWithDependencies<'a> = (u64, Op<'static>, &'a [u64]);

fn write_trace(path: &Path, nodes: &[NodeWithDependencies<'_>]) {
    let mut writer = TraceWriter::new(Vec::new()).expect("memory takes everything");
    for &(id, op, after) in nodes {
        let node = NodeView {
            recorded: Span::from_ns(1000),
            ..NodeView::new(id, "node", op)
        };
        writer
            .receive_node(&node, after)
            .expect("memory takes everything");
    }
    std::fs::write(path, writer.into_unflushed_sink()).expect("there is room");
}

fn build_message_op(receive: bool, peer: u32, bytes: u64) -> Op<'static> {
    Op::Message {
        receive,
        peer,
        tag: 3,
        bytes,
        own: None,
        host: false,
    }
}

fn all_reduce() -> Op<'static> {
    Op::Collective {
        kind: CollectiveKind::AllReduce,
        bytes: 4000,
        group: GroupName::World,
        root: None,
        dimensions: None,
        host: false,
    }
}

/// Exit code and output of the program.
struct ProgramExitAndOutput {
    code: i32,
    out: String,
    error: String,
}

/// A folder with a two-rank job of one all-reduce, and a machine for it.
struct TwoRankJobFolder(tempfile::TempDir);

impl TwoRankJobFolder {
    fn new() -> Self {
        let case = Self(tempfile::tempdir().expect("there is room"));
        std::fs::write(case.path_in_folder("machine.toml"), TWO_NPU_RING).expect("there is room");
        for rank in 0..2 {
            write_trace(
                Path::new(&case.path_in_folder(&format!("job.{rank}.et"))),
                &[(1, all_reduce(), &[])],
            );
        }
        case
    }

    fn path_in_folder(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Writes the files of an algorithm, with one trace for each position.
    fn write_algorithm_files(&self, name: &str, positions: &[&[NodeWithDependencies<'_>]]) {
        for (position, nodes) in positions.iter().enumerate() {
            write_trace(
                Path::new(&self.path_in_folder(&format!("{name}.{position}.et"))),
                nodes,
            );
        }
    }

    fn replay(&self, custom: &[&str], more: &[&str]) -> ProgramExitAndOutput {
        let (job, machine) = (
            self.path_in_folder("job"),
            self.path_in_folder("machine.toml"),
        );
        let custom = custom.iter().map(|of| match of.split_once('=') {
            Some((kind, name)) => format!("--custom={kind}={}", self.path_in_folder(name)),
            None => format!("--custom={of}"),
        });
        let custom: Vec<String> = custom.collect();
        let mut args = vec!["replay", &job, "-m", &machine];
        args.extend(custom.iter().map(String::as_str));
        args.extend(more);
        let output = run_chakram(&args);
        let text = |bytes| String::from_utf8(bytes).expect("it is text");
        ProgramExitAndOutput {
            code: output.status.code().expect("it ends by itself"),
            out: text(output.stdout),
            error: text(output.stderr),
        }
    }

    /// Asserts that the program rejects `custom` as bad input, with an error that contains all of
    /// `words`.
    fn assert_replay_refuses(&self, custom: &[&str], words: &[&str]) {
        let ProgramExitAndOutput { code, error, .. } = self.replay(custom, &[]);
        assert_eq!(code, 2, "{error}");
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}

const SEND: NodeWithDependencies<'_> = (7, message_from_position_0_to_1(false), &[]);
const RECEIVE: NodeWithDependencies<'_> = (9, message_from_position_0_to_1(true), &[]);

/// Returns the send or the receive of a message of 1,000 B from position 0 to position 1.
const fn message_from_position_0_to_1(receive: bool) -> Op<'static> {
    Op::Message {
        receive,
        peer: if receive { 0 } else { 1 },
        tag: 3,
        bytes: 1000,
        own: None,
        host: false,
    }
}

/// 1,000 B at 50 GB/s and 500 ns take 520 ns, whatever the size of the all-reduce.
#[test]
fn custom_algorithm_files_are_replayed_and_listed_in_the_report() {
    let case = TwoRankJobFolder::new();
    case.write_algorithm_files("mine", &[&[SEND], &[RECEIVE]]);
    for kind in ["all-reduce=mine", "all_reduce=mine"] {
        let ProgramExitAndOutput { code, out, error } = case.replay(&[kind], &["--format", "json"]);
        assert_eq!((code, &error[..]), (0, ""));
        let report: serde_json::Value = serde_json::from_str(&out).expect("it is JSON");
        assert_eq!(report["makespan_ps"], 520_000);
        let custom = &report["options"]["custom"];
        assert_eq!(custom[0]["kind"], "all-reduce");
        assert_eq!(custom[0]["prefix"], case.path_in_folder("mine"));
        let inputs = report["inputs"].as_array().expect("there are some");
        let files = inputs.iter().filter(|input| input["role"] == "custom");
        assert_eq!(files.count(), 2);
    }
    let text = case.replay(&["all-reduce=mine"], &[]).out;
    // The files state no size, so the report says whose sizes the messages have. It may break lines at spaces.
    let label = format!(
        "custom {}, sizes from its files",
        case.path_in_folder("mine")
    );
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(words.join(" ").contains(&label), "{text}");
    // The machine's own algorithm has 2 rounds of 500 ns and 2,000 B.
    let plain = case.replay(&[], &[]).out;
    assert!(
        plain.contains("ring 2 (wire)") && plain.contains("1.080 us"),
        "{plain}"
    );
}

#[test]
fn algorithms_that_no_collective_uses_give_a_note() {
    let case = TwoRankJobFolder::new();
    case.write_algorithm_files("mine", &[&[SEND], &[RECEIVE], &[]]);
    let ProgramExitAndOutput { code, out, error } = case.replay(&["all-reduce=mine"], &[]);
    assert_eq!(code, 0);
    assert!(out.contains("ring 2 (wire)"), "{out}");
    let words = "no all-reduce of the job has 3 members";
    assert!(
        error.starts_with("note: ") && error.contains(words),
        "{error}"
    );
    case.write_algorithm_files("other", &[&[SEND], &[RECEIVE]]);
    let ProgramExitAndOutput { code, error, .. } = case.replay(&["barrier=other"], &[]);
    assert_eq!(code, 0);
    assert!(
        error.contains("no barrier of the job has 2 members"),
        "{error}"
    );
}

#[test]
fn files_that_are_not_there_are_named() {
    let case = TwoRankJobFolder::new();
    case.assert_replay_refuses(&["all-reduce=none"], &["none", "PREFIX"]);
    case.write_algorithm_files("mine", &[&[SEND], &[RECEIVE], &[]]);
    std::fs::remove_file(case.path_in_folder("mine.1.et")).expect("it is there");
    case.assert_replay_refuses(&["all-reduce=mine"], &["mine", "position 1", "try:"]);
    std::fs::remove_file(case.path_in_folder("mine.2.et")).expect("it is there");
    case.assert_replay_refuses(
        &["all-reduce=mine"],
        &["mine", "position 1", "at least two"],
    );
}

#[test]
fn algorithms_that_make_no_sense_are_refused() {
    let case = TwoRankJobFolder::new();
    let refuses = |positions: &[&[NodeWithDependencies<'_>]], words: &[&str]| {
        case.write_algorithm_files("bad", positions);
        case.assert_replay_refuses(&["all-reduce=bad"], words);
    };
    // In these cases, a peer has no file, or a send or receive has no matching node, or its matching node has a
    // different size.
    let far = (8, build_message_op(false, 2, 1000), &[][..]);
    refuses(
        &[&[SEND, far], &[RECEIVE]],
        &["bad.0.et, node 8", "peer 2", "try:"],
    );
    refuses(
        &[&[SEND], &[]],
        &["bad.0.et, node 7", "position 1 has no receive", "try:"],
    );
    refuses(
        &[&[], &[RECEIVE]],
        &["bad.1.et, node 9", "position 0 has no send", "try:"],
    );
    let large = (9, build_message_op(true, 0, 1001), &[][..]);
    refuses(&[&[SEND], &[large]], &["bad.", "try:"]);
    // Both positions receive before they send.
    let circle = |peer| {
        [
            (1, build_message_op(true, peer, 10), &[][..]),
            (2, build_message_op(false, peer, 10), &[1][..]),
        ]
    };
    refuses(
        &[&circle(1), &circle(0)],
        &["bad.", "node", "for itself", "try:"],
    );
    let nested = (4, all_reduce(), &[][..]);
    refuses(
        &[&[SEND], &[RECEIVE, nested]],
        &["bad.1.et", "node 4", "try:"],
    );
    std::fs::write(case.path_in_folder("bad.1.et"), b"\xff\xff").expect("there is room");
    case.assert_replay_refuses(&["all-reduce=bad"], &["bad.1.et"]);
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let case = TwoRankJobFolder::new();
    case.write_algorithm_files("mine", &[&[SEND], &[RECEIVE]]);
    let twice = ["all-reduce=mine", "all_reduce=mine"];
    case.assert_replay_refuses(&twice, &["all-reduce", "twice", "try:"]);
    case.assert_replay_refuses(&["sum=mine"], &["`sum`", "reduce-scatter"]);
    case.assert_replay_refuses(&["mine"], &["KIND=PREFIX"]);
    let ProgramExitAndOutput { code, error, .. } =
        case.replay(&["all-reduce=mine"], &["--comm", "recorded"]);
    assert_eq!(code, 2);
    assert!(
        error.contains("--custom") && error.contains("try:"),
        "{error}"
    );
}

/// Comparisons and generated jobs accept the option, just as single replays do.
#[test]
fn comparisons_and_generated_jobs_accept_custom_algorithms() {
    let case = TwoRankJobFolder::new();
    case.write_algorithm_files("mine", &[&[SEND], &[RECEIVE]]);
    let machine = case.path_in_folder("machine.toml");
    let custom = format!("all-reduce={}", case.path_in_folder("mine"));
    let args = [
        "generate",
        "collective",
        "all-reduce",
        "--size",
        "4kB",
        "--ranks",
        "2",
    ];
    let mut args = args.to_vec();
    args.extend(["--machine", &machine, "--custom", &custom]);
    let text = String::from_utf8(run_chakram(&args).stdout).expect("it is text");
    assert!(text.contains("520.000 ns"), "{text}");
    let several = case.replay(&["all-reduce=mine"], &["-m", "dgx-a100"]);
    assert_eq!((several.code, &several.error[..]), (0, ""));
    assert!(several.out.contains("520.000 ns"), "{}", several.out);
}
