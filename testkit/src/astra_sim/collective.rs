//! Runs collectives. A collective consists of chunks, a chunk has phases, and each phase has an
//! algorithm and a queue.

pub mod plan;

use super::algorithm::{RingMembersAndOwnIndex, RunningAlgorithm, credits, custom, tree};
use super::algorithms::{AlgorithmStyle, NativeAlgorithmWithOneRingFlag};
use super::config::{CollectiveOperation, NodeWork, PriorityPolicy, TraceNode};
use super::post::encode_collective_tag as tag_of;
use super::{OneChunkProgressOnNpu, OracleSimulator, OriginalOrSeparateChunkNumbering};
use plan::{padded_and_chunk_size, plan_phases};
use std::collections::VecDeque;

/// A phase of a collective: one chunk in one dimension.
#[derive(Debug)]
pub struct ChunkPhaseQueueAndAlgorithm {
    pub queue: usize,
    pub algo: RunningAlgorithm,
}

/// State of a running collective on one NPU. The collective ends when `left`, the number of
/// unfinished chunks, is 0.
#[derive(Clone, Copy, Debug)]
pub struct NpuCollectiveUnfinishedChunks {
    pub node: u64,
    pub left: u64,
}

/// The NPUs that take part in a phase.
enum RingOrTreePhaseMembers {
    Ring(RingMembersAndOwnIndex),
    MemberMessageTree {
        n: usize,
        start: usize,
        stride: usize,
    },
}

impl RingOrTreePhaseMembers {
    fn phase_member_count(&self) -> usize {
        match self {
            Self::Ring(peers) => peers.ids.len(),
            Self::MemberMessageTree { n, .. } => *n,
        }
    }
}

