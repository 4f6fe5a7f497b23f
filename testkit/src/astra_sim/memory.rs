//! Remote memory: an access takes latency + trunc(bytes / bandwidth) ns. With PER_NPU, all requests
//! are served immediately. Otherwise, the server of a pool or of a node's memory serves one request
//! at a time, in order of arrival.
//!
//! When a request ends, the NPU's workload continues before the server starts the next request, as
//! in ASTRA-sim 2.x.

use super::OracleSimulator;
use super::agenda::DelayedCall;
use super::config::MemoryServerAssignment;
use std::collections::{BTreeMap, VecDeque};

/// A memory server with a queue of requests.
#[derive(Debug, Default)]
pub struct MemoryServer {
    busy: bool,
    waiting: VecDeque<MemoryRequest>,
}

/// A load or store.
#[derive(Clone, Copy, Debug)]
pub struct MemoryRequest {
    npu: usize,
    node: u64,
    bytes: u64,
}

/// The servers, by the index of their node.
pub type MemoryServers = BTreeMap<usize, MemoryServer>;

impl OracleSimulator<'_> {
    /// Requests a load or store of `bytes` for `node`.
    pub fn request_memory_access(&mut self, npu: usize, node: u64, bytes: u64) {
        let request = MemoryRequest { npu, node, bytes };
        let server = match self.config.memory.attachment {
            // ASTRA-sim aborts here with a message; in this simulator, the node never ends.
            MemoryServerAssignment::None => return,
            MemoryServerAssignment::PerNpu => {
                let ns = self.memory_access_time_ns(bytes);
                self.agenda.add_delay(npu, ns, DelayedCall::NodeEnds(node));
                return;
            }
            MemoryServerAssignment::Pool => 0,
            MemoryServerAssignment::PerNode(size) => npu / size.max(1),
        };
        if self.servers.entry(server).or_default().busy {
            let queue = &mut self.servers.entry(server).or_default().waiting;
            queue.push_back(request);
        } else {
            self.serve_access(server, request);
        }
    }

    fn memory_access_time_ns(&self, bytes: u64) -> u64 {
        let memory = &self.config.memory;
        memory.latency + (bytes as f64 / memory.bw as f64) as u64
    }

    fn serve_access(&mut self, server: usize, request: MemoryRequest) {
        self.servers.entry(server).or_default().busy = true;
        let ns = self.memory_access_time_ns(request.bytes);
        self.agenda
            .add_delay(request.npu, ns, DelayedCall::NodeEnds(request.node));
        self.agenda
            .add_delay(request.npu, ns, DelayedCall::MemoryNext(server));
    }

    /// Serves the request that has been waiting longest.
    pub fn serve_next_memory_request(&mut self, server: usize) {
        let waiting = &mut self.servers.entry(server).or_default().waiting;
        match waiting.pop_front() {
            Some(request) => self.serve_access(server, request),
            None => self.servers.entry(server).or_default().busy = false,
        }
    }
}
