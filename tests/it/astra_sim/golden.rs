//! Recorded answers of the original for collectives of a few NPUs. The plain simulator and the
//! program must both reproduce these answers.

pub mod groups;
mod table;

use super::product;
use crate::corpus::sample_every_nth;
use CollectiveOperation::{AllGather, AllReduce, AllToAll, ReduceScatter};
use DimensionTopology::{FullyConnected, Ring, Switch};
use NetworkModel::{Aware, Unaware};
use std::collections::BTreeMap;
use testkit::astra_sim::algorithms::NativeAlgorithmWithOneRingFlag;
use testkit::astra_sim::config::{
    CollectiveOperation, DimensionTopology, MemoryConfig, MemoryServerAssignment, NetworkDimension,
    NetworkModel, NodeWork, PriorityPolicy, SystemConfig, TraceNode, WholeSimulationInput,
};
use testkit::astra_sim::{self as oracle, SimulationAnswer};

const MIB: u64 = 1 << 20;

/// Returns one collective of all NPUs, in four chunks, on dimensions given as (shape, size, bandwidth, latency).
pub fn build_config_of_one_collective(
    network: NetworkModel,
    dims: &[(DimensionTopology, usize, f64, f64)],
    kind: CollectiveOperation,
    names: &[&str],
    bytes: u64,
) -> WholeSimulationInput {
    let dim = |&(shape, n, bw, lat): &_| NetworkDimension { shape, n, bw, lat };
    let dims: Vec<NetworkDimension> = dims.iter().map(dim).collect();
    let npus = dims.iter().map(|d| d.n).product();
    let algorithm =
        |name: &&str| NativeAlgorithmWithOneRingFlag::parse(name).expect("an algorithm");
    let node = TraceNode {
        id: 1,
        deps: Vec::new(),
        cpu: false,
        micros: 0,
        work: NodeWork::Collective {
            kind,
            bytes,
            group: 0,
            dims: None,
            priority: 0,
        },
    };
    WholeSimulationInput {
        network,
        dims,
        system: SystemConfig {
            policy: PriorityPolicy::Lifo,
            local_bw_aware: true,
            endpoint_delay: Some(10),
            active_chunks: 1,
            splits: 4,
            algorithms: BTreeMap::from([(kind, names.iter().map(algorithm).collect())]),
            custom: BTreeMap::new(),
            custom_nodes: BTreeMap::new(),
            local_mem_bw: 50.0,
            peak_perf: 0.0,
            roofline: false,
            replay_only: false,
            bus: None,
            reduction_delay: 1,
        },
        memory: MemoryConfig {
            attachment: MemoryServerAssignment::None,
            latency: 0,
            bw: 0,
        },
        groups: BTreeMap::new(),
        rendezvous: false,
        injection_scale: 1.0,
        queues_per_dim: 1,
        ranks: vec![vec![node]; npus],
    }
}

/// Returns the simulator's answer, after checking that the program gives the same answer.
fn simulate_and_check_program_agrees(config: &WholeSimulationInput) -> SimulationAnswer {
    let answer = oracle::simulate_as_astra_sim(config);
    let ran = product::run_config_with_closed_forms(config);
    assert_eq!(product::describe_answer_difference(&ran, &answer), None);
    answer
}

/// Returns the times at which the first and the last NPU finish.
fn find_first_and_last_finish(answer: &SimulationAnswer) -> (u64, u64) {
    let finish = answer.finish.iter().map(|f| f.expect("it finishes"));
    let (first, last) = (finish.clone().min(), finish.max());
    (first.expect("an NPU"), last.expect("an NPU"))
}

#[test]
fn one_dimension_collectives_finish_at_table_times() {
    for &(kind, shape, name, expected) in sample_every_nth(3, table::ONE_DIMENSION) {
        let runs = [(Unaware, 1), (Unaware, 4), (Aware, 1), (Aware, 4)];
        for ((network, active), expected) in runs.into_iter().zip(expected) {
            let dims = [(shape, 8, 50.0, 500.0)];
            let mut config = build_config_of_one_collective(network, &dims, kind, &[name], MIB);
            config.system.active_chunks = active;
            let found = find_first_and_last_finish(&simulate_and_check_program_agrees(&config));
            assert_eq!(
                found, expected,
                "{kind:?} {shape:?} {name} {network:?} {active}"
            );
        }
    }
}

