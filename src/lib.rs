//! Replays machine-learning execution traces on hardware you do not have.
//!
//! One graph of compute, memory and communication nodes per NPU goes in, and a description of a machine; out comes when
//! everything happened, and why. A job comes from files, which are traces:
//!
//! ```
//! use chakram::{Job, Machine, engine::ReplayOptions};
//!
//! let job = Job::open(["traces/data-parallel-8"])?;
//! let report = job.replay(&Machine::load("dgx-h100")?, &ReplayOptions::default())?;
//! println!("{} ranks take {}", report.ranks, report.outcome.makespan);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! It may also be generated ([`Job::generate`]), or be what ASTRA-sim reads ([`AstraSimJob`]).
//!
//! - [`job`]: jobs from files, from patterns or from ASTRA-sim's inputs, and their replay;
//! - [`machine`], [`topology`]: the simulated system;
//! - [`engine`]: the one event loop, with its ordering contract, and how it can be asked to run;
//! - [`extend`]: networks, memories, algorithms and prices of one's own;
//! - [`report`]: what came out;
//! - [`generate`], [`model`]: workloads without a capture, and networks of layers that they train;
//! - [`score`]: predictions against measured runs;
//! - [`serve`]: requests over time, on processors that they share;
//! - [`astra_sim`]: the inputs of ASTRA-sim;
//! - [`trace`]: execution traces as files say them;
//! - [`validate`], [`inspect`]: what is wrong with traces, and what is in them;
//! - [`diff`], [`edit`]: what differs between traces, and traces that become other traces;
//! - [`units`], [`ids`]: quantities, and names for things.
//!
//! The library is silent: it returns data. `ARCHITECTURE.md` is the map of what is inside.

#![allow(
    rustdoc::private_intra_doc_links,
    reason = "docs of modules lead on to what is inside"
)]

mod archive;
pub mod astra_sim;
mod bounds;
mod cli;
mod collective;
mod collective_kind;
mod compute;
mod config;
#[path = "../converters/mod.rs"]
mod converters;
pub mod diff;
mod draw;
mod dtype;
pub mod edit;
pub mod engine;
pub mod extend;
mod files;
pub mod generate;
mod graph;
mod group;
pub mod ids;
pub mod inspect;
#[doc(hidden)]
pub mod internals;
pub mod job;
mod kernel_shape;
pub mod machine;
mod matching;
mod memory;
pub mod model;
mod network;
mod regression;
pub mod report;
mod schedule;
pub mod score;
pub mod serve;
mod sweep;
pub mod topology;
pub mod trace;
pub mod units;
pub mod validate;
mod workload;

pub use job::{AstraSimJob, Job};
pub use machine::Machine;
pub use report::Report;
