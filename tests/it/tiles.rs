//! Tests models on tiled accelerators from a shell: how ranks are placed, data that does not fit in SRAM, and errors.

mod aggregation;
mod extrapolation;
mod map;
mod members;
mod placement;
mod refusals;
mod sram;
mod uneven;

use crate::files::Folder;
use serde_json::Value;

/// Four stages of two replicas of four ranks on the wafer, where each stage is half a die.
const PLAN: [&str; 13] = [
    "generate",
    "gpt2-small",
    "--tokens",
    "128",
    "--tensor",
    "4",
    "--data",
    "2",
    "--pipeline",
    "4",
    "--batch",
    "8",
    "--machine",
];

fn build_plan_arguments<'a>(machine: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&PLAN[..], &[machine], more].concat()
}

/// Returns the arguments of [`build_plan_arguments`] with die-by-die placement, and with loads and stores of data that
/// does not fit in SRAM.
fn build_arguments_with_sram_loads<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let placed = ["--place", "s_shape", "--residency", "corrected"];
    build_plan_arguments("wafer-5x4", &[&placed[..], more].concat())
}

fn run_for_json(folder: &Folder, args: &[&str]) -> Value {
    let report = folder.run_successfully_for_stdout(&[args, &["--format", "json"]].concat());
    serde_json::from_str(&report).expect("it is JSON")
}

fn read_makespan_ps(report: &Value) -> u64 {
    let makespan = &report["makespan_ps"];
    makespan.as_u64().unwrap_or_else(|| panic!("{report}"))
}

/// Asserts that two reports of the same step agree in all results, however the step was replayed.
fn assert_reports_agree(one: &Value, other: &Value, what: &str) {
    for key in [
        "makespan_ps",
        "nodes",
        "messages",
        "npus",
        "collectives",
        "tiles",
        "memory",
        "memory_ports",
        "operators",
    ] {
        assert_eq!(one[key], other[key], "{what} {key}");
    }
}
