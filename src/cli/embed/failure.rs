//! Failures of commands as data, for programs that embed chakram.

use crate::compare::FailedReplays;
use crate::error_text_with_causes_and_hint;
use chakram_astra_sim::InputError;
use chakram_base::bounds::MemoryLimitError;
use chakram_base::config::ConfigError;
use chakram_base::interrupt::{self, StopOrMemoryInterruption};
use chakram_engine::{NodeRef, ReplayError, ReplayRefusal, Stuck};
use chakram_hardware::machine::MachineError;
use chakram_jobs::{JobLoadOrWriteError, ReplaySettingsError};
use chakram_serving::ServeError;
use chakram_studies::score::ScoreError;
use chakram_studies::sweep::{StudyError, SweepError};
use chakram_trace::format::error::TraceErrorKind;
use chakram_trace::format::file::parse_file_rank;
use chakram_trace::format::{TraceError, TraceErrorLocation};
use chakram_workloads::model::ModelError;
use clap::error::{ContextKind, ContextValue};
use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

/// Kind of failure, so that a caller can decide how to react.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureKind {
    /// An unknown argument, or an invalid value.
    Usage,
    /// An input that cannot be used, or options that contradict the input.
    #[default]
    Input,
    /// A file that cannot be read or written.
    File,
    /// A replay that deadlocked.
    Deadlock,
    /// Simulated time overflowed during a replay.
    TooLong,
    /// The command would need more memory than the process may use.
    Memory,
    /// The caller interrupted the command.
    Interrupted,
}

/// Rank, id and name of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    /// Index of the rank in the job.
    pub rank: u32,
    /// Id of the node in the trace.
    pub node: u64,
    /// Name of the node in its trace, which need not be unique.
    pub name: String,
}

/// A node that waits forever in a deadlock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlockedNodeIdentity {
    /// The waiting node.
    pub node: NodeIdentity,
    /// Reason why the node waits.
    pub why: String,
}

/// A failed command: its message, and the message's facts as separate fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandFailureWithMessageParts {
    /// Kind of failure, so that a caller can decide how to react.
    pub kind: FailureKind,
    /// The whole message, including causes and suggestions.
    pub message: String,
    /// Description of the fault, without the place where it occurred and without suggestions.
    pub found: String,
    /// Description of the expected value, if the message gives it separately.
    pub expected: Option<String>,
    /// Suggested next step.
    pub hint: Option<String>,
    /// Name of the argument that is wrong.
    pub argument: Option<String>,
    /// The wrong key in a file, such as `dimension[1].bandwidth`.
    pub key: Option<String>,
    /// Path of the file that is wrong.
    pub file: Option<String>,
    /// Line in the file, counting from 1.
    pub line: Option<u64>,
    /// Column in the line, counting from 1.
    pub column: Option<u64>,
    /// Byte offset in the file after decompression.
    pub offset: Option<u64>,
    /// Index of the record in the file, counting from 0.
    pub record: Option<u64>,
    /// Rank of the job in which the failure occurred.
    pub rank: Option<u32>,
    /// Id of the node in its trace.
    pub node: Option<u64>,
    /// Error number from the operating system.
    pub os_error: Option<i32>,
    /// Number of nodes that completed before a deadlock, and the total number of nodes.
    pub completed: Option<(u64, u64)>,
    /// Nodes that wait forever in a deadlock.
    pub waiting: Vec<DeadlockedNodeIdentity>,
    /// Nodes of a deadlock's cycle: each node waits for the next node, and the last waits for the
    /// first.
    pub cycle: Vec<NodeIdentity>,
    /// Number of bytes needed, and the memory limit.
    pub memory: Option<(u64, u64)>,
}

impl fmt::Display for CommandFailureWithMessageParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for CommandFailureWithMessageParts {}

impl From<&NodeRef> for NodeIdentity {
    fn from(node: &NodeRef) -> Self {
        Self {
            rank: node.rank.0,
            node: node.id,
            name: node.name.clone(),
        }
    }
}

/// Replaces `--some-option` in `text` with `some_option` in backquotes. Command lines in quotes stay unchanged.
fn replace_flags_by_argument_names(text: &str) -> String {
    let mut out = String::new();
    for (i, part) in text.split('`').enumerate() {
        if i > 0 {
            out.push('`');
        }
        // The text is split at backquotes, so parts at odd indices were inside them.
        if i % 2 == 1 {
            out += part;
            continue;
        }
        let mut rest = part;
        while let Some(at) = rest.find("--") {
            let (before, flag) = rest.split_at(at);
            let name = &flag[2..];
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
            let end = name.find(|c| !is_word(c)).unwrap_or(name.len());
            let is_flag = name.starts_with(|c: char| c.is_ascii_lowercase())
                && !before.ends_with(|c: char| !c.is_whitespace() && c != '(' && c != '\'');
            out += before;
            match is_flag {
                true => out += &format!("`{}`", name[..end].replace('-', "_")),
                false => out += &flag[..2 + end],
            }
            rest = &name[end..];
        }
        out += rest;
    }
    out
}

