//! The order in which members end a phase at one instant, where all begin it together.
//!
//! At each instant of such a phase all members do the same, in an order σ. The delays of an NPU that are due at one
//! instant are one event, in the place of the first, so σ changes only where messages arrive: arrivals follow their sends,
//! and the first one that reaches a member gives it its place. With one message each from p to f(p), the next order is
//! f(σ). In a ring f is the next member, so K messages turn the order by K places; in halvingDoubling f exchanges
//! partners. In `direct`, whose messages all take equally long, the first member σ₀ of each line reaches all others of it,
//! beginning with its successor, and the second reaches σ₀. Chunks that are in the phase together send one after another
//! to the same members, which changes nothing; the next chunk begins in the event that ends the one before.
//!
//! Chunks in different stages at the same time have an order each. What a chunk begins with is the order in which members
//! end the stage that lets it in, its own before or that of a chunk whose place it takes. Where delays of two chunks are over at one instant they
//! are one event, and one order becomes the other: the order is proved where both are the same, or where that never happens.

use super::AstraAlgorithm;
use super::program::{AstraPhase, PhaseOperation, QueueSlot};
use chakram_base::ids::{Position, StageIndex};
use chakram_base::units::Span;
use chakram_hardware::collective::{LinePosition, StagePassage, UncontendedCost};
use chakram_hardware::group::{GroupExtent, GroupPhase};
use std::collections::BTreeMap;

/// Maximum number of members of which all pairs are compared.
const COMPARED: u32 = 64;

/// Returns whether [`follow`] is proved for `stage`, which has a closed form; `sizes` are those of the machine's dimensions.
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

/// How an order follows from the one in which members begin a collective; equal ones are equal orders.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct OrderChange {
    /// Number of the last change that depends on the order as a whole; 0 before.
    whole: u32,
    /// By phase, how far each member's place has moved since then along its line, or which bits of its index in there
    /// are exchanged; without zeros.
    moves: BTreeMap<u32, u32>,
}

/// Changes of orders, with numbers for those that depend on an order as a whole.
#[derive(Debug, Default)]
struct OrderChanges {
    whole: BTreeMap<(OrderChange, u32), u32>,
}

impl OrderChanges {
    /// Returns what `change` becomes by the first `messages` that each member receives in `stage`.
    fn after(&mut self, change: &OrderChange, stage: &AstraPhase, messages: u32) -> OrderChange {
        let mut change = change.clone();
        let slot = stage.only_slot();
        let place = change.moves.remove(&stage.phase).unwrap_or(0);
        let moved = match stage.algorithm {
            AstraAlgorithm::Ring => {
                let turn = messages % stage.size;
                let turn = if slot.backward {
                    stage.size - turn
                } else {
                    turn
                };
                (place + turn) % stage.size
            }
            AstraAlgorithm::HalvingDoubling => {
                let first = LinePosition {
                    size: stage.size,
                    index: 0,
                    root: 0,
                    position: 0,
                };
                let steps = (0..messages).filter_map(|step| stage.step(slot, first, step));
                steps.fold(place, |place, step| place ^ step.to)
            }
            AstraAlgorithm::Direct { .. } | AstraAlgorithm::DoubleBinaryTree => {
                if place > 0 {
                    change.moves.insert(stage.phase, place);
                }
                for _ in 0..messages.div_ceil(stage.size - 1) {
                    let next = self.whole.len() as u32 + 1;
                    let whole = *self.whole.entry((change, stage.phase)).or_insert(next);
                    change = OrderChange {
                        whole,
                        moves: BTreeMap::new(),
                    };
                }
                return change;
            }
        };
        if moved > 0 {
            change.moves.insert(stage.phase, moved);
        }
        change
    }
}

