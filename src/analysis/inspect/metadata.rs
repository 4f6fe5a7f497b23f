//! The metadata record of a file with all its fields.

use chakram_trace::format::attr::AttrView;
use chakram_trace::format::escape_and_shorten_name;
use chakram_trace::format::wire::{FrameCursor, WireCursor, WireValue};

/// The metadata record of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceMetadataRecord {
    /// Schema version that the file states.
    pub version: String,
    /// Name, type and value (as text) of each attribute. Excludes attributes that name lanes.
    pub attributes: Vec<(String, &'static str, String)>,
}

impl TraceMetadataRecord {
    /// Reads the record from the decompressed contents of a file. Stops at the first field that cannot be decoded.
    pub fn decode_from_trace_contents(contents: &[u8]) -> Self {
        let mut header = Self::default();
        let Ok(Some(record)) = FrameCursor::new(contents).next_record() else {
            return header;
        };
        let mut cursor = WireCursor::new(record.bytes, record.offset);
        while !cursor.is_empty() {
            match cursor.read_field() {
                Ok((1, WireValue::Bytes(text, _))) => {
                    header.version = escape_and_shorten_name(&String::from_utf8_lossy(text));
                }
                Ok((2, WireValue::Bytes(message, at))) => {
                    let Ok(attr) = AttrView::scan_attribute(message, at) else {
                        continue;
                    };
                    let name = String::from_utf8_lossy(attr.name);
                    if name.starts_with("lane.") || name.starts_with("host_lane.") {
                        continue;
                    }
                    let value = attr.value_text().unwrap_or_default();
                    header
                        .attributes
                        .push((name.into_owned(), attr.type_name(), value));
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
        header
    }
}
