//! Searches a trace for private information: names of hosts and people, addresses, paths and secrets.
//!
//! The audit searches all text in a file: names of nodes; names, comments and values of attributes; inputs and outputs;
//! metadata; and unknown fields, at any depth. [`find_leaks`] searches a single string. The audit cannot find text that
//! only its meaning makes private, such as a project name within an operator's name.

use chakram_trace::format::TraceError;
use chakram_trace::format::wire::{FrameCursor, RawRecord, WireCursor, WireValue};
use std::collections::BTreeMap;

mod text;

pub use text::{LeakKind, PrivateTextPart, contains_private_information, find_leaks};

/// Location of a string in a trace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TraceStringLocation {
    /// Index of the record, where the metadata record is 0.
    pub record: usize,
    /// Id of the node; `None` for the metadata record.
    pub node: Option<u64>,
    /// Name of the field.
    pub field: String,
}

/// A private string, and how often it occurs in fields of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateStringFinding {
    /// Kind of private information.
    pub kind: LeakKind,
    /// The private part of the string.
    pub text: String,
    /// Location of the first occurrence.
    pub place: TraceStringLocation,
    /// Number of occurrences in fields with this name.
    pub count: u64,
}

/// Findings in one trace file.
#[derive(Debug, Default)]
pub struct TracePrivateStringFindings {
    found: BTreeMap<(LeakKind, String, String), PrivateStringFinding>,
    /// Number of strings that were searched.
    pub texts: u64,
}

/// Unknown messages are decoded up to this nesting depth. Deeper messages are searched as bytes.
const DEEPEST: usize = 12;

/// Attributes whose values are always private.
const SENSITIVE_ATTRIBUTES: [(&str, LeakKind); 14] = [
    ("host", LeakKind::Host),
    ("hostname", LeakKind::Host),
    ("host_name", LeakKind::Host),
    ("hosts", LeakKind::Host),
    ("node_name", LeakKind::Host),
    ("nodename", LeakKind::Host),
    ("user", LeakKind::User),
    ("username", LeakKind::User),
    ("user_name", LeakKind::User),
    ("login", LeakKind::User),
    ("password", LeakKind::Secret),
    ("token", LeakKind::Secret),
    ("secret", LeakKind::Secret),
    ("api_key", LeakKind::Secret),
];

impl TracePrivateStringFindings {
    /// Searches the decompressed `contents` of a trace.
    ///
    /// Fails if the file is truncated, because the missing part may contain private text.
    pub fn search_trace(contents: &[u8]) -> Result<Self, TraceError> {
        let mut this = Self::default();
        let mut frames = FrameCursor::new(contents);
        while let Some(record) = frames.next_record()? {
            this.search_record(record)
                .map_err(|e| e.in_record(record.number, record.offset))?;
        }
        Ok(this)
    }

    /// Returns the findings, sorted by location in the file.
    pub fn into_findings(self) -> Vec<PrivateStringFinding> {
        let mut list: Vec<PrivateStringFinding> = self.found.into_values().collect();
        list.sort_by(|a, b| (&a.place, a.kind, &a.text).cmp(&(&b.place, b.kind, &b.text)));
        list
    }

    fn search_record(&mut self, record: RawRecord<'_>) -> Result<(), TraceError> {
        let mut place = TraceStringLocation {
            record: record.number,
            node: None,
            field: String::new(),
        };
        let mut fields = WireCursor::new(record.bytes, record.offset);
        while record.number > 0 && !fields.is_empty() {
            if let (1, WireValue::Varint(id)) = fields.read_field()? {
                place.node = Some(id);
            }
        }
        if record.number > 0 {
            // If a node has no id field, its id is the default, 0.
            place.node.get_or_insert(0);
        }
        let mut cursor = WireCursor::new(record.bytes, record.offset);
        while !cursor.is_empty() {
            let (number, raw) = cursor.read_field()?;
            let WireValue::Bytes(bytes, at) = raw else {
                continue;
            };
            match (record.number, number) {
                (0, 1) => self.search_bytes(bytes, "version", &mut place),
                (0, 2) | (1.., 10) => self.search_attribute(bytes, at, &mut place),
                (1.., 2) => self.search_bytes(bytes, "name", &mut place),
                // Packed dependencies are numbers, so skip them.
                (1.., 4 | 5) => {}
                (1.., 8) => self.search_io(bytes, at, "inputs", &mut place),
                (1.., 9) => self.search_io(bytes, at, "outputs", &mut place),
                (_, number) => {
                    self.search_unknown_field(bytes, at, &format!("field {number}"), &mut place, 0);
                }
            }
        }
        Ok(())
    }

