//! Compares predictions from replays of a capture with a generated job that actually has the change.

use super::rig::{COLLECTIVE, RECEIVE, SEND};
use super::rig::{
    SchemaRankTrace, convert_folder, on_host, read_delay_ns, read_duration_ns, read_json_file,
    replay_traces, set_duration_ns, set_integer_attribute, write_generated_capture,
};
use super::schedule::compute_node_schedule;
use super::truth::find_job_start;
use crate::corpus::{pick_member_of_each_list_by_turn, sample_every_nth};
use chakram::engine::CommunicationDurationSource;
use chakram::internals::proto::Node;
use chakram::workload::MissingRankPolicy;
use testkit::capture::{Device, JobParallelism, JobTrueTimes, LaunchOrKernelBound, Options};

/// By default, returns one job for each program, beginning with the program at index `turn`.
fn list_one_job_per_program(turn: usize) -> Vec<(String, Options)> {
    let mut programs = Vec::new();
    for (device, style) in [
        (Device::Cpu, JobParallelism::Ddp),
        (Device::Cpu, JobParallelism::Functional),
        (Device::Cuda, JobParallelism::Ddp),
        (Device::Cuda, JobParallelism::Functional),
        (Device::Cpu, JobParallelism::Pipeline),
    ] {
        let mut jobs = Vec::new();
        for tensor_parallel in [1, 2] {
            if tensor_parallel == 2 && style == JobParallelism::Pipeline {
                continue;
            }
            for bound in [LaunchOrKernelBound::Kernel, LaunchOrKernelBound::Launch] {
                if bound == LaunchOrKernelBound::Launch && device == Device::Cpu {
                    continue;
                }
                let options = Options {
                    tensor_parallel,
                    bound,
                    steps: 2,
                    ..Options::new(device, style, 4)
                };
                jobs.push((
                    format!("{device:?} {style:?} tp {tensor_parallel} {bound:?}"),
                    options,
                ));
            }
        }
        programs.push(jobs);
    }
    pick_member_of_each_list_by_turn(turn, programs)
}

