//! Tests chunks of different sizes, which balance the load across dimensions.

use super::folding::replay_with_and_without_closed_forms;
use super::lines::{build_collective, build_kernel, build_receive, build_send};
use super::pipeline::{
    build_skewed_collective, dims_strategy, make_chunking_settings, make_switch_dim_without_latency,
};
use super::rig::{
    self, build_machine_from_dims, make_proptest_config, make_stepwise_options, replay_and_log,
    replay_with,
};
use crate::commands::run_chakram;
use chakram::engine::NetworkModel;
use chakram::machine::{DimensionVisitOrder, Machine, WaitingChunkPriority};
use chakram::trace::CollectiveKind as K;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;

proptest! {
    #![proptest_config(make_proptest_config(200))]

    /// For any number of bytes on any machine, the closed form equals the result with messages. In
    /// one dimension chunks are equal.
    #[test]
    fn closed_form_of_load_equalizing_chunks_equals_simulation(
        dims in dims_strategy(),
        intra in prop::sample::select(WaitingChunkPriority::ALL.map(|(intra, _)| intra).to_vec()),
        chunks in 1_u32..20,
        kind in prop::sample::select(vec![K::AllReduce, K::ReduceScatter, K::AllGather]),
        bytes in 1_u64..1_000_000,
    ) {
        let npus: u32 = dims.iter().map(|d| d.size).product();
        let workload = build_skewed_collective(kind, bytes, npus, 0);
        let of = |inter| build_machine_from_dims(&dims).with_chunking(make_chunking_settings(chunks, 1, inter, intra));
        let closed = replay_and_log(&workload, &of(DimensionVisitOrder::ThemisFlex));
        prop_assert_eq!((closed.outcome.closed, closed.outcome.messages), (1, 0));
        let stepped = replay_with(&workload, &of(DimensionVisitOrder::ThemisFlex), &make_stepwise_options());
        prop_assert_eq!(stepped.outcome.stepwise, 1);
        prop_assert_eq!(closed.makespan_ps(), stepped.makespan_ps());
        if dims.len() == 1 {
            prop_assert_eq!(&stepped, &replay_with(&workload, &of(DimensionVisitOrder::Ascending), &make_stepwise_options()));
        }
    }
}

/// Returns a machine of 4 and 2 NPUs at 10 and 40 ps/B, with a base of two equal chunks.
fn build_two_chunk_machine() -> Machine {
    let pipeline = make_chunking_settings(
        2,
        1,
        DimensionVisitOrder::ThemisFlex,
        WaitingChunkPriority::Fifo,
    );
    build_machine_from_dims(&[
        make_switch_dim_without_latency(4, 10),
        make_switch_dim_without_latency(2, 40),
    ])
    .with_chunking(pipeline)
}

/// With direct algorithms, 4,096 B are in two equal chunks of 2,048 B. A chunk of s bytes loads dimension 0 with 3/4 s
/// · 10 ps if it visits this dimension first, and dimension 1 with s/2 · 40 ps if it visits dimension 1 first. In units
/// of 10 ps/B, chunk 0 is ascending, and adds a load of 3/4 to dimension 0 and, with a quarter of its bytes, 1/2 to
/// dimension 1. Chunk 1 should add 1/4 to dimension 1, so its size is 1/8. Dimension 1 then has 3/4, and dimension 0
/// gets 3/4 · 1/16 = 3/64 more. To close this gap, chunk 2 would need a size of 3/128, which is less than the minimum
/// of 1/16. So chunk 2 is ascending, and has the remaining 7/8. The sizes are 2,048, 256 and 1,792 B.
///
/// Chunk 0 takes 15,360 ps in dimension 0, 10,240 ps for 512 B in dimension 1, and the same back. Chunk 1 takes 5,120
/// ps in dimension 1, 960 ps for 128 B in dimension 0, and the same back. Chunk 2 takes 13,440 and 8,960 ps, and the
/// same back.
///
/// In dimension 0, chunk 0 goes out until 15,360; chunk 2, which has waited longer than 1, until 28,800; chunk 1 goes
/// out until 29,760, and back until 30,720. In dimension 1, chunk 1 goes out until 5,120. Chunk 0 goes out from 15,360
/// until 25,600 and, because no other chunk waits, back until 35,840. Chunk 2, which has waited since 28,800, goes out
/// until 44,800. Chunk 1, which has waited since 30,720, goes back until 49,920. Chunk 2 goes back until 58,880. In
/// dimension 0, chunk 0 goes back from 35,840 until 51,200, and chunk 2 from 58,880 until 72,320.
#[test]
fn three_load_equalizing_chunks_take_the_time_computed_by_hand() {
    let workload = build_skewed_collective(K::AllReduce, 4096, 8, 0);
    let closed = replay_and_log(&workload, &build_two_chunk_machine());
    let stepped = replay_with(
        &workload,
        &build_two_chunk_machine(),
        &make_stepwise_options(),
    );
    assert_eq!(
        (closed.makespan_ps(), stepped.makespan_ps()),
        (72_320, 72_320)
    );
    // For each of three chunks, each of the 8 members sends to 3 peers, then to 1, 1 and 3 peers, or in the reverse
    // order.
    assert_eq!(stepped.outcome.messages, 8 * 3 * 8);
}

