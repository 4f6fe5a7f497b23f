//! Tests extreme captures.

use super::rig::{
    ConversionResult, convert_folder, list_node_dependency_ids, on_host, read_delay_ns,
    read_duration_ns, replay_traces,
};
use chakram::engine::CommunicationDurationSource;
use chakram::workload::MissingRankPolicy;
use std::time::Instant;
use testkit::capture::handwritten::{
    HandwrittenEvent, HandwrittenRank, create_all_reduce_operator_and_annotation,
    create_handwritten_event, create_operator_event, create_single_rank,
};

/// Converts a job of one rank, and checks two invariants of every conversion: dependencies have
/// lower ids, and the replay ends when the capture ended.
fn convert_and_check_rank(events: &[HandwrittenEvent]) -> ConversionResult {
    convert_and_check_ranks(&[create_single_rank(events)])
}

fn convert_and_check_ranks(ranks: &[HandwrittenRank<'_>]) -> ConversionResult {
    let folder = tempfile::tempdir().unwrap();
    for rank in ranks {
        rank.write_files(folder.path());
    }
    let started = Instant::now();
    let job = convert_folder(folder.path());
    println!("{:?}", started.elapsed());
    for trace in &job.traces {
        for node in &trace.nodes {
            assert!(list_node_dependency_ids(node).all(|cause| cause < node.id));
        }
    }
    for comm in [
        CommunicationDurationSource::Captured,
        CommunicationDurationSource::Recorded,
    ] {
        let ends = replay_traces(&job.traces, comm, |_| 0, MissingRankPolicy::Refuse)
            .last_node_end_of_each_rank_ns();
        let captured = job.traces.iter().map(|t| t.captured_ns());
        assert_eq!(ends, captured.collect::<Vec<_>>(), "{comm:?}");
    }
    job
}

#[test]
fn one_operator_converts_to_a_node_with_its_duration() {
    let job = convert_and_check_rank(&[create_operator_event("aten::mm", 1000, 500, 1)]);
    let node = &job.traces[0].nodes[1];
    assert_eq!(
        (read_duration_ns(node), read_delay_ns(node), &*node.name),
        (500, 0, "aten::mm")
    );
    assert_eq!(job.traces[0].captured_ns(), 500);
}

#[test]
fn operators_without_length_convert_to_nodes() {
    let job = convert_and_check_rank(&[
        create_operator_event("a", 0, 0, 1),
        create_operator_event("b", 0, 0, 2),
        create_operator_event("c", 10, 0, 3),
        create_operator_event("d", 10, 0, 4),
    ]);
    assert_eq!(job.traces[0].nodes.len(), 5);
    assert_eq!(job.traces[0].captured_ns(), 10);
    // This capture has a single instant event.
    assert_eq!(
        convert_and_check_rank(&[create_operator_event("a", 7, 0, 1)]).traces[0].captured_ns(),
        0
    );
}

#[test]
fn intervals_that_overlap_or_start_together_convert() {
    convert_and_check_rank(&[
        create_operator_event("a", 0, 100, 1),
        create_operator_event("b", 50, 100, 2),
        create_operator_event("c", 120, 100, 3),
    ]);
    convert_and_check_rank(&[
        create_operator_event("a", 0, 100, 1),
        create_operator_event("b", 0, 100, 2),
        create_operator_event("c", 0, 50, 3),
        create_operator_event("d", 0, 100, 4),
    ]);
    // Some events end before or after the event that encloses them.
    convert_and_check_rank(&[
        create_operator_event("a", 0, 100, 1),
        create_operator_event("b", 10, 300, 2),
        create_operator_event("c", 20, 10, 3),
        create_operator_event("d", 150, 20, 4),
    ]);
}

#[test]
fn times_before_the_base_and_days_apart_convert() {
    let job = convert_and_check_rank(&[
        create_operator_event("a", -5_000_500, 100, 1),
        create_operator_event("b", -200, 300, 2),
    ]);
    assert_eq!(job.traces[0].captured_ns(), 5_000_600);
    let day = 86_400_000_000_000;
    convert_and_check_rank(&[
        create_operator_event("a", 0, 100, 1),
        create_operator_event("b", 30 * day, 300, 2),
    ]);
}

#[test]
fn operators_that_only_one_file_has_become_nodes() {
    let unseen = [
        create_operator_event("a", 0, 100, 1),
        create_operator_event("b", 200, 100, 2).hide_from_host(),
        create_operator_event("c", 400, 100, 0),
    ];
    let job = convert_and_check_rank(&unseen);
    assert_eq!(job.traces[0].nodes.len(), 4);
}

/// A group of one rank has nothing to wait for.
#[test]
fn a_collective_of_one_rank_has_no_waiting() {
    for asynchronous in [true, false] {
        let [asks, flight] =
            create_all_reduce_operator_and_annotation(asynchronous, 2, 1000, 5000, 2);
        let job = convert_and_check_rank(&[
            create_operator_event("a", 0, 500, 1),
            asks,
            flight,
            create_operator_event("b", 8000, 500, 10),
        ]);
        assert_eq!(job.summary.ranks[0].calls, (1, 0, 0));
        assert_eq!(job.summary.ranks[0].wait_ns, 0);
    }
}

/// Two ranks have three groups, and clocks that are seconds apart. One group has a single rank.
#[test]
fn groups_of_one_and_two_convert_with_clocks_seconds_apart() {
    let groups: &[(&str, &[u32])] = &[("0", &[0, 1]), ("1", &[0]), ("2", &[1])];
    let events = |rank: u64, start: i64| {
        let [asks, flight] = create_all_reduce_operator_and_annotation(true, 20, start, 500_000, 2);
        let [own, own_flight] =
            create_all_reduce_operator_and_annotation(true, 30, start + 600_000, 20_000, 5);
        let late = i64::try_from(rank).unwrap() * 1000;
        let mut flight = flight;
        flight.start += late;
        flight.ns -= late as u64;
        vec![
            asks,
            flight,
            own,
            own_flight,
            create_operator_event("a", start + 700_000, 1000, 8),
        ]
    };
    let apart = 5_000_000_000;
    let (zero, one) = (events(0, 5000), events(1, 5000 + apart));
    let of = |rank: u32, events| HandwrittenRank {
        rank,
        world: 2,
        groups: if rank == 0 {
            &groups[..2]
        } else {
            const { &[("0", &[0, 1]), ("2", &[1])] }
        },
        events,
    };
    let job = convert_and_check_ranks(&[of(0, &zero), of(1, &one)]);
    assert_eq!(job.summary.ranks[1].offset.applied, -apart);
    assert_eq!(
        job.summary
            .groups
            .iter()
            .map(|g| g.collectives)
            .collect::<Vec<_>>(),
        [1, 1, 1]
    );
}

#[test]
fn many_threads_become_as_many_lanes() {
    let mut events = Vec::new();
    for thread in 0..300 {
        for nth in 0..10 {
            let start = nth * 1_000_000 + thread * 100;
            let id = (thread * 10 + nth + 1) as u64;
            events.push(
                create_operator_event("a", start, 500_000, id).with_thread_id(thread as u64 + 1),
            );
        }
    }
    let job = convert_and_check_rank(&events);
    assert_eq!(job.summary.ranks[0].lanes.0, 300);
}

/// Checks that an input of four times the size takes less than eight times the time (sixteen times would be quadratic).
/// Skips very short runs, and makes three attempts, because the machine may be busy.
fn check_conversion_time_is_linear(
    what: &str,
    make: &dyn Fn(u64) -> Vec<HandwrittenEvent>,
    count: u64,
) {
    let time = |count: u64| {
        let events = make(count);
        let folder = tempfile::tempdir().unwrap();
        create_single_rank(&events).write_files(folder.path());
        let started = Instant::now();
        let job = convert_folder(folder.path());
        assert!(job.traces[0].nodes.len() as u64 > count / 2);
        started.elapsed()
    };
    let fast = (0..3).any(|_| {
        let (one, four) = (time(count), time(count * 4));
        println!("{what}: {one:?} for {count}, {four:?} for four times that");
        four < one * 8 || four.as_millis() < 400
    });
    assert!(fast, "{what}: four times as much takes eight times as long");
}

#[test]
fn conversion_time_is_linear_in_the_number_of_events() {
    let nested = |count: u64| {
        let event = |i: u64| create_operator_event("a", i as i64, 2 * count - 2 * i, i + 1);
        (0..count).map(event).collect()
    };
    check_conversion_time_is_linear("operators within one another", &nested, 5_000);
    let flat = |count: u64| {
        (0..count)
            .map(|i| create_operator_event("aten::add", i as i64 * 100, 50, i + 1))
            .collect()
    };
    check_conversion_time_is_linear("operators after one another", &flat, 5_000);
    let together = |count: u64| {
        (0..count)
            .map(|i| create_operator_event("aten::add", 0, 50, i + 1))
            .collect()
    };
    check_conversion_time_is_linear("operators at once", &together, 5_000);
    let calls = |count: u64| {
        let calls = (0..count / 4).flat_map(|i| {
            create_all_reduce_operator_and_annotation(true, 2, i as i64 * 1000, 800, i * 3 + 1)
        });
        calls.collect()
    };
    check_conversion_time_is_linear("calls on one worker", &calls, 5_000);
    let blocking = |count: u64| {
        let calls = (0..count / 4).flat_map(|i| {
            create_all_reduce_operator_and_annotation(false, 2, i as i64 * 1000, 800, i * 3 + 1)
        });
        calls.collect()
    };
    check_conversion_time_is_linear("calls that block", &blocking, 5_000);
    let in_flight = |count: u64| {
        let calls = (0..count / 4).flat_map(|i| {
            create_all_reduce_operator_and_annotation(
                true,
                2 + i % 2,
                i as i64 * 1000,
                count * 1000,
                i * 3 + 1,
            )
        });
        calls.collect()
    };
    check_conversion_time_is_linear("calls in flight at once", &in_flight, 5_000);
    let threads = |count: u64| {
        (0..count)
            .map(|i| {
                create_operator_event("a", i as i64 * 200_000, 50, i + 1)
                    .with_thread_id(i % (count / 8))
            })
            .collect()
    };
    check_conversion_time_is_linear("threads", &threads, 5_000);
    let launches = |count: u64| {
        let pair = |i: u64| {
            let start = i as i64 * 1000;
            [
                create_operator_event("aten::add", start, 500, i + 1),
                create_handwritten_event(
                    "cuda_runtime",
                    "cudaStreamSynchronize",
                    1,
                    start + 100,
                    100,
                    0,
                ),
            ]
        };
        (0..count / 2).flat_map(pair).collect()
    };
    check_conversion_time_is_linear("calls of the driver", &launches, 5_000);
}

#[test]
fn operators_and_annotations_without_kernels_become_host_nodes() {
    let job = convert_and_check_rank(&[
        create_operator_event("a", 0, 100, 1),
        create_handwritten_event("user_annotation", "step", 1, 0, 400, 2),
    ]);
    let nodes = &job.traces[0].nodes;
    assert!(nodes.iter().skip(1).all(on_host));
}
