//! Suggests arguments and commands for unknown words, where clap suggests nothing.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};
use std::ffi::OsString;
use strsim::damerau_levenshtein;

/// Adds suggestions for the unknown word to `error`.
pub fn add_suggestions(mut error: Error, command: &Command, arguments: &[OsString]) -> Error {
    let within = innermost_command(command, arguments);
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let found = error.get(ContextKind::InvalidArg);
            let near = match found {
                Some(ContextValue::String(found)) => similar_flags(found, within),
                _ => Vec::new(),
            };
            // Remove clap's suggestion to pass the word as a value, which does not help if the word is misspelled.
            error.remove(ContextKind::Suggested);
            if !near.is_empty() {
                error.remove(ContextKind::Usage);
                error.insert(ContextKind::SuggestedArg, ContextValue::Strings(near));
            }
        }
        ErrorKind::InvalidSubcommand => {
            // `COMMANDS` lists only top-level commands.
            let known = match within.get_name() == command.get_name() {
                true => find_commands_for_synonym(&error),
                false => None,
            };
            if known.is_some() {
                error.remove(ContextKind::SuggestedSubcommand);
            }
            if error.get(ContextKind::SuggestedSubcommand).is_none() {
                let names: Vec<_> = within.get_subcommands().map(Command::get_name).collect();
                let list = || format!("the commands are {}", names.join(", "));
                let meant = known.map_or_else(list, str::to_owned);
                let meant = ContextValue::StyledStrs(vec![StyledStr::from(meant)]);
                error.insert(ContextKind::Suggested, meant);
            }
        }
        _ => {}
    }
    error
}

/// Returns the innermost subcommand that `arguments` name.
fn innermost_command<'c>(command: &'c Command, arguments: &[OsString]) -> &'c Command {
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

/// Commands of other tools that users may try, with the chakram commands that they probably mean.
const COMMANDS: [(&[&str], &str); 8] = [
    (
        &["list", "ls", "presets"],
        "`chakram machine list`, `chakram model list`, `chakram convert --list` and `chakram archive list ARCHIVE` say what there is",
    ),
    (
        &["compare", "cmp", "vs"],
        "`chakram replay TRACES --machine A --machine B` compares machines, `chakram diff A B` traces",
    ),
    (
        &["run", "simulate", "sim", "play", "exec"],
        "`chakram replay TRACES --machine MACHINE` replays traces, `chakram generate MODEL --machine MACHINE` a model of its own",
    ),
    (
        &["import", "load", "read"],
        "`chakram convert FILES -o job` makes traces of what other tools wrote",
    ),
    (
        &[
            "show", "view", "info", "print", "cat", "stat", "stats", "summary", "open",
        ],
        "`chakram inspect TRACES` shows traces, `chakram machine show NAME` a machine, `chakram model show NAME` a model",
    ),
    (
        &[
            "predict",
            "estimate",
            "train",
            "training",
            "synth",
            "synthesize",
        ],
        "`chakram generate MODEL --machine MACHINE` predicts a step",
    ),
    (
        &[
            "optimize", "optimise", "search", "tune", "study", "explore", "plan",
        ],
        "`chakram sweep STUDY.toml` finds the best plan or machine",
    ),
    (
        &["analyze", "analyse", "profile", "report", "html"],
        "`chakram replay TRACES --machine MACHINE --html report.html` writes a page, `chakram inspect TRACES` tables",
    ),
];

/// Returns the commands that the unknown command in `error` probably means.
fn find_commands_for_synonym(error: &Error) -> Option<&'static str> {
    let Some(ContextValue::String(found)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let meant = COMMANDS
        .iter()
        .find(|(words, _)| words.contains(&found.as_str()));
    meant.map(|(_, meant)| *meant)
}

/// Options of other tools that users may try, with the chakram flags that they probably mean. If a
/// word implies a value, the flag includes it.
const SYNONYMS: [(&[&str], &str); 10] = [
    (&["fsdp", "fsdp2", "zero3", "zero-3"], "zero 3"),
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

/// Returns the flags of `command` that `found` may mean: a synonym; otherwise flags within two edits; otherwise flags
/// that share a part of the name.
fn similar_flags(found: &str, command: &Command) -> Vec<String> {
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
    let has = |flag: &str| {
        flag.split(' ')
            .next()
            .is_some_and(|name| names.contains(&name))
    };
    if let Some((_, flag)) = synonym.filter(|(_, flag)| has(flag)) {
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
