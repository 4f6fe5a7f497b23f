//! Finds the captures of a job, and the files of each rank.

use super::sniff::{CaptureFileKind, describe_foreign_file};
use super::tar;
use crate::folder::list_folder;
use chakram_trace::format::{TraceError, escape_and_shorten_name};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod by_process;
mod held;

pub use held::MemoryOnlyInputFiles;
use held::path_for_messages;

/// Files of a rank: a host trace, a Kineto trace, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankCaptureFiles {
    /// Rank that the file names state; the index of the pair if the names contain no rank.
    pub rank: u32,
    /// True if the file names do not identify the rank, so that the capture must state it.
    pub unnumbered: bool,
    /// True if the rank is a guess, because the number in the only capture's name may be a rank or a step.
    pub guessed: bool,
    /// Path of the host trace, if the rank has one.
    pub host: Option<PathBuf>,
    /// Path of the Kineto trace, if the rank has one.
    pub kineto: Option<PathBuf>,
    /// Step times measured without a profiler.
    pub steps: Option<PathBuf>,
    /// The rank's files whose contents are in memory.
    pub held: MemoryOnlyInputFiles,
}

/// Path that stands for a capture from standard input.
pub const PIPE: &str = "-";

fn is_standard_input_path(path: &Path) -> bool {
    path == Path::new(PIPE)
}

/// Name that error messages use for standard input.
const STANDARD_INPUT: &str = "standard input";

impl RankCaptureFiles {
    /// Returns the rank's files on disk.
    pub fn files_on_disk(&self) -> impl Iterator<Item = &Path> {
        let paths = self.host.iter().chain(&self.kineto).chain(&self.steps);
        let paths = paths.map(PathBuf::as_path);
        paths.filter(|path| self.held.get(path).is_none())
    }

    /// Returns the file that messages about the rank should name: the Kineto trace if there is one, otherwise the host
    /// trace.
    pub fn file_to_name_in_messages(&self) -> &Path {
        let file = self.kineto.as_ref().or(self.host.as_ref());
        match file {
            Some(file) if self.held.get(file).is_some() => path_for_messages(file),
            Some(file) => file,
            None => Path::new(""),
        }
    }

    /// Reads one of the rank's files. `read` reads the file from disk; `parse` parses a file that is in memory.
    pub(super) fn parse_held_or_read_file_from_disk<T>(
        &self,
        path: &Path,
        read: fn(&Path) -> Result<T, TraceError>,
        parse: fn(&[u8]) -> Result<T, TraceError>,
    ) -> Result<T, TraceError> {
        match self.held.get(path) {
            Some(bytes) => parse(bytes).map_err(|error| error.in_file(path_for_messages(path))),
            None => read(path),
        }
    }
}

/// Files of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobCaptureFiles {
    /// Files of each rank.
    pub pairs: Vec<RankCaptureFiles>,
    /// Files from folders and archives that are not used, each with the reason: it belongs to another capture, or it is
    /// not a capture.
    pub left_aside: Vec<(PathBuf, String)>,
    /// Archives that were unpacked.
    pub archives: Vec<PathBuf>,
}

/// A file that was found.
#[derive(Clone)]
struct FoundCaptureFile {
    kind: CaptureFileKind,
    /// Rank in the file's name, or `None`.
    rank: Option<u32>,
    path: PathBuf,
    /// True if the user named the file. Other files were found in a folder.
    named: bool,
}

/// Host traces and Kineto traces, by the rank in their names.
type HostAndKinetoFilesByRank = BTreeMap<Option<u32>, [Vec<FoundCaptureFile>; 2]>;

/// Finds the captures in `paths`. Each path is a file, a folder with JSON files, or a tar archive, whose captures are
/// read into memory. A host trace and a Kineto trace form a pair if their names contain the same rank. A single host
/// trace and a single Kineto trace without ranks in their names form a pair, too.
///
/// Fails in three cases: a file that the user named is neither a host trace nor a Kineto trace,
/// only some ranks have times, or a rank has two indistinguishable files of one kind.
pub fn find_capture_pairs(paths: &[PathBuf]) -> Result<JobCaptureFiles, TraceError> {
    find_capture_pairs_with_piped(paths, None)
}

