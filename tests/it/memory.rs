//! Compares the peak memory of NPUs with sums by hand, and with an oracle that sorts events and adds them up.

mod commands;
mod files;
mod oracle;

use super::physics::lines::{TestTraceNode, build_node};
use super::physics::rig::{build_job_from_rank_nodes, encode_trace_file};
use chakram::engine::{CommunicationDurationSource, CompiledReplay, ReplayOptions};
use chakram::machine::Machine;
use chakram::report::{
    NodeSpanRecorder, NpuMemoryUseRow, NpuTimeCategory, Report, replay_to_report,
};
use chakram::trace::{CollectiveKind, GroupName, MemoryLocation, NodeMemoryChanges, Op};
use chakram::units::{Bytes, Span, Time};
use chakram::workload::Workload;

/// A node, with its operation, lane, nanoseconds, memory changes and dependencies. Its id is its position, from 1.
#[derive(Clone, Debug)]
pub struct TraceNodeWithMemoryChanges(
    pub Op<'static>,
    pub i64,
    pub u64,
    pub NodeMemoryChanges,
    pub Vec<u64>,
);

pub const KERNEL: Op<'static> = Op::Compute {
    flops: 0,
    bytes: 0,
    dtype: None,
};
const BARRIER: Op<'static> = Op::Collective {
    kind: CollectiveKind::Barrier,
    bytes: 0,
    group: GroupName::World,
    root: None,
    dimensions: None,
    host: false,
};

/// Returns changes that allocate and free these numbers of bytes of activations.
pub fn build_activation_allocs_and_frees(allocates: u64, frees: u64) -> NodeMemoryChanges {
    NodeMemoryChanges {
        allocates: [0, 0, 0, allocates, 0],
        frees: [0, 0, 0, frees, 0],
        remote: 0,
    }
}

fn convert_to_test_nodes(lines: &[TraceNodeWithMemoryChanges]) -> Vec<TestTraceNode> {
    let nodes =
        lines.iter().map(
            |TraceNodeWithMemoryChanges(op, lane, ns, memory, after)| TestTraceNode {
                lane: Some(*lane),
                ns: *ns,
                memory: *memory,
                after: after.clone(),
                ..build_node(*op)
            },
        );
    nodes.collect()
}

pub fn encode_trace_nodes(lines: &[TraceNodeWithMemoryChanges]) -> Vec<u8> {
    encode_trace_file(&convert_to_test_nodes(lines))
}

fn build_workload(ranks: &[Vec<TraceNodeWithMemoryChanges>]) -> Workload {
    let ranks: Vec<_> = ranks
        .iter()
        .map(|lines| convert_to_test_nodes(lines))
        .collect();
    build_job_from_rank_nodes(&ranks, &[])
}

/// Replays the ranks with recorded communication times, on NPUs of 80 GB.
fn replay_with_node_times(
    ranks: &[Vec<TraceNodeWithMemoryChanges>],
) -> (Report, Vec<Vec<(Time, Time)>>) {
    let workload = build_workload(ranks);
    let machine = Machine::load_preset("dgx-h100").unwrap();
    let options = ReplayOptions::default_with_changes(|o| {
        o.comm = CommunicationDurationSource::Recorded;
    });
    let prepared = CompiledReplay::new(&workload, &machine, &options).unwrap();
    let (report, spans) = replay_to_report(&prepared, NodeSpanRecorder::new(&prepared)).unwrap();
    let ran = (0..ranks.len()).map(|rank| {
        let mut ran = vec![(Time::ZERO, Time::ZERO); ranks[rank].len()];
        for span in spans.spans_of_instance(rank) {
            ran[span.node.index()] = (span.start, span.end);
        }
        ran
    });
    let ran = ran.collect();
    (report, ran)
}

fn replay_memory_of_rank(lines: Vec<TraceNodeWithMemoryChanges>) -> NpuMemoryUseRow {
    let (report, _) = replay_with_node_times(&[lines]);
    report.memory.into_iter().next().unwrap()
}

fn peak_bytes_time_and_node(row: &NpuMemoryUseRow) -> (u64, u64, Option<u64>) {
    (
        row.peak.0,
        row.at.0 / 1000,
        row.node.as_ref().map(|node| node.id),
    )
}

