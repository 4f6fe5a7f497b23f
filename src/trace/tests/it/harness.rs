//! Runs the fuzz targets that read traces on every seed input. The fuzz targets include the files of this module.

mod coerce;
pub mod et_reader;
mod forms;
pub mod oracle;

use testkit::seeds::{run_body_on_every_seed_file, run_on_seed_mutations};

#[test]
fn trace_reader_passes_on_all_fuzz_seeds() {
    run_body_on_every_seed_file("et_reader", et_reader::check_fuzzed_et_file);
}

#[test]
fn other_trace_formats_pass_on_all_fuzz_seeds() {
    run_body_on_every_seed_file("trace_json_lines", forms::check_fuzzed_json_lines);
    run_body_on_every_seed_file("trace_older", forms::check_fuzzed_old_schema);
    run_body_on_every_seed_file("trace_pasted", forms::check_fuzzed_text_trace);
    run_body_on_every_seed_file("trace_salvage", forms::check_fuzzed_salvage);
    // Some targets also run on other targets' seeds, because these inputs are useful for them too.
    run_body_on_every_seed_file("et_reader", forms::check_fuzzed_salvage);
    run_body_on_every_seed_file("et_reader", forms::check_fuzzed_json_lines);
    run_body_on_every_seed_file("trace_older", forms::check_fuzzed_salvage);
}

#[test]
fn mutated_json_lines_pass_the_fuzz_check() {
    run_on_seed_mutations("trace_json_lines", forms::check_fuzzed_json_lines);
}

#[test]
fn mutated_old_schema_files_pass_the_fuzz_check() {
    run_on_seed_mutations("trace_older", forms::check_fuzzed_old_schema);
}

#[test]
fn mutated_pasted_texts_pass_the_fuzz_check() {
    run_on_seed_mutations("trace_pasted", forms::check_fuzzed_text_trace);
}

#[test]
fn mutated_damaged_files_pass_the_salvage_check() {
    run_on_seed_mutations("trace_salvage", forms::check_fuzzed_salvage);
    run_on_seed_mutations("trace_older", forms::check_fuzzed_salvage);
}
