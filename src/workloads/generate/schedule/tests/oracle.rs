//! Simulates a pipeline. Each stage runs its passes in order, and starts each pass as soon as its inputs are ready.
//! Dependencies come from a chunk's position among all layers, not from the schedule under test.

use super::super::{PassKind, PipelineSchedule};
use std::collections::BTreeMap;

/// Result of a simulated pipeline.
pub(super) struct PipelineTimeAndPeakMicroBatches {
    /// Time at which the last pass ended.
    pub time: u64,
    /// For each stage, the maximum number of micro-batches that have completed the forward pass but not yet the
    /// backward pass; empty if there are no backward passes.
    pub peaks: Vec<u64>,
}

/// Simulates `schedule` on stages with the given durations of the forward and backward pass through
/// one chunk. Messages take no time. Panics if the pipeline deadlocks, or if an order omits or
/// repeats a pass.
pub(super) fn simulate_schedule(
    schedule: &PipelineSchedule,
    stages: &[(u64, u64)],
    micro_batches: u32,
) -> PipelineTimeAndPeakMicroBatches {
    let count = stages.len() as u32;
    let last = count * schedule.chunk_count() - 1;
    let trains = *schedule != PipelineSchedule::Inference;
    let orders: Vec<Vec<_>> = (0..count)
        .map(|stage| {
            schedule
                .passes_of_stage(stage, count, micro_batches)
                .collect()
        })
        .collect();
    // End time of each pass, by (micro-batch, place, backward).
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
    // The map has one key per pass, so this number of keys proves that none is missing.
    let each = u64::from(micro_batches) * u64::from(last + 1);
    let expected = each * if trains { 2 } else { 1 };
    assert_eq!(over.len() as u64, expected, "{schedule:?}");
    assert!(
        over.keys()
            .all(|key| key.0 < micro_batches && key.1 <= last)
    );
    let time = over.values().copied().max().expect("there are passes");
    PipelineTimeAndPeakMicroBatches { time, peaks }
}
