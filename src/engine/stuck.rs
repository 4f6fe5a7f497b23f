//! Deadlock diagnosis: finds out why nodes are incomplete when no event is pending.

use super::CommunicationDurationSource;
use super::collectives::{CollectiveRun, CollectiveRuns, GroupsOfAllLaunchesInFlight};
use super::dataflow::{Dataflow, HELD, unpack_instance_and_node};
use super::error::{NeverCompletedNode, NodeRef, Stuck};
use super::failures::PlannedAndOccurredFailures;
use super::frames::AllProgramLaunches;
use super::ids::{GroupIndex, InstanceIndex, InstanceNode};
use super::lanes::{FREE, LanesOfAllNpus};
use super::launch::LaunchSerial;
use super::plan::NONE;
use chakram_base::ids::{MemberIndex, NodeIndex};
use chakram_trace::format::escape_and_shorten_name;
use chakram_trace::graph::NodeKind;
use std::collections::{BTreeMap, BTreeSet};

mod insertion_order;

/// The error names at most `NAMED_PER_RANK` waiting nodes of each rank, and at most `NAMED` waiting nodes in total.
const NAMED_PER_RANK: usize = 3;
const NAMED: usize = 24;

/// The loop components in which a diagnosis looks for the reasons why nodes wait.
///
/// The struct does not use the loop's generic types, so the diagnosis is compiled only once.
pub(super) struct StuckDiagnosisInputs<'x, 'a> {
    pub flow: &'x Dataflow<'a>,
    pub launches: &'x AllProgramLaunches<'a>,
    pub lanes: &'x LanesOfAllNpus,
    pub groups: &'x GroupsOfAllLaunchesInFlight<'a>,
    pub failures: &'x PlannedAndOccurredFailures<'a>,
    pub runs: &'x CollectiveRuns,
    pub comm: CommunicationDurationSource,
    /// True if collectives and messages are matched in issue order
    /// ([`EventOrderDiscipline::MATCHES_AS_ISSUED`](super::EventOrderDiscipline::MATCHES_AS_ISSUED)).
    pub as_issued: bool,
    /// Returns true if the members of a collective execute scripts.
    pub is_scripted: &'x dyn Fn(&CollectiveRun) -> bool,
}

impl StuckDiagnosisInputs<'_, '_> {
    /// Describes the deadlock, which `failures` may have caused.
    pub(super) fn diagnose_deadlock(&self, failures: Vec<String>) -> Stuck {
        let mut waiting = Vec::new();
        let mut unnamed = 0;
        let mut first = None;
        for (i, running) in self.flow.running_rank_instances().iter().enumerate() {
            let mut named = 0;
            for node in running.graph.nodes() {
                // Skip complete nodes. Also skip nodes with open dependencies, which wait only because other nodes
                // wait.
                let vertex = InstanceNode {
                    instance: InstanceIndex(i as u32),
                    node,
                };
                if !self.is_ready_but_incomplete(vertex) {
                    continue;
                }
                // The search for a cycle starts from the first waiting node, even if the error does not name it.
                first.get_or_insert(vertex);
                if named == NAMED_PER_RANK || waiting.len() == NAMED {
                    unnamed += 1;
                    continue;
                }
                named += 1;
                waiting.push(NeverCompletedNode {
                    node: self.node_reference(vertex),
                    why: self.describe_wait_of_node(vertex).0,
                });
            }
        }
        Stuck {
            completed: self.flow.completed_node_count_and_last_end().0,
            total: self.launches.node_count(),
            failures,
            waiting,
            unnamed,
            cycle: first.map_or_else(Vec::new, |vertex| self.find_wait_cycle_from(vertex)),
        }
    }

    fn node_reference(&self, InstanceNode { instance, node }: InstanceNode) -> NodeRef {
        let running = self.flow.instance(instance);
        let graph = running.graph;
        NodeRef {
            launch: self
                .launches
                .may_have_several_launches()
                .then_some(LaunchSerial(self.flow.launch_index_of_instance(instance))),
            rank: self.flow.rank_binding_of_instance(instance).rank,
            id: graph.id(node),
            name: escape_and_shorten_name(graph.name(node)),
            index: node,
        }
    }

