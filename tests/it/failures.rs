//! Compares jobs on machines that have a failing part with jobs on machines without it, and with sums computed by hand.

use crate::commands::run_chakram;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Returns a machine of four NPUs connected by `links` of 1 GB/s and 1 us. `more` is appended to the file.
fn write_four_npu_machine(folder: &TempDir, links: &str, more: &str) -> PathBuf {
    let text = format!(
        r#"name = "four"
[npu.own]
peak = {{ fp32 = "1 TFLOP/s" }}
lanes = 2
host_lanes = 1
memory_bandwidth = "1 TB/s"
[network]
model = "fair_sharing"
[[dimension]]
name = "x"
shape = "graph"
links = "{links}"
size = 4
bandwidth = "1 GB/s"
latency = "1 us"
algorithm = "direct"
{more}"#
    );
    let file = folder
        .path()
        .join(format!("{}.toml", links.replace([':', ','], "-")));
    fs::write(&file, text).expect("the folder can be written");
    file
}

const REDUCE: &str = "generate collective all-reduce --ranks 4 --size 4MB --format json --machine";

/// Returns the report of an all-reduce, or the error message.
fn replay_all_reduce(machine: &Path, more: &[&str]) -> Result<Value, String> {
    let words: Vec<&str> = REDUCE.split(' ').collect();
    let file = machine.to_str().expect("it is text");
    let output = run_chakram(&[&words[..], &[file], more].concat());
    match output.status.code() {
        Some(0) => Ok(serde_json::from_slice(&output.stdout).expect("it is JSON")),
        code => Err(format!(
            "{code:?} {}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

fn makespan_of_report(report: &Value) -> u64 {
    report["makespan_ps"].as_u64().expect("a time")
}

#[test]
fn a_link_that_fails_at_time_zero_equals_a_missing_link() {
    let folder = TempDir::new().expect("a folder");
    let ring = write_four_npu_machine(&folder, "0-1,1-2,2-3,3-0", "");
    let line = write_four_npu_machine(&folder, "0-1,1-2,2-3", "");
    let [ring_alone, line_alone] =
        [&ring, &line].map(|file| replay_all_reduce(file, &[]).expect("it ends"));
    let failed = replay_all_reduce(&ring, &["--fail", "3-0@0ns", "--links"]).expect("it ends");
    assert_eq!(makespan_of_report(&failed), makespan_of_report(&line_alone));
    assert_eq!(
        failed["edits"]["unedited_makespan_ps"],
        ring_alone["makespan_ps"]
    );
    assert!(makespan_of_report(&line_alone) > makespan_of_report(&ring_alone));
    // Each direction of each link carries the same bytes as on a machine without the failed link.
    let line_links = replay_all_reduce(&line, &["--links"]).expect("it ends");
    let loads = |report: &Value| {
        let rows = report["links"]["links"].as_array().expect("rows").iter();
        let rows = rows.map(|row| {
            (
                row["from"].to_string(),
                row["to"].to_string(),
                row["bytes"].as_u64(),
            )
        });
        let mut rows: Vec<_> = rows.filter(|row| row.2 != Some(0)).collect();
        rows.sort();
        rows
    };
    assert!(!loads(&failed).is_empty());
    assert_eq!(loads(&failed), loads(&line_links));
    // The machine file contains the same failure.
    let more = "[[failure]]\nlink = \"3-0\"\nat = \"0 ns\"\n";
    let of_file = write_four_npu_machine(&folder, "0-1,1-2,2-3,3-0", more);
    let said = replay_all_reduce(&of_file, &[]).expect("it ends");
    assert_eq!(makespan_of_report(&said), makespan_of_report(&failed));
    assert_eq!(said["edits"]["rows"], failed["edits"]["rows"]);
}

/// Link 3-0 is one of four links in each direction, with 1 GB/s and 1 us. The link carries half of one message from
/// each of two senders, so up to 1,000 B are in flight on the link.
#[test]
fn bytes_resent_after_a_link_failure_are_counted() {
    let folder = TempDir::new().expect("a folder");
    let ring = write_four_npu_machine(&folder, "0-1,1-2,2-3,3-0", "");
    let late = replay_all_reduce(&ring, &["--fail", "3-0@2ms"]).expect("it ends");
    let row = &late["failures"][0];
    assert_eq!(row["links"], 2, "{late}");
    assert!(row["rerouted_messages"].as_u64() > Some(0), "{row}");
    let resent = row["resent_bytes"].as_u64().expect("a number");
    // At most, the bytes in flight on two links of 1 GB/s with 1 us are sent again.
    assert!((1..=2000).contains(&resent), "{resent}");
    // A failure after the end changes nothing.
    let alone = replay_all_reduce(&ring, &[]).expect("it ends");
    let after = replay_all_reduce(&ring, &["--fail", "3-0@1s"]).expect("it ends");
    assert_eq!(makespan_of_report(&after), makespan_of_report(&alone));
    assert_eq!(after["failures"][0]["rerouted_messages"], 0);
}

#[test]
fn a_job_is_stuck_if_an_npu_or_its_only_route_fails() {
    let folder = TempDir::new().expect("a folder");
    let line = write_four_npu_machine(&folder, "0-1,1-2,2-3", "");
    let no_npu = replay_all_reduce(&line, &["--fail", "2@2ms"]).expect_err("rank 2 does not end");
    for part in [
        "Some(1)",
        "the replay is stuck: 0 of 4 nodes completed",
        "NPU 2 failed at 2.000 ms: 1 node on the NPU had not ended",
        "rank 0 node 1 `all-reduce/0` waits for rank 2, which stopped",
    ] {
        assert!(no_npu.contains(part), "{part}: {no_npu}");
    }
    let no_way = replay_all_reduce(&line, &["--fail", "0-1@2ms"]).expect_err("NPU 0 is cut off");
    for part in [
        "Some(1)",
        "link 0-1 failed at 2.000 ms: no route is left from NPU 0 to NPU",
    ] {
        assert!(no_way.contains(part), "{part}: {no_way}");
    }
    // An NPU that fails after its last node does not block other NPUs.
    assert!(replay_all_reduce(&line, &["--fail", "2@1s"]).is_ok());
}

#[test]
fn invalid_fail_options_are_refused() {
    let folder = TempDir::new().expect("a folder");
    let line = write_four_npu_machine(&folder, "0-1,1-2,2-3", "");
    for (words, part) in [
        (
            &["--fail", "0-2@2ms"][..],
            "no link joins NPU 0 and NPU 2: NPU 0 has links to NPU 1",
        ),
        (
            &["--fail", "0-hub@2ms"],
            "`0-hub` names NPU 0 but no second vertex",
        ),
        (&["--fail", "4@2ms"], "the machine has 4 NPUs"),
        (&["--fail", "2"], "expected NPU@TIME or VERTEX-VERTEX@TIME"),
        (&["--fail", "2@soon"], "soon"),
        (
            &["--fail", "0-1@2ms", "--aggregate"],
            "one rank runs for several",
        ),
        (
            &["--fail", "0-1@2ms", "--collective", "*=2"],
            "no message crosses links",
        ),
    ] {
        let error = replay_all_reduce(&line, words).expect_err("it is refused");
        assert!(
            error.starts_with("Some(2)") && error.contains(part),
            "{part}: {error}"
        );
    }
    let words: Vec<&str> = REDUCE.split(' ').collect();
    // Other models have no other routes, and the suggested words are those that the command line accepts.
    for network in ["contention-free", "links"] {
        let at = ["dgx-h100", "--fail", "0-1@2ms", "--network", network];
        let unshared = run_chakram(&[&words[..], &at].concat());
        let error = String::from_utf8_lossy(&unshared.stderr);
        let found = format!("network model {network} sends no message around failed links");
        assert!(
            error.contains(&found) && error.contains("try: --network fair-sharing"),
            "{error}"
        );
        let of_npu = ["dgx-h100", "--fail", "3@1s", "--network", network];
        let of_npu = run_chakram(&[&words[..], &of_npu].concat());
        assert_eq!(of_npu.status.code(), Some(0), "{network}");
    }
    for (table, part) in [
        (
            "[[failure]]\nlink = \"0-3\"\nat = \"1 ms\"",
            "no link joins NPU 0 and NPU 3",
        ),
        (
            "[[failure]]\nnpu = 4\nat = \"1 ms\"",
            "key `failure[0].npu`",
        ),
        (
            "[[failure]]\nnpu = 1\nlink = \"0-1\"\nat = \"1 ms\"",
            "either of them",
        ),
        ("[[failure]]\nnpu = 1", "at"),
    ] {
        let file = write_four_npu_machine(&folder, "0-1,1-2,2-3", table);
        let error = replay_all_reduce(&file, &[]).expect_err("it is refused");
        assert!(
            error.starts_with("Some(2)") && error.contains(part),
            "{part}: {error}"
        );
    }
}
