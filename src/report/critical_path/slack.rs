//! Slack: how much later each node could have ended without delaying the end of the run.

use super::OffPathCategorySlackRow;
use super::recorder::{NodeStartAndEnd, RunRecorder};
use super::relations::{InstanceNodeId, NONE, RankGraphWithNumberOffsets, node_index_unless_none};
use crate::CriticalPathSegment;
use crate::NpuTimeCategory;
use chakram_base::ids::NodeIndex;
use chakram_base::units::{Span, Time};
use chakram_engine::CommunicationDurationSource;
use chakram_engine::InstanceId;
use chakram_trace::graph::{NodeKind, huge_pages};

fn subtract_span_from_time(at: Time, by: Span) -> Time {
    Time(at.0.saturating_sub(by.0))
}

/// The latest start and end that a node can have without delaying the end of the run.
#[derive(Clone, Copy, Debug)]
struct LatestStartAndEnd {
    end: Time,
    /// Latest start that the node's own latest end allows: latest end minus duration.
    start: Time,
}

/// Latest times of the nodes visited so far. Nodes are visited backwards from the end of the run.
struct LatestTimesOfRun<'r> {
    run: &'r RunRecorder<'r>,
    /// Latest start and end; the index is the node number.
    latest: Vec<LatestStartAndEnd>,
    /// Latest start of each collective call's transfer.
    begins: Vec<Time>,
}

impl LatestTimesOfRun<'_> {
    /// Sets the latest end of a node, and the latest start that this end implies.
    #[inline]
    fn set_latest_end(&mut self, of: InstanceNodeId, kind: NodeKind, number: usize, late: Time) {
        let run = self.run;
        let NodeStartAndEnd { start, end } = run.times[number];
        self.latest[number] = LatestStartAndEnd {
            end: late,
            start: subtract_span_from_time(late, end.since(start)),
        };
        if kind == NodeKind::Collective && run.has_end_set_by_other_members(of) {
            let call = run.relations.peer[number] as usize;
            let lasts = end.since(run.collective_transfer_begin_of_node(of));
            self.begins[call] = self.begins[call].min(subtract_span_from_time(late, lasts));
        }
    }

    /// Returns the latest start of a node.
    #[inline]
    fn latest_start_of(
        &self,
        place: InstanceId,
        instance: &RankGraphWithNumberOffsets<'_>,
        node: NodeIndex,
    ) -> Time {
        let number = instance.node_number(node);
        match instance.graph.kind(node) {
            NodeKind::Collective | NodeKind::Send | NodeKind::Receive => {
                let of = InstanceNodeId {
                    instance: place,
                    node,
                };
                self.latest_start_of_collective_or_message(of, number)
            }
            _ => self.latest[number].start,
        }
    }

    /// Returns the latest start of a collective, send or receive, which also depends on other ranks.
    fn latest_start_of_collective_or_message(&self, of: InstanceNodeId, number: usize) -> Time {
        let run = self.run;
        match run.relations.kind_of(of) {
            NodeKind::Collective if run.has_end_set_by_other_members(of) => {
                self.begins[run.relations.peer[number] as usize]
            }
            NodeKind::Collective => self.latest[number].start,
            half => self.latest_message_start(of, number, half),
        }
    }

    /// Returns the latest start of a send or receive, including the limit from the other end of the message.
    fn latest_message_start(&self, of: InstanceNodeId, number: usize, half: NodeKind) -> Time {
        let (run, comm) = (self.run, self.run.relations.comm);
        // Remaining duration of a send or receive after `from`, the later of the two starts.
        let left = |half: usize, from: Time| Span(run.times[half].end.0.saturating_sub(from.0));
        let start = run.times[number].start;
        let own = self.latest[number];
        let mine = match run.waited_for(of) {
            Some(_) if comm == CommunicationDurationSource::Model => own.end,
            Some(other) => subtract_span_from_time(own.end, left(number, run.times[other].start)),
            // The other end of the message did not delay this node, so only its own limit applies.
            None => own.start,
        };
        let other = node_index_unless_none(run.relations.peer[number]).filter(|_| match comm {
            CommunicationDurationSource::Model => half == NodeKind::Send,
            CommunicationDurationSource::Recorded => true,
            CommunicationDurationSource::Captured => false,
        });
        other.map_or(mine, |other| {
            let from = match comm {
                CommunicationDurationSource::Model => start,
                _ => start.max(run.times[other].start),
            };
            mine.min(subtract_span_from_time(
                self.latest[other].end,
                left(other, from),
            ))
        })
    }
}

