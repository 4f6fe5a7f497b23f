//! The body lies in `tests/it/harness`, where a test runs it on every seed.

#![no_main]

#[path = "../../tests/it/harness/sources.rs"]
mod sources;

libfuzzer_sys::fuzz_target!(|data: &[u8]| sources::simai(data));
