//! Issues the nodes of an NPU, and releases the dependents of nodes that end.
//!
//! ASTRA-sim 2.x: at the start, and whenever a node ends, the workload lists the ready nodes in ascending order of
//! ids, and issues each node whose slot is free. A node that ends immediately may make other nodes ready, but these
//! are considered only when the next node ends.

use super::Sim;
use super::agenda::Call;
use super::config::{Node, Work};
use super::post::{Handler, Message, native};
use std::collections::{BTreeMap, BTreeSet};

/// Resource that a node occupies while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Slot {
    Host,
    Compute,
    /// All other nodes, even nodes that do nothing, count as communication.
    Communication,
}

fn slot(node: &Node) -> Option<Slot> {
    match node.work {
        _ if node.cpu => Some(Slot::Host),
        Work::Compute { .. } => Some(Slot::Compute),
        Work::Receive { .. } => None,
        _ => Some(Slot::Communication),
    }
}

/// A trace, with its ready and its running nodes.
#[derive(Debug, Default)]
pub struct Graph<'c> {
    pub nodes: BTreeMap<u64, &'c Node>,
    /// For each waiting node, its open dependencies; `waiters` contains the dependents of each node.
    waits: BTreeMap<u64, BTreeSet<u64>>,
    waiters: BTreeMap<u64, Vec<u64>>,
    pub ready: BTreeSet<u64>,
    pub ongoing: BTreeSet<u64>,
}

impl<'c> Graph<'c> {
    /// Builds the graph of `nodes`. If several nodes have the same id, only the last is used.
    pub fn new(nodes: &'c [Node]) -> Self {
        let mut graph = Self::default();
        for node in nodes {
            graph.nodes.insert(node.id, node);
        }
        for (&id, node) in &graph.nodes {
            let deps: BTreeSet<u64> = node.deps.iter().copied().collect();
            if deps.is_empty() {
                graph.ready.insert(id);
            } else {
                for &dep in &deps {
                    graph.waiters.entry(dep).or_default().push(id);
                }
                graph.waits.insert(id, deps);
            }
        }
        graph
    }

    pub fn take(&mut self, id: u64) {
        self.ready.remove(&id);
        self.ongoing.insert(id);
    }

    /// Ends a node, and releases the dependents that have no other open dependency.
    pub fn end(&mut self, id: u64) {
        self.ongoing.remove(&id);
        for waiter in self.waiters.remove(&id).unwrap_or_default() {
            let deps = self.waits.entry(waiter).or_default();
            deps.remove(&id);
            if deps.is_empty() {
                self.waits.remove(&waiter);
                self.ready.insert(waiter);
            }
        }
    }

    pub fn is_over(&self) -> bool {
        self.ready.is_empty() && self.ongoing.is_empty()
    }
}

/// The workload of an NPU.
#[derive(Debug, Default)]
pub struct Workload<'c> {
    pub graph: Graph<'c>,
    occupied: BTreeSet<Slot>,
    /// Total compute time of nodes on the device, from which the exposed communication is derived.
    computed: u64,
    /// Finish time, and its part without compute.
    pub finish: Option<(u64, u64)>,
}

impl<'c> Workload<'c> {
    pub fn new(trace: &'c [Node]) -> Self {
        Self {
            graph: Graph::new(trace),
            ..Self::default()
        }
    }
}

