//! The command line: parses arguments, runs a command, prints the result, and converts errors to
//! exit codes.
//!
//! The exit codes are 0 (done), 1 (deadlock or failure), 2 (invalid input, invalid usage or failed output)
//! and 3 (a threshold was exceeded, or a leak was found). Exit code 0 means that every node of every rank
//! completed.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "docs of arguments are help on terminals, where brackets are brackets"
)]

use chakram_base::units::Bytes;
use chakram_base::{bounds, setting};
use chakram_jobs::JobLoadOrWriteError;
use chakram_trace::format::error::TraceErrorKind;
use chakram_trace::format::{TraceError, escape_control_characters_in_lines};
use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::CompleteEnv;
use recognition::ReadableInputs;
use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

pub mod anonymise;
pub mod archive;
pub mod astra_sim;
pub mod audit;
pub mod calibrate;
pub mod compare;
mod completion;
pub mod compute;
pub mod convert;
pub mod custom_algorithm;
pub mod diff;
pub mod edit;
pub mod embed;
mod flags;
pub mod generate;
mod given;
mod help;
pub mod inspect;
mod launches;
pub mod load;
pub mod loopnest;
pub mod machine;
pub mod model;
pub mod output;
pub mod platform;
mod progress;
mod recognition;
pub mod replay;
pub mod scale;
pub mod schedule;
pub mod score;
pub mod serve;
mod signals;
pub mod slice;
mod suggest;
pub mod sweep;
pub mod terminal;
pub mod topology;
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
  chakram replay job --machine dgx-h100 --machine mi300x --compute roofline
  chakram generate llama3-8b --tensor 8 --batch 16 --machine dgx-h100
  chakram inspect job --critical-path
  chakram archive add corpus.etz job --set gpu=h100
  chakram machine list

`chakram COMMAND --help` shows all options of a command, and `-h` shows the common ones."
)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
    #[command(flatten)]
    bounds: LimitAndVerbosityArgs,
}

/// Help heading for the options of every command.
const GENERAL: &str = "General options";

/// Limits on a command's resources, and the amount of printed text.
#[derive(Debug, Args)]
struct LimitAndVerbosityArgs {
    /// Fail instead of using more memory; by default three quarters of the memory of the machine or container
    #[arg(long, global = true, hide_short_help = true, help_heading = GENERAL, value_name = "SIZE")]
    max_memory: Option<Bytes>,
    /// Reject a compressed input that unpacks to more than 16 MiB and to more than this many times its size
    #[arg(long, global = true, hide_short_help = true, help_heading = GENERAL, value_name = "N", default_value_t = bounds::RATIO)]
    max_ratio: u64,
    /// Print only errors: no progress and no notes
    #[arg(short, long, global = true, hide_short_help = true, help_heading = GENERAL, conflicts_with = "verbose")]
    quiet: bool,
    /// Print the inputs, the simulated parts, and the time spent on both
    #[arg(short, long, global = true, hide_short_help = true, help_heading = GENERAL)]
    verbose: bool,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    Convert(LazilyBuiltArgs<convert::ConvertArgs>),
    Validate(LazilyBuiltArgs<validate::ValidateArgs>),
    Inspect(LazilyBuiltArgs<inspect::InspectArgs>),
    Replay(LazilyBuiltArgs<replay::ReplayArgs>),
    Diff(LazilyBuiltArgs<diff::DiffArgs>),
    Generate(LazilyBuiltArgs<generate::GenerateArgs>),
    Slice(LazilyBuiltArgs<slice::SliceArgs>),
    Scale(LazilyBuiltArgs<scale::ScaleArgs>),
    Edit(LazilyBuiltArgs<edit::EditArgs>),
    Anonymise(LazilyBuiltArgs<anonymise::AnonymiseArgs>),
    Audit(LazilyBuiltArgs<audit::LeakAuditArgs>),
    Archive(LazilyBuiltArgs<archive::ArchiveArgs>),
    Machine(LazilyBuiltArgs<machine::MachineArgs>),
    Model(LazilyBuiltArgs<model::ModelArgs>),
    Topology(LazilyBuiltArgs<topology::TopologyArgs>),
    Loopnest(LazilyBuiltArgs<loopnest::LoopnestArgs>),
    Schedule(LazilyBuiltArgs<schedule::MultiChipScheduleArgs>),
    Score(LazilyBuiltArgs<score::ScoreArgs>),
    Serve(LazilyBuiltArgs<serve::ServeArgs>),
    Platform(LazilyBuiltArgs<platform::PlatformArgs>),
    Calibrate(LazilyBuiltArgs<calibrate::CalibrateArgs>),
    Sweep(LazilyBuiltArgs<sweep::SweepArgs>),
    AstraSim(LazilyBuiltArgs<astra_sim::AstraSimArgs>),
    /// Print a shell's completion script for presets, files and options
    #[command(
        after_help = "Example:\n  chakram completions bash > ~/.local/share/bash-completion/completions/chakram"
    )]
    Completions {
        /// Shell to generate completions for
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a folder
    #[command(after_help = "Example:\n  chakram man ~/.local/share/man/man1")]
    Man {
        /// Folder for the pages chakram.1, chakram-replay.1, …
        folder: PathBuf,
    },
}