    fn is_node_complete(&self, InstanceNode { instance, node }: InstanceNode) -> bool {
        self.flow
            .open_dependency_count_of_node(instance, node)
            .is_none()
    }

    /// Describes why a posted node waits, and returns one of the nodes that it waits for.
    fn describe_wait_of_node(&self, vertex: InstanceNode) -> (String, Option<InstanceNode>) {
        let InstanceNode { instance, node } = vertex;
        let kind = self.flow.instance(instance).graph.kind(node);
        let stopper = self
            .failures
            .find_blocking_failed_rank(self.flow, self.groups, vertex);
        if let Some((rank, failure)) = stopper {
            let text = format!("rank {rank}, which stopped: {}", failure.to_sentence());
            return (text, None);
        }
        if self.flow.is_node_ready_but_waiting(instance, node) {
            let text = "another node of its rank to end: the node became ready in the same \
                        instant, and a rank searches for ready nodes only when a later node ends";
            return (text.to_owned(), None);
        }
        if self.flow.instance(instance).has_flag(HELD) {
            return ("its feed to release the rank".to_owned(), None);
        }
        if self
            .flow
            .instance(instance)
            .is_kernel_served_by_processor_model(kind)
        {
            return (
                "its processor, which has not scheduled the node".to_owned(),
                None,
            );
        }
        if self.as_issued {
            return match kind {
                NodeKind::Receive => self.describe_wait_of_message_half_in_channel(vertex),
                kind => self
                    .describe_wait_for_lane(vertex)
                    .unwrap_or_else(|| match kind {
                        NodeKind::Send => self.describe_wait_of_message_half_in_channel(vertex),
                        NodeKind::Collective => self.describe_wait_for_members_or_chunks(vertex),
                        _ => ("an event that never occurred".to_owned(), None),
                    }),
            };
        }
        match kind {
            NodeKind::Receive => self.describe_wait_for_other_half(vertex),
            // With recorded durations, a send waits for its receive.
            NodeKind::Send if self.comm == CommunicationDurationSource::Recorded => self
                .describe_wait_for_lane(vertex)
                .unwrap_or_else(|| self.describe_wait_for_other_half(vertex)),
            NodeKind::Collective => self
                .describe_wait_for_earlier_collective(vertex)
                .or_else(|| self.describe_wait_for_lane(vertex))
                .unwrap_or_else(|| self.describe_wait_for_members(vertex)),
            _ => self
                .describe_wait_for_lane(vertex)
                .unwrap_or_else(|| ("an event that never occurred".to_owned(), None)),
        }
    }

    fn describe_wait_for_other_half(
        &self,
        InstanceNode { instance, node }: InstanceNode,
    ) -> (String, Option<InstanceNode>) {
        let graph = self.flow.instance(instance).graph;
        let index = graph.message_index(node);
        let message = &graph.messages()[index];
        let peer = self.flow.rank_binding_of_instance(instance).peers[message.peer as usize];
        let pair = self.flow.instance(instance).planned.pairs[index];
        let other = self.flow.instance_of_rank_in_same_launch(instance, peer);
        let half = other.map(|other| {
            let pairs = &self.flow.instance(other).planned.pairs;
            let messages = self.flow.instance(other).graph.messages();
            let found = pairs
                .iter()
                .position(|&p| p == pair)
                .expect("pairs have two halves");
            InstanceNode {
                instance: other,
                node: messages[found].node,
            }
        });
        let what = half.map_or_else(String::new, |half| {
            format!(", {}", self.describe_node_state(half))
        });
        let (bytes, tag) = (graph.stated_bytes_of_node(node), message.tag);
        let text = if message.receive {
            format!("{bytes} bytes from rank {peer} with tag {tag}{what}")
        } else {
            format!("rank {peer} to receive {bytes} bytes with tag {tag}{what}")
        };
        (text, half)
    }

