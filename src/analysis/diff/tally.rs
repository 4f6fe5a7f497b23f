//! Sums differences over the nodes of a rank, and over ranks. The sums do not borrow from the files, so the files can
//! be closed.
//!
//! Equal changes of several nodes or ranks share one line. The line names the first changed node and lists all ranks.
//! Times and sizes of all nodes are summed for both traces, in total and by operator, type and group. The largest
//! changes of single nodes are stored too.

mod amounts;

pub use amounts::{ComparedNodeTotals, NodeGroupingProperty};

use super::differences::TraceDiff;
use super::fields::{NodeField, StructureTimeOrBytesAspect, type_name};
use super::value::NodeFieldValue;
use chakram_base::units::Span;
use chakram_trace::graph::RawTrace;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Tolerance for times: smaller changes are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum TimeTolerance {
    /// No change is ignored.
    #[default]
    Exact,
    /// Changes of at most this span are ignored.
    Absolute(Span),
    /// Changes of at most this percentage of the time in the first trace are ignored.
    Percent(f64),
}

impl TimeTolerance {
    fn hides_change(self, before: Span, after: Span) -> bool {
        let by = before.0.abs_diff(after.0);
        match self {
            Self::Exact => by == 0,
            Self::Absolute(most) => by <= most.0,
            Self::Percent(most) => by as f64 * 100.0 <= most * before.0 as f64,
        }
    }
}

/// Kind of change of a node or a dependency.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeOrDependencyChangeKind {
    /// A node is only in the first trace.
    Removed,
    /// A node is only in the second trace.
    Added,
    /// A field of a node has different values.
    Field(NodeField),
    /// A dependency is only in the first trace.
    EdgeRemoved,
    /// A dependency is only in the second trace.
    EdgeAdded,
}

/// Identifies a line of the tally; the line covers all nodes with the same change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TallyLineKey {
    /// Kind of the change.
    pub change: NodeOrDependencyChangeKind,
    /// The node's name; if both traces contain the node, its name in the first trace.
    pub name: String,
    /// Type of the node.
    pub kind: String,
    /// Value of the field in the first trace. For a dependency, the predecessor in the first trace.
    pub before: NodeFieldValue,
    /// Value of the field in the second trace. For a dependency, the predecessor in the second trace.
    pub after: NodeFieldValue,
}

/// How many changes a line covers, and where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeOccurrences {
    /// Number of changed nodes or dependencies, summed over ranks.
    pub count: u64,
    /// Ranks that have this change, in ascending order.
    pub ranks: Vec<u32>,
    /// Both traces' ids of the first node that changed, on the lowest of these ranks.
    pub ids: [Option<u64>; 2],
}

/// Change of a time or size of a single node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SingleNodeAmountChange {
    /// The field that changed.
    pub field: NodeField,
    /// Name of the node.
    pub name: String,
    /// Type of the node.
    pub kind: String,
    /// Id of the node in the first and in the second trace.
    pub ids: [u64; 2],
    /// Value in the first trace, in picoseconds for times.
    pub before: u64,
    /// Value in the second trace, in picoseconds for times.
    pub after: u64,
    /// Ranks with an equal change, in ascending order.
    pub ranks: Vec<u32>,
}

type NodeAmountChangeSortKey<'s> = (
    StructureTimeOrBytesAspect,
    Reverse<u64>,
    &'s NodeField,
    &'s str,
    [u64; 2],
    u64,
    u64,
);

impl SingleNodeAmountChange {
    fn sort_key(&self) -> NodeAmountChangeSortKey<'_> {
        let by = Reverse(self.before.abs_diff(self.after));
        let (before, after) = (self.before, self.after);
        (
            self.field.aspect_of_field(),
            by,
            &self.field,
            &self.name,
            self.ids,
            before,
            after,
        )
    }
}

/// Faults of one trace file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFaultSummary {
    /// Rank of the file.
    pub rank: u32,
    /// True if the file belongs to the second job.
    pub second: bool,
    /// Number of faults in the file.
    pub count: usize,
    /// Description of the first fault.
    pub text: String,
}

/// Limit on the number of stored changes, and tolerance for times.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoredChangeLimitAndTimeTolerance {
    /// Maximum number of stored changes of single nodes. The limit applies separately to times and to sizes. `None`
    /// stores all.
    pub singles: Option<usize>,
    /// Tolerance for times; smaller changes are ignored.
    pub tolerance: TimeTolerance,
}

