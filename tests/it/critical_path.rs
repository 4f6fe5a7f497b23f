//! Tests the critical path of a replay. For small jobs, the path is derived by hand. For many jobs, its parts are
//! compared with the makespan, and slack is checked by replays in which one node is longer by its slack.

use super::commands::run_for_output;
use super::physics::lines::{build_collective, build_kernel, build_receive, build_send};
use super::physics::rig::build_job_from_rank_nodes;
use chakram::engine::{CommunicationDurationSource, CompiledReplay, InstanceId, ReplayOptions};
use chakram::ids::NodeIndex;
use chakram::machine::{Machine, SendCompletionRule};
use chakram::report::{
    CollectiveRecord, CriticalPathSegment, CriticalPathSummary, Observer, Report, replay_to_report,
};
use chakram::trace::CollectiveKind;
use chakram::units::{Span, Time};
use chakram::workload::{NodeKind, Workload};
use serde_json::Value;

/// Keeps the critical path.
#[derive(Default)]
struct CriticalPathSegmentKeeper(Vec<CriticalPathSegment>);

impl Observer for CriticalPathSegmentKeeper {
    fn on_issued(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
    fn on_completed(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
    fn critical_path(&mut self, path: &[CriticalPathSegment]) {
        self.0 = path.to_vec();
    }
}

fn replay_with_critical_path(
    workload: &Workload,
    comm: CommunicationDurationSource,
) -> (Report, Vec<CriticalPathSegment>) {
    let machine = Machine::load_preset("dgx-h100").unwrap();
    let options = ReplayOptions::default_with_changes(|options| options.comm = comm);
    let prepared = CompiledReplay::new(workload, &machine, &options).unwrap();
    let (report, keeper) =
        replay_to_report(&prepared, CriticalPathSegmentKeeper::default()).unwrap();
    (report, keeper.0)
}

fn expect_critical_path_in_report(report: &Report) -> &CriticalPathSummary {
    report.critical_path.as_ref().expect("it is small enough")
}

/// Returns a job of two ranks that compute for `a` and `b` microseconds, synchronise for 11 us, and
/// then compute for 5 and 2 us. Rank 1 also runs a concurrent kernel of 3 us, and rank 0 has a
/// delay of 4 us before its last kernel.
fn build_job_of_two_ranks_with_barrier(a: u64, b: u64) -> Workload {
    let kernel = |us| build_kernel(us * 1000);
    let ranks = [(a, 5, 4), (b, 2, 0)].map(|(first, last, delay)| {
        vec![
            kernel(first).on_lane(7),
            build_collective(CollectiveKind::Barrier, 0)
                .lasts(11_000)
                .after(&[1]),
            kernel(last).delayed(delay * 1000).on_lane(7).after(&[2]),
        ]
    });
    let [first, mut second] = ranks;
    second.push(kernel(3).on_lane(8));
    build_job_from_rank_nodes(&[first, second], &[])
}

#[test]
fn the_path_goes_on_from_the_rank_that_came_last() {
    let (report, segments) = replay_with_critical_path(
        &build_job_of_two_ranks_with_barrier(4, 10),
        CommunicationDurationSource::Recorded,
    );
    // Rank 1 computes for 10 us, and the barrier takes 11 us. Then rank 0 delays for 4 us and
    // computes for 5 us, so the makespan is 30 us.
    let us = Span::from_us;
    assert_eq!(report.outcome.makespan, us(30));
    let summary = expect_critical_path_in_report(&report);
    // The path has 10 + 5 us of compute, 11 us of communication, and 4 us of the host.
    assert_eq!(
        summary.parts,
        [us(15), us(11), Span::ZERO, Span::ZERO, us(4), Span::ZERO]
    );
    let ends: Vec<_> = segments
        .iter()
        .map(|s| (s.instance.0, s.to.0 / 1_000_000))
        .collect();
    assert_eq!(ends, [(1, 10), (0, 21), (0, 25), (0, 30)]);
    assert_eq!((summary.segments, summary.rank_changes), (4, 1));
    // Slack outside the path is 6 us for rank 0's first kernel, 30 - 23 us for rank 1's last
    // kernel, and 30 - 3 us for the concurrent kernel.
    let [compute, communication] = &summary.slack[..] else {
        panic!("{:?}", summary.slack)
    };
    assert_eq!((compute.nodes, compute.time), (3, us(4 + 2 + 3)));
    assert_eq!((compute.least, compute.median), (us(6), us(7)));
    // Rank 1's part of the barrier ends at 21 us, like rank 0's, but the node after rank 1's part
    // ends at 23 us.
    assert_eq!((communication.nodes, communication.least), (1, us(7)));
}

#[test]
fn nodes_may_last_longer_by_their_slack_and_no_more() {
    let makespan = |a| {
        replay_with_critical_path(
            &build_job_of_two_ranks_with_barrier(a, 10),
            CommunicationDurationSource::Recorded,
        )
        .0
        .outcome
        .makespan
    };
    assert_eq!(makespan(4), Span::from_us(30));
    assert_eq!(makespan(4 + 6), Span::from_us(30));
    assert_eq!(makespan(4 + 7), Span::from_us(31));
}

/// On a DGX H100, rank 0 sends 9 MB to rank 1, and then computes for 5 us. At 450 GB/s, the last byte leaves after 20
/// us, and arrives two links later. If the send completes on arrival, the path is the whole send and the kernel, and
/// the receive has 5 us of slack. If it completes when the last byte leaves, the kernel starts earlier, and the
/// receive's slack is 5 us minus the latency of the links.
#[test]
fn critical_path_and_slack_depend_on_when_a_send_completes() {
    let us = Span::from_us;
    let sender = vec![build_send(1, 9_000_000), build_kernel(5000).after(&[1])];
    let workload = build_job_from_rank_nodes(&[sender, vec![build_receive(0, 9_000_000)]], &[]);
    let preset = Machine::load_preset("dgx-h100").unwrap();
    let links = preset.topology().dimensions()[0].latency.times(2);
    let found = SendCompletionRule::ALL.map(|(sends, _)| {
        let machine = preset.clone().with_send_completion(sends);
        let prepared = CompiledReplay::new(&workload, &machine, &ReplayOptions::default()).unwrap();
        let (report, _) = replay_to_report(&prepared, ()).unwrap();
        let summary = expect_critical_path_in_report(&report);
        let least = summary.slack.iter().map(|row| (row.nodes, row.least));
        (
            report.outcome.makespan,
            summary.parts,
            least.collect::<Vec<_>>(),
        )
    });
    let parts = |compute, communication| {
        let mut parts = [Span::ZERO; 6];
        (parts[0], parts[1]) = (compute, communication);
        parts
    };
    let there = us(20) + links;
    // Only the receive is outside the path, because the links take less time than the kernel.
    assert!(links < us(5));
    assert_eq!(
        found[0],
        (us(25), parts(us(5), us(20)), vec![(1, us(5) - links)])
    );
    assert_eq!(
        found[1],
        (there + us(5), parts(us(5), there), vec![(1, us(5))])
    );
}

/// Jobs with lanes, launch orders, messages, memory, delays, late ranks and captures.
const JOBS: [&[&str]; 9] = [
    &["replay", "traces/data-parallel-8"],
    &[
        "replay",
        "traces/data-parallel-8",
        "--stepwise",
        "--network",
        "links",
    ],
    &["replay", "traces/ddp-resnet18"],
    &[
        "replay",
        "traces/ddp-resnet18",
        "--comm",
        "recorded",
        "--delay",
        "1=10ms",
    ],
    &["replay", "traces/ddp-resnet18", "--comm", "captured"],
    &["replay", "traces/prefetch-4"],
    &[
        "generate",
        "gpt2-small",
        "-m",
        "dgx-h100",
        "--pipeline",
        "4",
        "--data",
        "2",
        "--batch",
        "16",
        "--micro-batch",
        "1",
    ],
    &[
        "generate",
        "gpt2-small",
        "-m",
        "dgx-h100",
        "--tensor",
        "4",
        "--data",
        "2",
        "--batch",
        "4",
        "--zero",
        "3",
    ],
    &[
        "generate",
        "gpt2-small",
        "-m",
        "dgx-a100",
        "--tensor",
        "2",
        "--pipeline",
        "2",
        "--data",
        "2",
        "--batch",
        "8",
        "--network",
        "ports",
    ],
];

#[test]
fn parts_of_the_path_sum_to_the_makespan() {
    for job in JOBS {
        let text = run_for_output(&[job, &["--format", "json"]].concat());
        let report: Value = serde_json::from_str(&text).unwrap();
        let path = &report["critical_path"];
        let sum = |object: &Value| -> u64 {
            object
                .as_object()
                .unwrap()
                .values()
                .map(|part| part.as_u64().unwrap())
                .sum()
        };
        let makespan = report["makespan_ps"].as_u64().unwrap();
        assert_eq!(sum(&path["time_ps"]), makespan, "{job:?}");
        let ranks = path["ranks"].as_array().unwrap().iter();
        assert_eq!(
            ranks
                .map(|rank| rank["time_ps"].as_u64().unwrap())
                .sum::<u64>(),
            makespan
        );
        // At most a twentieth of each job's time may be explained by the launch order.
        let unexplained = path["time_ps"]["idle"].as_u64().unwrap();
        let late = if job.contains(&"--delay") {
            10_000_000_000
        } else {
            0
        };
        assert!(
            unexplained <= late + makespan / 20,
            "{job:?}: {unexplained} of {makespan}"
        );
    }
}
