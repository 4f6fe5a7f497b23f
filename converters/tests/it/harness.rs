//! Bodies of the fuzz targets for other tools' files; the fuzz crate uses them too. The tests in
//! this crate run each fuzz target on its seed files.

mod pytorch;
mod sources;

use testkit::seeds::{every_mutation, every_seed};

#[test]
fn seeds_of_host_traces_hold() {
    every_seed("pytorch_host", pytorch::host);
}

#[test]
fn seeds_of_device_traces_hold() {
    every_seed("pytorch_kineto", pytorch::read_device);
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
fn seeds_of_exports_hold() {
    every_seed("nsys", sources::nsys);
    every_mutation("nsys", sources::nsys);
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
