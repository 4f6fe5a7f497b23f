//! Builds the command that replays one point of a study.

use crate::flags::{flag_of_key, flag_of_setting};
use crate::terminal::quote_shell_word;
use chakram_jobs::ReplayOptionValueKind;
use chakram_studies::sweep::{ModelOrTracesArgument, PointCommand, Settings, Study};

/// Returns the `chakram generate` or `chakram replay` command that replays `point`. If their options cannot express the
/// point, returns `explain`, which is a `chakram sweep` command.
pub(super) fn equivalent_command(study: &Study, point: &Settings, explain: &str) -> String {
    let Some(PointCommand {
        work,
        settings,
        options,
    }) = PointCommand::new(study, point)
    else {
        return explain.to_owned();
    };
    let work = match work {
        ModelOrTracesArgument::Model(model) => format!("generate {}", quote_shell_word(&model)),
        ModelOrTracesArgument::Trace(path) => format!("replay {}", quote_shell_word(&path)),
    };
    let words = settings.into_iter();
    let words =
        words.map(|(key, value)| format!("{} {}", flag_of_key(&key), quote_shell_word(&value)));
    let mut words: Vec<_> = words.collect();
    for (option, values) in options {
        let flag = flag_of_setting(option.key);
        match option.syntax {
            ReplayOptionValueKind::Switch if values == ["true"] => words.push(flag),
            ReplayOptionValueKind::Switch => {}
            ReplayOptionValueKind::Choice(_) => {
                words.push(format!("{flag} {}", values.join(" ").replace('_', "-")));
            }
            _ => words.extend(
                values
                    .iter()
                    .map(|word| format!("{flag} {}", quote_shell_word(word))),
            ),
        }
    }
    format!("chakram {work} {}", words.join(" "))
}
