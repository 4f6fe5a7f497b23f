//! The bodies of the fuzz targets, which share these files, and the seeds that they start from.

pub mod astra_sim;
pub mod coerce;
pub mod convert;
pub mod et_reader;
pub mod machine_file;
pub mod oracle;
pub mod pytorch;
pub mod replay;

use std::path::Path;

/// Runs `body` on every seed of `target`; at least one must be there.
fn every_seed(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/seeds")
        .join(target);
    let mut seeds: Vec<_> = std::fs::read_dir(&folder)
        .expect("seeds are kept beside the targets")
        .map(|entry| entry.expect("the folder can be listed").path())
        .collect();
    seeds.sort();
    assert!(!seeds.is_empty(), "{} is empty", folder.display());
    for seed in seeds {
        println!("{}", seed.display());
        body(&std::fs::read(seed).expect("a seed can be read"));
    }
}

#[test]
fn seeds_of_the_files_of_astra_sim_hold() {
    every_seed("astra_sim", astra_sim::run);
}

#[test]
fn seeds_of_the_trace_reader_hold() {
    every_seed("et_reader", et_reader::run);
}

#[test]
fn seeds_of_machine_files_hold() {
    every_seed("machine_file", machine_file::run);
}

#[test]
fn seeds_of_host_traces_hold() {
    every_seed("pytorch_host", pytorch::host);
}

#[test]
fn seeds_of_device_traces_hold() {
    every_seed("pytorch_kineto", pytorch::device);
}

#[test]
fn seeds_of_replays_hold() {
    every_seed("replay", replay::run);
}

#[test]
fn seeds_of_conversions_hold() {
    every_seed("pytorch_convert", convert::run);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_converts_replays(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
        convert::run(&bytes);
    }
}