/// With a hundred times these bytes, the collective takes 7,232 ns. A message from NPU 0 to NPU 1, in dimension 0,
/// forces the program to simulate the collective instead of using the closed form. The result equals the result with
/// messages, whichever chunk is in this dimension.
#[test]
fn a_message_unfolds_the_collective_whichever_chunk_is_under_way() {
    for network in [NetworkModel::Ports, NetworkModel::Links] {
        for ns in (150..7500).step_by(150) {
            let mut ranks = vec![vec![build_collective(K::AllReduce, 409_600)]; 8];
            ranks[0].extend([
                build_kernel(ns).on_lane(1),
                build_send(1, 5000).after(&[2]).on_lane(2),
            ]);
            ranks[1].push(build_receive(0, 5000));
            let replay = replay_with_and_without_closed_forms(
                &rig::build_job_from_rank_nodes(&ranks, &[]),
                &build_two_chunk_machine(),
                network,
                &ns.to_string(),
            );
            let unfolded = u64::from(ns < 7232);
            let outcome = replay.outcome;
            assert_eq!((outcome.closed, outcome.unfolded), (1 - unfolded, unfolded));
        }
    }
}

/// In each network model, some members are late, and two collectives contend. All collectives complete, and none
/// completes before all its members have begun.
#[test]
fn contending_collectives_with_late_members_all_complete() {
    for network in [
        NetworkModel::ContentionFree,
        NetworkModel::Ports,
        NetworkModel::Links,
    ] {
        for ns in (100..4000).step_by(300) {
            let late = |rank: u64| build_kernel(ns * (rank % 3)).on_lane(1);
            let all = build_collective(K::AllReduce, 409_600);
            let ranks = (0..8).map(|rank| {
                vec![
                    late(rank),
                    all.clone().after(&[1]).on_lane(2),
                    build_collective(K::ReduceScatter, 40_960).on_lane(3),
                ]
            });
            let ranks: Vec<_> = ranks.collect();
            let replay = replay_with_and_without_closed_forms(
                &rig::build_job_from_rank_nodes(&ranks, &[]),
                &build_two_chunk_machine(),
                network,
                &ns.to_string(),
            );
            let ends = (0..8).map(|rank| replay.node_end_ps(rank, 2));
            assert!(ends.min() > Some(2 * ns * 1000));
            assert_eq!(replay.outcome.nodes, 3 * 8);
        }
    }
}

fn read_figure_9a_machine_text(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/fig-9a");
    let text = std::fs::read_to_string(folder.join(name).with_extension("toml")).unwrap();
    text.replace("\"themis\"", "\"themis_flex\"")
}

/// The machines of Fig. 9(a) of the ASTRA-sim 2.0 paper. No schedule is faster than a
/// one-dimensional wafer with the same total rate, 511/512 · 2 GB / rate. This schedule is within 4
/// % of the wafer.
#[test]
fn all_reduces_of_figure_9a_come_within_4_percent_of_a_wafer() {
    let systems = [("w-2d", 500), ("conv-3d", 350), ("conv-4d", 600)];
    for (name, rate) in systems {
        let machine = Machine::parse(&read_figure_9a_machine_text(name), name).unwrap();
        assert_eq!(
            machine.chunking_settings().inter,
            DimensionVisitOrder::ThemisFlex
        );
        let found = replay_and_log(
            &build_skewed_collective(K::AllReduce, 1_000_000_000, 512, 0),
            &machine,
        );
        assert_eq!(found.outcome.closed, 1);
        let wafer = 1_000_000_000 * 511 / 512 * 2 * 1000 / rate;
        assert!(
            (wafer..wafer * 104 / 100).contains(&found.makespan_ps()),
            "{name}"
        );
    }
}

/// Dimensions of 32 and 16 have one rate, and three equal chunks. Chunk 0 adds a load of 31/32 = 496/512 to dimension 0
/// and 15/16 · 1/32 = 15/512 to dimension 1. To add 481/512 there, chunk 1 would have to be slightly larger than an
/// equal chunk, which is the limit. Dimension 1 then has 495/512, and dimension 0 gets 31/512 more, 527/512. To add a
/// sixteenth to dimension 1, chunk 2 must be a fifteenth. The rest of the gap is less than a grain. So chunk 3 is
/// ascending and has the rest, and there are four chunks.
#[test]
fn reports_and_machine_show_state_the_number_of_chunks() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("machine.toml");
    let text = read_figure_9a_machine_text("w-2d").replace("chunks = 64 ", "chunks = 3 ");
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let job = "generate collective all-reduce --size 1GB --ranks 512 --format json --machine";
    let output = run_chakram(&[job.split(' ').collect(), vec![file]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        report["collectives"][0]["algorithm"],
        "direct 32 (wafer-1), direct 16 (wafer-2); 4 chunks, themis_flex, smallest_first"
    );
    let shown = run_chakram(&["machine", "show", file, "--format", "json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let pipeline = &shown["machine"]["collectives"];
    assert_eq!(
        (&pipeline["chunks"], &pipeline["schedule"]),
        (&json!(3), &json!("themis_flex"))
    );
}
