//! Reads custom algorithms as ASTRA-sim defines them: one trace for each position in the group.
//!
//! Rank r of the group executes `PREFIX.p.et`, where p is the rank's index among the group's ranks *in ascending
//! order*. Peer number a in this trace is the a-th rank of the group *in the order of the group file*. There are no
//! lanes, so a node is issued as soon as its dependencies are complete. Nodes that become ready together are issued in
//! the order of their ids. A compute node takes its recorded duration, or 1 ns if that duration is shorter. The
//! algorithm's file contains the message sizes, so the collective's size is ignored. The collective completes at a rank
//! when all nodes of its trace are complete.

use chakram_base::units::Span;
use chakram_hardware::collective::{MemberScript, ScriptOp, ScriptedAlgorithm};
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::{Op, TraceError};
use chakram_trace::graph::{EnforcedDependencyKinds, Graph, NodeKind};
use std::collections::BTreeMap;

/// Source of the durations of an algorithm's compute nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AstraOrRecordedScriptDurations {
    /// Durations as ASTRA-sim computes them: whole microseconds, or 1 ns if no duration is recorded. Delays are
    /// ignored.
    AstraSim,
    /// Recorded durations and delays.
    Recorded,
}

impl AstraOrRecordedScriptDurations {
    /// Converts a node's duration and delay.
    fn convert_node_times(self, node: &mut NodeView<'_>) -> Result<(), TraceError> {
        match self {
            Self::AstraSim => {
                (node.delay, node.wait) = (Span::ZERO, Span::ZERO);
                node.recorded = Span::from_ns(node.micros.saturating_mul(1000).max(1));
            }
            Self::Recorded if node.delay > Span::ZERO => {
                return Err(TraceError::invalid_node(
                    node.id,
                    "a delay, but nodes of an algorithm begin when their dependencies end",
                    "a compute node of that duration before the node",
                ));
            }
            Self::Recorded => {}
        }
        match node.op {
            Op::Compute { .. } | Op::Host | Op::Message { .. } | Op::NoOp => Ok(()),
            _ => Err(TraceError::invalid_node(
                node.id,
                "a node that is neither a compute node nor a send or receive",
                "remove the node, or name a built-in implementation",
            )),
        }
    }
}

/// Builds an algorithm from the contents of its traces, which must be in the order of the members' positions.
///
/// # Errors
///
/// Returns the errors of [`Graph::read_graph`]; also fails if a node is not a compute node, a send or a receive. The
/// error includes the trace's position.
pub fn build_algorithm_from_traces<C: AsRef<[u8]>>(
    contents: &[C],
    lasting: AstraOrRecordedScriptDurations,
) -> Result<ScriptedAlgorithm, (u32, TraceError)> {
    let mut labels: BTreeMap<(i32, u64), u32> = BTreeMap::new();
    let mut scripts = Vec::new();
    for (position, contents) in (0..).zip(contents) {
        let policy = EnforcedDependencyKinds::Both;
        let edit = |node: &mut NodeView<'_>| lasting.convert_node_times(node);
        let read = Graph::read_edited(contents.as_ref(), position, policy, edit);
        let (graph, binding) = read.map_err(|e| (position, e))?;
        let mut script = MemberScript::default();
        for node in graph.nodes() {
            let part = match graph.kind(node) {
                NodeKind::Send | NodeKind::Receive => {
                    let message = &graph.messages()[graph.message_index(node)];
                    let peer = binding.peers[message.peer as usize];
                    let bytes = graph.stated_bytes_of_node(node);
                    // Each combination of tag and size gets its own label. A receive matches a send only if their tags
                    // and sizes are equal.
                    let next = labels.len() as u32;
                    let label = *labels.entry((message.tag, bytes)).or_insert(next);
                    if message.receive {
                        ScriptOp::Receive { from: peer, label }
                    } else {
                        ScriptOp::Send {
                            to: peer,
                            bytes,
                            label,
                        }
                    }
                }
                NodeKind::Nothing => ScriptOp::Wait(Span::ZERO),
                _ => ScriptOp::Wait(graph.recorded_duration(node)),
            };
            let in_degree = graph.in_degrees()[node.index()];
            let successors = graph.successors(node).map(|next| next.0);
            script.push(graph.id(node), part, in_degree, successors);
        }
        scripts.push(script);
    }
    Ok(ScriptedAlgorithm::new(scripts))
}
