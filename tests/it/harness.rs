//! The bodies of the fuzz targets, which share these files, and the seeds that they start from.

pub mod astra_sim;
pub mod convert;
pub mod diff;
pub mod edit;
pub mod inspect;
pub mod machine_file;
pub mod model_file;
pub mod plan_file;
pub mod pytorch;
pub mod replay;
pub mod sources;
pub mod validate;

use testkit::seeds::{every_mutation, every_seed};

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

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_converts_replays(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
        convert::run(&bytes);
    }
}
