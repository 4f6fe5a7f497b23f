//! The simulated system, that is, the parsed inputs of ASTRA-sim 2.x.

use super::algorithms::NativeAlgorithmWithOneRingFlag;
use std::collections::BTreeMap;

/// The analytical network that carries messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkModel {
    /// Congestion-aware: messages share links, and each device on a path stores a whole message before it forwards it.
    Aware,
    /// Congestion-unaware: links are never busy.
    Unaware,
}

/// Topology of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DimensionTopology {
    Ring,
    FullyConnected,
    Switch,
}

/// One dimension of the network; the first dimension is the innermost.
#[derive(Clone, Debug)]
pub struct NetworkDimension {
    pub shape: DimensionTopology,
    pub n: usize,
    /// Bandwidth, in units of 2^30 bytes per second.
    pub bw: f64,
    /// Latency in ns.
    pub lat: f64,
}

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CollectiveOperation {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
}

/// Rule that orders successive collectives by priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriorityPolicy {
    Lifo,
    Fifo,
    Explicit,
}

/// The LogGP parameters of the shared bus between NPU and memory.
#[derive(Clone, Copy, Debug)]
pub struct LogGpBusParameters {
    pub l: u64,
    pub o: u64,
    pub g: u64,
    pub gap_per_byte: f64,
}

/// A custom algorithm: one trace per position in the group.
pub type CustomAlgorithm = Vec<Vec<TraceNode>>;

/// Contents of the system file.
#[derive(Clone, Debug)]
pub struct SystemConfig {
    pub policy: PriorityPolicy,
    pub local_bw_aware: bool,
    /// Endpoint delay in ns, if the file gives one; otherwise, the delay is 10 ns and is not scaled.
    pub endpoint_delay: Option<u64>,
    pub active_chunks: u64,
    pub splits: u64,
    /// Algorithms for each kind of collective, one per dimension.
    pub algorithms: BTreeMap<CollectiveOperation, Vec<NativeAlgorithmWithOneRingFlag>>,
    pub custom: BTreeMap<CollectiveOperation, CustomAlgorithm>,
    /// Custom algorithms, by the ids of their nodes in the workload.
    pub custom_nodes: BTreeMap<u64, CustomAlgorithm>,
    /// Bandwidth of the local memory in 10^9 bytes per second.
    pub local_mem_bw: f64,
    /// Peak performance in 10^12 operations per second.
    pub peak_perf: f64,
    pub roofline: bool,
    pub replay_only: bool,
    pub bus: Option<LogGpBusParameters>,
    pub reduction_delay: u64,
}

/// How memory servers are assigned to NPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryServerAssignment {
    None,
    PerNpu,
    Pool,
    /// One memory server for each set of this many consecutive NPUs.
    PerNode(usize),
}

/// Contents of the remote memory file.
#[derive(Clone, Copy, Debug)]
pub struct MemoryConfig {
    pub attachment: MemoryServerAssignment,
    pub latency: u64,
    /// Bandwidth in whole bytes per ns.
    pub bw: u64,
}

/// Operation of a node of a trace.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeWork {
    /// Nodes of the types INVALID and METADATA.
    Nothing,
    /// Load or store.
    Memory {
        store: bool,
        bytes: u64,
    },
    Compute {
        ops: u64,
        bytes: u64,
    },
    Send {
        dst: usize,
        bytes: u64,
        tag: u64,
    },
    Receive {
        src: usize,
        bytes: u64,
        tag: u64,
    },
    Collective {
        kind: CollectiveOperation,
        bytes: u64,
        /// Group id; 0 means all NPUs.
        group: u64,
        dims: Option<Vec<bool>>,
        priority: i64,
    },
    Broadcast,
    /// A collective that the simulator rejects when an NPU issues it.
    Unsupported,
}

/// A node of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceNode {
    pub id: u64,
    pub deps: Vec<u64>,
    pub cpu: bool,
    pub micros: u64,
    pub work: NodeWork,
}

/// The complete input of a simulation.
#[derive(Clone, Debug)]
pub struct WholeSimulationInput {
    pub network: NetworkModel,
    pub dims: Vec<NetworkDimension>,
    pub system: SystemConfig,
    pub memory: MemoryConfig,
    /// Members of each group, in file order.
    pub groups: BTreeMap<u64, Vec<usize>>,
    pub rendezvous: bool,
    pub injection_scale: f64,
    pub queues_per_dim: usize,
    pub ranks: Vec<Vec<TraceNode>>,
}

impl WholeSimulationInput {
    /// Returns the number of NPUs of the network.
    pub fn npu_count(&self) -> usize {
        self.dims.iter().map(|d| d.n).product()
    }

    /// Returns the endpoint delay in ns. The delay is scaled only if the file gives it.
    pub fn endpoint_delay_ns(&self) -> u64 {
        match self.system.endpoint_delay {
            Some(ns) => (ns as f64 * self.injection_scale) as u64,
            None => 10,
        }
    }
}
