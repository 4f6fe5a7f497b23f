//! Workloads that leave an archive as files.

use super::ArchiveError;
use super::document::{FileRow, TraceRow, WorkloadEntry};
use super::store::Archive;
use crate::files::OutputSet;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Ranks that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankRange {
    /// First rank.
    pub first: u32,
    /// Last rank.
    pub last: u32,
}

impl WorkloadEntry {
    /// Returns the ranks of its traces, each with the row that has it.
    pub fn rank_rows(&self) -> impl Iterator<Item = (u32, &TraceRow)> {
        self.traces.iter().flat_map(|row| {
            (row.rank..row.rank.saturating_add(row.ranks)).map(move |rank| (rank, row))
        })
    }

    /// Returns the file name of the trace of a rank.
    pub fn file_name(&self, rank: u32, row: &TraceRow) -> String {
        format!("{}.{rank}{}", self.prefix, row.ending)
    }

    /// Returns the file of this name.
    pub fn file(&self, name: &str) -> Option<&FileRow> {
        self.files.iter().find(|row| row.name == name)
    }
}

impl Archive {
    /// Writes the traces of `ranks`, or all, and the other files of `entry` into `folder`, all of them or none. Returns
    /// the files.
    pub fn extract(
        &self,
        entry: &WorkloadEntry,
        folder: &Path,
        ranks: Option<RankRange>,
    ) -> Result<Vec<PathBuf>, ArchiveError> {
        let wanted =
            |rank: u32| ranks.is_none_or(|ranks| (ranks.first..=ranks.last).contains(&rank));
        let traces = entry.rank_rows().filter(|(rank, _)| wanted(*rank));
        let traces = traces.map(|(rank, row)| (entry.file_name(rank, row), &row.blake3));
        // Part of the ranks is not the job that its file describes.
        let whole =
            |row: &&FileRow| ranks.is_none() || !row.name.ends_with(crate::trace::job::ENDING);
        let files = entry
            .files
            .iter()
            .filter(whole)
            .map(|row| (row.name.clone(), &row.blake3));
        // A job's file names the traces, so it comes last.
        let mut all: Vec<(String, &String)> = traces.chain(files).collect();
        all.sort_by_key(|(name, _)| name.ends_with(crate::trace::job::ENDING));
        let mut outputs = OutputSet::default();
        let mut written = Vec::new();
        for (name, hash) in all {
            let path = folder.join(&name);
            let mut file = outputs.create(&path)?;
            let io = |error| ArchiveError::io(&path, "write", error);
            self.copy(hash, &mut |part| file.write_all(part).map_err(io))?;
            outputs.finish(file)?;
            written.push(path);
        }
        outputs.commit()?;
        Ok(written)
    }
}
