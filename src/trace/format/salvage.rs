//! Recovers damaged traces, and reports exactly what was lost.
//!
//! The format has no checksums, and a record's position depends on the lengths of all records before it. A record's
//! content therefore decides whether it is sound. A record is *sound* if it is a valid message of its generation: it
//! has only known fields with their wire types, singular fields at most once, text in UTF-8, and enums in range. A
//! record with unknown or unordered fields is sound only if the next record is also sound. Salvage keeps all
//! well-formed data. A bit flip inside a number or a name cannot be detected, because the result is another valid
//! number or name.
//!
//! If no sound record begins at a byte, reading resumes at the next position where three consecutive sound records
//! begin. Fewer records suffice if they extend to the end of the file. If the skipped bytes are only a wrong length,
//! and a sound record follows it, salvage keeps the record. Otherwise the skipped bytes are lost.
//!
//! An empty record is a node with id 0 and default values in all other fields. Salvage keeps a single empty record
//! between sound records, but drops several in a row as a range of zero bytes.
//!
//! Salvage drops a record whose id has already occurred. If anything was lost, salvage also drops dependencies on
//! missing nodes, even if these nodes never existed.

use super::text::{JsonLineReader, JsonTraceFormat};
use super::trace_format::{self, TraceFormat};
use super::wire::{WireCursor, WireValue, visit_repeated_varints};
use super::{SchemaGeneration, TraceError, old_schemas};
use chakram_base::setting::SettingKey;
use prost::encoding::{WireType, encode_key, encode_varint};
use std::collections::BTreeSet;
use std::ops::Range;

mod frames;

/// A part of a file that was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// Byte range of the record, or of the whole line in a text file.
    pub bytes: Range<usize>,
    /// Number of sound records before the lost part.
    pub record: usize,
    /// Line number, if the file is text.
    pub line: Option<usize>,
    /// Reason why the bytes could not be recovered.
    pub why: String,
}

/// Counts the recovered records, and lists the lost parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvageReport {
    /// The file's schema generation, or `None` for a text file.
    pub generation: Option<SchemaGeneration>,
    /// Number of nodes that salvage kept.
    pub nodes: usize,
    /// Lost parts, in file order.
    pub lost: Vec<LostRange>,
    /// Records that were kept although their lengths were damaged: (record index, byte offset).
    pub repaired: Vec<(usize, usize)>,
    /// True if the metadata record was lost. An empty record replaces the lost metadata record.
    pub metadata_lost: bool,
    /// Nodes that were dropped because an earlier node has the same id: (record, id).
    pub duplicate_ids: Vec<(usize, u64)>,
    /// Dependencies on missing nodes: (node, missing node, true for a data dependency).
    pub dangling: Vec<(u64, u64, bool)>,
    /// True if the dangling dependencies were kept in the result.
    pub dangling_kept: bool,
    /// Number of empty records that were kept, as nodes with default values.
    pub empty: usize,
}

impl SalvageReport {
    /// Returns true if the file had no damage at all.
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty()
            && self.repaired.is_empty()
            && self.duplicate_ids.is_empty()
            && !self.metadata_lost
    }

    /// Returns the detected format of the file.
    pub fn detected_format(&self) -> TraceFormat {
        match self.generation {
            Some(generation) => TraceFormat::Et(generation),
            None => TraceFormat::Text(JsonTraceFormat::JsonLines),
        }
    }

    /// Returns the total number of bytes lost.
    pub fn bytes_lost(&self) -> usize {
        self.lost.iter().map(|lost| lost.bytes.len()).sum()
    }
}

/// Options that control a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SalvageSchemaAndDanglingOptions {
    /// Schema generation of the file, or `None` if it is unknown.
    pub generation: Option<SchemaGeneration>,
    /// True if dependencies on missing nodes are kept.
    pub keep_dangling: bool,
}

/// A recovered record: its message in the current schema, and its index in the file.
struct SalvagedMessageAndIndex {
    message: Vec<u8>,
    record: usize,
}

