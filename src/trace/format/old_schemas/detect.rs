//! Detects a file's schema generation by the rules in the parent module.

use super::SchemaGeneration;
use crate::format::proto::{Int64List, Node, attribute_proto::Value};
use crate::format::schema_layout::{self, MessageLayout};
use crate::format::wire::{FrameCursor, RawRecord, WireCursor, WireValue};
use crate::format::{TraceError, TraceErrorLocation};
use chakram_base::setting::SettingKey;
use prost::Message;

/// The detected generation, and whether the file begins with metadata.
type DetectedGenerationAndMetadataPresence = (SchemaGeneration, bool);

/// Returns true if `first`, a file's first record, is metadata of the current generation, or `None` if the record alone
/// does not settle this.
pub(in crate::format) fn is_current_metadata(first: &[u8]) -> Option<bool> {
    if first.is_empty() {
        return None;
    }
    let mut cursor = WireCursor::new(first, 0);
    let mut telling = false;
    while !cursor.is_empty() {
        match cursor.read_field() {
            Ok((1, WireValue::Bytes(version, _))) => {
                if version.first() == Some(&b'\n') {
                    return Some(false);
                }
                telling = true;
            }
            Ok((1, _)) => return Some(false),
            // Field 2 may also be the name of a node without an id, so check its content.
            Ok((2, WireValue::Bytes(attribute, at))) => {
                if schema_layout::check_message(attribute, at, &schema_layout::ATTRIBUTE).is_err() {
                    return None;
                }
                telling = true;
            }
            Ok(_) => {}
            Err(_) => return None,
        }
    }
    telling.then_some(true)
}

/// A generation that no record has ruled out yet.
struct GenerationCandidate {
    generation: SchemaGeneration,
    metadata: bool,
}

impl GenerationCandidate {
    fn all_candidates() -> impl Iterator<Item = Self> {
        let both = |(generation, _)| {
            [true, false].map(|metadata| Self {
                generation,
                metadata,
            })
        };
        SchemaGeneration::ALL.into_iter().flat_map(both)
    }

    /// Returns why `record` rules out this generation, or `None` if it remains possible.
    fn find_contradiction(&self, record: RawRecord<'_>) -> Option<TraceError> {
        let suits = |layout: &MessageLayout| {
            let fit = schema_layout::check_message(record.bytes, record.offset, layout)?;
            // Only schema 0.0.4 packs lists of dependencies, so an unpacked list rules out 0.0.4.
            let packed = self.generation != SchemaGeneration::V004 || !fit.unusual;
            match (fit.unknown, packed) {
                (true, _) => Err(TraceError::malformed_at(
                    record.offset,
                    "the record has fields that are not in the schema",
                )),
                (_, false) => Err(TraceError::malformed_at(
                    record.offset,
                    "the lists of numbers are not packed",
                )),
                _ => Ok(()),
            }
        };
        if record.number == 0 && self.metadata {
            let mut why =
                TraceError::malformed_at(record.offset, "the generation has no metadata records");
            for layout in self.generation.metadata_layouts() {
                why = suits(layout).err()?;
            }
            return Some(why);
        }
        suits(self.generation.node_layout()).err()
    }
}

/// Detects the generation of `contents`. Returns `None` if the generation is current or unknown.
pub(super) fn detect_generation(
    contents: &[u8],
) -> Result<Option<DetectedGenerationAndMetadataPresence>, TraceError> {
    let mut frames = FrameCursor::new(contents);
    let Ok(Some(first)) = frames.next_record() else {
        return Ok(None);
    };
    if is_current_metadata(first.bytes) == Some(true) {
        return Ok(None);
    }
    let empty = first.bytes.is_empty();
    let mut left: Vec<GenerationCandidate> = GenerationCandidate::all_candidates()
        .filter(|candidate| candidate.find_contradiction(first).is_none())
        // An empty first record is metadata, because old nodes always have an id.
        .filter(|candidate| candidate.metadata || !empty)
        .collect();
    let mut last = first;
    while left.len() > 1 {
        let Ok(Some(record)) = frames.next_record() else {
            break;
        };
        let mut reasons = Vec::new();
        left.retain(|candidate| match candidate.find_contradiction(record) {
            Some(why) => {
                reasons.push(format!(
                    "{}: {}",
                    candidate.generation,
                    why.describe_finding()
                ));
                false
            }
            None => true,
        });
        if left.is_empty() && !empty {
            return Err(contradictory_records_error(record, &reasons));
        }
        last = record;
    }
    let current = |candidate: &GenerationCandidate| candidate.generation == SchemaGeneration::V004;
    match left.as_slice() {
        [] => Ok(None),
        // Files of the current schema may also begin with an empty record.
        _ if empty && left.iter().any(current) => Ok(None),
        [only] => Ok(Some((only.generation, only.metadata))),
        _ => latest_generation_if_all_read_alike(contents, &left, last.number).map(Some),
    }
}

