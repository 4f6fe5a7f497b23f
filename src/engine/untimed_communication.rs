//! Untimed communication: collectives and messages whose duration is unknown, because they have neither a known size
//! nor a recorded duration.
//!
//! A collective takes as long as its members' longest recorded transfer. It is untimed only if no member has a recorded
//! transfer or wait. A message is untimed if neither its send nor its receive has a recorded duration.

use super::error::ReplayRefusal;
use super::matching;
use super::plan::{NONE, ReplayPlan};
use chakram_base::ids::{NodeIndex, Rank};
use chakram_base::setting::SettingKey;
use chakram_base::units::Span;
use chakram_trace::graph::{Graph, NodeKind};
use chakram_trace::workload::Workload;
use std::collections::BTreeSet;

/// Maximum number of nodes that an error names.
const NAMED: usize = 3;

/// The collective or message of a communication node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CollectiveOrMessageIndex {
    /// A collective: its group's index in the plan, and its own index in the group.
    Collective(u32, u32),
    /// A matched message: its match index in the plan.
    Message(u32),
    /// An unmatched half of a message: (instance, message).
    Half(u32, u32),
}

/// Returns the communication nodes whose duration is unknown.
pub(super) fn find_untimed_nodes(plan: &ReplayPlan, workload: &Workload) -> Vec<(Rank, NodeIndex)> {
    let mut timed = BTreeSet::new();
    let mut bare = Vec::new();
    for (i, instance) in workload.instances().iter().enumerate() {
        let graph = workload.graph_of(instance);
        let nodes = graph.nodes().filter(|&node| graph.size_unknown(node));
        for node in nodes {
            let operation = collective_or_message_of_node(plan, i, graph, node);
            match graph.recorded_duration(node) + graph.recorded_wait(node) {
                Span::ZERO => bare.push((instance.rank, node, operation)),
                _ => {
                    timed.insert(operation);
                }
            }
        }
    }
    let untimed = bare.into_iter();
    let untimed = untimed.filter(|(.., operation)| !timed.contains(operation));
    untimed.map(|(rank, node, _)| (rank, node)).collect()
}

fn collective_or_message_of_node(
    plan: &ReplayPlan,
    instance: usize,
    graph: &Graph,
    node: NodeIndex,
) -> CollectiveOrMessageIndex {
    let own = &plan.instances[instance];
    match graph.kind(node) {
        NodeKind::Collective => {
            let call = graph.collective_of(node);
            let index = graph.index_of_collective_call(node);
            let sequence = own
                .sequences
                .as_ref()
                .map_or(call.sequence, |all| all[index]);
            CollectiveOrMessageIndex::Collective(own.slots[call.group as usize].group.0, sequence)
        }
        _ => match own.pairs.get(graph.message_index(node)) {
            Some(&pair) if pair != NONE => CollectiveOrMessageIndex::Message(pair),
            _ => CollectiveOrMessageIndex::Half(instance as u32, node.0),
        },
    }
}

/// Builds the error about the untimed `nodes`; there must be at least one.
pub(super) fn untimed_communication_error(
    workload: &Workload,
    nodes: &[(Rank, NodeIndex)],
) -> ReplayRefusal {
    let first = nodes.iter().take(NAMED).map(|&(rank, node)| {
        let mut instances = workload.instances().iter();
        let instance = instances.find(|instance| instance.rank == rank);
        instance.map_or_else(String::new, |instance| {
            matching::describe_node(rank, workload.graph_of(instance), node)
        })
    });
    let first: Vec<String> = first.collect();
    ReplayRefusal::new(
        format!(
            "{} communication nodes have neither a size nor a recorded duration; the first: {}",
            nodes.len(),
            first.join(", ")
        ),
        format!(
            "traces of a capture with shapes (`record_shapes=True`), or with the device trace, which has \
             durations; or {}, with which these nodes take no time and the makespan is a lower bound",
            SettingKey::LowerBound
        ),
    )
}
