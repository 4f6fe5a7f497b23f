//! Simulates packets on links in a simple way: every packet has its own times at every server of its path.
//!
//! A server has a queue of trains in the order in which they become ready, and serves a train's packets one after
//! another. A packet is forwarded when it has arrived completely. Only the far end of a wire between two fully
//! connected NPUs accepts a packet while it arrives. A train is ready for a server when the server can serve it without
//! gaps. That time is the maximum, over packets p, of p's arrival minus the server's time for the packets before p.

use super::flows::TimedMessageBetweenNpus;
use super::rig::Dim;
use chakram::topology::DimensionShape;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// A server on a path.
#[derive(Clone, Copy, Debug)]
struct ServerOnMessagePath {
    /// The dimension, the NPU, and the name of the server at that NPU.
    name: (usize, u32, &'static str),
    ps_per_byte: u64,
    /// The latency from this server to the next device.
    latency: u64,
    /// `true` if the server accepts packets while they arrive.
    far_end: bool,
}

/// Returns all servers on the path between two NPUs, in order.
fn list_path_servers(dims: &[Dim], from: u32, to: u32) -> Vec<ServerOnMessagePath> {
    let mut way = Vec::new();
    let (mut at, mut stride) = (from, 1);
    for (d, dim) in dims.iter().enumerate() {
        let n = dim.size;
        let place = |npu: u32| npu / stride % n;
        let mut go = |at: u32, which, latency, far_end| {
            way.push(ServerOnMessagePath {
                name: (d, at, which),
                ps_per_byte: dim.link_ps_per_byte(),
                latency,
                far_end,
            });
        };
        let latency = dim.link_ns * 1000;
        let there = at - place(at) * stride + place(to) * stride;
        if at != there {
            match dim.shape {
                DimensionShape::Switch => {
                    go(at, "to the switch", latency, false);
                    go(there, "from the switch", latency, false);
                }
                DimensionShape::FullyConnected => {
                    go(at, "out", latency, false);
                    go(there, "in", 0, true);
                }
                DimensionShape::Ring | DimensionShape::Mesh => {
                    let ahead = (place(to) + n - place(at)) % n;
                    let forward = match dim.shape {
                        DimensionShape::Ring => ahead * 2 <= n,
                        _ => place(to) > place(at),
                    };
                    while at != there {
                        go(at, if forward { "forward" } else { "back" }, latency, false);
                        let next = if forward {
                            place(at) + 1
                        } else {
                            place(at) + n - 1
                        } % n;
                        at = at - place(at) * stride + next * stride;
                    }
                }
            }
        }
        (at, stride) = (there, stride * n);
    }
    way
}

/// Returns the number of servers on the path between two NPUs, and their total time for one packet,
/// in picoseconds.
pub fn total_packet_time_on_path(dims: &[Dim], from: u32, to: u32, bytes: u64) -> u64 {
    let way = list_path_servers(dims, from, to).into_iter();
    way.map(|server| server.ps_per_byte * bytes).sum()
}

/// Returns the arrival times of `flows` in picoseconds, with packets of at most `segment` bytes, or
/// with whole messages.
pub fn compute_arrival_times(
    dims: &[Dim],
    segment: Option<u64>,
    flows: &[TimedMessageBetweenNpus],
) -> Vec<u64> {
    let ways: Vec<_> = flows
        .iter()
        .map(|f| list_path_servers(dims, f.from, f.to))
        .collect();
    let packets: Vec<Vec<u64>> = flows
        .iter()
        .map(|flow| {
            let size = segment.unwrap_or(flow.bytes).min(flow.bytes);
            let full = flow.bytes / size;
            let mut packets = vec![size; full as usize];
            packets.extend(Some(flow.bytes % size).filter(|&rest| rest > 0));
            packets
        })
        .collect();
    let mut free: BTreeMap<(usize, u32, &str), u64> = BTreeMap::new();
    let mut arrived = vec![0; flows.len()];
    // Trains are served in the order in which they become ready. At the same time, trains in transit go before newly
    // sent trains; further ties are broken by sender.
    let mut ready: BinaryHeap<_> = flows
        .iter()
        .enumerate()
        .map(|(i, flow)| Reverse((flow.ns * 1000, true, flow.from, i, 0)))
        .collect();
    while let Some(Reverse((now, _, from, i, k))) = ready.pop() {
        let server = ways[i][k];
        let until = free.entry(server.name).or_default();
        let mut clock = now.max(*until);
        // Computes the time at which each packet reaches its next server, which may need only the
        // packet's beginning.
        let next = ways[i].get(k + 1);
        let mut there = Vec::with_capacity(packets[i].len());
        for bytes in &packets[i] {
            let begin = clock;
            clock += bytes * server.ps_per_byte;
            let passed_on = if next.is_some_and(|n| n.far_end) {
                begin
            } else {
                clock
            };
            there.push(passed_on + server.latency);
        }
        *until = clock;
        let Some(next) = next else {
            arrived[i] = clock + server.latency;
            continue;
        };
        let mut before = 0;
        let mut when = 0;
        for (at, bytes) in there.iter().zip(&packets[i]) {
            when = when.max(at.saturating_sub(before));
            before += bytes * next.ps_per_byte;
        }
        ready.push(Reverse((when, false, from, i, k + 1)));
    }
    arrived
}
