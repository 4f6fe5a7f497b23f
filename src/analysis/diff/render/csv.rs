//! Renders differences between traces as CSV, one row per difference. Differences in times and sizes come last.

use super::json::name_of_change_kind;
use super::{JobNamesAndDiffStyle, words};
use crate::diff::tally::{DiffTally, NodeOrDependencyChangeKind};
use crate::diff::value::NodeFieldValue;
use chakram_base::ids::format_numbers_as_ranges;
use chakram_report::csv::CsvRows;

const HEADER: &str = "aspect,change,field,name,type,before,after,count,before_id,after_id,ranks";

/// Renders `tally`, with times in whole picoseconds.
pub fn render_csv(tally: &DiffTally, titles: &JobNamesAndDiffStyle<'_>) -> String {
    let mut rows = CsvRows::new(HEADER);
    let said = |value: &NodeFieldValue| match value {
        NodeFieldValue::Absent => String::new(),
        NodeFieldValue::Text(text) => text.to_string(),
        other => other.as_number().unwrap_or(0).to_string(),
    };
    let id = |id: Option<u64>| id.map_or_else(String::new, |id| id.to_string());
    for (what, seen) in tally
        .lines
        .iter()
        .take(titles.count_lines_to_show(tally.lines.len()))
    {
        let (aspect, field) = match &what.change {
            NodeOrDependencyChangeKind::Field(field) => (
                words::name_of_aspect(field.aspect_of_field()),
                field.to_string(),
            ),
            _ => ("structure", String::new()),
        };
        rows.add_row(&[
            &aspect,
            &name_of_change_kind(&what.change),
            &field,
            &what.name,
            &what.kind,
            &said(&what.before),
            &said(&what.after),
            &seen.count,
            &id(seen.ids[0]),
            &id(seen.ids[1]),
            &format_numbers_as_ranges(&seen.ranks),
        ]);
    }
    for single in &tally.largest {
        rows.add_row(&[
            &words::name_of_aspect(single.field.aspect_of_field()),
            &"field changed",
            &single.field,
            &single.name,
            &single.kind,
            &single.before,
            &single.after,
            &single.ranks.len(),
            &single.ids[0],
            &single.ids[1],
            &format_numbers_as_ranges(&single.ranks),
        ]);
    }
    rows.into_text()
}
