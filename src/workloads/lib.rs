//! Workloads that need no capture: models, and the work of ranks that train or run them under a
//! plan.

pub mod generate;
pub mod model;
