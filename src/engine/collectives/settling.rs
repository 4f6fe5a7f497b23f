//! Settles collectives: chooses between an analytical answer, in which a formula gives the time, and a simulation. Also
//! ends the members' nodes.

use super::Collectives;
use super::run::CollectiveRun;
use crate::ReplayRefusal;
use crate::discipline::{EventOrderDiscipline, RequiredCollectiveBackendTraits};
use crate::effects::{Effects, LoopFollowUpWork};
use crate::event::{EventClass, PackedEvent};
use crate::fabric::Fabric;
use crate::ids::RunIndex;
use crate::plan::PlacedCommunicationGroup;
use crate::price_changes::DurationAdjustment;
use chakram_base::ids::{MemberIndex, NodeIndex};
use chakram_base::units::{Span, Time};
use chakram_hardware::collective::UncontendedMessageCostFunctions;
use chakram_hardware::network::NetworkBackend;
use chakram_trace::format::CollectiveKind;

/// Maximum number of state entries for a simulated collective, counted as chunks · members · (stages + 1). An array of
/// this many entries takes a few gigabytes.
const MOST: u64 = 1 << 28;

/// Returns an error if simulating a collective would take more than [`MOST`] state entries.
fn check_simulation_size(run: &CollectiveRun, members: usize) -> Option<ReplayRefusal> {
    let (members, chunks) = (members as u64, u64::from(run.chunks));
    let size = members
        .saturating_mul(chunks)
        .saturating_mul(u64::from(run.strands))
        .saturating_mul(run.length as u64 + 1);
    (size > MOST).then(|| {
        ReplayRefusal::new(
            format!(
                "a collective of {members} members in {chunks} chunks must be simulated message by \
                 message, which does not fit in memory"
            ),
            "fewer `chunks` in the machine's [collectives], or an algorithm with an analytical \
             time whose members start together",
        )
    })
}
impl<M: RequiredCollectiveBackendTraits> Collectives<'_, M> {
    /// Starts the members that arrived at this instant, if events are handled in insertion order. If all members
    /// arrived at this instant, tries to compute the collective's end analytically. Otherwise, starts the members one
    /// by one, in the order of arrival.
    pub(super) fn answer_or_start_arrived_members_in_order<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
    ) {
        let run = &mut self.chunks.runs[id];
        let group = self.chunks.groups[run.group].plan;
        let fresh = std::mem::take(&mut run.arrivals.arrived_now);
        let all = run.arrivals.arrived == group.present && run.arrivals.first == now;
        if all && let Some(span) = self.find_closed_form_time(fabric, id) {
            self.notify_all_transfers_begin(effects, id);
            self.answers.closed += 1;
            self.record_member_end_order(id, &fresh);
            let event = PackedEvent::of_collective_in_flight(EventClass::Run, id, 0);
            effects.agenda.push(now + span, event);
        } else {
            for &member in &fresh {
                self.begin_member_chunks_in_simulation(fabric, effects, now, id, member);
            }
        }
    }

    /// Records the order in which members will end, if this order is proven. `began` lists the members in the order in
    /// which they started.
    fn record_member_end_order(&mut self, id: RunIndex, began: &[MemberIndex]) {
        let run = &mut self.chunks.runs[id];
        let cached = self.chunks.schedules.schedule_mut(run.schedule);
        let extent = &self.chunks.groups[run.group].plan.extent;
        let Some(changes) =
            (cached.end_order.as_ref()).filter(|_| began.len() == extent.npus.len())
        else {
            return;
        };
        let positions = began
            .iter()
            .map(|member| extent.position_of[member.index()]);
        let mut positions = positions.collect();
        let backend = &self.chunks.backend;
        for change in changes {
            let stage = &cached.schedule.stages_of_all_routes()[change.stage.index()];
            backend.reorder_members_to_receive_order(
                stage,
                change.messages.clone(),
                extent,
                &mut positions,
            );
        }
        let ends = positions.iter().map(|at| extent.member_at[at.index()]);
        run.arrivals.ends.extend(ends);
    }

    /// Notifies the observer that all members' transfers begin, because all members have arrived.
    fn notify_all_transfers_begin(&self, effects: &mut Effects, id: RunIndex) {
        let run = &self.chunks.runs[id];
        let group = &self.chunks.groups[run.group];
        for (rank, &node) in group.plan.members.iter().zip(&run.arrivals.nodes) {
            if let Some(instance) = group.observer_instance_id_of_rank(*rank) {
                effects.queue_collective_begin_notification(instance, NodeIndex(node));
            }
        }
    }

    /// Returns the duration of a collective whose members all start together, or `None` if no closed form is proven
    /// exact. The result is cached with the schedule.
    fn find_closed_form_time<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        id: RunIndex,
    ) -> Option<Span> {
        let run = &self.chunks.runs[id];
        if !run.own_schedules.is_empty() {
            return None;
        }
        let cached = self.chunks.schedules.schedule_mut(run.schedule);
        if let Some(known) = cached.closed {
            return known;
        }
        let PlacedCommunicationGroup { extent, paths, .. } = self.chunks.groups[run.group].plan;
        let network = fabric.network_model();
        let quiet = UncontendedMessageCostFunctions {
            shared: N::SHARED,
            cost: &|ends, amount| network.uncontended_time(ends, amount),
            link_time: &|amount| network.message_link_occupancy_time(amount),
            // Messages of irregular groups may use any link, so they may conflict with each other on a network with
            // contention.
            conflict_free: &|dimension, members, pattern| {
                if extent.regular {
                    network.is_send_pattern_conflict_free(dimension, members, pattern)
                } else {
                    !N::SHARED
                }
            },
        };
        let span = self
            .chunks
            .backend
            .closed_form(&cached.schedule, extent, paths, &quiet);
        let backend = &self.chunks.backend;
        cached.end_order = (M::Order::AT_ONCE && span.is_some())
            .then(|| {
                backend.list_member_order_changes_begin_to_end(&cached.schedule, extent, &quiet)
            })
            .flatten();
        // If there is no closed form, that is cached too.
        cached.closed = Some(span);
        span
    }

    /// Returns true if the collective's time may still be computed analytically. If events are handled in insertion
    /// order, the result may depend on the order of arrivals within an instant. A collective without an analytical
    /// answer therefore proceeds immediately.
    pub fn can_answer_analytically<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        id: RunIndex,
    ) -> bool {
        !self.settings.stepwise
            && (!N::SHARED || self.settings.collectives_alone)
            && self.chunks.runs[id].progress.is_none()
            && self.find_closed_form_time(fabric, id).is_some()
            && (!self.settings.ordered_ends || self.has_proven_member_end_order(id))
    }

    /// Returns true if the order in which members end is proven. The caller must already have computed the closed form.
    fn has_proven_member_end_order(&mut self, id: RunIndex) -> bool {
        let schedule = self.chunks.runs[id].schedule;
        self.chunks
            .schedules
            .schedule_mut(schedule)
            .end_order
            .is_some()
    }

    /// Enrolls a member for simulation. Each of its chunks begins its first stage immediately, or waits to be admitted.
    pub fn begin_member_chunks_in_simulation<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
        member: MemberIndex,
    ) {
        let run = &mut self.chunks.runs[id];
        let group = self.chunks.groups[run.group].plan;
        let position = group.extent.position_of[member.index()];
        if run.progress.is_none() {
            run.begin_simulation(fabric.open_network_ports_for_operation(0), 0);
            self.answers.stepwise += 1;
        }
        if run.arrivals.arrived == group.present && run.arrivals.arrived_now.is_empty() {
            self.notify_all_transfers_begin(effects, id);
        }
        self.chunks
            .enroll_member_chunks(fabric, effects, now, id, position);
    }

    /// Processes the members of a collective that arrived at this instant. Must be called after the last event of the
    /// instant.
    pub fn process_new_arrivals<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
    ) {
        let run = &mut self.chunks.runs[id];
        let group = self.chunks.groups[run.group].plan;
        let all = run.arrivals.arrived == group.present;
        if all {
            self.notify_all_transfers_begin(effects, id);
        }
        if let Some(latency) = self
            .barrier_duration_on_dedicated_wires(id)
            .or_else(|| self.find_stated_or_recorded_time(fabric, effects, id))
        {
            self.chunks.runs[id].arrivals.arrived_now.clear();
            if all {
                self.answers.closed += 1;
                let event = PackedEvent::of_collective_in_flight(EventClass::Run, id, 0);
                effects.agenda.push(now + latency, event);
            }
            return;
        }
        // A collective with a measured time begins only when its last member arrives.
        let run = &mut self.chunks.runs[id];
        let measured = !N::SHARED
            && !self.settings.stepwise
            && run.own_schedules.is_empty()
            && self
                .chunks
                .schedules
                .schedule_by_number(run.schedule)
                .measured_time()
                .is_some();
        if measured && !all {
            run.arrivals.arrived_now.clear();
            return;
        }
        let together = all && (run.arrivals.first == now || measured);
        if together
            && !self.settings.stepwise
            && let Some(span) = self.find_closed_form_time(fabric, id)
            && self.fast_forward(fabric, effects, now, id, span)
        {
            return;
        }
        if self.try_process_by_rehearsal(fabric, effects, now, id, all) {
            return;
        }
        self.continue_simulation(fabric, effects, now, id, all);
    }

    /// Returns the duration of a barrier that uses dedicated wires instead of links. Returns `None` for other
    /// collectives.
    fn barrier_duration_on_dedicated_wires(&self, id: RunIndex) -> Option<Span> {
        let latency = self.settings.topology.tile_grid()?.barrier?;
        let request = self.chunks.runs[id].request?;
        (request.kind == CollectiveKind::Barrier).then_some(latency)
    }

    /// Returns the duration of a collective whose members have all arrived. The duration is known here if an option
    /// states it, or if the size is unknown but the duration was recorded.
    fn find_stated_or_recorded_time<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        id: RunIndex,
    ) -> Option<Span> {
        let run = &self.chunks.runs[id];
        let calls = &self.chunks.groups[run.group].plan.calls;
        let call = *calls.get(run.sequence as usize)?;
        let Some(changed) = call.changed else {
            return call.recorded;
        };
        if let DurationAdjustment::Time(time) = changed {
            return Some(time);
        }
        let unchanged = call
            .recorded
            .or_else(|| self.find_closed_form_time(fabric, id));
        if unchanged.is_none() {
            effects.refusal = Some(ReplayRefusal::new(
                format!(
                    "the time of {} is to be changed by a factor, but its uncontended time is unknown because it has no analytical time",
                    call.kind
                ),
                "a time instead of a factor",
            ));
        }
        unchanged.map(|span| changed.scale_or_replace_span(span))
    }

    /// Continues the simulation of a collective with the members that arrived at this instant. `all` is true if every
    /// member has arrived.
    pub(super) fn continue_simulation<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
        all: bool,
    ) {
        let run = &mut self.chunks.runs[id];
        let running = &self.chunks.groups[run.group];
        let group = running.plan;
        let is_folded = !group.represents.is_empty();
        if is_folded && (group.present as usize) < group.members.len() {
            // Mark the group, so that the caller folds the job again and distinguishes this group's members.
            group.unequal.get_or_init(|| ());
            effects.refusal = Some(ReplayRefusal::new(
                "members of a collective end at different times, but some are represented by others",
                "a replay of all ranks",
            ));
            return;
        }
        if run.progress.is_none() {
            if let Some(refusal) = check_simulation_size(run, group.members.len()) {
                effects.refusal = Some(refusal);
                return;
            }
            let phases = group.extent.phases.len();
            let ports = group.count_ports_opened_by_collective();
            let order = self
                .chunks
                .schedules
                .schedule_by_number(run.schedule)
                .admission_order();
            run.begin_simulation(
                fabric.open_network_ports_for_operation(ports),
                order.map_or(0, |_| phases),
            );
            self.answers.stepwise += 1;
        }
        let mut fresh = std::mem::take(&mut run.arrivals.arrived_now);
        if all {
            // Absent members count as arriving together with the last present member.
            let absent = group
                .members
                .iter()
                .enumerate()
                .filter(|(_, m)| running.program_instance_index_of_rank(**m).is_none());
            fresh.extend(absent.map(|(member, _)| MemberIndex(member as u32)));
        }
        let position_of = &group.extent.position_of;
        fresh.sort_unstable_by_key(|member| position_of[member.index()]);
        for member in &fresh {
            self.chunks
                .enroll_member_chunks(fabric, effects, now, id, position_of[member.index()]);
        }
        self.chunks.advance_begun_chunks(fabric, effects, now);
        fresh.clear();
        self.chunks.runs[id].arrivals.arrived_now = fresh;
    }

    /// Ends an analytically answered collective. The members end together, or each at its time in the trial run
    /// (rehearsal).
    pub(super) fn end_analytically_answered_collective<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        id: RunIndex,
        number: u32,
    ) {
        let run = &self.chunks.runs[id];
        if run.answer.rehearsal.is_some() {
            self.end_rehearsed_members(effects, now, id, number);
            return;
        }
        if !self.release_links_if_answer_is_latest(fabric, id, number) {
            return;
        }
        let run = &self.chunks.runs[id];
        let running = &self.chunks.groups[run.group];
        let members = &running.plan.members;
        let mut end = |member: usize| {
            if let Some(instance) = running.program_instance_index_of_rank(members[member]) {
                let node = NodeIndex(run.arrivals.nodes[member]);
                effects.end_node::<M::Order>(now, instance, node);
            }
        };
        match &run.arrivals.ends[..] {
            [] => (0..members.len()).for_each(&mut end),
            ordered => ordered.iter().for_each(|member| end(member.index())),
        }
        if M::Order::AT_ONCE {
            effects.push_follow_up(LoopFollowUpWork::Record(id));
        } else {
            self.chunks
                .report_ended_collective_and_free_state(effects, now, id, false);
        }
    }
}
