//! The body is in `src/analysis/tests/it/harness`, where a test runs it on every seed.

#![no_main]

#[path = "../../src/analysis/tests/it/harness/diff.rs"]
mod diff;

libfuzzer_sys::fuzz_target!(|data: &[u8]| diff::run_diff_target(data));
