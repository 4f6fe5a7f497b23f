//! Computes when a rank's nodes ran on the captured machine.
//!
//! Files state durations and delays, but not start times. One pass over the graph computes start times with the rules
//! that a replay with captured times follows. A node is *ready* when its delay has passed after the end of its last
//! predecessor (or after the start of the rank). A ready node *starts* when its lane is free. A lane serves nodes in
//! the order in which they became ready. Nodes that became ready together are served in ascending order of ids. The
//! node ends when its duration has passed. The computation visits each node once, in the order in which nodes become
//! ready.

use super::Csr;
use chakram_base::units::{Span, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Stands for "no node" and "no lane".
pub const NONE: u32 = u32::MAX;

/// The properties of a node that determine its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeDelayDurationAndLane {
    /// Time from the end of the node's last predecessor until the node is ready.
    pub delay: Span,
    /// Time from the node's start to its end.
    pub length: Span,
    /// Lane that the node occupies from start to end, or [`NONE`].
    pub lane: u32,
    /// True if the node *settles*: like a collective, it begins only after all other events of the same instant.
    pub settles: bool,
}

/// Start and end of each node, and the reason why it did not start earlier. Nodes on a dependency cycle do not run, and
/// neither do their successors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStartEndTimesAndCauses {
    /// Start time of each node, or [`Time::END`] if it does not run.
    pub start: Vec<Time>,
    /// End time of each node, or [`Time::END`] if it does not run.
    pub end: Vec<Time>,
    /// For each node, the node whose end allowed it to start. This is the predecessor that ended last, or the previous
    /// node on the lane if it ended later. [`NONE`] if the node waited for nothing.
    pub cause: Vec<u32>,
    /// For each node, the number of nodes before it on its longest dependency chain.
    pub level: Vec<u32>,
    /// Number of nodes that ran.
    pub ran: usize,
}

/// An instant, and a position among the events of this instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct InstantWithEventOrder {
    time: Time,
    /// How often settling nodes (see [`NodeDelayDurationAndLane::settles`]) have begun at this instant. They begin each
    /// time when all other events are over.
    settled: u32,
    /// Number of zero-length nodes that ended one after another since settling nodes began for the last time.
    round: u32,
}

impl InstantWithEventOrder {
    /// Returns the instant that is `span` later.
    fn advance_by(self, span: Span, settles: bool) -> Self {
        let time = self.time + span;
        let (settled, round) = if time > self.time {
            (0, 0)
        } else if settles {
            (self.settled + 1, 0)
        } else {
            (self.settled, self.round + 1)
        };
        Self {
            time,
            settled,
            round,
        }
    }
}

impl NodeStartEndTimesAndCauses {
    /// Computes the times of all nodes. `next` contains each node's successors, and `step` returns a node's timing.
    /// Lane indices must be below `lanes`.
    pub fn new(next: &Csr, lanes: usize, step: impl Fn(u32) -> NodeDelayDurationAndLane) -> Self {
        let count = next.row_count();
        let mut waiting = vec![0_u32; count];
        for (_, to) in next.iter_all_edges() {
            waiting[to as usize] += 1;
        }
        let mut out = Self {
            start: vec![Time::END; count],
            end: vec![Time::END; count],
            cause: vec![NONE; count],
            level: vec![0; count],
            ran: 0,
        };
        // `freed`: when each node's last predecessor ends. `lanes`: when each lane becomes free, and the node that
        // occupies it until then.
        let mut freed = vec![InstantWithEventOrder::default(); count];
        let mut lanes = vec![(InstantWithEventOrder::default(), NONE); lanes];
        // A node's successors become ready after the node, so a queue ordered by readiness visits nodes in the order in
        // which lanes serve them.
        let mut ready = BinaryHeap::new();
        let ready_at = |freed: InstantWithEventOrder, node| match step(node).delay {
            Span::ZERO => Reverse((freed, node)),
            delay => Reverse((freed.advance_by(delay, false), node)),
        };
        let first = (0..count as u32).filter(|&node| waiting[node as usize] == 0);
        ready.extend(first.map(|node| ready_at(InstantWithEventOrder::default(), node)));
        while let Some(Reverse((mut start, node))) = ready.pop() {
            let (of, i) = (step(node), node as usize);
            let lane = lanes.get_mut(of.lane as usize);
            if let Some(&(free, before)) = lane.as_deref() {
                if free.time > start.time {
                    out.cause[i] = before;
                }
                start = start.max(free);
            }
            let end = start.advance_by(of.length, of.settles);
            if let Some(lane) = lane {
                *lane = (end, node);
            }
            (out.start[i], out.end[i]) = (start.time, end.time);
            out.ran += 1;
            for &then in next.row(node) {
                let t = then as usize;
                out.level[t] = out.level[t].max(out.level[i] + 1);
                // If several predecessors end at the same instant, the cause is the predecessor
                // with the highest index.
                if (end, node) > (freed[t], out.cause[t]) {
                    (freed[t], out.cause[t]) = (end, node);
                }
                waiting[t] -= 1;
                if waiting[t] == 0 {
                    ready.push(ready_at(freed[t], then));
                }
            }
        }
        out
    }

    /// Returns true if the node runs.
    pub fn has_node_run(&self, node: u32) -> bool {
        self.start[node as usize] != Time::END || self.end[node as usize] != Time::END
    }

    /// Returns the node that ends last. If several nodes end last, returns the one with the lowest index. Returns
    /// `None` if no node runs.
    pub fn last_ending_node(&self) -> Option<u32> {
        let all = 0..self.end.len() as u32;
        let key = |&i: &u32| (self.end[i as usize], Reverse(i));
        all.filter(|&i| self.has_node_run(i)).max_by_key(key)
    }

    /// Returns how many nodes are on the longest dependency chain, and how many nodes the largest level has.
    pub fn dependency_depth_and_largest_level_size(&self) -> (u32, u32) {
        let running = (0..self.level.len() as u32).filter(|&i| self.has_node_run(i));
        let levels = running.map(|i| self.level[i as usize] as usize);
        let mut width: Vec<u32> = Vec::new();
        for level in levels {
            if level >= width.len() {
                width.resize(level + 1, 0);
            }
            width[level] += 1;
        }
        (width.len() as u32, width.into_iter().max().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests;
