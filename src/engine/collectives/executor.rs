//! Simulates collectives message by message: keeps the state, and dispatches events.

use super::chunk_queues::AllNpuChunkQueues;
use super::direction_matching::MessageOrRequestWithSenderStepNumber;
use super::group::GroupsOfAllLaunchesInFlight;
use super::recorded::TotalWaitAndCausingRank;
use super::requests::RendezvousWithheldMessages;
use super::run::CollectiveRun;
use super::runs::CollectiveRuns;
use super::schedule_cache::ScheduleCache;
use crate::CollectiveRecord;
use crate::discipline::RequiredCollectiveBackendTraits;
use crate::effects::Effects;
use crate::event::{EventClass, PackedEvent};
use crate::fabric::{Fabric, InFlightMessageContext};
use crate::ids::{CellIndex, ChunkAtMember, CollectiveStageStep, RunIndex};
use crate::run_settings::RunSettings;
use chakram_base::ids::Position;
use chakram_base::units::{Span, Time};
use chakram_hardware::collective::ScriptMemberEvent;
use chakram_hardware::network::NetworkBackend;

/// Simulates collectives message by message: the steps of chunks through stages, queues and endpoints.
pub struct CollectiveMessageSimulator<'a, M: RequiredCollectiveBackendTraits> {
    pub(super) backend: &'a mut M,
    pub(super) settings: RunSettings<'a>,
    pub groups: GroupsOfAllLaunchesInFlight<'a>,
    pub runs: CollectiveRuns,
    pub(super) schedules: ScheduleCache<M::Stage>,
    pub(super) queues: AllNpuChunkQueues,
    /// Chunks that have begun a stage but have not yet advanced in it.
    pub(super) begun_chunks: Vec<ChunkAtMember>,
    pub(super) withheld: RendezvousWithheldMessages,
    /// True if members of a collective may run the same stage in different directions or trees.
    pub(super) mixed_directions: bool,
    /// End time and position of each member, recorded while a collective is rehearsed; otherwise `None`.
    pub(super) rehearsed_ends: Option<Vec<(Time, Position)>>,
}

impl<'a, M: RequiredCollectiveBackendTraits> CollectiveMessageSimulator<'a, M> {
    pub fn new(backend: &'a mut M, settings: RunSettings<'a>) -> Self {
        let mixed_directions = backend.matches_by_sender();
        Self {
            backend,
            settings,
            groups: GroupsOfAllLaunchesInFlight::default(),
            runs: CollectiveRuns::default(),
            schedules: ScheduleCache::default(),
            queues: AllNpuChunkQueues::default(),
            begun_chunks: Vec::new(),
            withheld: RendezvousWithheldMessages::default(),
            mixed_directions,
            rehearsed_ends: None,
        }
    }

    /// Returns true if the members of the collective `run` follow scripts instead of built-in algorithms.
    pub fn is_scripted(&self, run: &CollectiveRun) -> bool {
        let mut stages = self
            .schedules
            .schedule_by_number(run.schedule)
            .stages_of_all_routes()
            .iter();
        stages.any(|stage| self.backend.is_scripted(stage))
    }

