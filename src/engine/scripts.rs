//! Scripted collectives: members that execute a custom algorithm.
//!
//! In insertion order, a send is over when it has arrived, and parts follow one another, each by an event of its own.
//! In content order it is over when its last byte has left, a receive whose message is there is over at once, and
//! messages of one instant are collected, so that the order of events within the instant does not matter.

use super::Engine;
use super::chunks::{LAST_ORDER, POSITION_BITS};
use super::collective_run::InFlightOp;
use super::discipline::{CollectiveModel, Discipline};
use super::event::{Event, EventClass};
use crate::collective::{ScriptAction, ScriptEvent};
use crate::network::{NetworkBackend, NetworkMessage};
use crate::report::Observer;
use crate::units::{BufferShare, Time};

impl<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> Engine<'_, O, N, M> {
    /// Delivers a script event to the member of `cell`, and carries out the actions that follow.
    pub(super) fn play(&mut self, now: Time, id: u32, cell: u32, cue: ScriptEvent) {
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
                    let run = &self.collectives.runs[id as usize];
                    let op = InFlightOp::Scripted {
                        run: id,
                        from: cell,
                        to: cell - run.position(cell) + to,
                        part,
                        label,
                    };
                    self.send_part(now, op, BufferShare::whole(bytes));
                }
                ScriptAction::Wait { span, part } if M::Order::AT_ONCE => {
                    let run = &self.collectives.runs[id as usize];
                    let group = self.collectives.groups[run.group as usize].plan;
                    let npu = group.extent.npus[run.position(cell) as usize];
                    let event = Event::new(EventClass::ScriptEvent, id, cell);
                    self.agenda.delay(npu.0, now + span, event, part);
                }
                ScriptAction::Wait { span, part } => self.take_later(now + span, id, cell, part),
                ScriptAction::TakeArrived { part } if M::Order::AT_ONCE => {
                    self.take_later(now, id, cell, part)
                }
                ScriptAction::TakeArrived { part } => {
                    self.cue(id, cell, ScriptEvent::OpCompleted { part }, &mut acts)
                }
                ScriptAction::End => self.end_stage(now, id, cell),
            }
        }
    }

    /// Delivers a script event to the member of `cell`; its actions are appended to `acts`.
    fn cue(&mut self, id: u32, cell: u32, cue: ScriptEvent, acts: &mut Vec<ScriptAction>) {
        let run = &self.collectives.runs[id as usize];
        let extent = &self.collectives.groups[run.group as usize].plan.extent;
        let (player, root) = ((id, run.position(cell)), run.root);
        // A message may come before its receiver begins, but all scripts have one stage.
        let Some(stage) = self
            .collectives
            .schedules
            .get(run.schedule)
            .stages()
            .first()
            .copied()
        else {
            return;
        };
        self.backend
            .advance_script(&stage, extent, player, root, cue, acts);
    }

    /// Schedules the end of a part of a script at `at`.
    fn take_later(&mut self, at: Time, id: u32, cell: u32, part: u32) {
        // The op is only a handle for the event, and no message is counted.
        let op = self.messages.ops.reserve(InFlightOp::Scripted {
            run: id,
            from: cell,
            to: cell,
            part,
            label: 0,
        });
        self.agenda
            .push(at, Event::new(EventClass::ScriptReceived, 0, op));
    }

    /// Submits a message of a script. Each member has a port in each phase, or one on each side: the message leaves
    /// through that of the first phase in which the ends differ, and enters through that of the last.
    fn send_part(&mut self, now: Time, op: InFlightOp, amount: BufferShare) {
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
        let run = &mut self.collectives.runs[id as usize];
        run.messages += 1;
        let group = self.collectives.groups[run.group as usize].plan;
        let extent = &group.extent;
        let (from, to) = (run.position(from), run.position(to));
        let ends = (extent.npus[from as usize], extent.npus[to as usize]);
        let op = self.messages.ops.insert(op);
        if !M::Order::OPENS_PORTS {
            let message = NetworkMessage::plain(op, ends, amount);
            self.put_on_network(now, &message);
            return;
        }
        let progress = run.progress.as_ref().expect("it has begun");
        let differs = |phase: &crate::group::GroupPhase| phase.index(from) != phase.index(to);
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
            tell_injected: true,
            sole_sender: false,
            order: part.min(u32::from(LAST_ORDER)) << POSITION_BITS | from,
        };
        let key = (ends.0.0, run.number + 1, run.sequence, 0, part.into());
        M::Order::submit(self, now, key, message);
    }

    /// Delivers a message of a script. In insertion order its part is over for the sender first.
    pub(super) fn scripted(&mut self, now: Time, id: u32, ends: (u32, u32), what: (u32, u32)) {
        let ((from, to), (part, label)) = (ends, what);
        let position = self.collectives.runs[id as usize].position(from);
        if M::Order::SENDS_END_ON_ARRIVAL {
            self.play(now, id, from, ScriptEvent::OpCompleted { part });
        }
        let from = position;
        self.play(now, id, to, ScriptEvent::Message { from, label });
    }

    /// Ends a part that waited, or that received a message which was there before.
    pub(super) fn taken(&mut self, now: Time, op: u32) {
        if let InFlightOp::Scripted {
            run, from, part, ..
        } = self.messages.ops.remove(op)
        {
            self.play(now, run, from, ScriptEvent::OpCompleted { part });
        }
    }
}
