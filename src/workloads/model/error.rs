//! Errors about models. Every message states the place of the error, the found value, and the allowed values.

use chakram_base::config::{ConfigError, did_you_mean};
use std::io;

/// Reason why a model file or a model name is rejected.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file's text is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A count of the model is too large, that is, at least 2^64 - 1.
    #[error(
        "{file}: the model's {what} do not fit in 64 bits; found sizes whose product is 2^64 - 1 \
         or more, try smaller sizes"
    )]
    TooLarge {
        /// Name of the text, which is usually its path.
        file: String,
        /// Name of the count, such as `parameters`, for the message.
        what: &'static str,
    },
    /// The caller's number of tokens per sample is impossible.
    #[error("{file}: {tokens} tokens per sample; expected a whole number from 1 to {most}")]
    TokenCount {
        /// Name of the text, which is usually its path.
        file: String,
        /// Number of tokens that the caller gave.
        tokens: u64,
        /// Largest possible number of tokens.
        most: u64,
    },
    /// No preset has this name, and it does not look like a file name.
    #[error(
        "no model is called {name:?}{}\n  \
         try: a preset, which `chakram model list` names, or a file, whose name ends in .toml or has a / in it",
        did_you_mean(*.closest)
    )]
    Unknown {
        /// Name that the user gave.
        name: String,
        /// The preset with the most similar name; `None` if no name is similar.
        closest: Option<&'static str>,
    },
    /// The name has the form of a model name on a hub, but models are not loaded from hubs.
    #[error(
        "no file is called {name}, {}\n  \
         try: a preset, which `chakram model list` names, or a file like those that `chakram model show` prints",
        explain_models_not_loaded_from_hubs(*closest)
    )]
    OnHub {
        /// Name that the user gave.
        name: String,
        /// The preset of the same family and size; `None` if there is none.
        closest: Option<&'static str>,
    },
    /// The file cannot be read.
    #[error("cannot read model file {file}")]
    Read {
        /// Path of the file, as the user gave it.
        file: String,
        /// The operating system's error.
        source: io::Error,
    },
}

/// Returns a note for error messages: models are not loaded from hubs, but the preset `closest` is similar.
pub fn explain_models_not_loaded_from_hubs(closest: Option<&str>) -> String {
    let nearest = closest.map(|preset| format!("; the nearest preset is `{preset}`"));
    format!(
        "and models are not read from hubs{}",
        nearest.unwrap_or_default()
    )
}
