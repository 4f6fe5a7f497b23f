//! Scripted collectives: members that execute a custom algorithm.
//!
//! In insertion order, a send is over when it has arrived, and parts follow one another, each by an event of its own.
//! In content order it is over when its last byte has left, a receive whose message is there is over at once, and
//! messages of one instant are collected, so that the order of events within the instant does not matter.

use super::Engine;
use super::chunks::{LAST_ORDER, POSITION_BITS};
use super::collective_run::Op;
use super::event::{Class, Event};
use crate::collective::{Act, Cue, Manner};
use crate::network::{Message, Network};
use crate::report::Observer;
use crate::units::{Amount, Time};

impl<O: Observer + ?Sized, N: Network, M: Manner> Engine<'_, O, N, M> {
    /// Delivers a script event to the member of `cell`, and carries out the actions that follow.
    pub(super) fn play(&mut self, now: Time, id: u32, cell: u32, cue: Cue) {
        let mut acts = Vec::new();
        self.cue(id, cell, cue, &mut acts);
        let mut done = 0;
        while let Some(&act) = acts.get(done) {
            done += 1;
            match act {
                Act::Send {
                    to,
                    bytes,
                    label,
                    part,
                } => {
                    let run = &self.runs[id as usize];
                    let op = Op::Scripted {
                        run: id,
                        from: cell,
                        to: cell - run.position(cell) + to,
                        part,
                        label,
                    };
                    self.send_part(now, op, Amount::whole(bytes));
                }
                Act::Wait { span, part } if M::IN_ORDER => {
                    let run = &self.runs[id as usize];
                    let group = &self.plan.groups[run.group as usize];
                    let npu = group.extent.npus[run.position(cell) as usize];
                    let event = Event::new(Class::Cue, id, cell);
                    self.agenda.delay(npu.0, now + span, event, part);
                }
                Act::Wait { span, part } => self.take_later(now + span, id, cell, part),
                Act::Take { part } if M::IN_ORDER => self.take_later(now, id, cell, part),
                Act::Take { part } => self.cue(id, cell, Cue::Over { part }, &mut acts),
                Act::End => self.leave(now, id, cell),
            }
        }
    }

    /// Delivers a script event to the member of `cell`; its actions are appended to `acts`.
    fn cue(&mut self, id: u32, cell: u32, cue: Cue, acts: &mut Vec<Act>) {
        let run = &self.runs[id as usize];
        let extent = &self.plan.groups[run.group as usize].extent;
        let (player, root) = ((id, run.position(cell)), run.root);
        // A message may come before its receiver begins, but all scripts have one stage.
        let Some(stage) = self.courses.get(run.course).stages().first().copied() else {
            return;
        };
        self.manner.play(&stage, extent, player, root, cue, acts);
    }

    /// Schedules the end of a part of a script at `at`.
    fn take_later(&mut self, at: Time, id: u32, cell: u32, part: u32) {
        // The op is only a handle for the event, and no message is counted.
        let op = self.ops.reserve(Op::Scripted {
            run: id,
            from: cell,
            to: cell,
            part,
            label: 0,
        });
        self.agenda.push(at, Event::new(Class::Taken, 0, op));
    }

    /// Submits a message of a script. Each member has a port in each phase, or one on each side: the message leaves
    /// through that of the first phase in which the ends differ, and enters through that of the last.
    fn send_part(&mut self, now: Time, op: Op, amount: Amount) {
        let Op::Scripted {
            run: id,
            from,
            to,
            part,
            ..
        } = op
        else {
            return;
        };
        let run = &self.runs[id as usize];
        let group = &self.plan.groups[run.group as usize];
        let extent = &group.extent;
        let (from, to) = (run.position(from), run.position(to));
        let ends = (extent.npus[from as usize], extent.npus[to as usize]);
        let op = self.ops.insert(op);
        if M::IN_ORDER {
            let message = Message::plain(op, ends, amount);
            self.network.submit(now, &message, &mut self.agenda);
            return;
        }
        let progress = run.progress.as_ref().expect("it has begun");
        let differs = |phase: &crate::group::Phase| phase.index(from) != phase.index(to);
        let port = |phase: Option<usize>, position, side| {
            let port = group.port(phase.unwrap_or(0), position, side);
            progress.ports.port(port)
        };
        let [out, into] = group.sides_between(self.topology, from, to);
        let message = Message {
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
        let key = (ends.0.0, run.group + 1, run.sequence, 0, part.into());
        self.send_off(now, key, message);
    }

    /// Delivers a message of a script. In insertion order its part is over for the sender first.
    pub(super) fn scripted(&mut self, now: Time, id: u32, ends: (u32, u32), what: (u32, u32)) {
        let ((from, to), (part, label)) = (ends, what);
        let position = self.runs[id as usize].position(from);
        if M::IN_ORDER {
            self.play(now, id, from, Cue::Over { part });
        }
        let from = position;
        self.play(now, id, to, Cue::Message { from, label });
    }

    /// Ends a part that waited, or that received a message which was there before.
    pub(super) fn taken(&mut self, now: Time, op: u32) {
        if let Op::Scripted {
            run, from, part, ..
        } = self.ops.remove(op)
        {
            self.play(now, run, from, Cue::Over { part });
        }
    }
}
