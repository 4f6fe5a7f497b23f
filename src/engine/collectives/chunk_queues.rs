//! Queues in which chunks wait at an NPU for their next stage.

use crate::ids::ChunkAtMember;
use chakram_base::ids::Npu;
use chakram_hardware::collective::ChunkQueueIndexAndCapacity;
use std::collections::{BTreeMap, VecDeque};

/// The chunks waiting in one queue of one NPU, and the number of admitted chunks.
#[derive(Debug, Default)]
struct NpuChunkQueue {
    /// Waiting chunks in the order of arrival; the first chunk is admitted next.
    waiting: VecDeque<ChunkAtMember>,
    /// Number of admitted chunks that have not ended their stage.
    running: u32,
}

/// The chunk queues of all NPUs.
#[derive(Debug, Default)]
pub(super) struct AllNpuChunkQueues {
    of: Vec<Vec<NpuChunkQueue>>,
    /// Private queues, which exist only while they are in use ([`ChunkQueueIndexAndCapacity::APART`]).
    apart: BTreeMap<(u32, u32), NpuChunkQueue>,
}

impl AllNpuChunkQueues {
    /// Appends a chunk to a queue.
    #[inline]
    pub fn append_chunk_to_npu_queue(&mut self, npu: Npu, number: u32, chunk: ChunkAtMember) {
        if number >= ChunkQueueIndexAndCapacity::APART {
            let state = self.apart.entry((npu.0, number)).or_default();
            state.waiting.push_back(chunk);
            return;
        }
        if npu.index() >= self.of.len() {
            self.of.resize_with(npu.index() + 1, Vec::new);
        }
        let of = &mut self.of[npu.index()];
        if number as usize >= of.len() {
            of.resize_with(number as usize + 1, NpuChunkQueue::default);
        }
        of[number as usize].waiting.push_back(chunk);
    }

    /// Removes and returns the chunk that begins its stage next, or `None` if no chunk waits or the queue is full.
    #[inline]
    pub fn admit_next_chunk(
        &mut self,
        npu: Npu,
        queue: ChunkQueueIndexAndCapacity,
    ) -> Option<ChunkAtMember> {
        let state = match queue.number {
            ChunkQueueIndexAndCapacity::APART.. => self.apart.get_mut(&(npu.0, queue.number))?,
            number => &mut self.of[npu.index()][number as usize],
        };
        if state.running >= queue.capacity {
            return None;
        }
        let chunk = state.waiting.pop_front()?;
        state.running += 1;
        Some(chunk)
    }

    /// Releases the place of a chunk that has ended its stage.
    #[inline]
    pub fn leave_queue(&mut self, npu: Npu, number: u32) {
        if number >= ChunkQueueIndexAndCapacity::APART {
            let key = (npu.0, number);
            let state = self.apart.get_mut(&key).expect("a chunk is in it");
            state.running -= 1;
            if state.running == 0 && state.waiting.is_empty() {
                self.apart.remove(&key);
            }
            return;
        }
        self.of[npu.index()][number as usize].running -= 1;
    }
}
