//! Accesses in chunks, which come one by one to the port that an NPU shares with its messages.
//!
//! The stages in front of the port, of the memory and its own network, are a stream (`memory/fair_sharing.rs`,
//! `memory/channel_stream.rs`): S(x) is the time at which it has passed x bytes. The port is one of its stages, so that
//! the stream never exceeds the rate of an uncontended port. Of the time of a chunk in each stage, t[s], let f be the
//! sum over the stages in front of the port, p that of the port, and L the longest. An access of W bytes has chunks of
//! c; the last is the remainder. Chunk k (from 1) has *streamed* at
//!
//! ```text
//! S(k c) + f − L                     where f is L or more
//! S(k c − c (L − f) / p)             where the port is the longest stage and f less: p = L
//! ```
//!
//! which is the same where the rate does not change, but never lies before the moment when it is known; of a last
//! chunk that is smaller the same part is taken. Latencies, the pool's and that of the link to the NPU, are left out
//! here: they lie in front of a load's port and behind a store's.
//!
//! A *load*: a chunk arrives at the port when it has streamed, and is served there after earlier arrivals, for its
//! bytes / bandwidth. The load ends with its last chunk.
//!
//! A *store*: chunk k arrives at the port at S((k − 1) c), and waits there for w[k]. The stages behind receive it
//! that much later, and the longest has no slack for chunks that arrive late and together: the store ends when the
//! last chunk has streamed + max w[k] + (its bytes / bandwidth).
//!
//! # Alone
//!
//! S(k c) = k L for an access that is alone. A load's chunks arrive L apart, which is no less than p, so none waits
//! for the one before, and neither do a store's: both end at W / c x L + f − L + p, which is S(W) + sum of t[s] − max
//! t[s], as without a shared port. Where several accesses of one NPU share the port, p is the time of a chunk of
//! each; the one whose chunk is served last has that end again, and the others end by a chunk sooner. A last chunk
//! that is smaller takes its own time at the port, so the end is sooner by at most the time of what it lacks. Times
//! at the port are differences of rounded sums, so rounding errors do not accumulate.
//!
//! Chunks that arrive at one instant are ordered by NPU, then by node. The state of an access does not grow with its
//! chunks, except for those between their stream and the port: as many as arrive during the latencies. If these are
//! too many at a time, the replay is refused.

use super::{AccessEnd, RemoteMemoryAccess};
use chakram_base::ids::Npu;
use chakram_base::units::{Bandwidth, Span, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[cfg(test)]
mod tests;

/// Fraction of a chunk below which a remainder is rounding error.
const NOTHING: f64 = 1e-9;

/// Maximum number of chunks in flight to ports, at 40 bytes each.
const MOST: usize = 1 << 23;

/// Arrival of a chunk at the port of its NPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRequest {
    /// NPU whose port it is.
    pub npu: Npu,
    /// True for a store, which goes out; false for a load, which comes in.
    pub store: bool,
    /// Serialization time at the port.
    pub span: Span,
    /// True for the last chunk of the access.
    pub last: bool,
}

/// Number of chunks of `chunk_bytes` bytes in an access of `bytes`; at least one.
pub(super) fn count(bytes: f64, chunk_bytes: f64) -> u64 {
    ((bytes / chunk_bytes - NOTHING).ceil() as u64).max(1)
}

/// The time of a chunk: in all stages in front of the port, in the port, in the longest of all.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkTimes {
    pub front: f64,
    pub port: f64,
    pub longest: f64,
}

/// An access with its progress.
#[derive(Clone, Copy, Debug)]
struct ChunkedAccess {
    access: RemoteMemoryAccess,
    /// Bytes of a chunk, of the access.
    chunk_bytes: f64,
    /// Bytes that pass the port for each byte of the access.
    weight: f64,
    count: u64,
    /// The chunk that comes next.
    next: u64,
    /// Fraction of a chunk that has yet to stream when the chunk counts as streamed.
    ahead: f64,
    /// Delay from the end of its stream until a load reaches the port, or until a store ends.
    behind: Span,
    /// The longest that a chunk of a store waited.
    waited: Span,
}

/// Arrival of a chunk of a load or store at its port, or, after the last of a store, its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ChunkArrival {
    at: Time,
    npu: u32,
    token: u64,
    number: u64,
    slot: u32,
}

/// The accesses that have chunks to come.
#[derive(Debug)]
pub(super) struct ChunkedTransfers {
    port: Bandwidth,
    /// The latencies, which follow when a chunk has streamed.
    latency: Span,
    accesses: Vec<ChunkedAccess>,
    free: Vec<u32>,
    coming: BinaryHeap<Reverse<ChunkArrival>>,
}

