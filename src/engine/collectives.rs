//! Manages collectives in flight, from the arrival of the first member until the last member completes.
//!
//! A member arrives when its node gets its lane ([`Collectives::arrive_at_collective`]). From then on, this module
//! handles the collective's agenda events and the network's notices about the collective's messages. The module writes
//! to [`Effects`] which members' nodes end, and what observers are notified of.

use super::dataflow::RunningRankInstance;
use super::discipline::{EventOrderDiscipline, RequiredCollectiveBackendTraits};
use super::effects::Effects;
use super::event::{EventClass, PackedEvent};
use super::fabric::Fabric;
use super::ids::{GroupIndex, InstanceIndex, InstanceNode, LaunchGroupAndMemberIndex, RunIndex};
use super::{CompletedReplayTotals, RunSettings};
use chakram_base::ids::{NodeIndex, Position, Rank};
use chakram_base::units::Time;
use chakram_hardware::collective::CollectiveRequest;
use chakram_hardware::network::NetworkBackend;

mod admission;
mod answers;
mod chunk_queues;
mod chunks;
mod description;
mod direction_matching;
mod endpoints;
mod executor;
mod fast_forward;
mod group;
mod launch_order;
mod lone_run;
mod own_schedules;
mod recorded;
mod rehearsal;
mod requests;
mod run;
mod runs;
mod schedule_cache;
mod scripts;
mod settling;
mod stage_numbers;

pub(super) use group::{GroupsOfAllLaunchesInFlight, RankGroupOfLaunchedProgram};
pub(super) use run::CollectiveRun;
pub(super) use runs::CollectiveRuns;

use answers::AnalyticalAnswerCounts;
use executor::CollectiveMessageSimulator;
use run::CollectiveAtFirstArrival;

/// The collectives in flight, with their groups, schedules and analytical answers.
pub(super) struct Collectives<'a, M: RequiredCollectiveBackendTraits> {
    chunks: CollectiveMessageSimulator<'a, M>,
    settings: RunSettings<'a>,
    answers: AnalyticalAnswerCounts,
    /// Number of collectives that members have requested so far.
    requests: u32,
    /// The first collective for which two members stated different kinds or sizes.
    mismatch: Option<CollectiveIssueMismatch>,
}

/// A member's collective node that has taken its lane.
#[derive(Clone, Copy)]
pub(super) struct LaneHoldingMemberCollectiveNode<'x, 'a> {
    pub running: &'x RunningRankInstance<'a>,
    pub instance: InstanceIndex,
    pub node: NodeIndex,
    /// The group, and the calling member's place in it.
    pub slot: LaunchGroupAndMemberIndex,
    pub sequence: u32,
    /// Since when the member has waited for the others; the time at which it takes its lane if it has not waited.
    pub waits_since: Time,
    /// True if the member's trace names the group.
    pub named: bool,
}

/// Two members that issued different collectives as the n-th collective of their group.
#[derive(Clone, Copy, Debug)]
pub(super) struct CollectiveIssueMismatch {
    pub group: GroupIndex,
    pub sequence: u32,
    /// Instance and node of the later member.
    pub own: InstanceNode,
    /// Rank and node of the earlier member.
    pub other: (Rank, NodeIndex),
}

impl<'a, M: RequiredCollectiveBackendTraits> Collectives<'a, M> {
    pub fn new(backend: &'a mut M, settings: RunSettings<'a>) -> Self {
        Self {
            chunks: CollectiveMessageSimulator::new(backend, settings),
            settings,
            answers: AnalyticalAnswerCounts::default(),
            requests: 0,
            mismatch: None,
        }
    }

