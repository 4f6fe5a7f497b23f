//! The input files and flags of ASTRA-sim 2's analytical networks, as they are: values in their units, under their
//! names, with a [`Note`] for everything that does not mean what one may think.
//!
//! One file per input: [`System`] (JSON), [`Network`] (YAML), [`Remote`] memory (JSON), [`Groups`] (JSON),
//! [`PerNode`] (YAML), and the logging configuration (TOML), which is checked and ignored. Each parser takes the
//! text, its name for errors, and whether unknown keys are notes. It returns the value with its notes, or an
//! [`InputError`] that names file, line and key. Any text ends in one of the two, in time and memory proportional to
//! its length.
//!
//! [`Inputs`] holds all of them for one run of the original, checked for consistency.
//!
//! Two units of bandwidth occur here: a GB is 2^30 bytes in the network file, and 10^9 everywhere else.
//!
//! Behaviour of ASTRA-sim that a sound model would not have is a [`Quirk`] with a name. A run has them all unless
//! some are corrected.

mod algorithm;
mod aware;
mod beyond;
mod check;
mod collectives;
pub mod custom;
mod document;
mod error;
mod groups_file;
mod inputs;
mod json;
mod lenient;
mod links;
pub mod logging;
mod machine;
mod memory;
mod memory_file;
mod network_file;
mod node_types;
mod per_node;
mod ports;
mod program;
mod quirks;
mod shared_bus;
mod statistics;
mod summary;
mod symmetry;
mod system;
mod tensors;
mod trace;
mod trains;
mod unaware;
mod yaml;

pub use algorithm::{Algorithm, Implementation};
pub use aware::Aware;
pub use beyond::Beyond;
pub use collectives::Collectives;
pub use error::{InputError, Note};
pub use groups_file::Groups;
pub use inputs::{Flags, Inputs, NetworkModel};
pub use links::Links;
pub use machine::machine;
pub use memory::{Memory, Ran};
pub use memory_file::{Remote, Sharing};
pub use network_file::{Dimension, Network};
pub use node_types::NodeTypes;
pub use per_node::PerNode;
pub use ports::Ported;
pub use program::Phase;
pub use quirks::{Quirk, Quirks};
pub use statistics::{Roofline, Work};
pub use system::{Implementations, LogGp, Optimization, PerKind, Scheduling, System};
pub use tensors::Tensors;
pub use trace::{Read, Reader, counts_as};
pub use trains::{Leg, Place, Trains, Way};
pub use unaware::Unaware;

#[cfg(test)]
mod tests;
