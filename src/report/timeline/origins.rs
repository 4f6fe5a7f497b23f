//! For nodes of captured programs: the ranges that enclose them, and the arrows from calls to the work that they
//! launched.

use super::nesting::{NodeEnclosingSlice, RangeCausingNodeOrPythonCall};
use chakram_base::ids::NodeIndex;
use chakram_engine::{CompiledReplay, InstanceId};
use chakram_trace::graph::{Csr, Graph, Lane, NodeKind};

/// Maximum number of drawn Python calls around a node, outermost first. At most twice this number of ranges are drawn
/// around a node.
const LEVELS: usize = 100;

/// The callers of nodes in a captured program. Empty for graphs without recorded callers.
#[derive(Debug)]
pub(super) struct TimelineNodeCallers<'a> {
    /// For each instance: its graph, the graph's index, and the id of the first arrow to one of its nodes.
    instances: Vec<(&'a Graph, usize, u64)>,
    /// For each graph, the nodes that each node called.
    called: Vec<Csr>,
    /// For each graph and Python call, the call to draw: the call itself, or the innermost drawn call around it.
    drawn: Vec<Vec<u32>>,
    /// For each arrow, true if its beginning was drawn.
    is_drawn: Vec<bool>,
}

impl<'a> TimelineNodeCallers<'a> {
    pub fn new(prepared: &'a CompiledReplay<'a>) -> Self {
        let workload = prepared.workload_with_added_launches();
        let called = workload.distinct_graphs().iter().map(|graph| {
            let callers = || {
                graph
                    .nodes()
                    .filter_map(|node| Some((graph.caller_of(node)?, node)))
            };
            match callers().next() {
                None => Csr::default(),
                Some(_) => Csr::new(graph.len(), |edge| {
                    callers().for_each(|(caller, node)| edge(caller.0, node.0));
                }),
            }
        });
        let called: Vec<Csr> = called.collect();
        let mut arrows = 0;
        let instances = workload.instances().iter().map(|instance| {
            let (graph, number) = (workload.graph_of(instance), instance.graph.index());
            let first = arrows;
            if called[number].row_count() > 0 {
                arrows += graph.len() as u64;
            }
            (graph, number, first)
        });
        Self {
            instances: instances.collect(),
            is_drawn: vec![false; arrows as usize],
            drawn: workload
                .distinct_graphs()
                .iter()
                .map(innermost_drawn_call_of_each)
                .collect(),
            called,
        }
    }

    /// Appends the ranges around a host thread's node, outermost first. They are the Python calls, annotations and
    /// operators that called it. A node that called others on its own thread is a range too.
    pub fn append_enclosing_ranges(
        &self,
        instance: InstanceId,
        node: NodeIndex,
        path: &mut Vec<NodeEnclosingSlice<'a>>,
    ) {
        let (graph, number, _) = self.instances[instance.index()];
        let called = &self.called[number];
        if !is_host_thread_work(graph, node) || called.row_count() == 0 && graph.stacks().is_empty()
        {
            return;
        }
        let range = |node: NodeIndex| NodeEnclosingSlice {
            name: graph.name(node),
            of: Some(RangeCausingNodeOrPythonCall::Node(node.0)),
        };
        let inside = (called.row_count() > 0).then(|| called.row(node.0));
        let mut inside = inside.into_iter().flatten();
        if inside.any(|&node| is_host_thread_work(graph, NodeIndex(node))) {
            path.push(range(node));
        }
        let mut at = node;
        let drawn =
            |node: NodeIndex| Some(self.drawn[number][graph.enclosing_python_call(node)? as usize]);
        // The limit also stops the loop if callers form a cycle.
        while path.len() < 2 * LEVELS {
            let caller = graph.caller_of(at);
            let around = caller.and_then(drawn);
            if let Some(call) = drawn(at) {
                let stacks = graph.stacks();
                let common = around.and_then(|around| stacks.innermost_common_call(call, around));
                let own = stacks
                    .enclosing_calls(call)
                    .take_while(|&call| Some(call) != common);
                path.extend(own.map(|call| NodeEnclosingSlice {
                    name: stacks.name_of_call(call),
                    of: Some(RangeCausingNodeOrPythonCall::Call(call)),
                }));
            }
            let Some(caller) = caller else { break };
            path.push(range(caller));
            at = caller;
        }
        path.reverse();
    }

    /// Returns the id of the arrow to a node, if that arrow's beginning was drawn, and the ids of the arrows from the
    /// node.
    pub fn launch_arrow_ids_to_and_from(
        &mut self,
        instance: InstanceId,
        node: NodeIndex,
    ) -> (Option<u64>, Vec<u64>) {
        let (graph, number, first) = self.instances[instance.index()];
        let called = &self.called[number];
        if called.row_count() == 0 {
            return (None, Vec::new());
        }
        let number = |node: NodeIndex| first + u64::from(node.0);
        let launch = graph
            .caller_of(node)
            .filter(|_| !is_host_thread_work(graph, node));
        let launch = launch.filter(|&launch| self.is_drawn[number(launch) as usize]);
        let launched = called.row(node.0).iter().map(|&node| NodeIndex(node));
        let launched = launched.filter(|&node| !is_host_thread_work(graph, node));
        let launched: Vec<u64> = launched.map(number).collect();
        self.is_drawn[number(node) as usize] = !launched.is_empty();
        (launch.map(|_| number(node)), launched)
    }
}

/// For each Python call, returns the call itself if it is drawn, otherwise the innermost drawn call around it.
fn innermost_drawn_call_of_each(graph: &Graph) -> Vec<u32> {
    let mut drawn: Vec<(u32, usize)> = Vec::with_capacity(graph.stacks().calls.len());
    for (number, call) in (0..).zip(&graph.stacks().calls) {
        let around = call.caller.map(|caller| drawn[caller as usize]);
        drawn.push(match around {
            Some((around, LEVELS)) => (around, LEVELS),
            Some((_, level)) => (number, level + 1),
            None => (number, 1),
        });
    }
    drawn.into_iter().map(|(call, _)| call).collect()
}

/// Returns true if a node is a host thread's own work, and false if a host thread launched it.
fn is_host_thread_work(graph: &Graph, node: NodeIndex) -> bool {
    match graph.kind(node) {
        NodeKind::Host => true,
        NodeKind::Compute => {
            let lane = graph.lanes_in_order_of_first_use()[graph.lane(node) as usize];
            graph.were_kernels_captured_on_cpu() && matches!(lane, Lane::Stream(_))
        }
        _ => false,
    }
}
