//! Tests that options on pages occur in the help of some command.

use super::{pages_of_right_commands, text};
use std::collections::BTreeSet;
use std::process::Command;

/// Commands whose help texts together list every option.
const COMMANDS: [&str; 54] = [
    "",
    "convert",
    "convert auto",
    "convert goal",
    "convert msccl",
    "convert xplane",
    "convert pytorch",
    "convert simai",
    "convert text",
    "convert trace",
    "validate",
    "inspect",
    "replay",
    "diff",
    "generate",
    "generate collective",
    "generate p2p",
    "generate chain",
    "generate memory",
    "generate data-parallel",
    "slice",
    "scale",
    "anonymise",
    "audit",
    "archive create",
    "archive add",
    "archive list",
    "archive show",
    "archive extract",
    "archive verify",
    "archive merge",
    "archive gc",
    "archive baseline",
    "archive check",
    "machine list",
    "machine show",
    "machine check",
    "machine new",
    "machine import",
    "model list",
    "model show",
    "astra-sim",
    "score",
    "calibrate",
    "serve",
    "platform import",
    "sweep",
    "sweep merge",
    "topology show",
    "topology tori",
    "topology random",
    "loopnest",
    "schedule",
    "completions",
];

/// Options of cargo, torchrun, capture.py and the scripts of benches.
const OTHERS: [&str; 17] = [
    "cases",
    "shards",
    "array",
    "cpus-per-task",
    "release",
    "path",
    "test",
    "bench",
    "ignored",
    "nocapture",
    "profile",
    "workspace",
    "nproc-per-node",
    "out",
    "check",
    "version",
    "help",
];

#[test]
fn every_option_is_one() {
    let mut known: BTreeSet<String> = OTHERS.map(str::to_owned).into();
    for command in COMMANDS {
        let mut program = Command::new(env!("CARGO_BIN_EXE_chakram"));
        let output = program
            .args(command.split_whitespace())
            .arg("--help")
            .output();
        let output = output.expect("the program was built");
        assert!(output.status.success(), "chakram {command} --help");
        known.extend(options(&String::from_utf8_lossy(&output.stdout)));
    }
    for page in pages_of_right_commands() {
        for option in options(&text(&page)) {
            assert!(
                known.contains(&option),
                "{}: --{option} is unknown",
                page.display()
            );
        }
    }
}

/// Returns the words of a text that follow `--`.
fn options(text: &str) -> Vec<String> {
    let starts = text.split("--").skip(1);
    let word = |rest: &str| -> String {
        let letters = rest.chars();
        letters
            .take_while(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '-')
            .collect()
    };
    let words = starts
        .map(word)
        .map(|word| word.trim_end_matches('-').to_owned());
    words
        .filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase()))
        .collect()
}
