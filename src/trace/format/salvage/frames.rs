//! Finds the sound records of a damaged binary file.

use super::{LostRange, SalvageReport, SalvagedMessageAndIndex};
use crate::format::schema_layout::{self, MessageLayout, MessageLayoutDeviations};
use crate::format::wire::{MAX_RECORD, RawRecord, WireCursor};
use crate::format::{SchemaGeneration, TraceError, TraceErrorLocation, old_schemas};
use chakram_base::setting::SettingKey;
use prost::encoding::encoded_len_varint;
use std::ops::Range;

/// Number of consecutive sound records required to resume reading.
const CHAIN: usize = 3;
/// The search stops once it has inspected as many bytes as the file has, times this number.
const SCAN_FACTOR: usize = 64;

/// Byte range of a message in the file.
type MessageRange = Range<usize>;

/// The records found in a file when it is read as one schema generation.
struct SalvageUnderAssumedGeneration {
    generation: SchemaGeneration,
    /// The metadata record, if it is sound.
    metadata: Option<MessageRange>,
    nodes: Vec<MessageRange>,
    lost: Vec<(Range<usize>, usize, String)>,
    repaired: Vec<usize>,
    /// Total size in bytes of the nodes without unknown fields.
    known: usize,
}

/// Recovers the metadata and the nodes of `contents`, in the current schema. Adds losses to the report.
pub(super) fn salvage_frames(
    contents: &[u8],
    generation: Option<SchemaGeneration>,
    report: &mut SalvageReport,
) -> Result<(Option<Vec<u8>>, Vec<SalvagedMessageAndIndex>), TraceError> {
    let known = match generation {
        Some(generation) => Some(generation),
        None => match old_schemas::detect_old_schema_generation(contents) {
            Ok(Some(generation)) => Some(generation),
            _ => None,
        },
    };
    let structure = match known {
        Some(generation) => RecordSearch::new(contents, generation).run(),
        None => salvage_best_generation(contents)?,
    };
    let generation = structure.generation;
    report.generation = Some(generation);
    let number = |i: usize| i + usize::from(structure.metadata.is_some());
    let upgraded = |message: &MessageRange, number: usize, metadata: bool| {
        let record = RawRecord {
            number,
            offset: message.start,
            bytes: &contents[message.clone()],
        };
        old_schemas::upgrade_record(generation, record, metadata)
    };
    for (bytes, record, why) in structure.lost {
        report.lost.push(LostRange {
            bytes,
            record,
            line: None,
            why,
        });
    }
    let mut found = Vec::with_capacity(structure.nodes.len());
    for (i, message) in structure.nodes.iter().enumerate() {
        match upgraded(message, number(i), false) {
            Ok(upgraded) => found.push(SalvagedMessageAndIndex {
                message: upgraded,
                record: number(i),
            }),
            Err(error) => report.lost.push(LostRange {
                bytes: message.clone(),
                record: number(i),
                line: None,
                why: error.describe_finding(),
            }),
        }
    }
    report.lost.sort_by_key(|lost| lost.bytes.start);
    for start in structure.repaired {
        let i = structure.nodes.partition_point(|node| node.start < start);
        report.repaired.push((number(i), start));
    }
    let early = |first: &MessageRange| {
        let first = &contents[first.clone()];
        generation != SchemaGeneration::V004
            || old_schemas::is_current_metadata(first) == Some(false)
    };
    let metadata = match &structure.metadata {
        Some(first) if early(first) => upgraded(first, 0, true).ok(),
        Some(first) => Some(contents[first.clone()].to_vec()),
        None => None,
    };
    // The attributes inside well-formed fields can still be damaged.
    let metadata = metadata.filter(|bytes| old_schemas::is_current_metadata_record(bytes));
    // Some old files were written without metadata.
    let headless = structure.metadata.is_none()
        && structure.nodes.first().is_some_and(|node| {
            let length = node.len() as u64;
            node.start == encoded_len_varint(length)
        });
    report.metadata_lost = metadata.is_none() && !headless;
    Ok((metadata, found))
}

