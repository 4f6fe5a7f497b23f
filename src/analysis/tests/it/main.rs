//! White-box tests of what is said of traces.

mod diff;
mod harness;