/// Pairs files as [`find_capture_pairs`] does, but reads the capture `piped` in place of [`PIPE`]. If only one other
/// file was found, the piped capture belongs to the same rank.
pub fn find_capture_pairs_with_piped(
    paths: &[PathBuf],
    piped: Option<Arc<[u8]>>,
) -> Result<JobCaptureFiles, TraceError> {
    let mut files = Vec::new();
    for path in paths {
        if piped.is_some() && is_standard_input_path(path) {
            files.push((path.clone(), true));
        } else if path.is_dir() {
            files.extend(list_captures_in_folder_or_subfolders(path)?);
        } else if path.exists() {
            files.push((path.clone(), true));
        } else {
            files.extend(expand_pattern(path)?.into_iter().map(|path| (path, true)));
        }
    }
    // If the user named a file that was also found in a folder, it counts as named.
    files.sort_by(|a, b| (&a.0, !a.1).cmp(&(&b.0, !b.1)));
    files.dedup_by(|later, first| later.0 == first.0);
    let mut held = MemoryOnlyInputFiles::new(piped);
    let mut set = JobCaptureFiles::default();
    let mut files = unpack_archives(files, &mut held, &mut set)?;
    files.sort_by(|a, b| a.0.cmp(&b.0));
    let mut found = Vec::with_capacity(files.len());
    for (path, named) in files {
        let kind = held.detect_file_kind(&path)?;
        let rank = rank_in_name_unless_process_id(&path, kind, &held)?;
        found.push(FoundCaptureFile {
            kind,
            rank,
            path,
            named,
        });
    }
    let beside = match &found[..] {
        [one, other] if is_standard_input_path(&one.path) => other.rank,
        [one, other] if is_standard_input_path(&other.path) => one.rank,
        _ => None,
    };
    let mut ranks = HostAndKinetoFilesByRank::new();
    let mut steps: BTreeMap<Option<u32>, PathBuf> = BTreeMap::new();
    for file in &found {
        let slot = match file.kind {
            CaptureFileKind::Host => 0,
            CaptureFileKind::Kineto => 1,
            CaptureFileKind::Steps => {
                steps.insert(file.rank, file.path.clone());
                continue;
            }
            // Folders may contain other JSON files, so only files that the user named must be captures.
            CaptureFileKind::Other if !file.named => continue,
            CaptureFileKind::Other => {
                let path = path_for_messages(&file.path);
                let what = match describe_foreign_file(path) {
                    Some(what) => format!("it is {what}"),
                    None => "it is neither a host trace (`schema` and `nodes`) nor a Kineto trace \
                             (`traceEvents`)"
                        .to_owned(),
                };
                return Err(TraceError::invalid_file(
                    path,
                    what,
                    "pass what ExecutionTraceObserver and export_chrome_trace wrote",
                ));
            }
        };
        let rank = file.rank.or(beside);
        ranks.entry(rank).or_default()[slot].push(file.clone());
    }
    set.pairs = by_process::take_files_without_distinct_rank(&mut ranks, &held)?;
    for (rank, [hosts, kinetos]) in ranks {
        let host = require_single_file_of_same_process(
            hosts,
            kinetos.first(),
            &held,
            &mut set.left_aside,
        )?;
        let kineto = require_single_file_of_same_process(
            kinetos,
            host.as_ref(),
            &held,
            &mut set.left_aside,
        )?;
        set.pairs.push(RankCaptureFiles {
            rank: rank.unwrap_or(set.pairs.len() as u32),
            unnumbered: false,
            guessed: false,
            host: host.map(|file| file.path),
            kineto: kineto.map(|file| file.path),
            steps: steps.remove(&rank),
            held: held.clone(),
        });
    }
    for path in steps.into_values() {
        let reason = "times of steps of a rank without a capture".to_owned();
        set.left_aside.push((path, reason));
    }
    if let [only] = &mut set.pairs[..] {
        only.guessed = !has_certain_rank_in_name(only.file_to_name_in_messages());
    }
    let Some(first) = set.pairs.first() else {
        let path = paths.first().cloned().unwrap_or_default();
        return Err(TraceError::invalid_file(
            &path,
            format!("no captures here{}", describe_non_capture_files(&found)),
            "give a folder with host.0.json, kineto.0.json, host.1.json, …, or the files",
        ));
    };
    let timed = set
        .pairs
        .iter()
        .filter(|pair| pair.kineto.is_some())
        .count();
    for pair in &set.pairs {
        let missing = match (&pair.host, &pair.kineto) {
            (None, Some(_)) => "host trace",
            (Some(_), None) => "Kineto trace",
            _ => continue,
        };
        if let Some(damaged) = find_unreadable_partner_file(pair, &found) {
            return Err(TraceError::invalid_file(
                pair.file_to_name_in_messages(),
                format!(
                    "rank {} has no {missing}, but the same folder has {}, which is neither kind of \
                     trace; it may be empty or cut short",
                    pair.rank,
                    damaged.display()
                ),
                "copy that file again, or remove it from the folder to convert without it",
            ));
        }
        if pair.kineto.is_none() && timed > 0 {
            return Err(TraceError::invalid_file(
                pair.file_to_name_in_messages(),
                format!(
                    "rank {} has this host trace but no Kineto trace; only Kineto traces have \
                     times, and other ranks have them",
                    pair.rank
                ),
                "pass the file that export_chrome_trace wrote in the same run, or leave the rank out",
            ));
        }
    }
    debug_assert!(
        first.host.is_some() || first.kineto.is_some(),
        "no rank is without files"
    );
    Ok(set)
}

