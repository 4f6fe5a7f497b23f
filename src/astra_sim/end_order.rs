//! Computes the order of members that end a phase at the same instant, if all of them begin the phase together.
//!
//! At each instant of such a phase, all members perform the same actions, one after another in an order σ. If several
//! delays of an NPU end at one instant, they become one event, which takes the place of the first delay. The order σ
//! therefore changes only when messages arrive. Messages arrive in the order in which they were sent, and the first
//! message that reaches a member sets the member's place. If each member p sends one message to f(p), the next order is
//! f(σ). In a ring, f maps a member to the next one, so K messages rotate the order by K places. In halvingDoubling, f
//! swaps partners. In `direct`, if all messages take equally long, the first message that any other member receives
//! comes from the line's first member σ₀, which sends to its successor first. σ₀ itself receives its first message from
//! the second member. Chunks in the same phase send to the same members one after another, so the order in which
//! members end the phase does not change. The next chunk begins in the event that ends the previous chunk.
//!
//! If chunks are in different stages at the same time, each chunk has its own order of members. Members begin a chunk's
//! stage in the order in which they end the stage that lets the chunk in. This is either the chunk's own previous
//! stage, or the stage of another chunk whose place it takes. If delays of two chunks end at one instant, they become
//! one event. Delays registered later adopt the order of delays registered earlier. All members of a collective handle
//! a chunk's event before the next event in the list, so [`order_change_from_start_to_ends`] processes one event for
//! all members.
//!
//! Messages of two chunks interleave only if one event sends them and the messages arrive at one instant. The order of
//! such messages is proven only if both chunks are in the same step of the same stage.

use super::AstraAlgorithm;
use super::program::{CollectiveChunkPhase, MemberQueueDirectionAndTree};
use chakram_base::ids::Position;
use chakram_base::units::Span;
use chakram_hardware::collective::{
    ChunkAndEnteredStage, MemberLinePosition, MemberOrderChangeForMessages,
    StageBeginAndAdmittingPassage, UncontendedMessageCostFunctions,
};
use chakram_hardware::group::{GroupPhasesAndMemberPositions, PhaseDimensionSizeAndStride};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

/// Maximum number of members in a line whose message costs are compared for all pairs.
const COMPARED: u32 = 64;

/// Returns true if [`reorder_members_from_send_to_arrival`] is proven correct for `stage`, which must have a closed
/// form. `sizes` are the machine's dimension sizes.
pub(super) fn is_reordering_proved_for_stage(
    stage: &CollectiveChunkPhase,
    extent: &GroupPhasesAndMemberPositions,
    sizes: &[u32],
    quiet: &UncontendedMessageCostFunctions<'_>,
) -> bool {
    match stage.algorithm {
        AstraAlgorithm::Ring | AstraAlgorithm::HalvingDoubling => true,
        AstraAlgorithm::Direct { window } => {
            let all_at_once = window.is_none_or(|window| window >= stage.size - 1);
            !quiet.shared && all_at_once && all_messages_cost_equal(stage, extent, sizes, quiet)
        }
        AstraAlgorithm::DoubleBinaryTree => false,
    }
}

/// Maximum number of delays of a member that are compared.
const MAX_DELAYS: usize = 1 << 20;

/// An order of members, stored relative to the order in which they begin a collective. Equal orders have equal
/// representations.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct MemberReorderingSinceStart {
    /// Id of the last all-to-all exchange, or 0 if there was none. The id is needed because an exchange's effect
    /// depends on the whole order.
    whole: u32,
    /// Nonzero changes since the last all-to-all exchange, by phase. A change is the distance by which each member has
    /// moved along its line, or the flipped bits of the member's index in the line.
    moves: BTreeMap<u32, u32>,
}

/// The orders that preceded all-to-all exchanges, each with an id, because an exchange's effect depends on the whole
/// order.
#[derive(Debug, Default)]
struct PreExchangeOrderInterner {
    whole: BTreeMap<(MemberReorderingSinceStart, u32), u32>,
}

