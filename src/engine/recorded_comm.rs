//! Collectives and messages that last as recorded or captured: dependencies among members, and completion times.
//!
//! No network takes part. A member's part *begins* when all that it waits for have started, and ends its own duration
//! later. [`CommTiming`](super::Comm) states which members those are.

use super::collective_run::CollectiveRun;
use super::discipline::CollectiveModel;
use super::event::{Event, EventClass};
use super::frames::RunningGroup;
use super::plan::{GroupPlan, NONE};
use super::{CommTiming, Engine};
use crate::ids::{NodeIndex, Rank};
use crate::network::NetworkBackend;
use crate::report::Observer;
use crate::units::{Span, Time};

/// Waiting of a collective: the sum over members, and the rank that caused most of it with its share.
pub(super) type WaitTotals = (Span, Option<(Rank, Span)>);

impl<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> Engine<'_, O, N, M> {
    /// Returns whether a collective node waits for no other member, nor for its place in the launch order: it never
    /// holds its lane for anybody, so no dependency cycle can go through it.
    #[inline(never)]
    pub(super) fn waits_for_nobody(&self, instance: u32, node: NodeIndex) -> bool {
        match self.settings.comm {
            CommTiming::Model => false,
            CommTiming::Captured => true,
            CommTiming::Recorded => {
                self.flow.instances[instance as usize]
                    .graph
                    .call(node)
                    .eager
            }
        }
    }

    /// Returns whether `member`'s part in a collective can begin only when `other` has started.
    pub(super) fn awaits(
        &self,
        group: &RunningGroup<'_>,
        sequence: u32,
        member: u32,
        other: u32,
    ) -> bool {
        match root_of(group.plan, sequence).filter(|_| self.settings.comm == CommTiming::Recorded) {
            None => true,
            Some(root) => {
                let present = group.instance(group.plan.members[root as usize]) != NONE;
                member == root || other == root || !present
            }
        }
    }

    /// Schedules the completion of `node` after its own duration, and returns that time.
    fn complete_as_recorded(&mut self, now: Time, instance: u32, node: NodeIndex) -> Time {
        let prices = &self.flow.instances[instance as usize].shared.prices;
        let end = now + prices[node.index()];
        let event = Event::new(EventClass::Node, instance, node.0);
        self.agenda.push(end, event);
        end
    }

    /// Starts a send that holds its lane.
    pub(super) fn start_send(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let graph = self.flow.instances[instance as usize].graph;
        let index = graph.message_index(node);
        let pair = self.pair(instance, index);
        let mut waits = false;
        if pair != NONE && self.settings.comm == CommTiming::Recorded {
            let state = &mut self.messages.pairs[pair as usize];
            state.delivered = true;
            let (waiter, receive) = (state.waiter, state.posted.checked_sub(1));
            waits = receive.is_none() && !graph.messages()[index].eager;
            if waits {
                (state.posted, state.waiter) = (node.0 + 1, instance);
            }
            if let Some(receive) = receive {
                self.complete_as_recorded(now, waiter, NodeIndex(receive));
            }
        }
        if !waits {
            self.complete_as_recorded(now, instance, node);
        }
    }

    /// Starts a ready receive.
    pub(super) fn start_receive(&mut self, now: Time, instance: u32, node: NodeIndex, pair: u32) {
        let mut waits = false;
        if pair != NONE && self.settings.comm == CommTiming::Recorded {
            let state = &mut self.messages.pairs[pair as usize];
            let (waiter, send) = (state.waiter, state.posted.checked_sub(1));
            waits = !state.delivered;
            if waits {
                (state.posted, state.waiter) = (node.0 + 1, instance);
            }
            if let Some(send) = send {
                self.complete_as_recorded(now, waiter, NodeIndex(send));
            }
        }
        if !waits {
            self.complete_as_recorded(now, instance, node);
        }
    }

    /// Begins the parts whose members no longer wait for anybody; called when no event is left at `now` and members
    /// of the collective have started.
    pub(super) fn begin_parts(&mut self, now: Time, id: u32) {
        let run = &mut self.collectives.runs[id as usize];
        let mut fresh = std::mem::take(&mut run.arrivals.arrived_now);
        let (sequence, members) = (run.sequence, run.arrivals.nodes.len() as u32);
        let slot = run.group as usize;
        let group = self.collectives.groups[slot].plan;
        run.recorded.begins.resize(members as usize, Time::END);
        let all = run.arrivals.arrived == group.present;
        let root =
            root_of(group, sequence).filter(|&root| run.arrivals.nodes[root as usize] != NONE);
        let sweep = all || root.is_some_and(|root| fresh.contains(&root));
        // A start of the root, or of the last member, can release every member; any other start only itself.
        let candidates = if sweep { members } else { fresh.len() as u32 };
        for i in 0..candidates {
            let member = if sweep { i } else { fresh[i as usize] };
            let run = &self.collectives.runs[id as usize];
            let node = run.arrivals.nodes[member as usize];
            if node == NONE || run.recorded.begins[member as usize] != Time::END {
                continue;
            }
            let node = NodeIndex(node);
            let instance = self.collectives.groups[slot].instance(group.members[member as usize]);
            // Of a rooted collective, members other than the root need the root alone.
            let follows = root.is_some_and(|root| root != member);
            if !(all || follows || self.waits_for_nobody(instance, node)) {
                continue;
            }
            let number = self.flow.instances[instance as usize].number;
            self.observer.began(now, number, node);
            let end = self.complete_as_recorded(now, instance, node);
            let transfer = self.flow.instances[instance as usize].graph.recorded(node);
            let run = &mut self.collectives.runs[id as usize];
            run.recorded.begins[member as usize] = now;
            run.recorded.end = run.recorded.end.max(end);
            run.recorded.transfer = run.recorded.transfer.max(transfer);
        }
        fresh.clear();
        let run = &mut self.collectives.runs[id as usize];
        run.arrivals.arrived_now = fresh;
        if all {
            self.outcome.recorded += 1;
            let event = Event::new(EventClass::Run, 0, id);
            self.agenda.push(run.recorded.end, event);
        }
    }

    /// Returns the total waiting of a run that lasted as recorded, and the rank that caused most of it.
    pub(super) fn waiting_as_recorded(
        &self,
        run: &CollectiveRun,
        running: &RunningGroup<'_>,
    ) -> WaitTotals {
        let group = running.plan;
        let root =
            root_of(group, run.sequence).filter(|&root| run.arrivals.nodes[root as usize] != NONE);
        let (mut for_last, mut for_root) = (Span::ZERO, Span::ZERO);
        for (member, &node) in run.arrivals.nodes.iter().enumerate() {
            if node == NONE {
                continue;
            }
            let instance = running.instance(group.members[member]);
            let graph = self.flow.instances[instance as usize].graph;
            if self.settings.comm == CommTiming::Captured {
                for_last += graph.wait(NodeIndex(node));
                continue;
            }
            let waited = run.recorded.begins[member].since(run.arrivals.starts[member]);
            match root {
                Some(root) if root as usize != member => for_root += waited,
                _ => for_last += waited,
            }
        }
        let sum = for_last + for_root;
        if self.settings.comm == CommTiming::Captured || sum == Span::ZERO {
            return (sum, None);
        }
        let most = match root {
            Some(root) if for_root >= for_last => (group.members[root as usize], for_root),
            _ => (run.last_to_start(group), for_last),
        };
        (sum, Some(most))
    }
}

/// Returns the root's index among the members, if the collective has a root.
fn root_of(group: &GroupPlan, sequence: u32) -> Option<u32> {
    let call = &group.calls[sequence as usize];
    let has_root = call.kind.has_root();
    has_root.then(|| group.extent.member_at[call.root as usize])
}
