//! Which files of a folder are the traces of a job.

use super::Stream;
use crate::trace::text::{self, Seen};
use crate::trace::{Place, TraceError};
use std::io::Read;
use std::path::{Path, PathBuf};

/// One rank's trace file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankFile {
    /// The rank, from the file's name.
    pub rank: u32,
    /// The file.
    pub path: PathBuf,
}

/// The endings that a trace file may have after `{prefix}.{rank}`, best first. Of a job that is there
/// with several of them, the files with the first are the traces. With the last a file may hold anything, so
/// it counts only if its first bytes are those of a trace.
pub(super) const ENDINGS: [&str; 4] = [".et", ".eg", ".jsonl", ".json"];
const ANYTHING: &str = ".json";
/// What may follow.
pub(super) const PACKED: [&str; 3] = ["", ".gz", ".zst"];

/// How much of a file is looked at to see whether it is a trace.
const SNIFFED: u64 = 1 << 16;

/// The rank in a file name `{prefix}.{rank}.et`, with the prefix and the place of the ending.
fn split_name(name: &str) -> Option<(&str, u32, usize)> {
    let name = PACKED[1..]
        .iter()
        .find_map(|end| name.strip_suffix(end))
        .unwrap_or(name);
    let mut endings = (0..).zip(ENDINGS);
    let (ending, stem) =
        endings.find_map(|(place, ending)| Some((place, name.strip_suffix(ending)?)))?;
    let (prefix, rank) = stem.rsplit_once('.')?;
    let plain = !rank.is_empty() && rank.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| rank.parse().ok().map(|rank| (prefix, rank, ending)))?
}

/// The rank in a file's name `{prefix}.{rank}.et`, whatever its form.
pub fn rank_of(name: &str) -> Option<u32> {
    split_name(name).map(|(_, rank, _)| rank)
}

/// Whether `path` begins as a trace in text does.
fn begins_as_trace(path: &Path) -> bool {
    let mut first = Vec::new();
    let read = Stream::open(path).map(|stream| stream.take(SNIFFED).read_to_end(&mut first));
    matches!(read, Ok(Ok(_))) && matches!(text::sniff(&first), Seen::Trace(_))
}

/// Finds the trace files that `path` means: a folder with traces of one job, one file of the job
/// (then only that one), or the prefix that the files of a job share. Sorted by rank.
///
/// Of files with several endings those with the best one are taken: `.et`, then `.eg` as tools called it
/// in 2023, `.jsonl`, and `.json`. Any of them may be compressed.
///
/// Fails when there is none, when a folder holds several jobs, or when a rank has two files.
pub fn discover(path: &Path) -> Result<Vec<RankFile>, TraceError> {
    let name_of = |p: &Path| p.file_name().and_then(|n| n.to_str()).map(str::to_owned);
    if path.is_file() {
        let rank = name_of(path).and_then(|n| rank_of(&n));
        return match rank {
            Some(rank) => Ok(vec![RankFile {
                rank,
                path: path.to_owned(),
            }]),
            None => Err(not_found(path, "the name is not `PREFIX.RANK.et`")),
        };
    }
    let (folder, wanted) = if path.is_dir() {
        (path.to_owned(), None)
    } else {
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        (parent, name_of(path))
    };
    let listing = std::fs::read_dir(&folder)
        .map_err(|source| TraceError::io(folder.clone(), "list", source))?;
    let mut all: [Vec<(String, RankFile)>; ENDINGS.len()] = Default::default();
    for entry in listing {
        let entry = entry.map_err(|source| TraceError::io(folder.clone(), "list", source))?;
        let name = entry.file_name();
        let Some((prefix, rank, ending)) = name.to_str().and_then(split_name) else {
            continue;
        };
        let path = entry.path();
        // A pipe of that name would never end. What the listing says need not be asked for again.
        let kind = entry.file_type();
        let plain = kind.is_ok_and(|kind| kind.is_file() || kind.is_symlink() && path.is_file());
        if wanted.as_deref().is_none_or(|w| w == prefix) && plain {
            all[ending].push((prefix.to_owned(), RankFile { rank, path }));
        }
    }
    let best = all.iter().position(|found| !found.is_empty());
    let mut found = best
        .map(|best| std::mem::take(&mut all[best]))
        .unwrap_or_default();
    if best.is_some_and(|best| ENDINGS[best] == ANYTHING) {
        found.retain(|(_, file)| begins_as_trace(&file.path));
    }
    found.sort();
    let Some((prefix, _)) = found.first() else {
        return Err(not_found(path, "no file is named `PREFIX.RANK.et`"));
    };
    if let Some((other, _)) = found.iter().find(|(p, _)| p != prefix) {
        return Err(not_found(
            path,
            &format!(
                "the folder holds several jobs; name one, for example {} or {}",
                folder.join(prefix).display(),
                folder.join(other).display()
            ),
        ));
    }
    let files: Vec<RankFile> = found.into_iter().map(|(_, file)| file).collect();
    if let Some(pair) = files.windows(2).find(|pair| pair[0].rank == pair[1].rank) {
        return Err(not_found(
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

fn not_found(path: &Path, why: &str) -> TraceError {
    let place = Place {
        file: Some(path.to_owned()),
        ..Place::default()
    };
    TraceError::refused_at(
        place,
        format!("no traces here: {why}"),
        "give a folder, a file, or the prefix of files named PREFIX.0.et, PREFIX.1.et, … (or .jsonl, .json)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_split_into_prefix_and_rank() {
        assert_eq!(split_name("a.b.12.et"), Some(("a.b", 12, 0)));
        assert_eq!(split_name("a.0.et.zst"), Some(("a", 0, 0)));
        assert_eq!(split_name("a.0.jsonl.gz"), Some(("a", 0, 2)));
        assert_eq!(split_name("a.1.json"), Some(("a", 1, 3)));
        for bad in [
            "a.et",
            "a.+1.et",
            "a.x.et",
            "a.1.json.xz",
            "a..et",
            "a.99999999999.et",
        ] {
            assert_eq!(split_name(bad), None, "{bad}");
        }
    }
}
