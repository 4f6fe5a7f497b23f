//! Tests launches and feeds: repeated steps, jobs that share a machine, requests over time, and
//! core arrays that choose the next job.

use super::lines::{TestTraceNode, build_collective, build_kernel, build_receive, build_send};
use super::rig::{
    Dim, build_job_from_rank_nodes, build_machine_from_dims, make_dim_with_fixed_link_speed,
};
use chakram::engine::{
    CompiledReplay, EnumeratedSetting, FeedLaunchAndRankStartRequests, InstanceId, LaunchFeed,
    LaunchKernelDurationSource, LaunchRequest, NetworkModel, ProcessorJobStartAndEnd,
    ProcessorKernelJob, ProgramLaunchRecord, RepeatedLaunchFeed, ReplayError, ReplayOptions,
    SelfSchedulingProcessorModel, SingleLaunchFeed, TimedLaunchFeed, run_launches,
};
use chakram::ids::{NodeIndex, Npu};
use chakram::machine::CollectiveAlgorithm::Ring;
use chakram::machine::Machine;
use chakram::report::{CollectiveRecord, Observer};
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind;
use chakram::units::{Span, Time};
use chakram::workload::{NodeKind, Workload};
use std::sync::Arc;

const NS: u64 = 1000;

/// Starts and ends of launches in picoseconds, and the notifications of processors.
#[derive(Debug, Default, PartialEq)]
struct JobLaunchEventLog {
    began: Vec<(u64, u64)>,
    ended: Vec<(u64, u64)>,
    nodes: Vec<(u64, bool, u32, u32)>,
    occupied: Vec<(u64, u64, u64)>,
}

impl Observer for JobLaunchEventLog {
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, _: NodeKind) {
        self.nodes.push((now.0, false, instance.0, node.0));
    }
    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, _: NodeKind) {
        self.nodes.push((now.0, true, instance.0, node.0));
    }
    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
    fn on_launch_began(&mut self, now: Time, launch: &ProgramLaunchRecord) {
        assert_eq!(launch.began, now);
        self.began.push((launch.serial.0, now.0));
    }
    fn on_all_launch_nodes_complete(&mut self, now: Time, launch: &ProgramLaunchRecord) {
        self.ended.push((launch.serial.0, now.0));
    }
    fn on_kernel_scheduled(
        &mut self,
        _: Time,
        job: &ProcessorKernelJob,
        times: &ProcessorJobStartAndEnd,
    ) {
        self.occupied.push((job.tag, times.start.0, times.end.0));
    }
}

fn compile_replay<'a>(
    workload: &'a Workload,
    machine: &'a Machine,
    change: impl FnOnce(&mut ReplayOptions),
) -> CompiledReplay<'a> {
    CompiledReplay::new(
        workload,
        machine,
        &ReplayOptions::default_with_changes(change),
    )
    .unwrap()
}

/// Returns a ring with 20 ps per byte and 500 ns per link.
fn ring_dimension(npus: u32) -> Dim {
    make_dim_with_fixed_link_speed(DimensionShape::Ring, npus, Ring)
}

