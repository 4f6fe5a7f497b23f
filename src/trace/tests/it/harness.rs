//! Runs the fuzz targets that read traces on every seed input. The fuzz targets include the files of this module.

mod coerce;
pub mod et_reader;
mod forms;
pub mod oracle;

use testkit::seeds::{run_on_every_seed, run_on_seed_mutations};

#[test]
fn seeds_of_the_trace_reader_hold() {
    run_on_every_seed("et_reader", et_reader::check_fuzzed_et_file);
}

#[test]
fn seeds_of_other_forms_hold() {
    run_on_every_seed("trace_json_lines", forms::check_fuzzed_json_lines);
    run_on_every_seed("trace_older", forms::check_fuzzed_old_schema);
    run_on_every_seed("trace_pasted", forms::check_fuzzed_text_trace);
    run_on_every_seed("trace_salvage", forms::check_fuzzed_salvage);
    // Some targets also run on other targets' seeds, because these inputs are useful for them too.
    run_on_every_seed("et_reader", forms::check_fuzzed_salvage);
    run_on_every_seed("et_reader", forms::check_fuzzed_json_lines);
    run_on_every_seed("trace_older", forms::check_fuzzed_salvage);
}

#[test]
fn mutated_lines_hold() {
    run_on_seed_mutations("trace_json_lines", forms::check_fuzzed_json_lines);
}

#[test]
fn mutated_old_files_hold() {
    run_on_seed_mutations("trace_older", forms::check_fuzzed_old_schema);
}

#[test]
fn mutated_pastes_hold() {
    run_on_seed_mutations("trace_pasted", forms::check_fuzzed_text_trace);
}

#[test]
fn mutated_damages_hold() {
    run_on_seed_mutations("trace_salvage", forms::check_fuzzed_salvage);
    run_on_seed_mutations("trace_older", forms::check_fuzzed_salvage);
}
