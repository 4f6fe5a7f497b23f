//! Tests memory pools that NPUs share: compares loads of any size at any time with a plain simulator, and doubles every
//! number of each design.

use super::lines::{TestTraceNode, build_node};
use super::loads::{self, build_remote_load};
use super::rig::{
    build_job_from_rank_nodes, load_released_traces, make_proptest_config, replay_and_log,
};
use chakram::machine::Machine;
use chakram::trace::Op;
use chakram::workload::MissingRankPolicy;
use proptest::prelude::*;
use testkit::switch_pool::{self, MemoryLoad, SwitchMemoryPool};

/// Returns a machine of `npus` NPUs with this remote memory.
fn build_remote_memory_machine(npus: u32, remote: &str) -> Machine {
    let dimension = ("switch", 100_000_000_000, 0, "direct");
    loads::build_memory_machine(npus, dimension, &[("remote_memory", remote)])
}

/// Returns the machine file's text for `tree`, with a latency.
fn format_hierarchical_pool(tree: &SwitchMemoryPool, switches: u64) -> String {
    format!(
        r#"attachment = "hierarchical"
groups = {}
group_bandwidth = "{} GB/s"
out_switches = {switches}
npus_per_node = {}
node_bandwidth = "{} GB/s"
in_node_bandwidth = "{} GB/s"
chunk = "{} B"
latency = "100 ns""#,
        tree.groups,
        tree.group,
        tree.npus_per_node,
        tree.node,
        tree.port,
        tree.links_chunk / switches,
    )
}

proptest! {
    #![proptest_config(make_proptest_config(150))]

    #[test]
    fn loads_from_a_pool_end_as_in_a_plain_simulator(
        nodes in 1_u32..5,
        npus_per_node in 1_u32..5,
        groups in 1_u32..4,
        switches in 1_u64..4,
        rates in (1_u32..50, 1_u32..50, 1_u32..50),
        chunk in 1_u64..50,
        loads in prop::collection::vec((0_u64..20_000, 1_u64..100_000), 20),
        skewed: bool,
    ) {
        let npus = nodes * npus_per_node;
        let (group, node, port) = rates;
        let links_chunk = chunk * 100 * switches;
        let tree = SwitchMemoryPool { groups, group, npus_per_node, node, port, npus, links_chunk };
        let machine = build_remote_memory_machine(npus, &format_hierarchical_pool(&tree, switches));
        // Each rank starts at its own time and runs two concurrent loads.
        let at = |rank: u32| if skewed { loads[rank as usize % 20].0 } else { 0 };
        let bytes = |rank: u32, lane: u32| loads[(rank * 2 + lane) as usize % 20].1;
        let ranks: Vec<Vec<TestTraceNode>> = (0..npus)
            .map(|rank| (0..2).map(|lane| build_remote_load(bytes(rank, lane)).on_lane(lane.into())).collect())
            .collect();
        let lines = (0..).zip(ranks.iter().map(Vec::as_slice));
        let workload = load_released_traces(lines, at).finish_workload(Some(npus), MissingRankPolicy::Refuse).unwrap();
        let replay = replay_and_log(&workload, &machine);
        let begins = (0..npus).flat_map(|rank| (0..2).map(move |lane| (rank, lane)));
        let begins: Vec<MemoryLoad> = begins
            .map(|(npu, lane)| MemoryLoad { npu, at: at(npu) as f64 * 1000.0, bytes: bytes(npu, lane) as f64 })
            .collect();
        let expected = switch_pool::load_end_times(&tree, &begins);
        for (i, (load, expected)) in begins.iter().zip(expected).enumerate() {
            let found = replay.node_end_ps(load.npu, i as u32 % 2 + 1);
            // Each change of rates rounds an instant by up to half a picosecond, during which bytes flow at the sum of
            // all rates.
            let off = found as f64 - (expected + 100_000.0);
            prop_assert!(off.abs() < 100.0, "{i}: {found}, off by {off}");
        }
    }
}

