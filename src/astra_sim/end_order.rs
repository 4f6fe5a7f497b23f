//! The order in which members end a phase at one instant if all members begin the phase together.
//!
//! At each instant of such a phase all members do the same, in an order σ. The delays of an NPU
//! that are due at one instant are one event, in the place of the first delay, so σ changes only
//! when messages arrive: arrivals follow the order of their sends, and the first message that
//! reaches a member determines its place. If each member p sends one message to f(p), the next
//! order is f(σ). In a ring f is the next member, so K messages rotate the order by K places; in
//! halvingDoubling, f swaps partners. In `direct`, where all messages take equal time, the first
//! member σ₀ of each line reaches all other members of the line, beginning with its successor, and
//! the second member reaches σ₀. Chunks that are in the phase together send one after another to
//! the same members, which does not change the order; the next chunk begins in the event that ends
//! the previous one.
//!
//! Chunks in different stages at the same time each have their own order. A chunk begins a stage in
//! the order in which members end the stage that admits it: its own previous stage, or the stage of
//! a chunk whose place it takes. If delays of two chunks end at one instant, the delays registered
//! later take the places of the earlier delays, so one order becomes the other. All members of a
//! collective handle an event of a chunk before the next event of the list, so [`order_of_ends`]
//! processes the list with one event for all of them. Only messages of two chunks that one event
//! sends and that arrive at one instant interleave; the order of such messages is not proved,
//! unless both are the same step of the same stage.

use super::AstraAlgorithm;
use super::program::{AstraPhase, QueueSlot};
use chakram_base::ids::Position;
use chakram_base::units::Span;
use chakram_hardware::collective::{
    LinePosition, OrderChange, StageEntry, StagePassage, UncontendedCost,
};
use chakram_hardware::group::{GroupExtent, GroupPhase};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

/// Maximum number of members for which all pairs are compared.
const COMPARED: u32 = 64;

/// Returns true if [`follow`] is proved for `stage`, which has a closed form; `sizes` are the sizes of the machine's
/// dimensions.
pub(super) fn is_proved(
    stage: &AstraPhase,
    extent: &GroupExtent,
    sizes: &[u32],
    quiet: &UncontendedCost<'_>,
) -> bool {
    match stage.algorithm {
        AstraAlgorithm::Ring | AstraAlgorithm::HalvingDoubling => true,
        AstraAlgorithm::Direct { window } => {
            let all_at_once = window.is_none_or(|window| window >= stage.size - 1);
            !quiet.shared && all_at_once && costs_are_equal(stage, extent, sizes, quiet)
        }
        AstraAlgorithm::DoubleBinaryTree => false,
    }
}

/// Maximum number of delays of a member that are compared.
const MAX_DELAYS: usize = 1 << 20;

/// An order of members, represented by its difference from the order in which they begin a
/// collective; equal representations are equal orders.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct MemberOrder {
    /// Number of the last change that depends on the order as a whole, or 0 if there was none.
    whole: u32,
    /// By phase, the distance by which each member's place has moved since then along its line, or
    /// the bits of its index in the line that have been flipped, without zeros.
    moves: BTreeMap<u32, u32>,
}

/// Orders found so far, with numbers for changes that depend on an order as a whole.
#[derive(Debug, Default)]
struct MemberOrders {
    whole: BTreeMap<(MemberOrder, u32), u32>,
}

