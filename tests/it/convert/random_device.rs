//! Tests captures of devices that are generated at random from typical situations, with known
//! truth: kernels that overlap on a stream, batches of messages in one launch, concurrent
//! collectives, communication kernels without attributes, and launches whose kernels the profiler
//! dropped. This generator shares no code with the generator of other tests.

use super::rig::{
    COLLECTIVE, ConversionResult, RECEIVE, ReplayTimesOfAllNodes, SEND, SchemaRankTrace,
    convert_folder, find_integer_attribute, on_host, read_duration_ns, replay_traces,
    thread_or_stream_of_node,
};
use chakram::engine::CommunicationDurationSource;
use chakram::workload::MissingRankPolicy;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Streams of compute kernels; the next constants are the streams of messages, of collectives, and
/// of communication without attributes.
const COMPUTE: [u64; 2] = [7, 11];
const MESSAGES: u64 = 20;
const COLLECTIVES: u64 = 21;
const UNKNOWN: u64 = 30;
/// First of the lanes for messages that are in flight at the same time as the first message of
/// their batch.
const FLIGHTS: i64 = 1000;

/// Random numbers below a bound, by xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// The true activity of a rank's device.
#[derive(Debug, Default, PartialEq)]
struct TrueActivityOfOneRankDevice {
    /// Intervals by stream, ns.
    streams: BTreeMap<u64, Vec<(u64, u64)>>,
    /// Peers and bytes of messages.
    sends: Vec<(u64, u64)>,
    receives: Vec<(u64, u64)>,
    collectives: u64,
    unknown: u64,
    unknown_ns: u64,
    dropped: u64,
    overlapping: u64,
    programmatic: u64,
    end: u64,
}

/// A rank's file under construction.
struct RankDeviceTraceFileBuilder {
    rank: u64,
    events: Vec<Value>,
    /// Current time of the rank's thread, in ns.
    now: u64,
    id: u64,
    truth: TrueActivityOfOneRankDevice,
}

/// A launch without its kernel, which is added later.
#[derive(Clone, Copy)]
struct LaunchAwaitingKernel {
    correlation: u64,
    /// The kernel's earliest start.
    ready: u64,
    extended: bool,
}

fn us_from_ns(ns: u64) -> f64 {
    ns as f64 / 1e3
}

impl RankDeviceTraceFileBuilder {
    fn new(rank: u64) -> Self {
        Self {
            rank,
            events: Vec::new(),
            now: 1_000_000 + 7_000 * rank,
            id: 1,
            truth: TrueActivityOfOneRankDevice::default(),
        }
    }

    /// Adds an event of the thread that encloses the events of `inside`, and lasts 2 µs longer.
    fn add_enclosing_host_event<T>(
        &mut self,
        cat: &str,
        name: &str,
        args: Value,
        inside: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let (from, id) = (self.now, self.id);
        self.id += 1;
        self.now += 1_000;
        let result = inside(self);
        self.now += 1_000;
        let mut event = json!({
            "ph": "X", "cat": cat, "name": name, "pid": 500 + self.rank, "tid": 500 + self.rank,
            "ts": us_from_ns(from), "dur": us_from_ns(self.now - from), "args": {"External id": id, "Record function id": id},
        });
        for (key, value) in args.as_object().into_iter().flatten() {
            event["args"][key] = value.clone();
        }
        self.events.push(event);
        self.now += 500;
        result
    }

    fn add_kernel_launch(&mut self, extended: bool) -> LaunchAwaitingKernel {
        let correlation = 10_000 + self.id;
        self.id += 1;
        let name = match extended {
            true => "cudaLaunchKernelExC",
            false => "cudaLaunchKernel",
        };
        self.events.push(json!({
            "ph": "X", "cat": "cuda_runtime", "name": name, "pid": 500 + self.rank, "tid": 500 + self.rank,
            "ts": us_from_ns(self.now), "dur": 3.0, "args": {"correlation": correlation},
        }));
        self.now += 3_000;
        LaunchAwaitingKernel {
            correlation,
            ready: self.now + 2_000,
            extended,
        }
    }

