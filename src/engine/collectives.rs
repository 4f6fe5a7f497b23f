//! Collectives in the loop: from the arrival of their members to the completion of the last.

use super::collective_run::Run;
use super::event::{Class, Event};
use super::in_order::Disagreement;
use super::plan::{NONE, Slot};
use super::{Comm, Engine};
use crate::collective::{Manner, Request};
use crate::ids::NodeIndex;
use crate::network::Network;
use crate::report::{CollectiveRecord, Observer};
use crate::units::{Span, Time};

impl<O: Observer, N: Network, M: Manner> Engine<'_, O, N, M> {
    /// The group slot behind a collective node, and its sequence in the group.
    #[inline]
    pub(super) fn call_of(&self, instance: u32, node: NodeIndex) -> (Slot, u32) {
        let graph = self.instances[instance as usize].graph;
        let planned = &self.plan.instances[instance as usize];
        let call = graph.call(node);
        let sequence = match &planned.sequences {
            None => call.sequence,
            Some(sequences) => sequences[graph.call_index(node)],
        };
        (planned.slots[call.group as usize], sequence)
    }

    /// A member has its lane and joins its collective.
    pub(super) fn arrive(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let (slot, mut sequence) = self.call_of(instance, node);
        let turns = &mut self.turns[slot.group as usize];
        if M::IN_ORDER {
            sequence = turns.issued(slot.member);
        }
        let run = turns.run_of[sequence as usize];
        let run = if run == NONE {
            let run = self.free_runs.pop().unwrap_or_else(|| {
                self.runs.push(Run::default());
                self.runs.len() as u32 - 1
            });
            let (request, root) = self.request(instance, node, slot, sequence);
            let group = &self.plan.groups[slot.group as usize];
            let (of, manner) = (&mut self.runs[run as usize], &*self.manner);
            of.reset(slot.group, sequence, request, root, group, manner);
            self.turns[slot.group as usize].run_of[sequence as usize] = run;
            run
        } else {
            if M::IN_ORDER {
                self.check_alike(instance, node, slot, run);
            }
            run
        };
        self.runs[run as usize].arrive(now, slot.member, node);
        if M::IN_ORDER && !self.may_be_closed(run) {
            self.enroll(now, run, slot.member);
            return;
        }
        let state = &mut self.runs[run as usize];
        match (state.fresh.is_empty(), M::IN_ORDER) {
            (true, true) => self.agenda.push(now, Event::new(Class::Settle, 0, run)),
            (true, false) => self.arrivals.push(run),
            (false, _) => {}
        }
        state.fresh.push(slot.member);
    }

    /// What a collective node asks for, and its root's position.
    fn request(&self, instance: u32, node: NodeIndex, slot: Slot, sequence: u32) -> (Request, u32) {
        let graph = self.instances[instance as usize].graph;
        let (kind, bytes) = (graph.call(node).kind, graph.bytes(node));
        let group = &self.plan.groups[slot.group as usize];
        let request = |buffer| Request {
            node: graph.id(node),
            kind,
            bytes,
            buffer,
        };
        match group.calls.get(sequence as usize) {
            Some(call) => (request(call.buffer), call.root),
            // Matched in the order of issue, a call is what its first member says it is.
            None => {
                let buffer = kind.buffer(bytes, group.members.len() as u32);
                (request(buffer.unwrap_or(u64::MAX)), 0)
            }
        }
    }

    /// Remembers the first member whose collective is another than that of the member before it.
    fn check_alike(&mut self, instance: u32, node: NodeIndex, slot: Slot, run: u32) {
        let graph = self.instances[instance as usize].graph;
        let of = &self.runs[run as usize];
        let same = of.request.is_some_and(|request| {
            request.kind == graph.call(node).kind && request.bytes == graph.bytes(node)
        });
        if same || self.disagreement.is_some() {
            return;
        }
        let group = &self.plan.groups[slot.group as usize];
        let other = of.nodes.iter().position(|&other| other != NONE);
        let other = other.expect("a run has a member");
        let other = (group.members[other], NodeIndex(of.nodes[other]));
        self.disagreement = Some(Disagreement {
            group: slot.group,
            sequence: of.sequence,
            own: (instance, node),
            other,
        });
    }

    /// Where everything happens in order: whether a run may yet be answered by closed form. One that may not
    /// goes on at once, because who comes first at an instant may matter.
    fn may_be_closed(&mut self, id: u32) -> bool {
        !self.stepwise
            && self.runs[id as usize].progress.is_none()
            && self.closed_form(id).is_some()
    }

    /// Where everything happens in order: members arrived at this instant. If all did, they may be answered
    /// together; otherwise each goes on by itself, in the order in which they arrived.
    pub(super) fn settle_in_order(&mut self, now: Time, id: u32) {
        let run = &mut self.runs[id as usize];
        let group = &self.plan.groups[run.group as usize];
        let fresh = std::mem::take(&mut run.fresh);
        let all = run.arrived == group.present && run.first == now;
        if all && let Some(span) = self.closed_form(id) {
            self.begin_all(now, id);
            self.outcome.closed += 1;
            let event = Event::new(Class::Run, 0, id);
            self.agenda.push(now + span, event);
        } else {
            for &member in &fresh {
                self.enroll(now, id, member);
            }
        }
    }

    /// Tells the observer that all members of a collective are there.
    fn begin_all(&mut self, now: Time, id: u32) {
        let run = &self.runs[id as usize];
        let group = &self.plan.groups[run.group as usize];
        for (rank, &node) in group.members.iter().zip(&run.nodes) {
            let instance = self.plan.instance_of[rank.index()];
            if instance != NONE {
                self.observer.began(now, instance, NodeIndex(node));
            }
        }
    }

    /// How long a run takes whose members all start together, where it is proved. Found once for all that
    /// are alike.
    fn closed_form(&mut self, id: u32) -> Option<Span> {
        let run = &self.runs[id as usize];
        let request = run.request?;
        if run
            .stages
            .iter()
            .any(|stage| self.manner.is_scripted(stage))
        {
            return None;
        }
        let key = (run.group, request.kind, request.bytes, run.root);
        if let Some(known) = self.closed_forms.get(&key) {
            return *known;
        }
        let group = &self.plan.groups[run.group as usize];
        let network = &self.network;
        let cost = |ends, amount| network.uncontended(ends, amount);
        let (stages, paths) = (&run.stages, &group.paths);
        let span = self
            .manner
            .closed_form(stages, run.chunks, &group.extent, paths, &cost);
        self.closed_forms.insert(key, span);
        span
    }

    /// A member's chunks wait for their first stage, or begin it.
    fn enroll(&mut self, now: Time, id: u32, member: u32) {
        let run = &mut self.runs[id as usize];
        let group = &self.plan.groups[run.group as usize];
        let position = group.extent.position_of[member as usize];
        if run.progress.is_none() {
            run.begin(self.network.open(0));
            self.outcome.stepwise += 1;
        }
        if run.arrived == group.present && run.fresh.is_empty() {
            self.begin_all(now, id);
        }
        self.enroll_at(now, id, position);
    }

    /// No event is left at `now`: collectives with new arrivals go on.
    pub(super) fn settle(&mut self, now: Time) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        arrivals.sort_unstable_by_key(|&run| {
            let run = &self.runs[run as usize];
            (run.group, run.sequence)
        });
        for &run in &arrivals {
            self.settle_run(now, run);
        }
        arrivals.clear();
        self.arrivals = arrivals;
    }

    pub(super) fn settle_run(&mut self, now: Time, id: u32) {
        if self.comm != Comm::Model {
            self.begin_parts(now, id);
            return;
        }
        let run = &mut self.runs[id as usize];
        let group = &self.plan.groups[run.group as usize];
        let all = run.arrived == group.present;
        if all {
            self.begin_all(now, id);
        }
        let run = &self.runs[id as usize];
        if all
            && run.first == now
            && !self.stepwise
            && let Some(span) = self.closed_form(id)
        {
            self.runs[id as usize].fresh.clear();
            self.outcome.closed += 1;
            let event = Event::new(Class::Run, 0, id);
            self.agenda.push(now + span, event);
            return;
        }
        let run = &mut self.runs[id as usize];
        if run.progress.is_none() {
            // Every member has a port in each phase.
            let ports = group.extent.size() * group.extent.phases.len() as u32;
            run.begin(self.network.open(ports));
            self.outcome.stepwise += 1;
        }
        let mut fresh = std::mem::take(&mut run.fresh);
        if all {
            // Absent members come with the last of the present ones.
            let absent = group.members.iter().enumerate();
            let absent = absent.filter(|(_, m)| self.plan.instance_of[m.index()] == NONE);
            fresh.extend(absent.map(|(member, _)| member as u32));
        }
        for member in &mut fresh {
            *member = group.extent.position_of[*member as usize];
        }
        fresh.sort_unstable();
        for &position in &fresh {
            self.enroll_at(now, id, position);
        }
        for &position in &fresh {
            self.advance(now, id, position);
        }
        fresh.clear();
        self.runs[id as usize].fresh = fresh;
    }

    /// A collective answered by closed form is over, for all members alike; or one that lasted as
    /// recorded, of which each member's part has ended by itself.
    pub(super) fn end_run(&mut self, now: Time, id: u32) {
        if self.comm != Comm::Model {
            self.record(now, id, false);
            return;
        }
        let group = &self.plan.groups[self.runs[id as usize].group as usize];
        for (member, rank) in group.members.iter().enumerate() {
            let instance = self.plan.instance_of[rank.index()];
            if instance != NONE {
                let node = self.runs[id as usize].nodes[member];
                self.end_node(now, instance, NodeIndex(node));
            }
        }
        self.record(now, id, false);
    }

    /// Tells the observer of a collective that is over, and frees its run.
    pub(super) fn record(&mut self, now: Time, id: u32, stepwise: bool) {
        let run = &self.runs[id as usize];
        let group = &self.plan.groups[run.group as usize];
        let request = run.request.expect("a run carries something out");
        let (waited, waited_for) = match self.comm {
            Comm::Model => run.waiting(group),
            _ => self.waiting_as_recorded(run, group),
        };
        self.observer.collective(&CollectiveRecord {
            group: run.group,
            kind: request.kind,
            buffer: request.buffer,
            last_start: run.last,
            end: now,
            transfer: match self.comm {
                Comm::Model => now.since(run.last),
                _ => run.transfer,
            },
            waited_for,
            waited,
            stepwise,
        });
        self.turns[run.group as usize].run_of[run.sequence as usize] = NONE;
        self.free_runs.push(id);
    }
}
