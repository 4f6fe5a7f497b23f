//! Collectives in the loop: from the arrival of their members to the completion of the last.

use super::collective_run::CollectiveRun;
use super::discipline::{CollectiveModel, Discipline};
use super::event::{Event, EventClass};
use super::frames::RunningGroup;
use super::insertion_order::IssueMismatch;
use super::plan::{BoundSlot, GroupPlan, NONE};
use super::{CommTiming, Engine, ReplayRefusal};
use crate::collective::{CollectiveRequest, UncontendedCost};
use crate::ids::NodeIndex;
use crate::network::NetworkBackend;
use crate::report::CollectiveRecord;
use crate::report::Observer;
use crate::trace::CollectiveKind;
use crate::units::{Span, Time};

/// Bound on the state of one stepwise collective, in entries: chunks · members · (stages + 1). Some gigabytes.
const MOST: u64 = 1 << 28;

/// Returns a refusal if a stepwise run would exceed [`MOST`].
fn too_large(run: &CollectiveRun, members: usize) -> Option<ReplayRefusal> {
    let (members, chunks) = (members as u64, u64::from(run.chunks));
    let size = members
        .saturating_mul(chunks)
        .saturating_mul(u64::from(run.strands))
        .saturating_mul(run.length as u64 + 1);
    (size > MOST).then(|| {
        ReplayRefusal::new(
            format!(
                "a collective of {members} members in {chunks} chunks has to go message by message, which is \
                 more than fits in memory"
            ),
            "fewer `chunks` in the machine's [collectives], or an algorithm and a start for which there is a \
             closed form",
        )
    })
}

