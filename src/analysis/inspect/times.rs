//! Start and end times of a rank's nodes, and where these times come from.

use super::class::InspectedNodeType;
use super::lanes::NodeLaneTable;
use chakram_base::units::{Span, Time};
use chakram_trace::graph::captured_timeline::{NONE, NodeDelayDurationAndLane};
use chakram_trace::graph::raw_trace::PredecessorIdIndexAndKind;
use chakram_trace::graph::{Csr, NodeStartEndTimesAndCauses, RawTrace};

/// Where a rank's times come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeStartTimesSource {
    /// The file contains start times.
    Given,
    /// The file contains durations, and delays between nodes, which together reproduce the captured run.
    Kept,
    /// The file contains durations, but no delays. The time between nodes is therefore unknown, and computed starts are
    /// too early.
    Estimated,
    /// The file contains no durations.
    Unknown,
}

impl NodeStartTimesSource {
    /// Returns the name of this source in output files.
    pub fn name_of_basis(self) -> &'static str {
        match self {
            Self::Given => "given",
            Self::Kept => "kept",
            Self::Estimated => "estimated",
            Self::Unknown => "unknown",
        }
    }
}

/// Start and end times of a rank's nodes.
#[derive(Debug)]
pub struct RankNodeTimes {
    /// Where the times come from.
    pub basis: NodeStartTimesSource,
    /// True if every duration is a whole number of microseconds, the resolution of the schema's `duration_micros`
    /// field.
    pub whole_micros: bool,
    /// Start and end of each node, and the node that caused the start.
    pub run: NodeStartEndTimesAndCauses,
}

impl RankNodeTimes {
    /// Computes the times of the nodes of `raw`; `next` contains the successors of each node by enforced dependencies.
    pub fn new(
        raw: &RawTrace<'_>,
        classes: &[InspectedNodeType],
        lanes: &NodeLaneTable<'_>,
        next: &Csr,
    ) -> Self {
        let step = |node: u32| NodeDelayDurationAndLane {
            delay: raw.nodes[node as usize].view.delay,
            length: raw.nodes[node as usize].view.recorded_duration_with_wait(),
            lane: lanes.find_lane_node_has_to_itself(node),
            settles: NodeLaneTable::class_starts_after_same_time_events(classes[node as usize]),
        };
        let mut run = NodeStartEndTimesAndCauses::new(next, lanes.lane_count(), step);
        let (mut durations, mut delays, mut whole, mut started, mut all) =
            (false, false, true, false, true);
        for node in raw.range_of_all_node_indices() {
            let view = &raw.nodes[node as usize].view;
            let took = view.recorded_duration_with_wait();
            durations |= took > Span::ZERO;
            delays |= view.delay > Span::ZERO;
            whole &= took.0.is_multiple_of(1_000_000);
            if classes[node as usize].takes_time() {
                started |= view.start_micros > 0;
                all &= view.start_micros > 0;
            }
        }
        let basis = if started && all {
            replace_computed_times_by_recorded_ones(raw, classes, lanes, &mut run);
            NodeStartTimesSource::Given
        } else if raw.metadata.captured.is_some() || (delays && durations) {
            NodeStartTimesSource::Kept
        } else if durations {
            NodeStartTimesSource::Estimated
        } else {
            NodeStartTimesSource::Unknown
        };
        Self {
            basis,
            whole_micros: whole,
            run,
        }
    }

    /// Returns the start of the first node and the end of the last node.
    pub fn first_start_and_last_end(&self) -> (Time, Time) {
        let running = || (0..self.run.start.len()).filter(|&i| self.run.has_node_run(i as u32));
        let first = running().map(|i| self.run.start[i]).min();
        let last = running().map(|i| self.run.end[i]).max();
        (first.unwrap_or(Time::ZERO), last.unwrap_or(Time::ZERO))
    }
}

/// Replaces starts and ends with the file's times, counted from the first node that takes time. A node's new cause is a
/// dependency or the previous node on its lane, whichever was the last to end before the node's start.
fn replace_computed_times_by_recorded_ones(
    raw: &RawTrace<'_>,
    classes: &[InspectedNodeType],
    lanes: &NodeLaneTable<'_>,
    run: &mut NodeStartEndTimesAndCauses,
) {
    let micros = |node: u32| raw.nodes[node as usize].view.start_micros;
    let timed = |node: &u32| classes[*node as usize].takes_time();
    let origin = raw
        .range_of_all_node_indices()
        .filter(timed)
        .map(micros)
        .min()
        .unwrap_or(0);
    for node in raw.range_of_all_node_indices() {
        let i = node as usize;
        let start = Time::ZERO + Span::from_us(micros(node).saturating_sub(origin));
        run.start[i] = start;
        run.end[i] = start + raw.nodes[node as usize].view.recorded_duration_with_wait();
        run.cause[i] = NONE;
    }
    // The file contains a start time for every node, so all nodes ran, even nodes on a cycle of dependencies.
    run.ran = raw.nodes.len();
    let mut before = vec![NONE; raw.nodes.len()];
    let mut order: Vec<u32> = raw.range_of_all_node_indices().collect();
    // Nodes on a lane run one after another, so the previous node on the lane may have delayed this one.
    order.sort_by_key(|&node| {
        (
            lanes.find_lane_node_has_to_itself(node),
            run.start[node as usize],
            node,
        )
    });
    for pair in order.windows(2) {
        if lanes.find_lane_node_has_to_itself(pair[0]) != NONE
            && lanes.find_lane_node_has_to_itself(pair[0])
                == lanes.find_lane_node_has_to_itself(pair[1])
        {
            before[pair[1] as usize] = pair[0];
        }
    }
    for node in raw.range_of_all_node_indices() {
        let key = |i: u32| (run.start[i as usize], i);
        let deps = raw.dependencies_of(node).iter().map(|dep| dep.node);
        let earlier = deps
            .chain([before[node as usize]])
            .filter(|&d| d != PredecessorIdIndexAndKind::MISSING && d != NONE)
            // If two nodes start at the same time, only the node with the lower id may cause the other's start.
            // Otherwise, causes could form a cycle.
            .filter(|&d| run.end[d as usize] <= run.start[node as usize] && key(d) < key(node));
        let cause = earlier.max_by_key(|&d| (run.end[d as usize], d));
        run.cause[node as usize] = cause.unwrap_or(NONE);
    }
}
