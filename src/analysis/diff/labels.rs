//! Labels of nodes: hashes of their content and of their surroundings.
//!
//! A label never decides on a difference, only on which nodes are compared.

use super::side::{ComparedTrace, EdgeDirection};
use chakram_trace::format::wire::WireCursor;
use chakram_trace::format::{GroupName, MemoryLocation, Op};
use chakram_trace::graph::raw_trace::{CompactNodeView, RawTraceNode};
use chakram_trace::graph::{RawTrace, fingerprint};

/// Number of rounds in which labels propagate among nodes on cycles, and behind them.
const LOOSE_ROUNDS: usize = 4;

/// Returns the label of each node.
pub(super) fn of_all(raw: &RawTrace<'_>, label: fn(&CompactNodeView<'_>) -> u64) -> Vec<u64> {
    raw.nodes.iter().map(|item| label(&item.view)).collect()
}

/// Returns the type of a node as a small number.
pub(super) fn type_of(op: &Op<'_>) -> u8 {
    match *op {
        Op::NoOp => 0,
        Op::Host => 1,
        Op::Compute { .. } => 2,
        Op::Memory { store, place, .. } => {
            3 + 2 * u8::from(place == MemoryLocation::Local) + u8::from(store)
        }
        Op::Message { receive, .. } => 7 + u8::from(receive),
        Op::Collective { kind, .. } => 16 + kind as u8,
    }
}

/// Labels a node by name and type.
pub(super) fn kind(view: &CompactNodeView<'_>) -> u64 {
    fingerprint(&(view.name, type_of(&view.op)))
}

/// Labels a node by its name alone.
pub(super) fn name(view: &CompactNodeView<'_>) -> u64 {
    fingerprint(&view.name)
}

/// Labels a node by name, type, lane and peers: everything but times, sizes and other properties.
pub(super) fn key(view: &CompactNodeView<'_>) -> u64 {
    let group = |group: GroupName<'_>| match group {
        GroupName::World => 0,
        GroupName::Number(number) => fingerprint(&number),
        GroupName::Text(text) => fingerprint(&text),
    };
    let whom = match view.op {
        Op::Message { peer, tag, .. } => fingerprint(&(peer, tag)),
        Op::Collective {
            group: name,
            root,
            dimensions,
            ..
        } => fingerprint(&(group(name), root, dimensions)),
        Op::Compute { dtype, .. } => fingerprint(&dtype),
        Op::NoOp | Op::Host | Op::Memory { .. } => 0,
    };
    fingerprint(&(view.name, type_of(&view.op), view.lane, whom))
}

/// Labels a node by its whole record except id and dependencies, in any order of fields.
pub(super) fn content(item: &RawTraceNode<'_>) -> u64 {
    let (view, record) = (&item.view, &item.record);
    let times = (view.recorded.0, view.delay.0, view.wait.0, view.eager);
    let mut sum = mix(key(view) ^ fingerprint(&times));
    let mut cursor = WireCursor::new(record.bytes, record.offset);
    while !cursor.is_empty() {
        let from = cursor.offset() - record.offset;
        let number = match cursor.field() {
            Ok((number, _)) => number,
            // A broken rest is compared by its bytes.
            Err(_) => return sum.wrapping_add(fingerprint(&&record.bytes[from..])),
        };
        if !matches!(number, 1 | 4 | 5) {
            let field = &record.bytes[from..cursor.offset() - record.offset];
            // Addition commutes, so the order of fields has no effect.
            sum = sum.wrapping_add(mix(fingerprint(&field)));
        }
    }
    sum
}

#[inline]
fn mix(value: u64) -> u64 {
    const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;
    let value = (value ^ value >> 32).wrapping_mul(FACTOR);
    let value = (value ^ value >> 32).wrapping_mul(FACTOR);
    value ^ value >> 32
}

/// Returns the contribution of a neighbour; contributions are added, so that the order of neighbours has no
/// effect.
#[inline]
fn part(label: u64, way: EdgeDirection, control: bool) -> u64 {
    let salt = match (way, control) {
        (EdgeDirection::Predecessors, false) => 0x9e37_79b9_7f4a_7c15,
        (EdgeDirection::Predecessors, true) => 0x2545_f491_4f6c_dd1d,
        (EdgeDirection::Successors, false) => 0x5851_f42d_4c95_7f2d,
        (EdgeDirection::Successors, true) => 0x1405_7b7e_f767_814f,
    };
    mix(label ^ salt)
}

#[inline]
fn joined(
    side: &ComparedTrace<'_>,
    node: u32,
    own: u64,
    labels: &[u64],
    way: EdgeDirection,
) -> u64 {
    let parts = side.neighbours(node, way);
    let sum = parts.fold(0_u64, |sum, (next, control)| {
        sum.wrapping_add(part(labels[next as usize], way, control))
    });
    // The factor distinguishes a node's own label from the sum of its neighbours.
    mix(own.wrapping_mul(3).wrapping_add(sum))
}

/// Labels each node by `base` of itself and, transitively, of all its predecessors, or of all its successors.
pub(super) fn ancestry(side: &ComparedTrace<'_>, base: &[u64], way: EdgeDirection) -> Vec<u64> {
    let mut labels = base.to_vec();
    let loose = |labels: &mut [u64]| {
        for _ in 0..LOOSE_ROUNDS {
            let new = side.unordered.iter();
            let new: Vec<_> = new
                .map(|&node| joined(side, node, base[node as usize], labels, way))
                .collect();
            for (&node, label) in side.unordered.iter().zip(new) {
                labels[node as usize] = label;
            }
        }
    };
    let set = |labels: &mut [u64], node: u32| {
        labels[node as usize] = joined(side, node, base[node as usize], labels, way);
    };
    match way {
        EdgeDirection::Predecessors => {
            side.order.iter().for_each(|&node| set(&mut labels, node));
            loose(&mut labels);
        }
        // All successors of loose nodes are loose, so these go first here, and last in the other direction.
        EdgeDirection::Successors => {
            loose(&mut labels);
            side.order
                .iter()
                .rev()
                .for_each(|&node| set(&mut labels, node));
        }
    }
    labels
}

/// Labels each node by `base` of itself and of everything connected to it by a path of predecessors or
/// successors.
pub(super) fn whole(side: &ComparedTrace<'_>, base: &[u64]) -> Vec<u64> {
    let up = ancestry(side, base, EdgeDirection::Predecessors);
    let down = ancestry(side, &up, EdgeDirection::Successors);
    ancestry(side, &down, EdgeDirection::Predecessors)
}

/// Labels each node by `base` of itself and of its neighbours, up to `steps` steps away.
pub(super) fn vicinity(side: &ComparedTrace<'_>, base: &[u64], steps: usize) -> Vec<u64> {
    let mut labels = base.to_vec();
    for _ in 0..steps {
        let new = side.raw.all().map(|node| {
            let own = joined(
                side,
                node,
                labels[node as usize],
                &labels,
                EdgeDirection::Predecessors,
            );
            joined(side, node, own, &labels, EdgeDirection::Successors)
        });
        labels = new.collect();
    }
    labels
}
