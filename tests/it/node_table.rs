//! Tests the table of nodes: the dependency for which each node waited, and the command that prints it.

use super::commands::run_chakram;
use super::physics::lines::{TestTraceNode, build_collective, build_kernel};
use super::physics::rig::build_job_from_rank_nodes;
use chakram::engine::{CompiledReplay, ReplayOptions};
use chakram::machine::Machine;
use chakram::report::{NodeColumnValues, NodeTable, replay_to_report_with_nodes};
use chakram::trace::CollectiveKind;

/// Returns a rank on which kernels of these durations in ns run on one lane, and an all-reduce follows the last kernel.
fn build_kernels_then_all_reduce(kernels: &[u64]) -> Vec<TestTraceNode> {
    let named = kernels.iter().map(|&ns| build_kernel(ns).named("kernel"));
    let sum = build_collective(CollectiveKind::AllReduce, 1 << 20).named("sum, all");
    named.chain([sum.after(&[kernels.len() as u64])]).collect()
}

#[test]
fn rows_say_what_each_node_waited_for() {
    let ranks = [&[1_000, 2_000][..], &[5_000]].map(build_kernels_then_all_reduce);
    let workload = build_job_from_rank_nodes(&ranks, &[]);
    let machine = Machine::load_by_name("dgx-h100").unwrap();
    let prepared = CompiledReplay::new(&workload, &machine, &ReplayOptions::default()).unwrap();
    let (report, table, ()) = replay_to_report_with_nodes(&prepared, ()).unwrap();
    let mut text = Vec::new();
    table.write_csv(&mut text).unwrap();
    // The network determines the duration of the all-reduce, so its end is not compared here. The
    // last end is the makespan.
    let rows: Vec<String> = (String::from_utf8(text).unwrap().lines())
        .map(|line| line.replace("\"sum, all\"", "sum"))
        .map(|line| {
            let mut cells: Vec<&str> = line.split(',').collect();
            if cells[3] == "collective" {
                cells[5] = "…";
            }
            cells.join(",")
        })
        .collect();
    // Rank 0 runs a kernel of 1 µs, and then a kernel of 2 µs on the same lane. The all-reduce is
    // issued at 3 µs, when node 2 ends, and begins at 5 µs, when rank 1 issues its part, node 2.
    // Rank 1's all-reduce waits only for its own kernel.
    let expected = [
        &*NodeTable::COLUMNS.join(","),
        "0,1,kernel,compute,0,1000000,compute,release,,,,",
        "0,2,kernel,compute,1000000,3000000,compute,lane,0,1,,",
        "0,3,sum,collective,3000000,…,collectives of all ranks,dependency,0,2,1,2",
        "1,1,kernel,compute,0,5000000,compute,release,,,,",
        "1,2,sum,collective,5000000,…,collectives of all ranks,dependency,1,1,,",
    ];
    assert_eq!(rows, expected);
    let NodeColumnValues::U64(ends) = table.list_columns()[5] else {
        panic!("ends are whole numbers");
    };
    assert_eq!(ends.iter().max(), Some(&report.outcome.makespan.0));
}

#[test]
fn the_command_writes_comma_separated_values_or_parquet() {
    let case = "traces/tight-2";
    let printed = run_chakram(&["replay", case, "--table", "nodes"]);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for name in ["nodes.csv", "nodes.parquet"] {
        let written = run_chakram(&["replay", case, "--table", "nodes", "-o", &path(name)]);
        assert!(written.status.success());
    }
    let csv = std::fs::read(path("nodes.csv")).unwrap();
    assert_eq!(csv, printed.stdout);
    let parquet = std::fs::read(path("nodes.parquet")).unwrap();
    assert!(parquet.starts_with(b"PAR1") && parquet.ends_with(b"PAR1"));
    for (wrong, expected) in [
        (&["-o", &path("x.parquet")][..], "only the table of nodes"),
        (&["--table", "nodes", "--format", "json"], "not JSON"),
        (
            &["--table", "nodes", "-m", "dgx-h100", "-m", "dgx-a100"],
            "one replay",
        ),
        (&["--table", "nodes", "--repeat", "2"], "one launch"),
    ] {
        let refused = run_chakram(&[&["replay", case][..], wrong].concat());
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains(expected), "{wrong:?}: {said}");
    }
}