/// Recovers a damaged trace. Returns the contents of a valid file in the current schema, and a report. `contents` must
/// be decompressed.
///
/// Fails if no record is sound, or if the sound records do not determine one generation. Also fails on text other than
/// JSON Lines.
pub fn salvage_trace(
    contents: &[u8],
    options: SalvageSchemaAndDanglingOptions,
) -> Result<(Vec<u8>, SalvageReport), TraceError> {
    let mut report = SalvageReport {
        dangling_kept: options.keep_dangling,
        ..SalvageReport::default()
    };
    let (metadata, found) = match trace_format::detect_text_format(contents) {
        Some(Ok(JsonTraceFormat::JsonLines)) => salvage_lines(contents, &mut report),
        Some(Ok(_)) => {
            return Err(TraceError::invalid_at(
                super::TraceErrorLocation::default(),
                "the text is a single JSON value, from which no part can be salvaged",
                format!(
                    "use {} with .et files and JSON Lines only",
                    SettingKey::Salvage
                ),
            ));
        }
        Some(Err(error)) => return Err(error),
        None => frames::salvage_frames(contents, options.generation, &mut report)?,
    };
    if metadata.is_none() && found.is_empty() {
        return Err(TraceError::malformed_at(
            0,
            "the file contains no intact record of an execution trace",
        ));
    }
    let mut out = Vec::with_capacity(contents.len());
    old_schemas::push_framed(
        &mut out,
        &metadata.unwrap_or_else(old_schemas::default_metadata_record),
    );
    let mut ids = BTreeSet::new();
    let mut kept: Vec<(u64, Vec<u8>)> = Vec::with_capacity(found.len());
    for SalvagedMessageAndIndex { message, record } in found {
        let id = read_node_id(&message);
        if ids.insert(id) {
            report.empty += usize::from(message.is_empty());
            kept.push((id, message));
        } else {
            report.duplicate_ids.push((record, id));
        }
    }
    report.nodes = kept.len();
    let whole = report.is_whole();
    for (id, message) in &kept {
        let missing = if whole {
            Vec::new()
        } else {
            find_dangling_dependencies(message, *id, &ids)
        };
        if missing.is_empty() || options.keep_dangling {
            old_schemas::push_framed(&mut out, message)
        } else {
            old_schemas::push_framed(
                &mut out,
                &copy_node_without_missing_dependencies(message, &ids),
            )
        }
        report.dangling.extend(missing);
    }
    Ok((out, report))
}

/// Recovers the records of a JSON Lines file. Invalid lines are lost.
fn salvage_lines(
    text: &[u8],
    report: &mut SalvageReport,
) -> (Option<Vec<u8>>, Vec<SalvagedMessageAndIndex>) {
    let mut metadata = None;
    let mut found = Vec::new();
    let mut at = 0;
    let mut record = Vec::new();
    let mut number = 0;
    for (line, bytes) in (1..).zip(text.split_inclusive(|byte| *byte == b'\n')) {
        let range = at..at + bytes.len();
        at = range.end;
        // Use a new reader for each line, because only the reader of the first line expects metadata.
        let mut reader = JsonLineReader::new(bytes);
        if line > 1 {
            reader.treat_metadata_as_already_read();
        }
        match reader.next_record(&mut record) {
            Ok(None) => {}
            Ok(Some(_)) if line == 1 => {
                metadata = Some(std::mem::take(&mut record));
                number += 1;
            }
            Ok(Some(_)) => {
                found.push(SalvagedMessageAndIndex {
                    message: std::mem::take(&mut record),
                    record: number,
                });
                number += 1;
            }
            Err(error) => report.lost.push(LostRange {
                bytes: range,
                record: number,
                line: Some(line),
                why: error.describe_finding(),
            }),
        }
    }
    report.metadata_lost = metadata.is_none();
    (metadata, found)
}

/// Returns the id of a sound node.
fn read_node_id(message: &[u8]) -> u64 {
    let mut cursor = WireCursor::new(message, 0);
    while !cursor.is_empty() {
        match cursor.read_field() {
            Ok((1, WireValue::Varint(id))) => return id,
            Ok(_) => {}
            Err(_) => break,
        }
    }
    0
}

/// Returns a sound node's dependencies that are not in `ids`.
fn find_dangling_dependencies(
    message: &[u8],
    id: u64,
    ids: &BTreeSet<u64>,
) -> Vec<(u64, u64, bool)> {
    let mut missing = Vec::new();
    let mut cursor = WireCursor::new(message, 0);
    while !cursor.is_empty() {
        let Ok((number, raw)) = cursor.read_field() else {
            break;
        };
        if let 4 | 5 = number {
            let each = |dep| {
                if !ids.contains(&dep) {
                    missing.push((id, dep, number == 5));
                }
                Ok(())
            };
            // Decoding cannot fail, because the record is already validated.
            let _ = visit_repeated_varints(raw, 0, each);
        }
    }
    missing
}

/// Copies a sound node without the dependencies that are missing from `ids`.
fn copy_node_without_missing_dependencies(message: &[u8], ids: &BTreeSet<u64>) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len());
    let mut cursor = WireCursor::new(message, 0);
    while !cursor.is_empty() {
        let start = cursor.file_offset();
        let Ok((number, raw)) = cursor.read_field() else {
            break;
        };
        if !matches!(number, 4 | 5) {
            out.extend_from_slice(&message[start..cursor.file_offset()]);
            continue;
        }
        let mut left = Vec::new();
        let _ = visit_repeated_varints(raw, 0, |dep| {
            if ids.contains(&dep) {
                encode_varint(dep, &mut left);
            }
            Ok(())
        });
        if !left.is_empty() {
            encode_key(number, WireType::LengthDelimited, &mut out);
            encode_varint(left.len() as u64, &mut out);
            out.extend_from_slice(&left);
        }
    }
    out
}
