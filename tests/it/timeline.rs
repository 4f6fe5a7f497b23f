//! Parses the timeline and tests that every node is a slice, that slices of a track do not overlap,
//! and that every arrow has both ends.

use super::commands::run_chakram;
use super::physics::lines::{build_collective, build_kernel, build_receive, build_send};
use super::physics::rig::build_job_from_rank_nodes;
use chakram::engine::{
    CommunicationDurationSource, CompiledReplay, KernelDurationSource, ReplayOptions,
};
use chakram::generate::{
    CheckedWorkloadPattern, DataParallelTrainingJobParameters, P2pPattern, TrafficPattern,
    WorkloadPattern,
};
use chakram::ids::Rank;
use chakram::machine::Machine;
use chakram::report::{TimelineFormat, TimelineSelection, TimelineWriter, replay_to_report};
use chakram::trace::{CollectiveKind, NodeView, Op, Sink};
use chakram::units::{Span, Time};
use chakram::workload::{
    EnforcedDependencyKinds, GraphBuilder, MissingRankPolicy, Workload, WorkloadBuilder,
};
use serde_json::Value;
use std::collections::BTreeMap;

mod perfetto;

fn draw_pattern_events(pattern: WorkloadPattern) -> Vec<Value> {
    let workload = CheckedWorkloadPattern::new(pattern)
        .unwrap()
        .build_workload()
        .unwrap();
    draw_timeline_events(&workload, &ReplayOptions::default())
}

/// Returns the timeline in `format`, and the replay's number of nodes.
fn replay_to_timeline_and_node_count(
    workload: &Workload,
    options: &ReplayOptions,
    format: TimelineFormat,
    selection: TimelineSelection,
) -> (Vec<u8>, u64) {
    let machine = Machine::load_preset("dgx-h100").unwrap();
    let prepared = CompiledReplay::new(workload, &machine, options).unwrap();
    let timeline = TimelineWriter::new(&prepared, Vec::new(), format, selection);
    let (report, timeline) = replay_to_report(&prepared, timeline).unwrap();
    (timeline.finish_timeline().unwrap(), report.outcome.nodes)
}

fn draw_timeline_events(workload: &Workload, options: &ReplayOptions) -> Vec<Value> {
    let all = TimelineSelection::default();
    let (file, count) =
        replay_to_timeline_and_node_count(workload, options, TimelineFormat::Chrome, all);
    let parsed: Value = serde_json::from_slice(&file).unwrap();
    let events = parsed["traceEvents"].as_array().unwrap().clone();
    let ranks = workload.rank_count_including_untraced();
    let nodes = events
        .iter()
        .filter(|event| node_id_of_drawn_event(event).is_some());
    // The critical path is a separate process after the ranks.
    let nodes = nodes.filter(|event| event["pid"].as_u64() < Some(ranks.into()));
    assert_eq!(nodes.count() as u64, count, "every node is drawn");
    events
}

/// Returns the node of an event: a node is drawn as a slice, or as an instant if it takes no time.
fn node_id_of_drawn_event(event: &Value) -> Option<u64> {
    let drawn = event["ph"] == "B" || event["ph"] == "i";
    drawn.then(|| event["args"]["node"].as_u64()).flatten()
}

/// Checks slices as viewers compute them. Speedscope subtracts the trace's start, using doubles in microseconds.
/// Perfetto rounds to nanoseconds; earlier versions truncated.
fn check_slices_as_viewers_round_them(events: &[Value]) {
    check_slices_nest_without_overlap(events, |ts| ts);
    let first = events.iter().filter_map(|event| event["ts"].as_f64());
    let first = first.fold(f64::INFINITY, f64::min);
    check_slices_nest_without_overlap(events, |ts| ts - first);
    check_slices_nest_without_overlap(events, |ts| (ts * 1000.0).trunc());
    check_slices_nest_without_overlap(events, |ts| (ts * 1000.0).round());
}