/// Returns the stages that bring members from the order in which they begin a collective into that in which they end it, if it is
/// proved for `passages` in the order in which they begin; `delays_of` says when a member's delays in a stage are over, with
/// the messages that have arrived until then.
pub(super) fn stages_to_end(
    stages: &[AstraPhase],
    passages: &[StagePassage],
    delays_of: impl Fn(&AstraPhase) -> Option<Vec<(Span, u32)>>,
) -> Option<Vec<StageIndex>> {
    let delays: Vec<_> = stages.iter().map(delays_of).collect::<Option<_>>()?;
    let count = passages
        .iter()
        .map(|passage| delays[passage.entry.stage.index()].len());
    if count.sum::<usize>() > MAX_DELAYS {
        return None;
    }
    let mut changes = OrderChanges::default();
    // By passage: the one before it, and the order in which it begins; passages by chunk and stage.
    let mut before: Vec<Option<usize>> = Vec::with_capacity(passages.len());
    let mut begins: Vec<OrderChange> = Vec::with_capacity(passages.len());
    let mut number_of = BTreeMap::new();
    let mut due = Vec::new();
    let mut last = None;
    for (number, passage) in passages.iter().enumerate() {
        let stage = passage.entry.stage.index();
        let behind = passage
            .behind
            .map(|ended| number_of[&(ended.chunk, ended.stage.index())]);
        let change = behind.map_or_else(OrderChange::default, |behind: usize| {
            let ended = &stages[passages[behind].entry.stage.index()];
            let messages = delays[passages[behind].entry.stage.index()].last();
            changes.after(
                &begins[behind],
                ended,
                messages.map_or(0, |&(_, arrived)| arrived),
            )
        });
        before.push(behind);
        begins.push(change);
        number_of.insert((passage.entry.chunk, stage), number);
        let of_stage = delays[stage].iter();
        due.extend(of_stage.map(|&(at, arrived)| (passage.begin + at, number, arrived)));
        let end = delays[stage].last().map(|&(at, _)| passage.begin + at);
        last = last.max(end.map(|end| (end, number)));
    }
    due.sort_unstable();
    let mut order_at = |number: usize, arrived: u32| {
        let stage = &stages[passages[number].entry.stage.index()];
        changes.after(&begins[number], stage, arrived)
    };
    let is_one_order = due.windows(2).all(|pair| {
        let [(at, a, of_a), (other, b, of_b)] = [pair[0], pair[1]];
        at != other || a == b || order_at(a, of_a) == order_at(b, of_b)
    });
    if !is_one_order {
        return None;
    }
    let mut found = Vec::new();
    let mut next = last.map(|(_, number)| number);
    while let Some(number) = next {
        found.push(passages[number].entry.stage);
        next = before[number];
    }
    found.reverse();
    Some(found)
}

/// Returns whether all messages of `direct` take equally long. Lines of a sub-grid are identical, as are the members of a
/// line along a dimension of the machine.
fn costs_are_equal(
    stage: &AstraPhase,
    extent: &GroupExtent,
    sizes: &[u32],
    quiet: &UncontendedCost<'_>,
) -> bool {
    let phase = &extent.phases[stage.phase as usize];
    let npu = |index| extent.npus[phase.position(Position(0), index).index()];
    let Some(step) = stage.step(QueueSlot::default(), line_at(stage, phase, Position(0)), 0) else {
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
    LinePosition {
        size: stage.size,
        index: phase.index(position),
        root: 0,
        position: position.0,
    }
}

/// Brings `members` from the order in which they begin `stage` into that in which they end it.
pub(super) fn follow(
    stage: &AstraPhase,
    slot: QueueSlot,
    extent: &GroupExtent,
    members: &mut Vec<Position>,
) {
    let phase = &extent.phases[stage.phase as usize];
    let line = |position| line_at(stage, phase, position);
    let receives = stage.receives(slot, line(Position(0)));
    match stage.algorithm {
        AstraAlgorithm::Ring => {
            let turn = receives % stage.size;
            let turn = if slot.backward {
                stage.size - turn
            } else {
                turn
            };
            for member in members {
                let to = (phase.index(*member) + turn) % stage.size;
                *member = phase.position(*member, to);
            }
        }
        AstraAlgorithm::HalvingDoubling => {
            for step in 0..receives {
                for member in &mut *members {
                    if let Some(step) = stage.step(slot, line(*member), step) {
                        *member = phase.position(*member, step.to);
                    }
                }
            }
        }
        AstraAlgorithm::Direct { .. } => {
            let exchanges = if stage.part == PhaseOperation::AllReduce {
                2
            } else {
                1
            };
            for _ in 0..exchanges {
                *members = order_of_arrivals(stage, slot, phase, members);
            }
        }
        AstraAlgorithm::DoubleBinaryTree => {}
    }
}

/// Returns the members in the order in which the first message reaches each, if they all send at once in the order of
/// `members`.
fn order_of_arrivals(
    stage: &AstraPhase,
    slot: QueueSlot,
    phase: &GroupPhase,
    members: &[Position],
) -> Vec<Position> {
    let mut order = Vec::with_capacity(members.len());
    // By position: whether it has been reached, and at the first of a line, how many of the line have not.
    let mut reached = vec![false; members.len()];
    let mut left = vec![stage.size; members.len()];
    for &from in members {
        let line = line_at(stage, phase, from);
        let left = &mut left[phase.position(from, 0).index()];
        if *left == 0 {
            continue;
        }
        for step in (0..stage.size - 1).filter_map(|i| stage.step(slot, line, i)) {
            let to = phase.position(from, step.to);
            if !std::mem::replace(&mut reached[to.index()], true) {
                *left -= 1;
                order.push(to);
            }
        }
    }
    order
}
