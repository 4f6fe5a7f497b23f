//! Runs the fuzz targets that read traces on every seed input. The fuzz targets include the files of this module.

mod coerce;
pub mod et_reader;
mod forms;
pub mod oracle;

use testkit::seeds::{every_mutation, every_seed};

#[test]
fn seeds_of_the_trace_reader_hold() {
    every_seed("et_reader", et_reader::run);
}

#[test]
fn seeds_of_other_forms_hold() {
    every_seed("trace_json_lines", forms::json_lines);
    every_seed("trace_older", forms::older);
    every_seed("trace_pasted", forms::pasted);
    every_seed("trace_salvage", forms::salvaged);
    // Some targets also run on the seeds of other targets, because those inputs are useful for them too.
    every_seed("et_reader", forms::salvaged);
    every_seed("et_reader", forms::json_lines);
    every_seed("trace_older", forms::salvaged);
}

#[test]
fn mutated_lines_hold() {
    every_mutation("trace_json_lines", forms::json_lines);
}

#[test]
fn mutated_old_files_hold() {
    every_mutation("trace_older", forms::older);
}

#[test]
fn mutated_pastes_hold() {
    every_mutation("trace_pasted", forms::pasted);
}

#[test]
fn mutated_damages_hold() {
    every_mutation("trace_salvage", forms::salvaged);
    every_mutation("trace_older", forms::salvaged);
}