/// Returns the records as read with the generation that explains the most bytes. Fails if two generations explain the
/// same number of bytes.
fn salvage_best_generation(contents: &[u8]) -> Result<SalvageUnderAssumedGeneration, TraceError> {
    let mut best = RecordSearch::new(contents, SchemaGeneration::V004).run();
    // Damage rarely destroys more than half of a file, and a wrong generation explains almost none of its bytes. A
    // generation that explains more than half of the file is therefore the right one.
    if best.lost.is_empty() || best.known * 2 > contents.len() {
        return Ok(best);
    }
    let mut tie = None;
    for (generation, _) in SchemaGeneration::ALL {
        if generation == SchemaGeneration::V004 {
            continue;
        }
        let other = RecordSearch::new(contents, generation).run();
        match other.known.cmp(&best.known) {
            std::cmp::Ordering::Greater => (best, tie) = (other, None),
            std::cmp::Ordering::Equal if best.generation != SchemaGeneration::V004 => {
                tie = Some(generation);
            }
            _ => {}
        }
    }
    match tie {
        None => Ok(best),
        Some(other) => Err(TraceError::invalid_at(
            TraceErrorLocation::default(),
            format!(
                "the intact records of this file may be of generation {} or {other}",
                best.generation
            ),
            format!(
                "{} with the generation that wrote the file",
                SettingKey::Generation
            ),
        )),
    }
}

struct RecordSearch<'a> {
    contents: &'a [u8],
    generation: SchemaGeneration,
    /// Number of bytes that the search may still inspect.
    scan_budget: usize,
}

impl<'a> RecordSearch<'a> {
    fn new(contents: &'a [u8], generation: SchemaGeneration) -> Self {
        Self {
            contents,
            generation,
            scan_budget: contents
                .len()
                .saturating_mul(SCAN_FACTOR)
                .saturating_add(1 << 16),
        }
    }

    fn run(mut self) -> SalvageUnderAssumedGeneration {
        let mut found = SalvageUnderAssumedGeneration {
            generation: self.generation,
            metadata: None,
            nodes: Vec::new(),
            lost: Vec::new(),
            repaired: Vec::new(),
            known: 0,
        };
        let mut at = self.read_metadata(&mut found);
        while at < self.contents.len() {
            match self.read_node(at) {
                Ok((message, fit)) => {
                    at = message.end;
                    found.known += if fit.unknown { 0 } else { message.len() };
                    found.nodes.push(message);
                }
                Err(why) => at = self.resynchronize(at, why, &mut found),
            }
        }
        found
    }

    /// Reads the first record if it is metadata, and returns the offset of the record after it.
    fn read_metadata(&mut self, found: &mut SalvageUnderAssumedGeneration) -> usize {
        let Ok(first) = self.read_frame(0) else {
            return 0;
        };
        let bytes = &self.contents[first.clone()];
        let suits = |layout: &MessageLayout| {
            schema_layout::check_message(bytes, first.start, layout).is_ok()
        };
        // A node has an id or a name (fields 1 and 2). A record with neither could also be metadata.
        let is_node =
            schema_layout::check_message(bytes, first.start, self.generation.node_layout())
                .is_ok_and(|fit| !fit.unknown && fit.present & 0b110 != 0);
        if !is_node && self.generation.metadata_layouts().any(suits) {
            let end = first.end;
            // An empty first record counts as metadata only if a sound record or the end of the file follows.
            if !first.is_empty() || end == self.contents.len() || self.read_node(end).is_ok() {
                found.metadata = Some(first);
                return end;
            }
        }
        0
    }

    /// Returns the range of the message that follows the length at `at`.
    fn read_frame(&self, at: usize) -> Result<MessageRange, TraceError> {
        let mut cursor = WireCursor::new(&self.contents[at..], at);
        let length = cursor.read_varint()?;
        let start = cursor.file_offset();
        if length > MAX_RECORD {
            return Err(TraceError::malformed_at(
                at,
                "a length of more than 32 bits",
            ));
        }
        cursor.take_bytes(length)?;
        Ok(start..start + length as usize)
    }

    /// Checks a message against the layout of a node, and deducts the inspected bytes from the search's budget.
    fn check_layout(
        &mut self,
        message: &MessageRange,
    ) -> Result<MessageLayoutDeviations, TraceError> {
        let bytes = &self.contents[message.clone()];
        let fit = schema_layout::check_message(bytes, message.start, self.generation.node_layout());
        let seen = match &fit {
            Ok(_) => message.len(),
            Err(error) => error
                .byte_offset()
                .map_or(0, |at| at.saturating_sub(message.start)),
        };
        self.scan_budget = self.scan_budget.saturating_sub(seen + 1);
        fit
    }

