//! The body is in `tests/it/harness`, where a test runs it on every seed.

#![no_main]

#[path = "../../tests/it/harness/edit.rs"]
mod edit;

libfuzzer_sys::fuzz_target!(|data: &[u8]| edit::check_edits_of_bytes(data));
