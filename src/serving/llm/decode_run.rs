//! Blocks that a run of equal steps needs, in the order in which steps would take them one by one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The next step of a run at which each request needs a block or fills one.
///
/// A request that computes one token per step touches its blocks twice in `block_size` steps, so a step visits these requests
/// alone.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockVisits {
    /// Step and place of the request in the step, the earliest first.
    next: BinaryHeap<Reverse<(u32, u32)>>,
    /// Places of the requests that the current step visits, ascending.
    due: Vec<u32>,
    block_size: u32,
}

impl BlockVisits {
    /// Begins a run after a step in which the request at each place ends with so many tokens computed.
    pub fn begin(&mut self, block_size: u32, computed: impl Iterator<Item = u32>) {
        self.block_size = block_size;
        self.due.clear();
        let mut next = std::mem::take(&mut self.next).into_vec();
        next.clear();
        next.extend(
            computed.zip(0..).map(|(tokens, place)| {
                Reverse((1 + steps_to_visit(tokens + 1, block_size), place))
            }),
        );
        self.next = next.into();
    }

    /// Places of the requests that touch their blocks in step `step` of the run, counted from 1, in their order. Each step is
    /// asked for once, in order.
    pub fn find_due(&mut self, step: u32) -> &[u32] {
        self.due.clear();
        while let Some(Reverse((_, place))) = self.next.peek().filter(|next| next.0.0 <= step) {
            self.due.push(*place);
            self.next.pop();
        }
        &self.due
    }

    /// Places that [`find_due`](Self::find_due) found last.
    pub fn due(&self) -> &[u32] {
        &self.due
    }

    /// Notes that the request at `place` has `computed` tokens after step `step`.
    pub fn visited(&mut self, step: u32, place: u32, computed: u32) {
        let after = step + 1 + steps_to_visit(computed + 1, self.block_size);
        self.next.push(Reverse((after, place)));
    }
}

/// Steps until a request that computes its token number `token` next (from 1) needs a block or fills one.
fn steps_to_visit(token: u32, block_size: u32) -> u32 {
    // It needs a block for the first token of the block, and fills one with the last.
    match token % block_size {
        0 | 1 => 0,
        _ if block_size == 1 => 0,
        in_block => block_size - in_block,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_visited_when_a_block_begins_or_is_full() {
        for block_size in [1, 2, 3, 16] {
            for start in 1..40 {
                let mut visits = BlockVisits::default();
                visits.begin(block_size, [start, start + 1].into_iter());
                for step in 1..50 {
                    let expected: Vec<u32> = (0..2)
                        .filter(|place| {
                            let token = start + place + step;
                            (token - 1) % block_size == 0 || token % block_size == 0
                        })
                        .collect();
                    assert_eq!(
                        visits.find_due(step),
                        expected,
                        "{block_size} {start} {step}"
                    );
                    for place in expected {
                        visits.visited(step, place, start + place + step);
                    }
                }
            }
        }
    }
}
