//! Where the records of a trace stood before it was upgraded or read from text.

use super::Place;

/// Where each record came from.
#[derive(Clone, Debug)]
pub(crate) struct Origins(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// Offsets in the file as it lies on disk, and whether a metadata record was put in front.
    Records(Vec<usize>, bool),
    /// Lines and columns.
    Lines(Vec<(u32, u32)>),
}

impl Origins {
    /// Records that stood at these offsets; the first of them was put there if `inserted`.
    pub fn records(offsets: Vec<usize>, inserted: bool) -> Self {
        Self(Kind::Records(offsets, inserted))
    }

    /// Records that stood at these lines and columns.
    pub fn lines(lines: Vec<(u32, u32)>) -> Self {
        Self(Kind::Lines(lines))
    }

    /// The byte at which a record stood, if that is known.
    pub fn offset(&self, record: usize) -> usize {
        match &self.0 {
            Kind::Records(offsets, _) => offsets.get(record).copied().unwrap_or(0),
            Kind::Lines(_) => 0,
        }
    }

    /// Makes a place in what is read now one in what lies on disk.
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
