//! The journal of a sweep: one line for each answer or bound, in the order of computation.
//!
//! Each line is appended with a single write while the sweep runs, so a crash loses only work in progress. Opening it
//! again removes an incomplete last line.

use super::bound::PointTimeAndMemoryBounds;
use super::evaluate::PointRefusalOrMeasures;
use chakram_base::setting::SettingKey;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The first line of a journal.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct JournalHead {
    schema: String,
    /// Hash of the study and of the files that it names.
    study: String,
}

const SCHEMA: &str = "chakram-sweep-journal-1";

/// An answer to a point, or a bound on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JournaledBoundOrAnswer {
    /// Key of the point: its settings, formatted as one line.
    pub point: String,
    /// Bound on the point, if this entry contains one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<PointTimeAndMemoryBounds>,
    /// Answer to the point, if this entry contains one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<PointRefusalOrMeasures>,
}

/// Reason why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The operating system reported an error.
    #[error("{}: {source}", .path.display())]
    Io {
        /// Path of the journal.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The journal belongs to another study, or the study or one of its files has changed since.
    #[error(
        "{}: the journal is of a different study, or the study or one of its files has changed since\n  \
         try: another folder",
        .0.display()
    )]
    OtherStudy(PathBuf),
    /// A line is invalid.
    #[error("{}:{line}: {why}\n  try: another folder", .path.display())]
    Line {
        /// Path of the journal with the invalid line.
        path: PathBuf,
        /// Line number, counting from 1.
        line: usize,
        /// Description of the problem.
        why: String,
    },
    /// The folder already has a journal.
    #[error("{}: the folder has results of an earlier run\n  try: {} to resume the run, or another folder", .0.display(), SettingKey::Resume)]
    Exists(PathBuf),
    /// There is no journal, and the sweep would overwrite a file that another program may have written.
    #[error("{}: the folder exists but has no journal, so no sweep wrote it\n  try: another folder", .0.display())]
    Foreign(PathBuf),
    /// The folder has no journal.
    #[error("{}: the folder has no results\n  try: the folder that `chakram sweep … -o` was given", .0.display())]
    Missing(PathBuf),
}

/// Files that a sweep writes to the folder of its journal: rows, Pareto front and page.
pub const RESULTS: [&str; 4] = ["rows.jsonl", "rows.csv", "front.csv", "index.html"];

/// A journal that is open for writing.
#[derive(Debug)]
pub struct SweepJournal {
    path: PathBuf,
    file: Mutex<File>,
}

impl SweepJournal {
    /// Returns the path of the journal file in `folder`.
    pub fn journal_path(folder: &Path) -> PathBuf {
        folder.join("journal.jsonl")
    }

    /// Creates a journal in `folder` for the study with this hash.
    pub fn create_in(folder: &Path, study: &str) -> Result<Self, JournalError> {
        let path = Self::journal_path(folder);
        let failed = |source| JournalError::Io {
            path: path.clone(),
            source,
        };
        std::fs::create_dir_all(folder).map_err(failed)?;
        let mut results = RESULTS.iter().map(|name| folder.join(name));
        let has_journal = path.exists();
        if let Some(foreign) = results.find(|file| !has_journal && file.exists()) {
            return Err(JournalError::Foreign(foreign));
        }
        let opened = OpenOptions::new().append(true).create_new(true).open(&path);
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(JournalError::Exists(path));
            }
            other => other.map_err(failed)?,
        };
        let journal = Self {
            path: path.clone(),
            file: Mutex::new(file),
        };
        journal.write_line(&JournalHead {
            schema: SCHEMA.to_owned(),
            study: study.to_owned(),
        })?;
        Ok(journal)
    }

    /// Continues the journal in `folder`, or creates it. Returns the journal, and the entries that are already in its
    /// file.
    pub fn resume_or_create_in(
        folder: &Path,
        study: &str,
    ) -> Result<(Self, Vec<JournaledBoundOrAnswer>), JournalError> {
        let path = Self::journal_path(folder);
        let failed = |source| JournalError::Io {
            path: path.clone(),
            source,
        };
        let (entries, whole) = match read_journal_entries_and_length(&path, study) {
            Err(JournalError::Missing(_)) => {
                return Ok((Self::create_in(folder, study)?, Vec::new()));
            }
            other => other?,
        };
        if whole == 0 {
            // The file has no complete line, because the program was killed while it wrote the first line.
            std::fs::remove_file(&path).map_err(failed)?;
            return Ok((Self::create_in(folder, study)?, Vec::new()));
        }
        let file = OpenOptions::new()
            .append(true)
            .open(&path)
            .map_err(failed)?;
        // Remove an incomplete last line, to which the next entry would otherwise be appended.
        file.set_len(whole).map_err(failed)?;
        let file = Mutex::new(file);
        Ok((Self { path, file }, entries))
    }

    /// Returns the entries of the journal in `folder`.
    pub fn read_entries(
        folder: &Path,
        study: &str,
    ) -> Result<Vec<JournaledBoundOrAnswer>, JournalError> {
        read_journal_entries_and_length(&Self::journal_path(folder), study)
            .map(|(entries, _)| entries)
    }

    /// Appends an entry with a single write.
    pub fn append_entry(&self, entry: &JournaledBoundOrAnswer) -> Result<(), JournalError> {
        self.write_line(entry)
    }

    fn write_line(&self, line: &impl Serialize) -> Result<(), JournalError> {
        let mut text = serde_json::to_vec(line).expect("entries are texts and numbers");
        // Write the whole line at once, so that a crash leaves at most one incomplete line.
        text.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&text).map_err(|source| JournalError::Io {
            path: self.path.clone(),
            source,
        })
    }
}

