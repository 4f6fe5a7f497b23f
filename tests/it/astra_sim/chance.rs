//! Tests random configurations: nearly all finish, and writing and reading the files of a
//! configuration does not change it.

use testkit::astra_sim::config::{NodeWork, WholeSimulationInput};
use testkit::astra_sim::{
    SimulationAnswer, create_random_config, load_case, simulate_as_astra_sim,
};

/// Returns the seeds below `seeds` whose configurations do not finish, each with its configuration.
fn find_unfinished_configs(seeds: u64) -> Vec<(u64, WholeSimulationInput)> {
    let done = |answer: &SimulationAnswer| answer.finish.iter().all(Option::is_some);
    let configs = (0..seeds).map(|seed| (seed, create_random_config(seed)));
    configs
        .filter(|(_, config)| !done(&simulate_as_astra_sim(config)))
        .collect()
}

/// Returns `true` if phases of two directions share a queue that cannot take all chunks. NPUs that
/// start at different times may then take the chunks in different orders, and wait for one another
/// forever.
fn has_opposite_phases_sharing_queue(config: &WholeSimulationInput) -> bool {
    let system = &config.system;
    let late = system.active_chunks <= system.splits;
    system.local_bw_aware && config.dims.len() > 1 && config.queues_per_dim == 1 && late
}

/// Returns `true` if some node does nothing. If no other node ends later, the original never issues
/// the nodes that wait for this node.
pub fn has_node_without_work(config: &WholeSimulationInput) -> bool {
    let nothing = |work: &NodeWork| match work {
        NodeWork::Nothing => true,
        NodeWork::Compute { bytes, .. } => *bytes == 0 && config.system.roofline,
        _ => false,
    };
    config
        .ranks
        .iter()
        .flatten()
        .any(|node| nothing(&node.work))
}

fn assert_unfinished_configs_have_causes(seeds: u64) {
    let stuck = find_unfinished_configs(seeds);
    println!("{} do not finish", stuck.len());
    assert!((stuck.len() as u64) < seeds / 8, "{}", stuck.len());
    for (seed, config) in stuck {
        assert!(
            has_opposite_phases_sharing_queue(&config) || has_node_without_work(&config),
            "{seed}"
        );
    }
}

#[test]
fn sixty_configurations_finish_or_have_a_known_cause() {
    assert_unfinished_configs_have_causes(60);
}

#[test]
#[ignore = "takes a minute"]
fn ten_thousand_configurations_finish_or_have_a_known_cause() {
    assert_unfinished_configs_have_causes(10_000);
}

#[test]
fn written_configurations_read_back_equal() {
    for seed in 0..40 {
        let config = create_random_config(seed);
        let folder = tempfile::tempdir().expect("a folder");
        config.write_case(folder.path()).expect("it is written");
        let read = load_case(folder.path());
        assert_eq!(format!("{config:?}"), format!("{read:?}"), "{seed}");
    }
}
