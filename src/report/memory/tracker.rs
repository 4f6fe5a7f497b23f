//! Passes allocations and frees of nodes to their NPU's ledger. Distinguishes nodes issued at the current instant from
//! earlier ones.

use super::ledger::{ByteSumInteger, MemoryLedger};
use super::{BytesByTensorClass, NpuPeakAndFinalMemory};
use chakram_base::ids::NodeIndex;
use chakram_base::units::Time;
use chakram_engine::CompiledReplay;
use chakram_engine::InstanceId;
use chakram_trace::format::{NodeMemoryChanges, TensorClass};
use chakram_trace::graph::Graph;

/// An instant whose events are complete, and the bytes allocated at its end, by class.
pub type BytesAtInstantEnd = (Time, BytesByTensorClass);

/// Tracks the memory that each instance allocates and frees.
#[derive(Debug)]
pub struct MemoryTracker<'a> {
    /// State of each instance, if no instance's allocations and frees sum to 2^63 bytes or more.
    narrow: Vec<InstanceMemoryLedger<'a, i64>>,
    /// State of each instance if `narrow` is empty. Also empty if no node changes memory.
    wide: Vec<InstanceMemoryLedger<'a, i128>>,
}

#[derive(Debug)]
struct InstanceMemoryLedger<'a, S> {
    graph: &'a Graph,
    ledger: MemoryLedger<S>,
    /// One bit per node: 1 if the node was issued at the ledger's current instant.
    fresh: Vec<u64>,
    issued: Vec<NodeIndex>,
    /// One bit per node: 1 if the node has completed before. `None` if each node runs once; otherwise the bits ensure
    /// that only a node's first run counts.
    complete: Option<Vec<u64>>,
}

impl<'a> MemoryTracker<'a> {
    /// Tracks all instances of `prepared`; instances may be launched any number of times.
    pub fn new(prepared: &'a CompiledReplay<'a>) -> Self {
        Self {
            narrow: Vec::new(),
            wide: create_memory_ledgers_of_instances(prepared),
        }
    }

    /// Tracks all instances of `prepared`; each instance must be launched only once.
    pub fn for_single_launch(prepared: &'a CompiledReplay<'a>) -> Self {
        let graphs = prepared.workload_with_added_launches().distinct_graphs();
        if graphs
            .iter()
            .all(|graph| i64::cannot_overflow_with_total(sum_allocated_and_freed_bytes(graph)))
        {
            return Self {
                narrow: create_memory_ledgers_of_instances(prepared),
                wide: Vec::new(),
            };
        }
        Self::new(prepared)
    }

    /// Tracks only the first launch of each instance of `prepared`.
    pub fn for_first_launch(prepared: &'a CompiledReplay<'a>) -> Self {
        let mut all = Self::for_single_launch(prepared);
        all.narrow
            .iter_mut()
            .for_each(InstanceMemoryLedger::count_first_runs_only);
        all.wide
            .iter_mut()
            .for_each(InstanceMemoryLedger::count_first_runs_only);
        all
    }

    /// Records that `node` is issued. At the first event after an instant that changed the memory, returns this instant
    /// and the bytes allocated at its end.
    #[inline]
    pub fn on_issued(
        &mut self,
        now: Time,
        instance: InstanceId,
        node: NodeIndex,
    ) -> Option<BytesAtInstantEnd> {
        match self.narrow.get_mut(instance.index()) {
            Some(of) => of.issue_node(now, node),
            None => self.wide.get_mut(instance.index())?.issue_node(now, node),
        }
    }

    /// Records that `node` completes. Returns the same result as [`Self::on_issued`].
    #[inline]
    pub fn on_completed(
        &mut self,
        now: Time,
        instance: InstanceId,
        node: NodeIndex,
    ) -> Option<BytesAtInstantEnd> {
        match self.narrow.get_mut(instance.index()) {
            Some(of) => of.complete_node(now, node),
            None => self
                .wide
                .get_mut(instance.index())?
                .complete_node(now, node),
        }
    }

    /// Returns one entry per tensor class: true if any node of the instance allocates or frees bytes of the
    /// class.
    pub fn flag_changing_tensor_classes(&self, instance: InstanceId) -> [bool; TensorClass::COUNT] {
        let narrow = self.narrow.iter().map(|of| of.graph);
        let mut graphs = narrow.chain(self.wide.iter().map(|of| of.graph));
        let changes = graphs
            .nth(instance.index())
            .map(Graph::distinct_memory_changes);
        let changes = changes.into_iter().flatten();
        std::array::from_fn(|i| changes.clone().any(|c| c.allocates[i] | c.frees[i] > 0))
    }

