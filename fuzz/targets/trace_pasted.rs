//! The body is in `src/trace/tests/it/harness`, where a test runs it on every seed.

#![no_main]

#[path = "../../src/trace/tests/it/harness/forms.rs"]
#[allow(dead_code, reason = "every target uses one of its bodies")]
mod forms;

libfuzzer_sys::fuzz_target!(|data: &[u8]| forms::check_fuzzed_text_trace(data));
