//! Tests Kineto traces without host traces, and host traces without Kineto. The existing files
//! convert, no device time is lost, and replays end when the capture ended.

use super::plain_count::{
    FileBusyAndBlockedIntervals, Intervals, measure_intersection_ns, merge_intervals,
    total_interval_length,
};
use super::rig::{
    COLLECTIVE, ConversionResult, SchemaRankTrace, convert_folder, find_integer_attribute,
    list_node_dependency_ids, on_host, read_json_file, replay_traces, try_convert,
    write_generated_capture,
};
use super::truth::list_generated_jobs;
use crate::corpus::corpus_path_or_count_skip;
use chakram::convert::{ConvertOptions as Conversion, HostKinetoMatchMethod};
use chakram::engine::CommunicationDurationSource;
use chakram::workload::MissingRankPolicy;
use std::collections::BTreeMap;
use std::path::Path;
use testkit::capture::{Device, JobParallelism};

/// Returns the kind and bytes of a trace's collectives, in order.
fn list_collectives(trace: &SchemaRankTrace) -> Vec<(i64, i64)> {
    let nodes = trace.nodes.iter().filter(|node| node.r#type == COLLECTIVE);
    nodes
        .map(|n| {
            (
                find_integer_attribute(n, "comm_type").unwrap(),
                find_integer_attribute(n, "comm_size").unwrap(),
            )
        })
        .collect()
}

fn remove_capture_files(folder: &Path, what: &str, ranks: u32) {
    for rank in 0..ranks {
        std::fs::remove_file(folder.join(format!("{what}.{rank}.json"))).unwrap();
    }
}

fn assert_replay_ends_near_captured_ends(job: &ConversionResult, what: &str) {
    for comm in [
        CommunicationDurationSource::Captured,
        CommunicationDurationSource::Recorded,
    ] {
        // Replays do not reproduce waits for absent ranks.
        if comm == CommunicationDurationSource::Recorded && job.summary.partial > 0 {
            continue;
        }
        let ends = replay_traces(&job.traces, comm, |_| 0, MissingRankPolicy::Mirror)
            .last_node_end_of_each_rank_ns();
        for (end, trace) in ends.iter().zip(&job.traces) {
            let captured = trace.captured_ns();
            let off = end.abs_diff(captured);
            assert!(
                off * 1000 <= captured,
                "{what} {comm:?}: {end}, captured {captured}"
            );
        }
    }
}

/// Communication is the same with and without the host traces.
#[test]
fn generated_captures_convert_without_host_traces() {
    for (what, options) in list_generated_jobs(2) {
        let captured = write_generated_capture(&options);
        let folder = captured.folder.path();
        let both = convert_folder(folder);
        remove_capture_files(folder, "host", options.ranks);
        let alone = convert_folder(folder);
        assert_replay_ends_near_captured_ends(&alone, &what);
        assert_eq!(
            alone.summary.ranks[0].method,
            HostKinetoMatchMethod::KinetoAlone,
            "{what}"
        );
        assert_eq!(
            alone.summary.collectives, both.summary.collectives,
            "{what}"
        );
        assert_eq!(alone.summary.messages, both.summary.messages, "{what}");
        for (one, other) in alone.traces.iter().zip(&both.traces) {
            assert_eq!(list_collectives(one), list_collectives(other), "{what}");
            assert_eq!(one.nodes.len(), other.nodes.len(), "{what}");
        }
    }
}

/// Without Kineto, there are no times, but the order and the communication stay the same.
#[test]
fn generated_captures_convert_from_host_traces_alone() {
    for (what, options) in list_generated_jobs(2) {
        let captured = write_generated_capture(&options);
        let folder = captured.folder.path();
        let both = convert_folder(folder);
        remove_capture_files(folder, "kineto", options.ranks);
        let alone = try_convert(&[folder.to_owned()], &Conversion::default());
        // Plain operators on gloo do not name their group, and only Kineto records the workers,
        // which show the group.
        let plain = (options.device, options.style) == (Device::Cpu, JobParallelism::Ddp);
        if plain && options.tensor_parallel > 1 {
            let error = alone.err().expect("it is refused").to_string();
            for part in ["is unknown", "host trace does not record", "Kineto traces"] {
                assert!(error.contains(part), "{what}: {error}");
            }
            continue;
        }
        let alone = alone.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(
            alone.summary.ranks[0].method,
            HostKinetoMatchMethod::HostAlone,
            "{what}"
        );
        assert_eq!(alone.summary.messages, both.summary.messages, "{what}");
        for rank in &alone.summary.ranks {
            assert_eq!(rank.never_ran, [""; 0], "{what}");
        }
        for (one, other) in alone.traces.iter().zip(&both.traces) {
            assert_eq!(list_collectives(one), list_collectives(other), "{what}");
            assert!(
                one.nodes
                    .iter()
                    .all(|n| list_node_dependency_ids(n).all(|cause| cause < n.id))
            );
            let flops = |trace: &SchemaRankTrace| -> i64 {
                trace
                    .nodes
                    .iter()
                    .filter_map(|n| find_integer_attribute(n, "num_ops"))
                    .sum()
            };
            // An operator's work is divided among its kernels in whole numbers.
            let (own, expected) = (flops(one), flops(other));
            assert!(
                (own - expected).abs() * 1000 <= expected,
                "{what}: {own} of {expected}"
            );
            let timed = |n| super::rig::read_duration_ns(n) > 0 || super::rig::read_delay_ns(n) > 0;
            assert!(!one.nodes.iter().any(timed), "{what}");
        }
        if options.style != JobParallelism::Pipeline {
            assert!(!list_collectives(&alone.traces[0]).is_empty(), "{what}");
        }
    }
}

/// Returns the intervals in which nodes ran on devices, and the intervals in which a host thread
/// waited for such a node, in ns from the job's start.
fn replay_stream_and_blocked_host_intervals(
    trace: &SchemaRankTrace,
) -> (BTreeMap<i64, Intervals>, Intervals) {
    let log = replay_traces(
        std::slice::from_ref(trace),
        CommunicationDurationSource::Captured,
        |_| 0,
        MissingRankPolicy::Mirror,
    );
    let mut of: BTreeMap<u64, (i64, i64, bool)> = BTreeMap::new();
    let (mut streams, mut blocked) = (BTreeMap::<i64, Intervals>::new(), Vec::new());
    // The replay numbers nodes in file order.
    assert_eq!(trace.nodes.len(), log.0[0].len());
    for (node, &(start, end)) in trace.nodes.iter().zip(&log.0[0]).skip(1) {
        let (start, end) = ((start / 1000) as i64, (end / 1000) as i64);
        let host = on_host(node);
        of.insert(node.id, (start, end, host));
        if !host {
            let stream = find_integer_attribute(node, "stream").unwrap();
            streams.entry(stream).or_default().push((start, end));
            continue;
        }
        let ends = |host| {
            let causes = list_node_dependency_ids(node).filter_map(|cause| of.get(&cause));
            causes.filter(|c| c.2 == host).map(|c| c.1).max()
        };
        if let (Some(device), Some(own)) = (ends(false), ends(true))
            && device > own
        {
            blocked.push((own, device));
        }
    }
    for list in streams.values_mut() {
        *list = merge_intervals(std::mem::take(list));
    }
    (streams, merge_intervals(blocked))
}

/// Converts a single file, and compares the replay with a plain count of the file.
fn assert_kineto_file_alone_replays_as_counted(path: &Path) {
    let what = path.file_name().unwrap().to_string_lossy().into_owned();
    let job = try_convert(&[path.to_owned()], &Conversion::default())
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_replay_ends_near_captured_ends(&job, &what);
    let plain = FileBusyAndBlockedIntervals::read_from_file(path);
    let span = plain.last - plain.first;
    let (streams, blocked) = replay_stream_and_blocked_host_intervals(&job.traces[0]);
    let kept: i64 = streams
        .values()
        .map(|list| total_interval_length(list))
        .sum();
    let there: i64 = plain
        .streams
        .values()
        .map(|list| total_interval_length(list))
        .sum();
    assert!(
        kept * 100 >= there * 99,
        "{what}: {kept} ns of {there} on streams"
    );
    assert!(
        kept <= there + there / 100,
        "{what}: {kept} ns of {there} on streams"
    );
    let (own, file) = (
        merge_intervals(streams.into_values().flatten().collect()),
        plain.busy_intervals(),
    );
    let close = |one: i64, other: i64| (one - other).abs() * 100 <= span;
    let (busy, expected) = (total_interval_length(&own), total_interval_length(&file));
    assert!(
        close(busy, expected),
        "{what}: busy {busy} of {expected}, {span}"
    );
    let overlap = busy - measure_intersection_ns(&own, &blocked);
    let expected = expected - measure_intersection_ns(&file, &plain.blocked);
    println!("{what}: busy {busy}, overlap {overlap} of {expected}, span {span}");
    // Without operators, no event shows host work between runtime calls.
    assert!(
        !plain.operators || close(overlap, expected),
        "{what}: overlap {overlap} of {expected}, {span}"
    );
}

/// This test uses only small files. The test below covers the others, and takes minutes.
#[test]
fn real_kineto_traces_convert_alone() {
    let Some(gpu) = corpus_path_or_count_skip("captures/gpu") else {
        return;
    };
    for file in [
        "tracelens/h100/gaunernst_bert-small-uncased__1016001.json.gz",
        "tracelens/mi300/gaunernst_bert-small-uncased__1016001.json.gz",
        "tracelens/torch_compile_triton.json.gz",
        "tracelens/mi210_gpu_only.json.gz",
        "tracelens/inference/vllm_decode_graph_execution.json.gz",
        "tracelens/inference/sglang_qwen3_8b_decode.json.gz",
        "hta_misc_kineto/amd_trace.mi250_minitoy_train_ROCm6_2_kineto.json.zst",
        "hta_misc_kineto/critical_path.cuda_event_sync_multi_stream.event_sync_trace.json.zst",
        "hta_misc_kineto/critical_path.alexnet.benchmark_result_2869224_1695835535_trace.json.zst",
        "dlrm_8gpu/kineto.1.json.zst",
    ] {
        assert_kineto_file_alone_replays_as_counted(&gpu.join(file));
    }
}

/// Run it with `cargo test --release --test it -- --ignored every_kineto_trace_converts_alone`.
#[test]
#[ignore = "takes minutes; docs/validation/tests.md has the command"]
fn every_kineto_trace_converts_alone() {
    let Some(gpu) = corpus_path_or_count_skip("captures/gpu") else {
        return;
    };
    let mut count = 0;
    for folder in [
        "tracelens",
        "tracelens/h100",
        "tracelens/mi300",
        "tracelens/inference",
        "hta_misc_kineto",
    ] {
        let entries = std::fs::read_dir(gpu.join(folder)).expect("the corpus is there");
        for path in entries.map(|entry| entry.expect("it can be listed").path()) {
            let name = path.to_string_lossy().into_owned();
            if !name.contains(".json.") || read_json_file(&path).is_none() {
                continue;
            }
            assert_kineto_file_alone_replays_as_counted(&path);
            count += 1;
        }
    }
    assert!(count > 20, "{count} files");
}
