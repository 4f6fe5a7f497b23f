//! The bodies of the fuzz targets, and their seeds; the fuzz targets include these files.

pub mod astra_sim;
pub mod convert;
pub mod edit;
pub mod inspect;
pub mod machine_file;
pub mod model_file;
pub mod msccl;
pub mod plan_file;
pub mod replay;
pub mod validate;

use testkit::seeds::{run_on_every_seed, run_on_seed_mutations};

#[test]
fn seeds_of_the_files_of_astra_sim_hold() {
    run_on_every_seed("astra_sim", astra_sim::check_astra_sim_bytes);
}

#[test]
fn seeds_of_edits_hold() {
    run_on_every_seed("edit", edit::check_edits_of_bytes);
    // Seeds of `replay` are also traces.
    run_on_every_seed("replay", edit::check_edits_of_bytes);
    run_on_every_seed("et_reader", edit::check_edits_of_bytes);
}

#[test]
fn seeds_of_traces_to_look_at_hold() {
    run_on_every_seed("inspect", inspect::check_inspection_of_bytes);
    run_on_every_seed("et_reader", inspect::check_inspection_of_bytes);
}

#[test]
fn seeds_of_model_files_hold() {
    run_on_every_seed("model_file", model_file::check_model_file_bytes);
}

#[test]
fn seeds_of_plan_files_hold() {
    run_on_every_seed("plan_file", plan_file::check_plan_file_bytes);
}

#[test]
fn mutated_plans_hold() {
    run_on_seed_mutations("plan_file", plan_file::check_plan_file_bytes);
}

#[test]
fn seeds_of_machine_files_hold() {
    run_on_every_seed("machine_file", machine_file::check_machine_file_bytes);
}

#[test]
fn seeds_of_replays_hold() {
    run_on_every_seed("replay", replay::check_replays_of_bytes);
}

#[test]
fn seeds_of_validations_hold() {
    run_on_every_seed("validate", validate::check_validation_of_bytes);
}

#[test]
fn seeds_of_conversions_hold() {
    run_on_every_seed("pytorch_convert", convert::check_conversion_of_bytes);
}

#[test]
fn seeds_of_algorithms_hold() {
    run_on_every_seed("msccl", msccl::check_msccl_bytes_give_matched_messages);
    run_on_seed_mutations("msccl", msccl::check_msccl_bytes_give_matched_messages);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_converts_replays(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
        convert::check_conversion_of_bytes(&bytes);
    }
}
