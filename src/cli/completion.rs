//! Completes names in shells, and writes manual pages.

use super::build_command_with_completers;
use super::help::{self, HelpParagraphCommandOrEntry};
use chakram_hardware::machine;
use chakram_serving as serve;
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_workloads::model;
use clap::Command;
use clap::builder::Resettable;
use clap_complete::Shell;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::Shells;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::error::Error;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// Environment variable with which a shell asks for completions; its value is the shell's name.
const VARIABLE: &str = "COMPLETE";

/// Returns `command` with completion for the names of machines and models, both presets and files.
pub fn add_completers(command: Command) -> Command {
    let names: Vec<_> = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned())
        .collect();
    let mut command = command.mut_args(|arg| {
        let machine = arg.get_id() == "machine";
        match (machine, arg.get_id().as_str()) {
            (true, _) => arg.add(ArgValueCompleter::new(complete_machines)),
            (_, "platform") => arg.add(ArgValueCompleter::new(complete_platforms)),
            (_, "model") => arg.add(ArgValueCompleter::new(complete_models)),
            _ => arg,
        }
    });
    for name in names {
        command = command.mut_subcommand(&name, |sub| {
            let sub = add_completers(sub);
            match &name[..] {
                "machine" => add_name_completer_to_subcommands(sub, complete_machines),
                "model" => add_name_completer_to_subcommands(sub, complete_models),
                "platform" => add_name_completer_to_subcommands(sub, complete_platforms),
                _ => sub,
            }
        });
    }
    command
}

/// Adds completion of names to the arguments of commands such as `machine show`.
fn add_name_completer_to_subcommands(
    command: Command,
    all: fn(&OsStr) -> Vec<CompletionCandidate>,
) -> Command {
    let names: Vec<_> = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned())
        .collect();
    names.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |sub| {
            sub.mut_args(|arg| match arg.get_id().as_str() {
                "name" | "files" => arg.add(ArgValueCompleter::new(all)),
                _ => arg,
            })
        })
    })
}

fn complete_machines(begun: &OsStr) -> Vec<CompletionCandidate> {
    presets_and_files(begun, machine::PRESETS.iter().map(|preset| preset.name))
}

fn complete_models(begun: &OsStr) -> Vec<CompletionCandidate> {
    presets_and_files(begun, model::PRESETS.iter().map(|preset| preset.name))
}

fn complete_platforms(begun: &OsStr) -> Vec<CompletionCandidate> {
    presets_and_files(begun, serve::PRESETS.iter().map(|preset| preset.name))
}

fn presets_and_files(
    begun: &OsStr,
    presets: impl Iterator<Item = &'static str>,
) -> Vec<CompletionCandidate> {
    let text = begun.to_str().unwrap_or_default();
    let presets = presets.filter(|name| name.starts_with(text));
    let mut all: Vec<_> = presets.map(CompletionCandidate::new).collect();
    all.extend(PathCompleter::any().complete(begun));
    all
}

/// Prints the shell script that enables completion.
pub fn print_script(shell: Shell, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let name = shell.to_string();
    let shells = Shells::builtins();
    let completer = shells
        .completer(&name)
        .ok_or_else(|| format!("no completion for {name}"))?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "chakram", "chakram", "chakram", &mut script)?;
    out.write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes one manual page per command into `folder`.
pub fn write_manual(folder: &Path, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let mut outputs = OutputsAndProtectedInputs::default();
    let mut command = build_command_with_completers();
    command.build();
    let mut stack = vec![command];
    let mut count = 0;
    while let Some(command) = stack.pop() {
        let name = command
            .get_display_name()
            .unwrap_or_else(|| command.get_name())
            .to_owned();
        stack.extend(
            command
                .get_subcommands()
                .filter(|sub| sub.get_name() != "help")
                .cloned(),
        );
        let page = manual_page(command)?;
        let mut file = outputs.create_file(&folder.join(format!("{name}.1")))?;
        file.write_all(&page)?;
        outputs.close_file_and_queue_for_commit(file)?;
        count += 1;
    }
    outputs.commit_all()?;
    writeln!(out, "wrote {count} manual pages to {}", folder.display())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the manual page of a command, with the same texts as `--help`.
fn manual_page(command: Command) -> io::Result<Vec<u8>> {
    // Change arguments and subcommands first, because the renderer omits options that `-h` hides, and lists `help`,
    // which has no page.
    let mut command = command.mut_args(|arg| {
        let text = help::argument_help_text_with_aliases(&arg);
        arg.hide_short_help(false).help(text)
    });
    if command.find_subcommand("help").is_some() {
        command = command.mut_subcommand("help", |help| help.hide(true));
    }
    let closing = command.get_after_help().map(ToString::to_string);
    // Write the closing text separately, because the renderer would join the lines of commands.
    let mut page = Vec::new();
    Man::new(command.after_help(Resettable::Reset)).render(&mut page)?;
    if let Some(closing) = closing {
        closing_section(&closing).to_writer(&mut page)?;
    }
    Ok(page)
}

/// Returns the section of the manual page that follows the options. Keeps the line breaks of
/// commands, and joins the lines of paragraphs.
fn closing_section(text: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["NOTES"]);
    for part in help::split_closing_text_into_blocks(text) {
        match part {
            HelpParagraphCommandOrEntry::Blank => roff.control("PP", []),
            HelpParagraphCommandOrEntry::Paragraph(text) => roff.text([roman(text)]),
            HelpParagraphCommandOrEntry::Command(text) => {
                roff.control("RS", ["2"]).control("nf", []);
                roff.text([roman(text)]);
                roff.control("fi", []).control("RE", [])
            }
            HelpParagraphCommandOrEntry::Entry(name, text) => {
                roff.control("TP", []);
                roff.text([bold(name)]).text([roman(text)])
            }
            HelpParagraphCommandOrEntry::MoreOfEntry(text) => {
                roff.control("br", []);
                roff.text([roman(text)])
            }
        };
    }
    roff
}
