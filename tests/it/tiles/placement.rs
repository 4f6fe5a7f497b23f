//! Tests how ranks are placed, and how far apart neighbours are.

use super::{
    build_arguments_with_sram_loads, build_plan_arguments, read_makespan_ps, run_for_json,
};
use crate::corpus::is_whole_corpus_requested;
use crate::files::{Folder, text_from_bytes};
use serde_json::Value;

#[test]
fn written_traces_replay_as_they_were_generated() {
    let folder = Folder::new();
    let mut all = Vec::new();
    // A regular run writes and replays only the first and the last of these plans.
    let plans = [
        &["--place", "line"][..],
        &["--place", "s_shape"],
        &["--place", "s_shape", "--tensor-neighbours", "opposite"],
        &["--place", "s_shape", "--residency", "corrected"],
        &["--place", "spiral", "--residency", "as-printed"],
    ];
    for (number, more) in plans.into_iter().enumerate() {
        let at_once = read_makespan_ps(&run_for_json(
            &folder,
            &build_plan_arguments("wafer-5x4", more),
        ));
        all.push(at_once);
        if is_whole_corpus_requested() || number % 4 == 0 {
            folder.run_successfully_for_stdout(&build_plan_arguments(
                "wafer-5x4",
                &[more, &["-o", "job"]].concat(),
            ));
            let again = read_makespan_ps(&run_for_json(
                &folder,
                &["replay", "job", "--machine", "wafer-5x4"],
            ));
            assert_eq!(again, at_once, "{more:?}");
        }
    }
    // Placement and residency change the result.
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 5, "{all:?}");
    // The trace names its core: rank 31 is at the end of the second die, whose rows are filled in alternating
    // directions.
    let trace = folder.run_successfully_for_stdout(&[
        "convert",
        "trace",
        "job.31.et",
        "-o",
        "job.31.jsonl",
    ]);
    let lines = String::from_utf8(folder.read("job.31.jsonl")).unwrap();
    let head = lines.lines().next().unwrap();
    assert!(
        head.contains(r#"{"name":"core","string_val":"4,3"}"#),
        "{trace}{head}"
    );
}

