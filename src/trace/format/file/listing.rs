//! Lists the trace files and job files in a folder.

use super::names::{ANYTHING, ENDINGS, split_file_name};
use super::{DecompressedStream, RankFile, no_traces_error};
use crate::format::text::{self, TraceOrCaptureTextKind};
use crate::format::{TraceError, job};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

/// Number of leading bytes that are inspected to recognise a trace.
const SNIFFED: u64 = 1 << 16;
/// The trace files and job files in a folder.
#[derive(Default)]
pub(super) struct FolderTracesAndJobFiles {
    /// Traces, each with its job's prefix. If a trace exists with several endings, only the ending that is first in
    /// `ENDINGS` is listed.
    traces: Vec<(String, RankFile)>,
    /// Prefixes of the job files.
    pub jobs: BTreeSet<String>,
}

impl FolderTracesAndJobFiles {
    /// Lists all files in `folder`, or only files with the prefix `wanted`.
    pub fn list_folder(folder: &Path, wanted: Option<&str>) -> Result<Self, TraceError> {
        let io = |source| TraceError::from_io(folder, "list", source);
        let mut all: [Vec<(String, RankFile)>; ENDINGS.len()] = Default::default();
        let mut this = Self::default();
        for entry in std::fs::read_dir(folder).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let job = name.strip_suffix(job::ENDING);
            if let Some(prefix) = job.filter(|prefix| !prefix.is_empty()) {
                this.jobs.insert(prefix.to_owned());
                continue;
            }
            let Some((prefix, rank, ending)) = split_file_name(name) else {
                continue;
            };
            let path = entry.path();
            // Opening a pipe with such a name would block, so open only files. The listing already states the file
            // type; using it saves a system call per file.
            let kind = entry.file_type();
            let plain =
                kind.is_ok_and(|kind| kind.is_file() || kind.is_symlink() && path.is_file());
            if wanted.is_none_or(|wanted| wanted == prefix) && plain {
                all[ending].push((prefix.to_owned(), RankFile::new(rank, path)));
            }
        }
        if let Some(best) = all.iter().position(|found| !found.is_empty()) {
            this.traces = std::mem::take(&mut all[best]);
            // Captures and reports may also end in `.json`, so inspect the beginning of the file.
            if ENDINGS[best] == ANYTHING {
                this.traces
                    .retain(|(_, file)| file_begins_as_text_trace(&file.path));
            }
        }
        this.traces.sort();
        Ok(this)
    }

    /// Returns true if a trace was found.
    pub fn has_traces(&self) -> bool {
        !self.traces.is_empty()
    }

    pub fn prefixes(&self) -> BTreeSet<&str> {
        let traces = self.traces.iter().map(|(prefix, _)| prefix.as_str());
        traces.chain(self.jobs.iter().map(String::as_str)).collect()
    }

    /// Returns the traces of the only job in a listing without job files; `path` is the requested path, for errors.
    pub fn traces_of_only_job(
        self,
        path: &Path,
        folder: &Path,
    ) -> Result<Vec<RankFile>, TraceError> {
        let prefixes: BTreeSet<&str> = self.traces.iter().map(|(p, _)| p.as_str()).collect();
        match prefixes.len() {
            0 => return Err(no_traces_error(path, "no file is named `PREFIX.RANK.et`")),
            1 => {}
            _ => return Err(several_jobs_error(folder, &prefixes)),
        }
        let files: Vec<RankFile> = self.traces.into_iter().map(|(_, file)| file).collect();
        if let Some(pair) = files.windows(2).find(|pair| pair[0].rank == pair[1].rank) {
            return Err(no_traces_error(
                path,
                &format!(
                    "rank {} has two files, {} and {}",
                    pair[0].rank,
                    pair[0].path.display(),
                    pair[1].path.display()
                ),
            ));
        }
        Ok(files)
    }
}

/// Returns true if the contents of `path` begin like a text trace.
fn file_begins_as_text_trace(path: &Path) -> bool {
    matches!(sniff_file(path), Some(TraceOrCaptureTextKind::Trace(_)))
}

/// Fails if `path` is a capture that is named like a text trace. Otherwise, commands that read the contents later would
/// report misleading errors.
pub(super) fn refuse_capture(path: &Path) -> Result<(), TraceError> {
    match sniff_file(path) {
        Some(TraceOrCaptureTextKind::Capture(name)) => {
            Err(text::capture_instead_of_trace_error(name).in_file(path))
        }
        _ => Ok(()),
    }
}

/// Classifies the beginning of a file. Returns `None` if the file cannot be read.
fn sniff_file(path: &Path) -> Option<TraceOrCaptureTextKind> {
    let mut first = Vec::new();
    let stream = DecompressedStream::open_path(path).ok()?;
    stream.take(SNIFFED).read_to_end(&mut first).ok()?;
    Some(text::classify_text(&first))
}

/// Builds the error for a folder with several jobs.
pub(super) fn several_jobs_error(folder: &Path, prefixes: &BTreeSet<&str>) -> TraceError {
    const SHOWN: usize = 8;
    let named = prefixes.iter().take(SHOWN);
    let named = named.map(|prefix| folder.join(prefix).display().to_string());
    let named: Vec<String> = named.collect();
    let more = match prefixes.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = named.join(", ");
    let found = format!("the folder contains several jobs; name one: {named}{more}");
    no_traces_error(folder, &found)
}
