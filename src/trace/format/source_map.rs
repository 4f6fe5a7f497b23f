//! Maps the records of a trace that was upgraded or read from text to their original locations.

use super::{TraceError, TraceErrorLocation};

/// Original location of each record.
#[derive(Clone, Debug)]
pub struct OriginalRecordLocations(RecordOffsetsOrTextLines);

#[derive(Clone, Debug)]
enum RecordOffsetsOrTextLines {
    /// Byte offsets of the records in the original file, and whether a metadata record was inserted at the start.
    Records(Vec<usize>, bool),
    /// Lines and columns of the records in the original text.
    Lines(Vec<(u32, u32)>),
}

impl OriginalRecordLocations {
    /// Creates a map for records at these byte offsets. If `inserted` is true, the first record has no original
    /// location.
    pub fn from_record_offsets(offsets: Vec<usize>, inserted: bool) -> Self {
        Self(RecordOffsetsOrTextLines::Records(offsets, inserted))
    }

    /// Creates a map for records at these lines and columns.
    pub fn from_lines(lines: Vec<(u32, u32)>) -> Self {
        Self(RecordOffsetsOrTextLines::Lines(lines))
    }

    /// Returns the byte offset of a record in the original file, or 0 if the original is text.
    pub fn original_offset(&self, record: usize) -> usize {
        match &self.0 {
            RecordOffsetsOrTextLines::Records(offsets, _) => {
                offsets.get(record).copied().unwrap_or(0)
            }
            RecordOffsetsOrTextLines::Lines(_) => 0,
        }
    }

    /// Translates a location in the converted contents to the original file.
    pub fn relocate(&self, place: &mut TraceErrorLocation) {
        let Some(record) = place.record else {
            return;
        };
        match &self.0 {
            RecordOffsetsOrTextLines::Records(offsets, inserted) => {
                place.offset = offsets.get(record).copied();
                place.record = record.checked_sub(usize::from(*inserted));
            }
            RecordOffsetsOrTextLines::Lines(lines) => {
                let line = lines.get(record);
                place.line = line.map(|&(line, column)| (line as usize, column as usize));
                (place.record, place.offset) = (None, None);
            }
        }
    }
}

impl TraceError {
    /// Translates an error's location to the original file, using `origins`.
    #[must_use]
    pub fn relocate_to_origin(mut self, origins: &OriginalRecordLocations) -> Self {
        if let Some(place) = self.location_mut() {
            origins.relocate(place);
        }
        self
    }
}
