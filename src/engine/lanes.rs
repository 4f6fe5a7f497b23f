//! Lanes of NPUs: who holds one, who waits for it, and whose turn it is.
//!
//! A lane serves nodes in the order in which they became ready. Where an NPU may run several launches of one feed,
//! the lane serves them one after another in the order in which they began: a node of a launch takes it only when no
//! node of an earlier one is left for it. Launches begin in one order on all NPUs, so none holds a lane that another
//! needs before it. Feeds have lanes of their own.

use super::dataflow::{Dataflow, node_of};
use super::discipline::Discipline;
use super::ids::InstanceIndex;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Holder of a free lane.
pub(super) const FREE: u64 = u64::MAX;

/// A lane of an NPU. It is looked at for every node, and its queue for few.
#[derive(Clone, Copy, Debug)]
struct LaneState {
    /// Node that holds the lane, as instance and node in one word, or [`FREE`].
    holder: u64,
    /// Nodes in its queue.
    waiting: u32,
}

/// Part of a lane in a launch.
#[derive(Clone, Copy, Debug)]
struct LaneTurn {
    instance: InstanceIndex,
    /// Nodes that have yet to complete on the lane.
    left: u32,
}

/// The lanes of all NPUs.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    states: Vec<LaneState>,
    /// By lane, nodes that wait for it, by launch, and first ready, first served.
    queues: Vec<VecDeque<u64>>,
    /// By lane, in insertion order, nodes that wait for it, lowest first.
    by_id: Vec<BinaryHeap<Reverse<u64>>>,
    /// By lane, where there may be several launches: those that have nodes left for it, in the order of their numbers.
    turns: Vec<VecDeque<LaneTurn>>,
}

impl Lanes {
    /// Makes room for exactly `count` lanes more.
    pub fn reserve(&mut self, count: usize) {
        self.states.reserve_exact(count);
        self.queues.reserve_exact(count);
    }

    /// Adds `count` lanes, and returns the index of the first.
    pub fn add(&mut self, count: u32) -> u32 {
        let first = self.states.len();
        let free = LaneState {
            holder: FREE,
            waiting: 0,
        };
        let lanes = first + count as usize;
        self.states.resize(lanes, free);
        self.queues.resize_with(lanes, VecDeque::new);
        first as u32
    }

    /// Returns the word of the node that holds a lane, or [`FREE`].
    pub fn holder(&self, lane: u32) -> u64 {
        self.states[lane as usize].holder
    }

    /// Enters an instance with `left` nodes on a lane, behind those that began before.
    pub fn enter(&mut self, lane: u32, instance: InstanceIndex, left: u32) {
        if self.turns.len() < self.states.len() {
            self.turns.resize_with(self.states.len(), VecDeque::new);
        }
        self.turns[lane as usize].push_back(LaneTurn { instance, left });
    }

    /// Returns the instance whose turn it is on a lane that serves several launches.
    pub fn turn(&self, lane: u32) -> Option<InstanceIndex> {
        let turns = self.turns.get(lane as usize)?;
        turns.front().map(|turn| turn.instance)
    }

    /// Frees a lane whose holder is complete. Returns whether it is offered to others when the round is over.
    #[inline]
    pub fn free<D: Discipline>(&mut self, lane: u32) -> bool {
        let state = &mut self.states[lane as usize];
        state.holder = FREE;
        D::offers_lane(state.waiting > 0)
    }

    /// Counts a node of the instance whose turn it is as complete, where there are turns.
    pub fn pass(&mut self, lane: u32) {
        let turns = &mut self.turns[lane as usize];
        if let Some(turn) = turns.front_mut() {
            turn.left -= 1;
            if turn.left == 0 {
                turns.pop_front();
            }
        }
    }

