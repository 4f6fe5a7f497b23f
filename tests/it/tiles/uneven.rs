//! Tests stages with different tensor degrees on the wafer.

use super::{assert_reports_agree, build_plan_arguments, read_makespan_ps, run_for_json};
use crate::corpus::sample_every_nth;
use crate::files::Folder;
use serde_json::Value;

/// GPT-2's first and last stages share an embedding table, so they have the same degree.
const DEGREES: [&str; 4] = ["--stage-tensor", "2,4,4,2", "--place", "s_shape"];

fn build_uneven_stage_plan_arguments<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut all = build_plan_arguments("wafer-5x4", &[&DEGREES, more].concat());
    let tensor = all.iter().position(|arg| *arg == "--tensor").unwrap();
    all.drain(tensor..tensor + 2);
    all
}

/// The plan has 2 x (2 + 4 + 4 + 2) ranks, with either strategy and one adapter or two. With equal
/// ranks merged the result is the same; written traces replay to the same result and are sound.
#[test]
fn uneven_stages_replay_the_same_written_and_merged() {
    let folder = Folder::new();
    let ways = [
        ("1", "source"),
        ("1", "destination"),
        ("2", "source"),
        ("2", "destination"),
    ];
    for (adapters, sums) in sample_every_nth(3, ways) {
        let more = ["--adapters", adapters, "--adapter-sums", sums];
        let alone = run_for_json(&folder, &build_uneven_stage_plan_arguments(&more));
        assert_eq!(alone["npus"].as_array().map(Vec::len), Some(24));
        let mut together = run_for_json(
            &folder,
            &build_uneven_stage_plan_arguments(&[&more[..], &["--aggregate"]].concat()),
        );
        let found = together["aggregation"].take();
        assert!(found["groups"].as_u64() > Some(0), "{found}");
        assert_reports_agree(&alone, &together, &format!("{more:?}"));
        folder.run_successfully_for_stdout(&build_uneven_stage_plan_arguments(
            &[&more[..], &["-o", "job"]].concat(),
        ));
        folder.run_successfully_for_stdout(&["validate", "job"]);
        let again = folder.run_successfully_for_stdout(&["replay", "job", "--format", "json"]);
        let again: Value = serde_json::from_str(&again).unwrap();
        assert_eq!(
            read_makespan_ps(&again),
            read_makespan_ps(&alone),
            "{more:?}"
        );
    }
    let dry = folder.run_successfully_for_stdout(&build_uneven_stage_plan_arguments(&[
        "--adapters",
        "2",
        "--dry-run",
    ]));
    assert!(dry.contains("tp 2,4,4,2 x dp 2 x pp 4: 24 ranks"), "{dry}");
}

/// Equal degrees by stage are the same plan as one degree for all.
#[test]
fn equal_tensor_degrees_by_stage_equal_one_degree_for_all() {
    let folder = Folder::new();
    let plain = run_for_json(
        &folder,
        &build_plan_arguments("wafer-5x4", &["--place", "s_shape"]),
    );
    let listed = build_plan_arguments(
        "wafer-5x4",
        &["--place", "s_shape", "--stage-tensor", "4,4,4,4"],
    );
    assert_eq!(run_for_json(&folder, &listed)["npus"], plain["npus"]);
    let error = folder.run_refused_for_stderr(&build_uneven_stage_plan_arguments(&[]));
    assert!(error.contains("adapters beside"), "{error}");
    let mut tied = build_uneven_stage_plan_arguments(&["--adapters", "2"]);
    let degrees = tied.iter().position(|arg| *arg == "2,4,4,2").unwrap();
    tied[degrees] = "2,4,4,4";
    let error = folder.run_refused_for_stderr(&tied);
    assert!(
        error.contains("which both have the embedding's table"),
        "{error}"
    );
}
