//! Tests Table V of the ASTRA-sim 2.0 paper: ZeRO-Infinity, HierMem, and the best of forty HierMem machines.
//!
//! The paper trains a mixture of experts whose trace is not public. Its claims follow from the fraction f of the
//! baseline's time that goes to remote memory. At the optimum, this part takes a fifth of its time (500 instead of 100
//! GB/s), and the rest does not change. The speedup is therefore 1 / (1 - f + f / 5), and the paper's 4.6 corresponds
//! to f = 0.978.

use super::rig::replay_and_log;
use chakram::generate::{CheckedWorkloadPattern, LoadKernelStorePattern, WorkloadPattern};
use chakram::machine::{Machine, PRESETS};
use chakram::units::Span;
use chakram::workload::Workload;

const NPUS: u64 = 256;
/// The bytes of a load, which takes 10 ms at 100 GB/s.
const BYTES: u64 = 1_000_000_000;

/// Returns a job with one load on every NPU, and a kernel after it.
fn build_load_then_kernel_job(kernel_ns: u64) -> Workload {
    let mut options = LoadKernelStorePattern::new(NPUS as u32, 1, BYTES);
    options.kernel = Span::from_ns(kernel_ns);
    CheckedWorkloadPattern::new(WorkloadPattern::Memory(options))
        .unwrap()
        .build_workload()
        .unwrap()
}

/// Returns the preset `hiermem` with these bandwidths in GB/s.
fn load_hiermem_with_rates(in_node: u64, group: u64) -> Machine {
    let preset = PRESETS.iter().find(|preset| preset.name == "hiermem");
    let text = preset.unwrap().text;
    let swap = |text: &str, key: &str, old: u64, new: u64| {
        let [old, new] = [old, new].map(|gb| format!("\n{key} = \"{gb} GB/s\""));
        assert_eq!(text.matches(&old).count(), 1, "{old}");
        text.replace(&old, &new)
    };
    let text = swap(text, "in_node_bandwidth", 256, in_node);
    let text = swap(&text, "group_bandwidth", 100, group);
    Machine::parse(&text, "hiermem").unwrap()
}

/// Returns the picoseconds that `bytes` take at `gb` GB/s, as a fraction.
fn compute_transfer_ps(bytes: u64, gb: u64) -> f64 {
    bytes as f64 * 1000.0 / gb as f64
}

/// Returns the time that the paper's pipeline gives for 256 groups, 16 switches, 16 nodes, chunks of 64 kB, and 8,192
/// GB/s for a node.
fn compute_paper_pipeline_time(in_node: u64, group: u64) -> u64 {
    let chunk = 64_000;
    let stages = (BYTES * NPUS) as f64 / (256 * 16 * chunk) as f64;
    let stage = [
        // A link has a 16th of its group's bandwidth, and a link to a node has a 16th of the
        // node's.
        compute_transfer_ps(chunk * 16, group),
        compute_transfer_ps(256 * chunk * 16, 16 * 8192),
        compute_transfer_ps(256 * 16 * chunk, 256 * in_node),
    ];
    let longest = stage.iter().copied().fold(0.0, f64::max);
    let fill = stage.iter().sum::<f64>() - longest;
    (stages * longest).round() as u64 + fill.round() as u64
}

/// Returns the forty machines of the sweep: GB/s within a node, GB/s of a group, and the time.
fn replay_bandwidth_sweep(workload: &Workload) -> Vec<(u64, u64, u64)> {
    let rates = (1..=8).flat_map(|i| (1..=5).map(move |g| (256 * i, 100 * g)));
    let time = |(in_node, group)| {
        let replay = replay_and_log(workload, &load_hiermem_with_rates(in_node, group));
        (in_node, group, replay.makespan_ps())
    };
    rates.map(time).collect()
}

#[test]
fn all_forty_machines_take_the_time_of_the_paper_formula() {
    for (in_node, group, found) in replay_bandwidth_sweep(&build_load_then_kernel_job(0)) {
        assert_eq!(
            found,
            compute_paper_pipeline_time(in_node, group),
            "{in_node} {group}"
        );
    }
}

#[test]
fn the_optimal_speedups_of_the_sweep_match_the_paper() {
    // The load of 10 ms is the share f of the baseline's time, and a kernel is the rest: 10 ms x (1
    // - f) / f.
    for (f, kernel_ns, expected) in [
        (1.0, 0, 5.00),
        (0.98, 204_082, 4.63),
        (0.978_26, 222_232, 4.60),
        (0.5, 10_000_000, 1.67),
    ] {
        let times = replay_bandwidth_sweep(&build_load_then_kernel_job(kernel_ns));
        let of = |wanted: (u64, u64)| {
            let found = times.iter().find(|(i, g, _)| (*i, *g) == wanted);
            found.unwrap().2 as f64
        };
        let speedup = of((256, 100)) / of((512, 500));
        let law = 1.0 / (1.0 - f + f / 5.0);
        assert!((speedup / law - 1.0).abs() < 0.003, "{f}: {speedup}, {law}");
        assert!((law - expected).abs() < 0.005, "{f}: {law}");
        assert!((speedup - expected).abs() < 0.015, "{f}: {speedup}");
        // The paper chooses "the best performance with the least resource provision". Among the machines within a
        // thousandth of the best, this one has the least bandwidth within a node and of a group.
        let best = times.iter().map(|(.., time)| *time).min().unwrap() as f64;
        let good = times
            .iter()
            .filter(|(.., time)| *time as f64 <= best * 1.001);
        let least = good.map(|&(in_node, group, _)| (in_node, group)).min();
        assert_eq!(least, Some((512, 500)), "{f}");
    }
}

#[test]
fn presets_take_their_formula_time_and_zero_infinity_slightly_less() {
    let workload = build_load_then_kernel_job(0);
    let preset =
        |name| replay_and_log(&workload, &Machine::load_preset(name).unwrap()).makespan_ps();
    // The load is 1 GB at 100 GB/s.
    let alone = preset("zero-infinity");
    assert_eq!(alone, 10_000_000_000);
    assert_eq!(preset("hiermem"), compute_paper_pipeline_time(256, 100));
    assert_eq!(preset("hiermem-opt"), compute_paper_pipeline_time(512, 500));
    // The paper says that "ZeRO-Infinity performs 0.1% better"; here the additional stages take 6
    // us of 10 ms.
    let worse = preset("hiermem") as f64 / alone as f64 - 1.0;
    assert!((0.000_5..0.001).contains(&worse), "{worse}");
}