impl Sim<'_> {
    /// Starts the workload of an NPU.
    pub fn fire(&mut self, npu: usize) {
        if self.issue_ready(npu) {
            self.finish(npu);
        }
    }

    /// Handles the end of a node.
    pub fn node_ends(&mut self, npu: usize, id: u64) {
        let workload = &mut self.npus[npu].workload;
        if workload.finish.is_some() {
            return;
        }
        if let Some(slot) = slot(workload.graph.nodes[&id]) {
            workload.occupied.remove(&slot);
        }
        workload.graph.end(id);
        if self.issue_ready(npu) {
            self.finish(npu);
        }
    }

    fn finish(&mut self, npu: usize) {
        let workload = &mut self.npus[npu].workload;
        if workload.graph.is_over() && workload.occupied.is_empty() && workload.finish.is_none() {
            let now = self.agenda.now;
            workload.finish = Some((now, now.wrapping_sub(workload.computed)));
        }
    }

    /// Issues all ready nodes whose slots are free. Returns `false` if a node was rejected, which ends the loop.
    fn issue_ready(&mut self, npu: usize) -> bool {
        let snapshot: Vec<u64> = self.npus[npu]
            .workload
            .graph
            .ready
            .iter()
            .copied()
            .collect();
        for id in snapshot {
            let workload = &mut self.npus[npu].workload;
            let node = workload.graph.nodes[&id];
            let slot = slot(node);
            if slot.is_some_and(|slot| workload.occupied.contains(&slot)) {
                continue;
            }
            workload.graph.take(id);
            workload.occupied.extend(slot);
            if !self.issue(npu, node) {
                return false;
            }
        }
        true
    }

    fn issue(&mut self, npu: usize, node: &Node) -> bool {
        let system = &self.config.system;
        if system.replay_only {
            self.replay(npu, node);
            return true;
        }
        match node.work {
            Work::Nothing => self.skip(npu, node),
            Work::Memory { bytes, .. } => self.access(npu, node.id, bytes),
            Work::Compute { bytes: 0, .. } if system.roofline && !node.cpu => self.skip(npu, node),
            Work::Compute { ops, bytes } if system.roofline && !node.cpu => {
                let ns = roofline(ops, bytes, system.local_mem_bw, system.peak_perf);
                self.compute(npu, node, ns);
            }
            Work::Compute { .. } => self.replay(npu, node),
            Work::Send { dst, bytes, tag } => {
                let tag = native(tag);
                let message = Message {
                    tag,
                    src: npu,
                    dst,
                    bytes,
                };
                self.send(message, Handler::NodeEnds { npu, node: node.id });
            }
            Work::Receive { src, bytes, tag } => {
                let tag = native(tag);
                let message = Message {
                    tag,
                    src,
                    dst: npu,
                    bytes,
                };
                self.receive(message, Handler::NodeEnds { npu, node: node.id });
            }
            Work::Collective { .. } => return self.collective(npu, node),
            Work::Broadcast => {
                let call = Call::BroadcastEnds(node.id);
                self.agenda.delay(npu, recorded(node), call);
            }
            Work::Unsupported => return false,
        }
        true
    }

    /// Ends a node immediately, without another search for ready nodes.
    fn skip(&mut self, npu: usize, node: &Node) {
        let workload = &mut self.npus[npu].workload;
        workload.graph.end(node.id);
        if let Some(slot) = slot(node) {
            workload.occupied.remove(&slot);
        }
    }

    fn replay(&mut self, npu: usize, node: &Node) {
        self.compute(npu, node, recorded(node));
    }

    fn compute(&mut self, npu: usize, node: &Node, ns: u64) {
        if !node.cpu {
            let computed = &mut self.npus[npu].workload.computed;
            *computed = computed.wrapping_add(ns);
        }
        self.agenda.delay(npu, ns, Call::NodeEnds(node.id));
    }
}

/// Converts the recorded duration from whole microseconds to ns. Without a recorded duration, returns 1
/// ns.
pub fn recorded(node: &Node) -> u64 {
    match node.micros {
        0 => 1,
        micros => micros * 1000,
    }
}

/// Returns trunc(ops / min(bandwidth · ops / bytes, peak)) in ns; 0 / 0 gives 2^63.
fn roofline(ops: u64, bytes: u64, gbps: f64, tflops: f64) -> u64 {
    let intensity = ops as f64 / bytes as f64;
    let perf = (gbps * 1e9 * intensity).min(tflops * 1e12);
    let ns = ops as f64 / perf * 1e9;
    if ns.is_finite() { ns as u64 } else { 1 << 63 }
}
