//! Times of all nodes of a run, in the order in which they completed.

use crate::engine::CompiledReplay;
use crate::graph::{NodeKind, huge_pages};
use crate::ids::NodeIndex;
use crate::report::{CollectiveRecord, Observer};
use crate::units::Time;

/// A node that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunNode {
    pub instance: u32,
    pub node: NodeIndex,
}

/// Keeps start and end of every node, and when collectives began.
#[derive(Debug)]
pub struct RunRecorder<'a> {
    pub(super) prepared: &'a CompiledReplay<'a>,
    /// Number of the first node of each instance, and, last, of all nodes.
    first: Vec<u32>,
    start: Vec<Time>,
    end: Vec<Time>,
    /// Instant when all that a collective node waits for had arrived; its start before that is known.
    began: Vec<Time>,
    /// Nodes, as they completed.
    completed: Vec<RunNode>,
}

impl<'a> RunRecorder<'a> {
    /// Watches all instances of `prepared`, unless there are too many nodes.
    pub fn new(prepared: &'a CompiledReplay<'a>) -> Option<Self> {
        let workload = prepared.workload();
        if workload.nodes() > super::MOST_NODES {
            return None;
        }
        let mut first = vec![0];
        for instance in workload.instances() {
            let nodes = workload.graph(instance).len() as u32;
            first.push(first[first.len() - 1] + nodes);
        }
        let nodes = workload.nodes() as usize;
        Some(Self {
            prepared,
            first,
            start: huge_pages::filled(nodes, Time::ZERO),
            end: huge_pages::filled(nodes, Time::ZERO),
            began: huge_pages::filled(nodes, Time::ZERO),
            completed: huge_pages::huge_page_vec(nodes),
        })
    }

    #[inline]
    pub fn number(&self, of: RunNode) -> usize {
        self.first[of.instance as usize] as usize + of.node.index()
    }

    /// The node of a number, which is searched for among the instances.
    pub fn node(&self, number: usize) -> RunNode {
        let number = number as u32;
        let instance = self.first.partition_point(|&first| first <= number) - 1;
        RunNode {
            instance: instance as u32,
            node: NodeIndex(number - self.first[instance]),
        }
    }

    /// All nodes, in the order of their numbers.
    pub fn nodes(&self) -> impl Iterator<Item = RunNode> {
        let counts = self.first.windows(2).map(|pair| pair[1] - pair[0]);
        (0..).zip(counts).flat_map(|(instance, count)| {
            (0..count).map(move |node| RunNode {
                instance,
                node: NodeIndex(node),
            })
        })
    }

    pub fn len(&self) -> usize {
        self.start.len()
    }

    pub fn start(&self, number: usize) -> Time {
        self.start[number]
    }

    pub fn end(&self, number: usize) -> Time {
        self.end[number]
    }

    /// Returns when the transfer of a collective node began.
    pub fn began(&self, number: usize) -> Time {
        self.began[number]
    }

    /// Nodes in the order in which they completed.
    pub fn completed(&self) -> &[RunNode] {
        &self.completed
    }

    pub fn graph(&self, instance: u32) -> &'a crate::graph::Graph {
        let workload = self.prepared.workload();
        workload.graph(&workload.instances()[instance as usize])
    }

    pub fn kind(&self, of: RunNode) -> NodeKind {
        self.graph(of.instance).kind(of.node)
    }
}

impl Observer for RunRecorder<'_> {
    #[inline]
    fn issued(&mut self, now: Time, instance: u32, node: NodeIndex, kind: NodeKind) {
        let number = self.number(RunNode { instance, node });
        self.start[number] = now;
        if kind == NodeKind::Collective {
            self.began[number] = now;
        }
    }

    #[inline]
    fn completed(&mut self, now: Time, instance: u32, node: NodeIndex, _: NodeKind) {
        let number = self.number(RunNode { instance, node });
        self.end[number] = now;
        self.completed.push(RunNode { instance, node });
    }

    #[inline]
    fn began(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let number = self.number(RunNode { instance, node });
        self.began[number] = now;
    }

    fn collective(&mut self, _: &CollectiveRecord) {}
}
