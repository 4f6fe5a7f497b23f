//! Basis of all other crates of chakram: quantities, typed indices, terms that traces and hardware share, memory
//! limits, and configuration files.

pub mod bounds;
pub mod collective_kind;
pub mod config;
pub mod dtype;
pub mod ids;
pub mod interrupt;
pub mod kernel_shape;
pub mod parallel;
pub mod prediction_scores;
pub mod random;
pub mod setting;
pub mod shared_memory;
pub mod statistics;
pub mod units;
