//! Tests several memories outside the NPUs, named in traces, each with its own channels, links and ports. Results are
//! compared with sums by hand, and with machines that have only one of the memories.

use super::lines::{TestTraceNode, build_node, build_receive, build_send};
use super::rig::{
    ReplayOutcomeAndLog, build_job_from_rank_nodes, load_released_traces, make_proptest_config,
    replay_and_log, replay_with,
};
use crate::commands::run_chakram;
use chakram::engine::{CompiledReplay, NetworkModel, ReplayOptions};
use chakram::machine::Machine;
use chakram::trace::{MemoryLocation, Op};
use chakram::workload::MissingRankPolicy;
use proptest::prelude::*;

/// Returns a machine file for four NPUs on a switch of 10 ps per byte, with these memory tables.
fn format_machine_toml(memories: &str) -> String {
    format!(
        r#"name = "m"
[npu.a]
memory_bandwidth = "1000 GB/s"
memory_latency = "0"
memory_capacity = "40 GB"
lanes = 8
host_lanes = 1
peak = {{ fp32 = "1 TFLOP/s" }}
[[dimension]]
name = "d"
shape = "switch"
size = 4
bandwidth = "100 GB/s"
latency = "0"
algorithm = "direct"
{memories}
"#
    )
}

fn parse_machine_with_memories(memories: &str) -> Machine {
    Machine::parse(&format_machine_toml(memories), "m.toml").unwrap()
}

fn make_load_node(place: MemoryLocation<'static>, bytes: u64) -> TestTraceNode {
    build_node(Op::Memory {
        store: false,
        place,
        bytes,
        in_switch: false,
    })
}

const HOST: &str = r#"attachment = "pool"
bandwidth = "10 GB/s"
latency = "0"
capacity = "1 TB""#;
const CXL: &str = r#"attachment = "pool"
bandwidth = "50 GB/s"
latency = "200 ns"
capacity = "1 TB""#;
const NVME: &str = r#"attachment = "per_npu"
bandwidth = "5 GB/s"
latency = "10 us"
capacity = "1 TB""#;

/// Two NPUs load 1 MB from each of three memories at the same time. The pools serve one load after
/// another, which takes 100 us each at 10 GB/s, and 0.2 + 20 us each at 50 GB/s. Each NPU's own
/// drive takes 10 + 200 us.
#[test]
fn each_memory_has_channels_of_its_own() {
    let machine = parse_machine_with_memories(&format!(
        "[remote_memory]\n{HOST}\n[remote_memories.cxl]\n{CXL}\n[remote_memories.nvme]\n{NVME}"
    ));
    let mb = 1_000_000;
    let rank = || {
        vec![
            make_load_node(MemoryLocation::Remote, mb).on_lane(0),
            make_load_node(MemoryLocation::Named("cxl"), mb).on_lane(1),
            make_load_node(MemoryLocation::Named("nvme"), mb).on_lane(2),
        ]
    };
    let found = replay_and_log(&build_job_from_rank_nodes(&[rank(), rank()], &[]), &machine);
    let ends = |rank| [1, 2, 3].map(|id| found.node_end_ps(rank, id));
    assert_eq!(ends(0), [100_000_000, 20_200_000, 210_000_000]);
    assert_eq!(ends(1), [200_000_000, 40_400_000, 210_000_000]);
}

/// Returns a pool with its own network and with this number of groups.
fn format_hierarchical_pool(groups: u32, rate: u32) -> String {
    format!(
        r#"attachment = "hierarchical"
groups = {groups}
group_bandwidth = "{rate} GB/s"
out_switches = 2
npus_per_node = 2
node_bandwidth = "20 GB/s"
in_node_bandwidth = "15 GB/s"
chunk = "1 kB"
latency = "100 ns"
capacity = "1 TB""#
    )
}

