//! Models collectives and messages that have recorded or captured durations: which members wait for others, and when
//! each completes.
//!
//! The engine does not simulate the network for such operations. A member's part *begins* when all members that it
//! waits for have started (see [`CommunicationDurationSource`]), and ends after its own duration.

use super::run::CollectiveRun;
use super::{Collectives, RankGroupOfLaunchedProgram};
use crate::CommunicationDurationSource;
use crate::dataflow::Dataflow;
use crate::discipline::RequiredCollectiveBackendTraits;
use crate::effects::Effects;
use crate::event::{EventClass, PackedEvent};
use crate::ids::RunIndex;
use crate::plan::{NONE, PlacedCommunicationGroup};
use chakram_base::ids::{MemberIndex, NodeIndex, Rank};
use chakram_base::units::{Span, Time};
use chakram_trace::graph::Graph;

/// Total time that a collective's members waited and, if known, the rank that caused most of it, with that rank's
/// share.
pub(super) type TotalWaitAndCausingRank = (Span, Option<(Rank, Span)>);

impl CommunicationDurationSource {
    /// Returns true if a collective node waits neither for other members nor for its place in the launch order. A node
    /// that never waits while it occupies its lane cannot take part in a deadlock.
    #[inline]
    pub fn collective_node_never_waits(self, graph: &Graph, node: NodeIndex) -> bool {
        match self {
            Self::Model => false,
            Self::Captured => true,
            Self::Recorded => graph.collective_of(node).eager,
        }
    }

    /// Returns true if `member`'s part in a collective can begin only after `other` has started.
    pub(crate) fn begins_only_after_other_started(
        self,
        group: &RankGroupOfLaunchedProgram<'_>,
        sequence: u32,
        member: MemberIndex,
        other: MemberIndex,
    ) -> bool {
        match root_member_index(group.plan, sequence).filter(|_| self == Self::Recorded) {
            None => true,
            Some(root) => {
                let present = group
                    .program_instance_index_of_rank(group.plan.members[root.index()])
                    .is_some();
                member == root || other == root || !present
            }
        }
    }
}

impl<M: RequiredCollectiveBackendTraits> Collectives<'_, M> {
    /// Begins the part of each member that no longer waits for another member. Must be called after the last event at
    /// `now` if members of the collective started at `now`.
    pub fn begin_parts_of_members_no_longer_waiting(
        &mut self,
        flow: &Dataflow<'_>,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
    ) {
        let run = &mut self.chunks.runs[id];
        let mut fresh = std::mem::take(&mut run.arrivals.arrived_now);
        let (sequence, members) = (run.sequence, run.arrivals.nodes.len() as u32);
        let slot = run.group;
        let group = self.chunks.groups[slot].plan;
        run.recorded.begins.resize(members as usize, Time::END);
        let all = run.arrivals.arrived == group.present;
        let root = root_member_index(group, sequence)
            .filter(|&root| run.arrivals.nodes[root.index()] != NONE);
        let sweep = all || root.is_some_and(|root| fresh.contains(&root));
        // If the root or the last member has just started, every member may be able to begin now. Otherwise, only newly
        // started members may be able to begin.
        let candidates = if sweep { members } else { fresh.len() as u32 };
        for i in 0..candidates {
            let member = if sweep {
                MemberIndex(i)
            } else {
                fresh[i as usize]
            };
            let run = &self.chunks.runs[id];
            let node = run.arrivals.nodes[member.index()];
            if node == NONE || run.recorded.begins[member.index()] != Time::END {
                continue;
            }
            let node = NodeIndex(node);
            let instance = self.chunks.groups[slot]
                .program_instance_index_of_rank(group.members[member.index()]);
            let instance = instance.expect("who has started has a trace");
            // In a rooted collective, members other than the root wait only for the root.
            let follows = root.is_some_and(|root| root != member);
            let running = flow.instance(instance);
            if !(all
                || follows
                || self
                    .settings
                    .comm
                    .collective_node_never_waits(running.graph, node))
            {
                continue;
            }
            effects.queue_collective_begin_notification(running.id, node);
            let end = now + running.duration_of_node(node);
            effects.end_node_at(end, instance, node);
            let transfer = running.graph.recorded_duration(node);
            let run = &mut self.chunks.runs[id];
            run.recorded.begins[member.index()] = now;
            run.recorded.end = run.recorded.end.max(end);
            run.recorded.transfer = run.recorded.transfer.max(transfer);
        }
        fresh.clear();
        let run = &mut self.chunks.runs[id];
        run.arrivals.arrived_now = fresh;
        if all {
            self.answers.recorded += 1;
            let event = PackedEvent::of_collective_in_flight(EventClass::Run, id, 0);
            effects.agenda.push(run.recorded.end, event);
        }
    }

    /// Ends a collective with recorded durations after each member's part has completed.
    pub fn end_recorded_collective(
        &mut self,
        flow: &Dataflow<'_>,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
    ) {
        let run = &self.chunks.runs[id];
        let totals =
            self.sum_waiting_and_find_causing_rank(flow, run, &self.chunks.groups[run.group]);
        let transfer = run.recorded.transfer;
        self.chunks
            .report_and_free_run(effects, now, id, false, totals, transfer);
    }

    /// Returns how long the members of a collective with recorded durations waited in total, and the rank that caused
    /// most of it.
    fn sum_waiting_and_find_causing_rank(
        &self,
        flow: &Dataflow<'_>,
        run: &CollectiveRun,
        running: &RankGroupOfLaunchedProgram<'_>,
    ) -> TotalWaitAndCausingRank {
        let group = running.plan;
        let root = root_member_index(group, run.sequence)
            .filter(|&root| run.arrivals.nodes[root.index()] != NONE);
        let (mut for_last, mut for_root) = (Span::ZERO, Span::ZERO);
        for (member, &node) in run.arrivals.nodes.iter().enumerate() {
            if node == NONE {
                continue;
            }
            let instance = running.program_instance_index_of_rank(group.members[member]);
            let instance = instance.expect("who has started has a trace");
            let graph = flow.instance(instance).graph;
            if self.settings.comm == CommunicationDurationSource::Captured {
                for_last += graph.recorded_wait(NodeIndex(node));
                continue;
            }
            // Before it arrives, a member waits for the last one, even if its collective has a root.
            for_last += run.arrivals.wait_before_arrival(member);
            let waited = run.recorded.begins[member].since(run.arrivals.starts[member]);
            match root {
                Some(root) if root.index() != member => for_root += waited,
                _ => for_last += waited,
            }
        }
        let sum = for_last + for_root;
        if self.settings.comm == CommunicationDurationSource::Captured || sum == Span::ZERO {
            return (sum, None);
        }
        let most = match root {
            Some(root) if for_root >= for_last => (group.members[root.index()], for_root),
            _ => (run.last_rank_to_start(group), for_last),
        };
        (sum, Some(most))
    }
}

/// Returns the root's member index, or `None` if the collective has no root.
fn root_member_index(group: &PlacedCommunicationGroup, sequence: u32) -> Option<MemberIndex> {
    let call = &group.calls[sequence as usize];
    let has_root = call.kind.has_root();
    has_root.then(|| group.extent.member_at[call.root.index()])
}