    /// Returns the end of the last kernel of a stream.
    fn end_of_last_kernel_on_stream(&self, stream: u64) -> u64 {
        let own = self.truth.streams.get(&stream);
        own.map_or(0, |own| own.iter().map(|&(_, end)| end).max().unwrap_or(0))
    }

    fn add_kernel_of_launch(
        &mut self,
        launch: LaunchAwaitingKernel,
        stream: u64,
        name: &str,
        (from, to): (u64, u64),
    ) {
        let own = self.truth.streams.entry(stream).or_default();
        if let Some(&(_, before)) = own.last()
            && before > from
        {
            self.truth.overlapping += 1;
            self.truth.programmatic += u64::from(launch.extended);
        }
        own.push((from, to));
        self.events.push(json!({
            "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": us_from_ns(from), "dur": us_from_ns(to - from),
            "args": {"correlation": launch.correlation, "stream": stream, "device": 0},
        }));
    }

    /// Adds a matrix product whose kernel may start before the previous kernel has ended.
    fn add_matrix_product(&mut self, random: &mut Random) {
        let stream = COMPUTE[random.below(2) as usize];
        let extended = random.one_in(3);
        let shapes =
            json!({"Input Dims": [[32, 256], [256, 256]], "Input type": ["float", "float"]});
        let launch = self.add_enclosing_host_event("cpu_op", "aten::mm", shapes, |file| {
            file.add_kernel_launch(extended)
        });
        let (free, lasts) = (
            self.end_of_last_kernel_on_stream(stream),
            5_000 + random.below(60_000),
        );
        let last = self
            .truth
            .streams
            .get(&stream)
            .and_then(|own| own.last().copied());
        let earliest = launch.ready.max(last.map_or(0, |(from, _)| from + 1_000));
        let from = match free.checked_sub(earliest).filter(|&room| room > 0) {
            Some(room) if extended || random.one_in(4) => free - random.below(room) - 1,
            _ => launch.ready.max(free),
        };
        self.add_kernel_of_launch(
            launch,
            stream,
            "ampere_sgemm_128x64_tn",
            (from, from + lasts),
        );
    }

    fn add_launch_without_kernel(&mut self) {
        self.add_enclosing_host_event("cpu_op", "aten::add", Value::Null, |file| {
            file.add_kernel_launch(false)
        });
        self.truth.dropped += 1;
    }

    fn add_unknown_communication_kernel(&mut self, random: &mut Random) {
        const NAMES: [&str; 4] = [
            "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
            "void deep_ep::intranode::notify_dispatch<8>(int const*)",
            "NCCLDEVKERNEL_SENDRECV",
            "void pplx::a2aDispatchSendKernel<8>(int)",
        ];
        let launch = self.add_enclosing_host_event("cpu_op", "a_library", Value::Null, |file| {
            file.add_kernel_launch(false)
        });
        let (from, lasts) = (
            launch.ready.max(self.end_of_last_kernel_on_stream(UNKNOWN)),
            3_000 + random.below(20_000),
        );
        let name = NAMES[random.below(4) as usize];
        self.add_kernel_of_launch(launch, UNKNOWN, name, (from, from + lasts));
        self.truth.unknown += 1;
        self.truth.unknown_ns += lasts;
    }

