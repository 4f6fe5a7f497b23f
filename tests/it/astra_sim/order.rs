//! Tests the output under the original's name: closed forms keep the order of NPUs that finish at
//! the same time.
#![cfg(unix)]

use super::golden::build_config_of_one_collective;
use super::product;
use crate::commands::run_chakram;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use testkit::astra_sim::config::{
    CollectiveOperation::{AllGather, AllReduce, AllToAll, ReduceScatter},
    DimensionTopology::{FullyConnected, Ring, Switch},
    NetworkModel::{self, Aware, Unaware},
    NodeWork, TraceNode, WholeSimulationInput,
};
use testkit::astra_sim::create_random_config;

/// Printed and logged lines of a run under the original's name, with its numbers of analytical and simulated
/// collectives.
#[derive(Debug, PartialEq)]
struct RunOutputTranscript {
    code: Option<i32>,
    printed: String,
    logged: String,
    collectives: Option<(u64, u64)>,
}

fn record_astra_sim_run_output(
    folder: &Path,
    network: NetworkModel,
    args: &[String],
    more: &[&str],
) -> RunOutputTranscript {
    let name = match network {
        Unaware => "AstraSim_Analytical_Congestion_Unaware",
        Aware => "AstraSim_Analytical_Congestion_Aware",
    };
    let link = folder.join(name);
    if !link.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_chakram"), &link).expect("there is room");
    }
    let output = Command::new(&link)
        .current_dir(folder)
        .env("SOURCE_DATE_EPOCH", "0")
        .args(args)
        .arg("-v")
        .args(more)
        .output()
        .expect("the link leads to the program");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let collectives = error.split_once("(collectives: ").and_then(|(_, rest)| {
        let (closed, rest) = rest.split_once(" analytical, ")?;
        let (stepwise, _) = rest.split_once(" simulated")?;
        Some((closed.parse().ok()?, stepwise.parse().ok()?))
    });
    RunOutputTranscript {
        code: output.status.code(),
        printed: String::from_utf8_lossy(&output.stdout).into_owned(),
        logged: std::fs::read_to_string(folder.join("log/log.log")).unwrap_or_default(),
        collectives,
    }
}

/// Runs a job with and without closed forms, checks that the lines are equal, and returns the number of analytical
/// collectives.
fn compare_closed_and_stepwise(config: &WholeSimulationInput) -> u64 {
    let folder = tempfile::tempdir().expect("a folder");
    config.write_case(folder.path()).expect("it is written");
    let system = folder.path().join("system.json");
    let text = std::fs::read_to_string(&system).expect("it was written");
    let traced = text.replacen('{', "{\"trace-enabled\": 1, ", 1);
    std::fs::write(system, traced).expect("there is room");
    let args = &config.command_args()[1..];
    let [closed, stepwise] = [&[][..], &["--stepwise"]]
        .map(|more| record_astra_sim_run_output(folder.path(), config.network, args, more));
    let found = closed.collectives.map_or(0, |(closed, _)| closed);
    let collectives = stepwise.collectives;
    assert_eq!(
        RunOutputTranscript {
            collectives,
            ..closed
        },
        stepwise,
        "{config:#?}"
    );
    assert!(collectives.is_none_or(|(closed, _)| closed == 0));
    found
}

