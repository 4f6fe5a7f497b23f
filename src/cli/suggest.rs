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
            // To pass it as a value is not what one who misspells wants.
            error.remove(ContextKind::Suggested);
            if !near.is_empty() {
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

/// Words of other tools for options: those that users try, and the flag.
const SYNONYMS: [(&[&str], &str); 9] = [
    (
        &[
            "npus",
            "gpus",
            "npu-count",
            "nprocs",
            "np",
            "world-size",
            "nproc-per-node",
        ],
        "ranks",
    ),
    (
        &["tensor-model-parallel-size", "tensor-parallel-size"],
        "tensor",
    ),
    (
        &["pipeline-model-parallel-size", "pipeline-parallel-size"],
        "pipeline",
    ),
    (&["data-parallel-size", "replicas"], "data"),
    (&["bs", "gbs", "global-batch-size"], "batch"),
    (&["mbs", "microbatch"], "micro-batch"),
    (
        &["seq", "seqlen", "seq-length", "context-length"],
        "sequence",
    ),
    (&["json", "csv", "text", "dot"], "format"),
    (
        &["system", "hardware", "cluster", "gpu", "device"],
        "machine",
    ),
];

/// Returns the flags of `command` that `found` may mean: other words for them, flags that are one or two edits away, or
/// flags with a part of its name.
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
    let names: Vec<&str> = names.collect();
    let synonym = SYNONYMS.iter().find(|(words, _)| words.contains(&word));
    if let Some((_, flag)) = synonym.filter(|(_, flag)| names.contains(flag)) {
        return vec![format!("--{flag}")];
    }
    let edits = |name: &&str| damerau_levenshtein(word, name);
    let least = names.iter().map(edits).min().unwrap_or(usize::MAX);
    let near: Vec<_> = if least <= 2 && least * 2 <= word.len() {
        names.iter().filter(|name| edits(name) == least).collect()
    } else {
        let part = |name: &&&str| {
            name.len().min(word.len()) >= 4 && (name.contains(word) || word.contains(**name))
        };
        names.iter().filter(part).take(3).collect()
    };
    near.into_iter().map(|name| format!("--{name}")).collect()
}
