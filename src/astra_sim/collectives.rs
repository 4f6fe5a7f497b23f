//! ASTRA-sim's manner of carrying out collectives: chunks, phases, queues and costs as it has them.
//!
//! # Chunks
//!
//! With S bytes and k splits a chunk has C = ⌊S/k⌋ bytes. Unless it is an all-gather, a chunk of fewer
//! bytes than there are NPUs is padded to that many, and S to k chunks. There are ⌈S/C⌉ chunks, and *all*
//! have C bytes, the last too: 1,000,003 bytes in 4 splits are 5 chunks of 250,000.
//!
//! # Phases
//!
//! All-gather goes through the dimensions from the outermost, reduce-scatter and all-to-all from the
//! innermost. All-reduce, `baseline`: an all-reduce of the whole chunk in every dimension; `localBWAware`:
//! reduce-scatter in all but the last dimension, all-reduce in that, all-gather back. Where the list of
//! implementations is shorter than the dimensions, the others are left out; an `one…` stands for all
//! NPUs as one line and ends the list. A named group that is not all ranks is one line in the order of
//! its file, with the list's only entry, or ring if there are several.
//!
//! # Costs
//!
//! Before the first message and after each reception an endpoint takes its delay (10 ns in named
//! groups); a reception that is reduced takes 3⌊m / bandwidth⌋ ns more, two reads and a write.

use super::program::{Part, Phase, Rotation, Turn};
use super::shared_bus::SharedBus;
use super::{
    Algorithm, Implementation, Inputs, Optimization, PerKind, custom, flow_shop, symmetry,
};
use crate::collective::{
    Act, Clock, Cost, Cue, Describer, Endpoint, Load, Manner, Party, Passing, Queue, Request, Seat,
    Source, Step, Ticket,
};
use crate::group::{self, Extent};
use crate::ids::Npu;
use crate::topology::{Path, Topology};
use crate::trace::CollectiveKind;
use crate::units::{Span, Time};
use std::collections::BTreeMap;

/// The endpoint's delay in named groups, ns.
const FAST: u64 = 10;
/// The size of the message that asks for another one, bytes.
const HANDSHAKE: u64 = 8192;

/// Counters of one level of one NPU.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    all: u32,
    first: u32,
    second: u32,
    /// Chunks that have taken a tree.
    trees: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Collectives {
    splits: u64,
    optimization: Optimization,
    implementations: super::Implementations,
    npus: u32,
    dimensions: usize,
    sizes: Vec<u32>,
    queues: u32,
    /// Chunks in a stage at once, per queue.
    capacity: u32,
    endpoint: Span,
    /// Bytes per second of a reduction; none takes no time.
    reduction: Option<f64>,
    rendezvous: bool,
    /// Whether anything is counted per level.
    counts: bool,
    levels: Vec<Level>,
    /// One for each NPU, where they are modelled.
    buses: Vec<SharedBus>,
    /// Custom algorithms, by number.
    scripts: Vec<custom::Algorithm>,
    script_of: PerKind<Option<u16>>,
    script_of_node: BTreeMap<u64, u16>,
    players: custom::Players,
}

impl Collectives {
    /// The most queues that a dimension can have.
    pub const MOST_QUEUES: u32 = Turn::QUEUES;

    /// Collectives as `inputs` have them.
    pub fn new(inputs: &Inputs) -> Self {
        let system = &inputs.system;
        let queues = inputs.queues.get();
        let trees = |list: &Vec<Implementation>| {
            list.iter()
                .any(|i| i.algorithm == Algorithm::DoubleBinaryTree)
        };
        let dimensions = inputs.network.dimensions.len();
        let counts = queues > 1 || trees(&system.implementations.all_reduce);
        let npus = inputs.network.npus();
        Self {
            splits: u64::from(system.splits),
            optimization: system.optimization,
            implementations: system.implementations.clone(),
            npus,
            dimensions,
            sizes: inputs.network.dimensions.iter().map(|d| d.npus).collect(),
            queues,
            capacity: system.active_chunks.div_ceil(queues),
            endpoint: Span::from_ns(inputs.endpoint_delay),
            reduction: system.local_memory_bandwidth.filter(|bw| *bw > 0.0),
            rendezvous: inputs.rendezvous,
            counts,
            levels: match counts {
                true => vec![Level::default(); npus as usize * dimensions],
                false => Vec::new(),
            },
            buses: match system.shared_bus {
                Some(terms) => vec![SharedBus::new(terms, system.reduction_delay); npus as usize],
                None => Vec::new(),
            },
            scripts: Vec::new(),
            script_of: PerKind::default(),
            script_of_node: BTreeMap::new(),
            players: custom::Players::default(),
        }
    }