/// Each member of a ring of 1,024 sends 2 · 1,023 messages around the ring for each of four chunks.
/// Each message shifts the order of NPUs by one, so NPU 4 · 2,046 mod 1,024 = 1,016 finishes first,
/// followed by its successors on the ring.
#[test]
fn a_large_ring_finishes_in_the_order_shifted_by_each_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let put = |name: &str| folder.path().join(name).display().to_string();
    for name in ["s.json", "m.json"] {
        let from = Path::new("tests/it/astra_sim/message").join(name);
        std::fs::copy(from, put(name)).expect("there is room");
    }
    let network = "topology: [ Ring ]\nnpus_count: [ 1024 ]\nbandwidth: [ 50 ]\nlatency: [ 500 ]\n";
    std::fs::write(put("n.yml"), network).expect("there is room");
    let job = [
        "generate",
        "collective",
        "all-reduce",
        "--ranks",
        "1024",
        "--size",
        "1MB",
    ];
    let made = run_chakram(&[&job[..], &["-o", &put("w")]].concat());
    assert!(made.status.success(), "{made:?}");
    let args = [
        "--workload-configuration=w",
        "--system-configuration=s.json",
        "--network-configuration=n.yml",
        "--remote-memory-configuration=m.json",
    ];
    let said = record_astra_sim_run_output(folder.path(), Unaware, &args.map(str::to_owned), &[]);
    assert_eq!(said.collectives, Some((1, 0)));
    let finished = said.printed.lines().filter_map(|line| {
        let (_, rest) = line.split_once("sys[")?;
        let (npu, rest) = rest.split_once("] finished, ")?;
        // The sum is 4 chunks of 2,047 delays, 2,046 messages of 244 B with ⌊244 / 53.687 + 500⌋ =
        // 504 ns, and 1,023 reductions of 3⌊244 / 50⌋ = 12 ns: 4 · (2,047 + 2,046 · 504 + 1,023 ·
        // 12).
        assert!(rest.starts_with("4182028 cycles"), "{line}");
        npu.parse().ok()
    });
    let finished: Vec<u32> = finished.collect();
    let expected: Vec<u32> = (0..1024).map(|i| (1016 + i) % 1024).collect();
    assert_eq!(finished, expected);
}

/// In a torus of 16 x 16 x 16, four chunks are in several dimensions at the same time, and each
/// dimension has its own order.
#[test]
fn collectives_on_tori_are_analytical_unless_messages_of_two_chunks_alternate() {
    for (sizes, local_bw_aware, analytical) in [
        ([16, 16, 16], true, 1),
        ([4, 3, 5], true, 1),
        ([4, 3, 5], false, 1),
        // With equal parts in all dimensions, messages of two chunks alternate.
        ([8, 8, 8], false, 0),
    ] {
        let dims = sizes.map(|size| (Ring, size, 50.0, 500.0));
        let mut config =
            build_config_of_one_collective(Unaware, &dims, AllReduce, &["ring"; 3], 1_000_000);
        config.system.splits = 4;
        config.system.endpoint_delay = Some(1);
        config.system.local_bw_aware = local_bw_aware;
        assert_eq!(
            compare_closed_and_stepwise(&config),
            analytical,
            "{sizes:?} {local_bw_aware}"
        );
    }
}

/// If chunks are in several dimensions at the same time, they end in the same order with and
/// without closed forms, for any durations. Most of these jobs have a closed form.
#[test]
fn chunk_end_order_is_equal_with_and_without_closed_forms() {
    let mut jobs = Vec::new();
    for kind in [AllReduce, AllGather, ReduceScatter] {
        for (i, size) in [1_000, 65_536, 1_000_000, 40_000_001]
            .into_iter()
            .enumerate()
        {
            for (splits, active) in [(2, 1), (4, 1), (5, 2), (9, 3)] {
                // Rates and latencies differ between all dimensions, or are equal.
                let rate = [50.0, 27.0, 34.0, 50.0][i];
                let slow = match rate {
                    50.0 => (Ring, 3, 50.0, 500.0),
                    _ => (Ring, 3, 31.0, 700.0),
                };
                let machines = [
                    (vec![(Ring, 4, rate, 500.0), slow], &["ring", "ring"][..]),
                    (
                        vec![(Switch, 4, rate, 100.0), slow, (Ring, 2, 11.0, 333.0)],
                        &["halvingDoubling", "ring", "ring"],
                    ),
                    (
                        vec![(FullyConnected, 5, rate, 90.0), slow],
                        &["direct", "ring"],
                    ),
                    (vec![slow, (Switch, 4, rate, 90.0)], &["ring", "direct"]),
                ];
                for (dims, names) in machines {
                    jobs.push((kind, size, splits, active, dims, names));
                }
            }
        }
    }
    let count = jobs.len() as u64;
    let analytical = AtomicU64::new(0);
    product::run_on_all_cores(
        jobs.into_iter(),
        |(kind, size, splits, active, dims, names)| {
            let mut config = build_config_of_one_collective(Unaware, &dims, kind, names, size);
            (config.system.splits, config.system.active_chunks) = (splits, active);
            analytical.fetch_add(compare_closed_and_stepwise(&config), Relaxed);
        },
    );
    let analytical = analytical.into_inner();
    println!("{analytical} of {count} are analytical");
    assert!(analytical > count / 2, "{analytical} of {count}");
}