impl<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> Engine<'_, O, N, M> {
    /// Returns the group slot of a collective node, and its sequence in the group.
    #[inline]
    pub(super) fn call_of(&self, instance: u32, node: NodeIndex) -> (BoundSlot, u32) {
        let graph = self.flow.instances[instance as usize].graph;
        let planned = self.flow.instances[instance as usize].planned;
        let first_group = self.frame_of(instance).first_group;
        let call = graph.call(node);
        let sequence = match &planned.sequences {
            None => call.sequence,
            Some(sequences) => sequences[graph.call_index(node)],
        };
        let BoundSlot { group, member } = planned.slots[call.group as usize];
        let group = first_group + group;
        (BoundSlot { group, member }, sequence)
    }

    /// Has a member that holds its lane join its collective.
    pub(super) fn arrive(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let (slot, mut sequence) = self.call_of(instance, node);
        let launch_order = &mut self.collectives.groups[slot.group as usize].order;
        if M::Order::MATCHES_AS_ISSUED {
            sequence = if self.backend.matches_in_issue_order() {
                launch_order.issued(slot.member)
            } else {
                launch_order.numbered(sequence)
            };
        }
        let run = launch_order.run_of[sequence as usize];
        let run = if run == NONE {
            let run = self.collectives.free_runs.pop().unwrap_or_else(|| {
                self.collectives.runs.push(CollectiveRun::default());
                self.collectives.runs.len() as u32 - 1
            });
            let (request, root) = self.request(instance, node, slot, sequence);
            let RunningGroup {
                plan: group,
                identity,
                number: order,
                ..
            } = self.collectives.groups[slot.group as usize];
            let backend = &*self.backend;
            let variant = backend.variant(&request);
            let key = (identity, &request, root, variant);
            let work_out = || backend.chunk_schedule(&request, &group.extent, &group.paths);
            let number = self.collectives.schedules.find(key, work_out);
            self.collectives.runs[run as usize].reset(
                (slot.group, order, sequence),
                (request, root),
                group.members.len(),
                (number, self.collectives.schedules.get(number)),
            );
            self.collectives.groups[slot.group as usize].order.run_of[sequence as usize] = run;
            run
        } else {
            if M::Order::MATCHES_AS_ISSUED {
                self.check_alike(instance, node, slot, run);
            }
            run
        };
        self.collectives.runs[run as usize].arrive(now, slot.member, node);
        M::Order::join(self, now, (instance, node), (slot.group, slot.member), run);
    }

    /// Notifies the backend that a member has joined its collective.
    pub(super) fn notify_joined(&mut self, instance: u32, node: NodeIndex, group: u32, run: u32) {
        let of = self.flow.instances[instance as usize].of;
        let call = self.flow.instances[instance as usize].graph.call(node);
        let named = of.group_names[call.group as usize].is_some();
        let extent = &self.collectives.groups[group as usize].plan.extent;
        let npu = self.flow.instances[instance as usize].npu;
        if let Some(request) = self.collectives.runs[run as usize].request {
            // The run's request is that of the member that came first.
            let node = self.flow.instances[instance as usize].graph.id(node);
            let request = CollectiveRequest { node, ..request };
            self.backend.on_join(npu, named, &request, extent);
        }
    }

    /// Returns the request of a collective node, and the position of its root.
    fn request(
        &mut self,
        instance: u32,
        node: NodeIndex,
        slot: BoundSlot,
        sequence: u32,
    ) -> (CollectiveRequest, u32) {
        let number = self.collectives.requests;
        self.collectives.requests = number.wrapping_add(1);
        let graph = self.flow.instances[instance as usize].graph;
        let (kind, bytes) = (graph.call(node).kind, graph.bytes(node));
        let RunningGroup {
            plan: group,
            first_splits,
            ..
        } = self.collectives.groups[slot.group as usize];
        let request = |buffer, splits| CollectiveRequest {
            node: graph.id(node),
            kind,
            bytes,
            buffer,
            splits,
            number,
        };
        match group.calls.get(sequence as usize) {
            Some(call) => {
                let splits = group.splits.get(&sequence);
                let splits = splits.map(|splits| first_splits + splits);
                (request(call.buffer, splits), call.root)
            }
            // Where calls are matched in issue order there is no plan of them: the first member to come defines the
            // call.
            None => {
                let buffer = kind.buffer(bytes, group.members.len() as u32);
                (request(buffer.unwrap_or(u64::MAX), None), 0)
            }
        }
    }

    /// Returns the schedule of a member whose collective differs from the others'. Fails with a member on a common
    /// line whose messages differ.
    fn own_schedule(
        &mut self,
        instance: u32,
        node: NodeIndex,
        slot: BoundSlot,
        run: u32,
    ) -> Result<u32, usize> {
        let graph = self.flow.instances[instance as usize].graph;
        let (kind, bytes) = (graph.call(node).kind, graph.bytes(node));
        let group = self.collectives.groups[slot.group as usize].plan;
        let of = &self.collectives.runs[run as usize];
        let mut come = of
            .arrivals
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| **node != NONE)
            .map(|(member, _)| member);
        let first = come.clone().next().unwrap_or(0);
        let Some(shared) = of.request.filter(|_| self.backend.matches_in_issue_order()) else {
            return Err(first);
        };
        let buffer = kind.buffer(bytes, group.members.len() as u32);
        let request = CollectiveRequest {
            node: graph.id(node),
            kind,
            bytes,
            buffer: buffer.unwrap_or(u64::MAX),
            splits: None,
            number: shared.number,
        };
        let backend = &*self.backend;
        let identity = self.collectives.groups[slot.group as usize].identity;
        let key = (identity, &request, of.root, backend.variant(&request));
        let work_out = || backend.chunk_schedule(&request, &group.extent, &group.paths);
        let number = self.collectives.schedules.find(key, work_out);
        let own = self.collectives.schedules.get(number);
        if (own.chunks(), own.length()) != (of.chunks, of.length) {
            return Err(first);
        }
        let stages = |number| self.collectives.schedules.get(number).stages();
        // All members as one line may be a phase beside a dimension that is that line.
        let line = |phase: usize| {
            let phase = &group.extent.phases[phase];
            (phase.size, phase.stride)
        };
        let along = |number, phase| {
            let stages: &[M::Stage] = stages(number);
            let passes = move |stage: &&M::Stage| line(backend.phase(stage)) == line(phase);
            stages.iter().filter(passes)
        };
        let phases = 0..group.extent.phases.len();
        // A stage has its counterpart among those of the first member, in whatever order phases are passed.
        let passes = |phase| along(number, phase).count() == along(of.schedule, phase).count();
        if !phases.clone().all(passes) {
            return Err(first);
        }
        // Members exchange messages only along common lines of a phase, so only those have to agree, and only there.
        let positions = &group.extent.position_of;
        let position = positions[slot.member as usize];
        let disagrees = |&member: &usize| {
            let (other, at) = (of.schedule_at(positions[member]), positions[member]);
            let differs = |phase: usize| {
                let line = &group.extent.phases[phase];
                let mut both = along(number, phase).zip(along(other, phase));
                line.position(position, 0) == line.position(at, 0)
                    && !both.all(|(own, theirs)| backend.exchanges_same_messages(own, theirs))
            };
            other != number && phases.clone().any(differs)
        };
        come.find(disagrees).map_or(Ok(number), Err)
    }

    /// Returns the number by which members know the stage that a cell is in: that of its counterpart in the schedule of
    /// the first member. Members that carry out different collectives may pass phases in different orders, and messages
    /// are matched by the line that they go along.
    // Asked for three times for each message, and mostly a look at the cell.
    #[inline(always)]
    pub(super) fn shared_stage(&self, id: u32, cell: u32) -> u16 {
        let run = &self.collectives.runs[id as usize];
        let progress = run.progress.as_ref().expect("it has begun");
        let number = progress.cells[cell as usize].stage;
        if !M::Order::MATCHES_AS_ISSUED || run.own_schedules.is_empty() {
            return number;
        }
        let own = run.schedule_at(run.position(cell));
        self.counterpart(run, (own, run.schedule), number)
    }

    /// Returns the stage of the member at `position` that members know by the number `shared`.
    pub(super) fn own_stage(&self, run: &CollectiveRun, position: u32, shared: u16) -> u16 {
        self.counterpart(run, (run.schedule, run.schedule_at(position)), shared)
    }

    /// Returns the stage of the schedule `to` along the line of the stage `number` of `from`, before which there are as
    /// many along that line.
    #[cold]
    fn counterpart(&self, run: &CollectiveRun, (from, to): (u32, u32), number: u16) -> u16 {
        if from == to {
            return number;
        }
        let stages = |schedule| self.collectives.schedules.get(schedule).stages();
        let (from, to): (&[M::Stage], &[M::Stage]) = (stages(from), stages(to));
        let Some(of) = from.get(number as usize) else {
            return number;
        };
        let phases = &self.collectives.groups[run.group as usize]
            .plan
            .extent
            .phases;
        let line = |stage: &M::Stage| {
            let phase = &phases[self.backend.phase(stage)];
            (phase.size, phase.stride)
        };
        let alike = |stage: &&M::Stage| line(stage) == line(of);
        let before = from[..number as usize].iter().filter(alike).count();
        let mut counterparts = (0..).zip(to).filter(|(_, stage)| alike(stage));
        counterparts.nth(before).map_or(number, |(stage, _)| stage)
    }

    /// Compares a member's collective with the first one's: where they differ it gets a schedule of its own, and the
    /// first member whose messages differ from a partner's is recorded as a disagreement.
    fn check_alike(&mut self, instance: u32, node: NodeIndex, slot: BoundSlot, run: u32) {
        let graph = self.flow.instances[instance as usize].graph;
        let of = &self.collectives.runs[run as usize];
        let same = of.request.is_some_and(|request| {
            request.kind == graph.call(node).kind && request.bytes == graph.bytes(node)
        });
        if same && of.own_schedules.is_empty() || self.collectives.disagreement.is_some() {
            return;
        }
        let own = self.own_schedule(instance, node, slot, run);
        let of = &mut self.collectives.runs[run as usize];
        let group = self.collectives.groups[slot.group as usize].plan;
        match own {
            Ok(own) => {
                if of.own_schedules.is_empty() {
                    of.own_schedules = vec![of.schedule; group.members.len()];
                }
                let position = group.extent.position_of[slot.member as usize];
                of.own_schedules[position as usize] = own;
            }
            Err(other) => {
                // The loop stops after this round and refuses the job.
                self.collectives.disagreement = Some(IssueMismatch {
                    group: slot.group,
                    sequence: of.sequence,
                    own: (instance, node),
                    other: (group.members[other], NodeIndex(of.arrivals.nodes[other])),
                });
            }
        }
    }

    /// Returns whether a run may still be answered by closed form. In insertion order, one that may not proceeds at
    /// once, because the order of arrivals at an instant may matter.
    pub(super) fn may_be_closed(&mut self, id: u32) -> bool {
        !self.settings.stepwise
            && (!N::SHARED || self.settings.collectives_alone)
            && self.collectives.runs[id as usize].progress.is_none()
            && self.closed_form(id).is_some()
    }

    /// Settles the arrivals of an instant in insertion order: by closed form if all members arrived, and otherwise
    /// one by one, in the order in which they arrived.
    pub(super) fn settle_in_order(&mut self, now: Time, id: u32) {
        let run = &mut self.collectives.runs[id as usize];
        let group = self.collectives.groups[run.group as usize].plan;
        let fresh = std::mem::take(&mut run.arrivals.arrived_now);
        let all = run.arrivals.arrived == group.present && run.arrivals.first == now;
        if all && let Some(span) = self.closed_form(id) {
            self.begin_all(now, id);
            self.outcome.closed += 1;
            let event = Event::new(EventClass::Run, 0, id);
            self.agenda.push(now + span, event);
        } else {
            for &member in &fresh {
                self.enroll(now, id, member);
            }
        }
    }

    /// Notifies the observer that all members of a collective have arrived.
    fn begin_all(&mut self, now: Time, id: u32) {
        let run = &self.collectives.runs[id as usize];
        let group = &self.collectives.groups[run.group as usize];
        for (rank, &node) in group.plan.members.iter().zip(&run.arrivals.nodes) {
            let instance = group.instance(*rank);
            if instance != NONE {
                let number = self.flow.instances[instance as usize].number;
                self.observer.began(now, number, NodeIndex(node));
            }
        }
    }

    /// Returns the duration of a run whose members all start together, where one is proved; cached per schedule.
    fn closed_form(&mut self, id: u32) -> Option<Span> {
        let run = &self.collectives.runs[id as usize];
        if !run.own_schedules.is_empty() {
            return None;
        }
        let cached = self.collectives.schedules.cached(run.schedule);
        if let Some(known) = cached.closed {
            return known;
        }
        let GroupPlan { extent, paths, .. } = self.collectives.groups[run.group as usize].plan;
        let network = &self.fabric.network;
        let quiet = UncontendedCost {
            shared: N::SHARED,
            cost: &|ends, amount| network.uncontended(ends, amount),
            // Irregular groups may cross any link, so nothing keeps their messages apart on a shared network.
            conflict_free: &|dimension, members, next| {
                if extent.regular {
                    network.is_conflict_free(dimension, members, next)
                } else {
                    !N::SHARED
                }
            },
        };
        let span = self
            .backend
            .closed_form(&cached.schedule, extent, paths, &quiet);
        // A missing closed form is cached too.
        cached.closed = Some(span);
        span
    }

    /// Enrolls a member: its chunks begin their first stage or wait for it.
    pub(super) fn enroll(&mut self, now: Time, id: u32, member: u32) {
        let run = &mut self.collectives.runs[id as usize];
        let group = self.collectives.groups[run.group as usize].plan;
        let position = group.extent.position_of[member as usize];
        if run.progress.is_none() {
            run.begin(self.fabric.network.open(0), 0);
            self.outcome.stepwise += 1;
        }
        if run.arrivals.arrived == group.present && run.arrivals.arrived_now.is_empty() {
            self.begin_all(now, id);
        }
        self.enroll_at(now, id, position);
    }

    /// Settles collectives with new arrivals, when no event is left at `now`.
    pub(super) fn settle(&mut self, now: Time) {
        let mut arrivals = std::mem::take(&mut self.effects.arrivals);
        // By content: the order in which members happened to arrive within the instant must not matter.
        arrivals.sort_unstable_by_key(|&run| {
            let run = &self.collectives.runs[run as usize];
            (run.number, run.sequence)
        });
        for &run in &arrivals {
            self.settle_run(now, run);
        }
        arrivals.clear();
        self.effects.arrivals = arrivals;
    }

    pub(super) fn settle_run(&mut self, now: Time, id: u32) {
        if self.settings.comm != CommTiming::Model {
            self.begin_parts(now, id);
            return;
        }
        let run = &mut self.collectives.runs[id as usize];
        let group = self.collectives.groups[run.group as usize].plan;
        let all = run.arrivals.arrived == group.present;
        if all {
            self.begin_all(now, id);
        }
        if let Some(latency) = self.wired_barrier(id) {
            self.collectives.runs[id as usize]
                .arrivals
                .arrived_now
                .clear();
            if all {
                self.outcome.closed += 1;
                let event = Event::new(EventClass::Run, 0, id);
                self.agenda.push(now + latency, event);
            }
            return;
        }
        // A measured collective begins when its last member arrives, whoever came earlier.
        let run = &mut self.collectives.runs[id as usize];
        let measured = !N::SHARED
            && !self.settings.stepwise
            && run.own_schedules.is_empty()
            && self
                .collectives
                .schedules
                .get(run.schedule)
                .measured()
                .is_some();
        if measured && !all {
            run.arrivals.arrived_now.clear();
            return;
        }
        let together = all && (run.arrivals.first == now || measured);
        if together
            && !self.settings.stepwise
            && let Some(span) = self.closed_form(id)
            && self.fast_forward(now, id, span)
        {
            return;
        }
        if self.settle_rehearsed(now, id, all) {
            return;
        }
        self.step(now, id, all);
    }

    /// Returns the time of a run that is a barrier over wires of its own, which takes no links.
    fn wired_barrier(&self, id: u32) -> Option<Span> {
        let latency = self.settings.topology.tiles()?.barrier?;
        let request = self.collectives.runs[id as usize].request?;
        (request.kind == CollectiveKind::Barrier).then_some(latency)
    }

    /// Continues message by message with the members that arrived at this instant; `all` says that every member has.
    pub(super) fn step(&mut self, now: Time, id: u32, all: bool) {
        let run = &mut self.collectives.runs[id as usize];
        let running = &self.collectives.groups[run.group as usize];
        let group = running.plan;
        if run.progress.is_none() {
            if let Some(refusal) = too_large(run, group.members.len()) {
                self.instant.refusal = Some(refusal);
                return;
            }
            let phases = group.extent.phases.len();
            let ports = group.ports();
            let order = self.collectives.schedules.get(run.schedule).admission();
            run.begin(self.fabric.network.open(ports), order.map_or(0, |_| phases));
            self.outcome.stepwise += 1;
        }
        let mut fresh = std::mem::take(&mut run.arrivals.arrived_now);
        if all {
            // Absent members arrive with the last of the present ones.
            let absent = group
                .members
                .iter()
                .enumerate()
                .filter(|(_, m)| running.instance(**m) == NONE);
            fresh.extend(absent.map(|(member, _)| member as u32));
        }
        for member in &mut fresh {
            *member = group.extent.position_of[*member as usize];
        }
        fresh.sort_unstable();
        for &position in &fresh {
            self.enroll_at(now, id, position);
        }
        self.advance_begun(now);
        fresh.clear();
        self.collectives.runs[id as usize].arrivals.arrived_now = fresh;
    }

    /// Ends a collective answered by closed form for all members alike, or one that lasted as recorded, of which each
    /// member's part has completed by itself.
    pub(super) fn end_run(&mut self, now: Time, id: u32, folding: u32) {
        if self.collectives.runs[id as usize]
            .answer
            .rehearsal
            .is_some()
        {
            self.end_rehearsed(now, id, folding);
            return;
        }
        if !self.release_reservation(id, folding) {
            return;
        }
        // Its parts have completed their nodes already.
        if self.settings.comm != CommTiming::Model {
            self.record(now, id, false);
            return;
        }
        let slot = self.collectives.runs[id as usize].group as usize;
        let group = self.collectives.groups[slot].plan;
        for (member, rank) in group.members.iter().enumerate() {
            let instance = self.collectives.groups[slot].instance(*rank);
            if instance != NONE {
                let node = self.collectives.runs[id as usize].arrivals.nodes[member];
                M::Order::end_node(self, now, (instance, NodeIndex(node)));
            }
        }
        self.record(now, id, false);
    }

    /// Reports a collective that has ended to the observer, and frees its run.
    pub(super) fn record(&mut self, now: Time, id: u32, stepwise: bool) {
        let run = &self.collectives.runs[id as usize];
        let running = &self.collectives.groups[run.group as usize];
        let group = running.plan;
        let request = run.request.expect("a run carries something out");
        let (waited, waited_for) = match self.settings.comm {
            CommTiming::Model => run.waiting(group),
            _ => self.waiting_as_recorded(run, running),
        };
        self.observer.collective(&CollectiveRecord {
            group: running.identity,
            kind: request.kind,
            buffer: request.buffer,
            last_start: run.arrivals.last,
            end: now,
            transfer: match self.settings.comm {
                CommTiming::Model => now.since(run.arrivals.last),
                _ => run.recorded.transfer,
            },
            waited_for,
            waited,
            stepwise,
            materialized: run.answer.materialized,
            messages: run.messages,
        });
        self.collectives.groups[run.group as usize].order.run_of[run.sequence as usize] = NONE;
        // A run with messages still in flight keeps its slot, because their ops refer to it.
        if self.collectives.runs[id as usize].progress.is_none() {
            self.collectives.free_runs.push(id);
        }
    }
}
