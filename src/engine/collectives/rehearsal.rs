//! Answers a collective on idle links with the times of a *rehearsal*: a trial run of an identical collective that runs
//! alone.
//!
//! Some networks store only the time at which each link becomes free ([`RehearsableLinks`]). On such networks, no
//! closed form covers irregularly placed members. However, collectives on idle links run identically, apart from their
//! start times, if their members arrive in the same *pattern* of times. The second collective of a schedule is
//! *rehearsed*: simulated message by message over an otherwise empty network. The rehearsal determines the end of each
//! member and the use of each link. If a later collective has the same pattern and its links are idle, it reserves
//! them, and the rehearsal gives its times immediately. On a network without contention, nothing disturbs a collective,
//! so the first collective with a pattern is rehearsed, and no links are reserved.
//!
//! In all-reduces, all-gathers, reduce-scatters, all-to-alls and barriers, no member ends before all members have
//! arrived. In such a collective, the first arrival *holds* the links and sends nothing yet. The last arrival completes
//! the pattern. The answer then starts in the past, at the first arrival. Other collectives, such as broadcasts, are
//! answered only if no member sends before the last arrival. This is so if the root arrives last, for example.
//!
//! A link stays reserved until the collective has submitted its last message over it. Later traffic would queue after
//! that message anyway. Before a message, load or store uses a reserved link, the collective is
//! [materialized](super::fast_forward): it is simulated message by message from then on. Members that have already
//! ended are not affected.

use super::Collectives;
use super::run::CollectiveRun;
use crate::discipline::{EventOrderDiscipline, RequiredCollectiveBackendTraits};
use crate::effects::Effects;
use crate::event::{EventClass, PackedEvent};
use crate::fabric::Fabric;
use crate::ids::RunIndex;
use crate::plan::{NONE, PlacedCommunicationGroup};
use chakram_base::ids::{NodeIndex, Position};
use chakram_base::units::{Span, Time};
use chakram_hardware::network::{NetworkBackend, RehearsableLinks, RehearsedCollectiveUseOfLink};
use chakram_trace::format::CollectiveKind;
use std::sync::Arc;

/// Maximum number of arrival patterns kept per schedule.
const MOST_PATTERNS: usize = 8;

/// Maximum number of arrival patterns kept per schedule on a network without contention. There, every collective with
/// late members is rehearsed. More patterns would need more memory than the replay, and they seldom repeat.
const MOST_PATTERNS_APART: usize = 2;

/// Member end times and link use of a collective that ran alone. All times count from the first arrival.
#[derive(Debug)]
pub(super) struct RehearsedMemberEndsAndLinkUses {
    /// Arrival time of each member. An absent member has the arrival time of the last present member.
    pattern: Vec<Span>,
    /// End time and position of each member, in order of time.
    pub ends: Vec<(Span, Position)>,
    /// How the collective uses each link.
    pub links: Vec<RehearsedCollectiveUseOfLink>,
}

impl RehearsedMemberEndsAndLinkUses {
    /// Creates a rehearsal from the members' end times. Returns `None` if one member ends no later than another
    /// arrives. The result would then depend on the order of rounds, which a rehearsal does not record.
    fn new(
        pattern: Vec<Span>,
        mut ends: Vec<(Span, Position)>,
        links: Vec<RehearsedCollectiveUseOfLink>,
    ) -> Option<Self> {
        ends.sort_unstable();
        let last = pattern.iter().max().copied().unwrap_or_default();
        let is_after_arrivals = ends.first().is_some_and(|&(first, _)| first > last);
        is_after_arrivals.then_some(Self {
            pattern,
            ends,
            links,
        })
    }
}

/// Progress of a schedule's trial runs (rehearsals).
#[derive(Clone, Debug, Default)]
pub(super) enum ScheduleRehearsalProgress {
    /// No collective of the schedule has run.
    #[default]
    Unused,
    /// One collective of the schedule has run. For a schedule used only once, a rehearsal would cost more time than it
    /// saves, so only the second collective is rehearsed.
    UsedOnce,
    /// Rehearsals are available.
    Known(Vec<Arc<RehearsedMemberEndsAndLinkUses>>),
    /// Collectives of the schedule cannot be rehearsed.
    Impossible,
}

