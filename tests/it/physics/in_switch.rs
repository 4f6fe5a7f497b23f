//! Tests loads that switches gather and stores that they reduce, from traces: their times, and rejected jobs.

use super::lines::{TestTraceNode, build_kernel, build_node};
use super::rig::{build_job_from_rank_nodes, replay_and_log};
use chakram::engine::{CompiledReplay, ReplayOptions};
use chakram::machine::Machine;
use chakram::trace::{MemoryLocation, Op};

/// Returns a machine of 4 NPUs in 2 nodes, with the given remote memory.
fn build_two_node_machine(remote: &str) -> Machine {
    let text = format!(
        r#"name = "four"
[npu.a]
memory_bandwidth = "1000 GB/s"
memory_latency = "0"
memory_capacity = "40 GB"
lanes = 2
host_lanes = 2
peak = {{ fp32 = "1 TFLOP/s" }}
[[dimension]]
name = "d"
shape = "switch"
size = 4
bandwidth = "100 GB/s"
latency = "0"
algorithm = "direct"
[remote_memory]
{remote}
latency = "300 ns"
capacity = "1 GB"
"#
    );
    Machine::parse(&text, "four.toml").unwrap()
}

/// Returns a machine with 2 memory groups of 10 GB/s behind 2 switches. Nodes have 40 GB/s, NPUs
/// have 8 GB/s, and chunks have 20 kB.
fn build_pool_machine() -> Machine {
    build_two_node_machine(
        r#"attachment = "hierarchical"
groups = 2
group_bandwidth = "10 GB/s"
out_switches = 2
npus_per_node = 2
node_bandwidth = "40 GB/s"
in_node_bandwidth = "8 GB/s"
chunk = "20 kB""#,
    )
}

fn build_remote_access(store: bool, bytes: u64, in_switch: bool) -> TestTraceNode {
    build_node(Op::Memory {
        store,
        place: MemoryLocation::Remote,
        bytes,
        in_switch,
    })
}

#[test]
fn in_switch_access_takes_the_time_to_bring_all_bytes_to_each_npu() {
    // With w = 100 kB, 400 kB take 20 us at the groups' 20 GB/s, 10 us through a node's 40 GB/s,
    // and 50 us into an NPU at 8 GB/s, which is the longest. A round of chunks has 2 x 2 x 20 kB =
    // 80 kB. The round adds 4 us at the groups, 2 us at a node, and 0.3 us of latency, so the time
    // is 56.3 us.
    for store in [false, true] {
        let ranks = vec![vec![build_remote_access(store, 100_000, true)]; 4];
        assert_eq!(
            replay_and_log(
                &build_job_from_rank_nodes(&ranks, &[]),
                &build_pool_machine()
            )
            .makespan_ps(),
            56_300_000
        );
    }
    // Separate loads of 100 kB take 20 us at the groups, 5 us at a node, and 12.5 us at a port. A
    // round brings 20 kB to each NPU, which takes 1 us at a node and 2.5 us at a port.
    let ranks = vec![vec![build_remote_access(false, 100_000, false)]; 4];
    assert_eq!(
        replay_and_log(
            &build_job_from_rank_nodes(&ranks, &[]),
            &build_pool_machine()
        )
        .makespan_ps(),
        23_800_000
    );
}

#[track_caller]
fn assert_replay_refused(ranks: &[Vec<TestTraceNode>], machine: &Machine, pieces: &[&str]) {
    let workload = build_job_from_rank_nodes(ranks, &[]);
    let error = CompiledReplay::new(&workload, machine, &ReplayOptions::default()).unwrap_err();
    let error = error.to_string();
    for piece in pieces {
        assert!(error.contains(piece), "{piece}: {error}");
    }
}

#[test]
fn in_switch_accesses_on_machines_without_switches_are_refused() {
    let ranks = vec![vec![build_remote_access(false, 100, true)]; 4];
    let channel = "bandwidth = \"10 GB/s\"\nattachment = ";
    for name in ["per_npu", "pool"] {
        let machine = build_two_node_machine(&format!("{channel}\"{name}\""));
        assert_replay_refused(
            &ranks,
            &machine,
            &["rank 0 node 1", name, "has no switches"],
        );
    }
    let ring = r#"attachment = "ring"
groups = 2
group_bandwidth = "10 GB/s"
link_bandwidth = "10 GB/s"
npu_bandwidth = "10 GB/s"
chunk = "1 kB""#;
    assert_replay_refused(
        &ranks,
        &build_two_node_machine(ring),
        &["`ring`", "has no switches"],
    );
}

#[test]
fn in_switch_accesses_that_differ_between_npus_are_refused() {
    let both = |bytes| {
        vec![
            build_remote_access(false, 100, true),
            build_remote_access(true, bytes, true),
        ]
    };
    let mut ranks = vec![both(100); 4];
    let workload = build_job_from_rank_nodes(&ranks, &[]);
    assert!(
        CompiledReplay::new(&workload, &build_pool_machine(), &ReplayOptions::default()).is_ok()
    );
    ranks[2] = both(200);
    let pieces = ["rank 0 node 2", "100 B", "rank 2 node 2", "200 B"];
    assert_replay_refused(&ranks, &build_pool_machine(), &pieces);
    ranks[2] = vec![build_remote_access(false, 100, true)];
    assert_replay_refused(
        &ranks,
        &build_pool_machine(),
        &["rank 0 node 2", "no further one on rank 2"],
    );
    // One rank loads while the others store.
    ranks[2] = vec![
        build_remote_access(false, 100, true),
        build_remote_access(false, 100, true),
    ];
    assert_replay_refused(
        &ranks,
        &build_pool_machine(),
        &["rank 0 node 2", "rank 2 node 2"],
    );
    // Other nodes between these accesses do not affect the result, but missing ranks do.
    ranks[2] = vec![
        build_kernel(5),
        both(100).remove(0),
        build_kernel(5),
        both(100).remove(1),
    ];
    let workload = build_job_from_rank_nodes(&ranks, &[]);
    assert!(
        CompiledReplay::new(&workload, &build_pool_machine(), &ReplayOptions::default()).is_ok()
    );
    ranks.truncate(2);
    assert_replay_refused(
        &ranks,
        &build_pool_machine(),
        &["all 4 NPUs", "only 2 ranks"],
    );
}

#[test]
fn in_switch_accesses_beyond_the_memory_capacity_are_refused() {
    // 300 MB for each of 4 NPUs are 1.2 GB in total.
    let ranks = vec![vec![build_remote_access(false, 300_000_000, true)]; 4];
    assert_replay_refused(
        &ranks,
        &build_pool_machine(),
        &["1.2 GB", "has a capacity of 1.0 GB"],
    );
    let ranks = vec![vec![build_remote_access(false, 300_000_000, false)]; 4];
    let workload = build_job_from_rank_nodes(&ranks, &[]);
    assert!(
        CompiledReplay::new(&workload, &build_pool_machine(), &ReplayOptions::default()).is_ok()
    );
}
