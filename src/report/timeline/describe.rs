//! The names that are shown for nodes, and facts about the nodes.

use super::events::TimelineNodeDetails;
use crate::replay::algorithm_label;
use chakram_base::ids::NodeIndex;
use chakram_base::units::Bytes;
use chakram_engine::InstanceId;
use chakram_engine::{CompiledReplay, PlacedWorkloadGroup};
use chakram_trace::graph::NodeKind;
use std::borrow::Cow;

/// Returns a node's name and its facts; `groups` contains each group of the replay with its name.
pub(super) fn describe_node<'g, 'a: 'g>(
    prepared: &'a CompiledReplay<'a>,
    groups: &'g [(String, PlacedWorkloadGroup<'a>)],
    instance: InstanceId,
    node: NodeIndex,
    kind: NodeKind,
) -> (Cow<'g, str>, TimelineNodeDetails<'g>) {
    let workload = prepared.workload_with_added_launches();
    let of = &workload.instances()[instance.index()];
    let graph = workload.graph_of(of);
    let (name, bytes) = (graph.name(node), graph.stated_bytes_of_node(node));
    let facts = TimelineNodeDetails {
        node: graph.id(node),
        ..TimelineNodeDetails::default()
    };
    let communication = TimelineNodeDetails {
        name: Some(name),
        bytes: Some(bytes),
        ..facts.clone()
    };
    let peer = || of.peers[graph.messages()[graph.message_index(node)].peer as usize];
    match kind {
        NodeKind::Collective => {
            let (group, view) = &groups[prepared.group_of_collective_node(instance, node).index()];
            let call = graph.collective_of(node).kind;
            let buffer = call.buffer_bytes(bytes, view.members.len() as u32);
            let algorithm = algorithm_label(prepared, call, view, buffer.unwrap_or(u64::MAX));
            let label = format!("{call} of {}, {group}, {algorithm}", Bytes(bytes));
            let facts = TimelineNodeDetails {
                group: Some(group),
                algorithm: Some(algorithm),
                ..communication
            };
            (label.into(), facts)
        }
        NodeKind::Send => {
            let label = format!("send {} to rank {}", Bytes(bytes), peer());
            (label.into(), communication)
        }
        NodeKind::Receive => {
            let label = format!("receive {} from rank {}", Bytes(bytes), peer());
            (label.into(), communication)
        }
        _ => {
            let known = |amount: u64| (amount > 0).then_some(amount);
            let facts = TimelineNodeDetails {
                flops: known(graph.flops(node)),
                bytes: known(bytes),
                ..facts
            };
            (name.into(), facts)
        }
    }
}
