//! When each node ran: for what is made of a replay after it, node by node.

use super::started::Started;
use super::{CollectiveRecord, Observer};
use crate::engine::Prepared;
use crate::graph::Kind;
use crate::ids::NodeIndex;
use crate::units::Time;

/// When a node was issued, and when it completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSpan {
    /// The node.
    pub node: NodeIndex,
    /// Its issue.
    pub start: Time,
    /// Its completion.
    pub end: Time,
}

/// Keeps the span of every node, in the order in which nodes complete.
#[derive(Debug)]
pub struct Spans {
    started: Started,
    completed: Vec<Vec<NodeSpan>>,
}

impl Spans {
    /// Watches all instances of `prepared`.
    pub fn new(prepared: &Prepared<'_>) -> Self {
        let workload = prepared.workload();
        let instances = workload.instances().iter();
        let room = instances.map(|instance| Vec::with_capacity(workload.graph(instance).len()));
        Self {
            started: Started::new(prepared),
            completed: room.collect(),
        }
    }

    /// The nodes of an instance that completed, in that order.
    pub fn of(&self, instance: usize) -> &[NodeSpan] {
        &self.completed[instance]
    }
}

impl Observer for Spans {
    #[inline]
    fn issued(&mut self, now: Time, instance: u32, node: NodeIndex, _: Kind) {
        self.started.set(now, instance, node);
    }

    #[inline]
    fn completed(&mut self, now: Time, instance: u32, node: NodeIndex, _: Kind) {
        let start = self.started.get(instance, node);
        let span = NodeSpan {
            node,
            start,
            end: now,
        };
        self.completed[instance as usize].push(span);
    }

    #[inline]
    fn collective(&mut self, _: &CollectiveRecord) {}
}
