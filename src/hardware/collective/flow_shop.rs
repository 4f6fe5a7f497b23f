//! A flow shop: the chunks of one member pass through the phases, and each stage takes a known time.
//!
//! Members that begin a collective together behave identically, so one member represents all members. Each queue has a
//! fixed number of places, which limits the number of chunks in a phase at the same time. When a place becomes free, a
//! policy selects one of the waiting chunks. When a chunk ends a stage, it joins the queue of its next stage before the
//! place that it freed is refilled.

use super::{ChunkAndEnteredStage, ChunkStageSequences};
use chakram_base::ids::StageIndex;
use chakram_base::units::Span;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How a phase ranks the chunks that wait for it. With ties, the first chunk to arrive goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitingChunkPriority {
    /// The chunk that arrived first goes first.
    #[default]
    Fifo,
    /// The chunk with the shortest stage goes first; within one phase, this is the smallest chunk.
    SmallestFirst,
    /// The chunk with the fewest remaining stages goes first.
    FewestLeft,
    /// Returning chunks (all-gather) alternate with outgoing chunks if both wait. Among returning chunks, and among
    /// outgoing chunks, the first to arrive goes first. ASTRA-sim's `RG`.
    Alternate,
}

impl WaitingChunkPriority {
    /// Every policy with its name in machine files.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Fifo, "fifo"),
        (Self::SmallestFirst, "smallest_first"),
        (Self::FewestLeft, "fewest_left"),
        (Self::Alternate, "alternate"),
    ];
}

/// Inputs of the flow shop, by stage and queue.
#[derive(Clone, Copy, Debug)]
pub struct FlowShopInput<'a> {
    /// Duration of each stage of each route, in the order of [`ChunkStageSequences::stages_of_all_routes`].
    pub spans: &'a [Span],
    /// Queue index of each stage; queues are numbered from 0.
    pub queue_of: &'a [u32],
    /// Number of places in each queue, at least 1.
    pub capacity: &'a [u32],
    /// True for each stage that belongs to a returning chunk.
    pub back: &'a [bool],
    /// Policy by which a queue selects its next chunk.
    pub intra: WaitingChunkPriority,
}

/// Outcome of a flow shop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowShopEndAndQueueOrder {
    /// Time at which the last chunk leaves its last stage.
    pub end: Span,
    /// For each queue, the stages of chunks in the order in which they began.
    pub order: Vec<Vec<ChunkAndEnteredStage>>,
}

/// The passage of a chunk through a stage, reported when the passage begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageBeginAndAdmittingPassage {
    /// The chunk and the stage.
    pub entry: ChunkAndEnteredStage,
    /// Time at which the stage begins.
    pub begin: Span,
    /// The passage that had to end before this one could begin; it may be another chunk's. `None` if this one began at
    /// time 0.
    pub admitted_by: Option<ChunkAndEnteredStage>,
}

#[derive(Clone, Debug, Default)]
struct FlowShopQueue {
    /// Waiting chunks as (policy key, arrival number, chunk). The second heap contains the returning chunks if they
    /// alternate with outgoing chunks.
    waiting: [BinaryHeap<Reverse<(u64, u64, u32)>>; 2],
    /// Kind of the chunk that began last: 0 outgoing, 1 returning.
    last: usize,
    running: u32,
}

impl FlowShopQueue {
    /// Removes and returns the chunk that the policy selects next.
    fn pop(&mut self) -> Option<u32> {
        let other = 1 - self.last;
        let kind = if self.waiting[other].is_empty() {
            self.last
        } else {
            other
        };
        let Reverse((_, _, chunk)) = self.waiting[kind].pop()?;
        self.last = kind;
        Some(chunk)
    }
}

