//! Discovery of a job's captures, and of the pair of files of each rank.

use super::sniff::{CaptureFileKind, sniff};
use crate::trace::TraceError;
use crate::trace::error::TraceLocation;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The pair of files of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturePair {
    /// Rank by the file names, if they have one; otherwise the index among the pairs.
    pub rank: u32,
    /// The host trace.
    pub host: PathBuf,
    /// The Kineto trace.
    pub kineto: PathBuf,
}

/// Finds the pairs among `paths`: files, and folders for their JSON files. A host trace and a Kineto trace are a pair
/// when their names hold the same rank; two files without a rank are one.
///
/// Fails when a file is neither, when one of a pair is missing, and when a rank has two of a kind.
pub fn pairs(paths: &[PathBuf]) -> Result<Vec<CapturePair>, TraceError> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            files.extend(list(path)?);
        } else if path.exists() {
            files.push((path.clone(), true));
        } else {
            files.extend(matching(path)?.into_iter().map(|path| (path, true)));
        }
    }
    files.sort();
    files.dedup();
    let mut kinds = Vec::with_capacity(files.len());
    for (path, named) in files {
        kinds.push((sniff(&path)?, path, named));
    }
    let is = |kind: CaptureFileKind| kinds.iter().any(|(k, ..)| *k == kind);
    if is(CaptureFileKind::Kineto) && !is(CaptureFileKind::Host) {
        let first = kinds
            .iter()
            .find(|(kind, ..)| *kind == CaptureFileKind::Kineto);
        let path = first.map(|(_, path, _)| path.clone()).unwrap_or_default();
        return Err(refused(
            &path,
            with_neighbour(
                "there is no host trace for this Kineto trace, and only the host trace has \
                 operators' arguments"
                    .to_owned(),
                &path,
                &kinds,
            ),
            KINETO_ALONE,
        ));
    }
    let mut found: BTreeMap<Option<u32>, (Option<PathBuf>, Option<PathBuf>)> = BTreeMap::new();
    for (kind, path, named) in kinds.iter().cloned() {
        let slot = found.entry(rank_of(&path)).or_default();
        let slot = match kind {
            CaptureFileKind::Host => &mut slot.0,
            CaptureFileKind::Kineto => &mut slot.1,
            // Folders hold other JSON too, so only files given by name have to be captures.
            CaptureFileKind::Other if !named => continue,
            CaptureFileKind::Other => {
                return Err(refused(
                    &path,
                    "it is neither a host trace (`schema` and `nodes`) nor a Kineto trace \
                     (`traceEvents`)",
                    "pass what ExecutionTraceObserver and export_chrome_trace wrote",
                ));
            }
        };
        if let Some(other) = slot {
            return Err(refused(
                &path,
                format!(
                    "{} is the same kind of file for the same rank",
                    other.display()
                ),
                "pass the files of one run, each rank's host trace and Kineto trace; the rank is the \
                 last number in the name, or after `rank`",
            ));
        }
        *slot = Some(path);
    }
    found.retain(|_, pair| *pair != (None, None));
    let mut out = Vec::new();
    for (place, (rank, pair)) in found.into_iter().enumerate() {
        let rank = rank.unwrap_or(place as u32);
        match pair {
            (Some(host), Some(kineto)) => out.push(CapturePair { rank, host, kineto }),
            (Some(host), None) => {
                let found = format!(
                    "there is no Kineto trace of rank {rank} for this host trace, and only Kineto \
                     has times"
                );
                return Err(refused(
                    &host,
                    with_neighbour(found, &host, &kinds),
                    "pass the file that export_chrome_trace wrote in the same run",
                ));
            }
            (None, Some(kineto)) => {
                let found = format!(
                    "there is no host trace of rank {rank} for this Kineto trace, and only the host \
                     trace has operators' arguments"
                );
                return Err(refused(
                    &kineto,
                    with_neighbour(found, &kineto, &kinds),
                    KINETO_ALONE,
                ));
            }
            (None, None) => unreachable!("such pairs were left out"),
        }
    }
    if out.is_empty() {
        let path = paths.first().cloned().unwrap_or_default();
        return Err(refused(
            &path,
            "no captures here",
            "give a folder with host.0.json, kineto.0.json, host.1.json, …, or the files",
        ));
    }
    Ok(out)
}

