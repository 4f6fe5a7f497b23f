//! Max-min fair sharing of a pool's links among concurrent accesses.
//!
//! Bytes of an access form a stream that occupies all servers on its path at the same time. At each moment, the
//! streams' rates are *max-min fair*: all rise together until a server saturates. That server fixes the rates of the
//! streams that pass through it; all other rates continue to rise. As a result, no rate can grow unless an equal or
//! lower rate falls. Rates change when an access begins or ends, and are constant in between.
//!
//! Bytes move in chunks, and a chunk crosses one stage after another. The first chunk therefore leaves the last stage
//! later than a continuous stream would. This delay is the *fill* of the pipeline. If `t[s]` is the time of one chunk
//! in stage `s`, under the accesses in flight when the access began,
//!
//! ```text
//! end = begin + latency + (the stream's time) + sum of t[s] - max of t[s]
//! ```
//!
//! For n equal accesses that begin together on an idle pool, the stream takes stages x max t[s], where stages = chunks
//! per access. The resulting time is the pipeline of the ASTRA-sim 2.0 paper (section IV-D, Fig. 7): sum of t[s] +
//! (stages - 1) x max t[s]. `stages` need not be a whole number: a smaller last chunk streams for its exact share of
//! the time. The fill, by contrast, is computed for a whole chunk. An access smaller than one chunk counts as a single
//! chunk of its own size, so it takes the sum of t[s].
//!
//! With network ports, streams behave in the same way, and chunks also queue at the ports (`memory/chunked_access.rs`).
//!
//! The stream's time and the fill are each rounded once, to the nearest picosecond. The order of accesses that begin at
//! the same instant affects only the last bits of sums.

