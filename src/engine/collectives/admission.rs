//! Admits chunks to their stages: immediately, through the NPUs' queues, or in the schedule's order.

use super::executor::CollectiveMessageSimulator;
use crate::discipline::{EventOrderDiscipline, RequiredCollectiveBackendTraits};
use crate::effects::{Effects, LoopFollowUpWork};
use crate::event::{EventClass, PackedEvent};
use crate::fabric::Fabric;
use crate::ids::{CellIndex, ChunkAtMember, RunIndex};
use chakram_base::ids::{Npu, Position, StageIndex};
use chakram_base::units::Time;
use chakram_hardware::collective::ChunkQueueIndexAndCapacity;
use chakram_hardware::network::NetworkBackend;

/// Queue or phase that must admit a chunk before it begins a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StageAdmissionCondition {
    Nothing,
    /// The chunk waits in a queue of its NPU.
    Queue(ChunkQueueIndexAndCapacity),
    /// The chunk waits for its turn in the order in which the schedule admits chunks to this phase.
    Ordered(usize),
}

impl<M: RequiredCollectiveBackendTraits> CollectiveMessageSimulator<'_, M> {
    /// Enrolls the chunks of the member at `position` in the simulation. Each chunk begins its first stage immediately,
    /// or waits to be admitted.
    pub(super) fn enroll_member_chunks<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
        position: Position,
    ) {
        let run = &self.runs[id];
        let group = self.groups[run.group].plan;
        if run.length == 0 {
            // A group of one member is complete immediately. If events are handled in insertion order, the completion
            // needs a separate event. Otherwise the completion would take effect before the current event's remaining
            // work.
            if M::Order::AT_ONCE {
                effects
                    .agenda
                    .push(now, PackedEvent::new(EventClass::Vacant, id.0, position.0))
            } else {
                self.complete_member_node(fabric, effects, now, id, position)
            }
            return;
        }
        let (chunks, stages) = (run.chunks, run.length);
        let npu = group.extent.npus[position.index()];
        for chunk in 0..chunks {
            let cell = self.runs[id].cell_of_chunk(chunk, position);
            let at = ChunkAtMember { run: id, cell };
            for stage in 0..stages {
                let run = &mut self.runs[id];
                let schedule = self
                    .schedules
                    .schedule_by_number(run.schedule_index_of_member_at(position));
                let of = schedule.stage_of_chunk(chunk, StageIndex(stage as u16));
                let queue_slot = self
                    .backend
                    .assign_queue_slot_to_chunk_pass(npu, of.expect("it is one of them"));
                let progress = run.progress.as_mut().expect("it has begun");
                progress.queue_slots[cell.index() * stages + stage] = queue_slot;
            }
            if self.mixed_directions {
                self.renumber_deferred_messages(at);
            }
            let queue = self.move_to_stage_and_find_admission(npu, at, StageIndex(0));
            self.admit_waiting(fabric, effects, now, npu, at, queue);
        }
    }

    /// Moves a chunk to a stage, and returns the queue or phase that must admit the chunk first.
    #[inline]
    pub(super) fn move_to_stage_and_find_admission(
        &mut self,
        npu: Npu,
        at: ChunkAtMember,
        stage: StageIndex,
    ) -> StageAdmissionCondition {
        let run = &mut self.runs[at.run];
        let (chunk, position) = (run.chunk_of_cell(at.cell), run.position_of_cell(at.cell));
        let progress = run.progress.as_mut().expect("it has begun");
        let state = &mut progress.cells[at.cell.index()];
        (state.stage, state.begun) = (stage, false);
        (state.taken, state.arrived, state.credits) = (0, 0, 0);
        let queue_slot = progress.queue_slots[at.cell.index() * run.length + stage.index()];
        let wait = self.required_stage_admission(at.run, chunk, position, stage, queue_slot);
        if let StageAdmissionCondition::Queue(queue) = wait {
            self.queues.append_chunk_to_npu_queue(npu, queue.number, at);
        }
        wait
    }

    /// Returns the queue or phase that must admit a chunk before it begins a stage. After the stage, the chunk must
    /// release its place in this queue or phase.
    #[inline]
    pub(super) fn required_stage_admission(
        &self,
        id: RunIndex,
        chunk: u32,
        position: Position,
        stage: StageIndex,
        queue_slot: u16,
    ) -> StageAdmissionCondition {
        let run = &self.runs[id];
        let schedule = self
            .schedules
            .schedule_by_number(run.schedule_index_of_member_at(position));
        let of = schedule
            .stage_of_chunk(chunk, stage)
            .expect("it is one of them");
        match (
            schedule.admission_order(),
            self.backend
                .find_queue_where_chunks_await_stage(of, queue_slot),
        ) {
            (Some(_), _) => StageAdmissionCondition::Ordered(self.backend.phase_index(of)),
            (None, Some(queue)) => StageAdmissionCondition::Queue(queue),
            (None, None) => StageAdmissionCondition::Nothing,
        }
    }

    /// Starts every chunk that the queue or phase for which `cell` waits can now admit.
    #[inline]
    pub(super) fn admit_waiting<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        npu: Npu,
        at: ChunkAtMember,
        wait: StageAdmissionCondition,
    ) {
        match wait {
            StageAdmissionCondition::Nothing => {
                self.begin_chunk_stage_at_member(fabric, effects, now, at)
            }
            StageAdmissionCondition::Queue(queue) => {
                self.admit_waiting_chunks(fabric, effects, now, npu, queue)
            }
            StageAdmissionCondition::Ordered(phase) => {
                let position = self.runs[at.run].position_of_cell(at.cell);
                self.admit_chunks_in_schedule_order(fabric, effects, now, at.run, position, phase);
            }
        }
    }

    /// Admits chunks of the member at `position` to `phase`, in the order that the schedule gives and up to the phase's
    /// capacity.
    fn admit_chunks_in_schedule_order<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
        position: Position,
        phase: usize,
    ) {
        loop {
            let run = &mut self.runs[id];
            let group = self.groups[run.group].plan;
            let order = self
                .schedules
                .schedule_by_number(run.schedule)
                .admission_order();
            let order = order.expect("its chunks are admitted in order");
            let first = run.cell_of_chunk(0, position);
            let apart = run.cell_of_chunk(1, Position(0));
            let progress = run.progress.as_mut().expect("it has begun");
            let phases = group.extent.phases.len();
            let admitted = &mut progress.admission[position.index() * phases + phase];
            if admitted.inside >= order.capacity[phase] {
                return;
            }
            // Chunks enter in the schedule's order, so an early chunk waits for those before it.
            let Some(passage) = order.order[phase].get(admitted.next as usize) else {
                return;
            };
            let cell = CellIndex(passage.chunk * apart.0 + first.0);
            if progress.cells[cell.index()].stage != passage.stage {
                return;
            }
            admitted.next += 1;
            admitted.inside += 1;
            self.begin_chunk_stage_at_member(fabric, effects, now, ChunkAtMember { run: id, cell });
        }
    }

    /// Removes a chunk from a queue, which then admits other chunks.
    #[inline]
    pub fn leave_stage_queue_and_admit_others<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        npu: Npu,
        queue: ChunkQueueIndexAndCapacity,
    ) {
        self.queues.leave_queue(npu, queue.number);
        self.admit_waiting_chunks(fabric, effects, now, npu, queue);
    }

    /// Starts chunks that wait in a queue, as long as the queue has free places.
    #[inline]
    pub fn admit_waiting_chunks<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        npu: Npu,
        queue: ChunkQueueIndexAndCapacity,
    ) {
        let before = effects.work.len();
        while let Some(at) = self.queues.admit_next_chunk(npu, queue) {
            self.begin_chunk_stage_at_member(fabric, effects, now, at);
            // The call may have ended the script; process its effects before the next chunk begins.
            if effects.work.len() > before {
                effects.push_follow_up(LoopFollowUpWork::Admit(npu, queue));
                return;
            }
        }
    }

    /// Releases the place of a chunk that has ended a stage, so that another chunk can be admitted.
    #[inline]
    pub(super) fn release_stage_admission<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        npu: Npu,
        at: ChunkAtMember,
        passed: StageAdmissionCondition,
    ) {
        match passed {
            StageAdmissionCondition::Nothing => {}
            StageAdmissionCondition::Queue(queue) => {
                self.leave_stage_queue_and_admit_others(fabric, effects, now, npu, queue);
            }
            StageAdmissionCondition::Ordered(phase) => {
                let run = &mut self.runs[at.run];
                let position = run.position_of_cell(at.cell);
                let group = self.groups[run.group].plan;
                let place = position.index() * group.extent.phases.len() + phase;
                let progress = run.progress.as_mut().expect("it has begun");
                progress.admission[place].inside -= 1;
                self.admit_chunks_in_schedule_order(fabric, effects, now, at.run, position, phase);
            }
        }
    }
}