/// Rank 0 computes for 10 ns, and sends 100 bytes, which leave in 2 ns. The bytes arrive at rank 1
/// 500 ns later, and rank 1 then computes for 30 ns. Rank 0 ends step k, counted from 0, after 12
/// (k + 1) ns, and never waits. Rank 1 ends step 0 at 12 + 500 + 30 = 542 ns. By the end of step 0,
/// the messages of later steps have arrived, so each step takes 30 ns more.
#[test]
fn repeated_launches_overlap_where_dependencies_allow() {
    let workload = build_job_from_rank_nodes(
        &[
            vec![build_kernel(10), build_send(1, 100).after(&[1])],
            vec![build_receive(0, 100), build_kernel(30).after(&[1])],
        ],
        &[],
    );
    let machine = build_machine_from_dims(&[ring_dimension(2)]);
    // A send completes when its last byte has left; under `exclusive`, it completes when its route is free again.
    let models = NetworkModel::CHOICES.iter().map(|(network, ..)| *network);
    for network in models.filter(|one| *one != NetworkModel::Exclusive) {
        let program = compile_replay(&workload, &machine, |o| o.network = Some(network));
        let mut feed = RepeatedLaunchFeed::new(0, 3);
        let mut log = JobLaunchEventLog::default();
        let outcome = run_launches(&[program], &mut [&mut feed], None, &mut log).unwrap();
        assert_eq!(outcome.makespan, Span(602 * NS));
        assert_eq!((outcome.nodes, outcome.messages), (12, 3));
        let steps = feed
            .step_starts_and_ends()
            .iter()
            .map(|step| (step.begin.0, step.end.0));
        let expected = [(0, 542), (12, 572), (24, 602)].map(|(a, b)| (a * NS, b * NS));
        assert_eq!(steps.collect::<Vec<_>>(), expected);
        let began = [(0, 0), (1, 12), (2, 24)].map(|(serial, at)| (serial, at * NS));
        assert_eq!(log.began, began);
        let ended = [(0, 542), (1, 572), (2, 602)].map(|(serial, at)| (serial, at * NS));
        assert_eq!(log.ended, ended);
    }
}

/// Every step ends with a collective of all ranks, so steps do not overlap. Three steps take three times as long as
/// one. A ring of 4 with 400 bytes takes 2 · 3 steps of 100 bytes. Each step takes 100 · 20 ps + 500 ns = 502 ns.
/// With 10 ns before the ring, the time is 3022 ns.
#[test]
fn launches_that_end_with_a_collective_follow_one_another() {
    let call = build_collective(CollectiveKind::AllReduce, 400).after(&[1]);
    let workload = build_job_from_rank_nodes(&vec![vec![build_kernel(10), call]; 4], &[]);
    let machine = build_machine_from_dims(&[ring_dimension(4)]);
    for stepwise in [false, true] {
        for &(network, ..) in NetworkModel::CHOICES {
            let program = compile_replay(&workload, &machine, |o| {
                (o.network, o.stepwise) = (Some(network), stepwise);
            });
            let once = program.run(()).unwrap().0;
            let mut feed = RepeatedLaunchFeed::new(0, 3);
            let outcome = run_launches(&[program], &mut [&mut feed], None, &mut ()).unwrap();
            assert_eq!(outcome.makespan.0, 3 * once.makespan.0);
            assert_eq!(outcome.closed, 3 * once.closed);
            assert_eq!(outcome.messages, 3 * once.messages);
        }
    }
}

/// Two jobs run on the same two NPUs. Each job has its own lanes, and they contend at NPU 0's port.
/// Each message has 1000 bytes. The first leaves in 20 ns, and the second in the next 20 ns. Both
/// have 500 ns of latency. Each message alone takes 520 ns.
#[test]
fn jobs_that_share_a_port_wait_for_one_another() {
    let workload = build_job_from_rank_nodes(
        &[vec![build_send(1, 1000)], vec![build_receive(0, 1000)]],
        &[],
    );
    let machine = build_machine_from_dims(&[ring_dimension(2)]);
    for (network, ends) in [
        (NetworkModel::ContentionFree, [520, 520]),
        (NetworkModel::Ports, [520, 540]),
        (NetworkModel::Links, [520, 540]),
    ] {
        let program = || compile_replay(&workload, &machine, |o| o.network = Some(network));
        assert_eq!(program().run(()).unwrap().0.makespan, Span(520 * NS));
        let programs = [program(), program()];
        let (mut first, mut second) = (
            SingleLaunchFeed::of_program(0),
            SingleLaunchFeed::of_program(1),
        );
        let mut log = JobLaunchEventLog::default();
        run_launches(&programs, &mut [&mut first, &mut second], None, &mut log).unwrap();
        let ended: Vec<u64> = log.ended.iter().map(|&(_, at)| at / NS).collect();
        assert_eq!(ended, ends, "{network}");
    }
}

