//! The output files of one command. No output may replace an input, and no file is written twice. A job's files appear
//! together.

use super::output::{OutputFile, UncommittedOutputFile, sync_folder};
use super::target::{FileSpecialOrDescriptorTarget, file_identity, parent_folder};
use super::temporary::{DeferredSignalsGuard, remove_stale_files};
use crate::format::TraceError;
use crate::format::file::ExpectedFileLengthAndHash;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The output files of one command, and the inputs that they must not replace.
#[derive(Debug, Default)]
pub struct OutputsAndProtectedInputs {
    /// Inputs whose file identity (device and inode) has not been read yet. The identity is needed only in the rare
    /// case that an output already exists.
    unnumbered: Vec<PathBuf>,
    /// Input paths, keyed by file identity.
    inputs: BTreeMap<(u64, u64), PathBuf>,
    /// Claimed paths, with all links resolved.
    claimed: BTreeSet<PathBuf>,
    swept: BTreeSet<PathBuf>,
    closed: Vec<UncommittedOutputFile>,
}

/// An output's exclusive right to write a file.
#[derive(Debug)]
pub struct OutputClaim {
    path: PathBuf,
    target: FileSpecialOrDescriptorTarget,
}

/// Handle of a complete file that waits for the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompleteUncommittedFileHandle {
    index: usize,
    /// Length of the file, and its hash if requested.
    pub seal: ExpectedFileLengthAndHash,
}

impl OutputClaim {
    /// Creates the file.
    pub fn create_file(&self) -> Result<OutputFile, TraceError> {
        OutputFile::create(&self.path, &self.target)
    }
}

impl OutputsAndProtectedInputs {
    /// Registers `path` as an input of the command, if it is a file.
    pub fn register_input(&mut self, path: &Path) {
        self.unnumbered.push(path.to_owned());
    }

    /// Returns the input path that refers to the same file as `path`; `None` if there is none.
    fn find_same_input(&mut self, path: &Path) -> Option<&PathBuf> {
        let sought = file_identity(path)?;
        for input in self.unnumbered.drain(..).filter(|input| input.is_file()) {
            if let Some(identity) = file_identity(&input) {
                self.inputs.entry(identity).or_insert(input);
            }
        }
        self.inputs.get(&sought)
    }

    /// Claims `path` for one output of the command. Writes nothing, but removes stale temporary files of earlier runs.
    ///
    /// Fails if the file is already an input or output of the command, or if no file can be created at `path`.
    pub fn claim_path(&mut self, path: &Path) -> Result<OutputClaim, TraceError> {
        let target = FileSpecialOrDescriptorTarget::resolve_target(path)?;
        let name = match &target {
            FileSpecialOrDescriptorTarget::File(to, before) => {
                if let Some(input) = before.as_ref().and_then(|_| self.find_same_input(path)) {
                    let found = if input == path {
                        "this command reads the file, so it cannot write it".to_owned()
                    } else {
                        format!(
                            "this is the file {}, which this command reads, so it cannot write it",
                            input.display()
                        )
                    };
                    return Err(TraceError::invalid_file(path, found, "another name"));
                }
                if self.swept.insert(parent_folder(to).to_owned()) {
                    remove_stale_files(parent_folder(to));
                }
                let parent = parent_folder(to).canonicalize();
                match (parent, to.file_name()) {
                    (Ok(parent), Some(name)) => Some(parent.join(name)),
                    _ => Some(to.clone()),
                }
            }
            // Several outputs may share a device such as `/dev/null`, so claim nothing.
            FileSpecialOrDescriptorTarget::Special(true) => None,
            FileSpecialOrDescriptorTarget::Special(false) => {
                path.canonicalize().ok().or(Some(path.to_owned()))
            }
            FileSpecialOrDescriptorTarget::Descriptor(_) => Some(path.to_owned()),
        };
        if name.is_some_and(|name| !self.claimed.insert(name)) {
            let found = "two outputs of this command have this path".to_owned();
            return Err(TraceError::invalid_file(
                path,
                found,
                "another path for one of the outputs",
            ));
        }
        Ok(OutputClaim {
            path: path.to_owned(),
            target,
        })
    }

    /// Claims `path` and creates the file.
    pub fn create_file(&mut self, path: &Path) -> Result<OutputFile, TraceError> {
        self.claim_path(path)?.create_file()
    }

    /// Finishes writing `file`, which then waits for [`OutputsAndProtectedInputs::commit_all`].
    pub fn close_file_and_queue_for_commit(
        &mut self,
        file: OutputFile,
    ) -> Result<CompleteUncommittedFileHandle, TraceError> {
        Ok(self.queue_for_commit(file.close()?))
    }

    /// Creates `path` with the contents of `written`: as a hard link if `link` is true and the system supports hard
    /// links, otherwise as a copy. Returns `None` if `written` is a device.
    pub fn duplicate_as(
        &mut self,
        written: CompleteUncommittedFileHandle,
        path: &Path,
        link: bool,
    ) -> Result<Option<CompleteUncommittedFileHandle>, TraceError> {
        let claim = self.claim_path(path)?;
        let again = self.closed[written.index].duplicate_as(path, &claim.target, link)?;
        Ok(again.map(|closed| self.queue_for_commit(closed)))
    }

