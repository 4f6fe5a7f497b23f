//! Columns of per-node values that most graphs do not need. A column stays empty until a node has a value for it.

use super::{Graph, NodeKind};
use crate::format::scan::NodeView;
use chakram_base::ids::NodeIndex;
use chakram_base::units::Span;

/// The optional columns of a graph. To add a column, add a field, list it in
/// [`all_columns_mut`](Self::all_columns_mut), and set its values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct OptionalNodeColumns {
    delays: EmptyOrDenseColumn<Span>,
    /// Time that each node waited in the recorded run.
    waits: EmptyOrDenseColumn<Span>,
    /// For each node, the index of its memory change plus 1, or 0 if the node has none.
    pub memory_of: EmptyOrDenseColumn<u32>,
    /// For each node, the index of its kernel shape plus 1, or 0 if the node has none.
    pub kernel_of: EmptyOrDenseColumn<u32>,
    /// For each node, the indices of its caller, its step and its innermost Python call. Each index is stored plus 1; 0
    /// means none.
    pub caller_of: EmptyOrDenseColumn<u32>,
    pub step_of: EmptyOrDenseColumn<u32>,
    pub stack_of: EmptyOrDenseColumn<u32>,
    /// Estimated cost of the profiler in each node's times.
    profiler: EmptyOrDenseColumn<NodeProfilerOverhead>,
}

/// The profiler's estimated cost in a node's times. The graph records whether its times still include this cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct NodeProfilerOverhead {
    delay: Span,
    recorded: Span,
}

/// A column with one value per node; the type's default value means that the node has no value. Empty if no node has a
/// value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct EmptyOrDenseColumn<T>(Vec<T>);

/// Operations on a column of any type.
pub(super) trait ReorderableNodeColumn {
    /// Extends the column to `nodes` nodes; does nothing if the column is empty.
    fn extend_to(&mut self, nodes: usize);

    /// Moves the value of node `order[i]` to node `i`; does nothing if the column is empty.
    fn permute_by(&mut self, order: &[u32]);

    /// Releases the spare capacity.
    fn release_spare(&mut self);

    /// Returns the heap memory in bytes.
    fn heap_bytes(&self) -> usize;
}

impl<T: Copy + Default> ReorderableNodeColumn for EmptyOrDenseColumn<T> {
    fn extend_to(&mut self, nodes: usize) {
        if !self.0.is_empty() {
            self.0.resize(nodes, T::default());
        }
    }

    fn permute_by(&mut self, order: &[u32]) {
        if !self.0.is_empty() {
            self.0 = order.iter().map(|&i| self.0[i as usize]).collect();
        }
    }

    fn release_spare(&mut self) {
        self.0.shrink_to_fit();
    }

    fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<T>()
    }
}

impl<T: Copy + Default> EmptyOrDenseColumn<T> {
    #[inline]
    pub fn get(&self, node: NodeIndex) -> T {
        self.0.get(node.index()).copied().unwrap_or_default()
    }

    /// Sets a node's value. The caller must set values in ascending order of nodes.
    #[inline]
    pub fn push_value(&mut self, index: usize, value: T) {
        self.0.resize(index, T::default());
        self.0.push(value);
    }

    /// Replaces a node's value; the node must already have an entry in the column.
    #[inline]
    pub fn overwrite_existing_value(&mut self, node: NodeIndex, value: T) {
        self.0[node.index()] = value;
    }

    pub fn iter_stored_values(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut()
    }
}

impl OptionalNodeColumns {
    pub fn all_columns_mut(&mut self) -> [&mut dyn ReorderableNodeColumn; 8] {
        [
            &mut self.delays,
            &mut self.waits,
            &mut self.memory_of,
            &mut self.kernel_of,
            &mut self.caller_of,
            &mut self.step_of,
            &mut self.stack_of,
            &mut self.profiler,
        ]
    }

    /// Stores the values of `node`, which must be the latest node.
    #[inline]
    pub fn push_node(&mut self, index: usize, node: &NodeView<'_>, kind: NodeKind) {
        if node.delay > Span::ZERO {
            self.delays.push_value(index, node.delay);
        }
        let communicates = matches!(
            kind,
            NodeKind::Send | NodeKind::Receive | NodeKind::Collective
        );
        if node.wait > Span::ZERO && communicates {
            self.waits.push_value(index, node.wait);
        }
        if node.profiler > Span::ZERO {
            let delay = node.profiler.min(node.delay);
            let recorded = (node.profiler - delay).min(node.recorded);
            self.profiler
                .push_value(index, NodeProfilerOverhead { delay, recorded });
        }
    }

    /// Returns the heap memory in bytes.
    pub fn heap_bytes(&self) -> usize {
        let Self {
            delays,
            waits,
            memory_of,
            kernel_of,
            caller_of,
            step_of,
            stack_of,
            profiler,
        } = self;
        let columns: [&dyn ReorderableNodeColumn; 8] = [
            delays, waits, memory_of, kernel_of, caller_of, step_of, stack_of, profiler,
        ];
        columns.iter().map(|column| column.heap_bytes()).sum()
    }
}

impl Graph {
    /// Subtracts the profiler's cost from all node times that include it.
    pub(super) fn subtract_profiler_cost(&mut self) {
        let parts = self.sparse.profiler.0.iter();
        let delays = &mut self.sparse.delays.0;
        for (node, part) in parts.enumerate() {
            self.recorded[node] = self.recorded[node] - part.recorded;
            if part.delay > Span::ZERO {
                delays[node] = delays[node] - part.delay;
            }
        }
        if delays.iter().all(|delay| *delay == Span::ZERO) {
            delays.clear();
        }
        self.profiler.removed = self.profiler.charged;
    }

    /// Adds the profiler's cost to all node times that do not include it.
    pub(super) fn add_profiler_cost_to_all_nodes(&mut self) {
        let parts = self.sparse.profiler.0.iter();
        let delays = &mut self.sparse.delays.0;
        delays.resize(self.ids.len(), Span::ZERO);
        for (node, part) in parts.enumerate() {
            self.recorded[node] += part.recorded;
            delays[node] += part.delay;
        }
        if delays.iter().all(|delay| *delay == Span::ZERO) {
            delays.clear();
        }
        self.profiler.removed = false;
    }

    /// Returns the host time (launch overhead) that passes after the completion of the node's last dependency until the
    /// node is ready. For a node without dependencies, the delay begins at the rank's release.
    #[inline]
    pub fn launch_delay_after_dependencies(&self, node: NodeIndex) -> Span {
        self.sparse.delays.get(node)
    }

    /// Returns true if any node has a delay.
    pub fn has_delays(&self) -> bool {
        self.sparse.delays.iter_stored_values().next().is_some()
    }

    /// Returns the recorded time that a communication node waited for its peers. In
    /// [`captured_timeline`](super::captured_timeline), the wait precedes the node's time and is not part of it.
    #[inline]
    pub fn recorded_wait(&self, node: NodeIndex) -> Span {
        self.sparse.waits.get(node)
    }
}
