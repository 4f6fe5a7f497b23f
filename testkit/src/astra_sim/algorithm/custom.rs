//! A custom algorithm, which has one trace per position in the group. A node is issued as soon as
//! its dependencies have ended, regardless of other nodes in flight. The size of the collective has
//! no effect.

use super::super::config::{NodeWork, TraceNode};
use super::super::post::encode_trace_message_tag;
use super::super::workload::recorded_ns;
use super::{AlgorithmAction, AlgorithmEvent};
use std::collections::{BTreeMap, BTreeSet};

/// A custom algorithm in progress.
#[derive(Debug)]
pub struct OneMemberCustomAlgorithmRun {
    nodes: BTreeMap<u64, TraceNode>,
    ended: BTreeSet<u64>,
    issued: BTreeSet<u64>,
    /// NPU of each peer number in the trace; empty if the peer numbers are NPUs.
    members: Vec<usize>,
}

impl OneMemberCustomAlgorithmRun {
    pub fn new(trace: &[TraceNode], members: Option<&Vec<usize>>) -> Self {
        Self {
            nodes: trace.iter().map(|n| (n.id, n.clone())).collect(),
            ended: BTreeSet::new(),
            issued: BTreeSet::new(),
            members: members.cloned().unwrap_or_default(),
        }
    }

    fn npu_at_position(&self, position: usize) -> usize {
        self.members.get(position).copied().unwrap_or(position)
    }

    pub fn actions_after_event(&mut self, input: AlgorithmEvent) -> Vec<AlgorithmAction> {
        if let AlgorithmEvent::Ended(node) = input {
            self.ended.insert(node);
        }
        let free = |node: &&TraceNode| {
            !self.issued.contains(&node.id) && node.deps.iter().all(|d| self.ended.contains(d))
        };
        let free: Vec<TraceNode> = self.nodes.values().filter(free).cloned().collect();
        let mut acts = Vec::new();
        for node in free {
            self.issued.insert(node.id);
            acts.extend(self.action_to_start_node(&node));
        }
        if acts.is_empty() && self.issued.len() == self.ended.len() {
            acts.push(AlgorithmAction::Over);
        }
        acts
    }

    fn action_to_start_node(&self, node: &TraceNode) -> Option<AlgorithmAction> {
        let (id, ns) = (node.id, recorded_ns(node));
        match node.work {
            NodeWork::Send { dst, bytes, tag } => Some(AlgorithmAction::SendNode {
                node: id,
                dst: self.npu_at_position(dst),
                bytes,
                tag: encode_trace_message_tag(tag),
            }),
            NodeWork::Receive { src, bytes, tag } => Some(AlgorithmAction::ReceiveNode {
                node: id,
                src: self.npu_at_position(src),
                bytes,
                tag: encode_trace_message_tag(tag),
            }),
            NodeWork::Compute { .. } => Some(AlgorithmAction::ComputeNode { node: id, ns }),
            _ => None,
        }
    }
}
