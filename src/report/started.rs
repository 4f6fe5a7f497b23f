//! When each node was issued: 8 bytes per node, for observers that need durations.

use crate::engine::Prepared;
use crate::ids::NodeIndex;
use crate::units::Time;

/// The instant at which each node of each instance was issued.
#[derive(Debug)]
pub(super) struct Started {
    /// Where each instance's nodes start in `at`.
    first_node: Vec<usize>,
    at: Vec<Time>,
}

impl Started {
    /// Room for all nodes of `prepared`.
    pub fn new(prepared: &Prepared<'_>) -> Self {
        let workload = prepared.workload();
        let mut nodes = 0;
        let mut first_node = Vec::with_capacity(workload.instances().len());
        for instance in workload.instances() {
            first_node.push(nodes);
            nodes += workload.graph(instance).len();
        }
        Self {
            first_node,
            at: vec![Time::ZERO; nodes],
        }
    }

    /// `node` is issued `now`.
    #[inline]
    pub fn set(&mut self, now: Time, instance: u32, node: NodeIndex) {
        self.at[self.first_node[instance as usize] + node.index()] = now;
    }

    /// When `node` was issued.
    #[inline]
    pub fn get(&self, instance: u32, node: NodeIndex) -> Time {
        self.at[self.first_node[instance as usize] + node.index()]
    }
}