/// Checks that no slice of a track overlaps the next, and that path slices enclose the slices below
/// them.
fn check_slices_nest_without_overlap(events: &[Value], seen: impl Fn(f64) -> f64) {
    let mut tracks: BTreeMap<(u64, u64), Vec<&Value>> = BTreeMap::new();
    for event in events {
        match event["ph"].as_str().unwrap() {
            "B" | "E" => {
                let key = (
                    event["pid"].as_u64().unwrap(),
                    event["tid"].as_u64().unwrap(),
                );
                tracks.entry(key).or_default().push(event);
            }
            // Viewers round these slices' durations separately from their starts, and sort by the rounded values.
            phase => assert_ne!(phase, "X", "{event}"),
        }
    }
    for (track, slices) in tracks {
        let named =
            |e: &&Value| e["name"] == "thread_name" && e["pid"] == track.0 && e["tid"] == track.1;
        assert_eq!(
            events.iter().filter(named).count(),
            1,
            "{track:?} has a name"
        );
        // Events are in file order, which viewers keep for events of one instant.
        let (mut open, mut now) = (Vec::new(), 0.0);
        for slice in slices {
            let ts = slice["ts"].as_f64().unwrap();
            assert!(now <= seen(ts), "{track:?}: {slice} is before {now}");
            now = seen(ts);
            if slice["ph"] == "B" {
                open.push(slice);
                continue;
            }
            let begin = open.pop().unwrap_or_else(|| panic!("{track:?}: {slice}"));
            assert_eq!(begin["name"], slice["name"], "{track:?}");
            assert_eq!(begin["args"], slice["args"], "Speedscope matches by both");
            let lasts = begin["ts"].as_f64() < slice["ts"].as_f64();
            assert!(lasts, "{track:?}: {begin} lasts no time");
        }
        assert!(open.is_empty(), "{track:?}: {open:?} has no end");
    }
}

#[test]
fn training_is_drawn_with_named_collectives() {
    let events = draw_pattern_events(WorkloadPattern::DataParallel(
        DataParallelTrainingJobParameters {
            layers: 3,
            ..DataParallelTrainingJobParameters::new(4)
        },
    ));
    check_slices_as_viewers_round_them(&events);
    // The gradients have 2 h^2 * 12 bytes with h = 4096, which are 402,653,184 B.
    let wanted = "all-reduce of 402.7 MB, all 4 ranks, ring 4 (nvlink)";
    let drawn = events
        .iter()
        .filter(|event| event["ph"] == "B" && event["name"] == wanted)
        .count();
    assert_eq!(drawn, 3 * 4, "one for each layer and rank");
}

/// Returns a job of successive kernels that belong to two steps' paths. Their durations are not whole nanoseconds, and
/// the middle kernel's is 0.
fn build_fractional_ns_job() -> Workload {
    let mut builder = WorkloadBuilder::default();
    let mut graph = GraphBuilder::new(0, EnforcedDependencyKinds::Both, 10);
    for id in 0..600 {
        let name = format!("step{}/layer{}/gemm", id / 300, id / 7 % 5);
        let kernel = NodeView {
            recorded: Span(if id % 11 == 0 {
                0
            } else {
                1 + id * 997 % 40_009
            }),
            ..NodeView::new(
                id,
                &name,
                Op::Compute {
                    flops: 1000 + id,
                    bytes: 7,
                    dtype: None,
                },
            )
        };
        let before = id.checked_sub(1);
        graph.receive_node(&kernel, before.as_slice()).unwrap();
    }
    let (graph, binding) = graph.finish_graph().unwrap();
    let graph = builder.add_or_reuse_equal_graph(graph);
    builder
        .add_rank(Rank(0), graph, binding, Time(123_457))
        .unwrap();
    builder
        .finish_workload(None, MissingRankPolicy::Refuse)
        .unwrap()
}

