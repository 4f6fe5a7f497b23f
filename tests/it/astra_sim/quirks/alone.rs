//! Tests systems on which exactly one quirk has an effect, and laws that hold under every set of corrections.

use super::*;
use crate::astra_sim::product;
use crate::corpus::sample_every_nth;
use std::sync::Mutex;
use testkit::astra_sim::{self as oracle, config::WholeSimulationInput};

/// Returns the change in each of the table's rows, in ps, by corrected quirk.
fn list_quirk_changes_ps(config: &WholeSimulationInput) -> Vec<(String, Option<i64>)> {
    let report = run_astra_sim_report(config, &["--explain-quirks"]);
    let replays = report["replays"].as_array().expect("a list");
    let row = |row: &Value| {
        let name = row["corrected"].as_str().expect("a name").to_owned();
        (name, row["change_ps"].as_i64())
    };
    replays.iter().map(row).collect()
}

/// At 64 bytes per ns, powers of 2 take whole ns.
const GBPS: f64 = 64.0 * 1e9 / (1 << 30) as f64;

/// Effects of quirks that their names do not suggest. A tree's member sends two messages at once, and a member waits
/// for all its neighbours, whose paths have different lengths.
const TOGETHER: [(&str, &str); 2] = [
    ("tree-reductions", "free-ports"),
    ("early-reduction", "store-and-forward"),
];

/// Returns a collective with power-of-2 sizes and reductions at 64 bytes per ns.
fn build_collective_of_power_of_2_sizes(
    network: NetworkModel,
    dims: &[(DimensionTopology, usize)],
    kind: CollectiveOperation,
    names: &[&str],
) -> WholeSimulationInput {
    let dims: Vec<_> = dims
        .iter()
        .map(|&(shape, n)| (shape, n, GBPS, 500.0))
        .collect();
    let mut config = build_config_of_one_collective(network, &dims, kind, names, MIB);
    config.system.local_mem_bw = 64.0;
    config
}

fn list_single_quirk_cases() -> Vec<(&'static str, WholeSimulationInput)> {
    let ring = [(Ring, 4)];
    let two = [(Ring, 4), (Switch, 2)];
    let mut padding = build_collective_of_power_of_2_sizes(Unaware, &ring, AllReduce, &["ring"]);
    for rank in &mut padding.ranks {
        if let NodeWork::Collective { bytes, .. } = &mut rank[0].work {
            *bytes += 3;
        }
    }
    let mut groups =
        build_collective_of_power_of_2_sizes(Unaware, &two, AllReduce, &["ring", "ring"]);
    groups.system.endpoint_delay = Some(123);
    split_collective_between_npu_halves(&mut groups);
    let mut line =
        build_collective_of_power_of_2_sizes(Unaware, &two, ReduceScatter, &["direct", "direct"]);
    split_collective_between_npu_halves(&mut line);
    let mut twice =
        build_collective_of_power_of_2_sizes(Unaware, &[(Switch, 8)], AllReduce, &["direct1"]);
    split_collective_between_npu_halves(&mut twice);
    let mut overlap = build_collective_of_power_of_2_sizes(Unaware, &ring, AllReduce, &["ring"]);
    overlap.memory.attachment = MemoryServerAssignment::PerNpu;
    (overlap.memory.latency, overlap.memory.bw) = (100, 32);
    for rank in &mut overlap.ranks {
        let work = NodeWork::Memory {
            store: false,
            bytes: MIB,
        };
        rank.push(TraceNode {
            id: 2,
            work,
            ..rank[0].clone()
        });
    }
    let mut rounding = build_collective_of_power_of_2_sizes(Unaware, &ring, AllReduce, &["ring"]);
    rounding.system.local_mem_bw = 1e9;
    rounding.dims[0].lat = 500.5;
    let mut late =
        build_collective_of_power_of_2_sizes(Unaware, &two, AllReduce, &["ring", "ring"]);
    late.system.active_chunks = 1;
    let direct =
        build_collective_of_power_of_2_sizes(Unaware, &[(Switch, 4)], ReduceScatter, &["direct"]);
    let links =
        build_collective_of_power_of_2_sizes(Aware, &[(FullyConnected, 4)], AllReduce, &["ring"]);
    let gbps = [(Ring, 2, GBPS, 500.0), (Ring, 2, GBPS, 500.0)];
    vec![
        ("padding", padding),
        (
            "short-list",
            build_collective_of_power_of_2_sizes(Unaware, &two, AllReduce, &["ring"]),
        ),
        ("free-ports", direct),
        ("fully-connected-links", links),
        (
            "first-dimension",
            build_message_config(Unaware, &gbps, &[(0, 3)]),
        ),
        (
            "store-and-forward",
            build_message_config(Aware, &[(Switch, 4, GBPS, 500.0)], &[(0, 3)]),
        ),
        ("group-ring", line),
        ("group-endpoint", groups),
        ("group-reductions", twice),
        ("one-at-a-time", overlap),
        ("shared-queue", late),
        ("whole-ns", rounding),
        (
            "halving-doubling-reductions",
            build_collective_of_power_of_2_sizes(
                Unaware,
                &[(Ring, 4)],
                AllReduce,
                &["halvingDoubling"],
            ),
        ),
        (
            "early-reduction",
            build_collective_of_power_of_2_sizes(Aware, &[(Ring, 4)], AllReduce, &["direct"]),
        ),
        (
            "tree-reductions",
            build_collective_of_power_of_2_sizes(
                Unaware,
                &[(Switch, 4)],
                AllReduce,
                &["doubleBinaryTree"],
            ),
        ),
    ]
}

