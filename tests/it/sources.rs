//! Tests sources of traces other than PyTorch. Covers format detection for all sources, and compares each converter
//! with other tools' results for the same files, or with recorded truth.
//!
//! - `door`: the list of sources, and detection by contents
//! - `export`: operator graphs of models, against runs of the models
//! - `goal`: schedules in GOAL, against LogGP's formula
//! - `msccl`: MSCCL algorithms, against the machine's own
//! - `nsys`: exports of Nsight Systems written by SQLite, with the truth known from their script
//! - `recognized`: files of other tools, given to commands that do not read them
//! - `simai`: text workloads of SimAI, against volumes and times by hand
//! - `text`: text workloads of ASTRA-sim 1.0, against the files of Chakra's converter
//! - `xplane`: profiles of JAX, against a plain parse, and generated ones

mod door;
mod export;
mod goal;
mod msccl;
mod nsys;
mod recognized;
mod simai;
mod text;
mod xplane;

use super::commands::run_chakram;
use std::path::Path;

/// The exit code and the output of a run.
struct RunExitAndOutput {
    code: i32,
    out: String,
    error: String,
}

fn run_for_exit_and_text(args: &[&str]) -> RunExitAndOutput {
    let output = run_chakram(args);
    let text = |bytes| String::from_utf8(bytes).expect("it is text");
    RunExitAndOutput {
        code: output.status.code().expect("it ends by itself"),
        out: text(output.stdout),
        error: text(output.stderr),
    }
}

/// Runs the program, which must succeed, and returns its output.
fn run_for_stdout(args: &[&str]) -> String {
    let RunExitAndOutput { code, out, error } = run_for_exit_and_text(args);
    assert_eq!((code, error.as_str()), (0, ""), "{args:?}");
    out
}

/// Runs the program, which must fail with exit code 2, and returns its error.
fn expect_cli_error(args: &[&str]) -> String {
    let RunExitAndOutput { code, out, error } = run_for_exit_and_text(args);
    assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {error}");
    error
}

/// A folder for the files of a test.
struct TemporaryTestFolder(tempfile::TempDir);

impl TemporaryTestFolder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("there is room"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Writes a file and returns its path.
    fn write_file(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::write(&path, contents).expect("there is room");
        path
    }

    fn read(&self, name: &str) -> Vec<u8> {
        let path = self.0.path().join(name);
        std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// Returns the names of all files, sorted.
    fn names(&self) -> Vec<String> {
        list_file_names(self.0.path())
    }
}

fn list_file_names(folder: &Path) -> Vec<String> {
    let listing = std::fs::read_dir(folder).expect("the folder is there");
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        let name = entry.expect("it can be listed").file_name();
        name.to_string_lossy().into_owned()
    };
    let mut names: Vec<String> = listing.map(name).collect();
    names.sort();
    names
}