    /// Requests a message, either alone or in an operator of c10d; `old` profilers write arguments
    /// only on the operator.
    fn request_message(
        &mut self,
        random: &mut Random,
        (send, peer, bytes): (bool, u64, u64),
        world: u64,
        old: bool,
    ) {
        let ends = match send {
            true => [self.rank, peer],
            false => [peer, self.rank],
        };
        let said = json!({
            "Collective name": if send { "send" } else { "recv" }, "dtype": "Float", "In msg nelems": bytes / 4,
            "Out msg nelems": bytes / 4, "Src Rank": ends[0], "Dst Rank": ends[1], "Process Group Name": "0",
            "Group size": world,
        });
        let carried = json!({"Input Dims": [[bytes / 4]], "Input type": ["float"]});
        let range = format!(
            "nccl:{} {}->{}",
            if send { "send" } else { "recv" },
            ends[0],
            ends[1]
        );
        let record = |file: &mut Self| {
            let said = if old { Value::Null } else { said };
            file.add_enclosing_host_event("cpu_op", "record_param_comms", said, |file| {
                file.add_enclosing_host_event("user_annotation", &range, carried, |_| {});
            });
        };
        if old {
            let asked = json!({
                "Input Dims": [[[bytes / 4]], [], [], []], "Input type": ["TensorList", "", "Scalar", "Scalar"],
                "Concrete Inputs": ["", "", peer.to_string(), "0"],
            });
            let name = if send { "c10d::send" } else { "c10d::recv_" };
            self.add_enclosing_host_event("cpu_op", name, asked, record);
        } else if random.one_in(3) {
            record(self);
        } else {
            let name = if send { "c10d::send" } else { "c10d::recv_" };
            self.add_enclosing_host_event("cpu_op", name, Value::Null, record);
        }
        let own = match send {
            true => &mut self.truth.sends,
            false => &mut self.truth.receives,
        };
        own.push((peer, bytes));
    }
}

/// Sends a batch of messages between ranks. On each rank, one launch or two successive ones carry out all of its
/// messages.
fn send_message_batch(
    files: &mut [RankDeviceTraceFileBuilder],
    random: &mut Random,
    messages: &[(u64, u64, u64)],
    old: bool,
) {
    let world = files.len() as u64;
    let mut starts = vec![None; files.len()];
    for file in &mut *files {
        let mut own: Vec<(bool, u64, u64)> = Vec::new();
        for &(from, to, bytes) in messages {
            if from == file.rank {
                own.push((true, to, bytes));
            }
            if to == file.rank {
                own.push((false, from, bytes));
            }
        }
        if own.is_empty() {
            continue;
        }
        // A pair's messages keep their order, and are matched by this order.
        let sends_first = random.one_in(2);
        own.sort_by_key(|&(send, ..)| send != sends_first);
        for message in own {
            file.request_message(random, message, world, old);
        }
        let two = random.one_in(3);
        let launches = |file: &mut RankDeviceTraceFileBuilder| {
            let first = file.add_kernel_launch(true);
            (first, two.then(|| file.add_kernel_launch(true)))
        };
        let (first, second) = match random.one_in(2) {
            true => file.add_enclosing_host_event(
                "user_annotation",
                "nccl:coalesced",
                Value::Null,
                launches,
            ),
            false => launches(file),
        };
        let ready = second.map_or(first.ready, |second| second.ready);
        starts[file.rank as usize] = Some((
            first,
            second,
            ready.max(file.end_of_last_kernel_on_stream(MESSAGES)),
        ));
    }
    let start = |rank: u64| starts[rank as usize].as_ref().map_or(0, |start| start.2);
    // A message takes 1 ns per 50 bytes, starting when both ends are ready.
    let end =
        |&(from, to, bytes): &(u64, u64, u64)| start(from).max(start(to)) + 2_000 + bytes / 50;
    let ends: Vec<u64> = (0..world)
        .map(|rank| {
            let own = messages.iter().filter(|m| m.0 == rank || m.1 == rank);
            own.map(end).max().unwrap_or(0)
        })
        .collect();
    for file in files {
        let rank = file.rank as usize;
        let Some((first, second, from)) = starts[rank] else {
            continue;
        };
        let name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)";
        let middle = second.map_or(ends[rank], |_| from + (ends[rank] - from) / 2);
        file.add_kernel_of_launch(first, MESSAGES, name, (from, middle));
        if let Some(second) = second {
            file.add_kernel_of_launch(second, MESSAGES, name, (middle, ends[rank]));
        }
    }
}

