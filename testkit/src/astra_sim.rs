//! ASTRA-sim 2.x with its analytical networks, as a plain event-by-event simulator.
//!
//! Nothing is computed analytically and nothing is skipped: every message and every delay is an event.

pub mod agenda;
pub mod algorithm;
pub mod algorithms;
pub mod bus;
pub mod collective;
pub mod config;
pub mod load;
pub mod memory;
mod message;
pub mod network;
pub mod post;
pub mod queues;
pub mod random;
pub mod trace;
pub mod workload;
pub mod write;

pub use config::Config;
pub use load::load;
pub use random::{overlapping, random};

use agenda::{Agenda, Call, Event};
use algorithm::Input;
use collective::plan::Rotation;
use collective::{Dataset, Phase};
use config::Kind;
use network::Network;
use post::Post;
use queues::Queue;
use std::collections::{BTreeMap, VecDeque};
use workload::Workload;

/// Maximum number of events. A run with more events counts as endless.
const MOST_EVENTS: u64 = 200_000_000;

/// Result of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Completion time of each NPU, ns; `None` if it never completed.
    pub finish: Vec<Option<u64>>,
    /// Time of each NPU without compute nodes on its device, ns; 0 if the NPU never completed.
    pub exposed: Vec<u64>,
    /// Number of messages that were sent over the network.
    pub messages: u64,
}

/// A chunk of a collective on one NPU.
#[derive(Debug)]
struct Stream {
    npu: usize,
    dataset: usize,
    tag: u64,
    priority: i64,
    phases: VecDeque<Phase>,
    current: Option<Phase>,
    started: bool,
}

/// State of one NPU.
#[derive(Debug, Default)]
struct Npu<'c> {
    workload: Workload<'c>,
    queues: Vec<Queue>,
    rotations: Vec<Rotation>,
    /// How often a tree was used, by kind of collective and dimension; this determines the next tree.
    trees: BTreeMap<(Kind, usize), u64>,
    priority: i64,
    /// Number of chunks so far, by group and set of dimensions. In ASTRA-sim's numbering, all chunks count for
    /// group 0.
    numbers: BTreeMap<(u64, u64), u64>,
    sides: [bus::Side; 4],
}

/// State of a run.
struct Sim<'c> {
    config: &'c Config,
    agenda: Agenda,
    network: Network,
    post: Post,
    npus: Vec<Npu<'c>>,
    streams: Vec<Stream>,
    datasets: Vec<Dataset>,
    servers: memory::Servers,
    numbering: Numbering,
}

/// How an NPU numbers its chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbering {
    /// As ASTRA-sim 2.x: chunks of a group are counted separately, and chunks of all NPUs are counted together with
    /// all other chunks.
    Original,
    /// Chunks of each group and of each set of dimensions are counted separately, so that earlier collectives of some
    /// NPUs do not block later collectives.
    Apart,
}

impl<'c> Npu<'c> {
    fn new(config: &Config, trace: &'c [config::Node]) -> Self {
        let dims = config.dims.len();
        let queue = |_| Queue::default();
        Self {
            workload: Workload::new(trace),
            queues: (0..dims * config.queues_per_dim).map(queue).collect(),
            rotations: vec![Rotation::default(); dims],
            ..Self::default()
        }
    }
}

/// Simulates until no event is left.
pub fn run(config: &Config) -> Answer {
    simulate(config, Numbering::Original)
}

/// Simulates until no event is left. Chunks are numbered so that no NPU waits only because NPUs have issued different
/// numbers of chunks.
pub fn run_numbered_apart(config: &Config) -> Answer {
    simulate(config, Numbering::Apart)
}

fn simulate(config: &Config, numbering: Numbering) -> Answer {
    let mut sim = Sim {
        config,
        agenda: Agenda::default(),
        network: Network::new(config),
        post: Post::default(),
        npus: config
            .ranks
            .iter()
            .map(|trace| Npu::new(config, trace))
            .collect(),
        streams: Vec::new(),
        datasets: Vec::new(),
        servers: BTreeMap::new(),
        numbering,
    };
    for npu in 0..sim.npus.len() {
        sim.fire(npu);
    }
    for _ in 0..MOST_EVENTS {
        match sim.agenda.next_event() {
            Some(event) => sim.happens(event),
            None => break,
        }
    }
    let finish = |npu: &Npu<'_>| npu.workload.finish;
    Answer {
        finish: sim.npus.iter().map(|n| finish(n).map(|f| f.0)).collect(),
        exposed: sim
            .npus
            .iter()
            .map(|n| finish(n).map_or(0, |f| f.1))
            .collect(),
        messages: sim.post.messages,
    }
}

impl Sim<'_> {
    fn happens(&mut self, event: Event) {
        match event {
            Event::Calls(npu) => {
                while let Some(call) = self.agenda.next_call(npu) {
                    self.call(npu, call);
                }
            }
            Event::Arrival(transfer) => {
                if let Some(key) = self.network.arrive(transfer, &mut self.agenda) {
                    self.arrived(key);
                }
            }
            Event::LinkFree(from, to) => self.network.link_free(from, to, &mut self.agenda),
            Event::Received(handler) => self.handle(handler),
        }
    }

    fn call(&mut self, npu: usize, call: Call) {
        match call {
            Call::NodeEnds(node) | Call::BroadcastEnds(node) => self.node_ends(npu, node),
            Call::Packet(packet) => self.packet(packet),
            Call::CustomEnds { stream, node } => self.step(stream, Input::Ended(node)),
            Call::MemoryNext(server) => self.memory_next(server),
            Call::Bus(npu, signal) => self.bus_signal(npu, signal),
        }
    }
}
