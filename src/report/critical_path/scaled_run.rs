//! Computes when a recorded run would have ended if some nodes had had other durations. Dependencies, the order of
//! nodes on lanes, and transfer durations stay the same.
//!
//! Times are propagated forward over the recorded run. Each has a derivative with respect to x, the factor on one class
//! of durations. The end time is T(x) = max over paths of (time of other nodes + x * time of the class). This function
//! is convex and piecewise linear.

use super::recorder::{NodeStartAndEnd, RunRecorder};
use super::relations::{NONE, node_index_unless_none};
use chakram_base::units::{Span, Time};
use chakram_engine::CommunicationDurationSource;
use chakram_trace::graph::NodeKind;

/// A time, and its derivative with respect to the scale factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TimeWithSlope {
    at: i64,
    slope: i64,
}

impl TimeWithSlope {
    const NEVER: Self = Self {
        at: i64::MIN,
        slope: 0,
    };

    /// Returns the later of two times. If they are equal, returns the one that is later for slightly smaller factors.
    #[inline]
    fn later_of_two_times(self, other: Self) -> Self {
        if other.at > self.at || other.at == self.at && other.slope < self.slope {
            other
        } else {
            self
        }
    }

    /// Adds a duration, which is scaled by `factor` if it belongs to the scaled class.
    #[inline]
    fn advance_by_possibly_scaled_span(self, span: i64, of_class: bool, factor: f64) -> Self {
        match of_class {
            true => Self {
                at: self.at + (span as f64 * factor).round() as i64,
                slope: self.slope + span,
            },
            false => Self {
                at: self.at + span,
                slope: self.slope,
            },
        }
    }
}

/// Rule that determines a node's end.
#[derive(Clone, Copy, Debug)]
enum NodeEndRule {
    /// The end depends only on the node's own start.
    Alone,
    /// The node is a collective: its end depends on the latest start among the members.
    Joined,
    /// The receive ends `lasts` after the start of its send, but not before its own start.
    Arrival { sender: u32, lasts: i64 },
    /// The end depends on the later of the send's and the receive's start.
    Both(u32),
}

/// The end of the run at one value of the factor, and its left derivative at that value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunEndWithSlope {
    /// End of the run, since the start of the replay.
    pub end: Span,
    /// Derivative of the end in picoseconds per unit of the factor.
    pub slope: i64,
}

/// A recorded run, which can be timed again with other durations.
#[derive(Debug)]
pub struct RetimableRun<'r> {
    run: &'r RunRecorder<'r>,
    /// Node numbers, in topological order.
    order: Vec<u32>,
    rules: Vec<NodeEndRule>,
    /// For each node, the recorded time between its earliest possible start and its actual start.
    gaps: Vec<i64>,
    /// For each node, the host time before the node. Empty if no node has such time.
    delays: Vec<i64>,
    releases: Vec<i64>,
}

fn time_as_signed_picoseconds(at: Time) -> i64 {
    at.0 as i64
}

impl<'r> RetimableRun<'r> {
    pub fn new(run: &'r RunRecorder<'r>) -> Self {
        let relations = &run.relations;
        let host = relations.prepared.host_duration_source();
        let workload = relations.prepared.workload_with_added_launches();
        let order = run
            .completed
            .iter()
            .map(|of| relations.number_of_node(*of) as u32);
        let mut this = Self {
            run,
            order: order.collect(),
            rules: Vec::with_capacity(relations.nodes),
            gaps: vec![0; relations.nodes],
            delays: Vec::new(),
            releases: Vec::with_capacity(relations.nodes),
        };
        let has_delays = relations.instances.iter().any(|one| one.graph.has_delays());
        if has_delays {
            this.delays.resize(relations.nodes, 0);
        }
        for (instance, of) in relations.instances.iter().zip(workload.instances()) {
            for node in instance.graph.nodes() {
                let number = instance.node_number(node);
                this.releases.push(time_as_signed_picoseconds(of.release));
                if has_delays {
                    this.delays[number] = host
                        .scale_duration(instance.graph.launch_delay_after_dependencies(node))
                        .0 as i64;
                }
            }
        }
        for number in 0..relations.nodes {
            this.rules.push(this.end_rule_of(number));
        }
        for number in 0..relations.nodes {
            this.gaps[number] = this.lane_gap_before(number);
        }
        this
    }

    fn end_rule_of(&self, number: usize) -> NodeEndRule {
        let run = self.run;
        let of = run.relations.node_at_number(number);
        let kind = run.relations.kind_of(of);
        let NodeStartAndEnd { start, end } = run.times[number];
        let other = node_index_unless_none(run.relations.peer[number]);
        match kind {
            NodeKind::Collective if run.has_end_set_by_other_members(of) => NodeEndRule::Joined,
            NodeKind::Receive | NodeKind::Send => {
                let Some(other) = other else {
                    return NodeEndRule::Alone;
                };
                match (run.relations.comm, kind) {
                    (CommunicationDurationSource::Model, NodeKind::Receive) => {
                        // The arrival time of a message is unknown if the message arrived before the receive started,
                        // so use the end of the send.
                        let there = if end > start {
                            end
                        } else {
                            run.times[other].end.min(end)
                        };
                        NodeEndRule::Arrival {
                            sender: other as u32,
                            lasts: time_as_signed_picoseconds(there)
                                - time_as_signed_picoseconds(run.times[other].start),
                        }
                    }
                    (CommunicationDurationSource::Recorded, _) if run.waited_for(of).is_some() => {
                        NodeEndRule::Both(other as u32)
                    }
                    _ => NodeEndRule::Alone,
                }
            }
            _ => NodeEndRule::Alone,
        }
    }