/// The contention-free network is never slower than the others, and a machine without tiles ignores
/// the placement.
#[test]
fn one_job_runs_over_every_network_that_tiles_have() {
    let folder = Folder::new();
    folder.run_successfully_for_stdout(&build_arguments_with_sram_loads(&["-o", "job"]));
    let run = |network: &str| {
        let replay = [
            "replay",
            "job",
            "--machine",
            "wafer-5x4",
            "--network",
            network,
        ];
        read_makespan_ps(&run_for_json(&folder, &replay))
    };
    let [free, links, exclusive] = ["contention-free", "links", "exclusive"].map(run);
    assert!(
        free <= links && links <= exclusive,
        "{free} {links} {exclusive}"
    );
    assert!(free < exclusive);
    let output = folder.run(&[
        "replay",
        "job",
        "--machine",
        "wafer-5x4",
        "--network",
        "ports",
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text_from_bytes(&output.stderr)
            .contains("take --network exclusive, links or contention-free")
    );
    let plain = build_plan_arguments("wafer-5x4", &["--place", "s_shape", "-o", "plain"]);
    folder.run_successfully_for_stdout(&plain);
    folder.run_successfully_for_stdout(&["replay", "plain", "--machine", "dgx-a100x4"]);
}

/// On the wafer's dies of 4 x 4, filled in alternating directions, each row is a tensor group of
/// four: three hops cross one link, and the hop back crosses three. With opposite neighbours, the
/// members of other groups are between two replicas.
#[test]
fn a_dry_run_says_how_far_neighbours_are() {
    let folder = Folder::new();
    let hops = |more: &[&str], family: &str| {
        let dry = [more, &["--dry-run"]].concat();
        let plan = run_for_json(&folder, &build_plan_arguments("wafer-5x4", &dry));
        let families = plan["placement"]["families"].as_array().unwrap().clone();
        let own = families.iter().filter(|one| one["family"] == family);
        let sum = |key: &str| -> f64 {
            let of = |one: &&Value| one["neighbours"][key].as_f64().unwrap();
            own.clone()
                .map(|one| of(&one) * one["neighbours"]["ways"].as_f64().unwrap())
                .sum()
        };
        let ways: f64 = own
            .clone()
            .map(|one| one["neighbours"]["ways"].as_f64().unwrap())
            .sum();
        sum("mean_links") / ways
    };
    let near = ["--place", "s_shape"];
    let opposite = ["--place", "s_shape", "--tensor-neighbours", "opposite"];
    assert_eq!(hops(&near, "tensor"), 6.0 / 4.0);
    assert!(hops(&opposite, "tensor") > hops(&near, "tensor"));
    assert!(hops(&opposite, "data") < hops(&near, "data"));
}

/// With adapters fewer members send, and a receiving adapter broadcasts: 2 x 3 boundaries, 2
/// replicas, and 4 micro-batches.
#[test]
fn with_adapters_fewer_members_send_and_receivers_broadcast() {
    let folder = Folder::new();
    let run = |more: &[&str]| {
        let all = [&["--place", "s_shape"], more].concat();
        let report = run_for_json(&folder, &build_plan_arguments("wafer-5x4", &all));
        let rows = report["collectives"].as_array().unwrap();
        let broadcasts = rows.iter().filter(|row| row["kind"] == "broadcast");
        let calls: u64 = broadcasts.map(|row| row["calls"].as_u64().unwrap()).sum();
        let operators = report["operators"].as_array().unwrap();
        let sends = operators
            .iter()
            .filter(|row| row["name"].as_str().unwrap().ends_with("/send"));
        let sends: u64 = sends.map(|row| row["calls"].as_u64().unwrap()).sum();
        (read_makespan_ps(&report), sends, calls)
    };
    let handovers = 2 * 3 * 2 * 4;
    let all = run(&[]);
    assert_eq!((all.1, all.2), (4 * handovers, 0));
    assert_eq!(run(&["--adapters", "4"]), all);
    let two = run(&["--adapters", "2"]);
    assert_eq!((two.1, two.2), (2 * handovers, 2 * handovers));
    let one = run(&["--adapters", "1"]);
    assert_eq!((one.1, one.2), (handovers, handovers));
    assert!(one.0 != two.0 && two.0 != all.0);
    let refused =
        folder.run_refused_for_stderr(&build_plan_arguments("wafer-5x4", &["--adapters", "3"]));
    assert!(refused.contains("a divisor of tensor"), "{refused}");
    let refused = folder.run_refused_for_stderr(&build_plan_arguments(
        "wafer-5x4",
        &["--adapters", "2", "--scatter-gather"],
    ));
    assert!(refused.contains("every member sends a part"), "{refused}");
}

/// If the destination reduces, each transfer between stages needs one all-reduce fewer of the source's group. Instead,
/// the source's shares are reduced, and the receiving adapters all-reduce. With two adapters each transfer has two
/// reductions and one all-reduce of the adapters. With one adapter there is one reduction and no all-reduce. With four
/// adapters, which are the whole group, the all-reduce only moves to the destination.
#[test]
fn adapters_sum_what_they_receive() {
    let folder = Folder::new();
    let run = |more: &[&str]| {
        let all = [&["--place", "s_shape"], more].concat();
        let report = run_for_json(&folder, &build_plan_arguments("wafer-5x4", &all));
        let calls = |kind: &str, members: u64| {
            let rows = report["collectives"].as_array().unwrap();
            let own = rows.iter().filter(|row| row["kind"] == kind);
            let own = own.filter(|row| row["members"] == members);
            own.map(|row| row["calls"].as_u64().unwrap()).sum::<u64>()
        };
        let [whole, two] = [4, 2].map(|members| calls("all-reduce", members));
        let [reduce_two, reduce_all] = [2, 4].map(|members| calls("reduce", members));
        let [cast_two, cast_all] = [2, 4].map(|members| calls("broadcast", members));
        (
            [whole, two],
            [reduce_two, reduce_all],
            [cast_two, cast_all],
            read_makespan_ps(&report),
        )
    };
    let handovers = 2 * 3 * 2 * 4;
    let ([whole, pairs], reduces, casts, source) = run(&["--adapters", "2"]);
    assert_eq!((reduces, casts), ([0, 0], [2 * handovers, 0]));
    let destination =
        |adapters: &'static str| run(&["--adapters", adapters, "--adapter-sums", "destination"]);
    let two = destination("2");
    assert_eq!(two.0, [whole - handovers, pairs + handovers]);
    assert_eq!((two.1, two.2), ([2 * handovers, 0], casts));
    assert_ne!(two.3, source);
    let one = destination("1");
    assert_eq!(one.0, [whole - handovers, pairs]);
    assert_eq!((one.1, one.2), ([0, handovers], [0, handovers]));
    let four = destination("4");
    assert_eq!(four.0, [whole, pairs]);
    assert_eq!((four.1, four.2), ([0, 0], [0, 0]));
    let refused = folder.run_refused_for_stderr(&build_plan_arguments(
        "wafer-5x4",
        &["--adapter-sums", "destination"],
    ));
    assert!(refused.contains("source without adapters"), "{refused}");
}
