//! The body is in `tests/it/harness`, where a test runs it on every seed.

#![no_main]

#[path = "../../tests/it/harness/machine_file.rs"]
mod machine_file;

libfuzzer_sys::fuzz_target!(|data: &[u8]| machine_file::check_machine_file_bytes(data));