/// Builds the arguments of a command only when it is used. Building the arguments of all commands would take as long as
/// running a short command.
#[derive(Debug)]
struct LazilyBuiltArgs<A>(A);

/// True if the arguments of all commands are built at once, for help, completion and the manual.
static WHOLE: AtomicBool = AtomicBool::new(false);

impl<A: Args> Args for LazilyBuiltArgs<A> {
    fn augment_args(command: Command) -> Command {
        if WHOLE.load(Ordering::Relaxed) {
            A::augment_args(command)
        } else {
            command.defer(A::augment_args)
        }
    }

    fn augment_args_for_update(command: Command) -> Command {
        A::augment_args_for_update(command)
    }
}

impl<A: FromArgMatches> FromArgMatches for LazilyBuiltArgs<A> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        A::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

/// Returns all commands, with all their arguments.
fn build_whole_command() -> Command {
    WHOLE.store(true, Ordering::Relaxed);
    Cli::command()
}

/// Returns all commands, with their shell completers.
fn build_command_with_completers() -> Command {
    completion::add_completers(build_whole_command())
}

fn parse_command_line(arguments: Vec<OsString>) -> Result<Cli, clap::Error> {
    // Parse without completers, because only shells that ask for completions need them.
    let mut command = match help::requested_help_length(&arguments) {
        Some(length) => {
            help::replace_help_of_command_and_subcommands(build_whole_command(), length)
        }
        None => Cli::command(),
    };
    let matches = command.try_get_matches_from_mut(&arguments);
    let matches = matches.map_err(|error| suggest::add_suggestions(error, &command, &arguments))?;
    // Do not drop the command. Dropping its thousands of parts would take as long as parsing a short command line, and
    // the program ends soon anyway.
    std::mem::forget(command);
    Cli::from_arg_matches(&matches)
}

/// Returns the parsed command line or an error, and the words of the rewritten command line.
fn rewrite_and_parse_arguments(
    arguments: Vec<OsString>,
) -> (Result<Cli, clap::Error>, Vec<OsString>) {
    // Rewrite the arguments before clap parses them, because ASTRA-sim accepts some arguments that clap rejects.
    let arguments = astra_sim::rewrite_arguments(arguments);
    let words = arguments.kept.clone();
    let parsed = parse_command_line(arguments.kept).map(|mut cli| {
        if let CliCommand::AstraSim(LazilyBuiltArgs(args)) = &mut cli.command {
            (args.ignored, args.original) = (arguments.ignored, arguments.original);
        }
        cli
    });
    (parsed, words)
}

/// Runs the program and returns its exit code.
pub fn main() -> ExitCode {
    run_with_arguments(env::args_os().collect())
}

