//! Implementation of the engine's collective backend.

use crate::astra_sim::beyond::Beyond;
use crate::astra_sim::program::{Part, Phase, Rotation, Turn};
use crate::astra_sim::{Algorithm, Implementation, Optimization, Quirk, symmetry};
use crate::collective::{
    Act, Clock, Course, Cue, Describer, Endpoint, Intra, Load, Manner, Party, Passing, Queue,
    Quiet, Request, Seat, Source, Stages, Step, Ticket, schedule,
};
use crate::group::{self, Extent, Paths};
use crate::ids::Npu;
use crate::topology::{Path, Topology};
use crate::trace::CollectiveKind;
use crate::units::{Amount, Span, Time};

use super::{Collectives, Level};

/// Endpoint delay in named groups, ns.
const FAST: u64 = 10;
/// Bytes of a rendezvous request.
const HANDSHAKE: u64 = 8192;

impl Manner for Collectives {
    const IN_ORDER: bool = true;
    type Stage = Phase;

    fn extent(&self, party: Party<'_>, topology: &Topology) -> Extent {
        // A named group of all NPUs is treated like the unnamed one.
        let named = party.named && party.npus.len() < self.npus as usize;
        if named && !self.groups_span() {
            return line(party.npus);
        }
        let mut extent = Extent::new(party.npus, topology);
        // All members as one line, for `one…`. A group that is no sub-grid is one.
        if party.npus.len() > 1 && extent.regular {
            extent.phases.push(group::Phase {
                dimension: self.dimensions + usize::from(named),
                size: party.npus.len() as u32,
                stride: 1,
            });
        }
        extent
    }

    fn paths(&self, _: &Extent, _: &group::Phase, _: &Topology) -> Paths {
        Paths::default()
    }

    fn path(&self, _: &Phase, _: &Paths) -> Option<Path> {
        None
    }

    fn variant(&self, request: &Request) -> u64 {
        let script = self.script(request.kind, request.node);
        let script = script.map_or(0, |script| u64::from(script) + 1);
        match self.quirks.has(Quirk::OneAtATime) {
            true => script,
            // Each collective has queues of its own, selected by its number.
            false => u64::from(request.number) << 32 | script,
        }
    }

    fn course(&self, request: &Request, extent: &Extent, _: &[Paths]) -> Course<Phase> {
        let mut out = Vec::new();
        let script = self.script(request.kind, request.node);
        if let Some(script) = script.filter(|_| extent.size() > 1) {
            // A member plays a script in the first queue of the innermost level; no other property of the phase
            // matters.
            out.push(Phase {
                phase: 0,
                algorithm: Algorithm::Ring,
                part: Part::AllReduce,
                amount: Amount::whole(request.bytes),
                size: extent.size(),
                level: 0,
                rotation: Rotation::None,
                named: self.is_named(extent),
                order: 0,
                collective: request.number,
                quirks: self.quirks,
                script: Some(script),
            });
            return Course::alike(out, 1);
        }
        let (chunk, count) = self.chunks(request.kind, request.bytes);
        let route = self.route(request.kind, extent);
        let named = self.is_named(extent);
        let mut amount = chunk;
        let mut push = |&(phase, level, algorithm): &(u32, u32, Algorithm), part, rotation| {
            let stage = Phase {
                phase,
                algorithm,
                part,
                amount,
                size: extent.phases[phase as usize].size,
                level,
                rotation,
                named,
                order: out.len() as u32,
                collective: request.number,
                quirks: self.quirks,
                script: None,
            };
            amount = stage.result();
            out.push(stage);
        };
        match (request.kind, self.optimization) {
            (CollectiveKind::AllReduce, Optimization::LocalBwAware) => {
                if let Some((last, inner)) = route.split_last() {
                    for dimension in inner {
                        push(dimension, Part::ReduceScatter, Rotation::First);
                    }
                    push(last, Part::AllReduce, Rotation::First);
                    for dimension in inner.iter().rev() {
                        push(dimension, Part::AllGather, Rotation::Second);
                    }
                }
            }
            (CollectiveKind::AllGather, _) => {
                for dimension in route.iter().rev() {
                    push(dimension, Part::AllGather, Rotation::All);
                }
            }
            (kind, _) => {
                let part = match kind {
                    CollectiveKind::AllReduce => Part::AllReduce,
                    CollectiveKind::ReduceScatter => Part::ReduceScatter,
                    _ => Part::AllToAll,
                };
                for dimension in &route {
                    push(dimension, part, Rotation::All);
                }
            }
        }
        Course::alike(out, count)
    }

