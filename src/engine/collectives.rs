//! Collectives in the loop: from the arrival of their members to the completion of the last.

use super::agenda::{Class, Event};
use super::collective_run::{Run, Wires};
use super::plan::{GroupPlan, NONE, Slot};
use super::{Comm, Engine};
use crate::collective;
use crate::ids::NodeIndex;
use crate::network::Network;
use crate::report::{CollectiveRecord, Observer};
use crate::units::{Span, Time};

impl<O: Observer> Engine<'_, O> {
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
        let (slot, sequence) = self.call_of(instance, node);
        let run = self.turns[slot.group as usize].run_of[sequence as usize];
        let run = if run == NONE {
            let run = self.free_runs.pop().unwrap_or_else(|| {
                self.runs.push(Run::default());
                self.runs.len() as u32 - 1
            });
            let group = &self.plan.groups[slot.group as usize];
            self.runs[run as usize].reset(slot.group, sequence, group);
            self.turns[slot.group as usize].run_of[sequence as usize] = run;
            run
        } else {
            run
        };
        let state = &mut self.runs[run as usize];
        if state.fresh.is_empty() {
            self.arrivals.push(run);
        }
        state.arrive(now, slot.member, node);
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
            for (rank, &node) in group.members.iter().zip(&run.nodes) {
                let instance = self.plan.instance_of[rank.index()];
                if instance != NONE {
                    self.observer.began(now, instance, NodeIndex(node));
                }
            }
        }
        if all
            && run.first == now
            && !self.stepwise
            && let Some(span) = closed_form(run, group)
        {
            run.fresh.clear();
            self.outcome.closed += 1;
            let event = Event::new(Class::Run, 0, id);
            self.agenda.push(now + span, event);
            return;
        }
        if run.progress.is_none() {
            run.begin(group.extent.phases.len() as u32, &mut self.network);
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
            if let Some(progress) = &mut self.runs[id as usize].progress {
                progress.start(position);
            }
        }
        for &position in &fresh {
            self.advance(now, id, position);
        }
        fresh.clear();
        self.runs[id as usize].fresh = fresh;
    }

    /// Lets the member at `position` go on, and ends its part or the run when that was the last.
    pub(super) fn advance(&mut self, now: Time, id: u32, position: u32) {
        let run = &mut self.runs[id as usize];
        let group = &self.plan.groups[run.group as usize];
        let mut wires = Wires {
            network: &mut self.network,
            agenda: &mut self.agenda,
            ops: &mut self.ops,
            topology: self.topology,
        };
        let ended = run.advance(id, now, position, group, &mut wires);
        if !ended {
            return;
        }
        let member = group.extent.member_at[position as usize];
        let rank = group.members[member as usize];
        let instance = self.plan.instance_of[rank.index()];
        if instance != NONE {
            let node = run.nodes[member as usize];
            self.agenda
                .push(now, Event::new(Class::Node, instance, node));
        }
        let done = run.progress.as_ref().map_or(0, |progress| progress.done);
        if done == group.extent.size() {
            if let Some(ports) = run.take_ports() {
                self.network.close(ports);
            }
            self.record(now, id, true);
        }
    }

    /// A collective answered by closed form is over, for all members alike; or one that lasted as
    /// recorded, of which each member's part has ended by itself.
    pub(super) fn end_run(&mut self, now: Time, id: u32) {
        if self.comm != Comm::Model {
            self.record(now, id, false);
            return;
        }
        let run = &self.runs[id as usize];
        let group = &self.plan.groups[run.group as usize];
        for (member, rank) in group.members.iter().enumerate() {
            let instance = self.plan.instance_of[rank.index()];
            if instance != NONE {
                let event = Event::new(Class::Node, instance, run.nodes[member]);
                self.agenda.push(now, event);
            }
        }
        self.record(now, id, false);
    }

    /// Tells the observer of a collective that is over, and frees its run.
    pub(super) fn record(&mut self, now: Time, id: u32, stepwise: bool) {
        let run = &self.runs[id as usize];
        let group = &self.plan.groups[run.group as usize];
        let call = &group.calls[run.sequence as usize];
        let (waited, waited_for) = match self.comm {
            Comm::Model => run.waiting(group),
            _ => self.waiting_as_recorded(run, group),
        };
        self.observer.collective(&CollectiveRecord {
            group: run.group,
            kind: call.kind,
            buffer: call.buffer,
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

/// The time of a run whose members all start together, where it is proved.
fn closed_form(run: &Run, group: &GroupPlan) -> Option<Span> {
    run.stages.iter().try_fold(Span::ZERO, |sum, stage| {
        let (algorithm, path) = group.phases[stage.phase];
        let n = group.extent.phases[stage.phase].size;
        let span = collective::closed_form(algorithm, stage, n, &path?)?;
        Some(sum + span)
    })
}