    /// Has `algorithm`, read from the files that begin with `prefix`, stand for what `inputs` says.
    pub fn add_custom(
        &mut self,
        inputs: &Inputs,
        prefix: &std::path::Path,
        algorithm: custom::Algorithm,
    ) {
        let number = self.scripts.len() as u16;
        self.scripts.push(algorithm);
        let (own, files) = (&mut self.script_of, &inputs.system.custom);
        for (own, file) in [
            (&mut own.all_reduce, &files.all_reduce),
            (&mut own.all_gather, &files.all_gather),
            (&mut own.reduce_scatter, &files.reduce_scatter),
            (&mut own.all_to_all, &files.all_to_all),
        ] {
            if file.as_deref() == Some(prefix) {
                *own = Some(number);
            }
        }
        let nodes = inputs.per_node.iter().filter(|(_, path)| *path == prefix);
        self.script_of_node
            .extend(nodes.map(|(id, _)| (id, number)));
    }

    /// The custom algorithm of a collective: that of its node goes before that of its kind.
    pub(super) fn script(&self, kind: CollectiveKind, node: u64) -> Option<u16> {
        let of_kind = match kind {
            CollectiveKind::AllReduce => self.script_of.all_reduce,
            CollectiveKind::AllGather => self.script_of.all_gather,
            CollectiveKind::ReduceScatter => self.script_of.reduce_scatter,
            CollectiveKind::AllToAll => self.script_of.all_to_all,
            _ => None,
        };
        self.script_of_node.get(&node).copied().or(of_kind)
    }

    /// A custom algorithm.
    pub(super) fn custom(&self, number: u16) -> &custom::Algorithm {
        &self.scripts[number as usize]
    }

    /// The list of implementations of a collective; none where it has none.
    pub(super) fn list(&self, kind: CollectiveKind) -> &[Implementation] {
        let lists = &self.implementations;
        match kind {
            CollectiveKind::AllReduce => &lists.all_reduce,
            CollectiveKind::AllGather => &lists.all_gather,
            CollectiveKind::ReduceScatter => &lists.reduce_scatter,
            CollectiveKind::AllToAll => &lists.all_to_all,
            _ => &[],
        }
    }

    /// How long `bytes` are reduced: two reads and a write, each cut off to whole ns.
    #[inline]
    fn reduction_of(&self, bytes: u64) -> Span {
        let once = |gbps: f64| (bytes as f64 / (gbps * 1e9) * 1e9) as u64;
        Span::from_ns(self.reduction.map_or(0, once).saturating_mul(3))
    }

    /// Whether loads pass buses.
    pub(super) fn has_buses(&self) -> bool {
        !self.buses.is_empty()
    }

    /// All NPUs.
    pub(super) fn npus(&self) -> u32 {
        self.npus
    }

    /// NPUs along a dimension.
    pub(super) fn size(&self, dimension: usize) -> u32 {
        self.sizes[dimension]
    }

    pub(super) fn optimization(&self) -> Optimization {
        self.optimization
    }

    /// Bytes of a chunk and how many there are.
    pub(super) fn chunks(&self, kind: CollectiveKind, bytes: u64) -> (u64, u32) {
        let (mut size, mut chunk) = (bytes, bytes / self.splits);
        if kind != CollectiveKind::AllGather && chunk < u64::from(self.npus) {
            chunk = u64::from(self.npus);
            size = self.splits * chunk;
        }
        let count = match chunk {
            0 => 0,
            _ => size.div_ceil(chunk),
        };
        (chunk, u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// The phases of the extent that a collective goes through, innermost first, with the level whose
    /// queues they pass and how they are carried out.
    fn route(&self, kind: CollectiveKind, extent: &Extent) -> Vec<(u32, u32, Algorithm)> {
        let list = self.list(kind);
        if !extent.regular {
            let algorithm = match list {
                [only] => only.algorithm,
                _ => Algorithm::Ring,
            };
            return extent.phases.iter().map(|_| (0, 0, algorithm)).collect();
        }
        let mut route = Vec::new();
        for (level, implementation) in list.iter().enumerate() {
            let dimension = match implementation.one {
                true => self.dimensions,
                false => level,
            };
            let phase = extent.phases.iter().position(|p| p.dimension == dimension);
            if let Some(phase) = phase {
                route.push((phase as u32, level as u32, implementation.algorithm));
            }
            if implementation.one {
                break;
            }
        }
        route
    }
}

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
            let seat = |index| Seat {
                size: stage.size,
                index,
                root: 0,
            };
            let backward = stage.rotation == Rotation::Second;
            let line = symmetry::Line {
                stage,
                turn: Turn {
                    backward,
                    ..Turn::default()
                },
                seat: &seat,
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
