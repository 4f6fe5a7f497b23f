//! What a trace tells of those who made it: hosts, addresses, paths, people, secrets.
//!
//! Every text of a file is looked at: names of nodes, names, comments and values of attributes, arguments
//! and results, metadata, and unknown fields that are text, however deep they lie. [`find`] says what is
//! found in a text; what gives itself away only by its meaning, such as a project's word in an
//! operator's name, is not.

use crate::trace::TraceError;
use crate::trace::wire::{Cursor, Frames, Raw, Record};
use std::collections::BTreeMap;

mod place;
mod secret;
mod text;

pub use text::{Kind, Leak, find, leaks};

/// Where a text stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Records from the start of the file, the metadata record being 0.
    pub record: usize,
    /// The node's id, unless it is the metadata record.
    pub node: Option<u64>,
    /// Which field.
    pub field: String,
}

/// One leak, however often it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is.
    pub kind: Kind,
    /// The part of the text that tells.
    pub text: String,
    /// The field that it first stands in.
    pub place: Place,
    /// How many times it stands in fields of this name.
    pub count: u64,
}

/// What was found in a file.
#[derive(Debug, Default)]
pub struct Audit {
    found: BTreeMap<(Kind, String, String), Finding>,
    /// Texts that were looked at.
    pub texts: u64,
}

/// How deep unknown messages may nest; deeper ones are looked at as bytes.
const DEEPEST: usize = 12;

/// Attributes whose values tell by themselves.
const TELLING: [(&str, Kind); 14] = [
    ("host", Kind::Host),
    ("hostname", Kind::Host),
    ("host_name", Kind::Host),
    ("hosts", Kind::Host),
    ("node_name", Kind::Host),
    ("nodename", Kind::Host),
    ("user", Kind::User),
    ("username", Kind::User),
    ("user_name", Kind::User),
    ("login", Kind::User),
    ("password", Kind::Secret),
    ("token", Kind::Secret),
    ("secret", Kind::Secret),
    ("api_key", Kind::Secret),
];

impl Audit {
    /// Looks through the (decompressed) `contents` of a trace.
    ///
    /// Fails where the file breaks off: nobody knows what the rest holds.
    pub fn of(contents: &[u8]) -> Result<Self, TraceError> {
        let mut this = Self::default();
        let mut frames = Frames::new(contents);
        while let Some(record) = frames.next_record()? {
            this.record(record)
                .map_err(|e| e.in_record(record.number, record.offset))?;
        }
        Ok(this)
    }

    /// What was found, in the order of the file.
    pub fn findings(self) -> Vec<Finding> {
        let mut list: Vec<Finding> = self.found.into_values().collect();
        list.sort_by(|a, b| (&a.place, a.kind, &a.text).cmp(&(&b.place, b.kind, &b.text)));
        list
    }

    fn record(&mut self, record: Record<'_>) -> Result<(), TraceError> {
        let mut place = Place {
            record: record.number,
            node: None,
            field: String::new(),
        };
        let mut fields = Cursor::new(record.bytes, record.offset);
        while record.number > 0 && !fields.is_empty() {
            if let (1, Raw::Varint(id)) = fields.field()? {
                place.node = Some(id);
            }
        }
        if record.number > 0 {
            place.node.get_or_insert(0);
        }
        let mut cursor = Cursor::new(record.bytes, record.offset);
        while !cursor.is_empty() {
            let (number, raw) = cursor.field()?;
            let Raw::Bytes(bytes, at) = raw else {
                continue;
            };
            match (record.number, number) {
                (0, 1) => self.bytes(bytes, "version", &mut place),
                (0, 2) | (1.., 10) => self.attribute(bytes, at, &mut place),
                (1.., 2) => self.bytes(bytes, "name", &mut place),
                (1.., 4 | 5) => {}
                (1.., 8) => self.io(bytes, at, "inputs", &mut place),
                (1.., 9) => self.io(bytes, at, "outputs", &mut place),
                (_, number) => {
                    self.unknown(bytes, at, &format!("field {number}"), &mut place, 0);
                }
            }
        }
        Ok(())
    }