#[test]
fn original_examples_finish_at_known_times() {
    // A switch of 8 with 400 GB/s and 936.25 ns, ring collectives, two active chunks, and
    // reductions at 3350 GB/s.
    let hgx = [(Switch, 8, 400.0, 936.25)];
    let mut config = build_config_of_one_collective(Aware, &hgx, AllReduce, &["ring"], MIB);
    config.system.active_chunks = 2;
    config.system.local_mem_bw = 3350.0;
    assert_eq!(
        find_first_and_last_finish(&simulate_and_check_program_agrees(&config)),
        (57_426, 57_426)
    );
    let torus = |sizes: &[usize], bws: &[f64], names: &[&str]| {
        let dim = |(&n, &bw)| (Ring, n, bw, 500.0);
        let dims: Vec<_> = sizes.iter().zip(bws).map(dim).collect();
        let config = build_config_of_one_collective(Unaware, &dims, AllReduce, names, MIB);
        find_first_and_last_finish(&simulate_and_check_program_agrees(&config)).1
    };
    assert_eq!(torus(&[4, 2], &[50.0, 25.0], &["ring", "ring"]), 88_760);
    assert_eq!(torus(&[4, 2], &[50.0, 25.0], &["oneRing"]), 117_780);
    assert_eq!(torus(&[4; 3], &[50.0; 3], &["ring"; 3]), 88_760);
    assert_eq!(torus(&[2; 4], &[50.0; 4], &["ring"; 4]), 60_513);
}

#[test]
#[ignore = "1.5 million messages"]
fn a_large_torus_all_reduce_finishes_at_known_time() {
    let dims = [(Ring, 16, 50.0, 500.0); 3];
    let config = build_config_of_one_collective(Unaware, &dims, AllReduce, &["ring"; 3], MIB);
    assert_eq!(
        find_first_and_last_finish(&simulate_and_check_program_agrees(&config)).1,
        157_435
    );
}

#[test]
fn double_binary_tree_all_reduces_finish_at_known_times() {
    for (n, expected) in [(4, 265_348), (8, 438_292), (16, 611_236)] {
        let dims = [(Switch, n, 50.0, 500.0)];
        let config =
            build_config_of_one_collective(Unaware, &dims, AllReduce, &["doubleBinaryTree"], MIB);
        assert_eq!(
            find_first_and_last_finish(&simulate_and_check_program_agrees(&config)).1,
            expected,
            "{n}"
        );
    }
}

/// Returns the arrival time of a message of 1 MiB from NPU `src` to NPU `dst`.
fn measure_message_arrival(
    network: NetworkModel,
    dims: &[(DimensionTopology, usize, f64, f64)],
    src: usize,
    dst: usize,
) -> u64 {
    let mut config = build_config_of_one_collective(network, dims, AllReduce, &[], MIB);
    let (bytes, tag) = (MIB, 7);
    for rank in &mut config.ranks {
        rank[0].work = NodeWork::Compute { ops: 1, bytes: 1 };
    }
    config.ranks[src][0].work = NodeWork::Send { dst, bytes, tag };
    config.ranks[dst][0].work = NodeWork::Receive { src, bytes, tag };
    let answer = simulate_and_check_program_agrees(&config);
    assert_eq!(answer.finish[src], answer.finish[dst]);
    assert_eq!(answer.messages, 1);
    answer.finish[dst].expect("it arrives")
}

#[test]
fn single_messages_arrive_at_known_times() {
    let to_4 = |network, shape| measure_message_arrival(network, &[(shape, 16, 50.0, 500.0)], 1, 4);
    assert_eq!(to_4(Unaware, Ring), 21_031);
    assert_eq!(to_4(Unaware, FullyConnected), 20_031);
    assert_eq!(to_4(Unaware, Switch), 20_531);
    assert_eq!(to_4(Aware, Ring), 60_093);
    assert_eq!(to_4(Aware, FullyConnected), 20_031);
    assert_eq!(to_4(Aware, Switch), 40_062);
    let dims = [
        (Ring, 2, 200.0, 50.0),
        (FullyConnected, 8, 100.0, 500.0),
        (Switch, 4, 50.0, 2000.0),
    ];
    assert_eq!(measure_message_arrival(Unaware, &dims, 0, 1), 4_932);
    assert_eq!(measure_message_arrival(Unaware, &dims, 0, 2), 10_265);
    assert_eq!(measure_message_arrival(Unaware, &dims, 0, 16), 23_531);
}
