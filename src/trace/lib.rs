//! Execution traces: what files say in whatever form, graphs of ranks, which nodes of different ranks are one operation,
//! and workloads.

pub mod files;
pub mod format;
pub mod graph;
pub mod matching;
pub mod workload;