/// Runs the program with `arguments` and returns its exit code. The first argument is the program's
/// name.
pub fn run_with_arguments(arguments: Vec<OsString>) -> ExitCode {
    // If a shell has set the completion variable, the program only completes words.
    let folder = env::current_dir().ok();
    let completed = CompleteEnv::with_factory(build_command_with_completers)
        .try_complete(arguments.iter().cloned(), folder.as_deref());
    match completed {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => error.exit(),
    }
    // Install the signal handlers first: a signal may arrive at any time, and temporary files must then be removed.
    signals::install_handlers();
    progress::record_program_start();
    setting::register_setting_names_for_messages(flags::write_flag_name_of_setting);
    let (parsed, words) = rewrite_and_parse_arguments(arguments);
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // Print help here, because clap's own exit ignores failures to print.
            return match error.print().and_then(|()| io::stdout().flush()) {
                Ok(()) => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)),
                Err(failure) if failure.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
                Err(failure) => {
                    print_error_with_causes(&TraceError::from_io(
                        "standard output",
                        "write",
                        failure,
                    ));
                    ExitCode::from(2)
                }
            };
        }
    };
    bounds::set_process_limits(cli.bounds.max_memory, cli.bounds.max_ratio);
    terminal::set_verbosity(cli.bounds.quiet, cli.bounds.verbose);
    let mut out = terminal::EscapingWriter::standard_output();
    let result = dispatch_command(&cli.command, &mut out);
    let result = result.and_then(|code| {
        // Flush the output here, because nobody would notice a failure on drop.
        out.flush()?;
        Ok(code)
    });
    match result {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            match recognition::explain_input_error(
                &*error,
                &words,
                input_kinds_read_by_command(&cli.command),
            ) {
                Some(explained) => print_error(&explained),
                None => print_error_with_causes(&*error),
            }
            ExitCode::from(exit_code(&*error))
        }
    }
}

/// Runs `command`, and writes its output to `out`.
fn dispatch_command(command: &CliCommand, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    match command {
        CliCommand::Convert(LazilyBuiltArgs(args)) => convert::run(args, out),
        CliCommand::Validate(LazilyBuiltArgs(args)) => validate::run(args, out),
        CliCommand::Inspect(LazilyBuiltArgs(args)) => inspect::run(args, out),
        CliCommand::Replay(LazilyBuiltArgs(args)) => replay::run(args, out),
        CliCommand::Diff(LazilyBuiltArgs(args)) => diff::run(args, out),
        CliCommand::Generate(LazilyBuiltArgs(args)) => generate::run(args, out),
        CliCommand::Slice(LazilyBuiltArgs(args)) => slice::run(args, out),
        CliCommand::Scale(LazilyBuiltArgs(args)) => scale::run(args, out),
        CliCommand::Edit(LazilyBuiltArgs(args)) => edit::run(args, out),
        CliCommand::Anonymise(LazilyBuiltArgs(args)) => anonymise::run(args, out),
        CliCommand::Audit(LazilyBuiltArgs(args)) => {
            audit::audit_traces_and_print_findings(args, out)
        }
        CliCommand::Archive(LazilyBuiltArgs(args)) => archive::run(args, out),
        CliCommand::Machine(LazilyBuiltArgs(args)) => machine::run_machine_subcommand(args, out),
        CliCommand::Model(LazilyBuiltArgs(args)) => model::print_model_list_or_model(args, out),
        CliCommand::Topology(LazilyBuiltArgs(args)) => topology::run(args, out),
        CliCommand::Loopnest(LazilyBuiltArgs(args)) => {
            loopnest::search_and_print_best_mapping(args, out)
        }
        CliCommand::Schedule(LazilyBuiltArgs(args)) => {
            schedule::schedule_on_topologies_and_print(args, out)
        }
        CliCommand::Score(LazilyBuiltArgs(args)) => score::score_runs_and_report(args, out),
        CliCommand::Serve(LazilyBuiltArgs(args)) => {
            serve::serve_scenario_and_print_result(args, out)
        }
        CliCommand::Platform(LazilyBuiltArgs(args)) => {
            platform::list_show_or_import_platforms(args, out)
        }
        CliCommand::Calibrate(LazilyBuiltArgs(args)) => {
            calibrate::calibrate_and_write_machine_file(args, out)
        }
        CliCommand::Sweep(LazilyBuiltArgs(args)) => sweep::run(args, out),
        CliCommand::AstraSim(LazilyBuiltArgs(args)) => astra_sim::run(args, out),
        CliCommand::Completions { shell } => completion::print_script(*shell, out),
        CliCommand::Man { folder } => completion::write_manual(folder, out),
    }
}

/// Returns the kinds of inputs that a command reads.
fn input_kinds_read_by_command(command: &CliCommand) -> ReadableInputs {
    match command {
        CliCommand::Convert(LazilyBuiltArgs(args)) => match args.named_source() {
            Some(source) => ReadableInputs::Source(source),
            None => ReadableInputs::AnySource,
        },
        CliCommand::AstraSim(_) => ReadableInputs::AstraSim,
        CliCommand::Generate(_) | CliCommand::Model(_) | CliCommand::Serve(_) => {
            ReadableInputs::Models
        }
        CliCommand::Machine(LazilyBuiltArgs(args)) if args.has_astra_sim_inputs() => {
            ReadableInputs::AstraSim
        }
        _ => ReadableInputs::Own,
    }
}

