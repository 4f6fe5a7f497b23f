//! Errors of scenarios and platforms. Every message says where the error is, what was found, and what is allowed.

use super::presets::PRESETS;
use chakram_base::config::{ConfigError, did_you_mean};
use chakram_engine::ReplayError;
use chakram_hardware::machine::MachineError;
use chakram_jobs::JobLoadOrWriteError;
use chakram_workloads::model::{ModelError, explain_models_not_loaded_from_hubs};
use std::io;

/// An invalid scenario, platform or table, or a failed run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A file's content is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A model is invalid.
    #[error("{place}")]
    Model {
        /// File, line and key of the model's name.
        place: Box<ConfigError>,
        /// Why the model is invalid.
        source: Box<ModelError>,
    },
    /// A language model is invalid.
    #[error(transparent)]
    RequestedModel(Box<ModelError>),
    /// A trace is invalid.
    #[error("{place}")]
    Trace {
        /// File, line and key of the trace's name.
        place: Box<ConfigError>,
        /// Why the trace is invalid.
        source: Box<JobLoadOrWriteError>,
    },
    /// A machine that a platform names is invalid.
    #[error("{place}")]
    Machine {
        /// File, line and key of the machine's name.
        place: Box<ConfigError>,
        /// Why the machine is invalid.
        source: Box<MachineError>,
    },
    /// A machine that serves traces is invalid.
    #[error(transparent)]
    ServingMachine(#[from] MachineError),
    /// No platform and no file has this name.
    #[error(
        "no platform is called {name:?}{}\n  \
         try: one of {}, a machine of `chakram machine list` for traces, or a file, whose name ends in .toml or has a / in it",
        did_you_mean(*.closest),
        list_platform_names()
    )]
    Platform {
        /// The requested name.
        name: String,
        /// The preset with the most similar name, if any is similar enough.
        closest: Option<&'static str>,
    },
    /// A file cannot be read.
    #[error("cannot read {file}")]
    Read {
        /// Path of the file, as given.
        file: String,
        /// The underlying error.
        source: io::Error,
    },
    /// A model was named instead of a scenario.
    #[error(
        "{name} is not a scenario, {}\n  try: a scenario, whose [[model]] tables have as `preset` one that `chakram \
         model list` names, or a file like those that `chakram model show` prints",
        build_model_not_scenario_hint(closest.as_deref(), *.is_preset)
    )]
    ModelForScenario {
        /// The requested name.
        name: String,
        /// The named preset itself, or a preset of the same family and size; `None` if there is no
        /// such preset.
        closest: Option<String>,
        /// True if the given name is a preset.
        is_preset: bool,
    },
    /// A row of a table or of an arrival file is invalid.
    #[error("{file}:{line}: {why}")]
    Row {
        /// Path of the file.
        file: String,
        /// Line, counted from 1.
        line: u64,
        /// What was found and what was expected.
        why: String,
    },
    /// A table of measured runs is invalid as a whole.
    #[error("{file}: {why}")]
    Table {
        /// Path of the table.
        file: String,
        /// What was found and what was expected.
        why: String,
    },
    /// The platform or policy does not support the scenario.
    #[error("{0}")]
    Unfit(String),
    /// The event loop rejected the run or could not complete it.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// An observer of requests failed to write its output.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl ServeError {
    /// Builds the error for a row that contains `found` instead of `expected`.
    pub fn invalid_row(
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
fn list_platform_names() -> String {
    let names: Vec<_> = PRESETS.iter().map(|preset| preset.name).collect();
    names.join(", ")
}

/// Builds the hint for a model named in place of a scenario.
fn build_model_not_scenario_hint(closest: Option<&str>, is_preset: bool) -> String {
    match is_preset {
        true => "but the preset of a model".to_owned(),
        false => explain_models_not_loaded_from_hubs(closest),
    }
}
