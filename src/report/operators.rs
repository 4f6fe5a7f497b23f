//! Time of operators from issue to completion. An operator is all nodes with the same name and kind.

pub(super) mod table;

use super::issue_times::InProgressNodeIssueTimes;
use super::memory_accesses::{LoadStoreSumsByMemory, OneMemoryAccessesRow};
use super::{CollectiveRecord, Observer};
use chakram_base::ids::NodeIndex;
use chakram_base::units::{Span, Time};
use chakram_engine::{CompiledReplay, FoldedReplay, InstanceId};
use chakram_trace::format::replace_micro_batch_number_by_star;
use chakram_trace::graph::{DistinctKeyInterner, Graph, NodeKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Sums over all nodes with the same name and kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct OperatorTime {
    /// Name of the nodes.
    pub name: String,
    /// Kind of the nodes.
    pub kind: NodeKind,
    /// Number of nodes.
    pub calls: u64,
    /// Sum of the nodes' times; overlapping nodes each count in full.
    #[serde(rename = "total_ps")]
    pub total: Span,
    /// FLOPs of all nodes; `None` if any node's FLOPs are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops: Option<u64>,
    /// Bytes that the nodes load and store, kernels' memory traffic included; `None` if any node's bytes are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl OperatorTime {
    /// Returns the FLOPs divided by the total time, in FLOPs per second; `None` if unknown.
    pub fn flops_per_s(&self) -> Option<f64> {
        self.amount_per_second(self.flops?)
    }

    /// Returns the bytes divided by the total time, in bytes per second; `None` if unknown.
    pub fn bytes_per_s(&self) -> Option<f64> {
        self.amount_per_second(self.bytes?)
    }

    fn amount_per_second(&self, amount: u64) -> Option<f64> {
        (self.total > Span::ZERO).then(|| amount as f64 / self.total.as_seconds())
    }

    /// Adds the calls, time and work of `other` to this row. A sum is unknown if either of its terms is.
    pub(super) fn add_calls_time_and_work_of_row(&mut self, other: &Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.total += other.total;
        self.flops = add_if_known(self.flops, other.flops);
        self.bytes = add_if_known(self.bytes, other.bytes);
    }
}

fn add_if_known(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    Some(a?.saturating_add(b?))
}

/// Merges the operators of different micro-batches: `mb0/layer2/norm`, `mb1/layer2/norm` and so on become one row. The
/// result is sorted by time, longest first, then by name and kind.
pub(super) fn merge_operators_of_micro_batches(operators: &[OperatorTime]) -> Vec<OperatorTime> {
    let mut names = DistinctKeyInterner::default();
    let mut sums: Vec<OperatorCallsTimeAndWork> = Vec::new();
    for operator in operators {
        let key = (
            replace_micro_batch_number_by_star(&operator.name),
            operator.kind as u8,
        );
        let number = names.intern_key(key) as usize;
        if number == sums.len() {
            sums.push(OperatorCallsTimeAndWork::empty_for_kind(operator.kind));
        }
        let sum = &mut sums[number];
        sum.called.add_calls(operator.calls, operator.total);
        sum.work.add_work(OperatorWork {
            flops: operator.flops,
            bytes: operator.bytes,
        });
    }
    let rows = names.into_keys().into_iter().zip(sums);
    sort_by_time(rows.collect())
}

/// Sorts by time, longest first, then by name and kind. Each pair of name and kind occurs once.
fn sort_by_time<N: AsRef<str> + Into<String>>(
    sums: Vec<((N, u8), OperatorCallsTimeAndWork)>,
) -> Vec<OperatorTime> {
    // Identical layers and micro-batches take the same time, so names decide most comparisons. Most names differ within
    // their first 16 bytes, so these are first compared as one number.
    let mut rows: Vec<_> = sums
        .into_iter()
        .map(|((name, _), sum)| (first_16_bytes_as_sortable_number(name.as_ref()), name, sum))
        .collect();
    rows.sort_unstable_by(|(a, name, sum), (b, other_name, other)| {
        let (called, other) = (sum.called, other.called);
        let by_time = other.total.cmp(&called.total).then(a.cmp(b));
        by_time
            .then_with(|| name.as_ref().cmp(other_name.as_ref()))
            .then_with(|| (called.kind as u8).cmp(&(other.kind as u8)))
    });
    let rows =
        rows.into_iter().map(
            |(_, name, OperatorCallsTimeAndWork { called, work })| OperatorTime {
                name: name.into(),
                kind: called.kind,
                calls: called.calls,
                total: called.total,
                flops: work.flops,
                bytes: work.bytes,
            },
        );
    rows.collect()
}

/// Returns the first 16 bytes of a name as a number. Numbers sort in the same order as names.
fn first_16_bytes_as_sortable_number(name: &str) -> u128 {
    let mut first = [0; 16];
    let length = name.len().min(first.len());
    first[..length].copy_from_slice(&name.as_bytes()[..length]);
    u128::from_be_bytes(first)
}

/// Sums the time of nodes by name and kind.
#[derive(Debug)]
pub struct OperatorTimeObserver<'a> {
    prepared: &'a CompiledReplay<'a>,
    started: InProgressNodeIssueTimes<'a>,
    /// Graph index of each instance.
    graphs: Vec<u32>,
    /// Number of ranks that each instance represents. Empty if each instance represents only its
    /// own rank.
    counts: Vec<u64>,
    /// For each graph and name, a sum over nodes. Only nodes of the same kind as the first completed node with that
    /// name are summed.
    sums: Vec<Vec<SameNameCallsAndTime>>,
    /// Sums over nodes of a kind other than that in `sums`, by graph, name and kind.
    others: BTreeMap<(u32, u32, u8), SameNameCallsAndTime>,
    accesses: LoadStoreSumsByMemory,
}