    pub(super) fn totals_by_instance(
        &self,
    ) -> impl Iterator<Item = (&'a Graph, NpuPeakAndFinalMemory)> {
        let narrow = self
            .narrow
            .iter()
            .map(|of| (of.graph, of.ledger.collect_totals()));
        narrow.chain(
            self.wide
                .iter()
                .map(|of| (of.graph, of.ledger.collect_totals())),
        )
    }

    /// Ends the last instant of every instance. For each instance whose memory changed at its last instant, returns
    /// that instant and the allocated bytes.
    pub fn end_last_instant_of_all_instances(&mut self) -> Vec<(InstanceId, BytesAtInstantEnd)> {
        let narrow = self
            .narrow
            .iter_mut()
            .map(|of| of.ledger.end_last_instant());
        let ends =
            (0..).zip(narrow.chain(self.wide.iter_mut().map(|of| of.ledger.end_last_instant())));
        ends.filter_map(|(i, over)| Some((InstanceId(i), over?)))
            .collect()
    }
}

fn graph_changes_memory(graph: &Graph) -> bool {
    !graph.distinct_memory_changes().is_empty()
}

/// Creates the state of all instances of a program. Empty if no node changes memory.
fn create_memory_ledgers_of_instances<'a, S: ByteSumInteger>(
    prepared: &'a CompiledReplay<'a>,
) -> Vec<InstanceMemoryLedger<'a, S>> {
    let workload = prepared.workload_with_added_launches();
    let instances = if workload.distinct_graphs().iter().any(graph_changes_memory) {
        workload.instances()
    } else {
        &[]
    };
    let instances = instances.iter().map(|instance| {
        let graph = workload.graph_of(instance);
        let words = if graph_changes_memory(graph) {
            graph.len().div_ceil(64)
        } else {
            0
        };
        InstanceMemoryLedger {
            graph,
            ledger: MemoryLedger::default(),
            fresh: vec![0; words],
            issued: Vec::new(),
            complete: None,
        }
    });
    instances.collect()
}

/// Sums all bytes that the graph's nodes allocate and free.
fn sum_allocated_and_freed_bytes(graph: &Graph) -> u128 {
    let changes = graph
        .nodes()
        .filter_map(|node| graph.memory_changes_of(node));
    let bytes = changes.flat_map(|of| of.allocates.iter().chain(&of.frees));
    bytes.map(|&bytes| u128::from(bytes)).sum()
}

impl<S: ByteSumInteger> InstanceMemoryLedger<'_, S> {
    /// Counts only the first run of each node from now on.
    fn count_first_runs_only(&mut self) {
        self.complete = Some(vec![0; self.fresh.len()]);
    }

    #[inline]
    fn begin_instant(&mut self, now: Time) -> Option<BytesAtInstantEnd> {
        if now == self.ledger.current_instant() {
            return None;
        }
        for node in self.issued.drain(..) {
            self.fresh[node.index() / 64] &= !(1 << (node.index() % 64));
        }
        self.ledger.begin_instant(now)
    }

    #[inline]
    fn issue_node(&mut self, now: Time, node: NodeIndex) -> Option<BytesAtInstantEnd> {
        let NodeMemoryChanges { allocates, .. } = self.graph.memory_changes_of(node)?;
        let (word, bit) = (node.index() / 64, node.index() % 64);
        if self
            .complete
            .as_ref()
            .is_some_and(|done| done[word] >> bit & 1 == 1)
        {
            return None;
        }
        let over = self.begin_instant(now);
        self.fresh[node.index() / 64] |= 1 << (node.index() % 64);
        self.issued.push(node);
        self.ledger.allocate_bytes(node, allocates);
        over
    }

    #[inline]
    fn complete_node(&mut self, now: Time, node: NodeIndex) -> Option<BytesAtInstantEnd> {
        let NodeMemoryChanges { frees, .. } = self.graph.memory_changes_of(node)?;
        if let Some(done) = &mut self.complete {
            let (word, bit) = (&mut done[node.index() / 64], 1 << (node.index() % 64));
            if *word & bit != 0 {
                return None;
            }
            *word |= bit;
        }
        let over = self.begin_instant(now);
        let bit = |words: &[u64]| words[node.index() / 64] >> (node.index() % 64) & 1 == 1;
        let fresh = !self.issued.is_empty() && bit(&self.fresh);
        self.ledger
            .record_frees_of_completed_node(node, frees, fresh);
        over
    }
}
