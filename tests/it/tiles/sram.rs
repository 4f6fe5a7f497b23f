//! Tests loads and stores of data that does not fit in SRAM.

use super::{
    build_arguments_with_sram_loads, build_plan_arguments, read_makespan_ps, run_for_json,
};
use crate::files::Folder;
use serde_json::Value;

/// If everything fits in SRAM, there are no loads, and there are as many nodes as without a residency rule. With less
/// SRAM, the step takes longer.
#[test]
fn sram_that_holds_everything_changes_nothing() {
    let folder = Folder::new();
    let run = |more: &[&str]| {
        let all = [&["--place", "s_shape"], more].concat();
        let report = run_for_json(&folder, &build_plan_arguments("wafer-5x4", &all));
        (read_makespan_ps(&report), report["nodes"].as_u64().unwrap())
    };
    let none = run(&[]);
    assert_eq!(run(&["--residency", "corrected", "--sram", "10 GB"]), none);
    let sizes = ["100 MB", "3 MB", "100 kB"];
    let times = sizes.map(|sram| run(&["--residency", "corrected", "--sram", sram]).0);
    assert!(
        none.0 <= times[0] && times[0] <= times[1] && times[1] < times[2],
        "{times:?}"
    );
    // The rule as printed in the paper stores even results that fit.
    assert!(run(&["--residency", "as-printed", "--sram", "10 GB"]).0 > none.0);
}

/// A load in chunks moves the same bytes. Ports are busy longer only by each chunk's latency, at
/// most six links and a port at 1 ns each, and by its rounding.
#[test]
fn loads_split_into_chunks_move_the_same_bytes() {
    let folder = Folder::new();
    let little = ["--residency", "corrected", "--sram", "100 kB"];
    let run = |more: &[&str]| {
        let report = run_for_json(
            &folder,
            &build_plan_arguments("wafer-5x4", &[&little, more].concat()),
        );
        let ports = report["tiles"]["ports"].as_array().unwrap().iter();
        let busy: u64 = ports.map(|port| port["busy_ps"].as_u64().unwrap()).sum();
        (report["nodes"].as_u64().unwrap(), busy)
    };
    let [whole, pieces] = [run(&[]), run(&["--largest-access", "1 MB"])];
    let more = pieces.0 - whole.0;
    assert!(more > 100, "{whole:?} {pieces:?}");
    let longer = pieces.1 - whole.1;
    assert!(
        (more * 1000..=more * 7001).contains(&longer),
        "{whole:?} {pieces:?}"
    );
    assert_eq!(run(&["--largest-access", "1 GB"]), whole);
    let less = [&little[..], &["--largest-access", "99 kB"]].concat();
    let refused = folder.run_refused_for_stderr(&build_plan_arguments("wafer-5x4", &less));
    assert!(refused.contains("at least the SRAM of a core"), "{refused}");
}

/// At its peak, a core's data first fills its 3.75 MB of SRAM, and the rest goes to the nearest port's memory. Ports
/// are in rows 1 and 2 at both sides of each die of 4 x 4. On a machine without ports the report has no such rows.
#[test]
fn memory_at_ports_is_what_sram_does_not_hold() {
    let folder = Folder::new();
    let report = run_for_json(&folder, &build_arguments_with_sram_loads(&[]));
    let npus = report["memory"]["npus"].as_array().unwrap();
    let number = |of: &Value, key: &str| of[key].as_u64().unwrap_or_else(|| panic!("{key}: {of}"));
    let mut all = 0;
    for npu in npus {
        let beyond = number(npu, "peak_bytes").saturating_sub(3_750_000);
        assert_eq!(number(npu, "peak_bytes_beyond_sram"), beyond);
        all += beyond;
    }
    let ports = report["memory_ports"].as_array().unwrap();
    assert_eq!(
        ports
            .iter()
            .map(|port| number(port, "peak_bytes"))
            .sum::<u64>(),
        all
    );
    assert_eq!(
        ports.iter().map(|port| number(port, "cores")).sum::<u64>(),
        32
    );
    for port in ports {
        assert_eq!(number(port, "capacity_bytes"), 64_000_000_000);
        let at = number(port, "npu");
        assert!(
            [1, 2].contains(&(at / 20 % 4)) && [0, 3].contains(&(at % 4)),
            "{at}"
        );
    }
    let text = folder.run_successfully_for_stdout(&build_arguments_with_sram_loads(&["--details"]));
    assert!(text.contains("beyond SRAM: at most "), "{text}");
    let without = run_for_json(&folder, &build_plan_arguments("dgx-a100x4", &[]));
    assert!(without["memory_ports"].is_null());
    assert!(without["memory"]["npus"][0]["peak_bytes_beyond_sram"].is_null());
}