struct FlowShopSimulation<'a, S, F> {
    chunk_schedule: &'a ChunkStageSequences<S>,
    stages: FlowShopInput<'a>,
    queues: Vec<FlowShopQueue>,
    /// The current or next stage of each chunk.
    stage: Vec<u16>,
    /// Pending ends of stages, as (time, index in the order in which stages began, chunk).
    ends: BinaryHeap<Reverse<(Span, u64, u32)>>,
    count: u64,
    order: Vec<Vec<ChunkAndEnteredStage>>,
    /// Callback that is called when a passage begins.
    on_begin: F,
}

impl<S: Copy, F: FnMut(StageBeginAndAdmittingPassage)> FlowShopSimulation<'_, S, F> {
    /// Returns the index of a chunk's current stage in the lists of all stages.
    fn current_stage_index(&self, chunk: u32) -> usize {
        self.chunk_schedule.route_index_of_chunk(chunk) * self.chunk_schedule.stages_per_chunk()
            + usize::from(self.stage[chunk as usize])
    }

    /// Moves waiting chunks into free places of `queue`, after the passage `admitted_by` has ended.
    fn fill_queue_with_waiting_chunks(
        &mut self,
        now: Span,
        queue: u32,
        admitted_by: Option<ChunkAndEnteredStage>,
    ) {
        while self.queues[queue as usize].running < self.stages.capacity[queue as usize]
            && let Some(chunk) = self.queues[queue as usize].pop()
        {
            self.queues[queue as usize].running += 1;
            self.count += 1;
            let end = now + self.stages.spans[self.current_stage_index(chunk)];
            self.ends.push(Reverse((end, self.count, chunk)));
            let stage = self.stage[chunk as usize];
            let stage = StageIndex(stage);
            let entry = ChunkAndEnteredStage { chunk, stage };
            self.order[queue as usize].push(entry);
            (self.on_begin)(StageBeginAndAdmittingPassage {
                entry,
                begin: now,
                admitted_by,
            });
        }
    }

    fn enqueue_chunk_at_its_current_stage(&mut self, chunk: u32) -> u32 {
        let index = self.current_stage_index(chunk);
        let left = self.chunk_schedule.stages_per_chunk() - usize::from(self.stage[chunk as usize]);
        let key = match self.stages.intra {
            WaitingChunkPriority::Fifo | WaitingChunkPriority::Alternate => 0,
            WaitingChunkPriority::SmallestFirst => self.stages.spans[index].0,
            WaitingChunkPriority::FewestLeft => left as u64,
        };
        let queue = self.stages.queue_of[index];
        self.count += 1;
        let entry = Reverse((key, self.count, chunk));
        let apart = self.stages.intra == WaitingChunkPriority::Alternate && self.stages.back[index];
        self.queues[queue as usize].waiting[usize::from(apart)].push(entry);
        queue
    }
}

/// Simulates how the chunks of `chunk_schedule` pass through their stages. All chunks are ready at time 0.
pub fn simulate_flow_shop<S: Copy>(
    chunk_schedule: &ChunkStageSequences<S>,
    stages: FlowShopInput<'_>,
) -> FlowShopEndAndQueueOrder {
    simulate_flow_shop_observed(chunk_schedule, stages, |_| ())
}

