//! The crates as they are inside, for tests, benches and fuzz targets. It is no part of the interface: names here change
//! without notice.

#![allow(missing_docs, reason = "each stands for the module of its name")]

pub use chakram_analysis::{diff, edit, inspect, validate};
pub use chakram_archive as archive;
pub use chakram_astra_sim as astra_sim;
pub use chakram_base::{bounds, config, ids, units};
pub use chakram_converters as converters;
pub use chakram_engine as engine;
pub use chakram_hardware::{collective, compute, group, machine, memory, network, topology};
pub use chakram_jobs as job;
pub use chakram_report as report;
pub use chakram_trace::{files, format as trace, graph, workload};
pub use chakram_workloads::{generate, model};
