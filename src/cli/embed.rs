//! Commands that run inside another program: their output is returned, errors are data, and nothing is printed.
//!
//! A command line ends with its command, so it may end the process where memory runs out or a signal comes. Here the caller
//! goes on: it runs a command as the task of a [`StopToken`](chakram_base::interrupt::StopToken), and an interruption or a
//! memory limit is an error like any other.

use super::{
    Cli, CliCommand, DeferredArgs, LimitArgs, dispatch, parse_line, recognition, terminal,
};
use chakram_base::bounds;
use chakram_base::interrupt::keep_process;
use chakram_base::setting::{self, SettingKey};
use chakram_base::units::Bytes;
use chakram_report::NodeTable;
use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::process::ExitCode;
use std::sync::{Arc, Once, OnceLock};

mod description;
mod failure;

pub use description::describe;
pub use failure::{CommandFailure, FailureKind, PlainNode, WaitingPlainNode};

use crate::flags::write_flag;
use crate::output::NodeSink;

/// Result of a command that was carried out.
#[derive(Debug, Default)]
pub struct CommandOutput {
    /// Text or document, as on standard output.
    pub text: Vec<u8>,
    /// Notes and warnings, as on standard error.
    pub notes: Vec<String>,
    /// Whether a threshold was exceeded, or a leak found: exit code 3.
    pub is_exceeded: bool,
    /// Whether it found something that failed: exit code 1.
    pub is_failed: bool,
    /// The row of each node, if it was asked for and the command replayed.
    pub nodes: Option<NodeTable>,
}

/// Prepares the process, once: it survives tasks that need too much memory, and messages call options by the names of
/// arguments, `max_memory` for `--max-memory`.
pub fn prepare() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        keep_process();
        setting::name_as(write_argument);
        bounds::set(None, bounds::RATIO);
    });
}

/// Writes the name of a setting as an argument; within a quoted command line, as a flag.
fn write_argument(setting: SettingKey, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if f.alternate() {
        return write_flag(setting, f);
    }
    match setting {
        SettingKey::Delays => f.write_str("`delay`"),
        SettingKey::Dependencies => f.write_str("`deps`"),
        SettingKey::MissingRanks => f.write_str("`absent`"),
        SettingKey::Output => f.write_str("`output`"),
        _ => write!(f, "`{}`", setting.key()),
    }
}

/// Limits of the process as they were, which return when this is dropped.
struct LimitsBefore {
    memory: Option<Bytes>,
    ratio: u64,
}

impl LimitsBefore {
    /// Sets the limits that a command was given.
    fn set(given: &LimitArgs) -> Self {
        Self {
            memory: given.max_memory.map(bounds::set_memory),
            ratio: bounds::set_ratio(given.max_ratio),
        }
    }
}

impl Drop for LimitsBefore {
    fn drop(&mut self) {
        if let Some(memory) = self.memory {
            bounds::set_memory(memory);
        }
        bounds::set_ratio(self.ratio);
    }
}

/// Carries out the command of `arguments`, the first of which is the name of the program; with `wants_nodes`, a replay also
/// returns a row for each node. Limits among the arguments hold for the process while the command runs.
///
/// # Errors
///
/// Fails as the command does, with what the message says as fields.
pub fn execute(
    arguments: Vec<OsString>,
    wants_nodes: bool,
) -> Result<CommandOutput, Box<CommandFailure>> {
    prepare();
    let (parsed, words) = parse_line(arguments);
    let mut cli = match parsed {
        Ok(cli) => cli,
        // Help and versions are output.
        Err(error) if !error.use_stderr() => {
            return Ok(CommandOutput {
                text: error.to_string().into_bytes(),
                ..CommandOutput::default()
            });
        }
        Err(error) => return Err(Box::new(CommandFailure::of_usage(&error))),
    };
    let table = Arc::new(OnceLock::new());
    if wants_nodes {
        cli.keep_nodes(&NodeSink::into(Arc::clone(&table)));
    }
    let _before = LimitsBefore::set(&cli.bounds);
    let mut text = Vec::new();
    let (result, notes) = terminal::captured(|| dispatch(&cli.command, &mut text));
    let code = result.map_err(|error| Box::new(failure(&*error, &words, &cli.command)))?;
    drop(cli);
    Ok(CommandOutput {
        text,
        notes,
        is_exceeded: code == ExitCode::from(3),
        is_failed: code == ExitCode::from(1),
        nodes: Arc::into_inner(table).and_then(OnceLock::into_inner),
    })
}

impl Cli {
    /// Hands the table of nodes of the command's replay to `sink`.
    fn keep_nodes(&mut self, sink: &NodeSink) {
        match &mut self.command {
            CliCommand::Replay(DeferredArgs(args)) => args.run.nodes = sink.clone(),
            CliCommand::Generate(DeferredArgs(args)) => args.run_mut().nodes = sink.clone(),
            _ => {}
        }
    }
}

fn failure(
    error: &(dyn Error + 'static),
    words: &[OsString],
    command: &CliCommand,
) -> CommandFailure {
    let mut failure = CommandFailure::of(error);
    let readable = super::readable_inputs(command);
    if let Some(explained) = recognition::explained(error, words, readable) {
        failure.say(&explained);
    }
    failure
}