    fn search_io(
        &mut self,
        message: &[u8],
        at: usize,
        which: &str,
        place: &mut TraceStringLocation,
    ) {
        const PARTS: [&str; 3] = ["values", "shapes", "types"];
        self.visit_length_delimited_fields(message, at, place, |this, number, bytes, at, place| {
            match PARTS.get((number as usize).wrapping_sub(1)) {
                Some(part) => this.search_bytes(bytes, &format!("{which}.{part}"), place),
                None => this.search_unknown_field(
                    bytes,
                    at,
                    &format!("{which}, field {number}"),
                    place,
                    0,
                ),
            }
        });
    }

    fn search_attribute(&mut self, message: &[u8], at: usize, place: &mut TraceStringLocation) {
        let mut name = String::new();
        self.visit_length_delimited_fields(message, at, place, |this, number, bytes, _, place| {
            if number == 1 {
                name = String::from_utf8_lossy(bytes).into_owned();
                this.search_bytes(bytes, "the name of an attribute", place);
            }
        });
        let lower = name.to_ascii_lowercase();
        // Search values in a second pass, because the search depends on the attribute's name, which may come after the
        // values.
        let told = SENSITIVE_ATTRIBUTES
            .iter()
            .find(|(known, _)| *known == lower);
        let label = format!(
            "attribute `{}`",
            chakram_trace::format::escape_and_shorten_name(&name)
        );
        self.visit_length_delimited_fields(message, at, place, |this, number, bytes, at, place| {
            match number {
                1 => {}
                2 => this.search_bytes(bytes, &format!("the doc_string of {label}"), place),
                29 | 31 => {
                    this.search_bytes(bytes, &label, place);
                    if let (Some((_, kind)), Ok(text)) = (told, std::str::from_utf8(bytes))
                        && !text.is_empty()
                    {
                        this.add_finding(*kind, text, place);
                    }
                }
                // Packed numbers contain no text, so skip them.
                4..=28 if number % 2 == 0 => {}
                30 | 32 => this.visit_length_delimited_fields(
                    bytes,
                    at,
                    place,
                    |this, number, bytes, at, place| match number {
                        1 => this.search_bytes(bytes, &label, place),
                        _ => this.search_unknown_field(bytes, at, &label, place, 0),
                    },
                ),
                _ => this.search_unknown_field(
                    bytes,
                    at,
                    &format!("{label}, field {number}"),
                    place,
                    0,
                ),
            }
        });
    }

    /// Calls `each` for every length-delimited field of a message; if the message is broken, searches the unreadable
    /// rest as bytes.
    fn visit_length_delimited_fields(
        &mut self,
        message: &[u8],
        at: usize,
        place: &mut TraceStringLocation,
        mut each: impl FnMut(&mut Self, u32, &[u8], usize, &mut TraceStringLocation),
    ) {
        let mut cursor = WireCursor::new(message, at);
        while !cursor.is_empty() {
            let start = cursor.file_offset();
            match cursor.read_field() {
                Ok((number, WireValue::Bytes(bytes, at))) => each(self, number, bytes, at, place),
                Ok(_) => {}
                Err(_) => {
                    self.search_bytes(&message[start - at..], "the unreadable part", place);
                    return;
                }
            }
        }
    }

    /// Searches an unknown field as text and, if it can be decoded as a message, field by field.
    fn search_unknown_field(
        &mut self,
        bytes: &[u8],
        at: usize,
        label: &str,
        place: &mut TraceStringLocation,
        depth: usize,
    ) {
        self.search_bytes(bytes, label, place);
        let mut parts = Vec::new();
        let mut cursor = WireCursor::new(bytes, at);
        while !cursor.is_empty() {
            match cursor.read_field() {
                Ok((_, WireValue::Bytes(part, at))) => parts.push((part, at)),
                Ok(_) => {}
                Err(_) => return,
            }
        }
        if depth < DEEPEST {
            for (part, at) in parts {
                self.search_unknown_field(part, at, label, place, depth + 1);
            }
        }
    }

    /// Searches those parts of `bytes` that are valid UTF-8.
    fn search_bytes(&mut self, bytes: &[u8], label: &str, place: &mut TraceStringLocation) {
        place.field.clear();
        place.field.push_str(label);
        self.texts += 1;
        for chunk in bytes.utf8_chunks() {
            for leak in find_leaks(chunk.valid()) {
                self.add_finding(leak.kind, leak.text, place);
            }
        }
    }

    fn add_finding(&mut self, kind: LeakKind, text: &str, place: &TraceStringLocation) {
        let key = (kind, text.to_owned(), place.field.clone());
        let finding = self
            .found
            .entry(key)
            .or_insert_with(|| PrivateStringFinding {
                kind,
                text: text.to_owned(),
                place: place.clone(),
                count: 0,
            });
        finding.count += 1;
    }
}

#[cfg(test)]
mod tests;
