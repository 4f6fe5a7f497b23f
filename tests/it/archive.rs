//! Tests archives through the command line and through a reader.

mod causes;
mod crash;
mod damage;
mod identity;
mod longevity;
mod parts;
mod questions;
mod regression;
mod replacing;

use crate::commands::run_chakram;
use chakram::archive::Archive;
use std::path::{Path, PathBuf};
use std::process::Output;
use tempfile::TempDir;

/// A folder with the traces and archives of one test.
pub struct ArchiveTestFolder {
    folder: TempDir,
}

impl ArchiveTestFolder {
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn path_text(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }

    /// Runs the program. A word that begins with `@` is a path in the folder.
    pub fn run_program(&self, words: &[&str]) -> Output {
        let words: Vec<String> = words
            .iter()
            .map(|word| match word.split_once('@') {
                Some((option, path)) if option.is_empty() || option.ends_with('=') => {
                    format!("{option}{}", self.path_text(path))
                }
                _ => (*word).to_owned(),
            })
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        run_chakram(&words)
    }

    /// Runs the program, checks that it succeeds, and returns its output.
    pub fn run_successfully(&self, words: &[&str]) -> String {
        let output = self.run_program(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs the program, checks that it fails with `code`, and returns its error message.
    pub fn run_failing_with_code(&self, code: i32, words: &[&str]) -> String {
        let output = self.run_program(words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {error}");
        error
    }

    /// Generates a job of two ranks with a few nodes each, and adds it to `archive` as `name`.
    pub fn add_small_job(&self, archive: &str, name: &str, layers: &str) {
        let prefix = format!("@{name}/job");
        self.run_successfully(&[
            "generate",
            "data-parallel",
            "--ranks",
            "2",
            "--layers",
            layers,
            "-o",
            &prefix,
        ]);
        self.run_successfully(&["archive", "add", archive, &prefix, "--name", name]);
    }
}

/// Returns the names of the workloads in an archive, in the archive's order.
pub fn list_workload_names(path: &Path) -> Vec<String> {
    let archive = Archive::open_archive(path).unwrap();
    archive.workloads().keys().cloned().collect()
}

/// Returns the relative name and content of every file in `folder`, including subfolders.
pub fn read_folder_files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut waiting = vec![(String::new(), folder.to_owned())];
    while let Some((name, path)) = waiting.pop() {
        if path.is_dir() {
            for entry in std::fs::read_dir(&path).unwrap() {
                let entry = entry.unwrap();
                let inner = entry.file_name().into_string().unwrap();
                waiting.push((format!("{name}/{inner}"), entry.path()));
            }
        } else {
            found.push((name, std::fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}
