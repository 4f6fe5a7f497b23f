//! White-box tests of the converters, which compare results with plain parses of other tools' files.

mod captures;
mod harness;
