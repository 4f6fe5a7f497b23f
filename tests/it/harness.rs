//! The bodies of the fuzz targets, which share these files, and the seeds that they start from.

pub mod astra_sim;
pub mod coerce;
pub mod convert;
pub mod diff;
pub mod edit;
pub mod et_reader;
pub mod forms;
pub mod inspect;
pub mod machine_file;
pub mod model_file;
pub mod oracle;
pub mod plan_file;
pub mod pytorch;
pub mod replay;
pub mod sources;
pub mod validate;

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
fn seeds_of_edits_hold() {
    every_seed("edit", edit::run);
    // Any trace will do.
    every_seed("replay", edit::run);
    every_seed("et_reader", edit::run);
}

#[test]
fn seeds_of_differences_hold() {
    every_seed("diff", diff::run);
}

#[test]
fn seeds_of_the_trace_reader_hold() {
    every_seed("et_reader", et_reader::run);
}

#[test]
fn seeds_of_traces_to_look_at_hold() {
    every_seed("inspect", inspect::run);
    every_seed("et_reader", inspect::run);
}

#[test]
fn seeds_of_model_files_hold() {
    every_seed("model_file", model_file::run);
}

#[test]
fn seeds_of_plan_files_hold() {
    every_seed("plan_file", plan_file::run);
}

#[test]
fn mutated_plans_hold() {
    every_mutation("plan_file", plan_file::run);
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
fn seeds_of_validations_hold() {
    every_seed("validate", validate::run);
}

#[test]
fn seeds_of_conversions_hold() {
    every_seed("pytorch_convert", convert::run);
}

#[test]
fn seeds_of_text_workloads_hold() {
    every_seed("text_workload", sources::text_workload);
    every_mutation("text_workload", sources::text_workload);
}

#[test]
fn seeds_of_profiles_hold() {
    every_seed("xplane", sources::xplane);
    every_mutation("xplane", sources::xplane);
}

#[test]
fn seeds_of_schedules_hold() {
    every_seed("goal", sources::goal);
    every_mutation("goal", sources::goal);
}

#[test]
fn seeds_of_workloads_of_simai_hold() {
    every_seed("simai", sources::simai);
    every_mutation("simai", sources::simai);
}

#[test]
fn seeds_of_algorithms_hold() {
    every_seed("msccl", sources::msccl);
    every_mutation("msccl", sources::msccl);
}

#[test]
fn seeds_of_other_forms_hold() {
    every_seed("trace_json_lines", forms::json_lines);
    every_seed("trace_older", forms::older);
    every_seed("trace_pasted", forms::pasted);
    every_seed("trace_salvage", forms::salvaged);
    // Findings of one target are also worth a look by the others.
    every_seed("et_reader", forms::salvaged);
    every_seed("et_reader", forms::json_lines);
    every_seed("trace_older", forms::salvaged);
}

/// Runs `body` on every seed of `target` with some bytes changed, cut, repeated or taken from another
/// seed, `CHAKRAM_MUTATIONS` times each, or 200 times.
fn every_mutation(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/seeds")
        .join(target);
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .expect("seeds are kept beside the targets")
        .map(|entry| entry.expect("the folder can be listed").path())
        .collect();
    paths.sort();
    let seeds: Vec<Vec<u8>> = paths
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

#[test]
fn mutated_lines_hold() {
    every_mutation("trace_json_lines", forms::json_lines);
}

#[test]
fn mutated_old_files_hold() {
    every_mutation("trace_older", forms::older);
}

#[test]
fn mutated_pastes_hold() {
    every_mutation("trace_pasted", forms::pasted);
}

#[test]
fn mutated_damages_hold() {
    every_mutation("trace_salvage", forms::salvaged);
    every_mutation("trace_older", forms::salvaged);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_converts_replays(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
        convert::run(&bytes);
    }
}
