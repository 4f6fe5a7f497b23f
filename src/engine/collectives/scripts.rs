//! Scripted collectives: members that execute a custom algorithm.
//!
//! If events are handled in insertion order (as in ASTRA-sim), a send ends when its message has arrived. Each operation
//! (part) of a script then starts in its own event. If events are handled in content order, a send ends when its last
//! byte has left or, if the machine requires it, has arrived. A receive whose message has arrived ends immediately.
//! Messages that arrive at the same instant are collected, so the order of events within the instant does not matter.

use super::chunks::{LAST_ORDER, POSITION_BITS};
use super::executor::CollectiveMessageSimulator;
use crate::discipline::{EventOrderDiscipline, RequiredCollectiveBackendTraits};
use crate::effects::Effects;
use crate::event::{EventClass, PackedEvent};
use crate::fabric::{Fabric, InFlightMessageContext};
use crate::ids::ChunkAtMember;
use chakram_base::ids::{OpIndex, Position};
use chakram_base::units::{Time, UnroundedBufferShare};
use chakram_hardware::collective::{ScriptAction, ScriptExecutingMemberId, ScriptMemberEvent};
use chakram_hardware::network::{MessagePlaceInReceiverProgram, NetworkBackend, NetworkMessage};

impl<M: RequiredCollectiveBackendTraits> CollectiveMessageSimulator<'_, M> {
    /// Delivers a script event to the member of `cell`, and carries out the script's next actions.
    pub(super) fn handle_script_event<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        at: ChunkAtMember,
        cue: ScriptMemberEvent,
    ) {
        let mut acts = Vec::new();
        self.deliver_event_to_script(at, cue, &mut acts);
        let mut done = 0;
        while let Some(&act) = acts.get(done) {
            done += 1;
            match act {
                ScriptAction::Send {
                    to,
                    bytes,
                    label,
                    part,
                } => {
                    let run = &self.runs[at.run];
                    let op = InFlightMessageContext::Scripted {
                        run: at.run,
                        from: at.cell,
                        to: at.cell.same_chunk_at_other_position(
                            run.position_of_cell(at.cell),
                            Position(to),
                        ),
                        part,
                        label,
                    };
                    self.send_script_message(
                        fabric,
                        effects,
                        now,
                        op,
                        UnroundedBufferShare::from_bytes(bytes),
                    );
                }
                ScriptAction::Wait { span, part } if M::Order::AT_ONCE => {
                    let run = &self.runs[at.run];
                    let group = self.groups[run.group].plan;
                    let npu = group.extent.npus[run.position_of_cell(at.cell).index()];
                    let event = PackedEvent::of_chunk_at_member(EventClass::ScriptMemberEvent, at);
                    effects.agenda.add_delay_end(npu, now + span, event, part);
                }
                ScriptAction::Wait { span, part } => {
                    self.schedule_script_op_end(fabric, effects, now + span, at, part)
                }
                ScriptAction::TakeArrived { part } if M::Order::AT_ONCE => {
                    self.schedule_script_op_end(fabric, effects, now, at, part)
                }
                ScriptAction::TakeArrived { part } => self.deliver_event_to_script(
                    at,
                    ScriptMemberEvent::OpCompleted { part },
                    &mut acts,
                ),
                ScriptAction::End => self.end_stage(fabric, effects, now, at),
            }
        }
    }

    /// Delivers an event to the script of the member of `cell`. Appends the script's next actions to `acts`.
    fn deliver_event_to_script(
        &mut self,
        at: ChunkAtMember,
        cue: ScriptMemberEvent,
        acts: &mut Vec<ScriptAction>,
    ) {
        let run = &self.runs[at.run];
        let extent = &self.groups[run.group].plan.extent;
        let player = ScriptExecutingMemberId {
            run: at.run.0,
            position: run.position_of_cell(at.cell),
        };
        // A message may arrive before its receiver begins, when the receiver's chunk has no stage yet. All scripts have
        // exactly one stage.
        let Some(stage) = self
            .schedules
            .schedule_by_number(run.schedule)
            .stages_of_all_routes()
            .first()
            .copied()
        else {
            return;
        };
        self.backend
            .advance_script(&stage, extent, player, run.root, cue, acts);
    }

    /// Schedules the end of a script part at `end`.
    fn schedule_script_op_end<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        end: Time,
        at: ChunkAtMember,
        part: u32,
    ) {
        // The op only identifies an event, so it does not count as a message.
        let op = fabric.allocate_uncounted_event_op(InFlightMessageContext::Scripted {
            run: at.run,
            from: at.cell,
            to: at.cell,
            part,
            label: 0,
        });
        effects
            .agenda
            .push(end, PackedEvent::of_op(EventClass::ScriptReceived, 0, op));
    }

    /// Submits a message of a script. Each member of a collective has one port per phase or, in some phases, one port
    /// per direction. The message uses the sender's port in the first phase in which the two positions differ, and the
    /// receiver's in the last.
    fn send_script_message<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        op: InFlightMessageContext,
        amount: UnroundedBufferShare,
    ) {
        let InFlightMessageContext::Scripted {
            run: id,
            from,
            to,
            part,
            ..
        } = op
        else {
            return;
        };
        let run = &mut self.runs[id];
        run.messages += 1;
        let group = self.groups[run.group].plan;
        let extent = &group.extent;
        let (from, to) = (run.position_of_cell(from), run.position_of_cell(to));
        let ends = (extent.npus[from.index()], extent.npus[to.index()]);
        let op = fabric.allocate_message_op(op);
        if !M::Order::OPENS_PORTS {
            let message = NetworkMessage::create_message_without_port(op, ends, amount);
            fabric.pass_message_to_network(now, &message, effects);
            return;
        }
        let progress = run.progress.as_ref().expect("it has begun");
        let differs = |phase: &chakram_hardware::group::PhaseDimensionSizeAndStride| {
            phase.member_index_in_dimension(from) != phase.member_index_in_dimension(to)
        };
        let port = |phase: Option<usize>, position, side| {
            let port = group.port_index(phase.unwrap_or(0), position, side);
            progress.ports.nth_port(port)
        };
        let [out, into] = group.sides_message_leaves_and_enters(self.settings.topology, from, to);
        let message = NetworkMessage {
            op,
            ends,
            from: port(extent.phases.iter().position(differs), from, out),
            to: port(extent.phases.iter().rposition(differs), to, into),
            path: None,
            amount,
            tell_injected: !self.settings.sends_end_on_arrival,
            sole_sender: false,
            order: part.min(u32::from(LAST_ORDER)) << POSITION_BITS | from.0,
            turn: MessagePlaceInReceiverProgram::default(),
        };
        let key = (ends.0.0, run.number + 1, run.sequence, 0, part.into());
        fabric.submit_message::<M::Order>(now, key, message, effects);
    }

    /// Ends a sender's part after its message has left or, if the rule for sends requires it, has arrived.
    pub fn on_script_send_ended<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        at: ChunkAtMember,
        part: u32,
    ) {
        let cue = ScriptMemberEvent::OpCompleted { part };
        self.handle_script_event(fabric, effects, now, at, cue);
    }

    /// Ends a wait, or a receive whose message had already arrived.
    pub(super) fn on_script_wait_ended<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        op: OpIndex,
    ) {
        if let InFlightMessageContext::Scripted {
            run, from, part, ..
        } = fabric.forget_op(op)
        {
            self.handle_script_event(
                fabric,
                effects,
                now,
                ChunkAtMember { run, cell: from },
                ScriptMemberEvent::OpCompleted { part },
            );
        }
    }
}