/// Replaces each tar archive in `files` with its captures, whose contents are stored in `held`.
fn unpack_archives(
    files: Vec<(PathBuf, bool)>,
    held: &mut MemoryOnlyInputFiles,
    set: &mut JobCaptureFiles,
) -> Result<Vec<(PathBuf, bool)>, TraceError> {
    let mut all = Vec::with_capacity(files.len());
    for (path, named) in files {
        if !tar::begins_with_tar_header(&held.decompressed_file_beginning(&path)?) {
            all.push((path, named));
            continue;
        }
        let archive = held.unpack_archive(&path)?;
        if archive.captures.is_empty() && named {
            return Err(archive_without_captures_error(&path, &archive.others));
        }
        all.extend(archive.captures.into_iter().map(|path| (path, false)));
        let others = archive.others.into_iter();
        set.left_aside
            .extend(others.map(|path| (path, "no capture".to_owned())));
        set.archives.push(path);
    }
    Ok(all)
}

/// Builds the error for an archive without captures.
fn archive_without_captures_error(path: &Path, others: &[PathBuf]) -> TraceError {
    const SHOWN: usize = 3;
    let inside = |other: &PathBuf| {
        let name = other.strip_prefix(path).unwrap_or(other);
        escape_and_shorten_name(&name.display().to_string())
    };
    let names: Vec<_> = others.iter().take(SHOWN).map(inside).collect();
    let found = match others.len() {
        0 => "a tar archive without files".to_owned(),
        count if count > SHOWN => {
            let more = count - SHOWN;
            format!(
                "a tar archive without captures; it contains {} and {more} more files",
                names.join(", ")
            )
        }
        _ => format!(
            "a tar archive without captures; it contains {}",
            names.join(", ")
        ),
    };
    TraceError::invalid_file(
        path_for_messages(path),
        found,
        "unpack the archive, and convert files of other sources one by one",
    )
}

/// Describes a folder's files that are not captures.
fn describe_non_capture_files(found: &[FoundCaptureFile]) -> String {
    let Some(first) = found.first() else {
        return String::new();
    };
    let name = |file: &FoundCaptureFile| match file.path.file_name() {
        Some(name) => name.display().to_string(),
        None => file.path.display().to_string(),
    };
    let more = match found.len() - 1 {
        0 => String::new(),
        more => format!(", and so are {more} more"),
    };
    if let Some(what) = describe_foreign_file(&first.path) {
        return format!(": {} is {what}{more}", name(first));
    }
    format!(
        ": {} is neither a host trace (`schema` and `nodes`) nor a Kineto trace (`traceEvents`); it may be damaged{more}",
        name(first)
    )
}

/// Returns the only file of one kind among `files` of one rank. If there are several, leaves aside files that come from
/// a different process than `other`. Files that the user named are kept.
fn require_single_file_of_same_process(
    mut files: Vec<FoundCaptureFile>,
    other: Option<&FoundCaptureFile>,
    held: &MemoryOnlyInputFiles,
    left_aside: &mut Vec<(PathBuf, String)>,
) -> Result<Option<FoundCaptureFile>, TraceError> {
    if files.len() > 1
        && let Some(other) = other
        && let Some(pid) = held.read_process_id(&other.path)?
    {
        let mut same = Vec::new();
        for file in &files {
            let own = held.read_process_id(&file.path)?;
            same.push(file.named || own.is_none() || own == Some(pid));
        }
        if same.contains(&true) {
            let mut keep = same.iter();
            let aside = files.iter().zip(&same).filter(|(_, same)| !**same);
            left_aside.extend(aside.map(|(file, _)| {
                let reason = format!("of a different process than {}", other.path.display());
                (file.path.clone(), reason)
            }));
            files.retain(|_| keep.next().copied().unwrap_or(true));
        }
    }
    if let [one, second, ..] = &files[..] {
        return Err(TraceError::invalid_file(
            &second.path,
            format!(
                "{} is the same kind of file for the same rank",
                one.path.display()
            ),
            "pass the files of one run, each rank's host trace and Kineto trace; the rank is the \
             last number in the name, or after `rank`",
        ));
    }
    Ok(files.pop())
}