    /// Returns the earliest time when a node could start by itself: its dependencies have ended, its delay has
    /// passed, and its lane is free.
    fn earliest_start_after_dependencies_and_lane(&self, number: usize) -> i64 {
        let freed = self.run.freed_by[number];
        let end = |other: u32| {
            node_index_unless_none(other)
                .map(|other| time_as_signed_picoseconds(self.run.times[other].end))
        };
        let free = end(freed.cause).unwrap_or(self.releases[number]);
        let ready = free + self.delays.get(number).copied().unwrap_or(0);
        end(freed.before).map_or(ready, |before| before.max(ready))
    }

    fn lane_gap_before(&self, number: usize) -> i64 {
        let start = time_as_signed_picoseconds(self.run.times[number].start);
        let gap = start - self.earliest_start_after_dependencies_and_lane(number);
        // If all members take their lanes at once, they start when the last member is ready. The wait for the last
        // member is recomputed, so it is not a gap.
        let together = gap != 0
            && matches!(self.rules[number], NodeEndRule::Joined)
            && (self.run.relations.call_members(number))
                .any(|member| self.earliest_start_after_dependencies_and_lane(member) == start);
        if together { 0 } else { gap }
    }

    /// Recomputes the run with the durations of nodes in `of_class` multiplied by `factor`. If `of_host` is set, also
    /// multiplies the delays of the host.
    pub fn compute_scaled_end(
        &self,
        factor: f64,
        of_class: &[bool],
        of_host: bool,
    ) -> RunEndWithSlope {
        let relations = &self.run.relations;
        let mut pass = ForwardTimingSweep {
            scaled: self,
            factor,
            of_host,
            ready: (self
                .releases
                .iter()
                .map(|at| TimeWithSlope { at: *at, slope: 0 }))
            .collect(),
            ends: vec![TimeWithSlope::NEVER; relations.nodes],
            begins: vec![TimeWithSlope::NEVER; relations.call_count()],
        };
        // A dependency never completes before the release time, so the first dependency that completes replaces it.
        let mut freed = vec![false; relations.nodes];
        let mut last = TimeWithSlope { at: 0, slope: 0 };
        for &number in &self.order {
            let number = number as usize;
            let end = pass.end_of_node(number, of_class);
            pass.ends[number] = end;
            last = last.later_of_two_times(end);
            let of = relations.node_at_number(number);
            let instance = &relations.instances[of.instance.index()];
            for next in instance.graph.successors(of.node) {
                let next = instance.node_number(next);
                pass.ready[next] = match std::mem::replace(&mut freed[next], true) {
                    false => end,
                    true => pass.ready[next].later_of_two_times(end),
                };
            }
        }
        RunEndWithSlope {
            end: Span(last.at.max(0) as u64),
            slope: last.slope,
        }
    }
}

/// Propagates times forward once over a recorded run.
struct ForwardTimingSweep<'s> {
    scaled: &'s RetimableRun<'s>,
    factor: f64,
    of_host: bool,
    ready: Vec<TimeWithSlope>,
    ends: Vec<TimeWithSlope>,
    /// Start of each collective; set when the first of its members is visited.
    begins: Vec<TimeWithSlope>,
}

impl ForwardTimingSweep<'_> {
    fn start_of_node(&self, number: usize) -> TimeWithSlope {
        let scaled = self.scaled;
        let delay = scaled.delays.get(number).copied().unwrap_or(0);
        let ready =
            self.ready[number].advance_by_possibly_scaled_span(delay, self.of_host, self.factor);
        let before = scaled.run.freed_by[number].before;
        let start = match before {
            NONE => ready,
            before => ready.later_of_two_times(self.ends[before as usize]),
        };
        start.advance_by_possibly_scaled_span(scaled.gaps[number], false, self.factor)
    }

    fn end_of_node(&mut self, number: usize, of_class: &[bool]) -> TimeWithSlope {
        let run = self.scaled.run;
        let NodeStartAndEnd { start, end } = run.times[number];
        let is_scaled = of_class[number];
        let lasts = |from: Time| time_as_signed_picoseconds(end) - time_as_signed_picoseconds(from);
        match self.scaled.rules[number] {
            NodeEndRule::Alone => self.start_of_node(number).advance_by_possibly_scaled_span(
                lasts(start),
                is_scaled,
                self.factor,
            ),
            NodeEndRule::Joined => {
                let call = run.relations.peer[number] as usize;
                if self.begins[call] == TimeWithSlope::NEVER {
                    let members = run.relations.call_members(number);
                    let starts = members.map(|member| self.start_of_node(member));
                    self.begins[call] =
                        starts.fold(TimeWithSlope::NEVER, TimeWithSlope::later_of_two_times);
                }
                let began =
                    run.collective_transfer_begin_of_node(run.relations.node_at_number(number));
                self.begins[call].advance_by_possibly_scaled_span(
                    lasts(began),
                    is_scaled,
                    self.factor,
                )
            }
            NodeEndRule::Arrival { sender, lasts } => {
                let there = self
                    .start_of_node(sender as usize)
                    .advance_by_possibly_scaled_span(lasts, is_scaled, self.factor);
                self.start_of_node(number).later_of_two_times(there)
            }
            NodeEndRule::Both(other) => {
                let from = start.max(run.times[other as usize].start);
                let both = self
                    .start_of_node(number)
                    .later_of_two_times(self.start_of_node(other as usize));
                both.advance_by_possibly_scaled_span(lasts(from), is_scaled, self.factor)
            }
        }
    }
}
