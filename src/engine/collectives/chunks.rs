//! Executes chunks of a collective in flight: the steps of each stage, and the transition to the next stage.

use super::admission::StageAdmissionCondition;
use super::executor::CollectiveMessageSimulator;
use super::run::{
    ChunkStageQueueSlotAndLinePosition, OneChunkProgressAtMember, ParticipantChunkStageAndPosition,
};
use super::schedule_cache::ScheduleStageRef;
use crate::discipline::{EventOrderDiscipline, RequiredCollectiveBackendTraits};
use crate::effects::{Effects, LoopFollowUpWork};
use crate::event::{EventClass, PackedEvent};
use crate::fabric::{Fabric, InFlightMessageContext};
use crate::ids::{ChunkAtMember, CollectiveStageStep, RunIndex};
use chakram_base::ids::{NodeIndex, Position, StageIndex};
use chakram_base::units::Time;
use chakram_hardware::collective::{MemberLinePosition, ScriptMemberEvent, SendStepWithConditions};
use chakram_hardware::network::{MessagePlaceInReceiverProgram, NetworkBackend, NetworkMessage};
use chakram_hardware::topology::SwitchingMode;
use chakram_hardware::topology::Topology;

/// Last stage with its own value in a message's `order`, which has only 27 bits. All later stages share this value.
pub(super) const LAST_ORDER: u16 = 31;
/// Number of bits of a message's `order` that identify the sender's position.
pub(super) const POSITION_BITS: u32 = Topology::MAX_NPUS.trailing_zeros();

