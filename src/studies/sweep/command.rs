//! The command that replays one point.

use super::setting::{SettingKind, Settings, kind};
use super::study::Study;

/// The command for `point`: `chakram generate` or `chakram replay` where its options say all of it, and otherwise
/// `explain`, which asks the sweep.
pub fn command(study: &Study, point: &Settings, explain: &str) -> String {
    let settings = study.whole(point);
    let mut words = Vec::new();
    let mut work = String::new();
    for (key, value) in &settings {
        let value = value.to_string();
        match kind(key) {
            Ok(SettingKind::Plan(option)) => {
                let flag = option.key.replace('_', "-");
                words.push(format!("--{flag} {}", word(&value)));
            }
            Ok(SettingKind::Plain) => match key.as_str() {
                "model" => work = format!("generate {}", word(&value)),
                "trace" => work = format!("replay {}", word(&value)),
                "network" => words.push(format!("--network {}", word(&value.replace('_', "-")))),
                "machine" | "tokens" | "compute" | "efficiency" | "host" | "launch"
                | "collectives" => {
                    words.push(format!("--{key} {}", word(&value)));
                }
                // Powers and prices do not change what is replayed.
                _ => {}
            },
            Ok(SettingKind::Machine(_) | SettingKind::Model(_) | SettingKind::Accelerator(_))
            | Err(_) => {
                return explain.to_owned();
            }
        }
    }
    format!("chakram {work} {}", words.join(" "))
}

/// A word of a shell.
fn word(text: &str) -> String {
    let plain = |c: char| {
        c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ',' | ':' | '@' | '=')
    };
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}
