//! Renders the summary as one JSON document, with times in whole picoseconds.
//!
//! Within a schema version, fields may be added, but existing fields do not change.

use crate::inspect::{
    CountedFault, JobInspectionSummary, NodeSums, RECEIVED, RankSumsAndExtremesByKey, SENT,
    SumOverRanksAndExtremeRanksRow, UnfilteredRankTraceTotals,
};
use chakram_base::units::{Span, Time};
use chakram_report::document::VersionedDocument;
use serde::{Serialize, Serializer};
use std::path::Path;

/// Schema name and version of the documents.
const SCHEMA: &str = "chakram.inspection.1";

/// A view of traces as a JSON document: the view's name, followed by its contents.
#[derive(Debug, Serialize)]
pub struct NamedViewDocument<T> {
    view: &'static str,
    #[serde(flatten)]
    body: T,
}

/// Returns the JSON document of a view; `view` is its name.
pub fn build_view_document<T: Serialize>(
    view: &'static str,
    body: T,
) -> VersionedDocument<NamedViewDocument<T>> {
    VersionedDocument::new(SCHEMA, NamedViewDocument { view, body })
}

/// The conditions of a node filter as the user wrote them, by option.
#[derive(Debug)]
struct FilterOptions(Vec<(&'static str, Vec<String>)>);

impl Serialize for FilterOptions {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, values)| (name, values)))
    }
}

/// The summary of a job.
#[derive(Debug, Serialize)]
pub struct SummaryDocument<'j> {
    filter: FilterOptions,
    shared_clock: bool,
    ranks: Vec<RankSummaryDocument<'j>>,
    unreadable: Vec<UnreadableRank<'j>>,
    metadata: MetadataDocument<'j>,
    groups: Vec<GroupMembersDocument<'j>>,
    types: Vec<NodeSumsAndExtremeRanksDocument<'j, NodeTypeJsonKey>>,
    lanes: Vec<NodeSumsAndExtremeRanksDocument<'j, LaneAndNameJsonKey<'j>>>,
    collectives: Vec<NodeSumsAndExtremeRanksDocument<'j, CollectiveGroupAndKindKey<'j>>>,
    messages: Vec<RankPairMessageSums<'j>>,
    operators: Vec<NodeSumsAndExtremeRanksDocument<'j, OperatorKey<'j>>>,
    attributes: Vec<AttributeNodeCount<'j>>,
}

#[derive(Debug, Serialize)]
struct RankSummaryDocument<'j> {
    rank: u32,
    #[serde(serialize_with = "serialize_file_path")]
    file: &'j Path,
    file_bytes: u64,
    contents_bytes: u64,
    nodes: u64,
    selected: u64,
    data_dependencies: u64,
    control_dependencies: u64,
    depth: u32,
    width: u32,
    start_ps: Time,
    end_ps: Time,
    captured_ps: Option<Span>,
    times: &'static str,
    durations_in_whole_us: bool,
    nodes_with_start: u64,
    faults: &'j [CountedFault],
    notes: &'j [CountedFault],
}

impl<'j> From<&'j UnfilteredRankTraceTotals> for RankSummaryDocument<'j> {
    fn from(rank: &'j UnfilteredRankTraceTotals) -> Self {
        Self {
            rank: rank.rank,
            file: &rank.path,
            file_bytes: rank.file_bytes,
            contents_bytes: rank.contents_bytes,
            nodes: rank.nodes,
            selected: rank.selected,
            data_dependencies: rank.data,
            control_dependencies: rank.control,
            depth: rank.depth,
            width: rank.width,
            start_ps: rank.start,
            end_ps: rank.end,
            captured_ps: rank.captured,
            times: rank.basis.name_of_basis(),
            durations_in_whole_us: rank.whole_micros,
            nodes_with_start: rank.given_starts,
            faults: &rank.faults.faults,
            notes: &rank.faults.notes,
        }
    }
}

/// Serializes a path; bytes that are not UTF-8 become replacement characters.
fn serialize_file_path<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

#[derive(Debug, Serialize)]
struct UnreadableRank<'j> {
    rank: u32,
    #[serde(serialize_with = "serialize_file_path")]
    file: &'j Path,
    why: &'j str,
}

#[derive(Debug, Serialize)]
struct MetadataDocument<'j> {
    versions: Vec<SchemaVersionCount<'j>>,
    attributes: Vec<MetadataAttribute<'j>>,
}

#[derive(Debug, Serialize)]
struct SchemaVersionCount<'j> {
    version: &'j str,
    ranks: u32,
}

#[derive(Debug, Serialize)]
struct MetadataAttribute<'j> {
    name: &'j str,
    r#type: &'static str,
    value: &'j str,
    ranks: u32,
    same_on_these: bool,
}

#[derive(Debug, Serialize)]
struct GroupMembersDocument<'j> {
    name: &'j str,
    ranks: &'j [u32],
    declared_differently: bool,
}

#[derive(Debug, Serialize)]
struct NodeTypeJsonKey {
    r#type: String,
}

#[derive(Debug, Serialize)]
struct LaneAndNameJsonKey<'j> {
    lane: String,
    name: Option<&'j str>,
}

