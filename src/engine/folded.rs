//! Closed forms on networks with contention: answers that can be taken back.
//!
//! A collective that is answered by closed form there *reserves* the ports or links of its members along the
//! dimensions that it spans, if all of them are idle. As long as no other message would touch one, the answer stands.
//! As soon as one would, or a load or store begins that will use such a port, the run is *materialized*: it is
//! replayed message by message from its start until now, which is exact, because it was alone, and goes on so. Its
//! own messages of this instant are submitted together with the one that touched it.

use super::Engine;
use super::agenda::Agenda;
use super::event::{Class, Event};
use crate::collective::Manner;
use crate::ids::Npu;
use crate::network::Network;
use crate::report::Observer;
use crate::units::{Span, Time};

/// Modulus of the numbers of closed-form answers: the end event of a run carries one in the bits of a rank.
const FOLDINGS: u32 = 1 << 27;

/// Progress of the present instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reached {
    /// Settlements of the instant so far.
    settled: u32,
    /// Rounds of events handled since.
    pub rounds: u32,
}

impl Reached {
    /// Counts a settlement.
    pub fn settle(&mut self) {
        self.settled += 1;
        self.rounds = 0;
    }
}

impl<O: Observer + ?Sized, N: Network, M: Manner> Engine<'_, O, N, M> {
    /// Answers a run whose members all start `now` by closed form, ending after `span`, if it can reserve its links.
    /// Returns whether it could.
    pub(super) fn fold(&mut self, now: Time, id: u32, span: Span) -> bool {
        let mut number = 0;
        if N::SHARED {
            if !self.claims(id, |network, npu, d| network.is_idle(now, npu, d)) {
                return false;
            }
            self.claims(id, |network, npu, d| {
                network.claim(npu, d, Some(id));
                true
            });
            self.folded += 1;
            // Numbers wrap round from 1: 0 stands for no reservation.
            self.foldings = self.foldings % (FOLDINGS - 1) + 1;
            number = self.foldings;
        }
        let run = &mut self.runs[id as usize];
        (run.folding, run.folded_in) = (number, self.reached.settled);
        self.outcome.closed += 1;
        let event = Event::new(Class::Run, number, id);
        self.agenda.push(now + span, event);
        true
    }

    /// Returns whether an end event belongs to the run's last closed-form answer; if so, releases its reservation.
    pub(super) fn unclaim(&mut self, id: u32, number: u32) -> bool {
        let run = &mut self.runs[id as usize];
        if run.folding != number {
            return false;
        }
        if number > 0 {
            run.folding = 0;
            self.folded -= 1;
            self.claims(id, |network, npu, d| {
                network.claim(npu, d, None);
                true
            });
        }
        true
    }

    /// Calls `what` for each NPU and dimension that a run's members use, until it returns false.
    fn claims(&mut self, id: u32, mut what: impl FnMut(&mut N, Npu, usize) -> bool) -> bool {
        let extent = &self.plan.groups[self.runs[id as usize].group as usize].extent;
        let network = &mut self.network;
        extent.phases.iter().all(|phase| {
            let npus = extent.npus.iter();
            npus.copied().all(|npu| what(network, npu, phase.dimension))
        })
    }

    /// Materializes all runs that a message submitted `now` would touch.
    pub(super) fn unfold_touched(&mut self, now: Time) {
        let mut next = 0;
        while self.folded > 0
            && let Some(leaving) = self.leaving.get(next)
        {
            match self.network.claimed(leaving.message.ends) {
                Some(id) => self.unfold(now, id),
                None => next += 1,
            }
        }
    }

    /// Replays a run from its start until `now`, by the rounds of the loop over an agenda that holds nothing else.
    ///
    /// At the present instant the run has to be exactly as far as the loop is. If the instant was settled since the
    /// run began, or since the instant did, all its rounds are over and the replay continues until nothing is left;
    /// if not, it takes as many rounds as the loop has, and messages of the last of them are submitted with the rest.
    pub(super) fn unfold(&mut self, now: Time, id: u32) {
        let run = &self.runs[id as usize];
        let (start, folding) = (run.first, run.folding);
        let settled = if start < now { 0 } else { run.folded_in };
        let done = self.reached.settled > settled;
        let rounds = self.reached.rounds;
        self.unclaim(id, folding);
        // The run counts as stepwise from here on, and `step` counts it as such.
        self.outcome.closed -= 1;
        self.outcome.unfolded += 1;
        let agenda = std::mem::take(&mut self.agenda);
        let leaving = std::mem::take(&mut self.leaving);
        self.step(start, id, true);
        // Instant of the replay, and rounds handled there.
        let (mut at, mut handled) = (start, 0);
        while at < now || done || handled < rounds {
            self.hand_over(at);
            let Some(due) = self.agenda.next_time().filter(|&due| due <= now) else {
                break;
            };
            (at, handled) = if due > at {
                (due, 1)
            } else {
                (at, handled + 1)
            };
            self.round(due);
        }
        // What is pending afterwards moves to the shared agenda; order within an instant is by content, so it may be
        // appended.
        let mut rest: Agenda = std::mem::replace(&mut self.agenda, agenda);
        let mut round = Vec::new();
        while let Some(due) = rest.next_time() {
            rest.take(&mut round);
            for &event in &round {
                self.agenda.push(due, event);
            }
        }
        self.leaving.extend(leaving);
    }
}
