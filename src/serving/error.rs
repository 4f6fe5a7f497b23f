//! Errors of scenarios and platforms. Every message states the place, the found value and the
//! allowed values.

use super::presets::PRESETS;
use chakram_base::config::{ConfigError, did_you_mean};
use chakram_engine::ReplayError;
use chakram_hardware::machine::MachineError;
use chakram_jobs::JobError;
use chakram_workloads::model::{ModelError, not_from_hubs};
use std::io;

/// An invalid scenario, platform or table, or a run that failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A file's text is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A model is invalid.
    #[error("{place}")]
    Model {
        /// File, line and key of the model's name.
        place: Box<ConfigError>,
        /// Reason.
        source: Box<ModelError>,
    },
    /// A language model is invalid.
    #[error(transparent)]
    ServedModel(Box<ModelError>),
    /// A trace is invalid.
    #[error("{place}")]
    Trace {
        /// File, line and key of the trace's name.
        place: Box<ConfigError>,
        /// Reason.
        source: Box<JobError>,
    },
    /// A machine that a platform names is invalid.
    #[error("{place}")]
    Machine {
        /// File, line and key of the machine's name.
        place: Box<ConfigError>,
        /// Reason.
        source: Box<MachineError>,
    },
    /// A machine that serves traces is invalid.
    #[error(transparent)]
    ServingMachine(#[from] MachineError),
    /// No platform has this name, and it is not the name of a file.
    #[error(
        "no platform is called {name:?}{}\n  \
         try: one of {}, a machine of `chakram machine list` for traces, or a file, whose name ends in .toml or has a / in it",
        did_you_mean(*.closest),
        list_names()
    )]
    Platform {
        /// The requested name.
        name: String,
        /// The preset with the most similar name, if one is similar enough.
        closest: Option<&'static str>,
    },
    /// A file cannot be read.
    #[error("cannot read {file}")]
    Read {
        /// The file's path as given.
        file: String,
        /// The underlying error.
        source: io::Error,
    },
    /// The name of a model was given instead of a scenario.
    #[error(
        "{name} is not a scenario, {}\n  try: a scenario, whose [[model]] tables have as `preset` one that `chakram \
         model list` names, or a file like those that `chakram model show` prints",
        suggest_model(closest.as_deref(), *.is_preset)
    )]
    ModelForScenario {
        /// The requested name.
        name: String,
        /// The preset itself, or the preset with the same family and size, or `None`.
        closest: Option<String>,
        /// True if the given name is a preset.
        is_preset: bool,
    },
    /// An invalid row of a table or of a file of arrivals.
    #[error("{file}:{line}: {why}")]
    Row {
        /// Path of the file.
        file: String,
        /// Line, from 1.
        line: u64,
        /// The found and the expected content.
        why: String,
    },
    /// A table of measured runs as a whole is invalid.
    #[error("{file}: {why}")]
    Table {
        /// Path of the table.
        file: String,
        /// The found and the expected content.
        why: String,
    },
    /// The platform or policy cannot serve the scenario.
    #[error("{0}")]
    Unfit(String),
    /// The event loop rejected the run or could not complete it.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// An observer of requests could not write its output.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl ServeError {
    /// Returns an error about a row that has `found` instead of `expected`.
    pub fn row(
        file: &str,
        line: u64,
        found: impl std::fmt::Display,
        expected: impl std::fmt::Display,
    ) -> Self {
        Self::Row {
            file: file.to_owned(),
            line,
            why: format!("found {found}, expected {expected}"),
        }
    }
}

/// Returns the platforms' names, separated by commas.
fn list_names() -> String {
    let names: Vec<_> = PRESETS.iter().map(|preset| preset.name).collect();
    names.join(", ")
}

/// Describes a model whose name was given instead of a scenario.
fn suggest_model(closest: Option<&str>, is_preset: bool) -> String {
    match is_preset {
        true => "but the preset of a model".to_owned(),
        false => not_from_hubs(closest),
    }
}
