//! Analytical answers on networks with contention: a formula gives a collective's time as long as no other traffic uses
//! its links.
//!
//! A collective that is answered analytically *reserves* its members' ports or links in all dimensions that it uses.
//! All of these must be idle. The answer is valid as long as no other traffic uses one of them. Before another message,
//! load or store uses a reserved link, the collective is *materialized*. The engine then simulates it message by
//! message, first from its start until now, and then until its end. The simulation is exact, because the collective was
//! alone on its links until now. Messages that it sends at this instant are submitted together with the message that
//! caused this.

use super::Collectives;
use super::lone_run::MainLoopProgressWhereLoneRunStops;
use crate::discipline::RequiredCollectiveBackendTraits;
use crate::effects::Effects;
use crate::event::{EventClass, PackedEvent};
use crate::fabric::Fabric;
use crate::ids::RunIndex;
use chakram_base::ids::{MemberIndex, Npu};
use chakram_base::units::{Span, Time};
use chakram_hardware::network::{CollectiveLinkReservations, NetworkBackend};

/// Members that arrive at the same time and start together.
pub(super) type MembersArrivingTogether = (Time, Vec<MemberIndex>);

impl<M: RequiredCollectiveBackendTraits> Collectives<'_, M> {
    /// If the collective's links can be reserved, computes its end analytically: all members start at `now`, and the
    /// collective takes `span`. Returns true if the end was computed.
    pub(super) fn fast_forward<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
        span: Span,
    ) -> bool {
        let mut number = 0;
        if N::SHARED {
            if !self.try_each_npu_and_dimension_of_run(fabric, id, |links, npu, d| {
                links.are_npu_links_idle(now, npu, d)
            }) {
                return false;
            }
            self.try_each_npu_and_dimension_of_run(fabric, id, |links, npu, d| {
                links.reserve_or_release_npu_links(npu, d, Some(id.0));
                true
            });
            number = self.answers.count_revocable_answer();
        }
        let run = &mut self.chunks.runs[id];
        (run.answer.number, run.answer.settlement) =
            (number, effects.progress.settlements_at_latest_instant());
        run.answer.start = now;
        self.answers.closed += 1;
        let event = PackedEvent::of_collective_in_flight(EventClass::Run, id, number);
        effects.agenda.push(now + span, event);
        true
    }

    /// If the end event belongs to a collective's latest analytical answer, releases the reserved links and returns
    /// true.
    pub(super) fn release_links_if_answer_is_latest<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        id: RunIndex,
        number: u32,
    ) -> bool {
        let run = &mut self.chunks.runs[id];
        if run.answer.number != number {
            return false;
        }
        if number > 0 {
            run.answer.number = 0;
            self.answers.decrement_revocable_answer_count();
            if let Some(rehearsal) = &run.answer.rehearsal {
                let is_held = std::mem::take(&mut run.answer.is_held);
                match fabric.rehearsable_links_mut() {
                    Some(links) if is_held => links.release_reserved_links(&rehearsal.links, id.0),
                    Some(links) => links.retract_uses(run.answer.start, &rehearsal.links, id.0),
                    None => {}
                }
                return true;
            }
            self.try_each_npu_and_dimension_of_run(fabric, id, |links, npu, d| {
                links.reserve_or_release_npu_links(npu, d, None);
                true
            });
        }
        true
    }

    /// Calls `what` for each NPU and dimension that a collective uses, and stops when `what` returns false. Returns
    /// true if every call returned true, and false if a call returned false or if links cannot be reserved.
    fn try_each_npu_and_dimension_of_run<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        id: RunIndex,
        mut what: impl FnMut(&mut dyn CollectiveLinkReservations, Npu, usize) -> bool,
    ) -> bool {
        let extent = &self.chunks.groups[self.chunks.runs[id].group].plan.extent;
        let Some(links) = fabric.reservable_links_mut() else {
            // A group of one member uses no links.
            return extent.phases.is_empty();
        };
        extent.phases.iter().all(|phase| {
            let npus = extent.npus.iter();
            npus.copied().all(|npu| what(links, npu, phase.dimension))
        })
    }

    /// Materializes every run that has reserved a link on the route of a message submitted at `now`.
    pub fn materialize_runs_for_messages<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
    ) {
        let mut next = 0;
        while self.answers.has_revocable_answers()
            && let Some(leaving) = effects.sends.get(next)
        {
            let (from, to) = leaving.message.ends;
            match fabric.lowest_run_reserving_route(now, (from.into(), to.into())) {
                Some(run) => self.materialize_run(fabric, effects, now, RunIndex(run)),
                None => next += 1,
            }
        }
    }

    /// Materializes every run that has reserved a link on the route of loads and stores submitted at `now`.
    pub fn materialize_runs_for_accesses<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
    ) {
        for next in 0..effects.accesses.len() {
            while let Some(run) =
                fabric.lowest_run_reserving_route(now, effects.accesses[next].ends)
            {
                self.materialize_run(fabric, effects, now, RunIndex(run));
            }
        }
    }

    /// Withdraws a collective's analytical answer or its reserved links. Simulates it message by message instead, first
    /// from its start until `now` and then until its end.
    pub(super) fn materialize_run<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
    ) {
        let run = &mut self.chunks.runs[id];
        let number = run.answer.number;
        let waves = run
            .arrivals
            .group_arrivals_by_time(run.answer.is_skewed, run.answer.start);
        let last = waves.last().map_or(now, |&(last, _)| last);
        let settled = if last < now { 0 } else { run.answer.settlement };
        if !run.answer.is_held {
            // From here on the collective counts as simulated, so `continue_simulation` adds it to the number of
            // simulated collectives.
            self.answers.closed -= 1;
            self.answers.unfolded += 1;
            run.answer.materialized = true;
        }
        if !N::SHARED {
            run.answer.is_held = false;
        }
        let unsettled = if run.answer.is_skewed {
            std::mem::take(&mut run.arrivals.arrived_now)
        } else {
            Vec::new()
        };
        self.release_links_if_answer_is_latest(fabric, id, number);
        let present = MainLoopProgressWhereLoneRunStops {
            now,
            done: effects.progress.settlements_at_latest_instant() > settled,
            rounds: effects.progress.rounds_since_last_settlement(),
            all: unsettled.is_empty(),
        };
        let mut own = Effects::default();
        self.simulate_collective_until_present_or_end(fabric, &mut own, id, waves, Some(present));
        if let Some(links) = fabric.rehearsable_links_mut() {
            links.put_back_retracted_transfers();
        }
        effects.append_effects(own);
        self.chunks.runs[id].arrivals.arrived_now = unsettled;
    }
}
