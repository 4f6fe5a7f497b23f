//! Issues the nodes of an NPU, and releases the dependents of each node that ends.
//!
//! As in ASTRA-sim 2.x, the workload lists the ready nodes in ascending order of ids, and issues each node whose
//! resource is free. It does so at the start, and whenever a node ends. If a node ends immediately, its dependents must
//! wait until the next node ends.

use super::OracleSimulator;
use super::agenda::DelayedCall;
use super::config::{NodeWork, TraceNode};
use super::post::{ArrivalHandler, UnnumberedMessageKey, encode_trace_message_tag};
use std::collections::{BTreeMap, BTreeSet};

/// Resource that a node occupies while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NodeResource {
    Host,
    Compute,
    /// All other nodes except receives occupy this resource, even nodes that do nothing.
    Communication,
}

fn resource_of_node(node: &TraceNode) -> Option<NodeResource> {
    match node.work {
        _ if node.cpu => Some(NodeResource::Host),
        NodeWork::Compute { .. } => Some(NodeResource::Compute),
        NodeWork::Receive { .. } => None,
        _ => Some(NodeResource::Communication),
    }
}

/// A trace with the state of its nodes: waiting, ready or running.
#[derive(Debug, Default)]
pub struct NpuGraphWithNodeStates<'c> {
    pub nodes: BTreeMap<u64, &'c TraceNode>,
    /// Dependencies that have not ended, for each waiting node; `waiters` lists the dependents of each node.
    waits: BTreeMap<u64, BTreeSet<u64>>,
    waiters: BTreeMap<u64, Vec<u64>>,
    pub ready: BTreeSet<u64>,
    pub ongoing: BTreeSet<u64>,
}

impl<'c> NpuGraphWithNodeStates<'c> {
    /// Builds the graph of `nodes`. If several nodes have the same id, the graph contains only the last of them.
    pub fn new(nodes: &'c [TraceNode]) -> Self {
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

    pub fn mark_node_ongoing(&mut self, id: u64) {
        self.ready.remove(&id);
        self.ongoing.insert(id);
    }

    /// Ends a node, and releases each dependent that waits for no other node.
    pub fn end_node(&mut self, id: u64) {
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
pub struct NpuWorkload<'c> {
    pub graph: NpuGraphWithNodeStates<'c>,
    occupied: BTreeSet<NodeResource>,
    /// Total compute time of nodes on the device. Exposed communication is the remaining time.
    computed: u64,
    /// Finish time, and the part of it in which no compute node ran.
    pub finish: Option<(u64, u64)>,
}

impl<'c> NpuWorkload<'c> {
    pub fn new(trace: &'c [TraceNode]) -> Self {
        Self {
            graph: NpuGraphWithNodeStates::new(trace),
            ..Self::default()
        }
    }
}

impl OracleSimulator<'_> {
    /// Starts the workload of an NPU.
    pub fn start_workload_of_npu(&mut self, npu: usize) {
        if self.issue_ready_nodes(npu) {
            self.finish_npu_if_all_work_is_over(npu);
        }
    }

    /// Handles the end of a node.
    pub fn handle_node_end(&mut self, npu: usize, id: u64) {
        let workload = &mut self.npus[npu].workload;
        if workload.finish.is_some() {
            return;
        }
        if let Some(slot) = resource_of_node(workload.graph.nodes[&id]) {
            workload.occupied.remove(&slot);
        }
        workload.graph.end_node(id);
        if self.issue_ready_nodes(npu) {
            self.finish_npu_if_all_work_is_over(npu);
        }
    }

    fn finish_npu_if_all_work_is_over(&mut self, npu: usize) {
        let workload = &mut self.npus[npu].workload;
        if workload.graph.is_over() && workload.occupied.is_empty() && workload.finish.is_none() {
            let now = self.agenda.now;
            workload.finish = Some((now, now.wrapping_sub(workload.computed)));
        }
    }

    /// Issues all ready nodes whose resources are free. Returns `false` if a node was rejected,
    /// which ends the loop.
    fn issue_ready_nodes(&mut self, npu: usize) -> bool {
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
            let slot = resource_of_node(node);
            if slot.is_some_and(|slot| workload.occupied.contains(&slot)) {
                continue;
            }
            workload.graph.mark_node_ongoing(id);
            workload.occupied.extend(slot);
            if !self.issue_node(npu, node) {
                return false;
            }
        }
        true
    }

