//! The path: causes of each start, followed back from the last completion.

use super::recorder::{RunNode, RunRecorder};
use crate::engine::{CommTiming, CompiledReplay};
use crate::graph::{NodeKind, huge_pages};
use crate::ids::NodeIndex;
use crate::report::breakdown::TimeCategory;
use crate::units::{Span, Time};

/// No node, no call.
pub const NONE: u32 = u32::MAX;

/// A part of the critical path; each begins where the one before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSegment {
    /// Number of the instance that it is on.
    pub instance: u32,
    /// The node that runs, or that is about to.
    pub node: NodeIndex,
    /// Its beginning.
    pub from: Time,
    /// Its end.
    pub to: Time,
    /// Category of the time: the node's own category, host for its delay, idle for what no node accounts for.
    pub category: TimeCategory,
}

/// Nodes of different ranks that took part in one collective or message, by number.
#[derive(Debug)]
pub struct RunRelations<'r> {
    pub run: &'r RunRecorder<'r>,
    pub prepared: &'r CompiledReplay<'r>,
    /// The call of a collective node, the other half of a message.
    pub peer: Vec<u32>,
    /// Members of each call.
    calls: Vec<Vec<u32>>,
}

impl<'r> RunRelations<'r> {
    pub fn new(run: &'r RunRecorder<'r>) -> Self {
        let mut this = Self {
            run,
            prepared: run.prepared,
            peer: huge_pages::filled(run.len(), NONE),
            calls: Vec::new(),
        };
        this.peers();
        this
    }

    /// Finds who takes part in what.
    fn peers(&mut self) {
        let mut by_group: Vec<Vec<u32>> = vec![Vec::new(); self.prepared.groups().count()];
        let mut halves: Vec<u32> = Vec::new();
        for (instance, _) in (0..).zip(self.prepared.workload().instances()) {
            let graph = self.run.graph(instance);
            for call in graph.calls() {
                let node = call.node;
                let number = self.run.number(RunNode { instance, node }) as u32;
                let (group, sequence) = self.prepared.call_of(instance, node);
                let calls = &mut by_group[group as usize];
                if calls.len() <= sequence as usize {
                    calls.resize(sequence as usize + 1, NONE);
                }
                let known = &mut calls[sequence as usize];
                if *known == NONE {
                    *known = self.calls.len() as u32;
                    self.calls.push(Vec::new());
                }
                self.calls[*known as usize].push(number);
                self.peer[number as usize] = *known;
            }
            for message in graph.messages() {
                let node = message.node;
                let number = self.run.number(RunNode { instance, node }) as u32;
                let Some(pair) = self.prepared.pair_of(instance, node) else {
                    continue;
                };
                if halves.len() <= pair as usize {
                    halves.resize(pair as usize + 1, NONE);
                }
                let other = std::mem::replace(&mut halves[pair as usize], number);
                if other != NONE {
                    self.peer[number as usize] = other;
                    self.peer[other as usize] = number;
                }
            }
        }
    }

    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Whether a collective node waited for others until it began, and not for longer than it lasted.
    pub fn is_joined(&self, number: usize) -> bool {
        self.prepared.comm() != CommTiming::Captured
            && self.run.began(number) <= self.run.end(number)
    }

    /// The other half of a message, if this one ended because of it, and when that started.
    pub fn waited_for(&self, number: usize) -> Option<usize> {
        let of = self.run.node(number);
        let (start, end) = (self.run.start(number), self.run.end(number));
        let other = known(self.peer[number])?;
        let graph = self.run.graph(of.instance);
        let later = self.run.start(other) > start;
        let waited = match (self.prepared.comm(), graph.kind(of.node)) {
            (CommTiming::Model, NodeKind::Receive) => end > start,
            (CommTiming::Recorded, NodeKind::Receive) => later,
            (CommTiming::Recorded, NodeKind::Send) => {
                later && !graph.messages()[graph.message_index(of.node)].eager
            }
            _ => false,
        };
        waited.then_some(other)
    }

    /// The node from whose start on the path leads to the end of this one.
    fn origin(&self, number: usize) -> usize {
        let run = self.run;
        match run.kind(run.node(number)) {
            NodeKind::Collective => {
                let (began, start) = (run.began(number), run.start(number));
                if !self.is_joined(number) || began == start {
                    return number;
                }
                let members = self.calls[self.peer[number] as usize].iter();
                let mut last = members.filter(|&&member| run.start(member as usize) == began);
                last.next().map_or(number, |&member| member as usize)
            }
            NodeKind::Send | NodeKind::Receive => self.waited_for(number).unwrap_or(number),
            _ => number,
        }
    }
}

/// What set each node of a run free, by number: enough to walk back along the critical path.
pub struct RunCauses<'r> {
    relations: &'r RunRelations<'r>,
    run: &'r RunRecorder<'r>,
    /// The dependency of a node that completed last.
    cause: Vec<u32>,
    /// The node before it on its lane.
    before: Vec<u32>,
}

