//! ASTRA-sim 2.x with its analytical networks, as a plain event-by-event simulator.
//!
//! The simulator uses no formulas and skips nothing: every message and every delay is an event.

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

pub use config::WholeSimulationInput;
pub use load::load_case;
pub use random::{create_config_with_overlapping_groups, create_random_config};

use agenda::{AgendaEvent, DelayedCall, EventAgenda};
use algorithm::AlgorithmEvent;
use collective::plan::NextQueueIndexPerHalf;
use collective::{ChunkPhaseQueueAndAlgorithm, NpuCollectiveUnfinishedChunks};
use config::CollectiveOperation;
use network::SimulatedNetwork;
use post::MessageMatching;
use queues::StreamQueue;
use std::collections::{BTreeMap, VecDeque};
use workload::NpuWorkload;

/// Maximum number of events; a run with more events counts as endless.
const MOST_EVENTS: u64 = 200_000_000;

/// Result of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulationAnswer {
    /// Completion time of each NPU, in ns; `None` if the NPU never completed.
    pub finish: Vec<Option<u64>>,
    /// The time, in ns, in which no compute node runs on an NPU's device; 0 if the NPU never completed.
    pub exposed: Vec<u64>,
    /// Number of messages that were sent over the network.
    pub messages: u64,
}

/// A chunk of a collective on one NPU.
#[derive(Debug)]
struct OneChunkProgressOnNpu {
    npu: usize,
    dataset: usize,
    tag: u64,
    priority: i64,
    phases: VecDeque<ChunkPhaseQueueAndAlgorithm>,
    current: Option<ChunkPhaseQueueAndAlgorithm>,
    started: bool,
}

/// State of one simulated NPU.
#[derive(Debug, Default)]
struct NpuState<'c> {
    workload: NpuWorkload<'c>,
    queues: Vec<StreamQueue>,
    rotations: Vec<NextQueueIndexPerHalf>,
    /// Number of phases that have used a tree so far, by kind of collective and dimension; the next phase's tree
    /// depends on it.
    trees: BTreeMap<(CollectiveOperation, usize), u64>,
    priority: i64,
    /// Number of chunks so far, by group and set of dimensions; it becomes the next chunk's number. In ASTRA-sim's own
    /// numbering, every chunk also counts for group 0.
    numbers: BTreeMap<(u64, u64), u64>,
    sides: [bus::SharedBusSide; 4],
}

/// State of a run.
struct OracleSimulator<'c> {
    config: &'c WholeSimulationInput,
    agenda: EventAgenda,
    network: SimulatedNetwork,
    post: MessageMatching,
    npus: Vec<NpuState<'c>>,
    streams: Vec<OneChunkProgressOnNpu>,
    datasets: Vec<NpuCollectiveUnfinishedChunks>,
    servers: memory::MemoryServers,
    numbering: OriginalOrSeparateChunkNumbering,
}

/// How the chunks of an NPU's collectives are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OriginalOrSeparateChunkNumbering {
    /// As in ASTRA-sim 2.x: counts a group's chunks per group, but counts the chunks of collectives of all NPUs
    /// together with all other chunks.
    Original,
    /// Counts chunks separately for each group and each set of dimensions, so that earlier collectives of some NPUs do
    /// not block later ones.
    Apart,
}

impl<'c> NpuState<'c> {
    fn new(config: &WholeSimulationInput, trace: &'c [config::TraceNode]) -> Self {
        let dims = config.dims.len();
        let queue = |_| StreamQueue::default();
        Self {
            workload: NpuWorkload::new(trace),
            queues: (0..dims * config.queues_per_dim).map(queue).collect(),
            rotations: vec![NextQueueIndexPerHalf::default(); dims],
            ..Self::default()
        }
    }
}

/// Simulates until no event is left.
pub fn simulate_as_astra_sim(config: &WholeSimulationInput) -> SimulationAnswer {
    simulate_config(config, OriginalOrSeparateChunkNumbering::Original)
}

/// Simulates until no event is left. Numbers chunks so that no NPU waits forever merely because other NPUs have issued
/// different numbers of chunks.
pub fn simulate_with_separate_chunk_numbering(config: &WholeSimulationInput) -> SimulationAnswer {
    simulate_config(config, OriginalOrSeparateChunkNumbering::Apart)
}

fn simulate_config(
    config: &WholeSimulationInput,
    numbering: OriginalOrSeparateChunkNumbering,
) -> SimulationAnswer {
    let mut sim = OracleSimulator {
        config,
        agenda: EventAgenda::default(),
        network: SimulatedNetwork::new(config),
        post: MessageMatching::default(),
        npus: config
            .ranks
            .iter()
            .map(|trace| NpuState::new(config, trace))
            .collect(),
        streams: Vec::new(),
        datasets: Vec::new(),
        servers: BTreeMap::new(),
        numbering,
    };
    for npu in 0..sim.npus.len() {
        sim.start_workload_of_npu(npu);
    }
    for _ in 0..MOST_EVENTS {
        match sim.agenda.take_next_event() {
            Some(event) => sim.handle_event(event),
            None => break,
        }
    }
    let finish = |npu: &NpuState<'_>| npu.workload.finish;
    SimulationAnswer {
        finish: sim.npus.iter().map(|n| finish(n).map(|f| f.0)).collect(),
        exposed: sim
            .npus
            .iter()
            .map(|n| finish(n).map_or(0, |f| f.1))
            .collect(),
        messages: sim.post.messages,
    }
}

impl OracleSimulator<'_> {
    fn handle_event(&mut self, event: AgendaEvent) {
        match event {
            AgendaEvent::Calls(npu) => {
                while let Some(call) = self.agenda.take_due_call(npu) {
                    self.run_delayed_call(npu, call);
                }
            }
            AgendaEvent::Arrival(transfer) => {
                if let Some(key) = self.network.advance_transfer(transfer, &mut self.agenda) {
                    self.on_arrived(key);
                }
            }
            AgendaEvent::LinkFree(from, to) => {
                self.network
                    .free_link_after_transfer(from, to, &mut self.agenda)
            }
            AgendaEvent::Received(handler) => self.run_handler(handler),
        }
    }

    fn run_delayed_call(&mut self, npu: usize, call: DelayedCall) {
        match call {
            DelayedCall::NodeEnds(node) | DelayedCall::BroadcastEnds(node) => {
                self.handle_node_end(npu, node)
            }
            DelayedCall::Packet(packet) => self.reduce_packet_or_mark_ready(packet),
            DelayedCall::CustomEnds { stream, node } => {
                self.pass_event_to_stream_algorithm(stream, AlgorithmEvent::Ended(node))
            }
            DelayedCall::MemoryNext(server) => self.serve_next_memory_request(server),
            DelayedCall::Bus(npu, signal) => self.handle_bus_delay_end(npu, signal),
        }
    }
}
