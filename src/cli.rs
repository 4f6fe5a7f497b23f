//! The command line: parse, dispatch, print, and turn errors into exit codes.
//!
//! Exit codes: 0 done, 1 stuck, 2 bad input or usage, or output that cannot be written, 3 a threshold exceeded or a
//! leak found. 0 means that every node of every rank completed.

use crate::bounds;
use crate::job::JobError;
use crate::trace::TraceError;
use crate::trace::error::TraceFault;
use crate::units::Bytes;
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::env;
use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

pub mod anonymise;
pub mod astra_sim;
pub mod audit;
pub mod compare;
pub mod compute;
pub mod convert;
pub mod custom_algorithm;
pub mod diff;
pub mod generate;
pub mod inspect;
pub mod load;
pub mod machine;
pub mod model;
pub mod output;
pub mod replay;
pub mod scale;
pub mod score;
mod signals;
pub mod slice;
pub mod terminal;
pub mod traces;
pub mod validate;

/// Replay machine-learning execution traces on hardware you do not have
#[derive(Debug, Parser)]
#[command(
    name = "chakram",
    version,
    after_help = "\
Examples:
  chakram convert pytorch capture/ -o job
  chakram validate job
  chakram inspect job --critical-path
  chakram convert trace job.0.et -o job.0.jsonl
  chakram replay traces/data-parallel-8
  chakram replay job.0.et --machine dgx-h100x4 --absent mirror
  chakram replay job --machine dgx-h100 --machine mi300x --compute roofline
  chakram replay job --machine dgx-h100 --custom all-reduce=mine
  chakram diff old/job new/job --fail-on structure
  chakram generate data-parallel --ranks 64 --machine dgx-h100x8
  chakram slice job --annotation 'ProfilerStep#3' -o step3
  chakram scale job --grid dp=2 --to dp=64 -o dp64/job
  chakram anonymise job --random-key -o shared/job
  chakram machine list
  chakram model show llama3-8b"
)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
    #[command(flatten)]
    bounds: LimitArgs,
}

/// Bounds on what inputs may take, of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Bounds")]
struct LimitArgs {
    /// Stop with exit code 2 before more memory than this is taken; three quarters of what the machine, or the
    /// container, has by default
    #[arg(long, global = true, value_name = "SIZE")]
    max_memory: Option<Bytes>,
    /// Refuse compressed inputs that unpack to more than this many times their size; every one may unpack to 16 MiB
    #[arg(long, global = true, value_name = "N", default_value_t = bounds::RATIO)]
    max_ratio: u64,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    Convert(convert::ConvertArgs),
    Validate(validate::ValidateArgs),
    Inspect(inspect::InspectArgs),
    Replay(replay::ReplayArgs),
    Diff(diff::DiffArgs),
    Generate(generate::GenerateArgs),
    Slice(slice::SliceArgs),
    Scale(scale::ScaleArgs),
    Anonymise(anonymise::AnonymiseArgs),
    Audit(audit::AuditArgs),
    Machine(machine::MachineArgs),
    Model(model::ModelArgs),
    Score(score::ScoreArgs),
    AstraSim(astra_sim::AstraSimArgs),
    /// Print the completion script of a shell
    #[command(
        after_help = "Example:\n  chakram completions bash > ~/.local/share/bash-completion/completions/chakram"
    )]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// Runs the program and returns its exit code.
pub fn main() -> ExitCode {
    // First of all: a signal may come at any time, and temporary files have to go.
    signals::watch();
    // Before parsing, because the original accepts what our parser refuses.
    let arguments = astra_sim::arguments(env::args_os());
    let mut cli = Cli::parse_from(arguments.kept);
    if let CliCommand::AstraSim(args) = &mut cli.command {
        (args.ignored, args.original) = (arguments.ignored, arguments.original);
    }
    bounds::set(cli.bounds.max_memory, cli.bounds.max_ratio);
    let mut out = terminal::EscapingWriter::standard_output();
    let result = match &cli.command {
        CliCommand::Convert(args) => convert::run(args, &mut out),
        CliCommand::Validate(args) => validate::run(args, &mut out),
        CliCommand::Inspect(args) => inspect::run(args, &mut out),
        CliCommand::Replay(args) => replay::run(args, &mut out),
        CliCommand::Diff(args) => diff::run(args, &mut out),
        CliCommand::Generate(args) => generate::run(args, &mut out),
        CliCommand::Slice(args) => slice::run(args, &mut out),
        CliCommand::Scale(args) => scale::run(args, &mut out),
        CliCommand::Anonymise(args) => anonymise::run(args, &mut out),
        CliCommand::Audit(args) => audit::run(args, &mut out),
        CliCommand::Machine(args) => machine::run(args, &mut out),
        CliCommand::Model(args) => model::run(args, &mut out),
        CliCommand::Score(args) => score::run(args, &mut out),
        CliCommand::AstraSim(args) => astra_sim::run(args, &mut out),
        CliCommand::Completions { shell } => {
            // The `print` macros panic where writing fails.
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "chakram", &mut script);
            let written = out.write_all(&script);
            written.map(|()| ExitCode::SUCCESS).map_err(Into::into)
        }
    };
    let result = result.and_then(|code| {
        // Buffered output fails here at the latest, and not silently when it is dropped.
        out.flush()?;
        Ok(code)
    });
    match result {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            print_chain(&*error);
            ExitCode::from(exit_code(&*error))
        }
    }
}

/// Returns whether an error is a closed pipe: a reader such as `head` that has seen enough is no failure.
fn is_closed_pipe(error: &(dyn Error + 'static)) -> bool {
    let kind = |error: &(dyn Error + 'static)| {
        let json = error.downcast_ref::<serde_json::Error>();
        let io = error.downcast_ref::<io::Error>().map(io::Error::kind);
        let io = io.or_else(|| match error.downcast_ref()? {
            JobError::Io(source) => Some(source.kind()),
            _ => None,
        });
        io.or_else(|| match error.downcast_ref::<TraceError>()?.fault() {
            TraceFault::Io { source, .. } => Some(source.kind()),
            _ => None,
        })
        .or_else(|| json?.io_error_kind())
    };
    kind(error) == Some(io::ErrorKind::BrokenPipe) || error.source().is_some_and(is_closed_pipe)
}

/// Returns 1 for a replay that deadlocked, 2 for bad input and for output that could not be written.
fn exit_code(error: &(dyn Error + 'static)) -> u8 {
    use crate::engine::ReplayError;
    let replay = match error.downcast_ref::<compare::FailedReplays>() {
        Some(failed) => failed.first(),
        None => error.downcast_ref::<ReplayError>(),
    };
    match replay {
        Some(ReplayError::Stuck(_) | ReplayError::TooLong) => 1,
        _ => 2,
    }
}

fn print_chain(error: &(dyn Error + 'static)) {
    let style = if io::stderr().is_terminal() {
        anstyle::AnsiColor::Red.on_default().bold()
    } else {
        anstyle::Style::new()
    };
    let mut last = error.to_string();
    let mut text = format!("{style}error{style:#}: {}", terminal::plain(&last));
    let mut cause = error.source();
    while let Some(inner) = cause {
        // Errors of writing a file and of the command that asked for it may have the same text.
        let words = inner.to_string();
        if words != last {
            text += &format!("\n  because: {}", terminal::plain(&words));
        }
        last = words;
        cause = inner.source();
    }
    // A failure to write to standard error cannot be reported anywhere.
    let _ = writeln!(anstream::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