    /// Returns the message-by-message simulator of collectives.
    #[inline]
    pub fn message_simulator(&self) -> &CollectiveMessageSimulator<'a, M> {
        &self.chunks
    }

    /// Returns the message-by-message simulator of collectives, mutably.
    #[inline]
    pub fn message_simulator_mut(&mut self) -> &mut CollectiveMessageSimulator<'a, M> {
        &mut self.chunks
    }

    /// Returns the first mismatch between members, or `None`.
    pub fn first_mismatch(&self) -> Option<CollectiveIssueMismatch> {
        self.mismatch
    }

    /// Writes to `outcome` how many collectives were answered analytically and how many were simulated.
    pub fn write_answer_counts_to_outcome(&self, outcome: &mut CompletedReplayTotals) {
        self.answers.write_answer_counts_to_outcome(outcome);
    }

    /// Adds a member to its collective, after the member's node has taken its lane.
    pub fn arrive_at_collective<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        call: LaneHoldingMemberCollectiveNode<'_, 'a>,
    ) {
        let (slot, mut sequence) = (call.slot, call.sequence);
        let launch_order = &mut self.chunks.groups[slot.group].order;
        if M::Order::MATCHES_AS_ISSUED {
            sequence = if self.chunks.backend.matches_collectives_in_issue_order() {
                launch_order.take_next_call_index_of_member(slot.member)
            } else {
                launch_order.add_collective_entry_if_new(sequence)
            };
        }
        let run = match launch_order.run_of[sequence as usize] {
            None => self.create_run_for_first_arrival(call, slot, sequence),
            Some(run) => {
                if M::Order::MATCHES_AS_ISSUED {
                    self.give_own_schedule_if_call_differs(call, slot, run);
                }
                run
            }
        };
        self.chunks.runs[run].record_arrival(now, call.waits_since, slot.member, call.node);
        if M::Order::MATCHES_AS_ISSUED {
            self.notify_backend_of_joined_member(now, call, slot.group, run);
        }
        // If events are handled in insertion order, the result may depend on the order of arrivals within an instant. A
        // member of a collective without an analytical answer therefore proceeds immediately.
        if M::Order::AT_ONCE && !self.can_answer_analytically(fabric, run) {
            self.begin_member_chunks_in_simulation(fabric, effects, now, run, slot.member);
            return;
        }
        let arrived = &mut self.chunks.runs[run].arrivals.arrived_now;
        arrived.push(slot.member);
        if arrived.len() > 1 {
            return;
        }
        // Only the first member that arrives at an instant needs to schedule the event that starts all newly arrived
        // members.
        if M::Order::AT_ONCE {
            let event = PackedEvent::of_collective_in_flight(EventClass::Settle, run, 0);
            effects.agenda.push(now, event);
        } else {
            effects.arrivals.push(run);
        }
    }

    /// Creates the state of a collective in flight (its run) when the first member arrives.
    fn create_run_for_first_arrival(
        &mut self,
        call: LaneHoldingMemberCollectiveNode<'_, 'a>,
        slot: LaunchGroupAndMemberIndex,
        sequence: u32,
    ) -> RunIndex {
        let run = self.chunks.runs.take_free_run();
        let (request, root) = self.build_request(call, slot, sequence);
        let running = &mut self.chunks.groups[slot.group];
        let (group, backend) = (running.plan, &*self.chunks.backend);
        let variant = backend.cache_key_apart_from_group_kind_bytes(&request);
        let work_out = || backend.chunk_schedule(&request, &group.extent, &group.paths);
        let number = self
            .chunks
            .schedules
            .find_or_create_schedule(running.id, &request, root, variant, work_out);
        self.chunks.runs[run].reset_for_next_collective(
            CollectiveAtFirstArrival {
                group: slot.group,
                number: running.number,
                sequence,
                request,
                root,
                members: group.members.len(),
                schedule: number,
            },
            self.chunks.schedules.schedule_by_number(number),
        );
        running.order.run_of[sequence as usize] = Some(run);
        run
    }

    /// Notifies the backend that a member has joined its collective.
    fn notify_backend_of_joined_member(
        &mut self,
        now: Time,
        call: LaneHoldingMemberCollectiveNode<'_, 'a>,
        group: GroupIndex,
        run: RunIndex,
    ) {
        let LaneHoldingMemberCollectiveNode {
            running,
            node,
            named,
            ..
        } = call;
        let extent = &self.chunks.groups[group].plan.extent;
        if let Some(request) = self.chunks.runs[run].request {
            // The run keeps the first member's request, but the backend needs the node id of the member that joins now.
            let node = running.graph.id(node);
            let request = CollectiveRequest { node, ..request };
            self.chunks
                .backend
                .on_join(now, running.npu, named, &request, extent);
        }
    }

    /// Returns the request of a collective node, and the position of its root.
    fn build_request(
        &mut self,
        call: LaneHoldingMemberCollectiveNode<'_, 'a>,
        slot: LaunchGroupAndMemberIndex,
        sequence: u32,
    ) -> (CollectiveRequest, Position) {
        let number = self.requests;
        self.requests = number.wrapping_add(1);
        let (graph, node) = (call.running.graph, call.node);
        let (kind, bytes) = (
            graph.collective_of(node).kind,
            graph.stated_bytes_of_node(node),
        );
        let running = &self.chunks.groups[slot.group];
        let group = running.plan;
        let request = |buffer, splits| CollectiveRequest {
            node: graph.id(node),
            kind,
            bytes,
            buffer,
            splits,
            number,
        };
        match group.calls.get(sequence as usize) {
            Some(call) => {
                let splits = group.splits.get(&sequence);
                let splits = splits.map(|splits| running.first_splits + splits);
                (request(call.buffer, splits), call.root)
            }
            // If collectives are matched in issue order, the plan does not list them, so the first member that
            // arrives defines the collective.
            None => {
                let buffer = kind.buffer_bytes(bytes, group.members.len() as u32);
                (request(buffer.unwrap_or(u64::MAX), None), Position(0))
            }
        }
    }

    /// Returns a sort key for collectives in which members arrived at the same instant. The key does not depend on the
    /// order of arrivals.
    pub fn arrival_independent_sort_key_of_run(&self, run: RunIndex) -> (u32, u32) {
        let run = &self.chunks.runs[run];
        (run.number, run.sequence)
    }

    /// Handles an event of a collective.
    #[inline]
    pub fn handle_event<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        event: PackedEvent,
        detail: u32,
    ) {
        match event.event_class() {
            EventClass::Settle => self.answer_or_start_arrived_members_in_order(
                fabric,
                effects,
                now,
                event.collective_run_index(),
            ),
            EventClass::Run => self.end_analytically_answered_collective(
                fabric,
                effects,
                now,
                event.collective_run_index(),
                event.rank_bits(),
            ),
            _ => self
                .chunks
                .handle_event(fabric, effects, now, event, detail),
        }
    }
}