/// Memory time counts as remote while only remote accesses are in progress, and as local while an access to the NPU's
/// own memory is in progress.
#[test]
fn remote_memory_is_a_part_of_the_memory_time() {
    let access = |place, bytes| Op::Memory {
        store: false,
        place,
        bytes,
        in_switch: false,
    };
    let none = NodeMemoryChanges::default;
    // On a machine of 100 GB/s to remote memory and 4,096 GB/s to the NPU's own, n1 loads 1 MB in 10 us, and at the
    // same time n2 loads 8.192 MB in 2 us. Then n3 alone loads 4.096 MB in 1 us.
    let workload = build_workload(&[vec![
        TraceNodeWithMemoryChanges(
            access(MemoryLocation::Remote, 1_000_000),
            1,
            0,
            none(),
            vec![],
        ),
        TraceNodeWithMemoryChanges(
            access(MemoryLocation::Local, 8_192_000),
            2,
            0,
            none(),
            vec![],
        ),
        TraceNodeWithMemoryChanges(
            access(MemoryLocation::Local, 4_096_000),
            2,
            0,
            none(),
            vec![1],
        ),
    ]]);
    let machine = Machine::load_preset("zero-infinity").unwrap();
    let prepared = CompiledReplay::new(&workload, &machine, &ReplayOptions::default()).unwrap();
    let (report, _) = replay_to_report(&prepared, NodeSpanRecorder::new(&prepared)).unwrap();
    let time = &report.rows[0].time;
    let memory = time.parts[NpuTimeCategory::Memory as usize];
    assert_eq!(memory, Span(11_000_000));
    let remote = time.remote_memory;
    assert_eq!(remote, Span(8_000_000));
    assert_eq!(report.mean_remote_memory, remote);
}

#[test]
fn kernels_that_overlap_hold_memory_together() {
    // On lane 1, n1 runs from 0 to 10 with 5 bytes, and n2 runs from 10 to 30 with 7 bytes. On lane 2, n3 runs from 0
    // to 15 with 4 bytes, and n4 runs from 15 to 16 with 6 bytes. All nodes except n3 free their memory at their end.
    // The memory in use is 9 bytes from 0, 7 + 4 from 10, and 7 + 4 + 6 = 17 from 15. At the end, n3's 4 bytes are
    // left.
    let row = replay_memory_of_rank(vec![
        TraceNodeWithMemoryChanges(
            KERNEL,
            1,
            10,
            build_activation_allocs_and_frees(5, 5),
            vec![],
        ),
        TraceNodeWithMemoryChanges(
            KERNEL,
            1,
            20,
            build_activation_allocs_and_frees(7, 7),
            vec![1],
        ),
        TraceNodeWithMemoryChanges(
            KERNEL,
            2,
            15,
            build_activation_allocs_and_frees(4, 0),
            vec![],
        ),
        TraceNodeWithMemoryChanges(
            KERNEL,
            2,
            1,
            build_activation_allocs_and_frees(6, 6),
            vec![3],
        ),
    ]);
    assert_eq!(peak_bytes_time_and_node(&row), (17, 15, Some(4)));
    assert_eq!((row.classes, row.left), ([0, 0, 0, 17, 0], [0, 0, 0, 4, 0]));
    assert_eq!(
        (row.capacity, row.missing),
        (Some(Bytes(80_000_000_000)), None)
    );
}

#[test]
fn bytes_by_class_are_those_at_the_peak() {
    let class = |i: usize, bytes| {
        let mut changes = NodeMemoryChanges::default();
        changes.allocates[i] = bytes;
        changes
    };
    // 1 + 2 + 3 + 4 bytes are allocated. Then 4 bytes are freed and 3 allocated, which leaves 9, fewer than 10.
    let mut last = class(4, 3);
    last.frees[4] = 3;
    let mut fourth = class(3, 4);
    fourth.frees[3] = 4;
    let row = replay_memory_of_rank(vec![
        TraceNodeWithMemoryChanges(Op::NoOp, 1, 0, class(0, 1), vec![]),
        TraceNodeWithMemoryChanges(KERNEL, 1, 10, class(1, 2), vec![1]),
        TraceNodeWithMemoryChanges(KERNEL, 1, 10, class(2, 3), vec![2]),
        TraceNodeWithMemoryChanges(KERNEL, 1, 10, fourth, vec![3]),
        TraceNodeWithMemoryChanges(KERNEL, 1, 10, last, vec![4]),
    ]);
    assert_eq!(peak_bytes_time_and_node(&row), (10, 20, Some(4)));
    assert_eq!((row.classes, row.left), ([1, 2, 3, 4, 0], [1, 2, 3, 0, 0]));
}

