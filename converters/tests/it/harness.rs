//! Bodies of the fuzz targets for other tools' files; the fuzz crate uses them too. The tests in
//! this crate run each fuzz target on its seed files.

mod pytorch;
mod sources;

use testkit::seeds::{run_body_on_every_seed_file, run_on_seed_mutations};

#[test]
fn host_trace_seeds_lose_no_node() {
    run_body_on_every_seed_file("pytorch_host", pytorch::check_host_trace_loses_no_node);
}

#[test]
fn device_trace_seeds_lose_no_event() {
    run_body_on_every_seed_file("pytorch_kineto", pytorch::check_device_trace_loses_no_event);
}

#[test]
fn text_workload_seeds_and_mutations_pass_checks() {
    run_body_on_every_seed_file("text_workload", sources::text_workload);
    run_on_seed_mutations("text_workload", sources::text_workload);
}

#[test]
fn xplane_seeds_and_mutations_pass_checks() {
    run_body_on_every_seed_file("xplane", sources::check_xplane_conversion);
    run_on_seed_mutations("xplane", sources::check_xplane_conversion);
}

#[test]
fn nsys_seeds_and_mutations_pass_checks() {
    run_body_on_every_seed_file("nsys", sources::check_nsys_rejects_or_converts_validly);
    run_on_seed_mutations("nsys", sources::check_nsys_rejects_or_converts_validly);
}

#[test]
fn seeds_of_schedules_hold() {
    run_body_on_every_seed_file("goal", sources::check_goal_round_trip);
    run_on_seed_mutations("goal", sources::check_goal_round_trip);
}

#[test]
fn simai_seeds_and_mutations_pass_checks() {
    run_body_on_every_seed_file("simai", sources::check_simai_conversion_of_any_bytes);
    run_on_seed_mutations("simai", sources::check_simai_conversion_of_any_bytes);
}
