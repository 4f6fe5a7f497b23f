//! Errors about models. Every message states the place, the found value and the allowed values.

use chakram_base::config::{ConfigError, did_you_mean};
use std::io;

/// A rejected model file or model name.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file's text is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A count of the model reaches 2^64 - 1.
    #[error(
        "{file}: the model's {what} do not fit in 64 bits; found sizes whose product is 2^64 - 1 \
         or more, try smaller sizes"
    )]
    TooLarge {
        /// Name of the text, usually its path.
        file: String,
        /// The count, such as `parameters`.
        what: &'static str,
    },
    /// No preset has this name, and it is not the name of a file.
    #[error(
        "no model is called {name:?}{}\n  \
         try: a preset, which `chakram model list` names, or a file, whose name ends in .toml or has a / in it",
        did_you_mean(*.closest)
    )]
    Unknown {
        /// The requested name.
        name: String,
        /// The preset with the most similar name, or `None`.
        closest: Option<&'static str>,
    },
    /// The name has the form of a hub's model names, but models are not read from hubs.
    #[error(
        "no file is called {name}, {}\n  \
         try: a preset, which `chakram model list` names, or a file like those that `chakram model show` prints",
        not_from_hubs(*closest)
    )]
    OnHub {
        /// The requested name.
        name: String,
        /// The preset of the same family and size, or `None`.
        closest: Option<&'static str>,
    },
    /// The file cannot be read.
    #[error("cannot read model file {file}")]
    Read {
        /// The file's path as given.
        file: String,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Explains that models are not read from hubs, and names the nearest preset.
pub fn not_from_hubs(closest: Option<&str>) -> String {
    let nearest = closest.map(|preset| format!("; the nearest preset is `{preset}`"));
    format!(
        "and models are not read from hubs{}",
        nearest.unwrap_or_default()
    )
}
