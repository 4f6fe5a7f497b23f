//! Models the endpoints of members, where messages incur delays, reductions and bus transfers.

use super::executor::CollectiveMessageSimulator;
use super::run::{ChunkStageQueueSlotAndLinePosition, ParticipantChunkStageAndPosition};
use crate::agenda::Agenda;
use crate::discipline::RequiredCollectiveBackendTraits;
use crate::effects::Effects;
use crate::event::{EventClass, PackedEvent};
use crate::fabric::Fabric;
use crate::ids::ChunkAtMember;
use chakram_base::ids::Npu;
use chakram_base::units::Time;
use chakram_hardware::collective::{
    BusEventScheduler, BusTransferTrigger, EndpointBusTransfer, EndpointDelayOrBusProcessing,
    TransferCompletionToken,
};
use chakram_hardware::network::NetworkBackend;

/// Schedules the events of an NPU's bus as delays of that NPU.
struct NpuBusEventScheduler<'a>(&'a mut Agenda, Npu);

impl BusEventScheduler for NpuBusEventScheduler<'_> {
    fn schedule_bus_event(&mut self, at: Time, event: u32) {
        let event = PackedEvent::new(EventClass::Bus, self.1.0, event);
        self.0.add_delay_end(self.1, at, event, 0);
    }
}

/// Creates the token of a bus transfer. The token encodes `event`, the event that follows once the transfer completes.
fn create_bus_transfer_token(event: PackedEvent, detail: u32) -> TransferCompletionToken {
    let word = event.packed_content();
    TransferCompletionToken { word, detail }
}