impl PreExchangeOrderInterner {
    /// Returns the order after each member has received `messages` in `stage`.
    fn order_after_messages(
        &mut self,
        mut order: MemberReorderingSinceStart,
        stage: &CollectiveChunkPhase,
        messages: Range<u32>,
    ) -> MemberReorderingSinceStart {
        let slot = stage.only_queue_and_direction();
        let place = order.moves.get(&stage.phase).copied().unwrap_or(0);
        let moved = match stage.algorithm {
            AstraAlgorithm::Ring => {
                (place + places_rotated_on_ring(stage, messages.len() as u32)) % stage.size
            }
            AstraAlgorithm::HalvingDoubling => {
                let first = stage.line_position_from_index(0, Position(0));
                let steps = messages.filter_map(|step| stage.nth_send(slot, first, step));
                steps.fold(place, |place, step| place ^ step.to)
            }
            AstraAlgorithm::Direct { .. } | AstraAlgorithm::DoubleBinaryTree => {
                for _ in 0..count_all_to_all_exchanges(stage, messages.len() as u32) {
                    let next = self.whole.len() as u32 + 1;
                    let whole = *self.whole.entry((order, stage.phase)).or_insert(next);
                    let moves = BTreeMap::new();
                    order = MemberReorderingSinceStart { whole, moves };
                }
                return order;
            }
        };
        match moved {
            0 => order.moves.remove(&stage.phase),
            _ => order.moves.insert(stage.phase, moved),
        };
        order
    }
}

/// Returns the number of places by which `messages` rotate the order upward on a ring.
fn places_rotated_on_ring(stage: &CollectiveChunkPhase, messages: u32) -> u32 {
    let turn = messages % stage.size;
    match stage.only_queue_and_direction().backward {
        true => (stage.size - turn) % stage.size,
        false => turn,
    }
}

/// Returns how many complete all-to-all exchanges a member's `messages` make up.
fn count_all_to_all_exchanges(stage: &CollectiveChunkPhase, messages: u32) -> u32 {
    messages / (stage.size - 1)
}

/// An event of a chunk. Members handle it one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ChunkArrivalOrDelayEndEvent {
    /// The messages of a passage arrive and end the delay with this index.
    Arrival { passage: usize, delay: usize },
    /// The delays with this index end.
    Delays(usize),
}

/// Delays that end at the same instant and therefore form one event.
#[derive(Debug)]
struct SimultaneousDelays {
    /// Pairs of passage and delay, in the order in which they were registered.
    of: Vec<(usize, usize)>,
    order: MemberReorderingSinceStart,
    /// Last change of the order; `None` if the order never changed.
    change: Option<usize>,
}

/// The events of all members, sorted like ASTRA-sim's event list: by time, then by insertion.
#[derive(Debug, Default)]
struct AllMembersEventQueue {
    events: BinaryHeap<Reverse<(Span, u64, ChunkArrivalOrDelayEndEvent)>>,
    inserted: u64,
    delays: Vec<SimultaneousDelays>,
    /// Pending delays, by the instant at which they end.
    due: BTreeMap<Span, usize>,
    /// The order of members, and its last change, for each message that was sent and has not arrived. The key is
    /// (passage, delay).
    sent: BTreeMap<(usize, usize), (MemberReorderingSinceStart, Option<usize>)>,
}

impl AllMembersEventQueue {
    fn insert(&mut self, at: Span, event: ChunkArrivalOrDelayEndEvent) {
        self.inserted += 1;
        self.events.push(Reverse((at, self.inserted, event)));
    }

    /// Registers the same delay for every member, in the order that `order` gives.
    fn register_delay_of_all_members(
        &mut self,
        at: Span,
        of: (usize, usize),
        (order, change): (MemberReorderingSinceStart, Option<usize>),
    ) {
        if let Some(&number) = self.due.get(&at) {
            self.delays[number].of.push(of);
            return;
        }
        let number = self.delays.len();
        self.delays.push(SimultaneousDelays {
            of: vec![of],
            order,
            change,
        });
        self.due.insert(at, number);
        self.insert(at, ChunkArrivalOrDelayEndEvent::Delays(number));
    }
}

