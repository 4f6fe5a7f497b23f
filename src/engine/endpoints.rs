//! Endpoints of members: delays, reductions and buses on what they send and receive.

use super::Engine;
use super::agenda::Agenda;
use super::event::{Class, Event};
use crate::collective::{Clock, Endpoint, Load, Manner, Passing, Seat, Ticket};
use crate::ids::Npu;
use crate::network::Network;
use crate::report::Observer;
use crate::units::Time;

/// Scheduler of a bus, which places its events among its NPU's delays.
struct BusClock<'a>(&'a mut Agenda, Npu);

impl Clock for BusClock<'_> {
    fn after(&mut self, at: Time, event: u32) {
        let npu = self.1.0;
        self.0.delay(npu, at, Event::new(Class::Bus, npu, event), 0);
    }
}

/// Names a bus transfer by the event that its completion is.
fn ticket(event: Event, detail: u32) -> Ticket {
    let word = event.word();
    Ticket { word, detail }
}

impl<O: Observer + ?Sized, N: Network, M: Manner> Engine<'_, O, N, M> {
    /// Has a member's endpoint take in the chunk that it begins a stage with; that earns its first credits.
    #[inline]
    pub(super) fn open_endpoint(
        &mut self,
        now: Time,
        id: u32,
        cell: u32,
        (stage, turn, seat): (M::Stage, u16, Seat),
    ) {
        let credits = self.manner.credits(&stage, turn, seat);
        let run = &mut self.runs[id as usize];
        let group = &self.plan.groups[run.group as usize];
        let npu = group.extent.npus[run.position(cell) as usize];
        let event = Event::new(Class::Opened, id, cell);
        match self.manner.endpoint(&stage) {
            Endpoint::Instant => {
                let progress = run.progress.as_mut().expect("it has begun");
                progress.cells[cell as usize].credits = credits;
            }
            Endpoint::Delay(delay) if credits > 0 => {
                self.agenda.delay(npu.0, now + delay, event, credits);
            }
            Endpoint::Delay(_) => {}
            Endpoint::Bus => {
                for _ in 0..credits {
                    let (passing, ticket) = (Passing::Beginning, ticket(event, 1));
                    let load = self.manner.load(&stage, turn, seat, passing, ticket);
                    self.carry(now, npu, load);
                }
            }
        }
    }

    fn carry(&mut self, now: Time, npu: Npu, load: Load) {
        let clock = &mut BusClock(&mut self.agenda, npu);
        self.manner.carry(now, npu, load, clock);
    }

    /// Handles a message that reaches a cell whose receive is posted.
    #[inline]
    pub(super) fn hear(&mut self, now: Time, id: u32, cell: u32) {
        let run = &mut self.runs[id as usize];
        let progress = run.progress.as_mut().expect("its messages are in flight");
        let state = &mut progress.cells[cell as usize];
        state.arrived += 1;
        let r = state.arrived;
        let number = state.stage;
        let course = self.courses.get(run.course_at(run.position(cell)));
        let stage = course.stage(run.chunk_in(course, cell), number);
        let endpoint = self.manner.endpoint(stage.expect("it listens in a stage"));
        if endpoint == Endpoint::Instant {
            let progress = run.progress.as_mut().expect("its messages are in flight");
            progress.cells[cell as usize].credits += 1;
            return;
        }
        let group = &self.plan.groups[run.group as usize];
        let npu = group.extent.npus[run.position(cell) as usize];
        let event = Event::new(Class::Attended, id, cell);
        if let Endpoint::Delay(delay) = endpoint {
            self.agenda.delay(npu.0, now + delay, event, r);
        } else if let Some((stage, turn, Some(seat))) =
            run.place(cell, course, group, &*self.manner)
        {
            let passing = Passing::Reception(r - 1);
            let load = self
                .manner
                .load(&stage, turn, seat, passing, ticket(event, r));
            self.carry(now, npu, load);
        }
    }

    /// Handles an event on an NPU's bus. The consequences of a completed transfer come before the bus goes on.
    pub(super) fn bus_event(&mut self, now: Time, npu: u32, event: u32) {
        let clock = &mut BusClock(&mut self.agenda, Npu(npu));
        let Some(ticket) = self.manner.bus(now, Npu(npu), event, clock) else {
            return;
        };
        self.handle(now, Event::from_word(ticket.word), ticket.detail);
        self.hand_out_by_id(now);
        let clock = &mut BusClock(&mut self.agenda, Npu(npu));
        self.manner.bus_resumes(now, Npu(npu), event, clock);
    }

    /// Handles the end of the endpoint's work on the `r`-th message, counted from 1.
    #[inline]
    pub(super) fn attended(&mut self, now: Time, id: u32, cell: u32, r: u32) {
        let run = &self.runs[id as usize];
        let group = &self.plan.groups[run.group as usize];
        let course = self.courses.get(run.course_at(run.position(cell)));
        let (stage, turn, seat) = run
            .place(cell, course, group, &*self.manner)
            .expect("its messages are dealt with in their stage");
        let seat = seat.expect("whoever receives has a seat");
        match self.manner.reduction(&stage, turn, seat, r - 1) {
            None => self.credit(now, id, cell, 1),
            Some(span) => {
                let npu = group.extent.npus[run.position(cell) as usize];
                let event = Event::new(Class::Reduced, id, cell);
                self.agenda.delay(npu.0, now + span, event, 0);
            }
        }
    }

    /// Adds credits that a member has earned.
    #[inline]
    pub(super) fn credit(&mut self, now: Time, id: u32, cell: u32, credits: u32) {
        let run = &mut self.runs[id as usize];
        let progress = run.progress.as_mut().expect("it has begun");
        progress.cells[cell as usize].credits += credits;
        self.advance(now, id, cell);
    }
}
