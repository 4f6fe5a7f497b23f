//! Chunks of a collective in flight: from queue to stage, step by step, to the next stage.

use super::Engine;
use super::collective_run::Op;
use super::event::{Class, Event};
use super::plan::NONE;
use crate::collective::{Cue, Manner, Queue, Step};
use crate::ids::{NodeIndex, Npu};
use crate::network::{Message, Network};
use crate::report::Observer;
use crate::topology::Topology;
use crate::units::Time;

/// Stages from this on are alike in a message's order, which has 27 bits.
const LAST_ORDER: u16 = 31;
/// Bits of a message's order for its sender.
const POSITION_BITS: u32 = Topology::MAX_NPUS.trailing_zeros();

impl<O: Observer, N: Network, M: Manner> Engine<'_, O, N, M> {
    /// The chunks of the member at `position` wait for their first stage, or begin it.
    pub(super) fn enroll_at(&mut self, now: Time, id: u32, position: u32) {
        let run = &self.runs[id as usize];
        let group = &self.plan.groups[run.group as usize];
        if run.stages.is_empty() {
            // Nobody to talk to: over at once, but not in the middle of what is happening.
            match M::IN_ORDER {
                true => self
                    .agenda
                    .push(now, Event::new(Class::Vacant, id, position)),
                false => self.end_member(now, id, position),
            }
            return;
        }
        let (size, chunks, stages) = (group.extent.size(), run.chunks, run.stages.len());
        let npu = group.extent.npus[position as usize];
        for chunk in 0..chunks {
            let cell = chunk * size + position;
            for stage in 0..stages {
                let run = &mut self.runs[id as usize];
                let turn = self.manner.turn(npu, &run.stages[stage]);
                let progress = run.progress.as_mut().expect("it has begun");
                progress.turns[cell as usize * stages + stage] = turn;
            }
            self.enter(now, id, cell, 0);
        }
    }

    /// A chunk comes to a stage at a member: it begins it, or queues for it.
    #[inline]
    fn enter(&mut self, now: Time, id: u32, cell: u32, stage: u16) {
        let run = &mut self.runs[id as usize];
        let group = &self.plan.groups[run.group as usize];
        let npu = group.extent.npus[run.position(cell) as usize];
        let Some(queue) = self.put(npu, id, cell, stage) else {
            self.open(now, id, cell);
            return;
        };
        self.admit(now, npu, queue);
    }

    /// Moves a chunk into a stage and into its queue, if there is one.
    #[inline]
    fn put(&mut self, npu: Npu, id: u32, cell: u32, stage: u16) -> Option<Queue> {
        let run = &mut self.runs[id as usize];
        let stages = run.stages.len();
        let progress = run.progress.as_mut().expect("it has begun");
        let state = &mut progress.cells[cell as usize];
        (state.stage, state.begun) = (stage, false);
        (state.taken, state.arrived, state.credits) = (0, 0, 0);
        let turn = progress.turns[cell as usize * stages + stage as usize];
        let queue = self.manner.queue(&run.stages[stage as usize], turn)?;
        self.queues.put(npu, queue.number, (id, cell));
        Some(queue)
    }

    /// Begins chunks that wait in a queue while it has room.
    #[inline]
    fn admit(&mut self, now: Time, npu: Npu, queue: Queue) {
        while let Some((run, cell)) = self.queues.admit(npu, queue) {
            self.open(now, run, cell);
        }
    }

    /// A chunk begins its stage at a member.
    #[inline]
    fn open(&mut self, now: Time, id: u32, cell: u32) {
        let run = &mut self.runs[id as usize];
        let group = &self.plan.groups[run.group as usize];
        let place = run.place(cell, group, &*self.manner);
        let (stage, turn, seat) = place.expect("it is in a stage");
        let progress = run.progress.as_mut().expect("it has begun");
        let state = &mut progress.cells[cell as usize];
        state.begun = true;
        let number = state.stage;
        if self.manner.is_scripted(&stage) {
            self.play(now, id, cell, Cue::Begin);
            return;
        }
        let Some(seat) = seat else {
            return;
        };
        self.open_endpoint(now, id, cell, (stage, turn, seat));
        let run = &mut self.runs[id as usize];
        let progress = run.progress.as_mut().expect("it has begun");
        let waiting = &mut progress.waiting[cell as usize * run.stages.len() + number as usize];
        let waiting = std::mem::take(waiting);
        self.listen(now, id, cell, waiting);
    }

    /// A member listens for what is sent to it from now on; `there` messages already are.
    #[inline]
    pub(super) fn listen(&mut self, now: Time, id: u32, cell: u32, there: u32) {
        if self.asking.is_some() {
            self.ask(now, id, cell);
        }
        for _ in 0..there {
            match M::IN_ORDER {
                true => self.agenda.push(now, Event::new(Class::Found, id, cell)),
                false => self.hear(now, id, cell),
            }
        }
    }

    /// A message of `stage` has reached `cell`, which listens to it when it has taken `heard` steps.
    #[inline]
    pub(super) fn reach(&mut self, now: Time, id: u32, cell: u32, stage: u16, heard: u32) {
        let run = &mut self.runs[id as usize];
        let stages = run.stages.len();
        let progress = run.progress.as_mut().expect("its messages are in flight");
        let state = progress.cells[cell as usize];
        if state.stage == stage && state.begun && state.taken >= heard {
            self.hear(now, id, cell);
            if !M::IN_ORDER {
                self.advance(now, id, cell);
            }
        } else if heard == 0 {
            progress.waiting[cell as usize * stages + stage as usize] += 1;
        } else {
            progress.keep(cell, stage, heard, false);
        }
    }

    /// Has a chunk do all that it can do `now` at a member.
    pub(super) fn advance(&mut self, now: Time, id: u32, cell: u32) {
        loop {
            let run = &self.runs[id as usize];
            let group = &self.plan.groups[run.group as usize];
            let Some((stage, turn, seat)) = run.place(cell, group, &*self.manner) else {
                return;
            };
            if let Some(seat) = seat {
                let state = |e: &Self| {
                    let progress = e.runs[id as usize].progress.as_ref();
                    progress.expect("it has begun").cells[cell as usize]
                };
                let paced = self.manner.is_paced(&stage);
                let mut at = state(self);
                let mut next = self.manner.step(&stage, turn, seat, at.taken);
                while let Some(step) = next {
                    let held = step.after > at.credits || step.arrived > at.arrived;
                    // Where a member may send to all others at once, the next message waits until the
                    // port is free, so that a group of n holds n messages and not n².
                    if held || (paced && at.leaving) {
                        break;
                    }
                    next = self.manner.step(&stage, turn, seat, at.taken + 1);
                    self.take_step(now, id, cell, step, paced || next.is_none());
                    at = state(self);
                }
                let all = self.manner.receives(&stage, turn, seat)
                    + self.manner.credits(&stage, turn, seat);
                if next.is_some() || at.leaving || at.credits < all {
                    return;
                }
            }
            if !self.leave(now, id, cell) {
                return;
            }
        }
    }

    /// Takes a step: sends its message, and listens to what belongs to it. `matters` says that the
    /// member must know when the message has left.
    #[inline]
    fn take_step(&mut self, now: Time, id: u32, cell: u32, step: Step, matters: bool) {
        let run = &mut self.runs[id as usize];
        let group = &self.plan.groups[run.group as usize];
        let (position, size) = (run.position(cell), group.extent.size());
        let progress = run.progress.as_mut().expect("it has begun");
        let state = &mut progress.cells[cell as usize];
        let number = state.stage;
        let taken = state.taken;
        state.taken += 1;
        state.leaving = !M::IN_ORDER && matters;
        let index = self.manner.phase(&run.stages[number as usize]);
        let phase = &group.extent.phases[index];
        let to = phase.position(position, step.to);
        let op = self.ops.insert(Op::Step {
            run: id,
            from: cell,
            to: cell - position + to,
            stage: number,
            heard: step.heard,
        });
        let first_port = index as u32 * size;
        let (a, b) = (
            group.extent.npus[position as usize],
            group.extent.npus[to as usize],
        );
        let (from, to) = match M::IN_ORDER {
            true => (progress.ports.any(), progress.ports.any()),
            false => (
                progress.ports.port(first_port + position),
                progress.ports.port(first_port + to),
            ),
        };
        let message = Message {
            op,
            ends: (a, b),
            from,
            to,
            path: group.paths[index],
            amount: step.amount,
            tell_injected: state.leaving,
            sole_sender: !self.manner.is_paced(&run.stages[number as usize]),
            order: u32::from(number.min(LAST_ORDER)) << POSITION_BITS | position,
        };
        if self.asking.is_some() {
            let asked = progress.kept(cell, number, taken + 1, true) > 0;
            self.held.insert(op, message);
            match asked {
                true => self.agenda.push(now, Event::new(Class::Asked, 0, op)),
                false => {
                    self.expected.insert((id, cell, number, taken), op);
                }
            }
        } else {
            self.network.submit(now, &message, &mut self.agenda);
        }
        if M::IN_ORDER {
            let run = &mut self.runs[id as usize];
            let progress = run.progress.as_mut().expect("it has begun");
            let there = progress.kept(cell, number, taken + 1, false);
            self.listen(now, id, cell, there);
        }
    }

    /// A chunk has done its stage at a member. Returns whether it goes on in the next at once.
    pub(super) fn leave(&mut self, now: Time, id: u32, cell: u32) -> bool {
        let run = &mut self.runs[id as usize];
        let group = &self.plan.groups[run.group as usize];
        let position = run.position(cell);
        let npu = group.extent.npus[position as usize];
        let stages = run.stages.len();
        let progress = run.progress.as_mut().expect("it has begun");
        let number = progress.cells[cell as usize].stage;
        let turn = progress.turns[cell as usize * stages + number as usize];
        let queue = self.manner.queue(&run.stages[number as usize], turn);
        if number as usize + 1 < stages {
            let next = self.put(npu, id, cell, number + 1);
            if let Some(queue) = queue {
                self.queues.leave(npu, queue.number);
                self.admit(now, npu, queue);
            }
            match next {
                Some(next) => self.admit(now, npu, next),
                None => self.open(now, id, cell),
            }
            return !M::IN_ORDER;
        }
        progress.cells[cell as usize].stage = stages as u16;
        progress.done[position as usize] += 1;
        if progress.done[position as usize] == run.chunks {
            self.end_member(now, id, position);
        }
        if let Some(queue) = queue {
            self.queues.leave(npu, queue.number);
            self.admit(now, npu, queue);
        }
        false
    }

    /// All chunks are done at a member; its node is complete.
    pub(super) fn end_member(&mut self, now: Time, id: u32, position: u32) {
        let run = &mut self.runs[id as usize];
        let group = &self.plan.groups[run.group as usize];
        let member = group.extent.member_at[position as usize];
        let node = run.nodes[member as usize];
        let rank = group.members[member as usize];
        let progress = run.progress.as_mut().expect("it has begun");
        progress.ended += 1;
        if progress.ended == group.extent.size() {
            let ports = progress.ports;
            run.progress = None;
            self.network.close(ports);
            self.record(now, id, true);
        }
        let instance = self.plan.instance_of[rank.index()];
        if instance != NONE {
            self.end_node(now, instance, NodeIndex(node));
        }
    }
}