    /// Takes a lane for `node` if it is free and nobody is before it, and a place in its queue otherwise. Returns
    /// whether it took the lane.
    #[inline]
    pub fn take_or_wait(&mut self, lane: u32, node: u64) -> bool {
        let state = &mut self.states[lane as usize];
        // A free lane with a queue belongs to the queue, which is served when the round is over.
        if state.holder == FREE && state.waiting == 0 {
            state.holder = node;
            true
        } else {
            state.waiting += 1;
            self.queues[lane as usize].push_back(node);
            false
        }
    }

    /// As [`Self::take_or_wait`], where there are turns.
    pub fn take_in_turn(&mut self, lane: u32, node: u64, flow: &Dataflow<'_>) -> bool {
        let instance = node_of(node).instance;
        let turn = self.turn(lane);
        let state = &mut self.states[lane as usize];
        let queue = &mut self.queues[lane as usize];
        let own = |word: &u64| node_of(*word).instance == instance;
        let first = turn == Some(instance) && !queue.front().is_some_and(own);
        if state.holder == FREE && first {
            state.holder = node;
            return true;
        }
        let serial = |word: u64| flow.serial(node_of(word).instance);
        let place = match queue.back() {
            // Launches mostly come in the order of their numbers.
            Some(&last) if serial(last) > serial(node) => {
                let before = |&word: &u64| serial(word) <= serial(node);
                queue.partition_point(before)
            }
            _ => queue.len(),
        };
        queue.insert(place, node);
        state.waiting += 1;
        false
    }

    /// Gives a lane, if it is free, to the node that is next, and returns that.
    #[inline]
    pub fn grant(&mut self, lane: u32) -> Option<u64> {
        let state = &mut self.states[lane as usize];
        if state.holder != FREE || state.waiting == 0 {
            return None;
        }
        let queue = &mut self.queues[lane as usize];
        if let Some(turns) = self.turns.get(lane as usize) {
            let next = node_of(*queue.front()?).instance;
            if turns.front().is_none_or(|turn| turn.instance != next) {
                return None;
            }
        }
        let node = queue.pop_front()?;
        state.waiting -= 1;
        state.holder = node;
        Some(node)
    }

    /// Makes lane `to` as lane `from` is, with nodes as `own` names them.
    pub fn copy(&mut self, from: u32, to: u32, own: impl Fn(u64) -> u64) {
        let mut state = self.states[from as usize];
        if state.holder != FREE {
            state.holder = own(state.holder);
        }
        let queue = self.queues[from as usize].iter();
        self.queues[to as usize] = queue.map(|&node| own(node)).collect();
        self.states[to as usize] = state;
    }

    /// Whether a node holds a lane or waits for it.
    pub fn knows(&self, lane: u32, word: u64) -> bool {
        self.states[lane as usize].holder == word || self.queues[lane as usize].contains(&word)
    }

    /// Whether the same nodes, whatever their instances, hold two lanes and wait for them.
    pub fn are_alike(&self, one: u32, other: u32) -> bool {
        let node = |word: u64| (word != FREE).then(|| node_of(word).node);
        let holder = |lane: u32| node(self.states[lane as usize].holder);
        let queue = |lane: u32| self.queues[lane as usize].iter().map(|&word| node(word));
        holder(one) == holder(other) && queue(one).eq(queue(other))
    }

    /// Has a node wait for a lane by its id, in insertion order.
    pub fn wait_by_id(&mut self, lane: u32, node: u64) {
        if self.by_id.len() < self.states.len() {
            self.by_id.resize_with(self.states.len(), BinaryHeap::new);
        }
        self.by_id[lane as usize].push(Reverse(node));
    }

    /// Gives a lane, if it is free, to the lowest node that waits for it by id.
    #[inline]
    pub fn grant_by_id(&mut self, lane: u32) -> Option<u64> {
        let state = &mut self.states[lane as usize];
        if state.holder != FREE {
            return None;
        }
        let Reverse(node) = self.by_id.get_mut(lane as usize)?.pop()?;
        state.holder = node;
        Some(node)
    }
}
