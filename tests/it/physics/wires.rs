//! Determines the ports and links that bytes use, and a lower bound on each one's busy time, without queues or events.

use super::rig::Dim;
use chakram::topology::DimensionShape;
use std::collections::BTreeMap;

/// The kind of wires in a network model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortOrLinkWireKind {
    /// A port for each neighbour, or a single port if NPUs connect to a switch or are fully
    /// connected.
    Ports,
    /// All links separately.
    Links,
}

/// A port or link: the dimension, the NPU, and the name at that NPU.
type PortOrLinkName = (usize, u32, &'static str);

/// The busy time of each port and link, in picoseconds.
#[derive(Debug, Default)]
pub struct BusyTimeTotalsByWire(BTreeMap<PortOrLinkName, u128>);

impl BusyTimeTotalsByWire {
    /// Returns the busy time of the busiest port or link, in picoseconds.
    pub fn max_busy_time_ps(&self) -> u64 {
        self.0.values().max().map_or(0, |&ps| ps as u64)
    }

    /// Adds the transfer of `bytes / parts` from one NPU to another. Costs are truncated to whole
    /// picoseconds.
    pub fn add_transfer(
        &mut self,
        wiring: PortOrLinkWireKind,
        dims: &[Dim],
        (from, to): (u32, u32),
        (bytes, parts): (u64, u64),
    ) {
        let mut at = from;
        let mut stride = 1;
        for (d, dim) in dims.iter().enumerate() {
            let n = dim.size;
            let (x, y) = (at / stride % n, to / stride % n);
            let moved = |to: u32| at - x * stride + to * stride;
            let ps = u128::from(bytes) * u128::from(dim.link_ps_per_byte()) / u128::from(parts);
            let mut add = |npu: u32, which| *self.0.entry((d, npu, which)).or_default() += ps;
            let up = match dim.shape {
                DimensionShape::Ring => 2 * ((y + n - x) % n) <= n,
                _ => y > x,
            };
            let wired = matches!(dim.shape, DimensionShape::Ring | DimensionShape::Mesh);
            if x != y && wired && wiring == PortOrLinkWireKind::Links {
                let mut here = x;
                while here != y {
                    add(moved(here), if up { "up" } else { "down" });
                    here = (here + if up { 1 } else { n - 1 }) % n;
                }
            } else if x != y {
                let [out, into] = match (wired, up) {
                    (false, _) => ["out", "in"],
                    (true, true) => ["out upwards", "in from below"],
                    (true, false) => ["out downwards", "in from above"],
                };
                add(at, out);
                add(moved(y), into);
            }
            (at, stride) = (moved(y), stride * n);
        }
    }
}

/// Returns when a message's last byte arrives and when it has left, without contention and on devices that do not store
/// the message. It arrives after the latency of every link plus its bytes at the slowest rate.
pub fn compute_uncontended_times(dims: &[Dim], from: u32, to: u32, bytes: u64) -> [u64; 2] {
    let mut stride = 1;
    let (mut latency, mut slowest) = (0, 0);
    for dim in dims {
        let (x, y) = (from / stride % dim.size, to / stride % dim.size);
        let apart = x.abs_diff(y);
        let links = match dim.shape {
            _ if apart == 0 => 0,
            DimensionShape::Ring => apart.min(dim.size - apart),
            DimensionShape::Mesh => apart,
            DimensionShape::FullyConnected => 1,
            DimensionShape::Switch => 2,
        };
        latency += u64::from(links) * dim.link_ns * 1000;
        if links > 0 {
            slowest = slowest.max(dim.link_ps_per_byte());
        }
        stride *= dim.size;
    }
    [bytes * slowest, latency + bytes * slowest]
}