#[derive(Debug, Serialize)]
struct CollectiveGroupAndKindKey<'j> {
    group: &'j str,
    kind: String,
}

#[derive(Debug, Serialize)]
struct OperatorKey<'j> {
    name: &'j str,
    r#type: String,
}

/// Sums over nodes with an equal key (such as type or lane), and the ranks with the smallest and largest sums.
#[derive(Debug, Serialize)]
struct NodeSumsAndExtremeRanksDocument<'j, K> {
    #[serde(flatten)]
    key: K,
    ranks: u32,
    #[serde(flatten)]
    sums: &'j NodeSums,
    min_time: ExtremeRankTime,
    max_time: ExtremeRankTime,
    min_nodes: ExtremeRankNodeCount,
    max_nodes: ExtremeRankNodeCount,
}

#[derive(Debug, Serialize)]
struct ExtremeRankTime {
    ps: Span,
    rank: u32,
}

#[derive(Debug, Serialize)]
struct ExtremeRankNodeCount {
    nodes: u64,
    rank: u32,
}

impl<'j, K> NodeSumsAndExtremeRanksDocument<'j, K> {
    fn new(key: K, row: &'j SumOverRanksAndExtremeRanksRow) -> Self {
        let time = |(ps, rank): (Span, u32)| ExtremeRankTime { ps, rank };
        let nodes = |(nodes, rank): (u64, u32)| ExtremeRankNodeCount { nodes, rank };
        Self {
            key,
            ranks: row.ranks,
            sums: &row.sum,
            min_time: time(row.least),
            max_time: time(row.most),
            min_nodes: nodes(row.fewest),
            max_nodes: nodes(row.largest),
        }
    }

    fn documents_from_table_rows<T: Ord>(
        table: &'j RankSumsAndExtremesByKey<T>,
        key: impl Fn(&'j T) -> K,
    ) -> Vec<Self> {
        let rows = table.rows_by_key();
        rows.map(|(of, row)| Self::new(key(of), row)).collect()
    }
}

#[derive(Debug, Serialize)]
struct RankPairMessageSums<'j> {
    from: u32,
    to: u32,
    sent: &'j NodeSums,
    received: &'j NodeSums,
}

#[derive(Debug, Serialize)]
struct AttributeNodeCount<'j> {
    name: &'j str,
    r#type: &'static str,
    nodes: u64,
}

/// Returns the summary of `job` as a document; `options` is the filter that selected the nodes.
pub fn build_summary_document<'j>(
    job: &'j JobInspectionSummary,
    options: Vec<(&'static str, Vec<String>)>,
) -> VersionedDocument<NamedViewDocument<SummaryDocument<'j>>> {
    let body = SummaryDocument {
        filter: FilterOptions(options),
        shared_clock: job.has_common_time_origin(),
        ranks: job.ranks.iter().map(RankSummaryDocument::from).collect(),
        unreadable: (job.unreadable.iter())
            .map(|(rank, file, why)| UnreadableRank {
                rank: *rank,
                file,
                why,
            })
            .collect(),
        metadata: build_metadata_document(job),
        groups: (job.groups.iter())
            .map(|(name, ranks)| GroupMembersDocument {
                name,
                ranks,
                declared_differently: job.conflicting_groups.contains(name),
            })
            .collect(),
        types: NodeSumsAndExtremeRanksDocument::documents_from_table_rows(&job.types, |class| {
            NodeTypeJsonKey {
                r#type: class.to_string(),
            }
        }),
        lanes: NodeSumsAndExtremeRanksDocument::documents_from_table_rows(&job.lanes, |lane| {
            LaneAndNameJsonKey {
                lane: lane.to_string(),
                name: job.lane_names.get(lane).map(|(name, _)| &name[..]),
            }
        }),
        collectives: NodeSumsAndExtremeRanksDocument::documents_from_table_rows(
            &job.collectives,
            |(group, kind)| CollectiveGroupAndKindKey {
                group,
                kind: kind.to_string(),
            },
        ),
        messages: (job.messages.iter())
            .map(|((from, to), ends)| RankPairMessageSums {
                from: *from,
                to: *to,
                sent: &ends[SENT],
                received: &ends[RECEIVED],
            })
            .collect(),
        operators: NodeSumsAndExtremeRanksDocument::documents_from_table_rows(
            &job.operators,
            |(name, class)| OperatorKey {
                name,
                r#type: class.to_string(),
            },
        ),
        attributes: (job.attributes.iter())
            .map(|((name, kind), nodes)| AttributeNodeCount {
                name,
                r#type: kind,
                nodes: *nodes,
            })
            .collect(),
    };
    build_view_document("summary", body)
}

fn build_metadata_document(job: &JobInspectionSummary) -> MetadataDocument<'_> {
    let versions = job.versions.iter();
    let attributes = job.metadata.iter();
    MetadataDocument {
        versions: versions
            .map(|(version, ranks)| SchemaVersionCount {
                version,
                ranks: *ranks,
            })
            .collect(),
        attributes: attributes
            .map(|((name, kind), (value, ranks, same))| MetadataAttribute {
                name,
                r#type: kind,
                value,
                ranks: *ranks,
                same_on_these: *same,
            })
            .collect(),
    }
}