/// On a ring of 4, job A sends 1000 bytes from NPU 0 to 2 over NPU 1, and job B sends 1000 bytes from NPU 1 to 2. A
/// link has half of an NPU's rate, so it takes 40 ns for 1000 bytes. A's first byte reaches NPU 1 after 500 ns, long
/// after B's message has left the link. Neither message waits, so both take as long as alone, 1040 and 540 ns. With
/// 50,000 bytes, B occupies the link from 1 to 2 until 2000 ns, and A reaches this link at 500 ns. A's message crosses
/// the link from 2000 ns for another 2000 ns, and arrives at 4500 instead of 3000 ns. B ends at 2500 ns, as it does
/// alone. With fair sharing, each message has half of this link. Each message therefore takes twice as long to leave as
/// it does alone, 80 and 4000 ns, and they arrive 1000 and 500 ns later.
#[test]
fn jobs_that_share_a_link_wait_for_one_another() {
    let machine = build_machine_from_dims(&[ring_dimension(4)]);
    let (links, fair) = (NetworkModel::Links, NetworkModel::FairSharing);
    for (network, bytes, alone, ends) in [
        (links, 1000, [1040, 540], [540, 1040]),
        (links, 50_000, [3000, 2500], [2500, 4500]),
        (fair, 1000, [1040, 540], [580, 1080]),
        (fair, 50_000, [3000, 2500], [4500, 5000]),
    ] {
        let workload = build_job_from_rank_nodes(
            &[vec![build_send(1, bytes)], vec![build_receive(0, bytes)]],
            &[],
        );
        let program = |npus: [u32; 2]| {
            compile_replay(&workload, &machine, |o| {
                o.network = Some(network);
                o.map = Some(npus.map(Npu).to_vec());
            })
        };
        let programs = [program([0, 2]), program([1, 2])];
        for (program, alone) in programs.iter().zip(alone) {
            assert_eq!(program.run(()).unwrap().0.makespan, Span(alone * NS));
        }
        let (mut first, mut second) = (
            SingleLaunchFeed::of_program(0),
            SingleLaunchFeed::of_program(1),
        );
        let mut log = JobLaunchEventLog::default();
        run_launches(&programs, &mut [&mut first, &mut second], None, &mut log).unwrap();
        let ended: Vec<u64> = log.ended.iter().map(|&(_, at)| at / NS).collect();
        assert_eq!(ended, ends);
    }
}

/// Two launches run in different orders on two ranks. The first launch is ready for its collective at 10 ns on rank 0
/// and at 100 ns on rank 1, and the second is ready at 50 ns on both. All use one stream. With first come, first
/// served, the launches would deadlock. The second launch would keep rank 1's stream and wait for rank 0. The first
/// launch would keep rank 0's stream and wait for rank 1. In serial order, the second launch waits. The first launch
/// occupies its stream until 100 + 2 · (50 · 20 ps + 500 ns) = 1102 ns, and the second takes 1002 ns more.
#[test]
fn programs_launched_by_a_feed_cannot_deadlock_one_another() {
    let rank = |ns, lane| {
        let call = build_collective(CollectiveKind::AllReduce, 100);
        vec![build_kernel(ns).on_lane(lane), call.on_lane(7).after(&[1])]
    };
    let first = build_job_from_rank_nodes(&[rank(10, 1), rank(100, 1)], &[]);
    let second = build_job_from_rank_nodes(&[rank(50, 2), rank(50, 2)], &[]);
    let machine = build_machine_from_dims(&[ring_dimension(2)]);
    struct TwoLaunchesAtStartFeed(bool);
    impl LaunchFeed for TwoLaunchesAtStartFeed {
        fn next_wake_time(&self) -> Option<Time> {
            (!self.0).then_some(Time::ZERO)
        }
        fn on_wake(&mut self, _: Time, queue: &mut FeedLaunchAndRankStartRequests) {
            self.0 = true;
            for program in [0, 1] {
                queue.begin_launch(LaunchRequest {
                    program,
                    ..LaunchRequest::default()
                });
            }
        }
    }
    let programs = [
        compile_replay(&first, &machine, |_| {}),
        compile_replay(&second, &machine, |_| {}),
    ];
    let mut log = JobLaunchEventLog::default();
    run_launches(
        &programs,
        &mut [&mut TwoLaunchesAtStartFeed(false)],
        None,
        &mut log,
    )
    .unwrap();
    assert_eq!(log.ended, [(0, 1102 * NS), (1, 2104 * NS)]);
}