    fn issue_node(&mut self, npu: usize, node: &TraceNode) -> bool {
        let system = &self.config.system;
        if system.replay_only {
            self.run_for_recorded_duration(npu, node);
            return true;
        }
        match node.work {
            NodeWork::Nothing => self.end_node_without_work(npu, node),
            NodeWork::Memory { bytes, .. } => self.request_memory_access(npu, node.id, bytes),
            NodeWork::Compute { bytes: 0, .. } if system.roofline && !node.cpu => {
                self.end_node_without_work(npu, node)
            }
            NodeWork::Compute { ops, bytes } if system.roofline && !node.cpu => {
                let ns = roofline_ns(ops, bytes, system.local_mem_bw, system.peak_perf);
                self.run_for_duration(npu, node, ns);
            }
            NodeWork::Compute { .. } => self.run_for_recorded_duration(npu, node),
            NodeWork::Send { dst, bytes, tag } => {
                let tag = encode_trace_message_tag(tag);
                let message = UnnumberedMessageKey {
                    tag,
                    src: npu,
                    dst,
                    bytes,
                };
                self.send_message_after_any_rendezvous(
                    message,
                    ArrivalHandler::NodeEnds { npu, node: node.id },
                );
            }
            NodeWork::Receive { src, bytes, tag } => {
                let tag = encode_trace_message_tag(tag);
                let message = UnnumberedMessageKey {
                    tag,
                    src,
                    dst: npu,
                    bytes,
                };
                self.post_receive(message, ArrivalHandler::NodeEnds { npu, node: node.id });
            }
            NodeWork::Collective { .. } => return self.issue_collective(npu, node),
            NodeWork::Broadcast => {
                let call = DelayedCall::BroadcastEnds(node.id);
                self.agenda.add_delay(npu, recorded_ns(node), call);
            }
            NodeWork::Unsupported => return false,
        }
        true
    }

    /// Ends a node immediately, without another search for ready nodes.
    fn end_node_without_work(&mut self, npu: usize, node: &TraceNode) {
        let workload = &mut self.npus[npu].workload;
        workload.graph.end_node(node.id);
        if let Some(slot) = resource_of_node(node) {
            workload.occupied.remove(&slot);
        }
    }

    fn run_for_recorded_duration(&mut self, npu: usize, node: &TraceNode) {
        self.run_for_duration(npu, node, recorded_ns(node));
    }

    fn run_for_duration(&mut self, npu: usize, node: &TraceNode, ns: u64) {
        if !node.cpu {
            let computed = &mut self.npus[npu].workload.computed;
            *computed = computed.wrapping_add(ns);
        }
        self.agenda
            .add_delay(npu, ns, DelayedCall::NodeEnds(node.id));
    }
}

/// Converts the recorded duration from whole microseconds to ns. Returns 1 ns if no duration is recorded.
pub fn recorded_ns(node: &TraceNode) -> u64 {
    match node.micros {
        0 => 1,
        micros => micros * 1000,
    }
}

/// Returns trunc(ops / min(bandwidth · ops / bytes, peak)) in ns; 0 / 0 gives 2^63.
fn roofline_ns(ops: u64, bytes: u64, gbps: f64, tflops: f64) -> u64 {
    let intensity = ops as f64 / bytes as f64;
    let perf = (gbps * 1e9 * intensity).min(tflops * 1e12);
    let ns = ops as f64 / perf * 1e9;
    if ns.is_finite() { ns as u64 } else { 1 << 63 }
}