impl OracleSimulator<'_> {
    /// Issues a collective; returns `false` if the collective is rejected.
    pub fn issue_collective(&mut self, npu: usize, node: &TraceNode) -> bool {
        let NodeWork::Collective {
            kind,
            bytes,
            group,
            ref dims,
            priority,
        } = node.work
        else {
            return false;
        };
        let config = self.config;
        let members = match group {
            0 => None,
            group => match config.groups.get(&group) {
                Some(members) => Some(members),
                None => return false,
            },
        };
        let small = members.filter(|members| members.len() != config.npu_count());
        let priority = self.next_chunk_priority(npu, priority);
        let (bytes, chunk) =
            padded_and_chunk_size(config.system.splits, config.npu_count(), kind, bytes);
        if chunk == 0 {
            return true;
        }
        let mut left = bytes.div_ceil(chunk);
        let dataset = self.datasets.len();
        self.datasets.push(NpuCollectiveUnfinishedChunks {
            node: node.id,
            left,
        });
        let custom = config.system.custom_nodes.get(&node.id);
        if let Some(traces) = custom.or_else(|| config.system.custom.get(&kind)) {
            let position = match members {
                None => npu,
                Some(members) => members.iter().filter(|&&m| m < npu).count(),
            };
            let Some(trace) = traces.get(position) else {
                return false;
            };
            let algo =
                RunningAlgorithm::Custom(custom::OneMemberCustomAlgorithmRun::new(trace, members));
            let phases = VecDeque::from([ChunkPhaseQueueAndAlgorithm { queue: 0, algo }]);
            self.enqueue_chunk(npu, dataset, (group, 0), priority, phases);
            return true;
        }
        let Some(list) = config.system.algorithms.get(&kind) else {
            return false;
        };
        let ring = NativeAlgorithmWithOneRingFlag {
            one: false,
            style: AlgorithmStyle::Ring,
        };
        let list = match small {
            Some(_) if list.len() != 1 => vec![ring],
            _ => list.clone(),
        };
        let places = match small {
            Some(members) => vec![RingOrTreePhaseMembers::Ring(
                RingMembersAndOwnIndex::of_group(members, npu),
            )],
            None => self.phase_members_by_dimension(npu, &list),
        };
        let involved = |dim: usize| match dims {
            Some(dims) if members.is_none() => dims.get(dim).copied().unwrap_or(false),
            _ => true,
        };
        let one = list.first().is_some_and(|first| first.one);
        let set = match dims {
            Some(_) if members.is_none() && !one => (0..config.dims.len())
                .map(|dim| u64::from(!involved(dim)) << dim)
                .sum(),
            _ => 0,
        };
        let dims: Vec<usize> = (0..places.len())
            .filter(|&dim| places[dim].phase_member_count() > 1 && involved(dim))
            .collect();
        if dims.is_empty() {
            return true;
        }
        while left > 0 {
            left -= 1;
            let mut size = chunk;
            let mut phases = VecDeque::new();
            for (dim, step, turn) in plan_phases(kind, &dims, config.system.local_bw_aware) {
                let queues = config.queues_per_dim;
                let (index, clockwise) =
                    self.npus[npu].rotations[dim].next_queue_and_direction(queues, turn);
                let queue = dim * queues + index;
                let place = &places[dim];
                let Some(algo) =
                    self.build_algorithm(npu, (kind, dim), step, list[dim], place, size, clockwise)
                else {
                    return false;
                };
                size = algo.chunk_size_after_phase();
                phases.push_back(ChunkPhaseQueueAndAlgorithm { queue, algo });
            }
            self.enqueue_chunk(npu, dataset, (group, set), priority, phases);
        }
        true
    }

    fn next_chunk_priority(&mut self, npu: usize, explicit: i64) -> i64 {
        let counter = &mut self.npus[npu].priority;
        let now = *counter;
        match self.config.system.policy {
            PriorityPolicy::Explicit => return explicit,
            PriorityPolicy::Lifo => *counter += 1,
            PriorityPolicy::Fifo => *counter -= 1,
        }
        now
    }

    /// Returns, for each dimension, the NPUs that run a phase together with `npu`, for a collective of all NPUs. The
    /// result has one entry per algorithm in the list. If an algorithm uses one ring of all NPUs, the list ends there.
    fn phase_members_by_dimension(
        &self,
        npu: usize,
        list: &[NativeAlgorithmWithOneRingFlag],
    ) -> Vec<RingOrTreePhaseMembers> {
        let mut places = Vec::new();
        let mut stride = 1;
        for (dim, algorithm) in list.iter().enumerate().take(self.config.dims.len()) {
            if algorithm.one {
                places.push(RingOrTreePhaseMembers::Ring(
                    RingMembersAndOwnIndex::from_npu_along_dimension_stride(
                        npu,
                        self.config.npu_count(),
                        1,
                    ),
                ));
                break;
            }
            let n = self.config.dims[dim].n;
            places.push(match algorithm.style {
                AlgorithmStyle::DoubleBinaryTree => {
                    let start = if dim + 1 == list.len() {
                        npu % stride
                    } else {
                        npu - npu % (stride * n) + npu % stride
                    };
                    RingOrTreePhaseMembers::MemberMessageTree { n, start, stride }
                }
                _ => RingOrTreePhaseMembers::Ring(
                    RingMembersAndOwnIndex::from_npu_along_dimension_stride(npu, n, stride),
                ),
            });
            stride *= n;
        }
        places
    }

    #[allow(clippy::too_many_arguments, reason = "a phase is what these say")]
    fn build_algorithm(
        &mut self,
        npu: usize,
        tree: (CollectiveOperation, usize),
        kind: CollectiveOperation,
        algorithm: NativeAlgorithmWithOneRingFlag,
        place: &RingOrTreePhaseMembers,
        size: u64,
        clockwise: bool,
    ) -> Option<RunningAlgorithm> {
        match place {
            &RingOrTreePhaseMembers::MemberMessageTree { n, start, stride } => {
                let uses = self.npus[npu].trees.entry(tree).or_default();
                *uses += 1;
                let root_is_last = *uses % 2 == 1;
                let tree = tree::TreeAlgorithm::new(npu, n, start, stride, root_is_last, size)?;
                Some(RunningAlgorithm::MemberMessageTree(tree))
            }
            RingOrTreePhaseMembers::Ring(peers) => {
                let peers = peers.clone();
                let style = algorithm.style;
                credits::RingDirectOrHalvingAlgorithm::new(kind, style, peers, clockwise, size)
                    .map(RunningAlgorithm::Credits)
            }
        }
    }

    /// Numbers a chunk, and adds it to its first queue. A group's chunk also counts as a chunk of
    /// all NPUs. `set` has one bit for each dimension that does not take part.
    fn enqueue_chunk(
        &mut self,
        npu: usize,
        dataset: usize,
        (group, set): (u64, u64),
        priority: i64,
        phases: VecDeque<ChunkPhaseQueueAndAlgorithm>,
    ) {
        let numbers = &mut self.npus[npu].numbers;
        let set = match self.numbering {
            OriginalOrSeparateChunkNumbering::Original => 0,
            OriginalOrSeparateChunkNumbering::Apart => set,
        };
        if self.numbering == OriginalOrSeparateChunkNumbering::Original && group != 0 {
            *numbers.entry((0, 0)).or_default() += 1;
        }
        let count = numbers.entry((group, set)).or_default();
        let id = group * 1_000_000 + set * 100_000 + *count;
        *count += 1;
        self.streams.push(OneChunkProgressOnNpu {
            npu,
            dataset,
            tag: tag_of(id),
            priority,
            phases,
            current: None,
            started: false,
        });
        self.proceed_to_next_phase(self.streams.len() - 1);
    }
}
