//! Generated workloads, which need no capture: models, and the work of ranks that train or run a
//! model under a plan.

pub mod generate;
pub mod model;
