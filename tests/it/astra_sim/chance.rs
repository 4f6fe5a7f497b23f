//! Tests of random configurations: nearly all finish, and writing and reading their files does not
//! change them.

use testkit::astra_sim::config::{Config, Work};
use testkit::astra_sim::{Answer, load, random, run};

/// Returns the seeds below `seeds` whose configuration does not finish, with the configuration.
fn stuck(seeds: u64) -> Vec<(u64, Config)> {
    let done = |answer: &Answer| answer.finish.iter().all(Option::is_some);
    let configs = (0..seeds).map(|seed| (seed, random(seed)));
    configs.filter(|(_, config)| !done(&run(config))).collect()
}

/// Returns `true` if phases of two directions share a queue that cannot take all chunks: NPUs that
/// start at different times may take the chunks in different orders and wait for each other for
/// ever.
fn shares_queues(config: &Config) -> bool {
    let system = &config.system;
    let late = system.active_chunks <= system.splits;
    system.local_bw_aware && config.dims.len() > 1 && config.queues_per_dim == 1 && late
}

/// Returns `true` if some node does nothing: if no other node ends later, the original never issues
/// the nodes that wait for it.
pub fn does_nothing(config: &Config) -> bool {
    let nothing = |work: &Work| match work {
        Work::Nothing => true,
        Work::Compute { bytes, .. } => *bytes == 0 && config.system.roofline,
        _ => false,
    };
    config
        .ranks
        .iter()
        .flatten()
        .any(|node| nothing(&node.work))
}

fn have_reasons(seeds: u64) {
    let stuck = stuck(seeds);
    println!("{} do not finish", stuck.len());
    assert!((stuck.len() as u64) < seeds / 8, "{}", stuck.len());
    for (seed, config) in stuck {
        assert!(shares_queues(&config) || does_nothing(&config), "{seed}");
    }
}

#[test]
fn what_does_not_finish_has_a_reason() {
    have_reasons(60);
}

#[test]
#[ignore = "takes a minute"]
fn whatever_does_not_finish_has_a_reason() {
    have_reasons(10_000);
}

#[test]
fn files_say_the_same() {
    for seed in 0..40 {
        let config = random(seed);
        let folder = tempfile::tempdir().expect("a folder");
        config.write(folder.path()).expect("it is written");
        let read = load(folder.path());
        assert_eq!(format!("{config:?}"), format!("{read:?}"), "{seed}");
    }
}
