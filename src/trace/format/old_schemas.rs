//! Upgrades traces of 2023. Their schema's generations (versions) are 0.0.1, 0.0.2 and 0.0.3, and the files do not
//! state a version number.
//!
//! Opening an old file *upgrades* it: its records become records of the current schema, and all later code sees only
//! the upgraded records. Record numbers in error messages still refer to the original file.
//!
//! # Detecting the generation
//!
//! No field states the generation, so the reader infers it from the records' fields and their wire types. A record
//! *rules out* a generation if it is not a valid message of this generation: if it has an unknown field, a wrong wire
//! type, text that is not UTF-8, or a number outside an enum.
//!
//! 1. The file is current (0.0.4 or 1.0.0) if its first record is metadata of these versions: either a record whose
//!    `version` (field 1) is not an attribute, or a record with attributes in field 2. This check cannot err, and
//!    current files need no other check. Old nodes begin with their id (field 1, a varint). Old metadata has attributes
//!    in field 1. The bytes of an attribute begin with a line feed, whereas a version never does.
//! 2. In all other files, the candidates are the generations in which the first record is a valid node or valid
//!    metadata. If there are no candidates, the reader treats the file as current and reports the error.
//! 3. Each further record may rule out more candidates, until one is left. The remaining generation is certain, because
//!    every other generation is ruled out by some record.
//! 4. If several candidates are left at the end of the file, the reader upgrades the file as each of these generations.
//!    The reader accepts the file if all results are identical. If the results differ, the reader rejects the file, and
//!    the error names the first record whose meaning depends on the generation. If no candidate is left, the error
//!    names the record that ruled out the last candidate.
//!
//! Several features distinguish generations. Fields 5 to 10 contain numbers in 0.0.1, but text in later generations. A
//! node's attributes are in field 11 up to 0.0.3 and in field 10 in 0.0.4. Inside an attribute, field 4 is a float in
//! 0.0.2 and a boolean in 0.0.3; field 7 is text before 5 August 2023 and a number since. 0.0.4 packs lists of
//! dependencies; earlier generations do not. The reader also detects and upgrades two variants of 0.0.4: files without
//! a metadata record, and files from the first days of 0.0.4, with attributes in field 1 of the metadata.
//!
//! # Mapping of old fields
//!
//! In simulators of 2023, nodes waited for their `parent`, so `parent` becomes `data_deps`. The upgrade renumbers node
//! types and collectives. Fixed fields of 0.0.1 become attributes with the names and types that tools use today.
//! `simulated_run_time` and the attribute `runtime` become `duration_micros` (read as microseconds), and `is_host_op`
//! becomes `is_cpu_op`.

use super::proto::GlobalMetadata;
use super::schema_layout::{self, MessageLayout};
use super::wire::{FrameCursor, RawRecord};
use super::{OriginalRecordLocations, TraceError};
use chakram_base::setting::SettingKey;
use prost::Message;
use std::fmt;

mod detect;
mod v001;
mod v002;

pub(super) use detect::is_current_metadata;

/// Schema version of upgraded files.
const CURRENT: &str = "0.0.4";

/// Returns the hint for records that are invalid in the file's generation.
fn other_generation_hint() -> String {
    format!(
        "another {} of `chakram convert trace`, or {}",
        SettingKey::Generation,
        SettingKey::Salvage
    )
}

/// Returns true if `bytes` are a valid metadata record of the current schema.
pub(super) fn is_current_metadata_record(bytes: &[u8]) -> bool {
    GlobalMetadata::decode(bytes).is_ok()
}

/// One generation of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SchemaGeneration {
    /// January to June 2023: nodes have fixed fields instead of attributes.
    V001,
    /// 27 June to 7 July 2023: nodes have attributes.
    V002,
    /// 7 July to 5 August 2023: adds metadata nodes and boolean attributes.
    V003A,
    /// 5 August to 10 October 2023: adds unsigned attributes.
    V003B,
    /// Since 10 October 2023: the current schema; 1.0.0 is identical.
    V004,
}

impl SchemaGeneration {
    /// All generations of the schema, with their names.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::V001, "0.0.1"),
        (Self::V002, "0.0.2"),
        (Self::V003A, "0.0.3a"),
        (Self::V003B, "0.0.3b"),
        (Self::V004, "0.0.4"),
    ];

    /// Returns the generation called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(_, known)| *known == name);
        found.map(|(generation, _)| *generation)
    }

    /// Returns the layout of node messages in this generation.
    pub(super) fn node_layout(self) -> &'static MessageLayout {
        match self {
            Self::V001 => &schema_layout::NODE_001,
            Self::V002 => &schema_layout::NODE_002,
            Self::V003A => &schema_layout::NODE_003A,
            Self::V003B => &schema_layout::NODE_003B,
            Self::V004 => &schema_layout::NODE,
        }
    }

    /// Returns the possible layouts of metadata records in this generation.
    pub(super) fn metadata_layouts(self) -> impl Iterator<Item = &'static MessageLayout> {
        let layouts: [Option<&MessageLayout>; 2] = match self {
            Self::V001 | Self::V002 => [None, None],
            Self::V003A => [Some(&schema_layout::METADATA_003A), None],
            Self::V003B => [Some(&schema_layout::METADATA_003B), None],
            Self::V004 => [
                Some(&schema_layout::METADATA),
                Some(&schema_layout::EARLY_METADATA),
            ],
        };
        layouts.into_iter().flatten()
    }

    /// Returns true if `first`, the first record of a file, is metadata rather than a node.
    fn first_record_is_metadata(self, first: &[u8]) -> bool {
        let suits = |layout: &MessageLayout| {
            schema_layout::check_message(first, 0, layout).is_ok_and(|fit| !fit.unknown)
        };
        let mut metadata = self.metadata_layouts();
        if first.is_empty() {
            // Old nodes always have an id, so an empty record is metadata.
            metadata.next().is_some()
        } else {
            !suits(self.node_layout()) && metadata.any(suits)
        }
    }
}