/// Summarizes the slack of the nodes outside `path` by category. `makespan` is the end of the run.
pub fn summarise_slack_by_category(
    run: &RunRecorder<'_>,
    path: &[CriticalPathSegment],
    makespan: Time,
) -> Vec<OffPathCategorySlackRow> {
    let relations = &run.relations;
    let mut on_path = vec![false; relations.nodes];
    for &CriticalPathSegment { instance, node, .. } in path {
        on_path[relations.number_of_node(InstanceNodeId { instance, node })] = true;
    }
    let near = Span(makespan.0 / 100);
    let mut sums = [const { CategorySlackSums::new() }; NpuTimeCategory::COUNT - 1];
    let mut limits = LatestTimesOfRun {
        run,
        latest: huge_pages::allocate_filled(
            relations.nodes,
            LatestStartAndEnd {
                end: makespan,
                start: makespan,
            },
        ),
        begins: vec![Time::END; relations.call_count()],
    };
    // For each lane, the node visited last, which is the next node on that lane in run order.
    let mut following = vec![NONE; relations.lanes];
    // Nodes that wait for this node complete later, so the backward walk has already visited them.
    for &of in run.completed.iter().rev() {
        let InstanceNodeId {
            instance: place,
            node,
        } = of;
        let instance = &relations.instances[place.index()];
        let graph = instance.graph;
        let mut late = makespan;
        for next in graph.successors(node) {
            let start = limits.latest_start_of(place, instance, next);
            late = late.min(subtract_span_from_time(
                start,
                graph.launch_delay_after_dependencies(next),
            ));
        }
        let lane = instance.lane_index_among_all_instances(node);
        let next = lane.and_then(|lane| {
            node_index_unless_none(std::mem::replace(&mut following[lane], node.0))
        });
        if let Some(next) = next {
            late = late.min(limits.latest_start_of(place, instance, NodeIndex(next as u32)));
        }
        let (kind, number) = (graph.kind(node), instance.node_number(node));
        limits.set_latest_end(of, kind, number, late);
        let category = NpuTimeCategory::from_node_kind(kind).filter(|_| !on_path[number]);
        if let Some(category) = category {
            let (slack, time) = slack_and_duration(run.times[number], late);
            sums[category as usize].add_node(slack, time, near);
        }
    }
    let medians = sums
        .each_ref()
        .map(CategorySlackSums::slack_range_and_remaining_time_of_median);
    let medians = median_slack_by_category(medians, &limits, &on_path);
    let rows = NpuTimeCategory::KEYS.iter().zip(sums).zip(medians);
    let rows = rows.filter_map(|((category, sums), median)| {
        Some(OffPathCategorySlackRow {
            category: (*category).to_owned(),
            nodes: sums.nodes,
            time: sums.time,
            least: sums.least,
            median: median?,
            near: sums.near,
        })
    });
    rows.collect()
}

/// Returns a node's slack from its latest end and its duration.
#[inline]
fn slack_and_duration(times: NodeStartAndEnd, late: Time) -> (Span, Span) {
    let slack = Span(late.0.saturating_sub(times.end.0));
    (slack, times.end.since(times.start))
}

/// Returns the median slack of each category. For each category, `ranges` states the slack range of the median, and the
/// time needed within this range to reach the median. Only nodes in this range are stored and sorted, with neighbours
/// of equal slack merged. This needs little memory.
fn median_slack_by_category(
    ranges: [Option<(usize, Span)>; NpuTimeCategory::COUNT - 1],
    limits: &LatestTimesOfRun<'_>,
    on_path: &[bool],
) -> [Option<Span>; NpuTimeCategory::COUNT - 1] {
    let run = limits.run;
    let mut about = [const { Vec::new() }; NpuTimeCategory::COUNT - 1];
    for instance in &run.relations.instances {
        for node in instance.graph.nodes() {
            let number = instance.node_number(node);
            let category = NpuTimeCategory::from_node_kind(instance.graph.kind(node));
            let Some(category) = category.filter(|_| !on_path[number]) else {
                continue;
            };
            let (slack, time) = slack_and_duration(run.times[number], limits.latest[number].end);
            if ranges[category as usize].is_none_or(|(range, _)| range != slack_range_index(slack))
            {
                continue;
            }
            let about: &mut Vec<(Span, Span)> = &mut about[category as usize];
            match about.last_mut() {
                Some((last, sum)) if *last == slack => *sum += time,
                _ => about.push((slack, time)),
            }
        }
    }
    let mut medians = [None; NpuTimeCategory::COUNT - 1];
    for ((median, range), nodes) in medians.iter_mut().zip(ranges).zip(&mut about) {
        *median = range.map(|(_, left)| weighted_median(nodes, left));
    }
    medians
}

/// Number of slack ranges. A range is one picosecond wide, or at most 1/32 of its lower limit.
const RANGES: usize = (u64::BITS as usize - RANGE_BITS as usize + 1) << RANGE_BITS;
/// How many bits after the highest bit of a slack select its range.
const RANGE_BITS: u32 = 5;

/// Returns the index of the range in which a slack falls. A larger slack never has a lower index.
#[inline]
fn slack_range_index(slack: Span) -> usize {
    let shift = (u64::BITS - slack.0.leading_zeros()).saturating_sub(RANGE_BITS + 1);
    ((shift as usize) << RANGE_BITS) + (slack.0 >> shift) as usize
}

