//! Collectives in flight: from the arrival of their members to the completion of the last.
//!
//! Members arrive when they hold their lanes ([`Collectives::arrive`]). What follows is events of the agenda, of which those
//! of collectives are handled here, and notices of the network about messages of collectives. The ends of members' nodes,
//! and what observers are told, are [`Effects`].

use super::dataflow::RunningInstance;
use super::discipline::{CollectiveModel, Discipline};
use super::effects::Effects;
use super::event::{Event, EventClass};
use super::fabric::{Fabric, InFlightOp};
use super::ids::{CellIndex, GroupIndex, GroupSlot, InstanceIndex, RunCell, RunIndex, SharedStage};
use super::{ReplayOutcome, RunSettings};
use chakram_base::ids::{NodeIndex, Position, Rank};
use chakram_base::units::Time;
use chakram_hardware::collective::{CollectiveRequest, ScriptEvent};
use chakram_hardware::network::NetworkBackend;
use std::collections::BTreeMap;

mod admission;
mod chunk_queues;
mod chunks;
mod description;
mod direction_matching;
mod endpoints;
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

pub(super) use group::{RunningGroup, RunningGroups};

use chunk_queues::ChunkQueues;
use direction_matching::UnsortedMessage;
use runs::CollectiveRuns;
use schedule_cache::ScheduleCache;

/// Collectives in flight.
pub(super) struct Collectives<'a, M: CollectiveModel> {
    backend: &'a mut M,
    settings: RunSettings<'a>,
    pub groups: RunningGroups<'a>,
    runs: CollectiveRuns,
    schedules: ScheduleCache<M::Stage>,
    queues: ChunkQueues,
    /// Chunks that began a stage and have not advanced in it yet.
    begun_chunks: Vec<RunCell>,
    /// Ops of steps that wait for their rendezvous request, by cell, stage and step.
    expected: BTreeMap<(RunCell, SharedStage, u32), u32>,
    /// True if members of a collective may run one stage in different directions or trees.
    mixed_directions: bool,
    /// First collective that a member issued with another kind or size than the member before it.
    mismatch: Option<IssueMismatch>,
    /// While a collective is rehearsed, the ends of its members with their positions.
    rehearsed_ends: Option<Vec<(Time, Position)>>,
    counts: RunCounts,
}

/// Numbers of collectives so far.
#[derive(Clone, Copy, Debug, Default)]
struct RunCounts {
    /// Requested.
    requests: u32,
    /// Answered by closed form, message by message, first one and then the other, and as recorded.
    closed: u64,
    stepwise: u64,
    unfolded: u64,
    recorded: u64,
    /// Answered by closed form that can still be materialized, and how many there have been.
    revocable: u32,
    answers: u32,
}

/// A collective node of a member that holds its lane.
#[derive(Clone, Copy)]
pub(super) struct MemberCall<'x, 'a> {
    pub running: &'x RunningInstance<'a>,
    pub instance: InstanceIndex,
    pub node: NodeIndex,
    /// Its member of its group, and its number among the group's collectives.
    pub slot: GroupSlot,
    pub sequence: u32,
    /// Whether its trace names the group.
    pub named: bool,
}

/// Two members that issued different collectives under one sequence number.
#[derive(Clone, Copy, Debug)]
pub(super) struct IssueMismatch {
    pub group: GroupIndex,
    pub sequence: u32,
    /// Instance and node of the later member.
    pub own: (InstanceIndex, NodeIndex),
    /// Rank and node of the earlier member.
    pub other: (Rank, NodeIndex),
}

impl<'a, M: CollectiveModel> Collectives<'a, M> {
    pub fn new(backend: &'a mut M, settings: RunSettings<'a>) -> Self {
        let mixed_directions = backend.matches_by_sender();
        Self {
            backend,
            settings,
            groups: RunningGroups::default(),
            runs: CollectiveRuns::default(),
            schedules: ScheduleCache::default(),
            queues: ChunkQueues::default(),
            begun_chunks: Vec::new(),
            expected: BTreeMap::new(),
            mixed_directions,
            mismatch: None,
            rehearsed_ends: None,
            counts: RunCounts::default(),
        }
    }

