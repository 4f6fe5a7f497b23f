//! Insertion order: events are handled one by one as they were scheduled, and nodes by id.

use super::Engine;
use super::discipline::CollectiveModel;
use super::discipline::Discipline;
use super::event::{Event, EventClass};
use super::lanes::FREE;
use super::messages::SendOrderKey;
use super::plan::NONE;
use crate::collective::InsertionOrder;
use crate::graph::NodeKind;
use crate::ids::{NodeIndex, Rank};
use crate::network::{NetworkBackend, NetworkMessage};
use crate::report::Observer;
use crate::units::{Span, Time};
use std::ops::ControlFlow;

/// Two members that issued different collectives under one sequence number.
#[derive(Clone, Copy, Debug)]
pub(super) struct IssueMismatch {
    pub group: u32,
    pub sequence: u32,
    /// Instance and node of the later member.
    pub own: (u32, NodeIndex),
    /// Rank and node of the earlier member.
    pub other: (Rank, NodeIndex),
}

impl Discipline for InsertionOrder {
    const AT_ONCE: bool = true;
    const SENDS_END_ON_ARRIVAL: bool = true;
    const MATCHES_AS_ISSUED: bool = true;
    const OPENS_PORTS: bool = false;

    #[inline]
    fn round<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
    ) {
        let mut round = std::mem::take(&mut engine.instant.round);
        engine.agenda.take(&mut round);
        for &event in &round {
            if event.class() != EventClass::Alarm {
                engine.handle(now, event, 0);
                engine.dispatch_by_id(now);
                continue;
            }
            let (npu, gathering) = (event.rank(), event.payload());
            while let Some((event, detail)) = engine.agenda.next_delay(npu, gathering) {
                engine.handle(now, event, detail);
                engine.dispatch_by_id(now);
            }
        }
        engine.instant.round = round;
    }

    /// Everything was issued within the events, so no arrivals are left to settle.
    #[inline]
    fn end_round<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
    ) -> ControlFlow<()> {
        if engine.collectives.disagreement.is_some() {
            return ControlFlow::Break(());
        }
        engine.settle_memory(now);
        if !engine.effects.ended.is_empty() {
            engine.tell_feeds(now);
        }
        ControlFlow::Continue(())
    }

    #[inline]
    fn end_node<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
        (instance, node): (u32, NodeIndex),
    ) {
        engine.complete(now, instance, node);
        engine.dispatch_by_id(now);
    }

    /// Ends of one NPU at one instant come together.
    #[inline]
    fn end_at<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        end: Time,
        (instance, node): (u32, NodeIndex),
    ) {
        let npu = engine.flow.instances[instance as usize].npu;
        let event = Event::new(EventClass::Node, instance, node.0);
        engine.agenda.delay(npu.0, end, event, 0);
    }

    #[inline]
    fn node_ended<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        instance: u32,
    ) {
        if !engine.flow.dormant.is_empty() {
            wake(
                &mut engine.flow.dormant,
                instance,
                &mut engine.effects.ready,
            );
        }
    }

    /// Nodes wait by id elsewhere, so the lane's queue says nothing.
    #[inline]
    fn offers_lane(_: bool) -> bool {
        true
    }

    #[inline]
    fn submit<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
        _: SendOrderKey,
        message: NetworkMessage,
    ) {
        engine.put_on_network(now, &message);
    }

    fn post_receive<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
        (instance, node): (u32, NodeIndex),
        pair: u32,
    ) {
        engine.post_rank_receive(now, pair, instance, node);
    }

    /// ASTRA-sim completes the send on arrival, before the receive.
    fn message_arrived<
        O: Observer + ?Sized,
        N: NetworkBackend,
        M: CollectiveModel<Order = Self>,
    >(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
        pair: u32,
        (sender, node): (u32, NodeIndex),
    ) {
        Self::end_node(engine, now, (sender, node));
        let channel = &mut engine.messages.channels[pair as usize];
        match channel.listening.pop_front() {
            Some((instance, node)) => Self::end_node(engine, now, (instance, NodeIndex(node))),
            None => channel.arrived += 1,
        }
    }

    /// A member whose collective is not answered by closed form proceeds at once, because the order of arrivals at an
    /// instant may matter.
    fn join<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel<Order = Self>>(
        engine: &mut Engine<'_, O, N, M>,
        now: Time,
        (instance, node): (u32, NodeIndex),
        (group, member): (u32, u32),
        run: u32,
    ) {
        engine.notify_joined(instance, node, group, run);
        if !engine.may_be_closed(run) {
            engine.enroll(now, run, member);
            return;
        }
        let state = &mut engine.collectives.runs[run as usize];
        if state.arrivals.arrived_now.is_empty() {
            let event = Event::new(EventClass::Settle, 0, run);
            engine.agenda.push(now, event);
        }
        state.arrivals.arrived_now.push(member);
    }
}