/// Returns how the members' order changes from the start to the end of a collective, or `None` if the change cannot be
/// proven. `passages` must be sorted by start time. `delays_of` returns the times at which a member's delays in a stage
/// end, each with the number of messages that have arrived by then. `endpoint_of` returns the delay after a message.
pub(super) fn order_change_from_start_to_ends(
    stages: &[CollectiveChunkPhase],
    passages: &[StageBeginAndAdmittingPassage],
    delays_of: impl Fn(&CollectiveChunkPhase) -> Option<Vec<(Span, u32)>>,
    endpoint_of: impl Fn(&CollectiveChunkPhase) -> Span,
) -> Option<Vec<MemberOrderChangeForMessages>> {
    let mut delays: Vec<_> = stages.iter().map(delays_of).collect::<Option<_>>()?;
    // If several delays of a member end at one instant, they become one event.
    delays.iter_mut().for_each(Vec::dedup);
    let stage_of = |passage: usize| passages[passage].entry.stage;
    let count = (0..passages.len()).map(|passage| delays[stage_of(passage).index()].len());
    if count.sum::<usize>() > MAX_DELAYS {
        return None;
    }
    let mut admitted: BTreeMap<Option<ChunkAndEnteredStage>, Vec<usize>> = BTreeMap::new();
    for (number, passage) in passages.iter().enumerate() {
        admitted
            .entry(passage.admitted_by)
            .or_default()
            .push(number);
    }
    let (mut list, mut orders) = (
        AllMembersEventQueue::default(),
        PreExchangeOrderInterner::default(),
    );
    // Changes of orders, each with the index of the change before it.
    let mut changes: Vec<(Option<usize>, MemberOrderChangeForMessages)> = Vec::new();
    let mut last = None;
    for &passage in admitted.get(&None).into_iter().flatten() {
        let (at, _) = *delays[stage_of(passage).index()].first()?;
        list.register_delay_of_all_members(
            at,
            (passage, 0),
            (MemberReorderingSinceStart::default(), None),
        );
    }
    while let Some(Reverse((now, _, event))) = list.events.pop() {
        let number = match event {
            ChunkArrivalOrDelayEndEvent::Delays(number) => number,
            ChunkArrivalOrDelayEndEvent::Arrival { passage, delay } => {
                let stage = stage_of(passage);
                let of = &delays[stage.index()];
                let messages = of[delay - 1].1..of[delay].1;
                let (order, change) = list.sent.remove(&(passage, delay))?;
                let order =
                    orders.order_after_messages(order, &stages[stage.index()], messages.clone());
                changes.push((change, MemberOrderChangeForMessages { stage, messages }));
                let change = Some(changes.len() - 1);
                let at = passages[passage].begin + of[delay].0;
                list.register_delay_of_all_members(at, (passage, delay), (order, change));
                continue;
            }
        };
        list.due.remove(&now);
        let over = std::mem::take(&mut list.delays[number].of);
        let order = std::mem::take(&mut list.delays[number].order);
        let change = list.delays[number].change;
        last = change;
        // Messages that this event sends, keyed by arrival time.
        let mut sent = BTreeMap::new();
        for (passage, delay) in over {
            let stage = stage_of(passage);
            let of = &delays[stage.index()];
            let begin = passages[passage].begin;
            match of.get(delay + 1) {
                None => {
                    let entry = Some(passages[passage].entry);
                    for &next in admitted.get(&entry).into_iter().flatten() {
                        let (at, _) = *delays[stage_of(next).index()].first()?;
                        list.register_delay_of_all_members(
                            now + at,
                            (next, 0),
                            (order.clone(), change),
                        );
                    }
                }
                // No message arrives before the next delay ends, so register this delay immediately.
                Some(&(at, arrived)) if arrived == of[delay].1 => {
                    list.register_delay_of_all_members(
                        begin + at,
                        (passage, delay + 1),
                        (order.clone(), change),
                    );
                }
                Some(&(at, _)) => {
                    let arrival = begin + at - endpoint_of(&stages[stage.index()]);
                    let step = (stage, delay);
                    // Messages of different steps would interleave at one instant, so their order cannot be proven.
                    if *sent.entry(arrival).or_insert(step) != step {
                        return None;
                    }
                    let delay = delay + 1;
                    list.sent.insert((passage, delay), (order.clone(), change));
                    list.insert(
                        arrival,
                        ChunkArrivalOrDelayEndEvent::Arrival { passage, delay },
                    );
                }
            }
        }
    }
    let mut found = Vec::new();
    while let Some(number) = last {
        let (before, change) = &changes[number];
        found.push(change.clone());
        last = *before;
    }
    found.reverse();
    Some(found)
}