#[test]
fn loads_of_one_instant_begin_together_however_they_came_about() {
    let remote = r#"attachment = "ring"
groups = 2
group_bandwidth = "10 GB/s"
link_bandwidth = "50 GB/s"
npu_bandwidth = "4 GB/s"
chunk = "40 kB"
latency = "0""#;
    // The second rank loads after a node that takes no time. 200 kB at 4 GB/s take 50 us. Each rank has 40 kB of a
    // round of 80 kB: 4 us at the memories, and 0.2 us for a quarter of 40 kB on each link into a station.
    let ranks = [
        vec![build_node(Op::NoOp), build_remote_load(200_000)],
        vec![build_node(Op::NoOp), build_remote_load(200_000).after(&[1])],
    ];
    let replay = replay_and_log(
        &build_job_from_rank_nodes(&ranks, &[]),
        &build_remote_memory_machine(2, remote),
    );
    assert_eq!(
        [replay.node_end_ps(0, 2), replay.node_end_ps(1, 2)],
        [54_200_000; 2]
    );
}

/// Bytes that every NPU loads.
const BYTES: u64 = 1_200_000;

/// Doubles the value of `key` in `remote` for 8 NPUs that load [`BYTES`] each, and expects these
/// makespans in nanoseconds.
#[track_caller]
fn check_doubled_setting(remote: &str, key: &str, before: u64, after: u64) {
    let at = remote.find(&format!("{key} =")).expect(key) + key.len() + 2;
    let digits = at + remote[at..].find(|c: char| c.is_ascii_digit()).unwrap();
    let rest = remote[digits..].find(|c: char| !c.is_ascii_digit());
    let end = rest.map_or(remote.len(), |rest| digits + rest);
    let number: u64 = remote[digits..end].parse().unwrap();
    let changed = format!("{}{}{}", &remote[..digits], 2 * number, &remote[end..]);
    let workload = build_job_from_rank_nodes(&vec![vec![build_remote_load(BYTES)]; 8], &[]);
    for (text, expected) in [(remote, before), (&changed, after)] {
        let found = replay_and_log(&workload, &build_remote_memory_machine(8, text)).makespan_ps();
        assert_eq!(found, expected * 1000, "{key} in {text}");
    }
}

#[test]
fn doubling_each_number_of_a_hierarchical_pool_changes_load_times() {
    let remote = r#"attachment = "hierarchical"
groups = 2
group_bandwidth = "24 GB/s"
out_switches = 3
npus_per_node = 4
node_bandwidth = "60 GB/s"
in_node_bandwidth = "20 GB/s"
chunk = "40 kB"
latency = "5000 ns""#;
    // The NPUs load 9.6 MB together, from 48 GB/s: 200 us. A round is 2 x 3 x 40 kB = 240 kB: 5 us
    // at the memories, 2 us for 120 kB in each node, and 1.5 us for 30 kB in each NPU. 200 + 2 +
    // 1.5 + 5 = 208.5 us.
    let before = 208_500;
    // The memories take 100 us, and a node's 4.8 MB at 60 GB/s take 80 us. A round is twice as
    // large and takes 4 and 3 us.
    check_doubled_setting(remote, "groups", before, 112_000);
    check_doubled_setting(remote, "group_bandwidth", before, 108_500);
    check_doubled_setting(remote, "out_switches", before, 212_000);
    // All 8 NPUs are in one node: 9.6 MB / 60 GB/s = 160 us, and 240 kB take 4 us.
    check_doubled_setting(remote, "npus_per_node", before, 210_500);
    check_doubled_setting(remote, "node_bandwidth", before, 207_500);
    check_doubled_setting(remote, "in_node_bandwidth", before, 207_750);
    check_doubled_setting(remote, "chunk", before, 212_000);
    check_doubled_setting(remote, "latency", before, 213_500);
}

