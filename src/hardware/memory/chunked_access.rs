//! Accesses that are split into chunks, which arrive one by one at an NPU's port; the NPU's messages share this port.
//!
//! The stages before the port (the memory and its own network) form a stream (`memory/fair_sharing.rs`,
//! `memory/channel_stream.rs`). S(x) is the time at which x bytes of the stream have passed. The port is also a stage
//! of the stream, so that the stream is never faster than an uncontended port. Let t[s] be the time of a chunk in stage
//! s, f the sum of t[s] over the stages before the port, p the time in the port, and L the longest of all t[s]. An
//! access of W bytes has chunks of c bytes; the last chunk is the remainder. Chunk k (from 1) counts as *streamed* at
//!
//! ```text
//! S(k c) + f − L                     if f is L or more
//! S(k c − c (L − f) / p)             if f is less, so that the port is the longest stage: p = L
//! ```
//!
//! Both formulas give the same time if the stream's rate is constant. Each formula depends only on the part of the
//! stream before the chunk counts as streamed. A smaller last chunk counts as streamed at the same fraction of its own
//! size. The times above exclude the latencies of the pool and of the link to the NPU. A load incurs these latencies
//! before the port, a store after it.
//!
//! *Loads.* A chunk arrives at the port when it has streamed. The port serves the chunk after earlier arrivals, and
//! takes the chunk's bytes / bandwidth. The load ends with its last chunk.
//!
//! *Stores.* Chunk k arrives at the port at S((k − 1) c) and waits there for w[k], so it reaches the later stages w[k]
//! later. The longest stage is always busy and cannot catch up with chunks that arrive late. The store therefore ends
//! max w[k] + (bytes of the last chunk / bandwidth) after the last chunk has streamed.
//!
//! # Alone
//!
//! If an access is alone, S(k c) = k L. A load's chunks arrive at intervals of L, and L is at least p, so no chunk
//! waits for an earlier chunk. For the same reason, no chunk of a store waits. Loads and stores end at W / c x L + f −
//! L + p, which is S(W) + sum of t[s] − max t[s]: the same end as without a shared port. If several accesses of one NPU
//! share the port, p is the time of one chunk, summed over these accesses. The access whose chunk is served last ends
//! at the time above, with this p. Every other access ends earlier, by one chunk for each access that the port serves
//! after it. A smaller last chunk takes less time at the port, so the access ends earlier, by at most the time of the
//! missing bytes. Times at the port are differences of rounded sums, so rounding errors do not accumulate.
//!
//! Chunks that arrive at the same instant are ordered by NPU, then by node. The state of an access does not grow with
//! its number of chunks, except for chunks that are still between the stream and the port because of latencies. If too
//! many chunks are in flight at once, the replay fails with an error.

use super::{MemoryAccessEnd, RemoteMemoryAccess};
use chakram_base::ids::Npu;
use chakram_base::units::{Bandwidth, Span, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[cfg(test)]
mod tests;

/// If less than this fraction of a chunk remains, the rest is treated as a rounding error.
const NOTHING: f64 = 1e-9;

/// Maximum number of chunks in flight to ports. Each chunk takes 40 bytes of memory.
const MOST: usize = 1 << 23;

/// Arrival of a chunk at the port of its NPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkArrivalAtNpuPort {
    /// NPU of the port.
    pub npu: Npu,
    /// True for a store, which goes out, and false for a load, which comes in.
    pub store: bool,
    /// Serialization time at the port.
    pub span: Span,
    /// True for the last chunk of the access.
    pub last: bool,
}

/// Returns the number of chunks, at least one, in an access of `bytes`; a chunk has `chunk_bytes` bytes.
pub(super) fn chunk_count(bytes: f64, chunk_bytes: f64) -> u64 {
    ((bytes / chunk_bytes - NOTHING).ceil() as u64).max(1)
}

/// Seconds that one chunk takes in all stages before the port together, in the port, and in the longest stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkTimeBeforeAndInPort {
    pub front: f64,
    pub port: f64,
    pub longest: f64,
}

/// An access that is split into chunks, and its progress.
#[derive(Clone, Copy, Debug)]
struct ChunkedAccessProgress {
    access: RemoteMemoryAccess,
    /// Bytes of the access that one chunk carries.
    chunk_bytes: f64,
    /// Number of bytes that pass through the port for each byte of the access.
    weight: f64,
    count: u64,
    /// Index of the next chunk.
    next: u64,
    /// Fraction of a chunk that has not yet passed when it counts as streamed.
    ahead: f64,
    /// Delay from the end of a chunk's stream until a load's chunk reaches the port, or until a store ends.
    behind: Span,
    /// The longest time for which any of a store's chunks waited at the port.
    waited: Span,
}

/// An event of an access: a chunk arrives at its port, or a store's stream ends after its last chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ChunkArrivalOrStoreEnd {
    at: Time,
    npu: u32,
    token: u64,
    number: u64,
    slot: u32,
}

/// The accesses that still have chunks in flight.
#[derive(Debug)]
pub(super) struct ChunkedAccessesInFlight {
    port: Bandwidth,
    /// Total latency that a chunk incurs after it has streamed.
    latency: Span,
    accesses: Vec<ChunkedAccessProgress>,
    free: Vec<u32>,
    coming: BinaryHeap<Reverse<ChunkArrivalOrStoreEnd>>,
}