    #[inline]
    fn phase(&self, stage: &Phase) -> usize {
        stage.phase as usize
    }

    #[inline]
    fn seat(&self, extent: &Extent, stage: &Phase, position: u32, _: u32) -> Option<Seat> {
        Some(Seat {
            size: stage.size,
            index: extent.phases[stage.phase as usize].index(position),
            root: 0,
        })
    }

    #[inline]
    fn turn(&mut self, npu: Npu, stage: &Phase) -> u16 {
        let backward = stage.rotation == Rotation::Second;
        let mut turn = Turn {
            backward,
            ..Turn::default()
        };
        if !self.counts {
            return turn.packed();
        }
        if let Some(last) = self.counted.get_mut(npu.index())
            && *last != Some(stage.collective)
        {
            // NPUs may join overlapping collectives in different orders, so the counters start anew with each of
            // them.
            *last = Some(stage.collective);
            let first = npu.index() * self.dimensions;
            self.levels[first..][..self.dimensions].fill(Level::default());
        }
        let level = npu.index() * self.dimensions + stage.level as usize;
        let (level, queues) = (&mut self.levels[level], self.queues);
        // An all-reduce out and back splits the queues: with one queue both halves are that one.
        let half = queues / 2;
        let next = |counter: &mut u32, count: u32| {
            let place = *counter;
            *counter = (place + 1) % count;
            place
        };
        let queue = match stage.rotation {
            _ if queues == 1 => 0,
            Rotation::None => 0,
            Rotation::All => next(&mut level.all, queues),
            Rotation::First => next(&mut level.first, half),
            Rotation::Second => half + next(&mut level.second, queues - half),
        };
        turn.queue = queue as u16;
        // The second half of several queues goes the other way round a ring.
        turn.backward |= stage.rotation == Rotation::All && queues > 1 && queue >= half;
        if stage.algorithm == Algorithm::DoubleBinaryTree {
            turn.mirrored = level.trees % 2 == 1;
            level.trees += 1;
        }
        turn.packed()
    }

    fn exchange_alike(&self, extent: &Extent, a: &Course<Phase>, b: &Course<Phase>) -> bool {
        let line = |stage: &Phase| {
            let phase = &extent.phases[stage.phase as usize];
            (phase.size, phase.stride)
        };
        let mut stages = a.stages().iter().zip(b.stages());
        (a.chunks(), a.length()) == (b.chunks(), b.length())
            && stages.all(|(a, b)| line(a) == line(b) && a.exchanges_as(b))
    }

    fn joins(&mut self, npu: Npu, named: bool, request: &Request, extent: &Extent) {
        if self.issued.is_none() {
            return;
        }
        let scripted = self.script(request.kind, request.node).is_some();
        let chunks = match scripted {
            true => 1,
            false => u64::from(self.chunks(request.kind, request.bytes).1),
        };
        let alone = !scripted && self.route(request.kind, extent).is_empty();
        let Some(issued) = &mut self.issued else {
            return;
        };
        let node = request.node;
        if alone {
            issued.found(Beyond::Alone { npu, node });
            return;
        }
        // Messages of custom algorithms have numbers of their own.
        let of_all = (!named && !scripted).then_some(request.number);
        issued.joins(npu, node, chunks, extent.size(), of_all);
    }

