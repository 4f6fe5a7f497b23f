//! Messages that are sent at given times, each on its own lane.

use super::lines::{TestTraceNode, build_kernel, build_receive, build_send};
use super::rig::{Dim, build_job_from_rank_nodes, make_stepwise_network_options, replay_with};
use chakram::engine::NetworkModel;
use chakram::machine::Machine;
use chakram::topology::DimensionShape;
use proptest::prelude::*;

/// A message from one NPU to another.
#[derive(Clone, Copy, Debug)]
pub struct TimedMessageBetweenNpus {
    /// Time in ns at which the message is sent.
    pub ns: u64,
    pub from: u32,
    pub to: u32,
    pub bytes: u64,
}

pub fn build_timed_message(ns: u64, from: u32, to: u32, bytes: u64) -> TimedMessageBetweenNpus {
    TimedMessageBetweenNpus {
        ns,
        from,
        to,
        bytes,
    }
}

/// Replays `flows` on a machine. Returns the times in picoseconds at which each message has left
/// and has arrived.
pub fn replay_message_left_and_arrived_times(
    machine: &Machine,
    model: NetworkModel,
    flows: &[TimedMessageBetweenNpus],
) -> Vec<[u64; 2]> {
    let npus = machine.topology().npu_count();
    let mut ranks: Vec<Vec<TestTraceNode>> = vec![vec![build_kernel(0)]; npus as usize];
    let ids: Vec<_> = (0..)
        .zip(flows)
        .map(|(tag, flow)| {
            let mut add = |rank: u32, line: TestTraceNode| {
                let lines = &mut ranks[rank as usize];
                lines.push(line.tag(tag).on_lane(i64::from(tag)));
                (rank, lines.len() as u32)
            };
            let sent = add(flow.from, build_send(flow.to, flow.bytes).delayed(flow.ns));
            [sent, add(flow.to, build_receive(flow.from, flow.bytes))]
        })
        .collect();
    let replay = replay_with(
        &build_job_from_rank_nodes(&ranks, &[]),
        machine,
        &make_stepwise_network_options(model),
    );
    let end = |(rank, id)| replay.node_end_ps(rank, id);
    ids.into_iter().map(|both| both.map(end)).collect()
}

/// Returns the arrival time of each message of `flows`, in picoseconds.
pub fn replay_flow_arrivals(
    machine: &Machine,
    model: NetworkModel,
    flows: &[TimedMessageBetweenNpus],
) -> Vec<u64> {
    let ends = replay_message_left_and_arrived_times(machine, model, flows).into_iter();
    ends.map(|[_, arrived]| arrived).collect()
}

/// Returns a random shape.
pub fn shape_strategy() -> impl Strategy<Value = DimensionShape> {
    prop::sample::select(DimensionShape::ALL.map(|(shape, _)| shape).to_vec())
}

/// Returns a dimension of random shape, size and speed.
pub fn any_dim(most: u32) -> impl Strategy<Value = Dim> {
    let algorithm = chakram::machine::CollectiveAlgorithm::Ring;
    (shape_strategy(), 2..=most, 1..50_u64, 1..900_u64).prop_map(
        move |(shape, size, ps_per_byte, link_ns)| Dim {
            shape,
            size,
            ps_per_byte,
            link_ns,
            algorithm,
        },
    )
}

/// Returns sizes from 1 B to 4 MB, uniform in the number of digits.
pub fn message_bytes_strategy() -> impl Strategy<Value = u64> {
    (0..23_u32)
        .prop_flat_map(|bits| 1_u64 << bits..=1 << (bits + 1))
        .prop_map(|b| b.min(4_000_000))
}
