//! Tests the program's files: outputs of every kind, jobs as one unit, signals, terminals, and
//! names from files.

mod job;
mod job_commands;
mod outputs;
mod round_trip;
mod shown;
mod signals;
mod terminals;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;
use testkit::capture::{Device, JobParallelism, Options};

/// A command that takes more than a second, because it writes several copies of a million-node trace.
const LONG_JOB: [&str; 9] = [
    "generate",
    "chain",
    "--ranks",
    "64",
    "--nodes",
    "1000000",
    "--no-links",
    "-o",
    "job",
];

/// A temporary folder for a test.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("there is room"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn path_of_file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn write(&self, name: &str, contents: &[u8]) {
        std::fs::write(self.path_of_file(name), contents).expect("there is room");
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path_of_file(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Returns the names of the files in the folder, including hidden files.
    pub fn names(&self) -> Vec<String> {
        let listing = std::fs::read_dir(self.path()).expect("it is there");
        let names = listing.map(|entry| entry.expect("it can be listed").file_name());
        let mut names: Vec<_> = names
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Returns a command that runs the program in this folder.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_chakram"));
        command.current_dir(self.path()).args(args);
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the program was built")
    }

    /// Captures a job of two ranks on CPUs into the folder `name`.
    pub fn write_two_rank_cpu_capture(&self, name: &str) {
        self.write_two_rank_capture_on_device(Device::Cpu, name);
    }

    /// Captures a job of two ranks into the folder `name`.
    pub fn write_two_rank_capture_on_device(&self, device: Device, name: &str) {
        std::fs::create_dir(self.path_of_file(name)).expect("there is room");
        let options = Options::new(device, JobParallelism::Ddp, 2);
        let capture = testkit::capture::generate_capture(&options).expect("the options make sense");
        capture
            .write_files(&self.path_of_file(name))
            .expect("there is room");
    }

    /// Runs the program, checks that it succeeds, and returns its output.
    pub fn run_successfully_for_stdout(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        text_from_bytes(&output.stdout)
    }

    /// Runs the program, checks that it succeeds, and returns its standard error.
    pub fn run_successfully_for_stderr(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        text_from_bytes(&output.stderr)
    }

    /// Runs the program, checks that it rejects its input, and returns its error message.
    pub fn run_refused_for_stderr(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        text_from_bytes(&output.stderr)
    }
}

/// Writes a text trace. The nodes are given as JSON without their ids.
pub fn write_text_trace(folder: &Folder, name: &str, nodes: &[&str]) {
    let mut lines = "{\"schema\":\"chakram.trace.1\",\"version\":\"0.0.4\"}\n".to_owned();
    for (id, node) in (1..).zip(nodes) {
        writeln!(lines, "{{\"id\":{id},{node}}}").expect("a string grows as needed");
    }
    folder.write(name, lines.as_bytes());
}

pub fn text_from_bytes(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("it says text")
}

/// Returns the makespan of a replay, in picoseconds.
pub fn replay_makespan(folder: &Folder, args: &[&str]) -> u64 {
    let json = folder.run_successfully_for_stdout(&[args, &["--format", "json"]].concat());
    let report: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    report["makespan_ps"].as_u64().expect("it is whole")
}