impl fmt::Display for SchemaGeneration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// A file of an older generation, converted to the current schema.
#[derive(Debug)]
pub struct UpgradedTraceWithOriginalLocations {
    /// Contents of the converted file.
    pub bytes: Vec<u8>,
    /// Generation of the original file.
    pub generation: SchemaGeneration,
    /// Original locations of the file's records.
    pub(super) origins: OriginalRecordLocations,
}

/// Upgrades the decompressed `contents` of a file; `generation` overrides detection. Returns `None` if the contents are
/// already current, or are not a trace.
///
/// Fails if no single generation fits the records, or if a record is invalid in its generation.
pub fn upgrade_contents(
    contents: &[u8],
    generation: Option<SchemaGeneration>,
) -> Result<Option<UpgradedTraceWithOriginalLocations>, TraceError> {
    let concluded = generation.is_none();
    let (generation, has_metadata) = match generation {
        None => match detect::detect_generation(contents)? {
            Some(found) => found,
            None => return Ok(None),
        },
        Some(generation) => {
            let Some(first) = FrameCursor::new(contents).next_record()? else {
                return Ok(None);
            };
            // A file of schema 0.0.4 needs a conversion only if it has no metadata or is from the first days of 0.0.4.
            if generation == SchemaGeneration::V004 && !v004_file_needs_upgrade(first.bytes) {
                return Ok(None);
            }
            (generation, generation.first_record_is_metadata(first.bytes))
        }
    };
    // Upgraded records are larger, because fixed fields become attributes with names.
    let mut bytes = Vec::with_capacity(contents.len() + contents.len() / 4);
    let mut origins = Vec::new();
    if !has_metadata {
        push_framed(&mut bytes, &default_metadata_record());
        origins.push(0);
    }
    let mut frames = FrameCursor::new(contents);
    while let Some(record) = frames.next_record()? {
        let first = has_metadata && record.number == 0;
        let message = upgrade_record(generation, record, first).map_err(|e| {
            let e = if concluded {
                e.with_cause(&format!(
                    "the records before this one are of generation {generation}; if that is wrong, \
                     use {} of `chakram convert trace`; if the file is damaged, use {}",
                    SettingKey::Generation,
                    SettingKey::Salvage
                ))
            } else {
                e
            };
            e.in_record(record.number, record.offset)
        })?;
        push_framed(&mut bytes, &message);
        origins.push(record.offset);
    }
    Ok(Some(UpgradedTraceWithOriginalLocations {
        bytes,
        generation,
        origins: OriginalRecordLocations::from_record_offsets(origins, !has_metadata),
    }))
}

/// Returns true if a file of schema 0.0.4 needs an upgrade. The first record of such a file is a node, or metadata as
/// in the first days of 0.0.4.
fn v004_file_needs_upgrade(first: &[u8]) -> bool {
    let suits = |layout: &MessageLayout| {
        schema_layout::check_message(first, 0, layout).is_ok_and(|fit| !fit.unknown)
    };
    let certain = first.is_empty() || is_current_metadata(first) == Some(true);
    !certain && (suits(&schema_layout::NODE) || suits(&schema_layout::EARLY_METADATA))
}

/// Detects the generation of `contents`. Returns `None` if the generation is current or unknown.
pub(super) fn detect_old_schema_generation(
    contents: &[u8],
) -> Result<Option<SchemaGeneration>, TraceError> {
    Ok(detect::detect_generation(contents)?.map(|(generation, _)| generation))
}

/// Returns the metadata record for a file that has none.
pub(super) fn default_metadata_record() -> Vec<u8> {
    let metadata = GlobalMetadata {
        version: CURRENT.to_owned(),
        attr: Vec::new(),
    };
    metadata.encode_to_vec()
}

pub(super) fn push_framed(out: &mut Vec<u8>, message: &[u8]) {
    prost::encoding::encode_varint(message.len() as u64, out);
    out.extend_from_slice(message);
}

/// Converts one record of `generation` to the current schema.
pub(super) fn upgrade_record(
    generation: SchemaGeneration,
    record: RawRecord<'_>,
    metadata: bool,
) -> Result<Vec<u8>, TraceError> {
    let attributes: &v002::OldValueKindsByField = match generation {
        SchemaGeneration::V001 => return Ok(v001::convert_node(record)?.encode_to_vec()),
        SchemaGeneration::V002 => &v002::ATTRIBUTES_002,
        SchemaGeneration::V003A => &v002::ATTRIBUTES_003A,
        SchemaGeneration::V003B => &v002::ATTRIBUTES_003B,
        SchemaGeneration::V004 if metadata => return v002::convert_early_v004_metadata(record),
        SchemaGeneration::V004 => return Ok(record.bytes.to_vec()),
    };
    if metadata {
        return Ok(v002::convert_v003_metadata(record, attributes)?.encode_to_vec());
    }
    Ok(v002::convert_v002_or_v003_node(record, generation, attributes)?.encode_to_vec())
}

/// Decodes a text field.
fn decode_text(bytes: &[u8], at: usize) -> Result<String, TraceError> {
    let text = std::str::from_utf8(bytes).map(str::to_owned);
    text.map_err(|_| TraceError::malformed_at(at, "a text that is not UTF-8"))
}
