//! Stores records that an edit replaces and that the inverse edit cannot compute, such as recorded reductions of
//! gradient buckets.
//!
//! The replaced records are stored in an attribute of the metadata record. If all edits of a trace cancel each other,
//! the stored records are restored.

use chakram_trace::format::TraceError;
use chakram_trace::format::encoder::append_frame;
use chakram_trace::format::wire::FrameCursor;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Attribute of the metadata record that stores the replaced records.
pub(super) const KEPT: &str = "unedited_records";

/// Replaced records with their indices in the unedited trace, and the number of records in the unedited trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OriginalRecordsToRestore {
    count: usize,
    records: BTreeMap<usize, Vec<u8>>,
}

impl OriginalRecordsToRestore {
    /// Returns the records of `before` that differ in `again`, which is the trace after an edit and its inverse.
    /// Returns `None` if `before` and `again` have different numbers of records, because they cannot be compared one by
    /// one then.
    pub fn find_records_changed_by_undone_edit(
        before: &[u8],
        again: &[u8],
    ) -> Result<Option<Self>, TraceError> {
        let mut this = Self::default();
        let [mut before, mut again] = [before, again].map(FrameCursor::new);
        loop {
            match (before.next_record()?, again.next_record()?) {
                (Some(old), Some(new)) => {
                    if old.bytes != new.bytes {
                        this.records.insert(this.count, old.bytes.to_vec());
                    }
                    this.count += 1;
                }
                (None, None) => return Ok(Some(this)),
                _ => return Ok(None),
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Parses the value of the attribute [`KEPT`]; `None` if the value is invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let count = words.next()?.parse().ok()?;
        let records = words.map(|word| {
            let (index, digits) = word.split_once(':')?;
            let pairs = digits.as_bytes().chunks(2).map(|pair| {
                let pair = std::str::from_utf8(pair).ok()?;
                u8::from_str_radix(pair, 16).ok()
            });
            Some((index.parse().ok()?, pairs.collect::<Option<Vec<u8>>>()?))
        });
        Some(Self {
            count,
            records: records.collect::<Option<_>>()?,
        })
    }

    /// Formats the value of the attribute [`KEPT`].
    pub fn to_text(&self) -> String {
        let mut text = self.count.to_string();
        for (index, record) in &self.records {
            let _ = write!(text, " {index}:");
            for byte in record {
                let _ = write!(text, "{byte:02x}");
            }
        }
        text
    }

    /// Returns `trace` with the stored records at their original indices. Returns `trace` unchanged if it has more or
    /// fewer records than the unedited trace.
    pub fn put_back(&self, trace: Vec<u8>) -> Result<Vec<u8>, TraceError> {
        let mut out = Vec::with_capacity(trace.len());
        let (mut frames, mut count) = (FrameCursor::new(&trace), 0);
        while let Some(record) = frames.next_record()? {
            let kept = self.records.get(&count);
            append_frame(&mut out, kept.map_or(record.bytes, |kept| kept.as_slice()));
            count += 1;
        }
        Ok(if count == self.count { out } else { trace })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame_records(records: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        records
            .iter()
            .for_each(|record| append_frame(&mut out, record));
        out
    }

    #[test]
    fn undoing_an_edit_restores_the_original_records_that_differ() {
        let before = frame_records(&[b"meta", b"one", b"two", b"three"]);
        let again = frame_records(&[b"meta", b"one", b"other", b"three"]);
        let kept = OriginalRecordsToRestore::find_records_changed_by_undone_edit(&before, &again)
            .unwrap()
            .unwrap();
        assert_eq!(kept.to_text(), "4 2:74776f");
        assert_eq!(
            OriginalRecordsToRestore::parse(&kept.to_text()),
            Some(kept.clone())
        );
        assert_eq!(kept.put_back(again).unwrap(), before);
        // An earlier edit has changed the number of records.
        let shorter = frame_records(&[b"meta", b"one"]);
        assert_eq!(kept.put_back(shorter.clone()).unwrap(), shorter);
        assert_eq!(
            OriginalRecordsToRestore::find_records_changed_by_undone_edit(&before, &shorter)
                .unwrap(),
            None
        );
        assert_eq!(OriginalRecordsToRestore::parse("4 2:7g"), None);
    }
}
