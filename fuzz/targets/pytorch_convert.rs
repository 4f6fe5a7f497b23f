//! The body is in `tests/it/harness`, where a test runs it on every seed.

#![no_main]

#[path = "../../tests/it/harness/convert.rs"]
mod convert;

libfuzzer_sys::fuzz_target!(|data: &[u8]| convert::check_conversion_of_bytes(data));