#[test]
fn each_quirk_switch_changes_only_its_own_case() {
    let faults = Mutex::new(Vec::new());
    product::run_on_all_cores(list_single_quirk_cases().into_iter(), |(name, config)| {
        for (corrected, change) in list_quirk_changes_ps(&config) {
            // If a GB has a different size, every transfer changes.
            let other = ["gib", "nothing", "everything"].contains(&corrected.as_str());
            let moves = change.is_some_and(|change| change != 0);
            let other = other || TOGETHER.contains(&(name, &corrected));
            if !other && moves != (corrected == name) {
                let fault = format!("{name}: {corrected} changes {change:?}");
                faults.lock().expect("nobody panics").push(fault);
            }
        }
    });
    let faults = faults.into_inner().expect("nobody panics");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// As long as no messages share ports, closed forms are used, and give the same answer as simulated messages, whatever
/// else is corrected. With ports, no closed form is used.
#[test]
fn closed_forms_hold_whatever_is_corrected() {
    let faults = Mutex::new(Vec::new());
    let closed = Mutex::new(0);
    let seeds = sample_every_nth(4, 0..100);
    let few = seeds.len() as u64 / 20;
    product::run_on_all_cores(seeds.into_iter(), |seed| {
        let config = create_random_config(seed);
        for quirks in ["none,+free-ports,+store-and-forward", "none"] {
            let [a, b] = [&[][..], &["--stepwise"]].map(|more| {
                let folder = tempfile::tempdir().expect("a folder");
                config.write_case(folder.path()).expect("it is written");
                let more = [&["--quirks", quirks, "--format=json"], more].concat();
                let folder = folder.path();
                let output = Command::new(env!("CARGO_BIN_EXE_chakram"))
                    .current_dir(folder)
                    .arg("astra-sim")
                    .arg(format!("--network-model={}", config.command_args()[0]))
                    .args(&config.command_args()[1..])
                    .args(more)
                    .output()
                    .expect("the program was built");
                let error = String::from_utf8_lossy(&output.stderr).into_owned();
                let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
                (output.status.code(), report, error)
            });
            let known = a.1["collectives_analytical"].as_u64().unwrap_or(0);
            if quirks == "none" {
                assert_eq!(known, 0, "{seed}");
            } else {
                *closed.lock().expect("nobody panics") += known;
            }
            let same = a.1["astra_sim"]["ranks"] == b.1["astra_sim"]["ranks"];
            if a.0 != Some(0) || !same {
                let fault = format!("{seed} {quirks}: {:?} {:?} {}", a.0, b.0, a.2);
                faults.lock().expect("nobody panics").push(fault);
            }
        }
    });
    let faults = faults.into_inner().expect("nobody panics");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let closed = closed.into_inner().expect("nobody panics");
    assert!(closed >= few, "{closed}");
}

/// If phases in both directions share a queue, NPUs that start late may wait for one another
/// forever, as in this configuration. With a queue for each direction, they cannot.
#[test]
fn separate_direction_queues_end_a_job_that_otherwise_hangs() {
    let config = create_random_config(1980);
    let finish = oracle::simulate_as_astra_sim(&config).finish;
    assert!(finish.iter().any(Option::is_none), "{finish:?}");
    assert_eq!(product::run_config_with_closed_forms(&config).code, Some(1));
    assert!(simulate_makespan_ps(&config, "all,-shared-queue") > 0);
}