/// Replaces `'--flag <VALUE>'` in `text` with `--flag`.
fn unquote_flags_and_strip_placeholders(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("'--") {
        let (before, quoted) = (&rest[..at], &rest[at + 1..]);
        let Some(end) = quoted.find('\'') else { break };
        out += before;
        let flag = quoted[..end].split([' ', '=']).next();
        out += flag.unwrap_or_default();
        rest = &quoted[end + 1..];
    }
    out + rest
}

impl CommandFailureWithMessageParts {
    /// Converts an error to a failure that states the facts of the error and of its causes.
    pub fn from_error(error: &(dyn Error + 'static)) -> Self {
        let mut failure = Self::default();
        failure.set_message_and_split_off_hint(&error_text_with_causes_and_hint(error));
        let mut next = Some(error);
        while let Some(error) = next {
            failure.copy_error_facts_to_fields(error);
            next = error.source();
        }
        // Check for an interruption here, because it may be missing from the chain of causes: commands that run many
        // replays convert their errors to text.
        if let Err(interruption) = interrupt::fail_if_stopped_or_out_of_memory() {
            failure.set_failure_from_interruption(&interruption);
        }
        if failure.file.is_none() {
            failure.split_file_location_from_message();
        }
        failure
    }

    /// Converts a command-line error to a failure.
    pub fn from_usage_error(error: &clap::Error) -> Self {
        let mut failure = Self {
            kind: FailureKind::Usage,
            ..Self::default()
        };
        let text = error.to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        // Remove the usage line and the advice on help, which make sense only on a command line.
        let text = text.split("\n\nUsage:").next().unwrap_or(text);
        let text = text
            .split("\n\nFor more information")
            .next()
            .unwrap_or(text);
        failure
            .set_message_and_split_off_hint(&unquote_flags_and_strip_placeholders(text.trim_end()));
        let texts = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.clone()),
            Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
            _ => None,
        };
        if let Some(argument) = texts(ContextKind::InvalidArg) {
            let name = argument.split([' ', '=']).next().unwrap_or(&argument);
            let name = name.trim_start_matches('-').replace('-', "_");
            failure.argument = Some(name);
        }
        if let Some(value) = texts(ContextKind::InvalidValue) {
            failure.found = value;
        }
        failure.expected = texts(ContextKind::ValidValue);
        let suggested = texts(ContextKind::SuggestedValue).or(texts(ContextKind::SuggestedArg));
        failure.hint = suggested.or(failure.hint);
        failure
    }

    /// Sets the message, and splits it into fields.
    pub fn set_message_and_split_off_hint(&mut self, message: &str) {
        self.message = replace_flags_by_argument_names(message);
        let (found, hint) = match self.message.split_once("\n  try: ") {
            Some((found, hint)) => (found.to_owned(), Some(hint.to_owned())),
            None => (self.message.clone(), None),
        };
        (self.found, self.hint) = (found, hint);
    }

    /// Copies the facts of one error in the chain of causes to the fields.
    fn copy_error_facts_to_fields(&mut self, error: &(dyn Error + 'static)) {
        if let Some(error) = error.downcast_ref::<JobLoadOrWriteError>() {
            match error {
                JobLoadOrWriteError::Trace(error) => self.take_trace_error(error),
                JobLoadOrWriteError::Memory(error) => self.set_failure_from_memory_error(error),
                JobLoadOrWriteError::Interrupted(error) => {
                    self.set_failure_from_interruption(error)
                }
                JobLoadOrWriteError::AstraSim(error) => self.astra_sim(error),
                JobLoadOrWriteError::Io(error) => self.set_fields_from_io_error(error),
                _ => {}
            }
        } else if let Some(error) = error.downcast_ref::<TraceError>() {
            self.take_trace_error(error);
        } else if let Some(error) = error.downcast_ref::<ReplayError>() {
            self.take_replay_error(error);
        } else if let Some(failed) = error.downcast_ref::<FailedReplays>() {
            if let Some(error) = failed.first_failure() {
                self.take_replay_error(error);
            }
        } else if let Some(refusal) = error.downcast_ref::<ReplayRefusal>() {
            self.set_found_and_hint_from_refusal(refusal);
        } else if let Some(error) = error.downcast_ref::<ConfigError>() {
            self.fill_from_config_error(error);
        } else if let Some(MachineError::Config(error)) = error.downcast_ref() {
            self.fill_from_config_error(error);
        } else if let Some(ModelError::Config(error)) = error.downcast_ref() {
            self.fill_from_config_error(error);
        } else if let Some(error) = error.downcast_ref::<StudyError>() {
            match error {
                StudyError::Config(error) => self.fill_from_config_error(error),
                StudyError::Value {
                    file,
                    line,
                    key,
                    why,
                    ..
                } => {
                    self.set_file_and_line(file, *line as u64);
                    self.key = Some(key.clone());
                    self.found.clone_from(why);
                }
                StudyError::Read { path, .. } => self.file = Some(path.display().to_string()),
            }
        } else if let Some(SweepError::Interrupted(error)) = error.downcast_ref() {
            self.set_failure_from_interruption(error);
        } else if let Some(error) = error.downcast_ref::<ScoreError>() {
            match error {
                ScoreError::Columns(error) => self.fill_from_config_error(error),
                ScoreError::Row { file, line, .. } | ScoreError::Option { file, line, .. } => {
                    self.set_file_and_line(file, *line);
                }
                ScoreError::Table { file, .. } => self.file = Some(file.clone()),
            }
        } else if let Some(error) = error.downcast_ref::<ServeError>() {
            match error {
                ServeError::Config(error) => self.fill_from_config_error(error),
                ServeError::Model { place, .. }
                | ServeError::Trace { place, .. }
                | ServeError::Machine { place, .. } => self.fill_from_config_error(place),
                ServeError::ServingMachine(MachineError::Config(error)) => {
                    self.fill_from_config_error(error)
                }
                ServeError::Row { file, line, .. } => self.set_file_and_line(file, *line),
                ServeError::Read { file, .. } => self.file = Some(file.clone()),
                ServeError::Replay(error) => self.take_replay_error(error),
                _ => {}
            }
        } else if let Some(error) = error.downcast_ref::<InputError>() {
            self.astra_sim(error);
        } else if let Some(error) = error.downcast_ref::<ReplaySettingsError>() {
            self.argument = Some(
                error
                    .key_of_rejected_option()
                    .display_key_in_files()
                    .to_string(),
            );
        } else if let Some(error) = error.downcast_ref::<MemoryLimitError>() {
            self.set_failure_from_memory_error(error);
        } else if let Some(error) = error.downcast_ref::<StopOrMemoryInterruption>() {
            self.set_failure_from_interruption(error);
        } else if let Some(error) = error.downcast_ref::<io::Error>() {
            self.set_fields_from_io_error(error);
        }
    }

    fn set_file_and_line(&mut self, file: &str, line: u64) {
        self.file = Some(file.to_owned());
        self.line = Some(line);
    }

    fn take_trace_error(&mut self, error: &TraceError) {
        match error.fault() {
            TraceErrorKind::Io { file, source, .. } => {
                self.file = Some(file.display().to_string());
                self.set_fields_from_io_error(source);
            }
            TraceErrorKind::Malformed { place, found } => {
                self.fill_location_from_trace_error(place);
                self.found.clone_from(found);
            }
            TraceErrorKind::Refused { place, found, hint } => {
                self.fill_location_from_trace_error(place);
                self.found.clone_from(found);
                self.hint = Some(replace_flags_by_argument_names(hint));
            }
            TraceErrorKind::Interrupted(interruption) => {
                self.set_failure_from_interruption(interruption)
            }
        }
    }

    fn fill_location_from_trace_error(&mut self, place: &TraceErrorLocation) {
        let file = place.file.as_ref().map(|file| file.display().to_string());
        self.file = file.or(self.file.take());
        self.offset = place.offset.map(|offset| offset as u64);
        self.record = place.record.map(|record| record as u64);
        self.node = place.node;
        self.line = place.line.map(|(line, _)| line as u64);
        self.column = place.line.map(|(_, column)| column as u64);
        let name = place.file.as_deref().and_then(Path::file_name);
        self.rank = name.and_then(|name| parse_file_rank(name.to_str()?));
    }

    fn fill_from_config_error(&mut self, error: &ConfigError) {
        match error {
            ConfigError::Syntax { file, line, why } => {
                self.set_file_and_line(file, *line as u64);
                self.found.clone_from(why);
            }
            ConfigError::Key {
                file,
                line,
                key,
                why,
            } => {
                self.set_file_and_line(file, *line as u64);
                self.key = Some(key.clone());
                self.found.clone_from(why);
            }
        }
    }

    fn astra_sim(&mut self, error: &InputError) {
        match error {
            InputError::Syntax { file, line, .. } => self.set_file_and_line(file, *line as u64),
            InputError::Key {
                file, line, key, ..
            } => {
                self.set_file_and_line(file, *line as u64);
                self.key = Some(key.clone());
            }
            InputError::Disagreement { file, key, .. } => {
                self.file = Some(file.clone());
                self.key = Some(key.clone());
            }
            InputError::Read { file, .. } => self.file = Some(file.clone()),
        }
    }

    fn take_replay_error(&mut self, error: &ReplayError) {
        match error {
            ReplayError::Refused(refusal) => self.set_found_and_hint_from_refusal(refusal),
            ReplayError::Stuck(stuck) => self.set_deadlock_and_waiting_nodes(stuck),
            ReplayError::TooLong => self.kind = FailureKind::TooLong,
            ReplayError::Interrupted(interruption) => {
                self.set_failure_from_interruption(interruption)
            }
        }
    }

    fn set_found_and_hint_from_refusal(&mut self, refusal: &ReplayRefusal) {
        self.found = replace_flags_by_argument_names(&refusal.found);
        self.hint = Some(replace_flags_by_argument_names(&refusal.hint));
    }

    fn set_deadlock_and_waiting_nodes(&mut self, stuck: &Stuck) {
        self.kind = FailureKind::Deadlock;
        self.completed = Some((stuck.completed, stuck.total));
        let waiting = stuck.waiting.iter().map(|waiting| DeadlockedNodeIdentity {
            node: (&waiting.node).into(),
            why: waiting.why.clone(),
        });
        self.waiting = waiting.collect();
        self.cycle = stuck.cycle.iter().map(NodeIdentity::from).collect();
        if let Some(first) = self.waiting.first() {
            (self.rank, self.node) = (Some(first.node.rank), Some(first.node.node));
        }
    }

    fn set_failure_from_memory_error(&mut self, error: &MemoryLimitError) {
        self.kind = FailureKind::Memory;
        self.set_message_and_split_off_hint(&error.to_string());
        self.memory = Some((error.requested_memory().0, error.memory_limit().0));
    }

    fn set_failure_from_interruption(&mut self, interruption: &StopOrMemoryInterruption) {
        match interruption {
            StopOrMemoryInterruption::Requested => {
                self.kind = FailureKind::Interrupted;
                self.set_message_and_split_off_hint(&interruption.to_string());
            }
            StopOrMemoryInterruption::Memory(error) => self.set_failure_from_memory_error(error),
        }
    }

    fn set_fields_from_io_error(&mut self, error: &io::Error) {
        self.kind = FailureKind::File;
        self.os_error = error.raw_os_error();
        self.found = error.to_string();
    }

    /// Moves file, line and column from the beginning of the message to the failure's fields.
    fn split_file_location_from_message(&mut self) {
        let line = self.found.lines().next().unwrap_or_default();
        let mut parts = line.split(':');
        let (Some(file), Some(number)) = (parts.next(), parts.next()) else {
            return;
        };
        let is_path = !file.contains(' ') && (file.contains('.') || file.contains('/'));
        if let (true, Ok(number)) = (is_path, number.parse()) {
            let file = file.to_owned();
            self.column = parts.next().and_then(|column| column.parse().ok());
            self.set_file_and_line(&file, number);
        } else if is_path && number.starts_with(' ') {
            self.file = Some(file.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_arguments_except_in_command_lines() {
        for (text, expected) in [
            ("--table needs --format csv", "`table` needs `format` csv"),
            (
                "use `chakram replay --network links`",
                "use `chakram replay --network links`",
            ),
            (
                "with --max-memory SIZE, or -o",
                "with `max_memory` SIZE, or -o",
            ),
            ("a -- b, x--y, --", "a -- b, x--y, --"),
        ] {
            assert_eq!(replace_flags_by_argument_names(text), expected);
        }
        let usage = "the argument '--map <NPUS>' cannot be used with '--fill-domains'";
        assert_eq!(
            replace_flags_by_argument_names(&unquote_flags_and_strip_placeholders(usage)),
            "the argument `map` cannot be used with `fill_domains`"
        );
    }

    #[test]
    fn file_locations_are_taken_from_messages() {
        let of = |text: &str| {
            let failure = CommandFailureWithMessageParts::from_error(&*Box::<dyn Error>::from(
                text.to_owned(),
            ));
            (failure.file, failure.line, failure.column)
        };
        let file = |file: &str| Some(file.to_owned());
        assert_eq!(
            of("runs.csv:12: no number"),
            (file("runs.csv"), Some(12), None)
        );
        assert_eq!(of("a/b:3:4: odd"), (file("a/b"), Some(3), Some(4)));
        assert_eq!(of("x.et: it is empty"), (file("x.et"), None, None));
        assert_eq!(of("it fails: 3: x"), (None, None, None));
    }
}