    fn describe_wait_for_earlier_collective(
        &self,
        InstanceNode { instance, node }: InstanceNode,
    ) -> Option<(String, Option<InstanceNode>)> {
        let graph = self.flow.instance(instance).graph;
        if self.comm.collective_node_never_waits(graph, node) {
            return None;
        }
        let (slot, sequence) = self
            .flow
            .communicator_and_sequence_of_collective(instance, node);
        let group = &self.groups[slot.group];
        let before = group.collective_that_member_must_start_before(slot.member, sequence)?;
        let other = self.node_of_collective_call(instance, slot.group, before);
        let text = other.map_or_else(String::new, |other| {
            format!(": {}", self.describe_node_state(other))
        });
        Some((
            format!("its turn, which comes after the group's collective {before}{text}"),
            other,
        ))
    }

    fn describe_wait_for_lane(
        &self,
        vertex: InstanceNode,
    ) -> Option<(String, Option<InstanceNode>)> {
        let InstanceNode { instance, node } = vertex;
        let lane = self.flow.instance(instance).lane_of_node(node)?;
        let holder = match self.lanes.holder_of_lane(lane) {
            FREE => return self.describe_lane_reserved_for_earlier_launch(vertex, lane),
            holder => unpack_instance_and_node(holder),
        };
        if holder == vertex {
            return None;
        }
        let text = format!(
            "its lane, which is occupied by {}",
            self.node_reference(holder)
        );
        Some((text, Some(holder)))
    }

    /// Describes a lane that is free but reserved for an earlier launch.
    fn describe_lane_reserved_for_earlier_launch(
        &self,
        InstanceNode { instance, .. }: InstanceNode,
        lane: u32,
    ) -> Option<(String, Option<InstanceNode>)> {
        let turn = self
            .lanes
            .instance_with_turn_on_lane(lane)
            .filter(|&turn| turn != instance)?;
        let running = self.flow.instance(turn);
        let of_turn = |node| InstanceNode {
            instance: turn,
            node,
        };
        let holds = |node: &NodeIndex| {
            running.lane_of_node(*node) == Some(lane) && !self.is_node_complete(of_turn(*node))
        };
        let before = running.graph.nodes().find(holds).map(of_turn);
        let state = before.map_or_else(String::new, |before| {
            format!(": {}", self.describe_node_state(before))
        });
        let text = format!(
            "its lane, which is reserved for launch {}{state}",
            self.flow.launch_index_of_instance(turn)
        );
        Some((text, before))
    }

    fn describe_wait_for_members(
        &self,
        InstanceNode { instance, node }: InstanceNode,
    ) -> (String, Option<InstanceNode>) {
        const SHOWN: usize = 4;
        let (slot, sequence) = self
            .flow
            .communicator_and_sequence_of_collective(instance, node);
        let running = &self.groups[slot.group];
        let group = running.plan;
        let mut missing = Vec::new();
        for (member, rank) in group.members.iter().enumerate() {
            let member = MemberIndex(member as u32);
            let Some(other) = running.program_instance_index_of_rank(*rank) else {
                continue;
            };
            if !self
                .comm
                .begins_only_after_other_started(running, sequence, slot.member, member)
            {
                continue;
            }
            let own = self.node_of_collective_call(other, slot.group, sequence);
            // If members launch together, none of them arrives before all are ready.
            let arrived = self.has_member_arrived_at_collective(slot.group, sequence, member);
            let there =
                arrived.unwrap_or_else(|| own.is_some_and(|own| self.is_ready_but_incomplete(own)));
            if !there {
                missing.extend(own);
            }
        }
        let call = &group.calls[sequence as usize];
        let of = format!(
            "collective {sequence}, {} of {} bytes",
            call.kind, call.buffer
        );
        if missing.is_empty() {
            let text = format!("messages of its group ({of}), whose members have all arrived");
            return (text, None);
        }
        let mut text = format!(
            "{} of {} members of its group ({of})",
            missing.len(),
            group.members.len(),
        );
        for vertex in missing.iter().take(SHOWN) {
            text += &format!("; {}", self.describe_node_state(*vertex));
        }
        if missing.len() > SHOWN {
            text += "; …";
        }
        (text, missing.first().copied())
    }