    fn queue_for_commit(&mut self, closed: UncommittedOutputFile) -> CompleteUncommittedFileHandle {
        self.closed.push(closed);
        CompleteUncommittedFileHandle {
            index: self.closed.len() - 1,
            seal: self.closed[self.closed.len() - 1].seal,
        }
    }

    /// Makes the contents of all waiting files durable (synced to disk). The files are synced concurrently: file
    /// systems batch concurrent syncs, so syncing all files takes little longer than syncing one.
    fn sync_all(&self) -> Result<(), TraceError> {
        const AT_ONCE: usize = 16;
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                match self.closed.get(next.fetch_add(1, Ordering::Relaxed)) {
                    Some(closed) => closed.sync_contents()?,
                    None => return Ok(()),
                }
            }
        };
        thread::scope(|scope| {
            let others = (1..AT_ONCE.min(self.closed.len())).map(|_| scope.spawn(work));
            let others: Vec<_> = others.collect();
            let mut result = work();
            for other in others {
                result = result.and(other.join().expect("syncing does not panic"));
            }
            result
        })
    }

    /// Renames all waiting files to their final paths, in the order in which they were written.
    ///
    /// Fails if a file cannot be renamed. The error lists which files were already replaced and which are unchanged.
    pub fn commit_all(mut self) -> Result<(), TraceError> {
        self.sync_all()?;
        let _renaming = DeferredSignalsGuard::defer_signals_until_drop();
        let mut done = 0;
        while done < self.closed.len() {
            if let Err(error) = self.closed[done].rename_into_place() {
                let (new, old) = self.closed.split_at(done);
                return Err(partial_commit_error(error, new, old));
            }
            done += 1;
        }
        let folders: BTreeSet<&Path> = self
            .closed
            .iter()
            .filter_map(UncommittedOutputFile::parent_folder)
            .collect();
        folders.into_iter().try_for_each(sync_folder)
    }
}

/// Builds the error for the case that the first file in `old` cannot be renamed after the files in `new` have been.
fn partial_commit_error(
    error: TraceError,
    new: &[UncommittedOutputFile],
    old: &[UncommittedOutputFile],
) -> TraceError {
    let because =
        std::error::Error::source(&error).map_or(String::new(), |cause| format!(": {cause}"));
    let names = |files: &[UncommittedOutputFile]| match files {
        [] => "none".to_owned(),
        [one] => one.path.display().to_string(),
        [first, .., last] => format!(
            "{} to {} ({} files)",
            first.path.display(),
            last.path.display(),
            files.len()
        ),
    };
    let found = format!(
        "the finished file cannot be renamed to its final name{because}\n  written: {}\n  unchanged: {}",
        names(new),
        names(old)
    );
    TraceError::invalid_file(
        &old[0].path,
        found,
        "the same command again, when the cause is removed",
    )
}

/// Returns the path `PREFIX.MIDDLE` with `ending` appended.
pub fn join_prefix_middle_and_ending(prefix: &Path, middle: impl Display, ending: &str) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(format!(".{middle}{ending}"));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;

    /// After the second of three output names is claimed, a folder is created under this name, so no file can get the
    /// name.
    #[test]
    fn a_commit_that_fails_halfway_says_what_is_new() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut outputs = OutputsAndProtectedInputs::default();
        for name in ["a", "b", "c"] {
            let mut file = outputs.create_file(&at(name)).unwrap();
            file.write_all(name.as_bytes()).unwrap();
            outputs.close_file_and_queue_for_commit(file).unwrap();
        }
        fs::create_dir(at("b")).unwrap();
        let error = outputs.commit_all().unwrap_err().to_string();
        for part in [
            "b: the finished file cannot be renamed to its final name".to_owned(),
            format!("written: {}", at("a").display()),
            format!(
                "unchanged: {} to {} (2 files)",
                at("b").display(),
                at("c").display()
            ),
        ] {
            assert!(error.contains(&part), "{part} in {error}");
        }
        assert_eq!(fs::read(at("a")).unwrap(), b"a");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "a and b");
    }

    #[test]
    fn duplicated_output_is_a_hard_link_or_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut outputs = OutputsAndProtectedInputs::default();
        let mut file = outputs.create_file(&at("a")).unwrap().with_digest();
        file.write_all(b"text").unwrap();
        let first = outputs.close_file_and_queue_for_commit(file).unwrap();
        assert_eq!(first.seal.blake3, Some(*blake3::hash(b"text").as_bytes()));
        let link = outputs
            .duplicate_as(first, &at("b"), true)
            .unwrap()
            .unwrap();
        let copy = outputs
            .duplicate_as(first, &at("c"), false)
            .unwrap()
            .unwrap();
        assert_eq!([link.seal, copy.seal], [first.seal; 2]);
        outputs.commit_all().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| file_identity(&at(name)));
        assert!(cfg!(not(unix)) || a == b && a != c);
        assert_eq!(fs::read(at("c")).unwrap(), b"text");
    }
}
