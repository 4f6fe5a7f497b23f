//! Simulates a collective as if it were alone, up to the present or to the collective's end. It uses the same event
//! loop as the replay, but collects its effects separately.

use super::Collectives;
use super::fast_forward::MembersArrivingTogether;
use crate::discipline::RequiredCollectiveBackendTraits;
use crate::effects::Effects;
use crate::event::PackedEvent;
use crate::event_loop::{self, EventRoundHandler};
use crate::fabric::{Fabric, InFlightMessageContext};
use crate::ids::{ChunkAtMember, RunIndex};
use chakram_base::ids::MemberIndex;
use chakram_base::interrupt::StopOrMemoryInterruption;
use chakram_base::units::Time;
use chakram_hardware::network::{MessageProgressNotice, NetworkBackend};
use std::iter::Peekable;
use std::ops::ControlFlow;
use std::vec::IntoIter;

/// Point in the main loop's progress at which the simulation of a collective stops.
#[derive(Clone, Copy, Debug)]
pub(super) struct MainLoopProgressWhereLoneRunStops {
    pub now: Time,
    /// True if the main loop has finished all rounds of the instant that contain events of the collective. False if the
    /// main loop has finished only `rounds` rounds.
    pub done: bool,
    pub rounds: u32,
    /// True if the arrivals include every member that has arrived so far.
    pub all: bool,
}

impl MainLoopProgressWhereLoneRunStops {
    /// Returns true if a simulation that has handled `handled` rounds of the instant `at` has reached this point.
    fn is_reached(self, at: Time, handled: u32) -> bool {
        at >= self.now && !self.done && handled >= self.rounds
    }
}

/// Components of the event loop that simulates one collective in isolation.
///
/// At the present instant, the simulation must stop at exactly the event that the main loop has reached. If the main
/// loop has run out of events since the instant began or the last members arrived, the simulation also handles all its
/// events at this instant. Otherwise it executes as many rounds as the main loop did. The main loop then submits the
/// messages of the simulation's last round together with its own messages.
struct LoneCollectiveLoop<'x, 'a, 'f, N, M: RequiredCollectiveBackendTraits> {
    collectives: &'x mut Collectives<'a, M>,
    fabric: &'x mut Fabric<'f, N>,
    own: &'x mut Effects,
    id: RunIndex,
    /// Members that have not arrived yet, grouped by arrival time.
    waves: Peekable<IntoIter<MembersArrivingTogether>>,
    arriving: Option<Vec<MemberIndex>>,
    present: Option<MainLoopProgressWhereLoneRunStops>,
    /// Current instant; `handled` is the number of rounds already handled at this instant.
    at: Time,
    handled: u32,
    round: Vec<PackedEvent>,
}

impl<N: NetworkBackend, M: RequiredCollectiveBackendTraits> EventRoundHandler
    for LoneCollectiveLoop<'_, '_, '_, N, M>
{
    fn next_round_time(&mut self) -> Option<Time> {
        let (wave, present) = (self.waves.peek().map(|&(wave, _)| wave), self.present);
        let is_reached = |present: MainLoopProgressWhereLoneRunStops| {
            wave.is_none() && present.is_reached(self.at, self.handled)
        };
        if present.is_some_and(is_reached) {
            return None;
        }
        self.fabric.submit_pending_messages(self.at, self.own);
        // Only peek, because the members that arrive next may send messages before the next event.
        let due = self.own.agenda.peek_time();
        let due = due.filter(|&due| present.is_none_or(|present| due <= present.now));
        if let Some(due) = due.filter(|&due| wave.is_none_or(|wave| due <= wave)) {
            self.handled = if due > self.at { 1 } else { self.handled + 1 };
            self.at = due;
            self.own.agenda.advance_to_next_time();
            return Some(due);
        }
        let (wave, members) = self.waves.next()?;
        (self.at, self.handled) = (wave, 0);
        self.arriving = Some(members);
        Some(wave)
    }

    fn handle_round(&mut self, now: Time) {
        let (fabric, own) = (&mut *self.fabric, &mut *self.own);
        if let Some(members) = self.arriving.take() {
            let run = &mut self.collectives.chunks.runs[self.id];
            let everybody = self.collectives.chunks.groups[run.group].plan.present;
            run.arrivals.arrived_now = members;
            let all = run.arrivals.arrived == everybody
                && self.waves.peek().is_none()
                && self.present.is_none_or(|present| present.all);
            self.collectives
                .continue_simulation(fabric, own, now, self.id, all);
            return;
        }
        own.take_events_of_next_instant(&mut self.round);
        fabric.sort_round_events_by_content(&mut self.round);
        for &event in &self.round {
            self.collectives
                .handle_network_or_collective_event(fabric, own, now, event);
        }
    }

    fn finish_round_or_stop(&mut self, _: Time) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Never stops the simulation: it takes seconds at most, and the main loop needs its result.
    fn check_interruption(&self) -> Result<(), StopOrMemoryInterruption> {
        Ok(())
    }
}

impl<M: RequiredCollectiveBackendTraits> Collectives<'_, M> {
    /// Simulates a collective up to the `present` or to the collective's end. Each of `waves` contains the members that
    /// arrive at the same time. No other queue may contain an event of the collective.
    pub(super) fn simulate_collective_until_present_or_end<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        own: &mut Effects,
        id: RunIndex,
        waves: Vec<MembersArrivingTogether>,
        present: Option<MainLoopProgressWhereLoneRunStops>,
    ) {
        let mut alone = LoneCollectiveLoop {
            collectives: self,
            fabric,
            own,
            id,
            waves: waves.into_iter().peekable(),
            arriving: None,
            present,
            at: Time::ZERO,
            handled: 0,
            round: Vec::new(),
        };
        let Ok(()) = event_loop::run(&mut alone) else {
            unreachable!("its check never fails")
        };
    }

    /// Handles an event of the network or of the collective.
    fn handle_network_or_collective_event<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        own: &mut Effects,
        now: Time,
        event: PackedEvent,
    ) {
        let Some(as_network_event) = event.as_network_event() else {
            self.handle_event(fabric, own, now, event, 0);
            return;
        };
        fabric.handle_event(now, as_network_event, own);
        while let Some(notice) = fabric.pop_delivery_notice() {
            match notice {
                MessageProgressNotice::Delivered(op) => {
                    let of = fabric.forget_op(op);
                    self.chunks.on_message_arrived(fabric, own, now, of);
                }
                // Scripted collectives have no closed form, so every message here belongs to a step.
                MessageProgressNotice::Injected(op) => {
                    if let InFlightMessageContext::Step { run, from, .. } = fabric.context_of_op(op)
                    {
                        self.chunks.on_step_message_left(
                            fabric,
                            own,
                            now,
                            ChunkAtMember { run, cell: from },
                        );
                    }
                }
            }
        }
        self.chunks.advance_begun_chunks(fabric, own, now);
    }
}