impl<M: RequiredCollectiveBackendTraits> CollectiveMessageSimulator<'_, M> {
    /// Begins a chunk's stage at a member.
    #[inline]
    pub(super) fn begin_chunk_stage_at_member<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        at: ChunkAtMember,
    ) {
        let place = self.position_of_cell_in_its_stage(at);
        let ChunkStageQueueSlotAndLinePosition {
            stage,
            queue_slot,
            line,
        } = place.expect("it is in a stage");
        let run = &mut self.runs[at.run];
        let progress = run.progress.as_mut().expect("it has begun");
        let state = &mut progress.cells[at.cell.index()];
        state.begun = true;
        let number = state.stage;
        if self.backend.is_scripted(self.schedules.stage_at(stage)) {
            self.handle_script_event(fabric, effects, now, at, ScriptMemberEvent::Begin);
            return;
        }
        // If events are handled in insertion order, the chunk advances only once a later event makes the endpoint
        // ready.
        if !M::Order::AT_ONCE {
            self.begun_chunks.push(at);
        }
        let Some(line) = line else {
            return;
        };
        let place = ParticipantChunkStageAndPosition {
            stage,
            queue_slot,
            line,
        };
        self.open_strand(fabric, effects, now, at, place);
        if !self
            .backend
            .is_split_into_two_strands(self.schedules.stage_at(stage))
        {
            return;
        }
        let run = &mut self.runs[at.run];
        let other = run.cell_in_other_strand(at.cell);
        let progress = run.progress.as_mut().expect("it has begun");
        progress.cells[other.index()] = OneChunkProgressAtMember {
            stage: number,
            begun: true,
            leaving: false,
            taken: 0,
            arrived: 0,
            credits: 0,
        };
        let other = ChunkAtMember { cell: other, ..at };
        self.begun_chunks.push(other);
        let line = line.reversed();
        let place = ParticipantChunkStageAndPosition { line, ..place };
        self.open_strand(fabric, effects, now, other, place);
    }

    /// Begins one strand of a chunk's stage at a member. A stage has two strands if it uses both directions of a ring.
    #[inline]
    fn open_strand<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        at: ChunkAtMember,
        place: ParticipantChunkStageAndPosition,
    ) {
        self.start_processing_before_first_send(effects, now, at, place);
        let shared = self.shared_stage_number(at);
        let run = &mut self.runs[at.run];
        let progress = run.progress.as_mut().expect("it has begun");
        // Messages that arrived before their receiver entered the stage were only counted, and are delivered now.
        let waiting = &mut progress.waiting[at.cell.index() * run.length + shared.index()];
        let waiting = std::mem::take(waiting);
        self.post_receives_and_deliver_early_messages(fabric, effects, now, at, waiting);
    }

    /// Posts the receives that a member now expects, and delivers the first `there` messages to them, which have
    /// already arrived.
    #[inline]
    pub(super) fn post_receives_and_deliver_early_messages<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        at: ChunkAtMember,
        there: u32,
    ) {
        if fabric.needs_message_requests() {
            self.request_expected_messages_from_senders(fabric, effects, now, at);
        }
        for _ in 0..there {
            if M::Order::AT_ONCE {
                effects
                    .agenda
                    .push(now, PackedEvent::of_chunk_at_member(EventClass::Found, at))
            } else {
                self.on_message_received(effects, now, at)
            }
        }
    }

    /// Delivers a message to `cell`. `stage` is the message's stage number, which all members use. The cell (a chunk at
    /// a member) receives the message after a given number of the cell's own steps.
    #[inline]
    pub(super) fn deliver_step_message_to_cell<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        at: ChunkAtMember,
        CollectiveStageStep { stage, number }: CollectiveStageStep,
    ) {
        let shared = self.shared_stage_number(at);
        let run = &mut self.runs[at.run];
        let stages = run.length;
        let progress = run.progress.as_mut().expect("its messages are in flight");
        let state = progress.cells[at.cell.index()];
        if shared == stage && state.begun && state.taken >= number {
            self.on_message_received(effects, now, at);
            if !M::Order::AT_ONCE {
                self.advance_chunk(fabric, effects, now, at);
            }
        } else if number == 0 {
            // Messages that need not wait for a step are only counted, separately for each stage.
            progress.waiting[at.cell.index() * stages + stage.index()] += 1;
        } else {
            progress.defer_message(at.cell, stage, number, false);
        }
    }

    /// Advances the chunks that have begun a stage. Also advances other chunks that begin a stage as a result.
    #[inline]
    pub fn advance_begun_chunks<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
    ) {
        let mut next = 0;
        while let Some(&at) = self.begun_chunks.get(next) {
            next += 1;
            self.advance_chunk(fabric, effects, now, at);
        }
        self.begun_chunks.clear();
    }

    /// Advances a chunk at a member as far as possible at `now`. The chunk takes steps as long as it has credits, and
    /// ends the stage after the last step. Chunks that begin a stage as a result are appended to `begun_chunks`.
    #[inline]
    pub(super) fn advance_chunk<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        at: ChunkAtMember,
    ) {
        match self.position_of_cell_in_its_stage(at) {
            Some(ChunkStageQueueSlotAndLinePosition {
                stage,
                queue_slot,
                line: Some(line),
            }) => {
                let place = ParticipantChunkStageAndPosition {
                    stage,
                    queue_slot,
                    line,
                };
                self.advance_chunk_at_line(fabric, effects, now, at, place);
            }
            Some(_) => self.end_stage(fabric, effects, now, at),
            None => {}
        }
    }

    /// Returns where a cell is in its stage
    /// ([`CollectiveRun::stage_of_cell`](super::run::CollectiveRun::stage_of_cell)).
    #[inline(always)]
    pub(super) fn position_of_cell_in_its_stage(
        &self,
        at: ChunkAtMember,
    ) -> Option<ChunkStageQueueSlotAndLinePosition> {
        let run = &self.runs[at.run];
        let group = self.groups[run.group].plan;
        run.stage_of_cell(at.cell, &self.schedules, group, &*self.backend)
    }

    /// Like [`Self::advance_chunk`], for a member whose place in the stage is known.
    pub(super) fn advance_chunk_at_line<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        at: ChunkAtMember,
        ParticipantChunkStageAndPosition {
            stage,
            queue_slot,
            line,
        }: ParticipantChunkStageAndPosition,
    ) {
        let state = |e: &Self| {
            let progress = e.runs[at.run].progress.as_ref();
            progress.expect("it has begun").cells[at.cell.index()]
        };
        let paced = self
            .backend
            .sends_one_message_at_a_time(self.schedules.stage_at(stage));
        let mut progress = state(self);
        let mut next = self.step_at(stage, queue_slot, line, progress.taken);
        while let Some(step) = next {
            let held = step.after > progress.credits || step.arrived > progress.arrived;
            // A member that could send to all others at once waits for the port to be free before each message. A group
            // of n members then has n messages in flight instead of n².
            if held || (paced && progress.leaving) {
                break;
            }
            next = self.step_at(stage, queue_slot, line, progress.taken + 1);
            self.take_step(fabric, effects, now, at, step, paced || next.is_none());
            progress = state(self);
        }
        let of = self.schedules.stage_at(stage);
        let all = self.backend.receive_count(of, queue_slot, line)
            + self.backend.initial_credits_of_member(of, queue_slot, line);
        if next.is_some() || progress.leaving || progress.credits < all {
            return;
        }
        if self.backend.is_split_into_two_strands(of) {
            self.end_strand(fabric, effects, now, at);
        } else {
            self.end_stage(fabric, effects, now, at);
        }
    }

    /// Returns step `i` of the member at a position on a line.
    #[inline]
    fn step_at(
        &self,
        stage: ScheduleStageRef,
        slot: u16,
        line: MemberLinePosition,
        i: u32,
    ) -> Option<SendStepWithConditions> {
        let stage = self.schedules.stage_at(stage);
        self.backend.nth_send(stage, slot, line, i)
    }

    /// Ends one strand of a chunk's stage. A stage has two strands if it uses both directions of a ring. If the other
    /// strand has ended, also ends the stage.
    fn end_strand<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        at: ChunkAtMember,
    ) {
        let run = &mut self.runs[at.run];
        let other = run.cell_in_other_strand(at.cell);
        let progress = run.progress.as_mut().expect("it has begun");
        let is_last = !progress.cells[other.index()].begun;
        if std::mem::take(&mut progress.cells[at.cell.index()].begun) && is_last {
            let cell = at.cell.min(other);
            self.end_stage(fabric, effects, now, ChunkAtMember { cell, ..at });
        }
    }

    /// Takes a step: submits the step's message, and posts the receives that follow it. If `matters` is true, the
    /// network notifies the member when the message has left.
    #[inline]
    fn take_step<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        at: ChunkAtMember,
        step: SendStepWithConditions,
        matters: bool,
    ) {
        let topology = self.settings.topology;
        let shared = self.shared_stage_number(at);
        let run = &mut self.runs[at.run];
        let group = self.groups[run.group].plan;
        run.messages += 1;
        let position = run.position_of_cell(at.cell);
        let (chunk, schedule) = (
            run.chunk_of_cell(at.cell),
            run.schedule_index_of_member_at(position),
        );
        let strand = run.strand_of_cell(at.cell);
        let of_all = chunk * run.strands + strand;
        let progress = run.progress.as_mut().expect("it has begun");
        let state = &mut progress.cells[at.cell.index()];
        let number = state.stage;
        let taken = state.taken;
        state.taken += 1;
        state.leaving = !M::Order::SENDS_END_ON_ARRIVAL && matters;
        let schedule = self.schedules.schedule_by_number(schedule);
        let assignment = schedule
            .stage_of_chunk(chunk, number)
            .expect("it is in one");
        let index = self.backend.phase_index(assignment);
        let phase = &group.extent.phases[index];
        // A chunk's second strand runs the mirrored program, so it counts the partner's position from the other end of
        // the line.
        let to = match strand {
            0 => step.to,
            _ => phase.size - 1 - step.to,
        };
        let to = phase.position_with_index_in_line(position, to);
        let receiver = at.cell.same_chunk_at_other_position(position, to);
        let op = fabric.allocate_message_op(InFlightMessageContext::Step {
            run: at.run,
            from: at.cell,
            to: receiver,
            stage: shared,
            recv_posted: step.recv_posted,
        });
        let (a, b) = (
            group.extent.npus[position.index()],
            group.extent.npus[to.index()],
        );
        // With contention, the network routes messages itself and does not use the run's ports.
        let (from, to) = if !M::Order::OPENS_PORTS || N::SHARED {
            (
                progress.ports.placeholder_port_for_portless_models(),
                progress.ports.placeholder_port_for_portless_models(),
            )
        } else {
            let [out, into] = group.sides_message_leaves_and_enters(topology, position, to);
            (
                progress
                    .ports
                    .nth_port(group.port_index(index, position, out)),
                progress.ports.nth_port(group.port_index(index, to, into)),
            )
        };
        let message = NetworkMessage {
            op,
            ends: (a, b),
            from,
            to,
            path: self
                .backend
                .path_shared_by_stage_messages(assignment, &group.paths[index]),
            amount: step.amount,
            tell_injected: state.leaving,
            sole_sender: !self.backend.sends_one_message_at_a_time(assignment),
            order: u32::from(number.0.min(LAST_ORDER)) << POSITION_BITS | position.0,
            // With a sub-grid and ideal switching, closed forms assume that ports serve messages in order of arrival,
            // so all messages get the same priority.
            turn: if group.extent.regular && topology.switching_mode() == SwitchingMode::IDEAL {
                MessagePlaceInReceiverProgram::default()
            } else {
                MessagePlaceInReceiverProgram {
                    strand: receiver.0,
                    step: u64::from(number.0) << 32 | u64::from(step.recv_posted),
                }
            },
        };
        if fabric.needs_message_requests() {
            let asked = progress.take_deferred_count(at.cell, shared, taken + 1, true) > 0;
            fabric.withhold_message(message);
            if asked {
                effects
                    .agenda
                    .push(now, PackedEvent::of_op(EventClass::Requested, 0, op))
            } else {
                let step = CollectiveStageStep {
                    stage: shared,
                    number: taken,
                };
                self.withheld.store_withheld_op(at, step, op);
            }
        } else if N::SHARED || run.chunks > 1 {
            let step = u64::from(number.0) << 32 | u64::from(taken);
            let key = (a.0, run.number + 1, run.sequence, of_all, step);
            // Group 0 is reserved for messages between ranks, so these sort before messages of the NPU's collectives.
            fabric.submit_message::<M::Order>(now, key, message, effects);
        } else {
            fabric.pass_message_to_network(now, &message, effects);
        }
        let run = &mut self.runs[at.run];
        let progress = run.progress.as_mut().expect("it has begun");
        let there = progress.take_deferred_count(at.cell, shared, taken + 1, false);
        self.post_receives_and_deliver_early_messages(fabric, effects, now, at, there);
    }

    /// Ends a chunk's stage at a member. The chunk then begins its next stage, or is complete.
    pub(super) fn end_stage<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        at: ChunkAtMember,
    ) {
        let run = &mut self.runs[at.run];
        let group = self.groups[run.group].plan;
        let position = run.position_of_cell(at.cell);
        let (npu, chunk) = (
            group.extent.npus[position.index()],
            run.chunk_of_cell(at.cell),
        );
        let progress = run.progress.as_mut().expect("it has begun");
        let number = progress.cells[at.cell.index()].stage;
        let queue_slot = progress.queue_slots[at.cell.index() * run.length + number.index()];
        let length = run.length;
        let passed = self.required_stage_admission(at.run, chunk, position, number, queue_slot);
        if number.index() + 1 < length {
            // The chunk must join the next stage's queue before it releases its current place, because both stages may
            // use the same queue.
            let next = self.move_to_stage_and_find_admission(npu, at, StageIndex(number.0 + 1));
            self.release_stage_admission(fabric, effects, now, npu, at, passed);
            self.admit_waiting(fabric, effects, now, npu, at, next);
            return;
        }
        let run = &mut self.runs[at.run];
        let progress = run.progress.as_mut().expect("it has begun");
        progress.cells[at.cell.index()].stage = StageIndex(length as u16);
        progress.done[position.index()] += 1;
        if progress.done[position.index()] == run.chunks {
            self.complete_member_node(fabric, effects, now, at.run, position);
            // All chunks of the member have been admitted, and the admission state may already be freed. A place in a
            // queue must still be released: all collectives share the queues.
            if let StageAdmissionCondition::Queue(queue) = passed {
                if M::Order::AT_ONCE {
                    effects.push_follow_up(LoopFollowUpWork::Leave(npu, queue));
                } else {
                    self.leave_stage_queue_and_admit_others(fabric, effects, now, npu, queue);
                }
            }
        } else {
            self.release_stage_admission(fabric, effects, now, npu, at, passed);
        }
    }

    /// Completes the node of a member whose chunks are all complete.
    pub(super) fn complete_member_node<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
        position: Position,
    ) {
        let run = &mut self.runs[id];
        let running = &self.groups[run.group];
        let group = running.plan;
        let member = group.extent.member_at[position.index()];
        let node = run.arrivals.nodes[member.index()];
        let instance = running.program_instance_index_of_rank(group.members[member.index()]);
        let has_ended = run.answer.was_member_notified_of_end(position);
        let rehearsed_ends = self.rehearsed_ends.as_mut();
        let rehearsed = rehearsed_ends
            .map(|ends| ends.push((now, position)))
            .is_some();
        let progress = run.progress.as_mut().expect("it has begun");
        progress.ended += 1;
        if progress.ended == group.extent.member_count() {
            // If members run in different directions, messages without a receiver may still be in flight and refer to
            // the run's progress, so keep it.
            if !progress.mixed {
                let ports = progress.ports;
                run.progress = None;
                fabric.close_ports(ports);
            }
            if !rehearsed {
                self.report_ended_collective_and_free_state(effects, now, id, true);
            }
        }
        if let Some(instance) = instance.filter(|_| !rehearsed && !has_ended) {
            effects.end_node::<M::Order>(now, instance, NodeIndex(node));
        }
    }
}