impl ChunkedTransfers {
    pub fn new(port: Bandwidth, latency: Span) -> Self {
        Self {
            port,
            latency,
            accesses: Vec::new(),
            free: Vec::new(),
            coming: BinaryHeap::new(),
        }
    }

    /// An access begins to stream. Its number, which is used again when it is over.
    pub fn open(
        &mut self,
        access: RemoteMemoryAccess,
        chunk_bytes: f64,
        weight: f64,
        times: ChunkTimes,
    ) -> u32 {
        // Negative if the port alone takes longer than all stages in front: then chunks count as streamed early.
        let behind = times.front - times.longest;
        let chunked = ChunkedAccess {
            access,
            chunk_bytes,
            weight,
            count: match access.bytes {
                0 => 1,
                bytes => count(bytes as f64, chunk_bytes),
            },
            next: 0,
            ahead: if behind < 0.0 {
                -behind / times.port
            } else {
                0.0
            },
            behind: Span::from_seconds(behind),
            waited: Span::ZERO,
        };
        // Reuses slots, so memory is bounded by concurrent accesses.
        match self.free.pop() {
            Some(number) => {
                self.accesses[number as usize] = chunked;
                number
            }
            None => {
                self.accesses.push(chunked);
                self.accesses.len() as u32 - 1
            }
        }
    }

    /// Streamed bytes of an access at which [`Self::streamed`] is due next; `None` if never again.
    pub fn position(&self, number: u32) -> Option<f64> {
        self.accesses[number as usize].position()
    }

    /// Notifies that the stream has reached [`Self::position`].
    pub fn streamed(&mut self, now: Time, number: u32) {
        let chunked = &mut self.accesses[number as usize];
        // A store's chunk is at the port at once; its latencies follow behind the port.
        let at = if chunked.access.store && chunked.next < chunked.count {
            now
        } else {
            now + self.latency + chunked.behind
        };
        self.coming.push(Reverse(ChunkArrival {
            at,
            npu: chunked.access.npu.0,
            token: chunked.access.token,
            number: chunked.next,
            slot: number,
        }));
        chunked.next += 1;
    }

    /// Returns true if more chunks are in flight than fit in memory.
    pub fn is_full(&self) -> bool {
        self.coming.len() > MOST
    }

    /// Time of the next arrival at a port or end of a store.
    pub fn next(&self) -> Option<Time> {
        self.coming.peek().map(|Reverse(coming)| coming.at)
    }

    /// Serves each chunk that is due `now`: `serve` returns the begin of its service at the port, and `take` receives
    /// the ends of accesses.
    pub fn pass(
        &mut self,
        now: Time,
        mut serve: impl FnMut(PortRequest) -> Time,
        mut take: impl FnMut(AccessEnd),
    ) {
        while let Some(&Reverse(coming)) = self.coming.peek().filter(|next| next.0.at <= now) {
            self.coming.pop();
            let chunked = &mut self.accesses[coming.slot as usize];
            let mut over = |at| {
                let token = coming.token;
                take(AccessEnd { token, at });
                self.free.push(coming.slot);
            };
            // The entry behind a store's last chunk is the end of its stream.
            if coming.number == chunked.count {
                over(now + chunked.waited + chunked.span(chunked.count - 1, self.port));
                continue;
            }
            let RemoteMemoryAccess { npu, store, .. } = chunked.access;
            let (span, last) = (
                chunked.span(coming.number, self.port),
                coming.number + 1 == chunked.count,
            );
            let begin = serve(PortRequest {
                npu,
                store,
                span,
                last,
            });
            if store {
                chunked.waited = chunked.waited.max(begin.since(now));
            } else if last {
                over(begin + span);
            }
        }
    }
}

impl ChunkedAccess {
    /// Bytes before a chunk.
    fn before(&self, chunk: u64) -> f64 {
        if chunk < self.count {
            chunk as f64 * self.chunk_bytes
        } else {
            self.access.bytes as f64
        }
    }

    /// Streamed bytes at which a chunk counts as streamed.
    fn full(&self, chunk: u64) -> f64 {
        let (from, to) = (self.before(chunk), self.before(chunk + 1));
        to - self.ahead * (to - from)
    }

    fn position(&self) -> Option<f64> {
        match (self.access.store, self.next < self.count) {
            (false, true) => Some(self.full(self.next)),
            (false, false) => None,
            (true, true) => Some(self.before(self.next)),
            (true, false) => (self.next == self.count).then(|| self.full(self.count - 1)),
        }
    }

    /// Serialization time of a chunk at the port.
    fn span(&self, chunk: u64, port: Bandwidth) -> Span {
        let rate = port.bytes_per_second() / self.weight;
        // A difference of rounded sums, so that rounding errors do not accumulate over chunks.
        let to = |chunk| Span::from_seconds(self.before(chunk) / rate);
        to(chunk + 1) - to(chunk)
    }
}
