//! The body is in `converters/tests/it/harness`, where a test runs it on every seed.

#![no_main]

#[path = "../../converters/tests/it/harness/sources.rs"]
mod sources;

libfuzzer_sys::fuzz_target!(|data: &[u8]| sources::check_xplane_conversion(data));