    /// Handles an event of a simulated collective.
    #[inline]
    pub fn handle_event<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        event: PackedEvent,
        detail: u32,
    ) {
        let at = event.unpack_chunk_at_member();
        match event.event_class() {
            EventClass::Opened => {
                self.add_earned_credits_and_advance_chunk(fabric, effects, now, at, detail)
            }
            EventClass::EndpointDone => {
                self.on_endpoint_done(fabric, effects, now, at, detail);
            }
            EventClass::Reduced => {
                self.add_earned_credits_and_advance_chunk(fabric, effects, now, at, 1)
            }
            EventClass::Found => self.on_message_received(effects, now, at),
            EventClass::ScriptMemberEvent => {
                let cue = ScriptMemberEvent::OpCompleted { part: detail };
                self.handle_script_event(fabric, effects, now, at, cue);
            }
            EventClass::ScriptReceived => {
                self.on_script_wait_ended(fabric, effects, now, event.op_index())
            }
            EventClass::Vacant => {
                self.complete_member_node(
                    fabric,
                    effects,
                    now,
                    at.run,
                    Position(event.payload_bits()),
                );
            }
            _ => debug_assert!(false, "an event of others"),
        }
    }

    /// Handles a step's message that has arrived at another member, for the same chunk. The stage and step follow the
    /// sender's numbering.
    #[inline]
    pub fn on_step_message_arrived<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        to: ChunkAtMember,
        from: CellIndex,
        mut step: CollectiveStageStep,
    ) {
        if self.mixed_directions {
            let message = MessageOrRequestWithSenderStepNumber {
                from,
                stage: step.stage,
                number: step.number,
                is_request: false,
            };
            match self.renumber_step_or_defer_message(to.run, to.cell, message) {
                Some(own) => step.number = own,
                None => return,
            }
        }
        self.deliver_step_message_to_cell(fabric, effects, now, to, step);
    }

    /// Handles the departure of a step's message that the sender waits for.
    #[inline]
    pub fn on_step_message_left<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        at: ChunkAtMember,
    ) {
        if let Some(progress) = &mut self.runs[at.run].progress {
            progress.cells[at.cell.index()].leaving = false;
        }
        self.advance_chunk(fabric, effects, now, at);
    }

    /// Handles the arrival of a message of a collective.
    pub fn on_message_arrived<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        of: InFlightMessageContext,
    ) {
        match of {
            InFlightMessageContext::Step {
                run,
                from,
                to,
                stage,
                recv_posted,
            } => {
                let number = recv_posted;
                let (to, step) = (
                    ChunkAtMember { run, cell: to },
                    CollectiveStageStep { stage, number },
                );
                self.on_step_message_arrived(fabric, effects, now, to, from, step);
            }
            InFlightMessageContext::Scripted {
                run,
                from,
                to,
                label,
                ..
            } => {
                let from = self.runs[run].position_of_cell(from);
                let cue = ScriptMemberEvent::Message {
                    from: from.0,
                    label,
                };
                self.handle_script_event(
                    fabric,
                    effects,
                    now,
                    ChunkAtMember { run, cell: to },
                    cue,
                );
            }
            InFlightMessageContext::ChunkRequest {
                run,
                from,
                to,
                stage,
                step,
            } => {
                let request = MessageOrRequestWithSenderStepNumber {
                    from,
                    stage,
                    number: step,
                    is_request: true,
                };
                let number = if self.mixed_directions {
                    self.renumber_step_or_defer_message(run, to, request)
                } else {
                    Some(step)
                };
                if let Some(number) = number {
                    let to = ChunkAtMember { run, cell: to };
                    let step = CollectiveStageStep { stage, number };
                    self.release_or_store_requested_message(fabric, effects, now, to, step);
                }
            }
            _ => {}
        }
    }

    /// Reports the end of a collective, and frees its state.
    pub fn report_ended_collective_and_free_state(
        &mut self,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
        stepwise: bool,
    ) {
        let run = &self.runs[id];
        let totals = run.sum_waiting_and_find_causing_rank(self.groups[run.group].plan);
        let transfer = now.since(run.arrivals.last);
        self.report_and_free_run(effects, now, id, stepwise, totals, transfer);
    }

    /// Reports that a collective ended, with its waiting and transfer times, and frees its state.
    pub(super) fn report_and_free_run(
        &mut self,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
        stepwise: bool,
        (waited, waited_for): TotalWaitAndCausingRank,
        transfer: Span,
    ) {
        let run = &self.runs[id];
        let running = &mut self.groups[run.group];
        let request = run.request.expect("a run carries something out");
        effects.queue_collective_end_notification(CollectiveRecord {
            group: running.id,
            kind: request.kind,
            buffer: request.buffer,
            last_start: run.arrivals.last,
            end: now,
            transfer,
            waited_for,
            waited,
            stepwise,
            materialized: run.answer.materialized,
            messages: run.messages,
        });
        running.order.run_of[run.sequence as usize] = None;
        // Messages refer to the collective's entry by index, so the entry is freed only if none of them are in flight.
        if run.progress.is_none() {
            self.runs.free_ended_run(id);
        }
    }
}
