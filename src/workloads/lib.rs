//! Workloads without a capture: networks of layers, and what ranks do to train or run them under a plan.

pub mod generate;
pub mod model;
