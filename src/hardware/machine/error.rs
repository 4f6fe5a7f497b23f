//! Errors about machines; every message says where, what was found and what is allowed.

use crate::topology::chip_graph::ChipGraphError;
use chakram_base::config::{ConfigError, EditError, did_you_mean};
use std::io;

/// A machine file, or a machine's name, that was refused.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The file's text was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A value at a path of the file cannot be replaced.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// No preset has this name, and it is not the name of a file.
    #[error(
        "no machine is called {name:?}{}\n  \
         try: a preset, which `chakram machine list` names, or a file, whose name ends in .toml or has a / in it",
        did_you_mean(*.closest)
    )]
    Unknown {
        /// The requested name.
        name: String,
        /// The preset whose name is most alike, if one is.
        closest: Option<&'static str>,
    },
    /// `NAMExN` for a preset that comes in one size.
    #[error(
        "machine {name:?}: preset `{preset}` comes in one size; write `{preset}`, or change a copy \
         from `chakram machine show {preset}`"
    )]
    Fixed {
        /// The requested name.
        name: String,
        /// The preset it begins with.
        preset: &'static str,
    },
    /// Dimensions in the paper's notation that make no machine.
    #[error("machine {name:?}: found {found}, expected {expected}\n  try: one such as '{example}'")]
    Notation {
        /// The requested name.
        name: String,
        /// Value that was found.
        found: String,
        /// Value that was expected.
        expected: String,
        /// A machine in that notation.
        example: &'static str,
    },
    /// A graph of chips is refused.
    #[error(transparent)]
    Graph(#[from] ChipGraphError),
    /// The file cannot be read.
    #[error(
        "cannot read machine file {file}\n  try: a preset, which `chakram machine list` names, or the path of a file"
    )]
    Read {
        /// Its path as given.
        file: String,
        /// The underlying error.
        source: io::Error,
    },
}
