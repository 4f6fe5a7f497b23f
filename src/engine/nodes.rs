//! Life of a node in the loop: delayed, ready, posted, queued for its lane, issued, complete.

use super::event::{Event, EventClass};
use super::insertion_order::wake;
use super::plan::NONE;
use super::{COMPLETE, CommTiming, DELAYED, Engine, key};
use crate::collective::CollectiveBackend;
use crate::graph::NodeKind;
use crate::ids::NodeIndex;
use crate::network::NetworkBackend;
use crate::report::Observer;
use crate::units::{Span, Time};

impl<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveBackend> Engine<'_, O, N, M> {
    /// Starts the delay of `node`, whose dependencies are complete and which was recorded to last `delay`.
    #[inline(never)]
    pub(super) fn delay(&mut self, now: Time, instance: u32, node: NodeIndex, delay: Span) {
        let delay = self.host.duration(delay);
        self.observer.delayed(now, instance, node);
        let event = Event::new(EventClass::Ready, instance, node.0);
        self.agenda.push(now + delay, event);
    }

    #[inline]
    pub(super) fn complete(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let running = &self.instances[instance as usize];
        let (graph, first) = (running.graph, running.first_node);
        self.observer
            .completed(now, instance, node, graph.kind(node));
        self.dependencies_left[first + node.index()] = COMPLETE;
        self.completed += 1;
        self.outcome.makespan = now.since(Time::ZERO);
        if M::IN_ORDER && !self.dormant.is_empty() {
            wake(&mut self.dormant, instance, &mut self.ready);
        }
        let lane = running.shared.lanes[graph.lane(node) as usize];
        if lane != NONE {
            let lane = running.first_lane + lane;
            let state = &mut self.lanes[lane as usize];
            state.holder = 0;
            // In insertion order nodes wait by id elsewhere, so the queue says nothing.
            if M::IN_ORDER || !state.queue.is_empty() {
                self.freed.push((instance, lane));
            }
        }
        for next in graph.successors(node) {
            let left = &mut self.dependencies_left[first + next.index()];
            *left -= 1;
            if *left == 0 {
                self.ready.push(key(instance, next));
            } else if *left == DELAYED {
                *left = 0;
                self.delay(now, instance, next, graph.delay(next));
            }
        }
    }

    /// Gives freed lanes to the nodes that queue for them, and posts newly ready nodes.
    #[inline]
    pub(super) fn dispatch_ready(&mut self, now: Time) {
        if !self.freed.is_empty() {
            self.grant_freed_lanes(now);
        }
        if self.ready.is_empty() {
            return;
        }
        let mut ready = std::mem::take(&mut self.ready);
        if ready.len() > 1 {
            ready.sort_unstable();
        }
        for &word in &ready {
            self.post(now, (word >> 32) as u32, NodeIndex(word as u32));
        }
        ready.clear();
        self.ready = ready;
    }

    /// Schedules the completion of a node that holds its lane until `end`.
    #[inline]
    pub(super) fn complete_at(&mut self, end: Time, instance: u32, node: NodeIndex) {
        let event = Event::new(EventClass::Node, instance, node.0);
        if M::IN_ORDER {
            let npu = self.plan.instances[instance as usize].npu;
            self.agenda.delay(npu.0, end, event, 0);
        } else {
            self.agenda.push(end, event);
        }
    }

    /// Gives freed lanes to the nodes that queue for them, by rank and lane.
    pub(super) fn grant_freed_lanes(&mut self, now: Time) {
        let mut freed = std::mem::take(&mut self.freed);
        freed.sort_unstable();
        for &(instance, lane) in &freed {
            let state = &mut self.lanes[lane as usize];
            if state.holder == 0
                && let Some(node) = state.queue.pop_front()
            {
                state.holder = node + 1;
                self.issue(now, instance, NodeIndex(node));
            }
        }
        freed.clear();
        self.freed = freed;
    }

    /// Posts a ready node: completes it, or queues it for its place in a launch order or for its lane.
    #[inline]
    pub(super) fn post(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let running = &self.instances[instance as usize];
        match running.graph.kind(node) {
            NodeKind::Nothing => {
                self.observer.issued(now, instance, node, NodeKind::Nothing);
                self.agenda
                    .push(now, Event::new(EventClass::Node, instance, node.0));
            }
            NodeKind::Receive => self.post_receive(now, instance, node),
            NodeKind::Collective => {
                let alone = self.comm != CommTiming::Model && self.waits_for_nobody(instance, node);
                if alone {
                    self.enqueue(now, instance, node);
                    if self.comm == CommTiming::Captured {
                        return;
                    }
                }
                let (slot, sequence) = self.call_of(instance, node);
                let launch_order = &mut self.launch_orders[slot.group as usize];
                // A node that waits for nobody counts as ready like all others, but has left before it is reached.
                let parked = if alone { NONE } else { node.0 };
                if launch_order.ready(slot.member, sequence, parked) && !alone {
                    self.enqueue(now, instance, node);
                }
                let parked = |e: &mut Self| e.launch_orders[slot.group as usize].next_parked();
                while let Some((member, node)) = parked(self) {
                    if node == NONE {
                        continue;
                    }
                    let rank = self.plan.groups[slot.group as usize].members[member as usize];
                    let instance = self.plan.instance_of[rank.index()];
                    self.enqueue(now, instance, NodeIndex(node));
                }
            }
            _ => self.enqueue(now, instance, node),
        }
    }

    /// Takes the node's lane if it is free, and a place in its queue otherwise.
    #[inline]
    pub(super) fn enqueue(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let running = &self.instances[instance as usize];
        let lane = running.shared.lanes[running.graph.lane(node) as usize];
        let lane = &mut self.lanes[(running.first_lane + lane) as usize];
        // A free lane with a queue belongs to the queue, which is served when the round is over.
        if lane.holder == 0 && lane.queue.is_empty() {
            lane.holder = node.0 + 1;
            self.issue(now, instance, node);
        } else {
            lane.queue.push_back(node.0);
        }
    }

    /// Starts a node that holds its lane.
    #[inline]
    pub(super) fn issue(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let running = &self.instances[instance as usize];
        let kind = running.graph.kind(node);
        self.observer.issued(now, instance, node, kind);
        match kind {
            NodeKind::Compute | NodeKind::Host | NodeKind::LocalMemory => {
                let end = now + running.shared.prices[node.index()];
                self.complete_at(end, instance, node);
            }
            NodeKind::RemoteMemory => self.start_remote_access(now, instance, node),
            NodeKind::Send => {
                let index = running.graph.message_index(node);
                if self.comm != CommTiming::Model {
                    self.start_send(now, instance, node);
                    return;
                }
                let own = self.workload.instances()[instance as usize].rank;
                let message = running.graph.messages()[index];
                let peer =
                    self.workload.instances()[instance as usize].peers[message.peer as usize];
                let pair = self.plan.instances[instance as usize].pairs[index];
                let bytes = running.graph.bytes(node);
                self.transfer(now, own, peer, bytes, pair, Some((instance, node)));
            }
            NodeKind::Collective => self.arrive(now, instance, node),
            NodeKind::Nothing | NodeKind::Receive => unreachable!("they hold no lane"),
        }
    }
}