    /// Returns the sound node that follows the length at `at`.
    fn read_node(
        &mut self,
        at: usize,
    ) -> Result<(MessageRange, MessageLayoutDeviations), TraceError> {
        let message = self.read_frame(at)?;
        let fit = self.check_layout(&message)?;
        let certain = !fit.unknown && !fit.unusual && !message.is_empty();
        if certain
            || message.end == self.contents.len()
            || self.read_certain_node_at(message.end).is_some()
        {
            return Ok((message, fit));
        }
        let what = if message.is_empty() {
            "a record without content, and no intact record after it"
        } else {
            "a record with unusual fields, and no intact record after it"
        };
        Err(TraceError::malformed_at(at, what))
    }

    /// Returns the node at `at` if it is certainly a node: it has an id, another field, and nothing unusual.
    fn read_certain_node_at(&mut self, at: usize) -> Option<MessageRange> {
        let message = self.read_frame(at).ok()?;
        if message.is_empty() {
            return None;
        }
        let fit = self.check_layout(&message).ok()?;
        is_certain_node(fit).then_some(message)
    }

    /// Returns true if [`CHAIN`] consecutive records from offset `at` are certainly nodes ([`is_certain_node`]). Fewer
    /// records suffice if the file ends after them.
    fn begins_record_chain(&mut self, mut at: usize) -> bool {
        for linked in 0..CHAIN {
            if at == self.contents.len() {
                return linked > 0;
            }
            match self.read_certain_node_at(at) {
                Some(message) => at = message.end,
                None => return false,
            }
        }
        true
    }

    /// Finds the offset at which reading resumes after the damage at `at`.
    fn resynchronize(
        &mut self,
        at: usize,
        why: TraceError,
        found: &mut SalvageUnderAssumedGeneration,
    ) -> usize {
        let end = self.contents.len();
        let mut next = at + 1;
        while next < end && self.scan_budget > 0 && !self.begins_record_chain(next) {
            next += 1;
        }
        if self.scan_budget == 0 {
            next = end;
        }
        // A record that extends past the end of the file is truncated.
        let cut = next == end && self.read_frame(at).is_err();
        if let Some(message) = self
            .recover_record_if_only_length_is_damaged(at, next)
            .filter(|_| !cut)
        {
            found.repaired.push(message.start);
            found.nodes.push(message);
            return next;
        }
        // A damaged length may have shortened the previous record.
        if let Some(before) = found.nodes.last_mut().filter(|before| before.end == at) {
            let whole = before.start..next;
            if self.is_complete_node_message(&whole) {
                found.repaired.push(whole.start);
                *before = whole;
                return next;
            }
        }
        let record = found.nodes.len() + usize::from(found.metadata.is_some());
        let patience = match self.scan_budget {
            0 => "; the search for intact records after this byte was given up",
            _ => "",
        };
        let why = format!("{}{patience}", why.describe_finding());
        found.lost.push((at..next, record, why));
        next
    }

    /// Returns the record between `at` and `next` if its length is the only damage.
    fn recover_record_if_only_length_is_damaged(
        &mut self,
        at: usize,
        next: usize,
    ) -> Option<MessageRange> {
        // A 32-bit length takes one to five bytes.
        (1..=5).find_map(|length| {
            let message = at.checked_add(length).filter(|start| *start < next)?..next;
            let sound = encoded_len_varint(message.len() as u64) == length;
            (sound && self.is_complete_node_message(&message)).then_some(message)
        })
    }

    /// Returns true if a message is a complete node without unknown fields.
    fn is_complete_node_message(&mut self, message: &MessageRange) -> bool {
        let fit = self.check_layout(message);
        fit.is_ok_and(|fit| !fit.unknown && is_certain_node(fit))
    }
}

fn is_certain_node(fit: MessageLayoutDeviations) -> bool {
    const ID: u64 = 1 << 1;
    !fit.unusual && fit.present & ID != 0 && fit.present != ID
}
