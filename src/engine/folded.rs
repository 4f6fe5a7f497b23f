//! Closed forms on networks where messages of different operations meet: a promise that can be taken back.
//!
//! A collective that is answered by closed form there *claims* what its members send and receive with along
//! the dimensions that it spans, if all of that is idle. As long as nobody else's message would touch it, the
//! answer stands. As soon as one would, or as a load or store begins that will come to such a port, the run is *unfolded*: it is carried out message by message from its
//! start until now, which is exact, because it was alone, and goes on so. Its own messages that leave
//! at this instant are handed to the network together with the one that touched it.

use super::Engine;
use super::agenda::Agenda;
use super::event::{Class, Event};
use crate::collective::Manner;
use crate::ids::Npu;
use crate::network::Network;
use crate::report::Observer;
use crate::units::{Span, Time};

/// Numbers of foldings, which the end of a run carries, have as many bits as a rank in an event.
const FOLDINGS: u32 = 1 << 27;

/// How far an instant has been carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reached {
    /// How often no event was left, and it was settled.
    settled: u32,
    /// How many rounds of events have been handled since.
    pub rounds: u32,
}

impl Reached {
    /// No event is left, and it is settled.
    pub fn settle(&mut self) {
        self.settled += 1;
        self.rounds = 0;
    }
}

impl<O: Observer + ?Sized, N: Network, M: Manner> Engine<'_, O, N, M> {
    /// A run whose members all start `now` is over after `span`, if it can have its links for itself.
    /// Returns whether it can.
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

    /// Whether the end of a run is that of its last folding; if so, it gives back what it claimed.
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

    /// Asks `what` of all that a run's members send and receive with, until it says no.
    fn claims(&mut self, id: u32, mut what: impl FnMut(&mut N, Npu, usize) -> bool) -> bool {
        let extent = &self.plan.groups[self.runs[id as usize].group as usize].extent;
        let network = &mut self.network;
        extent.phases.iter().all(|phase| {
            let npus = extent.npus.iter();
            npus.copied().all(|npu| what(network, npu, phase.dimension))
        })
    }

    /// Unfolds all runs that a message which leaves `now` would touch.
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

    /// Carries out a run from its start until `now`, by the rounds of the loop over an agenda that holds
    /// nothing else.
    ///
    /// What it does at this instant, it does from round to round until nothing is left; then the instant is
    /// settled. So it has done all of that if there was a settlement since it began, or since the instant did;
    /// if not, as many rounds as there were, and what leaves in the last of them leaves with the rest.
    pub(super) fn unfold(&mut self, now: Time, id: u32) {
        let run = &self.runs[id as usize];
        let (start, folding) = (run.first, run.folding);
        let settled = if start < now { 0 } else { run.folded_in };
        let done = self.reached.settled > settled;
        let rounds = self.reached.rounds;
        self.unclaim(id, folding);
        self.outcome.closed -= 1;
        self.outcome.unfolded += 1;
        let agenda = std::mem::take(&mut self.agenda);
        let leaving = std::mem::take(&mut self.leaving);
        self.step(start, id, true);
        // Where it is, and how many rounds it has handled there.
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