impl<M: RequiredCollectiveBackendTraits> CollectiveMessageSimulator<'_, M> {
    /// Starts the endpoint's processing that precedes a member's first send in the stage. When it ends, the member
    /// earns its first credits.
    #[inline]
    pub(super) fn start_processing_before_first_send(
        &mut self,
        effects: &mut Effects,
        now: Time,
        at: ChunkAtMember,
        ParticipantChunkStageAndPosition {
            stage,
            queue_slot,
            line,
        }: ParticipantChunkStageAndPosition,
    ) {
        let of = self.schedules.stage_at(stage);
        let credits = self.backend.initial_credits_of_member(of, queue_slot, line);
        let run = &mut self.runs[at.run];
        let group = self.groups[run.group].plan;
        let npu = group.extent.npus[run.position_of_cell(at.cell).index()];
        let event = PackedEvent::of_chunk_at_member(EventClass::Opened, at);
        match self.backend.endpoint_processing_per_message(of) {
            EndpointDelayOrBusProcessing::Instant => {
                let progress = run.progress.as_mut().expect("it has begun");
                progress.cells[at.cell.index()].credits = credits;
            }
            EndpointDelayOrBusProcessing::Delay(delay) if credits > 0 => {
                effects
                    .agenda
                    .add_delay_end(npu, now + delay, event, credits);
            }
            EndpointDelayOrBusProcessing::Delay(_) => {}
            EndpointDelayOrBusProcessing::Bus => {
                for _ in 0..credits {
                    let (passing, token) = (
                        BusTransferTrigger::Start,
                        create_bus_transfer_token(event, 1),
                    );
                    let of = self.schedules.stage_at(stage);
                    let load = self
                        .backend
                        .bus_transfer(of, queue_slot, line, passing, token);
                    self.submit_bus_transfer(effects, now, npu, load);
                }
            }
        }
    }

    fn submit_bus_transfer(
        &mut self,
        effects: &mut Effects,
        now: Time,
        npu: Npu,
        load: EndpointBusTransfer,
    ) {
        let clock = &mut NpuBusEventScheduler(&mut effects.agenda, npu);
        self.backend.submit_npu_bus_transfer(now, npu, load, clock);
    }

    /// Handles a message that has arrived at a member whose chunk has posted the receive.
    #[inline]
    pub(super) fn on_message_received(
        &mut self,
        effects: &mut Effects,
        now: Time,
        at: ChunkAtMember,
    ) {
        let run = &mut self.runs[at.run];
        let progress = run.progress.as_mut().expect("its messages are in flight");
        let state = &mut progress.cells[at.cell.index()];
        state.arrived += 1;
        let r = state.arrived;
        let number = state.stage;
        let schedule = self
            .schedules
            .schedule_by_number(run.schedule_index_of_member_at(run.position_of_cell(at.cell)));
        let stage = schedule.stage_of_chunk(
            run.chunk_of_cell_or_zero_if_uniform(schedule, at.cell),
            number,
        );
        let endpoint = self
            .backend
            .endpoint_processing_per_message(stage.expect("it listens in a stage"));
        if endpoint == EndpointDelayOrBusProcessing::Instant {
            let progress = run.progress.as_mut().expect("its messages are in flight");
            progress.cells[at.cell.index()].credits += 1;
            return;
        }
        let group = self.groups[run.group].plan;
        let npu = group.extent.npus[run.position_of_cell(at.cell).index()];
        let event = PackedEvent::of_chunk_at_member(EventClass::EndpointDone, at);
        if let EndpointDelayOrBusProcessing::Delay(delay) = endpoint {
            effects.agenda.add_delay_end(npu, now + delay, event, r);
        } else if let Some(ChunkStageQueueSlotAndLinePosition {
            stage,
            queue_slot,
            line: Some(line),
        }) = run.stage_of_cell(at.cell, &self.schedules, group, &*self.backend)
        {
            let passing = BusTransferTrigger::Reception(r - 1);
            let load = self.backend.bus_transfer(
                self.schedules.stage_at(stage),
                queue_slot,
                line,
                passing,
                create_bus_transfer_token(event, r),
            );
            self.submit_bus_transfer(effects, now, npu, load);
        }
    }

    /// Handles an event on an NPU's bus. If a transfer completes, returns the event that follows it and the number
    /// stored with that event. The caller carries out the consequences, and then calls
    /// [`Self::resume_bus_after_event_consequences`].
    pub fn handle_npu_bus_event(
        &mut self,
        effects: &mut Effects,
        now: Time,
        npu: Npu,
        event: u32,
    ) -> Option<(PackedEvent, u32)> {
        let clock = &mut NpuBusEventScheduler(&mut effects.agenda, npu);
        let token = self
            .backend
            .return_completed_transfer_and_pause_bus(now, npu, event, clock)?;
        Some((PackedEvent::from_word(token.word), token.detail))
    }

    /// Continues an NPU's bus after the caller has carried out the consequences of an event.
    pub fn resume_bus_after_event_consequences(
        &mut self,
        effects: &mut Effects,
        now: Time,
        npu: Npu,
        event: u32,
    ) {
        let clock = &mut NpuBusEventScheduler(&mut effects.agenda, npu);
        self.backend
            .resume_npu_bus_after_transfer(now, npu, event, clock);
    }

    /// Notifies the backend that an NPU is idle although some of its nodes are ready.
    pub fn notify_backend_that_npu_is_idle(&mut self, npu: Npu) {
        self.backend.on_node_never_started_in_astra_sim(npu);
    }

    /// Handles the end of the endpoint's work on the `r`-th message, counted from 1.
    #[inline]
    pub(super) fn on_endpoint_done<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        at: ChunkAtMember,
        r: u32,
    ) {
        let place = self.position_of_cell_in_its_stage(at);
        let ChunkStageQueueSlotAndLinePosition {
            stage,
            queue_slot,
            line,
        } = place.expect("its messages are dealt with in their stage");
        let line = line.expect("whoever receives has a line");
        let of = self.schedules.stage_at(stage);
        match self
            .backend
            .reduction_time_of_received_message(of, queue_slot, line, r - 1)
        {
            None => {
                let run = &mut self.runs[at.run];
                let progress = run.progress.as_mut().expect("it has begun");
                progress.cells[at.cell.index()].credits += 1;
                let place = ParticipantChunkStageAndPosition {
                    stage,
                    queue_slot,
                    line,
                };
                self.advance_chunk_at_line(fabric, effects, now, at, place);
            }
            Some(span) => {
                let run = &self.runs[at.run];
                let group = self.groups[run.group].plan;
                let npu = group.extent.npus[run.position_of_cell(at.cell).index()];
                let event = PackedEvent::of_chunk_at_member(EventClass::Reduced, at);
                effects.agenda.add_delay_end(npu, now + span, event, 0);
            }
        }
    }

    /// Adds credits that a member has earned.
    #[inline]
    pub(super) fn add_earned_credits_and_advance_chunk<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        at: ChunkAtMember,
        credits: u32,
    ) {
        let run = &mut self.runs[at.run];
        let progress = run.progress.as_mut().expect("it has begun");
        progress.cells[at.cell.index()].credits += credits;
        self.advance_chunk(fabric, effects, now, at);
    }
}
