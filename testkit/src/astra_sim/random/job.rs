//! Creates random jobs. Their steps communicate in the same order on all NPUs, with other work in between.

use super::super::algorithms::AlgorithmStyle;
use super::super::config::{
    CollectiveOperation, MemoryServerAssignment, NodeWork, TraceNode, WholeSimulationInput,
};
use super::RandomGenerator;

/// The configuration of a job under construction, and the last nodes of its NPUs.
pub(super) struct RandomJobBuilder<'c> {
    pub(super) config: &'c mut WholeSimulationInput,
    /// Nodes for which each NPU's next communication node waits: the last communication node, and possibly another
    /// node.
    pub(super) last: Vec<Vec<u64>>,
    tag: u64,
}

/// Adds a job with collectives of only some NPUs to the configuration.
pub fn add_job_with_collectives_of_some_npus(
    config: &mut WholeSimulationInput,
    dice: &mut RandomGenerator,
) {
    let npus = config.npu_count();
    config.ranks = vec![Vec::new(); npus];
    let mut job = RandomJobBuilder {
        config,
        last: vec![Vec::new(); npus],
        tag: 0,
    };
    for _ in 0..dice.draw_between(1, 4) {
        job.add_kernels(dice);
        match dice.draw_between(0, 11) {
            10 | 11 => job.add_unordered_collective_pair(dice),
            0..=5 => job.add_random_group_collectives(dice),
            6 | 7 => job.add_partial_grid_collective(dice),
            8 => job.add_exchange_at_fixed_distance(dice),
            _ => job.add_collective_of_all_npus(dice),
        }
    }
}

/// Adds a job, and the groups that it needs, to the configuration.
pub fn add_random_job(config: &mut WholeSimulationInput, dice: &mut RandomGenerator) {
    let npus = config.npu_count();
    config.ranks = vec![Vec::new(); npus];
    let mut job = RandomJobBuilder {
        config,
        last: vec![Vec::new(); npus],
        tag: 0,
    };
    for _ in 0..dice.draw_between(1, 6) {
        job.add_kernels(dice);
        match dice.draw_between(0, 14) {
            0..=4 => job.add_world_collective(dice),
            5 | 6 => job.add_group_collectives(dice),
            7 => job.add_full_group_collective(dice),
            8 => job.add_messages(dice),
            9 | 10 => job.add_memory_accesses(dice),
            11 => job.add_exchange_at_fixed_distance(dice),
            12 => job.add_messages_received_in_other_order(dice),
            13 => job.add_concurrent_collectives(dice),
            _ => job.add_idle_nodes(dice),
        }
    }
    for npu in 0..npus {
        if job.config.ranks[npu].is_empty() || dice.draw_one_in(4) {
            job.add_kernel(npu, dice);
        }
    }
}

