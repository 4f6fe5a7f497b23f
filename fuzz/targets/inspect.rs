//! The body is in `tests/it/harness`, where a test runs it on every seed.

#![no_main]

#[path = "../../tests/it/harness/inspect.rs"]
mod inspect;

libfuzzer_sys::fuzz_target!(|data: &[u8]| inspect::check_inspection_of_bytes(data));
