//! Tests that options on pages occur in the help of some command.

use super::{list_book_pages_with_valid_commands, read_page};
use std::collections::BTreeSet;
use std::process::Command;

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
fn every_option_in_the_pages_belongs_to_a_command() {
    let mut known: BTreeSet<String> = OTHERS.map(str::to_owned).into();
    let mut commands = vec![String::new()];
    let mut count = 0;
    while let Some(command) = commands.pop() {
        let help = help_of(&command);
        commands.extend(list_subcommands(&help).map(|name| format!("{command} {name}")));
        known.extend(list_option_names(&help));
        count += 1;
    }
    // If the layout of help texts changed, the walk would end at the first command.
    assert!(count > 50, "{count} commands");
    for page in list_book_pages_with_valid_commands() {
        for option in list_option_names(&read_page(&page)) {
            assert!(
                known.contains(&option),
                "{}: --{option} is unknown",
                page.display()
            );
        }
    }
}

fn help_of(command: &str) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_chakram"));
    let output = program
        .args(command.split_whitespace())
        .arg("--help")
        .output();
    let output = output.expect("the program was built");
    assert!(output.status.success(), "chakram{command} --help");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the commands that a help text lists below `Commands:`. Longer indentation continues a description.
fn list_subcommands(help: &str) -> impl Iterator<Item = &str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    lines
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
}

/// Returns the words of a text that follow `--`.
fn list_option_names(text: &str) -> Vec<String> {
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