/// Returns the latest of the generations `left` if `contents` mean the same in all of them; fails otherwise.
fn latest_generation_if_all_read_alike(
    contents: &[u8],
    left: &[GenerationCandidate],
    last: usize,
) -> Result<DetectedGenerationAndMetadataPresence, TraceError> {
    let chosen = &left[left.len() - 1];
    let upgraded = |candidate: &GenerationCandidate, record: RawRecord<'_>| {
        let metadata = candidate.metadata && record.number == 0;
        let message = super::upgrade_record(candidate.generation, record, metadata).ok()?;
        if metadata {
            Some((Some(message), None))
        } else {
            Some((
                None,
                Some(to_signed_numbers(Node::decode(&message[..]).ok()?)),
            ))
        }
    };
    let mut frames = FrameCursor::new(contents);
    while let Ok(Some(record)) = frames.next_record() {
        if record.number > last {
            break;
        }
        let expected = upgraded(chosen, record);
        let differs = |candidate: &&GenerationCandidate| {
            candidate.metadata != chosen.metadata || upgraded(candidate, record) != expected
        };
        if left.iter().any(|candidate| differs(&candidate)) {
            return Err(ambiguous_generation_error(record, left));
        }
    }
    Ok((chosen.generation, chosen.metadata))
}

/// Converts unsigned numbers in `node` to signed numbers, so that comparisons ignore signedness.
fn to_signed_numbers(mut node: Node) -> Node {
    for attribute in &mut node.attr {
        match &mut attribute.value {
            Some(Value::Uint64Val(v)) => {
                if let Ok(v) = i64::try_from(*v) {
                    attribute.value = Some(Value::Int64Val(v));
                }
            }
            Some(Value::Uint64List(list)) => {
                let values = list.values.iter().map(|v| i64::try_from(*v));
                if let Ok(values) = values.collect() {
                    attribute.value = Some(Value::Int64List(Int64List { values }));
                }
            }
            _ => {}
        }
    }
    node
}

fn location_of_record(record: RawRecord<'_>) -> TraceErrorLocation {
    TraceErrorLocation {
        record: Some(record.number),
        offset: Some(record.offset),
        ..TraceErrorLocation::default()
    }
}

fn describe_generation_option() -> String {
    let generation = SettingKey::Generation;
    format!(
        "`chakram convert trace` with {generation} and the generation that wrote the file, \
         for example {generation} 0.0.2; `{generation:#} 0.0.4` is the current one"
    )
}

fn ambiguous_generation_error(record: RawRecord<'_>, left: &[GenerationCandidate]) -> TraceError {
    let mut names: Vec<String> = left.iter().map(|c| c.generation.to_string()).collect();
    names.dedup();
    TraceError::invalid_at(
        location_of_record(record),
        format!(
            "no record shows which schema generation of 2023 the trace has: it may be {}, which \
             read this record differently",
            names.join(" or ")
        ),
        describe_generation_option(),
    )
}

fn contradictory_records_error(record: RawRecord<'_>, reasons: &[String]) -> TraceError {
    TraceError::invalid_at(
        location_of_record(record),
        format!(
            "the records of this trace of 2023 contradict one another: this record is not a node \
             in any schema generation that fits the records before it ({})",
            reasons.join("; ")
        ),
        format!(
            "{}; {}, if the file is damaged",
            describe_generation_option(),
            SettingKey::Salvage
        ),
    )
}