/// A linear congruential generator whose upper bits are used.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        let (a, c) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);
        self.0 = self.0.wrapping_mul(a).wrapping_add(c);
        (self.0 >> 33) % n
    }
}

/// Requests with random service times, one launch each.
struct RandomRequestFeed {
    program: u32,
    /// Each request's arrival and service time; the last entry is the next request.
    waiting: Vec<(Time, Span)>,
    launched: u64,
    ends: Vec<u64>,
}

impl LaunchFeed for RandomRequestFeed {
    fn next_wake_time(&self) -> Option<Time> {
        self.waiting.last().map(|&(at, _)| at)
    }
    fn on_wake(&mut self, now: Time, queue: &mut FeedLaunchAndRankStartRequests) {
        while let Some((_, service)) = self.waiting.pop_if(|(at, _)| *at <= now) {
            queue.begin_launch(LaunchRequest {
                program: self.program,
                tag: self.launched,
                prices: LaunchKernelDurationSource::ByClass(Arc::new([Some(service)])),
                ..LaunchRequest::default()
            });
            self.launched += 1;
        }
    }
    fn on_launch_ended(
        &mut self,
        now: Time,
        ended: &ProgramLaunchRecord,
        _: &mut FeedLaunchAndRankStartRequests,
    ) {
        assert_eq!(
            ended.tag,
            self.ends.len() as u64,
            "first come, first served"
        );
        self.ends.push(now.0);
    }
}

fn generate_timed_requests(count: u64, gap: u64, seed: u64) -> Vec<(Time, Span)> {
    let mut random = Random(seed);
    let mut at = 0;
    let mut all: Vec<_> = (0..count)
        .map(|_| {
            at += random.below(2 * gap);
            (Time(at), Span(1 + random.below(2_000_000)))
        })
        .collect();
    all.reverse();
    all
}

/// Lindley's recursion: a request's service starts when the request has arrived and the previous
/// request has ended. The mean service time is 1 us and the mean gap is 1.25 us. The NPU is
/// therefore busy for 0.8 of the time, and queues grow and become empty.
#[test]
fn requests_at_random_times_follow_lindley() {
    let workload = build_job_from_rank_nodes(&[vec![build_kernel(1)]], &[]);
    let machine = build_machine_from_dims(&[ring_dimension(2)]);
    let program = compile_replay(&workload, &machine, |_| {});
    let waiting = generate_timed_requests(100_000, 1_250_000, 1);
    let mut last = 0;
    let mut queued = 0;
    let ends = waiting.iter().rev().map(|(at, service)| {
        queued += u64::from(at.0 < last);
        last = last.max(at.0) + service.0;
        last
    });
    let ends: Vec<u64> = ends.collect();
    assert!((60_000..75_000).contains(&queued), "{queued} had to wait");
    let mut feed = RandomRequestFeed {
        program: 0,
        waiting,
        launched: 0,
        ends: Vec::new(),
    };
    let outcome = run_launches(&[program], &mut [&mut feed], None, &mut ()).unwrap();
    assert_eq!(feed.ends, ends);
    assert_eq!(outcome.nodes, 100_000);
    assert_eq!(outcome.makespan.0, ends[ends.len() - 1]);
}

