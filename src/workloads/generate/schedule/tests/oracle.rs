//! A pipeline that is played through: each stage takes its passes in order and starts one when what it needs is
//! there. Who needs whom is told here by the place of a chunk among all layers, not by the schedule.

use super::super::{PassKind, PipelineSchedule};
use std::collections::BTreeMap;

/// Outcome of a pipeline that was played through.
pub(super) struct Played {
    /// Time at which the last stage was done.
    pub time: u64,
    /// The most forward passes of each stage that were not yet taken back; none where nothing goes back.
    pub peaks: Vec<u64>,
}

/// Plays `schedule` on stages whose passes through one chunk last so long forward and back, with messages that
/// take no time. Panics when it gets stuck, or when an order lacks a pass or repeats one.
pub(super) fn play(
    schedule: &PipelineSchedule,
    stages: &[(u64, u64)],
    micro_batches: u32,
) -> Played {
    let count = stages.len() as u32;
    let last = count * schedule.chunks() - 1;
    let trains = *schedule != PipelineSchedule::Inference;
    let orders: Vec<Vec<_>> = (0..count)
        .map(|stage| schedule.passes(stage, count, micro_batches).collect())
        .collect();
    // When (micro-batch, place, backward) was over.
    let mut over: BTreeMap<(u32, u32, bool), u64> = BTreeMap::new();
    let mut next = vec![0; stages.len()];
    let mut free = vec![0; stages.len()];
    let mut peaks = vec![0_u64; stages.len()];
    let mut held = vec![0_u64; stages.len()];
    loop {
        let before = over.len();
        for (stage, order) in orders.iter().enumerate() {
            while let Some(pass) = order.get(next[stage]) {
                let place = pass.chunk * count + stage as u32;
                let back = pass.kind == PassKind::Backward;
                let mut needed = Vec::new();
                if back {
                    needed.push((pass.micro_batch, place, false));
                    if place < last {
                        needed.push((pass.micro_batch, place + 1, true));
                    }
                } else if place > 0 {
                    needed.push((pass.micro_batch, place - 1, false));
                }
                let times: Option<Vec<u64>> =
                    needed.iter().map(|one| over.get(one).copied()).collect();
                let Some(times) = times else { break };
                let ready = times.into_iter().max().unwrap_or(0);
                let (forward, backward) = stages[stage];
                let end = ready.max(free[stage]) + if back { backward } else { forward };
                let known = over.insert((pass.micro_batch, place, back), end);
                assert_eq!(known, None, "{pass:?} on stage {stage} twice");
                free[stage] = end;
                next[stage] += 1;
                if back {
                    held[stage] -= 1
                } else if trains {
                    held[stage] += 1
                }
                peaks[stage] = peaks[stage].max(held[stage]);
            }
        }
        if over.len() == before {
            break;
        }
    }
    for (stage, order) in orders.iter().enumerate() {
        assert_eq!(
            next[stage],
            order.len(),
            "stage {stage} of {schedule:?} is stuck"
        );
        assert_eq!(held[stage], 0, "stage {stage} of {schedule:?} still holds");
    }
    // None twice, so all if there are as many.
    let each = u64::from(micro_batches) * u64::from(last + 1);
    let expected = each * if trains { 2 } else { 1 };
    assert_eq!(over.len() as u64, expected, "{schedule:?}");
    assert!(
        over.keys()
            .all(|key| key.0 < micro_batches && key.1 <= last)
    );
    let time = over.values().copied().max().expect("there are passes");
    Played { time, peaks }
}
