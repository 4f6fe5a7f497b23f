//! Describes where traces come from: the file formats, the facts that a conversion keeps, and how to detect a file's
//! source.

use crate::folder::list_folder;
use crate::goal::GoalSchedule;
use crate::msccl::MscclAlgorithm;
use crate::nsys;
use crate::pytorch::tar::begins_with_tar_header;
use crate::pytorch::{
    CaptureFileKind, describe_foreign_file, describe_foreign_magic, files, sniff_file,
};
use crate::simai::SimaiWorkload;
use crate::text_workload::TextWorkload;
use crate::xplane;
use chakram_base::setting::SettingKey;
use chakram_trace::format::file::DecompressedStream;
use chakram_trace::format::trace_format::detect_text_format;
use chakram_trace::format::wire::{FrameCursor, WireCursor};
use chakram_trace::format::{TraceError, discover_traces, escape_and_shorten_name};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A tool or format whose files can be converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceSource {
    /// PyTorch's host execution traces and Kineto traces.
    Pytorch,
    /// Text workloads of ASTRA-sim 1.0.
    Text,
    /// Text workloads of SimAI.
    Simai,
    /// Profiles of JAX and TensorFlow.
    Xplane,
    /// Reports of Nsight Systems, exported to SQLite.
    Nsys,
    /// MSCCL algorithms.
    Msccl,
    /// GOAL schedules.
    Goal,
    /// Execution traces in any of this program's formats.
    Trace,
}

/// Describes a source to users.
#[derive(Clone, Copy, Debug)]
pub struct SourceDescriptionForUsers {
    /// The source that is described.
    pub source: TraceSource,
    /// Name by which the command line selects the source.
    pub word: &'static str,
    /// Noun phrase for one input, for use in a sentence.
    pub noun: &'static str,
    /// Description of the source's files.
    pub files: &'static str,
    /// Facts that the converted traces keep. Names in braces are keys of settings.
    pub kept: &'static str,
}

impl TraceSource {
    /// All sources, in display order.
    pub const ALL: [SourceDescriptionForUsers; 8] = [
        SourceDescriptionForUsers {
            source: Self::Pytorch,
            word: "pytorch",
            noun: "a capture of PyTorch",
            files: "host execution traces and Kineto traces of a run (.json)",
            kept: "operators, kernels, launches, collectives and messages with their waits, host time, shapes",
        },
        SourceDescriptionForUsers {
            source: Self::Text,
            word: "text",
            noun: "a text workload of ASTRA-sim 1.0",
            files: "a text workload of ASTRA-sim 1.0 (.txt)",
            kept: "compute times and collectives of each layer, in the order that its parallelism says",
        },
        SourceDescriptionForUsers {
            source: Self::Simai,
            word: "simai",
            noun: "a text workload of SimAI",
            files: "a text workload of SimAI, as AICB writes it (.txt)",
            kept: "compute times and collectives of each layer, in tensor, data and expert groups of their own",
        },
        SourceDescriptionForUsers {
            source: Self::Xplane,
            word: "xplane",
            noun: "a profile of JAX or TensorFlow",
            files: "profiles of JAX or TensorFlow (.xplane.pb)",
            kept: "kernels and copies with their times and the calls that launched them, collectives with groups and sizes",
        },
        SourceDescriptionForUsers {
            source: Self::Nsys,
            word: "nsys",
            noun: "an export of Nsight Systems",
            files: "reports of Nsight Systems exported to SQLite (.sqlite)",
            kept: "kernels, copies and the calls that launched them with their times, NVTX ranges, collectives with the sizes that NCCL states",
        },
        SourceDescriptionForUsers {
            source: Self::Msccl,
            word: "msccl",
            noun: "an algorithm of MSCCL",
            files: "an algorithm of MSCCL (.xml)",
            kept: "messages and their order in every thread block, for replays with {custom}",
        },
        SourceDescriptionForUsers {
            source: Self::Goal,
            word: "goal",
            noun: "a schedule in GOAL",
            files: "a schedule in GOAL, as LogGOPSim and its tracers write it (.goal)",
            kept: "calculations, messages and their order; traces of messages can be written as GOAL",
        },
        SourceDescriptionForUsers {
            source: Self::Trace,
            word: "trace",
            noun: "an execution trace",
            files: "execution traces of any schema: .et, JSON Lines, protobuf JSON",
            kept: "everything",
        },
    ];

