//! Tests large jobs that use only part of each rack, and groups that span domains.

use super::commands::{run_chakram, run_for_exit_code};
use serde_json::Value;

fn run_for_stdout(args: &[&str]) -> String {
    let output = run_chakram(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {error}");
    String::from_utf8(output.stdout).expect("it is text")
}

fn run_for_json(args: &[&str]) -> Value {
    let text = run_for_stdout(&[args, &["--format", "json"]].concat());
    serde_json::from_str(&text).expect("it is JSON")
}

/// An all-reduce spans two racks without a ring. 65 ranks fit in a rack of 72. 73 ranks do not fit,
/// so rank 64 is the first rank of the second rack, on NPU 72. 144 ranks need three racks of 64, or
/// all NPUs of two racks.
#[test]
fn jobs_of_several_racks_leave_eight_npus_of_each_free() {
    let job = |ranks: &'static str, more: &[&'static str]| {
        let args = [
            "generate",
            "collective",
            "all-reduce",
            "--size",
            "1MB",
            "--ranks",
            ranks,
            "--machine",
            "gb200-nvl72x2",
        ];
        [&args[..], more].concat()
    };
    let npu_of_rank_64 = |args: &[&str]| run_for_json(args)["npus"][64]["npu"].clone();
    assert_eq!(npu_of_rank_64(&job("65", &[])), 64);
    assert_eq!(npu_of_rank_64(&job("73", &[])), 72);
    assert_eq!(npu_of_rank_64(&job("73", &["--fill-domains"])), 64);
    let refused = run_chakram(&job("144", &[]));
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2));
    for part in ["takes at most 128", "64 of the 72", "--fill-domains"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(run_for_json(&job("144", &["--fill-domains"]))["ranks"], 144);
    let useless = [
        "generate",
        "chain",
        "--machine",
        "dgx-h100",
        "--fill-domains",
    ];
    assert_eq!(run_for_exit_code(&useless), 2);
}

/// There are three groups of four on nodes of eight. NPUs 6 to 9 and 14 to 17 span two nodes, and 10 to 13 are in one
/// node. The stated extra time must equal the difference between the groups' times in the same report.
#[test]
fn groups_that_straddle_nodes_are_named_with_what_that_costs() {
    let job = |map: &'static str| {
        run_for_json(&[
            "generate",
            "gpt2-small",
            "--tensor",
            "4",
            "--data",
            "3",
            "--batch",
            "3",
            "--machine",
            "dgx-h100x3",
            "--map",
            map,
        ])
    };
    let named = |report: &Value| -> Vec<String> {
        let warnings = report["warnings"].as_array().unwrap();
        let texts = warnings
            .iter()
            .map(|text| text.as_str().unwrap().to_owned());
        texts
            .filter(|text| {
                text.contains("tensor") && text.contains("in several domains `nvlink` of 8")
            })
            .collect()
    };
    let straddling = job("6-17");
    let texts = named(&straddling);
    assert!(!texts.is_empty(), "{}", straddling["warnings"]);
    assert!(
        texts
            .iter()
            .all(|text| text.starts_with("2 of 3 `tensor` groups of 4 ranks"))
    );
    assert_eq!(named(&job("0-11")), Vec::<String>::new());
}
