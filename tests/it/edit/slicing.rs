//! Compares slices by step with conversions of the step alone.

use super::rig::{
    case_path, decode_trace_nodes, expect_chakram_error, find_integer_attribute_value,
    list_corpus_captures, read_job_traces, replay_report_json_without_job_identity, run_chakram_ok,
};
use crate::corpus::{corpus_path_or_count_skip, find_expected_refusal, sample_every_nth};
use chakram::internals::proto::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Returns `false` for nodes that only end a conversion. A slice ends with the last node inside the
/// step's annotation.
fn is_work(node: &Node) -> bool {
    node.r#type > 1 && node.name != "end of the thread"
}

/// Returns the start of each node in ns, if the rank runs alone.
fn compute_node_starts_of_lone_rank(nodes: &[Node]) -> BTreeMap<u64, i64> {
    let mut ends: BTreeMap<u64, i64> = BTreeMap::new();
    let mut starts = BTreeMap::new();
    for node in nodes {
        let number = |name: &str| find_integer_attribute_value(node, name);
        let waited = node.data_deps.iter().map(|on| ends[on]);
        let start = waited.max().unwrap_or(0) + number("delay_ns").unwrap_or(0);
        let lasts = number("duration_ns").unwrap_or(node.duration_micros as i64 * 1000);
        starts.insert(node.id, start);
        ends.insert(node.id, start + lasts + number("wait_ns").unwrap_or(0));
    }
    starts
}

/// Returns the actions of a rank, with their times relative to the rank's first node.
fn list_timed_actions(nodes: &[Node]) -> Vec<(i64, String, i64, i64, i64)> {
    let starts = compute_node_starts_of_lone_rank(nodes);
    let work = || nodes.iter().filter(|node| is_work(node));
    let first = work().map(|node| starts[&node.id]).min().unwrap();
    let number = |node: &Node, name: &str| find_integer_attribute_value(node, name).unwrap_or(-1);
    let mut list: Vec<_> = work()
        .map(|node| {
            (
                starts[&node.id] - first,
                node.name.clone(),
                number(node, "num_ops"),
                number(node, "comm_type"),
                number(node, "comm_size"),
            )
        })
        .collect();
    list.sort();
    list
}