impl<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> Engine<'_, O, N, M> {
    /// Issues, in insertion order, the nodes that became ready or can have a freed lane, by rank and id. A node made
    /// ready by one that completes at once is not looked at before another completes, unless none would.
    #[inline]
    pub(super) fn dispatch_by_id(&mut self, now: Time) {
        while !self.effects.ready.is_empty() || !self.effects.freed.is_empty() {
            self.issue_by_id(now);
            if !self.flow.dormant.is_empty() {
                self.wake_idle_instances();
            }
        }
    }

    fn issue_by_id(&mut self, now: Time) {
        let mut issuable = std::mem::take(&mut self.effects.ready);
        let mut freed = std::mem::take(&mut self.effects.freed);
        issuable.retain(|&word| {
            let (instance, node) = ((word >> 32) as u32, NodeIndex(word as u32));
            let running = &self.flow.instances[instance as usize];
            let lane = running.shared.lanes[running.graph.lane(node) as usize];
            if lane == NONE {
                return true;
            }
            let lane = running.first_lane + lane;
            self.processors.lanes.wait_by_id(lane, word);
            freed.push((instance, lane));
            false
        });
        for (_, lane) in freed.drain(..) {
            issuable.extend(self.processors.lanes.grant_by_id(lane));
        }
        self.effects.freed = freed;
        if issuable.len() > 1 {
            issuable.sort_unstable();
        }
        let mut i = 0;
        while let Some(&word) = issuable.get(i) {
            i += 1;
            let (instance, node) = ((word >> 32) as u32, NodeIndex(word as u32));
            let running = &self.flow.instances[instance as usize];
            match running.graph.kind(node) {
                NodeKind::Receive => self.post_receive(now, instance, node),
                NodeKind::Compute
                    if running.shared.prices[node.index()] == Span::ZERO
                        && running.graph.bytes(node) == 0 =>
                {
                    if let Some(next) = self.skip(now, instance, node) {
                        let place = i + issuable[i..].partition_point(|&word| word < next);
                        issuable.insert(place, next);
                    }
                }
                _ => self.issue(now, instance, node),
            }
        }
        // Completions of other nodes issue nothing meanwhile, so the list is still its own.
        issuable.clear();
        if self.effects.ready.is_empty() {
            self.effects.ready = issuable;
        }
    }

    /// Completes a node without work at once. Returns the node that takes its lane next.
    fn skip(&mut self, now: Time, instance: u32, node: NodeIndex) -> Option<u64> {
        let number = self.flow.instances[instance as usize].number;
        self.observer.issued(now, number, node, NodeKind::Compute);
        let dormant = std::mem::take(&mut self.flow.dormant);
        self.complete(now, instance, node);
        self.flow.dormant = dormant;
        self.flow.dormant.append(&mut self.effects.ready);
        let (_, lane) = self.effects.freed.pop()?;
        self.processors.lanes.grant_by_id(lane)
    }

    /// Wakes instances with nothing in flight: their dormant nodes would otherwise sleep for ever, as they do in
    /// ASTRA-sim.
    fn wake_idle_instances(&mut self) {
        let mut sleeping: Vec<u32> = self
            .flow
            .dormant
            .iter()
            .map(|word| (word >> 32) as u32)
            .collect();
        sleeping.dedup();
        for instance in sleeping {
            if !self.is_under_way(instance) {
                self.backend
                    .on_idle(self.flow.instances[instance as usize].npu);
                wake(&mut self.flow.dormant, instance, &mut self.effects.ready);
            }
        }
    }

    /// Returns whether a node of an instance holds a lane or is a posted receive, and so will complete.
    fn is_under_way(&self, instance: u32) -> bool {
        let running = &self.flow.instances[instance as usize];
        let mut lanes = running.first_lane..running.first_lane + running.shared.lane_count;
        let listens = |pair: &u32| {
            let mut listening = self.messages.channels[*pair as usize].listening.iter();
            listening.any(|(receiver, _)| *receiver == instance)
        };
        let pairs = &self.flow.instances[instance as usize].planned.pairs;
        lanes.any(|lane| self.processors.lanes.holder(lane) != FREE) || pairs.iter().any(listens)
    }
}

/// Makes the dormant nodes of an instance ready, after one of its nodes completed.
pub(super) fn wake(dormant: &mut Vec<u64>, instance: u32, ready: &mut Vec<u64>) {
    ready.extend(dormant.extract_if(.., |word| (*word >> 32) as u32 == instance));
}