/// Returns true if all messages of `direct` take equally long. All lines of a sub-grid have equal costs, so only one
/// line is checked. Along a dimension of the machine, only one member is checked.
fn all_messages_cost_equal(
    stage: &CollectiveChunkPhase,
    extent: &GroupPhasesAndMemberPositions,
    sizes: &[u32],
    quiet: &UncontendedMessageCostFunctions<'_>,
) -> bool {
    let phase = &extent.phases[stage.phase as usize];
    let npu = |index| {
        extent.npus[phase
            .position_with_index_in_line(Position(0), index)
            .index()]
    };
    let Some(step) = stage.nth_send(
        MemberQueueDirectionAndTree::default(),
        member_line_position_in_stage(stage, phase, Position(0)),
        0,
    ) else {
        return false;
    };
    let cost = |from, to| (quiet.cost)((npu(from), npu(to)), step.amount);
    let first = cost(0, 1);
    let senders = if extent.regular && sizes.get(phase.dimension) == Some(&phase.size) {
        1
    } else {
        stage.size
    };
    (senders == 1 || stage.size <= COMPARED)
        && first.is_some()
        && (0..senders).all(|from| {
            let mut others = (0..stage.size).filter(|&to| to != from);
            others.all(|to| cost(from, to) == first)
        })
}

fn member_line_position_in_stage(
    stage: &CollectiveChunkPhase,
    phase: &PhaseDimensionSizeAndStride,
    position: Position,
) -> MemberLinePosition {
    stage.line_position_from_index(phase.member_index_in_dimension(position), position)
}

/// Reorders `members` from the order in which they send the `messages` of `stage` to the order in which
/// these messages arrive.
pub(super) fn reorder_members_from_send_to_arrival(
    stage: &CollectiveChunkPhase,
    messages: Range<u32>,
    extent: &GroupPhasesAndMemberPositions,
    members: &mut Vec<Position>,
) {
    let phase = &extent.phases[stage.phase as usize];
    let slot = stage.only_queue_and_direction();
    match stage.algorithm {
        AstraAlgorithm::Ring => {
            let turn = places_rotated_on_ring(stage, messages.len() as u32);
            for member in members {
                let to = (phase.member_index_in_dimension(*member) + turn) % stage.size;
                *member = phase.position_with_index_in_line(*member, to);
            }
        }
        AstraAlgorithm::HalvingDoubling => {
            for step in messages {
                for member in &mut *members {
                    let line = member_line_position_in_stage(stage, phase, *member);
                    if let Some(step) = stage.nth_send(slot, line, step) {
                        *member = phase.position_with_index_in_line(*member, step.to);
                    }
                }
            }
        }
        AstraAlgorithm::Direct { .. } => {
            for _ in 0..count_all_to_all_exchanges(stage, messages.len() as u32) {
                *members = sort_members_by_first_arrival(stage, slot, phase, members);
            }
        }
        AstraAlgorithm::DoubleBinaryTree => {}
    }
}

/// Returns the members sorted by the time at which they receive their first messages. All members send at the same
/// time, in the order of `members`.
fn sort_members_by_first_arrival(
    stage: &CollectiveChunkPhase,
    slot: MemberQueueDirectionAndTree,
    phase: &PhaseDimensionSizeAndStride,
    members: &[Position],
) -> Vec<Position> {
    let mut order = Vec::with_capacity(members.len());
    // `reached`: for each position, whether a message has reached it. `left`: at the first position of each line, how
    // many of the line's members no message has reached.
    let mut reached = vec![false; members.len()];
    let mut left = vec![stage.size; members.len()];
    for &from in members {
        let line = member_line_position_in_stage(stage, phase, from);
        let left = &mut left[phase.position_with_index_in_line(from, 0).index()];
        if *left == 0 {
            continue;
        }
        for step in (0..stage.size - 1).filter_map(|i| stage.nth_send(slot, line, i)) {
            let to = phase.position_with_index_in_line(from, step.to);
            if !std::mem::replace(&mut reached[to.index()], true) {
                *left -= 1;
                order.push(to);
            }
        }
    }
    order
}