fn list_communication_types_and_sizes(nodes: &[Node]) -> Vec<(i64, i64)> {
    let calls = nodes.iter().filter(|node| (5..=7).contains(&node.r#type));
    let of = |node: &Node| {
        let number = |name: &str| find_integer_attribute_value(node, name).unwrap_or(-1);
        (number("comm_type"), number("comm_size"))
    };
    calls.map(of).collect()
}

fn sum_flops(nodes: &[Node]) -> i64 {
    nodes
        .iter()
        .filter_map(|node| find_integer_attribute_value(node, "num_ops"))
        .sum()
}

/// Cuts every step out of a converted capture, and compares the slice with a conversion of that
/// step alone. Returns the number of steps.
fn compare_slices_to_conversions(name: &str, capture: &Path) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let at = |what: &str| folder.path().join(what);
    let arg = |what: &str| at(what).to_str().unwrap().to_owned();
    run_chakram_ok(&[
        "convert",
        "pytorch",
        capture.to_str().unwrap(),
        "-o",
        &arg("all"),
    ]);
    let all = decode_trace_nodes(&read_job_traces(&at("all"))[0]);
    let steps = all
        .iter()
        .filter_map(|node| node.name.strip_prefix("ProfilerStep#"));
    let steps: BTreeSet<&str> = steps.collect();
    for step in &steps {
        let (cut, alone) = (format!("cut{step}"), format!("alone{step}"));
        let annotation = format!("ProfilerStep#{step}");
        let sliced = [
            "slice",
            &arg("all"),
            "--annotation",
            &annotation,
            "-o",
            &arg(&cut),
        ];
        run_chakram_ok(&sliced);
        run_chakram_ok(&[
            "convert",
            "pytorch",
            capture.to_str().unwrap(),
            "--step",
            step,
            "-o",
            &arg(&alone),
        ]);
        let (cut_traces, alone_traces) = (read_job_traces(&at(&cut)), read_job_traces(&at(&alone)));
        assert_eq!(cut_traces.len(), alone_traces.len());
        for (rank, (cut, alone)) in cut_traces.iter().zip(&alone_traces).enumerate() {
            let (cut, alone) = (decode_trace_nodes(cut), decode_trace_nodes(alone));
            let label = format!("{name}, step {step}, rank {rank}");
            assert_eq!(
                list_communication_types_and_sizes(&cut),
                list_communication_types_and_sizes(&alone),
                "{label}"
            );
            assert_eq!(sum_flops(&cut), sum_flops(&alone), "{label}");
            // Both reproduce the capture exactly, to the nanosecond. With fewer collectives, the
            // estimated clocks that align ranks may differ, so each rank's times count from its own
            // start.
            let (cut, alone) = (list_timed_actions(&cut), list_timed_actions(&alone));
            let differ = cut.iter().zip(&alone).position(|(a, b)| a != b);
            assert_eq!(differ.map(|i| (&cut[i], &alone[i])), None, "{label}");
            assert_eq!(cut.len(), alone.len(), "{label}");
        }
        let replayed = replay_report_json_without_job_identity(
            &arg(&cut),
            "dgx-h100",
            &["--comm", "captured"],
        );
        // The replay ends with its last node, at the time that the slowest rank's metadata state.
        assert_eq!(replayed["makespan_ps"], replayed["captured_ps"], "{name}");
        replay_report_json_without_job_identity(&arg(&cut), "dgx-h100", &[]);
    }
    steps.len()
}

#[test]
fn a_slice_of_one_step_equals_a_conversion_of_that_step_alone() {
    assert_eq!(
        compare_slices_to_conversions("ddp-resnet18", &case_path("ddp-resnet18/capture")),
        1
    );
    let mut steps = 0;
    for (name, path) in sample_every_nth(3, list_corpus_captures()) {
        if find_expected_refusal(&name).is_none() {
            steps += compare_slices_to_conversions(&name, &path);
        }
    }
    assert_eq!(
        steps >= 3,
        corpus_path_or_count_skip("").is_some(),
        "{steps} steps"
    );
}

#[test]
fn cuts_through_a_collective_are_refused_or_cut_it_in_every_rank() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("half");
    let prefix = prefix.to_str().unwrap();
    // Rank 1 gets larger ids, so only one of its collectives has an id up to the id of rank 0's
    // second collective.
    let mut traces = read_job_traces(&case_path("data-parallel-8"));
    traces.truncate(2);
    let mut second = decode_trace_nodes(&traces[1]);
    for node in &mut second {
        node.id += 7;
        node.data_deps.iter_mut().for_each(|on| *on += 7);
    }
    traces[1] = super::rig::encode_trace_file(&second);
    for (rank, trace) in traces.iter().enumerate() {
        std::fs::write(folder.path().join(format!("two.{rank}.et")), trace).unwrap();
    }
    let two = folder.path().join("two");
    let two = two.to_str().unwrap();
    let first = decode_trace_nodes(&traces[0]);
    let second = first.iter().filter(|node| node.r#type == 7).nth(1).unwrap();
    let to = second.id.to_string();
    let cut = ["slice", two, "--to", &to, "-o", prefix];
    let error = expect_chakram_error(&cut);
    assert!(
        error.contains("collective") && error.contains("--unmatched cut"),
        "{error}"
    );
    assert!(!Path::new(&format!("{prefix}.0.et")).exists());
    let said = run_chakram_ok(&[&cut[..], &["--unmatched", "cut"]].concat());
    assert!(said.contains("were removed on all ranks"), "{said}");
    replay_report_json_without_job_identity(prefix, "dgx-h100", &[]);
}

#[test]
fn slices_go_through_pipes() {
    let trace = case_path("data-parallel-8/job.0.et");
    let trace = trace.to_str().unwrap();
    let run = |args: &[&str], input: &[u8]| {
        use std::io::Write;
        use std::process::{Command, Stdio};
        let mut child = Command::new(env!("CARGO_BIN_EXE_chakram"))
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.code().unwrap(), output.stdout)
    };
    let cut = ["--from", "3", "--to", "20", "-o", "-"];
    let (code, from_file) = run(&[&["slice", trace][..], &cut].concat(), b"");
    assert_eq!((code, decode_trace_nodes(&from_file).len()), (0, 18));
    let contents = std::fs::read(trace).unwrap();
    let packed = [&["slice", "-"][..], &cut, &["-z", "gz"]].concat();
    let (code, from_pipe) = run(&packed, &contents);
    let unpacked = chakram::trace::decompress_bytes(&from_pipe)
        .unwrap()
        .unwrap();
    assert_eq!((code, unpacked == from_file), (0, true));
    assert_eq!(run(&["audit", "--leaks", "-"], &from_pipe).0, 0);
    let error = expect_chakram_error(&["slice", "traces/data-parallel-8", "--to", "9", "-o", "-"]);
    assert!(
        error.contains("-o - writes one trace, but there are 8"),
        "{error}"
    );
}
