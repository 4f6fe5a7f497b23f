//! Scripted collectives: members that execute a custom algorithm.
//!
//! In insertion order, a send is over when it has arrived, and parts follow one another, each by an event of its own.
//! In content order it is over when its last byte has left, or, if the machine says so, when it has arrived; a receive whose
//! message is there is over at once, and messages of one instant are collected, so that the order of events within the
//! instant does not matter.

use super::Collectives;
use super::chunks::{LAST_ORDER, POSITION_BITS};
use crate::discipline::{CollectiveModel, Discipline};
use crate::effects::Effects;
use crate::event::{Event, EventClass};
use crate::fabric::{Fabric, InFlightOp};
use chakram_base::units::{BufferShare, Time};
use chakram_hardware::collective::{ScriptAction, ScriptEvent};
use chakram_hardware::network::{NetworkBackend, NetworkMessage};

impl<M: CollectiveModel> Collectives<'_, M> {
    /// Delivers a script event to the member of `cell`, and carries out the actions that follow.
    pub(super) fn play<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        (id, cell): (u32, u32),
        cue: ScriptEvent,
    ) {
        let mut acts = Vec::new();
        self.cue(id, cell, cue, &mut acts);
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
                    let run = &self.runs[id as usize];
                    let op = InFlightOp::Scripted {
                        run: id,
                        from: cell,
                        to: cell - run.position(cell) + to,
                        part,
                        label,
                    };
                    self.send_part(fabric, effects, now, op, BufferShare::whole(bytes));
                }
                ScriptAction::Wait { span, part } if M::Order::AT_ONCE => {
                    let run = &self.runs[id as usize];
                    let group = self.groups[run.group as usize].plan;
                    let npu = group.extent.npus[run.position(cell) as usize];
                    let event = Event::new(EventClass::ScriptEvent, id, cell);
                    effects.agenda.delay(npu.0, now + span, event, part);
                }
                ScriptAction::Wait { span, part } => {
                    self.take_later(fabric, effects, now + span, (id, cell), part)
                }
                ScriptAction::TakeArrived { part } if M::Order::AT_ONCE => {
                    self.take_later(fabric, effects, now, (id, cell), part)
                }
                ScriptAction::TakeArrived { part } => {
                    self.cue(id, cell, ScriptEvent::OpCompleted { part }, &mut acts)
                }
                ScriptAction::End => self.end_stage(fabric, effects, now, id, cell),
            }
        }
    }

    /// Delivers a script event to the member of `cell`; its actions are appended to `acts`.
    fn cue(&mut self, id: u32, cell: u32, cue: ScriptEvent, acts: &mut Vec<ScriptAction>) {
        let run = &self.runs[id as usize];
        let extent = &self.groups[run.group as usize].plan.extent;
        let (player, root) = ((id, run.position(cell)), run.root);
        // A message may come before its receiver begins, but all scripts have one stage.
        let Some(stage) = self.schedules.get(run.schedule).stages().first().copied() else {
            return;
        };
        self.backend
            .advance_script(&stage, extent, player, root, cue, acts);
    }

    /// Schedules the end of a part of a script at `at`.
    fn take_later<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        at: Time,
        (id, cell): (u32, u32),
        part: u32,
    ) {
        // The op is only a handle for the event, and no message is counted.
        let op = fabric.handle_of(InFlightOp::Scripted {
            run: id,
            from: cell,
            to: cell,
            part,
            label: 0,
        });
        effects
            .agenda
            .push(at, Event::new(EventClass::ScriptReceived, 0, op));
    }

    /// Submits a message of a script. Each member has a port in each phase, or one on each side: the message leaves
    /// through that of the first phase in which the ends differ, and enters through that of the last.
    fn send_part<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        op: InFlightOp,
        amount: BufferShare,
    ) {
        let InFlightOp::Scripted {
            run: id,
            from,
            to,
            part,
            ..
        } = op
        else {
            return;
        };
        let run = &mut self.runs[id as usize];
        run.messages += 1;
        let group = self.groups[run.group as usize].plan;
        let extent = &group.extent;
        let (from, to) = (run.position(from), run.position(to));
        let ends = (extent.npus[from as usize], extent.npus[to as usize]);
        let op = fabric.op(op);
        if !M::Order::OPENS_PORTS {
            let message = NetworkMessage::plain(op, ends, amount);
            fabric.put(now, &message, effects);
            return;
        }
        let progress = run.progress.as_ref().expect("it has begun");
        let differs =
            |phase: &chakram_hardware::group::GroupPhase| phase.index(from) != phase.index(to);
        let port = |phase: Option<usize>, position, side| {
            let port = group.port(phase.unwrap_or(0), position, side);
            progress.ports.port(port)
        };
        let [out, into] = group.sides_between(self.settings.topology, from, to);
        let message = NetworkMessage {
            op,
            ends,
            from: port(extent.phases.iter().position(differs), from, out),
            to: port(extent.phases.iter().rposition(differs), to, into),
            path: None,
            amount,
            tell_injected: !self.settings.sends_end_on_arrival,
            sole_sender: false,
            order: part.min(u32::from(LAST_ORDER)) << POSITION_BITS | from,
        };
        let key = (ends.0.0, run.number + 1, run.sequence, 0, part.into());
        fabric.submit::<M::Order>(now, key, message, effects);
    }

    /// Ends a part of a sender whose message has left, or, where sends end so, has arrived.
    pub fn part_ended<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        player: (u32, u32),
        part: u32,
    ) {
        let cue = ScriptEvent::OpCompleted { part };
        self.play(fabric, effects, now, player, cue);
    }

    /// Ends a part that waited, or that received a message which was there before.
    pub(super) fn taken<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        op: u32,
    ) {
        if let InFlightOp::Scripted {
            run, from, part, ..
        } = fabric.forget_op(op)
        {
            self.play(
                fabric,
                effects,
                now,
                (run, from),
                ScriptEvent::OpCompleted { part },
            );
        }
    }
}
