//! Tests file names, ids that other tools rewrote, and numbers with another meaning.

use super::super::rig::{ConversionResult, try_convert};
use chakram::convert::ConvertOptions as Conversion;
use chakram::trace::TraceError;
use std::path::Path;

/// Returns an operator of 10 µs at `start`, and the kernel of 20 µs that it launches, both of process 7000.
fn format_kernel_events(start: u64, correlation: &str) -> String {
    format!(
        r#"{{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7000, "tid": 1, "ts": {start}, "dur": 10,
            "args": {{"External id": 1}}}},
        {{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7000, "tid": 1, "ts": {}, "dur": 2,
            "args": {{"External id": 1, "correlation": {correlation}}}}},
        {{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": {}, "dur": 20,
            "args": {{"External id": 1, "correlation": {correlation}, "stream": 7, "device": 0, "occupancy": 40}}}}"#,
        start + 5,
        start + 20,
    )
}

fn build_kineto_trace_json(head: &str, events: &str) -> String {
    format!("{{{head}\"traceEvents\": [{events}]}}")
}

fn try_convert_files(files: &[(&str, &str)]) -> Result<ConversionResult, TraceError> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    try_convert(&[folder.path().to_owned()], &Conversion::default())
}

fn assert_files_refused(files: &[(&str, &str)], parts: &[&str]) {
    let text = try_convert_files(files)
        .err()
        .expect("it is refused")
        .to_string();
    for part in parts {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

fn convert_files_and_list_ranks(files: &[(&str, &str)]) -> Vec<u32> {
    let job = try_convert_files(files).unwrap_or_else(|error| panic!("{error}"));
    job.summary.ranks.iter().map(|rank| rank.rank).collect()
}

/// PyTorch's tutorial numbers files by step and not by rank.
#[test]
fn a_number_in_the_name_of_the_only_capture_is_not_its_rank() {
    let text = &build_kineto_trace_json("", &format_kernel_events(1000, "3"));
    assert_eq!(
        convert_files_and_list_ranks(&[("test_trace_8.json", text)]),
        [0]
    );
    // The program accepts ranks in names of the form `kineto.RANK.json` or with `rank_RANK`, and
    // ranks that captures state.
    assert_eq!(
        convert_files_and_list_ranks(&[("kineto.3.json", text)]),
        [3]
    );
    assert_eq!(
        convert_files_and_list_ranks(&[("rank_3_step_8.json", text)]),
        [3]
    );
    let says = "\"distributedInfo\": {\"rank\": 5, \"world_size\": 8}, ";
    let text = &build_kineto_trace_json(says, &format_kernel_events(1000, "3"));
    assert_eq!(
        convert_files_and_list_ranks(&[("test_trace_8.json", text)]),
        [5]
    );
}

#[test]
fn windows_of_one_process_are_no_ranks() {
    let windows =
        [1000, 90_000].map(|start| build_kineto_trace_json("", &format_kernel_events(start, "3")));
    let files = [
        ("trace_8.json", &*windows[0]),
        ("trace_12.json", &*windows[1]),
    ];
    assert_files_refused(
        &files,
        &[
            "process 7000",
            "trace_8.json",
            "trace_12.json",
            "one by one",
        ],
    );
    // Files with the same time may be ranks in containers.
    let together = [
        ("trace_0.json", &*windows[0]),
        ("trace_1.json", &*windows[0]),
    ];
    assert_eq!(convert_files_and_list_ranks(&together), [0, 1]);
}

#[test]
fn ids_written_as_floats_are_read_as_ids() {
    let device = |correlation: &str| {
        let text = build_kineto_trace_json("", &format_kernel_events(1000, correlation));
        let job = try_convert_files(&[("kineto.0.json", &text)])
            .unwrap_or_else(|error| panic!("{error}"));
        let rank = &job.summary.ranks[0];
        (rank.device_ns, job.traces[0].nodes.len())
    };
    // The nodes are the declaration, the operator, the launch, the kernel, and the end of the
    // thread.
    let plain = device("3");
    assert_eq!(plain.0, (20_000, 20_000));
    assert_eq!(device("3.0"), plain);
    // There is no correlation id, so only the external id can link the kernel to its operator.
    assert_eq!(device("-1").0, plain.0);
    let text = build_kineto_trace_json("", &format_kernel_events(1000, "3.5"));
    assert_files_refused(
        &[("kineto.0.json", &text)],
        &["correlation", "3.5", "whole number"],
    );
}

#[test]
fn numbers_that_c_plus_plus_prints_are_mended() {
    for word in ["nan", "-nan", "inf", "-inf", "NaN", "-Infinity"] {
        let text = build_kineto_trace_json(
            "",
            &format_kernel_events(1000, "3")
                .replace("\"occupancy\": 40", &format!("\"occupancy\": {word}")),
        );
        let job = try_convert_files(&[("kineto.0.json", &text)])
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(job.summary.ranks[0].device_ns, (20_000, 20_000), "{word}");
    }
    let text = build_kineto_trace_json("", &format_kernel_events(1000, "3").replace("40", "nano"));
    assert_files_refused(&[("kineto.0.json", &text)], &["kineto.0.json"]);
}

#[test]
fn folders_without_captures_say_what_they_hold() {
    assert_files_refused(
        &[("kineto.0.json", "")],
        &["no captures here", "kineto.0.json", "empty"],
    );
    let lines = format_kernel_events(1000, "3").replace("},\n", "}\n");
    assert_files_refused(
        &[("a.json", "// mine"), ("b.json", &lines)],
        &["a.json", "and so are 1 more", "`traceEvents`"],
    );
    let missing = try_convert(
        &[Path::new("missing.json").to_owned()],
        &Conversion::default(),
    );
    assert!(missing.is_err());
}
