//! Determines which callers, steps and Python calls a graph's nodes belong to.

use super::sparse_columns::{EmptyOrDenseColumn, ReorderableNodeColumn};
use super::{Graph, NodeIdMap};
use crate::format::origin::{CallStacks, NodeCallerStepAndStack};
use chakram_base::ids::NodeIndex;

/// Collects the nodes' origins (caller, step and Python call) while a graph is built. Values are stored plus 1; 0 means
/// that the record omits the value.
#[derive(Debug, Default)]
pub(super) struct NodeOriginColumnsBuilder {
    callers: EmptyOrDenseColumn<u64>,
    steps: EmptyOrDenseColumn<u64>,
    stacks: EmptyOrDenseColumn<u64>,
}

impl NodeOriginColumnsBuilder {
    /// Stores the origin of the latest node.
    #[inline]
    pub fn push_origin(&mut self, index: usize, origin: &NodeCallerStepAndStack) {
        let columns = [
            (&mut self.callers, origin.caller),
            (&mut self.steps, origin.step),
            (&mut self.stacks, origin.stack),
        ];
        for (column, stated) in columns {
            if let Some(stated) = stated {
                column.push_value(index, stated.saturating_add(1));
            }
        }
    }

    pub fn columns_mut(&mut self) -> [&mut dyn ReorderableNodeColumn; 3] {
        [&mut self.callers, &mut self.steps, &mut self.stacks]
    }
}

/// Marks the end of a chain of callers, where there is no node.
const NONE: u32 = u32::MAX;

impl Graph {
    /// Resolves the stated origins. Ids of callers are replaced by nodes, and a node without a step or stack inherits
    /// it from its caller. Nodes on a cycle of callers do not inherit anything.
    pub(super) fn resolve_callers_steps_and_stacks(
        &mut self,
        stated: &NodeOriginColumnsBuilder,
        index_of: &NodeIdMap,
    ) {
        let nodes = self.ids.len();
        if stated.callers.iter_stored_values().next().is_some() {
            for node in 0..nodes {
                let id = stated.callers.get(NodeIndex(node as u32)).checked_sub(1);
                let caller = id.and_then(|id| index_of.get(id));
                if let Some(caller) = caller.filter(|&caller| caller as usize != node) {
                    self.sparse.caller_of.push_value(node, caller + 1);
                }
            }
        }
        let mut numbers: Vec<u64> = stated
            .steps
            .iter_stored_values()
            .copied()
            .filter(|&n| n > 0)
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        if !numbers.is_empty() {
            let own = |node: NodeIndex| match stated.steps.get(node) {
                0 => None,
                step => numbers.binary_search(&step).ok().map(|at| at as u32 + 1),
            };
            self.sparse.step_of = self.inherit_from_callers(own);
            self.steps = numbers.into_iter().map(|number| number - 1).collect();
        }
        let calls = self.stacks.calls.len() as u64;
        if calls > 0 {
            let own = |node: NodeIndex| {
                let stack = stated.stacks.get(node).checked_sub(1)?;
                Some(if stack <= calls { stack as u32 } else { 0 })
            };
            self.sparse.stack_of = self.inherit_from_callers(own);
        }
        for column in self.sparse.all_columns_mut() {
            column.extend_to(nodes);
        }
    }

    /// Returns each node's value. A node without its own value gets the value of the nearest caller that has one.
    /// Values are returned plus 1, because 0 means "no value".
    fn inherit_from_callers(
        &self,
        own: impl Fn(NodeIndex) -> Option<u32>,
    ) -> EmptyOrDenseColumn<u32> {
        let mut values = EmptyOrDenseColumn::default();
        if self.ids.is_empty() {
            return values;
        }
        values.push_value(self.ids.len() - 1, 0);
        let mut done = vec![false; self.ids.len()];
        let mut chain = Vec::new();
        for first in 0..self.ids.len() as u32 {
            let mut at = first;
            let mut found = 0;
            while at != NONE {
                let node = NodeIndex(at);
                if std::mem::replace(&mut done[node.index()], true) {
                    found = values.get(node);
                    break;
                }
                chain.push(node);
                if let Some(value) = own(node) {
                    found = value;
                    break;
                }
                at = self.caller_of(node).map_or(NONE, |caller| caller.0);
            }
            for node in chain.drain(..) {
                values.overwrite_existing_value(node, found);
            }
        }
        values
    }