/// Sums for the nodes of one category.
#[derive(Debug)]
struct CategorySlackSums {
    nodes: u64,
    time: Span,
    least: Span,
    near: Span,
    /// Time of the nodes in each range of slack. Empty until the first node is added.
    by_range: Vec<Span>,
}

impl CategorySlackSums {
    const fn new() -> Self {
        Self {
            nodes: 0,
            time: Span::ZERO,
            least: Span(u64::MAX),
            near: Span::ZERO,
            by_range: Vec::new(),
        }
    }

    #[inline]
    fn add_node(&mut self, slack: Span, time: Span, near: Span) {
        if self.nodes == 0 {
            self.by_range.resize(RANGES, Span::ZERO);
        }
        self.nodes += 1;
        self.time += time;
        self.least = self.least.min(slack);
        if slack < near {
            self.near += time;
        }
        self.by_range[slack_range_index(slack)] += time;
    }

    /// Returns the slack range of the time-weighted median. Also returns the time needed within this range to reach the
    /// median: half of the total time minus the time in lower ranges. `None` if there are no nodes.
    fn slack_range_and_remaining_time_of_median(&self) -> Option<(usize, Span)> {
        if self.nodes == 0 {
            return None;
        }
        let half = Span(self.time.0 / 2);
        let mut before = Span::ZERO;
        for (range, &time) in self
            .by_range
            .iter()
            .enumerate()
            .skip(slack_range_index(self.least))
        {
            if before + time >= half {
                return Some((range, half - before));
            }
            before += time;
        }
        unreachable!("all nodes together took at least half of their time")
    }
}

/// Returns the sum of the nodes' durations.
fn sum_durations<'n>(nodes: impl Iterator<Item = &'n (Span, Span)>) -> Span {
    nodes.map(|(_, time)| *time).sum()
}

/// Returns the weighted median: the smallest slack `s` such that nodes with slack up to `s` account for at least `half`
/// of the time. Selects instead of sorting, because sorting all nodes of a run would take longer than the rest of the
/// module.
fn weighted_median(mut nodes: &mut [(Span, Span)], half: Span) -> Span {
    let mut before = Span::ZERO;
    loop {
        let (less, &mut (slack, time), _) = nodes.select_nth_unstable(nodes.len() / 2);
        let count = less.len();
        let until = sum_durations(less.iter()) + before;
        if count > 0 && until >= half {
            nodes = &mut nodes[..count];
        } else if until + time >= half || count + 1 == nodes.len() {
            return slack;
        } else {
            before = until + time;
            nodes = &mut nodes[count + 1..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_slack_ascend() {
        // Below 64, each slack has its own range. From 64 to 127, two slacks share a range; from 128 to 255, four
        // slacks; and so on.
        let ranges = [
            (0, 0),
            (1, 1),
            (63, 63),
            (64, 64),
            (65, 64),
            (66, 65),
            (127, 95),
            (128, 96),
        ];
        for (slack, range) in ranges {
            assert_eq!(slack_range_index(Span(slack)), range, "{slack}");
        }
        assert_eq!(slack_range_index(Span(u64::MAX)), RANGES - 1);
        let powers = (0..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) | 1_u64]);
        let ranges: Vec<_> = powers.map(|slack| slack_range_index(Span(slack))).collect();
        assert!(ranges.is_sorted());
    }

    #[test]
    fn sums_and_selection_find_the_median_of_all() {
        let mut seed = 3_u64;
        for length in 1..60 {
            let mut next = |most: u64| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                Span((seed >> 33) % most)
            };
            let mut nodes: Vec<_> = (0..length).map(|_| (next(1 << 20), next(5))).collect();
            let mut sums = CategorySlackSums::new();
            for &(slack, time) in &nodes {
                sums.add_node(slack, time, Span(1 << 18));
            }
            let (range, left) = sums.slack_range_and_remaining_time_of_median().unwrap();
            let mut about = nodes.clone();
            about.retain(|(slack, _)| slack_range_index(*slack) == range);
            let all = sum_durations(nodes.iter());
            let near = nodes.iter().filter(|(slack, _)| slack.0 < 1 << 18);
            assert_eq!((sums.time, sums.near), (all, sum_durations(near)));
            let expected = weighted_median(&mut nodes, Span(all.0 / 2));
            assert_eq!(weighted_median(&mut about, left), expected);
        }
    }

    #[test]
    fn half_of_the_time_lies_up_to_the_median() {
        let mut seed = 7_u64;
        for length in 1..40 {
            for _ in 0..50 {
                let mut next = |most: u64| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    Span((seed >> 33) % most)
                };
                let mut nodes: Vec<_> = (0..length).map(|_| (next(9), next(5))).collect();
                let half = Span(nodes.iter().map(|(_, time)| time.0).sum::<u64>() / 2);
                let mut sorted = nodes.clone();
                sorted.sort();
                let mut until = 0;
                let first = sorted.iter().find(|(_, time)| {
                    until += time.0;
                    until >= half.0
                });
                let found = weighted_median(&mut nodes, half);
                assert_eq!(Some(found), first.map(|(slack, _)| *slack), "{sorted:?}");
            }
        }
    }
}