/// Returns loads from one of two memories, on their own lanes.
fn loads_from_one_memory(
    place: MemoryLocation<'static>,
    loads: &[(u64, u64)],
    lane: i64,
) -> Vec<Vec<TestTraceNode>> {
    let ranks = loads.iter();
    ranks
        .map(|&(_, bytes)| vec![make_load_node(place, bytes).on_lane(lane)])
        .collect()
}

fn replay_released_ranks(
    ranks: &[Vec<TestTraceNode>],
    at: &[u64],
    machine: &Machine,
) -> ReplayOutcomeAndLog {
    let lines = (0..).zip(ranks.iter().map(Vec::as_slice));
    let workload = load_released_traces(lines, |rank| at[rank as usize]);
    let workload = workload
        .finish_workload(Some(4), MissingRankPolicy::Refuse)
        .unwrap();
    replay_and_log(&workload, machine)
}

proptest! {
    #![proptest_config(make_proptest_config(100))]

    /// Loads from two pools that share links with messages end at the same time as on machines with only one of the
    /// pools, named or unnamed.
    #[test]
    fn memories_do_not_hold_one_another_up(
        loads in prop::collection::vec((0_u64..5_000, 1_u64..100_000), 8),
        rates in (1_u32..50, 1_u32..50),
    ) {
        let (a, b) = (format_hierarchical_pool(1, rates.0), format_hierarchical_pool(2, rates.1));
        let both = parse_machine_with_memories(&format!("[remote_memories.a]\n{a}\n[remote_memories.b]\n{b}"));
        let at: Vec<u64> = loads.iter().map(|&(at, _)| at).take(4).collect();
        let of_a = loads_from_one_memory(MemoryLocation::Named("a"), &loads[..4], 0);
        let of_b = loads_from_one_memory(MemoryLocation::Named("b"), &loads[4..], 1);
        let together: Vec<_> = of_a.iter().zip(&of_b).map(|(a, b)| [&a[..], b].concat()).collect();
        let together = replay_released_ranks(&together, &at, &both);
        let only_a = replay_released_ranks(&of_a, &at, &both);
        let unnamed_a = loads_from_one_memory(MemoryLocation::Remote, &loads[..4], 0);
        let unnamed_a = replay_released_ranks(&unnamed_a, &at, &parse_machine_with_memories(&format!("[remote_memory]\n{a}")));
        let only_b = replay_released_ranks(&of_b, &at, &parse_machine_with_memories(&format!("[remote_memories.b]\n{b}")));
        for rank in 0..4 {
            prop_assert_eq!(together.node_end_ps(rank, 1), only_a.node_end_ps(rank, 1));
            prop_assert_eq!(together.node_end_ps(rank, 1), unnamed_a.node_end_ps(rank, 1));
            prop_assert_eq!(together.node_end_ps(rank, 2), only_b.node_end_ps(rank, 1));
        }
    }
}

/// A named memory shares ports with messages just as an unnamed memory does. A message of 400 kB occupies the
/// receiver's port for 4 us, and so does a following load of 400 kB.
#[test]
fn named_memories_share_ports_of_the_network() {
    let memory = r#"attachment = "per_npu"
bandwidth = "100 GB/s"
through = "d"
chunk = "10 kB"
latency = "0"
capacity = "1 TB""#;
    let ends = |place, table: &str| {
        let machine = parse_machine_with_memories(&format!("[{table}]\n{memory}"));
        let ranks = [
            vec![build_send(1, 400_000)],
            vec![
                build_receive(0, 400_000),
                make_load_node(place, 400_000).on_lane(1),
            ],
        ];
        let options =
            ReplayOptions::default_with_changes(|o| o.network = Some(NetworkModel::Ports));
        let found = replay_with(&build_job_from_rank_nodes(&ranks, &[]), &machine, &options);
        [found.node_end_ps(1, 1), found.node_end_ps(1, 2)]
    };
    let named = ends(MemoryLocation::Named("x"), "remote_memories.x");
    assert_eq!(named, ends(MemoryLocation::Remote, "remote_memory"));
    // Both pass one port. The later of the two ends when 800 kB have passed the port; a chunk spends its time in the
    // channel before these bytes pass.
    let last = named[0].max(named[1]);
    assert!((8_000_000..=8_100_000).contains(&last), "{named:?}");
}

