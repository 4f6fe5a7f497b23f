//! The body is in `tests/it/harness`, where a test runs it on every seed.

#![no_main]

#[path = "../../tests/it/harness/validate.rs"]
mod validate;

libfuzzer_sys::fuzz_target!(|data: &[u8]| validate::check_validation_of_bytes(data));
