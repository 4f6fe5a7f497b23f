//! Adds collectives of only some NPUs: in overlapping groups, and along some dimensions in only one part of the
//! machine.

use super::super::algorithms::AlgorithmStyle;
use super::super::config::{CollectiveOperation, NodeWork};
use super::RandomGenerator;
use super::job::RandomJobBuilder;

/// Returns `true` if, at each distance n/2, n/4, …, 1 of a halving-doubling all-gather, every NPU's partner has this
/// NPU as its own partner.
fn are_halving_doubling_partners_mutual(n: usize) -> bool {
    let partner = |i: usize, distance: usize| match (i / distance).is_multiple_of(2) {
        true => (i + distance) % n,
        false => (i + n - distance) % n,
    };
    let mut distances = (1..=n.ilog2()).map(|level| n >> level);
    distances.all(|distance| (0..n).all(|i| partner(partner(i, distance), distance) == i))
}

impl RandomJobBuilder<'_> {
    /// Adds one collective in each of several groups with random members, one after another.
    pub fn add_random_group_collectives(&mut self, dice: &mut RandomGenerator) {
        let npus = self.last.len();
        let kind = Self::draw_collective_kind(dice);
        let style = match self.config.system.algorithms[&kind][..] {
            [only] => only.style,
            _ => AlgorithmStyle::Ring,
        };
        let legal = |&size: &usize| match style {
            AlgorithmStyle::DoubleBinaryTree => false,
            AlgorithmStyle::HalvingDoubling if kind == CollectiveOperation::AllGather => {
                are_halving_doubling_partners_mutual(size)
            }
            AlgorithmStyle::HalvingDoubling => size.is_power_of_two(),
            _ => true,
        };
        let sizes: Vec<usize> = (2..npus).filter(legal).collect();
        if sizes.is_empty() {
            return self.add_collective_of_all_npus(dice);
        }
        for _ in 0..dice.draw_between(1, 3) {
            let mut order: Vec<usize> = (0..npus).collect();
            order.sort_by_cached_key(|_| dice.draw_between(0, 1 << 40));
            let members = order[..dice.pick_from(&sizes)].to_vec();
            let group = self.find_or_add_group(&members, dice);
            let bytes = self.draw_collective_bytes(kind, dice).min(1 << 20);
            let work = NodeWork::Collective {
                kind,
                bytes,
                group,
                dims: None,
                priority: dice.draw_between(0, 3) as i64,
            };
            for &npu in &members {
                self.add_node_that_blocks_next_communication(npu, work.clone(), dice);
            }
        }
    }

    /// Adds a collective along some dimensions, only among NPUs with the same coordinates in the other dimensions.
    pub fn add_partial_grid_collective(&mut self, dice: &mut RandomGenerator) {
        let kind = Self::draw_collective_kind(dice);
        let list = &self.config.system.algorithms[&kind];
        let (count, dims) = (list.len(), self.config.dims.len());
        if dims == 1 || list.iter().any(|a| a.one) {
            return self.add_collective_of_all_npus(dice);
        }
        let mask = dice.draw_between(1, (1 << count) - 1);
        let bytes = self.draw_collective_bytes(kind, dice).min(1 << 20);
        let sizes: Vec<usize> = self.config.dims.iter().map(|dim| dim.n).collect();
        let place = |mut npu: usize| {
            let mut place = Vec::new();
            for (dim, n) in sizes.iter().enumerate() {
                place.push(if mask >> dim & 1 == 0 { npu % n } else { 0 });
                npu /= n;
            }
            place
        };
        let npus = self.last.len();
        let chosen = place(dice.draw_between(0, npus as u64 - 1) as usize);
        let work = NodeWork::Collective {
            kind,
            bytes,
            group: 0,
            dims: Some((0..dims).map(|dim| mask >> dim & 1 == 1).collect()),
            priority: 0,
        };
        for npu in (0..npus).filter(|&npu| place(npu) == chosen) {
            self.add_node_that_blocks_next_communication(npu, work.clone(), dice);
        }
    }

    /// Adds two independent collectives of all NPUs. Each collective waits for its own kernels, so NPUs may issue the
    /// two in different orders. The messages of both collectives may be identical, for example on a ring.
    pub fn add_unordered_collective_pair(&mut self, dice: &mut RandomGenerator) {
        let npus = self.last.len();
        let whole = self.config.system.splits * npus as u64 * dice.draw_size(1, 1 << 12);
        let pairs = [
            (
                CollectiveOperation::AllGather,
                CollectiveOperation::ReduceScatter,
            ),
            (
                CollectiveOperation::ReduceScatter,
                CollectiveOperation::AllToAll,
            ),
            (
                CollectiveOperation::AllGather,
                CollectiveOperation::AllToAll,
            ),
            (
                CollectiveOperation::AllReduce,
                CollectiveOperation::AllToAll,
            ),
        ];
        let (first, second) = dice.pick_from(&pairs);
        // Usually give both collectives the same algorithm.
        if !dice.draw_one_in(4) {
            let list = self.config.system.algorithms[&CollectiveOperation::AllToAll].clone();
            self.config.system.algorithms.insert(first, list.clone());
            self.config.system.algorithms.insert(second, list);
        }
        for npu in 0..npus {
            let before = self.last[npu].clone();
            let mut ends = Vec::new();
            for kind in [first, second] {
                let mut deps = before.clone();
                if dice.draw_one_in(2) {
                    deps.push(self.add_kernel(npu, dice));
                }
                let bytes = match kind {
                    CollectiveOperation::AllGather => whole / npus as u64,
                    _ => whole,
                };
                let work = NodeWork::Collective {
                    kind,
                    bytes,
                    group: 0,
                    dims: None,
                    priority: 0,
                };
                ends.push(self.add_node(npu, deps, work, dice));
            }
            self.last[npu] = ends;
        }
    }

    /// Adds a collective of all NPUs. A collective over all NPUs as one line may exclude any dimension except the
    /// first, without effect.
    pub fn add_collective_of_all_npus(&mut self, dice: &mut RandomGenerator) {
        let kind = Self::draw_collective_kind(dice);
        let bytes = self.draw_collective_bytes(kind, dice).min(1 << 20);
        let one = self.config.system.algorithms[&kind][0].one;
        let mut mask = vec![true];
        mask.extend((1..4).map(|_| dice.draw_one_in(2)));
        let work = NodeWork::Collective {
            kind,
            bytes,
            group: 0,
            dims: (one && dice.draw_one_in(2)).then_some(mask),
            priority: 0,
        };
        for npu in 0..self.last.len() {
            self.add_node_that_blocks_next_communication(npu, work.clone(), dice);
        }
    }
}
