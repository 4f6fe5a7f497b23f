//! Deadlock diagnosis in insertion order, in which messages and collectives are matched in the order of issue.

use super::StuckDiagnosisInputs;
use crate::collectives::CollectiveIssueMismatch;
use crate::ids::InstanceNode;
use crate::plan::{NONE, group_text};
use crate::{ReplayRefusal, matching};
use chakram_base::ids::NodeIndex;
use chakram_trace::graph::Graph;

impl StuckDiagnosisInputs<'_, '_> {
    /// Describes why one half of a message waits for the other half.
    pub(super) fn describe_wait_of_message_half_in_channel(
        &self,
        InstanceNode { instance, node }: InstanceNode,
    ) -> (String, Option<InstanceNode>) {
        let graph = self.flow.instance(instance).graph;
        let index = graph.message_index(node);
        let message = &graph.messages()[index];
        let peer = self.flow.rank_binding_of_instance(instance).peers[message.peer as usize];
        let channel = self.flow.instance(instance).planned.pairs[index];
        let other = self.flow.instance_of_rank_in_same_launch(instance, peer);
        let half = other.and_then(|other| {
            let running = self.flow.instance(other);
            let messages = running.graph.messages();
            let halves = messages.iter().zip(&running.planned.pairs);
            let halves =
                halves.filter(|(half, pair)| **pair == channel && half.receive != message.receive);
            // Halves are matched in the order of issue, so the missing half is the first incomplete one.
            halves
                .map(|(half, _)| InstanceNode {
                    instance: other,
                    node: half.node,
                })
                .find(|half| !self.is_node_complete(*half))
        });
        let what = match half {
            Some(half) => format!(", {}", self.describe_node_state(half)),
            None => ", which has no such message left".to_owned(),
        };
        let (bytes, tag) = (graph.stated_bytes_of_node(node), message.tag);
        let text = if message.receive {
            format!("{bytes} bytes from rank {peer} with tag {tag}{what}")
        } else {
            format!("rank {peer} to receive {bytes} bytes with tag {tag}{what}")
        };
        (text, half)
    }

    /// Describes what an issued collective waits for: missing members or chunks.
    pub(super) fn describe_wait_for_members_or_chunks(
        &self,
        InstanceNode { instance, node }: InstanceNode,
    ) -> (String, Option<InstanceNode>) {
        let (slot, _) = self
            .flow
            .communicator_and_sequence_of_collective(instance, node);
        let group = self.groups[slot.group].plan;
        let Some(run) = self.runs.find_simulated_run_of_node(slot, node) else {
            return ("an event that never occurred".to_owned(), None);
        };
        let missing: Vec<_> = group
            .members
            .iter()
            .zip(run.nodes_of_members())
            .filter(|(_, node)| **node == NONE)
            .collect();
        if let Some((rank, _)) = missing.first() {
            // The first incomplete collective of the group blocks the member.
            let other = self.flow.instance_of_rank_in_same_launch(instance, **rank);
            let vertex = other.and_then(|other| {
                let calls = self.flow.instance(other).graph.collective_calls().iter();
                let mut nodes = calls.map(|call| InstanceNode {
                    instance: other,
                    node: call.node,
                });
                nodes.find(|call| {
                    self.flow
                        .communicator_and_sequence_of_collective(other, call.node)
                        .0
                        .group
                        == slot.group
                        && !self.is_node_complete(*call)
                })
            });
            let state = match vertex {
                Some(vertex) => self.describe_node_state(vertex),
                None => format!("rank {rank} has no further collective in this group"),
            };
            let text = format!(
                "{} of {} members of its group (collective {} in the order of issue); {state}",
                missing.len(),
                group.members.len(),
                run.sequence_number()
            );
            return (text, vertex);
        }
        let scripted = (self.is_scripted)(run);
        (
            run.describe_waiting_chunks(group, slot.member, scripted),
            None,
        )
    }

    /// Builds the error for members that issued different collectives as the n-th collective of their group.
    pub fn error_for_mismatched_collectives(
        &self,
        disagreement: CollectiveIssueMismatch,
    ) -> Option<ReplayRefusal> {
        let (group, sequence) = (disagreement.group, disagreement.sequence);
        let InstanceNode { instance, node } = disagreement.own;
        let (rank, other) = disagreement.other;
        let own = self.flow.rank_binding_of_instance(instance);
        let graph = self.flow.instance(instance).graph;
        let theirs = self.groups[group].program_instance_index_of_rank(rank)?;
        let their_graph = self.flow.instance(theirs).graph;
        let say = |rank, graph: &Graph, node: NodeIndex| {
            format!(
                "{} is {} of {} bytes",
                matching::describe_node(rank, graph, node),
                graph.collective_of(node).kind,
                graph.stated_bytes_of_node(node)
            )
        };
        let group = group_text(self.groups[group].plan);
        Some(ReplayRefusal::new(
            format!(
                "the ranks disagree on collective {sequence} (counted from 0 in the order of issue) of the \
                 {group}: {}, but {}",
                say(rank, their_graph, other),
                say(own.rank, graph, node)
            ),
            "look for a trace of another job or step, or add dependencies that fix the order; \
             members of a group must issue the same collectives in the same order for messages to \
             match",
        ))
    }
}
