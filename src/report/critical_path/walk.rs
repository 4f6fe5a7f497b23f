//! Follows the critical path backwards from the last completion, stepping from each start to its cause.

use super::recorder::{NodeStartAndEnd, RunRecorder};
use super::relations::{InstanceNodeId, node_index_unless_none};
use crate::{CriticalPathSegment, NpuTimeCategory};
use chakram_base::units::Time;
use chakram_engine::CommunicationDurationSource;
use chakram_trace::graph::NodeKind;

impl RunRecorder<'_> {
    /// Returns the time when a collective node's transfer began.
    pub(super) fn collective_transfer_begin_of_node(&self, of: InstanceNodeId) -> Time {
        self.began[self.relations.instances[of.instance.index()]
            .collective_index_among_all_instances(of.node)]
    }

    /// Returns true if the end of a collective node depends on its other members. Returns false if members do not
    /// wait for each other, or if the node ended before the transfer began.
    #[inline]
    pub(super) fn has_end_set_by_other_members(&self, of: InstanceNodeId) -> bool {
        self.relations.comm != CommunicationDurationSource::Captured
            && self.collective_transfer_begin_of_node(of)
                <= self.times[self.relations.number_of_node(of)].end
    }

    /// Returns the node at the other end of a message, if it determined this node's end.
    pub(super) fn waited_for(&self, of: InstanceNodeId) -> Option<usize> {
        let number = self.relations.number_of_node(of);
        let NodeStartAndEnd { start, end } = self.times[number];
        let other = node_index_unless_none(self.relations.peer[number])?;
        let graph = self.relations.graph_of(of.instance);
        let later = self.times[other].start > start;
        let waited = match (self.relations.comm, graph.kind(of.node)) {
            (CommunicationDurationSource::Model, NodeKind::Receive) => end > start,
            (CommunicationDurationSource::Recorded, NodeKind::Receive) => later,
            (CommunicationDurationSource::Recorded, NodeKind::Send) => {
                later && !graph.messages()[graph.message_index(of.node)].eager
            }
            _ => false,
        };
        waited.then_some(other)
    }

    /// Returns the node whose start determined this node's end. The path continues at that node.
    pub(super) fn find_node_that_determined_end(&self, number: usize) -> usize {
        let of = self.relations.node_at_number(number);
        match self.relations.kind_of(of) {
            NodeKind::Collective => {
                let (began, start) = (
                    self.collective_transfer_begin_of_node(of),
                    self.times[number].start,
                );
                if !self.has_end_set_by_other_members(of) || began == start {
                    return number;
                }
                let mut members = self.relations.call_members(number);
                let last = members.find(|&member| self.times[member].start == began);
                last.unwrap_or(number)
            }
            NodeKind::Send | NodeKind::Receive => self.waited_for(of).unwrap_or(number),
            _ => number,
        }
    }

    /// Returns the previous node on this node's lane.
    pub(super) fn previous_on_lane(&self, number: usize) -> Option<usize> {
        node_index_unless_none(self.freed_by[number].before)
    }

    /// Returns the time at which a node's last dependency completed.
    fn end_of_dependencies(&self, number: usize) -> Time {
        let of = self.relations.node_at_number(number);
        let instances = self
            .relations
            .prepared
            .workload_with_added_launches()
            .instances();
        let release = instances[of.instance.index()].release;
        node_index_unless_none(self.freed_by[number].cause)
            .map_or(release, |cause| self.times[cause].end)
    }

    pub(super) fn ready_time_after_launch_delay(&self, number: usize) -> Time {
        let of = self.relations.node_at_number(number);
        self.end_of_dependencies(number)
            + self
                .relations
                .graph_of(of.instance)
                .launch_delay_after_dependencies(of.node)
    }

    /// Returns the segments of the path in time order.
    pub(super) fn trace_path_segments(&self) -> Vec<CriticalPathSegment> {
        let mut path = Vec::new();
        let Some(&last) = self.completed.last() else {
            return path;
        };
        let mut push = |number: usize, from: Time, to: Time, category: NpuTimeCategory| {
            let InstanceNodeId { instance, node } = self.relations.node_at_number(number);
            if from < to {
                path.push(CriticalPathSegment {
                    instance,
                    node,
                    from,
                    to,
                    category,
                });
            }
        };
        let mut number = self.relations.number_of_node(last);
        loop {
            let end = self.times[number].end;
            let mut origin = self.find_node_that_determined_end(number);
            let mut start = self.times[origin].start;
            let kind = self
                .relations
                .kind_of(self.relations.node_at_number(number));
            let category = NpuTimeCategory::from_node_kind(kind).unwrap_or(NpuTimeCategory::Idle);
            push(number, start, end, category);
            let mut lane = self
                .previous_on_lane(origin)
                .filter(|&lane| self.times[lane].end == start);
            if self.ready_time_after_launch_delay(origin) != start && lane.is_none() {
                // The collective took its lanes only when all members were ready, so the path may continue at the last
                // of them.
                let parked = self.member_ready_at_start(origin, start);
                origin = parked.unwrap_or(origin);
                if self.ready_time_after_launch_delay(origin) != start {
                    lane = self.previous_on_lane(origin);
                    let lane_free = lane.map_or(Time::ZERO, |lane| self.times[lane].end);
                    let free = self
                        .ready_time_after_launch_delay(origin)
                        .max(lane_free)
                        .min(start);
                    push(origin, free, start, NpuTimeCategory::Idle);
                    (start, lane) = (free, lane.filter(|_| lane_free == free));
                }
            }
            if self.ready_time_after_launch_delay(origin) == start {
                let free = self.end_of_dependencies(origin);
                push(origin, free, start, NpuTimeCategory::Host);
                match node_index_unless_none(self.freed_by[origin].cause) {
                    Some(cause) => number = cause,
                    None => {
                        push(origin, Time::ZERO, free, NpuTimeCategory::Idle);
                        break;
                    }
                }
            } else if let Some(lane) = lane {
                number = lane;
            } else {
                push(origin, Time::ZERO, start, NpuTimeCategory::Idle);
                break;
            }
        }
        path.reverse();
        path
    }

    /// If all members of a collective took their lanes at `start`, returns the member that became ready at that time.
    pub(super) fn member_ready_at_start(&self, number: usize, start: Time) -> Option<usize> {
        if self
            .relations
            .kind_of(self.relations.node_at_number(number))
            != NodeKind::Collective
        {
            return None;
        }
        let mut members = self.relations.call_members(number);
        members.find(|&member| self.ready_time_after_launch_delay(member) == start)
    }
}
