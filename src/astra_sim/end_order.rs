//! The order in which members end a phase at one instant, where all begin it together.
//!
//! At each instant of such a phase all members do the same, in an order σ. The delays of an NPU that are due at one
//! instant are one event, in the place of the first, so σ changes only where messages arrive: arrivals follow their sends,
//! and the first one that reaches a member gives it its place. With one message each from p to f(p), the next order is
//! f(σ). In a ring f is the next member, so K messages turn the order by K places; in halvingDoubling f exchanges
//! partners. In `direct`, whose messages all take equally long, the first member σ₀ of each line reaches all others of it,
//! beginning with its successor, and the second reaches σ₀. Chunks that are in the phase together send one after another
//! to the same members, which changes nothing; the next chunk begins in the event that ends the one before.

use super::AstraAlgorithm;
use super::program::{AstraPhase, PhaseOperation, QueueSlot};
use chakram_base::ids::Position;
use chakram_hardware::collective::{LinePosition, UncontendedCost};
use chakram_hardware::group::{GroupExtent, GroupPhase};

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
