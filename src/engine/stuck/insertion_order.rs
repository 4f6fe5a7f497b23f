//! Deadlock diagnosis in insertion order, where matches follow the order of issue.

use super::InstanceNode;
use crate::engine::CollectiveModel;
use crate::engine::collective_run::{OUTSIDE, StepwiseProgress};
use crate::engine::plan::{NONE, group_text};
use crate::engine::{Engine, ReplayRefusal, matching};
use crate::graph::Graph;
use crate::ids::NodeIndex;
use crate::network::NetworkBackend;
use crate::report::Observer;

impl<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> Engine<'_, O, N, M> {
    /// Describes a message that waits for its other half.
    pub(super) fn wait_in_channel(
        &self,
        (instance, node): InstanceNode,
    ) -> (String, Option<InstanceNode>) {
        let graph = self.flow.instances[instance as usize].graph;
        let index = graph.message_index(node);
        let message = &graph.messages()[index];
        let peer = self.flow.instances[instance as usize].of.peers[message.peer as usize];
        let channel = self.flow.instances[instance as usize].planned.pairs[index];
        let other = self.instance_beside(instance, peer);
        let half = self.flow.instances.get(other as usize).and_then(|running| {
            let messages = running.graph.messages();
            let halves = messages.iter().zip(&running.planned.pairs);
            let mut halves =
                halves.filter(|(half, pair)| **pair == channel && half.receive != message.receive);
            // Matching follows issue order, so the half that is missing is the first incomplete one.
            let half = halves.find(|(half, _)| !self.is_complete((other, half.node)))?;
            Some((other, half.0.node))
        });
        let what = match half {
            Some(half) => format!(", {}", self.state(half)),
            None => ", which has none left".to_owned(),
        };
        let (bytes, tag) = (graph.bytes(node), message.tag);
        let text = if message.receive {
            format!("{bytes} bytes from rank {peer} with tag {tag}{what}")
        } else {
            format!("rank {peer} to take {bytes} bytes with tag {tag}{what}")
        };
        (text, half)
    }

    /// Describes an issued collective: the members that are missing, or its waiting chunks.
    pub(super) fn wait_in_run(
        &self,
        (instance, node): InstanceNode,
    ) -> (String, Option<InstanceNode>) {
        let call = self.flow.instances[instance as usize].graph.call(node);
        let slot = self.flow.instances[instance as usize].planned.slots[call.group as usize];
        let group = self.collectives.groups[slot.group as usize].plan;
        let mut runs = self.collectives.runs.iter().filter(|run| {
            run.group == slot.group
                && run.progress.is_some()
                && run.arrivals.nodes.get(slot.member as usize) == Some(&node.0)
        });
        let Some(run) = runs.next() else {
            return ("an event that never came".to_owned(), None);
        };
        let missing: Vec<_> = group
            .members
            .iter()
            .zip(&run.arrivals.nodes)
            .filter(|(_, node)| **node == NONE)
            .collect();
        if let Some((rank, _)) = missing.first() {
            let other = self.instance_beside(instance, **rank);
            // The first collective of the group that the member has not completed is in the way.
            let calls = self.flow.instances[other as usize].graph.calls().iter();
            let slots = &self.flow.instances[other as usize].planned.slots;
            let mut calls = calls.filter(|call| slots[call.group as usize].group == slot.group);
            let next = calls.find(|call| !self.is_complete((other, call.node)));
            let vertex = next.map(|call| (other, call.node));
            let state = match vertex {
                Some(vertex) => self.state(vertex),
                None => format!("rank {rank} has no further collective of this group"),
            };
            let text = format!(
                "{} of {} members of its group (collective {} in the order of issue); {state}",
                missing.len(),
                group.members.len(),
                run.sequence
            );
            return (text, vertex);
        }
        let stages = self.collectives.schedules.get(run.schedule).stages();
        let scripted = stages.iter().any(|stage| self.backend.is_scripted(stage));
        if scripted {
            let text =
                "its algorithm, which waits for a message of its own at this rank".to_owned();
            return (text, None);
        }
        let position = group.extent.position_of[slot.member as usize];
        if let Some((from, to)) = run.progress.as_ref().and_then(|p| p.crossing) {
            let rank = |at: u32| group.members[group.extent.member_at[at as usize] as usize];
            let text = format!(
                "messages that go another way: rank {} sends to rank {}, which listens to others. The \
                 queues and trees of a dimension are taken in turn, the second half of several queues goes \
                 backward round a ring, and the members have issued different numbers of collectives before",
                rank(from),
                rank(to)
            );
            return (text, None);
        }
        let done = run
            .progress
            .as_ref()
            .map_or(0, |p| p.done[position as usize]);
        let behind = self.behind_in_queue(run.progress.as_ref(), position, group.members.len());
        let cause = match run.own_schedules.is_empty() {
            true => "NPUs have taken chunks from their queues in different orders",
            false => "collectives differ, and take the dimensions in different orders",
        };
        let text = format!(
            "its chunks, of which {done} of {} are done here{behind}; all members are there, but their {cause}",
            run.chunks
        );
        (text, None)
    }

    /// Formats the number of a member's chunks that wait in queues.
    fn behind_in_queue(
        &self,
        progress: Option<&StepwiseProgress>,
        position: u32,
        members: usize,
    ) -> String {
        let cells = progress.map_or(&[][..], |progress| &progress.cells);
        // Cells of a member are `members` apart, chunk by chunk.
        let own = cells
            .iter()
            .skip(position as usize)
            .step_by(members.max(1))
            .filter(|cell| cell.stage != OUTSIDE);
        let (begun, waiting) = own.fold((0, 0), |(begun, waiting), cell| {
            if cell.begun {
                (begun + 1, waiting)
            } else {
                (begun, waiting + 1)
            }
        });
        format!(", {begun} are in a stage or done and {waiting} wait in a queue")
    }

    /// Returns a refusal if members issued different collectives under one number.
    pub(in crate::engine) fn disagreement(&self) -> Option<ReplayRefusal> {
        let disagreement = self.collectives.disagreement?;
        let (group, sequence) = (disagreement.group, disagreement.sequence);
        let ((instance, node), (rank, other)) = (disagreement.own, disagreement.other);
        let own = self.flow.instances[instance as usize].of;
        let graph = self.flow.instances[instance as usize].graph;
        let theirs = self.collectives.groups[group as usize].instance(rank);
        let their_graph = self.flow.instances[theirs as usize].graph;
        let say = |rank, graph: &Graph, node: NodeIndex| {
            format!(
                "{} is {} of {} bytes",
                matching::describe(rank, graph, node),
                graph.call(node).kind,
                graph.bytes(node)
            )
        };
        let group = group_text(self.collectives.groups[group as usize].plan);
        Some(ReplayRefusal::new(
            format!(
                "the ranks disagree on collective {sequence} (counted from 0 in the order of issue) of the \
                 {group}: {}, but {}",
                say(rank, their_graph, other),
                say(own.rank, graph, node)
            ),
            "members of a group must issue the same collectives in the same order, or nobody's messages \
             match; look for a trace of another job or step, or add dependencies that fix the order",
        ))
    }
}
