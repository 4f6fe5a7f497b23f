//! White-box tests of the analysis of traces.

mod diff;
mod harness;
