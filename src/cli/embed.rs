//! Runs commands inside another program, and returns their output and errors as data instead of printing them.
//!
//! A process that runs only one command may end if memory runs out or a signal arrives. A program that embeds chakram
//! must continue. This module therefore runs each command as the task of a
//! [`StopToken`](chakram_base::interrupt::StopToken), and converts interruptions and exceeded memory limits to ordinary
//! errors.

use super::{
    Cli, CliCommand, LazilyBuiltArgs, LimitAndVerbosityArgs, dispatch_command, recognition,
    rewrite_and_parse_arguments, terminal,
};
use chakram_base::bounds;
use chakram_base::interrupt::keep_process_alive_at_memory_limit;
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

pub use description::describe_commands;
pub use failure::{
    CommandFailureWithMessageParts, DeadlockedNodeIdentity, FailureKind, NodeIdentity,
};

use crate::flags::write_flag_name_of_setting;
use crate::output::CallerNodeTableSlot;

/// Output of a command that ran.
#[derive(Debug, Default)]
pub struct CommandOutput {
    /// Text or document that the command line would print to standard output.
    pub text: Vec<u8>,
    /// Notes and warnings that the command line would print to standard error.
    pub notes: Vec<String>,
    /// True if a threshold was exceeded or a leak was found (exit code 3).
    pub is_exceeded: bool,
    /// True if the command ran but its result is a failure, such as a deadlock (exit code 1).
    pub is_failed: bool,
    /// Table with one row per node, if the caller requested it and the command replayed a job.
    pub nodes: Option<NodeTable>,
}

/// Prepares the process, once. It then survives tasks that need too much memory, and messages name options as arguments
/// (`max_memory` instead of `--max-memory`).
pub fn set_up_memory_survival_and_setting_names() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        keep_process_alive_at_memory_limit();
        setting::register_setting_names_for_messages(write_setting_name_as_argument);
        bounds::set_process_limits(None, bounds::RATIO);
    });
}

/// Writes the name of a setting as an argument, or as a flag inside a quoted command line.
fn write_setting_name_as_argument(setting: SettingKey, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if f.alternate() {
        return write_flag_name_of_setting(setting, f);
    }
    match setting {
        SettingKey::Delays => f.write_str("`delay`"),
        SettingKey::Dependencies => f.write_str("`deps`"),
        SettingKey::MissingRanks => f.write_str("`absent`"),
        SettingKey::Output => f.write_str("`output`"),
        _ => write!(f, "`{}`", setting.display_key_in_files()),
    }
}

/// Limits that the process had before a command; dropping this value restores them.
struct LimitsRestoreGuard {
    memory: Option<Bytes>,
    ratio: u64,
}

impl LimitsRestoreGuard {
    /// Sets the limits from the command line, and remembers the old limits.
    fn apply_given_limits(given: &LimitAndVerbosityArgs) -> Self {
        Self {
            memory: given.max_memory.map(bounds::set_memory_limit),
            ratio: bounds::set_expansion_limit(given.max_ratio),
        }
    }
}

impl Drop for LimitsRestoreGuard {
    fn drop(&mut self) {
        if let Some(memory) = self.memory {
            bounds::set_memory_limit(memory);
        }
        bounds::set_expansion_limit(self.ratio);
    }
}

/// Runs the command line `arguments`. The first word is the program's name. If `wants_nodes` is
/// true, a replay also returns one row per node. Limits in the arguments apply to the whole process
/// while the command runs.
///
/// # Errors
///
/// Fails if the command ends with an error. The failure's fields state the same facts as its message.
pub fn execute_command(
    arguments: Vec<OsString>,
    wants_nodes: bool,
) -> Result<CommandOutput, Box<CommandFailureWithMessageParts>> {
    set_up_memory_survival_and_setting_names();
    let (parsed, words) = rewrite_and_parse_arguments(arguments);
    let mut cli = match parsed {
        Ok(cli) => cli,
        // The help and version texts are output, not failures.
        Err(error) if !error.use_stderr() => {
            return Ok(CommandOutput {
                text: error.to_string().into_bytes(),
                ..CommandOutput::default()
            });
        }
        Err(error) => {
            return Err(Box::new(CommandFailureWithMessageParts::from_usage_error(
                &error,
            )));
        }
    };
    let table = Arc::new(OnceLock::new());
    if wants_nodes {
        cli.keep_nodes(&CallerNodeTableSlot::store_table_in(Arc::clone(&table)));
    }
    let _before = LimitsRestoreGuard::apply_given_limits(&cli.bounds);
    let mut text = Vec::new();
    let (result, notes) = terminal::capture_stderr(|| dispatch_command(&cli.command, &mut text));
    let code = result.map_err(|error| Box::new(describe_failure(&*error, &words, &cli.command)))?;
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
    /// Makes the command's replay pass its table of nodes to `sink`.
    fn keep_nodes(&mut self, sink: &CallerNodeTableSlot) {
        match &mut self.command {
            CliCommand::Replay(LazilyBuiltArgs(args)) => args.run.nodes = sink.clone(),
            CliCommand::Generate(LazilyBuiltArgs(args)) => {
                args.replay_args_mut().nodes = sink.clone()
            }
            _ => {}
        }
    }
}

fn describe_failure(
    error: &(dyn Error + 'static),
    words: &[OsString],
    command: &CliCommand,
) -> CommandFailureWithMessageParts {
    let mut failure = CommandFailureWithMessageParts::from_error(error);
    let readable = super::input_kinds_read_by_command(command);
    if let Some(explained) = recognition::explain_input_error(error, words, readable) {
        failure.set_message_and_split_off_hint(&explained);
    }
    failure
}