/// Adds an all-reduce of all ranks, which is launched inside its record.
fn all_reduce(files: &mut [RankDeviceTraceFileBuilder], random: &mut Random) {
    let elements = 1 + random.below(1 << 20);
    let world = files.len() as u64;
    let launches: Vec<(LaunchAwaitingKernel, u64)> = files
        .iter_mut()
        .map(|file| {
            let said = json!({
                "Collective name": "allreduce", "dtype": "Float", "In msg nelems": elements,
                "Out msg nelems": elements, "Process Group Name": "0", "Group size": world,
            });
            let launch =
                file.add_enclosing_host_event("cpu_op", "c10d::allreduce_", Value::Null, |file| {
                    file.add_enclosing_host_event("cpu_op", "record_param_comms", said, |file| {
                        file.add_kernel_launch(false)
                    })
                });
            file.truth.collectives += 1;
            (
                launch,
                launch
                    .ready
                    .max(file.end_of_last_kernel_on_stream(COLLECTIVES)),
            )
        })
        .collect();
    let last = launches.iter().map(|launch| launch.1).max().unwrap_or(0);
    for (file, (launch, from)) in files.iter_mut().zip(launches) {
        let name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
        file.add_kernel_of_launch(
            launch,
            COLLECTIVES,
            name,
            (from, last + 3_000 + elements / 100),
        );
    }
}

/// Returns each rank's file, which ends with the wait for the device, and the truth.
fn finish_files_and_truths(
    files: Vec<RankDeviceTraceFileBuilder>,
) -> (Vec<String>, Vec<TrueActivityOfOneRankDevice>) {
    let world = files.len();
    let finish = |mut file: RankDeviceTraceFileBuilder| {
        let busy = file.truth.streams.values().flatten();
        let end = busy.map(|&(_, end)| end).max().unwrap_or(0);
        let end = end.max(file.now) + 5_000;
        file.truth.end = end;
        file.events.push(json!({
            "ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": 500 + file.rank,
            "tid": 500 + file.rank, "ts": us_from_ns(file.now), "dur": us_from_ns(end - file.now), "args": {"correlation": 5},
        }));
        let ranks: Vec<usize> = (0..world).collect();
        let text = json!({
            "schemaVersion": 1, "host_name": "one", "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
            "distributedInfo": {"backend": "nccl", "rank": file.rank, "world_size": world,
                "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": world, "ranks": ranks}]},
            "traceEvents": file.events,
        });
        (text.to_string(), file.truth)
    };
    files.into_iter().map(finish).unzip()
}

fn generate_random_job_with_truth(seed: u64) -> (Vec<String>, Vec<TrueActivityOfOneRankDevice>) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let world = 2 + random.below(3);
    let old = random.one_in(4);
    let mut files: Vec<RankDeviceTraceFileBuilder> =
        (0..world).map(RankDeviceTraceFileBuilder::new).collect();
    for _ in 0..4 + random.below(6) {
        for file in &mut files {
            for _ in 0..random.below(5) {
                match random.below(6) {
                    0 => file.add_launch_without_kernel(),
                    1 => file.add_unknown_communication_kernel(&mut random),
                    _ => file.add_matrix_product(&mut random),
                }
            }
        }
        if random.one_in(3) {
            all_reduce(&mut files, &mut random);
        } else {
            // Each rank sends up to two messages, to its neighbours or to farther ranks.
            let mut messages = Vec::new();
            for from in 0..world {
                for _ in 0..random.below(3) {
                    let to = (from + 1 + random.below(world - 1)) % world;
                    messages.push((from, to, 4 * (1 + random.below(1 << 20))));
                }
            }
            send_message_batch(&mut files, &mut random, &messages, old);
        }
    }
    finish_files_and_truths(files)
}

