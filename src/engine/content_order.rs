//! Content order: at each instant, events are handled by class, NPU, launch and node. The loop collects their
//! consequences until no event of the instant is left.

use super::Engine;
use super::discipline::{EventOrderDiscipline, RequiredCollectiveBackendTraits};
use crate::Observer;
use chakram_base::units::Time;
use chakram_hardware::collective::SortEventsByContentMarker;
use chakram_hardware::network::NetworkBackend;
use std::ops::ControlFlow;

impl EventOrderDiscipline for SortEventsByContentMarker {
    const AT_ONCE: bool = false;
    const SENDS_END_ON_ARRIVAL: bool = false;
    const MATCHES_AS_ISSUED: bool = false;
    const OPENS_PORTS: bool = true;

    #[inline]
    fn handle_events_of_next_instant<
        O: Observer + ?Sized,
        N: NetworkBackend,
        M: RequiredCollectiveBackendTraits<Order = Self>,
    >(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
    ) {
        let mut round = std::mem::take(&mut engine.round);
        engine.effects.take_events_of_next_instant(&mut round);
        engine.sort_by_content(&mut round);
        for &event in &round {
            engine.handle_event(now, event, 0);
        }
        engine.round = round;
    }

    #[inline]
    fn finish_round_after_events<
        O: Observer + ?Sized,
        N: NetworkBackend,
        M: RequiredCollectiveBackendTraits<Order = Self>,
    >(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
    ) -> ControlFlow<()> {
        if engine.tile_groups.needs_split_check() {
            engine.settle_steps_of_some_members(now, None);
        }
        if engine.tile_groups.may_have_parts_to_join() {
            let lanes = engine.processors.kernel_lanes();
            let effects = &mut engine.effects;
            engine
                .tile_groups
                .rejoin_parts(&mut engine.flow, lanes, effects);
        }
        engine.grant_lanes_and_post_ready_nodes(now);
        if !engine.effects.ended.is_empty() || engine.feeds.has_woken_feeds() {
            engine.notify_feeds_of_ends_and_wakes(now);
        }
        if engine.processors.has_jobs_since_last_settle()
            && !engine.effects.agenda.has_event_at(now)
        {
            engine.notify_processors_that_instant_is_over(now);
        }
        engine.effects.progress.count_ended_round(now);
        // Submit messages before collectives are settled, so that reservations of analytical answers account for
        // the traffic of this round.
        engine.submit_messages_and_memory_accesses(now);
        if !engine.effects.arrivals.is_empty() && !engine.effects.agenda.has_event_at(now) {
            engine.effects.progress.record_settled_instant();
            engine.settle_collectives_with_new_arrivals(now);
            engine.submit_messages_and_memory_accesses(now);
        }
        if engine.redistribute_memory_bandwidth(now) {
            engine.effects.progress.record_settled_instant();
        }
        // Settling may have ended nodes of only some members of a tile group; such a group must be split.
        if engine.tile_groups.needs_split_check() {
            engine.settle_steps_of_some_members(now, None);
        }
        ControlFlow::Continue(())
    }

    #[inline]
    fn do_follow_up_work<
        O: Observer + ?Sized,
        N: NetworkBackend,
        M: RequiredCollectiveBackendTraits<Order = Self>,
    >(
        engine: &mut Engine<'_, O, N, M>,
        _: Time,
    ) {
        let mut ends = std::mem::take(&mut engine.effects.ends);
        for (at, node) in ends.drain(..) {
            let effects = &mut engine.effects;
            engine
                .tile_groups
                .schedule_member_or_group_end(&engine.flow, effects, at, node);
        }
        engine.effects.ends = ends;
    }

    #[inline]
    fn offers_freed_lane_to_others(waiting: bool) -> bool {
        waiting
    }
}
