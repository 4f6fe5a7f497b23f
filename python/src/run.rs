//! Runs commands in separate threads, so that other Python threads continue, and Ctrl-C ends the command instead of
//! the process.

use crate::nodes::Nodes;
use chakram::command::{
    CommandFailureWithMessageParts, CommandOutput, FailureKind, NodeIdentity, execute_command,
};
use chakram::interrupt::{StopToken, run_with_token};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::any::Any;
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

create_exception!(
    _chakram,
    CommandFailed,
    PyException,
    "A command that failed, with its fields as a dictionary."
);

/// Time between two checks for signals.
const TICK: Duration = Duration::from_millis(20);

/// Stack size of a command's thread, equal to that of a main thread.
const STACK: usize = 8 << 20;

type CommandResult = Result<CommandOutput, Box<CommandFailureWithMessageParts>>;
type CommandResultOrPanic = Result<CommandResult, Box<dyn Any + Send>>;

/// Output of a command: text, notes, two flags (whether a threshold was exceeded, whether something failed), and the
/// table of nodes.
type PyCommandTextNotesFlagsAndNodes<'py> =
    (Bound<'py, PyBytes>, Vec<String>, bool, bool, Option<Nodes>);

/// Runs the command in `arguments`, which begin with the program's name, and returns its output. If `wants_nodes` is
/// true, the output's last member is a replay's table of nodes.
#[pyfunction]
#[pyo3(signature = (arguments, wants_nodes=false))]
pub fn run(
    py: Python<'_>,
    arguments: Vec<OsString>,
    wants_nodes: bool,
) -> PyResult<PyCommandTextNotesFlagsAndNodes<'_>> {
    let token = StopToken::default();
    let task = token.clone();
    let (answer, answers) = sync_channel(1);
    let worker = thread::Builder::new()
        .name("chakram".to_owned())
        .stack_size(STACK)
        .spawn(move || {
            let work = || execute_command(arguments, wants_nodes);
            let result = catch_unwind(AssertUnwindSafe(|| run_with_token(Some(task), work)));
            // Ignore an error here, because the receiver may have stopped waiting.
            let _ = answer.send(result);
        });
    // Starting a thread fails if there is no memory for its stack.
    let Ok(worker) = worker else {
        return Err(out_of_memory_error(py)?);
    };
    let answer = wait_for_command(py, &token, answers)?;
    // The worker has sent its answer, so its thread ends soon.
    let _ = py.detach(|| worker.join());
    match answer {
        Ok(Ok(output)) => Ok((
            PyBytes::new(py, &output.text),
            output.notes,
            output.is_exceeded,
            output.is_failed,
            output.nodes.map(Nodes::new),
        )),
        Ok(Err(failure)) => Err(CommandFailed::new_err(
            failure_fields_to_dict(py, &failure)?.unbind(),
        )),
        Err(panic) => Err(PyRuntimeError::new_err(format!(
            "a fault of chakram: {}",
            panic_message_text(&*panic)
        ))),
    }
}

/// Waits for the answer without holding the interpreter's lock. An exception raised by a signal handler stops the
/// command.
fn wait_for_command(
    py: Python<'_>,
    token: &StopToken,
    mut answers: Receiver<CommandResultOrPanic>,
) -> PyResult<CommandResultOrPanic> {
    let mut raised = None;
    loop {
        let (received, receiver) = py.detach(move || (answers.recv_timeout(TICK), answers));
        answers = receiver;
        match (received, raised) {
            (Ok(_), Some(error)) => return Err(error),
            (Ok(answer), None) => return Ok(answer),
            (Err(RecvTimeoutError::Disconnected), _) => {
                return Err(PyRuntimeError::new_err("the thread of the command ended"));
            }
            (Err(RecvTimeoutError::Timeout), before) => {
                if token.is_out_of_memory() {
                    return Err(out_of_memory_error(py)?);
                }
                raised = match before {
                    None => py.check_signals().err().inspect(|_| token.request_stop()),
                    // A second signal ends the wait, even if the command cannot be stopped.
                    Some(error) => match py.check_signals() {
                        Ok(()) => Some(error),
                        Err(again) => return Err(again),
                    },
                };
            }
        }
    }
}

/// Builds the error for a command whose thread was abandoned because memory ran out.
fn out_of_memory_error(py: Python<'_>) -> PyResult<PyErr> {
    let found = "the system has no more memory".to_owned();
    let failure = CommandFailureWithMessageParts {
        kind: FailureKind::Memory,
        message: format!("{found}\n  try: a smaller job"),
        found,
        hint: Some("a smaller job".to_owned()),
        ..CommandFailureWithMessageParts::default()
    };
    Ok(CommandFailed::new_err(
        failure_fields_to_dict(py, &failure)?.unbind(),
    ))
}

fn panic_message_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic")
}

fn failure_kind_name(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Usage => "usage",
        FailureKind::Input => "input",
        FailureKind::File => "file",
        FailureKind::Deadlock => "deadlock",
        FailureKind::TooLong => "too long",
        FailureKind::Memory => "memory",
        FailureKind::Interrupted => "interrupted",
    }
}

fn node_identity_to_dict<'py>(
    py: Python<'py>,
    node: &NodeIdentity,
) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    fields.set_item("rank", node.rank)?;
    fields.set_item("node", node.node)?;
    fields.set_item("name", &node.name)?;
    Ok(fields)
}

/// Returns the known fields of a failure.
fn failure_fields_to_dict<'py>(
    py: Python<'py>,
    failure: &CommandFailureWithMessageParts,
) -> PyResult<Bound<'py, PyDict>> {
    let CommandFailureWithMessageParts {
        kind: of,
        message,
        found,
        expected,
        hint,
        argument,
        key,
        file,
        line,
        column,
        offset,
        record,
        rank,
        node: node_id,
        os_error,
        completed,
        waiting,
        cycle,
        memory,
    } = failure;
    let fields = PyDict::new(py);
    fields.set_item("kind", failure_kind_name(*of))?;
    fields.set_item("message", message)?;
    fields.set_item("found", found)?;
    fields.set_item("expected", expected)?;
    fields.set_item("hint", hint)?;
    fields.set_item("argument", argument)?;
    fields.set_item("key", key)?;
    fields.set_item("file", file)?;
    fields.set_item("line", line)?;
    fields.set_item("column", column)?;
    fields.set_item("offset", offset)?;
    fields.set_item("record", record)?;
    fields.set_item("rank", rank)?;
    fields.set_item("node", node_id)?;
    fields.set_item("errno", os_error)?;
    fields.set_item("completed", completed.map(|(completed, _)| completed))?;
    fields.set_item("total", completed.map(|(_, total)| total))?;
    let waiting = waiting.iter().map(|waiting| {
        let fields = node_identity_to_dict(py, &waiting.node)?;
        fields.set_item("why", &waiting.why)?;
        Ok(fields)
    });
    fields.set_item("waiting", waiting.collect::<PyResult<Vec<_>>>()?)?;
    let cycle = cycle.iter().map(|one| node_identity_to_dict(py, one));
    fields.set_item("cycle", cycle.collect::<PyResult<Vec<_>>>()?)?;
    fields.set_item("needed_bytes", memory.map(|(needed, _)| needed))?;
    fields.set_item("limit_bytes", memory.map(|(_, limit)| limit))?;
    Ok(fields)
}

/// Converts an error in writing a file to a Python exception.
pub fn io_error(error: &std::io::Error) -> PyErr {
    PyOSError::new_err(error.to_string())
}