/// Merges intervals that overlap or touch, and drops empty intervals.
fn merge_intervals(mut intervals: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    intervals.retain(|(from, to)| from < to);
    intervals.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (from, to) in intervals {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

/// Returns the intervals of each stream in a replay, in ns.
fn list_replayed_stream_intervals(
    trace: &SchemaRankTrace,
    log: &[(u64, u64)],
) -> BTreeMap<u64, Vec<(u64, u64)>> {
    let mut streams: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for (node, &(from, to)) in trace.nodes.iter().zip(log) {
        // Keep only compute and communication nodes that do not run on the host.
        if node.r#type < 4 || on_host(node) {
            continue;
        }
        let stream = match thread_or_stream_of_node(node) {
            lane if lane >= FLIGHTS => MESSAGES,
            lane => lane as u64,
        };
        let own = streams.entry(stream).or_default();
        own.push((from / 1000, to / 1000));
    }
    streams
}

fn convert_kineto_texts(texts: &[String]) -> ConversionResult {
    let folder = tempfile::tempdir().expect("there is room");
    for (rank, text) in texts.iter().enumerate() {
        let path = folder.path().join(format!("kineto.{rank}.json"));
        std::fs::write(path, text).expect("there is room");
    }
    convert_folder(folder.path())
}

fn replay_as_captured(job: &ConversionResult) -> ReplayTimesOfAllNodes {
    replay_traces(
        &job.traces,
        CommunicationDurationSource::Captured,
        |_| 0,
        MissingRankPolicy::Refuse,
    )
}

#[test]
fn nothing_that_a_device_did_is_lost_or_called_something_else() {
    let mut all = TrueActivityOfOneRankDevice::default();
    for seed in 1..=60 {
        let (texts, truths) = generate_random_job_with_truth(seed);
        let job = convert_kineto_texts(&texts);
        let log = replay_as_captured(&job);
        // Every rank ends by waiting for its device, and the job begins with the first event of the first rank.
        let origin = truths[0].end - job.traces[0].captured_ns();
        for (rank, truth) in truths.iter().enumerate() {
            let at = format!("seed {seed}, rank {rank}");
            let (trace, found) = (&job.traces[rank], &job.summary.ranks[rank]);
            let streams = list_replayed_stream_intervals(trace, &log.0[rank]);
            for (stream, intervals) in &truth.streams {
                let moved = intervals
                    .iter()
                    .map(|&(from, to)| (from - origin, to - origin));
                let (expected, own) = (
                    merge_intervals(moved.collect()),
                    merge_intervals(streams[stream].clone()),
                );
                assert_eq!(own, expected, "{at}, stream {stream}");
            }
            assert_eq!(streams.len(), truth.streams.len(), "{at}");
            let of_type = |kind| trace.nodes.iter().filter(move |node| node.r#type == kind);
            let messages = |kind, end: &str| {
                let pair = |node| {
                    let value = |name| find_integer_attribute(node, name).expect(name) as u64;
                    (value(end), value("comm_size"))
                };
                let mut list: Vec<(u64, u64)> = of_type(kind).map(pair).collect();
                list.sort_unstable();
                list
            };
            let sorted = |list: &Vec<(u64, u64)>| {
                let mut list = list.clone();
                list.sort_unstable();
                list
            };
            assert_eq!(messages(SEND, "comm_dst"), sorted(&truth.sends), "{at}");
            assert_eq!(
                messages(RECEIVE, "comm_src"),
                sorted(&truth.receives),
                "{at}"
            );
            assert_eq!(
                of_type(COLLECTIVE).count() as u64,
                truth.collectives,
                "{at}"
            );
            let unknown = || {
                let nodes = trace.nodes.iter();
                nodes.filter(|node| find_integer_attribute(node, "comm_unknown") == Some(1))
            };
            assert_eq!(unknown().count() as u64, truth.unknown, "{at}");
            assert_eq!(
                unknown().map(read_duration_ns).sum::<u64>(),
                truth.unknown_ns,
                "{at}"
            );
            assert_eq!(
                (found.unknown_comm, found.unknown_comm_ns),
                (truth.unknown, truth.unknown_ns),
                "{at}"
            );
            assert_eq!(found.dropped, truth.dropped, "{at}");
            assert_eq!(found.never_ran, [""; 0], "{at}");
            let overlaps = found.overlaps;
            assert_eq!(
                (overlaps.events, overlaps.programmatic),
                (truth.overlapping, truth.programmatic),
                "{at}"
            );
            all.unknown += truth.unknown;
            all.dropped += truth.dropped;
            all.programmatic += truth.programmatic;
            all.overlapping += truth.overlapping;
            all.collectives += truth.collectives;
            all.sends.extend(&truth.sends);
        }
    }
    println!(
        "{} messages, {} parts of collectives, {} unknown, {} dropped, {} overlaps, {} of them programmatic",
        all.sends.len(),
        all.collectives,
        all.unknown,
        all.dropped,
        all.overlapping,
        all.programmatic
    );
    let made = [
        all.sends.len() as u64,
        all.collectives,
        all.unknown,
        all.dropped,
        all.programmatic,
        all.overlapping - all.programmatic,
    ];
    assert!(
        made.iter().all(|&count| count > 20),
        "every situation is made: {made:?}"
    );
}

/// Stage 0 sends two tensors to stage 1, and stage 1 sends two to stage 2. So a delay of one stage
/// also delays the next stage.
#[test]
fn a_delay_of_a_pipeline_stage_moves_the_next() {
    const LATE: u64 = 1_000_000;
    let mut random = Random(77);
    let mut files: Vec<RankDeviceTraceFileBuilder> =
        (0..3).map(RankDeviceTraceFileBuilder::new).collect();
    send_message_batch(
        &mut files,
        &mut random,
        &[(0, 1, 400_000), (0, 1, 800_000)],
        false,
    );
    send_message_batch(
        &mut files,
        &mut random,
        &[(1, 2, 400_000), (1, 2, 800_000)],
        false,
    );
    let (texts, _) = finish_files_and_truths(files);
    let job = convert_kineto_texts(&texts);
    let ends = |late: fn(u32) -> u64| {
        replay_traces(
            &job.traces,
            CommunicationDurationSource::Recorded,
            late,
            MissingRankPolicy::Refuse,
        )
        .last_node_end_of_each_rank_ns()
    };
    let before = ends(|_| 0);
    for (end, trace) in before.iter().zip(&job.traces) {
        assert_eq!(*end, trace.captured_ns(), "rank {}", trace.rank);
    }
    let after = ends(|rank| if rank == 0 { LATE } else { 0 });
    for (rank, (before, after)) in before.iter().zip(&after).enumerate() {
        // Stage 1 starts 7 us later than stage 0, and its kernel waits for stage 0's kernel. Stage 2 depends on stage 1
        // in the same way.
        let moved = after - before;
        assert!(
            moved <= LATE && moved + 10_000 >= LATE,
            "rank {rank} moved by {moved} ns"
        );
    }
}

/// The profiler dropped the second of three collectives on one rank. The first and the third do not change on any rank,
/// and the second keeps its time on the other ranks.
#[test]
fn collectives_match_around_a_dropped_kernel() {
    let mut random = Random(5);
    let mut files: Vec<RankDeviceTraceFileBuilder> =
        (0..3).map(RankDeviceTraceFileBuilder::new).collect();
    for _ in 0..3 {
        all_reduce(&mut files, &mut random);
    }
    let second = files[1]
        .truth
        .streams
        .get_mut(&COLLECTIVES)
        .expect("there are three");
    second.remove(1);
    let kernels = |event: &Value| event["cat"] == "kernel";
    let places = files[1].events.iter().enumerate();
    let places: Vec<usize> = places
        .filter(|(_, event)| kernels(event))
        .map(|(i, _)| i)
        .collect();
    files[1].events.remove(places[1]);
    let (texts, truths) = finish_files_and_truths(files);
    let job = convert_kineto_texts(&texts);
    assert_eq!(job.summary.collectives["all-reduce"], 2);
    assert_eq!(
        job.summary
            .ranks
            .iter()
            .map(|rank| rank.dropped)
            .sum::<u64>(),
        1
    );
    let log = replay_as_captured(&job);
    for (rank, truth) in truths.iter().enumerate() {
        let origin = truths[0].end - job.traces[0].captured_ns();
        let moved = truth.streams[&COLLECTIVES]
            .iter()
            .map(|&(from, to)| (from - origin, to - origin));
        let own = list_replayed_stream_intervals(&job.traces[rank], &log.0[rank]);
        assert_eq!(
            merge_intervals(own[&COLLECTIVES].clone()),
            merge_intervals(moved.collect()),
            "rank {rank}"
        );
        let of_type = |kind| {
            job.traces[rank]
                .nodes
                .iter()
                .filter(move |node| node.r#type == kind)
        };
        assert_eq!(of_type(COLLECTIVE).count(), 2);
    }
}

/// An all-reduce that is known only by its name belongs to the only group with several members. With several such
/// groups, its group is unknown.
#[test]
fn kernels_that_their_name_tells_have_a_group_only_if_there_is_one() {
    for (tensor_parallel, collectives) in [(4_u64, 1), (2, 0)] {
        let mut files: Vec<RankDeviceTraceFileBuilder> =
            (0..4).map(RankDeviceTraceFileBuilder::new).collect();
        for file in &mut files {
            let launch =
                file.add_enclosing_host_event("cpu_op", "a_library", Value::Null, |file| {
                    file.add_kernel_launch(false)
                });
            let name =
                "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, int)";
            let at = (launch.ready, 1_100_000);
            file.add_kernel_of_launch(launch, UNKNOWN, name, at);
        }
        let (texts, _) = finish_files_and_truths(files);
        let texts: Vec<String> = texts
            .iter()
            .zip(0_u64..)
            .map(|(text, rank)| {
                let mut file: Value = serde_json::from_str(text).expect("it is JSON");
                let first = rank / tensor_parallel * tensor_parallel;
                let members: Vec<u64> = (first..first + tensor_parallel).collect();
                file["distributedInfo"]["pg_config"] = json!([
                    {"pg_name": "0", "pg_size": 4, "ranks": [0, 1, 2, 3]},
                    {"pg_name": "1", "pg_desc": "tp", "pg_size": tensor_parallel, "ranks": members},
                    {"pg_name": "2", "pg_desc": "pp", "pg_size": 1, "ranks": [rank]},
                ]);
                file.to_string()
            })
            .collect();
        let job = convert_kineto_texts(&texts);
        let found: u64 = job.summary.collectives.values().sum();
        assert_eq!(found, collectives, "tensor parallel {tensor_parallel}");
        for trace in &job.traces {
            let unknown = trace
                .nodes
                .iter()
                .filter(|node| find_integer_attribute(node, "comm_unknown") == Some(1));
            assert_eq!(unknown.count() as u64, 1 - collectives);
        }
    }
}

/// If launches have no recorded kernels, no host time becomes compute.
#[test]
fn launches_without_kernels_do_not_turn_host_time_into_compute() {
    let mut files: Vec<RankDeviceTraceFileBuilder> = vec![RankDeviceTraceFileBuilder::new(0)];
    for _ in 0..20 {
        files[0].add_launch_without_kernel();
    }
    let job = convert_kineto_texts(&finish_files_and_truths(files).0);
    assert!(!job.summary.host_computes);
    assert_eq!(job.summary.ranks[0].dropped, 20);
    assert!(job.traces[0].nodes.iter().skip(1).all(on_host));
}
