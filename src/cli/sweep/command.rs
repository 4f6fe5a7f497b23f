//! The command that replays one point.

use crate::flags::flag_of_key;
use crate::terminal::shell_word;
use chakram_studies::sweep::{PointCommand, PointWork, Settings, Study};

/// Returns the command for `point`: `chakram generate` or `chakram replay` where its options say all of it, and
/// otherwise `explain`, which asks the sweep.
pub(super) fn command(study: &Study, point: &Settings, explain: &str) -> String {
    let Some(PointCommand { work, settings }) = PointCommand::new(study, point) else {
        return explain.to_owned();
    };
    let work = match work {
        PointWork::Model(model) => format!("generate {}", shell_word(&model)),
        PointWork::Trace(path) => format!("replay {}", shell_word(&path)),
    };
    let words = settings.into_iter().map(|(key, value)| {
        let value = match key.as_str() {
            "network" => value.replace('_', "-"),
            _ => value,
        };
        format!("{} {}", flag_of_key(&key), shell_word(&value))
    });
    let words: Vec<_> = words.collect();
    format!("chakram {work} {}", words.join(" "))
}
