//! Provides a machine file, and tests the effect of doubling one of its numbers.

use super::lines::TestTraceNode;
use super::rig::{ObserverLog, build_job_from_rank_nodes};
use chakram::engine::{CompiledReplay, KernelDurationSource, ReplayOptions, RooflinePeakFraction};
use chakram::machine::Machine;
use chakram::workload::Workload;
use std::collections::BTreeSet;

/// The file describes a machine of 4 NPUs. Each number format has its own rate, so a wrong format
/// gives a wrong result.
pub const MACHINE: &str = r#"name = "keys"
[npu.a]
memory_bandwidth = "1000 GB/s"
memory_latency = "300 ns"
memory_capacity = "40 GB"
lanes = 2
host_lanes = 3
[npu.a.peak]
fp64 = "1 TFLOP/s"
fp32 = "2 TFLOP/s"
tf32 = "3 TFLOP/s"
fp16 = "4 TFLOP/s"
bf16 = "5 TFLOP/s"
fp8 = "6 TFLOP/s"
fp4 = "7 TFLOP/s"
int8 = "8 TFLOP/s"
[[dimension]]
name = "inner"
shape = "ring"
size = 2
bandwidth = "100 GB/s"
latency = "400 ns"
algorithm = "ring"
[[dimension]]
name = "outer"
shape = "switch"
size = 2
bandwidth = "25 GB/s"
latency = "1500 ns"
algorithm = "direct"
[remote_memory]
attachment = "pool"
bandwidth = "50 GB/s"
latency = "2000 ns"
capacity = "90 GB"
"#;

/// Returns the makespan in picoseconds, or the error message.
fn replay_roofline_makespan(workload: &Workload, text: &str) -> Result<u64, String> {
    let machine = Machine::parse(text, "keys.toml").unwrap();
    let options = ReplayOptions::default_with_changes(|o| {
        o.compute = KernelDurationSource::Roofline(RooflinePeakFraction::default());
    });
    let prepared = CompiledReplay::new(workload, &machine, &options).map_err(|e| e.to_string())?;
    let (outcome, _) = prepared
        .run(ObserverLog::default())
        .map_err(|e| e.to_string())?;
    Ok(outcome.makespan.0)
}

/// The changed lines of the file, counted from 0.
#[derive(Default)]
pub struct ChangedMachineFileLineNumbers(pub BTreeSet<usize>);

/// Replays `ranks` on the machine file, and again after replacing `old` by `new` in `old => new`.
/// Expects these makespans; the first may be an error that contains this text.
#[track_caller]
pub fn assert_makespan_after_change(
    keys: &mut ChangedMachineFileLineNumbers,
    entry: &str,
    ranks: &[Vec<TestTraceNode>],
    before: Result<u64, &str>,
    after: u64,
) {
    let (old, new) = entry.split_once(" => ").unwrap();
    let (head, _) = MACHINE.split_once(old).unwrap();
    assert_eq!(MACHINE.matches(old).count(), 1, "{old}");
    let through = format!("{head}{old}");
    keys.0.insert(through.matches('\n').count());
    let workload = build_job_from_rank_nodes(ranks, &[]);
    let text = MACHINE.replace(old, new);
    match (replay_roofline_makespan(&workload, MACHINE), before) {
        (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
        (found, expected) => assert_eq!(found, expected.map_err(str::to_owned), "{entry}"),
    }
    assert_eq!(
        replay_roofline_makespan(&workload, &text),
        Ok(after),
        "{entry}"
    );
}