/// Returns true if every member needs data from every other member, so that no member ends before all members have
/// arrived.
fn needs_data_from_all_members(run: &CollectiveRun) -> bool {
    let kind = run.request.map(|request| request.kind);
    matches!(
        kind,
        Some(
            CollectiveKind::AllReduce
                | CollectiveKind::AllGather
                | CollectiveKind::ReduceScatter
                | CollectiveKind::AllToAll
                | CollectiveKind::Barrier
        )
    )
}

/// Returns when each member arrives, relative to the first arrival. All values are zero if `together` is true.
fn arrival_times_since_first(run: &CollectiveRun, together: bool) -> Vec<Span> {
    let (first, last) = (run.arrivals.first, run.arrivals.last);
    let members = run.arrivals.starts.iter().zip(&run.arrivals.nodes);
    let since = members.map(|(&start, &node)| match node {
        _ if together => Span::ZERO,
        NONE => last.since(first),
        _ => start.since(first),
    });
    since.collect()
}

impl<M: RequiredCollectiveBackendTraits> Collectives<'_, M> {
    /// Tries to settle a collective's new arrivals without simulating its messages. If `all` members have arrived, the
    /// collective takes its times from a trial run (a rehearsal). Otherwise, the collective keeps its links reserved.
    /// Returns true on success.
    pub(super) fn try_process_by_rehearsal<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
        all: bool,
    ) -> bool {
        if M::Order::AT_ONCE || self.settings.stepwise || self.settings.many {
            return false;
        }
        if !N::SHARED {
            return self.settle_arrivals_without_contention(fabric, effects, now, id, all);
        }
        let run = &self.chunks.runs[id];
        let has_parts = run.request.is_some_and(|request| request.splits.is_some());
        if run.length == 0 || has_parts || !run.own_schedules.is_empty() || run.answer.materialized
        {
            return false;
        }
        let (is_held, has_sent) = (run.answer.is_held, run.messages > 0);
        match (is_held, all) {
            (true, false) => {
                return self.record_arrivals_while_links_reserved(fabric, effects, now, id);
            }
            (false, false) => {
                return !has_sent
                    && self.try_reserve_idle_links_until_all_arrive(fabric, effects, now, id);
            }
            _ => {}
        }
        let together = !is_held && !has_sent;
        let Some((rehearsal, messages)) = self.find_or_rehearse(fabric, effects, id, together)
        else {
            if is_held {
                self.materialize_run(fabric, effects, now, id);
            }
            return false;
        };
        // These messages belong to the trial run, so the fabric must not count them.
        fabric.subtract_rehearsed_messages(messages);
        if !together && !is_held {
            // This collective has already sent messages, so the new rehearsal serves only later collectives with this
            // pattern.
            return false;
        }
        let run = &self.chunks.runs[id];
        let start = if together { now } else { run.arrivals.first };
        let links = fabric.rehearsable_links_mut();
        let performs = |links: &mut dyn RehearsableLinks| {
            if is_held {
                links.release_reserved_links(&rehearsal.links, id.0);
            }
            links.repeat_uses_if_links_idle(start, &rehearsal.links, id.0)
        };
        if !links.is_some_and(performs) {
            if is_held {
                self.materialize_run(fabric, effects, now, id);
            }
            return false;
        }
        let number = if is_held {
            run.answer.number
        } else {
            self.answers.count_revocable_answer()
        };
        // Discard the progress of earlier members, which have already enrolled for simulation.
        if let Some(progress) = self.chunks.runs[id].progress.take() {
            fabric.close_ports(progress.ports);
            self.answers.stepwise -= 1;
        }
        self.answers.closed += 1;
        self.answer_as_rehearsed(effects, id, rehearsal, (number, start));
        true
    }

    /// Settles a collective's new arrivals on a network without contention, where no other traffic can disturb it. If
    /// every member needs data from every other, nothing is simulated until `all` have arrived. The collective then
    /// takes its times from a trial run. Returns false if it must be simulated.
    fn settle_arrivals_without_contention<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
        all: bool,
    ) -> bool {
        let run = &self.chunks.runs[id];
        let is_held = run.answer.is_held;
        if !is_held && !self.can_wait_for_all_members(run) {
            return false;
        }
        if is_held && run.answer.last_wave == now {
            // Earlier arrivals at this instant have already been processed, so a trial run would submit their messages
            // too late.
            self.materialize_run(fabric, effects, now, id);
            return false;
        }
        if !all {
            let answer = &mut self.chunks.runs[id].answer;
            if !is_held {
                (answer.start, answer.is_held, answer.is_skewed) = (now, true, true);
            }
            self.mark_arrivals_processed(effects, now, id);
            return true;
        }
        let together = !is_held;
        let Some((rehearsal, messages)) = self.find_or_rehearse(fabric, effects, id, together)
        else {
            if is_held {
                self.materialize_run(fabric, effects, now, id);
            }
            return false;
        };
        let run = &mut self.chunks.runs[id];
        let start = if together { now } else { run.arrivals.first };
        // The collective was simulated outside the main loop, but it still counts as simulated.
        if messages > 0 {
            run.messages = messages;
            self.answers.stepwise += 1;
        } else {
            self.answers.closed += 1;
        }
        self.answer_as_rehearsed(effects, id, rehearsal, (0, start));
        true
    }

    /// Returns true if nothing needs to be simulated before the last member arrives, and a trial run is possible.
    /// Absent members rule this out: members end at different times, so a present member cannot represent an absent
    /// one.
    fn can_wait_for_all_members(&self, run: &CollectiveRun) -> bool {
        let plan = self.chunks.groups[run.group].plan;
        !M::Order::MATCHES_AS_ISSUED
            && needs_data_from_all_members(run)
            && run.length > 0
            && run.progress.is_none()
            && run.request.is_none_or(|request| request.splits.is_none())
            && plan.present as usize == plan.members.len()
            && !self.chunks.is_scripted(run)
    }

    /// Ends a collective at the times that a trial run gave. `number` identifies the answer if other traffic can
    /// withdraw it.
    fn answer_as_rehearsed(
        &mut self,
        effects: &mut Effects,
        id: RunIndex,
        rehearsal: Arc<RehearsedMemberEndsAndLinkUses>,
        (number, start): (u32, Time),
    ) {
        let run = &mut self.chunks.runs[id];
        run.arrivals.arrived_now.clear();
        let (first, _) = rehearsal.ends[0];
        let answer = &mut run.answer;
        answer.is_skewed = rehearsal.pattern.iter().any(|&since| since > Span::ZERO);
        (answer.number, answer.start, answer.is_held) = (number, start, false);
        answer.settlement = effects.progress.settlements_at_latest_instant();
        (answer.rehearsal, answer.told) = (Some(rehearsal), 0);
        let event = PackedEvent::of_collective_in_flight(EventClass::Run, id, number);
        effects.agenda.push(start + first, event);
    }

    /// Reserves a collective's links for the members that arrived first, if the links are known and idle. Returns true
    /// if the links are now reserved.
    fn try_reserve_idle_links_until_all_arrive<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
    ) -> bool {
        let run = &self.chunks.runs[id];
        if !needs_data_from_all_members(run) || run.progress.is_some() {
            return false;
        }
        let ScheduleRehearsalProgress::Known(known) =
            self.chunks.schedules.rehearsals_of_schedule(run.schedule)
        else {
            return false;
        };
        let rehearsal = Arc::clone(&known[0]);
        let links = fabric.rehearsable_links_mut();
        if !links.is_some_and(|links| links.reserve_links_if_all_idle(now, &rehearsal.links, id.0))
        {
            return false;
        }
        let number = self.answers.count_revocable_answer();
        let run = &mut self.chunks.runs[id];
        (run.answer.number, run.answer.start) = (number, now);
        (run.answer.is_held, run.answer.is_skewed) = (true, true);
        run.answer.rehearsal = Some(rehearsal);
        self.mark_arrivals_processed(effects, now, id);
        true
    }

    /// Records further arrivals at a collective whose links are reserved until all members have arrived. Returns true
    /// if the links are still reserved.
    fn record_arrivals_while_links_reserved<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
    ) -> bool {
        let run = &self.chunks.runs[id];
        if run.answer.last_wave == now {
            // Members that were processed earlier at this instant would send before these members arrive. A
            // rehearsal does not reproduce this order.
            self.materialize_run(fabric, effects, now, id);
            return false;
        }
        self.mark_arrivals_processed(effects, now, id);
        true
    }

    fn mark_arrivals_processed(&mut self, effects: &mut Effects, now: Time, id: RunIndex) {
        let run = &mut self.chunks.runs[id];
        run.arrivals.arrived_now.clear();
        run.answer.last_wave = now;
        run.answer.settlement = effects.progress.settlements_at_latest_instant();
    }

    /// Returns the rehearsal (trial run) for a collective whose members have all arrived. If this call made the
    /// rehearsal, also returns how many messages it had. Rehearses the second collective of a schedule, and later
    /// collectives with a new pattern if there are fewer than `MOST_PATTERNS` patterns.
    fn find_or_rehearse<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        id: RunIndex,
        together: bool,
    ) -> Option<(Arc<RehearsedMemberEndsAndLinkUses>, u64)> {
        let run = &self.chunks.runs[id];
        let (schedule, own) = (run.schedule, arrival_times_since_first(run, together));
        let may_skew = needs_data_from_all_members(run);
        let cached = self.chunks.schedules.schedule_mut(schedule);
        match &cached.rehearsal {
            ScheduleRehearsalProgress::Impossible => return None,
            ScheduleRehearsalProgress::Unused if N::SHARED => {
                cached.rehearsal = ScheduleRehearsalProgress::UsedOnce;
                return None;
            }
            ScheduleRehearsalProgress::Known(known) => {
                let mut known_ones = known.iter();
                if let Some(found) = known_ones.find(|one| one.pattern == own) {
                    return Some((Arc::clone(found), 0));
                }
                if N::SHARED && known.len() == MOST_PATTERNS {
                    return None;
                }
            }
            ScheduleRehearsalProgress::Unused | ScheduleRehearsalProgress::UsedOnce => {}
        }
        if !together && !may_skew {
            return None;
        }
        let found = if self.chunks.is_scripted(&self.chunks.runs[id]) {
            None
        } else if let Some(ends) = self.compute_member_ends_by_formula(fabric, id, &own) {
            RehearsedMemberEndsAndLinkUses::new(own, ends, Vec::new()).map(|computed| (computed, 0))
        } else {
            self.simulate_collective_alone_and_restore(fabric, effects, id, own, together)
        };
        let (found, messages) = match found {
            Some((found, messages)) => (Some(Arc::new(found)), messages),
            None => (None, 0),
        };
        let state = &mut self.chunks.schedules.schedule_mut(schedule).rehearsal;
        match (&found, &mut *state) {
            (Some(found), ScheduleRehearsalProgress::Known(known)) => {
                if !N::SHARED && known.len() == MOST_PATTERNS_APART {
                    known.remove(0);
                }
                known.push(Arc::clone(found));
            }
            (Some(found), _) => *state = ScheduleRehearsalProgress::Known(vec![Arc::clone(found)]),
            // Without contention, the rehearsal may have failed only because of this pattern of arrivals.
            (None, _) if !N::SHARED => {}
            (None, _) => *state = ScheduleRehearsalProgress::Impossible,
        }
        found.map(|found| (found, messages))
    }

    /// Returns each position's end as a rehearsal without contention would give it, provided that a formula covers this
    /// pattern of arrivals.
    fn compute_member_ends_by_formula<N: NetworkBackend>(
        &self,
        fabric: &Fabric<'_, N>,
        id: RunIndex,
        pattern: &[Span],
    ) -> Option<Vec<(Span, Position)>> {
        let run = &self.chunks.runs[id];
        let is_simple = run.own_schedules.is_empty()
            && !self.chunks.mixed_directions
            && !fabric.needs_message_requests();
        if N::SHARED || M::Order::SENDS_END_ON_ARRIVAL || !is_simple {
            return None;
        }
        let PlacedCommunicationGroup { extent, paths, .. } = self.chunks.groups[run.group].plan;
        let schedule = self.chunks.schedules.schedule_by_number(run.schedule);
        let arrivals = extent
            .member_at
            .iter()
            .map(|member| pattern[member.index()]);
        let begins: Vec<Span> = arrivals.collect();
        let ends =
            (self.chunks.backend).end_times_of_late_members(schedule, extent, paths, &begins)?;
        Some(ends.into_iter().zip((0..).map(Position)).collect())
    }

    /// Simulates a collective as if nothing else were in flight, and then restores the state of everything else. Also
    /// returns how many messages this took, because the fabric has counted them.
    fn simulate_collective_alone_and_restore<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        id: RunIndex,
        pattern: Vec<Span>,
        together: bool,
    ) -> Option<(RehearsedMemberEndsAndLinkUses, u64)> {
        match fabric.rehearsable_links_mut() {
            Some(links) => links.set_aside_traffic_and_begin_rehearsal(),
            None if N::SHARED => return None,
            None => {}
        }
        let mut own = Effects::default();
        let begun = std::mem::take(&mut self.chunks.begun_chunks);
        let stepwise = self.answers.stepwise;
        let run = &mut self.chunks.runs[id];
        let start = if together {
            run.arrivals.last
        } else {
            run.arrivals.first
        };
        let progress = run.progress.take();
        let fresh = std::mem::take(&mut run.arrivals.arrived_now);
        let waves = run.arrivals.group_arrivals_by_time(!together, start);
        let messages = std::mem::take(&mut run.messages);
        self.chunks.rehearsed_ends = Some(Vec::new());
        self.simulate_collective_until_present_or_end(fabric, &mut own, id, waves, None);
        effects.progress.events += own.progress.events;
        effects.refusal = effects.refusal.take().or(own.refusal);
        let ends = self.chunks.rehearsed_ends.take().unwrap_or_default();
        self.chunks.begun_chunks = begun;
        self.answers.stepwise = stepwise;
        let links = match fabric.rehearsable_links_mut() {
            Some(links) => links.end_rehearsal_and_take_link_uses(start),
            None => Some(Vec::new()),
        };
        let run = &mut self.chunks.runs[id];
        (run.progress, run.arrivals.arrived_now) = (progress, fresh);
        let tried = std::mem::replace(&mut run.messages, messages);
        let members = run.arrivals.nodes.len();
        let ends = ends.into_iter();
        let ends = ends.map(|(at, position)| (at.since(start), position));
        let ends: Vec<(Span, Position)> = ends.collect();
        let links = links.filter(|_| ends.len() == members);
        let rehearsal =
            links.and_then(|links| RehearsedMemberEndsAndLinkUses::new(pattern, ends, links));
        if rehearsal.is_none() {
            fabric.subtract_rehearsed_messages(tried);
        }
        rehearsal.map(|rehearsal| (rehearsal, tried))
    }

    /// If the event belongs to the latest answer of a collective with rehearsed times, ends the members whose end time
    /// is `now`.
    pub(super) fn end_rehearsed_members(
        &mut self,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
        number: u32,
    ) {
        let answer = &self.chunks.runs[id].answer;
        let start = answer.start;
        let Some(rehearsal) = answer.rehearsal.clone().filter(|_| answer.number == number) else {
            return;
        };
        let next = loop {
            let run = &mut self.chunks.runs[id];
            let next = rehearsal.ends.get(run.answer.told as usize);
            let Some(&(_, position)) = next.filter(|&&(end, _)| start + end == now) else {
                break next;
            };
            run.answer.told += 1;
            let running = &self.chunks.groups[run.group];
            let member = running.plan.extent.member_at[position.index()].index();
            let instance = running.program_instance_index_of_rank(running.plan.members[member]);
            let node = run.arrivals.nodes[member];
            if let Some(instance) = instance {
                effects.end_node::<M::Order>(now, instance, NodeIndex(node));
            }
        };
        if let Some(&(end, _)) = next {
            let event = PackedEvent::of_collective_in_flight(EventClass::Run, id, number);
            effects.agenda.push(start + end, event);
            return;
        }
        self.chunks.runs[id].answer.number = 0;
        if number > 0 {
            self.answers.decrement_revocable_answer_count();
        }
        // Only a collective that was rehearsed itself has messages.
        let stepwise = self.chunks.runs[id].messages > 0;
        self.chunks
            .report_ended_collective_and_free_state(effects, now, id, stepwise);
    }
}