    fn description(self) -> &'static SourceDescriptionForUsers {
        const ALL: [SourceDescriptionForUsers; 8] = TraceSource::ALL;
        let described = ALL.iter().find(|described| described.source == self);
        described.expect("every source is described")
    }

    /// Returns the source's name on the command line.
    pub fn source_command_word(self) -> &'static str {
        self.description().word
    }

    /// Returns a noun phrase for one input, for use in a sentence.
    pub fn input_noun_phrase(self) -> &'static str {
        self.description().noun
    }

    /// Detects the source of `path` by its contents. `path` is a file, a folder of files, or the common
    /// prefix of a job's traces.
    ///
    /// # Errors
    ///
    /// Fails if `path` cannot be read, or if it belongs to no source.
    pub fn detect_source(path: &Path) -> Result<Self, TraceError> {
        if path.is_dir() {
            return detect_folder_source(path);
        }
        if !path.exists() && discover_traces(path).is_ok() {
            return Ok(Self::Trace);
        }
        match detect_file_source(path)? {
            Ok(source) => Ok(source),
            Err(found) => Err(unknown_source_error(path, found)),
        }
    }

    /// Detects the source that all of `paths` have in common.
    ///
    /// # Errors
    ///
    /// Fails if a path has no source ([`Self::detect_source`]), or if the paths belong to several
    /// sources.
    pub fn detect_common_source(paths: &[PathBuf]) -> Result<Self, TraceError> {
        let mut first: Option<(&PathBuf, Self)> = None;
        for path in paths {
            let source = Self::detect_source(path)?;
            match first {
                Some((other, of)) if of != source => {
                    let found = format!(
                        "this file is of source {}, but {} is of source {}",
                        source.source_command_word(),
                        other.display(),
                        of.source_command_word()
                    );
                    let hint = "files of one source per command";
                    return Err(TraceError::invalid_file(path, found, hint));
                }
                _ => first = Some((path, source)),
            }
        }
        // `paths` is never empty, because the command line requires at least one path.
        Ok(first.map_or(Self::Trace, |(_, source)| source))
    }
}

/// A recognized file or folder. A command that cannot read an input uses this description in its error message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvertibleOrForeignInput {
    /// An input that the converters can read.
    Source(TraceSource),
    /// An input that no converter can read; the value describes the input.
    Foreign(&'static str),
}

impl ConvertibleOrForeignInput {
    /// Recognizes `path`; returns `None` if its contents are unknown or unreadable. A folder is recognized by its
    /// first recognized file.
    pub fn recognize_file(path: &Path) -> Option<Self> {
        match TraceSource::detect_source(path) {
            Ok(source) => Some(Self::Source(source)),
            // Do not describe an empty file, because the readers' own errors explain the problem
            // better.
            Err(_)
                if path
                    .metadata()
                    .is_ok_and(|file| file.is_file() && file.len() > 0) =>
            {
                describe_foreign_file(path).map(Self::Foreign)
            }
            Err(_) => None,
        }
    }
}

/// Number of bytes to read to detect the source. It is large because metadata may precede the events.
const HEAD: u64 = 1 << 20;

/// Returns the source (tool or format) of a file, or a description of the file if its source is
/// unknown.
fn detect_file_source(path: &Path) -> Result<Result<TraceSource, String>, TraceError> {
    let mut head = Vec::new();
    let read = DecompressedStream::open_path(path)?
        .take(HEAD)
        .read_to_end(&mut head);
    if let Err(source) = read
        && head.is_empty()
    {
        return Err(TraceError::from_io(path, "read or decompress", source));
    }
    if matches!(
        sniff_file(path)?,
        CaptureFileKind::Host | CaptureFileKind::Kineto
    ) {
        return Ok(Ok(TraceSource::Pytorch));
    }
    if begins_with_tar_header(&head) {
        return Ok(match files::find_capture_pairs(&[path.to_owned()]) {
            Ok(_) => Ok(TraceSource::Pytorch),
            Err(error) => Err(error.describe_finding()),
        });
    }
    if nsys::begins_as_sqlite(&head) && nsys::is_export(path) {
        return Ok(Ok(TraceSource::Nsys));
    }
    // Check for databases and archives first, because their first bytes could be mistaken for the first record of a
    // trace.
    if let Some(found) = describe_foreign_magic(&head) {
        return Ok(Err(found.to_owned()));
    }
    Ok(detect_source_of_bytes(&head)
        .map_err(|found| describe_foreign_file(path).map_or(found, str::to_owned)))
}

/// Returns the source of a file that begins with `head`. If the source is unknown, returns a
/// description of the file. The caller must have excluded PyTorch's files.
fn detect_source_of_bytes(head: &[u8]) -> Result<TraceSource, String> {
    if TextWorkload::begins_as_text_workload(head) {
        return Ok(TraceSource::Text);
    }
    if SimaiWorkload::begins_as_simai(head) {
        return Ok(TraceSource::Simai);
    }
    if MscclAlgorithm::begins_as_msccl(head) {
        return Ok(TraceSource::Msccl);
    }
    if GoalSchedule::begins_as_goal(head) {
        return Ok(TraceSource::Goal);
    }
    if xplane::begins_as_xplane(head) {
        return Ok(TraceSource::Xplane);
    }
    match detect_text_format(head) {
        Some(Ok(_)) => return Ok(TraceSource::Trace),
        Some(Err(_)) => {
            return Err("JSON that has neither the keys of a trace nor of a capture".to_owned());
        }
        None => {}
    }
    match FrameCursor::new(head).next_record() {
        Ok(Some(record)) if may_begin_trace_record(record.bytes) => Ok(TraceSource::Trace),
        _ => Err(describe_unknown_contents(head)),
    }
}

