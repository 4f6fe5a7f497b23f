//! A custom algorithm, given as one trace per position. Every node is issued as soon as its dependencies end,
//! whatever else is in flight. The size of the collective does not matter.

use super::super::config::{Node, Work};
use super::super::post::native;
use super::super::workload::recorded;
use super::{Act, Input};
use std::collections::{BTreeMap, BTreeSet};

/// A custom algorithm in progress.
#[derive(Debug)]
pub struct Custom {
    nodes: BTreeMap<u64, Node>,
    ended: BTreeSet<u64>,
    issued: BTreeSet<u64>,
    /// NPUs by their numbers in the trace; empty if these numbers are NPUs already.
    members: Vec<usize>,
}

impl Custom {
    pub fn new(trace: &[Node], members: Option<&Vec<usize>>) -> Self {
        Self {
            nodes: trace.iter().map(|n| (n.id, n.clone())).collect(),
            ended: BTreeSet::new(),
            issued: BTreeSet::new(),
            members: members.cloned().unwrap_or_default(),
        }
    }

    fn npu(&self, position: usize) -> usize {
        self.members.get(position).copied().unwrap_or(position)
    }

    pub fn step(&mut self, input: Input) -> Vec<Act> {
        if let Input::Ended(node) = input {
            self.ended.insert(node);
        }
        let free = |node: &&Node| {
            !self.issued.contains(&node.id) && node.deps.iter().all(|d| self.ended.contains(d))
        };
        let free: Vec<Node> = self.nodes.values().filter(free).cloned().collect();
        let mut acts = Vec::new();
        for node in free {
            self.issued.insert(node.id);
            acts.extend(self.act(&node));
        }
        if acts.is_empty() && self.issued.len() == self.ended.len() {
            acts.push(Act::Over);
        }
        acts
    }

    fn act(&self, node: &Node) -> Option<Act> {
        let (id, ns) = (node.id, recorded(node));
        match node.work {
            Work::Send { dst, bytes, tag } => Some(Act::SendNode {
                node: id,
                dst: self.npu(dst),
                bytes,
                tag: native(tag),
            }),
            Work::Receive { src, bytes, tag } => Some(Act::ReceiveNode {
                node: id,
                src: self.npu(src),
                bytes,
                tag: native(tag),
            }),
            Work::Compute { .. } => Some(Act::ComputeNode { node: id, ns }),
            _ => None,
        }
    }
}
