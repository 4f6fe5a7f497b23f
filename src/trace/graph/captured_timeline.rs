//! Times at which the nodes of a rank ran where they were recorded.
//!
//! Files say how long nodes took and how long after their causes they were ready, not when they started.
//! That follows from a pass over the graph, by the rules of a replay as captured: a node is *ready* a delay
//! after the last node that it waits for ended, or after the start if that is nothing; it *starts* when its
//! lane is free, first ready, first served, those that are ready at one instant in the order of their ids; and
//! it ends its length later. Each node is looked at once, in the order in which they are ready.

use super::Csr;
use chakram_base::units::{Span, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// In place of a node or lane: none.
pub const NONE: u32 = u32::MAX;

/// Properties of a node that the pass needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeTiming {
    /// From the end of all that it waits for until it is ready.
    pub delay: Span,
    /// From its start to its end.
    pub length: Span,
    /// The lane that it holds meanwhile, or [`NONE`].
    pub lane: u32,
    /// Whether its part begins only when nothing else happens at the instant, as that of a collective.
    pub settles: bool,
}

/// Times at which nodes ran, and why not earlier. Nodes on a cycle of dependencies, and those behind one, do not run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapturedTimeline {
    /// Start of each node; [`Time::END`] if it does not run.
    pub start: Vec<Time>,
    /// End of each node; [`Time::END`] if it does not run.
    pub end: Vec<Time>,
    /// The node whose end set it free: the last that it waited for, or the one before it on its lane if that
    /// ended after it was ready; [`NONE`] if it waited for nothing.
    pub cause: Vec<u32>,
    /// Number of nodes before each on its longest chain of dependencies.
    pub level: Vec<u32>,
    /// Number of nodes that ran.
    pub ran: usize,
}

/// An instant, and the order among what happens then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct TimelineInstant {
    time: Time,
    /// Number of times that nothing else was left to happen, so that nodes settled.
    settled: u32,
    /// Number of nodes without duration that ended one after another since.
    round: u32,
}

impl TimelineInstant {
    /// The moment `span` later.
    fn after(self, span: Span, settles: bool) -> Self {
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

impl CapturedTimeline {
    /// Runs the nodes that `next` leads to one another; `step` tells each node's, whose lanes are below
    /// `lanes`.
    pub fn new(next: &Csr, lanes: usize, step: impl Fn(u32) -> NodeTiming) -> Self {
        let count = next.count();
        let mut waiting = vec![0_u32; count];
        for (_, to) in next.edges() {
            waiting[to as usize] += 1;
        }
        let mut out = Self {
            start: vec![Time::END; count],
            end: vec![Time::END; count],
            cause: vec![NONE; count],
            level: vec![0; count],
            ran: 0,
        };
        // When all that a node waits for have ended, and when a lane is free again, and after whom.
        let mut freed = vec![TimelineInstant::default(); count];
        let mut lanes = vec![(TimelineInstant::default(), NONE); lanes];
        // Nothing sets a node free before the node itself was ready, so nodes are taken in the order in
        // which they are ready, and that is the order in which lanes serve them.
        let mut ready = BinaryHeap::new();
        let ready_at = |freed: TimelineInstant, node| match step(node).delay {
            Span::ZERO => Reverse((freed, node)),
            delay => Reverse((freed.after(delay, false), node)),
        };
        let first = (0..count as u32).filter(|&node| waiting[node as usize] == 0);
        ready.extend(first.map(|node| ready_at(TimelineInstant::default(), node)));
        while let Some(Reverse((mut start, node))) = ready.pop() {
            let (of, i) = (step(node), node as usize);
            let lane = lanes.get_mut(of.lane as usize);
            if let Some(&(free, before)) = lane.as_deref() {
                if free.time > start.time {
                    out.cause[i] = before;
                }
                start = start.max(free);
            }
            let end = start.after(of.length, of.settles);
            if let Some(lane) = lane {
                *lane = (end, node);
            }
            (out.start[i], out.end[i]) = (start.time, end.time);
            out.ran += 1;
            for &then in next.row(node) {
                let t = then as usize;
                out.level[t] = out.level[t].max(out.level[i] + 1);
                // Of those that end at one moment the last is the cause.
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

    /// Whether the node runs.
    pub fn runs(&self, node: u32) -> bool {
        self.start[node as usize] != Time::END || self.end[node as usize] != Time::END
    }

    /// The node that ends last, the first of several; `None` if none runs.
    pub fn last(&self) -> Option<u32> {
        let all = 0..self.end.len() as u32;
        let key = |&i: &u32| (self.end[i as usize], Reverse(i));
        all.filter(|&i| self.runs(i)).max_by_key(key)
    }

    /// The longest chain of dependencies, in nodes, and the most nodes with equally many before them.
    pub fn shape(&self) -> (u32, u32) {
        let running = (0..self.level.len() as u32).filter(|&i| self.runs(i));
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
