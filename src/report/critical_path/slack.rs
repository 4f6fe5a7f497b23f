//! Slack: how much later each node could have ended.

use super::SlackRow;
use super::recorder::{RunNode, RunRecorder};
use super::walk::{LaneNeighbours, RunRelations, RunSegment, known};
use crate::engine::CommTiming;
use crate::graph::{NodeKind, huge_pages};
use crate::report::breakdown::TimeCategory;
use crate::units::{Span, Time};

/// The latest end of each node, by number, that leaves the end of the run where it is.
pub fn latest_ends(relations: &RunRelations<'_>, makespan: Time) -> Vec<Time> {
    let run = relations.run;
    let mut limits = LateLimits {
        relations,
        late: huge_pages::filled(run.len(), makespan),
        begins: vec![Time::END; relations.calls()],
    };
    let mut following = LaneNeighbours::new(run);
    // Whatever waits for a node completes after it, so its limits are known by then.
    for &of in run.completed().iter().rev() {
        let graph = run.graph(of.instance);
        let successors = graph.successors(of.node).map(|node| {
            let next = RunNode { node, ..of };
            earlier(limits.start(next), graph.delay(node))
        });
        let late = successors.min().unwrap_or(makespan).min(makespan);
        let lane = following.replace(of).map(|next| limits.start(next));
        limits.set(of, lane.map_or(late, |lane| lane.min(late)));
    }
    limits.late
}

fn earlier(at: Time, by: Span) -> Time {
    Time(at.0.saturating_sub(by.0))
}

/// Limits found so far, from the end of the run on.
struct LateLimits<'r> {
    relations: &'r RunRelations<'r>,
    /// The latest end of each node.
    late: Vec<Time>,
    /// The latest begin of each call.
    begins: Vec<Time>,
}

impl LateLimits<'_> {
    fn set(&mut self, of: RunNode, late: Time) {
        let run = self.relations.run;
        let number = run.number(of);
        self.late[number] = late;
        let collective = run.kind(of) == NodeKind::Collective;
        if collective && self.relations.is_joined(number) {
            let call = self.relations.peer[number] as usize;
            let lasts = run.end(number).since(run.began(number));
            self.begins[call] = self.begins[call].min(earlier(late, lasts));
        }
    }

    /// The latest start of a node.
    fn start(&self, of: RunNode) -> Time {
        let (relations, run) = (self.relations, self.relations.run);
        let number = run.number(of);
        let late = self.late[number];
        let own = earlier(late, run.end(number).since(run.start(number)));
        match run.kind(of) {
            NodeKind::Collective if relations.is_joined(number) => {
                self.begins[relations.peer[number] as usize]
            }
            NodeKind::Send | NodeKind::Receive => self.message_start(number, own),
            _ => own,
        }
    }

    /// The latest start of half a message that would start at `own` if the other half did not matter.
    fn message_start(&self, number: usize, own: Time) -> Time {
        let (relations, run) = (self.relations, self.relations.run);
        // After the later of two starts this much of a half was left.
        let left = |half: usize, from: Time| Span(run.end(half).0.saturating_sub(from.0));
        let start = run.start(number);
        let mine = match relations.waited_for(number) {
            Some(_) if relations.prepared.comm() == CommTiming::Model => self.late[number],
            Some(other) => earlier(self.late[number], left(number, run.start(other))),
            None => own,
        };
        let receives = |half: usize| run.kind(run.node(half)) == NodeKind::Receive;
        let other =
            known(relations.peer[number]).filter(|&other| match relations.prepared.comm() {
                CommTiming::Model => receives(other),
                CommTiming::Recorded => true,
                CommTiming::Captured => false,
            });
        other.map_or(mine, |other| {
            let from = match relations.prepared.comm() {
                CommTiming::Model => start,
                _ => start.max(run.start(other)),
            };
            mine.min(earlier(self.late[other], left(other, from)))
        })
    }
}

/// Sums the slack of nodes that are not on `path`, by category, given the latest end of each node.
pub fn rows(
    run: &RunRecorder<'_>,
    late: &[Time],
    path: &[RunSegment],
    makespan: Time,
) -> Vec<SlackRow> {
    let mut on_path = vec![false; run.len()];
    for &RunSegment { instance, node, .. } in path {
        on_path[run.number(RunNode { instance, node })] = true;
    }
    let mut nodes = room_by_category(run);
    for (number, of) in run.nodes().enumerate() {
        let category = TimeCategory::of(run.kind(of));
        let Some(category) = category.filter(|_| !on_path[number]) else {
            continue;
        };
        let end = run.end(number);
        let slack = Span(late[number].0.saturating_sub(end.0));
        nodes[category as usize].push((slack, end.since(run.start(number))));
    }
    let keyed = TimeCategory::KEYS.iter().zip(nodes);
    let rows = keyed.filter_map(|(category, mut nodes)| {
        let least = nodes.iter().min()?.0;
        let time = total(nodes.iter());
        let close = nodes.iter().filter(|(slack, _)| slack.0 < makespan.0 / 100);
        let near = total(close);
        Some(SlackRow {
            category: (*category).to_owned(),
            nodes: nodes.len() as u64,
            time,
            least,
            median: weighted_median(&mut nodes, Span(time.0 / 2)),
            near,
        })
    });
    rows.collect()
}

/// Empty lists with room for all nodes of each category: the nodes of a run are too many to move when a list grows.
fn room_by_category(run: &RunRecorder<'_>) -> [Vec<(Span, Span)>; 4] {
    let mut counts = [0; 4];
    for of in run.nodes() {
        if let Some(category) = TimeCategory::of(run.kind(of)) {
            counts[category as usize] += 1;
        }
    }
    counts.map(huge_pages::huge_page_vec)
}

/// The time of nodes together.
fn total<'n>(nodes: impl Iterator<Item = &'n (Span, Span)>) -> Span {
    nodes.map(|(_, time)| *time).sum()
}

/// The first slack, from the least on, up to which nodes took `half` of the time together: by selection, since sorting the
/// nodes of a run takes longer than all else here.
fn weighted_median(mut nodes: &mut [(Span, Span)], half: Span) -> Span {
    let mut before = Span::ZERO;
    loop {
        let (less, &mut (slack, time), _) = nodes.select_nth_unstable(nodes.len() / 2);
        let count = less.len();
        let until = total(less.iter()) + before;
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
