//! Original locations of the records of a trace that was upgraded or read from text.

use super::Place;

/// Original location of each record.
#[derive(Clone, Debug)]
pub(crate) struct Origins(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// Byte offsets in the original file, and whether a metadata record was inserted in front.
    Records(Vec<usize>, bool),
    /// Lines and columns of the original text.
    Lines(Vec<(u32, u32)>),
}

impl Origins {
    /// Creates a map of records at these offsets; the first of them was inserted if `inserted`.
    pub fn records(offsets: Vec<usize>, inserted: bool) -> Self {
        Self(Kind::Records(offsets, inserted))
    }

    /// Creates a map of records at these lines and columns.
    pub fn lines(lines: Vec<(u32, u32)>) -> Self {
        Self(Kind::Lines(lines))
    }

    /// Returns the byte offset of a record in the original; 0 if it is a text.
    pub fn offset(&self, record: usize) -> usize {
        match &self.0 {
            Kind::Records(offsets, _) => offsets.get(record).copied().unwrap_or(0),
            Kind::Lines(_) => 0,
        }
    }

    /// Translates a location in the converted contents into one in the original.
    pub fn relocate(&self, place: &mut Place) {
        let Some(record) = place.record else {
            return;
        };
        match &self.0 {
            Kind::Records(offsets, inserted) => {
                place.offset = offsets.get(record).copied();
                place.record = record.checked_sub(usize::from(*inserted));
            }
            Kind::Lines(lines) => {
                let line = lines.get(record);
                place.line = line.map(|&(line, column)| (line as usize, column as usize));
                (place.record, place.offset) = (None, None);
            }
        }
    }
}
