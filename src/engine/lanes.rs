//! Lanes of NPUs: which node holds each lane, the lane's queue, and the turns of launches.
//!
//! A lane serves nodes in the order in which they became ready. If several launches of one feed may run on an NPU, the
//! lane serves them in the order in which they began. A node takes the lane only when all nodes of earlier launches on
//! it are complete. Launches begin in the same order on all NPUs, so they cannot deadlock when they compete for lanes.
//! Each feed has its own lanes.

use super::dataflow::{Dataflow, unpack_instance_and_node};
use super::discipline::EventOrderDiscipline;
use super::ids::InstanceIndex;
use chakram_base::units::Time;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Holder value of a free lane.
pub(super) const FREE: u64 = u64::MAX;

/// State of an NPU's lane, without its queue. Queues are kept separately, because the loop reads this state for every
/// node but needs a queue only for a few.
#[derive(Clone, Copy, Debug)]
struct LaneHolderAndQueueLength {
    /// The node that holds the lane, packed with its instance into one word, or [`FREE`].
    holder: u64,
    /// Number of nodes in the lane's queue.
    waiting: u32,
    /// When the latest holder completed; [`Time::ZERO`] before that.
    freed: Time,
}

/// One launch's turn on a lane on which several launches take turns.
#[derive(Clone, Copy, Debug)]
struct LaunchTurnOnSharedLane {
    instance: InstanceIndex,
    /// Number of nodes on the lane that the launch has not completed.
    left: u32,
}

/// The lanes of all NPUs, with their queues and turns.
#[derive(Debug, Default)]
pub(super) struct LanesOfAllNpus {
    states: Vec<LaneHolderAndQueueLength>,
    /// Nodes that wait for each lane, sorted first by launch and then by when they became ready.
    queues: Vec<VecDeque<u64>>,
    /// Nodes that wait for each lane, in ascending order of ids. Used only if events are handled in insertion order.
    by_id: Vec<BinaryHeap<Reverse<u64>>>,
    /// Launches that still have incomplete nodes on each lane, in ascending order. Empty if there is only one launch.
    turns: Vec<VecDeque<LaunchTurnOnSharedLane>>,
}

impl LanesOfAllNpus {
    /// Reserves memory for exactly `count` more lanes.
    pub fn reserve_lanes(&mut self, count: usize) {
        self.states.reserve_exact(count);
        self.queues.reserve_exact(count);
    }

    /// Adds `count` lanes, and returns the index of the first.
    pub fn add_lanes(&mut self, count: u32) -> u32 {
        let first = self.states.len();
        let free = LaneHolderAndQueueLength {
            holder: FREE,
            waiting: 0,
            freed: Time::ZERO,
        };
        let lanes = first + count as usize;
        self.states.resize(lanes, free);
        self.queues.resize_with(lanes, VecDeque::new);
        first as u32
    }

    /// Returns the packed node that holds a lane, or [`FREE`].
    pub fn holder_of_lane(&self, lane: u32) -> u64 {
        self.states[lane as usize].holder
    }

    /// Returns when the latest holder of a lane completed.
    pub fn latest_completion_on_lane(&self, lane: u32) -> Time {
        self.states[lane as usize].freed
    }

    /// Gives an instance with `left` nodes a turn on a lane, after the turns of earlier launches.
    pub fn append_turn(&mut self, lane: u32, instance: InstanceIndex, left: u32) {
        if self.turns.len() < self.states.len() {
            self.turns.resize_with(self.states.len(), VecDeque::new);
        }
        self.turns[lane as usize].push_back(LaunchTurnOnSharedLane { instance, left });
    }

    /// Returns the instance whose turn it is on a lane that several launches use.
    pub fn instance_with_turn_on_lane(&self, lane: u32) -> Option<InstanceIndex> {
        let turns = self.turns.get(lane as usize)?;
        turns.front().map(|turn| turn.instance)
    }

    /// Frees a lane whose holder has completed. Returns true if the loop must offer the lane to waiting nodes after the
    /// round.
    #[inline]
    pub fn free_lane_and_say_if_to_offer<D: EventOrderDiscipline>(
        &mut self,
        now: Time,
        lane: u32,
    ) -> bool {
        let state = &mut self.states[lane as usize];
        state.holder = FREE;
        state.freed = now;
        D::offers_freed_lane_to_others(state.waiting > 0)
    }