/// Sums of differences over nodes and ranks.
#[derive(Clone, Debug, Default)]
pub struct DiffTally {
    /// Ranks that were compared node by node.
    pub compared: Vec<u32>,
    /// Ranks with byte-identical files in both jobs.
    pub identical: Vec<u32>,
    /// Ranks that are only in the first job, and ranks that are only in the second.
    pub only: [Vec<u32>; 2],
    /// Faults of the files.
    pub faults: Vec<FileFaultSummary>,
    /// Number of dependencies in each job, summed over the compared ranks.
    pub edges: [u64; 2],
    /// Number of nodes with at least one changed field.
    pub changed: u64,
    /// Number of changed nodes and dependencies, by kind of change.
    pub counts: BTreeMap<NodeOrDependencyChangeKind, u64>,
    /// Changes except those of times and sizes, one entry per line.
    pub lines: BTreeMap<TallyLineKey, ChangeOccurrences>,
    /// Times and sizes, summed over all nodes of the compared ranks.
    pub total: ComparedNodeTotals,
    /// Times and sizes, summed by operator, type and group.
    pub by: BTreeMap<(NodeGroupingProperty, String), ComparedNodeTotals>,
    /// Largest changes of single nodes: first times, then sizes.
    pub largest: Vec<SingleNodeAmountChange>,
}

impl DiffTally {
    /// Creates the sums for a rank that is in only one job.
    pub fn for_unpaired_rank(rank: u32, second: bool) -> Self {
        let mut tally = Self::default();
        tally.only[usize::from(second)].push(rank);
        tally
    }

    /// Creates the sums for a rank whose files are identical in both jobs.
    pub fn for_identical_rank(rank: u32) -> Self {
        Self {
            identical: vec![rank],
            ..Self::default()
        }
    }

