//! Errors in machine files and machine names. Each message states the location, the value found and the allowed values.

use crate::topology::chip_graph::ChipGraphError;
use chakram_base::config::{ConfigError, TomlEditError, did_you_mean};
use std::io;

/// An invalid machine file or machine name.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The file's text is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An edit names a path at which the file has no value.
    #[error(transparent)]
    Edit(#[from] TomlEditError),
    /// No preset has this name, and the name is not the path of a file.
    #[error(
        "no machine is called {name:?}{}\n  \
         try: a preset, which `chakram machine list` names, or a file, whose name ends in .toml or has a / in it",
        did_you_mean(*.closest)
    )]
    Unknown {
        /// Name that the user requested.
        name: String,
        /// The preset whose name is most similar, or `None` if no name is similar enough.
        closest: Option<&'static str>,
    },
    /// The name is `NAMExN`, but the preset `NAME` has a fixed size.
    #[error(
        "machine {name:?}: preset `{preset}` has a fixed size; write `{preset}`, or change a copy \
         from `chakram machine show {preset}`"
    )]
    Fixed {
        /// The requested name.
        name: String,
        /// The preset `NAME`.
        preset: &'static str,
    },
    /// Invalid dimensions in the notation of the ASTRA-sim 2.0 paper.
    #[error("machine {name:?}: found {found}, expected {expected}\n  try: one such as '{example}'")]
    Notation {
        /// The requested name.
        name: String,
        /// The invalid part of the name.
        found: String,
        /// Description of the expected form.
        expected: String,
        /// An example in this notation.
        example: &'static str,
    },
    /// An invalid graph of chips.
    #[error(transparent)]
    Graph(#[from] ChipGraphError),
    /// The file cannot be read.
    #[error(
        "cannot read machine file {file}\n  try: a preset, which `chakram machine list` names, or the path of a file"
    )]
    Read {
        /// The file's path as the user gave it.
        file: String,
        /// Error from the file system.
        source: io::Error,
    },
}
