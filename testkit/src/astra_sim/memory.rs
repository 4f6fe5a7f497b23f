//! Remote memory: ns = latency + trunc(bytes / bandwidth). With PER_NPU, servers serve all requests immediately. The
//! server of a pool, or of a node's memory, serves one request at a time in order of arrival.
//!
//! ASTRA-sim 2.x: at the end of a request, the NPU's workload continues first, and then the server starts the next
//! request.

use super::Sim;
use super::agenda::Call;
use super::config::Attachment;
use std::collections::{BTreeMap, VecDeque};

/// A server with a queue.
#[derive(Debug, Default)]
pub struct Server {
    busy: bool,
    waiting: VecDeque<Request>,
}

/// A load or store.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    npu: usize,
    node: u64,
    bytes: u64,
}

/// The servers, by the index of their node.
pub type Servers = BTreeMap<usize, Server>;

impl Sim<'_> {
    /// Requests a load or store.
    pub fn access(&mut self, npu: usize, node: u64, bytes: u64) {
        let request = Request { npu, node, bytes };
        let server = match self.config.memory.attachment {
            // Here ASTRA-sim aborts with a message, whereas this simulator never ends the node.
            Attachment::None => return,
            Attachment::PerNpu => {
                let ns = self.access_time(bytes);
                self.agenda.delay(npu, ns, Call::NodeEnds(node));
                return;
            }
            Attachment::Pool => 0,
            Attachment::PerNode(size) => npu / size.max(1),
        };
        if self.servers.entry(server).or_default().busy {
            let queue = &mut self.servers.entry(server).or_default().waiting;
            queue.push_back(request);
        } else {
            self.serve(server, request);
        }
    }

    fn access_time(&self, bytes: u64) -> u64 {
        let memory = &self.config.memory;
        memory.latency + (bytes as f64 / memory.bw as f64) as u64
    }

    fn serve(&mut self, server: usize, request: Request) {
        self.servers.entry(server).or_default().busy = true;
        let ns = self.access_time(request.bytes);
        self.agenda
            .delay(request.npu, ns, Call::NodeEnds(request.node));
        self.agenda.delay(request.npu, ns, Call::MemoryNext(server));
    }

    /// Serves the request that has waited longest.
    pub fn memory_next(&mut self, server: usize) {
        let waiting = &mut self.servers.entry(server).or_default().waiting;
        match waiting.pop_front() {
            Some(request) => self.serve(server, request),
            None => self.servers.entry(server).or_default().busy = false,
        }
    }
}