impl ChunkedAccessesInFlight {
    pub fn new(port: Bandwidth, latency: Span) -> Self {
        Self {
            port,
            latency,
            accesses: Vec::new(),
            free: Vec::new(),
            coming: BinaryHeap::new(),
        }
    }

    /// Starts the stream of an access. Returns the access's number, which is reused after the access ends.
    pub fn open_stream(
        &mut self,
        access: RemoteMemoryAccess,
        chunk_bytes: f64,
        weight: f64,
        times: ChunkTimeBeforeAndInPort,
    ) -> u32 {
        // The difference is negative if the port alone takes longer than all earlier stages; chunks then count as
        // streamed early.
        let behind = times.front - times.longest;
        let chunked = ChunkedAccessProgress {
            access,
            chunk_bytes,
            weight,
            count: match access.bytes {
                0 => 1,
                bytes => chunk_count(bytes as f64, chunk_bytes),
            },
            next: 0,
            ahead: if behind < 0.0 {
                -behind / times.port
            } else {
                0.0
            },
            behind: Span::from_seconds_saturating(behind),
            waited: Span::ZERO,
        };
        // Reuse a free slot, so that memory grows only with the number of concurrent accesses.
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

    /// Returns the number of streamed bytes after which the caller must call [`Self::on_chunk_streamed`] for an access,
    /// or `None` if no further call is needed.
    pub fn next_awaited_stream_position(&self, number: u32) -> Option<f64> {
        self.accesses[number as usize].next_position_to_stream()
    }

    /// Handles the event that the stream of access `number` has reached [`Self::next_awaited_stream_position`].
    pub fn on_chunk_streamed(&mut self, now: Time, number: u32) {
        let chunked = &mut self.accesses[number as usize];
        // A store's chunk reaches the port immediately and incurs its latencies afterwards.
        let at = if chunked.access.store && chunked.next < chunked.count {
            now
        } else {
            now + self.latency + chunked.behind
        };
        self.coming.push(Reverse(ChunkArrivalOrStoreEnd {
            at,
            npu: chunked.access.npu.0,
            token: chunked.access.token,
            number: chunked.next,
            slot: number,
        }));
        chunked.next += 1;
    }

    /// Returns true if the number of chunks in flight has reached the maximum that memory allows; the replay then
    /// fails.
    pub fn has_too_many_chunks_in_flight(&self) -> bool {
        self.coming.len() > MOST
    }

    /// Returns the time at which the next chunk arrives at a port or the next store ends.
    pub fn next_chunk_arrival_or_store_end(&self) -> Option<Time> {
        self.coming.peek().map(|Reverse(coming)| coming.at)
    }

    /// Serves each chunk that is due `now`. `serve` returns the time at which the port begins to serve the chunk.
    /// `take` receives the ends of accesses.
    pub fn serve_due_chunks(
        &mut self,
        now: Time,
        mut serve: impl FnMut(ChunkArrivalAtNpuPort) -> Time,
        mut take: impl FnMut(MemoryAccessEnd),
    ) {
        while let Some(&Reverse(coming)) = self.coming.peek().filter(|next| next.0.at <= now) {
            self.coming.pop();
            let chunked = &mut self.accesses[coming.slot as usize];
            let mut over = |at| {
                let token = coming.token;
                take(MemoryAccessEnd { token, at });
                self.free.push(coming.slot);
            };
            // The entry after a store's last chunk marks the end of the store's stream.
            if coming.number == chunked.count {
                over(
                    now + chunked.waited
                        + chunked.chunk_serialization_time_at_port(chunked.count - 1, self.port),
                );
                continue;
            }
            let RemoteMemoryAccess { npu, store, .. } = chunked.access;
            let (span, last) = (
                chunked.chunk_serialization_time_at_port(coming.number, self.port),
                coming.number + 1 == chunked.count,
            );
            let begin = serve(ChunkArrivalAtNpuPort {
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

impl ChunkedAccessProgress {
    /// Returns the number of bytes of the access that precede a chunk.
    fn bytes_before_chunk(&self, chunk: u64) -> f64 {
        if chunk < self.count {
            chunk as f64 * self.chunk_bytes
        } else {
            self.access.bytes as f64
        }
    }

    /// Returns the position in an access, in bytes, that the stream must have reached for a chunk to count as streamed.
    fn position_at_which_chunk_is_streamed(&self, chunk: u64) -> f64 {
        let (from, to) = (
            self.bytes_before_chunk(chunk),
            self.bytes_before_chunk(chunk + 1),
        );
        to - self.ahead * (to - from)
    }

    fn next_position_to_stream(&self) -> Option<f64> {
        match (self.access.store, self.next < self.count) {
            (false, true) => Some(self.position_at_which_chunk_is_streamed(self.next)),
            (false, false) => None,
            (true, true) => Some(self.bytes_before_chunk(self.next)),
            (true, false) => (self.next == self.count)
                .then(|| self.position_at_which_chunk_is_streamed(self.count - 1)),
        }
    }

    /// Returns the serialization time of a chunk at the port.
    fn chunk_serialization_time_at_port(&self, chunk: u64, port: Bandwidth) -> Span {
        let rate = port.bytes_per_second() / self.weight;
        // The time is a difference of rounded sums, so that rounding errors do not accumulate over
        // chunks.
        let to = |chunk| Span::from_seconds_saturating(self.bytes_before_chunk(chunk) / rate);
        to(chunk + 1) - to(chunk)
    }
}
