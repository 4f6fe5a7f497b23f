//! Assigns chunks to queues in rotation. Each NPU counts, level by level, the queues that it has assigned.

use crate::AstraAlgorithm;
use crate::program::{CollectiveChunkPhase, MemberQueueDirectionAndTree, PhaseQueueSubset};
use chakram_base::ids::Npu;

/// Chunk counters of one NPU in one level (dimension).
#[derive(Clone, Copy, Debug, Default)]
struct NpuLevelAssignedChunkCounters {
    all: u32,
    first: u32,
    second: u32,
    /// Number of chunks that the NPU has assigned to a tree.
    trees: u32,
}

/// Chunk counters of all NPUs.
#[derive(Clone, Debug)]
pub(super) struct AllNpuAssignedChunkCounters {
    /// Number of queues in a level.
    queues: u32,
    dimensions: usize,
    /// Counters for each NPU and level; empty if nothing is counted.
    levels: Vec<NpuLevelAssignedChunkCounters>,
    /// Collective to which each NPU's counters belong; empty if counters are never reset.
    counted: Vec<Option<u32>>,
}

impl AllNpuAssignedChunkCounters {
    /// Creates the counters if `is_counted` is true, otherwise none. If `anew` is true, they restart with each
    /// collective.
    pub fn new(
        (npus, dimensions): (u32, usize),
        queues: u32,
        is_counted: bool,
        anew: bool,
    ) -> Self {
        let npus = if is_counted { npus as usize } else { 0 };
        Self {
            queues,
            dimensions,
            levels: vec![NpuLevelAssignedChunkCounters::default(); npus * dimensions],
            counted: vec![None; if anew { npus } else { 0 }],
        }
    }

    /// Returns true if anything is counted.
    #[inline]
    pub fn has_counters(&self) -> bool {
        !self.levels.is_empty()
    }

    /// Counts an NPU's next chunk in a stage, and returns the chunk's queue and the chunk's place in it.
    #[inline]
    pub fn assign_next_queue(
        &mut self,
        npu: Npu,
        stage: &CollectiveChunkPhase,
    ) -> MemberQueueDirectionAndTree {
        let backward = stage.rotation == PhaseQueueSubset::Second;
        let mut slot = MemberQueueDirectionAndTree {
            backward,
            ..MemberQueueDirectionAndTree::default()
        };
        if !self.has_counters() {
            return slot;
        }
        if let Some(last) = self.counted.get_mut(npu.index())
            && *last != Some(stage.collective)
        {
            // NPUs may join overlapping collectives in different orders, so the counters restart with each collective.
            *last = Some(stage.collective);
            let first = npu.index() * self.dimensions;
            self.levels[first..][..self.dimensions].fill(NpuLevelAssignedChunkCounters::default());
        }
        let level = npu.index() * self.dimensions + stage.level as usize;
        let (level, queues) = (&mut self.levels[level], self.queues);
        // If an all-reduce runs as a reduce-scatter and an all-gather, each of these uses one half of the queues. A
        // single queue belongs to both halves.
        let half = queues / 2;
        let next = |counter: &mut u32, count: u32| {
            let place = *counter;
            *counter = (place + 1) % count;
            place
        };
        let queue = match stage.rotation {
            _ if queues == 1 => 0,
            PhaseQueueSubset::None => 0,
            PhaseQueueSubset::All => next(&mut level.all, queues),
            PhaseQueueSubset::First => next(&mut level.first, half),
            PhaseQueueSubset::Second => half + next(&mut level.second, queues - half),
        };
        slot.queue = queue as u16;
        // If there are several queues, chunks in the second half of them run around the ring in the opposite direction.
        slot.backward |= stage.rotation == PhaseQueueSubset::All && queues > 1 && queue >= half;
        if stage.algorithm == AstraAlgorithm::DoubleBinaryTree {
            slot.mirrored = level.trees % 2 == 1;
            level.trees += 1;
        }
        slot
    }
}
