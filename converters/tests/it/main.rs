//! White-box tests of converters, against plain parses of what other tools wrote.

mod captures;
mod harness;