    fn sleeps(&mut self, npu: Npu) {
        if let Some(issued) = &mut self.issued {
            issued.found(Beyond::Asleep { npu });
        }
    }

    fn varies(&self) -> bool {
        self.counts
    }

    #[inline]
    fn way(&self, turn: u16) -> u16 {
        Turn::way(turn)
    }

    fn hears(&self, stage: &Phase, turn: u16, seat: Seat, from: u32, heard: u32) -> Option<u32> {
        stage.hears(Turn::unpacked(turn), seat, from, heard)
    }

    fn answers(&self, stage: &Phase, turn: u16, seat: Seat, to: u32, step: u32) -> Option<u32> {
        stage.answers(Turn::unpacked(turn), seat, to, step)
    }

    #[inline]
    fn queue(&self, stage: &Phase, turn: u16) -> Option<Queue> {
        let number = self.line_up(stage) * self.queues + u32::from(Turn::unpacked(turn).queue);
        let number = match self.quirks.has(Quirk::OneAtATime) {
            true => number,
            // A collective goes through each dimension twice at most.
            false => Queue::apart(
                stage.collective,
                2 * self.dimensions as u32 * self.queues,
                number,
            ),
        };
        Some(Queue {
            number,
            capacity: self.capacity,
        })
    }

    #[inline]
    fn matches_as_issued(&self) -> bool {
        self.quirks.has(Quirk::OneAtATime)
    }

    #[inline]
    fn credits(&self, stage: &Phase, turn: u16, seat: Seat) -> u32 {
        stage.credits(Turn::unpacked(turn), seat)
    }

    #[inline]
    fn receives(&self, stage: &Phase, turn: u16, seat: Seat) -> u32 {
        stage.receives(Turn::unpacked(turn), seat)
    }

    #[inline]
    fn step(&self, stage: &Phase, turn: u16, seat: Seat, i: u32) -> Option<Step> {
        stage.step(Turn::unpacked(turn), seat, i)
    }

    fn source(&self, stage: &Phase, turn: u16, seat: Seat, taken: u32, k: u32) -> Option<Source> {
        stage.source(Turn::unpacked(turn), seat, taken, k)
    }

    #[inline]
    fn is_scripted(&self, stage: &Phase) -> bool {
        stage.script.is_some()
    }

    fn play(
        &mut self,
        stage: &Phase,
        extent: &Extent,
        player: (u32, u32),
        _: u32,
        cue: Cue,
        acts: &mut Vec<Act>,
    ) {
        let script = stage.script.expect("only scripted stages are played");
        let scripts = &self.scripts[script as usize];
        let place = || {
            let own = extent.npus[player.1 as usize];
            // The trace of a member is that of its place in ascending order of NPUs, not of its position in the
            // group.
            extent.npus.iter().filter(|npu| **npu < own).count() as u32
        };
        self.players.play(scripts, place, player, cue, acts);
    }

    #[inline]
    fn endpoint(&self, stage: &Phase) -> Endpoint {
        match self.is_fast(stage) {
            true => Endpoint::Delay(Span::from_ns(FAST)),
            false if self.buses.is_empty() => Endpoint::Delay(self.endpoint),
            false => Endpoint::Bus,
        }
    }

    fn load(&self, stage: &Phase, turn: u16, seat: Seat, of: Passing, ticket: Ticket) -> Load {
        stage.load(Turn::unpacked(turn), seat, of, ticket)
    }

    fn carry(&mut self, now: Time, npu: Npu, load: Load, clock: &mut impl Clock) {
        self.buses[npu.index()].carry(now, load, clock);
    }

    fn bus(&mut self, now: Time, npu: Npu, event: u32, clock: &mut impl Clock) -> Option<Ticket> {
        self.buses[npu.index()].handle(now, event, clock)
    }