    /// Returns the node that called or launched this node, if the trace states it.
    #[inline]
    pub fn caller_of(&self, node: NodeIndex) -> Option<NodeIndex> {
        self.sparse
            .caller_of
            .get(node)
            .checked_sub(1)
            .map(NodeIndex)
    }

    /// Returns the nodes' distinct step numbers in ascending order.
    pub fn step_numbers(&self) -> &[u64] {
        &self.steps
    }

    /// Returns a node's step as an index into [`Graph::step_numbers`], or `None` if the step is unknown.
    #[inline]
    pub fn step_of(&self, node: NodeIndex) -> Option<u32> {
        self.sparse.step_of.get(node).checked_sub(1)
    }

    /// Returns the Python calls during which nodes ran.
    pub fn stacks(&self) -> &CallStacks {
        &self.stacks
    }

    /// Returns the innermost Python call during which a node ran, as an index into [`Graph::stacks`], or `None`.
    #[inline]
    pub fn enclosing_python_call(&self, node: NodeIndex) -> Option<u32> {
        self.sparse.stack_of.get(node).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::origin::NestedPythonCall;
    use crate::format::write::Sink;
    use crate::format::{NodeView, Op};
    use crate::graph::{EnforcedDependencyKinds, GraphBuilder};

    /// Builds a graph whose nodes have these ids and stated origins.
    fn build_origin_graph(nodes: &[(u64, NodeCallerStepAndStack)]) -> Graph {
        let mut builder = GraphBuilder::new(0, EnforcedDependencyKinds::Both, 16);
        let call = |caller| NestedPythonCall { name: 0, caller };
        builder.set_call_stacks(CallStacks {
            names: vec!["nn.Module: Linear_0".to_owned()],
            calls: vec![call(None), call(Some(0))],
        });
        for &(id, origin) in nodes {
            let mut view = NodeView::new(id, "node", Op::Host);
            view.origin = origin;
            builder.receive_node(&view, &[]).unwrap();
        }
        builder.finish_graph().unwrap().0
    }

    #[test]
    fn steps_and_stacks_are_those_of_callers_in_any_order_of_records() {
        // Node 5 calls nodes 6 and 7. Node 7 launches node 8 and states that it has no Python call. Nodes 9 and 10 call
        // each other. Node 11 has a missing caller and a stack index beyond the table.
        let states = |caller, step, stack| NodeCallerStepAndStack {
            caller,
            step,
            stack,
        };
        let mut nodes = vec![
            (5, states(None, Some(7), Some(1))),
            (6, states(Some(5), None, Some(2))),
            (7, states(Some(5), None, Some(0))),
            (8, states(Some(7), None, None)),
            (9, states(Some(10), None, None)),
            (10, states(Some(9), None, None)),
            (11, states(Some(99), Some(3), Some(3))),
        ];
        for _ in 0..nodes.len() {
            nodes.rotate_left(1);
            let graph = build_origin_graph(&nodes);
            let all = || graph.nodes();
            assert_eq!(graph.step_numbers(), [3, 7]);
            let steps: Vec<_> = all().map(|node| graph.step_of(node)).collect();
            let seven = Some(1);
            assert_eq!(steps, [seven, seven, seven, seven, None, None, Some(0)]);
            let stacks: Vec<_> = all()
                .map(|node| graph.enclosing_python_call(node))
                .collect();
            assert_eq!(stacks, [Some(0), Some(1), None, None, None, None, None]);
            let callers: Vec<_> = all()
                .map(|node| graph.caller_of(node).map(|c| c.0))
                .collect();
            let expected = [None, Some(0), Some(0), Some(2), Some(5), Some(4), None];
            assert_eq!(callers, expected);
        }
    }
}