/// Rank 0's barrier waits for rank 1 from 0 to 5, and then takes no time. It therefore completes after all other events
/// at 5, so n3 is issued before it, also at 5. The barrier's memory still counts as freed first, so the peak is 8. The
/// order of the loop would give 14.
#[test]
fn completions_free_memory_before_issues_allocate_at_an_instant() {
    // A replay as recorded needs at least one recorded duration of communication, which this
    // barrier has.
    let last = |after| {
        TraceNodeWithMemoryChanges(
            BARRIER,
            1,
            1,
            build_activation_allocs_and_frees(0, 0),
            vec![after],
        )
    };
    let ranks = [
        vec![
            TraceNodeWithMemoryChanges(
                BARRIER,
                1,
                0,
                build_activation_allocs_and_frees(8, 8),
                vec![],
            ),
            TraceNodeWithMemoryChanges(
                KERNEL,
                2,
                5,
                build_activation_allocs_and_frees(0, 0),
                vec![],
            ),
            TraceNodeWithMemoryChanges(
                KERNEL,
                2,
                9,
                build_activation_allocs_and_frees(6, 0),
                vec![2],
            ),
            last(1),
        ],
        vec![
            TraceNodeWithMemoryChanges(
                KERNEL,
                2,
                5,
                build_activation_allocs_and_frees(0, 0),
                vec![],
            ),
            TraceNodeWithMemoryChanges(
                BARRIER,
                1,
                0,
                build_activation_allocs_and_frees(0, 0),
                vec![1],
            ),
            last(2),
        ],
    ];
    let (report, ran) = replay_with_node_times(&ranks);
    let ns = |i: usize| (ran[0][i].0.0 / 1000, ran[0][i].1.0 / 1000);
    assert_eq!([ns(0), ns(2)], [(0, 5), (5, 14)]);
    // Rank 1 has no memory changes, so it has no row.
    assert_eq!(report.memory.len(), 1);
    assert_eq!(peak_bytes_time_and_node(&report.memory[0]), (8, 0, Some(1)));
    let warnings = report.warnings.join("\n");
    assert!(
        warnings.contains("1 ranks do not state their allocations"),
        "{warnings}"
    );
}

#[test]
fn a_chain_of_zero_time_nodes_holds_memory_of_one_node_at_a_time() {
    // Each of 100 nodes allocates 3 bytes, takes no time, and frees 3 bytes. Another 5 bytes stay
    // allocated throughout.
    let mut lines = vec![TraceNodeWithMemoryChanges(
        KERNEL,
        1,
        10,
        build_activation_allocs_and_frees(5, 0),
        vec![],
    )];
    lines.extend((1..=100).map(|id| {
        TraceNodeWithMemoryChanges(
            Op::NoOp,
            1,
            0,
            build_activation_allocs_and_frees(3, 3),
            vec![id],
        )
    }));
    let row = replay_memory_of_rank(lines);
    assert_eq!(peak_bytes_time_and_node(&row), (8, 10, Some(2)));
    assert_eq!((row.left, row.missing), ([0, 0, 0, 5, 0], None));
}

#[test]
fn freeing_memory_that_was_never_allocated_is_reported() {
    let (report, _) = replay_with_node_times(&[vec![
        TraceNodeWithMemoryChanges(
            KERNEL,
            1,
            10,
            build_activation_allocs_and_frees(5, 7),
            vec![],
        ),
        TraceNodeWithMemoryChanges(
            KERNEL,
            1,
            10,
            build_activation_allocs_and_frees(1, 4),
            vec![1],
        ),
    ]]);
    // The first node frees 7 bytes, of which 2 were never allocated, and the second frees 4, of which 3 were not.
    let missing = report.memory[0].missing.as_ref().unwrap();
    assert_eq!(
        (missing.nodes, missing.first.id, missing.classes[3]),
        (2, 1, 5)
    );
    let wanted = "2 nodes free memory that nothing allocated, 5 B in all; the first is `n1` (node 1) of rank 0";
    assert!(
        report.warnings.iter().any(|w| w.contains(wanted)),
        "{:?}",
        report.warnings
    );
}

#[test]
fn no_memory_is_reported_if_no_node_changes_memory() {
    let (report, _) = replay_with_node_times(&[vec![TraceNodeWithMemoryChanges(
        KERNEL,
        1,
        10,
        build_activation_allocs_and_frees(0, 0),
        vec![],
    )]]);
    assert!(report.memory.is_empty() && report.fits_memory());
}
