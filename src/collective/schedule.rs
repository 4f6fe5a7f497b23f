//! In which order chunks visit the dimensions.
//!
//! *Ascending*: every chunk goes outward from the innermost dimension. With links of unequal load the most
//! loaded dimension then sets the pace alone.
//!
//! *Round robin*: chunk k begins with dimension k mod D and goes outward from there, around.
//!
//! *Themis* (Rashidi et al., "Themis: a network bandwidth-aware collective scheduling policy", ISCA 2022;
//! ASTRA-sim's `OfflineGreedy`): each chunk of a reduce-scatter visits the dimensions by the load that
//! chunks before it have put on them, the least loaded first, where it is largest; then its own load is
//! added. A chunk that is s bytes large when it comes to dimension d with n members and bandwidth B loads it
//! with s (n−1)/n / B and is s/n large afterwards. If the difference in load is less than what a sixteenth of
//! a chunk would put on the least loaded dimension, the chunk goes in ascending order. All-gather takes
//! the order backwards. All-to-all, of which nothing shrinks on the way, is ascending.

use crate::group::Extent;
use crate::topology::Topology;
use crate::trace::CollectiveKind;

/// In which order chunks visit the dimensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inter {
    /// From the innermost outward.
    #[default]
    Ascending,
    /// Each chunk begins with another dimension.
    RoundRobin,
    /// The least loaded first.
    Themis,
}

impl Inter {
    /// Every policy with the name it has in machine files.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::Ascending, "ascending"),
        (Self::RoundRobin, "round_robin"),
        (Self::Themis, "themis"),
    ];
}

/// Of a chunk, what the difference in load must at least be worth.
const LEAST_GAP: f64 = 1.0 / 16.0;

/// The orders in which `chunks` of a collective visit the phases of `extent`, each once, and which of them
/// each chunk takes.
pub(super) fn orders(
    inter: Inter,
    kind: CollectiveKind,
    (extent, topology): (&Extent, &Topology),
    chunks: u32,
) -> (Vec<Vec<usize>>, Vec<u16>) {
    let phases = extent.phases.len();
    let ascending: Vec<usize> = (0..phases).collect();
    let shrinks = match kind {
        CollectiveKind::AllReduce | CollectiveKind::ReduceScatter | CollectiveKind::AllGather => {
            true
        }
        CollectiveKind::AllToAll => false,
        _ => return (vec![ascending], vec![0; chunks as usize]),
    };
    let mut orders = vec![ascending.clone()];
    let mut route_of = Vec::with_capacity(chunks as usize);
    let mut loads = vec![0.0; phases];
    for chunk in 0..chunks as usize {
        let mut order = ascending.clone();
        match inter {
            Inter::Ascending => {}
            Inter::RoundRobin => order.rotate_left(chunk % phases.max(1)),
            Inter::Themis if !shrinks => {}
            Inter::Themis => themis(&mut loads, &mut order, (extent, topology)),
        }
        let known = orders.iter().position(|other| *other == order);
        let route = known.unwrap_or_else(|| {
            orders.push(order);
            orders.len() - 1
        });
        // There are at most as many orders as chunks.
        route_of.push(route as u16);
    }
    (orders, route_of)
}

/// Puts the phases into the order for the next chunk, and adds its load.
fn themis(loads: &mut [f64], order: &mut [usize], (extent, topology): (&Extent, &Topology)) {
    // Seconds of a whole chunk, taken as one byte: only ratios matter.
    let load = |phase: usize, share: f64| {
        let phase = &extent.phases[phase];
        let bandwidth = topology.dimensions()[phase.dimension].bandwidth;
        let n = f64::from(phase.size);
        share * (n - 1.0) / n / bandwidth.bytes_per_second()
    };
    // A stable sort: equally loaded dimensions stay ascending.
    order.sort_by(|&a, &b| loads[a].total_cmp(&loads[b]));
    if let (Some(&least), Some(&most)) = (order.first(), order.last())
        && loads[most] - loads[least] < load(least, LEAST_GAP)
    {
        order.sort_unstable();
    }
    let mut share = 1.0;
    for &phase in &*order {
        loads[phase] += load(phase, share);
        share /= f64::from(extent.phases[phase].size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Npu;
    use crate::topology::{Dimension, Shape};
    use crate::units::{Bandwidth, Span};

    fn machine(dimensions: &[(u32, f64)]) -> (Extent, Topology) {
        let dimensions = dimensions.iter().map(|&(size, rate)| Dimension {
            name: String::new(),
            shape: Shape::Switch,
            size,
            bandwidth: Bandwidth::new(rate).unwrap(),
            latency: Span::ZERO,
        });
        let topology = Topology::new(dimensions.collect()).unwrap();
        let npus: Vec<_> = (0..topology.npus()).map(Npu).collect();
        (Extent::new(&npus, &topology), topology)
    }

    fn of(inter: Inter, kind: CollectiveKind, chunks: u32) -> Vec<Vec<usize>> {
        let (extent, topology) = machine(&[(4, 1e9), (2, 1e9)]);
        let (orders, route_of) = orders(inter, kind, (&extent, &topology), chunks);
        let order = |route: &u16| orders[usize::from(*route)].clone();
        route_of.iter().map(order).collect()
    }

    #[test]
    fn chunks_go_where_the_load_is_least() {
        // Sizes 4 and 2, equal rates. Chunk 0 ascending: loads 3/4 and 1/4 · 1/2 = 1/8. Chunk 1: the gap
        // 5/8 is more than a sixteenth of 1/2, so dimension 1 first: 1/8 + 1/2 = 5/8, and 3/4 + 1/2 · 3/4 =
        // 9/8. Chunk 2 the same: 9/8 in dimension 1, 12/8 in dimension 0. Chunk 3: dimension 1 has less
        // still.
        let ascending = vec![0, 1];
        let other = vec![1, 0];
        let themis = of(Inter::Themis, CollectiveKind::AllReduce, 4);
        assert_eq!(
            themis,
            [&ascending, &other, &other, &other].map(Clone::clone)
        );
        let robin = of(Inter::RoundRobin, CollectiveKind::AllToAll, 3);
        assert_eq!(robin, [&ascending, &other, &ascending].map(Clone::clone));
    }

    #[test]
    fn what_does_not_shrink_is_not_reordered_by_load() {
        let orders = of(Inter::Themis, CollectiveKind::AllToAll, 5);
        assert!(orders.iter().all(|order| *order == [0, 1]));
        let orders = of(Inter::RoundRobin, CollectiveKind::Broadcast, 5);
        assert!(orders.iter().all(|order| *order == [0, 1]));
    }
}
