//! Tests Nsight Systems exports that SQLite itself wrote (`nsys/make.py`). The files have the smallest and the largest
//! pages, trees of several levels, long names on overflow pages, free pages, and texts in two encodings.

use super::{TemporaryTestFolder, expect_cli_error, run_for_stdout};
use serde_json::Value;
use std::io::Read;

/// An export with pages of 1 KiB: two processes with 40 launches each, every tenth of them a
/// collective with a size.
const SMALL: &[u8] = include_bytes!("nsys/small-pages.sqlite.gz");
/// An export with pages of 64 KiB and texts in UTF-16: a process with 30 launches, without
/// collectives.
const LARGE: &[u8] = include_bytes!("nsys/large-pages.sqlite.gz");

fn decompress_gzip(packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut stream = flate2::read::GzDecoder::new(packed);
    stream.read_to_end(&mut bytes).expect("it is whole");
    bytes
}

fn run_for_json(args: &[&str]) -> Value {
    let text = run_for_stdout(&[args, &["--format", "json"]].concat());
    serde_json::from_str(&text).expect("it is JSON")
}

/// The order of process ids is the reverse of NCCL's ranks. The union of both streams' intervals,
/// known from the script, is 317,500 ns for rank 0 and 373,500 ns for rank 1. The all-reduce at
/// launch k has 4096 (k + 1) bytes. For k = 9, 19, 29 and 39 this is 4096 x 25 on average, 102,400.
#[test]
fn processes_become_ranks_with_all_of_their_device_time() {
    let folder = TemporaryTestFolder::new();
    let report = folder.write_file("report.sqlite", decompress_gzip(SMALL));
    let packed = folder.write_file("report.sqlite.gz", SMALL);
    let job = folder.path("job");
    let summary = run_for_json(&["convert", "nsys", &report, "-o", &job]);
    assert_eq!(summary["order"], "nccl");
    assert_eq!(summary["stated"], 8);
    assert_eq!(summary["world"], 2);
    assert_eq!(summary["processes"][0][1], 4014);
    assert_eq!(summary["processes"][1][1], 4007);
    assert_eq!(summary["groups"][0]["ranks"], serde_json::json!([0, 1]));
    assert_eq!(summary["collectives"], serde_json::json!({"all-reduce": 4}));
    for (rank, busy) in [317_500, 373_500].into_iter().enumerate() {
        let rank = &summary["ranks"][rank];
        assert_eq!(rank["device"], 40);
        assert_eq!(rank["device_ns"], serde_json::json!([busy, busy]));
        // The launch after the last kernel has no kernel.
        assert_eq!(rank["dropped"], 1);
        assert_eq!(rank["unsized_calls"], 0);
        assert_eq!(rank["unlaunched"], 0);
    }
    let report = run_for_json(&["replay", &job, "-m", "dgx-h100", "--comm", "captured"]);
    let device = &report["captured_on"]["devices"][0];
    assert_eq!(*device, "NVIDIA H100 80GB HBM3");
    let calls = &report["collectives"][0];
    assert_eq!(calls["kind"], "all-reduce");
    assert_eq!(calls["calls"], 4);
    assert_eq!(calls["buffer_bytes"]["sum"], 4 * 102_400);
    let captured = summary["ranks"][0]["captured_ns"].as_u64().unwrap();
    assert_eq!(report["makespan_ps"], captured * 1000);
    // Compressed files and files without a stated format give the same job.
    let other = folder.path("other");
    run_for_stdout(&["convert", &packed, "-o", &other]);
    for rank in 0..2 {
        let [one, two] = ["job", "other"].map(|job| folder.read(&format!("{job}.{rank}.et")));
        assert!(one == two, "rank {rank}");
    }
}

/// There are 30 launches on one stream, and the script's union of their intervals is 177,500 ns.
#[test]
fn texts_in_utf_16_and_the_largest_pages_are_read() {
    let folder = TemporaryTestFolder::new();
    let report = folder.write_file("report.sqlite", decompress_gzip(LARGE));
    let job = folder.path("job");
    let said = run_for_stdout(&["convert", "auto", &report, "-o", &job]);
    assert!(said.contains("process 4007 on device 0"), "{said}");
    assert!(
        said.contains("NCCL's ranges do not say their ranks"),
        "{said}"
    );
    let summary = run_for_json(&["convert", "nsys", &folder.path(""), "-o", &job]);
    assert_eq!(summary["order"], "devices");
    let rank = &summary["ranks"][0];
    assert_eq!(rank["device"], 30);
    assert_eq!(rank["device_ns"], serde_json::json!([177_500, 177_500]));
    let operators = run_for_stdout(&["inspect", &job, "--format", "csv", "--table", "operators"]);
    assert!(operators.contains("cutlass::gemm_"), "{operators}");
}

#[test]
fn exports_are_recognized_and_others_are_refused() {
    let folder = TemporaryTestFolder::new();
    let report = folder.write_file("report.sqlite", decompress_gzip(SMALL));
    let try_this = format!("try: chakram convert nsys {report} -o job");
    for command in [
        &["replay", &report, "-m", "dgx-h100"][..],
        &["validate", &report],
        &["convert", "trace", &report, "-o", &folder.path("x.et")],
        &["convert", "pytorch", &report, "-o", &folder.path("x")],
    ] {
        let error = expect_cli_error(command);
        assert!(
            error.contains("this is an export of Nsight Systems"),
            "{error}"
        );
        assert!(error.contains(&try_this), "{error}");
    }
    let list = run_for_stdout(&["convert", "--list"]);
    assert!(list.contains("nsys") && list.contains(".sqlite"), "{list}");
    // A truncated file and files that are not databases are rejected.
    let cut = folder.write_file("cut.sqlite", &decompress_gzip(SMALL)[..20_000]);
    let error = expect_cli_error(&["convert", "nsys", &cut, "-o", &folder.path("x")]);
    assert!(error.contains("it was cut off"), "{error}");
    let text = folder.write_file("text.sqlite", "SQLite is no database");
    let error = expect_cli_error(&["convert", "nsys", &text, "-o", &folder.path("x")]);
    assert!(
        error.contains("shorter than the header") || error.contains("not a SQLite database"),
        "{error}"
    );
}
