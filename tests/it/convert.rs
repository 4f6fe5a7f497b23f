//! The converter of PyTorch's captures, held against the truth.
//!
//! - `rig`: captures of generated jobs, their conversion, and the traces as other readers see them
//! - `plain_count`: how long the device of a Kineto file worked, by a plain parse
//! - `schedule`: when the nodes of a job's traces start and end, by a few lines that share nothing
//!   with the engine
//!
//! The other modules are tests, one theme each.

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