/// Returns an unreadable file that is probably the one missing from the rank's pair.
fn find_unreadable_partner_file<'f>(
    pair: &RankCaptureFiles,
    found: &'f [FoundCaptureFile],
) -> Option<&'f Path> {
    let name = |path: &Path| {
        path.file_name()
            .and_then(|n| n.to_str())
            .unwrap_or("")
            .to_owned()
    };
    let named = found
        .iter()
        .find(|file| file.path == pair.file_to_name_in_messages());
    let rank = named.and_then(|file| file.rank);
    let missing: &[&str] = match pair.host {
        Some(_) => &["kineto", "device", "trace"],
        None => &["host", "et."],
    };
    let other = found.iter().find(|file| {
        file.kind == CaptureFileKind::Other
            && file.rank == rank
            && missing.iter().any(|word| name(&file.path).contains(word))
    });
    other.map(|file| file.path.as_path())
}

/// Expands a pattern such as `run?/host.*.json`, because some shells do not expand it. Returns
/// `path` itself if it is not a pattern.
fn expand_pattern(path: &Path) -> Result<Vec<PathBuf>, TraceError> {
    let text = path.to_str().filter(|text| text.contains(['*', '?', '[']));
    let Some(pattern) = text else {
        return Ok(vec![path.to_owned()]);
    };
    let found: Vec<PathBuf> = glob::glob(pattern)
        .map_err(|e| {
            let what = format!("this is neither a file nor a valid pattern: {e}");
            TraceError::invalid_file(path, what, "a pattern such as 'capture/host.*.json'")
        })?
        .filter_map(Result::ok)
        .filter(|p| p.is_file())
        .collect();
    if found.is_empty() {
        Err(TraceError::invalid_file(
            path,
            "no file matches this pattern",
            "give a folder with captures, or their files",
        ))
    } else {
        Ok(found)
    }
}

/// Returns the JSON files and archives directly in a folder. If there are none, returns those directly in its
/// subfolders.
fn list_captures_in_folder_or_subfolders(
    folder: &Path,
) -> Result<Vec<(PathBuf, bool)>, TraceError> {
    let (files, folders) = list_capture_files_and_subfolders(folder)?;
    if !files.is_empty() {
        return Ok(files);
    }
    let mut inside = Vec::new();
    for folder in folders {
        inside.extend(list_capture_files_and_subfolders(&folder)?.0);
    }
    Ok(inside)
}

/// A folder's JSON files and archives, each with `false` (not named by the user), and the folder's subfolders.
type CaptureFilesAndSubfolders = (Vec<(PathBuf, bool)>, Vec<PathBuf>);

fn list_capture_files_and_subfolders(
    folder: &Path,
) -> Result<CaptureFilesAndSubfolders, TraceError> {
    let (mut files, mut folders) = (Vec::new(), Vec::new());
    for path in list_folder(folder)? {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or("");
        if path.is_dir() {
            folders.push(path);
        } else if path.is_file() && has_capture_file_ending(name) {
            files.push((path, false));
        }
    }
    Ok((files, folders))
}

