//! The body is in `converters/tests/it/harness`, where a test runs it on every seed.

#![no_main]

#[path = "../../converters/tests/it/harness/pytorch.rs"]
mod pytorch;

libfuzzer_sys::fuzz_target!(|data: &[u8]| pytorch::check_host_trace(data));