    /// Records that a node of the current turn is complete. The turn ends when its last node is complete. Must be
    /// called only for lanes with turns.
    pub fn count_completed_node_of_turn(&mut self, lane: u32) {
        let turns = &mut self.turns[lane as usize];
        if let Some(turn) = turns.front_mut() {
            turn.left -= 1;
            if turn.left == 0 {
                turns.pop_front();
            }
        }
    }

    /// Gives the lane to `node` if the lane is free and its queue is empty; otherwise queues `node`. Returns true if
    /// `node` took the lane.
    #[inline]
    pub fn take_lane_or_queue(&mut self, lane: u32, node: u64) -> bool {
        let state = &mut self.states[lane as usize];
        // If nodes already queue for a free lane, the loop serves them after the round, before this newer node.
        if state.holder == FREE && state.waiting == 0 {
            state.holder = node;
            true
        } else {
            state.waiting += 1;
            self.queues[lane as usize].push_back(node);
            false
        }
    }

    /// Like [`Self::take_lane_or_queue`], gives the lane or queues the node, but for lanes with turns.
    pub fn take_lane_in_turn_or_queue(
        &mut self,
        lane: u32,
        node: u64,
        flow: &Dataflow<'_>,
    ) -> bool {
        let instance = unpack_instance_and_node(node).instance;
        let turn = self.instance_with_turn_on_lane(lane);
        let state = &mut self.states[lane as usize];
        let queue = &mut self.queues[lane as usize];
        let own = |word: &u64| unpack_instance_and_node(*word).instance == instance;
        let first = turn == Some(instance) && !queue.front().is_some_and(own);
        if state.holder == FREE && first {
            state.holder = node;
            return true;
        }
        let serial =
            |word: u64| flow.launch_index_of_instance(unpack_instance_and_node(word).instance);
        let place = match queue.back() {
            // Nodes of later launches mostly arrive later, so check the back of the queue first.
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

    /// Gives a free lane to the next node and returns that node.
    #[inline]
    pub fn grant_lane_to_next_node(&mut self, lane: u32) -> Option<u64> {
        let state = &mut self.states[lane as usize];
        if state.holder != FREE || state.waiting == 0 {
            return None;
        }
        let queue = &mut self.queues[lane as usize];
        if let Some(turns) = self.turns.get(lane as usize) {
            let next = unpack_instance_and_node(*queue.front()?).instance;
            if turns.front().is_none_or(|turn| turn.instance != next) {
                return None;
            }
        }
        let node = queue.pop_front()?;
        state.waiting -= 1;
        state.holder = node;
        Some(node)
    }

    /// Copies the state of lane `from` to lane `to`. `own` converts each node to the same node of the instance that
    /// uses `to`.
    pub fn copy_state_between_lanes(&mut self, from: u32, to: u32, own: impl Fn(u64) -> u64) {
        let mut state = self.states[from as usize];
        if state.holder != FREE {
            state.holder = own(state.holder);
        }
        let queue = self.queues[from as usize].iter();
        self.queues[to as usize] = queue.map(|&node| own(node)).collect();
        self.states[to as usize] = state;
    }

    /// Returns true if a node holds the lane or waits for it.
    pub fn is_node_holding_or_waiting_for_lane(&self, lane: u32, word: u64) -> bool {
        self.states[lane as usize].holder == word || self.queues[lane as usize].contains(&word)
    }

    /// Returns true if two lanes have the same holders and queues, apart from the instances.
    pub fn lanes_have_equal_state(&self, one: u32, other: u32) -> bool {
        let node = |word: u64| (word != FREE).then(|| unpack_instance_and_node(word).node);
        let holder = |lane: u32| node(self.states[lane as usize].holder);
        let queue = |lane: u32| self.queues[lane as usize].iter().map(|&word| node(word));
        holder(one) == holder(other) && queue(one).eq(queue(other))
    }

    /// Queues a node for a lane, ordered by id. Only insertion order uses this queue.
    pub fn queue_for_lane_by_id(&mut self, lane: u32, node: u64) {
        if self.by_id.len() < self.states.len() {
            self.by_id.resize_with(self.states.len(), BinaryHeap::new);
        }
        self.by_id[lane as usize].push(Reverse(node));
    }

    /// Gives a free lane to the waiting node with the lowest id.
    #[inline]
    pub fn grant_lane_to_lowest_id(&mut self, lane: u32) -> Option<u64> {
        let state = &mut self.states[lane as usize];
        if state.holder != FREE {
            return None;
        }
        let Reverse(node) = self.by_id.get_mut(lane as usize)?.pop()?;
        state.holder = node;
        Some(node)
    }
}
