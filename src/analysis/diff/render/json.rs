//! Renders differences between traces as one JSON document, with times in whole picoseconds.
//!
//! The field `schema` is `chakram.diff.1`. Within this version, fields may be added, but existing fields do not change.

use super::{ExceededThresholds, JobNamesAndDiffStyle};
use crate::diff::AmountChange;
use crate::diff::fields::StructureTimeOrBytesAspect;
use crate::diff::tally::{
    ComparedNodeTotals, DiffTally, NodeGroupingProperty, NodeOrDependencyChangeKind,
};
use crate::diff::value::NodeFieldValue;
use chakram_report::document::VersionedDocument;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// Schema name and version of the document.
pub const SCHEMA: &str = "chakram.diff.1";

/// The differences between traces, as a JSON document.
#[derive(Debug, Serialize)]
pub struct TraceDiffDocument<'t> {
    of: &'static str,
    before: &'t str,
    after: &'t str,
    ranks: ComparedRankListsDocument<'t>,
    faults: Vec<RankAndSideFaultCountRow<'t>>,
    differs: JobDifferenceFlagsDocument,
    dependencies: BeforeAfter<u64>,
    changed_nodes: u64,
    counts: ChangeCountsDocument<'t>,
    differences: Vec<DifferenceRow<'t>>,
    total: &'t ComparedNodeTotals,
    by_type: Vec<NamedComparedTotals<'t>>,
    by_operator: Vec<NamedComparedTotals<'t>>,
    by_group: Vec<NamedComparedTotals<'t>>,
    largest: Vec<SingleNodeFieldChangeRow<'t>>,
    exceeded: &'t [String],
}

#[derive(Debug, Serialize)]
struct ComparedRankListsDocument<'t> {
    compared: &'t [u32],
    identical: &'t [u32],
    only_before: &'t [u32],
    only_after: &'t [u32],
}

#[derive(Debug, Serialize)]
struct RankAndSideFaultCountRow<'t> {
    rank: u32,
    of: &'static str,
    count: usize,
    first: &'t str,
}

/// For each aspect, true if the two jobs differ in it.
#[derive(Debug, Serialize)]
pub(in crate::diff) struct JobDifferenceFlagsDocument {
    structure: bool,
    time: bool,
    bytes: bool,
}

impl JobDifferenceFlagsDocument {
    /// Calls `differs` for each aspect.
    pub fn new(differs: impl Fn(StructureTimeOrBytesAspect) -> bool) -> Self {
        Self {
            structure: differs(StructureTimeOrBytesAspect::Structure),
            time: differs(StructureTimeOrBytesAspect::Time),
            bytes: differs(StructureTimeOrBytesAspect::Bytes),
        }
    }
}

#[derive(Debug, Serialize)]
struct BeforeAfter<T> {
    before: T,
    after: T,
}

#[derive(Debug, Serialize)]
struct DifferenceRow<'t> {
    change: &'static str,
    field: Option<String>,
    name: &'t str,
    r#type: &'t str,
    before: &'t NodeFieldValue,
    after: &'t NodeFieldValue,
    count: u64,
    first: FirstDifferenceOccurrence,
    ranks: &'t [u32],
}

#[derive(Debug, Serialize)]
struct FirstDifferenceOccurrence {
    rank: u32,
    before_id: Option<u64>,
    after_id: Option<u64>,
}

#[derive(Debug, Serialize)]
struct SingleNodeFieldChangeRow<'t> {
    field: String,
    unit: &'static str,
    name: &'t str,
    r#type: &'t str,
    before_id: u64,
    after_id: u64,
    before: u64,
    after: u64,
    ranks: &'t [u32],
}

#[derive(Debug, Serialize)]
struct NamedComparedTotals<'t> {
    name: &'t str,
    #[serde(flatten)]
    amounts: &'t ComparedNodeTotals,
}

/// Amounts in the first and second job, and the increase.
#[derive(Debug, Serialize)]
pub(in crate::diff) struct AmountChangeRow {
    before: u64,
    after: u64,
    change: i64,
    change_percent: Option<f64>,
}

