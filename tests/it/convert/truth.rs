//! Compares the converted captures of generated jobs with the truth.

use super::rig::{
    self, COLLECTIVE, RECEIVE, SEND, SchemaRankTrace, convert_folder, find_integer_attribute,
    find_text_attribute, on_host, read_delay_ns, read_duration_ns, read_wait_ns,
    thread_or_stream_of_node, write_generated_capture,
};
use super::schedule::compute_node_schedule;
use crate::corpus::pick_member_of_each_list_by_turn;
use chakram::trace::CollectiveKind;
use std::collections::BTreeMap;
use testkit::capture::{
    CommunicationTrueTimes, CommunicationWaiterKind, Device, JobParallelism, JobTrueTimes,
    LaunchOrKernelBound, Options,
};

/// Time from the end of an awaited event until the waiting thread runs again: `WAKE` of the
/// generator.
const WAKE: u64 = 10_000;

/// Time from the start of a straggler's operator to the annotation of its message.
const OPENING: u64 = 3_200;

/// Waits that are shorter than this time may count as host time.
const SHORT: u64 = 40_000;

/// Jobs with every feature. By default, there is one job for each program, beginning with the
/// program at index `turn`. Another seed gives other times but the same program, so one seed is
/// enough for a run of all tests.
pub fn list_generated_jobs(turn: usize) -> Vec<(String, Options)> {
    let mut programs = Vec::new();
    for (device, style) in [
        (Device::Cpu, JobParallelism::Ddp),
        (Device::Cpu, JobParallelism::Functional),
        (Device::Cuda, JobParallelism::Ddp),
        (Device::Cuda, JobParallelism::Functional),
        (Device::Cpu, JobParallelism::Pipeline),
    ] {
        let mut jobs = Vec::new();
        let plain = Options::new(device, style, 4);
        let with = |what: &str, options: Options| (format!("{device:?} {style:?} {what}"), options);
        let steps = Options {
            steps: 3,
            ..plain.clone()
        };
        jobs.push(with("steps", steps));
        let straggler = Options {
            stragglers: vec![(2, 1500)],
            bound: LaunchOrKernelBound::Launch,
            ..plain.clone()
        };
        jobs.push(with("straggler", straggler));
        if style != JobParallelism::Pipeline {
            let tensor_parallel = Options {
                tensor_parallel: 2,
                bucket: 1 << 18,
                ..plain
            };
            jobs.push(with("tp", tensor_parallel));
        }
        programs.push(jobs);
    }
    pick_member_of_each_list_by_turn(turn, programs)
}

/// Returns the start of the job, which is time 0 of the replay.
pub fn find_job_start(truth: &JobTrueTimes) -> u64 {
    truth.ranks.iter().map(|rank| rank.first_ns).min().unwrap()
}

/// Returns, in order, the nodes of rank `r`'s collectives in `group`, or of its messages in one
/// direction.
fn find_nodes_of_one_group_or_message_pair<'t>(
    trace: &'t SchemaRankTrace,
    meeting: &CommunicationTrueTimes,
) -> Vec<(usize, &'t chakram::internals::proto::Node)> {
    let is = |node: &chakram::internals::proto::Node| {
        if on_host(node) {
            return false;
        }
        let other = |name| find_integer_attribute(node, name) == Some(i64::from(meeting.ranks[1]));
        match (meeting.kind.as_str(), node.r#type) {
            ("message", SEND) => trace.rank == meeting.ranks[0] && other("comm_dst"),
            ("message", RECEIVE) => {
                trace.rank == meeting.ranks[1]
                    && find_integer_attribute(node, "comm_src") == Some(i64::from(meeting.ranks[0]))
            }
            ("message", _) => false,
            (_, COLLECTIVE) => find_text_attribute(node, "pg_name").unwrap_or("0") == meeting.group,
            _ => false,
        }
    };
    trace
        .nodes
        .iter()
        .enumerate()
        .filter(|(_, n)| is(n))
        .collect()
}

/// Returns a node's expected `comm_size`, if the member's larger buffer has `bytes` bytes.
fn expected_comm_size(kind: &str, bytes: u64, members: u64) -> u64 {
    match kind {
        "all-gather" => bytes / members,
        _ => bytes,
    }
}

