//! Execution traces: file formats, graphs of ranks, matching of operations across ranks, and
//! workloads.

pub mod files;
pub mod format;
pub mod graph;
pub mod matching;
pub mod workload;
