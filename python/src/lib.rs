//! The native half of the Python package: the library façade's commands, which run in separate threads, and tables as
//! Arrow.
//!
//! The other half, `package/chakram/`, has the functions, results and exceptions that users see.

mod arrow;
mod columns;
mod nodes;
mod run;

use chakram::limits::{self, CountingAllocator};
use chakram::units::Bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::process::ExitCode;

/// Counts the memory that inputs take, so that a call that needs too much fails instead of killing the process.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Runs the command line `arguments`, whose first element is the program's name; returns the exit code.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    let code = py.detach(|| chakram::command::run_with_arguments(arguments));
    let mut codes = 0..=u8::MAX;
    codes
        .find(|number| ExitCode::from(*number) == code)
        .unwrap_or(1)
}

/// Describes all commands and their arguments as JSON.
#[pyfunction]
fn describe() -> String {
    chakram::command::describe_commands().to_string()
}

/// Sets the native half's memory limit in bytes; `None` restores the default. Returns the limit.
#[pyfunction]
#[pyo3(signature = (size=None))]
fn limit_memory(size: Option<&str>) -> PyResult<u64> {
    chakram::command::set_up_memory_survival_and_setting_names();
    let size = match size {
        None => limits::default_memory_limit(),
        Some(text) => {
            let size: Result<Bytes, _> = text.parse();
            size.map_err(|error| PyValueError::new_err(error.to_string()))?
        }
    };
    limits::set_memory_limit(size);
    Ok(limits::memory_limit().0)
}

/// Returns the bytes that the native half has allocated.
#[pyfunction]
fn allocated() -> u64 {
    limits::allocated_bytes()
}

/// The Python module `chakram._chakram`.
#[pymodule]
fn _chakram(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(describe, module)?)?;
    module.add_function(wrap_pyfunction!(limit_memory, module)?)?;
    module.add_function(wrap_pyfunction!(allocated, module)?)?;
    module.add_function(wrap_pyfunction!(run::run, module)?)?;
    module.add_function(wrap_pyfunction!(columns::table, module)?)?;
    module.add_class::<nodes::Nodes>()?;
    module.add_class::<columns::Table>()?;
    module.add(
        "CommandFailed",
        module.py().get_type::<run::CommandFailed>(),
    )?;
    Ok(())
}
