//! Runs the bodies of fuzz targets on the seeds under `fuzz/seeds`, and on random mutations of
//! them.

use std::path::{Path, PathBuf};

/// Returns the seeds of `target`, sorted.
fn seed_files(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/seeds")
        .join(target);
    let mut seeds: Vec<_> = std::fs::read_dir(&folder)
        .expect("seeds are kept with the targets")
        .map(|entry| entry.expect("the folder can be listed").path())
        .collect();
    seeds.sort();
    assert!(!seeds.is_empty(), "{} is empty", folder.display());
    seeds
}

/// Runs `body` on every seed of `target`. At least one seed must exist.
pub fn run_body_on_every_seed_file(target: &str, body: fn(&[u8])) {
    for seed in seed_files(target) {
        println!("{}", seed.display());
        body(&std::fs::read(seed).expect("a seed can be read"));
    }
}

/// Runs `body` on random mutations of every seed of `target`: some bytes are changed, cut, repeated or
/// taken from another seed. Each seed is mutated `CHAKRAM_MUTATIONS` times (default 200).
pub fn run_on_seed_mutations(target: &str, body: fn(&[u8])) {
    let seeds: Vec<Vec<u8>> = seed_files(target)
        .iter()
        .map(|path| std::fs::read(path).expect("a seed can be read"))
        .collect();
    let times = std::env::var("CHAKRAM_MUTATIONS").ok();
    let times: usize = times.map_or(200, |times| times.parse().expect("a number"));
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n.max(1) as u64) as usize
    };
    for round in 0..times * seeds.len() {
        let mut data = seeds[round % seeds.len()].clone();
        for _ in 0..=below(4) {
            let at = below(data.len() + 1);
            let to = (at + below(24)).min(data.len());
            match below(6) {
                0 if at < data.len() => data[at] = below(256) as u8,
                1 if at < data.len() => data[at] ^= 1 << below(8),
                2 => drop(data.drain(at..to)),
                3 => {
                    let part = data[at..to].to_vec();
                    let place = below(data.len() + 1);
                    data.splice(place..place, part);
                }
                4 => {
                    let other = &seeds[below(seeds.len())];
                    let from = below(other.len() + 1);
                    let part = other[from..(from + below(40)).min(other.len())].to_vec();
                    data.splice(at..to, part);
                }
                _ => data.truncate(at.max(1)),
            }
        }
        let result = std::panic::catch_unwind(|| body(&data));
        assert!(result.is_ok(), "{target}, round {round}: {data:?}");
    }
}