/// Parses a journal. Returns its entries, and how many bytes all complete lines take.
fn read_journal_entries_and_length(
    path: &Path,
    study: &str,
) -> Result<(Vec<JournaledBoundOrAnswer>, u64), JournalError> {
    let mut text = Vec::new();
    let opened = File::open(path);
    let mut file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(JournalError::Missing(path.to_owned()));
        }
        other => other.map_err(|source| JournalError::Io {
            path: path.to_owned(),
            source,
        })?,
    };
    file.read_to_end(&mut text)
        .map_err(|source| JournalError::Io {
            path: path.to_owned(),
            source,
        })?;
    let whole = text
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let mut entries = Vec::new();
    for (number, line) in (1..).zip(text[..whole].split_inclusive(|byte| *byte == b'\n')) {
        let wrong = |error: serde_json::Error| JournalError::Line {
            path: path.to_owned(),
            line: number,
            why: error.to_string(),
        };
        if number == 1 {
            let head: JournalHead = serde_json::from_slice(line).map_err(wrong)?;
            if head.schema != SCHEMA || head.study != study {
                return Err(JournalError::OtherStudy(path.to_owned()));
            }
        } else {
            entries.push(serde_json::from_slice(line).map_err(wrong)?);
        }
    }
    Ok((entries, whole as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_journal_entry_without_answer(point: &str) -> JournaledBoundOrAnswer {
        JournaledBoundOrAnswer {
            point: point.to_owned(),
            bound: Some(PointTimeAndMemoryBounds {
                time_ps: 7,
                memory_bytes: 8,
                is_whole: true,
            }),
            answer: None,
        }
    }

    #[test]
    fn half_a_line_is_cut_off_and_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let journal = SweepJournal::create_in(dir.path(), "s").unwrap();
        journal
            .append_entry(&build_journal_entry_without_answer("a"))
            .unwrap();
        journal
            .append_entry(&build_journal_entry_without_answer("b"))
            .unwrap();
        let path = SweepJournal::journal_path(dir.path());
        let all = std::fs::read(&path).unwrap();
        // The program may be killed after any byte, so test every length.
        for end in 0..=all.len() {
            std::fs::write(&path, &all[..end]).unwrap();
            let (journal, known) = SweepJournal::resume_or_create_in(dir.path(), "s").unwrap();
            let whole = all[..end].iter().filter(|byte| **byte == b'\n').count();
            assert_eq!(known.len(), whole.saturating_sub(1), "{end}");
            for point in ["a", "b"].iter().skip(known.len()) {
                journal
                    .append_entry(&build_journal_entry_without_answer(point))
                    .unwrap();
            }
            assert_eq!(std::fs::read(&path).unwrap(), all, "{end}");
        }
    }

    #[test]
    fn journals_of_others_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let page = dir.path().join("index.html");
        std::fs::write(&page, "mine").unwrap();
        let foreign = SweepJournal::create_in(dir.path(), "s");
        assert!(matches!(foreign, Err(JournalError::Foreign(path)) if path == page));
        std::fs::remove_file(&page).unwrap();
        SweepJournal::create_in(dir.path(), "s").unwrap();
        let again = SweepJournal::create_in(dir.path(), "s");
        assert!(matches!(again, Err(JournalError::Exists(_))));
        let other = SweepJournal::resume_or_create_in(dir.path(), "t");
        assert!(matches!(other, Err(JournalError::OtherStudy(_))));
        let missing = SweepJournal::read_entries(&dir.path().join("none"), "s");
        assert!(matches!(missing, Err(JournalError::Missing(_))));
    }
}
