//! How long a step takes where a formula says it.

use super::{job, products, replay};
use chakram::generate::Plan;
use chakram::generate::plan::{Effect, Optimizer};
use chakram::generate::schedule::Schedule;
use chakram::machine::Machine;

/// A FLOP takes a picosecond; memory and messages take no time.
const IDEAL: &str = r#"
name = "ideal"
[npu.ideal]
memory_bandwidth = "1000000 GB/s"
memory_latency = "0 ns"
memory_capacity = "80 GB"
lanes = 32
host_lanes = 32
[npu.ideal.peak]
bf16 = "1 TFLOP/s"
[[dimension]]
name = "wire"
shape = "switch"
size = 4
bandwidth = "1000000 GB/s"
latency = "0 ns"
algorithm = "ring"
"#;

/// Picoseconds of a step of `blocks` blocks, each of which takes `2 side^2` forwards and twice that backwards.
fn step(blocks: usize, side: u64, pipeline: u32, schedule: Schedule, without: &[Effect]) -> u64 {
    let mut plan = Plan::new();
    plan.pipeline = pipeline;
    plan.schedule = schedule;
    plan.batch = 8;
    plan.optimizer = Optimizer::None;
    plan.without.add(Effect::MemoryBound);
    plan.without.add(Effect::PipelineCommunication);
    without.iter().for_each(|effect| plan.without.add(*effect));
    let job = job(&products(blocks, side), &plan).unwrap();
    replay(&job, &Machine::parse(IDEAL, "ideal").unwrap())
        .makespan
        .0
}

/// PALM's Eq. 1: (m - 1) max(F + B) + sum(F + B), with p = 4 stages, m = 8 micro-batches, F = 1 and B = 2:
/// 7 x 3 + 4 x 3 = 33. With v = 2 chunks a stage's passes take 1/2 and 1, and a bubble is half as long:
/// 24 + 9/2 = 28.5. On one stage 8 x 3 = 24.
#[test]
fn a_pipeline_takes_what_eq_1_says() {
    // F = 2 side^2 ps.
    let unit = 2 * 1000 * 1000;
    let one = Schedule::OneForwardOneBackward;
    assert_eq!(step(4, 1000, 4, one, &[]), 33 * unit);
    assert_eq!(step(4, 1000, 4, Schedule::GPipe, &[]), 33 * unit);
    assert_eq!(step(1, 1000, 1, one, &[]), 24 * unit);
    // Eight blocks of which two are a stage: F of a chunk is 1 in units of which a stage has 2.
    let interleaved = Schedule::Interleaved { chunks: 2 };
    assert_eq!(step(8, 1000, 4, interleaved, &[]), 57 * unit);
    // Stages that wait for nobody take 8 x 3.
    assert_eq!(step(4, 1000, 4, one, &[Effect::Bubble]), 24 * unit);
}