/// Calls and time of a graph's nodes that share a name and kind.
#[derive(Clone, Copy, Debug)]
struct SameNameCallsAndTime {
    calls: u64,
    total: Span,
    kind: NodeKind,
}

impl SameNameCallsAndTime {
    const fn empty_for_kind(kind: NodeKind) -> Self {
        Self {
            calls: 0,
            total: Span::ZERO,
            kind,
        }
    }

    fn add_calls(&mut self, calls: u64, total: Span) {
        self.calls = self.calls.saturating_add(calls);
        self.total += total;
    }
}

#[derive(Clone, Copy, Debug)]
struct OperatorCallsTimeAndWork {
    called: SameNameCallsAndTime,
    work: OperatorWork,
}

/// FLOPs and bytes of one or more nodes; `None` if the value of any node is unknown.
#[derive(Clone, Copy, Debug)]
struct OperatorWork {
    flops: Option<u64>,
    bytes: Option<u64>,
}

impl OperatorWork {
    const NONE: Self = Self {
        flops: Some(0),
        bytes: Some(0),
    };

    /// Returns the work of a node. A kernel's FLOPs are unknown if the trace does not give them.
    fn of_node(graph: &Graph, node: NodeIndex) -> Self {
        let known = |amount: u64| (amount > 0).then_some(amount);
        match graph.kind(node) {
            NodeKind::Compute => Self {
                flops: known(graph.flops(node)).filter(|_| !graph.flops_unknown(node)),
                bytes: known(graph.stated_bytes_of_node(node)),
            },
            NodeKind::LocalMemory | NodeKind::RemoteMemory => Self {
                flops: None,
                bytes: known(graph.stated_bytes_of_node(node)),
            },
            _ => Self {
                flops: None,
                bytes: None,
            },
        }
    }

    fn add_work(&mut self, other: Self) {
        self.flops = add_if_known(self.flops, other.flops);
        self.bytes = add_if_known(self.bytes, other.bytes);
    }

    fn multiply_by(self, times: u64) -> Self {
        let times = |amount: u64| amount.saturating_mul(times);
        Self {
            flops: self.flops.map(times),
            bytes: self.bytes.map(times),
        }
    }
}

impl OperatorCallsTimeAndWork {
    const fn empty_for_kind(kind: NodeKind) -> Self {
        Self {
            called: SameNameCallsAndTime::empty_for_kind(kind),
            work: OperatorWork::NONE,
        }
    }
}

impl<'a> OperatorTimeObserver<'a> {
    /// Creates an observer of all instances of `prepared`.
    pub fn new(prepared: &'a CompiledReplay<'a>) -> Self {
        let workload = prepared.workload_with_added_launches();
        let graphs = workload.distinct_graphs().iter();
        let empty = SameNameCallsAndTime::empty_for_kind(NodeKind::Nothing);
        Self {
            prepared,
            started: InProgressNodeIssueTimes::new(prepared),
            graphs: workload.instances().iter().map(|i| i.graph.0).collect(),
            counts: Vec::new(),
            sums: graphs
                .map(|graph| vec![empty; graph.names().len()])
                .collect(),
            others: BTreeMap::new(),
            accesses: LoadStoreSumsByMemory::new(prepared),
        }
    }

