//! The answers to what the engine asks.

use crate::astra_sim::program::{Part, Phase, Rotation, Turn};
use crate::astra_sim::{Algorithm, Implementation, Optimization, flow_shop, symmetry};
use crate::collective::{
    Act, Clock, Cost, Cue, Describer, Endpoint, Load, Manner, Party, Passing, Queue, Request, Seat,
    Source, Step, Ticket,
};
use crate::group::{self, Extent};
use crate::ids::Npu;
use crate::topology::{Path, Topology};
use crate::trace::CollectiveKind;
use crate::units::{Span, Time};

use super::Collectives;

/// The endpoint's delay in named groups, ns.
const FAST: u64 = 10;
/// The size of the message that asks for another one, bytes.
const HANDSHAKE: u64 = 8192;

impl Manner for Collectives {
    const IN_ORDER: bool = true;
    type Stage = Phase;

    fn extent(&self, party: Party<'_>, topology: &Topology) -> Extent {
        if party.named && party.npus.len() < self.npus as usize {
            return line(party.npus);
        }
        let mut extent = Extent::new(party.npus, topology);
        // All of them as one line, for `one…`.
        if party.npus.len() > 1 {
            extent.phases.push(group::Phase {
                dimension: self.dimensions,
                size: party.npus.len() as u32,
                stride: 1,
            });
        }
        extent
    }

    fn common_path(&self, _: &Extent, _: &group::Phase, _: &Topology) -> Option<Path> {
        None
    }

    fn stages(&self, request: &Request, extent: &Extent, out: &mut Vec<Phase>) -> u32 {
        out.clear();
        let script = self.script(request.kind, request.node);
        if let Some(script) = script.filter(|_| extent.size() > 1) {
            // A member plays it in the first queue of the innermost level; nothing else of it counts.
            out.push(Phase {
                phase: 0,
                algorithm: Algorithm::Ring,
                part: Part::AllReduce,
                bytes: request.bytes,
                size: extent.size(),
                level: 0,
                rotation: Rotation::None,
                fast: !extent.regular,
                script: Some(script),
            });
            return 1;
        }
        let (chunk, count) = self.chunks(request.kind, request.bytes);
        let route = self.route(request.kind, extent);
        let mut bytes = chunk;
        let mut push = |&(phase, level, algorithm): &(u32, u32, Algorithm), part, rotation| {
            let stage = Phase {
                phase,
                algorithm,
                part,
                bytes,
                size: extent.phases[phase as usize].size,
                level,
                rotation,
                fast: !extent.regular,
                script: None,
            };
            bytes = stage.result();
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
        count
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
        let level = npu.index() * self.dimensions + stage.level as usize;
        let (level, queues) = (&mut self.levels[level], self.queues);
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
        turn.backward |= stage.rotation == Rotation::All && queues > 1 && queue >= half;
        if stage.algorithm == Algorithm::DoubleBinaryTree {
            turn.mirrored = level.trees % 2 == 1;
            level.trees += 1;
        }
        turn.packed()
    }

    #[inline]
    fn queue(&self, stage: &Phase, turn: u16) -> Option<Queue> {
        Some(Queue {
            number: stage.level * self.queues + u32::from(Turn::unpacked(turn).queue),
            capacity: self.capacity,
        })
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
        cue: Cue,
        acts: &mut Vec<Act>,
    ) {
        let script = stage.script.expect("only scripted stages are played");
        let algorithm = &self.scripts[script as usize];
        self.players
            .play(algorithm, player, &extent.npus, cue, acts);
    }

    #[inline]
    fn endpoint(&self, stage: &Phase) -> Endpoint {
        match stage.fast {
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
        let bytes = stage.reduced(Turn::unpacked(turn), seat, r)?;
        Some(self.reduction_of(bytes))
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
        Describer::new(move |kind, extent, topology| {
            let phases = own.route(kind, extent).into_iter();
            let phases = phases.map(|(phase, _, algorithm)| {
                let phase = &extent.phases[phase as usize];
                let one = phase.dimension == own.dimensions;
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
        stages: &[Phase],
        chunks: u32,
        extent: &Extent,
        _: &[Option<Path>],
        cost: &Cost<'_>,
    ) -> Option<Span> {
        // Chunks of NPUs with several queues depend on what came before.
        let plain = self.queues == 1 && self.buses.is_empty() && !self.rendezvous;
        if !plain || stages.iter().any(|stage| stage.script.is_some()) {
            return None;
        }
        let spans = stages.iter().map(|stage| {
            let backward = stage.rotation == Rotation::Second;
            let line = symmetry::Line {
                stage,
                turn: Turn {
                    backward,
                    ..Turn::default()
                },
                extent,
                dimensions: self.dimensions,
                cost,
            };
            let endpoint = match stage.fast {
                true => Span::from_ns(FAST),
                false => self.endpoint,
            };
            line.span(endpoint, |bytes| self.reduction_of(bytes))
        });
        let spans: Vec<Span> = spans.collect::<Option<_>>()?;
        let queues: Vec<u32> = stages.iter().map(|stage| stage.level).collect();
        Some(flow_shop::last_end(&spans, &queues, chunks, self.capacity))
    }
}

/// One line of members in their order.
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
