//! Replays machine-learning execution traces on hardware you do not have.
//!
//! One graph of compute, memory and communication nodes per NPU goes in, and a description of a
//! machine; out comes when everything happened, and why. In reading order:
//!
//! - [`units`], [`ids`]: quantities, and names for things;
//! - [`bounds`]: how much memory the process may take;
//! - [`config`]: files that people write for this program;
//! - [`trace`]: execution traces as files say them;
//! - [`graph`]: the compact form of one rank's trace;
//! - [`matching`]: which nodes of different ranks are one operation;
//! - [`validate`]: what is wrong with traces, before anything is replayed;
//! - [`group`], [`workload`]: who takes part, and all of it together;
//! - [`topology`], [`network`], [`memory`], [`compute`], [`collective`]: what things cost;
//! - [`machine`]: the simulated system;
//! - [`engine`]: the one event loop, with its ordering contract;
//! - [`report`]: what came out;
//! - [`inspect`]: what is in traces, without a replay;
//! - [`model`]: networks of layers, and what they count;
//! - [`generate`]: workloads without a capture;
//! - [`converters`]: what other tools capture;
//! - [`edit`]: traces that become other traces;
//! - [`diff`]: what differs between two jobs;
//! - [`astra_sim`]: the inputs of ASTRA-sim;
//! - [`files`]: what is written, complete or not at all;
//! - [`cli`]: the command line.
//!
//! The library is silent: it returns data, and only `cli` and the binary print.

pub mod astra_sim;
pub mod bounds;
pub mod cli;
pub mod collective;
pub mod compute;
pub mod config;
#[path = "../converters/mod.rs"]
pub mod converters;
pub mod diff;
pub mod edit;
pub mod engine;
pub mod files;
pub mod generate;
pub mod graph;
pub mod group;
pub mod ids;
pub mod inspect;
pub mod machine;
pub mod matching;
pub mod memory;
pub mod model;
pub mod network;
pub mod report;
pub mod topology;
pub mod trace;
pub mod units;
pub mod validate;
pub mod workload;
