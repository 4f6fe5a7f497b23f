//! Computes node labels (hashes) that depend on the surrounding nodes.
//!
//! Labels only determine which nodes are compared with each other, so a collision cannot hide a difference.

use super::node_labels::mix_bits;
use super::side::{ComparedTrace, DependencyWalkDirection};

/// Number of rounds in which labels spread among nodes that are on a cycle or depend on one.
const LOOSE_ROUNDS: usize = 4;

/// Returns a neighbour's contribution to a node's label. Contributions are summed, so that the order of neighbours
/// has no effect.
#[inline]
fn hash_neighbour(label: u64, way: DependencyWalkDirection, control: bool) -> u64 {
    let salt = match (way, control) {
        (DependencyWalkDirection::Predecessors, false) => 0x9e37_79b9_7f4a_7c15,
        (DependencyWalkDirection::Predecessors, true) => 0x2545_f491_4f6c_dd1d,
        (DependencyWalkDirection::Successors, false) => 0x5851_f42d_4c95_7f2d,
        (DependencyWalkDirection::Successors, true) => 0x1405_7b7e_f767_814f,
    };
    mix_bits(label ^ salt)
}

#[inline]
fn hash_node_with_neighbours(
    side: &ComparedTrace<'_>,
    node: u32,
    own: u64,
    labels: &[u64],
    way: DependencyWalkDirection,
) -> u64 {
    let parts = side.neighbours_of(node, way);
    let sum = parts.fold(0_u64, |sum, (next, control)| {
        sum.wrapping_add(hash_neighbour(labels[next as usize], way, control))
    });
    // Without the factor 3, swapping a node's label with its neighbours' contributions would leave the sum unchanged.
    mix_bits(own.wrapping_mul(3).wrapping_add(sum))
}

/// Returns one label per node. A label combines the node's `base` label with the labels of all transitive
/// predecessors, or of all transitive successors.
pub(super) fn hash_transitive_neighbours(
    side: &ComparedTrace<'_>,
    base: &[u64],
    way: DependencyWalkDirection,
) -> Vec<u64> {
    let mut labels = base.to_vec();
    let loose = |labels: &mut [u64]| {
        for _ in 0..LOOSE_ROUNDS {
            let new = side.unordered.iter();
            let new: Vec<_> = new
                .map(|&node| {
                    hash_node_with_neighbours(side, node, base[node as usize], labels, way)
                })
                .collect();
            for (&node, label) in side.unordered.iter().zip(new) {
                labels[node as usize] = label;
            }
        }
    };
    let set = |labels: &mut [u64], node: u32| {
        labels[node as usize] =
            hash_node_with_neighbours(side, node, base[node as usize], labels, way);
    };
    match way {
        DependencyWalkDirection::Predecessors => {
            side.order.iter().for_each(|&node| set(&mut labels, node));
            loose(&mut labels);
        }
        // Nodes that are on cycles or depend on them are loose, and so are their successors. They are therefore
        // labelled last when labels come from predecessors, and first when labels come from successors.
        DependencyWalkDirection::Successors => {
            loose(&mut labels);
            side.order
                .iter()
                .rev()
                .for_each(|&node| set(&mut labels, node));
        }
    }
    labels
}

/// Returns one label per node. A label combines the node's `base` label with the labels of all nodes connected with it
/// in either direction.
pub(super) fn hash_connected_component(side: &ComparedTrace<'_>, base: &[u64]) -> Vec<u64> {
    let up = hash_transitive_neighbours(side, base, DependencyWalkDirection::Predecessors);
    let down = hash_transitive_neighbours(side, &up, DependencyWalkDirection::Successors);
    hash_transitive_neighbours(side, &down, DependencyWalkDirection::Predecessors)
}

/// Returns one label per node. A label combines the node's `base` label with the labels of all nodes at most
/// `steps` edges away.
pub(super) fn hash_vicinity(side: &ComparedTrace<'_>, base: &[u64], steps: usize) -> Vec<u64> {
    let mut labels = base.to_vec();
    for _ in 0..steps {
        let new = side.raw.range_of_all_node_indices().map(|node| {
            let own = hash_node_with_neighbours(
                side,
                node,
                labels[node as usize],
                &labels,
                DependencyWalkDirection::Predecessors,
            );
            hash_node_with_neighbours(
                side,
                node,
                own,
                &labels,
                DependencyWalkDirection::Successors,
            )
        });
        labels = new.collect();
    }
    labels
}