impl<'r> RunCauses<'r> {
    /// Finds causes and lanes, by following the run.
    pub fn new(relations: &'r RunRelations<'r>) -> Self {
        let run = relations.run;
        let mut cause = huge_pages::filled(run.len(), NONE);
        let mut before = huge_pages::filled(run.len(), NONE);
        let mut lanes = LaneNeighbours::new(run);
        for &of in run.completed() {
            let number = run.number(of);
            for node in run.graph(of.instance).successors(of.node) {
                cause[run.number(RunNode { node, ..of })] = number as u32;
            }
            if let Some(last) = lanes.replace(of) {
                before[number] = run.number(last) as u32;
            }
        }
        Self {
            relations,
            run,
            cause,
            before,
        }
    }

    /// The node before another on its lane.
    fn before(&self, number: usize) -> Option<usize> {
        known(self.before[number])
    }

    fn delay(&self, of: RunNode) -> Span {
        self.run.graph(of.instance).delay(of.node)
    }

    /// Returns when all dependencies of a node were complete.
    fn free(&self, number: usize) -> Time {
        let of = self.run.node(number);
        let release = self.relations.prepared.workload().instances()[of.instance as usize].release;
        known(self.cause[number]).map_or(release, |cause| self.run.end(cause))
    }

    fn ready(&self, number: usize) -> Time {
        self.free(number) + self.delay(self.run.node(number))
    }

    /// Follows the path back; the first segment comes first.
    pub fn path(&self) -> Vec<RunSegment> {
        let mut path = Vec::new();
        let Some(&last) = self.run.completed().last() else {
            return path;
        };
        let mut push = |number: usize, from: Time, to: Time, category: TimeCategory| {
            let RunNode { instance, node } = self.run.node(number);
            if from < to {
                path.push(RunSegment {
                    instance,
                    node,
                    from,
                    to,
                    category,
                });
            }
        };
        let mut number = self.run.number(last);
        loop {
            let end = self.run.end(number);
            let mut origin = self.relations.origin(number);
            let mut start = self.run.start(origin);
            let kind = self.run.kind(self.run.node(number));
            let category = TimeCategory::of(kind).unwrap_or(TimeCategory::Idle);
            push(number, start, end, category);
            let mut lane = self
                .before(origin)
                .filter(|&lane| self.run.end(lane) == start);
            if self.ready(origin) != start && lane.is_none() {
                // A collective takes its lane when all members are ready for it.
                let parked = self.parked_with(origin, start);
                origin = parked.unwrap_or(origin);
                if self.ready(origin) != start {
                    lane = self.before(origin);
                    let lane_free = lane.map_or(Time::ZERO, |lane| self.run.end(lane));
                    let free = self.ready(origin).max(lane_free).min(start);
                    push(origin, free, start, TimeCategory::Idle);
                    (start, lane) = (free, lane.filter(|_| lane_free == free));
                }
            }
            if self.ready(origin) == start {
                let free = self.free(origin);
                push(origin, free, start, TimeCategory::Host);
                match known(self.cause[origin]) {
                    Some(cause) => number = cause,
                    None => {
                        push(origin, Time::ZERO, free, TimeCategory::Idle);
                        break;
                    }
                }
            } else if let Some(lane) = lane {
                number = lane;
            } else {
                push(origin, Time::ZERO, start, TimeCategory::Idle);
                break;
            }
        }
        path.reverse();
        path
    }

    /// The member of a collective that was the last to be ready, when the members took their lanes.
    fn parked_with(&self, number: usize, start: Time) -> Option<usize> {
        if self.run.kind(self.run.node(number)) != NodeKind::Collective {
            return None;
        }
        let relations = self.relations;
        let members = relations.calls[relations.peer[number] as usize].iter();
        let mut members = members.map(|&member| member as usize);
        members.find(|&member| self.ready(member) == start)
    }
}

/// The last node of each lane, of those that were looked at. Nodes of a lane run one at a time, so they complete in their
/// order.
pub struct LaneNeighbours<'r> {
    prepared: &'r CompiledReplay<'r>,
    /// By instance and lane.
    last: Vec<Vec<u32>>,
}

impl<'r> LaneNeighbours<'r> {
    pub fn new(run: &RunRecorder<'r>) -> Self {
        let prepared = run.prepared;
        Self {
            prepared,
            last: vec![Vec::new(); prepared.workload().instances().len()],
        }
    }

    /// Looks at a node, and returns the one of its lane that was looked at before.
    pub fn replace(&mut self, of: RunNode) -> Option<RunNode> {
        let lane = self.prepared.lane_of(of.instance, of.node)? as usize;
        let lanes = &mut self.last[of.instance as usize];
        if lanes.len() <= lane {
            lanes.resize(lane + 1, NONE);
        }
        let node = known(std::mem::replace(&mut lanes[lane], of.node.0))?;
        Some(RunNode {
            node: NodeIndex(node as u32),
            ..of
        })
    }
}

/// A number that is one.
pub fn known(number: u32) -> Option<usize> {
    (number != NONE).then_some(number as usize)
}