    /// Creates an observer of the simulated part of a folded job. Each sum is multiplied by the number of ranks that
    /// the instance represents.
    pub(super) fn of_folded_part(folded: &'a FoldedReplay<'a>) -> Self {
        Self {
            counts: folded.counts.clone(),
            ..Self::new(&folded.part)
        }
    }

    /// Returns the operators (longest time first, then by name and kind). Also returns the loads and stores
    /// by memory.
    pub fn into_operators_and_memory_rows(self) -> (Vec<OperatorTime>, Vec<OneMemoryAccessesRow>) {
        let mut names = DistinctKeyInterner::default();
        let mut sums: Vec<OperatorCallsTimeAndWork> = Vec::new();
        // Most ranks have the same names in the same order. The first candidate for each name index is therefore the
        // row that the latest graph's name had; a look-up in a table of a million names misses the caches several
        // times.
        let mut latest: Vec<u32> = Vec::new();
        let mut nodes = NodeWorkTotalsByName::default();
        for (index, graph) in (0..).zip(
            self.prepared
                .workload_with_added_launches()
                .distinct_graphs(),
        ) {
            nodes.replace_by_totals_of_graph(graph);
            latest.resize(latest.len().max(graph.names().len()), 0);
            let firsts = (0..).zip(&self.sums[index as usize]);
            let others = self
                .others
                .range((index, 0, 0)..=(index, u32::MAX, u8::MAX));
            let others = others.map(|(&(_, name, _), sum)| (name, sum));
            for (name, called) in firsts.chain(others).filter(|(_, sum)| sum.calls > 0) {
                let key = (graph.names().get(name), called.kind as u8);
                let candidate = &mut latest[name as usize];
                *candidate = names.intern_expected_key(key, *candidate);
                let number = *candidate as usize;
                if number == sums.len() {
                    sums.push(OperatorCallsTimeAndWork::empty_for_kind(called.kind));
                }
                let SameNameNodeCountAndWork { nodes, work, .. } =
                    nodes.totals_of_name_and_kind(name, called.kind);
                let all = &mut sums[number];
                all.called.add_calls(called.calls, called.total);
                all.work.add_work(work.multiply_by(called.calls / nodes));
            }
        }
        let rows = names.into_keys().into_iter().zip(sums);
        (sort_by_time(rows.collect()), self.accesses.into_rows())
    }
}

/// Number and work of a graph's nodes that share a name and kind.
#[derive(Clone, Copy, Debug)]
struct SameNameNodeCountAndWork {
    kind: NodeKind,
    nodes: u64,
    work: OperatorWork,
}

impl SameNameNodeCountAndWork {
    const fn empty_for_kind(kind: NodeKind) -> Self {
        Self {
            kind,
            nodes: 0,
            work: OperatorWork::NONE,
        }
    }
}

/// Totals of a graph's nodes by name and kind.
#[derive(Debug, Default)]
struct NodeWorkTotalsByName {
    /// For each name, the totals of the nodes of the same kind as the first node with that name.
    firsts: Vec<SameNameNodeCountAndWork>,
    /// Totals of nodes of other kinds, by name and kind.
    others: BTreeMap<(u32, u8), SameNameNodeCountAndWork>,
}

impl NodeWorkTotalsByName {
    /// Replaces all totals with those of `graph` and reuses the memory, because totals of all ranks at once would need
    /// as much memory as their graphs.
    fn replace_by_totals_of_graph(&mut self, graph: &Graph) {
        let empty = SameNameNodeCountAndWork::empty_for_kind(NodeKind::Nothing);
        self.firsts.clear();
        self.firsts.resize(graph.names().len(), empty);
        self.others.clear();
        for node in graph.nodes() {
            let (name, kind) = (graph.name_index(node), graph.kind(node));
            let mut of = &mut self.firsts[name as usize];
            if of.nodes == 0 {
                of.kind = kind;
            } else if of.kind != kind {
                let other = self.others.entry((name, kind as u8));
                of = other.or_insert(SameNameNodeCountAndWork::empty_for_kind(kind));
            }
            of.nodes += 1;
            of.work.add_work(OperatorWork::of_node(graph, node));
        }
    }

    /// Returns the totals of the nodes with a name and kind; there must be at least one such node.
    fn totals_of_name_and_kind(&self, name: u32, kind: NodeKind) -> SameNameNodeCountAndWork {
        let first = self.firsts[name as usize];
        if first.kind == kind {
            first
        } else {
            self.others[&(name, kind as u8)]
        }
    }
}