impl From<AmountChange> for AmountChangeRow {
    fn from(shift: AmountChange) -> Self {
        let narrow = |amount: u128| u64::try_from(amount).unwrap_or(u64::MAX);
        let more =
            i64::try_from(shift.signed_increase()).unwrap_or(if shift.signed_increase() < 0 {
                i64::MIN
            } else {
                i64::MAX
            });
        Self {
            before: narrow(shift.before),
            after: narrow(shift.after),
            change: more,
            change_percent: shift.percent_increase(),
        }
    }
}

/// Number of changes of each kind, by the kind's name.
#[derive(Debug)]
struct ChangeCountsDocument<'t>(&'t DiffTally);

impl Serialize for ChangeCountsDocument<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.counts.len()))?;
        for (what, count) in &self.0.counts {
            match what {
                NodeOrDependencyChangeKind::Field(field) => {
                    map.serialize_entry(&field.to_string(), count)?
                }
                other => map.serialize_entry(name_of_change_kind(other), count)?,
            }
        }
        map.end()
    }
}

/// Converts `tally` to a document.
pub fn build_trace_diff_document<'t>(
    tally: &'t DiffTally,
    titles: &JobNamesAndDiffStyle<'t>,
    verdict: &'t ExceededThresholds,
) -> VersionedDocument<TraceDiffDocument<'t>> {
    let lines = tally
        .lines
        .iter()
        .take(titles.count_lines_to_show(tally.lines.len()))
        .map(|(what, seen)| DifferenceRow {
            change: name_of_change_kind(&what.change),
            field: match &what.change {
                NodeOrDependencyChangeKind::Field(field) => Some(field.to_string()),
                _ => None,
            },
            name: &what.name,
            r#type: &what.kind,
            before: &what.before,
            after: &what.after,
            count: seen.count,
            first: FirstDifferenceOccurrence {
                rank: seen.ranks[0],
                before_id: seen.ids[0],
                after_id: seen.ids[1],
            },
            ranks: &seen.ranks,
        });
    let singles = tally.largest.iter().map(|single| SingleNodeFieldChangeRow {
        field: single.field.to_string(),
        unit: single.field.name_of_unit(),
        name: &single.name,
        r#type: &single.kind,
        before_id: single.ids[0],
        after_id: single.ids[1],
        before: single.before,
        after: single.after,
        ranks: &single.ranks,
    });
    let faults = tally.faults.iter().map(|fault| RankAndSideFaultCountRow {
        rank: fault.rank,
        of: if fault.second { "after" } else { "before" },
        count: fault.count,
        first: &fault.text,
    });
    let by = |wanted: NodeGroupingProperty| {
        let rows = tally.by.iter().filter(|((by, _), _)| *by == wanted);
        let rows = rows.map(|((_, name), found)| NamedComparedTotals {
            name,
            amounts: found,
        });
        rows.collect()
    };
    VersionedDocument::new(
        SCHEMA,
        TraceDiffDocument {
            of: "traces",
            before: titles.names[0],
            after: titles.names[1],
            ranks: ComparedRankListsDocument {
                compared: &tally.compared,
                identical: &tally.identical,
                only_before: &tally.only[0],
                only_after: &tally.only[1],
            },
            faults: faults.collect(),
            differs: JobDifferenceFlagsDocument::new(|aspect| tally.differs_in_aspect(aspect)),
            dependencies: BeforeAfter {
                before: tally.edges[0],
                after: tally.edges[1],
            },
            changed_nodes: tally.changed,
            counts: ChangeCountsDocument(tally),
            differences: lines.collect(),
            total: &tally.total,
            by_type: by(NodeGroupingProperty::Type),
            by_operator: by(NodeGroupingProperty::Operator),
            by_group: by(NodeGroupingProperty::Group),
            largest: singles.collect(),
            exceeded: &verdict.exceeded,
        },
    )
}

/// Returns the machine-readable name of a kind of change.
pub(super) fn name_of_change_kind(change: &NodeOrDependencyChangeKind) -> &'static str {
    match change {
        NodeOrDependencyChangeKind::Removed => "node removed",
        NodeOrDependencyChangeKind::Added => "node added",
        NodeOrDependencyChangeKind::Field(_) => "field changed",
        NodeOrDependencyChangeKind::EdgeRemoved => "dependency removed",
        NodeOrDependencyChangeKind::EdgeAdded => "dependency added",
    }
}
