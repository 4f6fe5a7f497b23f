//! Insertion order: events are handled one by one as they were scheduled, and nodes by id.

use super::Engine;
use super::event::{Event, EventClass};
use super::lanes::FREE;
use super::plan::NONE;
use crate::collective::CollectiveBackend;
use crate::graph::NodeKind;
use crate::ids::{NodeIndex, Rank};
use crate::network::NetworkBackend;
use crate::report::Observer;
use crate::units::{Span, Time};

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

impl<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveBackend> Engine<'_, O, N, M> {
    /// Handles one event in insertion order, and what follows from it.
    #[inline]
    pub(super) fn handle_in_order(&mut self, now: Time, event: Event) {
        if event.class() != EventClass::Alarm {
            self.handle(now, event, 0);
            self.dispatch_by_id(now);
            return;
        }
        let (npu, gathering) = (event.rank(), event.payload());
        while let Some((event, detail)) = self.agenda.next_delay(npu, gathering) {
            self.handle(now, event, detail);
            self.dispatch_by_id(now);
        }
    }

    /// Completes a node: at once in insertion order, as an event in content order.
    #[inline]
    pub(super) fn end_node(&mut self, now: Time, instance: u32, node: NodeIndex) {
        if M::IN_ORDER {
            self.complete(now, instance, node);
            self.dispatch_by_id(now);
        } else {
            let event = Event::new(EventClass::Node, instance, node.0);
            self.agenda.push(now, event);
        }
    }

    /// Issues, in insertion order, the nodes that became ready or can have a freed lane, by rank and id. A node made
    /// ready by one that completes at once is not looked at before another completes, unless none would.
    #[inline]
    pub(super) fn dispatch_by_id(&mut self, now: Time) {
        while !self.ready.is_empty() || !self.lanes.freed.is_empty() {
            self.issue_by_id(now);
            if !self.dormant.is_empty() {
                self.wake_idle_instances();
            }
        }
    }

    fn issue_by_id(&mut self, now: Time) {
        let mut issuable = std::mem::take(&mut self.ready);
        let mut freed = std::mem::take(&mut self.lanes.freed);
        issuable.retain(|&word| {
            let (instance, node) = ((word >> 32) as u32, NodeIndex(word as u32));
            let running = &self.instances[instance as usize];
            let lane = running.shared.lanes[running.graph.lane(node) as usize];
            if lane == NONE {
                return true;
            }
            let lane = running.first_lane + lane;
            self.lanes.wait_by_id(lane, word);
            freed.push((instance, lane));
            false
        });
        for (_, lane) in freed.drain(..) {
            issuable.extend(self.lanes.grant_by_id(lane));
        }
        self.lanes.freed = freed;
        if issuable.len() > 1 {
            issuable.sort_unstable();
        }
        let mut i = 0;
        while let Some(&word) = issuable.get(i) {
            i += 1;
            let (instance, node) = ((word >> 32) as u32, NodeIndex(word as u32));
            let running = &self.instances[instance as usize];
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
        if self.ready.is_empty() {
            self.ready = issuable;
        }
    }

    /// Completes a node without work at once. Returns the node that takes its lane next.
    fn skip(&mut self, now: Time, instance: u32, node: NodeIndex) -> Option<u64> {
        let number = self.instances[instance as usize].number;
        self.observer.issued(now, number, node, NodeKind::Compute);
        let dormant = std::mem::take(&mut self.dormant);
        self.complete(now, instance, node);
        self.dormant = dormant;
        self.dormant.append(&mut self.ready);
        let (_, lane) = self.lanes.freed.pop()?;
        self.lanes.grant_by_id(lane)
    }

    /// Wakes instances with nothing in flight: their dormant nodes would otherwise sleep for ever, as they do in
    /// ASTRA-sim.
    fn wake_idle_instances(&mut self) {
        let mut sleeping: Vec<u32> = self
            .dormant
            .iter()
            .map(|word| (word >> 32) as u32)
            .collect();
        sleeping.dedup();
        for instance in sleeping {
            if !self.is_under_way(instance) {
                self.backend.on_idle(self.instances[instance as usize].npu);
                wake(&mut self.dormant, instance, &mut self.ready);
            }
        }
    }

    /// Returns whether a node of an instance holds a lane or is a posted receive, and so will complete.
    fn is_under_way(&self, instance: u32) -> bool {
        let running = &self.instances[instance as usize];
        let mut lanes = running.first_lane..running.first_lane + running.shared.lane_count;
        let listens = |pair: &u32| {
            let mut listening = self.channels[*pair as usize].listening.iter();
            listening.any(|(receiver, _)| *receiver == instance)
        };
        let pairs = &self.instances[instance as usize].planned.pairs;
        lanes.any(|lane| self.lanes.holder(lane) != FREE) || pairs.iter().any(listens)
    }
}

/// Makes the dormant nodes of an instance ready, after one of its nodes completed.
pub(super) fn wake(dormant: &mut Vec<u64>, instance: u32, ready: &mut Vec<u64>) {
    ready.extend(dormant.extract_if(.., |word| (*word >> 32) as u32 == instance));
}
