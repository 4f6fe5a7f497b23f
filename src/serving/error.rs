//! Errors of scenarios and platforms; every message says where, what was found and what is allowed.

use super::presets::PRESETS;
use chakram_base::config::{ConfigError, did_you_mean};
use chakram_engine::ReplayError;
use chakram_hardware::machine::MachineError;
use chakram_jobs::JobError;
use chakram_workloads::model::{ModelError, not_from_hubs};
use std::io;

/// A scenario, platform or table that was refused, or a run that could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A file's text was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A model was refused.
    #[error("{place}")]
    Model {
        /// File, line and key that name the model.
        place: Box<ConfigError>,
        /// Reason.
        source: Box<ModelError>,
    },
    /// A language model was refused.
    #[error(transparent)]
    ServedModel(Box<ModelError>),
    /// A trace was refused.
    #[error("{place}")]
    Trace {
        /// File, line and key that name the trace.
        place: Box<ConfigError>,
        /// Reason.
        source: Box<JobError>,
    },
    /// A machine that a platform names was refused.
    #[error("{place}")]
    Machine {
        /// File, line and key that name the machine.
        place: Box<ConfigError>,
        /// Reason.
        source: Box<MachineError>,
    },
    /// A machine that serves traces was refused.
    #[error(transparent)]
    ServingMachine(#[from] MachineError),
    /// No platform has this name, and it is not the name of a file.
    #[error(
        "no platform is called {name:?}{}\n  \
         try: one of {}, a machine of `chakram machine list` for traces, or a file, whose name ends in .toml or has a / in it",
        did_you_mean(*.closest),
        names()
    )]
    Platform {
        /// The requested name.
        name: String,
        /// The preset whose name is most alike, if one is.
        closest: Option<&'static str>,
    },
    /// A file cannot be read.
    #[error("cannot read {file}")]
    Read {
        /// Its path as given.
        file: String,
        /// The underlying error.
        source: io::Error,
    },
    /// The name of a model in place of a scenario.
    #[error(
        "{name} is no scenario, {}\n  \
         try: a scenario, whose [[model]] tables have as `preset` one that `chakram model list` names, or a file like those \
         that `chakram model show` prints",
        said_of_model(closest.as_deref(), *.is_preset)
    )]
    ModelForScenario {
        /// The requested name.
        name: String,
        /// The preset that it is, or the one of the same family and size, if one is.
        closest: Option<String>,
        /// Whether it is a preset itself.
        is_preset: bool,
    },
    /// A row of a table or of a file of arrivals is refused.
    #[error("{file}:{line}: {why}")]
    Row {
        /// Path of the file.
        file: String,
        /// Line, from 1.
        line: u64,
        /// Found and expected.
        why: String,
    },
    /// A scenario that this platform or policy cannot serve.
    #[error("{0}")]
    Unfit(String),
    /// The event loop refused or could not end.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// An observer of requests could not write.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl ServeError {
    /// A row that is `found` where `expected` should be.
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

/// The platforms' names, separated by commas.
fn names() -> String {
    let names: Vec<_> = PRESETS.iter().map(|preset| preset.name).collect();
    names.join(", ")
}

/// Returns what the name of a model, given in place of a scenario, is.
fn said_of_model(closest: Option<&str>, is_preset: bool) -> String {
    match is_preset {
        true => "but the preset of a model".to_owned(),
        false => not_from_hubs(closest),
    }
}
