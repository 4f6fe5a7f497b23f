//! Tests replays with the models of the example extension.

use chakram::engine::{CompiledReplay, ReplayOptions};
use chakram::extend::{CollectiveAlgorithm, DimensionAlgorithmChoice, UserAlgorithmHandle};
use chakram::generate::{
    CollectivePattern, LoadKernelStorePattern, P2pPattern, ParallelKernelChainsPattern,
    TrafficPattern, WorkloadPattern,
};
use chakram::trace::CollectiveKind;
use chakram::units::{Bandwidth, FlopRate, Span};
use chakram::{Job, Machine};
use chakram_extension::hub::HubNetwork;
use chakram_extension::speed::UniformRateModel;
use chakram_extension::star::StarAllReduce;
use chakram_extension::tape::TapeMemoryParameters;
use std::sync::Arc;

/// Returns a machine with four NPUs and a switch. At the machine's rate of 1 GB/s, a byte takes
/// 1,000 ps. A path has two links, each with a latency of 100 ns.
fn load_switch_machine() -> Machine {
    Machine::load_by_name("Switch(4):1 GB/s:100 ns").unwrap()
}

fn generate_pattern_job(pattern: WorkloadPattern) -> Job {
    Job::generate_job(pattern).unwrap()
}

/// Four messages of 1,000 B cross the hub one after another at 0.5 GB/s. The last message arrives after 4 x 2 us and
/// the hub's latency of 1 us.
#[test]
fn messages_pass_a_hub_one_after_another() {
    let (machine, options) = (load_switch_machine(), ReplayOptions::default());
    let ring = generate_pattern_job(WorkloadPattern::P2p(P2pPattern::new(
        TrafficPattern::Ring,
        1000,
        4,
    )));
    let prepared = CompiledReplay::new(ring.workload(), &machine, &options).unwrap();
    let hub = HubNetwork::new(Bandwidth::new(0.5e9).unwrap(), Span::from_ns(1000));
    let outcome = prepared.run_on_network(&mut (), hub).unwrap();
    assert_eq!(outcome.makespan, Span::from_ns(9000));
    // On the machine's own network, the messages do not contend, so each message takes 1 us plus a latency of 0.2 us.
    let own = ring.replay_on(&machine, &options).unwrap();
    assert_eq!(own.outcome.makespan, Span::from_ns(1200));
}

/// Three buffers of 1,000 B go to the first member one after another, and three go back. Each
/// direction takes 3 us plus a latency of 0.2 us.
#[test]
fn a_star_carries_out_an_all_reduce() {
    static STAR: StarAllReduce = StarAllReduce;
    let star = CollectiveAlgorithm::Own(UserAlgorithmHandle(&STAR));
    let machine = Machine::load_by_name("Switch(4):1 GB/s:100 ns").unwrap();
    let machine = machine
        .with_dimension_algorithm(0, DimensionAlgorithmChoice::Named(star))
        .unwrap();
    let pattern = CollectivePattern::new(CollectiveKind::AllReduce, 1000, 4);
    let report = generate_pattern_job(WorkloadPattern::Collective(pattern));
    let report = report
        .replay_on(&machine, &ReplayOptions::default())
        .unwrap();
    assert_eq!(report.outcome.makespan, Span::from_ns(6400));
    assert_eq!(report.collectives[0].algorithm, "star 4 (switch-1)");
}

/// Ten kernels of 2 GFLOP run at 1 TFLOP/s, regardless of the machine's peak rate.
#[test]
fn kernels_take_what_their_model_says() {
    let mut chain = ParallelKernelChainsPattern::new(1, 10);
    chain.flops = 2_000_000_000;
    let options = ReplayOptions::default_with_changes(|options| {
        let speed = UniformRateModel(FlopRate::new(1e12).unwrap());
        options.extensions.kernels = Some(Arc::new(speed));
    });
    let report = generate_pattern_job(WorkloadPattern::Chain(chain))
        .replay_on(&load_switch_machine(), &options);
    assert_eq!(report.unwrap().outcome.makespan, Span::from_ns(20_000_000));
}

/// Two NPUs each load 1 MB at 1 GB/s (1 ms) from one tape, which winds for 1 ms before each load,
/// so the loads take 2 x 2 ms. Accesses to the NPUs' own memory do not use the tape.
#[test]
fn loads_come_from_tape() {
    let text = chakram::machine::find_machine_text("Switch(2):1 GB/s:100 ns")
        .unwrap()
        .text;
    let remote = "\n[remote_memory]\nattachment = \"per_npu\"\nbandwidth = \"25 GB/s\"\nlatency = \"1 us\"\n\
                  capacity = \"1 TB\"\n";
    let machine = Machine::parse(&format!("{text}{remote}"), "tape").unwrap();
    let loads = generate_pattern_job(WorkloadPattern::Memory(LoadKernelStorePattern::new(
        2, 1, 1_000_000,
    )));
    let options = ReplayOptions::default_with_changes(|options| {
        options.extensions.memory = Some(Arc::new(TapeMemoryParameters {
            rate: Bandwidth::new(1e9).unwrap(),
            wind: Span::from_ns(1_000_000),
        }));
    });
    let report = loads.replay_on(&machine, &options).unwrap();
    assert_eq!(report.outcome.makespan, Span::from_ns(4_000_000));
    let own = loads
        .replay_on(&machine, &ReplayOptions::default())
        .unwrap();
    assert_eq!(own.outcome.makespan, Span::from_ns(41_000));
}