/// Largest field number that a node or metadata has in any version of the schema.
const MOST_FIELDS: u32 = 16;

/// Returns true if `bytes` may be the beginning of a trace's first record. Text is rejected, because most letters would
/// be keys of fields that are in no schema.
fn may_begin_trace_record(bytes: &[u8]) -> bool {
    let mut record = WireCursor::new(bytes, 0);
    while !record.is_empty() {
        if !matches!(record.read_field(), Ok((1..=MOST_FIELDS, _))) {
            return false;
        }
    }
    !bytes.is_empty()
}

/// Describes contents whose source is unknown.
fn describe_unknown_contents(head: &[u8]) -> String {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = &line[..line.len().min(40)];
    let text = std::str::from_utf8(line).ok();
    match text.filter(|text| text.chars().all(|c| !c.is_control() || c.is_whitespace())) {
        _ if head.is_empty() => "an empty file".to_owned(),
        Some(text) => format!(
            "text that begins with `{}`",
            escape_and_shorten_name(text.trim())
        ),
        None => {
            let bytes = head.iter().take(8).map(|byte| format!("{byte:02x}"));
            let bytes = bytes.collect::<Vec<_>>().join(" ");
            format!("binary data that begins with the bytes {bytes}")
        }
    }
}

/// Returns the source of the folder's first file, by name, whose source is known. If no file has a known source,
/// searches the subfolders for ranks' captures and for JAX profiles.
fn detect_folder_source(path: &Path) -> Result<TraceSource, TraceError> {
    let (files, folders) = list_files_and_subfolders(path)?;
    for file in &files {
        if let Ok(source) = detect_file_source(file)? {
            return Ok(source);
        }
    }
    if xplane::find_profiles(&[path.to_owned()]).is_ok() {
        return Ok(TraceSource::Xplane);
    }
    // If the subfolders have different sources, the folder is not a single capture.
    let mut inside = Vec::new();
    for folder in &folders {
        inside.extend(list_files_and_subfolders(folder)?.0);
    }
    let mut sources = inside
        .iter()
        .filter_map(|file| detect_file_source(file).ok()?.ok());
    if sources.next() == Some(TraceSource::Pytorch) {
        return Ok(TraceSource::Pytorch);
    }
    Err(unknown_source_error(
        path,
        format!(
            "a folder with {} files, none of a known source",
            files.len()
        ),
    ))
}

/// Returns the files and folders directly in a folder, each list sorted by name.
fn list_files_and_subfolders(folder: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), TraceError> {
    let (folders, mut files): (Vec<_>, Vec<_>) = list_folder(folder)?
        .into_iter()
        .partition(|path| path.is_dir());
    files.retain(|path| path.is_file());
    Ok((files, folders))
}

fn unknown_source_error(path: &Path, found: String) -> TraceError {
    let words = TraceSource::ALL.map(|source| source.word).join(", ");
    TraceError::invalid_file(
        path,
        format!("{found}; expected a file of {words}"),
        format!(
            "`chakram convert {:#}` describes the files of each source",
            SettingKey::List
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_trace::format::TraceWriter;

    #[test]
    fn source_command_words_equal_table_words() {
        let words = TraceSource::ALL.map(|described| described.source.source_command_word());
        assert_eq!(words, TraceSource::ALL.map(|described| described.word));
    }

    #[test]
    fn contents_tell_their_source() {
        let trace = TraceWriter::new(Vec::new()).unwrap().into_unflushed_sink();
        assert_eq!(detect_source_of_bytes(&trace), Ok(TraceSource::Trace));
        let lines = b"{\"schema\":\"chakram.trace.1\"}\n";
        assert_eq!(detect_source_of_bytes(lines), Ok(TraceSource::Trace));
        for text in [
            "DATA\n3\n",
            "\u{feff}MICRO\r\n1\r\n",
            "HYBRID_CUSTOMIZED x\n",
        ] {
            assert_eq!(
                detect_source_of_bytes(text.as_bytes()),
                Ok(TraceSource::Text),
                "{text}"
            );
        }
        let simai = b"HYBRID_TRANSFORMER\tep: 1\n";
        assert_eq!(detect_source_of_bytes(simai), Ok(TraceSource::Simai));
        for (text, found) in [
            (&b""[..], "an empty file"),
            (b"DATABASE\n", "text that begins with `DATABASE`"),
            (b"{\"a\": 1}", "JSON that has neither the keys"),
            (
                b"\x7fELF\x02\x01\x01\0",
                "the bytes 7f 45 4c 46 02 01 01 00",
            ),
        ] {
            let why = detect_source_of_bytes(text).unwrap_err();
            assert!(why.contains(found), "{why}");
        }
    }
}