    fn bus_resumes(&mut self, now: Time, npu: Npu, event: u32, clock: &mut impl Clock) {
        self.buses[npu.index()].resume(now, event, clock);
    }

    #[inline]
    fn reduction(&self, stage: &Phase, turn: u16, seat: Seat, r: u32) -> Option<Span> {
        let amount = stage.reduced(Turn::unpacked(turn), seat, r)?;
        Some(self.reduction_of(amount))
    }

    #[inline]
    fn is_paced(&self, _: &Phase) -> bool {
        false
    }

    fn asking(&self) -> Option<u64> {
        self.rendezvous.then_some(HANDSHAKE)
    }

    fn describer(&self) -> Describer {
        let own = self.clone();
        Describer::new(move |kind, extent, topology, _| {
            let phases = own.route(kind, extent).into_iter();
            let phases = phases.map(|(phase, _, algorithm)| {
                let phase = &extent.phases[phase as usize];
                let one = phase.dimension >= own.dimensions;
                let name = Implementation { algorithm, one };
                match topology.dimensions().get(phase.dimension) {
                    Some(dimension) if extent.regular => {
                        format!("{name} {} ({})", phase.size, dimension.name)
                    }
                    _ => format!("{name} {}", phase.size),
                }
            });
            Describer::list(phases)
        })
    }

    fn closed_form(
        &self,
        course: &Course<Phase>,
        extent: &Extent,
        _: &[Paths],
        quiet: &Quiet<'_>,
    ) -> Option<Span> {
        // With several queues per NPU, chunks depend on collectives before.
        let plain = self.queues == 1 && self.buses.is_empty() && !self.rendezvous;
        if !plain || course.stages().iter().any(|stage| stage.script.is_some()) {
            return None;
        }
        let spans = course.stages().iter().map(|stage| {
            let backward = stage.rotation == Rotation::Second;
            let line = symmetry::Line {
                stage,
                turn: Turn {
                    backward,
                    ..Turn::default()
                },
                extent,
                sizes: &self.sizes,
                cost: quiet.cost,
            };
            let endpoint = match self.is_fast(stage) {
                true => Span::from_ns(FAST),
                false => self.endpoint,
            };
            line.span(endpoint, |amount| self.reduction_of(amount))
        });
        let spans: Vec<Span> = spans.collect::<Option<_>>()?;
        let queues = course.stages().iter().map(|stage| self.line_up(stage));
        let queues: Vec<u32> = queues.collect();
        let last = queues.iter().max().map_or(0, |&queue| queue as usize);
        let stages = Stages {
            spans: &spans,
            queue_of: &queues,
            capacity: &vec![self.capacity; last + 1],
            back: &vec![false; course.stages().len()],
            intra: Intra::Fifo,
        };
        // Chunks are identical, so a flow shop over the stages, with capacities of the queues, gives the end.
        Some(schedule(course, stages).end)
    }
}

impl Collectives {
    /// Returns whether endpoints of `stage` take a constant time.
    #[inline]
    fn is_fast(&self, stage: &Phase) -> bool {
        stage.named && self.quirks.has(Quirk::GroupEndpoint)
    }

    /// Returns the set of queues of an NPU that chunks join before `stage`: those of its dimension, or of its own.
    #[inline]
    fn line_up(&self, stage: &Phase) -> u32 {
        match self.quirks.has(Quirk::SharedQueue) {
            true => stage.level,
            false => stage.order,
        }
    }
}

/// Returns the extent of members as one line in their order.
fn line(npus: &[Npu]) -> Extent {
    let size = npus.len() as u32;
    let phase = group::Phase {
        dimension: 0,
        size,
        stride: 1,
    };
    Extent {
        phases: if size > 1 { vec![phase] } else { Vec::new() },
        npus: npus.to_vec(),
        position_of: (0..size).collect(),
        member_at: (0..size).collect(),
        regular: false,
    }
}
