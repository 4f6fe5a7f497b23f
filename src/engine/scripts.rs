//! Members that play a collective from scripts of their own.

use super::Engine;
use super::collective_run::Op;
use super::event::{Class, Event};
use crate::collective::{Act, Cue, Manner};
use crate::network::{Message, Network};
use crate::report::Observer;
use crate::units::{Amount, Time};

impl<O: Observer, N: Network, M: Manner> Engine<'_, O, N, M> {
    /// Gives the member of `cell` a cue, and does what it does then.
    pub(super) fn play(&mut self, now: Time, id: u32, cell: u32, cue: Cue) {
        let mut acts = Vec::new();
        let run = &self.runs[id as usize];
        let group = &self.plan.groups[run.group as usize];
        let position = run.position(cell);
        // A message may come before its receiver begins, but all scripts are of one stage.
        let Some(stage) = run.stages.first().copied() else {
            return;
        };
        let player = (id, position);
        self.manner
            .play(&stage, &group.extent, player, cue, &mut acts);
        let npus = &group.extent.npus;
        let npu = npus[position as usize];
        for act in acts {
            match act {
                Act::Send {
                    to,
                    bytes,
                    label,
                    part,
                } => {
                    let op = self.ops.insert(Op::Scripted {
                        run: id,
                        from: cell,
                        to: cell - position + to,
                        part,
                        label,
                    });
                    let ends = (npu, npus[to as usize]);
                    let message = Message::plain(op, ends, Amount::whole(bytes));
                    self.network.submit(now, &message, &mut self.agenda);
                }
                Act::Wait { span, part } => {
                    let event = Event::new(Class::Cue, id, cell);
                    self.agenda.delay(npu.0, now + span, event, part);
                }
                Act::Take { part } => {
                    let op = self.ops.reserve(Op::Scripted {
                        run: id,
                        from: cell,
                        to: cell,
                        part,
                        label: 0,
                    });
                    self.agenda.push(now, Event::new(Class::Taken, 0, op));
                }
                Act::End => {
                    self.leave(now, id, cell);
                }
            }
        }
    }

    /// A message of a script has arrived: that part is over for its sender, and then it reaches its
    /// receiver.
    pub(super) fn scripted(&mut self, now: Time, id: u32, ends: (u32, u32), what: (u32, u32)) {
        let ((from, to), (part, label)) = (ends, what);
        let position = self.runs[id as usize].position(from);
        self.play(now, id, from, Cue::Over { part });
        let from = position;
        self.play(now, id, to, Cue::Message { from, label });
    }

    /// A member takes a message that was there before.
    pub(super) fn taken(&mut self, now: Time, op: u32) {
        if let Op::Scripted {
            run, from, part, ..
        } = self.ops.remove(op)
        {
            self.play(now, run, from, Cue::Over { part });
        }
    }
}
