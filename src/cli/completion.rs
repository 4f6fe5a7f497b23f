//! Completion of names in shells, and the pages of the manual.

use super::command_line;
use chakram_hardware::machine;
use chakram_serving as serve;
use chakram_trace::files::OutputSet;
use chakram_workloads::model;
use clap::Command;
use clap_complete::Shell;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::Shells;
use std::error::Error;
use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Variable that tells the program which shell asks.
const VARIABLE: &str = "COMPLETE";

/// Returns `command` with completers of machines and models: presets and files.
pub fn completed(command: Command) -> Command {
    let names: Vec<_> = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned())
        .collect();
    let mut command = command.mut_args(|arg| {
        let machine = arg.get_id() == "machine";
        match (machine, arg.get_id().as_str()) {
            (true, _) => arg.add(ArgValueCompleter::new(machines)),
            (_, "platform") => arg.add(ArgValueCompleter::new(platforms)),
            (_, "model") => arg.add(ArgValueCompleter::new(models)),
            _ => arg,
        }
    });
    for name in names {
        command = command.mut_subcommand(&name, |sub| {
            let sub = completed(sub);
            match &name[..] {
                "machine" => of_names(sub, machines),
                "model" => of_names(sub, models),
                "platform" => of_names(sub, platforms),
                _ => sub,
            }
        });
    }
    command
}

/// Completes the names that commands such as `machine show` take.
fn of_names(command: Command, all: fn(&OsStr) -> Vec<CompletionCandidate>) -> Command {
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

fn machines(begun: &OsStr) -> Vec<CompletionCandidate> {
    presets_and_files(begun, machine::PRESETS.iter().map(|preset| preset.name))
}

fn models(begun: &OsStr) -> Vec<CompletionCandidate> {
    presets_and_files(begun, model::PRESETS.iter().map(|preset| preset.name))
}

fn platforms(begun: &OsStr) -> Vec<CompletionCandidate> {
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

/// Prints the script with which a shell asks the program to complete lines.
pub fn script(shell: Shell, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
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

/// Writes a page of the manual for each command into `folder`.
pub fn manual(folder: &Path, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let mut outputs = OutputSet::default();
    let mut command = command_line();
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
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        let mut file = outputs.create(&folder.join(format!("{name}.1")))?;
        file.write_all(&page)?;
        outputs.finish(file)?;
        count += 1;
    }
    outputs.commit()?;
    writeln!(out, "wrote {count} manual pages to {}", folder.display())?;
    Ok(ExitCode::SUCCESS)
}
