//! Tests that no command prints a line wider than 120 columns for captures, although kernel names
//! in captures have hundreds of characters.

use crate::commands::run_chakram;
use crate::corpus::{corpus_path_or_count_skip, sample_every_nth};
use std::fs;
use std::path::{Path, PathBuf};

/// Size of the largest capture to convert, in stored bytes. Smaller captures have names that are just as long.
const LARGEST: u64 = 250_000;

/// Returns the captures of the corpus: folders with the files of a run, and single files.
fn list_corpus_captures(root: &Path) -> Vec<PathBuf> {
    let list = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    };
    let mut found = list(&root.join("pytorch"));
    for path in list(&root.join("gpu")) {
        // In these folders, the files are not ranks of one run.
        let is_collection = path.ends_with("tracelens") || path.ends_with("hta_misc_kineto");
        match is_collection {
            true => {
                let nested = list(&path)
                    .into_iter()
                    .flat_map(|inner| match inner.is_dir() {
                        true => list(&inner),
                        false => vec![inner],
                    });
                found.extend(nested);
            }
            false => found.push(path),
        }
    }
    let size = |path: &PathBuf| {
        let files = if path.is_dir() {
            list(path)
        } else {
            vec![path.clone()]
        };
        let sizes = files
            .iter()
            .map(|file| fs::metadata(file).map_or(0, |file| file.len()));
        sizes.sum::<u64>()
    };
    found.retain(|path| size(path) <= LARGEST);
    found
}

#[test]
fn no_line_over_a_capture_is_wider_than_120_columns() {
    let Some(root) = corpus_path_or_count_skip("captures") else {
        return;
    };
    let folder = tempfile::tempdir().expect("there is room");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let archive = path("a.etz");
    run_chakram(&["archive", "create", &archive, "-q"]);
    let mut converted: Vec<String> = Vec::new();
    let mut cut = 0;
    let captures = sample_every_nth(4, list_corpus_captures(&root));
    let count = captures.len();
    for capture in captures {
        let job = path(&format!("{}/job", converted.len()));
        let capture = capture.display().to_string();
        if !run_chakram(&["convert", "pytorch", &capture, "-o", &job])
            .status
            .success()
        {
            continue;
        }
        let before = converted.last().unwrap_or(&job).clone();
        let study = path("study.toml");
        let text = format!(
            "name = \"two machines\"\n[base]\ntrace = {job:?}\n[[axis]]\nkey = \"machine\"\nvalues = [\"dgx-h100\", \"dgx-a100\"]\n"
        );
        fs::write(&study, text).expect("there is room");
        let timeline = path("timeline.json");
        let name = format!("job-{}", converted.len());
        let commands: [&[&str]; 11] = [
            &["inspect", &job],
            &["inspect", &job, "--list"],
            &["inspect", &job, "--critical-path"],
            &["validate", &job],
            &["replay", &job, "-m", "dgx-h100"],
            &["replay", &job, "-m", "dgx-h100", "--timeline", &timeline],
            &["replay", &job, "-m", "dgx-h100", "-m", "dgx-a100"],
            &["diff", &before, &job],
            &["sweep", &study],
            &["archive", "add", &archive, &job, "--name", &name],
            &["archive", "list", &archive],
        ];
        for command in commands {
            let output = run_chakram(command);
            let text = String::from_utf8(output.stdout).expect("it is text");
            for line in text.lines() {
                let columns = line.chars().count();
                assert!(columns <= 120, "{capture}: {command:?}: {columns}: {line}");
            }
            cut += usize::from(text.contains('…'));
        }
        converted.push(job);
    }
    assert!(
        converted.len() > count / 4 && cut > 20,
        "{} of {count}, {cut}",
        converted.len()
    );
    let commands: [&[&str]; 2] = [
        &[
            "archive", "baseline", &archive, "-m", "dgx-h100", "--reason", "first",
        ],
        &["archive", "check", &archive],
    ];
    for command in commands {
        let text = String::from_utf8(run_chakram(command).stdout).expect("it is text");
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(120), "{command:?}: {text}");
    }
}
