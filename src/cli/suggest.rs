//! Suggestions for unknown arguments and commands, where the parser has none.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};
use std::ffi::OsString;
use strsim::damerau_levenshtein;

/// Returns `error` with what `arguments` may have meant.
pub fn explained(mut error: Error, command: &Command, arguments: &[OsString]) -> Error {
    let within = innermost(command, arguments);
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let found = error.get(ContextKind::InvalidArg);
            let near = match found {
                Some(ContextValue::String(found)) => near(found, within),
                _ => Vec::new(),
            };
            if !near.is_empty() {
                // To pass it as a value is not what one who misspells wants.
                error.remove(ContextKind::Suggested);
                error.remove(ContextKind::Usage);
                error.insert(ContextKind::SuggestedArg, ContextValue::Strings(near));
            }
        }
        ErrorKind::InvalidSubcommand if error.get(ContextKind::SuggestedSubcommand).is_none() => {
            let names: Vec<_> = within.get_subcommands().map(Command::get_name).collect();
            let list = format!("the commands are {}", names.join(", "));
            let list = ContextValue::StyledStrs(vec![StyledStr::from(list)]);
            error.insert(ContextKind::Suggested, list);
        }
        _ => {}
    }
    error
}

/// Returns the command that `arguments` lead to.
fn innermost<'c>(command: &'c Command, arguments: &[OsString]) -> &'c Command {
    let mut within = command;
    for word in arguments.iter().skip(1) {
        match word.to_str().and_then(|word| within.find_subcommand(word)) {
            Some(sub) => within = sub,
            None if word.to_str().is_some_and(|word| word.starts_with('-')) => {}
            None => break,
        }
    }
    within
}

/// Returns the flags of `command` that are one or two edits from `found`.
fn near(found: &str, command: &Command) -> Vec<String> {
    let word = found
        .trim_start_matches('-')
        .split('=')
        .next()
        .unwrap_or_default();
    let options = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let names = options.flat_map(|arg| {
        let aliases = arg.get_visible_aliases().unwrap_or_default();
        arg.get_long().into_iter().chain(aliases)
    });
    let edits = names.map(|name| (damerau_levenshtein(word, name), name));
    let mut all: Vec<_> = edits.collect();
    let least = all
        .iter()
        .map(|(edits, _)| *edits)
        .min()
        .unwrap_or(usize::MAX);
    if least > 2 || least * 2 > word.len() {
        return Vec::new();
    }
    all.retain(|(edits, _)| *edits == least);
    all.into_iter()
        .map(|(_, name)| format!("--{name}"))
        .collect()
}
