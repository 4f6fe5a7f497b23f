//! The body lies in `tests/it/harness`, where a test runs it on every seed.

#![no_main]

#[path = "../../tests/it/harness/coerce.rs"]
mod coerce;

#[path = "../../tests/it/harness/oracle.rs"]
mod oracle;

#[path = "../../tests/it/harness/et_reader.rs"]
mod et_reader;

libfuzzer_sys::fuzz_target!(|data: &[u8]| et_reader::run(data));
