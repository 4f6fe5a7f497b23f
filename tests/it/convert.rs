//! Compares conversions of PyTorch captures with the known truth.
//!
//! - `rig`: captures of generated jobs, their conversion, and their traces as other readers see
//!   them
//! - `plain_count`: busy time of the device in a Kineto file, by a plain parse
//! - `schedule`: start and end of the nodes of a job's traces, in a few lines that share no code
//!   with the engine
//!
//! Every other module tests one theme.

mod archives;
mod blocking_copies;
mod by_order;
mod clocks;
mod degenerate;
mod described;
mod faithful;
mod host_alone;
mod inferred;
mod kineto_alone;
mod mixed;
mod piped;
mod plain_count;
mod profiler;
mod program;
mod random_device;
mod refused;
pub mod rig;
mod same;
mod schedule;
mod script;
mod strangers;
mod truth;
mod unequal;
mod unknown;
mod what_if;
mod widths;
