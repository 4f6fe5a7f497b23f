//! White-box tests of comparisons, which use internals of the crate.

mod diff;
mod harness;
