//! Channels whose data reaches the NPUs through network ports.
//!
//! A channel sends at its own or the port's bandwidth, whichever is lower. All times of a stream are therefore known
//! when the stream begins: byte x passes at S(x) = begin + x / bandwidth. A stream has two stages: the channel and the
//! port.

use super::chunked_access::{
    ChunkArrivalAtNpuPort, ChunkTimeBeforeAndInPort, ChunkedAccessesInFlight,
};
use super::{MemoryAccessEnd, MemoryNetworkAttachment, RemoteMemoryAccess};
use chakram_base::units::{Bandwidth, Span, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The accesses of all channels, including those that still wait for their channel.
#[derive(Debug)]
pub(super) struct PendingAccessesOfAllChannels {
    channel: Bandwidth,
    through: MemoryNetworkAttachment,
    chunks: ChunkedAccessesInFlight,
    /// Time at which each stream begins, by index of the access.
    begins: Vec<Time>,
    /// Times at which streams reach the next position that a chunk waits for.
    due: BinaryHeap<Reverse<(Time, u32)>>,
    unsettled: bool,
    settlement: u32,
}

/// Returns the rate of a stream in bytes per second: the lower of the channel's and the port's rate.
pub(super) fn slower_of_channel_and_port_rate(
    channel: Bandwidth,
    through: &MemoryNetworkAttachment,
) -> Bandwidth {
    if through.port_bandwidth() < channel {
        through.port_bandwidth()
    } else {
        channel
    }
}

/// Returns the seconds that a chunk spends in the channel and in the port, for an access of `bytes`.
pub(super) fn chunk_seconds_in_channel_and_port(
    channel: Bandwidth,
    through: &MemoryNetworkAttachment,
    bytes: u64,
) -> [f64; 2] {
    let chunk_bytes = through.chunk_size().0.min(bytes) as f64;
    [channel, through.port_bandwidth()].map(|rate| chunk_bytes / rate.bytes_per_second())
}

impl PendingAccessesOfAllChannels {
    /// Creates the state without any accesses; `latency` is the sum of the channel's and the port's latency.
    pub fn new(channel: Bandwidth, through: &MemoryNetworkAttachment, latency: Span) -> Self {
        Self {
            channel,
            through: through.clone(),
            chunks: ChunkedAccessesInFlight::new(through.port_bandwidth(), latency),
            begins: Vec::new(),
            due: BinaryHeap::new(),
            unsettled: false,
            settlement: 0,
        }
    }

    /// Starts the stream of an access that begins to occupy its channel at `begin`.
    pub fn start_stream_of_access(&mut self, begin: Time, access: RemoteMemoryAccess) {
        let [front, port] =
            chunk_seconds_in_channel_and_port(self.channel, &self.through, access.bytes);
        let times = ChunkTimeBeforeAndInPort {
            front,
            port,
            longest: front.max(port),
        };
        let chunk_bytes = self.through.chunk_size().0 as f64;
        let number = self.chunks.open_stream(access, chunk_bytes, 1.0, times);
        if number as usize == self.begins.len() {
            self.begins.push(begin);
        } else {
            self.begins[number as usize] = begin;
        }
        self.schedule_next_chunk_of_access(number);
        self.unsettled = true;
    }

    /// If an access has a next chunk, schedules [`Self::on_chunks_streamed`] for it.
    fn schedule_next_chunk_of_access(&mut self, number: u32) {
        if let Some(bytes) = self.chunks.next_awaited_stream_position(number) {
            let rate =
                slower_of_channel_and_port_rate(self.channel, &self.through).bytes_per_second();
            let at = self.begins[number as usize] + Span::from_seconds_saturating(bytes / rate);
            self.due.push(Reverse((at, number)));
        }
    }

    pub fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    pub fn settle_streams_and_find_next_event(&mut self) -> Option<(Time, u32)> {
        self.unsettled = false;
        self.settlement = self.settlement.wrapping_add(1);
        let due = self.due.peek().map(|Reverse((at, _))| *at);
        let next = [due, self.chunks.next_chunk_arrival_or_store_end()]
            .into_iter()
            .flatten()
            .min();
        next.map(|at| (at, self.settlement))
    }

    pub fn on_chunks_streamed(&mut self, now: Time, settlement: u32) {
        if settlement != self.settlement {
            return;
        }
        while let Some(&Reverse((_, number))) = self.due.peek().filter(|next| next.0.0 <= now)
            // If too many chunks are in flight, the replay fails, so no further event is needed.
            && !self.chunks.has_too_many_chunks_in_flight()
        {
            self.due.pop();
            self.chunks.on_chunk_streamed(now, number);
            self.schedule_next_chunk_of_access(number);
        }
        self.unsettled = true;
    }

    /// Returns true if more chunks are in flight than memory allows
    /// ([`ChunkedAccessesInFlight::has_too_many_chunks_in_flight`]).
    pub fn has_too_many_chunks_in_flight(&self) -> bool {
        self.chunks.has_too_many_chunks_in_flight()
    }

    /// Serves the chunks that are due `now` ([`ChunkedAccessesInFlight::serve_due_chunks`]).
    pub fn serve_due_chunks(
        &mut self,
        now: Time,
        serve: impl FnMut(ChunkArrivalAtNpuPort) -> Time,
        take: impl FnMut(MemoryAccessEnd),
    ) {
        self.chunks.serve_due_chunks(now, serve, take);
    }
}
