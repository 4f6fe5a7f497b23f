//! The body is in `tests/it/harness`, where a test runs it on every seed.

#![no_main]

#[path = "../../tests/it/harness/astra_sim.rs"]
mod astra_sim;

libfuzzer_sys::fuzz_target!(|data: &[u8]| astra_sim::check_astra_sim_bytes(data));
