//! Transforms traces, and searches traces for private information.
//!
//! A transformation processes the trace files one rank at a time, and copies all content that it does not affect.
//! [`mod@slice`] and [`scale`] keep unknown fields; [`anonymise`] removes them.

use chakram_trace::format::TraceError;
use chakram_trace::format::attr::AttrView;
use chakram_trace::format::wire::{RawRecord, WireCursor, WireValue};

pub mod anonymise;
pub mod audit;
pub mod scale;
pub mod slice;
mod step;
pub mod what_if;

pub use anonymise::{AnonymiserCounts, TraceAnonymiser};
pub use audit::TracePrivateStringFindings;
pub use scale::{JobScaler, RankGridDimensions, ScaledDimension, ShardedBufferKeptSize};
pub use slice::{AnnotationStepOrIdSelector, JobCommunication, KeptNodesOfRank, RankSliceSummary};
pub use step::slice_traces_to_profiled_step;
pub use what_if::{AbsentRankModelRule, EditedJob, JobEdit, edit_job};

/// Type number of metadata nodes.
const METADATA: u64 = 1;

/// Returns the type number of a node.
fn node_type(record: RawRecord<'_>) -> Result<u64, TraceError> {
    let mut kind = 0;
    let mut cursor = WireCursor::new(record.bytes, record.offset);
    while !cursor.is_empty() {
        if let (3, WireValue::Varint(found)) = cursor.read_field()? {
            kind = u64::from(found as u32);
        }
    }
    Ok(kind)
}

/// Calls `each` for every attribute of a node.
fn for_each_attribute<'a>(
    record: RawRecord<'a>,
    mut each: impl FnMut(&AttrView<'a>) -> Result<(), TraceError>,
) -> Result<(), TraceError> {
    let mut cursor = WireCursor::new(record.bytes, record.offset);
    while !cursor.is_empty() {
        if let (10, WireValue::Bytes(message, at)) = cursor.read_field()? {
            each(&AttrView::scan_attribute(message, at)?)?;
        }
    }
    Ok(())
}

/// Returns true if `name` matches `pattern`; `*` in the pattern matches any text.
pub fn name_matches_pattern(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::name_matches_pattern;

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, name) in [
            ("a", "a"),
            ("*", ""),
            ("aten::*", "aten::mm"),
            ("*::mm", "aten::mm"),
            ("a*b*c", "abbbc"),
            ("a**c", "ac"),
        ] {
            assert!(name_matches_pattern(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("a", "ab"),
            ("", "a"),
            ("ab*ba", "aba"),
            ("a*b*c", "acb"),
            ("step#1", "step#11"),
        ] {
            assert!(!name_matches_pattern(pattern, name), "{pattern} {name}");
        }
    }
}