    /// Returns the node that represents a group's collective in an instance.
    fn node_of_collective_call(
        &self,
        instance: InstanceIndex,
        group: GroupIndex,
        sequence: u32,
    ) -> Option<InstanceNode> {
        let calls = self.flow.instance(instance).graph.collective_calls();
        let of = |node| {
            let (slot, own) = self
                .flow
                .communicator_and_sequence_of_collective(instance, node);
            (slot.group, own) == (group, sequence)
        };
        let call = calls.iter().find(|call| of(call.node))?;
        Some(InstanceNode {
            instance,
            node: call.node,
        })
    }

    /// Formats a node and its state for the error.
    fn describe_node_state(&self, vertex: InstanceNode) -> String {
        let left = match self
            .flow
            .open_dependency_count_of_node(vertex.instance, vertex.node)
        {
            None => "is complete".to_owned(),
            Some(0) => "is ready".to_owned(),
            Some(1) => "waits for 1 dependency".to_owned(),
            Some(n) => format!("waits for {n} dependencies"),
        };
        format!("{} {left}", self.node_reference(vertex))
    }

    /// Follows the waits from `start` until they form a cycle. Omits nodes that only link dependencies within their
    /// rank.
    fn find_wait_cycle_from(&self, start: InstanceNode) -> Vec<NodeRef> {
        let mut blockers = BlockingDependencyPerNode::default();
        let mut seen = BTreeSet::new();
        let mut path = Vec::new();
        let mut at = start;
        // Each node waits for at most one next node, so the walk ends at the first repeated node.
        while seen.insert(at) {
            path.push(at);
            let next = if self.is_ready_but_incomplete(at) {
                self.describe_wait_of_node(at).1
            } else {
                blockers.find_blocking_node(self, at)
            };
            match next.filter(|&v| !self.is_node_complete(v)) {
                Some(next) => at = next,
                None => return Vec::new(),
            }
        }
        let from = path.iter().position(|&v| v == at).unwrap_or(0);
        // Omit nodes that wait only for nodes of their own rank, unless other ranks wait for them.
        let cycle = &path[from..];
        let named = cycle.iter().enumerate().filter(|&(i, &vertex)| {
            let before = cycle[(i + cycle.len() - 1) % cycle.len()];
            self.is_ready_but_incomplete(vertex) || self.is_ready_but_incomplete(before)
        });
        named
            .map(|(_, &vertex)| self.node_reference(vertex))
            .collect()
    }

    /// Returns true if a member of a collective has arrived, or `None` if no member has arrived.
    fn has_member_arrived_at_collective(
        &self,
        group: GroupIndex,
        sequence: u32,
        member: MemberIndex,
    ) -> Option<bool> {
        let run = self.groups[group].run_index_of_collective(sequence)?;
        Some(self.runs[run].nodes_of_members()[member.index()] != NONE)
    }

    /// Returns true if a node is incomplete although all its dependencies are complete.
    fn is_ready_but_incomplete(&self, InstanceNode { instance, node }: InstanceNode) -> bool {
        self.flow.is_ready_or_issued(instance, node)
    }
}

/// For each incomplete node of an instance, one of its incomplete dependencies.
#[derive(Default)]
struct BlockingDependencyPerNode(BTreeMap<InstanceIndex, Vec<u32>>);

impl BlockingDependencyPerNode {
    fn find_blocking_node(
        &mut self,
        diagnosis: &StuckDiagnosisInputs<'_, '_>,
        InstanceNode { instance, node }: InstanceNode,
    ) -> Option<InstanceNode> {
        // Graphs store only successors, so one pass inverts them for all later steps of the walk.
        let blockers = self.0.entry(instance).or_insert_with(|| {
            let graph = diagnosis.flow.instance(instance).graph;
            let mut blockers = vec![NONE; graph.len()];
            let open =
                |&node: &NodeIndex| !diagnosis.is_node_complete(InstanceNode { instance, node });
            for from in graph.nodes().filter(open) {
                for to in graph.successors(from) {
                    blockers[to.index()] = from.0;
                }
            }
            blockers
        });
        let blocker = blockers[node.index()];
        (blocker != NONE).then_some(InstanceNode {
            instance,
            node: NodeIndex(blocker),
        })
    }
}
