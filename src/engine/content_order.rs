//! Content order: events of an instant are handled by class, NPU, launch and node, and what follows from them is
//! collected until no event of the instant is left.

use super::Engine;
use super::discipline::{CollectiveModel, Discipline};
use super::event::{Event, EventClass};
use super::fast_forward::InstantProgress;
use super::messages::{PendingSend, SendOrderKey};
use crate::collective::ContentOrder;
use crate::ids::NodeIndex;
use crate::network::{NetworkBackend, NetworkMessage};
use crate::report::Observer;
use crate::units::Time;
use std::ops::ControlFlow;

impl Discipline for ContentOrder {
    const AT_ONCE: bool = false;
    const SENDS_END_ON_ARRIVAL: bool = false;
    const MATCHES_AS_ISSUED: bool = false;
    const OPENS_PORTS: bool = true;

    #[inline]
    fn round<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
    ) {
        let mut round = std::mem::take(&mut engine.instant.round);
        engine.agenda.take(&mut round);
        engine.instant.events += round.len() as u64;
        engine.sort_round(&mut round);
        for &event in &round {
            engine.handle(now, event, 0);
        }
        engine.instant.round = round;
    }

    #[inline]
    fn end_round<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
    ) -> ControlFlow<()> {
        if engine.tile_groups.are_uneven() {
            engine.settle_uneven(now, None);
        }
        if engine.tile_groups.may_join() {
            engine.rejoin();
        }
        engine.dispatch_ready(now);
        if !engine.effects.ended.is_empty() || engine.feeds.are_woken() {
            engine.tell_feeds(now);
        }
        if engine.feeds.unsettled && !engine.agenda.has(now) {
            engine.settle_processors(now);
        }
        if now > engine.instant.at {
            (engine.instant.at, engine.instant.progress) = (now, InstantProgress::default());
        }
        engine.instant.progress.rounds += 1;
        // Submission comes before settling, so that reservations of closed forms see the traffic of this round.
        engine.send(now);
        if !engine.effects.arrivals.is_empty() && !engine.agenda.has(now) {
            engine.instant.progress.settle();
            engine.settle(now);
            engine.send(now);
        }
        if engine.settle_memory(now) {
            engine.instant.progress.settle();
        }
        // Ends that followed from what was settled.
        if engine.tile_groups.are_uneven() {
            engine.settle_uneven(now, None);
        }
        ControlFlow::Continue(())
    }

    #[inline]
    fn end_node<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
        (instance, node): (u32, NodeIndex),
    ) {
        engine.announce(now, instance, node);
    }

    #[inline]
    fn end_at<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        end: Time,
        (instance, node): (u32, NodeIndex),
    ) {
        let event = Event::new(EventClass::Node, instance, node.0);
        engine.agenda.push(end, event);
    }

    #[inline]
    fn node_ended<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        _: &mut Engine<'_, O, N, M>,
        _: u32,
    ) {
    }

    #[inline]
    fn offers_lane(waiting: bool) -> bool {
        waiting
    }

    #[inline]
    fn submit<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        _: Time,
        key: SendOrderKey,
        message: NetworkMessage,
    ) {
        let send = PendingSend { key, message };
        engine.effects.sends.push(send);
    }

    #[inline]
    fn post_receive<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
        (instance, node): (u32, NodeIndex),
        pair: u32,
    ) {
        engine.post_matched(now, instance, node, pair);
    }

    #[inline]
    fn message_arrived<
        O: Observer + ?Sized,
        N: NetworkBackend,
        M: CollectiveModel<Order = Self>,
    >(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
        pair: u32,
        _: (u32, NodeIndex),
    ) {
        let state = &mut engine.messages.pairs[pair as usize];
        state.delivered = true;
        if let Some(node) = state.posted.checked_sub(1) {
            let waiter = state.waiter;
            engine.announce(now, waiter, NodeIndex(node));
        }
    }

    /// The first member of an instant has its run settled when no event of the instant is left.
    #[inline]
    fn join<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        _: Time,
        _: (u32, NodeIndex),
        (_, member): (u32, u32),
        run: u32,
    ) {
        let state = &mut engine.collectives.runs[run as usize];
        if state.arrivals.arrived_now.is_empty() {
            engine.effects.arrivals.push(run);
        }
        state.arrivals.arrived_now.push(member);
    }
}
