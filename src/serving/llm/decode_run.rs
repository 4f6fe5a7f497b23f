//! Within a run of identical steps, finds the steps in which requests need new blocks. Blocks are allocated in the same
//! order as in steps computed one by one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// For each request, the next step in which it needs or fills a block.
///
/// A request that computes one token per step needs or fills blocks at most twice in `block_size` steps, so a step
/// visits only the requests that are due. A full block needs no visit if no other request can have the same content.
#[derive(Clone, Debug, Default)]
pub(super) struct KvBlockChangeStepQueue {
    /// Pairs (step, index of a request in the step), sorted by step.
    next: BinaryHeap<Reverse<(u32, u32)>>,
    /// Result of the last call of `find_due_requests`.
    due: Vec<u32>,
    block_size: u32,
}

impl KvBlockChangeStepQueue {
    /// Starts a run. `visits` yields a pair for each request of the step before the run. It contains the number of
    /// tokens computed after that step, and true if other requests may share the blocks that the request fills.
    pub fn start_decode_run_of_step_requests(
        &mut self,
        block_size: u32,
        visits: impl Iterator<Item = (u32, bool)>,
    ) {
        self.block_size = block_size;
        self.due.clear();
        let mut next = std::mem::take(&mut self.next).into_vec();
        next.clear();
        next.extend(visits.zip(0..).map(|((tokens, is_shared), place)| {
            let wait = decode_steps_to_block_boundary(tokens + 1, block_size, is_shared);
            Reverse((1 + wait, place))
        }));
        self.next = next.into();
    }

    /// Returns the requests that need or fill a block in step `step` (counted from 1), as ascending indices into the
    /// step. Must be called once per step, in order.
    pub fn find_due_requests(&mut self, step: u32) -> &[u32] {
        self.due.clear();
        while let Some(Reverse((_, place))) = self.next.peek().filter(|next| next.0.0 <= step) {
            self.due.push(*place);
            self.next.pop();
        }
        &self.due
    }

    /// Returns the last result of [`find_due_requests`](Self::find_due_requests).
    pub fn last_due_requests(&self) -> &[u32] {
        &self.due
    }

    /// Schedules a request's next visit after step `step`, when `computed` of its tokens are computed. `is_shared` is
    /// true if other requests may share its blocks.
    pub fn schedule_block_change(
        &mut self,
        step: u32,
        place: u32,
        (computed, is_shared): (u32, bool),
    ) {
        let after =
            step + 1 + decode_steps_to_block_boundary(computed + 1, self.block_size, is_shared);
        self.next.push(Reverse((after, place)));
    }
}

/// `token` is the number, counted from 1, of the token that the request computes next.
fn decode_steps_to_block_boundary(token: u32, block_size: u32, is_shared: bool) -> u32 {
    // The first token of a block needs a new block, and the last token fills the block.
    match token % block_size {
        _ if block_size == 1 => 0,
        1 => 0,
        0 => u32::from(!is_shared),
        in_block => block_size - in_block + u32::from(!is_shared),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_visited_when_a_block_begins_or_is_full() {
        for (block_size, is_shared) in [1, 2, 3, 16]
            .into_iter()
            .flat_map(|size| [(size, true), (size, false)])
        {
            for start in 1..40 {
                let mut visits = KvBlockChangeStepQueue::default();
                visits.start_decode_run_of_step_requests(
                    block_size,
                    [start, start + 1]
                        .map(|computed| (computed, is_shared))
                        .into_iter(),
                );
                for step in 1..50 {
                    let expected: Vec<u32> = (0..2)
                        .filter(|place| {
                            let token = start + place + step;
                            (token - 1) % block_size == 0 || is_shared && token % block_size == 0
                        })
                        .collect();
                    assert_eq!(
                        visits.find_due_requests(step),
                        expected,
                        "{block_size} {start} {step}"
                    );
                    for place in expected {
                        visits.schedule_block_change(
                            step,
                            place,
                            (start + place + step, is_shared),
                        );
                    }
                }
            }
        }
    }
}
