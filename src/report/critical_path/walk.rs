//! Follows the critical path back from the last completion, along the causes of each start.

use super::recorder::{NodeTimes, RunRecorder};
use super::relations::{RunNode, known};
use crate::{RunSegment, TimeCategory};
use chakram_base::units::Time;
use chakram_engine::CommTiming;
use chakram_trace::graph::NodeKind;

impl RunRecorder<'_> {
    /// Returns the instant at which the transfer of a collective node began.
    pub(super) fn began(&self, of: RunNode) -> Time {
        self.began[self.relations.instances[of.instance.index()].call(of.node)]
    }

    /// Returns whether a collective node waited for other members, and its collective began before the node ended.
    #[inline]
    pub(super) fn is_joined(&self, of: RunNode) -> bool {
        self.relations.comm != CommTiming::Captured
            && self.began(of) <= self.times[self.relations.number(of)].end
    }

    /// Returns the other half of a message, if that half determined the end of this half.
    pub(super) fn waited_for(&self, of: RunNode) -> Option<usize> {
        let number = self.relations.number(of);
        let NodeTimes { start, end } = self.times[number];
        let other = known(self.relations.peer[number])?;
        let graph = self.relations.graph(of.instance);
        let later = self.times[other].start > start;
        let waited = match (self.relations.comm, graph.kind(of.node)) {
            (CommTiming::Model, NodeKind::Receive) => end > start,
            (CommTiming::Recorded, NodeKind::Receive) => later,
            (CommTiming::Recorded, NodeKind::Send) => {
                later && !graph.messages()[graph.message_index(of.node)].eager
            }
            _ => false,
        };
        waited.then_some(other)
    }

    /// Returns the node whose start determined the end of this node; the path continues at the returned node.
    pub(super) fn origin(&self, number: usize) -> usize {
        let of = self.relations.node(number);
        match self.relations.kind(of) {
            NodeKind::Collective => {
                let (began, start) = (self.began(of), self.times[number].start);
                if !self.is_joined(of) || began == start {
                    return number;
                }
                let mut members = self.relations.members(number);
                let last = members.find(|&member| self.times[member].start == began);
                last.unwrap_or(number)
            }
            NodeKind::Send | NodeKind::Receive => self.waited_for(of).unwrap_or(number),
            _ => number,
        }
    }

    /// Returns the previous node on a node's lane.
    pub(super) fn before(&self, number: usize) -> Option<usize> {
        known(self.freed_by[number].before)
    }

    /// Returns the instant at which all dependencies of a node had completed.
    fn free(&self, number: usize) -> Time {
        let of = self.relations.node(number);
        let instances = self.relations.prepared.workload().instances();
        let release = instances[of.instance.index()].release;
        known(self.freed_by[number].cause).map_or(release, |cause| self.times[cause].end)
    }

    pub(super) fn ready(&self, number: usize) -> Time {
        let of = self.relations.node(number);
        self.free(number) + self.relations.graph(of.instance).delay(of.node)
    }

    /// Returns the path's segments in time order.
    pub(super) fn path(&self) -> Vec<RunSegment> {
        let mut path = Vec::new();
        let Some(&last) = self.completed.last() else {
            return path;
        };
        let mut push = |number: usize, from: Time, to: Time, category: TimeCategory| {
            let RunNode { instance, node } = self.relations.node(number);
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
        let mut number = self.relations.number(last);
        loop {
            let end = self.times[number].end;
            let mut origin = self.origin(number);
            let mut start = self.times[origin].start;
            let kind = self.relations.kind(self.relations.node(number));
            let category = TimeCategory::of(kind).unwrap_or(TimeCategory::Idle);
            push(number, start, end, category);
            let mut lane = self
                .before(origin)
                .filter(|&lane| self.times[lane].end == start);
            if self.ready(origin) != start && lane.is_none() {
                // The collective took its lanes only when all members were ready, so the path may continue at the
                // last of them.
                let parked = self.parked_with(origin, start);
                origin = parked.unwrap_or(origin);
                if self.ready(origin) != start {
                    lane = self.before(origin);
                    let lane_free = lane.map_or(Time::ZERO, |lane| self.times[lane].end);
                    let free = self.ready(origin).max(lane_free).min(start);
                    push(origin, free, start, TimeCategory::Idle);
                    (start, lane) = (free, lane.filter(|_| lane_free == free));
                }
            }
            if self.ready(origin) == start {
                let free = self.free(origin);
                push(origin, free, start, TimeCategory::Host);
                match known(self.freed_by[origin].cause) {
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

    /// Returns the member of a collective that became ready last, if the members took their lanes at `start`.
    pub(super) fn parked_with(&self, number: usize, start: Time) -> Option<usize> {
        if self.relations.kind(self.relations.node(number)) != NodeKind::Collective {
            return None;
        }
        let mut members = self.relations.members(number);
        members.find(|&member| self.ready(member) == start)
    }
}
