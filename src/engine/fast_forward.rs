//! Closed forms on networks with contention: answers that can be taken back.
//!
//! A collective that is answered by closed form there *reserves* the ports or links of its members along the
//! dimensions that it spans, if all of them are idle. As long as no other message would touch one, the answer stands.
//! As soon as one would, or a load or store begins that will use such a port, the run is *materialized*: it is
//! replayed message by message from its start until now, which is exact, because it was alone, and goes on so. Its
//! own messages of this instant are submitted together with the one that touched it.

use super::Engine;
use super::agenda::Agenda;
use super::discipline::{CollectiveModel, Discipline};
use super::event::{Event, EventClass};
use crate::ids::{EndpointId, Npu};
use crate::network::{LinkReservations, NetworkBackend};
use crate::report::Observer;
use crate::units::{Span, Time};

/// Modulus of the numbers of closed-form answers: the end event of a run carries one in the bits of a rank.
const FOLDINGS: u32 = 1 << 27;

/// Members that arrive at one instant, which they are settled in together.
pub(super) type ArrivalWave = (Time, Vec<u32>);

/// Progress of the loop up to which a run is replayed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PresentRounds {
    now: Time,
    /// Whether all rounds of the instant that concern the run are over, and otherwise how many are.
    done: bool,
    rounds: u32,
    /// Whether every member that has arrived is in a wave.
    all: bool,
}

impl PresentRounds {
    /// Whether a replay that has handled so many rounds of the instant `at` is as far.
    fn is_reached(self, at: Time, handled: u32) -> bool {
        at >= self.now && !self.done && handled >= self.rounds
    }
}

/// Progress of the present instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InstantProgress {
    /// Settlements of the instant so far.
    settled: u32,
    /// Rounds of events handled since.
    pub rounds: u32,
}

impl InstantProgress {
    /// Settlements so far.
    pub fn settled(&self) -> u32 {
        self.settled
    }

    /// Counts a settlement.
    pub fn settle(&mut self) {
        self.settled += 1;
        self.rounds = 0;
    }
}

