//! The body is in `tests/it/harness`, where a test runs it on every seed.

#![no_main]

#[path = "../../tests/it/harness/model_file.rs"]
mod model_file;

libfuzzer_sys::fuzz_target!(|data: &[u8]| model_file::check_model_file_bytes(data));
