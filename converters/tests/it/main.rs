//! White-box tests of the converters. The tests compare results with plain parses of other
//! tools' files.

mod captures;
mod harness;