impl MemberOrders {
    /// Returns the order after `messages` that each member receives in `stage`.
    fn order_after(
        &mut self,
        mut order: MemberOrder,
        stage: &AstraPhase,
        messages: Range<u32>,
    ) -> MemberOrder {
        let slot = stage.only_slot();
        let place = order.moves.get(&stage.phase).copied().unwrap_or(0);
        let moved = match stage.algorithm {
            AstraAlgorithm::Ring => {
                (place + ring_rotation(stage, messages.len() as u32)) % stage.size
            }
            AstraAlgorithm::HalvingDoubling => {
                let first = stage.line_position_of(0, Position(0));
                let steps = messages.filter_map(|step| stage.nth_send(slot, first, step));
                steps.fold(place, |place, step| place ^ step.to)
            }
            AstraAlgorithm::Direct { .. } | AstraAlgorithm::DoubleBinaryTree => {
                for _ in 0..exchange_count(stage, messages.len() as u32) {
                    let next = self.whole.len() as u32 + 1;
                    let whole = *self.whole.entry((order, stage.phase)).or_insert(next);
                    let moves = BTreeMap::new();
                    order = MemberOrder { whole, moves };
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

/// Returns the number of places of a ring by which `messages` rotate the order upward.
fn ring_rotation(stage: &AstraPhase, messages: u32) -> u32 {
    let turn = messages % stage.size;
    match stage.only_slot().backward {
        true => (stage.size - turn) % stage.size,
        false => turn,
    }
}

/// Returns the number of complete all-to-all exchanges in `messages` of a member.
fn exchange_count(stage: &AstraPhase, messages: u32) -> u32 {
    messages / (stage.size - 1)
}

/// An event of a chunk, handled for all members one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WaveEvent {
    /// The messages of a passage arrive that end the delay with this index.
    Arrival { passage: usize, delay: usize },
    /// The delays with this index end.
    Delays(usize),
}

/// Delays that end at one instant, which are one event.
#[derive(Debug)]
struct WaveDelays {
    /// Passages and their delays, in the order in which they were registered.
    of: Vec<(usize, usize)>,
    order: MemberOrder,
    /// The last change of the order, or `None` if there was none.
    change: Option<usize>,
}

/// Events of all members in the order of the original's list: by time, then in insertion order.
#[derive(Debug, Default)]
struct WaveList {
    events: BinaryHeap<Reverse<(Span, u64, WaveEvent)>>,
    inserted: u64,
    delays: Vec<WaveDelays>,
    /// Pending delays, by their instant.
    due: BTreeMap<Span, usize>,
    /// Orders of sent messages that have not arrived, by passage and delay, each with the change that led to it.
    sent: BTreeMap<(usize, usize), (MemberOrder, Option<usize>)>,
}

impl WaveList {
    fn insert(&mut self, at: Span, event: WaveEvent) {
        self.inserted += 1;
        self.events.push(Reverse((at, self.inserted, event)));
    }

    /// Registers a delay of all members in this order.
    fn register_delay(
        &mut self,
        at: Span,
        of: (usize, usize),
        (order, change): (MemberOrder, Option<usize>),
    ) {
        if let Some(&number) = self.due.get(&at) {
            self.delays[number].of.push(of);
            return;
        }
        let number = self.delays.len();
        self.delays.push(WaveDelays {
            of: vec![of],
            order,
            change,
        });
        self.due.insert(at, number);
        self.insert(at, WaveEvent::Delays(number));
    }
}

/// Returns the changes that lead from the order in which members begin a collective to the order in which they end it,
/// if proved for `passages`, which are in the order in which they begin. `delays_of` returns the ends of a member's
/// delays in a stage, with the messages that have arrived until then; `endpoint_of` returns the delay after a message.
pub(super) fn order_of_ends(
    stages: &[AstraPhase],
    passages: &[StagePassage],
    delays_of: impl Fn(&AstraPhase) -> Option<Vec<(Span, u32)>>,
    endpoint_of: impl Fn(&AstraPhase) -> Span,
) -> Option<Vec<OrderChange>> {
    let mut delays: Vec<_> = stages.iter().map(delays_of).collect::<Option<_>>()?;
    // Delays of a member that end at one instant are one event.
    delays.iter_mut().for_each(Vec::dedup);
    let stage_of = |passage: usize| passages[passage].entry.stage;
    let count = (0..passages.len()).map(|passage| delays[stage_of(passage).index()].len());
    if count.sum::<usize>() > MAX_DELAYS {
        return None;
    }
    let mut admitted: BTreeMap<Option<StageEntry>, Vec<usize>> = BTreeMap::new();
    for (number, passage) in passages.iter().enumerate() {
        admitted
            .entry(passage.admitted_by)
            .or_default()
            .push(number);
    }
    let (mut list, mut orders) = (WaveList::default(), MemberOrders::default());
    // Changes of orders, each with the index of the previous one.
    let mut changes: Vec<(Option<usize>, OrderChange)> = Vec::new();
    let mut last = None;
    for &passage in admitted.get(&None).into_iter().flatten() {
        let (at, _) = *delays[stage_of(passage).index()].first()?;
        list.register_delay(at, (passage, 0), (MemberOrder::default(), None));
    }
    while let Some(Reverse((now, _, event))) = list.events.pop() {
        let number = match event {
            WaveEvent::Delays(number) => number,
            WaveEvent::Arrival { passage, delay } => {
                let stage = stage_of(passage);
                let of = &delays[stage.index()];
                let messages = of[delay - 1].1..of[delay].1;
                let (order, change) = list.sent.remove(&(passage, delay))?;
                let order = orders.order_after(order, &stages[stage.index()], messages.clone());
                changes.push((change, OrderChange { stage, messages }));
                let change = Some(changes.len() - 1);
                let at = passages[passage].begin + of[delay].0;
                list.register_delay(at, (passage, delay), (order, change));
                continue;
            }
        };
        list.due.remove(&now);
        let over = std::mem::take(&mut list.delays[number].of);
        let order = std::mem::take(&mut list.delays[number].order);
        let change = list.delays[number].change;
        last = change;
        // Messages that this event sends, by arrival time.
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
                        list.register_delay(now + at, (next, 0), (order.clone(), change));
                    }
                }
                // No message arrives before the next delay ends, so it is registered at once.
                Some(&(at, arrived)) if arrived == of[delay].1 => {
                    list.register_delay(begin + at, (passage, delay + 1), (order.clone(), change));
                }
                Some(&(at, _)) => {
                    let arrival = begin + at - endpoint_of(&stages[stage.index()]);
                    let step = (stage, delay);
                    // Messages of different steps would interleave at one instant in an order that
                    // is not proved.
                    if *sent.entry(arrival).or_insert(step) != step {
                        return None;
                    }
                    let delay = delay + 1;
                    list.sent.insert((passage, delay), (order.clone(), change));
                    list.insert(arrival, WaveEvent::Arrival { passage, delay });
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

/// Returns true if all messages of `direct` take equal time. Lines of a sub-grid are identical, as are the members of a
/// line along a dimension of the machine.
fn costs_are_equal(
    stage: &AstraPhase,
    extent: &GroupExtent,
    sizes: &[u32],
    quiet: &UncontendedCost<'_>,
) -> bool {
    let phase = &extent.phases[stage.phase as usize];
    let npu = |index| extent.npus[phase.position(Position(0), index).index()];
    let Some(step) = stage.nth_send(QueueSlot::default(), line_at(stage, phase, Position(0)), 0)
    else {
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

fn line_at(stage: &AstraPhase, phase: &GroupPhase, position: Position) -> LinePosition {
    stage.line_position_of(phase.index(position), position)
}

/// Reorders `members` from the order in which they send `messages` of `stage` to the order in which
/// the messages arrive.
pub(super) fn reorder_members(
    stage: &AstraPhase,
    messages: Range<u32>,
    extent: &GroupExtent,
    members: &mut Vec<Position>,
) {
    let phase = &extent.phases[stage.phase as usize];
    let slot = stage.only_slot();
    match stage.algorithm {
        AstraAlgorithm::Ring => {
            let turn = ring_rotation(stage, messages.len() as u32);
            for member in members {
                let to = (phase.index(*member) + turn) % stage.size;
                *member = phase.position(*member, to);
            }
        }
        AstraAlgorithm::HalvingDoubling => {
            for step in messages {
                for member in &mut *members {
                    let line = line_at(stage, phase, *member);
                    if let Some(step) = stage.nth_send(slot, line, step) {
                        *member = phase.position(*member, step.to);
                    }
                }
            }
        }
        AstraAlgorithm::Direct { .. } => {
            for _ in 0..exchange_count(stage, messages.len() as u32) {
                *members = order_of_arrivals(stage, slot, phase, members);
            }
        }
        AstraAlgorithm::DoubleBinaryTree => {}
    }
}

/// Returns the members in the order in which a first message reaches each of them, if all members
/// send at once in the order of `members`.
fn order_of_arrivals(
    stage: &AstraPhase,
    slot: QueueSlot,
    phase: &GroupPhase,
    members: &[Position],
) -> Vec<Position> {
    let mut order = Vec::with_capacity(members.len());
    // For each position: true if the position has been reached. For each line, at its first
    // position: the number of its members that have not been reached.
    let mut reached = vec![false; members.len()];
    let mut left = vec![stage.size; members.len()];
    for &from in members {
        let line = line_at(stage, phase, from);
        let left = &mut left[phase.position(from, 0).index()];
        if *left == 0 {
            continue;
        }
        for step in (0..stage.size - 1).filter_map(|i| stage.nth_send(slot, line, i)) {
            let to = phase.position(from, step.to);
            if !std::mem::replace(&mut reached[to.index()], true) {
                *left -= 1;
                order.push(to);
            }
        }
    }
    order
}
