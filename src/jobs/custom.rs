//! Loads custom collectives. A custom algorithm has one trace per member.

use super::input::describe_input_with_hash;
use chakram_astra_sim::custom_algorithm::{self, AstraOrRecordedScriptDurations};
use chakram_base::setting::SettingKey;
use chakram_hardware::collective::{NamedScriptedAlgorithm, ScriptFault, ScriptedAlgorithm};
use chakram_report::summary::HashedInput;
use chakram_trace::format::file::{DecompressedTraceFile, RankFile, discover_traces};
use chakram_trace::format::scan::{self, TraceMetadata};
use chakram_trace::format::wire::FrameCursor;
use chakram_trace::format::{CollectiveKind, TraceError, TraceErrorLocation};
use std::path::{Path, PathBuf};

/// Files that define a custom algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomCollectiveAlgorithmFiles {
    /// Kind of collective that uses this algorithm.
    pub kind: CollectiveKind,
    /// Prefix of the files `PREFIX.P.et`, one per position P.
    pub prefix: PathBuf,
}

/// Loads the algorithms from the files that `args` names. If hashes are requested, adds these files
/// to `inputs`.
///
/// # Errors
///
/// Fails if a position has no file, or if a file is invalid or does not match the files of the other
/// positions.
pub fn load_custom_algorithms(
    args: &[CustomCollectiveAlgorithmFiles],
    mut inputs: Option<&mut Vec<HashedInput>>,
) -> Result<Vec<NamedScriptedAlgorithm>, TraceError> {
    let mut load = |arg: &CustomCollectiveAlgorithmFiles| {
        let files = find_algorithm_files(&arg.prefix)?;
        let contents = files.iter().map(DecompressedTraceFile::open_verified);
        let contents: Vec<DecompressedTraceFile> = contents.collect::<Result<_, _>>()?;
        if let Some(inputs) = &mut inputs {
            let all = files.iter().zip(&contents);
            inputs.extend(
                all.map(|(file, c)| describe_input_with_hash("custom", &file.path, c.as_slice())),
            );
        }
        let scripts = parse_algorithm_from_file_contents(
            &contents,
            AstraOrRecordedScriptDurations::Recorded,
        )?;
        let matched = scripts.with_matched_labels();
        let purpose = read_stated_purpose(&contents[0])?;
        if let Some(stated) = purpose.algorithm_of.filter(|stated| *stated != arg.kind) {
            return Err(TraceError::invalid_file(
                &files[0].path,
                format!(
                    "an algorithm for {stated}, but it is given for {}",
                    arg.kind
                ),
                SettingKey::Custom.format_with_value(format!("{stated}={}", arg.prefix.display())),
            ));
        }
        Ok(NamedScriptedAlgorithm {
            kind: arg.kind,
            buffer: purpose.algorithm_bytes,
            name: arg.prefix.display().to_string(),
            scripts: matched.map_err(|fault| fault_to_error(fault, &scripts, &files))?,
        })
    };
    args.iter().map(&mut load).collect()
}

/// Reads the metadata of an algorithm's first file, which may state the collective and its size.
fn read_stated_purpose(first: &DecompressedTraceFile) -> Result<TraceMetadata, TraceError> {
    let record = FrameCursor::new(first.as_slice()).next_record();
    let read = record.and_then(|record| record.map(scan::read_metadata).transpose());
    read.map(Option::unwrap_or_default)
        .map_err(|error| first.locate_error_in_original_file(error))
}

/// Parses an algorithm from `contents`, the contents of its files sorted by position.
pub fn parse_algorithm_from_file_contents(
    contents: &[DecompressedTraceFile],
    timing: AstraOrRecordedScriptDurations,
) -> Result<ScriptedAlgorithm, TraceError> {
    let bytes: Vec<&[u8]> = contents
        .iter()
        .map(DecompressedTraceFile::as_slice)
        .collect();
    custom_algorithm::build_algorithm_from_traces(&bytes, timing).map_err(|(position, error)| {
        contents[position as usize].locate_error_in_original_file(error)
    })
}

/// Returns the files of an algorithm: one file per position, starting with 0, and at least two
/// files.
fn find_algorithm_files(prefix: &Path) -> Result<Vec<RankFile>, TraceError> {
    let files = discover_traces(prefix)?;
    let missing = (0..).zip(&files).find(|(p, file)| *p != file.rank);
    let missing = missing.map(|(position, _)| position);
    // A single member has no partner for its messages, so a single file must be a mistake.
    let missing = missing.or((files.len() == 1).then_some(1));
    let Some(position) = missing else {
        return Ok(files);
    };
    let beside = &files[0].path;
    Err(TraceError::invalid_file(
        prefix,
        format!(
            "the file {} exists, but there is no file for position {position}",
            beside.display()
        ),
        "the prefix of at least two files PREFIX.P.et, one for each position P from 0",
    ))
}

/// Converts `fault` to an error that states the file and the position in the file.
fn fault_to_error(
    fault: ScriptFault,
    scripts: &ScriptedAlgorithm,
    files: &[RankFile],
) -> TraceError {
    let (position, part, found, hint) = match fault {
        ScriptFault::UnknownPeer {
            position,
            part,
            peer,
        } => (
            position,
            part,
            format!("peer {peer} has no file; there are {} files", files.len()),
            "a position in the group, counted from 0",
        ),
        ScriptFault::Unpaired {
            position,
            part,
            peer,
            receive,
        } => (
            position,
            part,
            if receive {
                format!("position {peer} has no send for this receive")
            } else {
                format!("position {peer} has no receive for this send")
            },
            "a receive for each send, with the same tag and size",
        ),
        ScriptFault::Cycle { position, part } => (
            position,
            part,
            "the node waits, through other positions, for itself".to_owned(),
            "a send before a receive at one of the positions; sends do not wait for their receivers",
        ),
    };
    let place = TraceErrorLocation {
        file: Some(files[position as usize].path.clone()),
        node: Some(scripts.script_of_position(position).op_id(part)),
        ..TraceErrorLocation::default()
    };
    TraceError::invalid_at(place, found, hint)
}
