//! The body is in `tests/it/harness`, where a test runs it on every seed.

#![no_main]

#[path = "../../tests/it/harness/msccl.rs"]
mod msccl;

libfuzzer_sys::fuzz_target!(|data: &[u8]| msccl::check_msccl_bytes(data));