use super::chunked_access::{
    ChunkArrivalAtNpuPort, ChunkTimeBeforeAndInPort, ChunkedAccessesInFlight,
};
use super::pool_layout::{NpuPathsOverPoolServers, PORTS, PathServerStageAndWeight};
use super::{MemoryAccessEnd, RemoteMemoryAccess};
use chakram_base::units::{Span, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[cfg(test)]
pub(super) mod testing;

/// Rates whose relative difference is below this value count as equal. Equal rates must be fixed together, even if sums
/// in different orders give them different last bits.
const ALIKE: f64 = 1.0 + 1e-9;

/// The stream of an access in flight.
#[derive(Clone, Copy, Debug)]
struct InFlightAccessStream {
    access: RemoteMemoryAccess,
    /// Bytes that had not yet passed at time `since`.
    left: f64,
    since: Time,
    /// Rate, in bytes per second, from time `since`, or zero before rates are first computed.
    rate: f64,
    /// Time at which the stream ends if its rate does not change.
    passed: Time,
    /// Pipeline fill added to the end of the stream, or `None` before rates are first computed.
    fill: Option<Span>,
    /// True once the current computation of rates has fixed the stream's rate.
    fixed: bool,
    /// Index of the access in `FairSharedPoolAccesses::chunks`, for as long as any of its chunks has not streamed.
    chunked: Option<u32>,
}

/// The accesses in flight in one layout.
#[derive(Debug)]
pub(super) struct FairSharedPoolAccesses {
    layout: NpuPathsOverPoolServers,
    latency: Span,
    streams: Vec<InFlightAccessStream>,
    /// Chunked accesses, if network ports are used.
    chunks: Option<ChunkedAccessesInFlight>,
    /// Times at which streams end or reach the next position that a chunk waits for, each with the stream's index. Used
    /// only with `chunks`.
    due: BinaryHeap<Reverse<(Time, u32)>>,
    unsettled: bool,
    /// True if streams have begun or ended since rates were last fixed.
    changed: bool,
    settlement: u32,
    servers: Vec<ServerLoadSums>,
    /// Scratch space for the time of a chunk in each stage while a fill is computed.
    stages: Vec<f64>,
}

/// Load of a server while rates are computed.
#[derive(Clone, Copy, Debug, Default)]
struct ServerLoadSums {
    /// Sum of the weights of all streams at the server.
    load: f64,
    /// Sum of the weights of the streams at the server whose rates are not fixed yet.
    open: f64,
    count: u32,
    /// Bytes per second that the streams with fixed rates take.
    taken: f64,
    /// Common rate of the open streams at which the server saturates.
    full: f64,
}

impl FairSharedPoolAccesses {
    /// Creates the state without accesses. If `chunks` is given, the chunks determine when accesses end.
    pub fn new(
        layout: NpuPathsOverPoolServers,
        latency: Span,
        chunks: Option<ChunkedAccessesInFlight>,
    ) -> Self {
        Self {
            servers: vec![ServerLoadSums::default(); layout.server_rates().len()],
            stages: vec![0.0; layout.stage_count()],
            layout,
            latency,
            streams: Vec::new(),
            chunks,
            due: BinaryHeap::new(),
            unsettled: false,
            changed: false,
            settlement: 0,
        }
    }

    pub fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    pub fn add_access_stream_without_rate(&mut self, now: Time, access: RemoteMemoryAccess) {
        self.streams.push(InFlightAccessStream {
            access,
            left: access.bytes as f64,
            since: now,
            rate: 0.0,
            // This value is only a placeholder: rates are first computed at the same instant and replace it.
            passed: Time::END,
            fill: None,
            fixed: false,
            chunked: None,
        });
        self.unsettled = true;
        self.changed = true;
    }

    pub fn end_accesses(
        &mut self,
        now: Time,
        settlement: u32,
        mut take: impl FnMut(MemoryAccessEnd),
    ) {
        if settlement != self.settlement {
            return;
        }
        self.unsettled = true;
        if self.chunks.is_some() {
            self.report_stream_progress_to_chunks(now);
            return;
        }
        let latency = self.latency;
        self.streams.retain(|stream| {
            let over = stream.passed <= now;
            if over {
                take(MemoryAccessEnd {
                    token: stream.access.token,
                    at: now + latency + stream.fill.unwrap_or(Span::ZERO),
                });
            }
            !over
        });
        self.changed = true;
    }

    /// Serves the chunks that are due `now` ([`ChunkedAccessesInFlight::serve_due_chunks`]).
    pub fn serve_due_chunks(
        &mut self,
        now: Time,
        serve: impl FnMut(ChunkArrivalAtNpuPort) -> Time,
        take: impl FnMut(MemoryAccessEnd),
    ) {
        if let Some(chunks) = &mut self.chunks {
            chunks.serve_due_chunks(now, serve, take);
        }
    }

    /// Returns true if more chunks are in flight than memory allows
    /// ([`ChunkedAccessesInFlight::has_too_many_chunks_in_flight`]).
    pub fn has_too_many_chunks_in_flight(&self) -> bool {
        self.chunks
            .as_ref()
            .is_some_and(ChunkedAccessesInFlight::has_too_many_chunks_in_flight)
    }

    /// Notifies `chunks` of the positions that streams have reached.
    fn report_stream_progress_to_chunks(&mut self, now: Time) {
        let Some(chunks) = &mut self.chunks else {
            return;
        };
        while let Some(&Reverse((_, index))) = self.due.peek().filter(|next| next.0.0 <= now)
            && !chunks.has_too_many_chunks_in_flight()
        {
            self.due.pop();
            let stream = &mut self.streams[index as usize];
            match stream.chunked {
                Some(chunked) => {
                    chunks.on_chunk_streamed(now, chunked);
                    let at = stream.next_awaited_position_or_end_time(chunks);
                    self.due.push(Reverse((at, index)));
                }
                None => self.changed = true,
            }
        }
        if self.changed {
            let streams = &mut self.streams;
            streams.retain(|stream| stream.chunked.is_some() || stream.passed > now);
        }
    }

    pub fn settle_rates_and_find_next_event(&mut self, now: Time) -> Option<(Time, u32)> {
        self.unsettled = false;
        // The new number invalidates the event for the previous rates, which is still in the agenda.
        self.settlement = self.settlement.wrapping_add(1);
        if std::mem::take(&mut self.changed) {
            self.compute_stream_rates(now);
        }
        let next = match &self.chunks {
            None => self.streams.iter().map(|stream| stream.passed).min(),
            Some(chunks) => {
                let due = self.due.peek().map(|Reverse((at, _))| *at);
                [due, chunks.next_chunk_arrival_or_store_end()]
                    .into_iter()
                    .flatten()
                    .min()
            }
        };
        next.map(|at| (at, self.settlement))
    }

    /// Computes the rate of every stream.
    fn compute_stream_rates(&mut self, now: Time) {
        self.sum_stream_weights_at_servers();
        self.compute_pipeline_fills();
        // Progressive filling: each round saturates at least one server, so there are at most as many rounds as
        // servers.
        let mut open = self.streams.len();
        while open > 0 {
            open -= self.fix_bottleneck_rates(now);
        }
        if let Some(chunks) = &self.chunks {
            // Reuse the heap's allocation. Rates change for all streams, so all due times are replaced.
            let mut due = std::mem::take(&mut self.due).into_vec();
            due.clear();
            let streams = (0..).zip(&mut self.streams);
            due.extend(streams.map(|(index, stream)| {
                Reverse((stream.next_awaited_position_or_end_time(chunks), index))
            }));
            self.due = due.into();
        }
    }

    /// Sums the weights at each server; no rate is fixed yet.
    fn sum_stream_weights_at_servers(&mut self) {
        self.servers.fill(ServerLoadSums::default());
        for stream in &mut self.streams {
            stream.fixed = false;
            for leg in self.layout.servers_on_path(&stream.access) {
                let server = &mut self.servers[leg.server as usize];
                server.load += weight_at_server(leg, &stream.access);
                server.count += 1;
            }
        }
        for server in &mut self.servers {
            server.open = server.load;
        }
    }

    /// Computes the pipeline fills of accesses that have just begun.
    fn compute_pipeline_fills(&mut self) {
        for stream in &mut self.streams {
            // An access's pipeline fill depends only on the load when its rate is first computed, so it is computed
            // once.
            if stream.fill.is_some() {
                continue;
            }
            let chunk_bytes = self.layout.chunk_bytes.min(stream.access.bytes as f64);
            self.stages.fill(0.0);
            for leg in self.layout.servers_on_path(&stream.access) {
                let load = self.servers[leg.server as usize].load;
                let time = chunk_bytes * load / self.layout.server_rates()[leg.server as usize];
                let stage = &mut self.stages[leg.stage as usize];
                *stage = stage.max(time);
            }
            let longest = self.stages.iter().copied().fold(0.0, f64::max);
            let all: f64 = self.stages.iter().sum();
            stream.fill = Some(Span::from_seconds_saturating(all - longest));
            if let Some(chunks) = &mut self.chunks {
                let port = std::mem::take(&mut self.stages[PORTS as usize]);
                let times = ChunkTimeBeforeAndInPort {
                    front: self.stages.iter().sum(),
                    port,
                    longest,
                };
                let weight = weight_at_server(self.layout.port_hop(&stream.access), &stream.access);
                stream.chunked =
                    Some(chunks.open_stream(stream.access, self.layout.chunk_bytes, weight, times));
            }
        }
    }

    /// Raises the open rates until a server saturates, and fixes the rates of the streams that pass through it. Returns
    /// the number of these streams.
    fn fix_bottleneck_rates(&mut self, now: Time) -> usize {
        let mut lowest = f64::INFINITY;
        for (server, rate) in self.servers.iter_mut().zip(self.layout.server_rates()) {
            if server.count > 0 {
                server.full = (rate - server.taken) / server.open;
                lowest = lowest.min(server.full);
            }
        }
        let mut fixed = 0;
        for stream in &mut self.streams {
            let mut way = self.layout.servers_on_path(&stream.access);
            // Compare within the tolerance, so that one round fixes all streams at the same bottleneck.
            let full = |leg: PathServerStageAndWeight| {
                self.servers[leg.server as usize].full <= lowest * ALIKE
            };
            if stream.fixed || !way.any(full) {
                continue;
            }
            stream.fixed = true;
            fixed += 1;
            stream.set_rate(now, lowest);
            for leg in self.layout.servers_on_path(&stream.access) {
                let weight = weight_at_server(leg, &stream.access);
                let server = &mut self.servers[leg.server as usize];
                server.taken += weight * lowest;
                server.open -= weight;
                server.count -= 1;
            }
        }
        fixed
    }
}

impl InFlightAccessStream {
    /// Makes the stream continue at `rate` from time `now`.
    fn set_rate(&mut self, now: Time, rate: f64) {
        // An unchanged rate keeps `since`, so that the stream's end is not rounded again.
        if rate == self.rate {
            return;
        }
        let gone = self.rate * now.since(self.since).as_seconds();
        // Rounding of instants may add a fraction of a byte to `gone`, so clamp the result to zero.
        self.left = (self.left - gone).max(0.0);
        (self.since, self.rate) = (now, rate);
        self.passed = now + Span::from_seconds_saturating(self.left / rate);
    }

    /// Returns the time at which the stream reaches the next position that a chunk waits for, or its end if no chunk
    /// waits.
    fn next_awaited_position_or_end_time(&mut self, chunks: &ChunkedAccessesInFlight) -> Time {
        self.chunked = self
            .chunked
            .filter(|&chunked| chunks.next_awaited_stream_position(chunked).is_some());
        let Some(position) = self
            .chunked
            .and_then(|chunked| chunks.next_awaited_stream_position(chunked))
        else {
            return self.passed;
        };
        let gone = self.access.bytes as f64 - self.left;
        self.since + Span::from_seconds_saturating((position - gone) / self.rate)
    }
}

/// Returns the bytes that the server of `leg` carries for each byte of `access`.
fn weight_at_server(leg: PathServerStageAndWeight, access: &RemoteMemoryAccess) -> f64 {
    if access.in_switch {
        leg.in_switch
    } else {
        leg.weight
    }
}