fn build_kernel_node(id: u64, deps: &[u64], micros: u64) -> TraceNode {
    TraceNode {
        id,
        deps: deps.to_vec(),
        cpu: false,
        micros,
        work: NodeWork::Compute { ops: 1, bytes: 1 },
    }
}

/// Collectives run one after another, with kernels before, between and after them. Each collective
/// starts in the order in which the NPUs completed the previous collective.
#[test]
fn lines_are_the_same_with_closed_forms_and_without() {
    let one_dimension = [
        (&[(Ring, 6, 50.0, 500.0)][..], &["ring"][..]),
        (&[(Ring, 8, 50.0, 500.0)], &["halvingDoubling"]),
        (&[(FullyConnected, 5, 50.0, 500.0)], &["direct"]),
        (&[(Switch, 8, 50.0, 500.0)], &["direct"]),
        (&[(Switch, 6, 50.0, 500.0)], &["direct2"]),
        (&[(Ring, 6, 50.0, 500.0)], &["direct"]),
    ];
    let two_dimensions = [
        (
            &[(Ring, 3, 50.0, 500.0), (Switch, 4, 50.0, 500.0)][..],
            &["ring", "halvingDoubling"][..],
        ),
        (
            &[(FullyConnected, 4, 50.0, 500.0), (Ring, 3, 50.0, 500.0)],
            &["direct", "ring"],
        ),
        (
            &[(Ring, 4, 50.0, 500.0), (Ring, 3, 25.0, 700.0)],
            &["oneRing"],
        ),
    ];
    let mut jobs = Vec::new();
    for (dims, names) in one_dimension.into_iter().chain(two_dimensions) {
        for kind in [AllReduce, AllGather, ReduceScatter, AllToAll] {
            if kind == AllToAll && names.contains(&"halvingDoubling") {
                continue;
            }
            for (network, splits, active) in [(Unaware, 1, 1), (Unaware, 3, 2), (Aware, 2, 1)] {
                if network == Unaware || dims.len() == 1 {
                    jobs.push((dims, names, kind, network, splits, active));
                }
            }
        }
    }
    let analytical = AtomicU64::new(0);
    let count = jobs.len() as u64;
    product::run_on_all_cores(jobs.into_iter().enumerate(), |(i, job)| {
        let (dims, names, kind, network, splits, active) = job;
        let mut config = build_config_of_one_collective(network, dims, kind, names, 100_000);
        (config.system.splits, config.system.active_chunks) = (splits, active);
        for (rank, nodes) in config.ranks.iter_mut().enumerate() {
            let first = nodes[0].clone();
            let again = TraceNode {
                id: 3,
                deps: vec![2],
                ..first.clone()
            };
            *nodes = vec![
                first,
                build_kernel_node(2, &[1], 5),
                again,
                build_kernel_node(4, &[3], 2),
            ];
            // A third of the jobs also run kernels during the collectives, and some of these
            // kernels end at the instant of a step.
            if i % 3 == 0 {
                nodes.push(build_kernel_node(5, &[], 1 + rank as u64 % 2));
            }
        }
        analytical.fetch_add(compare_closed_and_stepwise(&config), Relaxed);
    });
    let analytical = analytical.into_inner();
    println!("{analytical} analytical collectives in {count} jobs");
    assert!(analytical > count / 2, "{analytical} of {count}");
}

#[test]
fn random_jobs_print_the_same_lines_with_and_without_closed_forms() {
    product::run_on_all_cores(0..40, |seed| {
        compare_closed_and_stepwise(&create_random_config(seed));
    });
}

/// Runs `CHAKRAM_SEEDS` configurations.
#[test]
#[ignore = "takes minutes"]
fn many_random_jobs_print_the_same_lines_with_and_without_closed_forms() {
    let seeds = std::env::var("CHAKRAM_SEEDS").map_or(2000, |text| text.parse().expect("a number"));
    product::run_on_all_cores(40..seeds, |seed| {
        compare_closed_and_stepwise(&create_random_config(seed));
    });
}