impl RandomJobBuilder<'_> {
    pub(super) fn add_node(
        &mut self,
        npu: usize,
        deps: Vec<u64>,
        work: NodeWork,
        dice: &mut RandomGenerator,
    ) -> u64 {
        let trace = &mut self.config.ranks[npu];
        let id = trace.last().map_or(1, |n| n.id) + dice.pick_from(&[1, 1, 1, 7]);
        trace.push(TraceNode {
            id,
            deps,
            cpu: match work {
                NodeWork::Compute { .. } => dice.draw_one_in(8),
                NodeWork::Memory { .. } | NodeWork::Nothing => false,
                // ASTRA-sim supports communication on the host only if it replays recorded durations.
                _ => self.config.system.replay_only && dice.draw_one_in(8),
            },
            micros: dice.draw_between(0, 60),
            work,
        });
        id
    }

    pub(super) fn add_kernel(&mut self, npu: usize, dice: &mut RandomGenerator) -> u64 {
        let deps = self.last[npu].clone();
        let ops = dice.draw_size(1 << 30, 1 << 36);
        let bytes = dice.draw_size(1 << 16, 1 << 26);
        self.add_node(npu, deps, NodeWork::Compute { ops, bytes }, dice)
    }

    /// Adds kernels on some NPUs. A kernel runs before or during its NPU's next communication.
    fn add_kernels(&mut self, dice: &mut RandomGenerator) {
        for npu in 0..self.last.len() {
            if dice.draw_one_in(2) {
                continue;
            }
            let id = self.add_kernel(npu, dice);
            if !dice.draw_one_in(3) {
                self.last[npu] = vec![id];
            }
        }
    }

    /// Adds a node for which the NPU's next communication waits.
    pub(super) fn add_node_that_blocks_next_communication(
        &mut self,
        npu: usize,
        work: NodeWork,
        dice: &mut RandomGenerator,
    ) {
        let deps = self.last[npu].clone();
        let id = self.add_node(npu, deps, work, dice);
        self.last[npu] = vec![id];
    }

    pub(super) fn draw_collective_kind(dice: &mut RandomGenerator) -> CollectiveOperation {
        dice.pick_from(&[
            CollectiveOperation::AllReduce,
            CollectiveOperation::AllReduce,
            CollectiveOperation::AllGather,
            CollectiveOperation::ReduceScatter,
            CollectiveOperation::AllToAll,
        ])
    }

    /// Returns a size for a collective. Avoids chunks of less than one byte, because ASTRA-sim's all-gathers never end
    /// with such chunks.
    pub(super) fn draw_collective_bytes(
        &self,
        kind: CollectiveOperation,
        dice: &mut RandomGenerator,
    ) -> u64 {
        match kind {
            CollectiveOperation::AllGather => dice.draw_size(self.config.system.splits, 1 << 20),
            _ => dice.draw_size(1, 8 << 20),
        }
    }

    /// Adds a collective of all NPUs over all dimensions or some of them.
    fn add_world_collective(&mut self, dice: &mut RandomGenerator) {
        let kind = Self::draw_collective_kind(dice);
        let bytes = self.draw_collective_bytes(kind, dice);
        let list = &self.config.system.algorithms[&kind];
        let one = list.iter().any(|a| a.one);
        // At least one dimension with an algorithm must take part; otherwise the collective would never end.
        let count = list.len() as u64;
        let mut dims = None;
        if count > 1 && !one && dice.draw_one_in(3) {
            let mask = dice.draw_between(1, (1 << count) - 1);
            let rest = self.config.dims.len() as u64;
            let takes_part = |d| match d < count {
                true => mask >> d & 1 == 1,
                false => dice.draw_one_in(2),
            };
            dims = Some((0..rest).map(takes_part).collect());
        }
        let work = NodeWork::Collective {
            kind,
            bytes,
            group: 0,
            dims,
            priority: dice.draw_between(0, 3) as i64,
        };
        for npu in 0..self.last.len() {
            self.add_node_that_blocks_next_communication(npu, work.clone(), dice);
        }
    }

    /// Adds the same collective in each of several groups, which together cover all NPUs.
    fn add_group_collectives(&mut self, dice: &mut RandomGenerator) {
        let npus = self.last.len();
        let kind = Self::draw_collective_kind(dice);
        let list = &self.config.system.algorithms[&kind];
        let style = match list[..] {
            [only] => only.style,
            _ => AlgorithmStyle::Ring,
        };
        let legal = |size: &usize| match style {
            AlgorithmStyle::DoubleBinaryTree => false,
            AlgorithmStyle::HalvingDoubling => size.is_power_of_two(),
            _ => true,
        };
        let divides = |size: &usize| npus.is_multiple_of(*size);
        let sizes: Vec<usize> = (2..npus).filter(divides).filter(legal).collect();
        if sizes.is_empty() {
            return self.add_world_collective(dice);
        }
        let size = dice.pick_from(&sizes);
        let mut order: Vec<usize> = (0..npus).collect();
        match dice.draw_between(0, 2) {
            0 => {}
            1 => order.sort_by_key(|npu| npu % (npus / size)),
            _ => order.sort_by_cached_key(|_| dice.draw_53_bit_number()),
        }
        let bytes = self.draw_collective_bytes(kind, dice);
        for members in order.chunks(size) {
            let group = self.find_or_add_group(members, dice);
            let work = NodeWork::Collective {
                kind,
                bytes,
                group,
                dims: None,
                priority: 0,
            };
            for &npu in members {
                self.add_node_that_blocks_next_communication(npu, work.clone(), dice);
            }
        }
    }

    /// Returns the id of the group with these members, adding it if necessary.
    pub(super) fn find_or_add_group(
        &mut self,
        members: &[usize],
        dice: &mut RandomGenerator,
    ) -> u64 {
        let known = self.config.groups.iter().find(|(_, m)| **m == members);
        match known {
            Some((&group, _)) if !dice.draw_one_in(3) => group,
            _ => {
                let group =
                    self.config.groups.keys().max().copied().unwrap_or(0) + dice.draw_between(1, 3);
                self.config.groups.insert(group, members.to_vec());
                group
            }
        }
    }

    /// Adds a collective of a group that consists of all NPUs in random order.
    fn add_full_group_collective(&mut self, dice: &mut RandomGenerator) {
        let mut members: Vec<usize> = (0..self.last.len()).collect();
        if dice.draw_one_in(2) {
            members.sort_by_cached_key(|_| dice.draw_53_bit_number());
        }
        let group = self.find_or_add_group(&members, dice);
        let kind = Self::draw_collective_kind(dice);
        let bytes = self.draw_collective_bytes(kind, dice);
        let dims = dice.draw_one_in(4).then(|| vec![false, true, false, true]);
        let one = self.config.system.algorithms[&kind].iter().any(|a| a.one);
        let work = NodeWork::Collective {
            kind,
            bytes,
            group,
            dims: dims.filter(|_| !one),
            priority: dice.draw_between(0, 3) as i64,
        };
        for npu in 0..self.last.len() {
            self.add_node_that_blocks_next_communication(npu, work.clone(), dice);
        }
    }

    /// Adds several equal, independent collectives; each waits for its own kernel.
    fn add_concurrent_collectives(&mut self, dice: &mut RandomGenerator) {
        let kind = Self::draw_collective_kind(dice);
        let bytes = self.draw_collective_bytes(kind, dice).min(1 << 18);
        let count = dice.draw_between(2, 4);
        for npu in 0..self.last.len() {
            let before = self.last[npu].clone();
            let mut ends = Vec::new();
            for _ in 0..count {
                let mut deps = before.clone();
                if dice.draw_one_in(2) {
                    deps.push(self.add_kernel(npu, dice));
                }
                let work = NodeWork::Collective {
                    kind,
                    bytes,
                    group: 0,
                    dims: None,
                    priority: dice.draw_between(0, 3) as i64,
                };
                ends.push(self.add_node(npu, deps, work, dice));
            }
            self.last[npu] = ends;
        }
    }

    /// Adds messages of several sizes with the same tag, which NPUs receive in a different order from the one in which
    /// they are sent.
    fn add_messages_received_in_other_order(&mut self, dice: &mut RandomGenerator) {
        let npus = self.last.len() as u64;
        let src = dice.draw_between(0, npus - 1) as usize;
        let dst = (src + dice.draw_between(1, npus - 1) as usize) % npus as usize;
        let (_, tag) = self.draw_message_size_and_tag(dice);
        let mut sizes: Vec<u64> = (0..dice.draw_between(2, 5))
            .map(|_| dice.draw_size(1000, 1 << 21))
            .collect();
        sizes.push(sizes[0]);
        for &bytes in &sizes {
            self.add_node_that_blocks_next_communication(
                src,
                NodeWork::Send { dst, bytes, tag },
                dice,
            );
        }
        sizes.sort_by_cached_key(|_| dice.draw_53_bit_number());
        let before = self.last[dst].clone();
        let mut receive = |bytes| {
            self.add_node(
                dst,
                before.clone(),
                NodeWork::Receive { src, bytes, tag },
                dice,
            )
        };
        self.last[dst] = sizes.into_iter().map(&mut receive).collect();
    }

    /// Adds nodes that do nothing or only take time. After a node that does nothing, ASTRA-sim issues the dependents
    /// only when another node ends.
    fn add_idle_nodes(&mut self, dice: &mut RandomGenerator) {
        for npu in 0..self.last.len() {
            let deps = self.last[npu].clone();
            match dice.draw_between(0, 20) {
                0 => {
                    self.add_node(npu, deps, NodeWork::Nothing, dice);
                }
                1 => self.add_node_that_blocks_next_communication(npu, NodeWork::Nothing, dice),
                2 | 3 => {
                    let nothing = self.add_node(npu, deps, NodeWork::Nothing, dice);
                    let kernel = self.add_kernel(npu, dice);
                    self.last[npu] = vec![nothing, kernel];
                }
                4 => self.add_node_that_blocks_next_communication(npu, NodeWork::Broadcast, dice),
                5 => self.add_node_that_blocks_next_communication(
                    npu,
                    NodeWork::Compute {
                        ops: 1 << 30,
                        bytes: 0,
                    },
                    dice,
                ),
                _ => {}
            }
        }
    }

    /// Adds messages between some NPUs.
    fn add_messages(&mut self, dice: &mut RandomGenerator) {
        let npus = self.last.len() as u64;
        for _ in 0..dice.draw_between(1, 6) {
            let src = dice.draw_between(0, npus - 1) as usize;
            let dst = (src + dice.draw_between(1, npus - 1) as usize) % npus as usize;
            let (bytes, tag) = self.draw_message_size_and_tag(dice);
            self.add_node_that_blocks_next_communication(
                src,
                NodeWork::Send { dst, bytes, tag },
                dice,
            );
            self.add_node_that_blocks_next_communication(
                dst,
                NodeWork::Receive { src, bytes, tag },
                dice,
            );
        }
    }

    /// Adds an exchange: each NPU sends to the NPU at a fixed distance, and receives at the same
    /// time.
    fn add_exchange_at_fixed_distance(&mut self, dice: &mut RandomGenerator) {
        let npus = self.last.len();
        let distance = dice.draw_between(1, npus as u64 - 1) as usize;
        let (bytes, tag) = self.draw_message_size_and_tag(dice);
        for npu in 0..npus {
            let deps = self.last[npu].clone();
            let dst = (npu + distance) % npus;
            let src = (npu + npus - distance) % npus;
            let works = [
                NodeWork::Send { dst, bytes, tag },
                NodeWork::Receive { src, bytes, tag },
            ];
            self.last[npu] = works
                .into_iter()
                .map(|work| self.add_node(npu, deps.clone(), work, dice))
                .collect();
        }
    }

    /// Returns the size and tag of a message. The message is large enough to take time, and may have the tag of an
    /// earlier message.
    fn draw_message_size_and_tag(&mut self, dice: &mut RandomGenerator) -> (u64, u64) {
        if dice.draw_one_in(2) {
            self.tag += 1;
        }
        (dice.draw_size(1000, 1 << 21), self.tag)
    }

    /// Adds loads or stores.
    fn add_memory_accesses(&mut self, dice: &mut RandomGenerator) {
        if self.config.memory.attachment == MemoryServerAssignment::None {
            return self.add_world_collective(dice);
        }
        for npu in 0..self.last.len() {
            for _ in 0..dice.draw_between(0, 2) {
                let store = dice.draw_one_in(2);
                let bytes = dice.draw_size(1000, 1 << 24);
                self.add_node_that_blocks_next_communication(
                    npu,
                    NodeWork::Memory { store, bytes },
                    dice,
                );
            }
        }
    }
}
