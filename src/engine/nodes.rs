//! Life of a node in the loop: delayed, ready, posted, queued for its lane, issued, complete.

use super::discipline::{CollectiveModel, Discipline};
use super::event::{Event, EventClass};
use super::frames::{SERVED, TURNS, key, node_of};
use super::plan::NONE;
use super::tile_groups::GROUPED;
use super::{COMPLETE, CommTiming, DELAYED, Engine};
use crate::graph::NodeKind;
use crate::ids::{NodeIndex, Npu};
use crate::network::NetworkBackend;
use crate::report::Observer;
use crate::units::{Span, Time};

impl<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> Engine<'_, O, N, M> {
    /// Starts the delay of `node`, whose dependencies are complete and which was recorded to last `delay`.
    #[inline(never)]
    pub(super) fn delay(&mut self, now: Time, instance: u32, node: NodeIndex, delay: Span) {
        let delay = self.settings.host.duration(delay);
        let number = self.flow.instances[instance as usize].number;
        self.observer.delayed(now, number, node);
        if self.flow.instances[instance as usize].flags & GROUPED != 0 {
            self.tell_of_followers(instance, |observer, number| {
                observer.delayed(now, number, node);
            });
        }
        let event = Event::new(EventClass::Ready, instance, node.0);
        self.agenda.push(now + delay, event);
    }

    #[inline]
    pub(super) fn complete(&mut self, now: Time, instance: u32, node: NodeIndex) {
        if self.flow.instances[instance as usize].flags & GROUPED == 0 {
            self.complete_alone(now, instance, node);
        } else {
            self.complete_together(now, instance, node);
        }
    }

    /// Completes a node of an instance, which is no member of a group or runs for all of its group.
    #[inline]
    pub(super) fn complete_alone(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let running = &mut self.flow.instances[instance as usize];
        let (graph, first, flags) = (running.graph, running.first_node, running.flags);
        let (lanes, first_lane) = (&running.shared.lanes, running.first_lane);
        let kind = graph.kind(node);
        running.left -= 1;
        running.collectives -= u32::from(kind == NodeKind::Collective);
        if running.left == 0 {
            self.effects.ended.push(instance);
        }
        if kind == NodeKind::Collective && self.tile_groups.exist() {
            self.tile_groups.note_end_of_collective(instance, node);
        }
        let running = &self.flow.instances[instance as usize];
        self.observer.completed(now, running.number, node, kind);
        self.flow.dependencies_left[first + node.index()] = COMPLETE;
        self.flow.completed += 1;
        self.outcome.makespan = now.since(Time::ZERO);
        M::Order::node_ended(self, instance);
        if flags & SERVED != 0 && kind == NodeKind::Compute {
            self.end_job(now, instance, node);
        } else {
            let lane = lanes[graph.lane(node) as usize];
            if lane != NONE {
                let lane = first_lane + lane;
                if flags & TURNS != 0 {
                    self.processors.lanes.pass(lane);
                }
                if self.processors.lanes.free::<M::Order>(lane) {
                    self.effects.freed.push((instance, lane));
                }
            }
        }
        for next in graph.successors(node) {
            let left = &mut self.flow.dependencies_left[first + next.index()];
            *left -= 1;
            if *left == 0 {
                self.effects.ready.push(key(instance, next));
            } else if *left == DELAYED {
                *left = 0;
                self.delay(now, instance, next, graph.delay(next));
            }
        }
    }

    /// Gives freed lanes to the nodes that queue for them, and posts newly ready nodes.
    #[inline]
    pub(super) fn dispatch_ready(&mut self, now: Time) {
        if !self.effects.freed.is_empty() {
            self.grant_freed_lanes(now);
            self.start_deferred_accesses(now);
        }
        if self.effects.ready.is_empty() {
            return;
        }
        let mut ready = std::mem::take(&mut self.effects.ready);
        if ready.len() > 1 {
            if self.launches.many {
                ready.sort_unstable_by_key(|&word| self.content_of(word));
            } else {
                ready.sort_unstable();
            }
        }
        // Groups that are split on the way add nodes to those that are left.
        let mut next = 0;
        while let Some(&word) = ready.get(next) {
            let (instance, node) = node_of(word);
            if self.tile_groups.exist() && self.is_out_of_turn(&ready[next..]) {
                self.disband(now, instance, node, (&mut ready, next));
                continue;
            }
            next += 1;
            self.post(now, instance, node);
            if self.tile_groups.are_uneven() {
                self.settle_uneven(now, Some((&mut ready, next)));
            }
        }
        ready.clear();
        self.effects.ready = ready;
        self.start_deferred_accesses(now);
    }

    /// Schedules the completion of a node that holds its lane until `end`.
    #[inline]
    pub(super) fn complete_at(&mut self, end: Time, instance: u32, node: NodeIndex) {
        M::Order::end_at(self, end, (instance, node));
    }

    /// Gives freed lanes to the nodes that queue for them, by rank and lane.
    pub(super) fn grant_freed_lanes(&mut self, now: Time) {
        let mut freed = std::mem::take(&mut self.effects.freed);
        if self.launches.many {
            freed.sort_unstable_by_key(|&(instance, lane)| {
                let running = &self.flow.instances[instance as usize];
                let feed = self.frame_of(instance).record.feed;
                (running.npu, feed, lane)
            });
        } else {
            freed.sort_unstable();
        }
        for &(_, lane) in &freed {
            if let Some(word) = self.processors.lanes.grant(lane) {
                let (instance, node) = node_of(word);
                self.issue(now, instance, node);
            }
        }
        freed.clear();
        self.effects.freed = freed;
    }

    /// Posts a ready node: completes it, or queues it for its place in a launch order or for its lane.
    #[inline]
    pub(super) fn post(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let running = &self.flow.instances[instance as usize];
        match running.graph.kind(node) {
            // By far the most nodes: their price is known, and nothing takes turns.
            kind @ (NodeKind::Compute | NodeKind::Host | NodeKind::LocalMemory)
                if running.flags == 0 =>
            {
                let lane =
                    running.first_lane + running.shared.lanes[running.graph.lane(node) as usize];
                if self
                    .processors
                    .lanes
                    .take_or_wait(lane, key(instance, node))
                {
                    self.observer.issued(now, running.number, node, kind);
                    let end = now + running.shared.prices[node.index()];
                    let event = Event::new(EventClass::Node, instance, node.0);
                    self.agenda.push(end, event);
                }
            }
            NodeKind::Nothing => {
                let number = running.number;
                self.observer.issued(now, number, node, NodeKind::Nothing);
                if self.flow.instances[instance as usize].flags & GROUPED != 0 {
                    self.tell_of_followers(instance, |observer, number| {
                        observer.issued(now, number, node, NodeKind::Nothing);
                    });
                }
                self.agenda
                    .push(now, Event::new(EventClass::Node, instance, node.0));
            }
            NodeKind::Receive if running.flags & GROUPED != 0 => {
                self.post_receives_together(now, instance, node);
            }
            NodeKind::Receive => self.post_receive(now, instance, node),
            NodeKind::Collective if running.flags & GROUPED != 0 => {
                self.post_together(now, instance, node);
            }
            NodeKind::Collective => {
                let alone = self.settings.comm != CommTiming::Model
                    && self.waits_for_nobody(instance, node);
                if alone {
                    self.enqueue(now, instance, node);
                    if self.settings.comm == CommTiming::Captured {
                        return;
                    }
                }
                let (slot, sequence) = self.call_of(instance, node);
                let launch_order = &mut self.collectives.groups[slot.group as usize].order;
                // A node that waits for nobody counts as ready like all others, but has left before it is reached.
                let parked = if alone { NONE } else { node.0 };
                if launch_order.ready(slot.member, sequence, parked) && !alone {
                    self.enqueue(now, instance, node);
                }
                self.queue_parked(now, slot.group);
            }
            kind if self.is_served(instance, kind) => {
                let number = self.flow.instances[instance as usize].number;
                self.observer.issued(now, number, node, kind);
                self.submit_job(now, instance, node);
            }
            _ => self.enqueue(now, instance, node),
        }
    }

    /// Has collectives of a group queue for their lanes whose place in its launch order has come.
    #[inline]
    pub(super) fn queue_parked(&mut self, now: Time, group: u32) {
        let parked = |e: &mut Self| e.collectives.groups[group as usize].order.next_parked();
        while let Some((member, node)) = parked(self) {
            if node == NONE {
                continue;
            }
            let group = &self.collectives.groups[group as usize];
            let instance = group.instance(group.plan.members[member as usize]);
            self.may_queue(now, instance, NodeIndex(node));
        }
    }

    /// Returns what orders a node of a launch among the others of an instant: its NPU, launch and id.
    pub(super) fn content_of(&self, word: u64) -> (Npu, u64, NodeIndex) {
        let (instance, node) = node_of(word);
        let running = &self.flow.instances[instance as usize];
        (running.npu, running.serial, node)
    }

    /// Takes the node's lane if it is free, and a place in its queue otherwise.
    #[inline]
    pub(super) fn enqueue(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let running = &self.flow.instances[instance as usize];
        let lane = running.shared.lanes[running.graph.lane(node) as usize];
        let (lane, word) = (running.first_lane + lane, key(instance, node));
        let taken = if running.flags & TURNS != 0 {
            self.processors
                .lanes
                .take_in_turn(lane, word, &self.flow.instances)
        } else {
            self.processors.lanes.take_or_wait(lane, word)
        };
        if taken {
            self.issue(now, instance, node);
        }
    }

    /// Starts a node that holds its lane.
    #[inline]
    pub(super) fn issue(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let running = &mut self.flow.instances[instance as usize];
        if running.flags & GROUPED != 0 {
            self.issue_together(now, instance, node);
            return;
        }
        let kind = running.graph.kind(node);
        running.collectives += u32::from(kind == NodeKind::Collective);
        let running = &*running;
        self.observer.issued(now, running.number, node, kind);
        match kind {
            NodeKind::Compute | NodeKind::Host | NodeKind::LocalMemory => {
                let end = now + self.price(instance, node);
                self.complete_at(end, instance, node);
            }
            NodeKind::RemoteMemory if self.tile_groups.exist() => self.defer_access(instance, node),
            NodeKind::RemoteMemory => self.start_remote_access(now, instance, node),
            NodeKind::Send => {
                let index = running.graph.message_index(node);
                if self.settings.comm != CommTiming::Model {
                    self.start_send(now, instance, node);
                    return;
                }
                self.send_message(now, instance, node, index);
            }
            NodeKind::Collective => self.arrive(now, instance, node),
            NodeKind::Nothing | NodeKind::Receive => unreachable!("they hold no lane"),
        }
    }
}