    /// First disagreement of members on what they issue.
    pub fn mismatch(&self) -> Option<IssueMismatch> {
        self.mismatch
    }

    /// Adds the numbers of collectives to an outcome.
    pub fn count(&self, outcome: &mut ReplayOutcome) {
        let counts = self.counts;
        (outcome.closed, outcome.stepwise) = (counts.closed, counts.stepwise);
        (outcome.unfolded, outcome.recorded) = (counts.unfolded, counts.recorded);
    }

    /// Has a member that holds its lane join its collective.
    pub fn arrive<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        call: MemberCall<'_, 'a>,
    ) {
        let (slot, mut sequence) = (call.slot, call.sequence);
        let launch_order = &mut self.groups[slot.group].order;
        if M::Order::MATCHES_AS_ISSUED {
            sequence = if self.backend.matches_in_issue_order() {
                launch_order.issued(slot.member)
            } else {
                launch_order.numbered(sequence)
            };
        }
        let run = match launch_order.run_of[sequence as usize] {
            None => self.add_run(call, slot, sequence),
            Some(run) => {
                if M::Order::MATCHES_AS_ISSUED {
                    self.check_alike(call, slot, run);
                }
                run
            }
        };
        self.runs[run].arrive(now, slot.member, call.node);
        if M::Order::MATCHES_AS_ISSUED {
            self.notify_joined(call, slot.group, run);
        }
        // In insertion order a member whose collective is not answered by closed form proceeds at once, because the order of
        // arrivals at an instant may matter.
        if M::Order::AT_ONCE && !self.may_be_closed(fabric, run) {
            self.enroll(fabric, effects, now, run, slot.member);
            return;
        }
        let arrived = &mut self.runs[run].arrivals.arrived_now;
        arrived.push(slot.member);
        if arrived.len() > 1 {
            return;
        }
        // The first member of an instant has its run settled.
        if M::Order::AT_ONCE {
            let event = Event::of_run(EventClass::Settle, run, 0);
            effects.agenda.push(now, event);
        } else {
            effects.arrivals.push(run);
        }
    }

    /// Adds the run of a collective whose first member arrives.
    fn add_run(&mut self, call: MemberCall<'_, 'a>, slot: GroupSlot, sequence: u32) -> RunIndex {
        let run = self.runs.take();
        let (request, root) = self.request(call, slot, sequence);
        let running = &mut self.groups[slot.group];
        let (group, backend) = (running.plan, &*self.backend);
        let variant = backend.variant(&request);
        let key = (running.id, &request, root, variant);
        let work_out = || backend.chunk_schedule(&request, &group.extent, &group.paths);
        let number = self.schedules.find(key, work_out);
        self.runs[run].reset(
            (slot.group, running.number, sequence),
            (request, root),
            group.members.len(),
            (number, self.schedules.get(number)),
        );
        running.order.run_of[sequence as usize] = Some(run);
        run
    }

    /// Notifies the backend that a member has joined its collective.
    fn notify_joined(&mut self, call: MemberCall<'_, 'a>, group: GroupIndex, run: RunIndex) {
        let MemberCall {
            running,
            node,
            named,
            ..
        } = call;
        let extent = &self.groups[group].plan.extent;
        if let Some(request) = self.runs[run].request {
            // The run's request is that of the member that came first.
            let node = running.graph.id(node);
            let request = CollectiveRequest { node, ..request };
            self.backend.on_join(running.npu, named, &request, extent);
        }
    }

    /// Returns the request of a collective node, and the position of its root.
    fn request(
        &mut self,
        call: MemberCall<'_, 'a>,
        slot: GroupSlot,
        sequence: u32,
    ) -> (CollectiveRequest, Position) {
        let number = self.counts.requests;
        self.counts.requests = number.wrapping_add(1);
        let (graph, node) = (call.running.graph, call.node);
        let (kind, bytes) = (graph.call(node).kind, graph.bytes(node));
        let running = &self.groups[slot.group];
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
            // Where calls are matched in issue order there is no plan of them: the first member to come defines the
            // call.
            None => {
                let buffer = kind.buffer(bytes, group.members.len() as u32);
                (request(buffer.unwrap_or(u64::MAX), None), Position(0))
            }
        }
    }

    /// Returns what a run is settled by among those of an instant: the order in which members happened to arrive within it
    /// must not matter.
    pub fn content_of(&self, run: RunIndex) -> (u32, u32) {
        let run = &self.runs[run];
        (run.number, run.sequence)
    }

    /// Handles an event of a collective.
    #[inline]
    pub fn handle<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        (event, detail): (Event, u32),
    ) {
        let at = event.cell();
        match event.class() {
            EventClass::Opened => self.credit(fabric, effects, now, at, detail),
            EventClass::EndpointDone => {
                self.on_endpoint_done(fabric, effects, now, at, detail);
            }
            EventClass::Reduced => self.credit(fabric, effects, now, at, 1),
            EventClass::Found => self.on_receive(effects, now, at),
            EventClass::ScriptEvent => {
                let cue = ScriptEvent::OpCompleted { part: detail };
                self.play(fabric, effects, now, at, cue);
            }
            EventClass::ScriptReceived => self.taken(fabric, effects, now, event.payload()),
            EventClass::Settle => self.settle_in_order(fabric, effects, now, event.run()),
            EventClass::Vacant => {
                self.end_member(fabric, effects, now, at.run, Position(event.payload()));
            }
            EventClass::Run => self.end_run(fabric, effects, now, (event.run(), event.rank())),
            _ => debug_assert!(false, "an event of others"),
        }
    }

    /// Handles the arrival of a step's message, from one cell of a run to another, of a stage and after so many steps as
    /// the sender counts them.
    #[inline]
    pub fn step_arrived<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        to: RunCell,
        from: CellIndex,
        (stage, mut number): (SharedStage, u32),
    ) {
        if self.mixed_directions {
            let message = UnsortedMessage {
                from,
                stage,
                number,
                is_request: false,
            };
            match self.number_for_receiver(to.run, to.cell, message) {
                Some(own) => number = own,
                None => return,
            }
        }
        self.on_arrival(fabric, effects, now, to, (stage, number));
    }

    /// Handles the departure of a step's message, which a member waits for.
    #[inline]
    pub fn step_left<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        at: RunCell,
    ) {
        if let Some(progress) = &mut self.runs[at.run].progress {
            progress.cells[at.cell.index()].leaving = false;
        }
        self.advance(fabric, effects, now, at);
    }

    /// Handles the arrival of a message of a collective.
    pub fn arrived<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        of: InFlightOp,
    ) {
        match of {
            InFlightOp::Step {
                run,
                from,
                to,
                stage,
                recv_posted,
            } => {
                let (to, number) = (RunCell { run, cell: to }, (stage, recv_posted));
                self.step_arrived(fabric, effects, now, to, from, number);
            }
            InFlightOp::Scripted {
                run,
                from,
                to,
                label,
                ..
            } => {
                let from = self.runs[run].position(from);
                let cue = ScriptEvent::Message {
                    from: from.0,
                    label,
                };
                self.play(fabric, effects, now, RunCell { run, cell: to }, cue);
            }
            InFlightOp::ChunkRequest {
                run,
                from,
                to,
                stage,
                step,
            } => {
                let request = UnsortedMessage {
                    from,
                    stage,
                    number: step,
                    is_request: true,
                };
                let step = if self.mixed_directions {
                    self.number_for_receiver(run, to, request)
                } else {
                    Some(step)
                };
                if let Some(step) = step {
                    let to = RunCell { run, cell: to };
                    self.on_request(fabric, effects, now, to, (stage, step));
                }
            }
            _ => {}
        }
    }
}
