//! The critical path of a replayed run: a chain of nodes that ends with the run's last node. Each node of the chain
//! released the next one. The module also computes the slack of all other nodes.
//!
//! The path is followed backwards from the node that completed last. The previous node is either the dependency that
//! completed last or the previous node on the same lane. If a collective waited for its last member, the path continues
//! on this member's rank. If a receive waited for its message, the path continues on the sender's rank. The segments of
//! the path are contiguous and sum to the makespan.
//!
//! The *slack* of a node is how much later it could have ended without delaying the end of the run. The computation
//! assumes that all durations and the order of nodes on lanes stay the same. Four things limit the slack: the node's
//! successors, the next node on its lane, the other members of its collective, and the receiver of its message. Waits
//! for a turn in a group's launch order are ignored, so the slack of a waiting node is an upper bound. This is the
//! critical path method of project planning (Kelley and Walker 1959), on the graph of dependencies and resources.

mod node_rows;
mod recorder;
mod relations;
mod scaled_run;
mod slack;
mod table;
mod walk;

pub(super) use recorder::RunRecorder;
pub(super) use scaled_run::{RetimableRun, RunEndWithSlope};
pub(super) use table::build_path_sections;

use super::keyed::by_part;
use super::node_table::NodeTableRowLimit;
use super::operators::OperatorTime;
use super::{CriticalPathSegment, NpuTimeCategory};
use chakram_base::ids::Rank;
use chakram_base::units::{Span, Time};
use chakram_trace::format::replace_micro_batch_number_by_star;
use chakram_trace::graph::NodeKind;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Maximum number of nodes in a replay for which the critical path is computed. The limit bounds memory: each node
/// needs about 52 bytes.
const MOST_NODES: u64 = NodeTableRowLimit::MOST;
/// Maximum number of operators, and of ranks, that the report of a critical path lists.
const LISTED: usize = 64;

/// The critical path of a replay, and the slack of nodes outside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct CriticalPathSummary {
    /// Number of the path's segments.
    pub segments: u64,
    /// Number of times that the path moves to another rank.
    pub rank_changes: u64,
    /// Time of the path by category, which sums to the makespan. Idle time is time that no node explains, such as when
    /// a rank starts late or a collective waits for its turn to launch.
    #[serde(rename = "time_ps", with = "by_part")]
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "by_part::Parts<Span>"))]
    pub parts: [Span; NpuTimeCategory::COUNT],
    /// Operators and collectives on the path, longest time first, at most 64.
    pub operators: Vec<OperatorTime>,
    /// Ranks on the path, longest time first, at most 64.
    pub ranks: Vec<CriticalPathTimeOnRank>,
    /// Slack of the nodes outside the path, by category; categories without such nodes are omitted.
    pub slack: Vec<OffPathCategorySlackRow>,
}

/// Time of the critical path on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct CriticalPathTimeOnRank {
    /// The rank.
    pub rank: Rank,
    /// Time that the path spends on this rank.
    #[serde(rename = "time_ps")]
    pub time: Span,
}

/// Slack of a category's nodes outside the critical path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct OffPathCategorySlackRow {
    /// Key of the category, as used in `time_ps`.
    pub category: String,
    /// Number of the category's nodes outside the path.
    pub nodes: u64,
    /// Total duration of the nodes outside the path.
    #[serde(rename = "time_ps")]
    pub time: Span,
    /// Smallest slack among these nodes.
    #[serde(rename = "least_ps")]
    pub least: Span,
    /// Median slack of these nodes, weighted by their durations.
    #[serde(rename = "median_ps")]
    pub median: Span,
    /// Total duration of these nodes with a slack below 1 % of the makespan.
    #[serde(rename = "within_1_percent_ps")]
    pub near: Span,
}

impl RunRecorder<'_> {
    /// Returns the number of nodes in the recorded run.
    pub fn node_count(&self) -> usize {
        self.relations.nodes
    }

    /// Returns the number of segments in the critical path.
    pub fn path_segment_count(&self) -> u64 {
        self.trace_path_segments().len() as u64
    }

    /// Follows the critical path of a run that took `makespan`. Returns the summary and the segments
    /// of the path.
    pub fn find_critical_path(
        &self,
        makespan: Span,
    ) -> (CriticalPathSummary, Vec<CriticalPathSegment>) {
        let end = Time::ZERO + makespan;
        let path = self.trace_path_segments();
        let mut parts = [Span::ZERO; NpuTimeCategory::COUNT];
        for segment in &path {
            parts[segment.category as usize] += segment.to.since(segment.from);
        }
        let changes = path
            .windows(2)
            .filter(|pair| pair[0].instance != pair[1].instance);
        let summary = CriticalPathSummary {
            segments: path.len() as u64,
            rank_changes: changes.count() as u64,
            parts,
            operators: self.sum_path_operators(&path),
            ranks: self.list_ranks_with_most_path_time(&path),
            slack: slack::summarise_slack_by_category(self, &path, end),
        };
        (summary, path)
    }

    /// Returns the name and kind of the activity in a segment. The activity is a node, a launch delay, or nothing.
    fn name_and_kind_of_segment(&self, segment: &CriticalPathSegment) -> (Cow<'_, str>, NodeKind) {
        let graph = self.relations.graph_of(segment.instance);
        let kind = graph.kind(segment.node);
        if NpuTimeCategory::from_node_kind(kind) == Some(segment.category) {
            return (
                replace_micro_batch_number_by_star(graph.name(segment.node)),
                kind,
            );
        }
        match segment.category {
            NpuTimeCategory::Host => ("launch delays".into(), NodeKind::Host),
            _ => ("no node".into(), NodeKind::Nothing),
        }
    }

    fn sum_path_operators(&self, path: &[CriticalPathSegment]) -> Vec<OperatorTime> {
        let mut by_name: BTreeMap<(Cow<'_, str>, u8), OperatorTime> = BTreeMap::new();
        for segment in path {
            let (name, kind) = self.name_and_kind_of_segment(segment);
            let row = by_name.entry((name.clone(), kind as u8));
            let row = row.or_insert_with(|| OperatorTime {
                name: name.into_owned(),
                kind,
                calls: 0,
                total: Span::ZERO,
                flops: None,
                bytes: None,
            });
            row.calls += 1;
            row.total += segment.to.since(segment.from);
        }
        let mut rows: Vec<_> = by_name.into_values().collect();
        rows.sort_by_key(|row| Reverse(row.total));
        rows.truncate(LISTED);
        rows
    }

    fn list_ranks_with_most_path_time(
        &self,
        path: &[CriticalPathSegment],
    ) -> Vec<CriticalPathTimeOnRank> {
        let instances = self
            .relations
            .prepared
            .workload_with_added_launches()
            .instances();
        let mut times: BTreeMap<Rank, Span> = BTreeMap::new();
        for segment in path {
            let rank = instances[segment.instance.index()].rank;
            *times.entry(rank).or_default() += segment.to.since(segment.from);
        }
        let ranks = times
            .into_iter()
            .map(|(rank, time)| CriticalPathTimeOnRank { rank, time });
        let mut rows: Vec<_> = ranks.collect();
        rows.sort_by_key(|row| (Reverse(row.time), row.rank));
        rows.truncate(LISTED);
        rows
    }
}
