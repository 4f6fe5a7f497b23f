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

use testkit::seeds::{run_body_on_every_seed_file, run_on_seed_mutations};

#[test]
fn fuzz_seeds_of_astra_sim_files_pass() {
    run_body_on_every_seed_file("astra_sim", astra_sim::fuzz_astra_sim_parsers_with_bytes);
}

#[test]
fn fuzz_seeds_of_trace_edits_pass() {
    run_body_on_every_seed_file("edit", edit::check_slicing_and_anonymising_bytes);
    // Seeds of `replay` are also traces.
    run_body_on_every_seed_file("replay", edit::check_slicing_and_anonymising_bytes);
    run_body_on_every_seed_file("et_reader", edit::check_slicing_and_anonymising_bytes);
}

#[test]
fn fuzz_seeds_of_trace_inspection_pass() {
    run_body_on_every_seed_file("inspect", inspect::check_inspection_of_bytes);
    run_body_on_every_seed_file("et_reader", inspect::check_inspection_of_bytes);
}

#[test]
fn fuzz_seeds_of_model_files_pass() {
    run_body_on_every_seed_file("model_file", model_file::check_model_file_bytes);
}

#[test]
fn fuzz_seeds_of_plan_files_pass() {
    run_body_on_every_seed_file("plan_file", plan_file::check_plan_file_bytes);
}

#[test]
fn mutated_fuzz_seeds_of_plan_files_pass() {
    run_on_seed_mutations("plan_file", plan_file::check_plan_file_bytes);
}

#[test]
fn fuzz_seeds_of_machine_files_pass() {
    run_body_on_every_seed_file("machine_file", machine_file::check_machine_file_bytes);
}

#[test]
fn fuzz_seeds_of_replays_pass() {
    run_body_on_every_seed_file("replay", replay::check_bytes_in_replay_modes);
}

#[test]
fn fuzz_seeds_of_validation_pass() {
    run_body_on_every_seed_file("validate", validate::check_validation_of_bytes);
}

#[test]
fn fuzz_seeds_of_pytorch_conversion_pass() {
    run_body_on_every_seed_file("pytorch_convert", convert::check_conversion_of_bytes);
}

#[test]
fn fuzz_seeds_of_msccl_algorithms_pass() {
    run_body_on_every_seed_file("msccl", msccl::check_msccl_bytes_give_matched_messages);
    run_on_seed_mutations("msccl", msccl::check_msccl_bytes_give_matched_messages);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(400))]

    #[test]
    fn random_captures_that_convert_also_replay(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
        convert::check_conversion_of_bytes(&bytes);
    }
}