/// Each NPU has one server, which takes the shortest waiting job when the previous job has ended.
#[derive(Default)]
struct ShortestJobFirstProcessor {
    waiting: Vec<ProcessorKernelJob>,
    busy: bool,
}

impl ShortestJobFirstProcessor {
    fn start_shortest_waiting_job(
        &mut self,
        now: Time,
        started: &mut Vec<ProcessorJobStartAndEnd>,
    ) {
        let waiting = self.waiting.iter().enumerate();
        let Some((place, _)) = waiting.min_by_key(|(_, job)| (job.price, job.launch)) else {
            return;
        };
        let job = self.waiting.remove(place);
        self.busy = true;
        started.push(ProcessorJobStartAndEnd {
            token: job.token,
            start: now,
            end: now + job.price,
        });
    }
}

impl SelfSchedulingProcessorModel for ShortestJobFirstProcessor {
    fn serves_program(&self, npu: Npu, _: u32) -> bool {
        npu == Npu(1)
    }
    fn submit_job(
        &mut self,
        _: Time,
        job: &ProcessorKernelJob,
        _: &mut Vec<ProcessorJobStartAndEnd>,
    ) {
        assert_eq!((job.npu, job.feed, job.program), (Npu(1), 0, 0));
        self.waiting.push(*job);
    }
    fn on_job_ended(
        &mut self,
        _: Time,
        _: &ProcessorKernelJob,
        _: &mut Vec<ProcessorJobStartAndEnd>,
    ) {
        self.busy = false;
    }
    fn settle_instant(&mut self, now: Time, started: &mut Vec<ProcessorJobStartAndEnd>) {
        if !self.busy {
            self.start_shortest_waiting_job(now, started);
        }
    }
}

/// Launches of two jobs each begin at 0, 1 and 2 us. Their jobs take 5, 3 and 1 us. The server is
/// free at 0 and takes launch 0. At 5 us, the second job of launch 0 arrives, while launches 1 and
/// 2 wait. The shortest job goes first: launch 2 twice (5-6, 6-7), then launch 1 twice (7-10,
/// 10-13), then launch 0 (13-18).
#[test]
fn processor_picks_the_shortest_waiting_job_when_a_job_ends() {
    let line: Vec<TestTraceNode> = vec![build_kernel(1), build_kernel(1).after(&[1])];
    let workload = build_job_from_rank_nodes(&[line], &[]);
    let machine = build_machine_from_dims(&[ring_dimension(2)]);
    let program = compile_replay(&workload, &machine, |_| {});
    struct ThreeLaunchFeed(u64);
    impl LaunchFeed for ThreeLaunchFeed {
        fn next_wake_time(&self) -> Option<Time> {
            (self.0 < 3).then_some(Time(self.0 * 1_000_000))
        }
        fn on_wake(&mut self, _: Time, queue: &mut FeedLaunchAndRankStartRequests) {
            let price = Some(Span::from_us([5, 3, 1][self.0 as usize]));
            queue.begin_launch(LaunchRequest {
                tag: self.0,
                npu: Some(Npu(1)),
                prices: LaunchKernelDurationSource::ByClass(Arc::new([price, price])),
                ..LaunchRequest::default()
            });
            self.0 += 1;
        }
    }
    let (mut log, mut server) = (
        JobLaunchEventLog::default(),
        ShortestJobFirstProcessor::default(),
    );
    let feeds: &mut [&mut dyn LaunchFeed] = &mut [&mut ThreeLaunchFeed(0)];
    run_launches(&[program], feeds, Some(&mut server), &mut log).unwrap();
    let us = |(tag, start, end): (u64, u64, u64)| (tag, start / 1_000_000, end / 1_000_000);
    let occupied: Vec<_> = log.occupied.iter().copied().map(us).collect();
    let expected = [
        (0, 0, 5),
        (2, 5, 6),
        (2, 6, 7),
        (1, 7, 10),
        (1, 10, 13),
        (0, 13, 18),
    ];
    assert_eq!(occupied, expected);
    let ended: Vec<_> = log
        .ended
        .iter()
        .map(|&(s, at)| (s, at / 1_000_000))
        .collect();
    assert_eq!(ended, [(2, 7), (1, 13), (0, 18)]);
}

