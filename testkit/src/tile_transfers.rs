//! Simulates transfers over grids of cores, with a queue of tickets at every link and memory port.
//!
//! A submitted transfer adds a ticket to the queue of its port and of every link on its path. A transfer starts when
//! its tickets are first in all these queues. When the transfer ends, it removes its tickets. The code follows paths
//! core by core, and does not store when resources become free.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A link's times in ps: the time per byte, and the latency of the first byte.
#[derive(Clone, Copy, Debug)]
pub struct LinkByteTimeAndLatency {
    pub ps_per_byte: u64,
    pub latency_ps: u64,
}

/// Grid of dies, each with a grid of cores.
#[derive(Clone, Copy, Debug)]
pub struct GridOfDiesAndCores {
    pub dies: [u32; 2],
    pub cores: [u32; 2],
    pub torus: bool,
    pub half_duplex: bool,
    pub store_and_forward: bool,
    pub inside: LinkByteTimeAndLatency,
    pub border: LinkByteTimeAndLatency,
}

/// A memory port at a core, with the latency and the time per byte of its memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryPort {
    pub number: u32,
    pub time: LinkByteTimeAndLatency,
}

/// A transfer of bytes from one core to another. For a load or store, one of the two cores is the
/// core of the memory port.
#[derive(Clone, Copy, Debug)]
pub struct CoreTransfer {
    pub at: u64,
    pub from: [u32; 2],
    pub to: [u32; 2],
    pub bytes: u64,
    pub port: Option<MemoryPort>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TransferResource {
    /// A link from a core to its neighbour.
    Link([u32; 2], [u32; 2]),
    Port(u32),
}

impl GridOfDiesAndCores {
    /// Returns the cores on the path, including both ends: first along x, then along y.
    fn cores_on_path(&self, from: [u32; 2], to: [u32; 2]) -> Vec<[u32; 2]> {
        let mut way = vec![from];
        let mut at = from;
        for d in 0..2 {
            let size = self.dies[d] * self.cores[d];
            while at[d] != to[d] {
                let (above, below) = ((to[d] + size - at[d]) % size, (at[d] + size - to[d]) % size);
                let up = if self.torus {
                    above <= below
                } else {
                    to[d] > at[d]
                };
                at[d] = if up {
                    (at[d] + 1) % size
                } else {
                    (at[d] + size - 1) % size
                };
                way.push(at);
            }
        }
        way
    }

    fn die_of_core(&self, at: [u32; 2]) -> [u32; 2] {
        [at[0] / self.cores[0], at[1] / self.cores[1]]
    }

    /// Returns all resources that a transfer occupies, and the transfer's duration.
    fn needed_resources_and_duration(
        &self,
        transfer: &CoreTransfer,
    ) -> (Vec<TransferResource>, u64) {
        let way = self.cores_on_path(transfer.from, transfer.to);
        let mut times = Vec::new();
        let mut resources = Vec::new();
        for pair in way.windows(2) {
            let [a, b] = [pair[0], pair[1]];
            // A link crosses a border only if its cores are on different dies, so a torus of one
            // die has no border.
            times.push(if self.die_of_core(a) == self.die_of_core(b) {
                self.inside
            } else {
                self.border
            });
            let (a, b) = if self.half_duplex && b < a {
                (b, a)
            } else {
                (a, b)
            };
            resources.push(TransferResource::Link(a, b));
        }
        if let Some(port) = transfer.port {
            times.push(port.time);
            resources.push(TransferResource::Port(port.number));
        }
        let latency: u64 = times.iter().map(|time| time.latency_ps).sum();
        let bytes = times.iter().map(|time| time.ps_per_byte * transfer.bytes);
        let bytes = if self.store_and_forward {
            bytes.sum()
        } else {
            bytes.max().unwrap_or(0)
        };
        (resources, latency + bytes)
    }
}

/// Returns the end times of `transfers`; the transfers must be in the order of submission.
pub fn transfer_end_times(grid: &GridOfDiesAndCores, transfers: &[CoreTransfer]) -> Vec<u64> {
    let needs: Vec<_> = transfers
        .iter()
        .map(|transfer| grid.needed_resources_and_duration(transfer))
        .collect();
    let mut queues: BTreeMap<TransferResource, VecDeque<usize>> = BTreeMap::new();
    let mut running: BTreeSet<(u64, usize)> = BTreeSet::new();
    let mut ends = vec![0; transfers.len()];
    let mut next = 0;
    loop {
        let submission = transfers.get(next).map(|transfer| transfer.at);
        let end = running.first().copied();
        let (now, candidates) = match (submission, end) {
            (None, None) => return ends,
            (Some(at), end) if end.is_none_or(|(end, _)| at < end) => {
                for resource in &needs[next].0 {
                    queues.entry(*resource).or_default().push_back(next);
                }
                next += 1;
                (at, vec![next - 1])
            }
            (_, Some((at, done))) => {
                running.pop_first();
                ends[done] = at;
                let mut candidates = Vec::new();
                for resource in &needs[done].0 {
                    let queue = queues.get_mut(resource).expect("it has a ticket there");
                    assert_eq!(queue.pop_front(), Some(done));
                    candidates.extend(queue.front());
                }
                (at, candidates)
            }
            (Some(_), None) => unreachable!("handled above"),
        };
        for candidate in candidates {
            let (resources, span) = &needs[candidate];
            let first = |resource| queues[resource].front() == Some(&candidate);
            if resources.iter().all(first) {
                running.insert((now + span, candidate));
            }
        }
    }
}
