//! Divides a collective into chunks, and plans each chunk's path through dimensions and queues.

use super::super::config::CollectiveOperation;

/// Queues of a dimension that a phase may use.
#[derive(Clone, Copy)]
pub enum QueueHalf {
    /// All queues; rings run anticlockwise in the second half.
    Any,
    /// The first half of the queues, in which rings run clockwise.
    First,
    /// The second half of the queues, in which rings run anticlockwise.
    Last,
}

/// Index of the next queue, for all queues and for each half of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct NextQueueIndexPerHalf {
    any: usize,
    first: usize,
    last: usize,
}

impl NextQueueIndexPerHalf {
    /// Returns the next of `queues` queues, together with `true` if rings run clockwise in this queue. A single queue
    /// belongs to both halves.
    pub fn next_queue_and_direction(&mut self, queues: usize, turn: QueueHalf) -> (usize, bool) {
        let half = queues / 2;
        match turn {
            QueueHalf::Any => {
                let index = self.any;
                self.any = (index + 1) % queues;
                (index, queues == 1 || index < half)
            }
            QueueHalf::First => {
                let index = self.first;
                self.first = (index + 1) % half.max(1);
                (index, true)
            }
            QueueHalf::Last => {
                let index = self.last;
                self.last = (index + 1) % (queues - half);
                (half + index, false)
            }
        }
    }
}

/// Returns the padded size of a collective, and the size of a chunk: at least one byte per NPU, except in an
/// all-gather.
pub fn padded_and_chunk_size(
    splits: u64,
    npus: usize,
    kind: CollectiveOperation,
    bytes: u64,
) -> (u64, u64) {
    let chunk = bytes / splits.max(1);
    let least = npus as u64;
    if kind != CollectiveOperation::AllGather && chunk < least {
        (splits * least, least)
    } else {
        (bytes, chunk)
    }
}

/// Returns the phases of a chunk over the dimensions that take part in the collective. A phase has
/// a dimension, an operation, and a subset of the dimension's queues.
pub fn plan_phases(
    kind: CollectiveOperation,
    dims: &[usize],
    local_bw_aware: bool,
) -> Vec<(usize, CollectiveOperation, QueueHalf)> {
    let any = |&dim: &usize| (dim, kind, QueueHalf::Any);
    match kind {
        CollectiveOperation::AllGather => dims.iter().rev().map(any).collect(),
        CollectiveOperation::AllReduce if local_bw_aware => {
            let (last, before) = dims.split_last().expect("not empty");
            let scatter =
                |&dim: &usize| (dim, CollectiveOperation::ReduceScatter, QueueHalf::First);
            let gather = |&dim: &usize| (dim, CollectiveOperation::AllGather, QueueHalf::Last);
            let mut plan: Vec<_> = before.iter().map(scatter).collect();
            plan.push((*last, CollectiveOperation::AllReduce, QueueHalf::First));
            plan.extend(before.iter().rev().map(gather));
            plan
        }
        _ => dims.iter().map(any).collect(),
    }
}
