//! White-box tests of the converters, against plain parses of other tools' files.

mod captures;
mod harness;