const KINETO_ALONE: &str = "capture with profile(execution_trace_observer=ExecutionTraceObserver()…); \
                            Kineto traces alone are not converted";

/// Appends to `found` the file beside `path` that is likely the other of its pair but cannot be identified.
fn with_neighbour(
    found: String,
    path: &Path,
    kinds: &[(CaptureFileKind, PathBuf, bool)],
) -> String {
    let rank = rank_of(path);
    let other = kinds
        .iter()
        .find(|(kind, other, _)| *kind == CaptureFileKind::Other && rank_of(other) == rank);
    match other {
        Some((_, other, _)) => format!(
            "{found}; {} is neither, it may be empty or cut short",
            other.display()
        ),
        None => found,
    }
}

/// Expands a pattern such as `run?/host.*.json`, where no shell has done so; returns the path itself if it is no
/// pattern.
fn matching(path: &Path) -> Result<Vec<PathBuf>, TraceError> {
    let text = path.to_str().filter(|text| text.contains(['*', '?', '[']));
    let Some(pattern) = text else {
        return Ok(vec![path.to_owned()]);
    };
    let found: Vec<PathBuf> = glob::glob(pattern)
        .map_err(|e| {
            let what = format!("it is neither a file nor a pattern: {e}");
            refused(path, what, "write for example 'capture/host.*.json'")
        })?
        .filter_map(Result::ok)
        .filter(|p| p.is_file())
        .collect();
    if found.is_empty() {
        Err(refused(
            path,
            "no file is called like that",
            "give a folder with captures, or their files",
        ))
    } else {
        Ok(found)
    }
}

/// Returns the JSON files directly in a folder.
fn list(folder: &Path) -> Result<Vec<(PathBuf, bool)>, TraceError> {
    let io = |source| TraceError::io(folder.to_owned(), "list", source);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or("");
        if path.is_file() && is_json(name) {
            files.push((path, false));
        }
    }
    Ok(files)
}

fn is_json(name: &str) -> bool {
    [".json", ".json.gz", ".json.zst"]
        .iter()
        .any(|ending| name.ends_with(ending))
}

/// Returns the rank in a file's name: the number after `rank`, or else the last number that stands alone, as in
/// `host.3.json`, `kineto_3.json.gz`, `worker3`.
fn rank_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let stem = name.split(".json").next()?;
    let after = |word: &str| {
        let at = stem.find(word)? + word.len();
        let rest = stem[at..].trim_start_matches(['-', '_', '.', '=']);
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        rest[..digits].parse().ok()
    };
    if let Some(rank) = after("rank").or_else(|| after("worker")) {
        return Some(rank);
    }
    let parts = stem.split(['.', '_', '-']);
    parts
        .filter(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
        .filter_map(|part| part.parse::<u32>().ok())
        .next_back()
}

fn refused(path: &Path, found: impl Into<String>, hint: &str) -> TraceError {
    let place = TraceLocation {
        file: Some(path.to_owned()),
        ..TraceLocation::default()
    };
    TraceError::refused_at(place, found, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_files() {
        let folder = tempfile::tempdir().expect("there is room");
        for name in ["host.0.json", "host.1.json", "kineto.0.json"] {
            std::fs::write(folder.path().join(name), "{}").expect("there is room");
        }
        let found = matching(&folder.path().join("host.*.json")).expect("it is a pattern");
        let names: Vec<_> = found.iter().filter_map(|path| path.file_name()).collect();
        assert_eq!(names, ["host.0.json", "host.1.json"]);
        let none = matching(&folder.path().join("x*")).expect_err("there is none");
        assert!(
            none.to_string().contains("no file is called like that"),
            "{none}"
        );
        assert_eq!(
            matching(Path::new("plain")).expect("it is a path"),
            [Path::new("plain")]
        );
    }

    #[test]
    fn names_hold_ranks() {
        let rank = |name: &str| rank_of(Path::new(name));
        assert_eq!(rank("run/host.3.json.zst"), Some(3));
        assert_eq!(rank("device_12.json"), Some(12));
        assert_eq!(
            rank("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz"),
            Some(34)
        );
        assert_eq!(rank("worker7.json"), Some(7));
        assert_eq!(rank("trace.json"), None);
    }
}
