//! The body is in `src/trace/tests/it/harness`, where a test runs it on every seed.

#![no_main]

#[path = "../../src/trace/tests/it/harness/coerce.rs"]
mod coerce;

#[path = "../../src/trace/tests/it/harness/oracle.rs"]
mod oracle;

#[path = "../../src/trace/tests/it/harness/et_reader.rs"]
mod et_reader;

libfuzzer_sys::fuzz_target!(|data: &[u8]| et_reader::check_fuzzed_et_file(data));
