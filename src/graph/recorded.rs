//! When the nodes of a rank ran where they were recorded.
//!
//! Files say how long nodes took and how long after their causes they were ready, not when they started.
//! That follows from a pass over the graph, by the rules of a replay as captured: a node is *ready* a delay
//! after the last node that it waits for ended, or after the start if that is nothing; it *starts* when its
//! lane is free, first ready, first served, those that are ready at one instant in the order of their ids; and
//! it ends its length later.

use super::Rows;
use crate::units::{Span, Time};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// In place of a node or lane: none.
pub const NONE: u32 = u32::MAX;

/// What the pass needs of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// From the end of all that it waits for until it is ready.
    pub delay: Span,
    /// From its start to its end.
    pub length: Span,
    /// The lane that it holds meanwhile, or [`NONE`].
    pub lane: u32,
    /// Whether its part begins only when nothing else happens at the instant, as that of a collective.
    pub settles: bool,
}

/// When each node ran, and why not earlier. Nodes on a cycle of dependencies, and those behind one, do not run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// When it started; [`Time::END`] if it does not run.
    pub start: Vec<Time>,
    /// When it ended; [`Time::END`] if it does not run.
    pub end: Vec<Time>,
    /// The node whose end set it free: the last that it waited for, or the one before it on its lane if that
    /// ended after it was ready; [`NONE`] if it waited for nothing.
    pub cause: Vec<u32>,
    /// How many nodes are before it on the longest chain of dependencies.
    pub level: Vec<u32>,
    /// How many nodes ran.
    pub ran: usize,
}

/// A lane: who holds it, and who waits for it.
#[derive(Clone, Debug, Default)]
struct Lane {
    held: bool,
    queue: VecDeque<u32>,
    /// The last node that held it.
    last: u32,
}

/// What becomes due: the instant, and a node with [`ENDS`] or [`READY`].
type Due = Reverse<(u64, u64)>;

const ENDS: u64 = 0;
const READY: u64 = 1 << 32;

struct Pass<'a, F> {
    step: F,
    next: &'a Rows,
    waiting: Vec<u32>,
    lanes: Vec<Lane>,
    agenda: BinaryHeap<Due>,
    ready: Vec<u32>,
    freed: Vec<u32>,
    settling: Vec<u32>,
    out: Recorded,
}

impl Recorded {
    /// Runs the nodes that `next` leads to one another; `step` tells each node's, whose lanes are below
    /// `lanes`.
    pub fn new(next: &Rows, lanes: usize, step: impl Fn(u32) -> Step) -> Self {
        let count = next.count();
        let mut waiting = vec![0_u32; count];
        for (_, to) in next.edges() {
            waiting[to as usize] += 1;
        }
        let pass = Pass {
            step,
            next,
            waiting,
            lanes: vec![Lane::default(); lanes],
            agenda: BinaryHeap::new(),
            ready: Vec::new(),
            freed: Vec::new(),
            settling: Vec::new(),
            out: Self {
                start: vec![Time::END; count],
                end: vec![Time::END; count],
                cause: vec![NONE; count],
                level: vec![0; count],
                ran: 0,
            },
        };
        pass.run()
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

impl<F: Fn(u32) -> Step> Pass<'_, F> {
    fn run(mut self) -> Recorded {
        for node in 0..self.waiting.len() as u32 {
            if self.waiting[node as usize] == 0 {
                self.free(Time::ZERO, node);
            }
        }
        self.hand_out(Time::ZERO);
        self.settle(Time::ZERO);
        let mut round = Vec::new();
        while let Some(&Reverse((now, _))) = self.agenda.peek() {
            while let Some(&Reverse((at, word))) = self.agenda.peek()
                && at == now
            {
                self.agenda.pop();
                round.push(word);
            }
            for word in round.drain(..) {
                match word & READY {
                    ENDS => self.complete(Time(now), word as u32),
                    _ => self.ready.push(word as u32),
                }
            }
            self.hand_out(Time(now));
            self.settle(Time(now));
        }
        self.out
    }

    /// All that `node` waits for has ended.
    fn free(&mut self, now: Time, node: u32) {
        match (self.step)(node).delay {
            Span::ZERO => self.ready.push(node),
            delay => self
                .agenda
                .push(Reverse(((now + delay).0, READY | u64::from(node)))),
        }
    }

    fn complete(&mut self, now: Time, node: u32) {
        let i = node as usize;
        self.out.end[i] = now;
        self.out.ran += 1;
        let lane = (self.step)(node).lane;
        if let Some(state) = self.lanes.get_mut(lane as usize) {
            (state.held, state.last) = (false, node);
            if !state.queue.is_empty() {
                self.freed.push(lane);
            }
        }
        let next = self.next;
        for &then in next.row(node) {
            let t = then as usize;
            self.out.level[t] = self.out.level[t].max(self.out.level[i] + 1);
            self.waiting[t] -= 1;
            if self.waiting[t] == 0 {
                self.out.cause[t] = node;
                self.free(now, then);
            }
        }
    }

    /// Freed lanes take who queues for them, and then who became ready asks for a lane.
    fn hand_out(&mut self, now: Time) {
        let mut freed = std::mem::take(&mut self.freed);
        for lane in freed.drain(..) {
            let state = &mut self.lanes[lane as usize];
            if let Some(node) = state.queue.pop_front() {
                state.held = true;
                let before = state.last;
                // While it waits, its start holds when it was ready.
                if self.out.start[node as usize] < now {
                    self.out.cause[node as usize] = before;
                }
                self.issue(now, node);
            }
        }
        self.freed = freed;
        let mut ready = std::mem::take(&mut self.ready);
        ready.sort_unstable();
        for node in ready.drain(..) {
            let lane = (self.step)(node).lane;
            match self.lanes.get_mut(lane as usize) {
                Some(state) if state.held || !state.queue.is_empty() => {
                    self.out.start[node as usize] = now;
                    state.queue.push_back(node);
                }
                state => {
                    if let Some(state) = state {
                        state.held = true;
                    }
                    self.issue(now, node);
                }
            }
        }
        self.ready = ready;
    }

    fn issue(&mut self, now: Time, node: u32) {
        self.out.start[node as usize] = now;
        let step = (self.step)(node);
        match step.settles {
            true => self.settling.push(node),
            false => self.ends(now + step.length, node),
        }
    }

    fn ends(&mut self, at: Time, node: u32) {
        self.agenda.push(Reverse((at.0, ENDS | u64::from(node))));
    }

    fn settle(&mut self, now: Time) {
        if self.settling.is_empty() || self.agenda.peek().is_some_and(|due| due.0.0 == now.0) {
            return;
        }
        let mut settling = std::mem::take(&mut self.settling);
        for node in settling.drain(..) {
            self.ends(now + (self.step)(node).length, node);
        }
        self.settling = settling;
    }
}

#[cfg(test)]
mod tests;