/// Does the same as [`simulate_flow_shop`], and also calls `on_begin` when each passage begins.
pub fn simulate_flow_shop_observed<S: Copy>(
    chunk_schedule: &ChunkStageSequences<S>,
    stages: FlowShopInput<'_>,
    on_begin: impl FnMut(StageBeginAndAdmittingPassage),
) -> FlowShopEndAndQueueOrder {
    let queues = stages
        .queue_of
        .iter()
        .max()
        .map_or(0, |&queue| queue as usize + 1);
    let mut shop = FlowShopSimulation {
        chunk_schedule,
        stages,
        queues: vec![FlowShopQueue::default(); queues],
        stage: vec![0; chunk_schedule.chunk_count() as usize],
        ends: BinaryHeap::new(),
        count: 0,
        order: vec![Vec::new(); queues],
        on_begin,
    };
    let mut end = Span::ZERO;
    if chunk_schedule.stages_per_chunk() > 0 {
        for chunk in 0..chunk_schedule.chunk_count() {
            shop.enqueue_chunk_at_its_current_stage(chunk);
        }
        for queue in 0..queues {
            shop.fill_queue_with_waiting_chunks(Span::ZERO, queue as u32, None);
        }
    }
    while let Some(Reverse((now, _, chunk))) = shop.ends.pop() {
        end = now;
        let left = stages.queue_of[shop.current_stage_index(chunk)];
        let stage = StageIndex(shop.stage[chunk as usize]);
        let ended = Some(ChunkAndEnteredStage { chunk, stage });
        // The chunk joins its next queue before the free place is refilled, because both may be the
        // same queue.
        shop.stage[chunk as usize] += 1;
        let goes_on = usize::from(shop.stage[chunk as usize]) < chunk_schedule.stages_per_chunk();
        let next = goes_on.then(|| shop.enqueue_chunk_at_its_current_stage(chunk));
        shop.queues[left as usize].running -= 1;
        shop.fill_queue_with_waiting_chunks(now, left, ended);
        if let Some(next) = next {
            shop.fill_queue_with_waiting_chunks(now, next, ended);
        }
    }
    let order = shop.order;
    FlowShopEndAndQueueOrder { end, order }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simulate_flow_shop_end(spans: &[u64], queues: &[u32], chunks: u32, capacity: u32) -> u64 {
        let spans: Vec<Span> = spans.iter().map(|&ns| Span::from_ns(ns)).collect();
        let stages = FlowShopInput {
            spans: &spans,
            queue_of: queues,
            capacity: &[capacity; 2],
            back: &vec![false; spans.len()],
            intra: WaitingChunkPriority::Fifo,
        };
        simulate_flow_shop(
            &ChunkStageSequences::with_uniform_chunks(vec![(); spans.len()], chunks),
            stages,
        )
        .end
        .0 / 1000
    }

    #[test]
    fn one_queue_serves_chunk_after_chunk() {
        // Four chunks of 7 ns each run one at a time, then two at a time, then all at once.
        assert_eq!(simulate_flow_shop_end(&[7], &[0], 4, 1), 28);
        assert_eq!(simulate_flow_shop_end(&[7], &[0], 4, 2), 14);
        assert_eq!(simulate_flow_shop_end(&[7], &[0], 4, 9), 7);
    }

    #[test]
    fn two_queues_are_a_pipeline() {
        // With stages of 5 and 3 ns, the first stage is never idle, and the last chunk then takes another 3 ns: 4 · 5 +
        // 3.
        assert_eq!(simulate_flow_shop_end(&[5, 3], &[0, 1], 4, 1), 23);
        // With stages of 3 and 5 ns, the second stage waits 3 ns for the first chunk, and then takes 4 · 5 ns.
        assert_eq!(simulate_flow_shop_end(&[3, 5], &[0, 1], 4, 1), 23);
    }

    #[test]
    fn returning_chunks_queue_behind_outgoing_chunks() {
        // Two chunks visit queue 0, then queue 1, then queue 0 again. The chunks are in queue 0 at 0-2 and 2-4 ns, in
        // queue 1 at 2-12 and 12-22 ns, and back in queue 0 on arrival, at 12-14 and 22-24 ns.
        assert_eq!(simulate_flow_shop_end(&[2, 10, 2], &[0, 1, 0], 2, 1), 24);
        // With 1 ns in queue 1, chunk 0 returns at 3 ns and waits for chunk 1, which is in queue 0 from 2 to 4 ns.
        // Chunk 0 is in queue 0 again from 4 to 6 ns. Chunk 1 is in queue 1 from 4 to 5 ns, and back in queue 0 from 6
        // to 8 ns.
        assert_eq!(simulate_flow_shop_end(&[2, 1, 2], &[0, 1, 0], 2, 1), 8);
    }

    #[test]
    fn queue_policies_decide_which_chunk_is_next() {
        // The chunks take two routes over queues 0 and 1. Chunks 0 and 2 take 4 ns in queue 0, then 4 ns in queue 1.
        // Chunk 1 takes 3 ns in queue 1, then 3 ns in queue 0.
        let spans: Vec<Span> = [4, 4, 3, 3].map(Span::from_ns).to_vec();
        let chunk_schedule =
            ChunkStageSequences::from_stages_and_chunk_route_indices(vec![(); 4], 2, vec![0, 1, 0]);
        let order = |intra| {
            let stages = FlowShopInput {
                spans: &spans,
                queue_of: &[0, 1, 1, 0],
                capacity: &[1, 1],
                back: &[false; 4],
                intra,
            };
            let FlowShopEndAndQueueOrder { end, order } =
                simulate_flow_shop(&chunk_schedule, stages);
            let chunks = |queue: usize| order[queue].iter().map(|p| p.chunk).collect::<Vec<_>>();
            (end.0 / 1000, chunks(0), chunks(1))
        };
        // Chunk 0 is in queue 0 from 0 to 4 ns. Chunk 1 arrives at 3 ns, after chunk 2, so chunk 2 follows from 4 to 8
        // ns and chunk 1 from 8 to 11 ns. Chunk 1 is in queue 1 until 3 ns, chunk 0 from 4 to 8 ns, and chunk 2 from 8
        // to 12 ns.
        assert_eq!(
            order(WaitingChunkPriority::Fifo),
            (12, vec![0, 2, 1], vec![1, 0, 2])
        );
        // Chunk 1 is the smallest and has the fewest stages left, so it is in queue 0 from 4 to 7 ns. Chunk 2 follows
        // from 7 to 11 ns, and is in queue 1 from 11 to 15 ns.
        for intra in [
            WaitingChunkPriority::SmallestFirst,
            WaitingChunkPriority::FewestLeft,
        ] {
            assert_eq!(order(intra), (15, vec![0, 1, 2], vec![1, 0, 2]));
        }
    }

    #[test]
    fn returning_chunks_alternate_with_outgoing_chunks() {
        // Three chunks visit queue 0 for 2 ns, then queue 1 for 1 ns, then queue 0 again. If the first chunk to arrive
        // goes first, the chunks go out at 0-2, 2-4 and 4-6 ns, and then return in order of arrival. If directions
        // alternate, chunk 0 goes out at 0-2 ns. Chunk 1 goes out at 2-4 ns, while chunk 0 is in queue 1 until 3 ns. At
        // 4 ns, chunk 0 waits to return and chunk 2 waits to go out. Chunk 0 returns at 4-6 ns. Chunk 2 goes out at 6-8
        // ns even though chunk 1 is back, because the chunk before it was a returning one. Chunk 1 returns at 8-10 ns,
        // and chunk 2 at 10-12 ns.
        let spans: Vec<Span> = [2, 1, 2].map(Span::from_ns).to_vec();
        let chunk_schedule = ChunkStageSequences::with_uniform_chunks(vec![(); 3], 3);
        let order = |intra| {
            let stages = FlowShopInput {
                spans: &spans,
                queue_of: &[0, 1, 0],
                capacity: &[1, 1],
                back: &[false, false, true],
                intra,
            };
            let FlowShopEndAndQueueOrder { end, order } =
                simulate_flow_shop(&chunk_schedule, stages);
            let passages = order[0].iter().map(|p| (p.chunk, p.stage.0));
            (end.0 / 1000, passages.collect::<Vec<_>>())
        };
        let first_come = vec![(0, 0), (1, 0), (2, 0), (0, 2), (1, 2), (2, 2)];
        assert_eq!(order(WaitingChunkPriority::Fifo), (12, first_come));
        let in_turns = vec![(0, 0), (1, 0), (0, 2), (2, 0), (1, 2), (2, 2)];
        assert_eq!(order(WaitingChunkPriority::Alternate), (12, in_turns));
    }
}