    /// Sums the differences between the traces of one rank.
    pub fn new(
        rank: u32,
        traces: [&RawTrace<'_>; 2],
        found: &TraceDiff,
        keep: StoredChangeLimitAndTimeTolerance,
    ) -> Self {
        let mut this = Self {
            compared: vec![rank],
            edges: traces.map(|trace| trace.total_dependency_count() as u64),
            ..Self::default()
        };
        for (second, trace) in [(false, traces[0]), (true, traces[1])] {
            if let Some(fault) = trace.faults.first() {
                this.faults.push(FileFaultSummary {
                    rank,
                    second,
                    count: trace.faults.len(),
                    text: fault.error.to_string(),
                });
            }
        }
        (this.total, this.by) = amounts::sum_amounts_of_both_traces(traces);
        let view = |which: usize, node: u32| &traces[which].nodes[node as usize].view;
        let whole = |which: usize, node: u32, change| {
            let mut ids = [None; 2];
            ids[which] = Some(view(which, node).id);
            let view = view(which, node);
            let what = TallyLineKey {
                change,
                name: view.name.to_owned(),
                kind: type_name(&view.op),
                before: NodeFieldValue::Absent,
                after: NodeFieldValue::Absent,
            };
            (what, ids)
        };
        for &node in &found.removed {
            let (what, ids) = whole(0, node, NodeOrDependencyChangeKind::Removed);
            this.add_change(rank, what, ids);
        }
        for &node in &found.added {
            let (what, ids) = whole(1, node, NodeOrDependencyChangeKind::Added);
            this.add_change(rank, what, ids);
        }
        for changed in &found.changed {
            this.add_node(rank, traces, changed, keep);
        }
        for edge in &found.edges {
            let kind = if edge.control { "control" } else { "data" };
            let on = match edge.on {
                Some(on) => format!(
                    "{kind}, on {}",
                    chakram_trace::format::escape_and_shorten_name(view(0, on[0]).name)
                ),
                None => format!("{kind}, on a node that does not exist"),
            };
            let on = NodeFieldValue::Text(on);
            let (change, before, after) = if edge.added {
                (
                    NodeOrDependencyChangeKind::EdgeAdded,
                    NodeFieldValue::Absent,
                    on,
                )
            } else {
                (
                    NodeOrDependencyChangeKind::EdgeRemoved,
                    on,
                    NodeFieldValue::Absent,
                )
            };
            let (what, _) = whole(0, edge.node[0], change);
            let ids = [0, 1].map(|which| Some(view(which, edge.node[which]).id));
            this.add_change(
                rank,
                TallyLineKey {
                    before,
                    after,
                    ..what
                },
                ids,
            );
        }
        this.trim_to_largest(keep);
        this
    }

    fn add_node(
        &mut self,
        rank: u32,
        traces: [&RawTrace<'_>; 2],
        changed: &super::ChangedNode,
        keep: StoredChangeLimitAndTimeTolerance,
    ) {
        let nodes = [0, 1].map(|i: usize| &traces[i].nodes[changed.nodes[i] as usize].view);
        let (name, kind) = (nodes[0].name, type_name(&nodes[0].op));
        let ids = nodes.map(|view| view.id);
        let mut any = false;
        for field in &changed.fields {
            if let (NodeFieldValue::Time(before), NodeFieldValue::Time(after)) =
                (&field.before, &field.after)
                && keep.tolerance.hides_change(*before, *after)
            {
                continue;
            }
            any = true;
            let amounts = (field.before.as_number(), field.after.as_number());
            match (field.field.aspect_of_field(), amounts) {
                // Times and sizes differ from node to node, so list their changes one by one.
                (
                    StructureTimeOrBytesAspect::Time | StructureTimeOrBytesAspect::Bytes,
                    (Some(before), Some(after)),
                ) => {
                    *self
                        .counts
                        .entry(NodeOrDependencyChangeKind::Field(field.field.clone()))
                        .or_default() += 1;
                    self.largest.push(SingleNodeAmountChange {
                        field: field.field.clone(),
                        name: name.to_owned(),
                        kind: kind.clone(),
                        ids,
                        before,
                        after,
                        ranks: vec![rank],
                    });
                    if keep
                        .singles
                        // Trimming sorts the list, so trim only when the list is several times longer than the limit.
                        .is_some_and(|most| self.largest.len() > 8 * most + 4096)
                    {
                        self.trim_to_largest(keep);
                    }
                }
                _ => {
                    let what = TallyLineKey {
                        change: NodeOrDependencyChangeKind::Field(field.field.clone()),
                        name: name.to_owned(),
                        kind: kind.clone(),
                        before: field.before.clone(),
                        after: field.after.clone(),
                    };
                    self.add_change(rank, what, ids.map(Some));
                }
            }
        }
        self.changed += u64::from(any);
    }

    fn add_change(&mut self, rank: u32, what: TallyLineKey, ids: [Option<u64>; 2]) {
        *self.counts.entry(what.change.clone()).or_default() += 1;
        let seen = self.lines.entry(what).or_insert(ChangeOccurrences {
            count: 0,
            ranks: vec![rank],
            ids,
        });
        seen.count += 1;
    }

    /// Keeps only the largest changes of single nodes.
    fn trim_to_largest(&mut self, keep: StoredChangeLimitAndTimeTolerance) {
        self.largest.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        let Some(most) = keep.singles else { return };
        let times = self
            .largest
            .partition_point(|s| s.field.aspect_of_field() == StructureTimeOrBytesAspect::Time);
        // Changes of times come before changes of sizes; cut each group to the limit.
        let mut sizes = self.largest.split_off(times);
        self.largest.truncate(most);
        sizes.truncate(most);
        self.largest.append(&mut sizes);
    }

    /// Adds the sums of other ranks, which must be higher than every rank of `self`.
    pub fn merge_ranks(&mut self, other: Self, keep: StoredChangeLimitAndTimeTolerance) {
        self.compared.extend(other.compared);
        self.identical.extend(other.identical);
        for (list, more) in self.only.iter_mut().zip(other.only) {
            list.extend(more);
        }
        self.faults.extend(other.faults);
        for (sum, more) in self.edges.iter_mut().zip(other.edges) {
            *sum += more;
        }
        self.changed += other.changed;
        for (change, count) in other.counts {
            *self.counts.entry(change).or_default() += count;
        }
        for (what, seen) in other.lines {
            match self.lines.get_mut(&what) {
                None => drop(self.lines.insert(what, seen)),
                Some(known) => {
                    known.count += seen.count;
                    // Ranks are added in ascending order, so the list stays sorted.
                    known.ranks.extend(seen.ranks);
                }
            }
        }
        self.total.add_totals(&other.total);
        for (key, amounts) in other.by {
            self.by.entry(key).or_default().add_totals(&amounts);
        }
        self.largest.extend(other.largest);
        self.largest.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        // The sort is stable, so the first of several equal changes is from the lowest rank.
        self.largest.dedup_by(|later, first| {
            let same = later.sort_key() == first.sort_key();
            if same {
                first.ranks.append(&mut later.ranks);
            }
            same
        });
        self.trim_to_largest(keep);
    }

    /// Returns the number of nodes or dependencies with this kind of change.
    pub fn count_of_change_kind(&self, change: &NodeOrDependencyChangeKind) -> u64 {
        self.counts.get(change).copied().unwrap_or(0)
    }

    /// Returns true if the jobs differ in this aspect.
    pub fn differs_in_aspect(&self, aspect: StructureTimeOrBytesAspect) -> bool {
        let of = |change: &NodeOrDependencyChangeKind| match change {
            NodeOrDependencyChangeKind::Field(field) => field.aspect_of_field(),
            _ => StructureTimeOrBytesAspect::Structure,
        };
        let ranks = aspect == StructureTimeOrBytesAspect::Structure
            && self.only.iter().any(|list| !list.is_empty());
        ranks || self.counts.keys().any(|change| of(change) == aspect)
    }
}
