//! Direct: every member sends to every other, nearest index first.
//!
//! A member's port sends one message at a time and receives one at a time, so with n members, s =
//! time of one n-th of the buffer S, t = time of S, and α = latency, all starting together:
//!
//! | primitive | messages of a member | ends after |
//! |---|---|---|
//! | reduce-scatter, all-gather, all-to-all | n−1 of S/n, back to back | α + (n−1)s |
//! | broadcast, reduce | the root to all, or all to the root, of S | α + (n−1)t |
//! | gather, scatter | all to the root, or the root to all, of S/n | α + (n−1)s |
//!
//! ASTRA-sim's congestion-unaware model lets all n−1 messages have the full bandwidth at once, which
//! no port can; here the port is the limit, so direct and ring move their bytes equally fast and
//! differ in latency. On rings and meshes the table does not hold: messages go at the rate of a link, one at a time
//! from each member, and enter on either side.

use super::{Primitive, Seat, Stage, Step};

pub(super) fn step(stage: &Stage, seat: Seat, i: u32) -> Option<Step> {
    let n = seat.size;
    let is_root = seat.index == seat.root;
    let next = (seat.index + 1 + i) % n;
    let part = stage.buffer.part(n);
    let (count, to, amount) = match stage.primitive {
        Primitive::ReduceScatter | Primitive::AllGather | Primitive::AllToAll => {
            (n - 1, next, part)
        }
        Primitive::Broadcast if is_root => (n - 1, next, stage.buffer),
        Primitive::Scatter if is_root => (n - 1, next, part),
        Primitive::Reduce if !is_root => (1, seat.root, stage.buffer),
        Primitive::Gather if !is_root => (1, seat.root, part),
        _ => return None,
    };
    (i < count).then_some(Step {
        to,
        amount,
        after: 0,
        arrived: 0,
        heard: 0,
    })
}

pub(super) fn receives(stage: &Stage, seat: Seat) -> u32 {
    let is_root = seat.index == seat.root;
    match stage.primitive {
        Primitive::ReduceScatter | Primitive::AllGather | Primitive::AllToAll => seat.size - 1,
        Primitive::Broadcast | Primitive::Scatter => u32::from(!is_root),
        Primitive::Reduce | Primitive::Gather => {
            if is_root {
                seat.size - 1
            } else {
                0
            }
        }
        Primitive::AllReduce => 0,
    }
}