/// A feed never releases a rank for which another rank waits. The error names both ranks with their
/// launch.
#[test]
fn stuck_launches_are_named() {
    let workload =
        build_job_from_rank_nodes(&[vec![build_send(1, 64)], vec![build_receive(0, 64)]], &[]);
    let machine = build_machine_from_dims(&[ring_dimension(2)]);
    let program = compile_replay(&workload, &machine, |_| {});
    struct UnreleasedRankLaunchFeed(bool);
    impl LaunchFeed for UnreleasedRankLaunchFeed {
        fn next_wake_time(&self) -> Option<Time> {
            (!self.0).then_some(Time(7))
        }
        fn on_wake(&mut self, _: Time, queue: &mut FeedLaunchAndRankStartRequests) {
            self.0 = true;
            queue.begin_launch(LaunchRequest::default());
            let half = queue.begin_launch(LaunchRequest {
                release: chakram::engine::LaunchRankReleaseMode::ByRank,
                ..LaunchRequest::default()
            });
            queue.request_rank_start_now(half, chakram::ids::Rank(1));
        }
    }
    let found = run_launches(
        &[program],
        &mut [&mut UnreleasedRankLaunchFeed(false)],
        None,
        &mut (),
    );
    let Err(ReplayError::Stuck(stuck)) = found else {
        panic!("expected to be stuck: {found:?}");
    };
    let text = stuck.to_string();
    let expected = "the replay deadlocked: 2 of 4 nodes completed\n  \
         launch 1 rank 0 node 1 `n1` waits for its feed to release the rank\n  \
         launch 1 rank 1 node 1 `n1` waits for 64 bytes from rank 0 with tag 0, launch 1 rank 0 node 1 `n1` is \
         ready";
    assert_eq!(text, expected);
}

/// With given launch times, the k-th launch has tag k, whatever the order of the times. Other jobs, earlier or
/// concurrent, change nothing if the jobs share no resource.
#[test]
fn launches_start_at_given_times_whatever_their_order() {
    let workload = build_job_from_rank_nodes(&[vec![build_kernel(10)]], &[]);
    let machine = build_machine_from_dims(&[ring_dimension(4)]);
    let at = |npu: u32| compile_replay(&workload, &machine, |o| o.map = Some(vec![Npu(npu)]));
    let times = || vec![Time(30 * NS), Time(0), Time(15 * NS), Time(16 * NS)];
    let mut log = JobLaunchEventLog::default();
    let mut feed = TimedLaunchFeed::new(0, times());
    run_launches(&[at(0)], &mut [&mut feed], None, &mut log).unwrap();
    // The launch at 16 waits for the one at 15, which ends at 25. The launch at 30 waits until 35.
    let ends = [(0, 10), (1, 25), (2, 35), (3, 45)].map(|(serial, at)| (serial, at * NS));
    assert_eq!(log.ended, ends);
    let mut beside = JobLaunchEventLog::default();
    let programs = [at(0), at(1)];
    let mut feeds = (
        TimedLaunchFeed::new(0, times()),
        TimedLaunchFeed::new(1, times()),
    );
    run_launches(
        &programs,
        &mut [&mut feeds.0, &mut feeds.1],
        None,
        &mut beside,
    )
    .unwrap();
    let own = |nodes: &[(u64, bool, u32, u32)], instance| -> Vec<_> {
        let own = nodes.iter().filter(|node| node.2 == instance);
        own.map(|&(at, end, _, node)| (at, end, node)).collect()
    };
    assert_eq!(own(&beside.nodes, 0), own(&log.nodes, 0));
    assert_eq!(own(&beside.nodes, 1), own(&log.nodes, 0));
}