/// Errors name the node, the memory and the existing memories.
#[test]
fn memories_that_do_not_exist_are_refused_by_name() {
    let refused = |memories: &str, place| {
        let (machine, ranks) = (
            parse_machine_with_memories(memories),
            [vec![make_load_node(place, 8)]],
        );
        let workload = build_job_from_rank_nodes(&ranks, &[]);
        let why = CompiledReplay::new(&workload, &machine, &ReplayOptions::default()).unwrap_err();
        why.to_string()
    };
    let named = format!("[remote_memories.cxl]\n{CXL}\n[remote_memories.nvme]\n{NVME}");
    let text = refused(&named, MemoryLocation::Named("nvm"));
    assert!(text.contains("rank 0"), "{text}");
    assert!(text.contains("node 1"), "{text}");
    assert!(
        text.contains("the remote memory \"nvm\", which machine `m` does not have"),
        "{text}"
    );
    assert!(text.contains("it has cxl, nvme"), "{text}");
    let text = refused(&named, MemoryLocation::Remote);
    assert!(
        text.contains("the node does not name a remote memory"),
        "{text}"
    );
    let text = refused("", MemoryLocation::Named("nvm"));
    assert!(
        text.contains("add [remote_memories.nvm] to the machine"),
        "{text}"
    );
    let file =
        |memories: &str| Machine::parse(&format_machine_toml(memories), "m.toml").unwrap_err();
    for (memories, found) in [
        ("[remote_memories]", "remote_memories"),
        ("[remote_memories.x]\nattachment = \"pol\"", "pol"),
    ] {
        let error = file(memories).to_string();
        assert!(
            error.contains("m.toml:") && error.contains(found),
            "{error}"
        );
    }
}

/// Traces of every form keep the name, and the report lists loads and stores by memory.
#[test]
fn names_of_memories_go_through_files_to_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let tables = format!("[remote_memory]\n{HOST}\n[remote_memories.nvme]\n{NVME}");
    std::fs::write(path("m.toml"), format_machine_toml(&tables)).unwrap();
    let ran = |arguments: &[&str]| {
        let output = run_chakram(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    };
    let machine = path("m.toml");
    ran(&[
        "generate",
        "memory",
        "--ranks=2",
        "--bytes=1MB",
        "--store",
        "--memory=nvme",
        "-o",
        &path("job"),
    ]);
    ran(&[
        "convert",
        "trace",
        &path("job.0.et"),
        "-o",
        &path("a.0.jsonl"),
    ]);
    ran(&[
        "convert",
        "trace",
        &path("a.0.jsonl"),
        "-o",
        &path("b.0.et"),
    ]);
    assert_eq!(
        std::fs::read(path("job.0.et")).unwrap(),
        std::fs::read(path("b.0.et")).unwrap()
    );
    let report = ran(&[
        "replay",
        &path("job"),
        "--machine",
        &machine,
        "--format=json",
    ]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    // Each of two ranks loads and stores 1 MB, in 10 + 200 us each.
    let rows = serde_json::from_str::<serde_json::Value>(
        r#"[{"memory": "remote nvme", "loads": 2, "stores": 2, "bytes": 4000000, "total_ps": 840000000}]"#,
    );
    assert_eq!(report["memory_accesses"], rows.unwrap());
    let table = ran(&["replay", &path("job"), "--machine", &machine]);
    let row = table.lines().find(|line| line.contains("remote nvme"));
    // 4 MB in 0.84 ms are 4.8 GB/s.
    assert!(row.is_some_and(|row| row.ends_with("4.8")), "{table}");
}