    fn io(&mut self, message: &[u8], at: usize, which: &str, place: &mut Place) {
        const PARTS: [&str; 3] = ["values", "shapes", "types"];
        self.fields(
            message,
            at,
            place,
            |this, number, bytes, at, place| match PARTS.get((number as usize).wrapping_sub(1)) {
                Some(part) => this.bytes(bytes, &format!("{which}.{part}"), place),
                None => this.unknown(bytes, at, &format!("{which}, field {number}"), place, 0),
            },
        );
    }

    fn attribute(&mut self, message: &[u8], at: usize, place: &mut Place) {
        let mut name = String::new();
        self.fields(message, at, place, |this, number, bytes, _, place| {
            if number == 1 {
                name = String::from_utf8_lossy(bytes).into_owned();
                this.bytes(bytes, "the name of an attribute", place);
            }
        });
        let lower = name.to_ascii_lowercase();
        let told = TELLING.iter().find(|(known, _)| *known == lower);
        let label = format!("attribute `{}`", crate::trace::shown(&name));
        self.fields(message, at, place, |this, number, bytes, at, place| {
            match number {
                1 => {}
                2 => this.bytes(bytes, &format!("the doc_string of {label}"), place),
                29 | 31 => {
                    this.bytes(bytes, &label, place);
                    if let (Some((_, kind)), Ok(text)) = (told, std::str::from_utf8(bytes))
                        && !text.is_empty()
                    {
                        this.add(*kind, text, place);
                    }
                }
                // Packed numbers of lists.
                4..=28 if number % 2 == 0 => {}
                30 | 32 => {
                    this.fields(
                        bytes,
                        at,
                        place,
                        |this, number, bytes, at, place| match number {
                            1 => this.bytes(bytes, &label, place),
                            _ => this.unknown(bytes, at, &label, place, 0),
                        },
                    )
                }
                _ => this.unknown(bytes, at, &format!("{label}, field {number}"), place, 0),
            }
        });
    }

    /// Hands every field of bytes to `each`; where the message breaks off, the rest is bytes of field 0.
    fn fields(
        &mut self,
        message: &[u8],
        at: usize,
        place: &mut Place,
        mut each: impl FnMut(&mut Self, u32, &[u8], usize, &mut Place),
    ) {
        let mut cursor = Cursor::new(message, at);
        while !cursor.is_empty() {
            let start = cursor.offset();
            match cursor.field() {
                Ok((number, Raw::Bytes(bytes, at))) => each(self, number, bytes, at, place),
                Ok(_) => {}
                Err(_) => {
                    self.bytes(&message[start - at..], "what cannot be read", place);
                    return;
                }
            }
        }
    }

    /// Bytes of a field that this version does not know: a message, if it can be read as one, and text
    /// in any case.
    fn unknown(&mut self, bytes: &[u8], at: usize, label: &str, place: &mut Place, depth: usize) {
        self.bytes(bytes, label, place);
        let mut parts = Vec::new();
        let mut cursor = Cursor::new(bytes, at);
        while !cursor.is_empty() {
            match cursor.field() {
                Ok((_, Raw::Bytes(part, at))) => parts.push((part, at)),
                Ok(_) => {}
                Err(_) => return,
            }
        }
        if depth < DEEPEST {
            for (part, at) in parts {
                self.unknown(part, at, label, place, depth + 1);
            }
        }
    }

    /// Looks at what of `bytes` is text.
    fn bytes(&mut self, bytes: &[u8], label: &str, place: &mut Place) {
        place.field.clear();
        place.field.push_str(label);
        self.texts += 1;
        for chunk in bytes.utf8_chunks() {
            for leak in find(chunk.valid()) {
                self.add(leak.kind, leak.text, place);
            }
        }
    }

    fn add(&mut self, kind: Kind, text: &str, place: &Place) {
        let key = (kind, text.to_owned(), place.field.clone());
        let finding = self.found.entry(key).or_insert_with(|| Finding {
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