fn is_device_communication(node: &Node) -> bool {
    (SEND..=COLLECTIVE).contains(&node.r#type) && !on_host(node)
}

/// Returns the largest difference between the end times that a replay of `traces` predicts and the end times in
/// `truth`, in thousandths of the makespan. Both are relative to `zero`.
fn assert_prediction_within_thousandths(
    what: &str,
    traces: &[SchemaRankTrace],
    late: &dyn Fn(u32) -> u64,
    truth: &JobTrueTimes,
    zero: u64,
    (most, queued): (u64, bool),
) {
    let log = replay_traces(
        traces,
        CommunicationDurationSource::Recorded,
        late,
        MissingRankPolicy::Refuse,
    );
    let ends = log.last_node_end_of_each_rank_ns();
    // Longer transfers queue for lanes, and the plain schedule does not model this.
    let own = if queued {
        Vec::new()
    } else {
        compute_node_schedule(traces, late)
    };
    for (r, (engine, own)) in log.0.iter().zip(&own).enumerate() {
        for (n, (engine, own)) in engine.iter().zip(own).enumerate() {
            assert_eq!(
                engine.1,
                own.1 * 1000,
                "{what}: rank {r} node {n}: the engine disagrees"
            );
        }
    }
    let makespan = truth.ranks.iter().map(|r| r.last_ns).max().unwrap() - zero;
    let mut bad = Vec::new();
    for (predicted, rank) in ends.iter().zip(&truth.ranks) {
        let real = rank.last_ns - zero;
        let wrong = predicted.abs_diff(real) * 10_000 / makespan;
        println!(
            "{what} rank {}: predicted {predicted}, really {real}: {wrong} of 10,000",
            rank.rank
        );
        if wrong > most {
            bad.push((rank.rank, predicted, real));
        }
    }
    assert!(bad.is_empty(), "{what}: {bad:?}");
}

#[test]
fn a_rank_that_starts_late_delays_the_others_as_predicted() {
    for (what, options) in list_one_job_per_program(0) {
        let base = write_generated_capture(&options);
        let job = convert_folder(base.folder.path());
        let late = [
            (0, 1_000_000),
            (0, 10_000_000),
            (2, 1_000_000),
            (2, 10_000_000),
        ];
        for (rank, late) in sample_every_nth(3, late) {
            let changed = Options {
                late: vec![(rank, late)],
                ..options.clone()
            };
            let truth = testkit::capture::generate_capture(&changed)
                .unwrap()
                .compute_truth();
            let by = |r| if r == rank { late } else { 0 };
            let what = format!("{what}, rank {rank} {late} ns late");
            assert_prediction_within_thousandths(
                &what,
                &job.traces,
                &by,
                &truth,
                find_job_start(&base.truth),
                (50, false),
            );
        }
    }
}

/// At half the bandwidth, a transfer takes twice as long, except for the latency of 20 us.
#[test]
fn half_the_bandwidth_costs_as_much_as_predicted() {
    for (what, options) in list_one_job_per_program(1) {
        let base = write_generated_capture(&options);
        let mut job = convert_folder(base.folder.path());
        for node in job
            .traces
            .iter_mut()
            .flat_map(|t| &mut t.nodes)
            .filter(|n| is_device_communication(n))
        {
            let ns = read_duration_ns(node);
            set_duration_ns(node, ns * 2 - ns.min(20_000));
        }
        let changed = Options {
            bandwidth: options.bandwidth / 2,
            ..options.clone()
        };
        let truth = testkit::capture::generate_capture(&changed)
            .unwrap()
            .compute_truth();
        assert_prediction_within_thousandths(
            &format!("{what}, half the bandwidth"),
            &job.traces,
            &|_| 0,
            &truth,
            find_job_start(&base.truth),
            (100, true),
        );
    }
}

/// A rank is 1.5 times slower. A few of the generator's gaps stay as they are.
#[test]
fn a_straggler_costs_as_much_as_predicted() {
    for (what, options) in list_one_job_per_program(2) {
        let base = write_generated_capture(&options);
        let mut job = convert_folder(base.folder.path());
        let own = &mut job.traces[2].nodes;
        for node in own.iter_mut() {
            let ns = read_delay_ns(node) * 3 / 2;
            set_integer_attribute(node, "delay_ns", ns);
            if !is_device_communication(node) {
                let ns = read_duration_ns(node) * 3 / 2;
                set_duration_ns(node, ns);
            }
        }
        let changed = Options {
            stragglers: vec![(2, 1500)],
            ..options.clone()
        };
        let truth = testkit::capture::generate_capture(&changed)
            .unwrap()
            .compute_truth();
        assert_prediction_within_thousandths(
            &format!("{what}, a straggler"),
            &job.traces,
            &|_| 0,
            &truth,
            find_job_start(&base.truth),
            (200, true),
        );
    }
}

/// Profilers record the waits of streams only on request. Without recorded waits, the first kernel
/// that uses a result shows the dependency.
#[test]
fn without_recorded_waits_streams_wait_for_the_results_they_use() {
    for style in [JobParallelism::Ddp, JobParallelism::Functional] {
        let options = Options {
            steps: 2,
            ..Options::new(Device::Cuda, style, 4)
        };
        let base = write_generated_capture(&options);
        for rank in 0..4 {
            let path = base.folder.path().join(format!("kineto.{rank}.json"));
            let mut file = read_json_file(&path).unwrap();
            let events = file["traceEvents"].as_array_mut().unwrap();
            let all = events.len();
            events.retain(|event| event["cat"] != "cuda_sync");
            assert!(events.len() < all);
            std::fs::write(&path, file.to_string()).unwrap();
        }
        let job = convert_folder(base.folder.path());
        let changed = Options {
            late: vec![(2, 10_000_000)],
            ..options
        };
        let truth = testkit::capture::generate_capture(&changed)
            .unwrap()
            .compute_truth();
        let late = |rank| if rank == 2 { 10_000_000 } else { 0 };
        assert_prediction_within_thousandths(
            &format!("{style:?} without synchronisation"),
            &job.traces,
            &late,
            &truth,
            find_job_start(&base.truth),
            (50, false),
        );
    }
}

/// These counts show that the node types for messages are in use.
#[test]
fn a_pipeline_has_messages_both_ways() {
    let base = write_generated_capture(&Options::new(Device::Cpu, JobParallelism::Pipeline, 2));
    let job = convert_folder(base.folder.path());
    for trace in &job.traces {
        let count = |kind| trace.nodes.iter().filter(|n| n.r#type == kind).count();
        // Four microbatches go forward, and four gradients go back.
        assert_eq!((count(SEND), count(RECEIVE)), (4, 4));
    }
}
