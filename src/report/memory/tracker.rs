//! Nodes that change the memory of their NPU, and whether each was issued at this very instant.

use super::BytesByClass;
use super::ledger::MemoryLedger;
use crate::engine::CompiledReplay;
use crate::graph::Graph;
use crate::ids::NodeIndex;
use crate::trace::{MemoryChanges, TensorClass};
use crate::units::Time;

/// An instant that is over, and what is held after it.
pub type EndedInstant = (Time, BytesByClass);

/// Follows what each instance allocates and frees.
#[derive(Debug)]
pub struct MemoryTracker<'a> {
    /// One for each instance, or none at all where no node changes memory.
    instances: Vec<TrackedInstance<'a>>,
}

#[derive(Debug)]
struct TrackedInstance<'a> {
    graph: &'a Graph,
    ledger: MemoryLedger,
    /// Nodes issued at the instant of `ledger`, a bit for each node; and these nodes.
    fresh: Vec<u64>,
    issued: Vec<NodeIndex>,
    /// Nodes that have completed, a bit for each, where they may come again: only the first time counts.
    complete: Option<Vec<u64>>,
}

impl<'a> MemoryTracker<'a> {
    /// Follows all instances of `prepared`.
    pub fn new(prepared: &'a CompiledReplay<'a>) -> Self {
        let workload = prepared.workload();
        let changes = |graph: &Graph| !graph.memory_changes().is_empty();
        let instances = if workload.graphs().iter().any(changes) {
            workload.instances()
        } else {
            &[]
        };
        let instances = instances.iter().map(|instance| {
            let graph = workload.graph(instance);
            let words = if changes(graph) {
                graph.len().div_ceil(64)
            } else {
                0
            };
            TrackedInstance {
                graph,
                ledger: MemoryLedger::default(),
                fresh: vec![0; words],
                issued: Vec::new(),
                complete: None,
            }
        });
        Self {
            instances: instances.collect(),
        }
    }

    /// Follows the first launch of each instance of `prepared`.
    pub fn of_first_launch(prepared: &'a CompiledReplay<'a>) -> Self {
        let mut all = Self::new(prepared);
        for of in &mut all.instances {
            of.complete = Some(vec![0; of.fresh.len()]);
        }
        all
    }

    /// `node` is issued. If it changes memory and an earlier instant is thereby over at which its NPU's
    /// memory changed, that instant is given, and what is held after it.
    #[inline]
    pub fn issued(&mut self, now: Time, instance: u32, node: NodeIndex) -> Option<EndedInstant> {
        let of = self.instances.get_mut(instance as usize)?;
        let changes = *of.graph.memory(node)?;
        of.issue(now, node, &changes)
    }

    /// `node` is complete; as [`Self::issued`].
    #[inline]
    pub fn completed(&mut self, now: Time, instance: u32, node: NodeIndex) -> Option<EndedInstant> {
        let of = self.instances.get_mut(instance as usize)?;
        let changes = *of.graph.memory(node)?;
        of.complete(now, node, &changes)
    }

    /// Returns the classes that the nodes of an instance ever change.
    pub fn classes(&self, instance: u32) -> [bool; TensorClass::COUNT] {
        let changes = self.instances[instance as usize].graph.memory_changes();
        std::array::from_fn(|i| changes.iter().any(|c| c.allocates[i] | c.frees[i] > 0))
    }

    /// The graph of each instance and its books.
    pub(super) fn ledger(&self) -> impl Iterator<Item = (&'a Graph, &MemoryLedger)> {
        let instances = self.instances.iter();
        instances.map(|of| (of.graph, &of.ledger))
    }

    /// Ends all instants, and gives those instances whose memory changed at their last.
    pub fn end(&mut self) -> Vec<(u32, EndedInstant)> {
        let instances = (0..).zip(&mut self.instances);
        let ends = instances.filter_map(|(i, of)| Some((i, of.ledger.end()?)));
        ends.collect()
    }
}

impl TrackedInstance<'_> {
    fn begin(&mut self, now: Time) -> Option<EndedInstant> {
        if now == self.ledger.now() {
            return None;
        }
        for node in self.issued.drain(..) {
            self.fresh[node.index() / 64] &= !(1 << (node.index() % 64));
        }
        self.ledger.begin(now)
    }

    fn issue(
        &mut self,
        now: Time,
        node: NodeIndex,
        changes: &MemoryChanges,
    ) -> Option<EndedInstant> {
        let (word, bit) = (node.index() / 64, node.index() % 64);
        if self
            .complete
            .as_ref()
            .is_some_and(|done| done[word] >> bit & 1 == 1)
        {
            return None;
        }
        let over = self.begin(now);
        self.fresh[node.index() / 64] |= 1 << (node.index() % 64);
        self.issued.push(node);
        self.ledger.allocate(node, &changes.allocates);
        over
    }

    fn complete(
        &mut self,
        now: Time,
        node: NodeIndex,
        changes: &MemoryChanges,
    ) -> Option<EndedInstant> {
        if let Some(done) = &mut self.complete {
            let (word, bit) = (&mut done[node.index() / 64], 1 << (node.index() % 64));
            if *word & bit != 0 {
                return None;
            }
            *word |= bit;
        }
        let over = self.begin(now);
        let fresh = self.fresh[node.index() / 64] >> (node.index() % 64) & 1 == 1;
        self.ledger.free(node, &changes.frees, fresh);
        over
    }
}
