//! White-box tests of the converters. They compare results with plain parses of other tools'
//! files.

mod captures;
mod harness;