/// Returns true if the error means that the reader closed the output pipe, which is no failure: a reader such as `head`
/// may stop early.
fn is_closed_pipe(error: &(dyn Error + 'static)) -> bool {
    let kind = |error: &(dyn Error + 'static)| {
        let json = error.downcast_ref::<serde_json::Error>();
        let io = error.downcast_ref::<io::Error>().map(io::Error::kind);
        let io = io.or_else(|| match error.downcast_ref()? {
            JobLoadOrWriteError::Io(source) => Some(source.kind()),
            _ => None,
        });
        io.or_else(|| match error.downcast_ref::<TraceError>()?.fault() {
            TraceErrorKind::Io { source, .. } => Some(source.kind()),
            _ => None,
        })
        .or_else(|| json?.io_error_kind())
    };
    kind(error) == Some(io::ErrorKind::BrokenPipe) || error.source().is_some_and(is_closed_pipe)
}

/// Returns 1 for a replay that deadlocked or never ended, and 2 for all other errors.
fn exit_code(error: &(dyn Error + 'static)) -> u8 {
    use chakram_engine::ReplayError;
    let replay = match error.downcast_ref::<compare::FailedReplays>() {
        Some(failed) => failed.first_failure(),
        None => error.downcast_ref::<ReplayError>(),
    };
    match replay {
        Some(ReplayError::Stuck(_) | ReplayError::TooLong) => 1,
        _ => 2,
    }
}

/// Parses an integer of at least 1.
fn parse_number(text: &str) -> Result<NonZeroUsize, String> {
    text.parse()
        .map_err(|_| "expected a whole number, 1 or more".to_owned())
}

fn print_error_with_causes(error: &(dyn Error + 'static)) {
    print_error(&error_text_with_causes_and_hint(error));
}

/// Returns the text of an error: its message, its causes and a suggested next step.
fn error_text_with_causes_and_hint(error: &(dyn Error + 'static)) -> String {
    let own = error.to_string();
    let (mut last, mut text) = (own.clone(), own.clone());
    let mut cause = error.source();
    while let Some(inner) = cause {
        // A failed write and the error that wraps it may have the same text, so print the text only once.
        let words = inner.to_string();
        if words != last {
            text += &format!("\n  because: {words}");
        }
        last = words;
        cause = inner.source();
    }
    // Move the suggestion after the causes.
    if let Some((head, rest)) = own.split_once("\n  try: ") {
        text = format!("{head}{}\n  try: {rest}", &text[own.len()..]);
    } else if let Some(hint) =
        suggest_next_step_for_error(error).filter(|_| !text.contains("try: "))
    {
        text += &format!("\n  try: {hint}");
    }
    text
}

/// Returns a suggestion for an error whose message has none.
fn suggest_next_step_for_error(error: &(dyn Error + 'static)) -> Option<String> {
    let of_job = match error.downcast_ref() {
        Some(JobLoadOrWriteError::Trace(error)) => Some(error),
        _ => None,
    };
    let trace = of_job.or_else(|| error.downcast_ref::<TraceError>());
    let io = match trace.map(TraceError::fault) {
        Some(TraceErrorKind::Malformed { .. }) => {
            let hint =
                "write or copy the file again; `chakram validate` shows which part is intact";
            return Some(hint.to_owned());
        }
        Some(TraceErrorKind::Io { source, .. }) => Some(source),
        _ => error.downcast_ref::<io::Error>(),
    };
    let Some(io) = io else {
        return suggest_next_step_for_error(error.source()?);
    };
    let is_missing = io.kind() == io::ErrorKind::NotFound;
    let folder = env::current_dir().ok().filter(|_| is_missing)?;
    let name = folder.file_name()?.to_string_lossy().into_owned();
    Some(format!(
        "an existing path; names without a folder are relative to the current folder, {name}"
    ))
}

fn print_error(text: &str) {
    let style = if io::stderr().is_terminal() {
        anstyle::AnsiColor::Red.on_default().bold()
    } else {
        anstyle::Style::new()
    };
    // If writing to standard error fails, the failure cannot be reported anywhere.
    let _ = writeln!(
        anstream::stderr(),
        "{style}error{style:#}: {}",
        escape_control_characters_in_lines(text)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