#[test]
fn doubling_each_number_of_a_switch_pool_changes_load_times() {
    let remote = r#"attachment = "switch"
level = [{ fan_in = 2, bandwidth = "16 GB/s" }]
groups = 2
group_bandwidth = "60 GB/s"
npu_bandwidth = "20 GB/s"
chunk = "120 kB"
latency = "5000 ns""#;
    // The NPUs load 9.6 MB together: 80 us at the memories, 2.4 MB / 16 GB/s = 150 us on each of 4
    // uplinks, and 60 us at a port. A round is 240 kB: 2 us at the memories, and 30 kB / 20 GB/s =
    // 1.5 us at a port. The sum is 150 + 3.5 + 5.
    let before = 158_500;
    // 4.8 MB / 16 GB/s take 300 us on each of 2 uplinks.
    check_doubled_setting(remote, "fan_in", before, 308_500);
    // The uplinks take 75 us, so the memories' 80 us are the longest: 80 + 60 kB / 32 GB/s + 1.5 +
    // 5.
    check_doubled_setting(remote, " bandwidth", before, 88_375);
    // A round is 480 kB and still takes 2 us at the memories, but 3 us at a port.
    check_doubled_setting(remote, "groups", before, 160_000);
    check_doubled_setting(remote, "group_bandwidth", before, 157_500);
    check_doubled_setting(remote, "npu_bandwidth", before, 157_750);
    check_doubled_setting(remote, "chunk", before, 162_000);
    check_doubled_setting(remote, "latency", before, 163_500);
}

#[test]
fn doubling_each_number_of_a_ring_pool_changes_load_times() {
    let remote = r#"attachment = "ring"
groups = 4
group_bandwidth = "30 GB/s"
link_bandwidth = "10 GB/s"
npu_bandwidth = "20 GB/s"
chunk = "60 kB"
latency = "5000 ns""#;
    // The NPUs load 9.6 MB together: 80 us at the memories, 9.6 MB / 8 / 10 GB/s = 120 us on the
    // links, and 60 us at a port. A round is 240 kB: 2 us at the memories, and 1.5 us at a port.
    // The sum is 120 + 3.5 + 5.
    let before = 128_500;
    // Each link still carries an eighth. A round has 480 kB: 2 us at the memories, and 3 us at a
    // port.
    check_doubled_setting(remote, "groups", before, 130_000);
    check_doubled_setting(remote, "group_bandwidth", before, 127_500);
    // The links take 60 us, so the memories' 80 us are the longest: 80 + 240 kB / 8 / 20 GB/s + 1.5
    // + 5.
    check_doubled_setting(remote, "link_bandwidth", before, 88_000);
    check_doubled_setting(remote, "npu_bandwidth", before, 127_750);
    check_doubled_setting(remote, "chunk", before, 132_000);
    check_doubled_setting(remote, "latency", before, 133_500);
}

#[test]
fn doubling_each_number_of_a_mesh_pool_changes_load_times() {
    let remote = r#"attachment = "mesh"
columns = 2
rows = 2
group_bandwidth = "30 GB/s"
link_bandwidth = "10 GB/s"
npu_bandwidth = "20 GB/s"
chunk = "60 kB"
latency = "5000 ns""#;
    // The NPUs load 9.6 MB together: 80 us at the memories, 9.6 MB x 2 / (4 x 2 x 2) / 10 GB/s =
    // 120 us on the links, and 60 us at a port. A round is 240 kB: 2 us at the memories, and 1.5 us
    // at a port. The sum is 120 + 3.5 + 5.
    let before = 128_500;
    // With 4 x 2, 9.6 MB x 4 / (4 x 4 x 2) / 10 GB/s = 120 us on the links, 40 us at the memories,
    // and 480 kB in a round.
    check_doubled_setting(remote, "columns", before, 130_000);
    check_doubled_setting(remote, "rows", before, 130_000);
    check_doubled_setting(remote, "group_bandwidth", before, 127_500);
    // The links take 60 us, so the memories' 80 us are the longest: 80 + 240 kB / 8 / 20 GB/s + 1.5
    // + 5.
    check_doubled_setting(remote, "link_bandwidth", before, 88_000);
    check_doubled_setting(remote, "npu_bandwidth", before, 127_750);
    check_doubled_setting(remote, "chunk", before, 132_000);
    check_doubled_setting(remote, "latency", before, 133_500);
}
