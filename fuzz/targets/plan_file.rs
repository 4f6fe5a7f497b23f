//! The body is in `tests/it/harness`, where a test runs it on every seed.

#![no_main]

#[path = "../../tests/it/harness/plan_file.rs"]
mod plan_file;

libfuzzer_sys::fuzz_target!(|data: &[u8]| plan_file::check_plan_file_bytes(data));
