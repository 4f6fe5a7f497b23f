//! Tests the hosts' clocks, and what a capture says about the job and its machine.

use super::rig::{convert_files, convert_folder, replay_files, run_program};
use crate::corpus::corpus_path_or_count_skip;

/// The second of two hosts has a clock that runs 20 parts in a million fast. In a minute, there are 60 all-reduces of
/// 300 us, and both ranks arrive at each of them at once. No rank waits, and each rank transfers for 60 × 300 us = 18
/// ms.
#[test]
fn clocks_that_drift_are_no_waiting() {
    let Some(folder) = corpus_path_or_count_skip("faults/drift") else {
        return;
    };
    let summary = convert_folder(&folder).summary;
    for rank in &summary.ranks {
        assert!(rank.wait_ns < 18_000, "{}: {} ns", rank.rank, rank.wait_ns);
        // The second clock counts 6 ns more per 300 us, and times are whole numbers of ns.
        let apart = rank.transfer_ns.abs_diff(18_000_000);
        assert!(apart < 18_000, "{}: {} ns", rank.rank, rank.transfer_ns);
    }
    let drift = summary.ranks[1].offset.drift;
    assert!((drift + 20_000_000).abs() < 1_000_000, "{drift}");
}

/// Two hosts, which their file names distinguish, have clocks that are 200 us apart. Both arrive
/// together at 20 all-reduces of 300 us.
#[test]
fn hosts_are_told_by_the_names_that_profilers_give_files() {
    let Some(folder) = corpus_path_or_count_skip("faults/small-skew") else {
        return;
    };
    for rank in convert_folder(&folder).summary.ranks {
        let times = (rank.transfer_ns, rank.wait_ns);
        assert_eq!(times, (6_000_000, 0), "{}", rank.rank);
    }
}

/// The capture has one rank of a job of 16, and the machine has 32 NPUs.
#[test]
fn mirrored_jobs_are_as_large_as_the_capture_says() {
    let Some(folder) = corpus_path_or_count_skip("faults/absent-mirror-world") else {
        return;
    };
    let job = convert_files(&folder);
    let report = replay_files(job.path(), &["-m", "dgx-h100x4", "--absent", "mirror"]);
    assert_eq!(report["ranks"], 16);
}

/// Reports name the hardware of a captured job, if the capture's files state it.
#[test]
fn reports_say_what_the_job_was_captured_on() {
    let Some(folder) = corpus_path_or_count_skip("captures/gpu/dlrm_8gpu") else {
        return;
    };
    let job = convert_files(&folder);
    let path = job.path().display().to_string();
    let text = run_program(&["replay", &path, "-m", "dgx-h100"]);
    assert!(text.contains("captured  on Tesla V100"), "{text}");
    let report = replay_files(job.path(), &["-m", "dgx-h100"]);
    let devices = report["captured_on"]["devices"]
        .as_array()
        .expect("there are some");
    assert_eq!(devices.len(), 1, "{devices:?}");
}
