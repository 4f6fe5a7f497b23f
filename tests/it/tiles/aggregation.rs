//! Tests equal ranks that are simulated once.

use super::{assert_reports_agree, build_plan_arguments, run_for_json};
use crate::files::Folder;
use chakram::machine::PRESETS;

/// One rank of a stage is simulated for all of them while they are equal. The report is the same as with every rank
/// simulated, except for the facts about merging. On the wafer, cores of a stage have different paths to their
/// neighbours, which the replay detects. The first and the last stage share embeddings, whose all-reduce shares a lane
/// with other nodes.
#[test]
fn aggregating_equal_cores_gives_the_report_of_all_cores() {
    let folder = Folder::new();
    for (machine, more) in [
        (
            "wafer-5x4",
            &["--place", "s_shape", "--residency", "corrected"][..],
        ),
        (
            "wafer-5x4",
            &["--place", "line", "--network", "contention-free"],
        ),
        ("dgx-a100x4", &[]),
    ] {
        let alone = run_for_json(&folder, &build_plan_arguments(machine, more));
        let mut together = run_for_json(
            &folder,
            &build_plan_arguments(machine, &[more, &["--aggregate"]].concat()),
        );
        let found = together["aggregation"].take();
        assert_eq!(found["groups"], 4, "{found}");
        assert_eq!(found["ranks"], 32, "{found}");
        assert_eq!(found["split"].is_null(), found["together"] == 4, "{found}");
        assert!(alone["aggregation"].is_null());
        assert_reports_agree(&alone, &together, &format!("{machine} {more:?}"));
    }
    let text =
        folder.run_successfully_for_stdout(&build_plan_arguments("dgx-a100x4", &["--aggregate"]));
    assert!(text.contains("32 ranks in 4 groups; in "), "{text}");
    let refused = folder.run_refused_for_stderr(&build_plan_arguments(
        "dgx-a100x4",
        &["--aggregate", "--comm", "recorded"],
    ));
    assert!(refused.contains("leave one of the two out"), "{refused}");
}

/// If the classes of cores alternate, no neighbours are equal. All 32 ranks would be simulated, and an error says so
/// before the replay. If each half of the wafer has cores of one class, one rank is simulated for the eight ranks of
/// each stage.
#[test]
fn aggregation_fails_before_the_replay_if_no_neighbouring_cores_are_equal() {
    let folder = Folder::new();
    let preset = PRESETS.iter().find(|preset| preset.name == "wafer-5x4");
    let text = preset.unwrap().text;
    let start = text.find("[npu.core]").unwrap();
    let end = text.find("[tiles]").unwrap();
    let class = text[start..end].replace("npu.core", "npu.slow");
    let class = class.replace("16 TFLOP/s", "12 TFLOP/s");
    let machine = |is_slow: &dyn Fn(u32) -> bool| {
        let list = |slow: bool| {
            let cores = (0..320).filter(|core| is_slow(*core) == slow);
            let cores: Vec<String> = cores.map(|core| core.to_string()).collect();
            cores.join(",")
        };
        let assigned = format!(
            "{class}[assign]\ncore = \"{}\"\nslow = \"{}\"\n\n",
            list(false),
            list(true)
        );
        let text = format!("{}{assigned}{}", &text[..end], &text[end..]);
        std::fs::write(folder.path_of_file("unlike.toml"), text).unwrap();
        folder
            .path_of_file("unlike.toml")
            .to_str()
            .unwrap()
            .to_owned()
    };
    let each = machine(&|core| core % 2 == 1);
    let words = ["--place", "line"];
    let alone = run_for_json(&folder, &build_plan_arguments(&each, &words));
    assert_eq!(alone["npus"].as_array().map(Vec::len), Some(32));
    let error = folder.run_refused_for_stderr(&build_plan_arguments(
        &each,
        &[&words[..], &["--aggregate"]].concat(),
    ));
    assert!(
        error.contains("--aggregate saves no time here: 32 of 32 ranks would run")
            && error.contains("pairs are on NPUs of different classes")
            && error.contains("try: without --aggregate"),
        "{error}"
    );
    let halves = machine(&|core| core >= 160);
    let alone = run_for_json(&folder, &build_plan_arguments(&halves, &words));
    let mut together = run_for_json(
        &folder,
        &build_plan_arguments(&halves, &[&words[..], &["--aggregate"]].concat()),
    );
    let found = together["aggregation"].take();
    assert_eq!(found["ranks"], 32, "{found}");
    assert_reports_agree(&alone, &together, "halves");
}
