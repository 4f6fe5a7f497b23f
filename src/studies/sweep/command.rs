//! Builds the settings of a replay that repeats one point without its study.

use super::setting::{SettingKind, Settings, kind_of_setting, option_value_arguments};
use super::study::Study;
use chakram_jobs::ReplayOptionDefinition;

/// What a point's replay runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelOrTracesArgument {
    /// A model, by name or file.
    Model(String),
    /// Traces at this path.
    Trace(String),
}

/// The replay of one point, described without its study.
#[derive(Clone, Debug)]
pub struct PointCommand {
    /// The model or traces that the point replays.
    pub work: ModelOrTracesArgument,
    /// Settings of the replay: keys and their values.
    pub settings: Vec<(String, String)>,
    /// Replay options, each with its arguments on the command line.
    pub options: Vec<(&'static ReplayOptionDefinition, Vec<String>)>,
}

impl PointCommand {
    /// Returns the replay of `point`, or `None` if it is possible only with a study.
    pub fn new(study: &Study, point: &Settings) -> Option<Self> {
        let mut settings = Vec::new();
        let (mut work, mut options) = (None, Vec::new());
        for (key, value) in study.merge_with_base_settings(point) {
            let shown = value.to_string();
            match kind_of_setting(&key) {
                Ok(SettingKind::Plan(option)) => settings.push((option.key.to_owned(), shown)),
                Ok(SettingKind::Name) => match key.as_str() {
                    "model" => work = Some(ModelOrTracesArgument::Model(shown)),
                    "trace" => work = Some(ModelOrTracesArgument::Trace(shown)),
                    _ => settings.push((key, shown)),
                },
                Ok(SettingKind::Option(option)) => {
                    options.push((option, option_value_arguments(option, &value)))
                }
                // Powers and prices do not affect a replay, so omit them.
                Ok(SettingKind::Rate) => {}
                Ok(
                    SettingKind::Machine(_) | SettingKind::Model(_) | SettingKind::Accelerator(_),
                )
                | Err(_) => return None,
            }
        }
        Some(Self {
            work: work?,
            settings,
            options,
        })
    }
}