impl<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> Engine<'_, O, N, M> {
    /// Answers a run whose members all start `now` by closed form, ending after `span`, if it can reserve its links.
    /// Returns whether it could.
    pub(super) fn fast_forward(&mut self, now: Time, id: u32, span: Span) -> bool {
        let mut number = 0;
        if N::SHARED {
            if !self.for_each_port(id, |links, npu, d| links.is_idle(now, npu, d)) {
                return false;
            }
            self.for_each_port(id, |links, npu, d| {
                links.reserve(npu, d, Some(id));
                true
            });
            number = self.number_answer();
        }
        let run = &mut self.collectives.runs[id as usize];
        (run.answer.number, run.answer.settlement) = (number, self.instant.progress.settled);
        run.answer.start = now;
        self.outcome.closed += 1;
        let event = Event::new(EventClass::Run, number, id);
        self.agenda.push(now + span, event);
        true
    }

    /// Counts an answer that can be taken back, and returns its number.
    pub(super) fn number_answer(&mut self) -> u32 {
        self.collectives.fast_forwarded += 1;
        // Numbers wrap round from 1: 0 stands for no reservation.
        self.collectives.fast_forward_count =
            self.collectives.fast_forward_count % (FOLDINGS - 1) + 1;
        self.collectives.fast_forward_count
    }

    /// Returns whether an end event belongs to the run's last closed-form answer; if so, releases its reservation.
    pub(super) fn release_reservation(&mut self, id: u32, number: u32) -> bool {
        let run = &mut self.collectives.runs[id as usize];
        if run.answer.number != number {
            return false;
        }
        if number > 0 {
            run.answer.number = 0;
            self.collectives.fast_forwarded -= 1;
            if let Some(rehearsal) = &run.answer.rehearsal {
                let is_held = std::mem::take(&mut run.answer.is_held);
                match self.fabric.network.rehearsed_links() {
                    Some(links) if is_held => links.release(&rehearsal.links, id),
                    Some(links) => links.retract(run.answer.start, &rehearsal.links, id),
                    None => {}
                }
                return true;
            }
            self.for_each_port(id, |links, npu, d| {
                links.reserve(npu, d, None);
                true
            });
        }
        true
    }

    /// Calls `what` for each NPU and dimension that a run's members use, until it returns false. Returns whether it never did;
    /// false where links cannot be reserved.
    fn for_each_port(
        &mut self,
        id: u32,
        mut what: impl FnMut(&mut dyn LinkReservations, Npu, usize) -> bool,
    ) -> bool {
        let extent = &self.collectives.groups[self.collectives.runs[id as usize].group as usize]
            .plan
            .extent;
        let Some(links) = self.fabric.network.reservations() else {
            // A group of one uses none.
            return extent.phases.is_empty();
        };
        extent.phases.iter().all(|phase| {
            let npus = extent.npus.iter();
            npus.copied().all(|npu| what(links, npu, phase.dimension))
        })
    }

    /// Returns the lowest run whose reserved links bytes between `ends` would touch `now`, if any.
    #[inline]
    pub(super) fn reservation(&mut self, now: Time, ends: (EndpointId, EndpointId)) -> Option<u32> {
        self.fabric.network.reservations()?.reservation(now, ends)
    }

    /// Materializes all runs that a message submitted `now` would touch.
    pub(super) fn materialize_touched(&mut self, now: Time) {
        let mut next = 0;
        while self.collectives.fast_forwarded > 0
            && let Some(leaving) = self.effects.sends.get(next)
        {
            let (from, to) = leaving.message.ends;
            match self.reservation(now, (from.into(), to.into())) {
                Some(id) => self.materialize(now, id),
                None => next += 1,
            }
        }
    }

    /// Has a run go on message by message that was answered or holds its links: replays it until `now`.
    pub(super) fn materialize(&mut self, now: Time, id: u32) {
        let run = &mut self.collectives.runs[id as usize];
        let number = run.answer.number;
        let waves = run.arrivals.waves(run.answer.is_skewed, run.answer.start);
        let last = waves.last().map_or(now, |&(last, _)| last);
        let settled = if last < now { 0 } else { run.answer.settlement };
        if !run.answer.is_held {
            // The run counts as stepwise from here on, and `step` counts it as such.
            self.outcome.closed -= 1;
            self.outcome.unfolded += 1;
            run.answer.materialized = true;
        }
        let unsettled = if run.answer.is_skewed {
            std::mem::take(&mut run.arrivals.arrived_now)
        } else {
            Vec::new()
        };
        self.release_reservation(id, number);
        let present = PresentRounds {
            now,
            done: self.instant.progress.settled > settled,
            rounds: self.instant.progress.rounds,
            all: unsettled.is_empty(),
        };
        let agenda = std::mem::take(&mut self.agenda);
        let leaving = std::mem::take(&mut self.effects.sends);
        self.replay_alone(id, waves, Some(present));
        if let Some(links) = self.fabric.network.rehearsed_links() {
            links.restore();
        }
        // Pending events move to the shared agenda afterwards; order within an instant is by content, so they may be
        // appended.
        let mut rest: Agenda = std::mem::replace(&mut self.agenda, agenda);
        let mut round = Vec::new();
        while let Some(due) = rest.next_time() {
            rest.take(&mut round);
            for &event in &round {
                self.agenda.push(due, event);
            }
        }
        self.effects.sends.extend(leaving);
        self.collectives.runs[id as usize].arrivals.arrived_now = unsettled;
    }

    /// Replays a run whose members arrive in `waves`, by the rounds of the loop over an agenda that holds nothing else: up
    /// to the `present`, or to its end.
    ///
    /// At the present instant the run has to be exactly as far as the loop is. If the instant was settled since the
    /// last members arrived, or since the instant did, all its rounds are over and the replay continues until nothing is
    /// left; if not, it takes as many rounds as the loop has, and messages of the last of them are submitted with the rest.
    pub(super) fn replay_alone(
        &mut self,
        id: u32,
        waves: Vec<ArrivalWave>,
        present: Option<PresentRounds>,
    ) {
        let group = self.collectives.runs[id as usize].group as usize;
        let everybody = self.collectives.groups[group].plan.present;
        let mut waves = waves.into_iter().peekable();
        // Instant of the replay, and rounds handled there.
        let (mut at, mut handled) = (Time::ZERO, 0);
        loop {
            let wave = waves.peek().map(|&(wave, _)| wave);
            if wave.is_none() && present.is_some_and(|present| present.is_reached(at, handled)) {
                return;
            }
            self.submit_pending(at);
            // Time stays where it is: members of the next wave may send before the next event.
            let due = self.agenda.peek_time();
            let due = due.filter(|&due| present.is_none_or(|present| due <= present.now));
            match due {
                Some(due) if wave.is_none_or(|wave| due <= wave) => {
                    (at, handled) = if due > at {
                        (due, 1)
                    } else {
                        (at, handled + 1)
                    };
                    self.agenda.next_time();
                    M::Order::round(self, due);
                }
                _ => {
                    let Some((wave, members)) = waves.next() else {
                        return;
                    };
                    (at, handled) = (wave, 0);
                    let run = &mut self.collectives.runs[id as usize];
                    run.arrivals.arrived_now = members;
                    let all = run.arrivals.arrived == everybody
                        && waves.peek().is_none()
                        && present.is_none_or(|present| present.all);
                    self.step(wave, id, all);
                }
            }
        }
    }
}