#[test]
fn every_converted_call_matches_the_captured_call_and_its_duration() {
    for (what, options) in list_generated_jobs(0) {
        let captured = write_generated_capture(&options);
        let job = convert_folder(captured.folder.path());
        let times = compute_node_schedule(&job.traces, |_| 0);
        let origin = find_job_start(&captured.truth);
        let mut found = 0;
        for meeting in &captured.truth.collectives {
            let last = meeting.members.iter().map(|m| m.start_ns).max().unwrap();
            for member in &meeting.members {
                let r = member.rank as usize;
                let trace = &job.traces[r];
                let calls = find_nodes_of_one_group_or_message_pair(trace, meeting);
                let (n, node) = calls[meeting.sequence as usize];
                let at = format!(
                    "{what}: {} {} of rank {r}, `{}`",
                    meeting.kind, meeting.sequence, node.name
                );
                found += 1;
                // The root of a broadcast waits for all members, and the other members wait only
                // for the root.
                let root = (meeting.kind == "broadcast").then(|| &meeting.members[0]);
                let needed = match root {
                    Some(root) if root.rank != member.rank => root.start_ns.max(member.start_ns),
                    _ => last,
                };
                let start = times[r][n].0;
                if meeting.kind == "message" {
                    // A message starts with its operator, which is a little before its annotation. If no host call
                    // waited for a message's end, the message's transfer time comes from other messages.
                    let early = (member.start_ns - origin).checked_sub(start);
                    assert!(
                        early.is_some_and(|ns| ns <= OPENING),
                        "{at}: early by {early:?}"
                    );
                    let off = read_wait_ns(node).abs_diff(needed - member.start_ns);
                    assert!(off <= OPENING, "{at}: wait off by {off}");
                    let off = read_duration_ns(node).abs_diff(member.end_ns - needed);
                    assert!(
                        off <= OPENING + u64::from(options.jitter),
                        "{at}: transfer off by {off}"
                    );
                    let bytes = find_integer_attribute(node, "comm_size");
                    assert_eq!(bytes, Some(meeting.bytes as i64), "{at}");
                    continue;
                }
                assert_eq!(start, member.start_ns - origin, "{at}: start");
                assert_eq!(read_wait_ns(node), needed - member.start_ns, "{at}: wait");
                assert_eq!(
                    read_duration_ns(node),
                    member.end_ns - needed,
                    "{at}: transfer"
                );
                assert_eq!(times[r][n].1, member.end_ns - origin, "{at}: end");
                let kind = find_integer_attribute(node, "comm_type").unwrap() as usize;
                let kind = CollectiveKind::ALL
                    .iter()
                    .find(|(_, _, code)| *code as usize == kind);
                assert_eq!(kind.unwrap().1, meeting.kind, "{at}");
                let members = meeting.ranks.len() as u64;
                let bytes = expected_comm_size(&meeting.kind, meeting.bytes, members);
                assert_eq!(
                    find_integer_attribute(node, "comm_size"),
                    Some(bytes as i64),
                    "{at}: bytes"
                );
                if let Some(root) = root {
                    assert_eq!(
                        find_integer_attribute(node, "comm_root"),
                        Some(i64::from(root.rank)),
                        "{at}"
                    );
                }
            }
        }
        let communicates = |n: &&chakram::internals::proto::Node| {
            (SEND..=COLLECTIVE).contains(&n.r#type) && !on_host(n)
        };
        let all: usize = job
            .traces
            .iter()
            .map(|t| t.nodes.iter().filter(communicates).count())
            .sum();
        assert_eq!(all, found, "{what}: nothing else communicates");
        for group in &job.summary.groups {
            let truth = captured
                .truth
                .collectives
                .iter()
                .find(|m| m.group == group.name && m.kind != "message");
            if let Some(truth) = truth {
                assert_eq!(group.ranks, truth.ranks, "{what}");
            }
        }
    }
}

#[test]
fn converted_counts_equal_true_counts() {
    for (what, options) in list_generated_jobs(1) {
        let captured = write_generated_capture(&options);
        let job = convert_folder(captured.folder.path());
        for (truth, found) in captured.truth.ranks.iter().zip(&job.summary.ranks) {
            let (collectives, sends, receives) = found.calls;
            let flights = match options.device {
                Device::Cpu => collectives + sends + receives,
                Device::Cuda => 0,
            };
            assert_eq!(
                (collectives, sends, receives),
                (truth.collectives, truth.sends, truth.receives),
                "{what}"
            );
            assert_eq!(
                found.operators + found.annotations + flights,
                truth.host_ops,
                "{what}"
            );
            assert_eq!(found.runtime, truth.runtime_calls, "{what}");
            assert_eq!(found.device, truth.kernels + truth.copies, "{what}");
            assert_eq!(found.never_ran, [""; 0], "{what}");
            assert_eq!(
                found.found.cut, 0,
                "{what}: causes never contradict the times"
            );
        }
        assert!(job.summary.alone.is_empty(), "{what}");
        assert_eq!(job.summary.odd.early, 0, "{what}");
        let captured_ns = captured
            .truth
            .ranks
            .iter()
            .map(|r| r.last_ns - find_job_start(&captured.truth));
        let found: Vec<u64> = job
            .traces
            .iter()
            .map(SchemaRankTrace::captured_ns)
            .collect();
        assert_eq!(found, captured_ns.collect::<Vec<_>>(), "{what}");
    }
}

/// A thread's host time is its total time minus the time in which it was blocked.
#[test]
fn no_delay_of_the_host_contains_waiting() {
    for (what, options) in list_generated_jobs(1)
        .into_iter()
        .filter(|(_, o)| o.device == Device::Cpu)
    {
        let captured = write_generated_capture(&options);
        let truth = &captured.truth;
        let job = convert_folder(captured.folder.path());
        for (rank, trace) in truth.ranks.iter().zip(&job.traces) {
            let own: u64 = trace
                .nodes
                .iter()
                .filter(|n| thread_or_stream_of_node(n) == 1)
                .map(|n| read_duration_ns(n) + read_delay_ns(n))
                .sum();
            let members = truth.collectives.iter().flat_map(|m| &m.members);
            let waited: Vec<u64> = members
                .filter(|m| m.rank == rank.rank)
                .filter_map(|m| m.waited.map(|w| w.until_ns - WAKE - w.from_ns))
                .collect();
            let blocked: u64 = waited.iter().sum();
            let expected = rank.steps.last().unwrap()[1] - find_job_start(truth) - blocked;
            let off = expected.abs_diff(own);
            // Captures do not distinguish blocking from a thread's work right before it, or a short wait from Python
            // time.
            println!(
                "{what} rank {}: host {expected}, found {own}, {} waits of {blocked}, off {off}",
                rank.rank,
                waited.len()
            );
            assert!(
                off <= SHORT * waited.len() as u64,
                "{what} rank {}: {expected} of the host, {own} found",
                rank.rank
            );
            let longest = trace
                .nodes
                .iter()
                .filter(|n| on_host(n))
                .map(read_delay_ns)
                .max();
            println!("  longest delay of the host {longest:?}");
        }
    }
}

/// A device may be late by at most the launch, the gap of a stream, or the host's own time.
#[test]
fn no_delay_of_a_device_contains_waiting() {
    for (what, options) in list_generated_jobs(2)
        .into_iter()
        .filter(|(_, o)| o.device == Device::Cuda)
    {
        let captured = write_generated_capture(&options);
        let job = convert_folder(captured.folder.path());
        for trace in &job.traces {
            let mut longest: BTreeMap<(bool, i64), (u64, &str)> = BTreeMap::new();
            for node in trace.nodes.iter().skip(2) {
                let slot = longest
                    .entry((on_host(node), thread_or_stream_of_node(node)))
                    .or_default();
                *slot = (*slot).max((read_delay_ns(node), &node.name));
            }
            println!("{what} rank {}: {longest:?}", trace.rank);
            for ((host, lane), (ns, name)) in longest {
                // On the host, the limit covers Python and the ends of nested operators. On
                // streams, it covers the launch and its latency.
                let most = if host { 60_000 } else { 12_000 };
                assert!(
                    ns <= most,
                    "{what} rank {} lane {lane}: {ns} before `{name}`",
                    trace.rank
                );
            }
        }
        let waits = captured.truth.collectives.iter().flat_map(|m| &m.members);
        let streams = waits
            .filter(|m| {
                m.waited
                    .is_some_and(|w| w.by == CommunicationWaiterKind::Stream)
            })
            .count();
        assert!(streams > 0, "{what}: streams wait in these jobs");
    }
}

/// Estimated clocks deviate by at most this number of ns, because the ends of collectives differ by
/// the jitter.
#[test]
fn skewed_clocks_of_ranks_are_corrected() {
    const NOISE: i64 = 500_000;
    for (what, options) in list_generated_jobs(2) {
        for skew in [5_000_000, 4_000_000_000] {
            let options = Options {
                clock_skew: skew,
                ..options.clone()
            };
            let captured = write_generated_capture(&options);
            let job = convert_folder(captured.folder.path());
            for (truth, found) in captured.truth.ranks.iter().zip(&job.summary.ranks) {
                let offset = found.offset;
                let off = offset.applied + truth.clock_offset_ns;
                let jitter = 3 * i64::from(options.jitter);
                let at = format!(
                    "{what}: rank {} is {} off: {offset:?}",
                    truth.rank, truth.clock_offset_ns
                );
                if options.style == JobParallelism::Pipeline {
                    // Messages give bounds between neighbours, and these bounds add up along the
                    // chain.
                    let width: i64 = job
                        .summary
                        .ranks
                        .iter()
                        .skip(1)
                        .map(|r| r.offset.bounds.1 - r.offset.bounds.0)
                        .sum();
                    assert!(off.abs() <= width, "{at}");
                    println!("{at}: {off} of {width}");
                } else if truth.clock_offset_ns.abs() > NOISE {
                    assert!(off.abs() <= jitter, "{at}: wrong by {off}");
                }
            }
            let log = rig::replay_traces(
                &job.traces,
                chakram::engine::CommunicationDurationSource::Recorded,
                |_| 0,
                chakram::workload::MissingRankPolicy::Refuse,
            );
            for (end, trace) in log.last_node_end_of_each_rank_ns().iter().zip(&job.traces) {
                let captured = trace.captured_ns();
                assert!(
                    end.abs_diff(captured) * 20 <= captured,
                    "{what}: {end} instead of {captured}"
                );
            }
        }
    }
}
