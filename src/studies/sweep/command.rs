//! The settings that replay one point by itself.

use super::setting::{SettingKind, Settings, is_replay_option, kind};
use super::study::Study;

/// What one point replays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PointWork {
    /// The model of this name or file.
    Model(String),
    /// The traces at this path.
    Trace(String),
}

/// A replay of one point without its study.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointCommand {
    /// What is replayed.
    pub work: PointWork,
    /// Its settings: keys and values.
    pub settings: Vec<(String, String)>,
}

impl PointCommand {
    /// Returns the replay of `point`, `None` if only the study can say all of it.
    pub fn new(study: &Study, point: &Settings) -> Option<Self> {
        let mut settings = Vec::new();
        let mut work = None;
        for (key, value) in study.whole(point) {
            let value = value.to_string();
            match kind(&key) {
                Ok(SettingKind::Plan(option)) => settings.push((option.key.to_owned(), value)),
                Ok(SettingKind::Plain) => match key.as_str() {
                    "model" => work = Some(PointWork::Model(value)),
                    "trace" => work = Some(PointWork::Trace(value)),
                    "machine" | "tokens" => settings.push((key, value)),
                    option if is_replay_option(option) => settings.push((key, value)),
                    // Powers and prices do not change what is replayed.
                    _ => {}
                },
                Ok(
                    SettingKind::Machine(_) | SettingKind::Model(_) | SettingKind::Accelerator(_),
                )
                | Err(_) => return None,
            }
        }
        Some(Self {
            work: work?,
            settings,
        })
    }
}