fn has_capture_file_ending(name: &str) -> bool {
    const ENDINGS: [&str; 7] = [
        ".json",
        ".json.gz",
        ".json.zst",
        ".tar",
        ".tar.gz",
        ".tgz",
        ".tar.zst",
    ];
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Largest number in a file name that counts as a rank if the word `rank` does not precede it.
/// Larger numbers are assumed to be process ids or times.
const LARGEST: u32 = 99_999;

/// Returns the rank in a capture's name. Profilers put the process id where the rank would be, so a number that equals
/// the capture's process id does not count as a rank.
fn rank_in_name_unless_process_id(
    path: &Path,
    kind: CaptureFileKind,
    held: &MemoryOnlyInputFiles,
) -> Result<Option<u32>, TraceError> {
    let rank = parse_rank_from_file_name(path);
    let capture = matches!(kind, CaptureFileKind::Host | CaptureFileKind::Kineto);
    let by_profiler = path.to_str().is_some_and(|name| name.contains(".pt.trace"));
    match rank {
        // In a container, process ids may be as small as ranks, so compare the number with the process id.
        Some(number)
            if capture && !is_standard_input_path(path) && (by_profiler || number >= 1000) =>
        {
            let pid = held.read_process_id(path)?;
            Ok(rank.filter(|_| pid != Some(u64::from(number))))
        }
        _ => Ok(rank),
    }
}

/// Returns the rank in a file's name: the number after `rank`, or else the last number that stands alone, as in
/// `host.3.json`, `kineto_3.json.gz`, `worker3`. Numbers in versions such as `1.0.2` do not count as ranks. If the
/// file's name has no number, the number after `rank` in the folder's name is used.
fn parse_rank_from_file_name(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let stem = strip_version_numbers(name.split(".json").next()?);
    if let Some(rank) = parse_number_after_rank_or_worker(&stem) {
        return Some(rank);
    }
    let parts = stem.split(['.', '_', '-']);
    parts
        .filter(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
        .filter_map(|part| part.parse::<u32>().ok())
        .rfind(|number| *number <= LARGEST)
        .or_else(|| parse_number_after_rank_or_worker(path.parent()?.file_name()?.to_str()?))
}

/// Returns true if the name of a file has a known form, so that its number is certainly a rank.
fn has_certain_rank_in_name(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return false;
    };
    // chakram's own capture script and Chakra's linker use these names.
    let known = ["host", "kineto", "device"];
    known.iter().any(|word| name.starts_with(word))
        || parse_number_after_rank_or_worker(name).is_some()
}

/// Returns the number after `rank` or `worker` in `text`.
fn parse_number_after_rank_or_worker(text: &str) -> Option<u32> {
    let after = |word: &str| {
        let at = text.find(word)? + word.len();
        let rest = text[at..].trim_start_matches(['-', '_', '.', '=']);
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        rest[..digits].parse().ok()
    };
    after("rank").or_else(|| after("worker"))
}

/// Returns `stem` without runs of three or more numbers separated by dots.
fn strip_version_numbers(stem: &str) -> String {
    let mut out = String::with_capacity(stem.len());
    let mut rest = stem;
    while !rest.is_empty() {
        let run = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let numbers = rest[..run].split('.').filter(|part| !part.is_empty());
        if numbers.count() < 3 {
            out.push_str(&rest[..run]);
        }
        rest = &rest[run..];
        let next = rest.chars().next().map_or(0, char::len_utf8);
        out.push_str(&rest[..next]);
        rest = &rest[next..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glob_pattern_expands_to_matching_files() {
        let folder = tempfile::tempdir().expect("there is room");
        for name in ["host.0.json", "host.1.json", "kineto.0.json"] {
            std::fs::write(folder.path().join(name), "{}").expect("there is room");
        }
        let found = expand_pattern(&folder.path().join("host.*.json")).expect("it is a pattern");
        let names: Vec<_> = found.iter().filter_map(|path| path.file_name()).collect();
        assert_eq!(names, ["host.0.json", "host.1.json"]);
        let none = expand_pattern(&folder.path().join("x*")).expect_err("there is none");
        assert!(
            none.to_string().contains("no file matches this pattern"),
            "{none}"
        );
        assert_eq!(
            expand_pattern(Path::new("plain")).expect("it is a path"),
            [Path::new("plain")]
        );
    }

    #[test]
    fn rank_is_parsed_from_file_name_but_not_from_version_or_time() {
        let rank = |name: &str| parse_rank_from_file_name(Path::new(name));
        assert_eq!(rank("run/host.3.json.zst"), Some(3));
        assert_eq!(rank("device_12.json"), Some(12));
        assert_eq!(
            rank("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz"),
            Some(34)
        );
        assert_eq!(rank("worker7.json"), Some(7));
        assert_eq!(rank("trace.json"), None);
        assert_eq!(rank("run/rank_5/trace.json"), Some(5));
        assert_eq!(rank("run/7/trace.json"), None);
        // Version numbers, process ids and times are not ranks.
        assert_eq!(rank("1.0.2-chakra.0.0.4.json"), None);
        assert_eq!(rank("resnet.1.0.3.host.2.json"), Some(2));
        assert_eq!(rank("gaunernst_bert-small-uncased__1016001.json.gz"), None);
        assert_eq!(rank("result_2869224_1695835535_trace.json"), None);
    }
}