#[test]
fn slices_of_fractional_nanoseconds_meet_and_nest() {
    let events = draw_timeline_events(&build_fractional_ns_job(), &ReplayOptions::default());
    check_slices_as_viewers_round_them(&events);
    let phase = |phase: &str, name: &str| {
        let of = events
            .iter()
            .filter(|e| e["ph"] == phase && e["name"] == name);
        of.map(|e| e["ts"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    // Each of two steps has one enclosing slice and one instant.
    assert_eq!(phase("B", "step0").len() + phase("B", "step1").len(), 2);
    assert_eq!(phase("i", "step 1").len(), 1);
    assert_eq!(phase("B", "step1"), phase("E", "step0"));
    let with_flops = events.iter().find(|e| e["args"]["node"] == 8).unwrap();
    assert_eq!(
        (&with_flops["args"]["flops"], &with_flops["args"]["bytes"]),
        (&1008.into(), &7.into())
    );
    assert_eq!(with_flops["name"], "gemm");
}

#[test]
fn messages_are_drawn_with_arrows() {
    for traffic in [
        TrafficPattern::Ring,
        TrafficPattern::Incast,
        TrafficPattern::PingPong,
    ] {
        let events = draw_pattern_events(WorkloadPattern::P2p(P2pPattern {
            count: 5,
            ..P2pPattern::new(traffic, 1 << 20, 6)
        }));
        check_slices_as_viewers_round_them(&events);
        let mut ends: BTreeMap<u64, Vec<(String, f64)>> = BTreeMap::new();
        for event in events.iter().filter(|event| event["cat"] == "message") {
            let phase = event["ph"].as_str().unwrap().to_owned();
            let at = event["ts"].as_f64().unwrap();
            ends.entry(event["id"].as_u64().unwrap())
                .or_default()
                .push((phase, at));
        }
        let sent = |event: &&Value| event["ph"] == "B" && event["cat"] == "send";
        let messages = events.iter().filter(sent).count();
        assert_eq!(ends.len(), messages);
        for (id, mut ends) in ends {
            ends.sort_by(|a, b| b.0.cmp(&a.0));
            assert!(
                matches!(&ends[..], [(s, from), (f, to)] if s == "s" && f == "f" && from <= to),
                "arrow {id}: {ends:?}"
            );
        }
        // Viewers draw an arrow to the start of the slice that it enters, so this must not be the slice of the whole
        // receive.
        let entered = events.iter().filter(|event| event["ph"] == "f");
        for arrow in entered {
            let own = |event: &&Value| {
                ["pid", "tid", "ts"]
                    .iter()
                    .all(|key| event[key] == arrow[key])
            };
            let mut here = events.iter().filter(own);
            assert!(
                here.any(|event| event["ph"] == "B" && event["name"] == "arrival"),
                "{arrow} enters no arrival"
            );
        }
    }
}

/// On each rank, two kernels of 10 and 20 us are ready at 0 and share a lane, and an all-reduce of 8 MB follows them.
fn build_job_of_two_kernels_and_all_reduce(ranks: usize) -> Workload {
    let rank = vec![
        build_kernel(10_000),
        build_kernel(20_000),
        build_collective(CollectiveKind::AllReduce, 8_000_000).after(&[1, 2]),
    ];
    build_job_from_rank_nodes(&vec![rank; ranks], &[])
}

/// Returns the values of a rank's counter, with their times in microseconds.
fn list_counter_values(events: &[Value], rank: u64, name: &str) -> Vec<(f64, u64)> {
    let own = events
        .iter()
        .filter(|event| event["ph"] == "C" && event["pid"] == rank && event["name"] == name);
    let value = |event: &Value| {
        let at = event["ts"].as_f64().unwrap();
        (at, event["args"]["value"].as_u64().unwrap())
    };
    own.map(value).collect()
}

/// One kernel waits until the other has ended. During an all-reduce of 8 MB, each of its four members sends at least 2
/// x 3/4 x 8 MB. In a message of 1 MiB, the sender sends 1 MiB and the receiver sends 0.
#[test]
fn counters_show_waiting_nodes_and_the_sending_rate() {
    let events = draw_timeline_events(
        &build_job_of_two_kernels_and_all_reduce(4),
        &ReplayOptions::default(),
    );
    for rank in 0..4 {
        let slices = list_rank_slices(&events, rank);
        let first = slices[0].2;
        assert!(first == 10.0 || first == 20.0, "{slices:?}");
        let waiting = list_counter_values(&events, rank, "waiting nodes");
        assert_eq!(waiting, [(0.0, 1), (first, 0)]);
        let [(from, rate), (to, 0)] = list_counter_values(&events, rank, "sending, bytes/s")[..]
        else {
            panic!("{events:?}")
        };
        assert_eq!(from, 30.0);
        let sent = rate as f64 * (to - from) / 1e6;
        // Times are rounded to 1/1024 us.
        assert!((sent / 12e6 - 1.0).abs() < 1e-4, "{sent}");
    }
    let events = draw_pattern_events(WorkloadPattern::P2p(P2pPattern::new(
        TrafficPattern::Incast,
        1 << 20,
        2,
    )));
    let areas = [0, 1].map(|rank| {
        let values = list_counter_values(&events, rank, "sending, bytes/s");
        let area = values
            .windows(2)
            .map(|two| two[0].1 as f64 * (two[1].0 - two[0].0) / 1e6);
        area.sum::<f64>()
    });
    let whole = areas[0] + areas[1];
    assert!((whole / f64::from(1 << 20) - 1.0).abs() < 1e-3, "{areas:?}");
    assert!(areas.contains(&0.0), "{areas:?}");
}

/// Rank 0 sends at 30 us, which takes 5 us. Rank 1 posts the receive at 0, and the receive lasts 7 us. Then both ranks
/// enter a barrier, rank 0 after a delay of 20 us; the barrier takes 11 us on each.
fn build_delayed_job() -> Workload {
    let barrier = || {
        build_collective(CollectiveKind::Barrier, 0)
            .lasts(11_000)
            .after(&[1])
    };
    let first = vec![
        build_send(1, 64).delayed(30_000).lasts(5000),
        barrier().delayed(20_000),
    ];
    let second = vec![build_receive(0, 64).lasts(7000).waited(3000), barrier()];
    build_job_from_rank_nodes(&[first, second], &[])
}

/// Returns the slices of `rank` as (name, start, duration) in microseconds.
fn list_rank_slices(events: &[Value], rank: u64) -> Vec<(String, f64, f64)> {
    let own = events.iter().filter(|e| e["pid"] == rank);
    let at = |e: &Value| e["ts"].as_f64().unwrap();
    // A node ends at the next end event of a node on its track.
    let slice = |begin: &Value| {
        let mut rest = events.iter().skip_while(|e| !std::ptr::eq(*e, begin));
        let end = |e: &&Value| {
            e["ph"] == "E" && e["pid"] == rank && e["tid"] == begin["tid"] && e["name"] != "arrival"
        };
        let end = rest.find(end).expect("it ends");
        assert_eq!(end["name"], begin["name"]);
        let name = begin["name"].as_str().unwrap().to_owned();
        (name, at(begin), at(end) - at(begin))
    };
    let nodes = own.filter(|e| e["ph"] == "B" && e["args"]["node"].is_u64());
    nodes.map(slice).collect()
}

#[test]
fn delays_are_blank_and_communication_says_that_it_is_recorded() {
    let options = |comm| {
        ReplayOptions::default_with_changes(|o| {
            o.comm = comm;
        })
    };
    let arrows = |events: &[Value]| events.iter().filter(|e| e["cat"] == "message").count();
    let named = |start, name: &str, duration| (name.to_owned(), start, duration);

    let events = draw_timeline_events(
        &build_delayed_job(),
        &options(CommunicationDurationSource::Recorded),
    );
    check_slices_as_viewers_round_them(&events);
    // The receive waits from 0 to 30 and ends at 37. The send ends at 35, and 20 us later, at 55,
    // rank 0 enters the barrier, where rank 1 has waited since 37.
    let barrier = "barrier of 0 B, all 2 ranks, as recorded";
    let (sent, received) = ("send 64 B to rank 1", "receive 64 B from rank 0");
    let wanted = [named(30.0, sent, 5.0), named(55.0, barrier, 11.0)];
    assert_eq!(list_rank_slices(&events, 0), wanted);
    let wanted = [named(0.0, received, 37.0), named(37.0, barrier, 29.0)];
    assert_eq!(list_rank_slices(&events, 1), wanted);
    assert_eq!(arrows(&events), 2);

    // As captured, the receive would end at 3 + 7, before the send starts, so there is no arrow.
    let events = draw_timeline_events(
        &build_delayed_job(),
        &options(CommunicationDurationSource::Captured),
    );
    check_slices_as_viewers_round_them(&events);
    let barrier = "barrier of 0 B, all 2 ranks, as captured";
    let wanted = [named(0.0, received, 10.0), named(10.0, barrier, 11.0)];
    assert_eq!(list_rank_slices(&events, 1), wanted);
    assert_eq!(arrows(&events), 0);
}

#[test]
fn parts_of_a_replay_are_drawn_by_rank_and_time() {
    let workload = build_delayed_job();
    let options =
        ReplayOptions::default_with_changes(|o| o.comm = CommunicationDurationSource::Recorded);
    let us = |us| Time::ZERO + Span::from_us(us);
    let drawn = |selection| {
        let (file, _) = replay_to_timeline_and_node_count(
            &workload,
            &options,
            TimelineFormat::Chrome,
            selection,
        );
        let parsed: Value = serde_json::from_slice(&file).unwrap();
        parsed["traceEvents"].as_array().unwrap().clone()
    };
    let names = |events: &[Value], rank| {
        let slices = list_rank_slices(events, rank).into_iter();
        slices.map(|(name, ..)| name).collect::<Vec<_>>()
    };
    let one = drawn(TimelineSelection {
        ranks: vec![1..=1],
        ..TimelineSelection::default()
    });
    assert_eq!((names(&one, 0).len(), names(&one, 1).len()), (0, 2));
    assert!(
        one.iter().all(|event| event["pid"] != 0),
        "rank 0 is not even named"
    );
    // The receive ends at 37 us and the send at 35; the barrier begins at 37 and 55 and ends at 66.
    let late = drawn(TimelineSelection {
        from: us(36),
        ..TimelineSelection::default()
    });
    assert_eq!((names(&late, 0).len(), names(&late, 1).len()), (1, 2));
    let early = drawn(TimelineSelection {
        to: us(36),
        ..TimelineSelection::default()
    });
    assert_eq!((names(&early, 0).len(), names(&early, 1).len()), (1, 1));
}

#[test]
fn invalid_timeline_selections_are_refused() {
    let replay = ["replay", "traces/data-parallel-8", "--timeline", "x.json"];
    for (asked, found) in [
        (
            ["--timeline-ranks", "8"],
            "there is no rank 8; the job has ranks 0-7",
        ),
        (
            ["--timeline-ranks", "3-1"],
            "`3-1` is neither a rank nor a range of ranks",
        ),
        (
            ["--timeline-from=3ms", "--timeline-to=1ms"],
            "3.000 ms is not before --timeline-to 1.000 ms",
        ),
    ] {
        let output = run_chakram(&[&replay[..], &asked].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{asked:?}");
        assert!(error.contains(found), "{error}");
    }
    assert!(
        !std::path::Path::new("x.json").exists(),
        "nothing is written"
    );
    let foo = run_chakram(&["replay", "traces/data-parallel-8", "--timeline", "x.foo"]);
    let error = String::from_utf8_lossy(&foo.stderr);
    assert_eq!(foo.status.code(), Some(2), "{error}");
    assert!(error.contains("try: FILE.pftrace or FILE.json"), "{error}");
}

/// A range without a node may be a mistake, such as a wrong unit.
#[test]
fn empty_timelines_are_noted() {
    let folder = tempfile::tempdir().expect("there is room");
    let file = folder.path().join("t.json").display().to_string();
    let replay = ["replay", "traces/data-parallel-8", "--timeline", &file];
    for (from, is_empty) in [("0s", false), ("5s", true)] {
        let output = run_chakram(&[&replay[..], &["--timeline-from", from]].concat());
        let notes = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{notes}");
        let note = "the timeline is empty, because no node runs in its range of times; the replay ends after ";
        assert_eq!(notes.contains(note), is_empty, "{notes}");
    }
}
