//! Tests the program from a shell.

use super::chance::{Dice, UnwrittenJob};
use crate::commands::{run_chakram, run_for_exit_code};
use chakram::internals::proto::Node;
use serde_json::Value;
use std::path::Path;

/// Writes the files of `job` and returns their folder.
fn write_job_files(job: &UnwrittenJob) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (rank, bytes) in job.files() {
        let path = folder.path().join(format!("job.{rank}.et"));
        std::fs::write(path, bytes).expect("it can be written");
    }
    folder
}

fn capture_stdout(args: &[&str]) -> String {
    String::from_utf8(run_chakram(args).stdout).expect("it is text")
}

/// Returns a job of two ranks, where rank 0 reduces 1 KiB and gathers 64 B, and rank 1 does so in
/// reverse order.
fn build_diverging_job() -> UnwrittenJob {
    let mut job = UnwrittenJob::random_sound_job(&mut Dice(0), false);
    let collective = |id: u64, name: &str, kind, bytes, deps: &[u64]| Node {
        id,
        name: name.to_owned(),
        r#type: 7,
        data_deps: deps.to_vec(),
        attr: vec![
            super::chance::make_integer_attribute("comm_type", kind),
            super::chance::make_integer_attribute("comm_size", bytes),
        ],
        ..Node::default()
    };
    job.ranks = vec![
        vec![
            collective(1, "reduce", 0, 1024, &[]),
            collective(2, "gather", 2, 64, &[1]),
        ],
        vec![
            collective(1, "gather", 2, 64, &[]),
            collective(2, "reduce", 0, 1024, &[1]),
        ],
    ];
    job
}

#[test]
fn exit_codes_tell_sound_from_unsound() {
    assert_eq!(
        run_for_exit_code(&["validate", "traces/data-parallel-8", "--strict"]),
        0
    );
    assert_eq!(run_for_exit_code(&["validate", "traces/deadlock-2"]), 2);
    assert_eq!(
        run_for_exit_code(&["validate", "traces/data-parallel-8/job.3.et"]),
        2
    );
    let one = [
        "validate",
        "traces/data-parallel-8/job.3.et",
        "--absent",
        "mirror",
    ];
    assert_eq!(run_for_exit_code(&one), 0);
    assert_eq!(
        run_for_exit_code(&["validate", "traces/data-parallel-8", "--ranks", "4"]),
        2
    );
    assert_eq!(
        run_for_exit_code(&["validate", "traces/data-parallel-8", "--ranks", "0"]),
        2
    );
    assert_eq!(run_for_exit_code(&["validate", "no/such/folder"]), 2);
    let mut job = UnwrittenJob::random_sound_job(&mut Dice(0), false);
    job.ranks[1][1].ctrl_deps.push(7);
    let folder = write_job_files(&job);
    let path = folder.path().to_str().expect("it is text");
    assert_eq!(run_for_exit_code(&["validate", path]), 0);
    assert_eq!(run_for_exit_code(&["validate", path, "--strict"]), 2);
}

#[test]
fn the_first_divergence_is_told_from_both_sides() {
    let folder = write_job_files(&build_diverging_job());
    let path = folder.path().to_str().expect("it is text");
    let text = capture_stdout(&["validate", path]);
    let file = |rank| {
        folder
            .path()
            .join(format!("job.{rank}.et"))
            .display()
            .to_string()
    };
    let expected = format!(
        "rank 0: 2 nodes, 1 dependency, no defects ({})
rank 1: 2 nodes, 1 dependency, 1 error ({})
total: \
2 traces, 4 nodes, 2 dependencies

error divergent-collectives: 1 x ranks that disagree on the collectives \
of a group they share
  rank 1, node 1 `gather` (record 1): collective 0 (counted from 0) of the group of \
ranks 0-1: rank 0 does node 1 `reduce` (record 1), all-reduce of 1024 bytes, but rank 1 does node 1 \
`gather` (record 1), all-gather of 64 bytes; next: rank 0 node 2 `gather` (record 2), all-gather of 64 \
bytes; rank 1 node 2 `reduce` (record 2), all-reduce of 1024 bytes
  try: look for a trace of another job \
or step, or a truncated trace; members of a group must make the same collectives in the same \
order

verdict: unsound, 1 error
",
        file(0),
        file(1)
    );
    assert_eq!(text, expected);
}

#[test]
fn json_counts_all_and_lists_the_first() {
    let mut job = UnwrittenJob::random_sound_job(&mut Dice(3), false);
    for node in &mut job.ranks[0] {
        node.ctrl_deps.push(7);
    }
    let count = job.ranks[0].len();
    let folder = write_job_files(&job);
    let path = folder.path().to_str().expect("it is text");
    let args = ["validate", path, "--show", "2", "--format", "json"];
    let document: Value = serde_json::from_str(&capture_stdout(&args)).expect("it is JSON");
    assert_eq!(document["schema"], "chakram.validation.1");
    assert_eq!(document["sound"], true);
    assert_eq!(document["warnings"], count);
    assert_eq!(document["ranks"][0]["warnings"], count);
    assert_eq!(
        document["inputs"].as_array().map(Vec::len),
        Some(job.ranks.len())
    );
    let defects = document["defects"].as_array().expect("a list");
    assert_eq!(defects.len(), 1);
    assert_eq!(defects[0]["kind"], "dangling-control");
    assert_eq!(defects[0]["count"], count);
    assert_eq!(defects[0]["shown"].as_array().map(Vec::len), Some(2));
    assert_eq!(defects[0]["shown"][0]["node"], 5);
    // The report goes to the given file, and does not depend on the number of threads.
    let file = folder.path().join("report.json");
    let to = file.to_str().expect("it is text");
    for threads in ["1", "3"] {
        let args = [&args[..], &["--threads", threads, "-o", to]].concat();
        assert_eq!(run_for_exit_code(&args), 0);
        let written = std::fs::read_to_string(&file).expect("it was written");
        let written: Value = serde_json::from_str(&written).expect("it is JSON");
        assert_eq!(written, document);
    }
}

#[test]
fn a_file_under_several_names_is_read_once_and_counts_for_each() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let first = folder.path().join("job.0.et");
    std::fs::copy(root.join("traces/data-parallel-8/job.0.et"), &first).expect("it is there");
    for rank in 1..20 {
        let other = folder.path().join(format!("job.{rank}.et"));
        std::fs::hard_link(&first, other).expect("it can be linked");
    }
    let path = folder.path().to_str().expect("it is text");
    let text = capture_stdout(&["validate", path]);
    assert!(text.starts_with("total: 20 traces"), "{text}");
    assert!(text.ends_with("verdict: sound, no defects\n"), "{text}");
}

#[test]
fn a_machine_says_who_takes_part_in_collectives_over_some_dimensions() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("it is text");
    let job = folder.path().join("job");
    let generated = run_chakram(&[
        "generate",
        "collective",
        "all-reduce",
        "--size",
        "1MB",
        "--ranks",
        "16",
        "--dimensions",
        "0",
        "-o",
        job.to_str().expect("it is text"),
    ]);
    assert!(generated.status.success(), "{generated:?}");
    assert_eq!(run_for_exit_code(&["validate", path]), 0);
    assert_eq!(
        run_for_exit_code(&["validate", path, "--machine", "dgx-h100x2", "--strict"]),
        0
    );
}