impl Observer for OperatorTimeObserver<'_> {
    #[inline]
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        self.started.store_issue_time(now, instance, node, kind);
    }

    #[inline]
    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        if kind == NodeKind::Nothing {
            return;
        }
        let graph = self.graphs[instance.index()];
        let name = self.started.graph_of(instance).name_index(node);
        let mut sum = &mut self.sums[graph as usize][name as usize];
        if sum.calls == 0 {
            sum.kind = kind;
        } else if sum.kind != kind {
            let key = (graph, name, kind as u8);
            sum = self
                .others
                .entry(key)
                .or_insert(SameNameCallsAndTime::empty_for_kind(kind));
        }
        let span = now.since(self.started.get(instance, node, kind));
        let count = self.counts.get(instance.index()).copied().unwrap_or(1);
        sum.add_calls(count, Span(span.0 * count));
        if matches!(kind, NodeKind::LocalMemory | NodeKind::RemoteMemory) {
            let memory = self.prepared.memory_named_by_load_or_store(instance, node);
            let graph = self.started.graph_of(instance);
            self.accesses.add_access(graph, node, memory, span, count);
        }
    }

    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_operator_time_for_test(
        name: &str,
        kind: NodeKind,
        calls: u64,
        total: u64,
    ) -> OperatorTime {
        OperatorTime {
            name: name.to_owned(),
            kind,
            calls,
            total: Span(total),
            flops: Some(10 * calls),
            bytes: None,
        }
    }

    /// 6e9 FLOPs in 3 ms is 2 TFLOP/s, and 3e6 bytes in 3 ms is 1 GB/s. If the FLOPs of one kernel are unknown, so are
    /// the FLOPs of the sum.
    #[test]
    fn rates_are_work_over_time() {
        let mut sum = OperatorTime {
            flops: Some(6_000_000_000),
            bytes: Some(3_000_000),
            ..build_operator_time_for_test("mm", NodeKind::Compute, 2, 3_000_000_000)
        };
        assert_eq!(sum.flops_per_s(), Some(2e12));
        assert_eq!(sum.bytes_per_s(), Some(1e9));
        sum.add_calls_time_and_work_of_row(&OperatorTime {
            flops: None,
            bytes: Some(3_000_000),
            ..build_operator_time_for_test("mm", NodeKind::Compute, 1, 3_000_000_000)
        });
        assert_eq!(
            (sum.calls, sum.flops, sum.bytes),
            (3, None, Some(6_000_000))
        );
        assert_eq!((sum.flops_per_s(), sum.bytes_per_s()), (None, Some(1e9)));
        // The rate of nodes that take no time is unknown.
        assert_eq!(
            build_operator_time_for_test("mm", NodeKind::Compute, 1, 0).flops_per_s(),
            None
        );
    }

    #[test]
    fn micro_batches_are_summed_and_nothing_else() {
        let all = [
            build_operator_time_for_test("mb1/a", NodeKind::Compute, 1, 50),
            build_operator_time_for_test("a", NodeKind::Compute, 1, 30),
            build_operator_time_for_test("mb10/a", NodeKind::Compute, 2, 9),
            build_operator_time_for_test("mb1/a", NodeKind::Host, 1, 8),
            build_operator_time_for_test("mb1/b", NodeKind::Compute, 1, 7),
        ];
        // The merged row has 1 + 2 calls and a time of 50 + 9 ps. Rows of another kind or another name remain separate.
        let summed = [
            build_operator_time_for_test("mb*/a", NodeKind::Compute, 3, 59),
            build_operator_time_for_test("a", NodeKind::Compute, 1, 30),
            build_operator_time_for_test("mb*/a", NodeKind::Host, 1, 8),
            build_operator_time_for_test("mb*/b", NodeKind::Compute, 1, 7),
        ];
        assert_eq!(merge_operators_of_micro_batches(&all), summed);
        // Rows with equal times are sorted by name. Some names have the same first 16 bytes, and some end in a zero
        // byte.
        let names = [
            "",
            "\0",
            "a",
            "a\0",
            "a234567890123456",
            "a234567890123456b",
            "b",
        ];
        let mut turned: Vec<_> = names
            .map(|name| build_operator_time_for_test(name, NodeKind::Host, 1, 3))
            .into();
        turned.reverse();
        let found = merge_operators_of_micro_batches(&turned);
        assert!(found.iter().map(|row| row.name.as_str()).eq(names));
        // Rows that are already summed do not change.
        assert_eq!(merge_operators_of_micro_batches(&summed), summed);
    }
}
